//! Measurements of whole appliances, with control threads and API: start-up time, registration of a region, latency of
//! a local program's requests and operations, cost of a scrape.
//!
//! Two appliances run in this process, joined by a ring, as `ddpd` runs them with two configuration files. Operations
//! of local programs are measured with one appliance.

mod operations;
mod programs;

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{
    Client, ConnectSpec, JobInfo, JobState, MpaChoice, PutSpec, RemotePlace, SendSpec, Sent,
    Status, StreamInfo, Via,
};
use control::appliance::process::{Process, attach_path};
use control::appliance::thread::Signal;
use dataplane::memory::ring::{Consumer, Kind};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};

use crate::cell::check_available_memory;
use crate::end_config;
use crate::row::{Row, median};

pub use self::operations::ProgramOperation;

/// A measurement of two appliances.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Appliance {
    /// Name of the result row, unique in a run.
    pub name: String,
    /// Group of the benchmark plan to which the row belongs.
    pub group: String,
    /// The measured operation.
    pub what: ApplianceKind,
    /// Duration of a measurement that repeats the operation, seconds.
    pub seconds: f64,
    /// The cores of the two workers.
    pub cores: [usize; 2],
}

/// The measured operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplianceKind {
    /// Start of both appliances and the EAL, until the API answers.
    StartUp,
    /// Registration of a region, from request to response.
    Register {
        /// Length of the region, bytes.
        len: u64,
    },
    /// Put of a file: from a program's request to the record in the completion ring of a program at the peer.
    PutToRing {
        /// Length of the file, bytes.
        len: u32,
    },
    /// Echo of a message: from a program's send request to the response with the peer's echo.
    SendEcho {
        /// Length of the message, bytes.
        len: u32,
    },
    /// Processor time of the control thread per scrape of the metrics.
    Scrape {
        /// Number of open streams.
        streams: u32,
    },
    /// Registration of memory by a local program, from its call to the answer.
    ProgramRegister {
        /// Length of the memory region, bytes.
        len: u64,
    },
    /// Removal of a local program, from its hang-up until its memory is free.
    ProgramDeath {
        /// Number of QPs of the program.
        pairs: u32,
        /// True if each QP has a connection.
        connected: bool,
    },
    /// Operation that local programs post.
    Operation(ProgramOperation),
}

impl Appliance {
    /// Returns the row, without a value.
    pub fn row(&self) -> Row {
        use ApplianceKind::{
            Operation, ProgramDeath, ProgramRegister, PutToRing, Register, Scrape, SendEcho,
            StartUp,
        };
        let unit = match self.what {
            StartUp | Register { .. } | Scrape { .. } | ProgramDeath { .. } => "ms",
            PutToRing { .. } | SendEcho { .. } | ProgramRegister { .. } => "us",
            Operation(what) => what.unit(),
        };
        let row = Row::new(&self.group, &self.name, unit);
        match self.what {
            StartUp => row,
            Register { len } | ProgramRegister { len } => row.with("len", len),
            PutToRing { len } | SendEcho { len } => row.with("len", len),
            Scrape { streams } => row.with("streams", streams),
            ProgramDeath { pairs, connected } => {
                row.with("pairs", pairs).with("connected", connected)
            }
            Operation(what) => what.describe(row),
        }
    }
}

/// Maximum number of streams of each appliance.
const STREAMS: u32 = 20_000;
/// Number of scrapes per measurement; the row is their median.
const SCRAPES: usize = 21;

/// Time-out of a step; only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Measures the operation and returns its row.
pub fn measure(task: &Appliance) -> anyhow::Result<Row> {
    if let ApplianceKind::Register { len } | ApplianceKind::ProgramRegister { len } = task.what {
        check_available_memory(len)?;
    }
    if let ApplianceKind::Operation(what) = task.what {
        let mut row = task.row();
        operations::measure(what, task.seconds, task.cores, &mut row)?;
        return Ok(row);
    }
    let directory = tempfile::tempdir()?;
    let began = Instant::now();
    let pair = AppliancePair::start(directory.path(), task.cores)?;
    let started = began.elapsed();
    let mut row = task.row();
    let time = Duration::from_secs_f64(task.seconds);
    let measured = match task.what {
        ApplianceKind::StartUp => {
            row.set(started.as_secs_f64() * 1e3);
            Ok(())
        }
        ApplianceKind::Register { len } => pair.measure_register(len, &mut row),
        ApplianceKind::PutToRing { len } => pair.put_to_ring(len, time, directory.path(), &mut row),
        ApplianceKind::SendEcho { len } => pair.measure_echo(len, time, &mut row),
        ApplianceKind::Scrape { streams } => pair.measure_scrape(streams, &mut row),
        ApplianceKind::ProgramRegister { len } => {
            pair.register_of_program(len as usize, time, &mut row)
        }
        ApplianceKind::ProgramDeath { pairs, connected } => {
            pair.death_of_program(pairs, connected, &mut row)
        }
        // Measured before this `match`.
        ApplianceKind::Operation(_) => Ok(()),
    };
    pair.stop();
    measured.map(|()| row)
}

/// Returns the configuration of the appliance that opens streams (side 0) or accepts them (side 1).
fn config_text(side: usize, core: usize, directory: &Path) -> String {
    let directory = directory.display();
    let common = format!(
        "name = \"a{side}\"\n[workers]\ncores = [{core}]\n[limits]\nstreams = {STREAMS}\n\
         [files]\npaths = [\"{directory}\"]\n[management]\nsocket = \"{directory}/{side}.sock\"\n\
         [[port]]\nname = \"p{side}\"\nkind = \"ring\"\nlink = \"bench\"\n\
         [[interface]]\nname = \"lan\"\nport = \"p{side}\"\naddresses = [\"10.9.0.{}/24\"]\n\
         [programs]\nsocket = \"{directory}/{side}.programs\"\nmemory = \"4 GiB\"\narena = \"8 GiB\"\n",
        side + 1
    );
    if side == 0 {
        return common;
    }
    format!(
        "{common}[[region]]\nname = \"inbox\"\nbacking = \"shared-memory\"\nobject = \"inbox\"\n\
         size = \"16 MiB\"\naccess = \"w\"\n\
         [[listener]]\nname = \"l\"\ninterface = \"lan\"\nport = 4791\nlimits.streams = {STREAMS}\nregions = [\"inbox\"]\n\
         [[listener.queue]]\nqn = 0\ndeliver_to = \"echo\"\n"
    )
}

struct AppliancePair {
    process: Process,
    clients: [Client; 2],
    /// Sockets for local programs.
    programs: [PathBuf; 2],
    attach: PathBuf,
}

impl AppliancePair {
    fn start(directory: &Path, cores: [usize; 2]) -> anyhow::Result<AppliancePair> {
        let sockets = [0, 1].map(|side| directory.join(format!("{side}.sock")));
        let mut configs = Vec::new();
        for side in [0, 1] {
            configs.push(end_config::parse_config(&config_text(side, cores[side], directory))?);
        }
        let process = Process::start(configs).map_err(anyhow::Error::msg)?;
        let clients = [Client::new(&sockets[0])?, Client::new(&sockets[1])?];
        for client in &clients {
            let _: Status = client.get("/v1/status")?;
        }
        let programs = [0, 1].map(|side| directory.join(format!("{side}.programs")));
        Ok(AppliancePair { process, clients, programs, attach: attach_path(&sockets[1]) })
    }

    fn stop(self) {
        self.process.signal(Signal::Abort);
        self.process.join();
    }

    fn connect(&self) -> anyhow::Result<Via> {
        let mut spec = ConnectSpec::to_remote("10.9.0.2:4791".parse()?);
        spec.mpa = MpaChoice::default();
        let stream: StreamInfo = self.clients[0].post("/v1/connect", &spec)?;
        Ok(Via::Stream(stream.id))
    }

    fn measure_register(&self, len: u64, row: &mut Row) -> anyhow::Result<()> {
        let body = serde_json::json!({ "name": "large", "size": len, "access": "rw" });
        let begin = Instant::now();
        let _: serde_json::Value = self.clients[0].post("/v1/regions", &body)?;
        let took = begin.elapsed();
        row.set(took.as_secs_f64() * 1e3);
        row.add_extra("gib_per_s", len as f64 / f64::from(1 << 30) / took.as_secs_f64());
        Ok(())
    }

    fn put_to_ring(
        &self,
        len: u32,
        time: Duration,
        directory: &Path,
        row: &mut Row,
    ) -> anyhow::Result<()> {
        let file = directory.join("file");
        std::fs::write(&file, vec![0x5a; len as usize])?;
        let via = self.connect()?;
        let arrivals = LocalReader::attach(&self.attach, "inbox")?.watch_deliveries()?;
        let target = RemotePlace::Region { name: "inbox".into(), offset: 0 };
        let spec = PutSpec { file: Some(file), via, target };
        let client = &self.clients[0];
        let mut api_latencies = Latencies::new()?;
        let (rounds, begin) = (&mut Latencies::new()?, Instant::now());
        while begin.elapsed() < time {
            let from = Instant::now();
            let mut job: JobInfo = client.post("/v1/put", &spec)?;
            api_latencies.add(from.elapsed())?;
            let at = arrivals.recv_timeout(TIMEOUT).context("no record in the ring")?;
            rounds.add(at.saturating_duration_since(from))?;
            // The next put must not wait for the end of this put.
            while !job.state.is_finished() {
                anyhow::ensure!(from.elapsed() < TIMEOUT, "the job does not end");
                job = client.get(&format!("/v1/jobs/{}", job.id))?;
            }
            anyhow::ensure!(job.state == JobState::Done, "{}", job.error.unwrap_or_default());
        }
        rounds.report(row)?;
        row.add_extra("api_us", api_latencies.0.value_at_quantile(0.5) as f64 * 1e-3);
        Ok(())
    }

    fn measure_echo(&self, len: u32, time: Duration, row: &mut Row) -> anyhow::Result<()> {
        let via = self.connect()?;
        let data = vec![0x5a; len as usize];
        let spec = SendSpec { via, queue: 0, data, wait_reply_us: 5_000_000 };
        let (mut rounds, begin) = (Latencies::new()?, Instant::now());
        while begin.elapsed() < time {
            let from = Instant::now();
            let sent: Sent = self.clients[0].post("/v1/send", &spec)?;
            anyhow::ensure!(sent.reply.is_some(), "no message came back");
            rounds.add(from.elapsed())?;
        }
        rounds.report(row)
    }

    /// Measures scrapes with `streams` idle streams. Each request follows the previous response.
    fn measure_scrape(&self, streams: u32, row: &mut Row) -> anyhow::Result<()> {
        for _ in 0..streams {
            self.connect()?;
        }
        // The sum includes the other appliance's control thread, which is idle meanwhile.
        let threads = control_threads()?;
        let (mut times, mut walls, mut series) = (Vec::new(), Vec::new(), 0);
        for _ in 0..SCRAPES {
            let (before, from) = (processor_time(&threads)?, Instant::now());
            let text = self.clients[1].text("/v1/metrics")?;
            walls.push(from.elapsed().as_secs_f64() * 1e3);
            times.push((processor_time(&threads)? - before).as_secs_f64() * 1e3);
            series = text.lines().filter(|line| !line.starts_with('#')).count();
        }
        row.set(median(&times));
        row.add_extra("answer_ms", median(&walls));
        row.add_extra("series", series as f64);
        Ok(())
    }
}

/// Returns the paths of the control threads' processor times (`schedstat`, proc(5)).
fn control_threads() -> anyhow::Result<Vec<PathBuf>> {
    let mut accounts = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == "control" {
            accounts.push(task.join("schedstat"));
        }
    }
    anyhow::ensure!(!accounts.is_empty(), "there is no control thread");
    Ok(accounts)
}

/// Returns the total processor time of the threads so far.
fn processor_time(threads: &[PathBuf]) -> anyhow::Result<Duration> {
    let mut all = Duration::ZERO;
    for accounts in threads {
        let accounts = std::fs::read_to_string(accounts)?;
        let first = accounts.split(' ').next().context("no time in a thread's accounts")?;
        all += Duration::from_nanos(first.parse()?);
    }
    Ok(all)
}

struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> anyhow::Result<Latencies> {
        Ok(Latencies(Histogram::new(3)?))
    }

    fn add(&mut self, time: Duration) -> anyhow::Result<()> {
        Ok(self.0.record((time.as_nanos() as u64).max(1))?)
    }

    fn report(&self, row: &mut Row) -> anyhow::Result<()> {
        anyhow::ensure!(!self.0.is_empty(), "no round was completed in time");
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 * 1e-3;
        row.set(at(0.5));
        for (name, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p99_9_us", 0.999)] {
            row.add_extra(name, at(quantile));
        }
        row.add_extra("round_trips", self.0.len() as f64);
        Ok(())
    }
}

/// A local program attached to a region; see docs/shared-memory.md.
struct LocalReader {
    connection: UnixStream,
    ring: Consumer,
    event: OwnedFd,
}

impl LocalReader {
    fn attach(socket: &Path, object: &str) -> anyhow::Result<LocalReader> {
        let mut connection = UnixStream::connect(socket)?;
        connection.write_all(format!("{object}\n").as_bytes())?;
        let mut reply = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let pieces = &mut [IoSliceMut::new(&mut reply)];
        recvmsg(&connection, pieces, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let [_, ring, event]: [OwnedFd; 3] = descriptors
            .try_into()
            .map_err(|_| anyhow::anyhow!("the attach socket gave no three descriptors"))?;
        Ok(LocalReader { connection, ring: Consumer::open(ring.as_fd())?, event })
    }

    /// Starts a thread that sleeps until there are records and sends the time of each delivery. The thread ends when
    /// the receiver or the appliance is dropped.
    fn watch_deliveries(mut self) -> anyhow::Result<Receiver<Instant>> {
        let (sender, receiver) = channel();
        // Records of the stream's opening are consumed before the measurement.
        while self.ring.poll().is_some() {}
        std::thread::Builder::new().name("program".into()).spawn(move || {
            loop {
                let _ = rustix::io::read(&self.event, &mut [0; 8]);
                while let Some((_, record)) = self.ring.poll() {
                    if record.kind == Kind::Data && sender.send(Instant::now()).is_err() {
                        return;
                    }
                }
                let mut both = [
                    PollFd::new(&self.event, PollFlags::IN),
                    PollFd::new(&self.connection, PollFlags::IN),
                ];
                let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
                if poll(&mut both, Some(&limit)).is_err() || !both[1].revents().is_empty() {
                    return;
                }
            }
        })?;
        Ok(receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appliance_accepts_both_configuration_files() {
        for side in [0, 1] {
            let config =
                end_config::parse_config(&config_text(side, side, Path::new("/tmp/x.sock")))
                    .unwrap();
            assert_eq!(config.listeners.len(), side);
        }
    }
}
