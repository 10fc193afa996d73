//! Packet capture: copies of the frames of one queue of a port, for the control thread.
//!
//! ```text
//!  worker: Tap ── at most `snap` bytes of each matching frame ──> ring of bytes ──> Reader: any thread
//! ```
//!
//! The worker owns the [`Tap`] and never waits: frames that do not fit into the ring are lost and counted. [`pair`]
//! creates the ring and makes its pages present. The [`Reader`] must outlive the tap, so that the worker does not free
//! the ring's memory. The tap contains a wall clock, because workers have none.
//!
//! Not captured: frames that the device itself drops. A frame whose flow another worker owns is captured at the worker
//! that receives it, with the result [`Fate::Forwarded`]. The result at the owner is not recorded.

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

/// Length of a tap's ring in bytes.
pub const RING_BYTES: usize = 4 << 20;
/// Maximum number of captured bytes per frame.
pub const MAX_SNAP: usize = 65_535;
/// Length of the header before each frame in the ring, in bytes.
const HEADER: usize = 24;

/// Direction of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Received by the port.
    In,
    /// Sent by the port, or queued to be sent.
    Out,
}

/// Result of processing a frame at the worker that captures it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The worker has processed the received frame, or offers the sent frame to the device.
    Passed,
    /// The worker dropped the frame for the reason at this index of [`Drops::iter`].
    Dropped(u16),
    /// The frame was forwarded to the worker that owns its flow.
    Forwarded,
    /// The frame was not sent: the device accepted no frame, and the transmit queue in software was full.
    QueueFull,
    /// The frame was not sent: the link of the port was down.
    LinkDown,
}

impl Fate {
    /// Returns true if the frame was dropped.
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

    fn from_code(code: u16) -> Fate {
        match code {
            0 => Fate::Passed,
            1 => Fate::Forwarded,
            2 => Fate::QueueFull,
            3 => Fate::LinkDown,
            reason => Fate::Dropped(reason - 4),
        }
    }
}

/// Counters of a tap. Only the worker writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct TapCounters {
    seen: AtomicU64,
    lost: AtomicU64,
}

impl TapCounters {
    /// Returns the number of frames since the start of the capture, whether the filter matched them or not.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that matched the filter but did not fit into the ring.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn add(counter: &AtomicU64) {
        // The worker is the only writer, so load and store need not be one atomic operation.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// The worker's end of a capture, attached to one queue of a port.
pub struct Tap {
    ring: Producer<u8>,
    filter: Arc<Filter>,
    snap: usize,
    counters: Arc<TapCounters>,
    /// True to record IPsec-protected frames as plaintext.
    plaintext: bool,
    /// Clock that returns the wall-clock time in nanoseconds since 1970-01-01 UTC.
    clock: fn() -> u64,
    held: HeldFrame,
    /// The worker's drop counts when [`hold`](Self::hold) was called, in the order of [`Drops::iter`].
    drops: Vec<u64>,
}

/// A received frame whose processing has not finished, so its result is not known yet.
struct HeldFrame {
    headers: Headers,
    time: u64,
    len: usize,
    /// First bytes of the frame, at most `snap`. Empty if the filter matches the frame neither as passed nor as
    /// dropped.
    bytes: Vec<u8>,
}

/// A captured frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Time of the capture in nanoseconds since 1970-01-01 UTC.
    pub time: u64,
    /// Direction of the frame.
    pub direction: Direction,
    /// Result of processing the frame.
    pub fate: Fate,
    /// Length of the whole frame in bytes.
    pub len: u32,
    /// First bytes of the frame, at most the snap length.
    pub bytes: Vec<u8>,
}

/// The reading end of a capture. Any thread may own it.
pub struct Reader {
    ring: Consumer<u8>,
    counters: Arc<TapCounters>,
}

/// Creates both ends of a capture of the frames that match `filter`, with at most `snap` bytes of each. `ring` is the
/// length of the ring in bytes; `clock` returns nanoseconds since 1970-01-01 UTC.
pub fn pair(filter: Arc<Filter>, snap: usize, ring: usize, clock: fn() -> u64) -> (Tap, Reader) {
    let (mut producer, mut consumer) = RingBuffer::new(ring);
    // Makes all pages present now, so that page faults do not delay the worker.
    if let Ok(all) = producer.write_chunk(ring) {
        all.commit_all();
    }
    if let Ok(all) = consumer.read_chunk(ring) {
        all.commit_all();
    }
    let snap = snap.clamp(1, MAX_SNAP);
    let counters = Arc::new(TapCounters::default());
    let held = HeldFrame { headers: Headers::default(), time: 0, len: 0, bytes: vec![0; snap] };
    let drops = Drops::default().iter().map(|drop| drop.count).collect();
    let (inside, of) = (false, counters.clone());
    let tap =
        Tap { ring: producer, filter, snap, counters: of, plaintext: inside, clock, held, drops };
    (tap, Reader { ring: consumer, counters })
}

impl Tap {
    /// Records IPsec-protected frames as plaintext instead of ESP.
    #[must_use]
    pub fn with_plaintext(self) -> Tap {
        Tap { plaintext: true, ..self }
    }

    /// Records a frame, usually a sent frame, with its result.
    pub(crate) fn record(&mut self, direction: Direction, fate: Fate, frame: &[u8]) {
        // A sealed frame is skipped, because its plaintext was recorded before.
        if self.plaintext && Headers::parse(frame).is_ipsec() {
            return;
        }
        self.record_if_matched(direction, fate, frame);
    }

    /// Records the plaintext of a frame that is about to be sealed.
    pub(crate) fn record_plaintext(&mut self, frame: &[u8]) {
        if self.plaintext {
            self.record_if_matched(Direction::Out, Fate::Passed, frame);
        }
    }

    /// Replaces the held frame by its plaintext `frame`, if plaintext is recorded.
    pub(crate) fn hold_plaintext(&mut self, frame: &[u8]) {
        if self.plaintext {
            self.hold_frame(frame);
        }
    }

    fn record_if_matched(&mut self, direction: Direction, fate: Fate, frame: &[u8]) {
        TapCounters::add(&self.counters.seen);
        if self.filter.matches(&Headers::parse(frame), direction, fate.is_drop()) {
            let bytes = &frame[..frame.len().min(self.snap)];
            let time = (self.clock)();
            if !push(&mut self.ring, time, direction, fate, frame.len(), bytes) {
                TapCounters::add(&self.counters.lost);
            }
        }
    }

    /// Holds a received frame until [`release`](Self::release) records it with its result. A frame without a stream is
    /// held on receipt, and again when the worker processes it at the end of the burst. The second call replaces the
    /// first.
    pub(crate) fn hold(&mut self, frame: &[u8], drops: &Drops) {
        self.hold_frame(frame);
        let counts = drops.iter().map(|drop| drop.count);
        self.drops.iter_mut().zip(counts).for_each(|(before, now)| *before = now);
    }

    fn hold_frame(&mut self, frame: &[u8]) {
        let headers = Headers::parse(frame);
        self.held.bytes.clear();
        let wanted = |dropped| self.filter.matches(&headers, Direction::In, dropped);
        if wanted(false) || wanted(true) {
            self.held.headers = headers;
            self.held.time = (self.clock)();
            self.held.len = frame.len();
            self.held.bytes.extend_from_slice(&frame[..frame.len().min(self.snap)]);
        }
    }

    /// Records the held frame after it was processed. If a drop count has changed since [`hold`](Self::hold), the
    /// result is that drop reason. `forwarded` is true if the frame was forwarded to another worker.
    pub(crate) fn release(&mut self, drops: &Drops, forwarded: bool) {
        TapCounters::add(&self.counters.seen);
        if self.held.bytes.is_empty() {
            return;
        }
        let counts = drops.iter().map(|drop| drop.count);
        let dropped = self.drops.iter().zip(counts).position(|(&before, now)| before != now);
        let fate = match dropped.map(u16::try_from) {
            Some(Ok(reason)) => Fate::Dropped(reason),
            _ if forwarded => Fate::Forwarded,
            _ => Fate::Passed,
        };
        if self.filter.matches(&self.held.headers, Direction::In, fate.is_drop()) {
            let HeldFrame { time, len, ref bytes, .. } = self.held;
            if !push(&mut self.ring, time, Direction::In, fate, len, bytes) {
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

/// Writes a frame and its header to the ring. Returns false if there is no room.
fn push(
    ring: &mut Producer<u8>,
    time: u64,
    direction: Direction,
    fate: Fate,
    len: usize,
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

/// Copies `from` into `first`, and the rest into `second`. Returns the number of bytes in `second`.
fn copy(from: &[u8], first: &mut [u8], second: &mut [u8]) -> usize {
    let (a, b) = from.split_at(from.len().min(first.len()));
    first[..a.len()].copy_from_slice(a);
    second[..b.len()].copy_from_slice(b);
    b.len()
}

impl Reader {
    /// Returns the counters of the tap.
    pub fn counters(&self) -> &TapCounters {
        &self.counters
    }

    /// Returns true if the tap was freed. The ring then receives no more frames, but may still contain some.
    pub fn is_finished(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Returns the next frame in the ring; `None` if the ring is empty.
    pub fn next_record(&mut self) -> Option<Record> {
        let mut header = [0; HEADER];
        self.ring.pop_entire_slice(&mut header).ok()?;
        let word =
            |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap_or_default());
        let mut bytes = vec![0; word(0) as usize];
        // Never fails: header and frame were committed to the ring together.
        self.ring.pop_entire_slice(&mut bytes).ok()?;
        Some(Record {
            time: u64::from_ne_bytes(header[8..16].try_into().unwrap_or_default()),
            direction: if header[18] == 0 { Direction::In } else { Direction::Out },
            fate: Fate::from_code(u16::from_ne_bytes([header[16], header[17]])),
            len: word(4),
            bytes,
        })
    }
}
