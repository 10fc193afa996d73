//! Streams and neighbours as a worker lists them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ddp::StreamId;

use super::flow::FlowInfo;
use super::transport::StreamStats;
use crate::ids::{InterfaceId, ListenerId, Transport};

/// A stream as the operator sees it.
#[derive(Clone, Debug)]
pub struct StreamInfo {
    /// The stream.
    pub stream: StreamId,
    /// Its listener, if it was accepted.
    pub listener: Option<ListenerId>,
    /// Its interface.
    pub interface: InterfaceId,
    /// Local address and port.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// What carries it.
    pub transport: Transport,
    /// Over SCTP, the association that it is a session of: a number that other streams of it share.
    pub association: Option<StreamId>,
    /// Where it is in its life, in a word.
    pub state: &'static str,
    /// Time since the SYN.
    pub age: Duration,
    /// Present state of its connection, or of its association.
    pub flow: FlowInfo,
    /// What it did.
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
    /// incomplete, reachable, stale, delay or probe (RFC 4861 §7.3.2).
    pub state: &'static str,
}
