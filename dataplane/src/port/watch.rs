//! The capture of what a queue sends: each frame once, when it is first offered to the device.

use arrayvec::ArrayVec;
use dpdk::{Mbuf, TxQueue};

use super::shared::SharedQueueState;
use crate::capture::{Direction, Fate, Tap};

/// A capture of one queue.
pub(super) struct Watch {
    tap: Box<Tap>,
    /// Frames that wait for the device and have been recorded: the first ones.
    recorded: usize,
}

impl Watch {
    pub(super) fn new(tap: Box<Tap>) -> Watch {
        Watch { tap, recorded: 0 }
    }

    pub(super) fn tap(&mut self) -> &mut Tap {
        &mut self.tap
    }

    /// Offers the device what waits, once; returns how many frames it took. What it takes is its own then, so frames are
    /// recorded before; while the link is down, as dropped.
    #[cold]
    pub(super) fn burst<const N: usize>(
        &mut self,
        device: &mut TxQueue,
        pending: &mut ArrayVec<Mbuf, N>,
        shared: &SharedQueueState,
    ) -> usize {
        let fate = if shared.device_link_is_down() { Fate::LinkDown } else { Fate::Passed };
        for frame in pending.iter().skip(self.recorded) {
            self.tap.record(Direction::Out, fate, frame.data());
        }
        let sent = device.burst(pending);
        self.recorded = pending.len();
        sent
    }

    /// A frame that found no room.
    #[cold]
    pub(super) fn queue_full(&mut self, frame: &Mbuf) {
        self.tap.record(Direction::Out, Fate::QueueFull, frame.data());
    }

    /// What waited was dropped.
    pub(super) fn cleared(&mut self) {
        self.recorded = 0;
    }
}
