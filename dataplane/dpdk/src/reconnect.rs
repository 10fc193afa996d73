//! A memif client that finds nobody, or loses its peer, does not try again: its driver waits to be stopped
//! and started. That is done here, every quarter of a second while the link is down, in the environment's
//! interrupt thread, where the driver also notices a lost peer: the two never run at the same time.
//!
//! A connection that was made gets [a while](PATIENCE) to come up. The server may be starting, and its
//! driver ends its process (`rte_panic`) over a connection that is closed before it has been greeted.
//!
//! Queues may be polled meanwhile. So that no poll is inside the driver while it is stopped, each passes a
//! [`Gate`]; only devices that reconnect have one.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

use dpdk_sys as sys;

use crate::device::Handle;
use crate::error::{Error, check};

const INTERVAL_US: u64 = 250_000;
/// Times that a started device is found without link before it is started anew: 5 s.
const PATIENCE: u32 = 20;

/// Open while the device is started.
pub(crate) struct Gate {
    started: RwLock<bool>,
    /// How often the link may still be found down before the device is started anew.
    patience: AtomicU32,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate { started: RwLock::new(false), patience: AtomicU32::new(0) }
    }

    /// Runs `poll` if the device is started, and keeps it so meanwhile.
    pub(crate) fn pass<T>(&self, poll: impl FnOnce() -> T) -> Option<T> {
        match self.started.try_read() {
            Ok(started) if *started => Some(poll()),
            Ok(_) | Err(TryLockError::WouldBlock) => None,
            // Nothing that panics runs with the gate closed.
            Err(TryLockError::Poisoned(_)) => None,
        }
    }

    /// The link was found up: when it is down the next time, the peer is gone.
    pub(crate) fn is_up(&self) {
        self.patience.store(0, Ordering::Relaxed);
    }

    /// The link was found down. If the device is started and the peer has had its time, it is stopped. If
    /// it is not started then, it is started; that fails when nobody is there.
    pub(crate) fn restart(&self, port: u16) {
        let left = self.patience.load(Ordering::Relaxed);
        if left > 0 {
            self.patience.store(left - 1, Ordering::Relaxed);
            return;
        }
        let mut started = self.started.write().unwrap_or_else(PoisonError::into_inner);
        if *started {
            // SAFETY: the port is valid, and no queue is being polled: the gate is closed.
            *started = unsafe { sys::rte_eth_dev_stop(port) } != 0;
        }
        if !*started {
            // SAFETY: the port is valid and set up.
            *started = unsafe { sys::rte_eth_dev_start(port) } == 0;
            self.patience.store(if *started { PATIENCE } else { 0 }, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_started(&self) -> bool {
        *self.started.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins to look after a device.
///
/// # Safety
/// The handle stays where it is until [`stop`] was called with it.
pub(crate) unsafe fn start(handle: &Handle) -> Result<(), Error> {
    let argument = std::ptr::from_ref(handle).cast_mut().cast();
    // SAFETY: the caller keeps the handle valid for as long as the alarm may ring.
    let code = unsafe { sys::rte_eal_alarm_set(INTERVAL_US, Some(ring), argument) };
    check(format!("no timer for device {}", handle.name()), code).map(|_| ())
}

/// Ends it; when this returns no call is under way.
pub(crate) fn stop(handle: &Handle) {
    let argument = std::ptr::from_ref(handle).cast_mut().cast();
    // SAFETY: cancels what `start` and `ring` set; waits for one that is ringing, unless it is this thread.
    unsafe { sys::rte_eal_alarm_cancel(Some(ring), argument) };
}

unsafe extern "C" fn ring(argument: *mut c_void) {
    // SAFETY: the alarm is cancelled before the handle goes, see `start`.
    let handle = unsafe { &*argument.cast::<Handle>() };
    handle.reconnect();
    // SAFETY: as in `start`. Should it fail, the device stays as it is.
    unsafe { sys::rte_eal_alarm_set(INTERVAL_US, Some(ring), argument) };
}
