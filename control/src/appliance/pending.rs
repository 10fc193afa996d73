//! What the control thread waits for, and whose it is: answers of workers ([`Then`], [`Post`]) and memory
//! that is being made ([`Loading`]).

use dataplane::ListenerId;
use dataplane::memory::Memory;
use ddp::StreamId;

use super::connect::ConnectPlan;
use super::verbs::PendingAtomic;
use crate::api::Answer;
use crate::config::ServiceKind;
use crate::service::Slot;

/// The stream that a region is bound to while nobody may use it. No worker has this number.
pub(super) const NOBODY: StreamId = StreamId(u64::MAX);

/// What follows when all workers have answered.
pub(super) enum Then {
    RegionAdded {
        name: String,
        answer: Option<Answer>,
    },
    RegionRemoved {
        name: String,
        answer: Option<Answer>,
    },
    ListenerAdded {
        name: String,
        answer: Option<Answer>,
    },
    ListenerRemoved {
        id: ListenerId,
        name: String,
        answer: Option<Answer>,
    },
    /// A stream's regions are bound to it: it can be accepted.
    Bound {
        stream: StreamId,
    },
    /// No worker knows a slot's STag any more.
    SlotFreed {
        taken: TakenSlot,
    },
    /// All workers know the STag that a job's or a client's Reads go to.
    SinkReady(SinkOf),
    /// Nobody uses a sink any more; its memory goes.
    SinkRemoved {
        stag: ddp::Stag,
    },
    /// Nothing follows.
    Nothing,
    /// The regions of an active open can be reached.
    ConnectReady(Box<ConnectPlan>),
    /// An active open.
    Connected(Box<ConnectPlan>),
    /// A message was posted.
    Posted {
        stream: StreamId,
        post: Post,
    },
    Streams {
        wanted: StreamsFor,
        found: Found,
    },
    Neighbours {
        found: Vec<dataplane::NeighbourInfo>,
        answer: Answer,
    },
}

/// What the workers have.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub streams: Vec<dataplane::StreamInfo>,
    pub associations: Vec<dataplane::AssociationInfo>,
}

/// Whose memory is registered for the Reads of a peer or of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SinkOf {
    /// A job that gets.
    Job(u64),
    /// A run of pings on this stream.
    Ping(StreamId),
}

/// Who wanted a list of streams, or of what carries them.
pub(super) enum StreamsFor {
    List(Answer),
    One(StreamId, Answer),
    Associations(Answer),
    Association(StreamId, Answer),
    Stats(Answer),
}

/// Whose message was posted.
pub(super) enum Post {
    /// An echo of a message of this queue, whose buffer goes back.
    Echo { qn: u32 },
    /// A part of a job, so many octets.
    Job { job: u64, octets: u64 },
    /// An API client's message.
    Send(Box<super::sends::PendingSend>),
    /// An operation of a listener's service.
    Service(AfterPost),
    /// An API client's atomic operation.
    Atomic(Box<PendingAtomic>),
    /// A Send of a run of pings.
    Ping,
}

/// What memory is being made for.
pub(super) enum Loading {
    /// A region that the API asked for.
    Region,
    Put {
        job: u64,
    },
    /// What a job gets.
    Get {
        job: u64,
    },
    /// What a job got is on its way to its file.
    Save {
        job: u64,
    },
    /// Buffers of a run of pings.
    Ping(StreamId),
    /// A stream's regions are cleared before it is told of them.
    Clear {
        stream: StreamId,
        exclusive: Vec<String>,
    },
    /// A slot is cleared before another stream gets it.
    ClearSlot(TakenSlot),
    /// The regions of an active open are cleared before its peer is told of them.
    ClearFor(Box<ConnectPlan>),
    Reload,
}

/// A piece of a listener's region that a stream is to have.
pub(super) struct Piece {
    pub listener: ListenerId,
    pub number: u32,
    /// Octets of each piece of the region.
    pub each: u64,
    pub kind: ServiceKind,
    pub region: String,
}

/// A piece of a listener's region, and the stream that has it.
#[derive(Clone, Debug)]
pub(super) struct TakenSlot {
    pub number: u32,
    pub slot: Slot,
    pub listener: ListenerId,
    /// Not looked up: the listener, and the region, may be gone by the time it is cleared.
    pub memory: Memory,
    pub region: String,
    pub stream: StreamId,
}

/// What follows when an operation of a service is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterPost {
    Nothing,
    /// The receive buffer that it answers is posted again.
    GiveBack,
    /// The service is told.
    Read,
    Write,
}
