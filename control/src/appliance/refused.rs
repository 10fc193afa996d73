//! Messages that a stream did not take or did not send whole, because it is ending.
//!
//! ```text
//!  PostFailed ---> waits --- Closed ------------> the poster gets the cause of the stream's end
//!                     \----- CAUSE_WAIT passes -> the poster gets the peer's error, or the plain reason
//! ```
//!
//! The peer's FIN, its last message or Terminate, and our next post race: that a stream takes no more is
//! known before its cause is. *Bound:* one entry for each outstanding ticket.

use std::time::{Duration, Instant};

use dataplane::{PostFailure, Ticket};
use ddp::{PostError, StreamId};

use super::core::Core;
use crate::api::ApiError;

/// How long the cause of a stream's end is waited for. The worker ends a stream that makes no progress after
/// 5 s (`teardown_timeout`).
pub(super) const CAUSE_WAIT: Duration = Duration::from_secs(10);

/// A message whose poster does not know of it yet.
pub(super) struct Refused {
    stream: StreamId,
    ticket: Ticket,
    reason: PostFailure,
    deadline: Instant,
}

impl Core {
    /// A message could not be posted, or was not acknowledged.
    pub(super) fn on_post_failed(
        &mut self,
        stream: StreamId,
        ticket: Ticket,
        reason: PostFailure,
        now: Instant,
    ) {
        // The stream is about to end: the reasons that its end explains.
        let ends = matches!(
            reason,
            PostFailure::Flushed | PostFailure::NoStream | PostFailure::Refused(PostError::Closed)
        );
        if ends && self.streams.contains_key(&stream) {
            let deadline = now + CAUSE_WAIT;
            self.refused.push(Refused { stream, ticket, reason, deadline });
        } else {
            self.fail_post(stream, ticket, &reason, now);
        }
    }

    /// The peer's error, if it is known, is the cause of whatever came after it.
    fn fail_post(&mut self, stream: StreamId, ticket: Ticket, reason: &PostFailure, now: Instant) {
        let cause = self.streams.get(&stream).and_then(|known| known.peer_error.clone());
        let plain = || ApiError::unavailable(reason.to_string());
        let error = cause.map_or_else(plain, ApiError::peer_refused);
        self.on_posted(ticket, Err(error), now);
    }

    /// A stream has ended: its end is the answer to all its posts.
    pub(super) fn forget_refused(&mut self, stream: StreamId) {
        self.refused.retain(|refused| refused.stream != stream);
    }

    pub(super) fn next_refused_deadline(&self) -> Option<Instant> {
        self.refused.iter().map(|refused| refused.deadline).min()
    }

    pub(super) fn expire_refused(&mut self, now: Instant) {
        let late: Vec<_> = self.refused.extract_if(.., |r| r.deadline <= now).collect();
        for Refused { stream, ticket, reason, .. } in late {
            self.fail_post(stream, ticket, &reason, now);
        }
    }
}
