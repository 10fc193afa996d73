//! RX queue and TX queue of a DPDK device. Each queue is used by one worker.

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use crate::coalescer::{BurstResult, Coalescer};
use crate::handle::Handle;
use crate::mbuf::Mbuf;
use crate::rx_interrupt::RxInterrupt;
use crate::types::{LargePacket, Segmentation};

/// Largest burst, in frames, for which [`SHORT_FRAME_LEN`] bytes of each frame are prefetched from the default start of
/// the data. The actual start of a frame is in its `rte_mbuf`, for whose cache line the core would have to wait. In
/// such a small burst, the core has no other work to do while it waits.
const SMALL_BURST: usize = 2;
/// Length of a frame with a short message, bytes.
const SHORT_FRAME_LEN: usize = 192;

/// RX queue of a device. Keeps the device open.
pub struct RxQueue {
    device: Arc<Handle>,
    queue: u16,
    fd: Option<RawFd>,
    interrupt: Option<RxInterrupt>,
}

/// TX queue of a device. Keeps the device open.
pub struct TxQueue {
    device: Arc<Handle>,
    queue: u16,
    coalescer: Coalescer,
}

impl RxQueue {
    /// Creates the RX queue.
    ///
    /// # Safety
    /// `fd`, if given, is open as long as `device` exists.
    pub(crate) unsafe fn new(device: Arc<Handle>, queue: u16, fd: Option<RawFd>) -> RxQueue {
        RxQueue { device, queue, fd, interrupt: None }
    }

    /// Sets up the device's receive interrupt, if it has one.
    pub(crate) fn with_interrupt(mut self) -> RxQueue {
        self.interrupt = RxInterrupt::new(self.device.clone(), self.queue);
        self
    }

    /// Returns true if the queue uses a receive interrupt of the device.
    pub fn has_interrupt(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Returns the queue's number in the device, from 0.
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// Returns true if [`fd`](Self::fd) may return a descriptor.
    pub fn can_wake(&self) -> bool {
        self.fd.is_some() || self.interrupt.is_some() || self.device.vhost().is_some()
    }

    /// Returns a descriptor that becomes readable when frames have arrived, if the queue has one. The caller may only
    /// poll the descriptor: the driver reads and closes it.
    ///
    /// With a receive interrupt, the call returns `None` unless [`arm`](Self::arm) has enabled the interrupt. On a
    /// vhost-user port, the call itself requests notifications from the frontend, until [`disarm`](Self::disarm); the
    /// call returns `None` while frames wait.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Some(vhost) = self.device.vhost() {
            return vhost.arm(self.queue);
        }
        if let Some(interrupt) = &self.interrupt {
            return interrupt.fd();
        }
        // SAFETY: the descriptor is open as long as the device exists, which this value keeps alive (see `new`).
        self.fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Enables the device's receive interrupt, if the queue uses one. Until [`disarm`](Self::disarm),
    /// [`fd`](Self::fd) signals arriving frames. Earlier frames are not always signalled, so the caller must poll the
    /// queue once more.
    pub fn arm(&mut self) {
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.turn_on();
        }
    }

    /// Ends the notifications that [`fd`](Self::fd) and [`arm`](Self::arm) requested.
    pub fn disarm(&mut self) {
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.turn_off();
        }
        if let Some(vhost) = self.device.vhost() {
            vhost.disarm(self.queue);
        }
    }

    /// Appends received frames to `out`, up to its capacity. Returns their number.
    pub fn burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let old = out.len();
        let room = (N - old).min(u16::MAX as usize) as u16;
        let queue = self.queue;
        // SAFETY: the device is started and stays so while its handle exists; this value is the only user
        // of the queue, by `&mut`. `Mbuf` is a transparent pointer, so the spare room is an array of
        // pointers; the driver writes valid buffers that are ours to the first `n`.
        unsafe {
            let at: *mut *mut sys::rte_mbuf = out.as_mut_ptr().add(old).cast();
            let n = self.device.poll(queue, |port| sys::ddpd_rx_burst(port, queue, at, room));
            debug_assert!((0..n).all(|i| NonNull::new(*at.add(i)).is_some()));
            out.set_len(old + n);
            // Another core may have written the `rte_mbuf` structures last. They may therefore be missing in this
            // core's caches.
            out[old..].iter().for_each(Mbuf::prefetch);
            if n <= SMALL_BURST {
                out[old..].iter().for_each(|frame| frame.prefetch_default_data(SHORT_FRAME_LEN));
            }
            n
        }
    }
}

impl TxQueue {
    /// Creates the TX queue. `segmentation`: segmentation offload of the device. On a vhost-user port, the offload that
    /// the frontend has negotiated is used instead.
    pub(crate) fn new(device: Arc<Handle>, queue: u16, segmentation: Segmentation) -> TxQueue {
        TxQueue { device, queue, coalescer: Coalescer::new(segmentation) }
    }

    /// Returns the queue's number in the device, from 0.
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// Offers all frames to the device. Accepted frames are removed from the front of `frames`; the others stay, in
    /// order. Returns the number of accepted frames.
    pub fn burst<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) -> usize {
        let offered = frames.len().min(u16::MAX as usize) as u16;
        if offered == 0 {
            return 0;
        }
        let queue = self.queue;
        // SAFETY: the device is started and stays so while its handle exists; this value is the only user
        // of the queue, by `&mut`. The driver owns the first `n` buffers afterwards; they are moved out of
        // the array without being dropped, and the others move to its front.
        unsafe {
            let at: *mut *mut sys::rte_mbuf = frames.as_mut_ptr().cast();
            let n = self.device.poll(queue, |port| sys::ddpd_tx_burst(port, queue, at, offered));
            let rest = frames.len() - n;
            std::ptr::copy(at.add(n), at, rest);
            frames.set_len(rest);
            n
        }
    }
}

impl TxQueue {
    /// Offers frames as [`burst`](Self::burst) does, merged into large packets if the device or the frontend segments
    /// them. `plan` receives the frames not offered yet, and returns the large packet that merges the first of them, or
    /// `None`. Each merged frame must be one buffer, with the same number of header bytes as the large packet.
    pub fn burst_large<const N: usize>(
        &mut self,
        frames: &mut ArrayVec<Mbuf, N>,
        mut plan: impl FnMut(&[Mbuf], Segmentation) -> Option<LargePacket>,
    ) -> BurstResult {
        if frames.is_empty() {
            return BurstResult::default();
        }
        let mut sent = BurstResult::default();
        let (at, count) = (frames.as_mut_ptr(), frames.len());
        let (maker, queue) = (&mut self.coalescer, self.queue);
        self.device.poll_with_segmentation(queue, maker.device_segmentation, |port, how| {
            // SAFETY: as in `burst`: the queue is valid and has no other user, and the frames are valid and ours.
            sent = unsafe {
                if how.is_any() {
                    maker.burst(port, queue, at, count, how, &mut plan)
                } else {
                    let offered = count.min(u16::MAX as usize) as u16;
                    let taken = sys::ddpd_tx_burst(port, queue, at.cast(), offered);
                    BurstResult { frames: taken.into(), large: 0 }
                }
            };
        });
        // SAFETY: the driver owns the first `sent.frames` buffers. These buffers are removed without being dropped, and
        // the others move to the front.
        unsafe {
            std::ptr::copy(at.add(sent.frames), at, count - sent.frames);
            frames.set_len(count - sent.frames);
        }
        sent
    }
}

impl fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxQueue({}, {})", self.device.name(), self.queue)
    }
}

impl fmt::Debug for TxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxQueue({}, {})", self.device.name(), self.queue)
    }
}
