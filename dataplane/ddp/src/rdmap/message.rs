//! Operations that the ULP posts to RDMAP, and events that RDMAP reports to the ULP.

use std::sync::Arc;

use wire::rdmap::{AtomicOp, IMMEDIATE_LEN};
use wire::{Stag, TaggedOffset};

use crate::cookie::Cookie;
use crate::enhanced::Rtr;
use crate::message::{Failure, Source};
use crate::rdmap::{Error, Terminate};

/// An operation to be posted (RFC 5040 §5, RFC 7306 §5, §6). Its completion, [`Event::Completed`] or
/// [`Event::Flushed`], carries `cookie`.
#[derive(Clone, Debug)]
pub enum WorkRequest<M> {
    /// Send, optionally with Solicited Event, with Invalidate, or with both.
    Send {
        /// Source of the message's bytes.
        source: Source<M>,
        /// True to request an event at the receiver.
        solicited: bool,
        /// An STag of the peer to be invalidated by this message.
        invalidate: Option<Stag>,
        /// Identifier that the operation's completion carries.
        cookie: Cookie,
    },
    /// RDMA Write into a buffer of the peer.
    Write {
        /// The peer's STag.
        stag: Stag,
        /// TO of the first byte.
        to: TaggedOffset,
        /// Source of the message's bytes.
        source: Source<M>,
        /// Identifier that the operation's completion carries.
        cookie: Cookie,
    },
    /// RDMA Read from a buffer of the peer into a buffer of this end.
    ///
    /// The sink STag must be in the worker's table, in the stream's protection domain. The sink STag needs no access
    /// right for peers, because only the response to this Read may write to it.
    Read {
        /// This end's STag.
        sink_stag: Stag,
        /// TO of the first byte in this end's buffer.
        sink_to: TaggedOffset,
        /// The peer's STag.
        source_stag: Stag,
        /// TO of the first byte in the peer's buffer.
        source_to: TaggedOffset,
        /// Number of bytes to read.
        len: u32,
        /// Identifier that the operation's completion carries.
        cookie: Cookie,
    },
    /// An atomic operation on 64 bits of the peer's memory (RFC 7306 §5).
    Atomic {
        /// The operation on the 64 bits.
        op: AtomicOp,
        /// The peer's STag.
        stag: Stag,
        /// TO of the 64 bits; their memory address must be 64-bit aligned.
        to: TaggedOffset,
        /// Identifier that the operation's completion carries.
        cookie: Cookie,
    },
    /// Immediate Data, 8 bytes (RFC 7306 §6).
    Immediate {
        /// The message's 8 bytes, not interpreted.
        data: [u8; IMMEDIATE_LEN],
        /// True to request an event at the receiver.
        solicited: bool,
        /// Identifier that the operation's completion carries.
        cookie: Cookie,
    },
}

impl<M> WorkRequest<M> {
    /// Returns a Send with neither Solicited Event nor Invalidate.
    pub fn send(source: Source<M>, cookie: Cookie) -> WorkRequest<M> {
        WorkRequest::Send { source, solicited: false, invalidate: None, cookie }
    }

    /// Returns the zero-length ready-to-receive message of a start-up (RFC 6581 §9.2). `stag` is the peer's STag that a
    /// Write or Read names.
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

    /// Returns the cookie that the operation's completion carries.
    pub fn cookie(&self) -> Cookie {
        match self {
            WorkRequest::Send { cookie, .. }
            | WorkRequest::Write { cookie, .. }
            | WorkRequest::Read { cookie, .. }
            | WorkRequest::Atomic { cookie, .. }
            | WorkRequest::Immediate { cookie, .. } => *cookie,
        }
    }

    /// Returns true for Reads and atomics, which occupy the peer's request queue and are limited by ORD.
    pub(crate) fn is_request(&self) -> bool {
        matches!(self, WorkRequest::Read { .. } | WorkRequest::Atomic { .. })
    }
}

/// Result of a completed operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The peer's LLP has acknowledged a whole Send or Immediate Data; its ULP may not have received it yet.
    Sent,
    /// The peer's LLP has acknowledged a whole Write.
    Written,
    /// The data of a Read is in the sink buffer.
    Read {
        /// Bytes of the Read.
        len: u32,
    },
    /// The atomic was executed.
    Atomic {
        /// Value in the peer's memory before the operation.
        original: u64,
    },
}

/// Events of a stream for its ULP, in the order in which they happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A Send has arrived, and so have all earlier messages. The Send uses up one receive buffer;
    /// [`Stream::post_buffers`](crate::rdmap::Stream::post_buffers) replaces it.
    Received {
        /// Bytes of the Send.
        data: Vec<u8>,
        /// True if the peer requests an event at this end (Solicited Event).
        solicited: bool,
        /// The STag that the peer has invalidated. The STag is invalid in this worker's table already; the control
        /// thread must remove it from the tables of all workers.
        invalidated: Option<Stag>,
    },
    /// A Send is in the memory of a [posted receive](crate::rdmap::Stream::post_receive), and all earlier messages have
    /// arrived. The receive is used up.
    ReceivedInto {
        /// Cookie of the receive.
        cookie: u64,
        /// Bytes of the Send, from the start of the receive's first span on.
        len: u32,
        /// True if the peer requests an event.
        solicited: bool,
        /// The STag that the peer has invalidated, as in [`Event::Received`].
        invalidated: Option<Stag>,
    },
    /// Immediate Data has arrived, and so have all earlier messages. The message has used up a posted receive and does
    /// not touch the receive's memory.
    ImmediateInto {
        /// Cookie of the receive.
        cookie: u64,
        /// The 8 bytes.
        data: [u8; IMMEDIATE_LEN],
        /// True if the peer requests an event.
        solicited: bool,
    },
    /// A posted receive will not complete: no more data can arrive, or its message is in error. From now on no byte is
    /// placed in its memory; earlier bytes of an incomplete message may be there. Reported in the order of posting,
    /// after the events of all received messages.
    ReceiveFlushed {
        /// Cookie of the receive.
        cookie: u64,
    },
    /// Immediate Data has arrived, and so have all earlier messages. The message uses up one receive buffer.
    Immediate {
        /// The 8 bytes.
        data: [u8; IMMEDIATE_LEN],
        /// True if the peer requests an event at this end (Solicited Event).
        solicited: bool,
    },
    /// The initiator's zero-length Send that signals its readiness (RFC 6581 §9.2) has arrived. The message uses up no
    /// buffer of the ULP.
    ReadyToReceive,
    /// A Write is placed, and so are all earlier messages. The event is for the region's owner, not for the ULP (RFC
    /// 5040 §5.1).
    WriteDelivered {
        /// STag of the message; unchecked if the message has no bytes.
        stag: Stag,
        /// Lowest TO of its segments.
        to: TaggedOffset,
        /// Payload length of the message, bytes.
        len: u64,
    },
    /// A zero-length Read of the peer waits for [`Stream::release_read`](crate::rdmap::Stream::release_read). All
    /// earlier messages have been reported.
    ReadHeld,
    /// A peer's Read was served: its response is acknowledged.
    ReadServed {
        /// Bytes of the Read.
        len: u32,
    },
    /// A peer's atomic was executed in this end's memory.
    AtomicServed {
        /// STag of the buffer.
        stag: Stag,
        /// TO of the 64 bits.
        to: TaggedOffset,
    },
    /// An operation is complete.
    Completed {
        /// Cookie of the operation.
        cookie: Cookie,
        /// Result of the operation.
        outcome: Outcome,
    },
    /// An operation will not be executed, or its outcome is unknown.
    Flushed {
        /// Cookie of the operation.
        cookie: Cookie,
    },
    /// The error that ended the stream: found by DDP or RDMAP, or reported by the LLP or the ULP. [`Event::Terminated`]
    /// follows if the error is reported to the peer.
    Error(Error),
    /// The stream's only Terminate, sent or received. No message is accepted or sent after it. The LLP must be closed
    /// gracefully (RFC 5040 §6.2.1). The flushes of posted receives follow this event.
    Terminated {
        /// True if the peer sent the Terminate.
        by_peer: bool,
        /// Content of the Terminate.
        terminate: Terminate,
    },
    /// The peer has closed its direction: no more data arrives, sending continues. Reads and atomics without
    /// response, and posted receives, have been flushed.
    PeerClosed {
        /// True if the peer closed within a message, or if segments before a received segment are missing.
        incomplete: bool,
    },
    /// The stream has failed: every operation and every posted receive is flushed.
    Failed(Failure),
}
