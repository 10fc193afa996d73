//! Snapshots of the state of connections and associations, for operators.

use base::Instant;

use sctp_lite::endpoint::Endpoint as SctpEndpoint;

use crate::api::FlowInfo;
use crate::memory::Memory;
use crate::net::sctp_path::SctpPath;
use crate::worker::flows::carrier::{Carrier, CarrierEndpoint};

/// Returns path and congestion control state of a TCP connection.
pub(in crate::worker) fn connection_info(
    carrier: &Carrier<tcp_lite::endpoint::Endpoint<Memory>>,
    now: Instant,
) -> FlowInfo {
    let connection = carrier.endpoint().connection();
    let info = connection.info();
    let mss = u16::try_from(carrier.endpoint().path_len()).unwrap_or(u16::MAX);
    FlowInfo {
        rtt: info.srtt,
        rttvar: info.rttvar,
        min_rtt: info.min_rtt,
        rto: info.rto,
        cwnd: info.cwnd,
        ssthresh: Some(info.ssthresh).filter(|bytes| *bytes != u64::MAX),
        in_flight: info.in_flight,
        pacing_rate: info.pacing_rate,
        peer_window: info.send_window,
        own_window: info.receive_window,
        path_mtu: mss.saturating_add(carrier.path().tcp_headers()),
        limits: connection.limits(now),
    }
}

/// Returns path and congestion control state of an SCTP association.
pub(in crate::worker) fn association_info(
    carrier: &Carrier<SctpEndpoint<Memory>>,
    now: Instant,
) -> FlowInfo {
    let sctp = carrier.endpoint().association();
    let sender = sctp.sender();
    FlowInfo {
        rtt: sender.srtt(),
        rttvar: sender.rttvar(),
        min_rtt: sender.min_rtt(),
        rto: sender.rto(),
        cwnd: sender.cwnd(),
        ssthresh: Some(sender.ssthresh()).filter(|bytes| *bytes != u64::MAX),
        in_flight: sender.pipe(),
        pacing_rate: sender.pacing_rate(),
        peer_window: sender.peer_window(),
        own_window: sctp.receiver().last_advertised().into(),
        path_mtu: path_mtu(carrier.endpoint(), carrier.path()),
        limits: sender.limits(now),
    }
}

/// Returns the path MTU of an association in bytes: the largest IP packet that the path is assumed to carry.
pub(in crate::worker) fn path_mtu(endpoint: &SctpEndpoint<Memory>, path: &SctpPath) -> u16 {
    let len = path.mtu_overhead() + endpoint.association().path_len();
    u16::try_from(len).unwrap_or(u16::MAX)
}
