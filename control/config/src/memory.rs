//! Memory available to this process: the smaller of RAM and the limit of the control group.

use std::path::{Path, PathBuf};

use super::machine::Machine;

/// Memory that one process can use before the kernel reclaims memory or kills the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// Usable memory, bytes.
    pub bytes: u64,
    /// Source of the value, such as `RAM` or `memory.max of the cgroup /user.slice`.
    pub source: String,
}

/// Returns the smaller of RAM and the cgroup's limit; `None` if neither can be read.
pub fn machine_memory() -> Option<MachineMemory> {
    machine_memory_at(Path::new("/"))
}

/// Returns the free reserved hugepages of 2 MiB, bytes.
pub fn free_hugepage_bytes() -> u64 {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    let pages = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(2 << 20)
}

/// Reads the memory of a machine whose `/proc` and `/sys` are below `root`. `None` if neither RAM nor a limit can be
/// read.
pub(super) fn machine_memory_at(root: &Path) -> Option<MachineMemory> {
    let machine = Machine { root: root.to_owned() };
    let limits = ram_limit(&machine).into_iter().chain(cgroup_limits(&machine));
    // RAM comes first and is therefore the result if a limit equals it.
    limits.min_by_key(|limit| limit.bytes)
}

/// Returns the RAM that is not reserved for hugepages, rounded down to whole MiB. `None` if it cannot be read.
fn ram_limit(machine: &Machine) -> Option<MachineMemory> {
    let text = machine.read("proc/meminfo")?;
    let value = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    let total = value("MemTotal")?.saturating_sub(value("Hugetlb").unwrap_or(0));
    Some(MachineMemory { bytes: (total / 1024).saturating_mul(1 << 20), source: "RAM".into() })
}

/// Returns the memory limits of the process's control group and its ancestors, in cgroup versions 1 and 2.
fn cgroup_limits(machine: &Machine) -> Vec<MachineMemory> {
    let text = machine.read("proc/self/cgroup").unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines() {
        // Format `hierarchy:controllers:path`. Version 2 has hierarchy 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let path = Path::new(path.trim_start_matches('/'));
        if controllers.is_empty() {
            for mount in ["sys/fs/cgroup", "sys/fs/cgroup/unified"] {
                add_cgroup_limits(machine, mount, path, "memory.max", &mut found);
            }
        } else if controllers.split(',').any(|name| name == "memory") {
            add_cgroup_limits(
                machine,
                "sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                &mut found,
            );
        }
    }
    found
}

/// Adds the limits in `file` of a control group and its ancestors, up to the root of `mount`. In a container, `path`
/// may be relative to the host's root and not exist below `mount`. The root of `mount` is then the container's group.
fn add_cgroup_limits(
    machine: &Machine,
    mount: &str,
    path: &Path,
    file: &str,
    to: &mut Vec<MachineMemory>,
) {
    for group in path.ancestors() {
        let place: PathBuf = Path::new(mount).join(group).join(file);
        let text = place.to_str().and_then(|place| machine.read(place));
        // Without a limit, version 2 has the word `max`, and version 1 a number near 2^63.
        let bytes = text.and_then(|text| text.trim().parse::<u64>().ok());
        if let Some(bytes) = bytes.filter(|&bytes| bytes < 1 << 62) {
            let source = format!("{file} of the cgroup /{}", group.display());
            to.push(MachineMemory { bytes, source });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the memory of a machine with these files.
    fn machine(files: &[(&str, &str)]) -> Option<MachineMemory> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        machine_memory_at(dir.path())
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:        4194304 kB\nMemFree: 1 kB\nHugetlb:         1048576 kB\n",
    );

    fn detected_memory(files: &[(&str, &str)]) -> (u64, String) {
        let found = machine(files).expect("a size");
        (found.bytes, found.source)
    }

    #[test]
    fn machine_memory_excludes_reserved_hugepages() {
        assert_eq!(detected_memory(&[MEMINFO]), (3 << 30, "RAM".into()));
        assert_eq!(detected_memory(&[("proc/meminfo", "MemTotal: 24684096 kB\n")]).0, 24105 << 20);
        assert_eq!(machine(&[]), None);
    }

    #[test]
    fn cgroup_v2_limit_of_any_ancestor_applies() {
        let of = ("proc/self/cgroup", "0::/a.slice/b.service\n");
        let none = ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
        assert_eq!(detected_memory(&[MEMINFO, of, none]).1, "RAM");
        let own = ("sys/fs/cgroup/a.slice/b.service/memory.max", "1073741824\n");
        let source = "memory.max of the cgroup /a.slice/b.service".to_owned();
        assert_eq!(detected_memory(&[MEMINFO, of, own]), (1 << 30, source));
        let above = ("sys/fs/cgroup/a.slice/memory.max", "536870912\n");
        let source = "memory.max of the cgroup /a.slice".to_owned();
        assert_eq!(detected_memory(&[MEMINFO, of, own, above]), (512 << 20, source));
    }

    #[test]
    fn cgroup_v1_limit_applies_without_mounted_path() {
        let of =
            ("proc/self/cgroup", "11:cpuset:/x\n9:memory,cpu:/docker/12ab\n1:name=systemd:/\n");
        let own = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
        let source = "memory.limit_in_bytes of the cgroup /".to_owned();
        assert_eq!(detected_memory(&[MEMINFO, of, own]), (256 << 20, source));
        let none =
            ("sys/fs/cgroup/memory/docker/12ab/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(detected_memory(&[MEMINFO, of, none]).1, "RAM");
    }
}
