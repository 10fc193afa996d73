//! Work that a ULP posts to its session: messages of bare DDP, operations of RDMAP, receive buffers.

use super::{Context, Endpoint, SessionId, State};
use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{Message, PostError, Qn, RegionMemory, Stag, Ulp};

impl<M: RegionMemory> Endpoint<M> {
    /// Posts a message, which is sent in order after earlier posts.
    ///
    /// # Errors
    /// Before the session is accepted, after a close, in a session of RDMAP, and for the errors of
    /// [`ddp::Stream::post`].
    pub fn post(&mut self, session: SessionId, message: Message<M>) -> Result<(), PostError> {
        self.call_ulp(session, true, |ulp| ulp.post(message))
    }

    /// Starts an RDMAP operation, which is performed in order after earlier posts.
    ///
    /// # Errors
    /// Before the session is accepted, after a close, in a session of bare DDP, and for the errors of
    /// [`ddp::rdmap::Stream::post`].
    pub fn post_rdmap(
        &mut self,
        session: SessionId,
        request: WorkRequest<M>,
    ) -> Result<(), PostError> {
        self.call_ulp(session, true, |ulp| ulp.post_rdmap(request))
    }

    /// Answers the peer's oldest held Read: see [`ddp::Ulp::release_read`].
    pub fn release_read(&mut self, session: SessionId) {
        // A closed session has no held Read.
        let _ = self.call_ulp(session, false, |ulp| {
            ulp.release_read();
            Ok(())
        });
    }

    /// Adds `n` receive buffers to a queue; RDMAP's ULP has only [`ddp::MESSAGE_QUEUE`].
    ///
    /// # Errors
    /// Before the session is accepted, after its end, and if the queue does not exist.
    pub fn post_buffers(&mut self, session: SessionId, qn: Qn, n: u32) -> Result<(), PostError> {
        self.call_ulp(session, false, |ulp| ulp.post_buffers(qn, n))
    }

    /// An STag of the worker's table was invalidated: a peer's Read from it that is not completely answered
    /// ends the session by an RDMAP Terminate. Returns whether there was such a Read.
    pub fn on_stag_revoked(
        &mut self,
        now: Instant,
        session: SessionId,
        stag: Stag,
        cx: &mut Context<'_, M>,
    ) -> bool {
        self.now = now;
        let ended = self.call_ulp(session, false, |ulp| Ok(ulp.on_stag_revoked(stag)));
        let ended = ended.unwrap_or(false);
        if ended {
            self.upper.with_slot(session.stream, now, |_, _| {});
            self.process_changes(cx);
        }
        ended
    }

    fn call_ulp<R>(
        &mut self,
        session: SessionId,
        to_send: bool,
        f: impl FnOnce(&mut Ulp<M>) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let closed = Err(PostError::Closed);
        if self.upper.slot(session).is_none() {
            return closed;
        }
        // Does not settle the session: a caller that retries on every iteration must not be called again at
        // once.
        let done = self.upper.with_slot_no_settle(session.stream, self.now, |slot, _| {
            let open = !to_send || slot.state() == State::Established;
            let full = slot.accepted.as_mut().filter(|_| open);
            full.map_or(Err(PostError::Closed), |full| f(&mut full.stream))
        });
        done.unwrap_or(closed)
    }
}
