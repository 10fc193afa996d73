//! A `ring` link connects two ports of one process. This module stores whether each end of a link is open, and the
//! event descriptors that wake the workers which receive at each end. The frames are in DPDK's rings
//! (`dpdk::ring_pair`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::wake::Wake;

/// A link: the state of its two ends, shared by the two ports.
#[derive(Debug)]
pub(super) struct RingLink([EndState; 2]);

/// State of one end of a link.
#[derive(Debug)]
struct EndState {
    /// True while the port of this end is open.
    is_open: AtomicBool,
    /// Wake-ups of the workers that receive at this end, one per queue.
    wakes: Vec<Arc<Wake>>,
}

/// One end of a link, owned by its port.
#[derive(Debug)]
pub(super) struct RingEnd {
    link: Arc<RingLink>,
    /// Index of this end in the link, 0 or 1.
    index: usize,
}

/// The wake-ups of the two workers that one queue of a ring port connects, one worker at each end of the link.
#[derive(Debug)]
pub(super) struct RingWakes {
    /// Wakes the worker that receives from this queue.
    pub(super) own: Arc<Wake>,
    /// Wakes the worker that receives the frames sent on this queue, from the queue with the same index at the other
    /// end.
    pub(super) peer: Arc<Wake>,
}

impl RingLink {
    /// Creates a link whose ends are closed and have `queues` queues each.
    pub(super) fn new(queues: u16) -> rustix::io::Result<RingLink> {
        let end = || {
            let wakes = (0..queues).map(|_| Wake::new().map(Arc::new)).collect::<Result<_, _>>()?;
            Ok(EndState { is_open: AtomicBool::new(false), wakes })
        };
        Ok(RingLink([end()?, end()?]))
    }
}

impl RingEnd {
    /// Creates the end of `link` with index `index`, 0 or 1.
    pub(super) fn new(link: Arc<RingLink>, index: usize) -> RingEnd {
        RingEnd { link, index }
    }

    /// Records whether the port of this end is open.
    pub(super) fn set_open(&self, is_open: bool) {
        self.link.0[self.index].is_open.store(is_open, Ordering::Relaxed);
    }

    /// Returns true if both ends of the link are open.
    pub(super) fn is_joined(&self) -> bool {
        self.link.0.iter().all(|end| end.is_open.load(Ordering::Relaxed))
    }

    /// Returns the wake-ups for the queue with index `queue`.
    pub(super) fn ring_wakes(&self, queue: u16) -> RingWakes {
        let wake = |end: usize| self.link.0[end].wakes[usize::from(queue)].clone();
        RingWakes { own: wake(self.index), peer: wake(1 - self.index) }
    }
}
