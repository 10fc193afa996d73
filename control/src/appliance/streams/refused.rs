//! Failed messages whose failure is not reported yet: the cause of the stream's end may still become known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use dataplane::{PostFailure, Ticket};
use ddp::StreamId;

/// A failed message whose failure is not reported yet.
pub(super) struct RefusedPost {
    pub(super) stream: StreamId,
    pub(super) ticket: Ticket,
    pub(super) reason: PostFailure,
}

/// The failed messages, by stream and by deadline.
#[derive(Default)]
pub(super) struct RefusedPosts {
    /// Deadline and failure of each message, by stream and ticket.
    posts: BTreeMap<(StreamId, u64), (Instant, PostFailure)>,
    /// The same messages, ordered by deadline.
    order: BTreeSet<(Instant, StreamId, u64)>,
}

impl RefusedPosts {
    pub(super) fn insert(&mut self, post: RefusedPost, deadline: Instant) {
        let RefusedPost { stream, ticket, reason } = post;
        self.posts.insert((stream, ticket.0), (deadline, reason));
        self.order.insert((deadline, stream, ticket.0));
    }

    /// Removes the messages of a stream that has ended.
    pub(super) fn remove_stream(&mut self, stream: StreamId) {
        let of_stream = (stream, 0)..=(stream, u64::MAX);
        while let Some((&key, &(deadline, _))) = self.posts.range(of_stream.clone()).next() {
            self.posts.remove(&key);
            self.order.remove(&(deadline, key.0, key.1));
        }
    }

    /// Returns the earliest deadline. `None` if no message waits.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.order.first().map(|&(deadline, ..)| deadline)
    }

    /// Removes and returns the message with the earliest deadline, if that has passed.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<RefusedPost> {
        let &(_, stream, ticket) = self.order.first().filter(|&&(deadline, ..)| deadline <= now)?;
        self.order.pop_first();
        let (_, reason) = self.posts.remove(&(stream, ticket))?;
        Some(RefusedPost { stream, ticket: Ticket(ticket), reason })
    }
}
