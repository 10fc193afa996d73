//! What the control thread waits for, and whose it is: answers of workers ([`Then`], [`Post`]) and memory
//! that is being made ([`Loading`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dataplane::memory::Memory;
use dataplane::{InterfaceId, ListenerId, WorkerId};
use ddp::{PdId, StreamId};

use super::addresses::Addresses;
use crate::service::Slot;
use api::{Answer, ApiError, ConnectSpec, Subject};
use config::ServiceKind;

/// Time for all of an active open, unless its request says otherwise.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The stream that a region is bound to while no stream may use it. No worker has this number.
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
    /// Every worker keeps to the rights that a region has now.
    AccessSet {
        name: String,
        answer: Answer,
    },
    ListenerAdded {
        name: String,
        answer: Option<Answer>,
    },
    /// Every worker admits the peers that the listener admits now.
    PeersSet {
        name: String,
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
    /// A stream that an operator closes reaches these regions no more.
    Freed {
        stream: StreamId,
        regions: Vec<String>,
    },
    /// No worker knows a slot's STag any more.
    SlotFreed {
        taken: TakenSlot,
    },
    /// All workers know the STag that a job's or a client's Reads go to.
    SinkReady(SinkOf),
    /// A sink is no longer used; its memory is freed.
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
    /// The workers of this port capture it.
    CaptureBegun {
        port: String,
        answer: Answer,
    },
    /// None of them does.
    CaptureEnded {
        answer: Option<Answer>,
    },
    /// What the workers' recorders have of live streams has come.
    Why {
        subject: Subject,
        answer: Answer,
    },
    Sas {
        found: Vec<dataplane::SaInfo>,
        answer: Answer,
    },
    /// What of the kernel's SAs was used.
    SasUsed(Vec<dataplane::SaInfo>),
    Neighbours {
        found: Vec<dataplane::NeighbourInfo>,
        answer: Answer,
    },
}

/// What the workers have.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub streams: HashMap<StreamId, dataplane::StreamInfo>,
    pub associations: Vec<dataplane::AssociationInfo>,
}

impl Found {
    pub(super) fn new(
        streams: Vec<dataplane::StreamInfo>,
        associations: Vec<dataplane::AssociationInfo>,
    ) -> Found {
        let streams = streams.into_iter().map(|info| (info.stream, info)).collect();
        Found { streams, associations }
    }

    /// Adds what a worker has besides.
    pub(super) fn add(&mut self, other: Found) {
        self.streams.extend(other.streams);
        self.associations.extend(other.associations);
    }
}

/// Whose memory is registered for the Reads of a peer or of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SinkOf {
    /// A job that gets.
    Job(u64),
    /// A run of pings on this stream.
    Ping(StreamId),
    /// A bench with this number, on this stream of it.
    Bench(u64, StreamId),
}

/// Who wanted a list of streams, or of what carries them.
pub(super) enum StreamsFor {
    /// At most so many, those with the lowest numbers.
    List(usize, Answer),
    One(StreamId, Answer),
    Associations(Answer),
    Association(StreamId, Answer),
    /// For the counters, which are summed as the parts come.
    Stats,
    /// A bench at its end, with this number.
    Bench(u64),
}

/// An active open on its way.
pub(super) struct ConnectPlan {
    pub spec: ConnectSpec,
    pub purpose: Purpose,
    pub interface: InterfaceId,
    pub worker: WorkerId,
    pub pd: PdId,
    /// Start Keys instead of frames (the draft's revision 0).
    pub start_key: bool,
    /// A region of the stream has a file.
    pub stores: bool,
    /// Other addresses of the peer.
    pub addresses: Addresses,
}

/// What a stream is opened for.
pub(super) enum Purpose {
    /// An API client that keeps it.
    Keep(Answer),
    Task(Task),
}

/// A task of the jobs, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// A file that is put or fetched.
    Job(u64),
    /// A message of an API client.
    Send(u64),
    /// Rounds of rping.
    Ping(u64),
    /// An atomic operation of an API client.
    Atomic(u64),
    /// A stream of the bench with this number, which wants it since this moment.
    Bench(u64, Instant),
}

/// Whose message was posted.
pub(super) enum Post {
    /// An echo of a message of this queue, whose buffer goes back.
    Echo { qn: u32 },
    /// A task's; `bytes` of a job are in it.
    Task { task: Task, bytes: u64 },
    /// An operation of a listener's service.
    Service(AfterPost),
}

/// The end of a stream, for operations that wait for it.
pub(super) fn has_ended(error: ApiError) -> ApiError {
    ApiError { message: format!("the stream has ended: {}", error.message), ..error }
}

/// What memory is being made for.
pub(super) enum Loading {
    /// A region that the API asked for.
    Region,
    Put {
        job: u64,
    },
    /// A piece of a file that is put.
    Fill {
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
    /// What a bench writes from, or reads to.
    Bench {
        job: u64,
    },
    /// A stream's regions are cleared before they are advertised.
    Clear {
        stream: StreamId,
        exclusive: Vec<String>,
    },
    /// A slot is cleared before another stream gets it.
    ClearSlot(TakenSlot),
    /// The regions of an active open are cleared before they are advertised to its peer.
    ClearFor(Box<ConnectPlan>),
    Reload,
    /// A region's memory is being freed; the removal is answered with this result.
    Freed {
        result: Result<(), String>,
        answer: Answer,
    },
}

/// A piece of a listener's region that a stream is to have.
pub(super) struct Piece {
    pub listener: ListenerId,
    pub number: u32,
    /// Bytes of each piece of the region.
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
    /// The service is notified.
    Read,
    Write,
}
