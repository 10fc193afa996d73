//! A queue pair (QP): its rings, its posts that are not complete, and their completions in order.
//!
//! ```text
//!   SQ ring ..|  waiting  |  posted: oldest ......... newest  |  completed
//!              (fence)        each event completes the oldest     in the CQ
//!   RQ ring ..............|  posted: oldest ......... newest  |  completed
//! ```
//!
//! An ended QP performs no operation. It takes further descriptors only to complete them as flushed, after all earlier
//! posts.

use std::collections::VecDeque;

use ddp::rdmap::{self, ReceiveMode};
use ddp::{PdId, RegionMemory, StreamId};
use verbs_layout::Unit;
use verbs_layout::ring::RingError;
use verbs_layout::work::{
    Carried, Completed, Completion, DescriptorError, MAX_SGES, Opcode, ReceiveWork, SendWork,
    Status,
};

use super::completion::CompletionQueues;
use super::shared::SharedQueue;
use crate::api::{QueuePairConfig, QueuePairId, Receives};
use crate::memory::{Memory, RingConsumer};

pub(super) struct QueuePair {
    pub(super) id: QueuePairId,
    pub(super) pd: PdId,
    pub(super) copy_sources: bool,
    /// The stream, from its link to the QP until its end.
    pub(super) stream: Option<StreamId>,
    /// True once the QP has failed, its stream has ended, or a command has ended the QP.
    pub(super) ended: bool,
    /// True while the QP is in the program's ready queue.
    pub(super) queued: bool,
    /// True while the QP is in `Program::late`: the limit of receives per turn was reached, and the receive ring may
    /// still have descriptors.
    pub(super) is_late: bool,
    pub(super) sends: SendQueue,
    pub(super) receives: ReceiveQueue,
    /// Status with which the oldest Read or atomic is flushed, if the peer's Terminate quotes its request.
    pub(super) refused_request: Option<Status>,
    /// Status with which the oldest receive is flushed, if the stream's error concerns the message for that receive.
    pub(super) refused_receive: Option<Status>,
    /// Length in bytes of the newest RDMA Write that has arrived since the peer's last Send or Immediate Data; 0 if
    /// none has arrived.
    pub(super) written: u32,
}

pub(super) struct SendQueue {
    pub(super) ring: Ring,
    /// Maximum number of incomplete posts.
    pub(super) max: usize,
    /// A fenced request that waits until `requests` is 0.
    pub(super) waiting: Option<Box<SendWork>>,
    /// Sequence number of the newest post, while this post binds a type 1 window at all workers. Further requests wait
    /// until the bind is complete ([`QueuePair::finish_bind`]).
    pub(super) binding: Option<u32>,
    /// Posted operations, oldest first.
    posted: VecDeque<PostedSend>,
    /// Number of Reads and atomics in `posted`.
    requests: u32,
    /// Number of the CQ of sends.
    completions: u32,
}

pub(super) struct ReceiveQueue {
    /// The QP's own ring; `None` if the QP uses an SRQ.
    pub(super) ring: Option<Ring>,
    /// The SRQ; `None` if the QP has its own ring.
    pub(super) shared: Option<SharedQueue>,
    /// Maximum number of incomplete receives.
    pub(super) max: usize,
    /// Receives taken from the QP's own ring and not complete yet, oldest first.
    posted: VecDeque<PostedReceive>,
    /// Number of the CQ of receives.
    completions: u32,
}

/// A ring of the program. `broken` is set when the program violates the ring protocol.
pub(super) struct Ring {
    ring: RingConsumer,
    broken: bool,
}

impl Ring {
    fn new(ring: RingConsumer) -> Ring {
        Ring { ring, broken: false }
    }

    /// Removes the next descriptor and returns the result of `take`, which is called with a copy of the descriptor;
    /// `None` if the ring is empty.
    #[inline]
    pub(super) fn pop_with<R>(
        &mut self,
        take: impl FnOnce(&[Unit]) -> R,
    ) -> Result<Option<R>, RingError> {
        let popped = self.ring.pop_with(take);
        self.broken |= popped.is_err();
        popped
    }

    /// Removes the next descriptor, as [`pop_with`](Self::pop_with); `None` if the ring is empty or broken.
    pub(super) fn pop_unless_broken<R>(&mut self, take: impl FnOnce(&[Unit]) -> R) -> Option<R> {
        if self.broken { None } else { self.pop_with(take).unwrap_or(None) }
    }

    /// Allows the program to reuse all units that were taken.
    pub(super) fn release(&mut self) {
        self.ring.release();
    }
}

/// A post of the send queue that is not complete.
pub(super) struct PostedSend {
    pub(super) wr_id: u64,
    pub(super) opcode: Opcode,
    pub(super) signalled: bool,
    /// Number of the post's RDMAP operations that have had no event yet. At 0 the post can be completed.
    pub(super) parts: u8,
    /// Status of the completion, as known so far.
    pub(super) status: Status,
    /// Length reported in the completion, bytes.
    pub(super) byte_len: u32,
    /// Destination of an atomic's original value: region and offset.
    pub(super) result: Option<(Memory, u64)>,
}

/// A post of the receive queue that is not complete.
struct PostedReceive {
    wr_id: u64,
    /// Status of a receive that was not posted to the stream.
    failed: Option<Status>,
}

impl QueuePair {
    pub(super) fn new(config: QueuePairConfig) -> QueuePair {
        let QueuePairConfig {
            id,
            pd,
            sends,
            max_sends,
            receives,
            max_receives,
            send_completions,
            receive_completions,
            copy_sources,
        } = config;
        let (ring, shared) = match receives {
            Receives::Own(ring) => (Some(Ring::new(ring)), None),
            Receives::Shared(shared) => (None, Some(SharedQueue::new(shared))),
        };
        QueuePair {
            id,
            pd,
            copy_sources,
            stream: None,
            ended: false,
            queued: false,
            is_late: false,
            sends: SendQueue {
                ring: Ring::new(sends),
                max: max_sends.max(1) as usize,
                waiting: None,
                binding: None,
                posted: VecDeque::new(),
                requests: 0,
                completions: send_completions,
            },
            receives: ReceiveQueue {
                ring,
                shared,
                max: max_receives.max(1) as usize,
                posted: VecDeque::new(),
                completions: receive_completions,
            },
            refused_request: None,
            refused_receive: None,
            written: 0,
        }
    }

    /// Configures RDMAP for the QP's stream. A request becomes at most [`MAX_SGES`] RDMAP operations, so the stream
    /// accepts this number of operations for each entry of the send queue.
    pub(super) fn configure(&self, config: &mut rdmap::Config) {
        let max_receives = self.receives.max as u32;
        config.receives = match self.receives.shared {
            None => ReceiveMode::Posted { max_receives },
            Some(_) => ReceiveMode::Shared { max_receives },
        };
        config.max_operations = self.sends.max * MAX_SGES;
        config.copy_sources = self.copy_sources;
    }

    /// Returns true if the QP may be linked to a stream.
    pub(super) fn is_unconnected(&self) -> bool {
        self.stream.is_none() && !self.ended
    }

    /// Returns the numbers of the send and the receive CQ.
    pub(super) fn completion_queues(&self) -> [u32; 2] {
        [self.sends.completions, self.receives.completions]
    }

    /// Handles the event of one RDMAP operation of the oldest post. `performed` is `None` if the operation was flushed.
    /// Otherwise it contains the original value of an atomic, or `None` for any other operation. Returns the number of
    /// posts completed without an error.
    pub(super) fn finish_send(
        &mut self,
        performed: Option<Option<u64>>,
        completions: &mut CompletionQueues,
    ) -> u64 {
        let Some(oldest) = self.sends.posted.front_mut() else { return 0 };
        oldest.parts = oldest.parts.saturating_sub(1);
        match performed {
            Some(original) => {
                if let (Some(original), Some((memory, offset))) = (original, &oldest.result) {
                    memory.write(*offset, &original.to_ne_bytes());
                }
            }
            None if oldest.status == Status::Success => {
                let refused = oldest.opcode.is_request().then(|| self.refused_request.take());
                oldest.status = refused.flatten().unwrap_or(Status::Flushed);
            }
            None => {}
        }
        self.complete_sends(completions)
    }

    /// Adds a post whose RDMAP operations were posted to the stream, or a post that was performed or has failed without
    /// RDMAP operations. Returns the number of posts completed without an error.
    pub(super) fn push_send(
        &mut self,
        posted: PostedSend,
        completions: &mut CompletionQueues,
    ) -> u64 {
        self.sends.requests += u32::from(posted.opcode.is_request());
        self.sends.posted.push_back(posted);
        self.complete_sends(completions)
    }

    /// Ends the newest post if it is the bind of a type 1 window with number `sequence`. Returns the number of posts
    /// completed without an error; `None` if the newest post is not this bind.
    pub(super) fn finish_bind(
        &mut self,
        sequence: u32,
        is_bound: bool,
        completions: &mut CompletionQueues,
    ) -> Option<u64> {
        if self.sends.binding != Some(sequence) {
            return None;
        }
        self.sends.binding = None;
        if let Some(newest) = self.sends.posted.back_mut() {
            newest.parts = 0;
            newest.status = if is_bound { Status::Success } else { Status::WindowBind };
        }
        Some(self.complete_sends(completions))
    }

    /// Completes the oldest posts without outstanding events. Returns the number of posts completed without an error.
    fn complete_sends(&mut self, completions: &mut CompletionQueues) -> u64 {
        let mut performed = 0;
        while self.sends.posted.front().is_some_and(|oldest| oldest.parts == 0) {
            let Some(oldest) = self.sends.posted.pop_front() else { break };
            performed += u64::from(oldest.status == Status::Success);
            self.sends.requests -= u32::from(oldest.opcode.is_request());
            if oldest.signalled || oldest.status != Status::Success {
                let completion = Completion {
                    wr_id: oldest.wr_id,
                    status: oldest.status,
                    completed: Completed::Sent(oldest.opcode),
                    byte_len: oldest.byte_len,
                    qp_number: self.id.number,
                };
                completions.push(self.sends.completions, &completion);
            }
        }
        performed
    }

    /// Adds a receive to the queue. `failed`: status of a receive that was not posted to the stream. Such a receive
    /// completes with this status once it is the oldest.
    pub(super) fn push_receive(
        &mut self,
        wr_id: u64,
        failed: Option<Status>,
        completions: &mut CompletionQueues,
    ) {
        self.receives.posted.push_back(PostedReceive { wr_id, failed });
        self.complete_failed_receives(completions);
    }

    /// Completes the receive of a message: the oldest receive, or with an SRQ the receive with this `wr_id`. `carried`
    /// is the message's Immediate Data or invalidated STag, if any.
    pub(super) fn fill_receive(
        &mut self,
        wr_id: u64,
        byte_len: u32,
        solicited: bool,
        carried: Carried,
        completions: &mut CompletionQueues,
    ) {
        let status = (Status::Success, Completed::Received { solicited, carried });
        self.complete_receive(wr_id, status, byte_len, completions);
        self.complete_failed_receives(completions);
    }

    /// Completes a receive that the stream has flushed: the oldest receive, or with an SRQ the receive with this
    /// `wr_id`.
    pub(super) fn flush_receive(&mut self, wr_id: u64, completions: &mut CompletionQueues) {
        let mut status = self.refused_receive.take().unwrap_or(Status::Flushed);
        let shared = self.receives.shared.as_ref();
        if status == Status::LocalLength && shared.is_some_and(SharedQueue::has_refused) {
            // The receive had no memory for the message, because an SGE was refused.
            status = Status::LocalProtection;
        }
        self.complete_receive(wr_id, (status, NOTHING_RECEIVED), 0, completions);
        self.complete_failed_receives(completions);
    }

    fn complete_failed_receives(&mut self, completions: &mut CompletionQueues) {
        while let Some(&PostedReceive { failed: Some(status), .. }) = self.receives.posted.front() {
            self.complete_receive(0, (status, NOTHING_RECEIVED), 0, completions);
        }
    }

    /// Completes the oldest receive, or with an SRQ the receive with this `wr_id`.
    fn complete_receive(
        &mut self,
        mut wr_id: u64,
        (status, completed): (Status, Completed),
        byte_len: u32,
        completions: &mut CompletionQueues,
    ) {
        match &self.receives.shared {
            Some(shared) => shared.forget(wr_id),
            None => {
                let Some(oldest) = self.receives.posted.pop_front() else { return };
                wr_id = oldest.wr_id;
            }
        }
        let qp_number = self.id.number;
        let completion = Completion { wr_id, status, completed, byte_len, qp_number };
        completions.push(self.receives.completions, &completion);
    }

    /// Ends the QP after the end of its stream. Flushes the posts that no event of the stream has completed.
    pub(super) fn end(&mut self, completions: &mut CompletionQueues) {
        self.stream = None;
        self.ended = true;
        self.sends.binding = None;
        for posted in &mut self.sends.posted {
            if posted.parts > 0 {
                (posted.parts, posted.status) = (0, Status::Flushed);
            }
        }
        self.complete_sends(completions);
        while !self.receives.posted.is_empty() {
            self.flush_receive(0, completions);
        }
        for wr_id in self.receives.shared.iter().flat_map(SharedQueue::taken).collect::<Vec<_>>() {
            self.flush_receive(wr_id, completions);
        }
    }
}

/// Kind of completion of a receive without a message.
const NOTHING_RECEIVED: Completed =
    Completed::Received { solicited: false, carried: Carried::Nothing };

impl SendQueue {
    /// Returns true if a further operation may be posted.
    pub(super) fn has_room(&self) -> bool {
        self.posted.len() < self.max
    }

    /// Returns true if a Read or atomic is incomplete: a fenced request must wait.
    pub(super) fn has_requests(&self) -> bool {
        self.requests > 0
    }
}

impl ReceiveQueue {
    /// Removes the next descriptor of the QP's own ring and decodes a copy of it; `None` if the ring is empty or the QP
    /// uses an SRQ.
    #[inline]
    pub(super) fn pop(
        &mut self,
    ) -> Result<Option<Result<ReceiveWork, DescriptorError>>, RingError> {
        self.ring.as_mut().map_or(Ok(None), |ring| ring.pop_with(ReceiveWork::decode))
    }

    /// Records that the stream no longer uses the SRQ: its connect has failed, and another attempt follows.
    pub(super) fn release_source(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.has_source = false;
        }
    }

    /// Allows the program to reuse all units that were taken from the QP's own ring.
    pub(super) fn release(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.release();
        }
    }

    /// Returns true if a further receive may be posted.
    pub(super) fn has_room(&self) -> bool {
        self.posted.len() < self.max
    }
}

impl PostedSend {
    /// Returns the record of a request with status `Success` and without outstanding operations.
    pub(super) fn success(work: &SendWork) -> PostedSend {
        let signalled = work.signalled;
        PostedSend { signalled, ..PostedSend::failed(work, Status::Success) }
    }

    /// Returns the record of a request that was not performed. Its completion is always signalled.
    pub(super) fn failed(work: &SendWork, status: Status) -> PostedSend {
        PostedSend {
            wr_id: work.wr_id,
            opcode: work.operation.opcode(),
            signalled: true,
            parts: 0,
            status,
            byte_len: 0,
            result: None,
        }
    }
}
