//! Translates the send and receive requests of a program: a send request into RDMAP operations of the QP's stream, the
//! SGEs of a receive into the memory that the message fills. Each SGE must be within a memory region that the QP may
//! use ([`Regions`]). A request with a refused SGE is not performed, and completes with an error status.
//!
//! Not included: requests about memory windows ([`windows`](super::windows)), and posting to the stream
//! ([`serve`](super::serve)).

use std::sync::Arc;

use arrayvec::ArrayVec;
use ddp::rdmap::{AtomicOp, WorkRequest};
use ddp::{
    Cookie, PdId, RegionMemory, Source, Span, SpanList, Stag, StagTable, StreamId, TaggedOffset,
};
use verbs_layout::work::{
    AtomicResult, MAX_SGES, Operation, Payload, Remote, SendWork, Sge, SgeList, Status,
};

use super::pair::PostedSend;
use super::windows::Windows;
use crate::memory::Memory;

/// Cookie of all operations. Operations complete in the order of posting, so they need no identifier.
const COOKIE: Cookie = Cookie::user(0);

/// RDMA Reads of one Read request: one for each SGE, because an RDMA Read Request message has only one sink (RFC 5040
/// §4.4).
type Requests = ArrayVec<WorkRequest<Memory>, MAX_SGES>;

/// Memory of the nonempty SGEs of one request.
type Spans = ArrayVec<Span<Memory>, MAX_SGES>;

/// The memory regions that the SGEs of a QP may use: regions of its protection domain that are not bound to another
/// stream. The lkey of an SGE is the STag of its region.
#[derive(Clone, Copy)]
pub(super) struct Regions<'a> {
    /// The worker's STag table. It contains memory regions and bound memory windows.
    pub(super) stags: &'a StagTable<Memory>,
    /// Protection domain of the QP or, for the receives of an SRQ, of the SRQ.
    pub(super) pd: PdId,
    /// Stream of the QP.
    pub(super) stream: StreamId,
    /// Windows of the program. Their STags are refused, because an SGE must name a region. `None` for the receives of
    /// an SRQ, whose code has no access to the windows. All STags that are bound to a stream are then refused. This
    /// includes the STags of type 2 windows, but not of type 1 windows.
    pub(super) windows: Option<&'a Windows>,
}

impl Regions<'_> {
    /// Returns the RDMAP operation of a request other than a Read. For an atomic, also sets the destination and the
    /// length of the original value in `posted`, the request's record for the send queue.
    ///
    /// # Errors
    /// The status with which the request completes.
    pub(super) fn translate(
        &self,
        work: &SendWork,
        posted: &mut PostedSend,
    ) -> Result<WorkRequest<Memory>, Status> {
        match &work.operation {
            Operation::Send { payload, solicited } => self.send(payload, *solicited, None),
            Operation::SendInvalidate { payload, solicited, stag } => {
                self.send(payload, *solicited, Some(Stag(*stag)))
            }
            Operation::Write { remote, payload } => {
                let source = self.source(payload)?;
                let (stag, to) = remote_address(remote);
                Ok(WorkRequest::Write { stag, to, source, cookie: COOKIE })
            }
            Operation::CompareSwap { remote, compare, swap, result } => {
                let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
                let (compare, swap) = (*compare, *swap);
                let op = AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask };
                self.atomic(op, remote, result, posted)
            }
            Operation::FetchAdd { remote, add, result } => {
                let op = AtomicOp::FetchAdd { add: *add, mask: 0 };
                self.atomic(op, remote, result, posted)
            }
            Operation::Immediate { data, solicited } => {
                let (data, solicited) = (*data, *solicited);
                Ok(WorkRequest::Immediate { data, solicited, cookie: COOKIE })
            }
            // Not translated here: a Read becomes several operations ([`reads`](Self::reads)), and the worker performs
            // operations on windows itself.
            Operation::Read { .. }
            | Operation::LocalInvalidate { .. }
            | Operation::BindWindow(_) => Err(Status::LocalQpOperation),
        }
    }

    /// Returns the memory that the message of a receive fills.
    ///
    /// # Errors
    /// The status with which the receive completes.
    pub(super) fn sink(&self, buffers: &SgeList) -> Result<SpanList<Memory>, Status> {
        span_list(self.spans(buffers, true)?)
    }

    fn send(
        &self,
        payload: &Payload,
        solicited: bool,
        invalidate: Option<Stag>,
    ) -> Result<WorkRequest<Memory>, Status> {
        let source = self.source(payload)?;
        Ok(WorkRequest::Send { source, solicited, invalidate, cookie: COOKIE })
    }

    /// Returns the source of a message: a copy of inline data, one span of a region, or several spans.
    fn source(&self, payload: &Payload) -> Result<Source<Memory>, Status> {
        let list = match payload {
            Payload::Inline(inline) => return Ok(Source::Bytes(Arc::from(inline.bytes()))),
            Payload::Gather(list) => list,
        };
        if let [sge] = list.sges()
            && sge.len > 0
        {
            let Span { memory, offset, len } = self.span(sge, false)?;
            return Ok(Source::Region { memory, offset, len });
        }
        let mut spans = self.spans(list, false)?;
        if spans.len() > 1 {
            return Ok(Source::Gather(Box::new(span_list(spans)?)));
        }
        Ok(match spans.pop() {
            Some(Span { memory, offset, len }) => Source::Region { memory, offset, len },
            None => Source::Bytes(Arc::default()),
        })
    }

    /// Returns the memory of each nonempty SGE. `writable` is true if the operation writes to the memory.
    fn spans(&self, list: &SgeList, writable: bool) -> Result<Spans, Status> {
        let sges = list.sges().iter().filter(|sge| sge.len > 0);
        sges.map(|sge| self.span(sge, writable)).collect()
    }

    /// Returns the RDMA Reads of a Read request, one for each nonempty SGE. If all SGEs are empty, returns one RDMA
    /// Read of 0 bytes, whose sink STag need not be valid (RFC 5040 §5.2.1).
    pub(super) fn reads(&self, remote: &Remote, sinks: &SgeList) -> Result<Requests, Status> {
        let (source_stag, mut source_to) = remote_address(remote);
        let mut reads = Requests::new();
        for sge in sinks.sges().iter().filter(|sge| sge.len > 0) {
            self.span(sge, true)?;
            reads.push(WorkRequest::Read {
                sink_stag: Stag(sge.lkey),
                sink_to: TaggedOffset(sge.address),
                source_stag,
                source_to,
                len: sge.len,
                cookie: COOKIE,
            });
            source_to = TaggedOffset(source_to.0.wrapping_add(sge.len.into()));
        }
        if reads.is_empty() {
            let (sink_stag, sink_to) = (Stag(0), TaggedOffset(0));
            let (len, cookie) = (0, COOKIE);
            reads.push(WorkRequest::Read {
                sink_stag,
                sink_to,
                source_stag,
                source_to,
                len,
                cookie,
            });
        }
        Ok(reads)
    }

    /// Returns an atomic operation, and sets the destination and the length of the original value in `posted`.
    fn atomic(
        &self,
        op: AtomicOp,
        remote: &Remote,
        &AtomicResult { address, lkey }: &AtomicResult,
        posted: &mut PostedSend,
    ) -> Result<WorkRequest<Memory>, Status> {
        let Span { memory, offset, .. } = self.span(&Sge { address, len: 8, lkey }, true)?;
        (posted.result, posted.byte_len) = (Some((memory, offset)), 8);
        let (stag, to) = remote_address(remote);
        Ok(WorkRequest::Atomic { op, stag, to, cookie: COOKIE })
    }

    /// Returns the memory of an SGE. Refuses an SGE that is not within one of the [`Regions`]. If `writable` is true,
    /// also refuses an SGE in a region that is not writable.
    fn span(&self, sge: &Sge, writable: bool) -> Result<Span<Memory>, Status> {
        let entry = self.stags.get(Stag(sge.lkey)).ok_or(Status::LocalProtection)?;
        let is_permitted =
            entry.pd == self.pd && entry.stream.is_none_or(|only| only == self.stream);
        let start = sge.address.checked_sub(entry.base_to.0);
        let start = start
            .filter(|start| start.checked_add(sge.len.into()).is_some_and(|end| end <= entry.len));
        let is_region = match self.windows {
            Some(windows) => !windows.contains(entry.stag),
            None => entry.stream.is_none(),
        };
        let allowed = is_permitted && is_region && (!writable || entry.memory.is_writable());
        let start = start.filter(|_| allowed).ok_or(Status::LocalProtection)?;
        Ok(Span { memory: entry.memory.clone(), offset: entry.memory_offset + start, len: sge.len })
    }
}

/// Returns the STag and the tagged offset of the peer's memory.
fn remote_address(remote: &Remote) -> (Stag, TaggedOffset) {
    (Stag(remote.stag), TaggedOffset(remote.to))
}

/// Converts the memory of a request's SGEs into a list.
fn span_list(spans: Spans) -> Result<SpanList<Memory>, Status> {
    // An error is not expected: `verbs_layout` bounds the number of SGEs and the sum of their lengths.
    SpanList::new(spans).map_err(|_| Status::LocalLength)
}
