//! SCTP associations, which carry one or more streams: state and statistics for the control thread.

use std::net::SocketAddr;
use std::time::Duration;

use ddp::StreamId;

use super::flow::FlowInfo;
use crate::ids::InterfaceId;

/// State of an SCTP association, as listed for operators.
#[derive(Clone, Debug)]
pub struct AssociationInfo {
    /// Identifier of the association, as in [`StreamInfo::association`](super::StreamInfo::association).
    pub association: StreamId,
    /// Interface that sends and receives the association's packets.
    pub interface: InterfaceId,
    /// Local address and SCTP port.
    pub local: SocketAddr,
    /// Address and SCTP port of the peer.
    pub remote: SocketAddr,
    /// Local and remote UDP port, if encapsulated in UDP (RFC 6951).
    pub udp: Option<(u16, u16)>,
    /// Name of the state (RFC 9260 §4).
    pub state: &'static str,
    /// Number of sessions, one for each DDP stream.
    pub sessions: u32,
    /// Number of SCTP stream pairs, the maximum number of simultaneous sessions.
    pub streams: u16,
    /// Time since the association was opened or accepted.
    pub age: Duration,
    /// Current state of the path and of congestion control.
    pub flow: FlowInfo,
    /// Consecutive retransmissions and heartbeats without an acknowledgement (RFC 9260 §8.1).
    pub unanswered: u32,
    /// Statistics since the association was opened or accepted.
    pub stats: AssociationStats,
}

/// Statistics of an association. Its sessions have separate statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AssociationStats {
    /// Counters of SCTP handshakes, heartbeats and packets, and of DDP adaptation events that belong to no session.
    pub endpoint: sctp_lite::endpoint::EndpointStats,
    /// Statistics of the receiving direction.
    pub receive: sctp_lite::sctp::receive::ReceiverStats,
    /// Statistics of the sending direction.
    pub send: sctp_lite::sctp::send::SendStats,
}
