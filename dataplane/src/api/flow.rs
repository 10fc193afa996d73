//! Current state of a connection or association, for the diagnosis of its throughput.

use std::time::Duration;

pub use tcp_lite::tcp::{Limit, LimitInfo, Stall};

/// State of both directions of a TCP connection or SCTP association at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowInfo {
    /// Smoothed round-trip time (RFC 6298 §2); `None` before the first measurement.
    pub rtt: Option<Duration>,
    /// Round-trip time variation (RFC 6298 §2); zero before the first measurement.
    pub rttvar: Duration,
    /// Minimum round-trip time of the last 1 to 2 minutes; `None` before the first measurement.
    pub min_rtt: Option<Duration>,
    /// Retransmission time-out, including the current back-off.
    pub rto: Duration,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Slow-start threshold in bytes; `None` before the first loss.
    pub ssthresh: Option<u64>,
    /// Estimated bytes in flight: sent, and neither acknowledged nor considered lost.
    pub in_flight: u64,
    /// Pacing rate in bytes per second; `None` without pacing.
    pub pacing_rate: Option<u64>,
    /// Last window advertised by the peer, in bytes.
    pub peer_window: u64,
    /// Last window advertised to the peer, in bytes.
    pub own_window: u64,
    /// Estimated path MTU: largest IP packet in bytes.
    pub path_mtu: u16,
    /// Limiting factors of the sender, and its delivery rate.
    pub limits: LimitInfo,
}
