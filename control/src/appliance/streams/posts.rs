//! Posted messages, until they are acknowledged or have failed.
//!
//! A message that an ending stream refused, or did not send completely, waits for the cause of the end:
//!
//! ```text
//!  PostFailed ---> waits --- Closed ------------> the poster gets the cause of the stream's end
//!                     \----- CAUSE_WAIT passes -> the poster gets the peer's error if known, else PostFailed's reason
//! ```
//!
//! The peer's FIN, last message or Terminate races with our posts, so a post may be refused before the cause is known.
//! *Bound:* one entry per outstanding ticket.

use std::time::{Duration, Instant};

use api::ApiError;
use dataplane::memory::Memory;
use dataplane::{Command, PostFailure, StreamParams, Ticket};
use ddp::rdmap::{Outcome, WorkRequest};
use ddp::{Cookie, Message, PostError, Qn, Source, Stag, StreamId, TaggedOffset};

use super::Streams;
use super::refused::RefusedPost;
use crate::appliance::env::Env;
use crate::appliance::pending::{Continuation, Post};

/// Maximum wait for the cause of a stream's end. The worker ends a stream without progress after 5 s
/// (`teardown_timeout`).
pub(in crate::appliance) const CAUSE_WAIT: Duration = Duration::from_secs(10);

/// A completed or failed message.
pub(in crate::appliance) struct CompletedPost {
    pub stream: StreamId,
    pub post: Post,
    pub result: Result<Outcome, ApiError>,
}

impl Streams {
    /// Posts a message and records its owner.
    pub(in crate::appliance) fn post(
        &mut self,
        env: &mut Env,
        id: StreamId,
        message: Message<Memory>,
        post: Post,
    ) {
        let ticket = self.issue(env, id, post);
        env.send_command(id.worker(), Command::Post { stream: id, message, region: None, ticket });
    }

    /// Posts an RDMAP operation and records its owner.
    pub(in crate::appliance) fn post_rdmap(
        &mut self,
        env: &mut Env,
        id: StreamId,
        request: WorkRequest<Memory>,
        region: Option<Stag>,
        post: Post,
    ) {
        let ticket = self.issue(env, id, post);
        env.send_command(id.worker(), Command::PostRdmap { stream: id, request, region, ticket });
    }

    /// Posts a Read of 0 bytes, which needs no access right (RFC 5040 §5.2.1). Its completion confirms that the peer
    /// has processed all earlier messages. Returns false if a Read is not possible: on bare DDP, or if the agreed ORD
    /// is 0.
    pub(in crate::appliance) fn confirm(
        &mut self,
        env: &mut Env,
        id: StreamId,
        post: Post,
    ) -> bool {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.rdmap) else {
            return false;
        };
        let agreed = stream.params.as_ref().and_then(StreamParams::agreed);
        if agreed.is_none_or(|agreed| agreed.depths.ord == 0) {
            return false;
        }
        let (sink_stag, source_stag, nowhere) = (Stag(0), Stag(0), TaggedOffset(0));
        let (sink_to, source_to, cookie) = (nowhere, nowhere, Cookie::user(0));
        let request =
            WorkRequest::Read { sink_stag, sink_to, source_stag, source_to, len: 0, cookie };
        self.post_rdmap(env, id, request, None, post);
        true
    }

    /// Posts an untagged message (RDMAP: a Send).
    pub(in crate::appliance) fn send(
        &mut self,
        env: &mut Env,
        id: StreamId,
        qn: Qn,
        source: Source<Memory>,
        post: Post,
    ) {
        if self.is_rdmap(id) {
            return self.post_rdmap(
                env,
                id,
                WorkRequest::send(source, Cookie::user(0)),
                None,
                post,
            );
        }
        let message = Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie: Cookie::user(0) };
        self.post(env, id, message, post);
    }

    /// Posts a tagged message (RDMAP: a Write).
    pub(in crate::appliance) fn write(
        &mut self,
        env: &mut Env,
        id: StreamId,
        stag: Stag,
        to: TaggedOffset,
        source: Source<Memory>,
        post: Post,
    ) {
        if self.is_rdmap(id) {
            let request = WorkRequest::Write { stag, to, source, cookie: Cookie::user(0) };
            return self.post_rdmap(env, id, request, None, post);
        }
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(0) };
        self.post(env, id, message, post);
    }

    fn is_rdmap(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.rdmap)
    }

    fn issue(&mut self, env: &mut Env, id: StreamId, post: Post) -> Ticket {
        let ticket = env.issue(Continuation::Posted { stream: id, post });
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.posts.insert(ticket.0);
        }
        ticket
    }

    /// Ends the ticket of a message that was acknowledged or has failed. Returns `None` if the ticket ended with its
    /// stream.
    pub(in crate::appliance) fn on_posted(
        &mut self,
        env: &mut Env,
        ticket: Ticket,
        result: Result<Outcome, ApiError>,
    ) -> Option<CompletedPost> {
        let Some(Continuation::Posted { stream, post }) = env.cancel(ticket) else {
            return None;
        };
        if let Some(state) = self.streams.get_mut(&stream) {
            state.posts.remove(&ticket.0);
        }
        Some(CompletedPost { stream, post, result })
    }

    /// Handles a message that could not be posted or was not acknowledged. Returns the failed message, or `None` if it
    /// waits for the cause of the stream's end.
    pub(in crate::appliance) fn on_post_failed(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        ticket: Ticket,
        reason: PostFailure,
        now: Instant,
    ) -> Option<CompletedPost> {
        // The stream is ending; its end explains these failures.
        let ends = matches!(
            reason,
            PostFailure::Flushed | PostFailure::NoStream | PostFailure::Refused(PostError::Closed)
        );
        if ends && self.streams.contains_key(&stream) {
            self.refused.insert(RefusedPost { stream, ticket, reason }, now + CAUSE_WAIT);
            return None;
        }
        self.fail_post(env, stream, ticket, &reason)
    }

    /// Fails a message with the peer's error if known, because that is the cause of all later failures; otherwise with
    /// `reason`.
    fn fail_post(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        ticket: Ticket,
        reason: &PostFailure,
    ) -> Option<CompletedPost> {
        let cause = self.streams.get(&stream).and_then(|known| known.end.peer_error.clone());
        let plain = || ApiError::unavailable(reason.to_string());
        let error = cause.map_or_else(plain, ApiError::peer_refused);
        self.on_posted(env, ticket, Err(error))
    }

    /// Fails messages whose streams did not end within `CAUSE_WAIT`.
    pub(in crate::appliance) fn expire_refused(
        &mut self,
        env: &mut Env,
        now: Instant,
    ) -> Vec<CompletedPost> {
        let mut failed = Vec::new();
        while let Some(RefusedPost { stream, ticket, reason }) = self.refused.take_expired(now) {
            failed.extend(self.fail_post(env, stream, ticket, &reason));
        }
        failed
    }
}
