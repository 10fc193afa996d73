//! What a ULP gives to its session: messages of bare DDP, operations of RDMAP, receive buffers.

use super::{Context, Endpoint, SessionId, State};
use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{Message, PostError, Qn, RegionMemory, Stag, Ulp};

impl<M: RegionMemory> Endpoint<M> {
    /// Posts a message. It is sent in order behind what was posted before.
    ///
    /// # Errors
    /// Before the session is accepted, after a close, in a session of RDMAP, and as [`ddp::Stream::post`]
    /// says.
    pub fn post(&mut self, session: SessionId, message: Message<M>) -> Result<(), PostError> {
        self.ask_ulp(session, true, |ulp| ulp.post(message))
    }

    /// Starts an operation of RDMAP. It is done in order behind what was posted before.
    ///
    /// # Errors
    /// Before the session is accepted, after a close, in a session of bare DDP, and as
    /// [`ddp::rdmap::Stream::post`] says.
    pub fn post_rdmap(
        &mut self,
        session: SessionId,
        request: WorkRequest<M>,
    ) -> Result<(), PostError> {
        self.ask_ulp(session, true, |ulp| ulp.post_rdmap(request))
    }

    /// Answers the peer's oldest Read that is held: see [`ddp::Ulp::release_read`].
    pub fn release_read(&mut self, session: SessionId) {
        // A session that is over has none.
        let _ = self.ask_ulp(session, false, |ulp| {
            ulp.release_read();
            Ok(())
        });
    }

    /// Adds `n` receive buffers to a queue; RDMAP's ULP has [`ddp::MESSAGE_QUEUE`] alone.
    ///
    /// # Errors
    /// Before the session is accepted, after the end, and when there is no such queue.
    pub fn post_buffers(&mut self, session: SessionId, qn: Qn, n: u32) -> Result<(), PostError> {
        self.ask_ulp(session, false, |ulp| ulp.post_buffers(qn, n))
    }

    /// An STag of the worker's table has ended: a peer's Read from it that is not wholly answered ends the
    /// session by an RDMAP Terminate. Says whether there was one.
    pub fn revoked(
        &mut self,
        now: Instant,
        session: SessionId,
        stag: Stag,
        cx: &mut Context<'_, M>,
    ) -> bool {
        self.now = now;
        let ended = self.ask_ulp(session, false, |ulp| Ok(ulp.revoked(stag)));
        let ended = ended.unwrap_or(false);
        if ended {
            self.upper.with(session.stream, now, |_, _| {});
            self.after(cx);
        }
        ended
    }

    fn ask_ulp<R>(
        &mut self,
        session: SessionId,
        to_send: bool,
        f: impl FnOnce(&mut Ulp<M>) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let closed = Err(PostError::Closed);
        if self.upper.slot(session).is_none() {
            return closed;
        }
        // Nothing to settle: who tries again with every turn must not be called again at once.
        let done = self.upper.quietly(session.stream, self.now, |slot, _| {
            let open = !to_send || slot.state() == State::Established;
            let full = slot.full.as_mut().filter(|_| open);
            full.map_or(Err(PostError::Closed), |full| f(&mut full.stream))
        });
        done.unwrap_or(closed)
    }
}
