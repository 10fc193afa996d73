//! What an endpoint tells its owner, and the one list of reasons why a stream ended.

use crate::mpa::{self, Agreed, EnhancedRepr, MpaError, Revision, StartupError};
use crate::tcp;
use core::fmt;
use ddp::{DdpError, DdpVersion, Failure, Origin, RegionMemory, Ulp, UlpKind, rdmap};

/// What the owner has to know, in the order in which it happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The peer asks to start: decide by [`mpa_accept`](super::Endpoint::mpa_accept) or
    /// [`mpa_reject`](super::Endpoint::mpa_reject).
    MpaRequest {
        /// The peer's private data, at most 512 octets.
        private_data: Vec<u8>,
        /// The form of the request; the draft's carries no private data either way.
        revision: Revision,
        /// What it says of Reads and of who speaks first, if anything (RFC 6581 §9).
        enhanced: Option<EnhancedRepr>,
    },
    /// Full Operation.
    Established {
        /// The peer's private data: of the reply for the initiator; empty for the responder, who has
        /// seen it in the request.
        private_data: Vec<u8>,
        /// What was agreed on.
        params: StreamParams,
    },
    /// From bare DDP.
    Ddp(ddp::Event),
    /// From RDMAP.
    Rdmap(rdmap::Event),
    /// The stream is over; nothing follows. The endpoint is to be kept and driven until
    /// [`is_done`](super::Endpoint::is_done).
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

/// What the two ends of a stream have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamParams {
    /// MPA's form and revision.
    pub revision: Revision,
    /// What is spoken above it.
    pub ulp: UlpKind,
    /// Markers in what this end sends.
    pub markers_tx: bool,
    /// Markers in what this end receives.
    pub markers_rx: bool,
    /// CRCs in both directions.
    pub crc: bool,
    /// The largest ULPDU to send, in octets, as of now.
    pub mulpdu: usize,
    /// DDP's version, once it is known: a responder to a revision 0 request takes that of the first
    /// FPDU.
    pub ddp_version: Option<DdpVersion>,
    /// Read depths and ready-to-receive message, if they were negotiated (RFC 6581 §9).
    pub agreed: Option<Agreed>,
}

impl StreamParams {
    pub(super) fn new<M: RegionMemory>(params: &mpa::Params, stream: &Ulp<M>, emss: usize) -> Self {
        StreamParams {
            revision: params.revision,
            ulp: stream.kind(),
            markers_tx: params.markers_tx,
            markers_rx: params.markers_rx,
            crc: params.crc,
            mulpdu: mpa::mulpdu(emss, params.markers_tx),
            ddp_version: stream.version(),
            agreed: params.agreed,
        }
    }
}

/// Why a stream ended: the first cause, whatever followed from it.
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
    /// The peer did not close its direction in time after this end had closed gracefully.
    PeerLingers,
    /// The peer reset the TCP connection.
    PeerReset,
    /// The peer refused the TCP connection.
    ConnectRefused,
    /// TCP gave up: no answer.
    TcpTimeout,
    /// MPA start-up failed.
    Startup(StartupError),
    /// The peer's ULP rejected the stream.
    RejectedByPeer {
        /// Private data of the reject, at most 512 octets.
        private_data: Vec<u8>,
        /// What it says of Reads, if anything: the ORD that the peer needs (RFC 6581 §9.1).
        enhanced: Option<EnhancedRepr>,
    },
    /// This end's ULP rejected the stream.
    RejectedHere,
    /// MPA found an error in what the peer sent.
    Mpa(MpaError),
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
    /// The peer sent a Terminate that is shorter than it says.
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
    /// (RFC 5041 §7.2), layer 2 the LLP, type 0 MPA (RFC 5044 §8), layer 0 RDMAP (RFC 5040 §4.8).
    pub fn numbers(&self) -> Option<(u8, u8, u8)> {
        match self {
            CloseReason::Ddp(error) => {
                Some((ddp::LAYER_DDP, error.code.error_type(), error.code.code()))
            }
            CloseReason::Mpa(error) => Some((MpaError::LAYER, MpaError::ETYPE, error.code())),
            CloseReason::Startup(error) => Some((MpaError::LAYER, MpaError::ETYPE, error.code())),
            CloseReason::Rdmap(error) => Some((
                wire::rdmap::terminate::LAYER_RDMAP,
                error.code.error_type(),
                error.code.code(),
            )),
            CloseReason::Llp { error_type, code } => Some((MpaError::LAYER, *error_type, *code)),
            CloseReason::Terminated(said) => Some((said.layer, said.error_type, said.code)),
            // RFC 5044 §8 code 1: the TCP connection was lost.
            CloseReason::PeerReset | CloseReason::TcpTimeout => {
                Some((MpaError::LAYER, MpaError::ETYPE, 1))
            }
            _ => None,
        }
    }

    /// Whose doing it was.
    pub fn origin(&self) -> Origin {
        match self {
            CloseReason::LocalShutdown
            | CloseReason::LocalAbort
            | CloseReason::Idle
            | CloseReason::RejectedHere => Origin::Local,
            CloseReason::TcpTimeout => Origin::Network,
            CloseReason::DdpFailed(Failure::Aborted) | CloseReason::Llp { .. } => Origin::Local,
            CloseReason::Startup(StartupError::Local) => Origin::Local,
            CloseReason::Rdmap(error) if error.code == rdmap::ErrorCode::LocalCatastrophic => {
                Origin::Local
            }
            CloseReason::DdpFailed(Failure::LlpLost) => Origin::Network,
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
            CloseReason::PeerReset => "peer_reset",
            CloseReason::ConnectRefused => "connect_refused",
            CloseReason::TcpTimeout => "tcp_timeout",
            CloseReason::Startup(_) => "mpa_startup",
            CloseReason::RejectedByPeer { .. } => "rejected_by_peer",
            CloseReason::RejectedHere => "rejected_here",
            CloseReason::Mpa(_) => "mpa_error",
            CloseReason::Ddp(_) => "ddp_error",
            CloseReason::Rdmap(_) => "rdmap_error",
            CloseReason::Llp { .. } => "llp_error",
            CloseReason::InvalidTerminate { .. } => "invalid_terminate",
            CloseReason::Terminated(_) => "terminated_by_peer",
            CloseReason::DdpFailed(_) => "ddp_failed",
        }
    }

    /// What the stream above MPA found wrong.
    pub(super) fn of_ulp(error: rdmap::Error) -> Self {
        match error {
            rdmap::Error::Ddp(error) => CloseReason::Ddp(error),
            rdmap::Error::Rdmap(error) => CloseReason::Rdmap(error),
            rdmap::Error::Llp { error_type, code } => CloseReason::Llp { error_type, code },
            rdmap::Error::InvalidTerminate { len } => CloseReason::InvalidTerminate { len },
        }
    }

    /// What a TCP connection's end means when no other cause is known.
    pub(super) fn of_tcp(reason: tcp::CloseReason, peer_first: bool) -> Self {
        match reason {
            tcp::CloseReason::Normal if peer_first => CloseReason::PeerShutdown,
            tcp::CloseReason::Normal => CloseReason::LocalShutdown,
            tcp::CloseReason::Reset => CloseReason::PeerReset,
            tcp::CloseReason::Refused => CloseReason::ConnectRefused,
            tcp::CloseReason::Timeout => CloseReason::TcpTimeout,
            tcp::CloseReason::Aborted => CloseReason::LocalAbort,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            CloseReason::LocalShutdown => "closed by this end",
            CloseReason::PeerShutdown => "closed by the peer",
            CloseReason::LocalAbort => "aborted by this end",
            CloseReason::Idle => "closed by this end: the peer was silent too long",
            CloseReason::PeerLingers => "reset by this end: the peer did not close in time",
            CloseReason::PeerReset => "TCP connection reset by the peer (MPA error 1)",
            CloseReason::ConnectRefused => "TCP connection refused by the peer",
            CloseReason::TcpTimeout => "TCP connection lost: no answer (MPA error 1)",
            CloseReason::RejectedByPeer { .. } => "rejected by the peer",
            CloseReason::RejectedHere => "rejected by this end",
            CloseReason::Startup(error) => {
                return write!(f, "MPA error {}: {error}", error.code());
            }
            CloseReason::Mpa(error) => return write!(f, "MPA error {}: {error}", error.code()),
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
            CloseReason::DdpFailed(Failure::LlpLost) => "DDP stream lost its TCP connection",
        };
        f.write_str(words)
    }
}
