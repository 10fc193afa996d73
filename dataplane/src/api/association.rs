//! SCTP's associations, which streams share, as the control thread sees them.

use std::net::SocketAddr;
use std::time::Duration;

use ddp::StreamId;

use super::flow::FlowInfo;
use crate::ids::InterfaceId;

/// An SCTP association as the operator sees it.
#[derive(Clone, Debug)]
pub struct AssociationInfo {
    /// Its name, as [`StreamInfo::association`](super::StreamInfo::association) has it.
    pub association: StreamId,
    /// Its interface.
    pub interface: InterfaceId,
    /// Local address and SCTP port.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// UDP ports, ours and the peer's, where it goes in UDP (RFC 6951).
    pub udp: Option<(u16, u16)>,
    /// State of RFC 9260 §4.
    pub state: &'static str,
    /// Its streams now.
    pub sessions: u32,
    /// Pairs of streams that it has, so many sessions at most.
    pub streams: u16,
    /// Time since it was opened or accepted.
    pub age: Duration,
    /// The state of its two halves.
    pub flow: FlowInfo,
    /// Retransmissions and heartbeats in a row that went unanswered (RFC 9260 §8.1).
    pub unanswered: u32,
    /// What it did.
    pub stats: AssociationStats,
}

/// What an association did, without what its sessions did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AssociationStats {
    /// SCTP's handshakes, heartbeats and packets, and what of the DDP adaptation belongs to no session.
    pub endpoint: sctp_lite::endpoint::EndpointStats,
    /// SCTP's receive half.
    pub receive: sctp_lite::sctp::receive::ReceiveStats,
    /// SCTP's send half.
    pub send: sctp_lite::sctp::send::SendStats,
}
