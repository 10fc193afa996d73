//! Messages that are posted, until they are acknowledged or will not be.
//!
//! A message that a stream did not take or did not send whole, because it is ending, waits for the cause:
//!
//! ```text
//!  PostFailed ---> waits --- Closed ------------> the poster gets the cause of the stream's end
//!                     \----- CAUSE_WAIT passes -> the poster gets the peer's error, or the plain reason
//! ```
//!
//! The peer's FIN, its last message or Terminate, and our next post race: that a stream takes no more is
//! known before its cause is. *Bound:* one entry for each outstanding ticket.

use std::time::{Duration, Instant};

use dataplane::memory::Memory;
use dataplane::{Command, PostFailure, StreamParams, Ticket};
use ddp::rdmap::{Outcome, WorkRequest};
use ddp::{Cookie, Message, PostError, Qn, Source, Stag, StreamId, TaggedOffset};

use super::Streams;
use crate::appliance::env::Env;
use crate::appliance::pending::{Post, Then};
use api::ApiError;

/// How long the cause of a stream's end is waited for. The worker ends a stream that makes no progress after
/// 5 s (`teardown_timeout`).
pub(in crate::appliance) const CAUSE_WAIT: Duration = Duration::from_secs(10);

/// A message whose poster does not know of it yet.
pub(super) struct Refused {
    stream: StreamId,
    ticket: Ticket,
    reason: PostFailure,
    deadline: Instant,
}

/// A message that is done with.
pub(in crate::appliance) struct Posted {
    pub stream: StreamId,
    pub post: Post,
    pub result: Result<Outcome, ApiError>,
}

impl Refused {
    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }
}

impl Streams {
    /// Posts a message and remembers whose it is.
    pub(in crate::appliance) fn post(
        &mut self,
        env: &mut Env,
        id: StreamId,
        message: Message<Memory>,
        post: Post,
    ) {
        let ticket = self.issue(env, id, post);
        env.command(id.worker(), Command::Post { stream: id, message, region: None, ticket });
    }

    /// Starts an operation of RDMAP and remembers whose it is.
    pub(in crate::appliance) fn post_rdmap(
        &mut self,
        env: &mut Env,
        id: StreamId,
        request: WorkRequest<Memory>,
        region: Option<Stag>,
        post: Post,
    ) {
        let ticket = self.issue(env, id, post);
        env.command(id.worker(), Command::PostRdmap { stream: id, request, region, ticket });
    }

    /// Posts a Read of no bytes, for which no right is needed (RFC 5040 §5.2.1). False where the peer may not answer it: on
    /// bare DDP, and where the ends have not agreed that this one may Read.
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
        let (sink_to, source_to, cookie) = (nowhere, nowhere, Cookie::of(0));
        let request =
            WorkRequest::Read { sink_stag, sink_to, source_stag, source_to, len: 0, cookie };
        self.post_rdmap(env, id, request, None, post);
        true
    }

    /// Posts an untagged message: a Send on an RDMAP stream.
    pub(in crate::appliance) fn send(
        &mut self,
        env: &mut Env,
        id: StreamId,
        qn: Qn,
        source: Source<Memory>,
        post: Post,
    ) {
        if self.is_rdmap(id) {
            return self.post_rdmap(env, id, WorkRequest::send(source, Cookie::of(0)), None, post);
        }
        let message = Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie: Cookie::of(0) };
        self.post(env, id, message, post);
    }

    /// Posts a tagged message: a Write on an RDMAP stream.
    pub(in crate::appliance) fn write(
        &mut self,
        env: &mut Env,
        id: StreamId,
        (stag, to): (Stag, TaggedOffset),
        source: Source<Memory>,
        post: Post,
    ) {
        if self.is_rdmap(id) {
            let request = WorkRequest::Write { stag, to, source, cookie: Cookie::of(0) };
            return self.post_rdmap(env, id, request, None, post);
        }
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::of(0) };
        self.post(env, id, message, post);
    }

    fn is_rdmap(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.rdmap)
    }

    fn issue(&mut self, env: &mut Env, id: StreamId, post: Post) -> Ticket {
        let ticket = env.issue(Then::Posted { stream: id, post });
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.posts.insert(ticket.0);
        }
        ticket
    }

    /// A posted message was acknowledged, or could not be posted. `None`: its stream is gone, and it was
    /// given up then.
    pub(in crate::appliance) fn on_posted(
        &mut self,
        env: &mut Env,
        ticket: Ticket,
        result: Result<Outcome, ApiError>,
    ) -> Option<Posted> {
        let Some(Then::Posted { stream, post }) = env.cancel(ticket) else {
            return None;
        };
        if let Some(known) = self.streams.get_mut(&stream) {
            known.posts.remove(&ticket.0);
        }
        Some(Posted { stream, post, result })
    }

    /// A message could not be posted, or was not acknowledged.
    pub(in crate::appliance) fn on_post_failed(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        ticket: Ticket,
        reason: PostFailure,
        now: Instant,
    ) -> Option<Posted> {
        // The stream is about to end: the reasons that its end explains.
        let ends = matches!(
            reason,
            PostFailure::Flushed | PostFailure::NoStream | PostFailure::Refused(PostError::Closed)
        );
        if ends && self.streams.contains_key(&stream) {
            let deadline = now + CAUSE_WAIT;
            self.refused.push(Refused { stream, ticket, reason, deadline });
            return None;
        }
        self.fail_post(env, stream, ticket, &reason)
    }

    /// The peer's error, if it is known, is the cause of whatever came after it.
    fn fail_post(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        ticket: Ticket,
        reason: &PostFailure,
    ) -> Option<Posted> {
        let cause = self.streams.get(&stream).and_then(|known| known.end.peer_error.clone());
        let plain = || ApiError::unavailable(reason.to_string());
        let error = cause.map_or_else(plain, ApiError::peer_refused);
        self.on_posted(env, ticket, Err(error))
    }

    pub(super) fn next_refused_deadline(&self) -> Option<Instant> {
        self.refused.iter().map(|refused| refused.deadline).min()
    }

    /// Messages whose streams have not ended in time.
    pub(in crate::appliance) fn expire_refused(
        &mut self,
        env: &mut Env,
        now: Instant,
    ) -> Vec<Posted> {
        let late: Vec<_> = self.refused.extract_if(.., |r| r.deadline <= now).collect();
        let fail =
            |Refused { stream, ticket, reason, .. }| self.fail_post(env, stream, ticket, &reason);
        late.into_iter().filter_map(fail).collect()
    }
}
