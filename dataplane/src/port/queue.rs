//! A worker's part of a port: one RX queue and one TX queue. Received frames may pass an impairment; sent frames wait
//! in a bounded queue until the device accepts them. Only the owning worker uses a queue, without locks. The
//! control thread reads only the shared counters ([`super::shared`]).

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::Instant;
use dpdk::{BurstResult, Mbuf, Mempool, RxQueue, TxL4, TxQueue};
use link::FaultyLink;

use super::PortInfo;
use super::large_packet;
use super::queue_capture::QueueCapture;
use super::ring::RingWakes;
use super::shared::{QueueCounters, SharedQueueState};
use crate::capture::Tap;

/// Maximum number of frames that one call of [`PortQueue::rx_burst`] receives.
pub const BURST: usize = 32;

/// Maximum number of bytes prefetched per buffer.
const MAX_PREFETCH: usize = 1536;

/// Distance, in allocations, between the prefetch of a buffer and its use.
const PREFETCH_DISTANCE: usize = 2;

/// A burst of received frames, at most [`BURST`].
pub type RxBatch = ArrayVec<Mbuf, BURST>;

/// One RX queue and one TX queue of a port, owned by one worker. In each iteration of its loop, the worker calls
/// [`rx_burst`](Self::rx_burst), then any number of [`alloc`](Self::alloc) and [`tx`](Self::tx), then
/// [`flush`](Self::flush).
pub struct PortQueue {
    info: Arc<PortInfo>,
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
    pending: ArrayVec<Mbuf, { Self::PENDING }>,
    /// Total length of the pending frames, in bytes.
    pending_bytes: u64,
    /// Buffers allocated in advance for the next frames. [`alloc`](Self::alloc) prefetches them shortly before their
    /// use.
    allocated: ArrayVec<Mbuf, { Self::ALLOC_BATCH }>,
    /// Expected length of the next sent frame, in bytes: the length of the previous frame, at most [`MAX_PREFETCH`].
    expected_len: usize,
    impairment: Option<Box<FaultyLink<LinkFrame>>>,
    /// Wake-ups of the workers at both ends of a ring port. `None` for other kinds of port.
    doorbells: Option<RingWakes>,
    counters: QueueCounters,
    /// Counters as last stored for the control thread.
    last_published: QueueCounters,
    shared: Arc<SharedQueueState>,
    /// The capture of this queue, while one runs.
    capture: Option<QueueCapture>,
    /// Device or frontend that segments large packets. `None`: frames are not merged.
    segmenter: Option<Segmenter>,
}

/// The device or frontend that segments large packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmenter {
    /// The device, which also fills in TCP checksums. Only frames that request a TCP checksum are merged.
    Device,
    /// The frontend of a vhost-user port, if it has negotiated TCP segmentation. Frames that request a TCP checksum are
    /// not merged.
    Frontend,
}

impl PortQueue {
    /// Maximum number of frames that are pending for the device.
    pub const PENDING: usize = 256;
    /// Maximum number of buffers taken from the pool at a time.
    pub const ALLOC_BATCH: usize = 32;

    pub(super) fn new(
        info: Arc<PortInfo>,
        rx: RxQueue,
        tx: TxQueue,
        pool: Mempool,
        impair: Option<&link::Config>,
        bells: Option<RingWakes>,
    ) -> PortQueue {
        let impaired = impair.map(|config| {
            // Each queue has its own seed, so that the queues' impairments differ.
            let seed = config.seed.wrapping_add(u64::from(rx.index()));
            Box::new(FaultyLink::new(link::Config { seed, ..config.clone() }))
        });
        let counters = QueueCounters::default();
        let shared = Arc::new(SharedQueueState::new(impaired.is_some()));
        let cuts = info.segmenter;
        PortQueue {
            info,
            rx,
            tx,
            pool,
            pending: ArrayVec::new(),
            pending_bytes: 0,
            allocated: ArrayVec::new(),
            expected_len: 0,
            impairment: impaired,
            doorbells: bells,
            counters,
            last_published: counters,
            shared,
            capture: None,
            segmenter: cuts,
        }
    }

    /// Returns the port's properties.
    pub fn info(&self) -> &Arc<PortInfo> {
        &self.info
    }

    /// Returns the index of the queue within the port, from 0.
    pub fn index(&self) -> u16 {
        self.rx.index()
    }

    /// Appends received frames to `out`, up to its capacity, and returns their number. Each of these frames has a
    /// single mbuf segment. Never blocks.
    pub fn rx_burst(&mut self, now: Instant, out: &mut RxBatch) -> usize {
        let old = out.len();
        match &mut self.impairment {
            None => {
                self.rx.burst(out);
            }
            Some(link) => {
                let mut arrived = RxBatch::new();
                self.rx.burst(&mut arrived);
                for frame in arrived {
                    // The fate is ignored here, because the link counts it.
                    let _: link::Fate = link.push(now, LinkFrame(frame));
                }
                while !out.is_full() {
                    let Some(LinkFrame(frame)) = link.pop(now) else { break };
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

    /// Allocates a buffer for a frame to be sent: no data, at least 128 bytes of headroom, and tailroom for the port's
    /// MTU with all link headers. Returns `None` if no buffer is free; the caller retries later.
    pub fn alloc(&mut self) -> Option<Mbuf> {
        if self.allocated.is_empty() && !self.pool.alloc_bulk(&mut self.allocated) {
            // The pool has fewer than `ALLOC_BATCH` free buffers, but may have a single one.
            let buffer = self.pool.alloc();
            self.counters.no_buffer += u64::from(buffer.is_none());
            return buffer;
        }
        let buffer = self.allocated.pop();
        if let Some(next) = self.allocated.get(self.allocated.len().wrapping_sub(PREFETCH_DISTANCE))
        {
            next.prefetch_tailroom(self.expected_len);
        }
        buffer
    }

    /// Queues a frame for transmission. The next [`flush`](Self::flush) or [`offer`](Self::offer) offers it to the
    /// device; so does a call of `tx` that finds the queue full. If the device then accepts no frame, the new frame
    /// is dropped and counted.
    pub fn tx(&mut self, frame: Mbuf) {
        if self.pending.is_full() {
            self.offer();
        }
        let len = frame.len();
        match self.pending.try_push(frame) {
            Ok(()) => {
                self.pending_bytes += len as u64;
                self.expected_len = len.min(MAX_PREFETCH);
            }
            Err(refused) => {
                self.counters.tx_dropped += 1;
                if let Some(watch) = &mut self.capture {
                    watch.record_queue_full(&refused.element());
                }
            }
        }
    }

    /// Offers the pending frames to the device once and publishes the counters. Frames that the device does not accept
    /// stay pending. If the link is down, they are dropped and counted instead.
    pub fn flush(&mut self) {
        self.offer();
        if self.counters != self.last_published || self.impairment.is_some() {
            self.last_published = self.counters;
            self.shared.store_counters(&self.counters, self.link_counters());
        }
    }

    /// Returns the state shared with the control thread.
    pub(super) fn shared(&self) -> &Arc<SharedQueueState> {
        &self.shared
    }

    /// Returns the number of frames that the device has not accepted yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of frames that [`tx`](Self::tx) accepts before the device must accept one.
    pub fn free_tx_slots(&self) -> usize {
        self.pending.remaining_capacity()
    }

    /// Returns true if received frames can wake an idle worker: the port is a ring or has a descriptor. Otherwise the
    /// worker must poll.
    pub fn can_wake(&self) -> bool {
        self.doorbells.is_some() || self.rx.can_wake()
    }

    /// Arms [`fd`](Self::fd) until [`disarm`](Self::disarm): enables a ring's doorbell or the device's receive
    /// interrupt. Frames that arrived earlier do not always signal the descriptor, so the caller polls once more.
    pub fn arm(&mut self) {
        match &self.doorbells {
            Some(bells) => bells.own.arm(),
            None => self.rx.arm(),
        }
    }

    /// Returns a descriptor that polls readable (level-triggered) when frames have arrived. On a vhost-user port, only
    /// frames after this call signal the descriptor. On a ring or a PCI device, only frames after [`arm`](Self::arm)
    /// do. Returns `None` if the device has no descriptor; the caller must then call [`rx_burst`](Self::rx_burst) at
    /// intervals. The descriptor may also report an error (interface down), which is not a reason to stop polling.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.doorbells {
            Some(bells) => Some(bells.own.fd()),
            None => self.rx.fd(),
        }
    }

    /// Disarms the descriptor after [`arm`](Self::arm), or after [`fd`](Self::fd) of a vhost-user port.
    pub fn disarm(&mut self) {
        match &self.doorbells {
            Some(bells) => bells.own.disarm(),
            None => self.rx.disarm(),
        }
    }

    /// Returns the delivery time of the next received frame that an impairment delays; `None` if there is none.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.impairment.as_ref().and_then(|link| link.next_delivery())
    }

    /// Returns the capture of this queue, while one runs. The queue records only sent frames; the worker records
    /// received frames.
    #[inline]
    pub(crate) fn tap(&mut self) -> Option<&mut Tap> {
        self.capture.as_mut().map(QueueCapture::tap)
    }

    /// Starts a capture, or ends the running one if `tap` is `None`.
    pub(crate) fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.capture = tap.map(QueueCapture::new);
    }

    /// Returns the queue's counters.
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// Returns the impairment's counters, if the port is impaired.
    pub fn link_counters(&self) -> Option<&link::Counters> {
        self.impairment.as_ref().map(|link| link.counters())
    }

    /// Offers the pending frames to the device once, without publishing the counters; see [`flush`](Self::flush).
    pub fn offer(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let sent = match (&mut self.capture, self.segmenter) {
            (None, None) => self.tx.burst(&mut self.pending),
            (watch, cuts) => {
                if let Some(watch) = watch.as_mut() {
                    watch.record(&self.pending, &self.shared);
                }
                let sent = burst(&mut self.tx, &mut self.pending, cuts);
                if let Some(watch) = watch {
                    watch.mark_offered(&self.pending);
                }
                self.counters.tx_large += sent.large as u64;
                sent.frames
            }
        };
        if sent > 0 {
            if let Some(bells) = &self.doorbells {
                bells.peer.notify();
            }
            let left = self.pending.iter().map(|frame| frame.len() as u64).sum();
            self.counters.tx_frames += sent as u64;
            self.counters.tx_bytes += self.pending_bytes - left;
            self.pending_bytes = left;
        }
        if !self.pending.is_empty() && self.shared.device_link_is_down() {
            // The frames are dropped. After a reconnect they would reach another peer. Until the reconnect they would
            // occupy buffers that other streams need.
            self.counters.tx_dropped += self.pending.len() as u64;
            self.pending.clear();
            self.pending_bytes = 0;
            if let Some(watch) = &mut self.capture {
                watch.mark_cleared();
            }
        }
    }

    /// Copies each received frame of several mbuf segments into one buffer. Frames that do not fit are dropped and
    /// counted.
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

/// Offers all pending frames to the device. If the device or the frontend segments large packets, TCP segments are
/// merged into such packets first.
fn burst<const N: usize>(
    device: &mut TxQueue,
    pending: &mut ArrayVec<Mbuf, N>,
    cuts: Option<Segmenter>,
) -> BurstResult {
    let Some(cuts) = cuts else { return BurstResult { frames: device.burst(pending), large: 0 } };
    let by_device = cuts == Segmenter::Device;
    device.burst_large(pending, |frames, how| {
        let may = |f: &Mbuf| (f.tx_l4() == TxL4::Tcp) == by_device;
        large_packet::plan_large_packet(frames, |f| may(f).then(|| f.data()), how)
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
struct LinkFrame(Mbuf);

impl link::Frame for LinkFrame {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }

    fn duplicate(&self) -> Option<Self> {
        self.0.copy().map(LinkFrame)
    }
}
