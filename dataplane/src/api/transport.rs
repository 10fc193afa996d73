//! Common types for the two LLPs, TCP and SCTP, as users of streams see them.

use core::fmt;
use std::sync::Arc;

pub use ddp::Origin;
use ddp::enhanced::Agreed;
use ddp::{DdpVersion, UlpKind, rdmap};
use tcp_lite::mpa::Revision;

use super::association::AssociationStats;
use crate::ids::Transport;

/// How streams behave, down to the packets: the parameters of a listener or an active open.
#[derive(Clone, Debug)]
pub enum EndpointConfig {
    /// TCP, MPA and DDP.
    Tcp(Arc<tcp_lite::endpoint::EndpointConfig>),
    /// SCTP, its sessions and DDP.
    Sctp(Arc<SctpConfig>),
}

/// What is chosen for associations.
#[derive(Clone, Debug)]
pub struct SctpConfig {
    /// SCTP.
    pub sctp: Arc<sctp_lite::sctp::Config>,
    /// Sessions and their DDP.
    pub endpoint: Arc<sctp_lite::endpoint::EndpointConfig>,
    /// Of an active open: the peer's UDP port, if packets are encapsulated in UDP (RFC 6951). A listener uses the
    /// encapsulation of the peer.
    pub udp: Option<u16>,
}

impl EndpointConfig {
    /// The lower layer.
    pub fn transport(&self) -> Transport {
        match self {
            EndpointConfig::Tcp(_) => Transport::Tcp,
            EndpointConfig::Sctp(_) => Transport::Sctp,
        }
    }
}

impl From<tcp_lite::endpoint::EndpointConfig> for EndpointConfig {
    fn from(config: tcp_lite::endpoint::EndpointConfig) -> Self {
        EndpointConfig::Tcp(Arc::new(config))
    }
}

impl From<SctpConfig> for EndpointConfig {
    fn from(config: SctpConfig) -> Self {
        EndpointConfig::Sctp(Arc::new(config))
    }
}

/// What the two ends of a stream have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamParams {
    /// Over TCP.
    Tcp(tcp_lite::endpoint::StreamParams),
    /// Over SCTP.
    Sctp(sctp_lite::endpoint::StreamParams),
}

impl StreamParams {
    /// The protocol above the lower layer.
    pub fn ulp(&self) -> UlpKind {
        match self {
            StreamParams::Tcp(params) => params.ulp,
            StreamParams::Sctp(params) => params.ulp,
        }
    }

    /// The largest ULPDU to send, in bytes, when the stream was established.
    pub fn mulpdu(&self) -> usize {
        match self {
            StreamParams::Tcp(params) => params.mulpdu,
            StreamParams::Sctp(params) => params.mulpdu,
        }
    }

    /// DDP's version, once it is known.
    pub fn ddp_version(&self) -> Option<DdpVersion> {
        match self {
            StreamParams::Tcp(params) => params.ddp_version,
            StreamParams::Sctp(params) => params.ddp_version,
        }
    }

    /// Read depths and ready-to-receive message, if they were negotiated (RFC 6581 §9).
    pub fn agreed(&self) -> Option<Agreed> {
        match self {
            StreamParams::Tcp(params) => params.agreed,
            StreamParams::Sctp(params) => params.agreed,
        }
    }

    /// MPA's form and revision.
    pub fn revision(&self) -> Option<Revision> {
        match self {
            StreamParams::Tcp(params) => Some(params.revision),
            StreamParams::Sctp(_) => None,
        }
    }
}

/// What a stream did, in all its layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamStats {
    /// Over TCP.
    Tcp(tcp_lite::endpoint::EndpointStats),
    /// Over SCTP: the session's own, and what its association did for all of its sessions.
    Sctp(sctp_lite::endpoint::SessionStats, AssociationStats),
}

impl Default for StreamStats {
    fn default() -> Self {
        StreamStats::Tcp(Default::default())
    }
}

impl StreamStats {
    /// DDP's.
    pub fn ddp(&self) -> &ddp::Counters {
        match self {
            StreamStats::Tcp(stats) => &stats.ddp,
            StreamStats::Sctp(stats, _) => &stats.ddp,
        }
    }

    /// Bytes that the peer's lower layer has acknowledged; over SCTP those of all sessions of the
    /// association.
    pub fn bytes_acknowledged(&self) -> u64 {
        match self {
            StreamStats::Tcp(stats) => stats.tcp.bytes_acknowledged,
            StreamStats::Sctp(_, association) => association.send.bytes_acknowledged,
        }
    }

    /// RDMAP's counters; zero on bare DDP.
    pub fn rdmap(&self) -> &rdmap::Counters {
        match self {
            StreamStats::Tcp(stats) => &stats.rdmap,
            StreamStats::Sctp(stats, _) => &stats.rdmap,
        }
    }
}

/// Why a stream ended: the first cause, whatever followed from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// A stream over TCP.
    Tcp(tcp_lite::endpoint::CloseReason),
    /// A session over SCTP, or its association.
    Sctp(sctp_lite::endpoint::CloseReason),
}

impl From<tcp_lite::endpoint::CloseReason> for CloseReason {
    fn from(reason: tcp_lite::endpoint::CloseReason) -> Self {
        CloseReason::Tcp(reason)
    }
}

impl From<sctp_lite::endpoint::CloseReason> for CloseReason {
    fn from(reason: sctp_lite::endpoint::CloseReason) -> Self {
        CloseReason::Sctp(reason)
    }
}

impl CloseReason {
    /// The lower layer of the stream.
    pub fn transport(&self) -> Transport {
        match self {
            CloseReason::Tcp(_) => Transport::Tcp,
            CloseReason::Sctp(_) => Transport::Sctp,
        }
    }

    /// Layer, error type and error code, where the specifications have numbers for it: layer 1 is DDP
    /// (RFC 5041 §7.2), layer 2 the LLP (RFC 5044 §8, RFC 6581 §8), layer 0 RDMAP (RFC 5040 §4.8).
    pub fn numbers(&self) -> Option<(u8, u8, u8)> {
        match self {
            CloseReason::Tcp(reason) => reason.numbers(),
            CloseReason::Sctp(reason) => reason.numbers(),
        }
    }

    /// Whose doing it was.
    pub fn origin(&self) -> Origin {
        match self {
            CloseReason::Tcp(reason) => reason.origin(),
            CloseReason::Sctp(reason) => reason.origin(),
        }
    }

    /// True when both ends closed and nothing was lost.
    pub fn is_graceful(&self) -> bool {
        match self {
            CloseReason::Tcp(reason) => reason.is_graceful(),
            CloseReason::Sctp(reason) => reason.is_graceful(),
        }
    }

    /// True when the owner of the stream aborted it.
    pub fn is_local_abort(&self) -> bool {
        use sctp_lite::endpoint::CloseReason as OfSctp;
        use tcp_lite::endpoint::CloseReason as OfTcp;
        matches!(self, CloseReason::Tcp(OfTcp::LocalAbort) | CloseReason::Sctp(OfSctp::LocalAbort))
    }

    /// True when this end closed in order and the peer did not do so in time.
    pub fn is_lingering(&self) -> bool {
        use sctp_lite::endpoint::CloseReason as OfSctp;
        use tcp_lite::endpoint::CloseReason as OfTcp;
        matches!(
            self,
            CloseReason::Tcp(OfTcp::PeerLingers) | CloseReason::Sctp(OfSctp::PeerLingers)
        )
    }

    /// A stable name for counters and machine-readable output.
    pub fn name(&self) -> &'static str {
        match self {
            CloseReason::Tcp(reason) => reason.name(),
            CloseReason::Sctp(reason) => reason.name(),
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Tcp(reason) => reason.fmt(f),
            CloseReason::Sctp(reason) => reason.fmt(f),
        }
    }
}
