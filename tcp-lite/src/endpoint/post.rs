//! Work posted by the ULP: bare DDP messages, RDMAP operations, receive buffers.

use std::sync::Arc;

use super::{Context, Endpoint, State};
use base::Instant;
use ddp::rdmap::{Receive, ReceiveSource, WorkRequest};
use ddp::{Message, PostError, Qn, RegionMemory, Stag};

impl<M: RegionMemory> Endpoint<M> {
    /// Posts a bare DDP message. Messages are sent in the order of posting.
    ///
    /// # Errors
    /// [`PostError::Closed`] before Full Operation and after a close, [`PostError::OtherUlp`] on an RDMAP stream, and
    /// the errors of [`ddp::Stream::post`].
    pub fn post(&mut self, message: Message<M>) -> Result<(), PostError> {
        if self.state() != State::Established {
            return Err(PostError::Closed);
        }
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post(message)
    }

    /// Posts a message from a borrowed region: see [`ddp::Stream::post_borrowed`].
    ///
    /// # Errors
    /// The errors of [`post`](Self::post).
    #[inline]
    pub fn post_borrowed(&mut self, message: Message<&M>) -> Result<(), PostError> {
        if self.state() != State::Established {
            return Err(PostError::Closed);
        }
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post_borrowed(message)
    }

    /// Posts an RDMAP operation. Operations are performed in the order of posting.
    ///
    /// # Errors
    /// [`PostError::Closed`] before Full Operation and after a close, [`PostError::OtherUlp`] on a bare DDP stream, and
    /// the errors of [`ddp::rdmap::Stream::post`].
    pub fn post_rdmap(&mut self, request: WorkRequest<M>) -> Result<(), PostError> {
        if self.state() != State::Established {
            return Err(PostError::Closed);
        }
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post_rdmap(request)
    }

    /// Allows a responder to send before the initiator's first FPDU, contrary to RFC 5044 §7.1.2 (4). The caller must
    /// have other evidence that the initiator has received the reply and is in Full Operation. Otherwise the initiator
    /// may interpret an early FPDU as a part of the start-up.
    pub fn set_peer_ready(&mut self) {
        if let Some(full) = self.upper.full_mut() {
            full.set_peer_ready();
        }
    }

    /// Adds `n` receive buffers to queue `qn`. RDMAP streams have only [`ddp::MESSAGE_QUEUE`].
    ///
    /// # Errors
    /// [`PostError::Closed`] outside Full Operation, [`PostError::NoSuchQueue`] if `qn` does not exist,
    /// [`PostError::OtherReceiveMode`] if the queue has posted or shared receives.
    pub fn post_buffers(&mut self, qn: Qn, n: u32) -> Result<(), PostError> {
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post_buffers(qn, n)
    }

    /// Posts a receive of an RDMAP stream: see [`ddp::rdmap::Stream::post_receive`].
    ///
    /// # Errors
    /// [`PostError::Closed`] before Full Operation and after the end, [`PostError::OtherUlp`] on a bare DDP stream, and
    /// the errors of [`ddp::rdmap::Stream::post_receive`].
    pub fn post_receive(&mut self, receive: Receive<M>) -> Result<(), PostError> {
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.post_receive(receive)
    }

    /// Sets the source of receives of an RDMAP stream: see [`ddp::rdmap::Stream::set_receive_source`].
    ///
    /// # Errors
    /// [`PostError::Closed`] before Full Operation and after the end, [`PostError::OtherUlp`] on a bare DDP stream, and
    /// the errors of [`ddp::rdmap::Stream::set_receive_source`].
    pub fn set_receive_source(
        &mut self,
        source: Arc<dyn ReceiveSource<M>>,
    ) -> Result<(), PostError> {
        self.upper.full_mut().ok_or(PostError::Closed)?.stream.set_receive_source(source)
    }

    /// Removes the memory of a region from the posted receives that use it: see
    /// [`ddp::rdmap::Stream::revoke_receives`].
    pub fn revoke_receives(&mut self, memory: &M) {
        if let Some(full) = self.upper.full_mut() {
            full.stream.revoke_receives(memory);
        }
    }

    /// Answers the oldest of the peer's Reads that the ULP holds: see [`ddp::Ulp::release_read`].
    pub fn release_read(&mut self) {
        if let Some(full) = self.upper.full_mut() {
            full.stream.release_read();
        }
        if self.lifecycle.pending.close {
            self.close_when_sendable();
        }
    }

    /// Handles the removal of an STag from the worker's table. If this end still sends a Read response from the STag's
    /// region, ends the stream with a Terminate and returns true.
    pub fn on_stag_revoked(&mut self, now: Instant, stag: Stag, cx: &mut Context<'_, M>) -> bool {
        let ended = self.upper.full_mut().is_some_and(|full| full.stream.on_stag_revoked(stag));
        if ended {
            self.handle_tcp_events(now, cx);
        }
        ended
    }
}
