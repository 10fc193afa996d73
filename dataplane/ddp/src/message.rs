//! Messages that the ULP posts to DDP, and events that DDP reports to the ULP.

use std::sync::Arc;

use wire::{Msn, Qn, Stag, TaggedOffset};

use crate::cookie::Cookie;
use crate::error::DdpError;
use crate::memory::RegionMemory;
use crate::spans::SpanList;

/// The source of a message's bytes.
#[derive(Clone, Debug)]
pub enum Source<M> {
    /// `len` bytes of a region from `offset` on.
    Region {
        /// Handle of the region.
        memory: M,
        /// Offset of the first byte from the start of the region's memory.
        offset: u64,
        /// Length, bytes.
        len: u32,
    },
    /// The bytes of several spans, one after the other.
    Gather(Box<SpanList<M>>),
    /// Bytes that do not change.
    Bytes(Arc<[u8]>),
}

impl<M> Source<M> {
    /// Returns the length of the message, bytes.
    pub fn len(&self) -> u64 {
        match self {
            Source::Region { len, .. } => u64::from(*len),
            Source::Gather(spans) => u64::from(spans.len()),
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Returns true if the source has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<M: RegionMemory> Source<M> {
    /// Returns true if the source refers to this region.
    pub(crate) fn uses_memory(&self, of: &M) -> bool {
        match self {
            Source::Region { memory, .. } => memory.is_same(of),
            Source::Gather(spans) => spans.uses_memory(of),
            Source::Bytes(_) => false,
        }
    }
}

impl<M: Clone> Source<&M> {
    /// Returns the same source with a clone of the region handle instead of a reference to it.
    pub fn cloned(self) -> Source<M> {
        match self {
            Source::Region { memory, offset, len } => {
                Source::Region { memory: memory.clone(), offset, len }
            }
            Source::Gather(spans) => Source::Gather(Box::new(spans.map(M::clone))),
            Source::Bytes(bytes) => Source::Bytes(bytes),
        }
    }
}

/// A message to send (RFC 5041 §5.1). Its completion, [`Event::Sent`] or [`Event::Flushed`], carries `cookie`.
#[derive(Clone, Debug)]
pub enum Message<M> {
    /// A message into a tagged buffer of the peer.
    Tagged {
        /// The peer's STag.
        stag: Stag,
        /// TO of the first byte.
        to: TaggedOffset,
        /// RsvdULP, carried unmodified in every segment.
        rsvd_ulp: u8,
        /// Source of the message's bytes.
        source: Source<M>,
        /// Identifier that the message's completion carries.
        cookie: Cookie,
    },
    /// A message into the next untagged buffer of one of the peer's queues.
    Untagged {
        /// Number of the peer's queue.
        qn: Qn,
        /// RsvdULP, carried unmodified in every segment.
        rsvd_ulp: [u8; 5],
        /// Source of the message's bytes.
        source: Source<M>,
        /// Identifier that the message's completion carries.
        cookie: Cookie,
    },
}

impl<M> Message<M> {
    /// Returns the source of the message's bytes.
    pub fn source(&self) -> &Source<M> {
        match self {
            Message::Tagged { source, .. } | Message::Untagged { source, .. } => source,
        }
    }

    /// Returns the cookie that the message's completion carries.
    pub fn cookie(&self) -> Cookie {
        match self {
            Message::Tagged { cookie, .. } | Message::Untagged { cookie, .. } => *cookie,
        }
    }
}

impl<M: Clone> Message<&M> {
    /// Returns the same message with a clone of the region handle instead of a reference to it.
    pub fn cloned(self) -> Message<M> {
        match self {
            Message::Tagged { stag, to, rsvd_ulp, source, cookie } => {
                Message::Tagged { stag, to, rsvd_ulp, source: source.cloned(), cookie }
            }
            Message::Untagged { qn, rsvd_ulp, source, cookie } => {
                Message::Untagged { qn, rsvd_ulp, source: source.cloned(), cookie }
            }
        }
    }
}

/// Events of a stream for its ULP, in the order in which they happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A whole tagged message is placed, and so are all earlier messages (RFC 5041 §5.4).
    TaggedDelivered {
        /// STag of the message; unchecked if the message has no bytes.
        stag: Stag,
        /// Lowest TO of its segments.
        to: TaggedOffset,
        /// Payload length of the message, bytes.
        len: u64,
        /// RsvdULP of its last segment.
        rsvd_ulp: u8,
    },
    /// A whole untagged message has arrived, and so have all earlier messages (RFC 5041 §5.4). The message uses up one
    /// buffer of the queue; [`post_buffers`](crate::Stream::post_buffers) replaces it.
    UntaggedDelivered {
        /// Queue of the message.
        qn: Qn,
        /// Number of the message in its queue.
        msn: Msn,
        /// Payload; its length is the ULP Message Length.
        data: Vec<u8>,
        /// RsvdULP of its last segment.
        rsvd_ulp: [u8; 5],
    },
    /// The peer's LLP has acknowledged all bytes of one or more posted messages (RFC 5041 §5.4).
    ///
    /// Consecutive messages with the same cookie share one event, unless the event was polled in between.
    Sent {
        /// Cookie of the messages.
        cookie: Cookie,
        /// Number of messages, at least one.
        messages: u32,
    },
    /// A posted message was sent only in part or not at all, or the stream failed before its acknowledgement (RFC 5041
    /// §6.2.2).
    Flushed {
        /// Cookie of the message.
        cookie: Cookie,
    },
    /// The peer has closed its direction: no more data arrives, sending continues (RFC 5041 §6.2.1).
    PeerClosed {
        /// True if the peer closed within a message, or if segments before a received segment are missing.
        incomplete: bool,
    },
    /// DDP found an error in the received segments, and all earlier segments have arrived. No more data is placed or
    /// delivered; messages may still be posted (RFC 5041 §6.2.2, §7.1).
    Error(DdpError),
    /// The stream has failed (RFC 5041 §6.2.2): every posted message is flushed.
    Failed(Failure),
}

/// Cause of a stream's failure other than a peer's DDP error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The LLP lost the connection or reported a fatal error of its own.
    LlpLost,
    /// A segment arrived after the peer's LLP had closed its direction (RFC 5041 §6.2.1).
    DataAfterClose,
    /// The ULP aborted the stream.
    Aborted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_without_bytes_is_empty() {
        let bytes = |len: usize| Source::<crate::VecMemory>::Bytes(vec![7; len].into());
        let region = |len| Source::Region { memory: crate::VecMemory::new(10), offset: 3, len };
        assert_eq!(
            (bytes(0).len(), bytes(2).len(), region(0).len(), region(7).len()),
            (0, 2, 0, 7)
        );
        assert!(
            bytes(0).is_empty()
                && region(0).is_empty()
                && !bytes(2).is_empty()
                && !region(7).is_empty()
        );
    }
}
