//! Local programs at a worker: the queues that the control thread registers, and events about them.
//!
//! The program posts operations by shared memory, and the worker serves them ([`verbs_layout`]); the control thread is
//! not involved. A queue pair (QP) is registered at the worker of its stream, before the [`Command::Connect`] or
//! [`Command::Accept`] whose [`Service`] names it. The completion queues of a QP are registered before it.
//!
//! [`Command::Connect`]: crate::Command::Connect
//! [`Command::Accept`]: crate::Command::Accept
//! [`Service`]: crate::Service

use std::sync::Arc;

use ddp::{PdId, Stag};
use verbs_layout::completion::CompletionError;
use verbs_layout::doorbell;
use verbs_layout::ring::RingError;
use verbs_layout::work::{DescriptorError, WindowBind};

use crate::memory::{CompletionProducer, DoorbellScanner, RingConsumer};
use crate::signal::Signal;

/// A local program, numbered by the control thread. A number is not reused within a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProgramId(pub u32);

/// A queue pair of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueuePairId {
    /// Program that owns the QP.
    pub program: ProgramId,
    /// Number of the QP, unique within its program, below [`MAX_QUEUE_PAIRS`].
    pub number: u32,
}

/// Maximum number of QPs of a program. Each QP uses two doorbells.
pub const MAX_QUEUE_PAIRS: u32 = doorbell::QUEUES / 2;

impl QueuePairId {
    /// Returns the number of the send queue's doorbell, which is even.
    pub const fn send_doorbell(self) -> u32 {
        2 * self.number
    }

    /// Returns the number of the receive queue's doorbell, which is odd.
    pub const fn receive_doorbell(self) -> u32 {
        2 * self.number + 1
    }
}

/// Registration of a program at one worker.
#[derive(Debug)]
pub struct ProgramConfig {
    /// Number of the program.
    pub id: ProgramId,
    /// Doorbells of the program's queues at this worker.
    pub doorbells: DoorbellScanner,
    /// Socket on which the program wakes this worker. The program writes to it only while the worker sleeps.
    pub wake: Signal,
    /// Maximum number of doorbells and send descriptors that the worker processes in a turn, at least 1. The rest waits
    /// for the next turn. Receive descriptors of a connected QP are not counted.
    pub budget: u32,
}

/// Registration of a completion queue (CQ) at one worker. A CQ has one ring for each worker.
#[derive(Debug)]
pub struct CompletionQueueConfig {
    /// Program that owns the CQ.
    pub program: ProgramId,
    /// Number of the CQ, unique within its program.
    pub number: u32,
    /// Ring to which this worker writes completions.
    pub queue: CompletionProducer,
    /// Channel for requested notifications, shared by the CQs of the channel; `None` if the program polls.
    pub channel: Option<Arc<Signal>>,
}

/// Registration of a QP at the worker of its stream.
#[derive(Debug)]
pub struct QueuePairConfig {
    /// Number of the QP.
    pub id: QueuePairId,
    /// Protection domain of the QP. Its posts may use memory regions of this domain.
    pub pd: PdId,
    /// Send queue (SQ).
    pub sends: RingConsumer,
    /// Maximum number of incomplete operations, at least 1. Further descriptors stay in the SQ.
    pub max_sends: u32,
    /// Receive queue (RQ).
    pub receives: RingConsumer,
    /// Maximum number of incomplete receives, at least 1. Further descriptors stay in the RQ.
    pub max_receives: u32,
    /// Number of the CQ of the send queue.
    pub send_completions: u32,
    /// Number of the CQ of the receive queue.
    pub receive_completions: u32,
    /// True to keep copies of sent data, for a program that may change a source before its completion.
    pub copy_sources: bool,
}

/// A memory window of a program: the upper 24 bits of its STags. The lower 8 bits are the key of a binding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WindowId(pub u32);

impl WindowId {
    /// Returns the window that an STag belongs to, if the STag is one of a window.
    pub const fn of(stag: Stag) -> WindowId {
        WindowId(stag.0 >> 8)
    }

    /// Returns the STag of the window with this key.
    pub const fn stag(self, key: u8) -> Stag {
        Stag(self.0 << 8 | key as u32)
    }
}

/// Type of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowKind {
    /// Type 1: all QPs of its protection domain may use the window. A new binding replaces the previous one.
    One,
    /// Type 2: only the QP that binds the window may use it, until the window is invalidated.
    Two,
}

/// A change of a program's memory windows at one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowChange {
    /// Adds an unbound window.
    Add {
        /// The window.
        window: WindowId,
        /// Protection domain of the window.
        pd: PdId,
        /// Type of the window.
        kind: WindowKind,
    },
    /// Removes a window, bound or not.
    Remove {
        /// The window.
        window: WindowId,
    },
    /// Binds a type 1 window, because [`ProgramEvent::BindWindow`] has requested it.
    Bind(WindowBind),
}

/// An event about a program, other than a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramEvent {
    /// A QP cannot continue. Its stream ends with a Terminate or a reset, and its posts are flushed.
    QueuePairFailed {
        /// QP that has failed.
        id: QueuePairId,
        /// Cause of the failure.
        reason: QueuePairError,
    },
    /// A CQ cannot be used further. Its QPs have failed.
    CompletionQueueFailed {
        /// Program that owns the CQ.
        program: ProgramId,
        /// Number of the CQ.
        number: u32,
        /// Cause of the failure.
        reason: CompletionError,
    },
    /// A QP requests that all workers bind a type 1 window. [`Command::WindowBound`](crate::Command::WindowBound)
    /// answers it. The QP performs no further request before the answer.
    BindWindow {
        /// QP of the request.
        id: QueuePairId,
        /// Number of the request, repeated in the answer.
        sequence: u32,
        /// The checked request.
        bind: WindowBind,
    },
}

/// Reason why a QP failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueuePairError {
    /// The program violated the ring protocol of the SQ.
    #[error("send queue: {0}")]
    SendQueue(RingError),
    /// The program violated the ring protocol of the RQ.
    #[error("receive queue: {0}")]
    ReceiveQueue(RingError),
    /// A descriptor of the SQ is invalid.
    #[error("send request: {0}")]
    SendDescriptor(DescriptorError),
    /// A descriptor of the RQ is invalid.
    #[error("receive request: {0}")]
    ReceiveDescriptor(DescriptorError),
    /// An SGE of a send request is not within a memory region of the QP's protection domain, or the region is not
    /// writable although the request (a Read or an atomic) writes to it.
    #[error("send request: an SGE is not within a memory region with the needed right")]
    SendProtection,
    /// An SGE of a receive request is not within a writable memory region of the QP's protection domain.
    #[error("receive request: an SGE is not within a writable memory region")]
    ReceiveProtection,
    /// A memory window cannot be bound or invalidated as requested.
    #[error("send request: the memory window cannot be bound or invalidated")]
    Window,
    /// The stream cannot perform the operation.
    #[error("the operation cannot be performed on this stream")]
    Operation,
    /// A CQ of the QP has failed.
    #[error("a completion queue of the QP has failed")]
    CompletionQueue,
}
