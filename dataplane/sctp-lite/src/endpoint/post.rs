//! Calls by which a ULP posts work to its session: messages of bare DDP, RDMAP operations, receive buffers.

use std::sync::Arc;

use super::{Context, Endpoint, SessionId, State};
use base::Instant;
use ddp::rdmap::{Receive, ReceiveSource, WorkRequest};
use ddp::{Message, PostError, Qn, RegionMemory, Stag, Ulp};

impl<M: RegionMemory> Endpoint<M> {
    /// Posts a message, which is sent after earlier posts.
    ///
    /// # Errors
    /// The session is not yet accepted, is closed, or is an RDMAP session; or the errors of [`ddp::Stream::post`].
    pub fn post(&mut self, session: SessionId, message: Message<M>) -> Result<(), PostError> {
        self.call_ulp(session, true, |ulp| ulp.post(message))
    }

    /// Posts an RDMAP operation, which is performed after earlier posts.
    ///
    /// # Errors
    /// The session is not yet accepted, is closed, or is a bare DDP session; or the errors of
    /// [`ddp::rdmap::Stream::post`].
    pub fn post_rdmap(
        &mut self,
        session: SessionId,
        request: WorkRequest<M>,
    ) -> Result<(), PostError> {
        self.call_ulp(session, true, |ulp| ulp.post_rdmap(request))
    }

    /// Responds to the oldest of the peer's Reads that the ULP holds: see
    /// [`ddp::Ulp::release_read`].
    pub fn release_read(&mut self, session: SessionId) {
        // The ULP of a session that has ended holds no Read.
        let _ = self.call_ulp(session, false, |ulp| {
            ulp.release_read();
            Ok(())
        });
    }

    /// Adds `n` receive buffers to a queue. An RDMAP session has only [`ddp::MESSAGE_QUEUE`].
    ///
    /// # Errors
    /// The session is not yet accepted or has ended, or the queue does not exist or has posted or shared receives.
    pub fn post_buffers(&mut self, session: SessionId, qn: Qn, n: u32) -> Result<(), PostError> {
        self.call_ulp(session, false, |ulp| ulp.post_buffers(qn, n))
    }

    /// Posts a receive of an RDMAP session: see [`ddp::rdmap::Stream::post_receive`].
    ///
    /// # Errors
    /// The session is not yet accepted, has ended, or is a bare DDP session; or the errors of
    /// [`ddp::rdmap::Stream::post_receive`].
    pub fn post_receive(
        &mut self,
        session: SessionId,
        receive: Receive<M>,
    ) -> Result<(), PostError> {
        self.call_ulp(session, false, |ulp| ulp.post_receive(receive))
    }

    /// Sets the source of receives of an RDMAP session: see [`ddp::rdmap::Stream::set_receive_source`].
    ///
    /// # Errors
    /// The session is not yet accepted, has ended, or is a bare DDP session; or the errors of
    /// [`ddp::rdmap::Stream::set_receive_source`].
    pub fn set_receive_source(
        &mut self,
        session: SessionId,
        source: Arc<dyn ReceiveSource<M>>,
    ) -> Result<(), PostError> {
        self.call_ulp(session, false, |ulp| ulp.set_receive_source(source))
    }

    /// Removes the memory of a region from the posted receives that use it: see
    /// [`ddp::rdmap::Stream::revoke_receives`].
    pub fn revoke_receives(&mut self, session: SessionId, memory: &M) {
        // A session that has ended has no receives.
        let _ = self.call_ulp(session, false, |ulp| {
            ulp.revoke_receives(memory);
            Ok(())
        });
    }

    /// Processes the invalidation of an STag in the worker's table. If the response to a Read of the peer from this
    /// STag is incomplete, the session ends with an RDMAP Terminate. Returns true in this case.
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

    /// Calls `f` with the session's ULP. `to_send`: `f` posts data to send, so the session must be
    /// established.
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
        // The session is not marked as changed: while a changed session waits to be processed, `poll_timeout` returns a
        // time in the past. A caller that retries a post in every iteration would then never sleep.
        let done = self.upper.with_slot_unmarked(session.stream, self.now, |slot, _| {
            let open = !to_send || slot.state() == State::Established;
            let full = slot.accepted.as_mut().filter(|_| open);
            full.map_or(Err(PostError::Closed), |full| f(&mut full.stream))
        });
        done.unwrap_or(closed)
    }
}
