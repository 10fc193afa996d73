//! What the ULP gives to RDMAP and what it gets from it.

use std::sync::Arc;

use wire::rdmap::AtomicOp;
use wire::{Stag, TaggedOffset};

use crate::cookie::Cookie;
use crate::enhanced::Rtr;
use crate::message::{Failure, Source};
use crate::rdmap::{Error, Terminate};

/// An operation to do (RFC 5040 §5, RFC 7306 §5, §6). `cookie` comes back in [`Event::Completed`] or
/// [`Event::Flushed`].
#[derive(Clone, Debug)]
pub enum WorkRequest<M> {
    /// Send, with Solicited Event, with Invalidate, or with both.
    Send {
        /// The bytes.
        source: Source<M>,
        /// Asks the receiver for an event.
        solicited: bool,
        /// An STag of the peer's that ends with this message.
        invalidate: Option<Stag>,
        /// What its completion carries.
        cookie: Cookie,
    },
    /// RDMA Write into a buffer of the peer.
    Write {
        /// The peer's STag.
        stag: Stag,
        /// TO of the first byte.
        to: TaggedOffset,
        /// The bytes.
        source: Source<M>,
        /// What its completion carries.
        cookie: Cookie,
    },
    /// RDMA Read from a buffer of the peer into one of ours.
    ///
    /// The sink STag must be in the worker's table, of the stream's protection domain; it needs no
    /// access right for peers, because only the response to this Read may use it so.
    Read {
        /// Our STag.
        sink_stag: Stag,
        /// TO of the first byte in our buffer.
        sink_to: TaggedOffset,
        /// The peer's STag.
        source_stag: Stag,
        /// TO of the first byte in the peer's buffer.
        source_to: TaggedOffset,
        /// Bytes.
        len: u32,
        /// What its completion carries.
        cookie: Cookie,
    },
    /// An atomic operation on 64 bits of the peer's memory (RFC 7306 §5).
    Atomic {
        /// What to do.
        op: AtomicOp,
        /// The peer's STag.
        stag: Stag,
        /// TO of the 64 bits; the memory they stand for is 64-bit aligned.
        to: TaggedOffset,
        /// What its completion carries.
        cookie: Cookie,
    },
    /// Immediate Data, 8 bytes (RFC 7306 §6).
    Immediate {
        /// The bytes.
        data: [u8; 8],
        /// Asks the receiver for an event.
        solicited: bool,
        /// What its completion carries.
        cookie: Cookie,
    },
}

impl<M> WorkRequest<M> {
    /// A Send that asks for nothing else.
    pub fn send(source: Source<M>, cookie: Cookie) -> WorkRequest<M> {
        WorkRequest::Send { source, solicited: false, invalidate: None, cookie }
    }

    /// The ready-to-receive message of a start-up: empty, and from or to nowhere.
    pub(crate) fn ready(rtr: Rtr, stag: Stag) -> WorkRequest<M> {
        let (cookie, source) = (Cookie::READY, Source::Bytes(Arc::from([])));
        let to = TaggedOffset(0);
        match rtr {
            Rtr::Send => WorkRequest::send(source, cookie),
            Rtr::Write => WorkRequest::Write { stag, to, source, cookie },
            Rtr::Read => WorkRequest::Read {
                sink_stag: Stag(0),
                sink_to: to,
                source_stag: stag,
                source_to: to,
                len: 0,
                cookie,
            },
        }
    }

    /// What its completion carries.
    pub fn cookie(&self) -> Cookie {
        match self {
            WorkRequest::Send { cookie, .. }
            | WorkRequest::Write { cookie, .. }
            | WorkRequest::Read { cookie, .. }
            | WorkRequest::Atomic { cookie, .. }
            | WorkRequest::Immediate { cookie, .. } => *cookie,
        }
    }

    /// True for what takes a place in the peer's request queue and so counts against ORD.
    pub(crate) fn is_request(&self) -> bool {
        matches!(self, WorkRequest::Read { .. } | WorkRequest::Atomic { .. })
    }
}

/// How an operation ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The peer's LLP has all of a Send or of Immediate Data; its ULP may not have it yet.
    Sent,
    /// The peer's LLP has all of a Write.
    Written,
    /// This many bytes are in the sink.
    Read {
        /// Bytes.
        len: u32,
    },
    /// The atomic was done on this value.
    Atomic {
        /// What the peer's memory held before.
        original: u64,
    },
}

/// Events of a stream for its ULP, in the order in which they happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A Send is there, and so is all before it. One receive buffer is used up;
    /// [`Stream::post_buffers`](crate::rdmap::Stream::post_buffers) replaces it.
    Received {
        /// Its bytes.
        data: Vec<u8>,
        /// The peer asks for an event.
        solicited: bool,
        /// The STag that the peer has invalidated. It is dead in this worker's table already; the
        /// control thread must remove it everywhere.
        invalidated: Option<Stag>,
    },
    /// Immediate Data is there, and so is all before it. One receive buffer is used up.
    Immediate {
        /// The 8 bytes.
        data: [u8; 8],
        /// The peer asks for an event.
        solicited: bool,
    },
    /// The zero-length Send by which an initiator signals that it is ready (RFC 6581 §8). Uses up no
    /// buffer of the ULP.
    ReadyToReceive,
    /// A Write is in its place, and so is all before it. Not for the ULP (RFC 5040 §5.1), but for
    /// the region's owner.
    WriteDelivered {
        /// STag of the message; as sent, unchecked, if it has no bytes.
        stag: Stag,
        /// Lowest TO of its segments.
        to: TaggedOffset,
        /// Payload bytes.
        len: u64,
    },
    /// A peer's Read of no bytes waits for [`Stream::release_read`](crate::rdmap::Stream::release_read); all before it has
    /// been reported.
    ReadHeld,
    /// A peer's Read was answered: its response is acknowledged.
    ReadServed {
        /// Bytes.
        len: u32,
    },
    /// A peer's atomic was done in our memory.
    AtomicServed {
        /// STag of the buffer.
        stag: Stag,
        /// TO of the 64 bits.
        to: TaggedOffset,
    },
    /// An operation is complete.
    Completed {
        /// The operation's name.
        cookie: Cookie,
        /// How.
        outcome: Outcome,
    },
    /// An operation will not be done, or its outcome is unknown.
    Flushed {
        /// The operation's name.
        cookie: Cookie,
    },
    /// The peer made this error, or the LLP found it. [`Event::Terminated`] follows if it is sent to the
    /// peer.
    Error(Error),
    /// The stream's one Terminate, sent or received. Nothing more is taken, and nothing more is sent
    /// behind it; the LLP is to be closed gracefully (RFC 5040 §6.2.1).
    Terminated {
        /// True when it came from the peer.
        by_peer: bool,
        /// What it says.
        terminate: Terminate,
    },
    /// The peer has closed its half: nothing more comes, sending goes on. Reads and atomics without
    /// response have been flushed.
    PeerClosed {
        /// True when it closed within a message.
        incomplete: bool,
    },
    /// The stream is dead: every operation comes back as flushed.
    Failed(Failure),
}
