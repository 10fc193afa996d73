//! Processing of the messages that DDP delivers (RFC 5040 §5, RFC 7306 §5, §6), and of DDP's events about sent
//! messages.

use wire::rdmap::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicError as AtomicHeaderError, AtomicRequestRepr,
    AtomicResponseRepr, Control, IMMEDIATE_LEN, Opcode, READ_REQUEST_LEN, ReadRequestRepr,
    split_rsvd_ulp,
};
use wire::{Stag, TaggedOffset};

use super::{MAX_FINISH_BYTES, Stream};
use crate::buffers::BufferPool;
use crate::checks::FilledReceive;
use crate::cookie::Poster;
use crate::error::{Field, Mismatch};
use crate::memory::{AtomicError, RegionMemory};
use crate::message::{Event as DdpEvent, Source};
use crate::rdmap::access_checks::locate;
use crate::rdmap::checks::DeliveredSegment;
use crate::rdmap::responses::{RequestSegment, Response, SentResponse};
use crate::rdmap::{Error, ErrorCode, Event, Outcome, RdmapError, Terminate};
use crate::stag::{Access, StagTable};

/// The error in a delivered message, and the Read Request in error, if any.
type Rejection = (ErrorCode, Mismatch, Option<ReadRequestRepr>);

impl<M: RegionMemory> Stream<M> {
    /// Processes DDP's events after a call by the LLP that may have delivered messages.
    pub(super) fn process_ddp_events(&mut self, stags: &StagTable<M>, buffers: &mut BufferPool) {
        while let Some(event) = self.ddp.poll_event() {
            match event {
                DdpEvent::TaggedDelivered { stag, to, len, rsvd_ulp } => {
                    if !self.ended {
                        self.on_tagged(Control(rsvd_ulp), stag, to, len, buffers);
                    }
                }
                DdpEvent::UntaggedDelivered { data, rsvd_ulp, .. } => {
                    // After the end, delivered messages are not reported: `flush_receives` flushes their receives.
                    if !self.ended
                        && let Some(delivered) = self.ddp.checks_mut().pop_delivered()
                    {
                        self.on_untagged(rsvd_ulp, data, &delivered, stags, buffers);
                    }
                }
                DdpEvent::Error(error) => {
                    self.terminate(Error::Ddp(error), MAX_FINISH_BYTES, Some(buffers));
                }
                other => self.on_sent_event(other),
            }
        }
        if let Some(error) = self.ddp.checks_mut().reached_error.take().map(|error| *error) {
            self.terminate(error, MAX_FINISH_BYTES, Some(buffers));
        }
        self.report_completions();
        self.flush_ended_receives();
        self.post_next();
    }

    /// Processes DDP's events after a call that cannot deliver messages.
    pub(super) fn process_sent_events(&mut self) {
        while let Some(event) = self.ddp.poll_event() {
            self.on_sent_event(event);
        }
        self.report_completions();
        self.flush_ended_receives();
    }

    fn on_sent_event(&mut self, event: DdpEvent) {
        match event {
            DdpEvent::Sent { cookie, messages } => match cookie.poster() {
                // Each operation has its own number, so `messages` is 1.
                Poster::User(operation) => self.operations.on_acknowledged(operation),
                Poster::Response => (0..messages).for_each(|_| self.on_response_sent()),
                Poster::Stack | Poster::Load | Poster::Service | Poster::Terminate => {}
            },
            DdpEvent::Flushed { cookie } => match cookie.poster() {
                Poster::User(operation) => self.operations.flush(operation),
                Poster::Response => self.responses.pop_flushed(),
                Poster::Stack | Poster::Load | Poster::Service | Poster::Terminate => {}
            },
            DdpEvent::PeerClosed { incomplete } => {
                self.peer_closed = true;
                self.flush_requests();
                self.operations.flush_waiting(true);
                self.report_completions();
                self.flush_receives();
                self.events.push_back(Event::PeerClosed { incomplete });
            }
            DdpEvent::Failed(why) => {
                self.ended = true;
                self.responses.clear_waiting();
                self.operations.flush_all();
                self.report_completions();
                self.flush_receives();
                self.events.push_back(Event::Failed(why));
            }
            // Deliveries and errors arise only in the LLP's receive calls, whose events `process_ddp_events` handles.
            DdpEvent::TaggedDelivered { .. }
            | DdpEvent::UntaggedDelivered { .. }
            | DdpEvent::Error(_) => {}
        }
    }

    /// Removes the oldest sent response, which is acknowledged. Counts and reports it if it is a Read Response.
    fn on_response_sent(&mut self) {
        if let Some(SentResponse::Read { request, .. }) = self.responses.pop_acknowledged() {
            self.counters.reads_served += 1;
            self.counters.read_bytes_served += u64::from(request.size);
            self.events.push_back(Event::ReadServed { len: request.size });
        }
    }

    /// Reports completions in the order of posting (RFC 5040 §5.5 (15)).
    pub(super) fn report_completions(&mut self) {
        while let Some((cookie, outcome)) = self.operations.pop_ended() {
            self.events.push_back(match outcome {
                Some(outcome) => {
                    self.counters.completed += 1;
                    Event::Completed { cookie, outcome }
                }
                None => {
                    self.counters.flushed += 1;
                    Event::Flushed { cookie }
                }
            });
        }
    }

    fn on_tagged(
        &mut self,
        control: Control,
        stag: Stag,
        to: TaggedOffset,
        len: u64,
        buffers: &mut BufferPool,
    ) {
        if control.opcode() != Some(Opcode::ReadResponse) {
            self.counters.writes_received += 1;
            self.counters.written_bytes += len;
            self.events.push_back(Event::WriteDelivered { stag, to, len });
            return;
        }
        // RFC 5040 §5.5 (20): a delivered response is enough to complete the Read.
        if let Some(read) = self.ddp.checks_mut().pop_completed_read() {
            let charged = read.received.reserved_bytes();
            if charged > 0 {
                self.ddp.release_range_memory(buffers, charged);
            }
            self.counters.read_bytes += u64::from(read.len);
            self.operations.complete(read.operation, Outcome::Read { len: read.len });
        }
    }

    fn on_untagged(
        &mut self,
        rsvd_ulp: [u8; 5],
        data: Vec<u8>,
        delivered: &DeliveredSegment,
        stags: &StagTable<M>,
        buffers: &mut BufferPool,
    ) {
        let (control, stag) = split_rsvd_ulp(rsvd_ulp);
        let Some(opcode) = control.opcode() else { return };
        let result = match opcode {
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => {
                let invalidate = opcode.invalidates().then_some(stag);
                self.on_send(data, opcode, invalidate, delivered, stags, buffers)
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.on_immediate(&data, opcode, delivered)
            }
            Opcode::ReadRequest => {
                let result = self.on_read_request(&data, delivered, stags);
                buffers.recycle(data);
                result
            }
            Opcode::AtomicRequest => self.on_atomic_request(&data, stags),
            Opcode::AtomicResponse => self.on_atomic_response(&data),
            Opcode::Terminate => {
                self.on_terminate(&data, buffers);
                Ok(())
            }
            // Not reached: `admit` refuses tagged opcodes on a queue.
            Opcode::Write | Opcode::ReadResponse => Ok(()),
        };
        if let Err((code, mismatch, read_request)) = result {
            let (header, segment_len) = (delivered.header(), delivered.segment_len());
            self.ddp.checks_mut().put_back_delivered(*delivered);
            let error = RdmapError { code, mismatch, header, segment_len, read_request };
            self.terminate(Error::Rdmap(error), MAX_FINISH_BYTES, Some(buffers));
        }
    }

    /// Delivers a Send (RFC 5040 §5.3).
    fn on_send(
        &mut self,
        data: Vec<u8>,
        opcode: Opcode,
        invalidated: Option<Stag>,
        delivered: &DeliveredSegment,
        stags: &StagTable<M>,
        buffers: &mut BufferPool,
    ) -> Result<(), Rejection> {
        if delivered.is_ready {
            self.events.push_back(Event::ReadyToReceive);
            return Ok(());
        }
        check_one_opcode(opcode, delivered)?;
        let mut reads_end = None;
        if let Some(stag) = invalidated {
            let party = self.identity();
            // RFC 5040 §5.3, §7.2 (4), (5): access ends before the Send is delivered.
            if !stags.invalidate(stag, party.pd, party.stream) {
                let mismatch = Mismatch::unexpected(Field::Stag, stag.0.into());
                return Err((ErrorCode::CannotInvalidate, mismatch, None));
            }
            self.counters.invalidations += 1;
            reads_end = Some(stag);
        }
        self.counters.sends_received += 1;
        let solicited = opcode.is_solicited();
        self.events.push_back(match delivered.receive {
            None => Event::Received { data, solicited, invalidated },
            Some(FilledReceive { cookie, len, .. }) => {
                Event::ReceivedInto { cookie, len, solicited, invalidated }
            }
        });
        if let Some(stag) = reads_end {
            self.terminate_reads(stag, Some(buffers));
        }
        Ok(())
    }

    /// Delivers Immediate Data (RFC 7306 §6.3: exactly 8 bytes).
    fn on_immediate(
        &mut self,
        data: &[u8],
        opcode: Opcode,
        delivered: &DeliveredSegment,
    ) -> Result<(), Rejection> {
        check_one_opcode(opcode, delivered)?;
        let len = delivered.receive.map_or(data.len(), |receive| receive.len as usize);
        let data = <[u8; IMMEDIATE_LEN]>::try_from(data);
        let data = data.ok().filter(|_| len == IMMEDIATE_LEN);
        let data = data.ok_or(length_error(len, IMMEDIATE_LEN))?;
        self.counters.immediates_received += 1;
        let solicited = opcode.is_solicited();
        self.events.push_back(match delivered.receive {
            None => Event::Immediate { data, solicited },
            Some(FilledReceive { cookie, .. }) => Event::ImmediateInto { cookie, data, solicited },
        });
        Ok(())
    }

    /// Checks a delivered Read Request and queues its response (RFC 5040 §5.2.1, §5.5 (12), (17)).
    fn on_read_request(
        &mut self,
        data: &[u8],
        delivered: &DeliveredSegment,
        stags: &StagTable<M>,
    ) -> Result<(), Rejection> {
        self.counters.reads_received += 1;
        let request = ReadRequestRepr::parse(data).ok();
        let request = request.filter(|_| data.len() == READ_REQUEST_LEN);
        let request = request.ok_or(length_error(data.len(), READ_REQUEST_LEN))?;
        let ReadRequestRepr { sink_to, size, source_stag, source_to, .. } = request;
        let source = if size == 0 {
            // RFC 5040 §5.2.1: neither STag nor TO is validated; a zero-length response follows.
            Source::Bytes(Default::default())
        } else {
            let needed = Access::REMOTE_READ;
            let found = locate(stags, self.identity(), source_stag, source_to, size, needed);
            let (entry, offset) = found.map_err(|(code, m)| (code, m, Some(request)))?;
            if sink_to.0.checked_add(size.into()).is_none() {
                let end = sink_to.0.wrapping_add(size.into());
                let mismatch = Mismatch::unexpected(Field::TaggedEnd, end);
                return Err((ErrorCode::ToWrap, mismatch, Some(request)));
            }
            Source::Region { memory: entry.memory.clone(), offset, len: size }
        };
        let request_segment = request_segment(delivered);
        let held = size == 0 && self.ddp.holds_confirmations();
        if held {
            self.events.push_back(Event::ReadHeld);
        }
        self.queue_response(Response::Read { request, source, request_segment, held });
        Ok(())
    }

    /// Executes a delivered atomic and queues its response (RFC 7306 §5.2.1, §5.4 (3), (5)).
    fn on_atomic_request(&mut self, data: &[u8], stags: &StagTable<M>) -> Result<(), Rejection> {
        let request = AtomicRequestRepr::parse(data).map_err(|error| match error {
            AtomicHeaderError::Truncated(_) => length_error(data.len(), ATOMIC_REQUEST_LEN),
            // RFC 7306 §5.2.1 (4): an undefined operation is an unexpected opcode.
            AtomicHeaderError::Code(code) => {
                let mismatch = Mismatch::unexpected(Field::AtomicCode, code.into());
                (ErrorCode::UnexpectedOpcode, mismatch, None)
            }
        })?;
        let AtomicRequestRepr { id, stag, to, op } = request;
        let found = locate(stags, self.identity(), stag, to, 8, Access::ATOMIC);
        let (entry, offset) = found.map_err(|(code, mismatch)| (code, mismatch, None))?;
        let original = entry.memory.fetch_update_u64(offset, |value| op.apply(value));
        let original = original.map_err(|error| match error {
            // RFC 7306 §8.2: the address must be 64-bit aligned.
            AtomicError::Unaligned => {
                let mismatch = Mismatch::exact(Field::Alignment, offset % 8, 0);
                (ErrorCode::StreamCatastrophic, mismatch, None)
            }
            AtomicError::OutOfBounds | AtomicError::Unsupported => {
                let (seen, needed) = (0, Access::ATOMIC.bits().into());
                let mismatch = Mismatch::exact(Field::Access, seen, needed);
                (ErrorCode::AccessRights, mismatch, None)
            }
        })?;
        self.counters.atomics_served += 1;
        self.events.push_back(Event::AtomicServed { stag, to });
        self.queue_response(Response::Atomic(AtomicResponseRepr { id, original }));
        Ok(())
    }

    fn queue_response(&mut self, response: Response<M>) {
        self.responses.push(response);
        let held = self.requests_held() as u64;
        self.counters.requests_max = self.counters.requests_max.max(held);
    }

    /// Completes the oldest outstanding atomic (RFC 7306 §5.2.2).
    fn on_atomic_response(&mut self, data: &[u8]) -> Result<(), Rejection> {
        let response = AtomicResponseRepr::parse(data)
            .map_err(|_| length_error(data.len(), ATOMIC_RESPONSE_LEN))?;
        let Some(oldest) = self.operations.atomics.front().copied() else {
            let opcode = Opcode::AtomicResponse.bits().into();
            let mismatch = Mismatch::unexpected(Field::Opcode, opcode);
            return Err((ErrorCode::UnexpectedOpcode, mismatch, None));
        };
        if response.id != oldest.id {
            let mismatch = Mismatch::exact(Field::RequestId, response.id.into(), oldest.id.into());
            return Err((ErrorCode::StreamCatastrophic, mismatch, None));
        }
        self.operations.atomics.pop_front();
        let outcome = Outcome::Atomic { original: response.original };
        self.operations.complete(oldest.operation, outcome);
        Ok(())
    }

    /// Ends the stream after the peer's Terminate (RFC 5040 §5.4).
    fn on_terminate(&mut self, data: &[u8], buffers: &mut BufferPool) {
        let parse = if self.siw { Terminate::parse_siw } else { Terminate::parse };
        let Ok(terminate) = parse(data) else {
            let error = Error::InvalidTerminate { len: data.len() };
            self.terminate(error, 0, Some(buffers));
            return;
        };
        self.report_completions();
        self.counters.terminates_received += 1;
        self.peer_terminate = Some(Box::new(terminate.clone()));
        self.events.push_back(Event::Terminated { by_peer: true, terminate });
        self.ddp.stop_receiving(Some(buffers));
        self.abandon_all();
        self.ddp.close_now();
    }
}

/// Checks that a message for a posted receive is either a Send or Immediate Data (RFC 5040 §4.1: one opcode).
fn check_one_opcode(opcode: Opcode, delivered: &DeliveredSegment) -> Result<(), Rejection> {
    if delivered.receive.is_some_and(|receive| receive.mixed) {
        let mismatch = Mismatch::unexpected(Field::Opcode, opcode.bits().into());
        return Err((ErrorCode::UnexpectedOpcode, mismatch, None));
    }
    Ok(())
}

fn request_segment(delivered: &DeliveredSegment) -> RequestSegment {
    RequestSegment { header: delivered.header(), segment_len: delivered.segment_len() }
}

fn length_error(seen: usize, expected: usize) -> Rejection {
    let mismatch = Mismatch::exact(Field::MessageLength, seen as u64, expected as u64);
    (ErrorCode::StreamCatastrophic, mismatch, None)
}
