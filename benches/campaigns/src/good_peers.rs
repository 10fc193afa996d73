//! Good peers, whose transfers must continue during every attack. Three of them (tcp, sctp, verbs) continuously write
//! to a stream that stays open; verbs also reads the bytes back. The fourth (kernel) opens a stream over the kernel's
//! TCP for each file. The fifth (program) is a local program at each appliance, if the appliances serve programs. Each
//! transfer is compared byte by byte.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    Client, ConnectSpec, GetSink, GetSpec, JobInfo, JobState, PutSpec, RemotePlace, StreamInfo,
    UlpChoice, Via,
};
use config::Transport;
use serde::Serialize;

use crate::programs::pair::ProgramPair;
use crate::testbed::{self, REGION_LEN, Testbed};

/// Names of the good peers.
pub(crate) const NAMES: [&str; 5] = ["tcp", "sctp", "verbs", "kernel", PROGRAM];
/// Name of the good peer that is a local program.
const PROGRAM: &str = "program";

/// Time without a completed transfer after which a good peer has stalled, milliseconds. An attack continues until each
/// peer has completed two transfers or stalled. Rates are reported but not judged: a busy machine also lowers them.
pub(crate) const STALL_TIMEOUT_MS: u64 = 30_000;
/// Time-out of a transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_millis(STALL_TIMEOUT_MS);
/// Pause between two transfers of a peer.
const PAUSE: Duration = Duration::from_millis(5);

/// Progress of one good peer since its start.
#[derive(Debug, Default)]
struct Progress {
    bytes: AtomicU64,
    transfers: AtomicU64,
    /// Time of the last completed or failed transfer, milliseconds from the start.
    last: AtomicU64,
    /// Longest time between the ends of two transfers since the last [`GoodPeers::take_work`], milliseconds.
    longest_gap: AtomicU64,
    /// True while the peer is paused by [`GoodPeers::pause`].
    paused: AtomicBool,
    failures: Mutex<Vec<String>>,
}

/// Transfers of one good peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfers {
    /// Completed transfers.
    pub(crate) completed: u64,
    /// Time since the end of the last transfer, milliseconds.
    pub(crate) silent_ms: u64,
}

/// Work of one good peer in a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PeerWork {
    /// Name of the peer, one of [`NAMES`].
    pub(crate) name: &'static str,
    /// Bytes transferred and compared equal.
    pub(crate) bytes: u64,
    /// Completed transfers.
    pub(crate) transfers: u64,
    /// Longest time between the ends of two transfers, milliseconds.
    pub(crate) longest_ms: u64,
    /// Messages of the failed transfers, at most 8.
    pub(crate) failures: Vec<String>,
}

/// The running good peers. Dropping the value stops their threads.
pub(crate) struct GoodPeers {
    started_at: Instant,
    peers: Vec<(&'static str, Arc<Progress>)>,
    stop: Arc<AtomicBool>,
    pause: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// The good TCP stream, as listed by the good peer's appliance.
    pub(crate) tcp: StreamInfo,
}

impl GoodPeers {
    /// Opens the peers' streams and starts their threads.
    pub(crate) fn start(bed: &Testbed, ddpctl: &Path, directory: &Path) -> Result<GoodPeers> {
        let (over, hold) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let connect = |spec: &ConnectSpec| -> Result<StreamInfo> {
            bed.peer.client.post("/v1/connect", spec).context("a good peer's stream")
        };
        let tcp = connect(&ConnectSpec::to_remote(testbed::target_address(testbed::FILES_PORT)))?;
        let over_sctp = ConnectSpec {
            transport: Transport::Sctp,
            ..ConnectSpec::to_remote(testbed::target_address(testbed::FILES_SCTP_PORT))
        };
        let sctp = connect(&over_sctp)?;
        let v6 = SocketAddr::new(testbed::TARGET_V6.into(), testbed::VERBS_PORT);
        let rdmap = ConnectSpec { ulp: UlpChoice::Rdmap, ..ConnectSpec::to_remote(v6) };
        let verbs = connect(&rdmap)?;
        let mut good = GoodPeers {
            started_at: Instant::now(),
            peers: Vec::new(),
            stop: over,
            pause: hold,
            threads: Vec::new(),
            tcp: tcp.clone(),
        };
        let streams = [Some(tcp), Some(sctp), Some(verbs), None, None];
        for (index, (name, stream)) in NAMES.into_iter().zip(streams).enumerate() {
            let programs = if name == PROGRAM { connect_programs(bed)? } else { None };
            if name == PROGRAM && programs.is_none() {
                continue;
            }
            let progress = Arc::new(Progress::default());
            good.peers.push((name, progress.clone()));
            let work = GoodPeer {
                name,
                stream,
                programs,
                peer: Client::new(&bed.peer.socket)?,
                target: Client::new(&bed.target.socket)?,
                ddpctl: ddpctl.to_owned(),
                file: directory.join(format!("good-{name}.bin")),
                random: fastrand::Rng::with_seed(5041 + index as u64),
            };
            let (over, hold, began) = (good.stop.clone(), good.pause.clone(), good.started_at);
            good.threads.push(std::thread::spawn(move || work.run(&progress, &over, &hold, began)));
        }
        Ok(good)
    }

    /// Pauses all peers after their current transfers. Returns true if all are paused within `time`.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        self.pause.store(true, Ordering::Relaxed);
        let until = Instant::now() + time;
        loop {
            if self.peers.iter().all(|(_, peer)| peer.paused.load(Ordering::Relaxed)) {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends a pause by [`pause`](GoodPeers::pause). The paused time does not count as a gap between transfers.
    pub(crate) fn resume(&self) {
        let now = self.started_at.elapsed().as_millis() as u64;
        for (_, peer) in &self.peers {
            peer.last.store(now, Ordering::Relaxed);
        }
        self.pause.store(false, Ordering::Relaxed);
    }

    /// Returns the transfers of each peer.
    pub(crate) fn transfers(&self) -> Vec<Transfers> {
        let now = self.started_at.elapsed().as_millis() as u64;
        let each = self.peers.iter().map(|(_, peer)| Transfers {
            completed: peer.transfers.load(Ordering::Relaxed),
            silent_ms: now.saturating_sub(peer.last.load(Ordering::Relaxed)),
        });
        each.collect()
    }

    /// Returns the work of each peer since the previous call, and updates `before` (bytes and transfers of each peer).
    pub(crate) fn take_work(&self, before: &mut Vec<(u64, u64)>) -> Vec<PeerWork> {
        let now = self.started_at.elapsed().as_millis() as u64;
        before.resize(self.peers.len(), (0, 0));
        let each = self.peers.iter().zip(before);
        each.map(|((name, progress), before)| {
            let bytes = progress.bytes.load(Ordering::Relaxed);
            let transfers = progress.transfers.load(Ordering::Relaxed);
            let silent = now.saturating_sub(progress.last.load(Ordering::Relaxed));
            let longest_ms = progress.longest_gap.swap(0, Ordering::Relaxed).max(silent);
            let failures = match progress.failures.lock() {
                Ok(mut failures) => std::mem::take(&mut *failures),
                Err(_) => vec!["panicked".into()],
            };
            let done = PeerWork {
                name,
                bytes: bytes - before.0,
                transfers: transfers - before.1,
                longest_ms,
                failures,
            };
            *before = (bytes, transfers);
            done
        })
        .collect()
    }
}

/// Attaches a good program to each appliance; `None` if the appliances serve no programs.
fn connect_programs(bed: &Testbed) -> Result<Option<ProgramPair>> {
    let [client, server] = [&bed.peer, &bed.target].map(testbed::programs_socket);
    if !server.exists() {
        return Ok(None);
    }
    let local = testbed::target_address(testbed::PROGRAM_PORT);
    let pair = ProgramPair::connect(&client, &server, local, REGION_LEN, TRANSFER_TIMEOUT);
    pair.context("the good programs").map(Some)
}

impl Drop for GoodPeers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The result is ignored: the thread has recorded its failures.
            let _ = thread.join();
        }
    }
}

/// State of one good peer's thread.
struct GoodPeer {
    name: &'static str,
    stream: Option<StreamInfo>,
    programs: Option<ProgramPair>,
    peer: Client,
    target: Client,
    ddpctl: PathBuf,
    file: PathBuf,
    random: fastrand::Rng,
}

impl GoodPeer {
    fn run(mut self, progress: &Progress, over: &AtomicBool, hold: &AtomicBool, began: Instant) {
        while !over.load(Ordering::Relaxed) {
            let rests = hold.load(Ordering::Relaxed);
            progress.paused.store(rests, Ordering::Relaxed);
            if rests {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let result = self.transfer();
            let now = began.elapsed().as_millis() as u64;
            let last = progress.last.swap(now, Ordering::Relaxed);
            progress.longest_gap.fetch_max(now - last, Ordering::Relaxed);
            match result {
                Ok(bytes) => {
                    progress.bytes.fetch_add(bytes, Ordering::Relaxed);
                    progress.transfers.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    if let Ok(mut failures) = progress.failures.lock()
                        && failures.len() < 8
                    {
                        failures.push(format!("{error:#}"));
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Makes one transfer. Returns the number of bytes transferred and compared equal.
    fn transfer(&mut self) -> Result<u64> {
        let mut bytes = vec![0; REGION_LEN];
        self.random.fill(&mut bytes);
        if let Some(programs) = &self.programs {
            return programs.transfer(&bytes, TRANSFER_TIMEOUT);
        }
        std::fs::write(&self.file, &bytes)?;
        match self.stream.as_ref().map(|stream| stream.id) {
            Some(id) => {
                let target = RemotePlace::Region { name: self.name.into(), offset: 0 };
                let put = PutSpec { file: Some(self.file.clone()), via: Via::Stream(id), target };
                self.await_job(self.peer.post("/v1/put", &put).context("put")?)?;
            }
            None => self.put_by_kernel()?,
        }
        let path = format!("/v1/regions/{}/data?offset=0&length={REGION_LEN}", self.name);
        ensure!(self.target.bytes(&path)? == bytes, "the region {} differs", self.name);
        if self.name != "verbs" {
            return Ok(REGION_LEN as u64);
        }
        // Only the peer verbs reads the written bytes back.
        let id = self.stream.as_ref().context("a stream")?.id;
        let get = GetSpec {
            via: Via::Stream(id),
            source: RemotePlace::Region { name: self.name.into(), offset: 0 },
            length: Some(REGION_LEN as u64),
            sink: GetSink::Region { name: "back".into(), offset: 0 },
        };
        self.await_job(self.peer.post("/v1/get", &get).context("get")?)?;
        let path = format!("/v1/regions/back/data?offset=0&length={REGION_LEN}");
        ensure!(self.peer.bytes(&path)? == bytes, "the bytes read from {} differ", self.name);
        Ok(2 * REGION_LEN as u64)
    }

    fn await_job(&self, job: JobInfo) -> Result<()> {
        let path = format!("/v1/jobs/{}", job.id);
        let until = Instant::now() + TRANSFER_TIMEOUT;
        loop {
            let job: JobInfo = self.peer.get(&path)?;
            match job.state {
                JobState::Done => return Ok(()),
                state if state.is_finished() => bail!("{}", job.error.unwrap_or_default()),
                _ => {
                    ensure!(
                        Instant::now() < until,
                        "{} bytes after {TRANSFER_TIMEOUT:?}",
                        job.acknowledged
                    )
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Transfers the file on a new stream over the kernel's TCP.
    fn put_by_kernel(&self) -> Result<()> {
        let url = format!("tcp://{}:{}/kernel", testbed::TARGET_V4, testbed::FILES_PORT);
        let output = Command::new(&self.ddpctl)
            .args(["put", "--kernel"])
            .arg(&self.file)
            .arg(url)
            .output()
            .with_context(|| format!("{} does not start", self.ddpctl.display()))?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "put --kernel: {}", text.trim());
        Ok(())
    }
}
