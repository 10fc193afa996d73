//! What keeps queues out of a memif driver while its device is stopped and started anew, and while memory that it shared
//! with its peer is unmapped. Each poll of a queue passes a [`Gate`].
//!
//! Only a device that reconnects (a client) is stopped and started anew. A connection that was made gets
//! [a while](PATIENCE) to come up. The server may be starting, and its driver ends its process (`rte_panic`) over a
//! connection that is closed before it has been greeted.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

use dpdk_sys as sys;

/// Times that a started device is found without link before it is started anew: 5 s.
const PATIENCE: u32 = 20;

/// Open while the device is started.
pub(crate) struct Gate {
    started: RwLock<bool>,
    /// How often the link may still be found down before the device is started anew.
    patience: AtomicU32,
}

impl Gate {
    /// Of a device that is not started.
    pub(crate) fn new() -> Gate {
        Gate { started: RwLock::new(false), patience: AtomicU32::new(0) }
    }

    /// Of a device that is started.
    pub(crate) fn open() -> Gate {
        Gate { started: RwLock::new(true), ..Gate::new() }
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

    /// Returns once each poll that has begun is over. Polls that come meanwhile are turned away, so that it is soon.
    pub(crate) fn wait_for_polls(&self) {
        self.closed(|_| ());
    }

    /// The link was found up: when it is down the next time, the peer is gone.
    pub(crate) fn is_up(&self) {
        self.patience.store(0, Ordering::Relaxed);
    }

    /// The link was found down. If the device is started and the peer has had its time, it is stopped. If
    /// it is not started then, it is started; that fails without a peer.
    pub(crate) fn restart(&self, port: u16) {
        let left = self.patience.load(Ordering::Relaxed);
        if left > 0 {
            self.patience.store(left - 1, Ordering::Relaxed);
            return;
        }
        self.closed(|started| {
            if *started {
                // SAFETY: the port is valid, and no queue is being polled: the gate is closed.
                *started = unsafe { sys::rte_eth_dev_stop(port) } != 0;
            }
            if !*started {
                // SAFETY: the port is valid and set up.
                *started = unsafe { sys::rte_eth_dev_start(port) } == 0;
                self.patience.store(if *started { PATIENCE } else { 0 }, Ordering::Relaxed);
            }
        });
    }

    /// Runs `change` while no queue is polled. It may change whether the device is started.
    pub(crate) fn closed<T>(&self, change: impl FnOnce(&mut bool) -> T) -> T {
        change(&mut self.started.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_started(&self) -> bool {
        *self.started.read().unwrap_or_else(PoisonError::into_inner)
    }
}
