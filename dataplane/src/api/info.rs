//! Entries in listings of streams and neighbours.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ddp::StreamId;

use super::flow::FlowInfo;
use super::transport::StreamStats;
use crate::ids::{InterfaceId, ListenerId, Transport};

/// State of a stream, as listed for operators.
#[derive(Clone, Debug)]
pub struct StreamInfo {
    /// Identifier of the stream.
    pub stream: StreamId,
    /// Listener that accepted the stream; `None` if opened locally.
    pub listener: Option<ListenerId>,
    /// Interface that sends and receives the stream's packets.
    pub interface: InterfaceId,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Transport of the stream, TCP or SCTP.
    pub transport: Transport,
    /// Identifier of the association that carries the stream; `None` over TCP. Other streams may share the association.
    pub association: Option<StreamId>,
    /// Name of the stream's state, one word.
    pub state: &'static str,
    /// Time since the stream was opened or accepted.
    pub age: Duration,
    /// Current state of the connection or association.
    pub flow: FlowInfo,
    /// Statistics of all layers of the stream.
    pub stats: StreamStats,
}

/// An entry of a neighbour cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighbourInfo {
    /// Interface whose cache has the entry.
    pub interface: InterfaceId,
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Link-layer address of the neighbour, if known.
    pub mac: Option<[u8; 6]>,
    /// Name of the state: incomplete, reachable, stale, delay or probe (RFC 4861 §7.3.2), or failed.
    pub state: &'static str,
}
