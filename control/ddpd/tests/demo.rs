//! Tests of both programs as a user starts them: configs/demo.toml and demo-peer.toml run in one process, a file is
//! sent over the lossy link between them, and the process shuts down gracefully. Needs neither root nor a device.

#[path = "common/ctl.rs"]
mod ctl;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

/// Time-out of each step, sufficient for slow machines.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Daemon {
    child: Option<Child>,
    dir: tempfile::TempDir,
}

impl Daemon {
    /// Starts the demonstration in a temporary directory and waits until it is ready.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = daemon(dir.path(), &["demo.toml", "demo-peer.toml"]);
        let mut daemon = Self { child: Some(child), dir };
        let stdout = daemon.child.as_mut().unwrap().stdout.take().unwrap();
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        daemon
    }

    /// Runs `ddpctl`. Returns its exit code, standard output and standard error.
    fn ctl(&self, socket: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = ctl::ddpctl()
            .current_dir(self.dir.path())
            .args(["--socket", socket])
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn json(&self, socket: &str, arguments: &[&str]) -> Value {
        let (code, out, err) = self.ctl(socket, &[&["--json"], arguments].concat());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
        serde_json::from_str(&out).unwrap()
    }

    /// Ends the daemon with SIGTERM. Returns its exit status and directory.
    fn terminate(mut self) -> (ExitStatus, tempfile::TempDir) {
        let child = self.child.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        (wait(child), dir)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(name)
}

fn daemon(dir: &Path, files: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddpd"));
    command.current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::null());
    for file in files {
        command.arg("--config").arg(config(file));
    }
    command.spawn().unwrap()
}

/// Waits for the process to end. After [`TIMEOUT`], kills the process and panics.
fn wait(mut child: Child) -> ExitStatus {
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn(move || sender.send(child.wait().unwrap()).unwrap());
    let status = receiver.recv_timeout(TIMEOUT);
    if status.is_err() {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    waiter.join().unwrap();
    status.expect("ddpd did not end")
}

#[test]
fn demo_transfers_file_over_lossy_link_and_exits_cleanly() {
    transfer_over_lossy_link("tcp");
}

#[test]
fn demo_transfers_file_over_lossy_link_with_sctp() {
    transfer_over_lossy_link("sctp");
}

fn transfer_over_lossy_link(transport: &str) {
    let daemon = Daemon::start();
    let scheme = format!("{transport}://");
    let content: Vec<u8> =
        (0..4u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
    std::fs::write(daemon.dir.path().join("source"), &content).unwrap();
    let url = format!("{scheme}10.77.0.1:7471/inbox@4096");
    let put = ["put", "source", &url];
    assert_eq!(daemon.json("demo-peer.sock", &put)["bytes"], 4 << 20);
    let (code, out, err) = daemon.ctl(
        "demo-peer.sock",
        &["send", &format!("{scheme}[fd77::1]:7471"), "hello", "--wait-reply", "30s"],
    );
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "hello\n", ""));

    let read = ["regions", "read", "inbox", "--offset", "4096", "--length", "4MiB", "-o", "copy"];
    assert_eq!(daemon.json("demo.sock", &read)["bytes"], 4 << 20);
    assert!(
        std::fs::read(daemon.dir.path().join("copy")).unwrap() == content,
        "the copy equals the file"
    );

    let region = &daemon.json("demo.sock", &["regions", "list"])[0];
    assert_eq!(region["placed"], 4 << 20);
    let refused =
        daemon.ctl("demo-peer.sock", &["put", "source", &format!("{scheme}10.77.0.1:7471/none")]);
    assert_ne!(refused.0, Some(0));
    assert!(refused.2.contains("none"), "{}", refused.2);

    let (status, dir) = daemon.terminate();
    assert!(status.success(), "{status}");
    let kept = std::fs::read(dir.path().join("demo-inbox.bin")).unwrap();
    assert!(kept[4096..][..content.len()] == content, "the region's file equals the file");
    for socket in ["demo.sock", "demo-peer.sock", "demo.sock.attach"] {
        assert!(!dir.path().join(socket).exists(), "{socket} is left");
    }
}

#[test]
fn idle_appliance_exits_at_once_on_sigterm() {
    for _ in 0..3 {
        let (status, _) = Daemon::start().terminate();
        assert!(status.success(), "{status}");
    }
}

#[test]
fn second_process_on_same_sockets_is_refused() {
    let daemon = Daemon::start();
    let child = self::daemon(daemon.dir.path(), &["demo.toml", "demo-peer.toml"]);
    assert_eq!(wait(child).code(), Some(2));
    assert_eq!(daemon.json("demo.sock", &["status"])["name"], "demo", "the first one still serves");
}

#[test]
fn unpaired_ring_link_is_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(wait(daemon(dir.path(), &["demo.toml"])).code(), Some(2));
}
