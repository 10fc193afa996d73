//! A running `ddpd` with two appliances connected by a link, for tests of the whole program.

mod ctl;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use api::{Client, Event, EventKind, JobInfo, RegionInfo, Stats, Status};

pub(crate) use self::ctl::{ddpctl, ddpctl_path};

/// Address and port of the sink, the receiving appliance.
pub(crate) const SINK: &str = "10.9.0.1:7471";

/// Name of the process's log file in the directory of the test.
pub(crate) const LOG: &str = "ddpd.log";

/// A running `ddpd`, killed on drop.
pub(crate) struct Ddpd {
    child: Child,
    dir: tempfile::TempDir,
    pub(crate) sink: Client,
    pub(crate) source: Client,
}

/// Configuration of the two appliances: `sink` is appended to the sink's file, `impair` to the port section of both
/// files.
pub(crate) struct Setup<'a> {
    pub(crate) sink: &'a str,
    /// Keys in the `[management]` section of the source.
    pub(crate) source: &'a str,
    pub(crate) impair: &'a str,
    /// Number of workers per appliance; each has a queue of its port.
    pub(crate) workers: u16,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Setup { sink: "", source: "", impair: "", workers: 1 }
    }
}

impl Ddpd {
    /// Starts the process in a temporary directory and waits until it is ready. `DIR` in the configuration is replaced
    /// by the directory.
    pub(crate) fn start(setup: &Setup<'_>) -> Ddpd {
        let dir = tempfile::tempdir().unwrap();
        let files =
            [("sink", 1, setup.sink), ("source", 2, setup.source)].map(|(name, host, more)| {
                let file = dir.path().join(format!("{name}.toml"));
                let text = config_text(dir.path(), name, host, setup.impair, more);
                let text = text.replace("count = 1", &format!("count = {}", setup.workers));
                std::fs::write(&file, text).unwrap();
                file
            });
        let child = spawn(dir.path(), &files);
        let client = |name: &str| Client::new(&dir.path().join(format!("{name}.sock"))).unwrap();
        let (sink, source) = (client("sink"), client("source"));
        Ddpd { child, dir, sink, source }
    }

    /// Ends the process and starts it again. `sink`: name of the sink's new configuration file in the directory.
    pub(crate) fn restart(&mut self, sink: &str) {
        self.signal(rustix::process::Signal::TERM);
        assert!(self.child.wait().unwrap().success());
        self.child = spawn(self.dir.path(), &[self.path(sink), self.path("source.toml")]);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file of `len` pseudorandom bytes. Returns its path and contents.
    pub(crate) fn file(&self, name: &str, len: usize) -> (PathBuf, Vec<u8>) {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let path = self.path(name);
        std::fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    /// Starts a put job of the source and waits until the job has ended. Returns the job.
    pub(crate) fn put(&self, spec: serde_json::Value) -> JobInfo {
        self.job("put", spec)
    }

    /// Starts a job of the source, of this kind, and waits until the job has ended. Returns the job.
    pub(crate) fn job(&self, kind: &str, spec: serde_json::Value) -> JobInfo {
        let job: JobInfo = self.source.post(&format!("/v1/{kind}"), &spec).unwrap();
        let ended = |kind: &EventKind| matches!(kind, EventKind::JobFinished { job: id, .. } if *id == job.id);
        wait_for(&self.source, ended);
        self.source.get(&format!("/v1/jobs/{}", job.id)).unwrap()
    }

    pub(crate) fn stats(&self, client: &Client) -> Stats {
        client.get("/v1/stats").unwrap()
    }

    pub(crate) fn region(&self, name: &str) -> RegionInfo {
        let regions: Vec<RegionInfo> = self.sink.get("/v1/regions").unwrap();
        regions.into_iter().find(|region| region.name == name).unwrap()
    }

    pub(crate) fn status(&self, client: &Client) -> Status {
        client.get("/v1/status").unwrap()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops the process with SIGSTOP and waits until it has stopped.
    pub(crate) fn stop(&self) {
        use rustix::process::{Pid, Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Ends the process with SIGTERM. Returns its exit status and directory.
    pub(crate) fn end(mut self) -> (ExitStatus, tempfile::TempDir) {
        self.signal(rustix::process::Signal::TERM);
        let status = self.child.wait().unwrap();
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        (status, dir)
    }
}

impl Drop for Ddpd {
    fn drop(&mut self) {
        // Errors are ignored: the process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process of a test, killed on drop.
pub(crate) struct Running(Child);

impl Running {
    /// Starts `command`, a `ddpd`, and waits until it is ready. Its standard error is appended to `log`.
    pub(crate) fn start(command: Command, log: &Path) -> Running {
        Running(spawn_and_wait_ready(command, log))
    }

    /// Kills the process with SIGKILL, which simulates a crash.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors are ignored: the process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `ddpd` with these files and waits until it is ready. Its log is appended to a file in the directory.
fn spawn(dir: &Path, files: &[PathBuf]) -> Child {
    spawn_and_wait_ready(ddpd(files), &dir.join(LOG))
}

fn spawn_and_wait_ready(mut command: Command, log: &Path) -> Child {
    let file = File::options().create(true).append(true).open(log).unwrap();
    let mut child = command.stdout(Stdio::piped()).stderr(file).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    if line != "ready\n" {
        child.wait().unwrap();
        panic!("ddpd did not start: {line:?} {}", std::fs::read_to_string(log).unwrap());
    }
    child
}

/// Returns a command that runs `ddpd` with these configuration files.
pub(crate) fn ddpd(files: &[PathBuf]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ddpd"));
    for file in files {
        command.arg("--config").arg(file);
    }
    command
}

/// Waits until the event log, read from its beginning, contains a wanted event. Returns the event.
pub(crate) fn wait_for(client: &Client, wanted: impl Fn(&EventKind) -> bool) -> EventKind {
    wait_for_nth(client, 1, wanted)
}

/// Waits until the event log, read from its beginning, contains `n` wanted events. Returns the last of them.
pub(crate) fn wait_for_nth(
    client: &Client,
    n: usize,
    wanted: impl Fn(&EventKind) -> bool,
) -> EventKind {
    let mut found = Vec::new();
    let followed = client.follow("/v1/events?follow=true", |line| {
        if let Ok(event) = serde_json::from_str::<Event>(line)
            && wanted(&event.kind)
        {
            found.push(event.kind);
        }
        Ok(found.len() < n)
    });
    followed.unwrap();
    assert_eq!(found.len(), n, "the appliance ended before the event");
    found.swap_remove(n - 1)
}

pub(crate) fn config_text(dir: &Path, name: &str, host: u8, impair: &str, more: &str) -> String {
    let dir = dir.display();
    format!(
        r#"
name = "{name}"
[memory]
hugepages = "never"
[workers]
count = 1
[[port]]
name = "p"
kind = "ring"
link = "wire"
{impair}
[[interface]]
name = "i"
port = "p"
addresses = ["10.9.0.{host}/24"]
[files]
paths = ["{dir}"]
[management]
socket = "{dir}/{name}.sock"
drain_timeout = "10 s"
{more}
"#
    )
    .replace("DIR", &dir.to_string())
}
