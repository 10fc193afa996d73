//! One session: its legal sequences (RFC 5043 §6, RFC 6581 §7), judged in the order of DDP-SSNs.
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
//! An active side that gives up before it is answered is `Withdrawn`: no legal sequence has a Terminate between
//! Initiate and answer (§6.1), so its Terminate follows the Accept, if that comes.
//!
//! What this end may send when (§6.6): nothing behind its first message until that is acknowledged, or
//! answered on the active side; then segments; its Terminate last. What the peer sends is taken at its
//! DDP-SSN: a Terminate ends the peer's direction once everything before it has come.

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

/// What a session counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// DDP segments taken.
    pub segments: u64,
    /// Session control messages taken.
    pub controls: u64,
    /// Bytes of DDP segments taken.
    pub bytes: u64,
    /// Messages not taken, because it was too early for them or DDP had no room: the peer sends them again.
    pub refused: u64,
    /// Messages taken and thrown away, after the end.
    pub ignored: u64,
    /// What this end sent.
    pub tx: SenderStats,
}

/// What a message that was taken has brought about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionChange {
    /// Nothing that the owner need act on.
    Nothing,
    /// The passive side accepts.
    Accepted(SessionData),
    /// The passive side's ULP rejects.
    Rejected(SessionData),
    /// The passive side terminates without its ULP.
    TurnedAway,
    /// The active side terminates before it is answered.
    Cancelled,
    /// The peer's Terminate is in order: its direction is over.
    PeerDone,
}

/// What became of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It is taken.
    Taken(SessionChange),
    /// As if it had never come.
    Refused,
    /// A segment behind this end's orderly end, thrown away: the peer must not take its acknowledgement for placement.
    Lost,
    /// It fits no legal sequence: the session is to be terminated. It counts as received.
    Illegal(SessionError),
    /// It begins another session on these streams: this one is over on both sides, without a Terminate of
    /// the peer. It is not taken yet.
    Superseded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Active, not answered.
    Initiating { enhanced: bool },
    /// Passive, not decided.
    Deciding { enhanced: bool },
    /// Active, not answered, and given up.
    Withdrawn { enhanced: bool },
    /// Accepted.
    Open,
    /// What comes is thrown away.
    Over,
}

/// This end's first message.
#[derive(Debug)]
enum First {
    Due(Function, Box<[u8]>),
    Sent,
    /// The peer has it.
    Confirmed,
    /// There is none yet, or there will never be one.
    None,
}

/// This end's Terminate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    None,
    /// Behind what the source has.
    AfterData,
    /// Next.
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
    /// The last message of the peer's direction, once it is known.
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
    /// The active side: an Initiate is due. Its data must fit
    /// ([`PrivateDataTooLong::check`](super::PrivateDataTooLong::check)), what does not is cut.
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

    /// The passive side, by a message that came to a stream without a session. An Initiate awaits
    /// [`accept`](Self::accept), [`reject`](Self::reject) or [`end`](Self::end).
    ///
    /// # Errors
    /// The message begins no session.
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

    /// The answer to a message that begins no session and should have: a Terminate, and nothing else.
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

    /// The passive side accepts: an Accept is due, in the form of the Initiate. What the peer sends from now
    /// on goes to a sink.
    pub fn accept(&mut self, data: &SessionData) {
        self.answer(Function::Accept, Function::EnhancedAccept, data);
        self.phase = Phase::Open;
    }

    /// The passive side rejects: a Reject is due. With enhanced data it is the enhanced one, which says that a plain
    /// Initiate would have been accepted (RFC 6581 §7).
    pub fn reject(&mut self, data: &SessionData) {
        let enhanced = data.enhanced.map_or(Function::Reject, |_| Function::EnhancedReject);
        self.answer(Function::Reject, enhanced, data);
        // RFC 5043 §6.3: the sequence ends here, for the active side with its Initiate.
        (self.phase, self.last, self.peer_final) = (Phase::Over, Last::Sent, Some(0));
    }

    fn answer(&mut self, plain: Function, enhanced: Function, data: &SessionData) {
        if let Phase::Deciding { enhanced: form } = self.phase {
            self.first = First::Due(if form { enhanced } else { plain }, bytes(data));
        }
    }

    /// Ends this end's direction behind what the source has. What the peer sends is still taken.
    pub fn close(&mut self) {
        if self.last == Last::None {
            (self.last, self.in_order) = (Last::AfterData, true);
        }
    }

    /// What the peer sends is thrown away from now on; this end's direction ends behind what the source has, the error
    /// among it. Returns false when it has ended already: the peer cannot be sent the error.
    pub fn stop(&mut self) -> bool {
        self.phase = Phase::Over;
        self.close();
        self.in_order = self.is_terminated();
        !self.in_order
    }

    /// This DDP segment, which reports an error, is the last one before the Terminate of [`end`](Self::end).
    pub fn part(&mut self, segment: Box<[u8]>) {
        if !self.is_terminated() {
            (self.parting, self.in_order) = (Some(segment), false);
        }
    }

    /// True when this end's Terminate is with SCTP, or none will be: no segment follows.
    pub fn is_terminated(&self) -> bool {
        self.last == Last::Sent
    }

    /// Ends the session: a Terminate is next, or follows the Accept that is awaited. Says whether the peer knows of the
    /// session, or may.
    pub fn end(&mut self) -> bool {
        match (self.phase, &self.first) {
            // Nothing was sent, nothing need be.
            (Phase::Initiating { .. }, First::Due(..)) => {
                (self.first, self.last) = (First::None, Last::Sent);
                // No message of it has come, and none will.
                self.phase = Phase::Over;
                self.peer_final = Some(0);
                self.order = Order::default();
                self.order.take(0);
                return false;
            }
            // RFC 5043 §6.1, §6.2: the answer comes first.
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

    /// True when [`next`](Self::next) with ample room would give a message.
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

    /// Writes the next message into `out`, if there is one and it fits. Segments have at most `mulpdu`
    /// bytes. `awaits`: the source has nothing now and will have, so a [`close`](Self::close) waits.
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
        // RFC 5043 §6.6: nothing that might be received before it.
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

    /// Writes again a message that was sent and not acknowledged.
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

    /// What the messages take that are kept until they are acknowledged.
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

    /// The source goes away: what is outstanding is kept.
    pub fn keep_all(&mut self, source: &impl UlpduSource) {
        self.sender.keep_all(source);
    }

    /// True when all that this end has sent is acknowledged, and it sends nothing more.
    pub fn is_own_done(&self) -> bool {
        let ended = matches!(self.first, First::Confirmed | First::None) && self.last == Last::Sent;
        ended && self.sender.is_acknowledged()
    }

    /// True when all that the peer sends in this session has come.
    pub fn is_peer_done(&self) -> bool {
        self.peer_final.is_some_and(|last| self.order.next() > last)
    }

    /// True when nothing of the session can be outstanding, either way: its streams may be used again
    /// (RFC 5043 §6.6).
    pub fn is_free(&self) -> bool {
        self.is_own_done() && self.is_peer_done()
    }

    /// True once a segment has come in order.
    pub fn is_begun(&self) -> bool {
        self.order.next() > 1
    }

    /// Messages taken and messages acknowledged: what shows that the peer is there.
    pub fn progress(&self) -> u64 {
        self.stats.segments + self.stats.controls + self.sender.acknowledged_count()
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        Stats { tx: self.sender.stats(), ..self.stats }
    }
}

/// Any MULPDU: whether there is a segment does not depend on it.
const MIN_LEN: usize = 516;

/// What came to a stream without a session, and begins none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSession {
    /// A Terminate: there is nothing to end.
    Terminate,
    /// It is behind the beginning of its session, which has not come.
    Early,
    /// It should be the beginning of a session.
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
