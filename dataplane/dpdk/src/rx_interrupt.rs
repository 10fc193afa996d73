//! The receive interrupt of a queue: an epoll descriptor that contains the interrupt, and the flag whether the
//! interrupt is enabled.
//!
//! Kinds of interrupts (VFIO, UIO, verbs, virtual devices) differ in their acknowledgement, which DPDK implements.
//! This code therefore never reads the interrupt's descriptor. Instead, `rte_epoll_wait` with a time-out of zero
//! acknowledges pending interrupts.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use dpdk_sys as sys;
use rustix::event::epoll;

use crate::handle::Handle;

/// The receive interrupt of one queue.
pub(crate) struct RxInterrupt {
    device: Arc<Handle>,
    queue: u16,
    epoll: OwnedFd,
    on: bool,
}

impl RxInterrupt {
    /// Sets up the interrupt, disabled. Returns `None` if the driver has no interrupt for the queue or cannot enable
    /// the interrupt.
    pub(crate) fn new(device: Arc<Handle>, queue: u16) -> Option<RxInterrupt> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        // SAFETY: the device is started, and its queue is set up.
        let code = unsafe { sys::ddpd_port_rx_epoll(device.port(), queue, epoll.as_raw_fd(), 1) };
        if code != 0 {
            return None;
        }
        let mut interrupt = RxInterrupt { device, queue, epoll, on: false };
        // Some drivers provide a descriptor for an interrupt that they cannot enable.
        interrupt.turn_on();
        let works = interrupt.on;
        interrupt.turn_off();
        works.then_some(interrupt)
    }

    /// Enables the interrupt: frames that arrive from now on make [`fd`](Self::fd) readable.
    pub(crate) fn turn_on(&mut self) {
        // SAFETY: the device is started and stays so while its handle exists.
        self.on = unsafe { sys::rte_eth_dev_rx_intr_enable(self.device.port(), self.queue) } == 0;
    }

    /// Disables the interrupt and acknowledges pending interrupts.
    pub(crate) fn turn_off(&mut self) {
        if std::mem::take(&mut self.on) {
            // SAFETY: as in `turn_on`. After a failure the descriptor signals spuriously, which is harmless.
            unsafe { sys::rte_eth_dev_rx_intr_disable(self.device.port(), self.queue) };
        }
        // SAFETY: the epoll descriptor contains only this interrupt, and the device keeps DPDK's record of it.
        unsafe { sys::ddpd_epoll_clear(self.epoll.as_raw_fd()) }
    }

    /// Returns the epoll descriptor, or `None` while the interrupt is disabled.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.on.then(|| self.epoll.as_fd())
    }
}

impl Drop for RxInterrupt {
    fn drop(&mut self) {
        let (port, epoll) = (self.device.port(), self.epoll.as_raw_fd());
        // SAFETY: the device is started while its handle exists. DPDK must remove the interrupt from the epoll
        // descriptor before the descriptor is closed.
        unsafe { sys::ddpd_port_rx_epoll(port, self.queue, epoll, 0) };
    }
}
