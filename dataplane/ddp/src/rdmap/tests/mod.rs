//! Tests of RDMAP streams: one stream with hand-made segments, or two streams back to back.

mod atomics;
mod hostile;
mod invalidate;
mod ordering;
mod pair;
mod properties;
mod reads;
mod receive_properties;
mod receives;
mod recorded;
mod sends;
mod shared_receives;
mod terminate;

use std::sync::Arc;

use wire::ddp::{TAGGED_HEADER_LEN, TaggedRepr, UNTAGGED_HEADER_LEN, UntaggedRepr};
use wire::rdmap::{Control, Opcode, ReadRequestRepr};

use crate::llp::{Disposition, OrderKey, Ulpdu, UlpduSink, UlpduSource, UlpduToken};
use crate::rdmap::*;
use crate::{
    Access, BufferPool, Context, Cookie, Failure, MessageOffset, Msn, PdId, PostError, Qn,
    RegionMemory, Source, Stag, StagEntry, StagTable, StreamId, TaggedOffset, VecMemory,
    VersionPolicy,
};
use wire::DdpVersion;

/// STag of every end's `memory`: all rights, bound to no stream.
const STAG: Stag = Stag(0x0102_0300);
/// STag of every end's `sink`, without rights for peers; Reads write to it.
const SINK: Stag = Stag(0x0a00_0000);
/// First TO of both regions.
const BASE: u64 = 1 << 40;
/// Length of each region, bytes.
const LEN: u64 = 8192;

/// A stream with its worker's STag table and buffer pool.
struct End {
    stream: Stream<VecMemory>,
    stags: StagTable<VecMemory>,
    pool: BufferPool,
    memory: VecMemory,
    sink: VecMemory,
    /// Key of the next segment from the peer.
    key: u64,
}

fn config() -> Config {
    Config {
        ird: 4,
        ord: 4,
        recv_buffers: 4,
        recv_size: 256,
        max_operations: 16,
        max_responses: 8,
        ..Config::default()
    }
}

impl End {
    fn new() -> End {
        End::with_config(config())
    }

    fn with_config(config: Config) -> End {
        let (memory, sink) = (VecMemory::new(LEN as usize), VecMemory::new(LEN as usize));
        let mut stags = StagTable::new();
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC;
        for (stag, access, memory) in [(STAG, all, &memory), (SINK, Access::NONE, &sink)] {
            stags.insert(entry(stag, access, memory)).unwrap();
        }
        let stream = Stream::new(StreamId(9), PdId(1), config);
        End { stream, stags, pool: BufferPool::new(1 << 20), memory, sink, key: 0 }
    }

    /// Delivers the next segment from the peer, in order.
    fn input(&mut self, segment: &[u8]) -> Disposition {
        let key = self.key;
        self.key += 1;
        self.input_at(key, segment)
    }

    fn input_at(&mut self, key: u64, segment: &[u8]) -> Disposition {
        let cx = Context { stags: &self.stags, buffers: &mut self.pool };
        self.stream.sink(cx).ulpdu(OrderKey(key), Ulpdu::new(&[segment]))
    }

    fn complete_order(&mut self, before: u64) {
        let cx = Context { stags: &self.stags, buffers: &mut self.pool };
        self.stream.sink(cx).order_complete(OrderKey(before));
    }

    fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.stream.poll_event()).collect()
    }

    /// Returns the next segment to send, header included, with the token and the payload length to acknowledge it.
    fn next_segment(&mut self, mulpdu: usize) -> Option<(Vec<u8>, UlpduToken, usize)> {
        let announced = self.stream.next_len(mulpdu);
        let out = self.stream.next(mulpdu)?;
        assert_eq!(announced, Some(out.len()));
        let mut segment = out.header.bytes().to_vec();
        segment.resize(out.len(), 0);
        self.stream.read_payload(out.token, 0, &mut segment[out.header.len()..]);
        Some((segment, out.token, out.payload_len))
    }

    /// Returns all segments to send, and acknowledges them.
    fn sent_segments(&mut self) -> Vec<Vec<u8>> {
        core::iter::from_fn(|| {
            let (segment, token, len) = self.next_segment(1500)?;
            self.stream.on_acknowledged(token, len);
            Some(segment)
        })
        .collect()
    }

    fn post(&mut self, request: WorkRequest<VecMemory>) {
        self.stream.post(request).unwrap();
    }

    /// Returns the Terminate that directly follows the error in the events; panics without one.
    fn terminate(&mut self) -> Terminate {
        let events = self.events();
        let at = events.iter().position(|event| matches!(event, Event::Error(_)));
        let at = at.unwrap_or_else(|| panic!("no error in {events:?}"));
        match &events[at + 1] {
            Event::Terminated { by_peer: false, terminate } => terminate.clone(),
            other => panic!("{other:?} follows the error"),
        }
    }

    /// Returns layer, error type and code of the Terminate that [`terminate`](Self::terminate) returns.
    fn terminate_numbers(&mut self) -> (u8, u8, u8) {
        let terminate = self.terminate();
        (terminate.layer, terminate.error_type, terminate.code)
    }
}

fn entry(stag: Stag, access: Access, memory: &VecMemory) -> StagEntry<VecMemory> {
    StagEntry {
        stag,
        pd: PdId(1),
        stream: None,
        base_to: TaggedOffset(BASE),
        len: memory.len(),
        access,
        memory: memory.clone(),
        memory_offset: 0,
    }
}

fn bytes(data: &[u8]) -> Source<VecMemory> {
    Source::Bytes(Arc::from(data))
}

fn send(data: &[u8], cookie: u64) -> WorkRequest<VecMemory> {
    WorkRequest::send(bytes(data), Cookie::user(cookie))
}

fn write(at: u64, data: &[u8], cookie: u64) -> WorkRequest<VecMemory> {
    WorkRequest::Write {
        stag: STAG,
        to: TaggedOffset(BASE + at),
        source: bytes(data),
        cookie: Cookie::user(cookie),
    }
}

fn read(sink_at: u64, source_at: u64, len: u32, cookie: u64) -> WorkRequest<VecMemory> {
    let (sink_to, source_to) = (TaggedOffset(BASE + sink_at), TaggedOffset(BASE + source_at));
    WorkRequest::Read {
        sink_stag: SINK,
        sink_to,
        source_stag: STAG,
        source_to,
        len,
        cookie: Cookie::user(cookie),
    }
}

fn atomic(op: AtomicOp, at: u64, cookie: u64) -> WorkRequest<VecMemory> {
    WorkRequest::Atomic {
        op,
        stag: STAG,
        to: TaggedOffset(BASE + at),
        cookie: Cookie::user(cookie),
    }
}

/// Returns a tagged segment from a peer.
fn tagged(opcode: Opcode, stag: Stag, at: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let rsvd_ulp = Control::new(DdpVersion::V1, opcode).0;
    let to = TaggedOffset(BASE.wrapping_add(at));
    let mut header = [0; TAGGED_HEADER_LEN];
    TaggedRepr { last, version: DdpVersion::V1, rsvd_ulp, stag, to }.emit(&mut header);
    [&header[..], payload].concat()
}

/// Returns an untagged message of one segment from a peer.
fn untagged(opcode: Opcode, qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged_with(opcode, None, qn, msn, 0, true, payload)
}

fn untagged_with(
    opcode: Opcode,
    invalidate: Option<Stag>,
    qn: u32,
    msn: u32,
    mo: u32,
    last: bool,
    payload: &[u8],
) -> Vec<u8> {
    let rsvd_ulp = Control::new(DdpVersion::V1, opcode).with_invalidate(invalidate);
    let (version, qn, msn, mo) = (DdpVersion::V1, Qn(qn), Msn(msn), MessageOffset(mo));
    let mut header = [0; UNTAGGED_HEADER_LEN];
    UntaggedRepr { last, version, rsvd_ulp, qn, msn, mo }.emit(&mut header);
    [&header[..], payload].concat()
}

fn read_request(source_stag: Stag, source_at: u64, size: u32) -> ReadRequestRepr {
    ReadRequestRepr {
        sink_stag: Stag(0x77),
        sink_to: TaggedOffset(0x1000),
        size,
        source_stag,
        source_to: TaggedOffset(BASE.wrapping_add(source_at)),
    }
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}

/// Returns the opcode of each segment, and whether it is the last of its message.
fn shape(segments: &[Vec<u8>]) -> Vec<(Opcode, bool)> {
    let opcode_and_last = |segment: &Vec<u8>| {
        (Control(segment[1]).opcode().unwrap(), wire::ddp::Control(segment[0]).is_last())
    };
    segments.iter().map(opcode_and_last).collect()
}

fn completed(cookie: u64, outcome: Outcome) -> Event {
    Event::Completed { cookie: Cookie::user(cookie), outcome }
}
