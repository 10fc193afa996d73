//! Tables of streams and associations, and all details of one stream or association.

use api::{AssociationInfo, FlowInfo, StreamInfo};
use config::show_size;

use super::{format_bytes, format_pairs, format_seconds, join_list, table, text_or_dash, yes_no};
use crate::streams::{Column, placed_bytes};

/// Returns a table with one row per stream and these columns.
pub(crate) fn streams(streams: &[StreamInfo], columns: &[Column]) -> String {
    let header: Vec<&str> = columns.iter().map(|column| column.title()).collect();
    let row = |stream| columns.iter().map(|column| stream_cell(stream, *column)).collect();
    table(&header, streams.iter().map(row))
}

/// Returns the text of one column for a stream.
pub(crate) fn stream_cell(stream: &StreamInfo, column: Column) -> String {
    let flow = stream.flow.as_ref();
    let counter = |name| stream.counters.get(name).copied().map(format_bytes);
    match column {
        Column::Stream => stream.id.to_string(),
        Column::Worker => stream.worker.to_string(),
        Column::Listener => match (&stream.listener, stream.program) {
            (None, Some(program)) => format!("program {program}"),
            (listener, _) => text_or_dash(listener.as_ref()),
        },
        Column::Over => stream.transport.as_str().into(),
        Column::Local => stream.local.clone(),
        Column::Remote => stream.remote.clone(),
        Column::State => stream.state.clone(),
        Column::Rev => text_or_dash(stream.mpa.map(|mpa| mpa.revision)),
        Column::Markers => {
            text_or_dash(stream.mpa.map(|mpa| match (mpa.markers_tx, mpa.markers_rx) {
                (true, true) => "both",
                (true, false) => "sent",
                (false, true) => "received",
                (false, false) => "no",
            }))
        }
        Column::Crc => text_or_dash(stream.mpa.map(|mpa| yes_no(mpa.crc))),
        Column::Age => format_seconds(stream.age_seconds),
        Column::Rtt => text_or_dash(flow.and_then(|flow| flow.rtt_us).map(format_time)),
        Column::Cwnd => text_or_dash(flow.map(|flow| format_bytes(flow.cwnd))),
        Column::InFlight => text_or_dash(flow.map(|flow| format_bytes(flow.in_flight))),
        Column::Rate => text_or_dash(flow.and_then(|flow| flow.delivery_rate).map(format_rate)),
        Column::LimitedBy => text_or_dash(flow.map(|flow| flow.limited_by.as_str())),
        Column::Retransmitted => text_or_dash(counter("retransmitted_bytes")),
        Column::Placed => text_or_dash(placed_bytes(stream).map(format_bytes)),
        Column::Sent => text_or_dash(counter("sent_bytes")),
    }
}

/// Returns all details of one stream.
pub(crate) fn stream(stream: &StreamInfo) -> String {
    let mut text = streams(std::slice::from_ref(stream), &Column::DEFAULT);
    text += "\n";
    let regions = ("regions".to_owned(), join_list(&stream.regions));
    let mulpdu = stream.mulpdu.or(stream.mpa.map(|mpa| mpa.mulpdu));
    let mulpdu = ("mulpdu".to_owned(), text_or_dash(mulpdu));
    let association = stream.association.map(|id| ("association".to_owned(), id.to_string()));
    let worker = ("worker".to_owned(), stream.worker.to_string());
    text += &format_pairs([worker, mulpdu, regions].into_iter().chain(association));
    if let Some(info) = &stream.flow {
        text += "\n";
        text += &flow(info);
    }
    text += "\n";
    text += &counters(&stream.counters);
    if !stream.peer_regions.is_empty() {
        text += "\n";
        let rows = stream.peer_regions.iter().map(|region| {
            vec![
                region.name.clone(),
                show_size(region.size),
                if region.busy { "busy".into() } else { region.access.clone() },
                region.stag.clone(),
                region.base_to.clone(),
            ]
        });
        text += &table(&["PEER'S REGION", "SIZE", "ACCESS", "STAG", "BASE TO"], rows);
    }
    text
}

/// Formats the state of a flow, similar to `ss -ti` for a kernel connection.
fn flow(flow: &FlowInfo) -> String {
    let share = |name: &str| flow.limited.get(name).copied().unwrap_or(0.0);
    let mut shares: Vec<_> = flow.limited.iter().filter(|(_, share)| **share >= 0.001).collect();
    shares.sort_by(|a, b| b.1.total_cmp(a.1));
    let shares = shares.iter().map(|(name, share)| format!("{name} {:.1} %", 100.0 * *share));
    let rows = [
        (
            "rtt",
            flow.rtt_us.map(|us| format!("{} +- {}", format_time(us), format_time(flow.rttvar_us))),
        ),
        ("min_rtt", flow.min_rtt_us.map(format_time)),
        ("rto", Some(format_time(flow.rto_us))),
        ("cwnd", Some(format_bytes(flow.cwnd))),
        ("ssthresh", flow.ssthresh.map(format_bytes)),
        ("in_flight", Some(format_bytes(flow.in_flight))),
        ("pacing_rate", flow.pacing_rate.map(format_rate)),
        ("delivery_rate", flow.delivery_rate.map(format_rate)),
        ("peer_window", Some(format_bytes(flow.peer_window))),
        ("own_window", Some(format_bytes(flow.own_window))),
        ("path_mtu", Some(flow.path_mtu.to_string())),
        (
            "limited_by",
            Some(format!(
                "{} ({:.1} % of its time)",
                flow.limited_by,
                100.0 * share(&flow.limited_by)
            )),
        ),
        ("limited", Some(shares.collect::<Vec<_>>().join(", "))),
    ];
    format_pairs(rows.into_iter().map(|(name, value)| (name.to_owned(), text_or_dash(value))))
}

fn counters(counters: &api::Counters) -> String {
    format_pairs(counters.iter().map(|(name, value)| (name.to_string(), value.to_string())))
}

/// Formats a time in microseconds: as us below 10 ms, as ms below 10 s, else as s.
pub(crate) fn format_time(us: u64) -> String {
    match us {
        0..10_000 => format!("{us} us"),
        10_000..10_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// Formats a rate in bytes per second as kbit/s, Mbit/s or Gbit/s.
pub(crate) fn format_rate(bytes: u64) -> String {
    let bits = bytes as f64 * 8.0;
    match bits {
        0.0..1e6 => format!("{:.0} kbit/s", bits / 1e3),
        1e6..1e9 => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.2} Gbit/s", bits / 1e9),
    }
}

/// Returns a table with one row per association.
pub(crate) fn associations(associations: &[AssociationInfo]) -> String {
    table(
        &[
            "ASSOCIATION",
            "LOCAL",
            "REMOTE",
            "UDP",
            "STATE",
            "SESSIONS",
            "PATH MTU",
            "RTT",
            "CWND",
            "IN FLIGHT",
            "RETRANSMITTED",
        ],
        associations.iter().map(|association| {
            let retransmitted = association.counters.get("retransmitted_segments");
            vec![
                association.id.to_string(),
                association.local.clone(),
                association.remote.clone(),
                text_or_dash(association.udp.map(|[local, remote]| format!("{local}>{remote}"))),
                association.state.clone(),
                format!("{}/{}", association.sessions, association.streams),
                association.path_mtu.to_string(),
                text_or_dash(association.round_trip_us.map(format_time)),
                association.cwnd.to_string(),
                association.in_flight.to_string(),
                text_or_dash(retransmitted),
            ]
        }),
    )
}

/// Returns all details of one association.
pub(crate) fn association(association: &AssociationInfo) -> String {
    let known = [
        ("worker".to_owned(), association.worker.to_string()),
        ("unanswered".to_owned(), association.unanswered.to_string()),
    ];
    [
        associations(std::slice::from_ref(association)),
        format_pairs(known),
        flow(&association.flow),
        counters(&association.counters),
    ]
    .join("\n")
}
