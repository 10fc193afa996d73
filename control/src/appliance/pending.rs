//! Pending operations of the control thread and their owners: answers of workers ([`Continuation`],
//! [`Post`]) and memory that is being made ([`Loading`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use api::{ApiError, ConnectSpec, ExplainSubject, Responder};
use config::ServiceKind;
use dataplane::memory::Memory;
use dataplane::{InterfaceId, ListenerId, WorkerId};
use ddp::{PdId, StreamId};

use super::addresses::Addresses;
use crate::service::Slot;

/// Time for an entire active open, unless its request sets one.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Stream to which a region is bound while no stream may use it. No worker assigns this number.
pub(super) const NO_STREAM: StreamId = StreamId(u64::MAX);

/// Continuation when all workers have answered.
pub(super) enum Continuation {
    RegionAdded {
        name: String,
        answer: Option<Responder>,
    },
    RegionRemoved {
        name: String,
        answer: Option<Responder>,
    },
    /// Every worker applies a region's current rights.
    AccessSet {
        name: String,
        answer: Responder,
    },
    ListenerAdded {
        name: String,
        answer: Option<Responder>,
    },
    /// Every worker admits the listener's current peers.
    PeersSet {
        name: String,
    },
    ListenerRemoved {
        id: ListenerId,
        name: String,
        answer: Option<Responder>,
    },
    /// A stream's regions are bound: the stream can be accepted.
    Bound {
        stream: StreamId,
    },
    /// A stream that an operator closes can no longer reach these regions.
    Freed {
        stream: StreamId,
        regions: Vec<String>,
    },
    /// No worker has a slot's STag.
    SlotFreed {
        taken: TakenSlot,
    },
    /// All workers have the STag that a job's or a client's Reads write to.
    SinkReady(SinkOwner),
    /// A sink is no longer used. Its memory can be freed.
    SinkRemoved {
        stag: ddp::Stag,
    },
    /// No continuation.
    Ignore,
    /// The regions of an active open are bound: the open can be sent.
    ConnectReady(Box<ConnectPlan>),
    /// A worker has answered an active open.
    Connected(Box<ConnectPlan>),
    /// A worker has answered the post of a message.
    Posted {
        stream: StreamId,
        post: Post,
    },
    Streams {
        query: StreamsQuery,
        found: StreamList,
    },
    /// The port's workers have begun to capture.
    CaptureBegun {
        port: String,
        answer: Responder,
    },
    /// The port's workers have ended a capture.
    CaptureEnded {
        answer: Option<Responder>,
    },
    /// The workers' recordings of live streams have arrived.
    Diagnosis {
        subject: ExplainSubject,
        answer: Responder,
    },
    Sas {
        found: Vec<dataplane::SaInfo>,
        answer: Responder,
    },
    /// The workers have reported their use of the kernel's SAs.
    SaUsage(Vec<dataplane::SaInfo>),
    Neighbours {
        found: Vec<dataplane::NeighbourInfo>,
        answer: Responder,
    },
}

/// Streams and associations that the workers have listed.
#[derive(Debug, Default)]
pub(super) struct StreamList {
    pub streams: HashMap<StreamId, dataplane::StreamInfo>,
    pub associations: Vec<dataplane::AssociationInfo>,
}

impl StreamList {
    pub(super) fn new(
        streams: Vec<dataplane::StreamInfo>,
        associations: Vec<dataplane::AssociationInfo>,
    ) -> StreamList {
        let streams = streams.into_iter().map(|info| (info.stream, info)).collect();
        StreamList { streams, associations }
    }

    /// Adds the list of another worker.
    pub(super) fn add(&mut self, other: StreamList) {
        self.streams.extend(other.streams);
        self.associations.extend(other.associations);
    }
}

/// Owner of memory that is registered for Reads of a peer or of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SinkOwner {
    /// A get job.
    Job(u64),
    /// A run of pings on this stream.
    Ping(StreamId),
    /// A stream of the bench with this number.
    Bench(u64, StreamId),
}

/// Requester of a list of streams, or of their connections.
pub(super) enum StreamsQuery {
    /// At most this many, those with the lowest numbers.
    List(usize, Responder),
    One(StreamId, Responder),
    Associations(Responder),
    Association(StreamId, Responder),
    /// The counters. Parts are summed as they arrive.
    Stats,
    /// A bench at its end, by number.
    Bench(u64),
}

/// An active open in progress.
pub(super) struct ConnectPlan {
    pub spec: ConnectSpec,
    pub purpose: Purpose,
    pub interface: InterfaceId,
    pub worker: WorkerId,
    pub pd: PdId,
    /// True for Start Keys instead of request frames (the draft's revision 0).
    pub start_key: bool,
    /// True if a region of the stream has a file.
    pub writes_file: bool,
    /// Remaining addresses of the peer.
    pub addresses: Addresses,
}

/// Purpose of an active open.
pub(super) enum Purpose {
    /// An API client that keeps the stream.
    Keep(Responder),
    Task(Task),
}

/// A task of the jobs, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// A put or get.
    Job(u64),
    /// A message of an API client.
    Send(u64),
    /// Rounds of rping.
    Ping(u64),
    /// An atomic operation of an API client.
    Atomic(u64),
    /// A stream of the bench with this number, whose time counts from this instant.
    Bench(u64, Instant),
}

/// Owner of a posted message.
pub(super) enum Post {
    /// An echo of a message of this queue, whose buffer is posted again.
    Echo { qn: u32 },
    /// A message of a task, with `bytes` of a job.
    Task { task: Task, bytes: u64 },
    /// An operation of a listener's service.
    Service(AfterPost),
}

/// Returns the error for operations that wait on a stream that has ended.
pub(super) fn stream_ended_error(error: ApiError) -> ApiError {
    ApiError { message: format!("the stream has ended: {}", error.message), ..error }
}

/// Purpose of memory that is being made.
pub(super) enum Loading {
    /// A region that the API requested.
    Region,
    Put {
        job: u64,
    },
    /// A piece of a put's file.
    Fill {
        job: u64,
    },
    /// The sink of a get.
    Get {
        job: u64,
    },
    /// A get is writing its file.
    Save {
        job: u64,
    },
    /// Buffers of a run of pings.
    Ping(StreamId),
    /// Memory that a bench writes from, or reads into.
    Bench {
        job: u64,
    },
    /// A stream's regions are being cleared before they are advertised.
    Clear {
        stream: StreamId,
        exclusive: Vec<String>,
    },
    /// A slot is being cleared before another stream uses it.
    ClearSlot(TakenSlot),
    /// The regions of an active open are being cleared before they are advertised to its peer.
    ClearFor(Box<ConnectPlan>),
    Reload,
    /// A region's memory is being freed. The removal is then answered with this result.
    Freed {
        result: Result<(), String>,
        answer: Responder,
    },
}

/// A piece of a listener's region for a new stream.
pub(super) struct Piece {
    pub listener: ListenerId,
    pub number: u32,
    /// Bytes of each piece.
    pub piece_len: u64,
    pub kind: ServiceKind,
    pub region: String,
}

/// A piece of a listener's region, and the stream that holds it.
#[derive(Clone, Debug)]
pub(super) struct TakenSlot {
    pub number: u32,
    pub slot: Slot,
    pub listener: ListenerId,
    /// A handle of its own: the listener and the region may have been removed before the slot is
    /// cleared.
    pub memory: Memory,
    pub region: String,
    pub stream: StreamId,
}

/// Continuation when an operation of a service is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterPost {
    Ignore,
    /// The receive buffer of the answered message is posted again.
    RepostBuffer,
    /// The service is notified of a complete Read.
    Read,
    Write,
}
