//! A TCP stream whose peer is the test. The peer's segments arrive in order, and the segments of the endpoint under
//! test are recorded.

use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::rdmap;
use ddp::{
    Access, BufferPool, OpenRequest, PdId, Qn, QueueConfig, Stag, StagEntry, StagTable,
    StreamConfig, StreamId, TaggedOffset, UlpConfig, VecMemory,
};
use sim::dialogue::Batch;
use sim::oracle;
use tcp_lite::endpoint::{CloseReason, Context, Endpoint, EndpointConfig, Event};
use tcp_lite::mpa::{self, HoldBudget, Revision};
use tcp_lite::tcp::{Flags, FourTuple, Segment, SeqNumber};

const HOLD: u64 = 1 << 16;
const POOL: u64 = 1 << 16;
const PD: PdId = PdId(1);
const PEER_ISS: SeqNumber = SeqNumber(5000);
const ISS: SeqNumber = SeqNumber(9000);

/// Region that all streams may access.
pub(crate) const OPEN: Stag = Stag(0x700);
/// Region bound to the first stream, whose conversation has the wrong field.
pub(crate) const OWN: Stag = Stag(0x800);
/// Data sink of the endpoint's Reads. Peers have no access rights.
pub(crate) const SINK: Stag = Stag(0x900);
/// Region without access rights.
pub(crate) const SECRET: Stag = Stag(0xa00);
/// Region bound to the second stream, whose conversation is correct.
pub(crate) const GOOD: Stag = Stag(0xb00);
/// Position of each region in its memory of [`LEN`] bytes.
pub(crate) const REGION: std::ops::Range<usize> = 256..2304;
const LEN: usize = 2560;
/// Fill byte of memory that no peer may write: around the regions, and all of [`SECRET`].
const MARK: u8 = 0x5e;

/// State shared by the streams of one worker.
pub(crate) struct Worker {
    pub(crate) now: Instant,
    stags: StagTable<VecMemory>,
    pool: BufferPool,
    hold: HoldBudget,
    regions: Vec<VecMemory>,
}

impl Worker {
    pub(crate) fn new() -> Worker {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC;
        let (one, other) = (Some(StreamId(1)), Some(StreamId(2)));
        let mut stags = StagTable::new();
        let mut regions = Vec::new();
        for (stag, stream, access) in [
            (OPEN, None, all),
            (OWN, one, all),
            (SINK, None, Access::NONE),
            (SECRET, None, Access::NONE),
            (GOOD, other, all),
        ] {
            let mut bytes = vec![MARK; LEN];
            if stag != SECRET {
                bytes[REGION].fill(0);
            }
            let memory = VecMemory::from_vec(bytes);
            regions.push(memory.clone());
            let (base_to, len) = (TaggedOffset(0), REGION.len() as u64);
            let memory_offset = REGION.start as u64;
            let entry =
                StagEntry { stag, pd: PD, stream, base_to, len, access, memory, memory_offset };
            stags.insert(entry).expect("a new table");
        }
        let (pool, hold) = (BufferPool::new(POOL), HoldBudget::new(HOLD));
        Worker { now: Instant::from_millis(1000), stags, pool, hold, regions }
    }

    fn context(&mut self) -> Context<'_, VecMemory> {
        Context { stags: &self.stags, buffers: &mut self.pool, hold: &mut self.hold }
    }

    pub(crate) fn sctp(&mut self) -> sctp_lite::endpoint::Context<'_, VecMemory> {
        sctp_lite::endpoint::Context {
            stags: &self.stags,
            buffers: &mut self.pool,
            hold: &mut self.hold,
        }
    }

    /// Returns the memories with regions that the first stream may write: [`OPEN`], [`OWN`] and [`SINK`].
    pub(crate) fn writable_memory(&self) -> Vec<Vec<u8>> {
        self.regions[..3].iter().map(VecMemory::to_vec).collect()
    }

    /// Returns the content of [`GOOD`], the region of the second stream.
    pub(crate) fn second_region(&self) -> Vec<u8> {
        self.regions[4].to_vec()[REGION].to_vec()
    }

    /// Checks that no memory around regions or without access rights was written, and that all buffers were returned.
    pub(crate) fn check(&self) {
        for memory in &self.regions {
            let bytes = memory.to_vec();
            let around = bytes[..REGION.start].iter().chain(&bytes[REGION.end..]);
            assert!(around.copied().all(|byte| byte == MARK), "written outside a region");
        }
        let secret = self.regions[3].to_vec();
        assert!(secret.iter().all(|byte| *byte == MARK), "written without a right");
        assert_eq!((self.pool.in_use(), self.hold.used()), (0, 0), "buffers were not returned");
    }
}

/// Configuration of a conversation's stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// True if the endpoint under test is the initiator.
    pub(crate) is_initiator: bool,
    pub(crate) revision: Revision,
    /// True if the endpoint requests markers, so the peer's FPDUs contain them.
    pub(crate) markers: bool,
    pub(crate) crc: bool,
    pub(crate) rdmap: bool,
    /// True if the initiator requests the peer-to-peer model.
    pub(crate) peer_to_peer: bool,
}

impl Setting {
    fn endpoint(&self) -> EndpointConfig {
        let mut mpa = mpa::Config {
            revisions: mpa::Revisions::ALL,
            initiate: self.revision,
            markers: self.markers,
            crc: self.crc,
            ..mpa::Config::default()
        };
        mpa.enhanced.peer_to_peer = self.peer_to_peer;
        EndpointConfig { mpa, ..EndpointConfig::default() }
    }

    fn ulp(&self) -> UlpConfig {
        if self.rdmap {
            let (recv_buffers, recv_size) = (8, 256);
            return rdmap::Config { ird: 3, ord: 3, recv_buffers, recv_size, ..Default::default() }
                .into();
        }
        let queue = |qn| QueueConfig { qn: Qn(qn), buffers: 8, buffer_size: 256 };
        let queues = vec![queue(0), QueueConfig::error_queue()];
        StreamConfig { queues, ..StreamConfig::default() }.into()
    }
}

pub(crate) struct Connection {
    setting: Setting,
    endpoint: Endpoint<VecMemory>,
    sent: usize,
    received: Vec<u8>,
    fin: bool,
    pub(crate) reset: bool,
    pub(crate) events: Vec<String>,
    pub(crate) closed: Option<CloseReason>,
}

impl Connection {
    pub(crate) fn new(setting: Setting, id: u64, worker: &mut Worker) -> Connection {
        let tuple =
            FourTuple { local: ([10, 0, 0, 1], 7471).into(), remote: ([10, 0, 0, 2], 4001).into() };
        let (config, id, now) = (Arc::new(setting.endpoint()), StreamId(id), worker.now);
        let syn = segment(Flags::SYN, PEER_ISS);
        let endpoint = if setting.is_initiator {
            let open = OpenRequest { pd: PD, ulp: setting.ulp(), private_data: Vec::new() };
            Endpoint::connect(config, id, tuple, ISS, 1460, now, open)
                .expect("empty private data fits")
        } else {
            Endpoint::accept(config, id, tuple, ISS, 1460, &syn, now)
        };
        let mut line = Connection {
            setting,
            endpoint,
            sent: 0,
            received: Vec::new(),
            fin: false,
            reset: false,
            events: Vec::new(),
            closed: None,
        };
        line.poll(worker);
        if setting.is_initiator {
            let ack = ISS.add(1);
            line.input(&Segment { ack, ..segment(Flags::SYN.with(Flags::ACK), PEER_ISS) }, worker);
        }
        line.send(Flags::ACK, &[], worker);
        line
    }

    /// Passes the bytes of the peer to the endpoint, in order, and acknowledges all received bytes.
    pub(crate) fn input_bytes(&mut self, bytes: &[u8], worker: &mut Worker) {
        for piece in bytes.chunks(1000) {
            self.send(Flags::ACK, piece, worker);
            self.sent += piece.len();
        }
        self.send(Flags::ACK, &[], worker);
    }

    /// Sends the peer's FIN, and acknowledges the endpoint's segments until the endpoint has no timer. Checks that the
    /// endpoint has ended.
    pub(crate) fn close_and_check(&mut self, worker: &mut Worker) {
        self.send(Flags::ACK.with(Flags::FIN), &[], worker);
        self.sent += 1;
        for _ in 0..100 {
            let Some(at) = self.endpoint.poll_timeout() else { break };
            worker.now = worker.now.max(at);
            self.poll(worker);
            if !self.reset {
                self.send(Flags::ACK, &[], worker);
            }
        }
        assert!(self.endpoint.is_done(), "the endpoint does not end: {:?}", self.endpoint.state());
        assert!(self.closed.is_some(), "the endpoint ends without a reason");
    }

    pub(crate) fn is_over(&self) -> bool {
        self.closed.is_some() || self.endpoint.state() == ddp::lifecycle::State::Failing
    }

    pub(crate) fn post(&mut self, request: rdmap::WorkRequest<VecMemory>, worker: &mut Worker) {
        self.endpoint.post_rdmap(request).expect("room for an operation");
        self.poll(worker);
        self.send(Flags::ACK, &[], worker);
    }

    /// Returns the ULPDUs that the endpoint has sent so far. `markers`: the peer requested markers, so the endpoint's
    /// FPDUs contain them.
    pub(crate) fn ulpdus(&self, markers: bool) -> Vec<Vec<u8>> {
        let start = match self.setting.revision {
            Revision::Draft => 16,
            _ if self.received.len() < 20 => return Vec::new(),
            _ => 20 + usize::from(u16::from_be_bytes([self.received[18], self.received[19]])),
        };
        let full = self.received.get(start..).unwrap_or_default();
        let is_marker = |at: &usize| markers && at % 512 < 4;
        let bytes: Vec<u8> =
            (0..full.len()).filter(|at| !is_marker(at)).map(|at| full[at]).collect();
        let mut rest = &bytes[..];
        let mut all = Vec::new();
        while let Some((&len, _)) = rest.split_first_chunk::<2>() {
            let len = usize::from(u16::from_be_bytes(len));
            let whole = (2 + len).next_multiple_of(4);
            let Some((fpdu, behind)) = rest.split_at_checked(whole + 4) else { break };
            all.push(fpdu[2..2 + len].to_vec());
            let crc = u32::from_le_bytes(fpdu[whole..].try_into().expect("4 bytes"));
            assert!(
                markers || crc == 0 || crc == oracle::crc32c(&fpdu[..whole]),
                "the endpoint's CRC"
            );
            rest = behind;
        }
        all
    }

    fn send(&mut self, flags: Flags, payload: &[u8], worker: &mut Worker) {
        let seq = PEER_ISS.add(1).add(self.sent as u32);
        let ack = ISS.add(1).add(self.received.len() as u32 + u32::from(self.fin));
        self.input(&Segment { ack, payload, ..segment(flags, seq) }, worker);
    }

    fn input(&mut self, segment: &Segment<'_>, worker: &mut Worker) {
        // A closed endpoint drops the segment.
        let _ = self.endpoint.input(worker.now, segment, &mut worker.context());
        self.poll(worker);
    }

    fn poll(&mut self, worker: &mut Worker) {
        for turns in 0.. {
            assert!(turns < 100, "the endpoint never becomes idle");
            if self.endpoint.poll_timeout().is_some_and(|at| at <= worker.now) {
                self.endpoint.handle_timeout(worker.now, &mut worker.context());
            }
            let mut batch = Batch::default();
            self.endpoint.poll_transmit(worker.now, &mut batch);
            for (bytes, _) in batch.take_with_ect() {
                self.on_segment(&bytes);
            }
            self.poll_events(worker);
            assert!(worker.hold.used() <= HOLD && worker.pool.in_use() <= POOL);
            if self.endpoint.poll_timeout().is_none_or(|at| at > worker.now) {
                return;
            }
        }
    }

    fn on_segment(&mut self, bytes: &[u8]) {
        let segment = Segment::parse(bytes).expect("a segment of the endpoint");
        self.reset |= segment.flags.has(Flags::RST);
        if segment.flags.intersects(Flags::RST.with(Flags::SYN)) {
            return;
        }
        let at = segment.seq.0.wrapping_sub(ISS.0).wrapping_sub(1) as usize;
        if at == self.received.len() {
            self.received.extend(segment.payload);
            self.fin |= segment.flags.has(Flags::FIN);
        }
    }

    fn poll_events(&mut self, worker: &mut Worker) {
        while let Some(event) = self.endpoint.poll_event() {
            assert!(self.closed.is_none(), "{event:?} after the end");
            match event {
                Event::MpaRequest { .. } => {
                    let ulp = self.setting.ulp();
                    let (now, cx) = (worker.now, &mut worker.context());
                    self.endpoint.mpa_accept(now, PD, &[], ulp, cx).expect("a request");
                }
                Event::Closed { reason } => self.closed = Some(reason),
                Event::Idle => self.events.push("Idle".into()),
                Event::Established { .. } => self.events.push("Established".into()),
                Event::Ddp(event) => self.events.push(format!("{event:?}")),
                Event::Rdmap(event) => self.events.push(format!("{event:?}")),
            }
        }
    }

    /// Advances time by 100 ms, so that the endpoint sends delayed segments, and acknowledges these segments.
    pub(crate) fn settle(&mut self, worker: &mut Worker) {
        worker.now += Duration::from_millis(100);
        self.poll(worker);
        self.send(Flags::ACK, &[], worker);
    }
}

fn segment(flags: Flags, seq: SeqNumber) -> Segment<'static> {
    let mut segment = Segment {
        src_port: 4001,
        dst_port: 7471,
        seq,
        flags,
        window: 0xffff,
        ..Segment::default()
    };
    if flags.has(Flags::SYN) {
        segment.options.mss = Some(1460);
    }
    segment
}
