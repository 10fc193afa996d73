//! Streams and associations as shown by the API.

use std::time::Duration;

use api::{AssociationInfo, FlowInfo, MpaInfo, PeerRegion, StreamId, StreamInfo};
use config::{AccessFlags, Transport, access_word};
use dataplane::{Limit, StreamInfo as WorkerStream, StreamParams};
use ddp::advert::Advertised;
use ddp::last_message::LastMessage;

use super::stream::Stream;
use crate::appliance::counters::{association_counters, live_counters};

/// Describes a stream. `found` is the worker's state of the stream, if it was requested.
pub(super) fn stream(
    id: ddp::StreamId,
    stream: &Stream,
    found: Option<&WorkerStream>,
    listener: Option<String>,
    now: std::time::Instant,
) -> StreamInfo {
    let mut counters = found.map(|found| live_counters(&found.stats)).unwrap_or_default();
    if !stream.rdmap {
        counters.retain(|name, _| !name.starts_with("rdmap_"));
    }
    StreamInfo {
        id: StreamId(id.0),
        worker: u32::from(id.worker()),
        listener,
        program: stream.user.program.map(|program| program.0),
        local: stream.local.to_string(),
        remote: stream.remote.to_string(),
        state: found.map_or(stream.state().name(), |found| found.state).to_owned(),
        transport: transport(stream.params.as_ref(), found),
        association: found.and_then(|found| found.association).map(|id| StreamId(id.0)),
        mulpdu: stream.params.as_ref().map(|params| params.mulpdu() as u32),
        mpa: stream.params.as_ref().and_then(mpa),
        regions: stream.regions.clone(),
        peer_regions: stream.peer_regions.iter().map(peer_region).collect(),
        age_seconds: now.duration_since(stream.since).as_secs_f64(),
        flow: found.map(|found| flow(&found.flow, found.age)),
        counters,
    }
}

/// Describes the flow of a stream or association. `age`: time since its start, to which the shares of `limited` are
/// relative.
fn flow(info: &dataplane::FlowInfo, age: Duration) -> FlowInfo {
    let limits = &info.limits;
    let times = limits.times.map(|time| Duration::from(time).as_secs_f64());
    // Time without another limit is attributed to the application.
    let others: f64 = times.iter().sum();
    let whole = age.as_secs_f64().max(others).max(1e-9);
    let share = |limit: Limit, time: f64| match limit {
        Limit::Application => (whole - others) / whole,
        _ => time / whole,
    };
    let shares = Limit::ALL.into_iter().zip(times);
    FlowInfo {
        rtt_us: info.rtt.map(as_micros),
        rttvar_us: as_micros(info.rttvar),
        min_rtt_us: info.min_rtt.map(as_micros),
        rto_us: as_micros(info.rto),
        cwnd: info.cwnd,
        ssthresh: info.ssthresh,
        in_flight: info.in_flight,
        pacing_rate: info.pacing_rate,
        delivery_rate: limits.delivery_rate,
        peer_window: info.peer_window,
        own_window: info.own_window,
        path_mtu: info.path_mtu,
        limited_by: limits.limit.name().into(),
        limited: shares.map(|(limit, time)| (limit.name().into(), share(limit, time))).collect(),
    }
}

fn as_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

pub(in crate::appliance) fn association(info: &dataplane::AssociationInfo) -> AssociationInfo {
    AssociationInfo {
        id: StreamId(info.association.0),
        worker: u32::from(info.association.worker()),
        local: info.local.to_string(),
        remote: info.remote.to_string(),
        udp: info.udp.map(|(local, remote)| [local, remote]),
        state: info.state.into(),
        sessions: info.sessions,
        streams: info.streams,
        path_mtu: info.flow.path_mtu,
        round_trip_us: info.flow.rtt.map(as_micros),
        rto_us: as_micros(info.flow.rto),
        cwnd: info.flow.cwnd,
        in_flight: info.flow.in_flight,
        peer_window: info.flow.peer_window,
        unanswered: info.unanswered,
        flow: flow(&info.flow, info.age),
        counters: association_counters(&info.stats),
    }
}

pub(super) fn transport(params: Option<&StreamParams>, found: Option<&WorkerStream>) -> Transport {
    let is_sctp = matches!(params, Some(StreamParams::Sctp(_)))
        || found.is_some_and(|found| found.transport == dataplane::Transport::Sctp);
    if is_sctp { Transport::Sctp } else { Transport::Tcp }
}

fn mpa(params: &StreamParams) -> Option<MpaInfo> {
    let StreamParams::Tcp(params) = params else { return None };
    Some(MpaInfo {
        revision: params.revision.number(),
        markers_tx: params.markers_tx,
        markers_rx: params.markers_rx,
        crc: params.crc,
        mulpdu: params.mulpdu as u32,
    })
}

fn peer_region(region: &Advertised) -> PeerRegion {
    PeerRegion {
        name: region.name.clone(),
        stag: stag_text(region.stag),
        base_to: region.base_to.to_string(),
        size: region.len,
        access: access_word(
            AccessFlags {
                read: region.remote_read,
                write: region.remote_write,
                atomic: region.remote_atomic,
            }
            .access(),
        )
        .into(),
        busy: region.busy,
    }
}

/// Returns the error code and a sentence for the last message of a bare DDP peer.
pub(super) fn last_message(bytes: &[u8]) -> (String, String) {
    match LastMessage::parse(bytes) {
        Ok(message) => {
            let code = format!("{}/{:02}", message.error_type, message.code);
            let what = match message.ddp_error() {
                Some(error) => error.to_string(),
                None => format!("layer {}, error {code}", message.layer),
            };
            (code, format!("the peer ends the stream: {what}"))
        }
        Err(error) => (String::new(), format!("the peer's last message cannot be read: {error}")),
    }
}

fn stag_text(stag: u32) -> String {
    format!("{stag:#010x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_message_is_decoded_to_code_and_sentence() {
        let (code, reason) = last_message(&[1, 0x11, 2, 0, 0, 0, 0, 0]);
        assert_eq!(code, "1/02");
        assert!(reason.contains("STag not associated with the stream"), "{reason}");
        assert!(last_message(&[9]).1.contains("cannot be read"));
    }
}
