//! Processing of received packets: verification tags (RFC 9260 §8.5), then the chunks in order (§6.10). A chunk that
//! drops the rest of its packet does not undo the earlier chunks. [`fast_path`](super::fast_path) processes predicted
//! packets.

use base::Instant;
use transport::recorder::Kind;
use transport::right_sizing::WindowUsage;
use wire::sctp::{Cause, Causes, Chunk, Data, Packet, RawChunk, Sack, Tag, Tsn, chunk_type};

use super::association::{Association, CloseReason, Event, Fault, MAX_REASON};
use super::drop_reason::DropReason;
use super::pending::Reply;
use super::receive::{Arrival, Violation};
use super::send::{AckEffect, BadSack};
use super::single_chunk::SingleChunkPacket;
use super::state::{State, Transition};
use super::timers::Timer;
use crate::seam::{MessageSink, MessageSource};

/// Decision on the remaining chunks of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NextStep {
    /// The remaining chunks are processed.
    Continue,
    /// The remaining chunks are not processed. Contains the drop reason, if there is one.
    Stop(Option<DropReason>),
}

/// Result of checking the verification tag of a packet that is not dropped.
enum TagOwner {
    /// The packet belongs to this association; its chunks are processed next. `cookie_seen`: the first chunk, a COOKIE
    /// ECHO, is already processed.
    Ours { cookie_seen: bool },
    /// The packet has another tag, and its processing is complete.
    Other,
}

/// Result of processing a packet.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputResult {
    /// True if the packet has this association's verification tag or a valid cookie, which shows that its sender has
    /// state of the association (RFC 9260 §8.5, §5.2.4). False for a reflected tag, and for an INIT, which any host can
    /// send; an INIT is answered nevertheless. The owner must not use the source address of an unverified packet as
    /// the peer's address.
    pub verified: bool,
    /// True if this packet queued a reply in a separate packet, for [`poll_reply`](Association::poll_reply) or
    /// [`poll_transmit`](Association::poll_transmit).
    pub reply_pending: bool,
    /// Reason why the packet, or its first unprocessed chunk, was dropped. Earlier chunks were processed.
    pub result: Result<(), DropReason>,
}

impl Association {
    /// Processes a received packet between the two ends. The caller has verified its checksum, and calls
    /// [`poll_transmit`](Self::poll_transmit) at the end of a burst.
    pub fn input(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        upper: &mut (impl MessageSink + MessageSource),
    ) -> InputResult {
        let next = self.predicted_chunk(packet, upper);
        self.input_on_path(next, now, packet, upper)
    }

    /// Takes the fast path ([`fast_path`](super::fast_path)) if `next` is the chunk of a predicted packet, otherwise
    /// the slow path.
    #[inline]
    pub(super) fn input_on_path(
        &mut self,
        next: Option<Data<'_>>,
        now: Instant,
        packet: &Packet<'_>,
        upper: &mut (impl MessageSink + MessageSource),
    ) -> InputResult {
        if let Some(chunk) = next {
            let result = self.input_fast_path(now, &chunk, upper);
            return InputResult { verified: true, reply_pending: false, result };
        }
        self.input_slow_path(now, packet, upper)
    }

    fn input_slow_path(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        upper: &mut (impl MessageSink + MessageSource),
    ) -> InputResult {
        let had_reply = self.pending_replies.reply.is_some();
        let (verified, result) = match self.verify(now, packet, upper) {
            Ok(TagOwner::Ours { cookie_seen }) => {
                self.liveness.last_received = now;
                self.stats.packets_in += 1;
                (true, self.process_chunks(now, packet, cookie_seen, upper))
            }
            Ok(TagOwner::Other) => (false, Ok(())),
            Err(reason) => (false, Err(reason)),
        };
        let reply_pending = !had_reply && self.pending_replies.reply.is_some();
        InputResult { verified, reply_pending, result }
    }

    /// Checks the verification tag (RFC 9260 §8.5). Also processes a COOKIE ECHO that is the first chunk, and all
    /// chunks of a packet without this end's tag.
    fn verify(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        upper: &mut (impl MessageSink + MessageSource),
    ) -> Result<TagOwner, DropReason> {
        if self.state == State::Closed {
            return Err(DropReason::Closed);
        }
        let first = packet.chunks().next().ok_or(DropReason::BadHeader)?;
        let first = first.map_err(|_| DropReason::BadChunk)?;
        match first.kind {
            chunk_type::INIT => {
                return self.on_init(now, packet, first).map(|()| TagOwner::Other);
            }
            chunk_type::COOKIE_ECHO => {
                let before = self.identity.local_tag;
                self.on_cookie_echo(now, packet.tag(), first)?;
                if let Some(Event::Restarted { streams }) = self.last_event()
                    && self.identity.local_tag != before
                {
                    upper.on_restart(now, *streams);
                }
            }
            // RFC 9260 §8.5.1 E, §9.2: during the setup, a SHUTDOWN ACK is treated as out of the blue.
            chunk_type::SHUTDOWN_ACK if self.state.is_opening() => {
                let complete = SingleChunkPacket::shutdown_complete(packet.tag(), true);
                self.queue_reply(Reply::Chunk(complete));
                return Err(DropReason::OutOfTheBlue);
            }
            _ if packet.tag() != self.identity.local_tag => {
                return self.on_reflected(now, packet).map(|()| TagOwner::Other);
            }
            _ => {}
        }
        Ok(TagOwner::Ours { cookie_seen: first.kind == chunk_type::COOKIE_ECHO })
    }

    /// Processes the chunks of a packet with a verified tag. `cookie_seen`: the first chunk, a COOKIE ECHO, is already
    /// processed and is skipped.
    fn process_chunks(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        cookie_seen: bool,
        upper: &mut (impl MessageSink + MessageSource),
    ) -> Result<(), DropReason> {
        let mut dropped = Ok(());
        let mut data = false;
        for raw in packet.chunks().skip(usize::from(cookie_seen)) {
            let chunk = raw.and_then(|raw| Chunk::parse(raw).map(|chunk| (raw, chunk)));
            let Ok((raw, chunk)) = chunk else {
                // RFC 9260 §6.10: a partial or malformed chunk is dropped, and the rest of the packet with it.
                dropped = dropped.and(Err(DropReason::BadChunk));
                break;
            };
            let result = match chunk {
                Chunk::Data(chunk) => {
                    data |= self.state.receives_data();
                    self.on_data(now, &chunk, upper)
                }
                Chunk::Sack(sack) => self.on_sack(now, &sack, upper),
                Chunk::Shutdown { cumulative } => self.on_shutdown(now, cumulative, upper),
                chunk => self.on_control(now, packet, raw, chunk),
            };
            match result {
                Ok(NextStep::Continue) => {}
                Ok(NextStep::Stop(why)) => {
                    dropped = dropped.and(why.map_or(Ok(()), Err));
                    break;
                }
                Err(why) => dropped = dropped.and(Err(why)),
            }
        }
        if data {
            self.end_data(now);
        }
        dropped
    }

    /// Processes the end of a packet with DATA chunks.
    fn end_data(&mut self, now: Instant) {
        self.receiver.end_packet(now);
        if self.state == State::ShutdownSent {
            // RFC 9260 §9.2, §4 note 4: a SHUTDOWN is sent at once, bundled with a SACK, and the timer restarts.
            self.receiver.acknowledge_now();
            self.due_chunks.shutdown = true;
            self.handshake.attempts = 0;
            self.errors = 0;
        }
    }

    fn on_data(
        &mut self,
        now: Instant,
        chunk: &Data<'_>,
        sink: &mut impl MessageSink,
    ) -> Result<NextStep, DropReason> {
        if !self.state.receives_data() {
            return Err(DropReason::UnexpectedChunk); // RFC 9260 §6
        }
        if self.receiver.stats().chunks == 0 {
            self.receiver.acknowledge_now(); // RFC 9260 §5.1
        }
        match self.receiver.on_data(now, chunk, sink) {
            Arrival::Delivered | Arrival::Held | Arrival::Duplicate => {
                if self.receiver.is_half_used() {
                    self.grow_window(now, sink);
                }
            }
            Arrival::Refused(why) => return Err(why.into()),
            Arrival::InvalidStream => {
                self.queue_error_cause(&Cause::InvalidStream(chunk.header.stream)); // RFC 9260 §6.5
            }
            Arrival::Abort(violation) => {
                let cause = match violation {
                    Violation::NoUserData => Cause::NoUserData(chunk.header.tsn), // RFC 9260 §6.2
                    Violation::Fragments => Cause::ProtocolViolation(b"fragments"),
                    Violation::MessageTooLong => Cause::OutOfResource,
                };
                self.abort_with(now, cause, CloseReason::Fault(Fault::Data(violation)));
                return Ok(NextStep::Stop(Some(DropReason::Violation)));
            }
        }
        Ok(NextStep::Continue)
    }

    /// Grows the window if the peer uses more than half of it per round trip and the worker grants the memory. Called
    /// after half a window of data has arrived; takes effect at most once per round trip.
    #[cold]
    pub(super) fn grow_window(&mut self, now: Instant, sink: &mut impl MessageSink) {
        if let (Some(next), Some(rtt)) = (self.receiver.next_window(), self.sender.base_rtt()) {
            let (grown, increase) = (self.receiver.growth(), next - self.receiver.max_window());
            match self.receiver.usage(now, rtt) {
                WindowUsage::Early => return,
                WindowUsage::Tight
                    if sink.free_space() >= next && sink.grow_window(grown, increase.into()) =>
                {
                    self.receiver.grow(next);
                }
                WindowUsage::Tight | WindowUsage::Ample => {}
            }
        }
        self.receiver.start_measurement(now);
    }

    fn on_sack(
        &mut self,
        now: Instant,
        sack: &Sack<'_>,
        source: &mut impl MessageSource,
    ) -> Result<NextStep, DropReason> {
        if !self.state.sends_data() {
            return Err(DropReason::UnexpectedChunk); // RFC 9260 §6
        }
        let acknowledged = self.sender.on_sack(now, sack, source);
        self.on_acknowledged(now, acknowledged)
    }

    fn on_acknowledged(
        &mut self,
        now: Instant,
        acknowledged: Result<AckEffect, BadSack>,
    ) -> Result<NextStep, DropReason> {
        match acknowledged {
            Ok(AckEffect::Progress) => self.errors = 0, // RFC 9260 §8.1
            Ok(AckEffect::NoProgress) => {}
            Ok(AckEffect::Stale) | Err(BadSack::Block) => return Err(DropReason::BadSack),
            Err(BadSack::Unsent) => {
                let cause = Cause::ProtocolViolation(b"acknowledgement of what was never sent");
                self.abort_with(now, cause, CloseReason::Fault(Fault::NeverSent));
                return Ok(NextStep::Stop(Some(DropReason::Violation)));
            }
        }
        Ok(NextStep::Continue)
    }

    /// Processes a SHUTDOWN (RFC 9260 §9.2).
    fn on_shutdown(
        &mut self,
        now: Instant,
        cumulative: Tsn,
        source: &mut impl MessageSource,
    ) -> Result<NextStep, DropReason> {
        match self.state {
            State::Established | State::ShutdownPending | State::ShutdownReceived => {
                let acknowledged = self.sender.on_shutdown(now, cumulative, source);
                let after = self.on_acknowledged(now, acknowledged);
                if self.transition_to(Transition::PeerShutdown) {
                    if self.sender.has_records() {
                        let kind = Kind::FinReceived;
                        self.sender.note_answer(now, kind, chunk_type::SHUTDOWN, cumulative);
                    }
                    self.timers.set(Timer::Guard, now + self.config.shutdown_guard);
                    self.push_event(Event::PeerShutdown);
                }
                // An outdated acknowledgement does not invalidate the SHUTDOWN.
                after.or(Ok(NextStep::Continue))
            }
            State::ShutdownSent => {
                self.continue_shutdown(Transition::ShutdownAckSent);
                Ok(NextStep::Continue)
            }
            State::ShutdownAckSent => {
                self.due_chunks.shutdown = true;
                Ok(NextStep::Continue)
            }
            State::CookieWait | State::CookieEchoed | State::Closed => {
                Err(DropReason::UnexpectedChunk)
            }
        }
    }

    /// Processes the chunks that do not involve the upper layer: all but DATA, SACK and SHUTDOWN.
    fn on_control(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        raw: RawChunk<'_>,
        chunk: Chunk<'_>,
    ) -> Result<NextStep, DropReason> {
        let used = match chunk {
            Chunk::InitAck(init) => return self.on_init_ack(now, packet, &init),
            Chunk::CookieAck => self.state == State::CookieEchoed && self.enter_established(now),
            Chunk::Heartbeat(value) => self.on_heartbeat(value),
            Chunk::HeartbeatAck(value) => self.on_heartbeat_ack(now, value),
            Chunk::Abort { reflected, causes } => {
                return self.on_abort(now, packet.tag(), reflected, causes);
            }
            Chunk::ShutdownAck => self.on_shutdown_ack(now),
            Chunk::ShutdownComplete { reflected } => {
                self.on_shutdown_complete(packet.tag(), reflected)
            }
            Chunk::Error(causes) => return self.on_error(now, causes),
            Chunk::Pad => true,
            Chunk::Unknown(unknown) => {
                self.stats.unknown_chunks += 1;
                // RFC 9260 §3.2, table 2: the type's upper two bits select skipping and reporting of the chunk.
                if unknown.report && self.state != State::CookieWait {
                    self.queue_error_cause(&Cause::UnrecognizedChunk(raw.bytes));
                }
                return Ok(match unknown.skip {
                    true => NextStep::Continue,
                    false => NextStep::Stop(Some(DropReason::UnknownChunk)),
                });
            }
            // An INIT or COOKIE ECHO that is not first in its packet. The arms above and the caller handle all other
            // types.
            _ => false,
        };
        if used { Ok(NextStep::Continue) } else { Err(DropReason::UnexpectedChunk) }
    }

    /// Processes a packet that does not have this end's tag. Only ABORT and SHUTDOWN COMPLETE with the peer's tag and
    /// the T bit are valid (RFC 9260 §8.5.1 B, C).
    fn on_reflected(&mut self, now: Instant, packet: &Packet<'_>) -> Result<(), DropReason> {
        if packet.tag() != self.identity.peer_tag || self.identity.peer_tag == Tag::NONE {
            return Err(DropReason::BadTag);
        }
        for raw in packet.chunks() {
            match raw.and_then(Chunk::parse) {
                Ok(Chunk::Abort { reflected: true, causes }) => {
                    return match self.on_abort(now, packet.tag(), true, causes)? {
                        NextStep::Stop(Some(why)) => Err(why),
                        _ => Ok(()),
                    };
                }
                Ok(Chunk::ShutdownComplete { reflected: true }) => {
                    let used = self.on_shutdown_complete(packet.tag(), true);
                    return if used { Ok(()) } else { Err(DropReason::UnexpectedChunk) };
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Err(DropReason::BadTag)
    }

    /// Returns true if the tag of an ABORT or SHUTDOWN COMPLETE is valid. With the T bit (`reflected`) the tag must be
    /// the peer's, otherwise this end's (RFC 9260 §8.5.1 B, C).
    fn is_tag_right(&self, tag: Tag, reflected: bool) -> bool {
        tag == if reflected { self.identity.peer_tag } else { self.identity.local_tag }
    }

    /// Processes an ABORT (RFC 9260 §9.1). An ABORT with a format error is discarded (§3.3.7).
    fn on_abort(
        &mut self,
        now: Instant,
        tag: Tag,
        reflected: bool,
        causes: Causes<'_>,
    ) -> Result<NextStep, DropReason> {
        if !self.is_tag_right(tag, reflected) {
            // The remaining chunks are also discarded.
            return Ok(NextStep::Stop(Some(DropReason::BadTag)));
        }
        if causes.into_iter().any(|cause| cause.is_err()) {
            return Err(DropReason::BadChunk);
        }
        let first = causes.into_iter().flatten().next();
        let cause = first.map(|cause| cause.code());
        self.note_abort(now, Kind::ResetReceived, cause.unwrap_or(0));
        let reason = match first {
            Some(Cause::UserInitiatedAbort(reason)) => &reason[..reason.len().min(MAX_REASON)],
            _ => &[],
        };
        let reason = match self.state {
            State::CookieWait => CloseReason::Refused { cause },
            // The SHUTDOWN COMPLETE with which the peer ended its association was lost. All messages of both ends were
            // acknowledged before (RFC 9260 §9.2, §8.4 (8)).
            State::ShutdownAckSent if reflected => CloseReason::Shutdown,
            _ => CloseReason::PeerAborted { cause, reason: reason.into() },
        };
        self.close(reason);
        Ok(NextStep::Stop(None))
    }

    fn on_shutdown_ack(&mut self, now: Instant) -> bool {
        if !matches!(self.state, State::ShutdownSent | State::ShutdownAckSent) {
            return false;
        }
        // RFC 9260 §9.2; §8.5.1 C: the SHUTDOWN COMPLETE has the peer's tag.
        let complete = SingleChunkPacket::shutdown_complete(self.identity.peer_tag, false);
        self.close_with(now, complete, CloseReason::Shutdown);
        true
    }

    fn on_shutdown_complete(&mut self, tag: Tag, reflected: bool) -> bool {
        // RFC 9260 §8.5.1 C: a SHUTDOWN COMPLETE is ignored in states other than SHUTDOWN-ACK-SENT.
        let ends = self.state == State::ShutdownAckSent && self.is_tag_right(tag, reflected);
        if ends {
            self.close(CloseReason::Shutdown);
        }
        ends
    }

    fn on_error(&mut self, now: Instant, causes: Causes<'_>) -> Result<NextStep, DropReason> {
        for cause in causes {
            let cause = cause.map_err(|_| DropReason::BadChunk)?;
            self.stats.errors_in += 1;
            if let Cause::StaleCookie(_) = cause {
                self.on_stale_cookie(now);
            }
        }
        Ok(NextStep::Continue)
    }

    /// Queues a reply in a separate packet. If another reply is pending, drops the new reply and returns false.
    pub(super) fn queue_reply(&mut self, reply: Reply) -> bool {
        let is_free = self.pending_replies.reply.is_none();
        match is_free {
            true => self.pending_replies.reply = Some(Box::new(reply)),
            false => self.stats.unsent += 1,
        }
        is_free
    }
}
