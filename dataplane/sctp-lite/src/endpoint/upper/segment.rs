//! Fast path of received messages: a legal segment of an established session, while no session has unprocessed changes.
//! Most messages take the fast path. The session is marked as changed only if the segment causes an error or a response
//! to send.

use super::Upper;
use crate::endpoint::{Context, State};
use crate::seam::{MessageOutcome, ReceivedMessage};
use ddp::RegionMemory;

impl<M: RegionMemory> Upper<M> {
    /// Processes a message that qualifies for the fast path; DDP may still refuse it. Returns `None` if the message
    /// must take the slow path, [`receive_message`](Self::receive_message).
    #[inline]
    pub(super) fn accept_segment(
        &mut self,
        received: &ReceivedMessage<'_>,
        cx: &mut Context<'_, M>,
    ) -> Option<MessageOutcome> {
        let stream = received.stream;
        // Changes of sessions are processed in order of arrival, so this session must not overtake sessions with
        // changes.
        if !self.dirty.slots.is_empty()
            || self.dirty.fast_path_slot.is_some_and(|passed| passed != stream)
        {
            return None;
        }
        let slot = self.slots.get_mut(usize::from(stream))?.as_deref_mut()?;
        if slot.state() != State::Established || slot.paused_max_events.is_some() {
            return None;
        }
        let (at, segment) = slot.session.legal_segment(received)?;
        let full = slot.accepted.as_mut()?;
        let taken = slot.session.accept_segment(at, segment, &mut full.stream.sink(cx.reborrow()));
        let sound = full.stream.is_sound();
        let answers = full.stream.may_answer() && !slot.ready && slot.has_data();
        if !slot.has_event_turn {
            slot.has_event_turn = true;
            self.event_queue.push_back(stream);
        }
        if sound && !answers {
            self.dirty.fast_path_slot = Some(stream);
        } else {
            self.mark_dirty(stream);
        }
        Some(taken)
    }
}
