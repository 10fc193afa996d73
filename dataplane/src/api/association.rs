//! SCTP associations, which streams share: state and statistics for the control thread.

use std::net::SocketAddr;
use std::time::Duration;

use ddp::StreamId;

use super::flow::FlowInfo;
use crate::ids::InterfaceId;

/// State of an SCTP association, for the operator.
#[derive(Clone, Debug)]
pub struct AssociationInfo {
    /// Identifier of the association, as in [`StreamInfo::association`](super::StreamInfo::association).
    pub association: StreamId,
    /// Interface of the association.
    pub interface: InterfaceId,
    /// Local address and SCTP port.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// UDP ports, ours and the peer's, if encapsulated in UDP (RFC 6951).
    pub udp: Option<(u16, u16)>,
    /// State of RFC 9260 §4.
    pub state: &'static str,
    /// Number of its present streams.
    pub sessions: u32,
    /// SCTP stream pairs of the association: most sessions at a time.
    pub streams: u16,
    /// Time since the association was opened or accepted.
    pub age: Duration,
    /// Present state of its two halves.
    pub flow: FlowInfo,
    /// Consecutive retransmissions and heartbeats without an answer (RFC 9260 §8.1).
    pub unanswered: u32,
    /// Statistics of the association.
    pub stats: AssociationStats,
}

/// Statistics of an association, without those of its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AssociationStats {
    /// SCTP handshakes, heartbeats and packets, and events of the DDP adaptation that belong to no session.
    pub endpoint: sctp_lite::endpoint::EndpointStats,
    /// SCTP's receive statistics.
    pub receive: sctp_lite::sctp::receive::ReceiverStats,
    /// SCTP's send statistics.
    pub send: sctp_lite::sctp::send::SendStats,
}
