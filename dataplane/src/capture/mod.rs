//! Capture: copies of the frames of a port's queue, on their way to the control thread while somebody wants them.
//!
//! ```text
//!  worker: Tap ── at most `snap` bytes of each frame that the filter takes ──> ring of bytes ──> Reader: any thread
//! ```
//!
//! The worker owns the [`Tap`] and never waits: what the ring has no room for is counted and lost. The ring is made, and
//! its pages are touched, by [`pair`]; its memory is freed by the [`Reader`], which must outlive the tap. Times are the
//! tap's own clock's: the rest of a worker reads none.
//!
//! Left out: what the device itself drops, which no frame tells of, and what another worker that owns a flow makes of a
//! frame: it is recorded where it arrives.

mod filter;
mod headers;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

pub use self::filter::{Filter, FilterError, StreamFilter};
use self::headers::Headers;
use crate::drops::Drops;

/// Bytes of one tap's ring.
pub const RING: usize = 4 << 20;
/// Most bytes of one frame that are captured.
pub const MAX_SNAP: usize = 65_535;
/// Bytes in front of each frame in the ring.
const HEADER: usize = 24;

/// Which way a frame went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The port received it.
    In,
    /// The port sent it.
    Out,
}

/// What became of a frame, as far as its worker knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It was taken, or given to the device.
    Passed,
    /// The worker dropped it, for the reason at this place of [`Drops::iter`].
    Dropped(u16),
    /// Another worker owns its flow.
    Forwarded,
    /// The device takes no frames, and the queue in front of it is full.
    QueueFull,
    /// The link is down.
    LinkDown,
}

impl Fate {
    /// True unless the frame went on.
    pub fn is_drop(self) -> bool {
        !matches!(self, Fate::Passed | Fate::Forwarded)
    }

    fn code(self) -> u16 {
        match self {
            Fate::Passed => 0,
            Fate::Forwarded => 1,
            Fate::QueueFull => 2,
            Fate::LinkDown => 3,
            Fate::Dropped(reason) => reason.saturating_add(4),
        }
    }

    fn of(code: u16) -> Fate {
        match code {
            0 => Fate::Passed,
            1 => Fate::Forwarded,
            2 => Fate::QueueFull,
            3 => Fate::LinkDown,
            reason => Fate::Dropped(reason - 4),
        }
    }
}

/// What a tap did so far. The worker writes, anybody reads.
#[derive(Debug, Default)]
pub struct TapCounters {
    seen: AtomicU64,
    lost: AtomicU64,
}

impl TapCounters {
    /// Frames of the queue while the tap was there.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Frames that the filter took and the ring did not.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn add(counter: &AtomicU64) {
        // The worker alone writes.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// The worker's end: part of one queue while a capture runs.
pub struct Tap {
    ring: Producer<u8>,
    filter: Arc<Filter>,
    snap: usize,
    counters: Arc<TapCounters>,
    /// What IPsec protects is recorded as it is inside.
    inside: bool,
    /// Nanoseconds since 1970-01-01 UTC.
    clock: fn() -> u64,
    held: Held,
    /// The worker's drops when a frame was held, in the order of [`Drops::iter`].
    drops: Vec<u64>,
}

/// A received frame whose fate is not known yet.
struct Held {
    headers: Headers,
    time: u64,
    /// Bytes of the frame.
    len: usize,
    /// At most `snap` of them; empty when the filter wants none of them, whatever becomes of the frame.
    bytes: Vec<u8>,
}

/// A frame out of a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Nanoseconds since 1970-01-01 UTC.
    pub time: u64,
    /// Which way it went.
    pub direction: Direction,
    /// What became of it.
    pub fate: Fate,
    /// Bytes of the whole frame.
    pub len: u32,
    /// The first of them.
    pub bytes: Vec<u8>,
}

/// The end at which frames come out.
pub struct Reader {
    ring: Consumer<u8>,
    counters: Arc<TapCounters>,
}

/// Both ends, for frames that `filter` takes, of each at most `snap` bytes. `ring` is the bytes of the ring.
pub fn pair(filter: Arc<Filter>, snap: usize, ring: usize, clock: fn() -> u64) -> (Tap, Reader) {
    let (mut producer, mut consumer) = RingBuffer::new(ring);
    // The worker must not be the first who touches these pages.
    if let Ok(all) = producer.write_chunk(ring) {
        all.commit_all();
    }
    if let Ok(all) = consumer.read_chunk(ring) {
        all.commit_all();
    }
    let snap = snap.clamp(1, MAX_SNAP);
    let counters = Arc::new(TapCounters::default());
    let held = Held { headers: Headers::default(), time: 0, len: 0, bytes: vec![0; snap] };
    let drops = Drops::default().iter().map(|(_, _, count)| count).collect();
    let (inside, of) = (false, counters.clone());
    let tap = Tap { ring: producer, filter, snap, counters: of, inside, clock, held, drops };
    (tap, Reader { ring: consumer, counters })
}

impl Tap {
    /// What IPsec protects is recorded as it is inside, and not as it is on the wire.
    #[must_use]
    pub fn inside(self) -> Tap {
        Tap { inside: true, ..self }
    }

    /// A frame that the port sent, with what became of it.
    pub(crate) fn record(&mut self, direction: Direction, fate: Fate, frame: &[u8]) {
        // It was recorded before it was sealed.
        if self.inside && Headers::of(frame).is_sealed() {
            return;
        }
        self.keep(direction, fate, frame);
    }

    /// A frame that is about to be sealed.
    pub(crate) fn record_inside(&mut self, frame: &[u8]) {
        if self.inside {
            self.keep(Direction::Out, Fate::Passed, frame);
        }
    }

    /// The frame that is held was opened, and is this one inside.
    pub(crate) fn hold_inside(&mut self, frame: &[u8]) {
        if self.inside {
            self.take(frame);
        }
    }

    fn keep(&mut self, direction: Direction, fate: Fate, frame: &[u8]) {
        TapCounters::add(&self.counters.seen);
        if self.filter.takes(&Headers::of(frame), direction, fate.is_drop()) {
            let bytes = &frame[..frame.len().min(self.snap)];
            let time = (self.clock)();
            if !push(&mut self.ring, (time, direction, fate, frame.len()), bytes) {
                TapCounters::add(&self.counters.lost);
            }
        }
    }

    /// A received frame, before it is handled: [`release`](Self::release) follows, or it is held again later.
    pub(crate) fn hold(&mut self, frame: &[u8], drops: &Drops) {
        self.take(frame);
        let counts = drops.iter().map(|(_, _, count)| count);
        self.drops.iter_mut().zip(counts).for_each(|(before, now)| *before = now);
    }

    fn take(&mut self, frame: &[u8]) {
        let headers = Headers::of(frame);
        self.held.bytes.clear();
        let wanted = |dropped| self.filter.takes(&headers, Direction::In, dropped);
        if wanted(false) || wanted(true) {
            self.held.headers = headers;
            self.held.time = (self.clock)();
            self.held.len = frame.len();
            self.held.bytes.extend_from_slice(&frame[..frame.len().min(self.snap)]);
        }
    }

    /// The frame that was held has been handled; `drops` says whether it was dropped.
    pub(crate) fn release(&mut self, drops: &Drops, forwarded: bool) {
        TapCounters::add(&self.counters.seen);
        if self.held.bytes.is_empty() {
            return;
        }
        let counts = drops.iter().map(|(_, _, count)| count);
        let dropped = self.drops.iter().zip(counts).position(|(&before, now)| before != now);
        let fate = match dropped.map(u16::try_from) {
            Some(Ok(reason)) => Fate::Dropped(reason),
            _ if forwarded => Fate::Forwarded,
            _ => Fate::Passed,
        };
        if self.filter.takes(&self.held.headers, Direction::In, fate.is_drop()) {
            let facts = (self.held.time, Direction::In, fate, self.held.len);
            if !push(&mut self.ring, facts, &self.held.bytes) {
                TapCounters::add(&self.counters.lost);
            }
        }
        self.held.bytes.clear();
    }
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tap").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// Returns whether there was room.
fn push(
    ring: &mut Producer<u8>,
    (time, direction, fate, len): (u64, Direction, Fate, usize),
    bytes: &[u8],
) -> bool {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
    header[8..16].copy_from_slice(&time.to_ne_bytes());
    header[16..18].copy_from_slice(&fate.code().to_ne_bytes());
    header[18] = u8::from(direction == Direction::Out);
    let Ok(mut chunk) = ring.write_chunk(HEADER + bytes.len()) else { return false };
    let (first, second) = chunk.as_mut_slices();
    let rest = copy(&header, first, second);
    let at = HEADER.min(first.len());
    copy(bytes, &mut first[at..], &mut second[rest..]);
    chunk.commit_all();
    true
}

/// Copies to two slices, one behind the other; returns how many bytes went to the second.
fn copy(from: &[u8], first: &mut [u8], second: &mut [u8]) -> usize {
    let (a, b) = from.split_at(from.len().min(first.len()));
    first[..a.len()].copy_from_slice(a);
    second[..b.len()].copy_from_slice(b);
    b.len()
}

impl Reader {
    /// What the tap did so far.
    pub fn counters(&self) -> &TapCounters {
        &self.counters
    }

    /// The tap is gone: what is in the ring now is the last of it.
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// The next frame.
    pub fn next_record(&mut self) -> Option<Record> {
        let mut header = [0; HEADER];
        self.ring.pop_entire_slice(&mut header).ok()?;
        let word =
            |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap_or_default());
        let mut bytes = vec![0; word(0) as usize];
        // The header and its frame were written at once.
        self.ring.pop_entire_slice(&mut bytes).ok()?;
        Some(Record {
            time: u64::from_ne_bytes(header[8..16].try_into().unwrap_or_default()),
            direction: if header[18] == 0 { Direction::In } else { Direction::Out },
            fate: Fate::of(u16::from_ne_bytes([header[16], header[17]])),
            len: word(4),
            bytes,
        })
    }
}
