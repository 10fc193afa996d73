//! Requests of jobs to the other parts. [`Core`](super::core::Core) routes them in order.

use api::{ConnectSpec, EventKind};
use dataplane::memory::Memory;
use ddp::rdmap::WorkRequest;
use ddp::{Access, Qn, Source, Stag, StreamId, TaggedOffset};

use super::pending::{SinkOwner, Task};

/// One request.
pub(super) enum Effect {
    /// Opens a stream for a task. `start_key`: with the draft's Start Keys.
    Open { spec: Box<ConnectSpec>, task: Task, start_key: bool },
    /// Gives a task its stream. The task begins when the peer's advertisement is known.
    Begin { task: Task, stream: StreamId },
    /// Reserves an existing stream for a job.
    Claim { stream: StreamId, job: u64 },
    /// Releases a reserved stream.
    Release { stream: StreamId },
    /// Ends a stream.
    Close { stream: StreamId, abort: bool },
    /// Posts a message, a Send on an RDMAP stream.
    Send { stream: StreamId, qn: Qn, source: Source<Memory>, task: Task },
    /// Posts a tagged message, a Write on an RDMAP stream, with `bytes` of the job.
    Write {
        stream: StreamId,
        stag: Stag,
        to: TaggedOffset,
        source: Source<Memory>,
        task: Task,
        bytes: u64,
    },
    /// Posts an RDMAP operation. `region`: the STag of the memory that it uses.
    Post {
        stream: StreamId,
        request: WorkRequest<Memory>,
        region: Option<Stag>,
        task: Task,
        bytes: u64,
    },
    /// Confirms that the peer has everything that the task posted, by a Read of no bytes: earlier
    /// messages are delivered before the response is made (RFC 5040 §5.5). The task is notified if
    /// the stream cannot do that.
    Confirm { stream: StreamId, task: Task },
    /// Requests the memory of a region that is the destination of a job.
    UseRegion { job: u64, name: String, offset: u64, total: u64 },
    /// Registers memory for one stream, at TOs from `base_to`.
    AddSink {
        owner: SinkOwner,
        stream: StreamId,
        memory: Memory,
        offset: u64,
        base_to: u64,
        len: u64,
        access: Access,
    },
    /// Ends such a registration.
    RemoveSink(Stag),
    /// Records that a job has written to a region.
    RegionWritten { region: String, offset: u64, bytes: u64 },
    /// Requests the progress of a bench's streams from the workers.
    PollProgress { job: u64 },
    /// Writes an event to the log.
    Log(EventKind),
}

/// Effects in the order in which they are routed.
pub(super) type Effects = Vec<Effect>;
