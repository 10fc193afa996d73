//! The present state of a connection or an association, for people who ask why it is slow.

use std::time::Duration;

pub use tcp_lite::tcp::{Limit, LimitInfo, Stall};

/// The two halves of a TCP connection or an SCTP association at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowInfo {
    /// Smoothed round trip (RFC 6298 §2), once measured.
    pub rtt: Option<Duration>,
    /// Its variation; zero before the first measurement.
    pub rttvar: Duration,
    /// The shortest round trip of the last minutes, once measured.
    pub min_rtt: Option<Duration>,
    /// Retransmission time-out with its present backing off.
    pub rto: Duration,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; none before the first loss.
    pub ssthresh: Option<u64>,
    /// Bytes that are thought to be in the network: sent, and neither acknowledged nor lost.
    pub in_flight: u64,
    /// Bytes per second at which bursts leave, while they are paced.
    pub pacing_rate: Option<u64>,
    /// Window that the peer offered last, bytes.
    pub peer_window: u64,
    /// Window that was offered to the peer last, bytes.
    pub own_window: u64,
    /// Bytes of the largest IP packet that the path is thought to carry.
    pub path_mtu: u16,
    /// What limits the sender, and its delivery rate.
    pub limits: LimitInfo,
}
