//! Work of a good peer while the appliance is loaded: files and echoes of small messages, both at
//! fixed rates.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{
    BenchLoad, BenchPeer, BenchSpec, ConnectSpec, JobInfo, JobState, LatencyInfo, PutSpec,
    RemotePlace, UlpChoice, Via,
};
use serde::{Deserialize, Serialize};

use crate::testbed::{Appliance, ECHO_PORT, FILES_PORT, target_address};

/// Length of a test file, bytes.
pub const FILE_LEN: usize = 256 << 10;
/// Interval between the starts of file transfers.
const FILE_INTERVAL: Duration = Duration::from_millis(100);
/// Echo messages per second.
pub const ECHO_RATE: u64 = 1000;
/// Length of an echo message, bytes.
pub const ECHO_LEN: u32 = 64;

/// Time without progress that counts as a stall.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Completed work of one good peer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PeerWork {
    /// Number of file transfers that were started.
    pub files_due: u64,
    /// Files of [`FILE_LEN`] bytes that the appliance acknowledged.
    pub files: u64,
    /// Goodput of the files, Gbit/s: acknowledged payload divided by the sum of the transfers' durations.
    pub file_gbit_per_s: f64,
    /// Echoed messages.
    pub echoes: u64,
    /// Messages that were due but not echoed by the end.
    pub echoes_unfinished: u64,
    /// Latency from a message's due time to its echo.
    pub latency: Option<LatencyInfo>,
}

/// Two files that differ in every byte, used alternately.
pub struct TestFiles([PathBuf; 2]);

impl TestFiles {
    /// Writes the files into `directory`.
    pub fn create(directory: &Path) -> anyhow::Result<TestFiles> {
        let mut random = fastrand::Rng::with_seed(5041);
        let one: Vec<u8> = (0..FILE_LEN).map(|_| random.u8(..)).collect();
        let other: Vec<u8> = one.iter().map(|byte| !byte).collect();
        let paths = ["file-0.bin", "file-1.bin"].map(|name| directory.join(name));
        for (path, bytes) in paths.iter().zip([one, other]) {
            std::fs::write(path, bytes)?;
        }
        Ok(TestFiles(paths))
    }
}

/// Transfers files and runs an echo load for `time`, from `peer` to the target's address in the network
/// 10.`net`.0.0/24. Compares the target's region with each file after its transfer.
pub fn run_peer(
    peer: &Appliance,
    target: &Appliance,
    name: &str,
    net: u8,
    files: &TestFiles,
    time: Duration,
) -> anyhow::Result<PeerWork> {
    let to = |port| SocketAddr::new(target_address(net), port);
    let mut connect = ConnectSpec::to_remote(to(ECHO_PORT));
    connect.ulp = UlpChoice::Rdmap;
    let spec = BenchSpec {
        load: BenchLoad::Echo,
        connect,
        target: None,
        peer: BenchPeer::default(),
        queue: 0,
        streams: 1,
        size: ECHO_LEN,
        depth: 32,
        time_us: time.as_micros() as u64,
        rate: Some(ECHO_RATE),
    };
    let echo: JobInfo = peer.client.post("/v1/bench", &spec).context("bench echo")?;
    let echo = format!("/v1/jobs/{}", echo.id);
    let mut done = PeerWork::default();
    let began = Instant::now();
    let mut seconds = 0.0;
    while began.elapsed() < time {
        let file = &files.0[done.files_due as usize % 2];
        let job = start_put(peer, file, to(FILES_PORT), name)?;
        done.files_due += 1;
        if job.state == JobState::Done {
            done.files += 1;
            seconds += job.seconds;
        } else {
            anyhow::bail!("a file from peer-{name} failed: {}", job.error.unwrap_or_default());
        }
        compare_region(target, name, file)?;
        // The appliance ends a bench job that no client polls, so this request keeps the echo load running.
        let _: JobInfo = peer.client.get(&echo)?;
        std::thread::sleep(FILE_INTERVAL.saturating_sub(Duration::from_secs_f64(job.seconds)));
    }
    done.file_gbit_per_s = done.files as f64 * FILE_LEN as f64 * 8e-9 / seconds.max(1e-9);
    let job = await_job(peer, &echo)?;
    anyhow::ensure!(
        job.state == JobState::Done,
        "echo of peer-{name}: {}",
        job.error.unwrap_or_default()
    );
    let bench = job.bench.context("a bench without its result")?;
    done.echoes = bench.messages;
    done.echoes_unfinished = bench.unfinished;
    done.latency = bench.latency;
    Ok(done)
}

/// Transfers one file on a new stream and waits for its end.
fn start_put(peer: &Appliance, file: &Path, to: SocketAddr, name: &str) -> anyhow::Result<JobInfo> {
    let region = RemotePlace::Region { name: format!("files-{name}"), offset: 0 };
    let via = Via::Connect(ConnectSpec::to_remote(to));
    let spec = PutSpec { file: Some(file.to_owned()), via, target: region };
    let job: JobInfo = peer.client.post("/v1/put", &spec).context("put")?;
    await_job(peer, &format!("/v1/jobs/{}", job.id))
}

/// Waits for a job's end. Fails after [`STALL_TIMEOUT`] without progress.
fn await_job(peer: &Appliance, path: &str) -> anyhow::Result<JobInfo> {
    let (mut last, mut moved) = ((0, 0.0), Instant::now());
    loop {
        let job: JobInfo = peer.client.get(path)?;
        if job.state.is_finished() {
            return Ok(job);
        }
        let seen =
            (job.acknowledged, job.bench.as_ref().map_or(0.0, |bench| bench.messages as f64));
        if seen != last {
            (last, moved) = (seen, Instant::now());
        }
        anyhow::ensure!(moved.elapsed() < STALL_TIMEOUT, "{path} makes no progress");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Compares the target's region with the file, byte by byte.
fn compare_region(target: &Appliance, name: &str, file: &Path) -> anyhow::Result<()> {
    let path = format!("/v1/regions/files-{name}/data?offset=0&length={FILE_LEN}");
    let placed = target.client.bytes(&path)?;
    anyhow::ensure!(
        placed == std::fs::read(file)?,
        "the region files-{name} differs from the file"
    );
    Ok(())
}
