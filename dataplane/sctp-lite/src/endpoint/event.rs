//! What an endpoint tells its owner, and the one list of reasons why a session ended.

use crate::sctp;
use crate::session::{self, SessionError};
use core::fmt;
use ddp::enhanced::{Agreed, EnhancedRepr, Unsuitable};
use ddp::{DdpError, DdpVersion, Failure, Origin, UlpKind, rdmap};

/// Layer of the errors of RFC 6581 §8 (LLP).
const LAYER_LLP: u8 = 2;
/// Their error type.
const ETYPE_STARTUP: u8 = 0;

/// Names a session of one association, once and for all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId {
    /// The SCTP stream identifier of both directions.
    pub stream: u16,
    /// Which of the sessions on that pair of streams it is; wraps.
    pub serial: u32,
}

/// What the owner has to know, in the order in which it happened; for one session so, not across sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The association is up.
    Up {
        /// Pairs of streams that it has, so many sessions at one time.
        streams: u16,
    },
    /// Of one session.
    Session(SessionId, SessionEvent),
    /// The association is over; nothing follows. The endpoint is to be kept and driven until
    /// [`is_done`](super::Endpoint::is_done).
    Down {
        /// Why: that of the sessions that it ended, [`CloseReason::LocalShutdown`] or
        /// [`CloseReason::PeerShutdown`] after the last of them.
        reason: CloseReason,
    },
}

/// What happens in a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionEvent {
    /// The peer asks for a session: decide by [`accept_session`](super::Endpoint::accept_session) or
    /// [`reject_session`](super::Endpoint::reject_session).
    Request {
        /// The peer's private data, at most 512 octets, without the enhanced data.
        private_data: Vec<u8>,
        /// What an enhanced Initiate says of Reads and of who speaks first (RFC 6581 §9); it will be answered
        /// in kind.
        enhanced: Option<EnhancedRepr>,
    },
    /// Segments may flow.
    Established {
        /// The peer's private data: of the Accept for the active side; empty for the passive side, who has
        /// seen it in the request.
        private_data: Vec<u8>,
        /// What was agreed on.
        params: StreamParams,
    },
    /// From bare DDP.
    Ddp(ddp::Event),
    /// From RDMAP.
    Rdmap(rdmap::Event),
    /// The session is over; nothing follows of it.
    Closed {
        /// Why.
        reason: CloseReason,
        /// Its counters.
        stats: Box<SessionStats>,
    },
}

/// Counters of the layers of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionStats {
    /// The DDP adaptation.
    pub session: session::Stats,
    /// DDP.
    pub ddp: ddp::Counters,
    /// RDMAP, where it is spoken.
    pub rdmap: rdmap::Counters,
}

/// What the two ends of a session have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamParams {
    /// What is spoken in it.
    pub ulp: UlpKind,
    /// The largest ULPDU to send, in octets, as of now.
    pub mulpdu: usize,
    /// DDP's version.
    pub ddp_version: Option<DdpVersion>,
    /// Read depths and ready-to-receive message, if they were negotiated (RFC 6581 §9).
    pub agreed: Option<Agreed>,
}

/// Why a session, or the association under it, ended: the first cause, whatever followed from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Closed gracefully, this end first.
    LocalShutdown,
    /// Closed gracefully, the peer first.
    PeerShutdown,
    /// Aborted by this end.
    LocalAbort,
    /// Nothing came for the configured time.
    Idle,
    /// The peer did not terminate its direction in time after this end had terminated its own, and had
    /// something outstanding.
    PeerLingers,
    /// The peer aborted the association.
    PeerAbort {
        /// Code of the first error cause of its ABORT (RFC 9260 §3.3.10); none without a cause.
        cause: Option<u16>,
    },
    /// The peer restarted the association: its sessions are gone.
    PeerRestart,
    /// The peer refused the association.
    ConnectRefused,
    /// The peer's host does not speak SCTP, says ICMP (RFC 9260 §10).
    NoSctp,
    /// SCTP gave up: no answer.
    SctpTimeout,
    /// SCTP aborted the association, because the peer broke its protocol.
    SctpFault(sctp::Fault),
    /// The peer does not support the DDP adaptation (RFC 5043 §11.1).
    NotDdp {
        /// The adaptation indication that it sent, if any.
        seen: Option<u32>,
    },
    /// The Initiate was not answered in time, or no Initiate came.
    AnswerTimeout,
    /// The peer's ULP rejected the session.
    RejectedByPeer {
        /// Private data of the Reject, at most 512 octets.
        private_data: Vec<u8>,
        /// What it says of Reads, if anything: the ORD that the peer needs (RFC 6581 §9.1).
        enhanced: Option<EnhancedRepr>,
    },
    /// This end's ULP rejected the session.
    RejectedHere,
    /// The peer answered the Initiate by a Terminate: it has no room for it (RFC 5043 §6.4), or does not know
    /// the enhanced form.
    TurnedAway,
    /// The peer terminated the session before its Initiate was answered.
    Cancelled,
    /// The two ends cannot have a session: what they say of Reads does not match (RFC 6581 §9).
    Unsuitable(Unsuitable),
    /// This end could not go on for a reason of its own (RFC 6581 §8, code 5).
    Local,
    /// The peer's messages follow no legal sequence (RFC 5043 §6).
    Session(SessionError),
    /// DDP found an error in what the peer sent.
    Ddp(DdpError),
    /// RDMAP found an error in what the peer sent.
    Rdmap(rdmap::RdmapError),
    /// The stream was told of an error of its lower layer, with these numbers.
    Llp {
        /// Error type, 4 bits.
        error_type: u8,
        /// Error code.
        code: u8,
    },
    /// The peer sent an RDMAP Terminate that is shorter than it says.
    InvalidTerminate {
        /// Octets that it has.
        len: usize,
    },
    /// The peer found an error, or had one of its own, and said so (RFC 5040 §7).
    Terminated(Box<rdmap::Terminate>),
    /// DDP ended the stream without a peer's error of RFC 5041 §7.2.
    DdpFailed(Failure),
}

impl CloseReason {
    /// Layer, error type and error code, where the specifications have numbers for it: layer 1 is DDP
    /// (RFC 5041 §7.2), layer 2 the LLP with the codes of RFC 6581 §8, layer 0 RDMAP (RFC 5040 §4.8).
    pub fn numbers(&self) -> Option<(u8, u8, u8)> {
        match self {
            CloseReason::Ddp(error) => {
                Some((ddp::LAYER_DDP, error.code.error_type(), error.code.code()))
            }
            CloseReason::Rdmap(error) => Some((
                wire::rdmap::terminate::LAYER_RDMAP,
                error.code.error_type(),
                error.code.code(),
            )),
            CloseReason::Unsuitable(why) => Some((LAYER_LLP, ETYPE_STARTUP, why.code())),
            CloseReason::Local => Some((LAYER_LLP, ETYPE_STARTUP, 5)),
            CloseReason::Llp { error_type, code } => Some((LAYER_LLP, *error_type, *code)),
            CloseReason::Terminated(said) => Some((said.layer, said.error_type, said.code)),
            _ => None,
        }
    }

    /// Whose doing it was.
    pub fn origin(&self) -> Origin {
        match self {
            CloseReason::LocalShutdown
            | CloseReason::LocalAbort
            | CloseReason::Idle
            | CloseReason::RejectedHere
            | CloseReason::Local
            | CloseReason::Llp { .. }
            | CloseReason::DdpFailed(Failure::Aborted) => Origin::Local,
            CloseReason::Rdmap(error) if error.code == rdmap::ErrorCode::LocalCatastrophic => {
                Origin::Local
            }
            CloseReason::NoSctp
            | CloseReason::SctpTimeout
            | CloseReason::DdpFailed(Failure::LlpLost) => Origin::Network,
            _ => Origin::Peer,
        }
    }

    /// True when both ends closed and nothing was lost.
    pub fn is_graceful(&self) -> bool {
        matches!(self, CloseReason::LocalShutdown | CloseReason::PeerShutdown)
    }

    /// A stable name for counters and machine-readable output.
    pub fn name(&self) -> &'static str {
        match self {
            CloseReason::LocalShutdown => "local_shutdown",
            CloseReason::PeerShutdown => "peer_shutdown",
            CloseReason::LocalAbort => "local_abort",
            CloseReason::Idle => "idle",
            CloseReason::PeerLingers => "peer_lingers",
            CloseReason::PeerAbort { .. } => "peer_abort",
            CloseReason::PeerRestart => "peer_restart",
            CloseReason::ConnectRefused => "connect_refused",
            CloseReason::NoSctp => "no_sctp",
            CloseReason::SctpTimeout => "sctp_timeout",
            CloseReason::SctpFault(_) => "sctp_fault",
            CloseReason::NotDdp { .. } => "not_ddp",
            CloseReason::AnswerTimeout => "answer_timeout",
            CloseReason::RejectedByPeer { .. } => "rejected_by_peer",
            CloseReason::RejectedHere => "rejected_here",
            CloseReason::TurnedAway => "turned_away",
            CloseReason::Cancelled => "cancelled",
            CloseReason::Unsuitable(_) => "unsuitable",
            CloseReason::Local => "local_error",
            CloseReason::Session(_) => "session_error",
            CloseReason::Ddp(_) => "ddp_error",
            CloseReason::Rdmap(_) => "rdmap_error",
            CloseReason::Llp { .. } => "llp_error",
            CloseReason::InvalidTerminate { .. } => "invalid_terminate",
            CloseReason::Terminated(_) => "terminated_by_peer",
            CloseReason::DdpFailed(_) => "ddp_failed",
        }
    }

    /// What the end of an association means for what is on it.
    pub(super) fn of_sctp(reason: &sctp::CloseReason, peer_first: bool) -> Self {
        match reason {
            sctp::CloseReason::Shutdown if peer_first => CloseReason::PeerShutdown,
            sctp::CloseReason::Shutdown => CloseReason::LocalShutdown,
            sctp::CloseReason::Aborted => CloseReason::LocalAbort,
            sctp::CloseReason::PeerAborted { cause, .. } => {
                CloseReason::PeerAbort { cause: *cause }
            }
            sctp::CloseReason::Refused { .. } => CloseReason::ConnectRefused,
            sctp::CloseReason::Unreachable => CloseReason::NoSctp,
            sctp::CloseReason::OtherAdaptation { seen } => CloseReason::NotDdp { seen: *seen },
            sctp::CloseReason::Timeout => CloseReason::SctpTimeout,
            sctp::CloseReason::Fault(fault) => CloseReason::SctpFault(*fault),
        }
    }

    /// What the stream of a session found wrong.
    pub(super) fn of_ulp(error: rdmap::Error) -> Self {
        match error {
            rdmap::Error::Ddp(error) => CloseReason::Ddp(error),
            rdmap::Error::Rdmap(error) => CloseReason::Rdmap(error),
            rdmap::Error::Llp { error_type, code } => CloseReason::Llp { error_type, code },
            rdmap::Error::InvalidTerminate { len } => CloseReason::InvalidTerminate { len },
        }
    }
}

fn words(fault: sctp::Fault) -> &'static str {
    match fault {
        sctp::Fault::Data(_) => "the peer sent an illegal DATA chunk",
        sctp::Fault::NeverSent => "the peer acknowledged what was never sent",
        sctp::Fault::InitAck => "the peer sent an illegal INIT ACK",
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            CloseReason::LocalShutdown => "closed by this end",
            CloseReason::PeerShutdown => "closed by the peer",
            CloseReason::LocalAbort => "aborted by this end",
            CloseReason::Idle => "closed by this end: the peer was silent too long",
            CloseReason::PeerLingers => "given up by this end: the peer did not terminate in time",
            CloseReason::PeerAbort { cause: None } => "SCTP association aborted by the peer",
            CloseReason::PeerAbort { cause: Some(cause) } => {
                return write!(f, "SCTP association aborted by the peer, error cause {cause}");
            }
            CloseReason::PeerRestart => "SCTP association restarted by the peer",
            CloseReason::ConnectRefused => "SCTP association refused by the peer",
            CloseReason::NoSctp => {
                "SCTP association lost: the peer's host does not speak SCTP, says ICMP"
            }
            CloseReason::SctpTimeout => "SCTP association lost: no answer",
            CloseReason::SctpFault(fault) => {
                return write!(f, "SCTP association aborted by this end: {}", words(*fault));
            }
            CloseReason::NotDdp { seen: None } => "the peer sends no adaptation indication",
            CloseReason::NotDdp { seen: Some(seen) } => {
                return write!(f, "adaptation indication {seen:#010x} of the peer is not DDP's");
            }
            CloseReason::AnswerTimeout => "no answer to the session's Initiate in time",
            CloseReason::RejectedByPeer { .. } => "rejected by the peer",
            CloseReason::RejectedHere => "rejected by this end",
            CloseReason::TurnedAway => "turned away by the peer",
            CloseReason::Cancelled => "cancelled by the peer before it was answered",
            CloseReason::Unsuitable(why) => return why.fmt(f),
            CloseReason::Local => "local catastrophic error",
            CloseReason::Session(error) => return error.fmt(f),
            CloseReason::Ddp(error) => return error.fmt(f),
            CloseReason::Rdmap(error) => return write!(f, "{} ({})", error.code, error.mismatch),
            CloseReason::Terminated(said) => return write!(f, "terminated by the peer: {said}"),
            CloseReason::Llp { error_type, code } => {
                return write!(f, "LLP error {error_type}/{code:02x}");
            }
            CloseReason::InvalidTerminate { len } => {
                return write!(
                    f,
                    "the peer's Terminate has {len} octets, too few for what it says"
                );
            }
            CloseReason::DdpFailed(Failure::DataAfterClose) => "data after the end of the stream",
            CloseReason::DdpFailed(Failure::Aborted) => "DDP stream aborted by this end",
            CloseReason::DdpFailed(Failure::LlpLost) => "DDP stream lost its SCTP association",
        };
        f.write_str(words)
    }
}
