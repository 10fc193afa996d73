//! Tests of the sandbox of a running process: the kernel's status of each thread, and operations that must remain
//! allowed.

use std::path::Path;

use api::{JobState, SandboxInfo};

use super::common::{Ddpd, Setup};

const ON: &str = "[management.sandbox]\nmode = \"on\"\n";

/// Returns the name of each thread and the text of its `status` file in `/proc`.
fn threads(pid: u32) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("status")).expect("threads do not end meanwhile")
    };
    let all = tasks.map(|task| status(task.unwrap()));
    all.map(|status| (value(&status, "Name").to_owned(), status)).collect()
}

fn value<'s>(status: &'s str, name: &str) -> &'s str {
    let mut values = status.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

fn set(status: &str, name: &str) -> u64 {
    u64::from_str_radix(value(status, name), 16).unwrap()
}

#[test]
fn sandboxed_threads_are_confined_and_serve_streams() {
    const IPC_LOCK: u64 = 1 << 14;
    let sink = format!("{}{ON}", super::REGION);
    let ddpd = Ddpd::start(&Setup { sink: &sink, source: ON, workers: 2, ..Setup::default() });
    let status = ddpd.status(&ddpd.sink);
    let SandboxInfo { privileges_dropped, seccomp, confined_workers, landlock, .. } =
        status.sandbox;
    assert!(privileges_dropped && seccomp);
    assert_eq!(confined_workers, 4, "two appliances of two workers");
    let gauges = ddpd.stats(&ddpd.sink).gauges;
    assert_eq!((gauges["sandbox_seccomp"], gauges["sandbox_landlock"]), (1, landlock.into()));
    let all = threads(status.pid);
    let workers = all.iter().filter(|(name, _)| name.starts_with("worker-")).count();
    assert_eq!(workers, 4, "{all:?}");
    for name in ["ddpd", "control", "files", "loader"] {
        assert!(all.iter().any(|(own, _)| own == name), "no thread {name}");
    }
    for (name, status) in &all {
        assert_eq!(value(status, "NoNewPrivs"), "1", "{name}");
        assert_eq!(value(status, "Seccomp"), "2", "{name}");
        let filters = if name.starts_with("worker-") { "3" } else { "2" };
        assert_eq!(value(status, "Seccomp_filters"), filters, "{name}");
        // A ring port needs no capability. CAP_IPC_LOCK may be kept to lock regions beyond the limit of locked memory.
        for kind in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(set(status, kind) & !IPC_LOCK, 0, "{name}: {kind}");
        }
    }
    let (file, bytes) = ddpd.file("file", 1 << 20);
    let job = ddpd.put(super::region_target(&file, "inbox"));
    assert_eq!((job.state, &job.error), (JobState::Done, &None));
    let region = ddpd.path("inbox.bin");
    let (ended, _dir) = ddpd.end();
    assert!(ended.success(), "{ended}");
    assert_eq!(std::fs::read(region).unwrap()[..1 << 20], bytes);
}

#[test]
fn file_outside_configured_directories_is_refused() {
    let ddpd = Ddpd::start(&Setup { sink: ON, source: ON, ..Setup::default() });
    if ddpd.status(&ddpd.sink).sandbox.landlock == 0 {
        assert!(!Path::new("/sys/kernel/security/landlock").exists());
        return;
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("region");
    let region = serde_json::json!({ "name": "r", "path": path, "size": 4096, "access": "w" });
    let refused = ddpd.sink.post::<serde_json::Value>("/v1/regions", &region);
    assert!(refused.is_err() && !path.exists(), "{refused:?}");
}

#[test]
fn sandbox_is_off_without_its_key() {
    let ddpd = Ddpd::start(&Setup::default());
    let status = ddpd.status(&ddpd.sink);
    assert_eq!(status.sandbox, SandboxInfo::default());
    for (name, status) in threads(status.pid) {
        assert_eq!(value(&status, "Seccomp"), "0", "{name}");
    }
}
