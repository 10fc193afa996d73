//! Seccomp filters. A system call that is not listed fails with `EPERM`, except clone3(2) and openat2(2), which fail
//! with `ENOSYS`.

mod calls;

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, apply_filter_all_threads,
};

use config::PortKind;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Properties of the process's ports that determine its system calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    pub(super) kinds: BTreeSet<&'static str>,
    /// True if a port connects to a Unix socket. Only a memif client does.
    pub(super) connects_unix: bool,
}

/// Restricts the system calls of all threads of the process.
///
/// # Errors
/// The kernel has no seccomp filters, or refuses this filter. The error is one sentence.
pub(super) fn install_base(ports: &Ports) -> Result<(), String> {
    let refused = |error: seccompiler::Error| error.to_string();
    apply_filter_all_threads(&allow_filter(base_rules(ports)?)?).map_err(refused)?;
    // clone3(2) and openat2(2) pass flags and modes in memory, which a filter cannot read. `ENOSYS` makes libraries
    // fall back to clone(2) and openat(2), whose arguments the base filter compares. If both filters refuse a call, the
    // later filter determines the error.
    let none = allow_calls(&[libc::SYS_clone3, libc::SYS_openat2]);
    let action = SeccompAction::Errno(libc::ENOSYS as u32);
    apply_filter_all_threads(&compile(none, SeccompAction::Allow, action)?).map_err(refused)
}

/// Restricts the calling thread further: to the system calls that every worker needs or that ports of these kinds need.
/// `journald`: the process logs to systemd's journal.
///
/// # Errors
/// The kernel refuses the filter. The error is one sentence.
pub(super) fn install_worker(kinds: &[PortKind], journald: bool) -> Result<(), String> {
    let rules = worker_rules(kinds.iter().map(PortKind::name), journald)?;
    apply_filter(&allow_filter(rules)?).map_err(|error| error.to_string())
}

fn base_rules(Ports { kinds, connects_unix: connects }: &Ports) -> Result<Rules, String> {
    let mut rules = allow_calls(calls::WORKER.iter().chain(calls::CONTROL));
    for kind in kinds {
        let (worker, other) = calls::calls_of_kind(kind)?;
        rules.extend(allow_calls(worker.iter().chain(other)));
    }
    if *connects {
        rules.extend(allow_calls(calls::CONNECT));
    }
    add_conditions(&mut rules)?;
    let thread = i64::from(libc::CLONE_THREAD | libc::CLONE_VM) as u64;
    rules.insert(libc::SYS_clone, vec![rule_32(0, masked_eq(thread), thread)?]);
    let families = calls::socket_families(kinds).into_iter();
    let families = families.map(|family| rule_32(0, SeccompCmpOp::Eq, family as u64));
    let mut sockets = families.collect::<Result<Vec<_>, _>>()?;
    sockets.push(unix_stream_rule()?);
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_socketpair, vec![unix_stream_rule()?]);
    // The new limit must be a null pointer: limits are read, not changed.
    rules.insert(libc::SYS_prlimit64, vec![rule_64(2, SeccompCmpOp::Eq, 0)?]);
    let options = [libc::PR_SET_NO_NEW_PRIVS, libc::PR_SET_NAME, libc::PR_SET_TIMERSLACK];
    let options = options.map(|option| rule_32(0, SeccompCmpOp::Eq, option as u64));
    rules.insert(libc::SYS_prctl, options.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

/// Returns the system calls that a worker may make. `journald`: true if the process logs to systemd's journal.
fn worker_rules<'k>(kinds: impl Iterator<Item = &'k str>, journald: bool) -> Result<Rules, String> {
    let mut rules = allow_calls(calls::WORKER);
    for kind in kinds {
        rules.extend(allow_calls(calls::calls_of_kind(kind)?.0));
    }
    if journald {
        rules.extend(allow_calls(calls::JOURNALD));
    } else {
        rules.insert(libc::SYS_sendto, vec![rule_64(4, SeccompCmpOp::Eq, 0)?]);
    }
    add_conditions(&mut rules)?;
    let slack = rule_32(0, SeccompCmpOp::Eq, libc::PR_SET_TIMERSLACK as u64)?;
    rules.insert(libc::SYS_prctl, vec![slack]);
    Ok(rules)
}

/// Allows stream sockets of the Unix family only. A datagram socket could send to any socket of the host without
/// connect(2).
fn unix_stream_rule() -> Result<SeccompRule, String> {
    /// Linux's `SOCK_TYPE_MASK`; the other bits are flags.
    const TYPE: u64 = 0xf;
    rule_all(&[
        (0, SeccompCmpOp::Eq, libc::AF_UNIX as u64),
        (1, masked_eq(TYPE), libc::SOCK_STREAM as u64),
    ])
}

/// Replaces the rules of system calls whose arguments are restricted in every thread. Calls that `rules` does not
/// contain stay denied.
fn add_conditions(rules: &mut Rules) -> Result<(), String> {
    /// Set-user-ID and set-group-ID bits.
    const PRIVILEGED: u64 = (libc::S_ISUID | libc::S_ISGID) as u64;
    /// Flags that create a file. Without them the kernel ignores the mode, which may then have any value.
    const MAKES: u64 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;
    let plain = |mode| rule_32(mode, masked_eq(PRIVILEGED), 0);
    let makes_none = |flags| rule_32(flags, masked_eq(MAKES), 0);
    let no_execution = || rule_32(2, masked_eq(libc::PROT_EXEC as u64), 0);
    // These ioctls put input into the terminal from which ddpd was started, so they are denied.
    let input = [libc::TIOCSTI, libc::TIOCLINUX];
    let input = input.map(|request| (1, SeccompCmpOp::Ne, request));
    let own = u64::from(std::process::id());
    let conditions = [
        (libc::SYS_mmap, vec![no_execution()?]),
        (libc::SYS_mprotect, vec![no_execution()?]),
        (libc::SYS_openat, vec![makes_none(2)?, plain(3)?]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, vec![makes_none(1)?, plain(2)?]),
        (libc::SYS_mkdirat, vec![plain(2)?]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mkdir, vec![plain(1)?]),
        (libc::SYS_ioctl, vec![rule_all(&input)?]),
        // tgkill(2) may signal only threads of this process.
        (libc::SYS_tgkill, vec![rule_32(0, SeccompCmpOp::Eq, own)?]),
    ];
    for (call, conditions) in conditions {
        if let Some(listed) = rules.get_mut(&call) {
            *listed = conditions;
        }
    }
    Ok(())
}

fn allow_calls<'c>(calls: impl IntoIterator<Item = &'c i64>) -> Rules {
    calls.into_iter().map(|&call| (call, Vec::new())).collect()
}

fn masked_eq(mask: u64) -> SeccompCmpOp {
    SeccompCmpOp::MaskedEq(mask)
}

/// Returns a rule that matches if this condition on a 32-bit argument holds.
fn rule_32(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    rule_all(&[(argument, op, value)])
}

/// Returns a rule that matches if all these conditions on 32-bit arguments hold.
fn rule_all(conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, String> {
    let conditions = conditions.iter().map(|(argument, op, value)| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, op.clone(), *value)
    });
    let rule = conditions.collect::<Result<_, _>>().and_then(SeccompRule::new);
    rule.map_err(|error| error.to_string())
}

/// Returns a rule that matches if this condition on a 64-bit argument holds.
fn rule_64(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, op, value);
    let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
    rule.map_err(|error| error.to_string())
}

fn allow_filter(rules: Rules) -> Result<BpfProgram, String> {
    compile(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// Compiles a filter: action `matched` for calls that match the rules, `other` for all others.
fn compile(
    rules: Rules,
    other: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(text)?;
    let filter = SeccompFilter::new(rules, other, matched, arch).map_err(text)?;
    BpfProgram::try_from(filter).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(kinds: &[&'static str]) -> Ports {
        Ports { kinds: kinds.iter().copied().collect(), connects_unix: false }
    }

    #[test]
    fn worker_filter_is_subset_of_base_for_each_port_kind() {
        for kind in PortKind::NAMES {
            let base = base_rules(&ports(&[kind])).unwrap();
            let worker = worker_rules([kind].into_iter(), false).unwrap();
            for call in worker.keys() {
                assert!(base.contains_key(call), "{kind}: call {call}");
            }
            for call in [libc::SYS_openat, libc::SYS_mkdirat, libc::SYS_ioctl, libc::SYS_tgkill] {
                let without = |rules: &Rules| rules.get(&call).is_some_and(Vec::is_empty);
                assert!(!without(&base) && !without(&worker), "{kind}: call {call}");
            }
            assert!(worker.len() < base.len() / 2, "{kind}: {} of {}", worker.len(), base.len());
            assert!(allow_filter(base).unwrap().len() < 4096);
            allow_filter(worker).unwrap();
        }
    }

    #[test]
    fn sandbox_escaping_system_calls_are_denied() {
        let all = base_rules(&ports(&PortKind::NAMES)).unwrap();
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_mount,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_init_module,
            libc::SYS_setuid,
            libc::SYS_capset,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_kill,
            libc::SYS_openat2,
            libc::SYS_fchmod,
            libc::SYS_fchmodat,
            libc::SYS_fchmodat2,
            libc::SYS_fchown,
            libc::SYS_fchownat,
            libc::SYS_setxattr,
            libc::SYS_connect,
        ] {
            assert!(!all.contains_key(&call), "call {call}");
        }
        let ring = base_rules(&ports(&["ring"])).unwrap();
        assert!(all.contains_key(&libc::SYS_bpf) && !ring.contains_key(&libc::SYS_bpf));
    }
    #[test]
    fn memif_client_may_connect() {
        let client = Ports { connects_unix: true, ..ports(&["memif"]) };
        assert!(base_rules(&client).unwrap().contains_key(&libc::SYS_connect));
        assert!(!base_rules(&ports(&["memif"])).unwrap().contains_key(&libc::SYS_connect));
    }
}
