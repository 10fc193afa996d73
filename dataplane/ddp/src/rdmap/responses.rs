//! Responses to the peer's requests, in the order in which the requests were delivered
//! (RFC 5040 §5.2.2, §5.5 (20); RFC 7306 §5.2.2 (8)).
//!
//! ```text
//!   requests delivered -> | waiting | current response | sent, not acknowledged |
//!                         |------- at most IRD --------|
//!                                   |----------- at most `max_sent` ------------|
//! ```
//!
//! A request counts against IRD until its response has been handed to the LLP completely.

use arrayvec::ArrayVec;
use base::LazyDeque;
use wire::Stag;
use wire::rdmap::{AtomicResponseRepr, ReadRequestRepr};

use crate::llp::MAX_DDP_HEADER;
use crate::memory::RegionMemory;
use crate::message::Source;

/// A response not yet handed to DDP.
#[derive(Debug)]
pub(crate) enum Response<M> {
    Read {
        request: ReadRequestRepr,
        source: Source<M>,
        request_segment: RequestSegment,
        /// True while the response waits for the ULP to release it.
        held: bool,
    },
    /// The response to an executed atomic.
    Atomic(AtomicResponseRepr),
}

/// The segment that carried a Read Request.
#[derive(Clone, Debug)]
pub(crate) struct RequestSegment {
    pub(crate) header: ArrayVec<u8, MAX_DDP_HEADER>,
    pub(crate) segment_len: u32,
}

/// A response handed to DDP.
#[derive(Debug)]
pub(crate) enum SentResponse {
    Read { request: ReadRequestRepr, request_segment: RequestSegment },
    Atomic,
}

/// A Read of the peer whose response still needs bytes of its region.
#[derive(Debug)]
pub(crate) struct PendingRead {
    pub(crate) request: ReadRequestRepr,
    pub(crate) request_segment: RequestSegment,
    /// True if the response was handed to DDP.
    pub(crate) begun: bool,
}

/// Responses of one stream to the peer's requests.
#[derive(Debug)]
pub(crate) struct Responses<M> {
    waiting: LazyDeque<Response<M>>,
    /// Responses handed to DDP and not acknowledged, oldest first. The last response may be in progress.
    sent: LazyDeque<SentResponse>,
    /// Maximum number of responses in `sent`.
    max_sent: usize,
}

impl<M: RegionMemory> Responses<M> {
    pub(crate) fn shrink(&mut self) {
        self.waiting.shrink();
        self.sent.shrink();
    }

    pub(crate) fn new(max_sent: usize) -> Self {
        Responses { waiting: LazyDeque::new(), sent: LazyDeque::new(), max_sent: max_sent.max(1) }
    }

    pub(crate) fn push(&mut self, response: Response<M>) {
        self.waiting.push_back(response);
    }

    /// Returns the number of responses not yet handed to DDP.
    pub(crate) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of responses handed to DDP and not acknowledged.
    pub(crate) fn sent_len(&self) -> usize {
        self.sent.len()
    }

    /// Takes the next response to hand to DDP. `None` if there is none, if the next response is held, or if `max_sent`
    /// responses are unacknowledged.
    pub(crate) fn issue(&mut self) -> Option<Response<M>> {
        if self.sent.len() >= self.max_sent {
            return None;
        }
        if matches!(self.waiting.front()?, Response::Read { held: true, .. }) {
            return None;
        }
        let response = self.waiting.pop_front()?;
        self.sent.push_back(match &response {
            Response::Read { request, request_segment, .. } => {
                SentResponse::Read { request: *request, request_segment: request_segment.clone() }
            }
            Response::Atomic(_) => SentResponse::Atomic,
        });
        Some(response)
    }

    /// Returns true while a Read of the peer waits for its release by the ULP.
    pub(crate) fn has_held_read(&self) -> bool {
        self.waiting.iter().any(|response| matches!(response, Response::Read { held: true, .. }))
    }

    /// Releases the oldest held Read of the peer.
    pub(crate) fn release_held_read(&mut self) {
        let held = self.waiting.iter_mut().find_map(|response| match response {
            Response::Read { held, .. } if *held => Some(held),
            _ => None,
        });
        if let Some(held) = held {
            *held = false;
        }
    }

    /// Removes the oldest response handed to DDP, once it is acknowledged.
    pub(crate) fn pop_acknowledged(&mut self) -> Option<SentResponse> {
        self.sent.pop_front()
    }

    /// Removes the last response handed to DDP. Called once for each response that DDP flushes: only the last one, or
    /// all of them.
    pub(crate) fn pop_flushed(&mut self) {
        self.sent.pop_back();
    }

    /// Returns the oldest Read of at least one byte from this STag whose response was not completely handed to the LLP.
    /// `current`: true if the last response handed to DDP was not completely handed to the LLP.
    pub(crate) fn find_read(&self, stag: Stag, current: bool) -> Option<PendingRead> {
        let last = self.sent.back().filter(|_| current).and_then(|sent| match sent {
            SentResponse::Read { request, request_segment } => Some(PendingRead {
                request: *request,
                request_segment: request_segment.clone(),
                begun: true,
            }),
            SentResponse::Atomic => None,
        });
        let waiting = self.waiting.iter().filter_map(|response| match response {
            Response::Read { request, request_segment, .. } => Some(PendingRead {
                request: *request,
                request_segment: request_segment.clone(),
                begun: false,
            }),
            Response::Atomic(_) => None,
        });
        let matches_stag =
            |read: &PendingRead| read.request.source_stag == stag && read.request.size > 0;
        last.into_iter().chain(waiting).find(matches_stag)
    }

    /// Returns true if a response that is not yet handed to DDP reads from this region.
    pub(crate) fn uses_memory(&self, memory: &M) -> bool {
        self.waiting.iter().any(|response| match response {
            Response::Read { source, .. } => source.uses_memory(memory),
            Response::Atomic(_) => false,
        })
    }

    /// Drops the responses not yet handed to DDP.
    pub(crate) fn clear_waiting(&mut self) {
        self.waiting.clear();
    }
}
