//! State machine of one session: the legal sequences (RFC 5043 §6, RFC 6581 §7), checked in the order of DDP-SSNs.
//!
//! ```text
//!  active side                              passive side
//!  Initiating --- Initiate -------------->  Deciding
//!      |       <-- Accept ----------------      |   \
//!     Open     === segments ==============     Open   Reject, Terminate --> Ended
//!      |       <-- Terminate, both ends ->      |
//!     Ended                                    Ended
//! ```
//!
//! An active side that cancels before the answer arrives is `Withdrawn`. No legal sequence has a Terminate between
//! Initiate and answer (§6.1), so the Terminate is sent after an Accept arrives.
//!
//! Sending (§6.6): the first message of this end must be acknowledged, or answered on the active side, before
//! anything else is sent. Segments follow, and the Terminate is last.
//!
//! Receiving: a message is judged by its DDP-SSN, not by the order of arrival. A Terminate ends the peer's direction
//! once all earlier messages have arrived.

mod receive;

use super::data::{SessionData, encode};
use super::error::SessionError;
use super::message::{Body, Message};
use super::sender::{Sender, SenderStats};
use super::ssn_order::SsnOrder;
use crate::seam::{MessageRef, WrittenMessage};
use ddp::llp::UlpduSource;
use transport::retransmit_buffer::MemoryUse;
use wire::sctp::ddp::{DdpSsn, Function};

/// Counters of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// DDP segments accepted.
    pub segments: u64,
    /// Session control messages accepted.
    pub controls: u64,
    /// Bytes of DDP segments accepted.
    pub bytes: u64,
    /// Messages refused because they were too early or DDP had no room. The peer retransmits them.
    pub refused: u64,
    /// Messages accepted and discarded after the end of the session.
    pub ignored: u64,
    /// Counters of the send half.
    pub tx: SenderStats,
}

/// Change of the session by an accepted message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionChange {
    /// No change that the owner must act on.
    Nothing,
    /// The passive side answered with an Accept.
    Accepted(SessionData),
    /// The passive side answered with a Reject.
    Rejected(SessionData),
    /// The passive side answered with a Terminate instead of an Accept or Reject.
    TurnedAway,
    /// The active side terminated the session before the answer to its Initiate.
    Cancelled,
    /// All messages up to the peer's Terminate have arrived: the peer's direction has ended.
    PeerTerminated,
}

/// Result of a message's arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArrivalResult {
    /// The message is accepted.
    Accepted(SessionChange),
    /// The message is refused without effect; the peer retransmits it.
    Refused,
    /// A segment after this end closed gracefully; accepted and discarded. The owner aborts the association, because
    /// the peer would regard the SACK as proof of placement.
    AfterClose,
    /// The message violates the legal sequences, and the session must be terminated. The message counts as received.
    Illegal(SessionError),
    /// The message begins another session on these streams. This session has ended on both sides without a Terminate
    /// of the peer. The message is not accepted yet.
    Superseded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Active side, waiting for the answer.
    Initiating { enhanced: bool },
    /// Passive side, before the ULP's decision.
    Deciding { enhanced: bool },
    /// Active side, cancelled before the answer arrived.
    Withdrawn { enhanced: bool },
    /// The session is accepted.
    Open,
    /// The session has ended; received messages are discarded.
    Ended,
}

/// First message of this end.
#[derive(Debug)]
enum OpeningMessage {
    /// Due: the function and the private data field.
    Pending(Function, Box<[u8]>),
    /// Passed to SCTP. It is not known yet whether the peer has received it.
    Sent,
    /// Sent, and known to have been received by the peer.
    Confirmed,
    /// No opening message: the ULP has not decided yet, or none is ever sent.
    None,
}

/// State of this end's Terminate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TerminateState {
    /// Not due: this end has not ended its direction.
    None,
    /// Due after the data of the source.
    PendingAfterData,
    /// Due next.
    Pending,
    /// Passed to SCTP, or never to be sent.
    Sent,
}

/// A DDP session on a pair of streams (RFC 5043 §6).
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    opening: OpeningMessage,
    terminate_state: TerminateState,
    order: SsnOrder,
    /// DDP-SSN of the peer's last message, extended to 64 bits; `None` until it is known.
    peer_final: Option<u64>,
    sender: Sender,
    max_segment: usize,
    /// DDP segment that reports an error, to be sent as the last segment, before this end's Terminate.
    final_segment: Option<Box<[u8]>>,
    /// True if this end's direction ends, or has ended, gracefully.
    ends_in_order: bool,
    stats: Stats,
}

impl Session {
    /// Creates the active side, with an Initiate due. Check the length of the data first
    /// ([`PrivateDataTooLong::check`](super::PrivateDataTooLong::check)); excess is truncated.
    pub fn new_active(stream: u16, data: &SessionData, max_segment: usize) -> Self {
        let enhanced = data.enhanced.is_some();
        let function = if enhanced { Function::EnhancedInitiate } else { Function::Initiate };
        Session {
            phase: Phase::Initiating { enhanced },
            opening: OpeningMessage::Pending(function, encode(data)),
            terminate_state: TerminateState::None,
            order: SsnOrder::default(),
            peer_final: None,
            sender: Sender::new(stream),
            max_segment,
            final_segment: None,
            ends_in_order: false,
            stats: Stats::default(),
        }
    }

    /// Creates the passive side from a message on a stream without a session. The owner answers the Initiate by
    /// [`accept`](Self::accept), [`reject`](Self::reject) or [`terminate_now`](Self::terminate_now).
    ///
    /// # Errors
    /// The message does not begin a session.
    pub fn new_passive(
        stream: u16,
        message: &Message<'_>,
        max_segment: usize,
    ) -> Result<(Self, SessionData), UnmatchedMessage> {
        let Some(control) = message.initiate() else {
            return Err(UnmatchedMessage::from_message(message));
        };
        let enhanced = control.enhanced.is_some();
        let mut session = Session::new_failed(stream, max_segment);
        session.phase = Phase::Deciding { enhanced };
        session.terminate_state = TerminateState::None;
        session.opening = OpeningMessage::None;
        session.order.mark_received(0);
        session.stats.controls = 1;
        Ok((session, SessionData::from(control)))
    }

    /// Creates a session that only sends a Terminate. The Terminate answers a malformed message, or a message with
    /// DDP-SSN 0 that is not an Initiate.
    pub fn new_failed(stream: u16, max_segment: usize) -> Self {
        Session {
            phase: Phase::Ended,
            opening: OpeningMessage::Pending(Function::Terminate, Box::default()),
            terminate_state: TerminateState::Sent,
            order: SsnOrder::default(),
            peer_final: None,
            sender: Sender::new(stream),
            max_segment,
            final_segment: None,
            ends_in_order: false,
            stats: Stats::default(),
        }
    }

    /// Makes an Accept due, in the form of the Initiate. From now on [`receive`](Self::receive) requires a sink for
    /// segments.
    pub fn accept(&mut self, data: &SessionData) {
        self.queue_answer(Function::Accept, Function::EnhancedAccept, data);
        self.phase = Phase::Open;
    }

    /// Makes a Reject due. Enhanced data selects the enhanced Reject, which signals that a plain Initiate would have
    /// been accepted (RFC 6581 §7).
    pub fn reject(&mut self, data: &SessionData) {
        let enhanced = data.enhanced.map_or(Function::Reject, |_| Function::EnhancedReject);
        self.queue_answer(Function::Reject, enhanced, data);
        // RFC 5043 §6.3: the sequence ends with the Reject. The last message of the active side was its Initiate.
        (self.phase, self.terminate_state, self.peer_final) =
            (Phase::Ended, TerminateState::Sent, Some(0));
    }

    fn queue_answer(&mut self, plain: Function, enhanced: Function, data: &SessionData) {
        if let Phase::Deciding { enhanced: form } = self.phase {
            self.opening =
                OpeningMessage::Pending(if form { enhanced } else { plain }, encode(data));
        }
    }

    /// Ends this end's direction after the data of the source. Received segments are still processed.
    pub fn close(&mut self) {
        if self.terminate_state == TerminateState::None {
            (self.terminate_state, self.ends_in_order) = (TerminateState::PendingAfterData, true);
        }
    }

    /// Discards received segments from now on, and ends this end's direction after the source's data. The error report
    /// is part of this data. Returns false if this direction has ended already: the error then cannot be reported.
    pub fn close_after_error(&mut self) -> bool {
        self.phase = Phase::Ended;
        self.close();
        self.ends_in_order = self.is_terminated();
        !self.ends_in_order
    }

    /// Sets the DDP segment that reports an error. This segment is the last one before the Terminate of
    /// [`terminate_now`](Self::terminate_now).
    pub fn queue_final_segment(&mut self, segment: Box<[u8]>) {
        if !self.is_terminated() {
            (self.final_segment, self.ends_in_order) = (Some(segment), false);
        }
    }

    /// Returns true if this end's Terminate was passed to SCTP or will never be sent. No segment follows.
    pub fn is_terminated(&self) -> bool {
        self.terminate_state == TerminateState::Sent
    }

    /// Ends the session: the Terminate is the next message, or follows the awaited Accept. Returns false if the
    /// Initiate was never sent: the peer then has no knowledge of the session, and no Terminate is sent.
    pub fn terminate_now(&mut self) -> bool {
        match (self.phase, &self.opening) {
            // No Initiate was sent, so no Terminate is needed.
            (Phase::Initiating { .. }, OpeningMessage::Pending(..)) => {
                (self.opening, self.terminate_state) = (OpeningMessage::None, TerminateState::Sent);
                // The peer cannot send a message in this session, so its direction counts as ended.
                self.phase = Phase::Ended;
                self.peer_final = Some(0);
                self.order = SsnOrder::default();
                self.order.mark_received(0);
                return false;
            }
            // RFC 5043 §6.1, §6.2: the answer must arrive first.
            (Phase::Initiating { enhanced } | Phase::Withdrawn { enhanced }, _) => {
                self.phase = Phase::Withdrawn { enhanced };
                return true;
            }
            (phase, OpeningMessage::None) if self.terminate_state != TerminateState::Sent => {
                // RFC 5043 §6.4: the Terminate is the answer to the Initiate, and ends the sequence.
                self.opening = OpeningMessage::Pending(Function::Terminate, Box::default());
                self.terminate_state = TerminateState::Sent;
                if matches!(phase, Phase::Deciding { .. }) {
                    self.peer_final = self.peer_final.or(Some(0));
                }
            }
            _ if self.terminate_state != TerminateState::Sent => {
                self.terminate_state = TerminateState::Pending
            }
            _ => {}
        }
        self.phase = Phase::Ended;
        true
    }

    /// Returns true if [`next`](Self::next) with ample room would return a message.
    pub fn has_data(&self, source: Option<&impl UlpduSource>, source_waits: bool) -> bool {
        match (&self.opening, self.terminate_state) {
            (OpeningMessage::Pending(..), _) => true,
            (OpeningMessage::Sent | OpeningMessage::None, _) | (_, TerminateState::Sent) => false,
            (OpeningMessage::Confirmed, TerminateState::Pending) => self.sender.has_room(),
            (OpeningMessage::Confirmed, last) => {
                let segment = source.is_some_and(|source| source.next_len(MIN_LEN).is_some());
                let terminate = last == TerminateState::PendingAfterData && !source_waits;
                self.sender.has_room() && (segment || terminate)
            }
        }
    }

    /// Writes the next message into `out`, if a message is due and fits. Segments have at most `mulpdu` bytes.
    /// `source_waits`: the source will have further data, which a [`close`](Self::close) waits for.
    pub fn next(
        &mut self,
        source: Option<&mut impl UlpduSource>,
        source_waits: bool,
        mulpdu: usize,
        out: &mut [u8],
    ) -> Option<WrittenMessage> {
        if let OpeningMessage::Pending(function, private_data) = &self.opening {
            let written = self.sender.write_control(*function, private_data, out)?;
            self.opening = OpeningMessage::Sent;
            return Some(written);
        }
        // RFC 5043 §6.6: no message is sent that might arrive before the opening message.
        if !matches!(self.opening, OpeningMessage::Confirmed)
            || self.terminate_state == TerminateState::Sent
        {
            return None;
        }
        if self.terminate_state != TerminateState::Pending
            && let Some(source) = source
            && let Some(next_len) = source.next_len(mulpdu)
        {
            return self.sender.write_segment(source, mulpdu, next_len, out);
        }
        let due = self.terminate_state == TerminateState::Pending
            || (self.terminate_state == TerminateState::PendingAfterData && !source_waits);
        if !due || !self.sender.has_room() {
            return None;
        }
        if let Some(segment) = &self.final_segment {
            let written = self.sender.write_lone_segment(segment, out)?;
            self.final_segment = None;
            return Some(written);
        }
        let written = self.sender.write_control(Function::Terminate, &[], out)?;
        self.terminate_state = TerminateState::Sent;
        Some(written)
    }

    /// Writes an unacknowledged message again, with the same bytes.
    pub fn rewrite(
        &mut self,
        source: Option<&impl UlpduSource>,
        message: MessageRef,
        out: &mut [u8],
    ) {
        self.sender.rewrite(source, message, out);
    }

    /// Processes the acknowledgement of this message.
    pub fn on_acknowledged(&mut self, source: Option<&mut impl UlpduSource>, message: MessageRef) {
        self.sender.on_acknowledged(source, message);
        // RFC 5043 §6.6: other messages may follow the opening message once it is acknowledged.
        self.confirm_opening();
    }

    fn confirm_opening(&mut self) {
        if matches!(self.opening, OpeningMessage::Sent) {
            self.opening = OpeningMessage::Confirmed;
        }
    }

    /// Returns the memory used by copies of unacknowledged messages.
    #[inline]
    pub fn kept_memory(&self) -> MemoryUse {
        self.sender.kept_memory()
    }

    /// Limits the memory for copies of unacknowledged messages, bytes: see [`Sender::limit_kept`].
    #[inline]
    pub fn limit_kept(&mut self, bytes: u64) {
        self.sender.limit_kept(bytes);
    }

    /// Sets whether the CRC32c of segments is computed: see [`Sender::set_crc`].
    #[inline]
    pub fn set_crc(&mut self, enabled: bool) {
        self.sender.set_crc(enabled);
    }

    /// Keeps a copy of all unacknowledged messages: see [`Sender::keep_all`].
    pub fn keep_all(&mut self, source: &impl UlpduSource) {
        self.sender.keep_all(source);
    }

    /// Returns true if all messages of this end are sent and acknowledged, and none will follow.
    pub fn is_own_done(&self) -> bool {
        let ended = matches!(self.opening, OpeningMessage::Confirmed | OpeningMessage::None)
            && self.terminate_state == TerminateState::Sent;
        ended && self.sender.is_acknowledged()
    }

    /// Returns true if all messages that the peer sends in this session have arrived.
    pub fn is_peer_done(&self) -> bool {
        self.peer_final.is_some_and(|last| self.order.next() > last)
    }

    /// Returns true if no message of the session can be outstanding in either direction. Its streams may then be reused
    /// (RFC 5043 §6.6).
    pub fn is_free(&self) -> bool {
        self.is_own_done() && self.is_peer_done()
    }

    /// Returns true once the peer's messages with DDP-SSN 0 and 1 have arrived.
    pub fn is_begun(&self) -> bool {
        self.order.next() > 1
    }

    /// Returns the number of messages accepted from the peer plus the number of messages that the peer has
    /// acknowledged. The sum grows while the peer responds.
    pub fn progress(&self) -> u64 {
        self.stats.segments + self.stats.controls + self.sender.acknowledged_count()
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        Stats { tx: self.sender.stats(), ..self.stats }
    }
}

/// MULPDU passed to the source, bytes, to query whether a segment is available. The answer is the same for any MULPDU.
const MIN_LEN: usize = 516;

/// A message that does not begin a session, on a stream without a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnmatchedMessage {
    /// A Terminate without a session to end.
    Terminate,
    /// A message that arrived before the Initiate of its session.
    Early,
    /// A malformed message, or a message with DDP-SSN 0 that is not an Initiate.
    Illegal(SessionError),
}

impl UnmatchedMessage {
    fn from_message(message: &Message<'_>) -> UnmatchedMessage {
        if message.is_terminate() {
            return UnmatchedMessage::Terminate;
        }
        match &message.body {
            _ if message.ssn != DdpSsn::FIRST => UnmatchedMessage::Early,
            Body::Segment(_) => UnmatchedMessage::Illegal(SessionError::EarlySegment),
            Body::Control(control) => {
                UnmatchedMessage::Illegal(SessionError::Control { seen: control.function })
            }
        }
    }
}

#[cfg(test)]
mod tests;
