//! Wake-up flag of a consumer that sleeps while the ring between two threads is empty.
//!
//! ```text
//!  consumer   arm: armed = true ; fence ; poll the ring once more ; sleep until rung ; disarm
//!  producer   push an entry into the ring ; must_ring: fence ; armed?
//! ```
//!
//! All SeqCst fences have one total order. If the consumer's fence is first, the producer sees `armed`; otherwise the
//! consumer's poll sees the new entry in the ring. The descriptor on which the consumer sleeps is not part of this
//! module. `tests/doorbell.rs` checks all interleavings (`RUSTFLAGS="--cfg loom" cargo test -p base --test doorbell`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Wake-up flag of one consumer, armed while the consumer sleeps or prepares to.
#[derive(Debug)]
pub struct Doorbell {
    armed: AtomicBool,
}

impl Doorbell {
    /// Returns a disarmed doorbell.
    pub fn new() -> Doorbell {
        Doorbell { armed: AtomicBool::new(false) }
    }

    /// Arms the doorbell: [`must_ring`](Self::must_ring) returns true to the next caller. The consumer must poll its
    /// rings once more before it sleeps.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Disarms the doorbell once the consumer is awake. A producer may have disarmed it already.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// Returns true between [`arm`](Self::arm) and the next `disarm` or `must_ring`, for tests.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Disarms the doorbell. Called after an entry was pushed into the ring. Returns true if the doorbell was armed:
    /// the caller must then wake the consumer. Several concurrent callers may all receive true.
    #[inline]
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        if armed {
            // The store may undo an `arm` that followed the load. The caller then wakes the consumer, and thereby also
            // ends the sleep after that `arm`.
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
