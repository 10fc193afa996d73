//! Privileges and limits of the process: capabilities, locked memory, and file descriptors.

use config::privilege::{self, Capability, Need};
use config::show_size;

use super::finding::{Check, Finding, Severity};
use super::host::{Host, Unknown, join_list};
use super::subject::Subject;
use crate::descriptors;

const CAPABILITIES: Check =
    Check("capabilities", "The kernel refuses what a port does without its capabilities.");
const LOCKED_MEMORY: Check = Check(
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
        let needs = privilege::port_needs(&host.path("/"), &port.kind).iter();
        let missing: Vec<&Need> = needs.filter(|need| !need.is_met(set)).collect();
        if missing.is_empty() {
            continue;
        }
        let error = missing.iter().any(|need| need.required);
        let severity = if error { Severity::Error } else { Severity::Warning };
        let names: Vec<String> =
            missing.iter().map(|need| need.capability.name().to_lowercase()).collect();
        let (names, kind) = (names.join(","), port.kind.name());
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
            join_list(own)
        };
        found.push(CAPABILITIES.ok(format!("{own} (effective set {:x})", set.0)));
    }
}

pub(super) fn locked_memory(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let regions = subject.configs.iter().flat_map(|config| &config.regions);
    let needed = regions.filter_map(|region| region.size).fold(0u64, u64::saturating_add);
    let (limit, set) =
        match locked_memory_limit(host).and_then(|limit| Ok((limit, host.capabilities()?))) {
            Ok(both) => both,
            Err(why) => return found.push(LOCKED_MEMORY.unknown(why)),
        };
    let need = format!("the regions have {}", show_size(needed));
    found.push(match limit {
        _ if set.has(Capability::IpcLock) => LOCKED_MEMORY.ok("without limit, by cap_ipc_lock"),
        None => LOCKED_MEMORY.ok("without limit"),
        Some(limit) if limit >= needed => {
            LOCKED_MEMORY.ok(format!("{} may be locked, {need}", show_size(limit)))
        }
        Some(limit) => LOCKED_MEMORY
            .warning(format!("{} may be locked, {need}", show_size(limit)))
            .remedy(
                "raise RLIMIT_MEMLOCK (LimitMEMLOCK=infinity of its unit), or give it cap_ipc_lock",
            )
            .command("ulimit -H -l unlimited && ulimit -S -l unlimited"),
    });
}

pub(super) fn open_files(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let needed = descriptors::needed_descriptors(&subject.configs);
    let limit =
        host.text("/proc/self/limits").and_then(|limits| privilege::open_files_limit(&limits));
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

/// Returns the soft limit of locked memory, bytes; `None` for no limit.
pub(super) fn locked_memory_limit(host: &Host) -> Result<Option<u64>, Unknown> {
    privilege::locked_memory_limit(&host.text("/proc/self/limits")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::{PACKET, RING, Tree, only_finding, subject};

    fn tree_with_capabilities(capabilities: &str) -> Tree {
        Tree::new(&[("proc/self/status", &format!("Name:\tddpd\nCapEff:\t{capabilities}\n"))])
    }

    #[test]
    fn af_packet_port_needs_net_raw_and_net_admin() {
        let packet = subject("count = 1", PACKET, "");
        let tree = tree_with_capabilities("0000000000000000");
        let found = tree.run(&packet, capabilities);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert!(found[0].command.as_ref().unwrap().contains("cap_net_raw,cap_net_admin+ep"));
        assert_eq!(
            only_finding(&tree_with_capabilities("2000").run(&packet, capabilities)).0,
            Severity::Warning
        );
        assert_eq!(
            only_finding(&tree_with_capabilities("3000").run(&packet, capabilities)).0,
            Severity::Ok
        );
        assert_eq!(
            only_finding(&tree.run(&subject("count = 1", RING, ""), capabilities)).0,
            Severity::Ok
        );
        assert_eq!(
            only_finding(&tree_with_capabilities("no").run(&packet, capabilities)).0,
            Severity::Unknown
        );
        assert_eq!(only_finding(&Tree::new(&[]).run(&packet, capabilities)).0, Severity::Unknown);
    }

    #[test]
    fn xdp_and_tap_ports_need_their_capabilities() {
        let xdp = subject("count = 1", "kind = \"af_xdp\"\ndevice = \"v0\"", "");
        let found = tree_with_capabilities("3000").run(&xdp, capabilities);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert!(found[0].seen.ends_with("has no cap_bpf,cap_sys_admin"), "{found:?}");
        assert_eq!(
            only_finding(&tree_with_capabilities("203000").run(&xdp, capabilities)).0,
            Severity::Ok
        );
        let tap = subject("count = 1", "kind = \"tap\"\ndevice = \"t0\"", "");
        assert_eq!(
            only_finding(&tree_with_capabilities("2000").run(&tap, capabilities)).0,
            Severity::Error
        );
        assert_eq!(
            only_finding(&tree_with_capabilities("1000").run(&tap, capabilities)).0,
            Severity::Ok
        );
    }

    #[test]
    fn regions_larger_than_the_lock_limit_are_a_warning() {
        let region = "[[region]]\nname = \"r\"\nsize = \"1 MiB\"\naccess = \"w\"";
        let subject = subject("count = 1", RING, region);
        let tree = tree_with_capabilities("0");
        let limit = |value: &str| {
            let line = format!(
                "Limit  Soft Hard\nMax locked memory         {value}    {value}    bytes\n"
            );
            tree.file("proc/self/limits", &line);
            let found = tree.run(&subject, locked_memory);
            only_finding(&found).0
        };
        assert_eq!(limit("65536"), Severity::Warning);
        assert_eq!(limit("1048576"), Severity::Ok);
        assert_eq!(limit("unlimited"), Severity::Ok);
        assert_eq!(limit("many"), Severity::Unknown);
        tree.file("proc/self/status", "CapEff:\t4000\n");
        assert_eq!(limit("65536"), Severity::Ok);
    }

    #[test]
    fn descriptor_hard_limit_below_need_is_a_warning() {
        let subject = subject("count = 1", RING, "");
        let tree = tree_with_capabilities("0");
        let limit = |hard: u64| {
            let line = format!("Limit  Soft Hard\nMax open files         16    {hard}    files\n");
            tree.file("proc/self/limits", &line);
            let found = tree.run(&subject, open_files);
            only_finding(&found).0
        };
        let needed = descriptors::needed_descriptors(&subject.configs);
        assert_eq!((limit(needed - 1), limit(needed)), (Severity::Warning, Severity::Ok));
        tree.file("proc/self/limits", "Max open files  16\n");
        assert_eq!(only_finding(&tree.run(&subject, open_files)).0, Severity::Unknown);
    }
}
