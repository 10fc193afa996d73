//! Fast path of received messages: a legal segment of an established session, with no session to settle. Most
//! messages take it. It queues the session for `settle` only if there is work left.

use super::Upper;
use crate::endpoint::{Context, State};
use crate::seam::{Received, Taken};
use ddp::RegionMemory;

impl<M: RegionMemory> Upper<M> {
    /// Takes such a message, unless DDP refuses it. Returns `None` for any other message, which takes the
    /// slow path, [`arrived`](Self::arrived).
    #[inline]
    pub(super) fn take_segment(
        &mut self,
        received: &Received<'_>,
        cx: &mut Context<'_, M>,
    ) -> Option<Taken> {
        let stream = received.stream;
        // Sessions are settled in the order of their changes: this one must not overtake others.
        if !self.touched.slots.is_empty()
            || self.touched.passed.is_some_and(|passed| passed != stream)
        {
            return None;
        }
        let slot = self.slots.get_mut(usize::from(stream))?.as_deref_mut()?;
        if slot.state() != State::Established || slot.paused.is_some() {
            return None;
        }
        let segment = slot.session.legal_segment(received)?;
        let full = slot.full.as_mut()?;
        let taken = slot.session.take_segment(segment, &mut full.stream.sink(cx.reborrow()));
        let sound = full.stream.is_sound();
        let answers = full.stream.answers() && !slot.ready && slot.has_data();
        if !slot.talking {
            slot.talking = true;
            self.talking.push_back(stream);
        }
        if sound && !answers {
            self.touched.passed = Some(stream);
        } else {
            self.touch(stream);
        }
        Some(taken)
    }
}
