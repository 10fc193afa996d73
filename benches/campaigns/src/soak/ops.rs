//! Operations of a soak's threads: each opens a stream of some kind and compares every transferred
//! byte.

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

use super::place::{CHURN, MARKERS, PLAIN, SCRAP, SCTP, VERBS, VERBS_SCTP, slot};
use crate::bed::{self, PEER_V4, REGION};
use crate::socket::Attacker;
use crate::ulp;

/// Time-out of a transfer.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Writes by the kernel's TCP, MPA revision 0 or 1, with and without markers and CRC.
    Kernel,
    /// Writes by the peer over TCP.
    Tcp,
    /// Writes by the peer over SCTP.
    Sctp,
    /// RDMAP Writes and Reads over TCP.
    Verbs,
    /// RDMAP Writes and Reads over SCTP.
    VerbsSctp,
    /// Echoed messages, over TCP or SCTP.
    Echo,
    /// A stream opened by the target.
    FromTarget,
    /// Reads whose responses are received late.
    SlowReader,
    /// A stream that ends during a transfer: cancelled, aborted by the target, or cut off by the
    /// peer.
    Interrupted,
    /// A region and a listener that are created, used and removed, also during use.
    Churn,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Kind; 10] = [
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
    ];
}

/// State of one thread.
pub(crate) struct Worker {
    /// Number of the thread, from 0.
    pub(crate) thread: usize,
    pub(crate) peer: Client,
    pub(crate) target: Client,
    pub(crate) ddpctl: PathBuf,
    pub(crate) file: PathBuf,
    pub(crate) random: fastrand::Rng,
    /// The newest stream or job, by its identifier, and whether it is the target's.
    pub(crate) subject: Option<String>,
    pub(crate) subject_at_target: bool,
    /// Addresses of the newest socket.
    pub(crate) ends: Vec<SocketAddr>,
}

impl Worker {
    /// Runs one operation; returns the compared bytes.
    pub(crate) fn once(&mut self, kind: Kind) -> Result<u64> {
        (self.subject, self.subject_at_target) = (None, false);
        self.ends.clear();
        match kind {
            Kind::Kernel => self.kernel(),
            Kind::Tcp => {
                let spec = self.over_tcp();
                self.put(spec)
            }
            Kind::Sctp => self.put(sctp(SCTP)),
            Kind::Verbs => self.verbs(VERBS, Transport::Tcp),
            Kind::VerbsSctp => self.verbs(VERBS_SCTP, Transport::Sctp),
            Kind::Echo => self.echo(),
            Kind::FromTarget => self.opened_by_target(),
            Kind::SlowReader => self.slow_reader(),
            Kind::Interrupted => self.interrupted(),
            Kind::Churn => self.churn(),
        }
        .with_context(|| format!("{kind:?}"))
    }

    /// Writes a new file of random contents and length, and returns the contents.
    fn fill(&mut self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.random.usize(1..=REGION)];
        self.random.fill(&mut bytes);
        std::fs::write(&self.file, &bytes)?;
        Ok(bytes)
    }

    fn place(&self) -> RemotePlace {
        RemotePlace::Region { name: slot(self.thread), offset: 0 }
    }

    /// Checks that the target's region begins with `bytes`; returns their number.
    fn compare(&self, region: &str, bytes: &[u8]) -> Result<u64> {
        ensure!(begins(&self.target, region, bytes)?, "DIFFERS: the region {region}");
        Ok(bytes.len() as u64)
    }

    /// Checks that the peer's region begins with `bytes`. A restarted peer has lost acknowledged
    /// bytes, so that a difference is not marked as `DIFFERS`.
    fn compare_at_peer(&self, region: &str, bytes: &[u8]) -> Result<u64> {
        ensure!(begins(&self.peer, region, bytes)?, "the peer's region {region} has other bytes");
        Ok(bytes.len() as u64)
    }

    fn over_tcp(&mut self) -> ConnectSpec {
        let port = if self.random.bool() { MARKERS } else { PLAIN };
        let mpa = MpaChoice {
            revision: Some(self.random.u8(0..=1)),
            start_key: false,
            markers: Some(self.random.bool()),
            crc: self.random.bool(),
        };
        let to = if self.random.bool() {
            bed::target(port)
        } else {
            SocketAddr::new(bed::TARGET_V6.into(), port)
        };
        let mpa = if mpa.revision == Some(0) {
            // Request frames of revision 0.
            MpaChoice { crc: true, ..mpa }
        } else {
            mpa
        };
        ConnectSpec { mpa, ..ConnectSpec::to(to) }
    }

    fn put(&mut self, spec: ConnectSpec) -> Result<u64> {
        let bytes = self.fill()?;
        let put = PutSpec {
            file: Some(self.file.clone()),
            via: Via::Connect(spec),
            target: self.place(),
        };
        let job: JobInfo = self.peer.post("/v1/put", &put)?;
        self.subject = Some(job.id.to_string());
        finish(&self.peer, job)?;
        self.compare(&slot(self.thread), &bytes)
    }

    fn opened_by_target(&mut self) -> Result<u64> {
        let bytes = self.fill()?;
        let spec = match self.random.u8(..3) {
            0 => ConnectSpec::to((PEER_V4, MARKERS).into()),
            1 => ConnectSpec { ulp: UlpChoice::Rdmap, ..ConnectSpec::to((PEER_V4, VERBS).into()) },
            _ => ConnectSpec {
                transport: Transport::Sctp,
                ..ConnectSpec::to((PEER_V4, SCTP).into())
            },
        };
        let put = PutSpec {
            file: Some(self.file.clone()),
            via: Via::Connect(spec),
            target: self.place(),
        };
        let job: JobInfo = self.target.post("/v1/put", &put)?;
        (self.subject, self.subject_at_target) = (Some(job.id.to_string()), true);
        finish(&self.target, job)?;
        self.compare_at_peer(&slot(self.thread), &bytes)
    }

    fn kernel(&mut self) -> Result<u64> {
        let bytes = self.fill()?;
        let port = if self.random.bool() { MARKERS } else { PLAIN };
        let url = format!("tcp://{}:{port}/{}", bed::TARGET_V4, slot(self.thread));
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
        self.compare(&slot(self.thread), &bytes)
    }

    /// Writes a file and reads it back on one stream.
    fn verbs(&mut self, port: u16, transport: Transport) -> Result<u64> {
        let bytes = self.fill()?;
        let spec =
            ConnectSpec { ulp: UlpChoice::Rdmap, transport, ..ConnectSpec::to(bed::target(port)) };
        let stream: StreamInfo = self.peer.post("/v1/connect", &spec)?;
        self.subject = Some(stream.id.to_string());
        let via = Via::Stream(stream.id);
        let put = PutSpec { file: Some(self.file.clone()), via: via.clone(), target: self.place() };
        finish(&self.peer, self.peer.post("/v1/put", &put)?)?;
        let region = slot(self.thread);
        let get = GetSpec {
            via,
            source: self.place(),
            length: Some(bytes.len() as u64),
            sink: GetSink::Region { name: region.clone(), offset: 0 },
        };
        finish(&self.peer, self.peer.post("/v1/get", &get)?)?;
        let sum = self.compare(&region, &bytes)? + self.compare_at_peer(&region, &bytes)?;
        let _: serde_json::Value = self.peer.delete(&format!("/v1/streams/{}", stream.id))?;
        Ok(sum)
    }

    fn echo(&mut self) -> Result<u64> {
        let spec =
            if self.random.bool() { sctp(SCTP) } else { ConnectSpec::to(bed::target(MARKERS)) };
        let stream: StreamInfo = self.peer.post("/v1/connect", &spec)?;
        self.subject = Some(stream.id.to_string());
        let mut sum = 0;
        for _ in 0..self.random.usize(1..8) {
            let mut data = vec![0; self.random.usize(1..16 << 10)];
            self.random.fill(&mut data);
            let send = SendSpec {
                via: Via::Stream(stream.id),
                queue: 0,
                data: data.clone(),
                wait_reply_us: GIVEN_UP.as_micros() as u64,
            };
            let sent: Sent = self.peer.post("/v1/send", &send)?;
            ensure!(sent.reply.as_ref() == Some(&data), "DIFFERS: an echo");
            sum += 2 * data.len() as u64;
        }
        let _: serde_json::Value = self.peer.delete(&format!("/v1/streams/{}", stream.id))?;
        Ok(sum)
    }

    /// Requests four Reads of a region at once and receives the responses after a while.
    fn slow_reader(&mut self) -> Result<u64> {
        const READS: u32 = 4;
        let bytes = self.whole_slot()?;
        let (stag, base) = bed::stag(&self.target, &slot(self.thread))?;
        let mut reader = self.reader()?;
        for n in 0..READS {
            reader.segment(&ulp::read(1 + n, (stag, base), REGION as u32))?;
        }
        std::thread::sleep(Duration::from_millis(self.random.u64(100..1500)));
        let (mut at, mut sum) = (0, 0);
        let until = Instant::now() + GIVEN_UP;
        while sum < u64::from(READS) * REGION as u64 {
            let segment = reader.next(until)?.context("the answers end early")?;
            let payload = segment.get(14..).context("a short segment")?;
            ensure!(segment[0] & 0x80 != 0, "no Read Response: {:x?}", &segment[..18]);
            ensure!(
                bytes.get(at..at + payload.len()) == Some(payload),
                "DIFFERS: a Read Response at {at}"
            );
            at = (at + payload.len()) % REGION;
            sum += payload.len() as u64;
        }
        Ok(sum)
    }

    fn reader(&mut self) -> Result<Attacker> {
        Attacker::start_at(VERBS, false, |local| self.ends.push(local))
    }

    /// Returns the contents of the thread's region at the target.
    fn whole_slot(&self) -> Result<Vec<u8>> {
        let path = format!("/v1/regions/{}/data?offset=0&length={REGION}", slot(self.thread));
        Ok(self.target.bytes(&path)?)
    }

    fn interrupted(&mut self) -> Result<u64> {
        self.fill()?;
        let wait = Duration::from_micros(self.random.u64(0..20_000));
        match self.random.u8(..3) {
            0 => {
                let mut cut = Attacker::start_at(PLAIN, true, |local| self.ends.push(local))?;
                let fpdu = ulp::fpdu(&ulp::tagged(1, 0, true, &[7; 1000]));
                cut.send(&fpdu[..self.random.usize(1..fpdu.len())])?;
            }
            1 => {
                let over_sctp = self.random.bool();
                let spec =
                    if over_sctp { sctp(SCTP) } else { ConnectSpec::to(bed::target(MARKERS)) };
                let job = self.put_scrap(Via::Connect(spec))?;
                self.subject = Some(job.id.to_string());
                std::thread::sleep(wait);
                let _: JobInfo = self.peer.delete(&format!("/v1/jobs/{}", job.id))?;
                // The job may have been finished before the cancellation; either way it ends.
                ended(&self.peer, job)?;
            }
            _ => {
                let spec = ConnectSpec::to(bed::target(MARKERS));
                let stream: StreamInfo = self.peer.post("/v1/connect", &spec)?;
                self.subject = Some(stream.id.to_string());
                let job = self.put_scrap(Via::Stream(stream.id))?;
                std::thread::sleep(wait);
                let all: Vec<StreamInfo> = self.target.get("/v1/streams")?;
                if let Some(there) = all.iter().find(|there| there.remote == stream.local) {
                    let path = format!("/v1/streams/{}?abort=true", there.id);
                    let _: serde_json::Value = self.target.delete(&path)?;
                }
                ended(&self.peer, job)?;
                // The RST may have been lost, and the file may have been complete before.
                let path = format!("/v1/streams/{}?abort=true", stream.id);
                let _: Result<serde_json::Value, _> = self.peer.delete(&path);
            }
        }
        Ok(0)
    }

    fn put_scrap(&self, via: Via) -> Result<JobInfo> {
        let target = RemotePlace::Region { name: SCRAP.into(), offset: 0 };
        Ok(self.peer.post("/v1/put", &PutSpec { file: Some(self.file.clone()), via, target })?)
    }

    /// Creates, uses and removes a region and a listener.
    fn churn(&mut self) -> Result<u64> {
        let name = format!("churn{}", self.thread);
        let port = CHURN + self.thread as u16;
        let size = REGION + (self.random.usize(..4) << 12);
        let region =
            serde_json::json!({"name": name, "size": size, "access": "rw", "shared": true});
        let _: serde_json::Value = self.target.post("/v1/regions", &region)?;
        let listener = serde_json::json!({
            "name": name, "interface": "lan", "port": port, "ulp": "ddp", "regions": [name],
        });
        let made: Result<serde_json::Value, _> = self.target.post("/v1/listeners", &listener);
        let result = made.map_err(anyhow::Error::from).and_then(|_| self.use_churn(&name, port));
        // During the transfer, or after it.
        let _: Result<serde_json::Value, _> = self.target.delete(&format!("/v1/listeners/{name}"));
        let path = format!("/v1/regions/{name}?force=true");
        let _: serde_json::Value = self.target.delete(&path)?;
        let (sum, job) = result?;
        // The outcome does not matter, but the job must end: a late connect would find the next
        // region of this name.
        ended(&self.peer, job)?;
        Ok(sum)
    }

    /// Uses the region; returns the compared bytes and a second transfer that is still in progress.
    fn use_churn(&mut self, name: &str, port: u16) -> Result<(u64, JobInfo)> {
        let bytes = self.fill()?;
        let put = PutSpec {
            file: Some(self.file.clone()),
            via: Via::Connect(ConnectSpec::to(bed::target(port))),
            target: RemotePlace::Region { name: name.to_owned(), offset: 0 },
        };
        let job: JobInfo = self.peer.post("/v1/put", &put)?;
        self.subject = Some(job.id.to_string());
        finish(&self.peer, job)?;
        let sum = self.compare(name, &bytes)?;
        // A second transfer, during which the region is removed.
        let job: JobInfo = self.peer.post("/v1/put", &put)?;
        std::thread::sleep(Duration::from_micros(self.random.u64(0..10_000)));
        Ok((sum, job))
    }
}

fn begins(at: &Client, region: &str, bytes: &[u8]) -> Result<bool> {
    let path = format!("/v1/regions/{region}/data?offset=0&length={}", bytes.len());
    Ok(at.bytes(&path)? == bytes)
}

fn sctp(port: u16) -> ConnectSpec {
    ConnectSpec { transport: Transport::Sctp, ..ConnectSpec::to(bed::target(port)) }
}

/// Waits for a job's successful end.
fn finish(at: &Client, job: JobInfo) -> Result<()> {
    match ended(at, job)? {
        JobInfo { state: JobState::Done, .. } => Ok(()),
        job => bail!("{}", job.error.unwrap_or_else(|| format!("{:?}", job.state))),
    }
}

/// Waits for a job's end, successful or not.
fn ended(at: &Client, job: JobInfo) -> Result<JobInfo> {
    let path = format!("/v1/jobs/{}", job.id);
    let until = Instant::now() + GIVEN_UP;
    loop {
        let job: JobInfo = at.get(&path)?;
        if job.state.is_final() {
            return Ok(job);
        }
        ensure!(Instant::now() < until, "STALLED: {} bytes after {GIVEN_UP:?}", job.acknowledged);
        std::thread::sleep(Duration::from_millis(2));
    }
}
