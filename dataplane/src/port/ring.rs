//! The two ends of a `ring` link: their open state, and the descriptors that wake the receiving workers. DPDK's rings
//! carry the frames (`dpdk::ring_pair`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::wake::Wake;

/// State of both ends of one link, shared by the two ports.
#[derive(Debug)]
pub(super) struct RingEnds([RingEnd; 2]);

#[derive(Debug)]
struct RingEnd {
    open: AtomicBool,
    /// Wake-ups of the workers that receive at this end, one per queue.
    wakes: Vec<Arc<Wake>>,
}

/// One end of a link, owned by its port.
#[derive(Debug)]
pub(super) struct RingSide {
    ends: Arc<RingEnds>,
    /// Index of this end, 0 or 1.
    side: usize,
}

/// The wake-ups for one queue of a ring port, one for each end of the link.
#[derive(Debug)]
pub(super) struct RingWakes {
    /// Wakes the worker that receives from this queue.
    pub(super) own: Arc<Wake>,
    /// Wakes the worker that receives from the peer's queue with the same index.
    pub(super) other: Arc<Wake>,
}

impl RingEnds {
    /// Creates two closed ends with `queues` queues each.
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

    pub(super) fn is_joined(&self) -> bool {
        self.ends.0.iter().all(|end| end.open.load(Ordering::Relaxed))
    }

    /// Returns the wake-ups for the queue with index `queue`.
    pub(super) fn ring_wakes(&self, queue: u16) -> RingWakes {
        let wake = |side: usize| self.ends.0[side].wakes[usize::from(queue)].clone();
        RingWakes { own: wake(self.side), other: wake(1 - self.side) }
    }
}
