//! Load generators: Pktgen-DPDK and DPDK's own testpmd.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::mixer::RING_SIZE;

/// Kind of a generator program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Pktgen-DPDK.
    Pktgen,
    /// `dpdk-testpmd`, which replays a capture file.
    Testpmd,
}

impl Kind {
    /// Returns the program's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pktgen => "Pktgen-DPDK",
            Kind::Testpmd => "dpdk-testpmd",
        }
    }
}

/// A load generator program.
#[derive(Clone, Debug)]
pub struct Generator {
    /// Kind of the generator, which determines its arguments and commands.
    pub kind: Kind,
    /// Path of the executable.
    pub program: PathBuf,
    /// Core of the program's polling thread.
    pub core: usize,
}

/// Input of one generator run.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The vhost-user socket to connect to.
    pub socket: &'a Path,
    /// Directory for the generator's command file and log.
    pub directory: &'a Path,
    /// Capture file, replayed in a loop. Without one, Pktgen generates frames by `commands`.
    pub capture: Option<&'a Path>,
    /// Pktgen commands that precede `start`.
    pub commands: String,
    /// Duration of sending; testpmd sends until it is stopped.
    pub time: Duration,
}

/// Time-out from start to the first frame, and from stop to exit.
const GENERATOR_TIMEOUT: Duration = Duration::from_secs(60);

impl Generator {
    /// Starts the generator for a job. Dropping the result ends the generator.
    pub fn start(&self, job: &Job<'_>) -> anyhow::Result<RunningGenerator> {
        match self.kind {
            Kind::Pktgen => self.start_pktgen(job),
            Kind::Testpmd => self.start_testpmd(job),
        }
    }

    /// Starts Pktgen under script(1), which provides the terminal that Pktgen requires. Pktgen quits by the last
    /// command in its file.
    fn start_pktgen(&self, job: &Job<'_>) -> anyhow::Result<RunningGenerator> {
        let file = job.directory.join("generator.pkt");
        let text =
            format!("{}\nstart 0\ndelay {}\nstop 0\nquit\n", job.commands, job.time.as_millis());
        std::fs::write(&file, text)?;
        let capture = job.capture.map_or(String::new(), |path| format!(" -s 0:{}", path.display()));
        let log = job.directory.join("generator.log");
        let line = format!(
            "'{}' {} -- -P -m 1.0 -f '{}'{capture}",
            self.program.display(),
            self.eal_arguments(job.socket, "").join(" "),
            file.display(),
        );
        let child = Command::new("nice")
            .args(["-n", "5", "script", "-qec", &line, "/dev/null"])
            .env("TERM", "dumb")
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(Stdio::null())
            .spawn()
            .context(
                "script (of bsdutils) does not start; Pktgen needs the terminal that it makes",
            )?;
        Ok(RunningGenerator { child, log, stops_by_itself: true })
    }

    fn start_testpmd(&self, job: &Job<'_>) -> anyhow::Result<RunningGenerator> {
        let capture = job.capture.context("testpmd sends capture files only")?;
        let log = job.directory.join("generator.log");
        let output = File::create(&log)?;
        let replay = format!("net_pcap0,rx_pcap={},infinite_rx=1", capture.display());
        let child = Command::new("nice")
            .args(["-n", "5"])
            .arg(&self.program)
            .args(self.eal_arguments(job.socket, &replay))
            .args(["--", "--forward-mode=io", "--auto-start", "--no-flush-rx", "--no-mlockall"])
            .args([
                "--total-num-mbufs=65536",
                &format!("--txd={RING_SIZE}"),
                &format!("--rxd={RING_SIZE}"),
            ])
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{} does not start", self.program.display()))?;
        Ok(RunningGenerator { child, log, stops_by_itself: false })
    }

    /// Returns the EAL arguments. Two lcores share one core, because the main lcore only waits.
    fn eal_arguments(&self, socket: &Path, other: &str) -> Vec<String> {
        let core = self.core;
        let mut all: Vec<String> =
            ["--in-memory", "--no-pci", "--single-file-segments", "-m", "512"]
                .map(str::to_owned)
                .to_vec();
        all.push(format!("--lcores=0@{core},1@{core}"));
        if !other.is_empty() {
            all.extend(["--vdev".into(), other.to_owned()]);
        }
        all.extend([
            "--vdev".into(),
            format!(
                "net_virtio_user0,path={},queues=1,queue_size={RING_SIZE},mac=02:00:00:00:00:05",
                socket.display()
            ),
        ]);
        all
    }
}

/// A running generator. Dropping the value ends the program.
pub struct RunningGenerator {
    child: Child,
    log: PathBuf,
    stops_by_itself: bool,
}

impl RunningGenerator {
    /// Waits until `sends` returns true, at most 60 s.
    pub fn wait_until_sending(&mut self, sends: impl Fn() -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + GENERATOR_TIMEOUT;
        while !sends() {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!(
                    "the generator ended with {status} before it sent: {}",
                    self.log_tail()
                );
            }
            anyhow::ensure!(
                Instant::now() < until,
                "the generator sends nothing: {}",
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Stops the generator and waits for its exit. Fails if its status is not success.
    pub fn stop(mut self) -> anyhow::Result<()> {
        // A newline on its input stops testpmd.
        if !self.stops_by_itself
            && let Some(input) = &mut self.child.stdin
        {
            input.write_all(b"\n")?;
        }
        let until = Instant::now() + GENERATOR_TIMEOUT;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                anyhow::ensure!(
                    status.success(),
                    "the generator ended with {status}: {}",
                    self.log_tail()
                );
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("the generator does not end: {}", self.log_tail())
    }

    /// Returns the last 12 lines of the generator's output, at most 2000 bytes.
    fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(2000)..]).into_owned();
        text.lines()
            .rev()
            .take(12)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Drop for RunningGenerator {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let pid = rustix::process::Pid::from_child(&self.child);
            // For Pktgen the child is `script`, which forwards the signal to Pktgen.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            std::thread::sleep(Duration::from_millis(500));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
