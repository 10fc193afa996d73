//! What jobs want of the other parts. [`Core`](super::core::Core) routes it, in order.

use dataplane::memory::Memory;
use ddp::rdmap::WorkRequest;
use ddp::{Access, Qn, Source, Stag, StreamId, TaggedOffset};

use super::pending::{SinkOf, Task};
use api::{ConnectSpec, EventKind};

/// One wish.
pub(super) enum Effect {
    /// A stream for a task; `start_key`: with the draft's Start Keys.
    Open { spec: Box<ConnectSpec>, task: Task, start_key: bool },
    /// The task has a stream: it begins as soon as it knows what the peer offers.
    Begin { task: Task, stream: StreamId },
    /// A job has a stream for itself that was not opened for it.
    Claim { stream: StreamId, job: u64 },
    /// It does not need it any more.
    Release { stream: StreamId },
    /// Ends a stream.
    Close { stream: StreamId, abort: bool },
    /// Posts a message, a Send on an RDMAP stream.
    Send { stream: StreamId, qn: Qn, source: Source<Memory>, task: Task },
    /// Posts a tagged message, a Write on an RDMAP stream. `bytes` of the job are in it.
    Write {
        stream: StreamId,
        stag: Stag,
        to: TaggedOffset,
        source: Source<Memory>,
        task: Task,
        bytes: u64,
    },
    /// Posts an operation of RDMAP; `region`: the STag whose memory it uses.
    Post {
        stream: StreamId,
        request: WorkRequest<Memory>,
        region: Option<Stag>,
        task: Task,
        bytes: u64,
    },
    /// Asks the peer whether it has all that the task posted, with a Read of no bytes (RFC 5040 §5.5: what was sent before
    /// is delivered before the response is made). The task is told where that cannot be.
    Confirm { stream: StreamId, task: Task },
    /// Asks for the memory of a region that a job gets something into.
    UseRegion { job: u64, name: String, offset: u64, total: u64 },
    /// Registers memory for one stream, from TO `base_to` on.
    AddSink {
        of: SinkOf,
        stream: StreamId,
        memory: Memory,
        offset: u64,
        base_to: u64,
        len: u64,
        access: Access,
    },
    /// Ends that.
    RemoveSink(Stag),
    /// A job has written to a region.
    Fetched { region: String, offset: u64, bytes: u64 },
    /// Asks the workers how far the streams of a bench are.
    LookAt { job: u64 },
    /// For the log.
    Log(EventKind),
}

/// In the order in which they are to be routed.
pub(super) type Effects = Vec<Effect>;
