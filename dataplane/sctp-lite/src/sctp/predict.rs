//! The short way of a received packet: one DATA chunk, a whole message, with the next TSN and nothing missing before it. Most
//! packets that a busy data sink receives are such. What is compared here makes each check of the long way pass, and
//! only what such a packet changes is done. What differs in anything takes the long way, `input`.

use base::Instant;
use wire::sctp::{Data, Packet};

use super::association::Association;
use super::drop_reason::DropReason;
use super::state::State;
use crate::seam::MessageSink;

impl Association {
    /// The chunk of a packet with which [`input_next`](Self::input_next) does what the long way would do.
    #[inline]
    pub(super) fn next_in<'a>(
        &self,
        packet: &Packet<'a>,
        sink: &impl MessageSink,
    ) -> Option<Data<'a>> {
        let may_be = self.state == State::Established
            && packet.tag() == self.identity.local_tag
            && self.receiver.is_plain(sink);
        if !may_be {
            return None;
        }
        packet.only_data().filter(|chunk| self.receiver.is_next(chunk))
    }

    /// Takes the chunk of [`next_in`](Self::next_in), and with it its packet.
    ///
    /// # Errors
    /// The upper layer did not take it.
    #[inline]
    pub(super) fn input_next(
        &mut self,
        now: Instant,
        chunk: &Data<'_>,
        sink: &mut impl MessageSink,
    ) -> Result<(), DropReason> {
        self.liveness.last_received = now;
        self.stats.packets_in += 1;
        let taken = self.receiver.next_data(now, chunk, sink);
        if taken.is_ok() && self.receiver.is_half_used() {
            self.widen(now, sink);
        }
        self.receiver.packet_end(now);
        Ok(taken?)
    }
}
