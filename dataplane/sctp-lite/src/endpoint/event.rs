//! Events of an endpoint for its owner, and reasons for the end of a session that SCTP and the DDP adaptation add.

use crate::sctp;
use crate::session::{self, SessionError};
use base::ErrorNumbers;
use core::fmt;
use ddp::enhanced::{Agreement, EnhancedRepr, NegotiationError};
use ddp::lifecycle::LowerReason;
use ddp::{DdpVersion, Origin, UlpKind, rdmap};

/// Layer of the error codes of RFC 6581 §8 (LLP).
const LAYER_LLP: u8 = 2;
/// Error type of the codes of RFC 6581 §8.
const ETYPE_STARTUP: u8 = 0;

/// Identifier of a session within one association, not reused before `serial` wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId {
    /// SCTP stream identifier, the same in both directions.
    pub stream: u16,
    /// Serial number of the session within the association; wraps.
    pub serial: u32,
}

/// Events for the owner, in order within each session but not across sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The association is up.
    Up {
        /// Pairs of streams: the maximum number of concurrent sessions.
        streams: u16,
    },
    /// An event of one session.
    Session(SessionId, SessionEvent),
    /// The association has ended; no event follows. The owner keeps and drives the endpoint until
    /// [`is_done`](super::Endpoint::is_done).
    Down {
        /// Reason for the end of the association and of its live sessions. After a shutdown it is
        /// [`CloseReason::LocalShutdown`] or [`CloseReason::PeerShutdown`].
        reason: CloseReason,
    },
}

/// Events of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionEvent {
    /// The peer requests a session. The owner calls [`accept_session`](super::Endpoint::accept_session) or
    /// [`reject_session`](super::Endpoint::reject_session).
    Request {
        /// The peer's private data without the enhanced data, at most 512 bytes.
        private_data: Vec<u8>,
        /// IRD, ORD and flags of an enhanced Initiate (RFC 6581 §9), or `None` for a plain Initiate. The answer has the
        /// same form as the Initiate.
        enhanced: Option<EnhancedRepr>,
    },
    /// The session is established: segments may be exchanged.
    Established {
        /// On the active side, the private data of the peer's Accept. Empty on the passive side: there
        /// [`Request`](Self::Request) reported the private data of the Initiate.
        private_data: Vec<u8>,
        /// Parameters that the two ends agreed on.
        params: StreamParams,
    },
    /// An event of bare DDP.
    Ddp(ddp::Event),
    /// An event of RDMAP.
    Rdmap(rdmap::Event),
    /// The peer was silent for the idle time-out. Only reported for a session whose ULP confirms data itself
    /// ([`ddp::StreamConfig::hold_confirmations`]). The ULP must call
    /// [`shutdown_session`](super::Endpoint::shutdown_session).
    Idle,
    /// The session has ended; no further event of this session follows.
    Closed {
        /// Reason for the end.
        reason: CloseReason,
        /// Final counters.
        stats: Box<SessionStats>,
    },
}

/// Counters of the layers of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionStats {
    /// Counters of the DDP adaptation.
    pub session: session::Stats,
    /// Counters of DDP.
    pub ddp: ddp::Counters,
    /// Counters of RDMAP; zero on bare DDP.
    pub rdmap: rdmap::Counters,
}

/// Parameters that the two ends of a session agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamParams {
    /// Protocol above SCTP: bare DDP or RDMAP.
    pub ulp: UlpKind,
    /// Largest ULPDU that may be sent at present, bytes.
    pub mulpdu: usize,
    /// DDP version, once it is determined.
    pub ddp_version: Option<DdpVersion>,
    /// Read depths and ready-to-receive message, if negotiated (RFC 6581 §9).
    pub agreed: Option<Agreement>,
}

/// Reason for the end of a session or of the association under it.
pub type CloseReason = ddp::lifecycle::CloseReason<SctpReason>;

/// Reasons of SCTP and of the DDP adaptation for the end of a session, in addition to those of `ddp`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SctpReason {
    /// The peer aborted the association.
    PeerAbort {
        /// Code of the first error cause in the ABORT (RFC 9260 §3.3.10); `None` without a cause.
        cause: Option<u16>,
    },
    /// The peer restarted the association, which ended its sessions.
    PeerRestart,
    /// ICMP reported that the peer's host does not support SCTP (RFC 9260 §10).
    NoSctp,
    /// SCTP ended the association because the peer did not respond.
    SctpTimeout,
    /// SCTP aborted the association because the peer violated the protocol.
    SctpFault(sctp::Fault),
    /// The peer does not support the DDP adaptation (RFC 5043 §11.1).
    NotDdp {
        /// The adaptation indication received, if any.
        seen: Option<u32>,
    },
    /// A time-out expired before the peer answered the Initiate, the owner answered the request, or the
    /// ready-to-receive message arrived (RFC 6581 §9.2).
    AnswerTimeout,
    /// The peer answered the Initiate with a Terminate: it has no room for the session (RFC 5043 §6.4), or does not
    /// support the enhanced form. Also used if the association has fewer streams than requested, and the session's
    /// stream does not exist.
    TurnedAway,
    /// The peer terminated the session before its Initiate was answered.
    Cancelled,
    /// The Read limits, ready-to-receive messages or connection models of the two ends do not match (RFC 6581 §9).
    Unsuitable(NegotiationError),
    /// A local error: this end could not continue (RFC 6581 §8, code 5).
    Local,
    /// The peer's messages violate the legal sequences (RFC 5043 §6).
    Session(SessionError),
}

impl SctpReason {
    /// Converts the reason for the end of an association to the reason for the end of its sessions. `peer_first`: true
    /// if the peer began the shutdown.
    pub(super) fn from_sctp(reason: &sctp::CloseReason, peer_first: bool) -> CloseReason {
        CloseReason::Lower(match reason {
            sctp::CloseReason::Shutdown if peer_first => return CloseReason::PeerShutdown,
            sctp::CloseReason::Shutdown => return CloseReason::LocalShutdown,
            sctp::CloseReason::Aborted => return CloseReason::LocalAbort,
            sctp::CloseReason::Refused { .. } => return CloseReason::ConnectRefused,
            sctp::CloseReason::PeerAborted { cause, .. } => SctpReason::PeerAbort { cause: *cause },
            sctp::CloseReason::Unreachable => SctpReason::NoSctp,
            sctp::CloseReason::OtherAdaptation { seen } => SctpReason::NotDdp { seen: *seen },
            sctp::CloseReason::Timeout => SctpReason::SctpTimeout,
            sctp::CloseReason::Fault(fault) => SctpReason::SctpFault(*fault),
        })
    }
}

impl LowerReason for SctpReason {
    const CARRIER: &'static str = "SCTP association";
    const LINGER_TEXT: &'static str = "ended by this end: the peer did not terminate in time";

    /// Returns layer 2 (LLP) and a code of RFC 6581 §8; `None` if no code is defined for the reason.
    fn numbers(&self) -> Option<ErrorNumbers> {
        match self {
            SctpReason::Unsuitable(why) => {
                Some(ErrorNumbers::new(LAYER_LLP, ETYPE_STARTUP, why.code()))
            }
            SctpReason::Local => Some(ErrorNumbers::new(LAYER_LLP, ETYPE_STARTUP, 5)),
            _ => None,
        }
    }

    fn origin(&self) -> Origin {
        match self {
            SctpReason::Local => Origin::Local,
            SctpReason::NoSctp | SctpReason::SctpTimeout => Origin::Network,
            _ => Origin::Peer,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            SctpReason::PeerAbort { .. } => "peer_abort",
            SctpReason::PeerRestart => "peer_restart",
            SctpReason::NoSctp => "no_sctp",
            SctpReason::SctpTimeout => "sctp_timeout",
            SctpReason::SctpFault(_) => "sctp_fault",
            SctpReason::NotDdp { .. } => "not_ddp",
            SctpReason::AnswerTimeout => "answer_timeout",
            SctpReason::TurnedAway => "turned_away",
            SctpReason::Cancelled => "cancelled",
            SctpReason::Unsuitable(_) => "unsuitable",
            SctpReason::Local => "local_error",
            SctpReason::Session(_) => "session_error",
        }
    }
}

fn fault_text(fault: sctp::Fault) -> &'static str {
    match fault {
        sctp::Fault::Data(_) => "the peer sent an illegal DATA chunk",
        sctp::Fault::NeverSent => "the peer acknowledged data that was never sent",
        sctp::Fault::InitAck => "the peer sent an illegal INIT ACK",
    }
}

impl fmt::Display for SctpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            SctpReason::PeerAbort { cause: None } => "SCTP association aborted by the peer",
            SctpReason::PeerAbort { cause: Some(cause) } => {
                return write!(f, "SCTP association aborted by the peer, error cause {cause}");
            }
            SctpReason::PeerRestart => "SCTP association restarted by the peer",
            SctpReason::NoSctp => {
                "SCTP association lost: the peer's host does not support SCTP, as reported by ICMP"
            }
            SctpReason::SctpTimeout => "SCTP association lost: no answer",
            SctpReason::SctpFault(fault) => {
                return write!(f, "SCTP association aborted by this end: {}", fault_text(*fault));
            }
            SctpReason::NotDdp { seen: None } => "the peer sends no adaptation indication",
            SctpReason::NotDdp { seen: Some(seen) } => {
                return write!(f, "adaptation indication {seen:#010x} of the peer is not DDP's");
            }
            SctpReason::AnswerTimeout => "no answer to the session's Initiate in time",
            SctpReason::TurnedAway => "turned away by the peer",
            SctpReason::Cancelled => "cancelled by the peer before its Initiate was answered",
            SctpReason::Unsuitable(why) => return why.fmt(f),
            SctpReason::Local => "local catastrophic error",
            SctpReason::Session(error) => return error.fmt(f),
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RFC 6581 §8: error numbers.
    #[test]
    fn each_sctp_reason_has_name_numbers_and_origin() {
        use SctpReason::*;
        use ddp::enhanced::NegotiationError as Limits;
        let (us, peer, net) = (Origin::Local, Origin::Peer, Origin::Network);
        let ird = Limits::InsufficientIrd { offered: 1, needed: 2 };
        let short = SessionError::Short { seen: 1 };
        let fault = sctp::Fault::NeverSent;
        type Row = (SctpReason, &'static str, Option<ErrorNumbers>, Origin, &'static str);
        let rows: [Row; 16] = [
            (PeerAbort { cause: None }, "peer_abort", None, peer, "aborted by the peer"),
            (PeerAbort { cause: Some(12) }, "peer_abort", None, peer, "error cause 12"),
            (PeerRestart, "peer_restart", None, peer, "restarted by the peer"),
            (NoSctp, "no_sctp", None, net, "does not support SCTP"),
            (SctpTimeout, "sctp_timeout", None, net, "lost: no answer"),
            (SctpFault(fault), "sctp_fault", None, peer, "acknowledged data that was never sent"),
            (SctpFault(sctp::Fault::InitAck), "sctp_fault", None, peer, "illegal INIT ACK"),
            (NotDdp { seen: None }, "not_ddp", None, peer, "sends no adaptation indication"),
            (NotDdp { seen: Some(7) }, "not_ddp", None, peer, "indication 0x00000007"),
            (AnswerTimeout, "answer_timeout", None, peer, "no answer to the session's Initiate"),
            (TurnedAway, "turned_away", None, peer, "turned away"),
            (Cancelled, "cancelled", None, peer, "cancelled by the peer"),
            (
                Unsuitable(ird),
                "unsuitable",
                Some(ErrorNumbers::new(2, 0, 6)),
                peer,
                "insufficient IRD",
            ),
            (
                Unsuitable(Limits::NoRtr),
                "unsuitable",
                Some(ErrorNumbers::new(2, 0, 7)),
                peer,
                "ready-to-receive",
            ),
            (
                Local,
                "local_error",
                Some(ErrorNumbers::new(2, 0, 5)),
                us,
                "local catastrophic error",
            ),
            (Session(short), "session_error", None, peer, "1 bytes, too few"),
        ];
        for (reason, name, numbers, origin, words) in rows {
            assert_eq!((reason.name(), reason.numbers(), reason.origin()), (name, numbers, origin));
            let text = reason.to_string();
            assert!(text.contains(words), "{name}: {text}");
        }
    }

    #[test]
    fn association_close_reasons_map_to_session_reasons() {
        use sctp::CloseReason as Ended;
        let lower = CloseReason::Lower;
        let (cause, seen) = (Some(3), Some(7));
        let rows = [
            (Ended::Shutdown, CloseReason::LocalShutdown),
            (Ended::Aborted, CloseReason::LocalAbort),
            (Ended::Refused { cause }, CloseReason::ConnectRefused),
            (
                Ended::PeerAborted { cause, reason: Box::new([]) },
                lower(SctpReason::PeerAbort { cause }),
            ),
            (Ended::Unreachable, lower(SctpReason::NoSctp)),
            (Ended::OtherAdaptation { seen }, lower(SctpReason::NotDdp { seen })),
            (Ended::Timeout, lower(SctpReason::SctpTimeout)),
            (
                Ended::Fault(sctp::Fault::InitAck),
                lower(SctpReason::SctpFault(sctp::Fault::InitAck)),
            ),
        ];
        for (ended, reason) in rows {
            assert_eq!(SctpReason::from_sctp(&ended, false), reason);
        }
        assert_eq!(SctpReason::from_sctp(&Ended::Shutdown, true), CloseReason::PeerShutdown);
    }
}
