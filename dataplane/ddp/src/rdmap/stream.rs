//! One RDMAP stream: the calls of its ULP and its LLP, and the sending of operations and responses. DDP receives one
//! message at a time, so that operations and responses can alternate. [`inbound`] processes received messages.

use std::sync::Arc;

use base::{Lazy, LazyDeque};
use wire::crc32c::Target;
use wire::rdmap::{
    ATOMIC_RESPONSE_QUEUE, AtomicRequestRepr, Control, Opcode, REQUEST_QUEUE, ReadRequestRepr,
    SEND_QUEUE, TERMINATE_QUEUE,
};
use wire::{DdpVersion, Stag};

use crate::buffers::{BufferPool, PeerId};
use crate::cookie::Cookie;
use crate::enhanced::Rtr;
use crate::error::{Field, Mismatch, PostError};
use crate::llp::{Disposition, OrderKey, Outgoing, Ulpdu, UlpduSink, UlpduSource, UlpduToken};
use crate::memory::RegionMemory;
use crate::message::{Failure, Message, Source};
use crate::rdmap::access_checks::StreamIdentity;
use crate::rdmap::operations::{Operations, OutstandingAtomic};
use crate::rdmap::responses::{PendingRead, Response, Responses};
use crate::rdmap::{
    Checks, Config, Counters, Error, ErrorCode, Event, RdmapError, Terminate, WorkRequest,
};
use crate::send::{check_source, check_to};
use crate::stag::{PdId, StreamId};
use crate::stream::Context;

mod inbound;
mod receives;

/// A partly sent message is completed before a Terminate if at most this many of its bytes are unsent. Otherwise the
/// message is truncated: the Terminate begins before the message's last segment was sent, although peers do not expect
/// this.
const MAX_FINISH_BYTES: u32 = 256 * 1024;

/// One RDMAP stream (RFC 5040 §6). See the [module](crate::rdmap).
///
/// Before a stream is dropped, [`release`](Self::release) must return its buffers to the pool.
#[derive(Debug)]
pub struct Stream<M> {
    ddp: crate::stream::Stream<M, Checks>,
    operations: Operations<M>,
    responses: Responses<M>,
    events: LazyDeque<Event>,
    counters: Lazy<Counters>,
    ord: u32,
    max_operations: u32,
    max_posts: u32,
    atomics: bool,
    immediate: bool,
    /// True if the peer's Terminates may have siw's layout.
    siw: bool,
    /// True if the message that DDP is sending is a response.
    current_is_response: bool,
    /// True if the last message sent was an operation: a waiting response is then sent next.
    response_next: bool,
    /// True if the wait of the next operation is already counted in [`Counters::ord_waits`].
    ord_wait_counted: bool,
    next_atomic_id: u32,
    closed: bool,
    peer_closed: bool,
    /// True once delivered messages are ignored and no message except a Terminate may begin.
    ended: bool,
    error: Option<Box<Error>>,
    /// The peer's Terminate.
    peer_terminate: Option<Box<Terminate>>,
}

base::prefetch!(Stream<M> [M: RegionMemory]: ddp, events, counters);

impl<M: RegionMemory> Stream<M> {
    /// Returns a stream that is ready to send and receive.
    pub fn new(id: StreamId, pd: PdId, config: Config) -> Self {
        let ddp = config.stream();
        let checks = Checks::new(&config);
        Stream {
            max_posts: u32::try_from(ddp.max_posts).unwrap_or(u32::MAX),
            ddp: crate::stream::Stream::with_checks(id, pd, ddp, checks, config.receives),
            operations: Operations::new(),
            responses: Responses::new(config.max_responses),
            events: LazyDeque::new(),
            counters: Lazy::new(),
            ord: config.ord.into(),
            max_operations: u32::try_from(config.max_operations).unwrap_or(u32::MAX),
            atomics: config.atomics,
            immediate: config.immediate,
            siw: config.siw,
            current_is_response: false,
            response_next: true,
            ord_wait_counted: false,
            next_atomic_id: 0,
            closed: false,
            peer_closed: false,
            ended: false,
            error: None,
            peer_terminate: None,
        }
    }

    /// Frees unused memory of an idle stream.
    pub fn shrink(&mut self) {
        self.ddp.shrink();
        self.ddp.checks_mut().shrink();
        self.operations.shrink();
        self.responses.shrink();
        self.events.shrink();
    }

    /// Returns the stream's identifier (RFC 5041 §8.2).
    pub fn id(&self) -> StreamId {
        self.ddp.id()
    }

    /// Returns the stream's protection domain.
    pub fn pd(&self) -> PdId {
        self.ddp.pd()
    }

    /// Moves the stream into another protection domain. Must precede the stream's first segment.
    pub fn set_pd(&mut self, pd: PdId) {
        self.ddp.set_pd(pd);
    }

    /// Sets the peer: see [`ddp::Stream::set_peer`](crate::Stream::set_peer).
    pub fn set_peer(&mut self, peer: PeerId) {
        self.ddp.set_peer(peer);
    }

    /// Returns the version of DDP and RDMAP, once it is determined.
    pub fn version(&self) -> Option<DdpVersion> {
        self.ddp.version()
    }

    /// Returns the stream's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters of the DDP stream below.
    pub fn ddp_counters(&self) -> &crate::counters::Counters {
        self.ddp.counters()
    }

    /// Returns the receive half for the LLP. `cx`: the worker's state that the receive half uses.
    pub fn sink<'a>(&'a mut self, cx: Context<'a, M>) -> Sink<'a, M> {
        Sink { stream: self, cx }
    }

    /// Posts an operation. Operations are sent in the order in which they are posted, and complete in that order (RFC
    /// 5040 §5.5 (13), (15)).
    ///
    /// # Errors
    /// [`PostError::Closed`] after this end's close, and for Reads and atomics also after the peer's;
    /// [`PostError::Full`] at the limit of operations; [`PostError::OutOfBounds`] if the source is not in its region;
    /// [`PostError::TooLong`] for 2^32 or more bytes; [`PostError::ToWrap`] if TO plus length exceeds 64 bits;
    /// [`PostError::NoReads`] for Reads and atomics with ORD 0; [`PostError::NoExtensions`] for an operation of RFC
    /// 7306 that the stream does not support.
    pub fn post(&mut self, request: WorkRequest<M>) -> Result<(), PostError> {
        if self.is_closed() || (self.peer_closed && request.is_request()) {
            return Err(PostError::Closed);
        }
        self.check(&request)?;
        if self.operations.len() >= self.max_operations as usize {
            return Err(PostError::Full);
        }
        self.operations.push(request);
        self.post_next();
        Ok(())
    }

    /// Posts the ready-to-receive message (RFC 6581 §9.2), before any other operation. A zero-length Write or Read
    /// names the peer's STag `stag`.
    ///
    /// # Errors
    /// The errors of [`post`](Self::post).
    pub(crate) fn post_ready(&mut self, rtr: Rtr, stag: Stag) -> Result<(), PostError> {
        self.post(WorkRequest::ready(rtr, stag))
    }

    fn check(&self, request: &WorkRequest<M>) -> Result<(), PostError> {
        let is_v0 = self.version() == Some(DdpVersion::V0);
        match request {
            WorkRequest::Send { source, .. } => check_source::<M, M>(source).map(drop),
            WorkRequest::Write { to, source, .. } => {
                check_to(*to, check_source::<M, M>(source)?.into())
            }
            WorkRequest::Read { .. } if self.ord == 0 => Err(PostError::NoReads),
            WorkRequest::Read { sink_to, source_to, len, .. } => {
                check_to(*sink_to, (*len).into())?;
                check_to(*source_to, (*len).into())
            }
            WorkRequest::Atomic { .. } if !self.atomics || is_v0 => Err(PostError::NoExtensions),
            WorkRequest::Atomic { .. } if self.ord == 0 => Err(PostError::NoReads),
            WorkRequest::Atomic { to, .. } => check_to(*to, 8),
            WorkRequest::Immediate { .. } if !self.immediate || is_v0 => {
                Err(PostError::NoExtensions)
            }
            WorkRequest::Immediate { .. } => Ok(()),
        }
    }

    /// Adds `n` receive buffers for Sends and Immediate Data, up to 2^31 - 1 unused buffers.
    ///
    /// # Errors
    /// [`PostError::OtherReceiveMode`] on a stream with posted or shared receives.
    pub fn post_buffers(&mut self, n: u32) -> Result<(), PostError> {
        self.ddp.post_buffers(SEND_QUEUE, n)
    }

    /// Returns the number of unused receive buffers.
    pub fn posted_buffers(&self) -> u32 {
        self.ddp.posted_buffers(SEND_QUEUE).unwrap_or(0)
    }

    /// Returns the next event for the ULP.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the number of events that [`poll_event`](Self::poll_event) has not returned yet.
    #[inline]
    pub fn pending_events(&self) -> usize {
        self.events.len()
    }

    /// Ends posting by the ULP. Posted operations are still sent, and the peer's requests are still served. The LLP
    /// closes its direction when [`has_unsent`](Self::has_unsent) is false. An operation that waits for ORD counts as
    /// unsent, although [`next_len`](UlpduSource::next_len) returns `None`.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Closes as [`close`](Self::close) does, but the LLP receives no more ULPDUs. Messages that have not begun are
    /// flushed. A partly sent message is truncated after its last sent segment.
    pub fn close_now(&mut self) {
        self.closed = true;
        self.abandon_all();
        self.ddp.close_now();
        self.process_sent_events();
    }

    /// Returns true after [`close`](Self::close), [`close_now`](Self::close_now), [`fail`](Self::fail), or a
    /// Terminate in either direction.
    pub fn is_closed(&self) -> bool {
        self.closed || self.ended
    }

    /// Returns true while an operation or a response has not been handed to the LLP completely.
    pub fn has_unsent(&self) -> bool {
        self.ddp.has_unsent() || self.operations.has_waiting() || self.responses.waiting_len() > 0
    }

    /// Returns the number of operations and responses that are not complete.
    pub fn outstanding(&self) -> usize {
        self.operations.len() + self.responses.waiting_len() + self.responses.sent_len()
    }

    /// Returns true while a posted Read or atomic of this end has no response. Meanwhile the LLP must not close its
    /// sending direction.
    pub fn awaits_response(&self) -> bool {
        self.operations.has_requests()
    }

    /// Returns true while a Read of the peer waits for [`release_read`](Self::release_read).
    pub fn holds_reads(&self) -> bool {
        self.responses.has_held_read()
    }

    /// Returns true if the ULP confirms received data: see [`Config::hold_confirmations`].
    pub fn holds_confirmations(&self) -> bool {
        self.ddp.holds_confirmations()
    }

    /// Returns the number of delivered Sends, Immediate Data and Writes, plus the number of executed atomics.
    pub fn delivery_count(&self) -> u64 {
        let Counters { sends_received, immediates_received, writes_received, .. } = *self.counters;
        sends_received + immediates_received + writes_received + self.counters.atomics_served
    }

    /// Returns the number of this end's outstanding Reads and atomics.
    pub fn requests_outstanding(&self) -> usize {
        self.ddp.checks().outstanding_reads() + self.operations.atomics.len()
    }

    /// Returns the number of the peer's requests whose response has not been handed to the LLP completely; at most IRD.
    pub fn requests_held(&self) -> usize {
        let current = self.current_is_response && self.ddp.has_unsent();
        self.responses.waiting_len() + usize::from(current)
    }

    /// Records that the peer's LLP closed its direction gracefully: no more data, and no response, can arrive.
    pub fn on_peer_closed(&mut self) {
        self.ddp.on_peer_closed();
        self.process_sent_events();
        self.post_next();
    }

    /// Ends the stream abortively: every operation is flushed, then the failure is reported, once.
    pub fn fail(&mut self, failure: Failure) {
        self.ended = true;
        self.responses.clear_waiting();
        self.ddp.fail(failure);
        self.process_sent_events();
    }

    /// Returns the cause of the failure, if the stream was ended abortively.
    pub fn failure(&self) -> Option<Failure> {
        self.ddp.failure()
    }

    /// Returns true if the stream has no [`failure`](Self::failure), no [`error`](Self::error), and no Terminate from
    /// the peer.
    #[inline]
    pub(crate) fn is_sound(&self) -> bool {
        self.error.is_none() && self.peer_terminate.is_none() && self.ddp.failure().is_none()
    }

    /// Returns the error with which this end ended the stream. A Terminate reports it to the peer, if this end can send
    /// one.
    pub fn error(&self) -> Option<&Error> {
        self.error.as_deref()
    }

    /// Returns true after a Terminate, sent or received: the LLP must be closed gracefully (RFC 5040 §6.2.1).
    pub fn is_terminated(&self) -> bool {
        self.counters.terminates_sent + self.counters.terminates_received > 0
    }

    /// Returns the peer's Terminate, if it sent one.
    pub fn terminated_by_peer(&self) -> Option<&Terminate> {
        self.peer_terminate.as_deref()
    }

    /// Records that a message of the initiator has shown its readiness. From now on a zero-length Send is an ordinary
    /// Send.
    pub fn on_peer_ready(&mut self) {
        self.ddp.checks_mut().on_peer_ready();
    }

    /// Reports an error of the LLP, with the LLP's numbers, in a Terminate (RFC 5040 §6.2.1).
    pub fn report_llp_error(&mut self, error_type: u8, code: u8) {
        self.terminate(Error::Llp { error_type, code }, MAX_FINISH_BYTES, None);
    }

    /// Ends the stream with a "local catastrophic error" Terminate, for an error of this end.
    pub fn terminate_locally(&mut self) {
        let mismatch = Mismatch::unexpected(Field::MessageLength, 0);
        self.terminate(local_error(ErrorCode::LocalCatastrophic, mismatch), MAX_FINISH_BYTES, None);
    }

    /// Ends the stream with a Terminate if the peer's Reads from this revoked STag are not all answered. Returns true
    /// if the stream was ended.
    pub fn on_stag_revoked(&mut self, stag: Stag) -> bool {
        self.terminate_reads(stag, None)
    }

    /// Releases the peer's oldest held Read. The response to this Read follows the responses to
    /// earlier requests.
    pub fn release_read(&mut self) {
        self.responses.release_held_read();
        self.post_next();
    }

    /// Returns the buffers of unfinished messages to the pool, and flushes posted receives; no segment is accepted
    /// afterwards.
    pub fn release(&mut self, buffers: &mut BufferPool) {
        self.ddp.release(buffers);
        self.flush_receives();
    }

    fn identity(&self) -> StreamIdentity {
        StreamIdentity { pd: self.ddp.pd(), stream: self.ddp.id() }
    }

    /// Ends the stream if the peer's Reads from this STag are unfinished. The Terminate contains the Read Request of
    /// the oldest one, advanced past the bytes already sent (RFC 5040 §4.8). Returns true if a Read was unfinished.
    fn terminate_reads(&mut self, stag: Stag, buffers: Option<&mut BufferPool>) -> bool {
        let current = self.current_is_response && self.ddp.has_unsent();
        let Some(PendingRead { request, request_segment, begun }) =
            self.responses.find_read(stag, current)
        else {
            return false;
        };
        if self.ended {
            // An earlier Terminate is queued after this response. The region must not be read any more, so neither the
            // rest of the response nor the Terminate is sent.
            self.ddp.close_now();
            self.process_sent_events();
            return true;
        }
        let done = if begun { self.ddp.current_sent() } else { 0 };
        let error = Error::Rdmap(RdmapError {
            code: ErrorCode::InvalidStag,
            mismatch: Mismatch::unexpected(Field::Stag, stag.0.into()),
            header: request_segment.header,
            segment_len: request_segment.segment_len,
            read_request: Some(request.advanced(done)),
        });
        self.terminate(error, 0, buffers);
        true
    }

    /// Reports the error to the peer (RFC 5040 §5.4, §6.2.1). Operations and responses not yet handed to DDP are
    /// flushed, and no message follows the Terminate. A partly sent message is completed first if at most `finish` of
    /// its bytes are unsent.
    fn terminate(&mut self, error: Error, finish: u32, buffers: Option<&mut BufferPool>) {
        // RFC 5040 §7.1 (4): only the first error is reported.
        if self.ended {
            return;
        }
        // Completed operations are reported before the error.
        self.report_completions();
        let terminate = error.terminate();
        if let Error::Rdmap(error) = &error {
            self.counters.errors[error.code.index()] += 1;
        }
        self.events.push_back(Event::Error(error.clone()));
        self.error = Some(Box::new(error));
        self.ddp.stop_receiving(buffers);
        self.abandon_all();
        match (terminate, self.version()) {
            (Some(terminate), Some(version)) => {
                let message = terminate_message(&terminate, version);
                // Posting fails after `close_now`: no more messages are sent.
                if self.ddp.post_last_after(message, finish).is_ok() {
                    self.counters.terminates_sent += 1;
                    self.events.push_back(Event::Terminated { by_peer: false, terminate });
                }
            }
            // Without a determined version no Terminate can be sent, and no message was sent before.
            _ => self.ddp.close_now(),
        }
        self.process_sent_events();
    }

    /// Abandons all messages not yet handed to DDP, and all awaited responses.
    fn abandon_all(&mut self) {
        self.ended = true;
        self.responses.clear_waiting();
        self.operations.flush_waiting(false);
        self.flush_requests();
    }

    /// Flushes outstanding Reads and atomics, whose responses will not arrive.
    fn flush_requests(&mut self) {
        let operations = &mut self.operations;
        self.ddp.checks_mut().drain_reads().for_each(|number| operations.flush(number));
        while let Some(OutstandingAtomic { operation, .. }) = operations.atomics.pop_front() {
            operations.flush(operation);
        }
    }

    /// Posts the next message to DDP if DDP has none to send. DDP receives one message at a time, so that operations
    /// and responses alternate.
    fn post_next(&mut self) {
        let Some(version) = self.version() else { return };
        if self.ended || self.ddp.has_unsent() || self.ddp.outstanding() >= self.max_posts as usize
        {
            return;
        }
        let response = self.response_next.then(|| self.next_response(version)).flatten();
        let operation = response.is_none().then(|| self.next_operation(version)).flatten();
        let first = response.map(|m| (m, true)).or(operation.map(|m| (m, false)));
        let last = || self.next_response(version).map(|m| (m, true));
        let Some((message, is_response)) = first.or_else(last) else { return };
        self.current_is_response = is_response;
        self.response_next = !is_response;
        // Operations were checked when they were posted, and requests when they were delivered. A refusal by DDP is
        // therefore an error of this end.
        if self.ddp.post(message).is_err() {
            self.terminate_locally();
        }
    }

    fn next_response(&mut self, version: DdpVersion) -> Option<Message<M>> {
        let cookie = Cookie::RESPONSE;
        Some(match self.responses.issue()? {
            Response::Read { request, source, .. } => Message::Tagged {
                // RFC 5040 §4.4: the sink's STag and TO are copied from the request without interpretation.
                stag: request.sink_stag,
                to: request.sink_to,
                rsvd_ulp: Control::new(version, Opcode::ReadResponse).0,
                source,
                cookie,
            },
            Response::Atomic(repr) => Message::Untagged {
                qn: ATOMIC_RESPONSE_QUEUE,
                rsvd_ulp: Control::new(version, Opcode::AtomicResponse).with_invalidate(None),
                source: Source::Bytes(Arc::from(repr.emit())),
                cookie,
            },
        })
    }

    /// Returns the next operation's message. RFC 5040 §6.1: at most ORD requests are outstanding. RFC 7306 §5.2:
    /// atomics count as requests.
    fn next_operation(&mut self, version: DdpVersion) -> Option<Message<M>> {
        let waiting = self.operations.next_waiting()?;
        if waiting.is_request() && self.requests_outstanding() >= self.ord as usize {
            if !self.ord_wait_counted {
                self.ord_wait_counted = true;
                self.counters.ord_waits += 1;
            }
            return None;
        }
        self.ord_wait_counted = false;
        let (number, request) = self.operations.issue()?;
        Some(self.build_message(number, request, version))
    }

    fn build_message(
        &mut self,
        number: u64,
        request: WorkRequest<M>,
        version: DdpVersion,
    ) -> Message<M> {
        let cookie = Cookie::user(number);
        let untagged = |qn, opcode, invalidate, source| {
            let rsvd_ulp = Control::new(version, opcode).with_invalidate(invalidate);
            Message::Untagged { qn, rsvd_ulp, source, cookie }
        };
        match request {
            WorkRequest::Send { source, solicited, invalidate, .. } => {
                let opcode = match (solicited, invalidate.is_some()) {
                    (false, false) => Opcode::Send,
                    (false, true) => Opcode::SendInvalidate,
                    (true, false) => Opcode::SendSolicited,
                    (true, true) => Opcode::SendSolicitedInvalidate,
                };
                untagged(SEND_QUEUE, opcode, invalidate, source)
            }
            WorkRequest::Write { stag, to, source, .. } => {
                let rsvd_ulp = Control::new(version, Opcode::Write).0;
                Message::Tagged { stag, to, rsvd_ulp, source, cookie }
            }
            WorkRequest::Read { sink_stag, sink_to, source_stag, source_to, len, .. } => {
                self.ddp.checks_mut().push_read(number, sink_stag, sink_to, len);
                let size = len;
                let repr = ReadRequestRepr { sink_stag, sink_to, size, source_stag, source_to };
                let source = Source::Bytes(Arc::from(repr.emit()));
                untagged(REQUEST_QUEUE, Opcode::ReadRequest, None, source)
            }
            WorkRequest::Atomic { op, stag, to, .. } => {
                let id = self.next_atomic_id;
                self.next_atomic_id = id.wrapping_add(1);
                self.operations.atomics.push_back(OutstandingAtomic { operation: number, id });
                // RFC 7306 §5.2.2 (5): each atomic adds one buffer for its response. Posting cannot fail: the queue
                // exists, since without it `post` refuses atomics.
                let _posted = self.ddp.post_buffers(ATOMIC_RESPONSE_QUEUE, 1);
                let repr = AtomicRequestRepr { id, stag, to, op };
                let source = Source::Bytes(Arc::from(repr.emit()));
                untagged(REQUEST_QUEUE, Opcode::AtomicRequest, None, source)
            }
            WorkRequest::Immediate { data, solicited, .. } => {
                let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
                untagged(SEND_QUEUE, opcode, None, Source::Bytes(Arc::from(data)))
            }
        }
    }
}

/// Returns the message that carries a Terminate, the only message on queue 2 (RFC 5040 §4.1, §5.4).
pub(crate) fn terminate_message<M>(terminate: &Terminate, version: DdpVersion) -> Message<M> {
    let source = Source::Bytes(Arc::from(terminate.emit().as_slice()));
    let rsvd_ulp = Control::new(version, Opcode::Terminate).with_invalidate(None);
    Message::Untagged { qn: TERMINATE_QUEUE, rsvd_ulp, source, cookie: Cookie::TERMINATE }
}

/// Returns an error that no segment caused (RFC 5040 §7.1 (1)).
fn local_error(code: ErrorCode, mismatch: Mismatch) -> Error {
    let (header, segment_len, read_request) = (Default::default(), 0, None);
    Error::Rdmap(RdmapError { code, mismatch, header, segment_len, read_request })
}

/// Receive half of a stream, used by the LLP.
#[derive(Debug)]
pub struct Sink<'a, M> {
    stream: &'a mut Stream<M>,
    cx: Context<'a, M>,
}

impl<M: RegionMemory> UlpduSink for Sink<'_, M> {
    fn ulpdu(&mut self, key: OrderKey, ulpdu: Ulpdu<'_>) -> Disposition {
        let disposition = self.stream.ddp.sink(self.cx.reborrow()).ulpdu(key, ulpdu);
        self.stream.process_ddp_events(self.cx.stags, self.cx.buffers);
        disposition
    }

    fn order_complete(&mut self, before: OrderKey) {
        if self.stream.ddp.sink(self.cx.reborrow()).complete_order(before) {
            self.stream.process_ddp_events(self.cx.stags, self.cx.buffers);
        }
    }
}

/// Marks `out` as unstable if it is a Read Response. The LLP then retransmits from its own copy, because the region may
/// change or be removed.
fn mark_unstable(mut out: Outgoing) -> Outgoing {
    out.stable &= !(out.header.control().is_tagged() && is_response(out.header.rsvd_ulp()));
    out
}

/// Returns true for the control field of a Read Response.
fn is_response(rsvd_ulp: u8) -> bool {
    Control(rsvd_ulp).opcode() == Some(Opcode::ReadResponse)
}

impl<M: RegionMemory> UlpduSource for Stream<M> {
    fn next_len(&self, mulpdu: usize) -> Option<usize> {
        self.ddp.next_len(mulpdu)
    }

    fn next_is_stable(&self) -> bool {
        let control = self.ddp.next_tagged_control();
        !control.is_some_and(is_response) && self.ddp.next_is_stable()
    }

    fn next(&mut self, mulpdu: usize) -> Option<Outgoing> {
        let out = self.ddp.next(mulpdu).map(mark_unstable)?;
        if !self.ddp.has_unsent() {
            if core::mem::take(&mut self.current_is_response) && !self.ended {
                // The LLP has the whole response, so the peer may send one more request. The post cannot fail, because
                // the queue always exists.
                let _posted = self.ddp.post_buffers(REQUEST_QUEUE, 1);
            }
            self.post_next();
        }
        Some(out)
    }

    fn reframe(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
        mark_unstable(self.ddp.reframe(token, payload_len))
    }

    #[inline]
    fn read_pieces<'a>(
        &self,
        token: UlpduToken,
        at: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    ) {
        self.ddp.read_pieces(token, at, pieces);
    }

    #[inline]
    fn read_digested(&self, token: UlpduToken, at: usize, target: &mut Target<'_>) {
        self.ddp.read_digested(token, at, target);
    }

    fn on_acknowledged(&mut self, token: UlpduToken, payload_len: usize) {
        self.ddp.on_acknowledged(token, payload_len);
        self.process_sent_events();
        self.post_next();
    }
}
