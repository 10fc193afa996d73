//! Tests of the memory ceiling of a real process: excessive requests are refused, and the process continues.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::{Client, RegionInfo, Status};
use serde_json::json;

use super::common::{Ddpd, Running, Setup, config_text, ddpd};

const SMALL: &str = "[limits]\nmemory = \"256 MiB\"\nbuffers_per_worker = \"8 MiB\"\nheld_per_worker = \"8 MiB\"\n\
                     kept_per_worker = \"8 MiB\"\n";

fn add(client: &Client, name: &str, size: &str) -> Result<RegionInfo, String> {
    let region = json!({ "name": name, "size": size, "access": "w" });
    client.post("/v1/regions", &region).map_err(|error| error.to_string())
}

#[test]
fn region_over_memory_limit_is_refused_until_another_is_removed() {
    let ddpd = Ddpd::start(&Setup { sink: SMALL, ..Setup::default() });
    let refused = add(&ddpd.sink, "big", "12 GiB").unwrap_err();
    let sentence = "region `big`: 12 GiB asked for, 40 MiB of 256 MiB in use (regions 0 bytes, jobs 0 bytes, buffers \
                    and streams 40 MiB); the ceiling is limits.memory";
    assert!(refused.contains(sentence), "{refused}");
    // The second round shows that freed memory can be used again.
    for _ in 0..2 {
        add(&ddpd.sink, "most", "200 MiB").unwrap();
        let memory = ddpd.status(&ddpd.sink).memory;
        assert_eq!((memory.ceiling, memory.in_use), (256 << 20, 240 << 20));
        let refused = add(&ddpd.sink, "more", "40 MiB").unwrap_err();
        assert!(refused.contains("40 MiB asked for, 240 MiB of 256 MiB in use"), "{refused}");
        let _: serde_json::Value = ddpd.sink.delete("/v1/regions/most").unwrap();
    }
    let gauges = ddpd.stats(&ddpd.sink).gauges;
    assert_eq!((gauges["memory_ceiling"], gauges["memory_in_use"]), (256 << 20, 40 << 20));
    let (status, _) = ddpd.end();
    assert!(status.success(), "{status}");
}

/// A control group (v1 or v2) with a memory limit, removed on drop.
struct Group {
    directory: PathBuf,
    /// Name of the file with the limit.
    file: &'static str,
}

impl Group {
    /// Creates the group. The error states why this host does not allow the group.
    fn new(limit: u64) -> Result<Group, String> {
        Group::version_2(limit).or_else(|second| {
            Group::version_1(limit)
                .map_err(|first| format!("version 2: {second}; version 1: {first}"))
        })
    }

    fn version_2(limit: u64) -> Result<Group, String> {
        let root = Path::new("/sys/fs/cgroup");
        let file = root.join("cgroup.controllers");
        let controllers =
            std::fs::read_to_string(&file).map_err(|error| error_sentence(&file, &error))?;
        if !controllers.split_whitespace().any(|name| name == "memory") {
            return Err("it has no memory controller".into());
        }
        let file = root.join("cgroup.subtree_control");
        std::fs::write(&file, "+memory").map_err(|error| error_sentence(&file, &error))?;
        Group::create_in(root, "memory.max", limit)
    }

    fn version_1(limit: u64) -> Result<Group, String> {
        let root = Path::new("/sys/fs/cgroup/memory");
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.split_once(":memory:/").map(|(_, path)| path));
        let own = own.map(|path| root.join(path)).filter(|path| path.exists());
        let parent = own.as_deref().unwrap_or(root);
        Group::create_in(parent, "memory.limit_in_bytes", limit)
    }

    fn create_in(parent: &Path, file: &'static str, limit: u64) -> Result<Group, String> {
        let place = parent.join(format!("ddpd-test-{}", std::process::id()));
        std::fs::create_dir(&place).map_err(|error| error_sentence(&place, &error))?;
        let group = Group { directory: place, file };
        let file = group.directory.join(file);
        std::fs::write(&file, limit.to_string()).map_err(|error| error_sentence(&file, &error))?;
        Ok(group)
    }
}

fn error_sentence(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

impl Drop for Group {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.directory);
        assert!(
            std::thread::panicking() || removed.is_ok(),
            "{:?} is left: {removed:?}",
            self.directory
        );
    }
}

#[test]
fn cgroup_limit_is_the_memory_ceiling() {
    let group = match Group::new(1 << 30) {
        Ok(group) => group,
        Err(reason) => {
            // The test harness captures the output of `eprintln`, so the message is written directly.
            let mut out = std::io::stderr();
            return writeln!(out, "LEFT OUT: a cgroup with a limit of memory: {reason}").unwrap();
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let files = [("a", 1), ("b", 2)].map(|(name, host)| {
        let file = dir.path().join(format!("{name}.toml"));
        std::fs::write(&file, config_text(dir.path(), name, host, "", "")).unwrap();
        file
    });
    let inner = ddpd(&files);
    let mut command = Command::new("sh");
    command
        .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
        .arg(group.directory.join("cgroup.procs"));
    command.arg(inner.get_program()).args(inner.get_args());
    let mut running = Running::start(command, &dir.path().join("ddpd.log"));
    let client = Client::new(&dir.path().join("a.sock")).unwrap();
    let refused = add(&client, "big", "12 GiB").unwrap_err();
    assert!(refused.contains(&format!("75 % of {} of the cgroup /", group.file)), "{refused}");
    assert!(refused.contains("(1 GiB)"), "{refused}");
    // A region that uses all memory below the ceiling is created, with all pages populated, and the process continues.
    let memory = client.get::<Status>("/v1/status").unwrap().memory;
    add(&client, "most", &(memory.ceiling - memory.in_use).to_string()).unwrap();
    add(&client, "more", "4096").unwrap_err();
    assert!(running.is_running());
}
