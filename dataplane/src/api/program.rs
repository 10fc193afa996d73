//! Local programs at a worker: the queues that the control thread registers, and events about them.
//!
//! The program posts work requests to queues in shared memory, and the worker performs them ([`verbs_layout`]). The
//! control thread is not involved. A queue pair (QP) is registered at the worker of its stream, before the
//! [`Command::Connect`] or [`Command::Accept`] whose [`Service`] names it. A QP is registered after its completion
//! queues.
//!
//! [`Command::Connect`]: crate::Command::Connect
//! [`Command::Accept`]: crate::Command::Accept
//! [`Service`]: crate::Service

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use ddp::{PdId, Stag};
use verbs_layout::completion::CompletionError;
use verbs_layout::doorbell;
use verbs_layout::ring::RingError;
use verbs_layout::work::{DescriptorError, ReceiveWork, WindowBind};

use crate::memory::{CompletionProducer, DoorbellScanner, RingConsumer, SharedRing};
use crate::signal::Signal;

/// A local program, numbered by the control thread. A number is not reused within a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProgramId(pub u32);

/// Identifier of a queue pair (QP) of a local program.
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
    /// Identifier of the program.
    pub id: ProgramId,
    /// Doorbells of the program's queues at this worker.
    pub doorbells: DoorbellScanner,
    /// Socket on which the program wakes this worker. The program writes to it only while the worker sleeps.
    pub wake: Signal,
    /// Maximum work for the program per iteration of the worker's loop, at least 1. The rest waits for the next
    /// iteration. Each doorbell, each nonzero word of doorbells and each send descriptor counts 1. Receive descriptors
    /// count 1 if their QP has ended, otherwise 0.
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
    /// Identifier of the QP.
    pub id: QueuePairId,
    /// Protection domain of the QP. Its posts may use memory regions of this domain.
    pub pd: PdId,
    /// Send queue (SQ).
    pub sends: RingConsumer,
    /// Maximum number of incomplete operations, at least 1. Further descriptors stay in the SQ.
    pub max_sends: u32,
    /// Receives of the QP.
    pub receives: Receives,
    /// Maximum number of incomplete receives, at least 1. Further descriptors stay in the RQ. With an SRQ: maximum
    /// number of incomplete receives that the QP has taken from the SRQ, and maximum number of messages that may arrive
    /// out of order.
    pub max_receives: u32,
    /// Number of the CQ of the send queue.
    pub send_completions: u32,
    /// Number of the CQ of the receive queue.
    pub receive_completions: u32,
    /// True to keep copies of sent data, for a program that may change a source before the operation that sends it is
    /// complete.
    pub copy_sources: bool,
}

/// Receives of a QP.
#[derive(Debug)]
pub enum Receives {
    /// The QP's own receive queue (RQ).
    Own(RingConsumer),
    /// A shared receive queue (SRQ).
    Shared(Arc<SharedReceives>),
}

/// A shared receive queue (SRQ) of a program. The workers of its QPs share this value. A worker takes a receive when
/// the first segment of a message arrives.
#[derive(Debug)]
pub struct SharedReceives {
    /// Program that owns the SRQ.
    program: ProgramId,
    /// Number of the SRQ, unique within its program.
    number: u32,
    /// Protection domain of the receives.
    pd: PdId,
    ring: SharedRing,
    /// Capacity of the ring in units of 64 bytes, an upper bound of the number of remaining receives.
    capacity: u64,
    /// Number of remaining receives below which an event is due; 0: no event.
    limit: AtomicU32,
    /// True if the number of remaining receives fell below the limit and the event has not been sent yet.
    is_low: AtomicBool,
    /// Reason why the SRQ cannot be used further.
    failure: OnceLock<SharedReceivesError>,
    is_failure_reported: AtomicBool,
}

/// Reason why an SRQ failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SharedReceivesError {
    /// The program violated the ring protocol.
    #[error("{0}")]
    Ring(RingError),
    /// A descriptor is invalid.
    #[error("receive request: {0}")]
    Descriptor(DescriptorError),
}

impl SharedReceives {
    /// Creates an SRQ whose ring has `capacity` units of 64 bytes.
    pub fn new(
        (program, number): (ProgramId, u32),
        pd: PdId,
        ring: SharedRing,
        capacity: u32,
    ) -> SharedReceives {
        SharedReceives {
            program,
            number,
            pd,
            ring,
            capacity: capacity.into(),
            limit: AtomicU32::new(0),
            is_low: AtomicBool::new(false),
            failure: OnceLock::new(),
            is_failure_reported: AtomicBool::new(false),
        }
    }

    /// Returns the protection domain of the receives.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Requests one event when fewer than `limit` receives remain; 0 requests none. Returns true if fewer remain
    /// already: the caller then reports the event.
    pub fn set_limit(&self, limit: u32) -> bool {
        self.limit.store(limit, Ordering::Relaxed);
        self.reaches_limit()
    }

    /// Takes the next receive. Returns `None` if no receive remains, and always after an error.
    pub fn take(&self) -> Option<ReceiveWork> {
        if self.failure.get().is_some() {
            return None;
        }
        let taken = self.ring.pop().map_err(SharedReceivesError::Ring).and_then(|units| {
            let work = units.map(|units| ReceiveWork::decode(&units)).transpose();
            work.map_err(SharedReceivesError::Descriptor)
        });
        if self.reaches_limit() {
            self.is_low.store(true, Ordering::Relaxed);
        }
        taken.unwrap_or_else(|error| {
            // Only the first failure counts.
            let _ = self.failure.set(error);
            None
        })
    }

    /// Returns true if an event about the SRQ may be due.
    pub fn has_notice(&self) -> bool {
        self.is_low.load(Ordering::Relaxed) || self.failure.get().is_some()
    }

    /// Returns [`ProgramEvent::SharedReceivesLow`] if fewer receives than the limit remain, at most once for each
    /// requested limit. Returns `None` otherwise.
    pub fn take_low(&self) -> Option<ProgramEvent> {
        let &SharedReceives { program, number, .. } = self;
        self.is_low
            .swap(false, Ordering::Relaxed)
            .then_some(ProgramEvent::SharedReceivesLow { program, number })
    }

    /// Returns [`ProgramEvent::SharedReceivesFailed`] if the SRQ has failed and no earlier call has returned the event.
    pub fn take_failure(&self) -> Option<ProgramEvent> {
        let &SharedReceives { program, number, .. } = self;
        let reason = *self.failure.get()?;
        let is_reported = self.is_failure_reported.swap(true, Ordering::Relaxed);
        (!is_reported).then_some(ProgramEvent::SharedReceivesFailed { program, number, reason })
    }

    /// Returns true if the SRQ has failed.
    pub fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Returns true if fewer receives than the limit remain, at most once for each requested limit.
    fn reaches_limit(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        // The program writes the counter from which the number of remaining receives is computed. A number above the
        // capacity counts as a full ring.
        limit > 0
            && self.ring.remaining().min(self.capacity) < limit.into()
            && self.limit.compare_exchange(limit, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A memory window of a program: the upper 24 bits of its STags. The lower 8 bits are the key of a binding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WindowId(pub u32);

impl WindowId {
    /// Returns the window of `stag`, which must be an STag of a window.
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
        /// Window to add; its number must be unused.
        window: WindowId,
        /// Protection domain of the window.
        pd: PdId,
        /// Type of the window.
        kind: WindowKind,
    },
    /// Removes a window, bound or not.
    Remove {
        /// Window to remove.
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
    /// Fewer receives remain in an SRQ than the program's limit.
    SharedReceivesLow {
        /// Program that owns the SRQ.
        program: ProgramId,
        /// Number of the SRQ.
        number: u32,
    },
    /// An SRQ cannot be used further. Its QPs fail.
    SharedReceivesFailed {
        /// Program that owns the SRQ.
        program: ProgramId,
        /// Number of the SRQ.
        number: u32,
        /// Cause of the failure.
        reason: SharedReceivesError,
    },
    /// A QP requests that all workers bind a type 1 window. [`Command::WindowBound`](crate::Command::WindowBound)
    /// answers the request. The QP performs no further request before the answer.
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
    /// The SRQ of the QP has failed.
    #[error("the shared receive queue of the QP has failed")]
    SharedReceives,
    /// A CQ of the QP has failed.
    #[error("a completion queue of the QP has failed")]
    CompletionQueue,
}
