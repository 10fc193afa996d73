//! The ceiling of memory, with a real process: what is beyond it is refused, and the process lives on.

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use control::api::{Client, RegionInfo};
use serde_json::json;

use super::common::{Ddpd, Setup, ddpd, text};

const SMALL: &str = "[limits]\nmemory = \"256 MiB\"\nbuffers_per_worker = \"8 MiB\"\nheld_per_worker = \"8 MiB\"\n\
                     kept_per_worker = \"8 MiB\"\n";

fn add(client: &Client, name: &str, size: &str) -> Result<RegionInfo, String> {
    let region = json!({ "name": name, "size": size, "access": "w" });
    client.post("/v1/regions", &region).map_err(|error| error.to_string())
}

#[test]
fn what_is_beyond_the_key_is_refused_and_what_is_removed_is_free_again() {
    let ddpd = Ddpd::start(&Setup { sink: SMALL, ..Setup::default() });
    let refused = add(&ddpd.sink, "big", "12 GiB").unwrap_err();
    let sentence = "region `big`: 12 GiB asked for, 24 MiB of 256 MiB in use (regions 0 bytes, jobs 0 bytes, workers' \
                    buffers 24 MiB); the ceiling is limits.memory";
    assert!(refused.contains(sentence), "{refused}");
    // Twice as much as fits, in turn.
    for _ in 0..2 {
        add(&ddpd.sink, "most", "200 MiB").unwrap();
        let memory = ddpd.status(&ddpd.sink).memory;
        assert_eq!((memory.ceiling, memory.in_use), (256 << 20, 224 << 20));
        let refused = add(&ddpd.sink, "more", "40 MiB").unwrap_err();
        assert!(refused.contains("40 MiB asked for, 224 MiB of 256 MiB in use"), "{refused}");
        let _: serde_json::Value = ddpd.sink.delete("/v1/regions/most").unwrap();
    }
    let gauges = ddpd.stats(&ddpd.sink).gauges;
    assert_eq!((gauges["memory_ceiling"], gauges["memory_in_use"]), (256 << 20, 24 << 20));
    let (status, _) = ddpd.end();
    assert!(status.success(), "{status}");
}

/// A control group of version 2 with a limit; gone when dropped.
struct Group(PathBuf);

impl Group {
    /// `Err`: why this machine has none.
    fn new(limit: u64) -> Result<Group, String> {
        let root = Path::new("/sys/fs/cgroup");
        let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers"))
            .map_err(|error| failed("no cgroup v2 at /sys/fs/cgroup", error))?;
        if !controllers.split_whitespace().any(|name| name == "memory") {
            return Err("cgroup v2 has no memory controller here".into());
        }
        std::fs::write(root.join("cgroup.subtree_control"), "+memory")
            .map_err(|error| failed("cgroup.subtree_control cannot be written", error))?;
        let group = Group(root.join(format!("ddpd-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).map_err(|error| failed("no group can be made", error))?;
        std::fs::write(group.0.join("memory.max"), limit.to_string())
            .map_err(|error| failed("memory.max cannot be written", error))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.0) {
            eprintln!("{} is left: {error}", self.0.display());
        }
    }
}

/// Ended before its group is removed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cgroup_of_a_gibibyte_is_the_ceiling() {
    let group = match Group::new(1 << 30) {
        Ok(group) => group,
        Err(reason) => {
            // Not by `eprintln`, which the harness keeps for itself.
            let mut out = std::io::stderr();
            return writeln!(out, "LEFT OUT: a cgroup with memory.max: {reason}").unwrap();
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let files = [("a", 1), ("b", 2)].map(|(name, host)| {
        let file = dir.path().join(format!("{name}.toml"));
        std::fs::write(&file, text(dir.path(), name, host, "", "")).unwrap();
        file
    });
    let inner = ddpd(&files);
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.0.join("cgroup.procs"));
    command.arg(inner.get_program()).args(inner.get_args());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut running = Running(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let client = Client::new(&dir.path().join("a.sock")).unwrap();
    let refused = add(&client, "big", "12 GiB").unwrap_err();
    assert!(refused.contains("75 % of memory.max of the cgroup /ddpd-test-"), "{refused}");
    assert!(running.0.try_wait().unwrap().is_none(), "it lives on");
    add(&client, "small", "64 MiB").unwrap();
}
