//! The operations that this end's ULP posts, until they complete in order (RFC 5040 §5.5 (13), (15)).
//!
//! ```text
//!  first                     first + first_waiting            end
//!  | handed to DDP, or ended | not handed to DDP, or flushed |
//! ```
//!
//! Ended operations stay in the queue until all earlier operations have been reported.

use base::LazyDeque;

use crate::cookie::Cookie;
use crate::memory::RegionMemory;
use crate::rdmap::{Outcome, WorkRequest};

#[derive(Debug)]
struct Operation<M> {
    cookie: Cookie,
    state: State<M>,
}

#[derive(Debug)]
enum State<M> {
    Waiting(WorkRequest<M>),
    /// Handed to DDP. `Some`: the outcome once acknowledged; `None`: a response determines the outcome.
    Issued(Option<Outcome>),
    /// Complete with this outcome, or flushed (`None`). Reported when all earlier operations have ended.
    Ended(Option<Outcome>),
}

/// An atomic handed to DDP that awaits its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutstandingAtomic {
    pub(crate) operation: u64,
    /// Request Identifier of the atomic.
    pub(crate) id: u32,
}

#[derive(Debug)]
pub(crate) struct Operations<M> {
    queue: LazyDeque<Operation<M>>,
    /// Number of the operation at the front.
    first: u64,
    /// Index of the first operation not yet handed to DDP. Earlier operations are handed over or have ended.
    first_waiting: usize,
    /// Outstanding atomics, oldest first.
    pub(crate) atomics: LazyDeque<OutstandingAtomic>,
}

impl<M: RegionMemory> Operations<M> {
    pub(crate) fn shrink(&mut self) {
        self.queue.shrink();
        self.atomics.shrink();
    }

    pub(crate) fn new() -> Self {
        Operations {
            queue: LazyDeque::new(),
            first: 0,
            first_waiting: 0,
            atomics: LazyDeque::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn push(&mut self, request: WorkRequest<M>) {
        let cookie = request.cookie();
        self.queue.push_back(Operation { cookie, state: State::Waiting(request) });
    }

    /// Returns true if an operation that is not yet handed to DDP reads from this region.
    pub(crate) fn uses_memory(&self, memory: &M) -> bool {
        self.queue.iter().any(|operation| match &operation.state {
            State::Waiting(
                WorkRequest::Send { source, .. } | WorkRequest::Write { source, .. },
            ) => source.uses_memory(memory),
            State::Waiting(_) | State::Issued(_) | State::Ended(_) => false,
        })
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.next_waiting().is_some()
    }

    /// Returns true while a Read or atomic is not yet handed to DDP or awaits its response.
    pub(crate) fn has_requests(&self) -> bool {
        self.queue.iter().any(|operation| match &operation.state {
            State::Waiting(request) => request.is_request(),
            State::Issued(outcome) => outcome.is_none(),
            State::Ended(_) => false,
        })
    }

    /// Returns the next operation to hand to DDP.
    pub(crate) fn next_waiting(&self) -> Option<&WorkRequest<M>> {
        self.queue.range(self.first_waiting..).find_map(|operation| match &operation.state {
            State::Waiting(request) => Some(request),
            State::Issued(_) | State::Ended(_) => None,
        })
    }

    /// Takes the next operation to hand to DDP, with its number.
    pub(crate) fn issue(&mut self) -> Option<(u64, WorkRequest<M>)> {
        while let Some(operation) = self.queue.get_mut(self.first_waiting) {
            let number = self.first + self.first_waiting as u64;
            self.first_waiting += 1;
            let State::Waiting(request) = &operation.state else { continue };
            let outcome = match request {
                WorkRequest::Send { .. } | WorkRequest::Immediate { .. } => Some(Outcome::Sent),
                WorkRequest::Write { .. } => Some(Outcome::Written),
                // RFC 5040 §5.5 (19), RFC 7306 §5.4 (7): the response completes the operation.
                WorkRequest::Read { .. } | WorkRequest::Atomic { .. } => None,
            };
            if let State::Waiting(request) =
                core::mem::replace(&mut operation.state, State::Issued(outcome))
            {
                return Some((number, request));
            }
        }
        None
    }

    /// Completes the operation whose message DDP reports as sent (RFC 5040 §5.5 (14)), unless the operation awaits a
    /// response.
    pub(crate) fn on_acknowledged(&mut self, number: u64) {
        if let Some(operation) = self.get(number)
            && let State::Issued(Some(outcome)) = operation.state
        {
            operation.state = State::Ended(Some(outcome));
        }
    }

    pub(crate) fn complete(&mut self, number: u64, outcome: Outcome) {
        if let Some(operation) = self.get(number) {
            operation.state = State::Ended(Some(outcome));
        }
    }

    pub(crate) fn flush(&mut self, number: u64) {
        if let Some(operation) = self.get(number)
            && !matches!(operation.state, State::Ended(_))
        {
            operation.state = State::Ended(None);
        }
    }

    /// Flushes the operations not yet handed to DDP. With `requests_only`, flushes only Reads and atomics among them.
    pub(crate) fn flush_waiting(&mut self, requests_only: bool) {
        for operation in self.queue.range_mut(self.first_waiting..) {
            if let State::Waiting(request) = &operation.state
                && (!requests_only || request.is_request())
            {
                operation.state = State::Ended(None);
            }
        }
    }

    /// Flushes all operations that have not ended.
    pub(crate) fn flush_all(&mut self) {
        self.atomics.clear();
        for operation in self.queue.iter_mut() {
            if !matches!(operation.state, State::Ended(_)) {
                operation.state = State::Ended(None);
            }
        }
    }

    /// Removes the oldest operation if it has ended. Returns its cookie, and its outcome unless it was flushed.
    pub(crate) fn pop_ended(&mut self) -> Option<(Cookie, Option<Outcome>)> {
        let Some(Operation { cookie, state: State::Ended(outcome) }) = self.queue.front() else {
            return None;
        };
        let ended = (*cookie, *outcome);
        self.queue.pop_front();
        self.first += 1;
        self.first_waiting = self.first_waiting.saturating_sub(1);
        Some(ended)
    }

    fn get(&mut self, number: u64) -> Option<&mut Operation<M>> {
        let index = number.checked_sub(self.first)?;
        self.queue.get_mut(usize::try_from(index).ok()?)
    }
}
