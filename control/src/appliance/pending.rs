//! What the control thread waits for, and whose it is: answers of workers ([`Then`], [`Post`]) and memory
//! that is being made ([`Loading`]).

use dataplane::ListenerId;
use ddp::StreamId;

use super::connect::ConnectPlan;
use super::services::{AfterPost, TakenSlot};
use super::verbs::PendingAtomic;
use crate::api::Answer;
use crate::config::RegionSection;

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
    Region {
        section: RegionSection,
        answer: Answer,
    },
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
