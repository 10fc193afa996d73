//! Parameters, statistics and close reasons of streams over either LLP, TCP or SCTP.

use core::fmt;
use std::sync::Arc;

use base::ErrorNumbers;
pub use ddp::Origin;
use ddp::enhanced::Agreement;
use ddp::{UlpKind, rdmap};
use tcp_lite::mpa::Revision;

use super::association::AssociationStats;
use crate::ids::Transport;

/// Parameters of a listener or connect, for all layers of its streams.
#[derive(Clone, PartialEq, Debug)]
pub enum EndpointConfig {
    /// Parameters of TCP, MPA and DDP.
    Tcp(Arc<tcp_lite::endpoint::EndpointConfig>),
    /// Parameters of SCTP, its sessions and DDP.
    Sctp(Arc<SctpConfig>),
}

/// Parameters of SCTP associations and their sessions.
#[derive(Clone, PartialEq, Debug)]
pub struct SctpConfig {
    /// Parameters of SCTP associations.
    pub sctp: Arc<sctp_lite::sctp::Config>,
    /// Parameters of sessions and their DDP streams.
    pub endpoint: Arc<sctp_lite::endpoint::EndpointConfig>,
    /// UDP port of the peer for a connect with UDP encapsulation (RFC 6951). Listeners ignore this port and use the
    /// encapsulation of the peer.
    pub udp: Option<u16>,
}

impl EndpointConfig {
    /// Returns the transport, TCP or SCTP.
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

/// Negotiated parameters of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamParams {
    /// Stream over TCP.
    Tcp(tcp_lite::endpoint::StreamParams),
    /// Stream over SCTP.
    Sctp(sctp_lite::endpoint::StreamParams),
}

impl StreamParams {
    /// Returns the ULP, bare DDP or RDMAP.
    pub fn ulp(&self) -> UlpKind {
        match self {
            StreamParams::Tcp(params) => params.ulp,
            StreamParams::Sctp(params) => params.ulp,
        }
    }

    /// Returns the MULPDU in bytes at the time of establishment. The MULPDU may change later with the path MTU.
    pub fn mulpdu(&self) -> usize {
        match self {
            StreamParams::Tcp(params) => params.mulpdu,
            StreamParams::Sctp(params) => params.mulpdu,
        }
    }

    /// Returns the negotiated IRD and ORD and the connection model (RFC 6581 §9); `None` if not negotiated.
    pub fn agreed(&self) -> Option<Agreement> {
        match self {
            StreamParams::Tcp(params) => params.agreed,
            StreamParams::Sctp(params) => params.agreed,
        }
    }

    /// Returns the MPA revision; `None` over SCTP.
    pub fn revision(&self) -> Option<Revision> {
        match self {
            StreamParams::Tcp(params) => Some(params.revision),
            StreamParams::Sctp(_) => None,
        }
    }
}

/// Statistics of a stream in all of its layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamStats {
    /// Stream over TCP.
    Tcp(tcp_lite::endpoint::EndpointStats),
    /// Stream over SCTP: statistics of its session, and of the association with all of its sessions.
    Sctp(sctp_lite::endpoint::SessionStats, AssociationStats),
}

impl Default for StreamStats {
    fn default() -> Self {
        StreamStats::Tcp(Default::default())
    }
}

impl StreamStats {
    /// Returns the counters of the DDP layer.
    pub fn ddp(&self) -> &ddp::Counters {
        match self {
            StreamStats::Tcp(stats) => &stats.ddp,
            StreamStats::Sctp(stats, _) => &stats.ddp,
        }
    }

    /// Returns the number of bytes that the peer's LLP has acknowledged. Over SCTP the number includes all sessions
    /// of the association.
    pub fn bytes_acknowledged(&self) -> u64 {
        match self {
            StreamStats::Tcp(stats) => stats.tcp.bytes_acknowledged,
            StreamStats::Sctp(_, association) => association.send.bytes_acknowledged,
        }
    }

    /// Returns the counters of RDMAP; zero on bare DDP.
    pub fn rdmap(&self) -> &rdmap::Counters {
        match self {
            StreamStats::Tcp(stats) => &stats.rdmap,
            StreamStats::Sctp(stats, _) => &stats.rdmap,
        }
    }
}

/// Reason why a stream ended: the first one, if several apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Stream over TCP: the end of its connection, MPA or DDP.
    Tcp(tcp_lite::endpoint::CloseReason),
    /// Stream over SCTP: the end of its session or association.
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
    /// Returns the transport of the stream.
    pub fn transport(&self) -> Transport {
        match self {
            CloseReason::Tcp(_) => Transport::Tcp,
            CloseReason::Sctp(_) => Transport::Sctp,
        }
    }

    /// Returns layer, type and code of the error; `None` if the specifications define none.
    pub fn numbers(&self) -> Option<ErrorNumbers> {
        match self {
            CloseReason::Tcp(reason) => reason.numbers(),
            CloseReason::Sctp(reason) => reason.numbers(),
        }
    }

    /// Returns the cause of the end of the stream: this end, the peer or the network.
    pub fn origin(&self) -> Origin {
        match self {
            CloseReason::Tcp(reason) => reason.origin(),
            CloseReason::Sctp(reason) => reason.origin(),
        }
    }

    /// Returns true if both ends have closed and no data was lost.
    pub fn is_graceful(&self) -> bool {
        match self {
            CloseReason::Tcp(reason) => reason.is_graceful(),
            CloseReason::Sctp(reason) => reason.is_graceful(),
        }
    }

    /// Returns true if this end closed gracefully but the peer did not close in time.
    pub fn is_lingering(&self) -> bool {
        use sctp_lite::endpoint::CloseReason as OfSctp;
        use tcp_lite::endpoint::CloseReason as OfTcp;
        matches!(
            self,
            CloseReason::Tcp(OfTcp::PeerLingers) | CloseReason::Sctp(OfSctp::PeerLingers)
        )
    }

    /// Returns a stable name for counters and machine-readable output.
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
