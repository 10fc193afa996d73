//! Reasons for the end of a stream: those common to all LLPs, and those that each LLP defines in its own type.

use core::fmt::{self, Debug, Display};

use base::ErrorNumbers;
use wire::rdmap::terminate::LAYER_LLP;

use crate::enhanced::EnhancedRepr;
use crate::error::DdpError;
use crate::memory::RegionMemory;
use crate::message::Failure;
use crate::rdmap;
use crate::ulp::{Origin, Ulp};

/// Reasons that an LLP adds. `Display` writes a sentence for operators.
pub trait LowerReason: Clone + PartialEq + Debug + Display {
    /// Noun for the LLP's connection in messages, such as "association" in "association refused by the peer".
    const CARRIER: &'static str;
    /// Sentence for operators about this end's reaction to a peer that did not close in time.
    const LINGER_TEXT: &'static str;

    /// Returns the error numbers, if the specifications define them for the reason.
    fn numbers(&self) -> Option<ErrorNumbers>;

    /// Returns the party that caused the end.
    fn origin(&self) -> Origin;

    /// Returns a stable name for counters and machine-readable output.
    fn name(&self) -> &'static str;
}

/// Reason for the end of a stream, normally its first cause. An error replaces the reason of a graceful close in
/// progress ([`Lifecycle::fail_by_error`](super::Lifecycle::fail_by_error)).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason<L> {
    /// Closed gracefully, this end first.
    LocalShutdown,
    /// Closed gracefully, the peer first.
    PeerShutdown,
    /// Aborted by this end.
    LocalAbort,
    /// The peer was silent for the configured time.
    Idle,
    /// The peer did not close its direction in time after this end had closed its own gracefully.
    PeerLingers,
    /// The IPsec protection that this end requires for the stream's packets was missing for too long.
    NotProtected,
    /// The ULP did not close in time after the peer had closed its direction.
    UlpTimeout,
    /// The peer refused the connection or association of the LLP.
    ConnectRefused,
    /// The peer's ULP rejected the stream.
    RejectedByPeer {
        /// Private data of the reject, at most 512 bytes.
        private_data: Vec<u8>,
        /// Enhanced data of the reject, if any: the ORD that the peer needs (RFC 6581 §9.1).
        enhanced: Option<EnhancedRepr>,
    },
    /// This end's ULP rejected the stream.
    RejectedHere,
    /// DDP found an error in a received segment.
    Ddp(DdpError),
    /// RDMAP found an error in a received message.
    Rdmap(rdmap::RdmapError),
    /// The stream's LLP reported an error with these numbers.
    Llp {
        /// Error type, 4 bits.
        error_type: u8,
        /// Error code, 0 to 255; its meaning depends on the error type.
        code: u8,
    },
    /// The peer sent a Terminate that is shorter than its control field requires.
    InvalidTerminate {
        /// Length of the Terminate message without its DDP header, bytes.
        len: usize,
    },
    /// The peer sent a Terminate that reports an error of this end or a failure of the peer itself (RFC 5040 §7).
    Terminated(Box<rdmap::Terminate>),
    /// DDP ended the stream for a reason that is not an error of RFC 5041 §7.2.
    DdpFailed(Failure),
    /// A reason that the LLP defines.
    Lower(L),
}

impl<L> From<L> for CloseReason<L> {
    fn from(reason: L) -> Self {
        CloseReason::Lower(reason)
    }
}

impl<L> CloseReason<L> {
    /// Returns true if both ends closed without loss of data.
    pub fn is_graceful(&self) -> bool {
        matches!(self, CloseReason::LocalShutdown | CloseReason::PeerShutdown)
    }

    /// Returns the stream's error or the peer's Terminate as a reason; `None` if there is neither, or if earlier
    /// segments are still missing.
    #[inline]
    pub fn from_stream<M: RegionMemory>(stream: &Ulp<M>) -> Option<Self> {
        if let Some(error) = stream.error() {
            return Some(CloseReason::from_ulp_error(error));
        }
        let terminate = stream.terminated_by_peer()?;
        Some(CloseReason::Terminated(Box::new(terminate.clone())))
    }

    #[cold]
    fn from_ulp_error(error: rdmap::Error) -> Self {
        match error {
            rdmap::Error::Ddp(error) => CloseReason::Ddp(error),
            rdmap::Error::Rdmap(error) => CloseReason::Rdmap(error),
            rdmap::Error::Llp { error_type, code } => CloseReason::Llp { error_type, code },
            rdmap::Error::InvalidTerminate { len } => CloseReason::InvalidTerminate { len },
        }
    }
}

impl<L: LowerReason> CloseReason<L> {
    /// Returns the error numbers, if the specifications define them for the reason.
    pub fn numbers(&self) -> Option<ErrorNumbers> {
        match self {
            CloseReason::Ddp(error) => Some(error.code.numbers()),
            CloseReason::Rdmap(error) => Some(error.code.numbers()),
            CloseReason::Llp { error_type, code } => {
                Some(ErrorNumbers::new(LAYER_LLP, *error_type, *code))
            }
            CloseReason::Terminated(terminate) => Some(terminate.numbers()),
            CloseReason::Lower(reason) => reason.numbers(),
            _ => None,
        }
    }

    /// Returns the party that caused the end.
    pub fn origin(&self) -> Origin {
        match self {
            CloseReason::LocalShutdown
            | CloseReason::LocalAbort
            | CloseReason::Idle
            | CloseReason::NotProtected
            | CloseReason::UlpTimeout
            | CloseReason::RejectedHere
            | CloseReason::Llp { .. }
            | CloseReason::DdpFailed(Failure::Aborted) => Origin::Local,
            CloseReason::Rdmap(error) if error.code == rdmap::ErrorCode::LocalCatastrophic => {
                Origin::Local
            }
            CloseReason::DdpFailed(Failure::LlpLost) => Origin::Network,
            CloseReason::Lower(reason) => reason.origin(),
            _ => Origin::Peer,
        }
    }

    /// Returns a stable name for counters and machine-readable output.
    pub fn name(&self) -> &'static str {
        match self {
            CloseReason::LocalShutdown => "local_shutdown",
            CloseReason::PeerShutdown => "peer_shutdown",
            CloseReason::LocalAbort => "local_abort",
            CloseReason::Idle => "idle",
            CloseReason::PeerLingers => "peer_lingers",
            CloseReason::NotProtected => "not_protected",
            CloseReason::UlpTimeout => "ulp_timeout",
            CloseReason::ConnectRefused => "connect_refused",
            CloseReason::RejectedByPeer { .. } => "rejected_by_peer",
            CloseReason::RejectedHere => "rejected_here",
            CloseReason::Ddp(_) => "ddp_error",
            CloseReason::Rdmap(_) => "rdmap_error",
            CloseReason::Llp { .. } => "llp_error",
            CloseReason::InvalidTerminate { .. } => "invalid_terminate",
            CloseReason::Terminated(_) => "terminated_by_peer",
            CloseReason::DdpFailed(_) => "ddp_failed",
            CloseReason::Lower(reason) => reason.name(),
        }
    }
}

impl<L: LowerReason> Display for CloseReason<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::LocalShutdown => f.write_str("closed by this end"),
            CloseReason::PeerShutdown => f.write_str("closed by the peer"),
            CloseReason::LocalAbort => f.write_str("aborted by this end"),
            CloseReason::Idle => f.write_str("closed by this end: the peer was silent too long"),
            CloseReason::PeerLingers => f.write_str(L::LINGER_TEXT),
            CloseReason::NotProtected => {
                f.write_str("aborted by this end: IPsec no longer protects the stream as required")
            }
            CloseReason::UlpTimeout => {
                f.write_str("aborted by this end: its service did not finish in time")
            }
            CloseReason::ConnectRefused => write!(f, "{} refused by the peer", L::CARRIER),
            CloseReason::RejectedByPeer { .. } => f.write_str("rejected by the peer"),
            CloseReason::RejectedHere => f.write_str("rejected by this end"),
            CloseReason::Ddp(error) => Display::fmt(error, f),
            CloseReason::Rdmap(error) => write!(f, "{} ({})", error.code, error.mismatch),
            CloseReason::Llp { error_type, code } => {
                write!(f, "LLP error {error_type}/{code:02x}")
            }
            CloseReason::InvalidTerminate { len } => {
                write!(f, "the peer's Terminate has {len} bytes, too few for its control field")
            }
            CloseReason::Terminated(terminate) => write!(f, "terminated by the peer: {terminate}"),
            CloseReason::DdpFailed(Failure::DataAfterClose) => {
                f.write_str("data after the end of the stream")
            }
            CloseReason::DdpFailed(Failure::Aborted) => {
                f.write_str("DDP stream aborted by this end")
            }
            CloseReason::DdpFailed(Failure::LlpLost) => {
                write!(f, "DDP stream lost its {}", L::CARRIER)
            }
            CloseReason::Lower(reason) => Display::fmt(reason, f),
        }
    }
}
