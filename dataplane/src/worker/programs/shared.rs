//! Shared receive queues (SRQs): the receives that a QP has taken, and notices about SRQs.
//!
//! ```text
//!   program --> SRQ ring --taken at the arrival of a message--> stream of a QP --event--> CQ of the QP
//!                         |
//!                         +--> limit reached, failure --> notice --next turn--> event to the control thread
//! ```
//!
//! A receive that was taken belongs to its QP: the end of the QP flushes it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::SharedReceives;

/// Set when an SRQ of a program at this worker has a notice.
#[derive(Clone, Debug, Default)]
pub(super) struct Notices(Arc<AtomicBool>);

pub(super) struct SharedQueue {
    pub(super) receives: Arc<SharedReceives>,
    pub(super) taken: Arc<Taken>,
    /// True once the stream has the SRQ as its source of receives.
    pub(super) has_source: bool,
}

/// Receives that a QP has taken from its SRQ and that are not complete. Only the QP's worker uses this state.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Values of `wr_id`, at most the QP's maximum.
    receives: Mutex<VecDeque<u64>>,
    /// True once an SGE of a receive was refused.
    has_refused: AtomicBool,
}

impl Notices {
    /// Records that an SRQ has a notice.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if an SRQ has had a notice since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }

    /// Returns true if an SRQ has a notice.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl SharedQueue {
    pub(super) fn new(receives: Arc<SharedReceives>) -> SharedQueue {
        SharedQueue { receives, taken: Arc::default(), has_source: false }
    }

    /// Returns true once an SGE of a taken receive was refused.
    pub(super) fn has_refused(&self) -> bool {
        self.taken.has_refused.load(Ordering::Relaxed)
    }

    /// Returns the `wr_id` of each taken receive that is not complete, oldest first.
    pub(super) fn taken(&self) -> Vec<u64> {
        self.taken.receives().iter().copied().collect()
    }

    /// Records that a taken receive is complete.
    pub(super) fn forget(&self, wr_id: u64) {
        let mut receives = self.taken.receives();
        if let Some(at) = receives.iter().position(|&taken| taken == wr_id) {
            receives.remove(at);
        }
    }
}

impl Taken {
    /// Records that the QP has taken a receive. `is_refused`: an SGE of the receive was refused.
    pub(super) fn push(&self, wr_id: u64, is_refused: bool) {
        self.receives().push_back(wr_id);
        self.has_refused.fetch_or(is_refused, Ordering::Relaxed);
    }

    fn receives(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.receives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
