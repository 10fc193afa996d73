//! The capture of what a queue sends: each frame once, when it is first offered to the device.

use dpdk::Mbuf;

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

    /// Records what is about to be offered to the device and was not before. What the device takes is its own then, so
    /// frames are recorded before; while the link is down, as dropped. Parts of a large packet are recorded as the
    /// segments that they are on the wire.
    #[cold]
    pub(super) fn record(&mut self, pending: &[Mbuf], shared: &SharedQueueState) {
        let fate = if shared.device_link_is_down() { Fate::LinkDown } else { Fate::Passed };
        for frame in pending.iter().skip(self.recorded) {
            self.tap.record(Direction::Out, fate, frame.data());
        }
    }

    /// The device was offered all that waited; `pending` is left.
    pub(super) fn offered(&mut self, pending: &[Mbuf]) {
        self.recorded = pending.len();
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
