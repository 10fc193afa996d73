//! Streams and associations.

use std::collections::BTreeMap;

use config::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;
use crate::StreamId;

/// A stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamInfo {
    /// Its number.
    pub id: StreamId,
    /// The worker that owns it.
    pub worker: u32,
    /// Its listener; none if it was opened from here.
    pub listener: Option<String>,
    /// Our address and port.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// `connecting`, `established`, `closing`, ...
    pub state: String,
    /// `tcp` or `sctp`.
    #[serde(default)]
    pub transport: Transport,
    /// Over SCTP, the association that it is a session of; other sessions of it have the same.
    #[serde(default)]
    pub association: Option<StreamId>,
    /// Longest ULPDU when it was established, bytes.
    #[serde(default)]
    pub mulpdu: Option<u32>,
    /// What MPA agreed on, once it has; none over SCTP.
    pub mpa: Option<MpaInfo>,
    /// Regions that the peer may reach.
    pub regions: Vec<String>,
    /// Regions that the peer advertised (streams opened from here).
    pub peer_regions: Vec<PeerRegion>,
    /// Time since it was established, seconds.
    pub age_seconds: f64,
    /// Present state of its connection, or of its association; none while its worker does not know it.
    #[serde(default)]
    pub flow: Option<FlowInfo>,
    /// Its counters.
    pub counters: Counters,
}

/// Present state of a TCP connection or an SCTP association: what `ss -ti` shows of a kernel's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowInfo {
    /// Smoothed round trip (RFC 6298 §2), microseconds; none before one was measured.
    pub rtt_us: Option<u64>,
    /// Its variation, microseconds.
    pub rttvar_us: u64,
    /// The shortest round trip of the last minutes, microseconds.
    pub min_rtt_us: Option<u64>,
    /// Retransmission time-out, microseconds.
    pub rto_us: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; none before the first loss.
    pub ssthresh: Option<u64>,
    /// Bytes that are thought to be in the network.
    pub in_flight: u64,
    /// Bytes per second at which bursts leave; none while they are not paced.
    pub pacing_rate: Option<u64>,
    /// Bytes per second that the peer acknowledged, when it was last measured: over 10 ms or more in which something
    /// else than the application was the limit.
    pub delivery_rate: Option<u64>,
    /// Window that the peer offered last, bytes.
    pub peer_window: u64,
    /// Window that was offered to the peer last, bytes.
    pub own_window: u64,
    /// Bytes of the largest IP packet that the path is thought to carry.
    pub path_mtu: u16,
    /// What keeps it from sending more now: `application`, `peer_window`, `send_window`, `congestion_window`, `pacing`
    /// or `port`.
    pub limited_by: String,
    /// The share of its time for which each was the limit, 0 to 1.
    pub limited: BTreeMap<String, f64>,
}

/// An SCTP association (RFC 5043): streams over it are its sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssociationInfo {
    /// Its number, as [`StreamInfo::association`] has it.
    pub id: StreamId,
    /// The worker that owns it.
    pub worker: u32,
    /// Our address and SCTP port.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// Where it goes in UDP (RFC 6951), our UDP port and the peer's.
    pub udp: Option<[u16; 2]>,
    /// State of RFC 9260 §4.
    pub state: String,
    /// Its streams now.
    pub sessions: u32,
    /// Streams at most: pairs of SCTP streams, 0 before they are agreed on.
    pub streams: u16,
    /// Bytes of the largest IP packet that the path is known to carry.
    pub path_mtu: u16,
    /// Smoothed round trip, microseconds; none before one was measured.
    pub round_trip_us: Option<u64>,
    /// Retransmission time-out, microseconds.
    pub rto_us: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes of DATA chunks that are thought to be in the network.
    pub in_flight: u64,
    /// The peer's window as last received, bytes.
    pub peer_window: u64,
    /// Retransmissions and heartbeats in a row that went unanswered.
    pub unanswered: u32,
    /// All of its present state; what stands above, too.
    #[serde(default)]
    pub flow: FlowInfo,
    /// Its counters, those of all of its sessions.
    pub counters: Counters,
}

/// What MPA agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MpaInfo {
    /// Revision.
    pub revision: u8,
    /// We send markers.
    pub markers_tx: bool,
    /// The peer sends markers.
    pub markers_rx: bool,
    /// CRCs are checked.
    pub crc: bool,
    /// Longest ULPDU, bytes.
    pub mulpdu: u32,
}

/// A region that a peer advertised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerRegion {
    /// Its name.
    pub name: String,
    /// Steering tag, `0x` and eight hexadecimal digits.
    pub stag: String,
    /// Tagged offset of the first byte, decimal digits.
    pub base_to: String,
    /// Bytes.
    pub size: u64,
    /// `rw`, `r`, `w` or `-`.
    pub access: String,
    /// Another stream has it for itself.
    #[serde(default)]
    pub busy: bool,
}
