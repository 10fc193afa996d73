//! Filters of system calls. A call that is not listed fails with `EPERM`.

mod calls;

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, apply_filter_all_threads,
};

use crate::config::PortKind;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Restricts all threads of the process, which has ports of these kinds.
///
/// # Errors
/// A sentence: the kernel has no filters, or refuses.
pub(super) fn base(kinds: &BTreeSet<&str>) -> Result<(), String> {
    let refused = |error: seccompiler::Error| error.to_string();
    apply_filter_all_threads(&allowing(base_rules(kinds)?)?).map_err(refused)?;
    // clone3(2) has its flags in memory, where no filter sees them. The C library takes clone(2) where it is not
    // implemented, whose flags are looked at. Of two filters that refuse a call the later one's error counts.
    let none = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let action = SeccompAction::Errno(libc::ENOSYS as u32);
    apply_filter_all_threads(&compiled(none, SeccompAction::Allow, action)?).map_err(refused)
}

/// Restricts the calling worker further, which has ports of these kinds.
///
/// # Errors
/// A sentence: the kernel refuses.
pub(super) fn worker(kinds: &[PortKind], journald: bool) -> Result<(), String> {
    let rules = worker_rules(kinds.iter().map(PortKind::word), journald)?;
    apply_filter(&allowing(rules)?).map_err(|error| error.to_string())
}

fn base_rules(kinds: &BTreeSet<&str>) -> Result<Rules, String> {
    let mut rules = any(calls::WORKER.iter().chain(calls::CONTROL));
    for kind in kinds {
        rules.extend(any(calls::of_kind(kind).0.iter().chain(calls::of_kind(kind).1)));
    }
    without_execution(&mut rules)?;
    let thread = i64::from(libc::CLONE_THREAD | libc::CLONE_VM) as u64;
    rules.insert(libc::SYS_clone, vec![rule(0, masked(thread), thread)?]);
    let families = calls::families(kinds).into_iter();
    let families = families.map(|family| rule(0, SeccompCmpOp::Eq, family as u64));
    rules.insert(libc::SYS_socket, families.collect::<Result<_, _>>()?);
    let unix = rule(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?;
    rules.insert(libc::SYS_socketpair, vec![unix]);
    // Limits are read, not changed.
    rules.insert(libc::SYS_prlimit64, vec![long(2, SeccompCmpOp::Eq, 0)?]);
    let options = [libc::PR_SET_NO_NEW_PRIVS, libc::PR_SET_NAME, libc::PR_SET_TIMERSLACK];
    let options = options.map(|option| rule(0, SeccompCmpOp::Eq, option as u64));
    rules.insert(libc::SYS_prctl, options.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

fn worker_rules<'k>(kinds: impl Iterator<Item = &'k str>, journald: bool) -> Result<Rules, String> {
    let mut rules = any(calls::WORKER);
    for kind in kinds {
        rules.extend(any(calls::of_kind(kind).0));
    }
    if journald {
        rules.extend(any(calls::JOURNALD));
    }
    without_execution(&mut rules)?;
    let slack = rule(0, SeccompCmpOp::Eq, libc::PR_SET_TIMERSLACK as u64)?;
    rules.insert(libc::SYS_prctl, vec![slack]);
    Ok(rules)
}

/// Memory is not made executable.
fn without_execution(rules: &mut Rules) -> Result<(), String> {
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![rule(2, masked(libc::PROT_EXEC as u64), 0)?]);
    }
    Ok(())
}

fn any<'c>(calls: impl IntoIterator<Item = &'c i64>) -> Rules {
    calls.into_iter().map(|&call| (call, Vec::new())).collect()
}

fn masked(mask: u64) -> SeccompCmpOp {
    SeccompCmpOp::MaskedEq(mask)
}

/// An argument of 32 bits is as given.
fn rule(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    condition(argument, SeccompCmpArgLen::Dword, op, value)
}

/// The same of 64 bits.
fn long(argument: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    condition(argument, SeccompCmpArgLen::Qword, op, value)
}

fn condition(
    argument: u8,
    len: SeccompCmpArgLen,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, String> {
    let condition = SeccompCondition::new(argument, len, op, value);
    let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
    rule.map_err(|error| error.to_string())
}

fn allowing(rules: Rules) -> Result<BpfProgram, String> {
    compiled(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// `matched` for the calls of the rules, `other` for all others.
fn compiled(
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

    #[test]
    fn filters_compile_for_each_kind_and_a_worker_has_no_call_that_the_base_lacks() {
        for kind in PortKind::WORDS {
            let base = base_rules(&BTreeSet::from([kind])).unwrap();
            let worker = worker_rules([kind].into_iter(), false).unwrap();
            for call in worker.keys() {
                assert!(base.contains_key(call), "{kind}: call {call}");
            }
            assert!(worker.len() < base.len() / 2, "{kind}: {} of {}", worker.len(), base.len());
            assert!(allowing(base).unwrap().len() < 4096);
            allowing(worker).unwrap();
        }
    }

    #[test]
    fn nothing_is_executed_mounted_or_traced() {
        let all = base_rules(&PortKind::WORDS.into_iter().collect()).unwrap();
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
        ] {
            assert!(!all.contains_key(&call), "call {call}");
        }
        let ring = base_rules(&BTreeSet::from(["ring"])).unwrap();
        assert!(all.contains_key(&libc::SYS_bpf) && !ring.contains_key(&libc::SYS_bpf));
    }
}
