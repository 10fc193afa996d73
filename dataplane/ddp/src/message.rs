//! What the ULP gives to DDP and what it gets from it.

use std::sync::Arc;

use wire::{Msn, Qn, Stag, TaggedOffset};

use crate::cookie::Cookie;
use crate::error::DdpError;

/// Where a message's bytes come from.
#[derive(Clone, Debug)]
pub enum Source<M> {
    /// `len` bytes of a region from `offset` on.
    Region {
        /// The region.
        memory: M,
        /// Offset of the first byte in it.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// These bytes, which do not change.
    Bytes(Arc<[u8]>),
}

impl<M> Source<M> {
    /// Bytes of the message.
    pub fn len(&self) -> u64 {
        match self {
            Source::Region { len, .. } => u64::from(*len),
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// True for a zero-length message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<M: Clone> Source<&M> {
    /// The same with a region handle of its own.
    pub fn cloned(self) -> Source<M> {
        match self {
            Source::Region { memory, offset, len } => {
                Source::Region { memory: memory.clone(), offset, len }
            }
            Source::Bytes(bytes) => Source::Bytes(bytes),
        }
    }
}

/// A message to send (RFC 5041 §5.1). `cookie` comes back in [`Event::Sent`] or [`Event::Flushed`].
#[derive(Clone, Debug)]
pub enum Message<M> {
    /// Into a tagged buffer of the peer.
    Tagged {
        /// The peer's STag.
        stag: Stag,
        /// TO of the first byte.
        to: TaggedOffset,
        /// RsvdULP, carried unmodified in every segment.
        rsvd_ulp: u8,
        /// The bytes.
        source: Source<M>,
        /// What its completion carries.
        cookie: Cookie,
    },
    /// Into the next untagged buffer of one of the peer's queues.
    Untagged {
        /// The peer's queue.
        qn: Qn,
        /// RsvdULP, carried unmodified in every segment.
        rsvd_ulp: [u8; 5],
        /// The bytes.
        source: Source<M>,
        /// What its completion carries.
        cookie: Cookie,
    },
}

impl<M> Message<M> {
    /// Its bytes' source.
    pub fn source(&self) -> &Source<M> {
        match self {
            Message::Tagged { source, .. } | Message::Untagged { source, .. } => source,
        }
    }

    /// What its completion carries.
    pub fn cookie(&self) -> Cookie {
        match self {
            Message::Tagged { cookie, .. } | Message::Untagged { cookie, .. } => *cookie,
        }
    }
}

impl<M: Clone> Message<&M> {
    /// The same with a region handle of its own.
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
    /// A whole tagged message is in its place, and so is all before it (RFC 5041 §5.4).
    TaggedDelivered {
        /// STag of the message; as sent, unchecked, if it has no bytes.
        stag: Stag,
        /// Lowest TO of its segments.
        to: TaggedOffset,
        /// Payload bytes.
        len: u64,
        /// RsvdULP of its last segment.
        rsvd_ulp: u8,
    },
    /// A whole untagged message is there, and so is all before it (RFC 5041 §5.4). One buffer of the
    /// queue is used up; [`post_buffers`](crate::Stream::post_buffers) replaces it.
    UntaggedDelivered {
        /// Its queue.
        qn: Qn,
        /// Its number.
        msn: Msn,
        /// Its bytes; their number is the ULP Message Length.
        data: Vec<u8>,
        /// RsvdULP of its last segment.
        rsvd_ulp: [u8; 5],
    },
    /// The peer's LLP has all bytes of a posted message (RFC 5041 §5.4).
    ///
    /// Messages in a row with the same cookie are reported together.
    Sent {
        /// The message's.
        cookie: Cookie,
        /// How many there are, one at least.
        messages: u32,
    },
    /// A posted message will not be sent, or not whole (RFC 5041 §6.2.2).
    Flushed {
        /// The message's.
        cookie: Cookie,
    },
    /// The peer has closed its half: nothing more comes, sending goes on (RFC 5041 §6.2.1).
    PeerClosed {
        /// True when it closed within a message.
        incomplete: bool,
    },
    /// The peer made this error. Nothing more is placed or delivered; posting goes on
    /// (RFC 5041 §6.2.2, §7.1).
    Error(DdpError),
    /// The stream is dead (RFC 5041 §6.2.2): every posted message comes back as flushed.
    Failed(Failure),
}

/// What killed a stream, other than a peer's DDP error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The LLP lost the connection or reported a fatal error of its own.
    LlpLost,
    /// A segment came after the peer's LLP had closed its direction (RFC 5041 §6.2.1).
    DataAfterClose,
    /// The ULP asked for it.
    Aborted,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_empty_without_bytes() {
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
