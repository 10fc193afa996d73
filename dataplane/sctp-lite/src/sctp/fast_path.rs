//! Fast path of received packets: a single DATA chunk with a whole message and the next TSN, with no gap before it.
//! Most packets of a busy data sink take this path. The comparisons in this module imply that every check of the slow
//! path passes. Only the state that such a packet changes is updated. All other packets take the slow path, in `input`.

use base::Instant;
use wire::sctp::{Data, Packet};

use super::association::Association;
use super::drop_reason::DropReason;
use super::state::State;
use crate::seam::MessageSink;

impl Association {
    /// Returns the DATA chunk of the packet if [`input_fast_path`](Self::input_fast_path) has the same effect on it as
    /// the slow path.
    #[inline]
    pub(super) fn predicted_chunk<'a>(
        &self,
        packet: &Packet<'a>,
        sink: &impl MessageSink,
    ) -> Option<Data<'a>> {
        let may_be = self.state == State::Established
            && packet.tag() == self.identity.local_tag
            && self.receiver.allows_fast_path(sink);
        if !may_be {
            return None;
        }
        packet.only_data().filter(|chunk| self.receiver.is_predicted(chunk))
    }

    /// Processes the chunk returned by [`predicted_chunk`](Self::predicted_chunk), the only chunk of its packet.
    ///
    /// # Errors
    /// The upper layer refused the message.
    #[inline]
    pub(super) fn input_fast_path(
        &mut self,
        now: Instant,
        chunk: &Data<'_>,
        sink: &mut impl MessageSink,
    ) -> Result<(), DropReason> {
        self.liveness.last_received = now;
        self.stats.packets_in += 1;
        let taken = self.receiver.on_predicted_data(now, chunk, sink);
        if taken.is_ok() && self.receiver.is_half_used() {
            self.grow_window(now, sink);
        }
        self.receiver.end_packet(now);
        Ok(taken?)
    }
}
