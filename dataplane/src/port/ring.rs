//! The two ends of a link of `ring` ports: which of them are open, and the descriptors that wake the worker that
//! receives from a queue of either.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::wake::Wake;

/// Both ends.
#[derive(Debug)]
pub(super) struct RingEnds([RingEnd; 2]);

#[derive(Debug)]
struct RingEnd {
    open: AtomicBool,
    /// For each of its queues what wakes the worker that receives from it.
    wakes: Vec<Arc<Wake>>,
}

/// One of the two.
#[derive(Debug)]
pub(super) struct RingSide {
    ends: Arc<RingEnds>,
    /// Which.
    side: usize,
}

/// What one queue of a ring port sleeps on and rings.
#[derive(Debug)]
pub(super) struct Bells {
    /// Wakes the worker that receives from the queue.
    pub(super) own: Arc<Wake>,
    /// Wakes the one that receives what is sent.
    pub(super) other: Arc<Wake>,
}

impl RingEnds {
    /// Neither end is open.
    pub(super) fn new(queues: u16) -> rustix::io::Result<RingEnds> {
        let end = || {
            let wakes = (0..queues).map(|_| Wake::new().map(Arc::new)).collect::<Result<_, _>>()?;
            Ok(RingEnd { open: AtomicBool::new(false), wakes })
        };
        Ok(RingEnds([end()?, end()?]))
    }
}

impl RingSide {
    pub(super) fn new(ends: Arc<RingEnds>, side: usize) -> RingSide {
        RingSide { ends, side }
    }

    pub(super) fn set_open(&self, open: bool) {
        self.ends.0[self.side].open.store(open, Ordering::Relaxed);
    }

    /// True when both ends are open.
    pub(super) fn is_joined(&self) -> bool {
        self.ends.0.iter().all(|end| end.open.load(Ordering::Relaxed))
    }

    /// Those of queue `queue`.
    pub(super) fn bells(&self, queue: u16) -> Bells {
        let wake = |side: usize| self.ends.0[side].wakes[usize::from(queue)].clone();
        Bells { own: wake(self.side), other: wake(1 - self.side) }
    }
}
