//! Lists of streams and neighbours.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ddp::StreamId;

use super::flow::FlowInfo;
use super::transport::StreamStats;
use crate::ids::{InterfaceId, ListenerId, Transport};

/// State of a stream, for the operator.
#[derive(Clone, Debug)]
pub struct StreamInfo {
    /// The stream.
    pub stream: StreamId,
    /// Its listener; `None` if it was opened by this end.
    pub listener: Option<ListenerId>,
    /// Its interface.
    pub interface: InterfaceId,
    /// Local address and port.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// The lower layer.
    pub transport: Transport,
    /// Over SCTP, the identifier of the association, which its other streams share.
    pub association: Option<StreamId>,
    /// State of the stream, one word.
    pub state: &'static str,
    /// Time since the SYN.
    pub age: Duration,
    /// Present state of its connection or association.
    pub flow: FlowInfo,
    /// Statistics of the stream.
    pub stats: StreamStats,
}

/// An entry of a neighbour cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighbourInfo {
    /// The interface.
    pub interface: InterfaceId,
    /// The neighbour.
    pub address: IpAddr,
    /// Its link-layer address, if known.
    pub mac: Option<[u8; 6]>,
    /// State: incomplete, reachable, stale, delay or probe (RFC 4861 §7.3.2).
    pub state: &'static str,
}
