//! Events that an endpoint reports to its owner, and the close reasons of TCP and MPA.

use crate::mpa::{self, Agreement, EnhancedRepr, MpaError, Revision, StartupError};
use crate::tcp;
use base::ErrorNumbers;
use core::fmt;
use ddp::lifecycle::LowerReason;
use ddp::{DdpVersion, Origin, RegionMemory, Ulp, UlpKind, rdmap};

/// Events for the owner, in order of occurrence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The peer requests a stream. The owner answers with [`mpa_accept`](super::Endpoint::mpa_accept) or
    /// [`mpa_reject`](super::Endpoint::mpa_reject).
    MpaRequest {
        /// The peer's private data, at most 512 bytes.
        private_data: Vec<u8>,
        /// Form and revision of the request. The first draft's form carries no private data in either direction.
        revision: Revision,
        /// Enhanced data of the request, if any: IRD, ORD and ready-to-receive messages (RFC 6581 §9).
        enhanced: Option<EnhancedRepr>,
    },
    /// The stream is in Full Operation.
    Established {
        /// Private data of the peer's reply, for the initiator. Empty for the responder, to which `MpaRequest`
        /// reported the initiator's private data.
        private_data: Vec<u8>,
        /// Negotiated parameters.
        params: StreamParams,
    },
    /// An event of a bare DDP stream.
    Ddp(ddp::Event),
    /// An event of an RDMAP stream.
    Rdmap(rdmap::Event),
    /// The peer has been silent for the idle time-out, on a stream whose ULP confirms data itself
    /// ([`ddp::UlpConfig::set_hold_confirmations`]). The owner must call [`shutdown`](super::Endpoint::shutdown).
    Idle,
    /// The stream has ended; no event follows. The owner keeps and drives the endpoint until
    /// [`is_done`](super::Endpoint::is_done).
    Closed {
        /// Cause of the end.
        reason: CloseReason,
    },
}

/// Negotiated parameters of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamParams {
    /// MPA revision, with the first draft distinct from revision 0.
    pub revision: Revision,
    /// Protocol above MPA: bare DDP or RDMAP.
    pub ulp: UlpKind,
    /// True if this end sends markers.
    pub markers_tx: bool,
    /// True if this end receives markers.
    pub markers_rx: bool,
    /// True if FPDUs carry CRCs, in both directions.
    pub crc: bool,
    /// Current MULPDU: largest ULPDU to send, in bytes.
    pub mulpdu: usize,
    /// DDP version, once known. A responder to a revision 0 request takes the version from the
    /// first FPDU.
    pub ddp_version: Option<DdpVersion>,
    /// Read depths and ready-to-receive message, if negotiated (RFC 6581 §9).
    pub agreed: Option<Agreement>,
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

/// Reason for the end of a stream over TCP.
pub type CloseReason = ddp::lifecycle::CloseReason<TcpReason>;

/// Close reasons of TCP and MPA, in addition to [`ddp::lifecycle::CloseReason`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpReason {
    /// The peer reset the TCP connection.
    PeerReset,
    /// The TCP connection timed out: the peer did not answer.
    TcpTimeout,
    /// MPA start-up failed.
    Startup(StartupError),
    /// MPA found an error in the received bytes.
    Mpa(MpaError),
}

impl TcpReason {
    /// Maps the end of a TCP connection to a close reason. The lifecycle uses this reason if it has recorded none
    /// before, or if a graceful close has failed. `peer_closed` is true if the peer has closed its direction.
    pub(super) fn from_tcp(reason: tcp::CloseReason, peer_closed: bool) -> CloseReason {
        match reason {
            tcp::CloseReason::Normal if peer_closed => CloseReason::PeerShutdown,
            tcp::CloseReason::Normal => CloseReason::LocalShutdown,
            tcp::CloseReason::Reset => TcpReason::PeerReset.into(),
            tcp::CloseReason::Refused => CloseReason::ConnectRefused,
            tcp::CloseReason::Timeout => TcpReason::TcpTimeout.into(),
            tcp::CloseReason::Aborted => CloseReason::LocalAbort,
        }
    }
}

impl LowerReason for TcpReason {
    const CARRIER: &'static str = "TCP connection";
    const LINGER_TEXT: &'static str = "reset by this end: the peer did not close in time";

    /// Returns layer, type and code of a Terminate: layer 2, type 0 is MPA (RFC 5044 §8).
    fn numbers(&self) -> Option<ErrorNumbers> {
        let code = match self {
            // RFC 5044 §8, code 1: the TCP connection was lost.
            TcpReason::PeerReset | TcpReason::TcpTimeout => 1,
            TcpReason::Startup(error) => error.code(),
            TcpReason::Mpa(error) => error.code(),
        };
        Some(ErrorNumbers::new(MpaError::LAYER, MpaError::ETYPE, code))
    }

    fn origin(&self) -> Origin {
        match self {
            TcpReason::TcpTimeout => Origin::Network,
            TcpReason::Startup(StartupError::Local) => Origin::Local,
            TcpReason::PeerReset | TcpReason::Startup(_) | TcpReason::Mpa(_) => Origin::Peer,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            TcpReason::PeerReset => "peer_reset",
            TcpReason::TcpTimeout => "tcp_timeout",
            TcpReason::Startup(_) => "mpa_startup",
            TcpReason::Mpa(_) => "mpa_error",
        }
    }
}

impl fmt::Display for TcpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpReason::PeerReset => f.write_str("TCP connection reset by the peer (MPA error 1)"),
            TcpReason::TcpTimeout => f.write_str("TCP connection lost: no answer (MPA error 1)"),
            TcpReason::Startup(error) => write!(f, "MPA error {}: {error}", error.code()),
            TcpReason::Mpa(error) => write!(f, "MPA error {}: {error}", error.code()),
        }
    }
}
