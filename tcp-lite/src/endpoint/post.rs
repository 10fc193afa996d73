//! What a ULP gives to its stream: messages of bare DDP, operations of RDMAP, receive buffers.

use super::{Context, Endpoint, State};
use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{Message, PostError, Qn, RegionMemory, Stag};

impl<M: RegionMemory> Endpoint<M> {
    /// Posts a message. It is sent in order behind what was posted before.
    ///
    /// # Errors
    /// Before Full Operation, after a close, on a stream of RDMAP, and as [`ddp::Stream::post`] says.
    pub fn post(&mut self, message: Message<M>) -> Result<(), PostError> {
        if self.state() != State::Established {
            return Err(PostError::Closed);
        }
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post(message)
    }

    /// As [`post`](Self::post), with a region that is only lent: see [`ddp::Stream::post_lent`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post_lent(&mut self, message: Message<&M>) -> Result<(), PostError> {
        if self.state() != State::Established {
            return Err(PostError::Closed);
        }
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post_lent(message)
    }

    /// Starts an operation of RDMAP. It is done in order behind what was posted before.
    ///
    /// # Errors
    /// Before Full Operation, after a close, on a stream of bare DDP, and as [`ddp::rdmap::Stream::post`] says.
    pub fn post_rdmap(&mut self, request: WorkRequest<M>) -> Result<(), PostError> {
        if self.state() != State::Established {
            return Err(PostError::Closed);
        }
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post_rdmap(request)
    }

    /// The ULP knows from elsewhere that the initiator has the reply and is in Full Operation: a responder
    /// sends without waiting for its first FPDU, which RFC 5044 §7.1.2 (4) has it wait for. Without that
    /// knowledge the initiator may take the FPDU for a part of the start-up.
    pub fn peer_is_ready(&mut self) {
        if let Some(full) = self.upper.full_mut() {
            full.peer_is_ready();
        }
    }

    /// Adds `n` receive buffers to a queue; RDMAP's ULP has [`ddp::MESSAGE_QUEUE`] alone.
    ///
    /// # Errors
    /// Before Full Operation, after the end, and when there is no such queue.
    pub fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post_buffers(qn, n)
    }

    /// Answers the peer's oldest Read that is held: see [`ddp::Ulp::release_read`].
    pub fn release_read(&mut self) {
        if let Some(full) = self.upper.full_mut() {
            full.stream.release_read();
        }
        if self.life.due.close {
            self.close_when_sendable();
        }
    }

    /// An STag of the worker's table has ended: a peer's Read from it that is not wholly answered ends the
    /// stream by a Terminate. Says whether there was one.
    pub fn revoked(&mut self, now: Instant, stag: Stag, cx: &mut Context<'_, M>) -> bool {
        let ended = self.upper.full_mut().is_some_and(|full| full.stream.revoked(stag));
        if ended {
            self.after(now, cx);
        }
        ended
    }
}
