//! Fuzz target for an endpoint over TCP: connection, MPA, and DDP or RDMAP. The input builds the peer's stream, and the
//! segments that carry parts of it.
//!
//! Input: two bytes of configuration (see [`Setup`](setup::Setup)), then records
//!
//! ```text
//!   action (1)  bits 0 to 3: kind    bits 4 to 7: its parameter
//!   length (1), then that many bytes; missing fields are zero
//! ```
//!
//! | kind | effect, and fields of the record |
//! |---:|---|
//! | 0 | appends raw bytes to the peer's stream |
//! | 1 | appends an FPDU with markers and CRC as negotiated: ULPDU; parameter: the fault, see [`Flaw`] |
//! | 2 | appends an FPDU with a tagged DDP segment: control, STag (bits 0, 1: region; others: key), TO / 4, payload |
//! | 3 | appends an FPDU with an untagged DDP segment: control, QN, MSN, MO, STag in RsvdULP, payload |
//! | 4 | TCP segment: flags (ACK inverted), offset from sent bytes (2), length / 8, ACK, window, options, SACK, MSS |
//! | 5 | sends the rest of the peer's stream in order; parameter: segment length / 64, at least 64 bytes, at most MSS |
//! | 6 | advances the time by the square of the byte, in ms |
//! | 7 | a router's report of a packet that was too big: MTU (2), sequence number of the TCP segment |
//! | 8 | posts a message, Read or atomic; parameter: its kind |
//! | 9 | action of the owner: buffers, pause, close, removal of a region, path MSS, and others; parameter: its kind |

mod owner;
mod peer;
mod segment_checks;
mod setup;

use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::memory::RegionMemory as _;
use ddp::{
    Access, BufferPool, OpenRequest, PdId, Stag, StagEntry, StagTable, StreamId, TaggedOffset,
    VecMemory,
};
use sim::oracle::{self, Flaw};
use tcp_lite::endpoint::{Context, Endpoint, Event};
use tcp_lite::mpa::HoldBudget;
use tcp_lite::tcp::{Flags, FourTuple, Segment, SeqNumber};

use self::segment_checks::{Tx, Window};
use self::setup::{Setup, syn};

const PD: PdId = PdId(1);
const ID: StreamId = StreamId(1);
const LOCAL: u16 = 7471;
const REMOTE: u16 = 4000;
const MSS: u16 = 1460;
/// Budget for bytes that MPA holds because their FPDU is incomplete or its start is unknown, in bytes.
const HOLD: u64 = 4096;
/// Length of the largest FPDU, in bytes. One in-order FPDU may be held in addition to the budget `HOLD`.
const MAX_FPDU: u64 = 64 << 10;
/// Budget for buffers of incomplete untagged messages, in bytes.
const POOL: u64 = 8192;
/// Maximum length of the peer's stream, in bytes. Records do not extend a longer stream.
const MAX_STREAM_LEN: usize = 1 << 16;

/// Region with all access rights. The region is the middle of a larger memory, whose other bytes the peer must not
/// reach.
const OPEN: Stag = Stag(0x700);
/// Region bound to the stream, so that its peer may invalidate it.
const OWN: Stag = Stag(0x800);
/// Sink of the endpoint's Reads. The peer has no access rights to it.
const SINK: Stag = Stag(0x900);
/// Region without access rights.
const SECRET: Stag = Stag(0xa00);
/// Length of the memory that contains a region, in bytes.
const LEN: usize = 512;
/// Range of the region in its memory.
const REGION: std::ops::Range<usize> = 128..384;
/// First three of every four bytes of hidden memory. These bytes must never be sent.
const MARK: [u8; 3] = [0x5e, 0xc2, 0xe7];

pub(crate) fn tcp_endpoint(data: &[u8]) {
    let Some((&[stream_flags, tcp_flags], mut records)) = data.split_first_chunk::<2>() else {
        return;
    };
    let mut end = End::new(Setup { stream_flags, tcp_flags });
    // If the input itself contains the mark, a sent mark need not be a leak.
    end.hidden = !data.windows(MARK.len()).any(|bytes| bytes == MARK);
    while let Some((&[action, len], rest)) = records.split_first_chunk::<2>() {
        let (bytes, next) = rest.split_at(usize::from(len).min(rest.len()));
        records = next;
        end.input_record(action & 15, action >> 4, Fields(bytes));
    }
    end.finish();
}

/// Fields of a record. Fields beyond its end are zero.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn short(&mut self) -> u16 {
        u16::from(self.byte()) | u16::from(self.byte()) << 8
    }

    /// Returns a signed distance: the signed byte if its magnitude is below 64, otherwise 128 times the byte (at most
    /// 16 KiB).
    fn distance(&mut self) -> i64 {
        let n = i64::from(self.byte().cast_signed());
        if n.abs() < 64 { n } else { n * 128 }
    }
}

/// Returns the contents of hidden memory: in every four bytes the mark and a counter.
fn mark_bytes() -> Vec<u8> {
    (0..LEN).map(|i| if i % 4 < 3 { MARK[i % 4] } else { (i / 4) as u8 }).collect()
}

struct End {
    setup: Setup,
    endpoint: Endpoint<VecMemory>,
    stags: StagTable<VecMemory>,
    pool: BufferPool,
    hold: HoldBudget,
    regions: Vec<VecMemory>,
    /// True if a sent [`MARK`] proves a leak, because the input does not contain the mark.
    hidden: bool,
    now: Instant,
    /// Bytes that the peer sends over the connection.
    stream: oracle::Stream,
    /// Initial sequence number of the peer.
    peer_iss: SeqNumber,
    /// Number of bytes of `stream` that the peer has sent.
    sent_to: usize,
    /// Highest offset that the peer has sent, SYN and FIN flags included. Bounds the endpoint's acknowledgements.
    most_sent: usize,
    /// Initial sequence number of the endpoint.
    iss: SeqNumber,
    /// Bytes that the endpoint has sent, without retransmissions.
    received: Vec<u8>,
    /// True once the endpoint has sent its FIN.
    fin: bool,
    /// Newest TSval of the endpoint.
    stamp: u32,
    window: Window,
    closed: bool,
    paused: bool,
    /// Number of attempted Reads, each of 16 bytes.
    reads: u64,
}

impl End {
    fn new(setup: Setup) -> Self {
        let now = Instant::from_millis(1000);
        let (iss, peer_iss) = match setup.tcp_flag(3) {
            true => (SeqNumber(0xffff_ff00), SeqNumber(0xffff_fe80)),
            false => (SeqNumber(1000), SeqNumber(5000)),
        };
        let mut stags = StagTable::new();
        let mut regions = Vec::new();
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC;
        let entries = [
            (OPEN, None, all),
            (OWN, Some(ID), all),
            (SINK, None, Access::NONE),
            (SECRET, None, Access::NONE),
        ];
        for (stag, stream, access) in entries {
            let mut bytes = mark_bytes();
            if stag != SECRET {
                bytes[REGION].fill(0);
            }
            let memory = VecMemory::from_vec(bytes);
            let entry = StagEntry {
                stag,
                pd: PD,
                stream,
                base_to: TaggedOffset(0),
                len: REGION.len() as u64,
                access,
                memory: memory.clone(),
                memory_offset: REGION.start as u64,
            };
            stags.insert(entry).unwrap_or_else(|error| panic!("a new table: {error}"));
            regions.push(memory);
        }
        let mut stream = oracle::Stream::default();
        (stream.markers, stream.crc) = (setup.markers(), setup.crc());
        if !setup.tcp_flag(4) {
            stream.raw(&setup.start_frame());
        }
        let tuple = FourTuple {
            local: ([10, 0, 0, 1], LOCAL).into(),
            remote: ([10, 0, 0, 2], REMOTE).into(),
        };
        let config = Arc::new(setup.endpoint());
        let endpoint = if setup.is_initiator() {
            let open = OpenRequest { pd: PD, ulp: setup.ulp(), private_data: Vec::new() };
            Endpoint::connect(config, ID, tuple, iss, MSS, now, open)
                .unwrap_or_else(|error| panic!("empty private data: {error}"))
        } else {
            let syn = Segment { flags: Flags::SYN, ..syn(setup, peer_iss) };
            Endpoint::accept(config, ID, tuple, iss, MSS, &syn, now)
        };
        let mut end = End {
            setup,
            endpoint,
            stags,
            pool: BufferPool::new(POOL),
            hold: HoldBudget::new(HOLD),
            regions,
            hidden: true,
            now,
            stream,
            peer_iss,
            sent_to: 0,
            most_sent: 0,
            iss,
            received: Vec::new(),
            fin: false,
            stamp: 0,
            window: Window::default(),
            closed: false,
            paused: false,
            reads: 0,
        };
        end.poll();
        if setup.is_initiator() {
            let flags = Flags::SYN.with(Flags::ACK);
            end.input(Segment { flags, ack: iss.add(1), ..syn(setup, peer_iss) });
        } else {
            end.input_segment(Flags::ACK, 0, 0, 0, 0, Fields(&[]));
        }
        end
    }

    fn input_record(&mut self, kind: u8, parameter: u8, mut fields: Fields<'_>) {
        match kind {
            0 => self.append(|stream| stream.raw(fields.0)),
            1 => {
                let flaw = match parameter {
                    1 => Flaw::BadCrc,
                    2 => Flaw::BadPointer(4),
                    3 => Flaw::BadLength(4),
                    4 => Flaw::BadLength(0x8000),
                    _ => Flaw::None,
                };
                self.append(|stream| stream.fpdu(fields.0, flaw));
            }
            2 => {
                let (control, stag, to) = (fields.byte(), fields.byte(), fields.byte());
                let stag =
                    [OPEN, OWN, SINK, SECRET][usize::from(stag) % 4].0 | u32::from(stag >> 2);
                let (last, rsvd) = (control & 0x80 == 0, 0x40 | control & 15);
                let ulpdu = oracle::tagged(1, last, rsvd, stag, u64::from(to) * 4, fields.0);
                self.append(|stream| stream.fpdu(&ulpdu, Flaw::None));
            }
            3 => {
                let (control, qn) = (fields.byte(), u32::from(fields.byte()));
                let (msn, mo) = (u32::from(fields.byte()), u32::from(fields.byte()));
                let (last, rsvd) = (control & 0x80 == 0, 0x40 | control & 15);
                let stag = u32::from(fields.byte()) << 4;
                let [a, b, c, d] = stag.to_be_bytes();
                let rsvd = [rsvd, a, b, c, d];
                let ulpdu = oracle::untagged(1, last, rsvd, qn, msn, mo, fields.0);
                self.append(|stream| stream.fpdu(&ulpdu, Flaw::None));
            }
            4 => {
                let flags = Flags(fields.byte() ^ Flags::ACK.0);
                let from = self.sent_to as i64 + i64::from(fields.short().cast_signed());
                let len = usize::from(fields.byte()) * 8;
                let ack = fields.distance();
                let window = u32::from(fields.byte());
                self.input_segment(flags, from, len, ack, window, fields);
            }
            5 => {
                let len = (usize::from(parameter) * 64).clamp(64, usize::from(MSS));
                while self.sent_to < self.stream.len() {
                    let from = self.sent_to;
                    self.input_segment(Flags::ACK, from as i64, len, 0, 0, Fields(&[]));
                }
            }
            6 => self.advance_time(Duration::from_millis(u64::from(fields.byte()).pow(2))),
            7 => {
                let (mtu, seq) = (fields.short(), fields.distance() as u32);
                let _ = self.endpoint.on_packet_too_big(self.now, mtu, self.iss.add(seq));
                self.poll();
            }
            8 => self.post(parameter, fields.0),
            9 => self.act_as_owner(parameter, fields.byte()),
            _ => {}
        }
    }

    fn append(&mut self, write: impl FnOnce(&mut oracle::Stream)) {
        if self.stream.len() < MAX_STREAM_LEN {
            write(&mut self.stream);
        }
    }

    fn input(&mut self, segment: Segment<'_>) {
        // The segment is encoded and parsed again, so that the endpoint receives only segments that a peer can send.
        let mut bytes = vec![0; segment.wire_len()];
        let len = segment.emit(&mut bytes);
        let mut read =
            Segment::parse(&bytes[..len]).unwrap_or_else(|e| panic!("written here: {e}"));
        read.ce = segment.ce;
        let End { endpoint, stags, pool, hold, .. } = self;
        let cx = &mut Context { stags, buffers: pool, hold };
        // The input is arbitrary, so any drop reason is allowed.
        let _ = endpoint.input(self.now, &read, cx);
        self.poll();
    }

    /// Advances the time by `time`. Stops at each timer that expires meanwhile, at most 100 times.
    fn advance_time(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..100 {
            match self.endpoint.poll_timeout() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => break,
            }
            self.poll();
        }
        self.now = until;
        self.poll();
    }

    /// Runs timers, transmission and events until nothing is due. Checks sent segments and the limits of held memory.
    fn poll(&mut self) {
        let mut polls = 0;
        loop {
            if self.endpoint.poll_timeout().is_some_and(|at| at <= self.now) {
                let End { endpoint, stags, pool, hold, .. } = self;
                endpoint.handle_timeout(self.now, &mut Context { stags, buffers: pool, hold });
            }
            let mut tx = Tx::default();
            self.endpoint.poll_transmit(self.now, &mut tx);
            let full = tx.segments.len() >= 16;
            for bytes in tx.segments {
                self.check_segment(&bytes);
            }
            self.poll_events();
            assert!(self.hold.used() <= HOLD + MAX_FPDU, "{} bytes are held", self.hold.used());
            assert!(self.pool.in_use() <= POOL, "{} bytes of messages", self.pool.in_use());
            if !full && self.endpoint.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            polls += 1;
            assert!(polls < 1000, "{:?} never becomes idle", self.endpoint.state());
        }
    }

    fn poll_events(&mut self) {
        if self.paused {
            return;
        }
        while let Some(event) = self.endpoint.poll_event() {
            assert!(!self.closed, "{event:?} after the end");
            match event {
                Event::MpaRequest { private_data, .. } => {
                    assert!(private_data.len() <= 512);
                    if self.setup.tcp_flag(7) {
                        let _ = self.endpoint.mpa_reject(self.now, b"no");
                        continue;
                    }
                    let ulp = self.setup.ulp();
                    let End { endpoint, stags, pool, hold, .. } = self;
                    let cx = &mut Context { stags, buffers: pool, hold };
                    // Private data is empty because the reply of MPA's first draft has none. A request that has timed
                    // out is refused.
                    let _ = endpoint.mpa_accept(self.now, PD, b"", ulp, cx);
                }
                Event::Closed { reason } => {
                    self.closed = true;
                    assert!(!reason.to_string().is_empty());
                }
                _ => {}
            }
        }
    }

    /// Aborts the stream. Checks that the endpoint reports a reason, has released the worker's memory, and has not
    /// changed hidden memory.
    fn finish(mut self) {
        self.paused = false;
        self.endpoint.pause(None);
        self.poll();
        let End { endpoint, stags, pool, hold, now, .. } = &mut self;
        endpoint.abort(*now, &mut Context { stags, buffers: pool, hold });
        self.poll();
        assert!(self.closed, "no reason for the end of {:?}", self.endpoint.state());
        // The connection may still be in TIME-WAIT.
        for _ in 0..100 {
            let Some(at) = self.endpoint.poll_timeout() else { break };
            self.now = self.now.max(at);
            self.poll();
        }
        assert!(
            self.endpoint.is_done(),
            "the endpoint does not end: {:?}",
            self.endpoint.connection().state()
        );
        assert_eq!((self.pool.in_use(), self.hold.used()), (0, 0));
        for (memory, secret) in self.regions.iter().zip([false, false, false, true]) {
            let (bytes, marks) = (memory.to_vec(), mark_bytes());
            assert!(bytes[..REGION.start] == marks[..REGION.start], "written before a region");
            assert!(bytes[REGION.end..] == marks[REGION.end..], "written after a region");
            assert!(!secret || bytes == marks, "a region without rights was written");
        }
        let mut sink = vec![0; REGION.len()];
        self.regions[2].read(REGION.start as u64, &mut sink);
        let read_len = (self.reads as usize * 16).min(sink.len());
        assert!(
            sink[read_len..].iter().all(|byte| *byte == 0),
            "bytes beyond the requested Reads were written"
        );
    }
}

#[cfg(test)]
mod tests;
