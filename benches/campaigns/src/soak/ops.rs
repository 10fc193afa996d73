//! Operations of the soak's threads. Each operation opens streams of one kind and compares all transferred bytes,
//! except those of interrupted transfers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::{
    Client, ConnectSpec, GetSink, GetSpec, JobInfo, JobState, MpaChoice, PutSpec, RemotePlace,
    SendSpec, Sent, StreamInfo, UlpChoice, Via,
};
use config::Transport;
use serde::Serialize;

use super::appliances::{
    CHURN_PORT, MARKERS_PORT, PLAIN_PORT, SCRATCH_REGION, SCTP_PORT, VERBS_PORT, VERBS_SCTP_PORT,
    slot_region,
};
use crate::segments;
use crate::socket::Attacker;
use crate::testbed::{self, PEER_V4, REGION_LEN};

/// Time-out of a transfer.
pub(super) const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// Kind of operation that a soak thread performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Writes over the kernel's TCP with MPA revision 0 or 1, with or without markers and CRC.
    Kernel,
    /// Writes by the peer over TCP.
    Tcp,
    /// Writes by the peer over SCTP.
    Sctp,
    /// RDMAP Writes and Reads over TCP.
    Verbs,
    /// RDMAP Writes and Reads over SCTP.
    VerbsSctp,
    /// Messages echoed by the target, over TCP or SCTP.
    Echo,
    /// Writes by the target to the peer, over TCP or SCTP.
    FromTarget,
    /// Reads whose responses are received with a delay.
    SlowReader,
    /// A transfer that ends early: truncated by the client, cancelled at the peer, or aborted by the target.
    Interrupted,
    /// A region and a listener that are created, used, and removed during a transfer.
    Churn,
    /// Writes, Sends and Reads between programs at the peer and the target.
    Programs,
    /// A program at the target that is killed at a step of its session.
    KilledProgram,
}

impl Kind {
    pub(crate) const ALL: [Kind; 12] = [
        Kind::Kernel,
        Kind::Tcp,
        Kind::Sctp,
        Kind::Verbs,
        Kind::VerbsSctp,
        Kind::Echo,
        Kind::FromTarget,
        Kind::SlowReader,
        Kind::Interrupted,
        Kind::Churn,
        Kind::Programs,
        Kind::KilledProgram,
    ];
}

/// State of a soak thread.
pub(crate) struct Worker {
    /// Number of the thread, from 0.
    pub(crate) thread: usize,
    pub(crate) peer: Client,
    pub(crate) target: Client,
    /// Sockets for programs of the peer and of the target.
    pub(crate) programs: [PathBuf; 2],
    pub(crate) ddpctl: PathBuf,
    pub(crate) file: PathBuf,
    pub(crate) random: fastrand::Rng,
    /// Identifier of the newest stream or job, at the target if `last_at_target`, otherwise at the peer.
    pub(crate) last_id: Option<String>,
    pub(crate) last_at_target: bool,
    /// Local addresses of the sockets of the current operation.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Worker {
    /// Runs one operation. Returns the number of compared bytes.
    pub(crate) fn run_once(&mut self, kind: Kind) -> Result<u64> {
        (self.last_id, self.last_at_target) = (None, false);
        self.addresses.clear();
        match kind {
            Kind::Kernel => self.put_by_kernel(),
            Kind::Tcp => {
                let spec = self.random_tcp_spec();
                self.put(spec)
            }
            Kind::Sctp => self.put(sctp_spec(SCTP_PORT)),
            Kind::Verbs => self.write_and_read(VERBS_PORT, Transport::Tcp),
            Kind::VerbsSctp => self.write_and_read(VERBS_SCTP_PORT, Transport::Sctp),
            Kind::Echo => self.exchange_echoes(),
            Kind::FromTarget => self.put_from_target(),
            Kind::SlowReader => self.read_slowly(),
            Kind::Interrupted => self.interrupt_transfer(),
            Kind::Churn => self.churn_objects(),
            Kind::Programs => self.run_programs(),
            Kind::KilledProgram => self.kill_program(),
        }
        .with_context(|| format!("{kind:?}"))
    }

    /// Writes a new file of random contents and length, and returns the contents.
    fn write_random_file(&mut self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.random.usize(1..=REGION_LEN)];
        self.random.fill(&mut bytes);
        std::fs::write(&self.file, &bytes)?;
        Ok(bytes)
    }

    fn slot_place(&self) -> RemotePlace {
        RemotePlace::Region { name: slot_region(self.thread), offset: 0 }
    }

    /// Checks that the target's region begins with `bytes`. Returns their number.
    fn compare(&self, region: &str, bytes: &[u8]) -> Result<u64> {
        ensure!(region_begins_with(&self.target, region, bytes)?, "DIFFERS: the region {region}");
        Ok(bytes.len() as u64)
    }

    /// Checks that the peer's region begins with `bytes`. A restarted peer has lost acknowledged bytes, so this
    /// function does not mark a difference as `DIFFERS`.
    fn compare_at_peer(&self, region: &str, bytes: &[u8]) -> Result<u64> {
        ensure!(
            region_begins_with(&self.peer, region, bytes)?,
            "the peer's region {region} has other bytes"
        );
        Ok(bytes.len() as u64)
    }

    fn random_tcp_spec(&mut self) -> ConnectSpec {
        let port = if self.random.bool() { MARKERS_PORT } else { PLAIN_PORT };
        let mpa = MpaChoice {
            revision: Some(self.random.u8(0..=1)),
            start_key: false,
            markers: Some(self.random.bool()),
            crc: self.random.bool(),
        };
        let to = if self.random.bool() {
            testbed::target_address(port)
        } else {
            SocketAddr::new(testbed::TARGET_V6.into(), port)
        };
        let mpa = if mpa.revision == Some(0) {
            // With revision 0, CRCs cannot be turned off.
            MpaChoice { crc: true, ..mpa }
        } else {
            mpa
        };
        ConnectSpec { mpa, ..ConnectSpec::to_remote(to) }
    }

    fn put(&mut self, spec: ConnectSpec) -> Result<u64> {
        let bytes = self.write_random_file()?;
        let put = PutSpec {
            file: Some(self.file.clone()),
            via: Via::Connect(spec),
            target: self.slot_place(),
        };
        let job: JobInfo = self.peer.post("/v1/put", &put)?;
        self.last_id = Some(job.id.to_string());
        await_success(&self.peer, job)?;
        self.compare(&slot_region(self.thread), &bytes)
    }

    fn put_from_target(&mut self) -> Result<u64> {
        let bytes = self.write_random_file()?;
        let spec = match self.random.u8(..3) {
            0 => ConnectSpec::to_remote((PEER_V4, MARKERS_PORT).into()),
            1 => ConnectSpec {
                ulp: UlpChoice::Rdmap,
                ..ConnectSpec::to_remote((PEER_V4, VERBS_PORT).into())
            },
            _ => ConnectSpec {
                transport: Transport::Sctp,
                ..ConnectSpec::to_remote((PEER_V4, SCTP_PORT).into())
            },
        };
        let put = PutSpec {
            file: Some(self.file.clone()),
            via: Via::Connect(spec),
            target: self.slot_place(),
        };
        let job: JobInfo = self.target.post("/v1/put", &put)?;
        (self.last_id, self.last_at_target) = (Some(job.id.to_string()), true);
        await_success(&self.target, job)?;
        self.compare_at_peer(&slot_region(self.thread), &bytes)
    }

    fn put_by_kernel(&mut self) -> Result<u64> {
        let bytes = self.write_random_file()?;
        let port = if self.random.bool() { MARKERS_PORT } else { PLAIN_PORT };
        let url = format!("tcp://{}:{port}/{}", testbed::TARGET_V4, slot_region(self.thread));
        let on = |on: bool| if on { "on" } else { "off" };
        let output = Command::new(&self.ddpctl)
            .args(["put", "--kernel", "--timeout", "30s", "--mpa-rev"])
            .arg(self.random.u8(0..=1).to_string())
            .args(["--markers", on(self.random.bool()), "--crc", on(self.random.bool())])
            .arg(&self.file)
            .arg(url)
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", text.trim());
        self.compare(&slot_region(self.thread), &bytes)
    }

    /// Writes a file and reads it back on the same stream.
    fn write_and_read(&mut self, port: u16, transport: Transport) -> Result<u64> {
        let bytes = self.write_random_file()?;
        let spec = ConnectSpec {
            ulp: UlpChoice::Rdmap,
            transport,
            ..ConnectSpec::to_remote(testbed::target_address(port))
        };
        let stream: StreamInfo = self.peer.post("/v1/connect", &spec)?;
        self.last_id = Some(stream.id.to_string());
        let via = Via::Stream(stream.id);
        let put =
            PutSpec { file: Some(self.file.clone()), via: via.clone(), target: self.slot_place() };
        await_success(&self.peer, self.peer.post("/v1/put", &put)?)?;
        let region = slot_region(self.thread);
        let get = GetSpec {
            via,
            source: self.slot_place(),
            length: Some(bytes.len() as u64),
            sink: GetSink::Region { name: region.clone(), offset: 0 },
        };
        await_success(&self.peer, self.peer.post("/v1/get", &get)?)?;
        let sum = self.compare(&region, &bytes)? + self.compare_at_peer(&region, &bytes)?;
        let _: serde_json::Value = self.peer.delete(&format!("/v1/streams/{}", stream.id))?;
        Ok(sum)
    }

    fn exchange_echoes(&mut self) -> Result<u64> {
        let spec = if self.random.bool() {
            sctp_spec(SCTP_PORT)
        } else {
            ConnectSpec::to_remote(testbed::target_address(MARKERS_PORT))
        };
        let stream: StreamInfo = self.peer.post("/v1/connect", &spec)?;
        self.last_id = Some(stream.id.to_string());
        let mut sum = 0;
        for _ in 0..self.random.usize(1..8) {
            let mut data = vec![0; self.random.usize(1..16 << 10)];
            self.random.fill(&mut data);
            let send = SendSpec {
                via: Via::Stream(stream.id),
                queue: 0,
                data: data.clone(),
                wait_reply_us: TRANSFER_TIMEOUT.as_micros() as u64,
            };
            let sent: Sent = self.peer.post("/v1/send", &send)?;
            ensure!(sent.reply.as_ref() == Some(&data), "DIFFERS: an echo");
            sum += 2 * data.len() as u64;
        }
        let _: serde_json::Value = self.peer.delete(&format!("/v1/streams/{}", stream.id))?;
        Ok(sum)
    }

    /// Requests four Reads of a region at once. Receives the responses after 0.1 to 1.5 s.
    fn read_slowly(&mut self) -> Result<u64> {
        const READS: u32 = 4;
        let bytes = self.slot_contents()?;
        let (stag, base) = testbed::region_stag(&self.target, &slot_region(self.thread))?;
        let mut reader = self.open_reader()?;
        for n in 0..READS {
            reader.send_segment(&segments::read_request(1 + n, stag, base, REGION_LEN as u32))?;
        }
        std::thread::sleep(Duration::from_millis(self.random.u64(100..1500)));
        let (mut at, mut sum) = (0, 0);
        let until = Instant::now() + TRANSFER_TIMEOUT;
        while sum < u64::from(READS) * REGION_LEN as u64 {
            let segment = reader.next_segment(until)?.context("the answers end early")?;
            let payload = segment.get(14..).context("a short segment")?;
            ensure!(segment[0] & 0x80 != 0, "no Read Response: {:x?}", &segment[..18]);
            ensure!(
                bytes.get(at..at + payload.len()) == Some(payload),
                "DIFFERS: a Read Response at {at}"
            );
            at = (at + payload.len()) % REGION_LEN;
            sum += payload.len() as u64;
        }
        Ok(sum)
    }

    fn open_reader(&mut self) -> Result<Attacker> {
        Attacker::start_with_address_callback(VERBS_PORT, false, |local| self.addresses.push(local))
    }

    /// Returns the contents of the thread's region at the target.
    fn slot_contents(&self) -> Result<Vec<u8>> {
        let path =
            format!("/v1/regions/{}/data?offset=0&length={REGION_LEN}", slot_region(self.thread));
        Ok(self.target.bytes(&path)?)
    }

    /// Begins a transfer and ends it early, in one of the three ways of [`Kind::Interrupted`].
    fn interrupt_transfer(&mut self) -> Result<u64> {
        self.write_random_file()?;
        let wait = Duration::from_micros(self.random.u64(0..20_000));
        match self.random.u8(..3) {
            0 => {
                let mut cut = Attacker::start_with_address_callback(PLAIN_PORT, true, |local| {
                    self.addresses.push(local)
                })?;
                let fpdu = segments::fpdu(&segments::tagged_segment(1, 0, true, &[7; 1000]));
                cut.send(&fpdu[..self.random.usize(1..fpdu.len())])?;
            }
            1 => {
                let over_sctp = self.random.bool();
                let spec = if over_sctp {
                    sctp_spec(SCTP_PORT)
                } else {
                    ConnectSpec::to_remote(testbed::target_address(MARKERS_PORT))
                };
                let job = self.put_scrap(Via::Connect(spec))?;
                self.last_id = Some(job.id.to_string());
                std::thread::sleep(wait);
                let _: JobInfo = self.peer.delete(&format!("/v1/jobs/{}", job.id))?;
                // The job may have completed before the cancellation. The job ends in either case.
                await_end(&self.peer, job)?;
            }
            _ => {
                let spec = ConnectSpec::to_remote(testbed::target_address(MARKERS_PORT));
                let stream: StreamInfo = self.peer.post("/v1/connect", &spec)?;
                self.last_id = Some(stream.id.to_string());
                let job = self.put_scrap(Via::Stream(stream.id))?;
                std::thread::sleep(wait);
                let all: Vec<StreamInfo> = self.target.list("/v1/streams")?;
                if let Some(there) = all.iter().find(|there| there.remote == stream.local) {
                    let path = format!("/v1/streams/{}?abort=true", there.id);
                    let _: serde_json::Value = self.target.delete(&path)?;
                }
                await_end(&self.peer, job)?;
                // The target's RST may be lost, or the transfer may have completed before the RST. The peer therefore
                // also aborts its stream.
                let path = format!("/v1/streams/{}?abort=true", stream.id);
                let _: Result<serde_json::Value, _> = self.peer.delete(&path);
            }
        }
        Ok(0)
    }

    fn put_scrap(&self, via: Via) -> Result<JobInfo> {
        let target = RemotePlace::Region { name: SCRATCH_REGION.into(), offset: 0 };
        Ok(self.peer.post("/v1/put", &PutSpec { file: Some(self.file.clone()), via, target })?)
    }

    /// Creates a region and a listener, transfers twice, and removes both, possibly during the second transfer.
    fn churn_objects(&mut self) -> Result<u64> {
        let name = format!("churn{}", self.thread);
        let port = CHURN_PORT + self.thread as u16;
        let size = REGION_LEN + (self.random.usize(..4) << 12);
        let region =
            serde_json::json!({"name": name, "size": size, "access": "rw", "shared": true});
        let _: serde_json::Value = self.target.post("/v1/regions", &region)?;
        let listener = serde_json::json!({
            "name": name, "interface": "lan", "port": port, "ulp": "ddp", "regions": [name],
        });
        let made: Result<serde_json::Value, _> = self.target.post("/v1/listeners", &listener);
        let result =
            made.map_err(anyhow::Error::from).and_then(|_| self.transfer_twice(&name, port));
        // The second transfer may still be in progress.
        let _: Result<serde_json::Value, _> = self.target.delete(&format!("/v1/listeners/{name}"));
        let path = format!("/v1/regions/{name}?force=true");
        let _: serde_json::Value = self.target.delete(&path)?;
        let (sum, job) = result?;
        // The outcome is irrelevant, but the job must end: a late connect would find the next region of this name.
        await_end(&self.peer, job)?;
        Ok(sum)
    }

    /// Transfers to the region and compares it. Returns the number of compared bytes and a second job in progress.
    fn transfer_twice(&mut self, name: &str, port: u16) -> Result<(u64, JobInfo)> {
        let bytes = self.write_random_file()?;
        let put = PutSpec {
            file: Some(self.file.clone()),
            via: Via::Connect(ConnectSpec::to_remote(testbed::target_address(port))),
            target: RemotePlace::Region { name: name.to_owned(), offset: 0 },
        };
        let job: JobInfo = self.peer.post("/v1/put", &put)?;
        self.last_id = Some(job.id.to_string());
        await_success(&self.peer, job)?;
        let sum = self.compare(name, &bytes)?;
        // The caller removes the region during the second transfer.
        let job: JobInfo = self.peer.post("/v1/put", &put)?;
        std::thread::sleep(Duration::from_micros(self.random.u64(0..10_000)));
        Ok((sum, job))
    }
}

fn region_begins_with(at: &Client, region: &str, bytes: &[u8]) -> Result<bool> {
    let path = format!("/v1/regions/{region}/data?offset=0&length={}", bytes.len());
    Ok(at.bytes(&path)? == bytes)
}

fn sctp_spec(port: u16) -> ConnectSpec {
    ConnectSpec {
        transport: Transport::Sctp,
        ..ConnectSpec::to_remote(testbed::target_address(port))
    }
}

/// Waits for a job's successful end.
fn await_success(at: &Client, job: JobInfo) -> Result<()> {
    match await_end(at, job)? {
        JobInfo { state: JobState::Done, .. } => Ok(()),
        job => bail!("{}", job.error.unwrap_or_else(|| format!("{:?}", job.state))),
    }
}

/// Waits for a job's end, successful or not; fails after [`TRANSFER_TIMEOUT`].
fn await_end(at: &Client, job: JobInfo) -> Result<JobInfo> {
    let path = format!("/v1/jobs/{}", job.id);
    let until = Instant::now() + TRANSFER_TIMEOUT;
    loop {
        let job: JobInfo = at.get(&path)?;
        if job.state.is_finished() {
            return Ok(job);
        }
        ensure!(
            Instant::now() < until,
            "STALLED: {} bytes after {TRANSFER_TIMEOUT:?}",
            job.acknowledged
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
