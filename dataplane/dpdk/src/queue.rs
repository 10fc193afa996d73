//! The two halves of a device's queue pair, as one worker uses them.

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use crate::handle::Handle;
use crate::large::{Maker, Sent};
use crate::mbuf::Mbuf;
use crate::rx_interrupt::RxInterrupt;
use crate::types::{LargePacket, Segmentation};

/// Of so many frames at once the first [`SHORT`] bytes are prefetched before it is known where they are: nothing else is
/// there to do meanwhile.
const FEW: usize = 2;
/// Bytes of a frame with a short message.
const SHORT: usize = 192;

/// Receives from one queue of a device. Keeps the device open.
pub struct RxQueue {
    device: Arc<Handle>,
    queue: u16,
    fd: Option<RawFd>,
    interrupt: Option<RxInterrupt>,
}

/// Sends to one queue of a device. Keeps the device open.
pub struct TxQueue {
    device: Arc<Handle>,
    queue: u16,
    maker: Maker,
}

impl RxQueue {
    /// # Safety
    /// `fd`, if given, is the driver's and open until the device is stopped.
    pub(crate) unsafe fn new(device: Arc<Handle>, queue: u16, fd: Option<RawFd>) -> RxQueue {
        RxQueue { device, queue, fd, interrupt: None }
    }

    /// Uses the device's receive interrupt, if it has one.
    pub(crate) fn with_interrupt(mut self) -> RxQueue {
        self.interrupt = RxInterrupt::new(self.device.clone(), self.queue);
        self
    }

    /// True if the device has a receive interrupt for the queue, and was set up for it.
    pub fn has_interrupt(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Which queue of the device it is, from 0.
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// True if [`fd`](Self::fd) can be a descriptor.
    pub fn can_wake(&self) -> bool {
        self.fd.is_some() || self.interrupt.is_some() || self.device.vhost().is_some()
    }

    /// A descriptor that polls readable when frames have arrived, if the device has one for the queue.
    /// Only to be polled: reading or closing it is the driver's.
    ///
    /// A vhost-user port's frontend is asked to write to it from this call to [`rested`](Self::rested); there is none
    /// while frames wait.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        if let Some(vhost) = self.device.vhost() {
            return vhost.arm(self.queue);
        }
        if let Some(interrupt) = &self.interrupt {
            return interrupt.fd();
        }
        // SAFETY: open while the device runs, which this value sees to (see `new`).
        self.fd.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Turns the device's receive interrupt on: from now to [`rested`](Self::rested), [`fd`](Self::fd) reports what
    /// arrives. Frames that have arrived by now may not be reported: poll once more.
    pub fn rest(&mut self) {
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.turn_on();
        }
    }

    /// Ends what [`fd`](Self::fd) and [`rest`](Self::rest) began.
    pub fn rested(&mut self) {
        if let Some(interrupt) = &mut self.interrupt {
            interrupt.turn_off();
        }
        if let Some(vhost) = self.device.vhost() {
            vhost.disarm(self.queue);
        }
    }

    /// Takes what has arrived, as far as `out` has room; returns how many frames.
    pub fn burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let old = out.len();
        let room = (N - old).min(u16::MAX as usize) as u16;
        let queue = self.queue;
        // SAFETY: the device is started and stays so while its handle lives; this value is the only user
        // of the queue, by `&mut`. `Mbuf` is a transparent pointer, so the spare room is an array of
        // pointers; the driver writes valid buffers that are ours to the first `n`.
        unsafe {
            let at: *mut *mut sys::rte_mbuf = out.as_mut_ptr().add(old).cast();
            let n = self.device.poll(queue, |port| sys::ddpd_rx_burst(port, queue, at, room));
            debug_assert!((0..n).all(|i| NonNull::new(*at.add(i)).is_some()));
            out.set_len(old + n);
            // Who sent them wrote to their descriptions last, on another core perhaps.
            out[old..].iter().for_each(Mbuf::prefetch);
            if n <= FEW {
                out[old..].iter().for_each(|frame| frame.prefetch_usual(SHORT));
            }
            n
        }
    }
}

impl TxQueue {
    /// `cuts`: what the device does with large packets.
    pub(crate) fn new(device: Arc<Handle>, queue: u16, cuts: Segmentation) -> TxQueue {
        TxQueue { device, queue, maker: Maker::new(cuts) }
    }

    /// Which queue of the device it is, from 0.
    pub fn index(&self) -> u16 {
        self.queue
    }

    /// Offers all frames to the device. Those that it accepts leave the front of `frames`; the rest
    /// stays, in order. Returns how many were accepted.
    pub fn burst<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) -> usize {
        let offered = frames.len().min(u16::MAX as usize) as u16;
        if offered == 0 {
            return 0;
        }
        let queue = self.queue;
        // SAFETY: the device is started and stays so while its handle lives; this value is the only user
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
    /// As [`burst`](Self::burst), with large packets for a device or a frontend that cuts them. `plan` says which of the
    /// frames are one, from the first on: all are of one buffer, and have the same number of bytes of headers.
    pub fn burst_large<const N: usize>(
        &mut self,
        frames: &mut ArrayVec<Mbuf, N>,
        mut plan: impl FnMut(&[Mbuf], Segmentation) -> Option<LargePacket>,
    ) -> Sent {
        if frames.is_empty() {
            return Sent::default();
        }
        let mut sent = Sent::default();
        let (at, count) = (frames.as_mut_ptr(), frames.len());
        let (maker, queue) = (&mut self.maker, self.queue);
        self.device.poll_cutting(queue, maker.by_device, |port, how| {
            let to = (port, queue);
            // SAFETY: as in `burst`.
            sent = unsafe {
                if how.is_any() {
                    maker.burst(to, at, count, how, &mut plan)
                } else {
                    let offered = count.min(u16::MAX as usize) as u16;
                    let taken = sys::ddpd_tx_burst(to.0, to.1, at.cast(), offered);
                    Sent { frames: taken.into(), large: 0 }
                }
            };
        });
        // SAFETY: the first are the driver's: they are moved out without being dropped, and the others to the front.
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
