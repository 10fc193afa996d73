//! Pending operations of the control thread: their continuations after answers of the workers ([`Continuation`],
//! [`Post`]), and after memory requests ([`Loading`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, ConnectSpec, ExplainSubject, Responder};
use config::ServiceKind;
use dataplane::memory::Memory;
use dataplane::{InterfaceId, ListenerId, ProgramId, WindowId, WorkerId};
use ddp::{PdId, Stag, StreamId};

use super::addresses::Addresses;
use crate::service::Slot;

/// Default time-out of an active open, all addresses together.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Stream number to which a region is bound while no stream may use it. No worker assigns this number.
pub(super) const NO_STREAM: StreamId = StreamId(u64::MAX);

/// State of a request that waits for workers. The request is resumed when all workers with its ticket have answered.
/// The comment of a variant states the condition that then holds, unless a worker has refused. `Connected`,
/// `ProgramConnect` and `Posted` wait for one worker's event other than `Done`.
pub(super) enum Continuation {
    RegionAdded {
        name: String,
        answer: Option<Responder>,
    },
    RegionRemoved {
        name: String,
        answer: Option<Responder>,
    },
    /// Every worker has applied the changed access of a region.
    AccessSet {
        name: String,
        answer: Responder,
    },
    ListenerAdded {
        name: String,
        answer: Option<Responder>,
    },
    /// Every worker has applied the listener's admitted peers.
    PeersSet {
        name: String,
    },
    ListenerRemoved {
        id: ListenerId,
        name: String,
        answer: Option<Responder>,
    },
    /// The regions of a stream are bound, so the stream can be accepted.
    Bound {
        stream: StreamId,
    },
    /// Every worker has unbound the regions of a stream that a client closes, so the peer can no longer write to them.
    Freed {
        stream: StreamId,
        regions: Vec<String>,
    },
    /// All workers have removed a slot's STag.
    SlotFreed {
        taken: TakenSlot,
    },
    /// Every worker has registered the STag of a sink.
    SinkReady(SinkOwner),
    /// All workers have removed a sink's STag. Its memory can be freed.
    SinkRemoved {
        stag: ddp::Stag,
    },
    /// No action.
    Ignore,
    /// The regions of an active open are bound: its command can be sent.
    ConnectReady(Box<ConnectPlan>),
    /// A worker opens the stream; the answer is `Event::Established` or `Event::ConnectFailed`.
    Connected(Box<ConnectPlan>),
    /// A worker has posted a message; the answer is its completion or failure.
    Posted {
        stream: StreamId,
        post: Post,
    },
    Streams {
        query: StreamsQuery,
        found: StreamList,
    },
    /// The port's workers have started capturing.
    CaptureBegun {
        port: String,
        answer: Responder,
    },
    /// The port's workers have stopped capturing.
    CaptureEnded {
        answer: Option<Responder>,
    },
    /// The workers' records of live streams have arrived.
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
    /// A step of a local program's call.
    Program(ProgramId, ProgramStep),
    /// A worker opens the connection of a QP; the answer is `Event::Established` or `Event::ConnectFailed`.
    ProgramConnect(PairConnect),
}

/// A step of a program's call that the workers perform. `request` is the number of the call, which is answered after
/// the step. Other numbers identify the program's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProgramStep {
    /// Every worker has added the program.
    Attached,
    /// Every worker has registered the memory region.
    Registered {
        stag: Stag,
        request: u32,
    },
    /// Every worker has checked that no memory window is bound to the memory region.
    RegionChecked {
        stag: Stag,
        request: u32,
    },
    /// Every worker has added the memory window.
    WindowAdded {
        window: WindowId,
        request: u32,
    },
    /// All workers have removed the memory window. `request`: the call that removes it; `None` if it is not removed by
    /// a call.
    WindowRemoved {
        window: WindowId,
        request: Option<u32>,
    },
    /// Every worker has bound the memory window at the request of the QP `pair`. `sequence`: number that the QP's
    /// worker gave the request.
    WindowBound {
        pair: u32,
        sequence: u32,
    },
    /// All workers have removed the memory region's STag.
    Deregistered {
        stag: Stag,
    },
    QueueAdded {
        queue: u32,
        request: u32,
    },
    QueueRemoved {
        queue: u32,
        request: u32,
    },
    /// The worker of a connection has added the QP.
    PairAdded {
        pair: u32,
        serial: u64,
    },
    PairRemoved {
        pair: u32,
        request: u32,
    },
    Listening {
        listener: u32,
        request: u32,
    },
    ListenerRemoved {
        listener: u32,
        request: Option<u32>,
    },
    /// All workers have removed the program.
    Removed,
}

/// A connection of a QP that a worker opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PairConnect {
    pub program: ProgramId,
    pub pair: u32,
    /// Serial number of the QP. Unlike `pair`, it is never reused.
    pub serial: u64,
    pub interface: InterfaceId,
    pub pd: PdId,
    /// True if the peer needs a delay before the first FPDU.
    pub needs_settling: bool,
}

/// Streams and associations listed by the workers.
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

    /// Adds another worker's list.
    pub(super) fn add(&mut self, other: StreamList) {
        self.streams.extend(other.streams);
        self.associations.extend(other.associations);
    }
}

/// Owner of a sink: memory that is registered for one stream only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SinkOwner {
    /// A get, by the job's number.
    Job(u64),
    /// A ping on this stream.
    Ping(StreamId),
    /// A stream of the bench with this job number.
    Bench(u64, StreamId),
}

/// Purpose of a list of streams or associations that the workers are requested to send.
pub(super) enum StreamsQuery {
    /// These streams, in order.
    List(Arc<[StreamId]>, Responder),
    One(StreamId, Responder),
    Associations(Responder),
    Association(StreamId, Responder),
    /// The counters of all streams. The part of each worker is added when it arrives.
    Stats,
    /// A bench that checks its streams' progress, by job number.
    Bench(u64),
}

/// An active open in progress.
pub(super) struct ConnectPlan {
    pub spec: ConnectSpec,
    pub purpose: Purpose,
    pub interface: InterfaceId,
    pub worker: WorkerId,
    pub pd: PdId,
    /// True if MPA starts with Start Keys instead of request frames (revision 0 as in the first draft).
    pub start_key: bool,
    /// True if a region of the stream is backed by a file.
    pub writes_file: bool,
    /// Addresses of the peer that were not tried yet.
    pub addresses: Addresses,
}

/// Purpose of an active open.
pub(super) enum Purpose {
    /// A client keeps the stream.
    Keep(Responder),
    /// An operation of an API client uses the stream.
    Task(Task),
    /// A local program connects a QP.
    Program,
}

/// An operation of an API client, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// A put or a get.
    Job(u64),
    /// A client's message.
    Send(u64),
    /// A client's rping rounds.
    Ping(u64),
    /// A client's atomic operation.
    Atomic(u64),
    /// A stream of the bench with this job number, and the time from which its open is measured.
    Bench(u64, Instant),
}

/// Origin of a posted message, which decides what the completion of the message continues.
pub(super) enum Post {
    /// The echo of a message of this queue. The message's receive buffer is reposted afterwards.
    Echo { qn: u32 },
    /// A message of a task. `bytes`: bytes of the job that the message carries.
    Task { task: Task, bytes: u64 },
    /// An operation of a listener's service.
    Service(AfterPost),
}

/// Returns the error of an operation that waited on a stream that has ended.
pub(super) fn stream_ended_error(error: ApiError) -> ApiError {
    ApiError { message: format!("the stream has ended: {}", error.message), ..error }
}

/// Purpose of a memory request.
pub(super) enum Loading {
    /// A region that the API adds.
    Region,
    Put {
        job: u64,
    },
    /// A part of a put's data is being read.
    Fill {
        job: u64,
    },
    /// The sink of a get is being created.
    Get {
        job: u64,
    },
    /// A get's file is being written.
    Save {
        job: u64,
    },
    /// The buffers of a ping are being created.
    Ping(StreamId),
    /// Memory from which a bench writes, or into which it reads, is being created.
    Bench {
        job: u64,
    },
    /// A stream's exclusive regions are cleared before they are advertised.
    Clear {
        stream: StreamId,
        exclusive: Vec<String>,
    },
    /// A slot is cleared before another stream uses it.
    ClearSlot(TakenSlot),
    /// The regions of an active open are cleared before they are advertised.
    ClearFor(Box<ConnectPlan>),
    Reload,
    /// A region's memory is being freed. The removal is answered with `result` afterwards.
    Freed {
        result: Result<(), String>,
        answer: Responder,
    },
}

/// A slot of a listener's region that is reserved for a new stream and not yet bound to it.
pub(super) struct ReservedSlot {
    pub listener: ListenerId,
    /// Index of the slot in the region, from 0.
    pub number: u32,
    /// Length of each slot, bytes.
    pub slot_len: u64,
    pub kind: ServiceKind,
    pub region: String,
}

/// A slot of a listener's region that is bound to a stream.
#[derive(Clone, Debug)]
pub(super) struct TakenSlot {
    /// Index of the slot in the region, from 0.
    pub number: u32,
    pub slot: Slot,
    pub listener: ListenerId,
    /// Memory of the slot's region. The handle keeps the memory until the slot is cleared, even if the listener and the
    /// region have been removed.
    pub memory: Memory,
    pub region: String,
    pub stream: StreamId,
}

/// Continuation after an operation of a listener's service has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterPost {
    Ignore,
    /// The receive buffer of the answered message is reposted.
    RepostBuffer,
    /// The service is notified that its Read has completed.
    Read,
    Write,
}
