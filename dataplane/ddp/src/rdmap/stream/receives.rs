//! Posted receives of a stream, and the look-up of regions to which the stream holds references.
//!
//! A receive ends in exactly one event: [`Event::ReceivedInto`], [`Event::ImmediateInto`] or [`Event::ReceiveFlushed`].

use std::sync::Arc;

use super::Stream;
use crate::error::PostError;
use crate::memory::RegionMemory;
#[cfg(doc)]
use crate::rdmap::ReceiveMode;
use crate::rdmap::{Event, Receive, ReceiveSource};

impl<M: RegionMemory> Stream<M> {
    /// Posts a receive. The n-th Send or Immediate Data of the peer consumes the n-th receive. A Send is placed into
    /// the receive's spans at arrival, and must fit into them. Immediate Data is not placed: an empty list suffices.
    ///
    /// # Errors
    /// [`PostError::OtherReceiveMode`] on a stream without [`ReceiveMode::Posted`]; [`PostError::OutOfBounds`] if a
    /// span is not in its region; [`PostError::Full`] at the limit of receives; [`PostError::Closed`] once receives
    /// have been flushed. After [`close`](Self::close) receives can be posted until the peer closes.
    pub fn post_receive(&mut self, receive: Receive<M>) -> Result<(), PostError> {
        self.ddp.post_receive(receive)
    }

    /// Sets the source of receives that the stream shares with others. Each Send or Immediate Data of the peer uses one
    /// receive, which the stream takes when its first segment arrives. Messages that arrive before this call are
    /// refused, and the peer sends them again. A message for which the source has no receive ends the stream, once it
    /// is in order.
    ///
    /// # Errors
    /// [`PostError::OtherReceiveMode`] on a stream without [`ReceiveMode::Shared`].
    pub fn set_receive_source(
        &mut self,
        source: Arc<dyn ReceiveSource<M>>,
    ) -> Result<(), PostError> {
        self.ddp.set_receive_source(source)
    }

    /// Empties all posted receives that use a region: no byte is placed in the region from now on. A message with
    /// payload for such a receive is too long and ends the stream. Takes time in proportion to the number of posted
    /// receives.
    pub fn revoke_receives(&mut self, memory: &M) {
        self.ddp.revoke_receives(memory);
    }

    /// Returns true if a posted receive or an unacknowledged source is in this region ([`RegionMemory::is_same`]).
    /// Reads and atomics do not count: they refer to this end's memory by STag only. Takes time in proportion to the
    /// lengths of the stream's queues.
    pub fn uses_memory(&self, memory: &M) -> bool {
        self.ddp.uses_memory(memory)
            || self.operations.uses_memory(memory)
            || self.responses.uses_memory(memory)
    }

    #[cfg(test)]
    pub(crate) fn holds_unfinished_state(&self) -> bool {
        self.ddp.holds_unfinished_state()
    }

    /// Flushes posted receives if reception has ended. After the peer's close, the events of these flushes precede the
    /// event of the close.
    pub(super) fn flush_ended_receives(&mut self) {
        if self.ended {
            self.flush_receives();
        }
    }

    /// Flushes all posted receives: first those of delivered messages that cannot be reported any more, then the
    /// others. Releases the memory of the others.
    pub(super) fn flush_receives(&mut self) {
        let delivered = self.ddp.checks_mut().drain_delivered().map(|receive| receive.cookie);
        self.events.extend(delivered.map(|cookie| Event::ReceiveFlushed { cookie }));
        let posted = self.ddp.take_receives().into_iter();
        self.events.extend(posted.map(|cookie| Event::ReceiveFlushed { cookie }));
    }
}
