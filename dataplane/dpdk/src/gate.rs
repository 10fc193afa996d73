//! Prevents polls of a device's queues while its driver changes the device's state: the restart of a memif device, the
//! unmapping of the memory shared with its peer, and the recreation of an `af_packet` device. Each poll of such a queue
//! passes a [`Gate`].
//!
//! A memif client reconnects by a restart. Other devices are not restarted. The client has [5 s](MAX_LINK_DOWN_CHECKS)
//! to establish a connection, because the server may be starting. An earlier restart could close the connection before
//! the server has sent its greeting, and the server's driver would then abort the server's process (`rte_panic`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

use dpdk_sys as sys;

/// Number of consecutive checks without a link after which a started device is restarted: 5 s at four checks per second.
const MAX_LINK_DOWN_CHECKS: u32 = 20;

/// A gate, open while the device is started.
pub(crate) struct Gate {
    started: RwLock<bool>,
    /// Remaining checks without a link before the device is restarted.
    checks_left: AtomicU32,
}

impl Gate {
    /// Creates the gate of a device that is not started.
    pub(crate) fn new() -> Gate {
        Gate { started: RwLock::new(false), checks_left: AtomicU32::new(0) }
    }

    /// Creates the gate of a started device.
    pub(crate) fn open() -> Gate {
        Gate { started: RwLock::new(true), ..Gate::new() }
    }

    /// Runs `poll` if the device is started. The device is not stopped while `poll` runs. Returns `None` if the device
    /// is stopped or its state is being changed.
    pub(crate) fn pass<T>(&self, poll: impl FnOnce() -> T) -> Option<T> {
        match self.started.try_read() {
            Ok(started) if *started => Some(poll()),
            Ok(_) | Err(TryLockError::WouldBlock) => None,
            // Does not occur: code that closes the gate does not panic.
            Err(TryLockError::Poisoned(_)) => None,
        }
    }

    /// Waits until the polls in progress have ended. Polls that begin during the wait are refused, so the wait is
    /// short.
    pub(crate) fn wait_for_polls(&self) {
        self.with_closed(|_| ());
    }

    /// Records that the link is up. If the link is down at a later check, the peer has disconnected, and the device
    /// is restarted at once.
    pub(crate) fn note_link_up(&self) {
        self.checks_left.store(0, Ordering::Relaxed);
    }

    /// Handles a check that found no link. Starts a stopped device. Restarts a started device, at once if the link
    /// has been up, otherwise after [`MAX_LINK_DOWN_CHECKS`] checks. Without a peer the start fails, and the next
    /// check tries again.
    pub(crate) fn handle_link_down(&self, port: u16) {
        let checks_left = self.checks_left.load(Ordering::Relaxed);
        if checks_left > 0 {
            self.checks_left.store(checks_left - 1, Ordering::Relaxed);
            return;
        }
        self.with_closed(|started| {
            if *started {
                // SAFETY: the port is valid. The gate is closed, so no queue is being polled.
                *started = unsafe { sys::rte_eth_dev_stop(port) } != 0;
            }
            if !*started {
                // SAFETY: the port is valid and set up.
                *started = unsafe { sys::rte_eth_dev_start(port) } == 0;
                self.checks_left
                    .store(if *started { MAX_LINK_DOWN_CHECKS } else { 0 }, Ordering::Relaxed);
            }
        });
    }

    /// Runs `change` while no queue is polled. The argument of `change` is true if the device is started. `change` must
    /// update the argument when it starts or stops the device.
    pub(crate) fn with_closed<T>(&self, change: impl FnOnce(&mut bool) -> T) -> T {
        change(&mut self.started.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_started(&self) -> bool {
        *self.started.read().unwrap_or_else(PoisonError::into_inner)
    }
}
