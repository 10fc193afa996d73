//! Streams and SCTP associations in the API.

use std::collections::BTreeMap;

use config::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;
use crate::StreamId;

/// A stream: one DDP stream over a TCP connection or an SCTP session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamInfo {
    /// Number of the stream.
    pub id: StreamId,
    /// Number of the worker that owns the stream.
    pub worker: u32,
    /// Listener that accepted the stream. `null` if the appliance opened it.
    pub listener: Option<String>,
    /// Local program whose connection the stream is. Absent for other streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<u32>,
    /// Local address and port.
    pub local: String,
    /// Address and port of the peer.
    pub remote: String,
    /// `connecting`, `established`, `closing`, ...
    pub state: String,
    /// `tcp` or `sctp`.
    #[serde(default)]
    pub transport: Transport,
    /// Over SCTP: association that carries the stream. Other streams may share it.
    #[serde(default)]
    pub association: Option<StreamId>,
    /// MULPDU: maximum length of an ULPDU when the stream was established, bytes. `null` before.
    #[serde(default)]
    pub mulpdu: Option<u32>,
    /// Negotiated MPA parameters. `null` over SCTP, and before the negotiation.
    pub mpa: Option<MpaInfo>,
    /// Local regions that the peer may access.
    pub regions: Vec<String>,
    /// Regions that the peer has advertised. Empty unless the appliance opened the stream.
    pub peer_regions: Vec<PeerRegion>,
    /// Time since the stream was established, seconds. Before that, the time since the stream was requested.
    pub age_seconds: f64,
    /// Present state of the connection or association. `null` if the worker has not reported the stream yet.
    #[serde(default)]
    pub flow: Option<FlowInfo>,
    /// Counters of the stream; over SCTP also those of its association.
    pub counters: Counters,
}

/// Present state of a TCP connection or an SCTP association. `ss -ti` shows the same values for kernel sockets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowInfo {
    /// Smoothed round-trip time (RFC 6298 §2), microseconds. `null` before the first measurement.
    pub rtt_us: Option<u64>,
    /// Round-trip time variation (RFC 6298 §2), microseconds. 0 before the first measurement.
    pub rttvar_us: u64,
    /// Minimum round-trip time of the last minutes, microseconds. `null` before the first measurement.
    pub min_rtt_us: Option<u64>,
    /// Retransmission time-out, including the present back-off; microseconds.
    pub rto_us: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes. `null` before the first loss.
    pub ssthresh: Option<u64>,
    /// Estimated bytes in flight: sent, and neither acknowledged nor considered lost.
    pub in_flight: u64,
    /// Pacing rate, bytes per second. `null` without pacing.
    pub pacing_rate: Option<u64>,
    /// Rate of acknowledged data, bytes per second, in the last period of at least 10 ms that was not
    /// application-limited. `null` before the first measurement.
    pub delivery_rate: Option<u64>,
    /// Last window advertised by the peer, bytes.
    pub peer_window: u64,
    /// Last window advertised to the peer, bytes.
    pub own_window: u64,
    /// Estimated path MTU: largest IP packet, bytes.
    pub path_mtu: u16,
    /// Cause that limits the sender at present: `application`, `peer_window`, `send_window`, `congestion_window`,
    /// `pacing`, `port` or `path` (retransmission time-outs).
    pub limited_by: String,
    /// Share of the lifetime in which each cause was the limit, 0 to 1.
    pub limited: BTreeMap<String, f64>,
}

/// An SCTP association (RFC 5043). Its sessions are streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssociationInfo {
    /// Number of the association, as in [`StreamInfo::association`].
    pub id: StreamId,
    /// Number of the worker that owns the association.
    pub worker: u32,
    /// Local address and SCTP port.
    pub local: String,
    /// Address and SCTP port of the peer.
    pub remote: String,
    /// Local and remote UDP port of SCTP in UDP (RFC 6951). `null` without UDP encapsulation.
    pub udp: Option<[u16; 2]>,
    /// State of the association (RFC 9260 §4).
    pub state: String,
    /// Present number of sessions.
    pub sessions: u32,
    /// Maximum number of sessions: pairs of SCTP streams. 0 before the handshake has negotiated it.
    pub streams: u16,
    /// Estimated path MTU: largest IP packet, bytes.
    pub path_mtu: u16,
    /// Smoothed round-trip time, microseconds. `null` before the first measurement.
    pub round_trip_us: Option<u64>,
    /// Retransmission time-out, including the present back-off; microseconds.
    pub rto_us: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Estimated bytes of user data in flight.
    pub in_flight: u64,
    /// Last window advertised by the peer, bytes.
    pub peer_window: u64,
    /// Consecutive retransmissions and heartbeats without an acknowledgement (RFC 9260 §8.1).
    pub unanswered: u32,
    /// Complete state, including the values above.
    #[serde(default)]
    pub flow: FlowInfo,
    /// Counters of the association, all sessions together. Counters of DDP and RDMAP are in the streams.
    pub counters: Counters,
}

/// Negotiated MPA parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MpaInfo {
    /// MPA revision.
    pub revision: u8,
    /// True if the appliance sends markers.
    pub markers_tx: bool,
    /// True if the peer sends markers.
    pub markers_rx: bool,
    /// True if CRCs are in use.
    pub crc: bool,
    /// MULPDU: maximum length of an ULPDU, bytes.
    pub mulpdu: u32,
}

/// A region that a peer advertised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerRegion {
    /// Name of the region.
    pub name: String,
    /// STag (steering tag), `0x` and eight hexadecimal digits.
    pub stag: String,
    /// Tagged offset of the first byte, as a string of decimal digits (it may exceed 2^53).
    pub base_to: String,
    /// Size in bytes.
    pub size: u64,
    /// Rights of this end: `rw`, `rwa` (with atomics), `r`, `w` or `-` (none).
    pub access: String,
    /// True if another stream holds the region exclusively.
    #[serde(default)]
    pub busy: bool,
}
