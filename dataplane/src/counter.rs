//! A counter that one worker writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer. All accesses are relaxed.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning worker may call this, because the addition is a load and a store, not one atomic
    /// operation.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value, for a gauge.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Raises the value to at least `value`, for a counter that records a maximum. Only the owning worker may call
    /// this.
    #[inline]
    pub fn max(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
