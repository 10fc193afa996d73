//! One session: its legal sequences (RFC 5043 §6, RFC 6581 §7), checked in the order of DDP-SSNs.
//!
//! ```text
//!  active side                              passive side
//!  Initiating --- Initiate -------------->  Deciding
//!      |       <-- Accept ----------------      |   \
//!     Open     === segments ==============     Open   Reject, Terminate --> Over
//!      |       <-- Terminate, both ways ->      |
//!     Over                                     Over
//! ```
//!
//! An active side that cancels before it is answered is `Withdrawn`. No legal sequence has a Terminate
//! between Initiate and answer (§6.1), so its Terminate follows the Accept, if one arrives.
//!
//! Sending (§6.6): after its first message this end sends nothing until that message is acknowledged, or
//! answered on the active side; then segments; its Terminate last. Receiving: each message is processed at
//! its DDP-SSN. A Terminate ends the peer's direction once everything before it has arrived.

mod receive;

use super::data::{SessionData, bytes};
use super::error::SessionError;
use super::message::{Body, Message};
use super::order::Order;
use super::sender::{Sender, SenderStats};
use crate::seam::{MessageRef, Written};
use ddp::llp::UlpduSource;
use transport::kept::Takes;
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
    /// Messages refused, because they came too early or DDP had no room: the peer retransmits them.
    pub refused: u64,
    /// Messages accepted and discarded, after the end of the session.
    pub ignored: u64,
    /// Counters of the send half.
    pub tx: SenderStats,
}

/// Effect of an accepted message on the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionChange {
    /// No change that the owner must act on.
    Nothing,
    /// The passive side accepted.
    Accepted(SessionData),
    /// The passive side's ULP rejected.
    Rejected(SessionData),
    /// The passive side terminated without its ULP.
    TurnedAway,
    /// The active side terminated before it was answered.
    Cancelled,
    /// The peer's Terminate is in order: the peer's direction is over.
    PeerDone,
}

/// Result of a message's arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The message is accepted.
    Taken(SessionChange),
    /// The message is refused, as if it had never arrived.
    Refused,
    /// A segment after this end's orderly end, discarded: the peer must not take its acknowledgement for
    /// placement.
    Lost,
    /// The message violates the legal sequences: the session must be terminated. The message counts as
    /// received.
    Illegal(SessionError),
    /// The message begins another session on these streams: this session is over on both sides, without a
    /// Terminate of the peer. The message is not accepted yet.
    Superseded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Active side, not answered.
    Initiating { enhanced: bool },
    /// Passive side, not decided.
    Deciding { enhanced: bool },
    /// Active side, cancelled before the answer.
    Withdrawn { enhanced: bool },
    /// Session accepted.
    Open,
    /// Session over: received messages are discarded.
    Over,
}

/// This end's first message.
#[derive(Debug)]
enum First {
    Due(Function, Box<[u8]>),
    Sent,
    /// The peer has received it.
    Confirmed,
    /// Not decided yet, or never to be sent.
    None,
}

/// This end's Terminate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    None,
    /// Due after the source's data.
    AfterData,
    /// Due next.
    Now,
    Sent,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    first: First,
    last: Last,
    order: Order,
    /// Number of the last message in the peer's direction, once known.
    peer_final: Option<u64>,
    sender: Sender,
    max_segment: usize,
    /// This end's last segment before its Terminate, which reports an error.
    parting: Option<Box<[u8]>>,
    /// This end's direction ends, or has ended, in order.
    in_order: bool,
    stats: Stats,
}

impl Session {
    /// Creates the active side, with an Initiate due. The data must fit
    /// ([`PrivateDataTooLong::check`](super::PrivateDataTooLong::check)); excess is truncated.
    pub fn active(stream: u16, data: &SessionData, max_segment: usize) -> Self {
        let enhanced = data.enhanced.is_some();
        let function = if enhanced { Function::EnhancedInitiate } else { Function::Initiate };
        Session {
            phase: Phase::Initiating { enhanced },
            first: First::Due(function, bytes(data)),
            last: Last::None,
            order: Order::default(),
            peer_final: None,
            sender: Sender::new(stream),
            max_segment,
            parting: None,
            in_order: false,
            stats: Stats::default(),
        }
    }

    /// Creates the passive side from a message on a stream without a session. The Initiate awaits
    /// [`accept`](Self::accept), [`reject`](Self::reject) or [`end`](Self::end).
    ///
    /// # Errors
    /// The message does not begin a session.
    pub fn passive(
        stream: u16,
        message: &Message<'_>,
        max_segment: usize,
    ) -> Result<(Self, SessionData), NoSession> {
        let Some(control) = message.initiate() else {
            return Err(NoSession::of(message));
        };
        let enhanced = control.enhanced.is_some();
        let mut session = Session::failed(stream, max_segment);
        session.phase = Phase::Deciding { enhanced };
        session.last = Last::None;
        session.first = First::None;
        session.order.take(0);
        session.stats.controls = 1;
        Ok((session, SessionData::from(control)))
    }

    /// Creates the reply to a message that should have begun a session and did not: only a Terminate.
    pub fn failed(stream: u16, max_segment: usize) -> Self {
        Session {
            phase: Phase::Over,
            first: First::Due(Function::Terminate, Box::default()),
            last: Last::Sent,
            order: Order::default(),
            peer_final: None,
            sender: Sender::new(stream),
            max_segment,
            parting: None,
            in_order: false,
            stats: Stats::default(),
        }
    }

    /// Accepts on the passive side: an Accept is due, in the form of the Initiate. From now on segments go to
    /// a sink.
    pub fn accept(&mut self, data: &SessionData) {
        self.answer(Function::Accept, Function::EnhancedAccept, data);
        self.phase = Phase::Open;
    }

    /// Rejects on the passive side: a Reject is due. Enhanced data selects the enhanced Reject, which signals
    /// that a plain Initiate would have been accepted (RFC 6581 §7).
    pub fn reject(&mut self, data: &SessionData) {
        let enhanced = data.enhanced.map_or(Function::Reject, |_| Function::EnhancedReject);
        self.answer(Function::Reject, enhanced, data);
        // RFC 5043 §6.3: the sequence ends here; that of the active side ended with its Initiate.
        (self.phase, self.last, self.peer_final) = (Phase::Over, Last::Sent, Some(0));
    }

    fn answer(&mut self, plain: Function, enhanced: Function, data: &SessionData) {
        if let Phase::Deciding { enhanced: form } = self.phase {
            self.first = First::Due(if form { enhanced } else { plain }, bytes(data));
        }
    }

    /// Ends this end's direction after the source's data. Received segments are still processed.
    pub fn close(&mut self) {
        if self.last == Last::None {
            (self.last, self.in_order) = (Last::AfterData, true);
        }
    }

    /// Discards received segments from now on, and ends this end's direction after the source's data, which
    /// includes the error. Returns false if this direction had ended already: the peer cannot receive the
    /// error.
    pub fn stop(&mut self) -> bool {
        self.phase = Phase::Over;
        self.close();
        self.in_order = self.is_terminated();
        !self.in_order
    }

    /// Sets the DDP segment, which reports an error, to send last before the Terminate of [`end`](Self::end).
    pub fn part(&mut self, segment: Box<[u8]>) {
        if !self.is_terminated() {
            (self.parting, self.in_order) = (Some(segment), false);
        }
    }

    /// True if this end's Terminate was passed to SCTP, or will never be sent: no segment follows.
    pub fn is_terminated(&self) -> bool {
        self.last == Last::Sent
    }

    /// Ends the session: a Terminate is next, or follows the awaited Accept. Returns whether the peer may
    /// know of the session.
    pub fn end(&mut self) -> bool {
        match (self.phase, &self.first) {
            // Nothing was sent, so no Terminate is needed.
            (Phase::Initiating { .. }, First::Due(..)) => {
                (self.first, self.last) = (First::None, Last::Sent);
                // No message of the peer has arrived, and none will.
                self.phase = Phase::Over;
                self.peer_final = Some(0);
                self.order = Order::default();
                self.order.take(0);
                return false;
            }
            // RFC 5043 §6.1, §6.2: the answer must arrive first.
            (Phase::Initiating { enhanced } | Phase::Withdrawn { enhanced }, _) => {
                self.phase = Phase::Withdrawn { enhanced };
                return true;
            }
            (phase, First::None) if self.last != Last::Sent => {
                // RFC 5043 §6.4: the Terminate is the answer, and ends the sequence.
                self.first = First::Due(Function::Terminate, Box::default());
                self.last = Last::Sent;
                if matches!(phase, Phase::Deciding { .. }) {
                    self.peer_final = self.peer_final.or(Some(0));
                }
            }
            _ if self.last != Last::Sent => self.last = Last::Now,
            _ => {}
        }
        self.phase = Phase::Over;
        true
    }

    /// True if [`next`](Self::next) with ample room would return a message.
    pub fn has_data(&self, source: Option<&impl UlpduSource>, awaits: bool) -> bool {
        match (&self.first, self.last) {
            (First::Due(..), _) => true,
            (First::Sent | First::None, _) | (_, Last::Sent) => false,
            (First::Confirmed, Last::Now) => self.sender.has_room(),
            (First::Confirmed, last) => {
                let segment = source.is_some_and(|source| source.next_len(MIN_LEN).is_some());
                let terminate = last == Last::AfterData && !awaits;
                self.sender.has_room() && (segment || terminate)
            }
        }
    }

    /// Writes the next message into `out`, if there is one and it fits. Segments have at most `mulpdu` bytes.
    /// `awaits`: the source has no data now but will have, so a [`close`](Self::close) waits.
    pub fn next(
        &mut self,
        source: Option<&mut impl UlpduSource>,
        awaits: bool,
        mulpdu: usize,
        out: &mut [u8],
    ) -> Option<Written> {
        if let First::Due(function, private_data) = &self.first {
            let written = self.sender.control(*function, private_data, out)?;
            self.first = First::Sent;
            return Some(written);
        }
        // RFC 5043 §6.6: nothing is sent that might arrive before the first message.
        if !matches!(self.first, First::Confirmed) || self.last == Last::Sent {
            return None;
        }
        if self.last != Last::Now
            && let Some(source) = source
            && let Some(next_len) = source.next_len(mulpdu)
        {
            return self.sender.segment(source, mulpdu, next_len, out);
        }
        let due = self.last == Last::Now || (self.last == Last::AfterData && !awaits);
        if !due || !self.sender.has_room() {
            return None;
        }
        if let Some(parting) = &self.parting {
            let written = self.sender.lone_segment(parting, out)?;
            self.parting = None;
            return Some(written);
        }
        let written = self.sender.control(Function::Terminate, &[], out)?;
        self.last = Last::Sent;
        Some(written)
    }

    /// Writes an unacknowledged message again.
    pub fn again(
        &mut self,
        source: Option<&impl UlpduSource>,
        message: MessageRef,
        out: &mut [u8],
    ) {
        self.sender.again(source, message, out);
    }

    /// The peer has acknowledged this message.
    pub fn acknowledged(&mut self, source: Option<&mut impl UlpduSource>, message: MessageRef) {
        self.sender.acknowledged(source, message);
        // RFC 5043 §6.6
        self.confirm();
    }

    fn confirm(&mut self) {
        if matches!(self.first, First::Sent) {
            self.first = First::Confirmed;
        }
    }

    /// Memory for messages kept until they are acknowledged.
    #[inline]
    pub fn kept(&self) -> Takes {
        self.sender.kept()
    }

    /// See [`Sender::limit_kept`].
    #[inline]
    pub fn limit_kept(&mut self, bytes: u64) {
        self.sender.limit_kept(bytes);
    }

    /// See [`Sender::digest`].
    #[inline]
    pub fn digest(&mut self, wanted: bool) {
        self.sender.digest(wanted);
    }

    /// Keeps all outstanding messages, because the source is being closed.
    pub fn keep_all(&mut self, source: &impl UlpduSource) {
        self.sender.keep_all(source);
    }

    /// True if all that this end sent is acknowledged, and nothing more will be sent.
    pub fn is_own_done(&self) -> bool {
        let ended = matches!(self.first, First::Confirmed | First::None) && self.last == Last::Sent;
        ended && self.sender.is_acknowledged()
    }

    /// True if everything that the peer sends in this session has arrived.
    pub fn is_peer_done(&self) -> bool {
        self.peer_final.is_some_and(|last| self.order.next() > last)
    }

    /// True if nothing of the session can be outstanding in either direction: its streams may be reused
    /// (RFC 5043 §6.6).
    pub fn is_free(&self) -> bool {
        self.is_own_done() && self.is_peer_done()
    }

    /// True once a segment has arrived in order.
    pub fn is_begun(&self) -> bool {
        self.order.next() > 1
    }

    /// Messages accepted plus messages acknowledged: grows while the peer responds.
    pub fn progress(&self) -> u64 {
        self.stats.segments + self.stats.controls + self.sender.acknowledged_count()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats { tx: self.sender.stats(), ..self.stats }
    }
}

/// An arbitrary MULPDU: the presence of a segment does not depend on it.
const MIN_LEN: usize = 516;

/// A message on a stream without a session that begins none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSession {
    /// A Terminate without a session to end.
    Terminate,
    /// A message that arrived before the beginning of its session.
    Early,
    /// A message that should begin a session and does not.
    Illegal(SessionError),
}

impl NoSession {
    fn of(message: &Message<'_>) -> NoSession {
        if message.is_terminate() {
            return NoSession::Terminate;
        }
        match &message.body {
            _ if message.ssn != DdpSsn::FIRST => NoSession::Early,
            Body::Segment(_) => NoSession::Illegal(SessionError::EarlySegment),
            Body::Control(control) => {
                NoSession::Illegal(SessionError::Control { seen: control.function })
            }
        }
    }
}

#[cfg(test)]
mod tests;
