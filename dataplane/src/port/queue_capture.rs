//! Capture of a queue's sent frames. Each frame is recorded once, when it is first offered to the device.

use dpdk::Mbuf;

use super::shared::SharedQueueState;
use crate::capture::{Direction, Fate, Tap};

/// A tap, and the number of pending frames that it has recorded.
pub(super) struct QueueCapture {
    tap: Box<Tap>,
    /// Number of pending frames, from the front, that have been recorded.
    recorded: usize,
}

impl QueueCapture {
    pub(super) fn new(tap: Box<Tap>) -> QueueCapture {
        QueueCapture { tap, recorded: 0 }
    }

    pub(super) fn tap(&mut self) -> &mut Tap {
        &mut self.tap
    }

    /// Records the pending frames that have not been offered to the device before. Called before the offer, because the
    /// device owns the frames that it accepts. While the link is down, frames are recorded as dropped. Frames that will
    /// be merged into a large packet are recorded as separate segments, as on the wire.
    #[cold]
    pub(super) fn record(&mut self, pending: &[Mbuf], shared: &SharedQueueState) {
        let fate = if shared.device_link_is_down() { Fate::LinkDown } else { Fate::Passed };
        for frame in pending.iter().skip(self.recorded) {
            self.tap.record(Direction::Out, fate, frame.data());
        }
    }

    /// Marks all pending frames as recorded. `pending` has the frames that the device did not accept in the offer.
    pub(super) fn mark_offered(&mut self, pending: &[Mbuf]) {
        self.recorded = pending.len();
    }

    /// Records a frame that was dropped because the queue was full.
    #[cold]
    pub(super) fn record_queue_full(&mut self, frame: &Mbuf) {
        self.tap.record(Direction::Out, Fate::QueueFull, frame.data());
    }

    /// Resets the number of recorded frames after all pending frames were dropped.
    pub(super) fn mark_cleared(&mut self) {
        self.recorded = 0;
    }
}
