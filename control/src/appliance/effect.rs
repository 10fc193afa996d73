//! Requests of jobs to other parts of the control thread. [`Core`](super::core::Core) performs them in order.

use api::{ConnectSpec, EventKind};
use dataplane::memory::Memory;
use ddp::rdmap::WorkRequest;
use ddp::{Access, Qn, Source, Stag, StreamId, TaggedOffset};

use super::pending::{SinkOwner, Task};

pub(super) enum Effect {
    /// Opens a stream for a task. `start_key`: MPA startup with Start Keys, as in the first draft of MPA.
    Open { spec: Box<ConnectSpec>, task: Task, start_key: bool },
    /// Passes an open stream to its task.
    Begin { task: Task, stream: StreamId },
    /// Reserves an open stream for a job.
    Claim { stream: StreamId, job: u64 },
    /// Ends the reservation of a stream.
    Release { stream: StreamId },
    /// Aborts a stream with `abort`, else closes it gracefully.
    Close { stream: StreamId, abort: bool },
    /// Posts an untagged message (RDMAP: a Send).
    Send { stream: StreamId, qn: Qn, source: Source<Memory>, task: Task },
    /// Posts a tagged message (RDMAP: a Write). `bytes`: bytes of the job that the message carries.
    Write {
        stream: StreamId,
        stag: Stag,
        to: TaggedOffset,
        source: Source<Memory>,
        task: Task,
        bytes: u64,
    },
    /// Posts an RDMAP operation. `region`: the STag of the local memory that the operation uses. `bytes`: bytes of the
    /// job that the operation transfers.
    Post {
        stream: StreamId,
        request: WorkRequest<Memory>,
        region: Option<Stag>,
        task: Task,
        bytes: u64,
    },
    /// Requests the peer's confirmation of all messages that the task posted, by a Read of 0 bytes: the peer delivers
    /// earlier messages before it responds (RFC 5040 §5.5). The task is notified if the stream cannot issue the Read.
    Confirm { stream: StreamId, task: Task },
    /// Requests the memory of a region as the destination of a job: `total` bytes from `offset`.
    UseRegion { job: u64, name: String, offset: u64, total: u64 },
    /// Registers `len` bytes of the memory, from `offset`, for one stream only. Their tagged offsets (TOs) begin at
    /// `base_to`.
    AddSink {
        owner: SinkOwner,
        stream: StreamId,
        memory: Memory,
        offset: u64,
        base_to: u64,
        len: u64,
        access: Access,
    },
    /// Revokes the registration by [`AddSink`](Self::AddSink).
    RemoveSink(Stag),
    /// Reports that a job has written to a region.
    RegionWritten { region: String, offset: u64, bytes: u64 },
    /// Requests the progress of the bench's streams from the workers.
    PollProgress { job: u64 },
    /// Writes an event to the event log.
    Log(EventKind),
}

/// Effects, in the order in which they are performed.
pub(super) type Effects = Vec<Effect>;
