//! Checks that the cores of pinned workers are usable and isolated, and that workers do not share a physical core.

use std::collections::BTreeSet;

use base::plural::counted;

use super::finding::{Check, Finding, Severity};
use super::host::{Host, join_list};
use super::subject::Subject;

const CORES: Check =
    Check("cores", "A worker cannot be pinned to a core that this process may not use.");
const ISOLATION: Check =
    Check("isolation", "Any other task on a worker's core stops the worker, and its streams wait.");
const SIBLINGS: Check = Check(
    "siblings",
    "Two workers on the threads of one physical core share its units, and each is slower.",
);

const ONLINE: &str = "/sys/devices/system/cpu/online";

pub(super) fn check_available(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let status = "/proc/self/status";
    let allowed = host.cpus(ONLINE).and_then(|online| {
        let allowed = host.status("Cpus_allowed_list")?;
        let allowed = super::host::cpu_list(&allowed);
        Ok((online, allowed.ok_or_else(|| format!("{status}: Cpus_allowed_list is no list"))?))
    });
    let (online, allowed) = match allowed {
        Ok(both) => both,
        Err(why) => return found.push(CORES.unknown(why)),
    };
    let usable: BTreeSet<u16> = online.intersection(&allowed).copied().collect();
    let cores = subject.pinned_cores();
    let missing: Vec<u16> = cores.keys().copied().filter(|core| !usable.contains(core)).collect();
    let can = format!("this process may use {}", join_list(&usable));
    if !missing.is_empty() {
        return found.push(
            CORES
                .error(format!("core {} of workers.cores: {can}", join_list(missing)))
                .remedy("name others in workers.cores, or widen the cpuset of the process (AllowedCPUs= of its unit)"),
        );
    }
    let workers = cores.len() + subject.unpinned_workers();
    found.push(match workers > usable.len() {
        true => CORES
            .warning(format!("{}: {can}", counted(workers, "worker")))
            .remedy("lower workers.count to the number of cores, or less"),
        false => CORES.ok(format!("{}: {can}", counted(workers, "worker"))),
    });
}

pub(super) fn check_isolation(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let isolated = match host.cpus("/sys/devices/system/cpu/isolated") {
        Ok(isolated) => isolated,
        Err(why) => return found.push(ISOLATION.unknown(why)),
    };
    // Kernels built without NO_HZ_FULL lack this file.
    let path = "/sys/devices/system/cpu/nohz_full";
    let ticks = match host.exists(path).then(|| host.cpus(path)).transpose() {
        Ok(ticks) => ticks.unwrap_or_default(),
        Err(why) => return found.push(ISOLATION.unknown(why)),
    };
    let or_none = |set: &BTreeSet<u16>| match set.is_empty() {
        true => "none".to_owned(),
        false => join_list(set),
    };
    let seen = format!("isolated cores: {}, without tick: {}", or_none(&isolated), or_none(&ticks));
    if subject.unpinned_workers() > 0 {
        let number = subject.unpinned_workers();
        found.push(
            ISOLATION
                .note(format!("workers without a core: {number}; {seen}"))
                .remedy("where latency matters, pin them: workers.cores instead of workers.count"),
        );
    }
    let cores = subject.pinned_cores();
    if cores.is_empty() {
        if subject.unpinned_workers() == 0 {
            found.push(ISOLATION.ok(seen));
        }
        return;
    }
    let both = |core: &u16| isolated.contains(core) && ticks.contains(core);
    let shared: Vec<u16> = cores.keys().copied().filter(|core| !both(core)).collect();
    if shared.is_empty() {
        return found.push(ISOLATION.ok(seen));
    }
    // Only a polling worker causes a warning. A sleeping worker shares its core like any program.
    let polls = shared.iter().any(|core| cores[core] && !isolated.contains(core));
    let severity = if polls { Severity::Warning } else { Severity::Note };
    let list = shared.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    found.push(ISOLATION.finding(severity, format!("worker cores {list} of others, too; {seen}")).remedy(
        format!(
            "add isolcpus={list} nohz_full={list} rcu_nocbs={list} to the kernel's command line, and restart; never all \
             cores of the machine"
        ),
    ));
}

pub(super) fn check_siblings(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let cores = subject.pinned_cores();
    if cores.len() < 2 {
        return;
    }
    let before = found.len();
    let mut reported = BTreeSet::new();
    for core in cores.keys() {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        match host.cpus(&path) {
            Err(why) => found.push(SIBLINGS.unknown(why)),
            Ok(threads) => {
                let workers: Vec<u16> =
                    threads.into_iter().filter(|c| cores.contains_key(c)).collect();
                if workers.len() > 1 && reported.insert(workers.clone()) {
                    let seen =
                        format!("cores {} are threads of one physical core", join_list(workers));
                    let remedy = "leave all but one of them out of workers.cores";
                    found.push(SIBLINGS.warning(seen).remedy(remedy));
                }
            }
        }
    }
    if found.len() == before {
        found.push(
            SIBLINGS.ok(format!("{} with a physical core each", counted(cores.len(), "worker"))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::{RING, Tree, only_finding, subject};

    fn pinned_subject(idle: &str) -> Subject {
        subject(&format!("cores = [2, 3]\nidle = \"{idle}\""), RING, "")
    }

    #[test]
    fn unavailable_cores_are_an_error() {
        let tree = Tree::new(&[
            ("sys/devices/system/cpu/online", "0-3\n"),
            ("proc/self/status", "Cpus_allowed_list:\t0-2\n"),
        ]);
        let found = tree.run(&pinned_subject("poll"), check_available);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].seen, "core 3 of workers.cores: this process may use 0, 1, 2");
        assert_eq!(
            only_finding(&tree.run(&subject("count = 4", RING, ""), check_available)).0,
            Severity::Warning
        );
        tree.file("proc/self/status", "Cpus_allowed_list:\t0-7\n");
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("poll"), check_available)).0,
            Severity::Ok
        );
        tree.file("proc/self/status", "Cpus_allowed_list:\tall\n");
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("poll"), check_available)).0,
            Severity::Unknown
        );
    }

    #[test]
    fn polling_workers_on_shared_cores_are_a_warning() {
        let tree = Tree::new(&[("sys/devices/system/cpu/isolated", "2\n")]);
        let found = tree.run(&pinned_subject("poll"), check_isolation);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert!(found[0].remedy.as_ref().unwrap().contains("isolcpus=2,3 nohz_full=2,3"));
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("adaptive"), check_isolation)).0,
            Severity::Note
        );
        tree.file("sys/devices/system/cpu/isolated", "2-3\n");
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("poll"), check_isolation)).0,
            Severity::Note
        );
        tree.file("sys/devices/system/cpu/nohz_full", "2-3\n");
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("poll"), check_isolation)).0,
            Severity::Ok
        );
        assert_eq!(
            only_finding(&tree.run(&subject("count = 1", RING, ""), check_isolation)).0,
            Severity::Note
        );
        assert_eq!(only_finding(&tree.run(&Subject::default(), check_isolation)).0, Severity::Ok);
        tree.file("sys/devices/system/cpu/nohz_full", "x");
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("poll"), check_isolation)).0,
            Severity::Unknown
        );
    }

    #[test]
    fn two_workers_on_one_physical_core_are_a_warning() {
        let list =
            |core: u16| format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let tree = Tree::new(&[(&list(2), "2-3\n"), (&list(3), "2-3\n")]);
        let found = tree.run(&pinned_subject("poll"), check_siblings);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert_eq!(found[0].seen, "cores 2, 3 are threads of one physical core");
        tree.file(&list(2), "2,6\n");
        tree.file(&list(3), "3,7\n");
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("poll"), check_siblings)).0,
            Severity::Ok
        );
        tree.file(&list(3), "?");
        assert_eq!(
            only_finding(&tree.run(&pinned_subject("poll"), check_siblings)).0,
            Severity::Unknown
        );
    }
}
