//! Whether a consumer that is about to sleep must be woken: the flag beside a ring between two threads.
//!
//! ```text
//!  consumer   arm: armed = true ; fence ; look at the ring once more ; sleep until rung ; disarm
//!  producer   put something into the ring ; must_ring: fence ; armed?
//! ```
//!
//! Either fence comes first in the order of all SeqCst fences: either the producer sees `armed`, or the consumer
//! sees what was put into the ring. Left out: the descriptor on which the consumer sleeps. `tests/doorbell.rs` tries all
//! interleavings (`RUSTFLAGS="--cfg loom" cargo test -p base --test doorbell`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The flag of one consumer.
#[derive(Debug)]
pub struct Doorbell {
    armed: AtomicBool,
}

impl Doorbell {
    /// Not armed.
    pub fn new() -> Doorbell {
        Doorbell { armed: AtomicBool::new(false) }
    }

    /// From now on [`must_ring`](Self::must_ring) is true for the next caller. The consumer looks at its rings once more before it
    /// sleeps.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The consumer is awake. Something may have been rung meanwhile.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// True between [`arm`](Self::arm) and what ends it, for tests.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Something was put into the ring. Returns whether the caller must wake the consumer; callers at
    /// the same time may all have to.
    #[inline]
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        if armed {
            // May undo an `arm` that came since: the caller wakes that sleep, too.
            self.armed.store(false, Ordering::Relaxed);
        }
        armed
    }
}

impl Default for Doorbell {
    fn default() -> Doorbell {
        Doorbell::new()
    }
}
