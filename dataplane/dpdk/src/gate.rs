//! Excludes queues from a driver: memif's while its device is restarted or memory shared with its peer is unmapped, and
//! `af_packet`'s while its device is recreated. Each poll of a queue passes a [`Gate`].
//!
//! Only a device that reconnects (a client) is restarted. A new connection gets [5 s](MAX_LINK_DOWN_CHECKS) to come up:
//! the server may be starting, and its driver ends its process (`rte_panic`) if a connection is closed before the
//! greeting.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

use dpdk_sys as sys;

/// Checks without a link after which a started device is restarted: 5 s.
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

    /// Runs `poll` if the device is started. The device cannot be stopped meanwhile.
    pub(crate) fn pass<T>(&self, poll: impl FnOnce() -> T) -> Option<T> {
        match self.started.try_read() {
            Ok(started) if *started => Some(poll()),
            Ok(_) | Err(TryLockError::WouldBlock) => None,
            // The gate is closed only by code that does not panic.
            Err(TryLockError::Poisoned(_)) => None,
        }
    }

    /// Waits until each poll that has begun is over. New polls are refused meanwhile, so the wait is short.
    pub(crate) fn wait_for_polls(&self) {
        self.with_closed(|_| ());
    }

    /// Notes that the link is up: when it is down the next time, the peer has disconnected.
    pub(crate) fn note_link_up(&self) {
        self.checks_left.store(0, Ordering::Relaxed);
    }

    /// Handles a check that found no link. If the link has been up, a started device is restarted at once, otherwise
    /// after [`MAX_LINK_DOWN_CHECKS`] checks. The start fails without a peer; the next check repeats it.
    pub(crate) fn handle_link_down(&self, port: u16) {
        let checks_left = self.checks_left.load(Ordering::Relaxed);
        if checks_left > 0 {
            self.checks_left.store(checks_left - 1, Ordering::Relaxed);
            return;
        }
        self.with_closed(|started| {
            if *started {
                // SAFETY: the port is valid, and no queue is being polled: the gate is closed.
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

    /// Runs `change` while no queue is polled. Its argument is true if the device is started; `change` may change it.
    pub(crate) fn with_closed<T>(&self, change: impl FnOnce(&mut bool) -> T) -> T {
        change(&mut self.started.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_started(&self) -> bool {
        *self.started.read().unwrap_or_else(PoisonError::into_inner)
    }
}
