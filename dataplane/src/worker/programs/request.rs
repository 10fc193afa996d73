//! Translates descriptors of a program into RDMAP operations. Each SGE is checked against the worker's table of STags.

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

/// Cookie of all operations. Operations need no identifier, because they complete in order.
const COOKIE: Cookie = Cookie::user(0);

/// RDMAP operations of a Read: one for each SGE, because a Read Request has only one sink (RFC 5040 §4.4).
type Requests = ArrayVec<WorkRequest<Memory>, MAX_SGES>;

/// Memory of the SGEs of one descriptor.
type Spans = ArrayVec<Span<Memory>, MAX_SGES>;

/// Access of a QP to the memory regions of its protection domain.
#[derive(Clone, Copy)]
pub(super) struct Regions<'a> {
    pub(super) stags: &'a StagTable<Memory>,
    pub(super) pd: PdId,
    pub(super) stream: StreamId,
    /// Windows of the program: an SGE with the STag of a window is refused. If `None` (the receives of an SRQ), an SGE
    /// with an STag that is bound to a stream is refused. This refuses STags of type 2 windows, which are bound to a
    /// stream, but not STags of type 1 windows.
    pub(super) windows: Option<&'a Windows>,
}

impl Regions<'_> {
    /// Returns the RDMAP operation of a request that is not a Read, and completes its record for the send queue.
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
                let (stag, to) = target(remote);
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

    /// Returns the memory of a receive.
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

    /// Returns the memory of each SGE that is not empty.
    fn spans(&self, list: &SgeList, writable: bool) -> Result<Spans, Status> {
        let sges = list.sges().iter().filter(|sge| sge.len > 0);
        sges.map(|sge| self.span(sge, writable)).collect()
    }

    /// Returns one Read for each SGE that is not empty. If all are empty, returns one Read of 0 bytes, whose sink STag
    /// need not be valid (RFC 5040 §5.2.1).
    pub(super) fn reads(&self, remote: &Remote, sinks: &SgeList) -> Result<Requests, Status> {
        let (source_stag, mut source_to) = target(remote);
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

    fn atomic(
        &self,
        op: AtomicOp,
        remote: &Remote,
        &AtomicResult { address, lkey }: &AtomicResult,
        posted: &mut PostedSend,
    ) -> Result<WorkRequest<Memory>, Status> {
        let Span { memory, offset, .. } = self.span(&Sge { address, len: 8, lkey }, true)?;
        (posted.result, posted.byte_len) = (Some((memory, offset)), 8);
        let (stag, to) = target(remote);
        Ok(WorkRequest::Atomic { op, stag, to, cookie: COOKIE })
    }

    /// Returns the memory of an SGE. Refuses an SGE that is not within a region of the QP's protection domain, that is
    /// in a region bound to another stream, or whose key is the STag of a window. With `writable`, also refuses an SGE
    /// in a region that is not writable.
    fn span(&self, sge: &Sge, writable: bool) -> Result<Span<Memory>, Status> {
        let entry = self.stags.get(Stag(sge.lkey)).ok_or(Status::LocalProtection)?;
        let is_own = entry.pd == self.pd && entry.stream.is_none_or(|only| only == self.stream);
        let at = sge.address.checked_sub(entry.base_to.0);
        let at = at.filter(|at| at.checked_add(sge.len.into()).is_some_and(|end| end <= entry.len));
        let is_region = match self.windows {
            Some(windows) => !windows.contains(entry.stag),
            None => entry.stream.is_none(),
        };
        let allowed = is_own && is_region && (!writable || entry.memory.is_writable());
        let at = at.filter(|_| allowed).ok_or(Status::LocalProtection)?;
        Ok(Span { memory: entry.memory.clone(), offset: entry.memory_offset + at, len: sge.len })
    }
}

/// Returns STag and TO of the peer's memory.
fn target(remote: &Remote) -> (Stag, TaggedOffset) {
    (Stag(remote.stag), TaggedOffset(remote.to))
}

fn span_list(spans: Spans) -> Result<SpanList<Memory>, Status> {
    // An error is not expected: `verbs_layout` bounds the number of SGEs and the sum of their lengths.
    SpanList::new(spans).map_err(|_| Status::LocalLength)
}
