//! The processors' frequency governor, and the clock that workers read.

use std::collections::BTreeMap;

use super::finding::{Check, Finding};
use super::host::{Host, join_list};
use super::subject::Subject;

const GOVERNOR: Check =
    Check("governor", "A core that lowers its frequency between bursts answers each burst late.");
const CLOCK: Check = Check(
    "clock",
    "Workers read the clock in every turn of their loop, and a clock other than tsc may cost a system call each time.",
);

/// Maximum number of cores examined if no worker is pinned.
const MAX_CORES: usize = 1024;
/// Maximum number of characters of a name from sysfs in a finding.
const MAX_NAME: usize = 32;

/// Checks the frequency governor of the workers' cores, or of all cores if no worker is pinned. A governor other than
/// `performance` is a warning if a pinned worker polls continuously, otherwise a note.
pub(super) fn governor(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let cores: Vec<u16> = match subject.pinned_cores() {
        pinned if !pinned.is_empty() => pinned.into_keys().collect(),
        _ => match host.cpus("/sys/devices/system/cpu/online") {
            Ok(online) => online.into_iter().take(MAX_CORES).collect(),
            Err(why) => return found.push(GOVERNOR.unknown(why)),
        },
    };
    let mut slow: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    let path = |core: u16| format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
    for &core in &cores {
        match host.text(&path(core)) {
            Ok(name) if name.trim() == "performance" => {}
            Ok(name) => {
                slow.entry(shown_name(&name)).or_default().push(core);
            }
            Err(_) if !host.exists("/sys/devices/system/cpu/cpufreq") => {
                let why = "this kernel does not govern frequencies (a virtual machine's are the hypervisor's)";
                return found.push(GOVERNOR.unknown(why));
            }
            Err(why) => return found.push(GOVERNOR.unknown(why)),
        }
    }
    if slow.is_empty() {
        return found.push(GOVERNOR.ok(format!("performance on cores {}", join_list(cores))));
    }
    let seen = slow.iter().map(|(name, cores)| format!("{name} on cores {}", join_list(cores)));
    let seen = seen.collect::<Vec<_>>().join("; ");
    let files = slow.values().flatten().map(|&core| path(core)).collect::<Vec<_>>().join(" ");
    let has_polling_worker = subject.pinned_cores().into_values().any(|polls| polls);
    let finding = if has_polling_worker { GOVERNOR.warning(seen) } else { GOVERNOR.note(seen) };
    let command = format!("for file in {files}; do echo performance > \"$file\"; done");
    found.push(finding.remedy("choose the governor performance").command(command));
}

/// Checks the kernel's clock source. A clock that the kernel reads with a system call is a warning, with a command if
/// tsc is available.
pub(super) fn clock(host: &Host, found: &mut Vec<Finding>) {
    let directory = "/sys/devices/system/clocksource/clocksource0";
    let current = format!("{directory}/current_clocksource");
    let both = host
        .text(&current)
        .and_then(|now| Ok((now, host.text(&format!("{directory}/available_clocksource"))?)));
    let (now, available) = match both {
        Ok(both) => both,
        Err(why) => return found.push(CLOCK.unknown(why)),
    };
    let available: Vec<&str> = available.split_whitespace().collect();
    let (now, all) = (now.trim(), available.join(", "));
    if now.is_empty() || !available.contains(&now) {
        let (now, all) = (shown_name(now), all.escape_debug());
        return found.push(CLOCK.unknown(format!("{current} is \"{now}\", not one of: {all}")));
    }
    let seen = format!("{now} (available: {all})");
    found.push(match now {
        "tsc" => CLOCK.ok(seen),
        _ if available.contains(&"tsc") => {
            let command = format!("echo tsc > {current}");
            CLOCK.warning(seen).remedy("use tsc").command(command)
        }
        // Like tsc, these clocks are read without a system call.
        "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => CLOCK.note(seen),
        _ => CLOCK
            .warning(seen)
            .remedy("find out why the kernel took tsc for unstable (dmesg | grep -i tsc); on a virtual machine, its settings"),
    });
}

/// Returns a name that was read from sysfs, trimmed, shortened and escaped.
fn shown_name(name: &str) -> String {
    let name: String = name.trim().chars().take(MAX_NAME).collect();
    name.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{RING, Tree, only_finding, subject};

    #[test]
    fn powersave_governor_is_a_finding() {
        let path = "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor";
        let tree = Tree::new(&[(path, "powersave\n"), ("sys/devices/system/cpu/cpufreq/x", "")]);
        let polling = subject("cores = [2]\nidle = \"poll\"", RING, "");
        let found = tree.run(&polling, governor);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert_eq!(found[0].seen, "powersave on cores 2");
        assert!(found[0].command.as_ref().unwrap().contains("/cpu2/"));
        assert_eq!(
            only_finding(&tree.run(&subject("cores = [2]", RING, ""), governor)).0,
            Severity::Note
        );
        tree.file(path, "performance\n");
        assert_eq!(only_finding(&tree.run(&polling, governor)).0, Severity::Ok);
    }

    #[test]
    fn missing_cpufreq_governor_is_unknown() {
        let tree = Tree::new(&[("sys/devices/system/cpu/online", "0\n")]);
        assert_eq!(only_finding(&tree.run(&Subject::default(), governor)).0, Severity::Unknown);
        assert_eq!(
            only_finding(&Tree::new(&[]).run(&Subject::default(), governor)).0,
            Severity::Unknown
        );
    }

    #[test]
    fn a_clock_other_than_tsc_is_a_finding() {
        let of = |now: &str, available: &str| {
            let directory = "sys/devices/system/clocksource/clocksource0";
            let tree = Tree::new(&[
                (&format!("{directory}/current_clocksource"), now),
                (&format!("{directory}/available_clocksource"), available),
            ]);
            let mut found = Vec::new();
            clock(&tree.host(), &mut found);
            only_finding(&found);
            found.remove(0)
        };
        assert_eq!(of("tsc\n", "tsc hpet \n").severity, Severity::Ok);
        let hpet = of("hpet\n", "tsc hpet \n");
        assert_eq!(hpet.severity, Severity::Warning);
        assert!(hpet.command.unwrap().starts_with("echo tsc > /sys/"));
        assert_eq!(of("acpi_pm\n", "hpet acpi_pm \n").command, None);
        assert_eq!(of("kvm-clock\n", "kvm-clock\n").severity, Severity::Note);
        assert_eq!(of("\n", "tsc\n").severity, Severity::Unknown);
        let unlisted = of("hpet\n", "tsc acpi_pm\n");
        assert_eq!(unlisted.severity, Severity::Unknown);
        assert!(unlisted.seen.contains("\"hpet\", not one of: tsc, acpi_pm"), "{}", unlisted.seen);
    }
}
