//! Fixtures of this crate's tests: a stream with a worker's table and pool, and builders of a peer's segments.

use wire::ddp::{TAGGED_HEADER_LEN, TaggedRepr, UNTAGGED_HEADER_LEN, UntaggedRepr};

use crate::llp::{Disposition, OrderKey, Ulpdu, UlpduSink};
use crate::*;

/// STag of every rig's region.
pub(crate) const STAG: Stag = Stag(0x0102_0304);
/// First TO of the rig's region.
pub(crate) const BASE: u64 = 1 << 40;
/// Length of the rig's region, bytes.
pub(crate) const LEN: u64 = 4096;
/// The rig's queue, with four buffers of 256 bytes.
pub(crate) const QUEUE: Qn = Qn(0);

pub(crate) struct Rig {
    pub(crate) stream: Stream<VecMemory>,
    pub(crate) stags: StagTable<VecMemory>,
    pub(crate) pool: BufferPool,
    pub(crate) memory: VecMemory,
}

pub(crate) fn config() -> StreamConfig {
    StreamConfig {
        queues: vec![
            QueueConfig { qn: QUEUE, buffers: 4, buffer_size: 256 },
            QueueConfig { qn: Qn(7), buffers: 1, buffer_size: 64 },
            QueueConfig::error_queue(),
        ],
        ..StreamConfig::default()
    }
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with_config(config())
    }

    pub(crate) fn with_config(config: StreamConfig) -> Rig {
        // 32 bytes before the region and 32 bytes after it show writes outside it.
        let memory = VecMemory::new(LEN as usize + 64);
        let mut stags = StagTable::new();
        stags
            .insert(StagEntry {
                stag: STAG,
                pd: PdId(1),
                stream: None,
                base_to: TaggedOffset(BASE),
                len: LEN,
                access: Access::REMOTE_WRITE,
                memory: memory.clone(),
                memory_offset: 32,
            })
            .unwrap();
        let stream = Stream::new(StreamId(9), PdId(1), config);
        Rig { stream, stags, pool: BufferPool::new(1 << 20), memory }
    }

    pub(crate) fn input(&mut self, key: u64, segment: &[u8]) -> Disposition {
        self.input_pieces(key, &[segment])
    }

    pub(crate) fn input_pieces(&mut self, key: u64, pieces: &[&[u8]]) -> Disposition {
        let cx = Context { stags: &self.stags, buffers: &mut self.pool };
        self.stream.sink(cx).ulpdu(OrderKey(key), Ulpdu::new(pieces))
    }

    pub(crate) fn complete_order(&mut self, before: u64) {
        let cx = Context { stags: &self.stags, buffers: &mut self.pool };
        self.stream.sink(cx).order_complete(OrderKey(before));
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.stream.poll_event()).collect()
    }

    /// Returns the `len` bytes of the region from TO `BASE + at` on.
    pub(crate) fn region(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        // The region begins 32 bytes into the memory.
        self.memory.read(32 + at, &mut out);
        out
    }

    /// Returns the error of the only event; panics if there is any other event.
    pub(crate) fn error(&mut self) -> DdpError {
        match self.events().as_slice() {
            [Event::Error(error)] => error.clone(),
            other => panic!("expected one error, got {other:?}"),
        }
    }
}

pub(crate) fn tagged_to(stag: Stag, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let repr =
        TaggedRepr { last, version: DdpVersion::V1, rsvd_ulp: 0xab, stag, to: TaggedOffset(to) };
    let mut header = [0; TAGGED_HEADER_LEN];
    repr.emit(&mut header);
    [&header[..], payload].concat()
}

/// Returns a tagged segment into the rig's region, `at` bytes from its start.
pub(crate) fn tagged(at: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    tagged_to(STAG, BASE + at, last, payload)
}

pub(crate) fn untagged_to(qn: Qn, msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let repr = UntaggedRepr {
        last,
        version: DdpVersion::V1,
        rsvd_ulp: [1, 2, 3, 4, 5],
        qn,
        msn: Msn(msn),
        mo: MessageOffset(mo),
    };
    let mut header = [0; UNTAGGED_HEADER_LEN];
    repr.emit(&mut header);
    [&header[..], payload].concat()
}

/// Builds an untagged segment for the rig's queue.
pub(crate) fn untagged(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    untagged_to(QUEUE, msn, mo, last, payload)
}

/// Returns `segment` with the DDP version `dv`.
pub(crate) fn with_version(mut segment: Vec<u8>, dv: u8) -> Vec<u8> {
    segment[0] = segment[0] & !3 | dv;
    segment
}

pub(crate) fn tagged_delivered(at: u64, len: u64) -> Event {
    let to = TaggedOffset(BASE + at);
    Event::TaggedDelivered { stag: STAG, to, len, rsvd_ulp: 0xab }
}

pub(crate) fn untagged_delivered(msn: u32, data: &[u8]) -> Event {
    let (qn, rsvd_ulp) = (QUEUE, [1, 2, 3, 4, 5]);
    Event::UntaggedDelivered { qn, msn: Msn(msn), data: data.to_vec(), rsvd_ulp }
}
