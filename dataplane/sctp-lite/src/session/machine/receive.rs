//! Effect of received messages on a session. The DDP-SSN of a message and the phase of the session determine whether it
//! is legal. An illegal message ends the session. A message that arrives too early is refused, and the peer's SCTP
//! retransmits it.

use ddp::llp::{Disposition, OrderKey, Ulpdu, UlpduSink};
use wire::sctp::ddp::{DdpSsn, Function, PPID_SEGMENT};

use super::super::data::SessionData;
use super::super::error::SessionError;
use super::super::message::{Body, Control, Message};
use super::{ArrivalResult, Phase, Session, SessionChange, TerminateState};
use crate::seam::{MessageOutcome, ReceivedMessage};

impl Session {
    /// Processes a message of this pair of streams. `ssn`: its DDP-SSN, if the message is long enough to have one.
    /// `sink`: receives the segments of an accepted session. The caller must have called the sink's `order_complete`
    /// with key 1, because the Initiate or Accept had key 0.
    pub fn receive(
        &mut self,
        message: &Result<Message<'_>, SessionError>,
        ssn: Option<DdpSsn>,
        sink: Option<&mut impl UlpduSink>,
    ) -> ArrivalResult {
        if self.is_superseded_by(message) {
            return ArrivalResult::Superseded;
        }
        if self.phase == Phase::Ended {
            return self.discard(message, ssn);
        }
        let judged = match message {
            Ok(message) => self.process(message, sink),
            Err(error) => Err(*error),
        };
        match judged {
            Ok(Some(change)) => ArrivalResult::Accepted(change),
            Ok(None) => {
                self.stats.refused += 1;
                ArrivalResult::Refused
            }
            Err(error) => {
                // On the active side, the message proves that the peer has received the Initiate.
                self.confirm_opening();
                self.phase = Phase::Ended;
                self.discard(message, ssn);
                ArrivalResult::Illegal(error)
            }
        }
    }

    /// Processes a message of a session that has not ended. Returns `None` if the message is refused: it is too early,
    /// or there is no room for it.
    fn process(
        &mut self,
        message: &Message<'_>,
        sink: Option<&mut impl UlpduSink>,
    ) -> Result<Option<SessionChange>, SessionError> {
        let ends = |session: &Session| {
            session.terminate_state == TerminateState::Sent || session.is_peer_done()
        };
        if message.initiate().is_some() && ends(self) && !self.is_first_expected() {
            // The Initiate begins another session. It is refused, as in `discard`, until the peer has acknowledged all
            // messages of this end and this end has sent its Terminate.
            return Ok(None);
        }
        let at = self.order.extend(message.ssn)?;
        if let Some(last) = self.peer_final.filter(|last| at > *last) {
            let (terminate, seen) = (last as u16, message.ssn.0);
            return Err(SessionError::AfterTerminate { terminate, seen });
        }
        if !self.order.can_record(at) {
            return Ok(None);
        }
        match (self.phase, &message.body) {
            // RFC 5043 §6.1: legality depends on the earlier messages, so later messages are refused until the answer
            // has arrived.
            (Phase::Initiating { .. } | Phase::Withdrawn { .. }, _) if at != 0 => Ok(None),
            (Phase::Initiating { .. } | Phase::Withdrawn { .. }, Body::Segment(_)) => {
                Err(SessionError::EarlySegment)
            }
            (Phase::Initiating { enhanced }, Body::Control(control)) => {
                self.on_answer(enhanced, control).map(Some)
            }
            (Phase::Withdrawn { enhanced }, Body::Control(control)) => {
                if let SessionChange::Accepted(_) = self.on_answer(enhanced, control)? {
                    // The owner has cancelled: the Terminate follows the Accept (RFC 5043 §6.2).
                    (self.phase, self.terminate_state) = (Phase::Ended, TerminateState::Pending);
                }
                Ok(Some(SessionChange::Nothing))
            }
            (Phase::Deciding { .. }, Body::Control(control))
                if control.function == Function::Terminate =>
            {
                if at != self.order.next() {
                    return Ok(None); // earlier segments are refused until the decision
                }
                self.accept_control(at);
                self.peer_final = Some(at);
                Ok(Some(SessionChange::Cancelled))
            }
            // RFC 5043 §6.6: the SACK of its Initiate permits the active side to send segments. They are refused
            // until the decision.
            (Phase::Deciding { .. }, Body::Segment(_)) => Ok(None),
            (Phase::Open, Body::Segment(pieces)) => self.on_segment(at, pieces, sink),
            (Phase::Open, Body::Control(control)) if control.function == Function::Terminate => {
                self.on_terminate(at).map(Some)
            }
            (_, Body::Control(control)) => Err(SessionError::Control { seen: control.function }),
            (Phase::Ended, Body::Segment(_)) => Ok(Some(SessionChange::Nothing)),
        }
    }

    /// Processes the passive side's first message, which answers the Initiate.
    fn on_answer(
        &mut self,
        enhanced: bool,
        control: &Control,
    ) -> Result<SessionChange, SessionError> {
        let change = match control.function {
            Function::Accept if !enhanced => SessionChange::Accepted(SessionData::from(control)),
            Function::EnhancedAccept if enhanced => {
                SessionChange::Accepted(SessionData::from(control))
            }
            // RFC 6581 §7: the enhanced Reject signals that the plain form would have been accepted. So a plain
            // Reject is also legal.
            Function::Reject => SessionChange::Rejected(SessionData::from(control)),
            Function::EnhancedReject if enhanced => {
                SessionChange::Rejected(SessionData::from(control))
            }
            Function::Terminate => SessionChange::TurnedAway,
            seen => return Err(SessionError::Control { seen }),
        };
        self.confirm_opening();
        self.accept_control(0);
        if matches!(change, SessionChange::Accepted(_)) {
            self.phase = Phase::Open;
        } else {
            (self.phase, self.terminate_state, self.peer_final) =
                (Phase::Ended, TerminateState::Sent, Some(0));
        }
        Ok(change)
    }

    fn on_segment(
        &mut self,
        at: u64,
        pieces: &[&[u8]],
        sink: Option<&mut impl UlpduSink>,
    ) -> Result<Option<SessionChange>, SessionError> {
        let ulpdu = Ulpdu::new(pieces);
        let len = ulpdu.len();
        // RFC 5043 §9: this end accepts segments of at most `max_segment` bytes.
        if len > self.max_segment {
            return Err(SessionError::Oversized { limit: self.max_segment, seen: len });
        }
        let Some(sink) = sink else { return Ok(None) };
        let taken = self.deliver(at, ulpdu, sink);
        Ok(taken.then(|| self.peer_direction_change()))
    }

    /// Passes the segment to DDP. Returns false if DDP refuses it.
    #[inline]
    fn deliver(&mut self, at: u64, ulpdu: Ulpdu<'_>, sink: &mut impl UlpduSink) -> bool {
        if sink.ulpdu(OrderKey(at), ulpdu) == Disposition::Refused {
            return false;
        }
        self.order.mark_received(at);
        sink.order_complete(OrderKey(self.order.next()));
        self.stats.segments += 1;
        self.stats.bytes += ulpdu.len() as u64;
        true
    }

    /// Returns the segment in a message and its DDP-SSN, extended to 64 bits. `None` unless the session is accepted and
    /// not ended by the peer, and the message is a legal segment in one piece. For the returned segment,
    /// [`accept_segment`](Self::accept_segment) has the same effect as [`receive`](Self::receive).
    #[inline]
    pub fn legal_segment<'a>(&self, received: &ReceivedMessage<'a>) -> Option<(u64, &'a [u8])> {
        let [message] = received.pieces else { return None };
        let (ssn, segment) = message.split_first_chunk()?;
        let is_legal = received.ppid == PPID_SEGMENT
            && received.unordered
            && self.phase == Phase::Open
            && self.peer_final.is_none()
            && (1..=self.max_segment).contains(&segment.len());
        let ssn = DdpSsn(u16::from_be_bytes(*ssn));
        Some((self.order.extend_acceptable(ssn).filter(|_| is_legal)?, segment))
    }

    /// Passes the segment returned by [`legal_segment`](Self::legal_segment) to DDP, which may refuse it.
    #[inline]
    pub fn accept_segment(
        &mut self,
        at: u64,
        segment: &[u8],
        sink: &mut impl UlpduSink,
    ) -> MessageOutcome {
        if self.deliver(at, Ulpdu::new(&[segment]), sink) {
            return MessageOutcome::Accepted;
        }
        self.stats.refused += 1;
        MessageOutcome::Refused
    }

    /// Processes the peer's Terminate. It ends the peer's direction once all earlier messages have arrived.
    fn on_terminate(&mut self, at: u64) -> Result<SessionChange, SessionError> {
        if self.peer_final.is_some() {
            return Err(SessionError::Control { seen: Function::Terminate });
        }
        let end = self.order.end();
        if end > at + 1 {
            let (terminate, seen) = (at as u16, (end - 1) as u16);
            return Err(SessionError::AfterTerminate { terminate, seen });
        }
        self.accept_control(at);
        self.peer_final = Some(at);
        Ok(self.peer_direction_change())
    }

    fn accept_control(&mut self, at: u64) {
        self.order.mark_received(at);
        self.stats.controls += 1;
    }

    fn peer_direction_change(&self) -> SessionChange {
        if self.is_peer_done() { SessionChange::PeerTerminated } else { SessionChange::Nothing }
    }

    /// Discards a message that arrived after the end of the session. Only its DDP-SSN is recorded.
    fn discard(
        &mut self,
        message: &Result<Message<'_>, SessionError>,
        ssn: Option<DdpSsn>,
    ) -> ArrivalResult {
        let parsed = message.as_ref().ok();
        if parsed.is_some_and(|message| message.initiate().is_some()) && !self.is_first_expected() {
            // This Initiate begins another session, before the peer has acknowledged all messages of this end.
            self.stats.refused += 1;
            return ArrivalResult::Refused;
        }
        self.stats.ignored += 1;
        if let Some(at) = ssn.and_then(|ssn| self.order.extend(ssn).ok())
            && self.order.can_record(at)
        {
            self.order.mark_received(at);
            if parsed.is_some_and(Message::is_terminate) && self.peer_final.is_none() {
                self.peer_final = Some(at);
            }
            let is_segment = parsed.is_some_and(|message| matches!(message.body, Body::Segment(_)));
            if is_segment && self.ends_in_order {
                return ArrivalResult::AfterClose;
            }
        }
        ArrivalResult::Accepted(SessionChange::Nothing)
    }

    /// Returns true until the peer's first message has arrived.
    fn is_first_expected(&self) -> bool {
        self.order.next() == 0
    }

    /// Returns true if `message` begins another session on the streams of this session. RFC 5043 §6.2: one Terminate
    /// suffices, and the peer may reuse the streams without sending its own Terminate.
    fn is_superseded_by(&self, message: &Result<Message<'_>, SessionError>) -> bool {
        let begins = message.as_ref().is_ok_and(|message| message.initiate().is_some());
        let done = self.terminate_state == TerminateState::Sent && self.is_own_done();
        begins && done && !self.order.has_gap() && !self.is_first_expected()
    }
}
