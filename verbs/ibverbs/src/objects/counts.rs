//! Counts, for each QP, the signalled send requests whose completions the program has not polled.
//!
//! A worker takes a request from the send queue long before the program polls its completion. Programs expect that a
//! send queue of n entries bounds the completions that they have not polled, and size their CQs for that. A post that
//! exceeds this bound is therefore refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Maximum number of QPs of a session: all QP numbers are below it. A power of two.
const PAIRS: usize = 16384;

/// Counts of a QP. The numbers wrap.
#[derive(Debug, Default)]
struct Count {
    /// Number of signalled requests, written under the lock of the send queue.
    posted: AtomicU32,
    /// Number of polled completions of requests, written under the lock of the CQ.
    polled: AtomicU32,
    /// True once a completion of a request had an error, written under the lock of the CQ.
    has_failed: AtomicBool,
}

/// Counts of all QPs of a session, by number.
#[derive(Clone, Debug)]
pub(crate) struct Counts(Arc<[Count]>);

impl Counts {
    pub(crate) fn new() -> Counts {
        Counts((0..PAIRS).map(|_| Count::default()).collect())
    }

    /// Resets the counts of a new QP.
    pub(crate) fn reset(&self, pair: u32) {
        let count = self.of(pair);
        count.posted.store(0, Ordering::Relaxed);
        count.polled.store(0, Ordering::Relaxed);
        count.has_failed.store(false, Ordering::Relaxed);
    }

    /// Records that a request of a QP has completed with an error. Returns true if an earlier one had.
    pub(crate) fn record_failure(&self, pair: u32) -> bool {
        self.of(pair).has_failed.swap(true, Ordering::Relaxed)
    }

    /// Returns true if a QP may have `requests` more signalled requests, with at most `most` in all.
    #[inline]
    pub(crate) fn have_room(&self, pair: u32, requests: u32, most: u32) -> bool {
        let count = self.of(pair);
        let posted = count.posted.load(Ordering::Relaxed);
        let outstanding = posted.wrapping_sub(count.polled.load(Ordering::Relaxed));
        // `outstanding` is negative after completions of unsignalled requests, which only errors cause.
        (outstanding.cast_signed()).saturating_add_unsigned(requests) <= most.cast_signed()
    }

    /// Counts posted signalled requests. Called under the lock of the send queue.
    #[inline]
    pub(crate) fn add_posted(&self, pair: u32, requests: u32) {
        let posted = &self.of(pair).posted;
        posted.store(posted.load(Ordering::Relaxed).wrapping_add(requests), Ordering::Relaxed);
    }

    /// Counts a polled completion of a request. Called under the lock of the CQ.
    #[inline]
    pub(crate) fn add_polled(&self, pair: u32) {
        let polled = &self.of(pair).polled;
        polled.store(polled.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn of(&self, pair: u32) -> &Count {
        &self.0[pair as usize % PAIRS]
    }
}
