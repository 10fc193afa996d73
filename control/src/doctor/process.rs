//! Privileges and limits of the process: capabilities and locked memory.

use config::privilege::{self, Capability, Need};
use config::show_size;

use super::finding::{Check, Finding, Severity};
use super::host::{Host, Unknown, listed};
use super::subject::Subject;
use crate::descriptors;

const CAPABILITIES: Check =
    Check("capabilities", "The kernel refuses what a port does without its capabilities.");
const LOCKED: Check = Check(
    "locked memory",
    "Regions that are not locked may be paged out, and a worker waits for the disk.",
);
const FILES: Check = Check(
    "file descriptors",
    "Without a free descriptor no file is opened and no client is served, management included.",
);

pub(super) fn capabilities(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let set = match host.capabilities() {
        Ok(set) => set,
        Err(why) => return found.push(CAPABILITIES.unknown(why)),
    };
    let before = found.len();
    for (_, port) in subject.ports() {
        let needs = privilege::needs(&host.path("/"), &port.kind).iter();
        let missing: Vec<&Need> = needs.filter(|need| !need.is_met(set)).collect();
        if missing.is_empty() {
            continue;
        }
        let error = missing.iter().any(|need| need.required);
        let severity = if error { Severity::Error } else { Severity::Warning };
        let names: Vec<String> =
            missing.iter().map(|need| need.capability.name().to_lowercase()).collect();
        let (names, kind) = (names.join(","), port.kind.word());
        let seen = format!("port {} ({kind}): this process has no {names}", port.name);
        found.push(
            CAPABILITIES
                .finding(severity, seen)
                .remedy("run ddpd as root, or with these capabilities (AmbientCapabilities= of its unit)")
                .command(format!("setcap {names}+ep \"$(command -v ddpd)\"")),
        );
    }
    if found.len() == before {
        let named = [Capability::NetAdmin, Capability::NetRaw, Capability::Bpf];
        let own = named.into_iter().filter(|&named| set.has(named));
        let own: Vec<_> = own.map(|own| own.name().to_lowercase()).collect();
        let own = if own.is_empty() {
            "none of cap_net_admin, cap_net_raw, cap_bpf".into()
        } else {
            listed(own)
        };
        found.push(CAPABILITIES.ok(format!("{own} (effective set {:x})", set.0)));
    }
}

pub(super) fn locked_memory(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let regions = subject.configs.iter().flat_map(|config| &config.regions);
    let wanted = regions.filter_map(|region| region.size).fold(0u64, u64::saturating_add);
    let (limit, set) = match limit(host).and_then(|limit| Ok((limit, host.capabilities()?))) {
        Ok(both) => both,
        Err(why) => return found.push(LOCKED.unknown(why)),
    };
    let wants = format!("the regions have {}", show_size(wanted));
    found.push(match limit {
        _ if set.has(Capability::IpcLock) => LOCKED.ok("without limit, by cap_ipc_lock"),
        None => LOCKED.ok("without limit"),
        Some(limit) if limit >= wanted => {
            LOCKED.ok(format!("{} may be locked, {wants}", show_size(limit)))
        }
        Some(limit) => LOCKED
            .warning(format!("{} may be locked, {wants}", show_size(limit)))
            .remedy(
                "raise RLIMIT_MEMLOCK (LimitMEMLOCK=infinity of its unit), or give it cap_ipc_lock",
            )
            .command("ulimit -H -l unlimited && ulimit -S -l unlimited"),
    });
}

pub(super) fn open_files(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let needed = descriptors::needed(&subject.configs);
    let limit = host.text("/proc/self/limits").and_then(|limits| privilege::open_files(&limits));
    found.push(match limit {
        Err(why) => FILES.unknown(why),
        Ok(None) => FILES.ok("without limit"),
        Ok(Some(limit)) if limit >= needed => {
            FILES.ok(format!("{limit} may be open (hard limit), ddpd takes {needed} at most"))
        }
        Ok(Some(limit)) => FILES
            .warning(format!("{limit} may be open (hard limit), ddpd may take {needed}"))
            .remedy("raise the hard limit of RLIMIT_NOFILE (LimitNOFILE=65536 of its unit)")
            .command("ulimit -H -n 65536"),
    });
}

/// Returns the soft limit of locked memory in bytes; `None` for no limit.
fn limit(host: &Host) -> Result<Option<u64>, Unknown> {
    privilege::locked_memory(&host.text("/proc/self/limits")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::{PACKET, RING, Tree, one, subject};

    fn with(capabilities: &str) -> Tree {
        Tree::new(&[("proc/self/status", &format!("Name:\tddpd\nCapEff:\t{capabilities}\n"))])
    }

    #[test]
    fn a_packet_port_needs_two_capabilities() {
        let packet = subject("count = 1", PACKET, "");
        let tree = with("0000000000000000");
        let found = tree.run(&packet, capabilities);
        assert_eq!(one(&found).0, Severity::Error);
        assert!(found[0].command.as_ref().unwrap().contains("cap_net_raw,cap_net_admin+ep"));
        assert_eq!(one(&with("2000").run(&packet, capabilities)).0, Severity::Warning);
        assert_eq!(one(&with("3000").run(&packet, capabilities)).0, Severity::Ok);
        assert_eq!(one(&tree.run(&subject("count = 1", RING, ""), capabilities)).0, Severity::Ok);
        assert_eq!(one(&with("no").run(&packet, capabilities)).0, Severity::Unknown);
        assert_eq!(one(&Tree::new(&[]).run(&packet, capabilities)).0, Severity::Unknown);
    }

    #[test]
    fn xdp_and_tap_need_theirs() {
        let xdp = subject("count = 1", "kind = \"af_xdp\"\ndevice = \"v0\"", "");
        let found = with("3000").run(&xdp, capabilities);
        assert_eq!(one(&found).0, Severity::Error);
        assert!(found[0].seen.ends_with("has no cap_bpf,cap_sys_admin"), "{found:?}");
        assert_eq!(one(&with("203000").run(&xdp, capabilities)).0, Severity::Ok);
        let tap = subject("count = 1", "kind = \"tap\"\ndevice = \"t0\"", "");
        assert_eq!(one(&with("2000").run(&tap, capabilities)).0, Severity::Error);
        assert_eq!(one(&with("1000").run(&tap, capabilities)).0, Severity::Ok);
    }

    #[test]
    fn regions_larger_than_the_lock_limit_are_a_warning() {
        let region = "[[region]]\nname = \"r\"\nsize = \"1 MiB\"\naccess = \"w\"";
        let subject = subject("count = 1", RING, region);
        let tree = with("0");
        let limit = |value: &str| {
            let line = format!(
                "Limit  Soft Hard\nMax locked memory         {value}    {value}    bytes\n"
            );
            tree.file("proc/self/limits", &line);
            let found = tree.run(&subject, locked_memory);
            one(&found).0
        };
        assert_eq!(limit("65536"), Severity::Warning);
        assert_eq!(limit("1048576"), Severity::Ok);
        assert_eq!(limit("unlimited"), Severity::Ok);
        assert_eq!(limit("many"), Severity::Unknown);
        tree.file("proc/self/status", "CapEff:\t4000\n");
        assert_eq!(limit("65536"), Severity::Ok);
    }

    #[test]
    fn a_hard_limit_below_the_need_of_the_configuration_is_a_warning() {
        let subject = subject("count = 1", RING, "");
        let tree = with("0");
        let limit = |hard: u64| {
            let line = format!("Limit  Soft Hard\nMax open files         16    {hard}    files\n");
            tree.file("proc/self/limits", &line);
            let found = tree.run(&subject, open_files);
            one(&found).0
        };
        let needed = descriptors::needed(&subject.configs);
        assert_eq!((limit(needed - 1), limit(needed)), (Severity::Warning, Severity::Ok));
        tree.file("proc/self/limits", "Max open files  16\n");
        assert_eq!(one(&tree.run(&subject, open_files)).0, Severity::Unknown);
    }
}
