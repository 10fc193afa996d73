//! One worker's half of a port.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use dpdk::{Mbuf, Mempool, RxQueue, Sent, TxL4, TxQueue};
use link::FaultyLink;

use super::PortInfo;
use super::large;
use super::ring::Bells;
use super::shared::{QueueCounters, SharedQueueState};
use super::watch::Watch;
use crate::capture::Tap;

/// Most frames that one [`PortQueue::rx_burst`] gives.
pub const BURST: usize = 32;

/// Bytes of a buffer that are prefetched, at most.
const MOST_AHEAD: usize = 1536;

/// A buffer is prefetched this many buffers before its use.
const AHEAD: usize = 2;

/// Received frames.
pub type RxBatch = ArrayVec<Mbuf, BURST>;

/// One queue pair of a port. Belongs to one worker; the order of calls in a round is
/// [`rx_burst`](Self::rx_burst), any number of [`alloc`](Self::alloc) and [`tx`](Self::tx),
/// [`flush`](Self::flush).
pub struct PortQueue {
    info: Arc<PortInfo>,
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
    pending: ArrayVec<Mbuf, { Self::PENDING }>,
    /// Bytes of those.
    pending_bytes: u64,
    /// Buffers for the next frames, on their way into this core's cache.
    fresh: ArrayVec<Mbuf, { Self::FRESH }>,
    /// Bytes of a buffer that the next frame will use, estimated from the last one.
    typical: usize,
    impaired: Option<Box<FaultyLink<Travelling>>>,
    /// Of a ring.
    bells: Option<Bells>,
    counters: QueueCounters,
    /// As they were published last.
    last_published: QueueCounters,
    shared: Arc<SharedQueueState>,
    /// While a capture runs.
    watch: Option<Watch>,
    /// Frames may go as parts of large packets.
    cuts: Option<Cuts>,
}

/// Who cuts large packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// The device, which fills in TCP checksums as well: of frames that ask it to.
    Device,
    /// The frontend of a vhost-user port, if it agreed to.
    Frontend,
}

impl PortQueue {
    /// Most frames that wait for the device.
    pub const PENDING: usize = 256;
    /// Buffers that are taken from the pool at a time.
    pub const FRESH: usize = 32;

    pub(super) fn new(
        info: Arc<PortInfo>,
        rx: RxQueue,
        tx: TxQueue,
        pool: Mempool,
        impair: Option<&link::Config>,
        bells: Option<Bells>,
    ) -> PortQueue {
        let impaired = impair.map(|config| {
            // Queues must not repeat each other's fate.
            let seed = config.seed.wrapping_add(u64::from(rx.index()));
            Box::new(FaultyLink::new(link::Config { seed, ..config.clone() }))
        });
        let counters = QueueCounters::default();
        let shared = Arc::new(SharedQueueState::new(impaired.is_some()));
        let cuts = info.cuts;
        PortQueue {
            info,
            rx,
            tx,
            pool,
            pending: ArrayVec::new(),
            pending_bytes: 0,
            fresh: ArrayVec::new(),
            typical: 0,
            impaired,
            bells,
            counters,
            last_published: counters,
            shared,
            watch: None,
            cuts,
        }
    }

    /// The port.
    pub fn info(&self) -> &Arc<PortInfo> {
        &self.info
    }

    /// Which of the port's queues it is, from 0.
    pub fn index(&self) -> u16 {
        self.rx.index()
    }

    /// Adds received frames to `out`, as far as there is room, and returns how many. Each is in one
    /// segment. Never blocks.
    pub fn rx_burst(&mut self, now: Instant, out: &mut RxBatch) -> usize {
        let old = out.len();
        match &mut self.impaired {
            None => {
                self.rx.burst(out);
            }
            Some(link) => {
                let mut arrived = RxBatch::new();
                self.rx.burst(&mut arrived);
                for frame in arrived {
                    // What becomes of it is in the link's counters.
                    let _: link::Fate = link.push(now, Travelling(frame));
                }
                while !out.is_full() {
                    let Some(Travelling(frame)) = link.pop(now) else { break };
                    out.push(frame);
                }
            }
        }
        if out[old..].iter().any(|frame| frame.segments() != 1) {
            self.join_segments(old, out);
        }
        self.counters.rx_frames += (out.len() - old) as u64;
        self.counters.rx_bytes += out[old..].iter().map(|frame| frame.len() as u64).sum::<u64>();
        out.len() - old
    }

    /// A buffer for a frame to be sent: no data, at least 128 bytes of headroom, and room for the port's
    /// MTU with all link headers. `None` when none is free: come back later.
    pub fn alloc(&mut self) -> Option<Mbuf> {
        if self.fresh.is_empty() && !self.pool.alloc_bulk(&mut self.fresh) {
            // Fewer are left than are taken at a time.
            let buffer = self.pool.alloc();
            self.counters.no_buffer += u64::from(buffer.is_none());
            return buffer;
        }
        let buffer = self.fresh.pop();
        if let Some(next) = self.fresh.get(self.fresh.len().wrapping_sub(AHEAD)) {
            next.prefetch_room(self.typical);
        }
        buffer
    }

    /// Takes a frame to be sent. It goes with the next [`flush`](Self::flush) at the latest; if neither
    /// the device nor the queue has room, it is dropped and counted.
    pub fn tx(&mut self, frame: Mbuf) {
        if self.pending.is_full() {
            self.offer();
        }
        let len = frame.len();
        match self.pending.try_push(frame) {
            Ok(()) => {
                self.pending_bytes += len as u64;
                self.typical = len.min(MOST_AHEAD);
            }
            Err(refused) => {
                self.counters.tx_dropped += 1;
                if let Some(watch) = &mut self.watch {
                    watch.queue_full(&refused.element());
                }
            }
        }
    }

    /// Offers the device what waits, once. What it does not take stays for the next time, or is dropped and
    /// counted if the link was found down. Publishes the counters.
    pub fn flush(&mut self) {
        self.offer();
        if self.counters != self.last_published || self.impaired.is_some() {
            self.last_published = self.counters;
            self.shared.store_counters(&self.counters, self.link_counters());
        }
    }

    /// What the control thread sees of the queue, and the queue of it.
    pub(super) fn shared(&self) -> &Arc<SharedQueueState> {
        &self.shared
    }

    /// Frames that wait for the device.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Frames that can be given to [`tx`](Self::tx) before the device must take some.
    pub fn room(&self) -> usize {
        self.pending.remaining_capacity()
    }

    /// True unless an idle worker must look for frames again and again: of a port with a descriptor for them, and of a
    /// ring.
    pub fn can_wake(&self) -> bool {
        self.bells.is_some() || self.rx.can_wake()
    }

    /// Asks for what makes [`fd`](Self::fd) readable, until [`rested`](Self::rested): a ring's sender, or the
    /// device's receive interrupt. Frames that have arrived by now may not; the caller polls once more.
    pub fn rest(&mut self) {
        match &self.bells {
            Some(bells) => bells.own.arm(),
            None => self.rx.rest(),
        }
    }

    /// A descriptor that polls readable when frames have arrived, level-triggered (that of a vhost-user port: when
    /// they arrived after this call; of a ring or a PCI device: after [`rest`](Self::rest)); `None` where the
    /// device has none and an idle worker must look again soon. It may also report an error (interface
    /// down): that is no reason to stop looking.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.bells {
            Some(bells) => Some(bells.own.fd()),
            None => self.rx.fd(),
        }
    }

    /// Ends what [`rest`](Self::rest), or [`fd`](Self::fd) of a vhost-user port, asked for.
    pub fn rested(&mut self) {
        match &self.bells {
            Some(bells) => bells.own.disarm(),
            None => self.rx.rested(),
        }
    }

    /// When an impaired port next has a frame by itself.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.impaired.as_ref().and_then(|link| link.next_time())
    }

    /// The capture of what it receives and sends, while one runs; it records what is sent.
    #[inline]
    pub(crate) fn tap(&mut self) -> Option<&mut Tap> {
        self.watch.as_mut().map(Watch::tap)
    }

    /// Begins a capture, or ends it.
    pub(crate) fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.watch = tap.map(Watch::new);
    }

    /// What it did so far.
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// What the impairment did so far, if there is one.
    pub fn link_counters(&self) -> Option<&link::Counters> {
        self.impaired.as_ref().map(|link| link.counters())
    }

    /// The same ahead of [`flush`](Self::flush), without the counters.
    pub fn offer(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let sent = match (&mut self.watch, self.cuts) {
            (None, None) => self.tx.burst(&mut self.pending),
            (watch, cuts) => {
                if let Some(watch) = watch.as_mut() {
                    watch.record(&self.pending, &self.shared);
                }
                let sent = burst(&mut self.tx, &mut self.pending, cuts);
                if let Some(watch) = watch {
                    watch.offered(&self.pending);
                }
                self.counters.tx_large += sent.large as u64;
                sent.frames
            }
        };
        if sent > 0 {
            if let Some(bells) = &self.bells {
                bells.other.notify();
            }
            let left = self.pending.iter().map(|frame| frame.len() as u64).sum();
            self.counters.tx_frames += sent as u64;
            self.counters.tx_bytes += self.pending_bytes - left;
            self.pending_bytes = left;
        }
        if !self.pending.is_empty() && self.shared.device_link_is_down() {
            // What would wait for another peer is of no use to it, and its buffers are to others.
            self.counters.tx_dropped += self.pending.len() as u64;
            self.pending.clear();
            self.pending_bytes = 0;
            if let Some(watch) = &mut self.watch {
                watch.cleared();
            }
        }
    }

    /// Makes chains one buffer each; those that do not fit are dropped.
    fn join_segments(&mut self, old: usize, out: &mut RxBatch) {
        let mut i = old;
        while i < out.len() {
            if out[i].linearize() {
                i += 1;
            } else {
                drop(out.remove(i));
                self.counters.rx_too_long += 1;
            }
        }
    }
}

/// Offers the device all frames, where it cuts large packets as parts of those.
fn burst<const N: usize>(
    device: &mut TxQueue,
    pending: &mut ArrayVec<Mbuf, N>,
    cuts: Option<Cuts>,
) -> Sent {
    let Some(cuts) = cuts else { return Sent { frames: device.burst(pending), large: 0 } };
    let by_device = cuts == Cuts::Device;
    device.burst_large(pending, |frames, how| {
        let may = |f: &Mbuf| (f.tx_l4() == TxL4::Tcp) == by_device;
        large::plan(frames, |f| may(f).then(|| f.data()), how)
    })
}

impl fmt::Debug for PortQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortQueue")
            .field("port", &self.info.name)
            .field("index", &self.index())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// A packet buffer on an impaired link.
#[derive(Debug)]
struct Travelling(Mbuf);

impl link::Frame for Travelling {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }

    fn duplicate(&self) -> Option<Self> {
        self.0.copy().map(Travelling)
    }
}
