//! A record in sentences.

use std::time::{Duration, Instant};

use api::{self, Counters, FlightEnd, FlightEvent};
use dataplane::Record;
use ddp::{Origin, UlpKind};

use super::advice::advice;
use super::flight::{Entry, Flight, What};
use super::recorded::Recorded;
use super::words::{layer_name, seconds};
use crate::appliance::env::api_id;

/// Returns the whole record. `clock`: microseconds since 1970 of an instant.
pub(super) fn tell(flight: &Flight, clock: impl Fn(Instant) -> u64) -> api::Flight {
    let end = flight.end.as_deref();
    let advice = end.and_then(|end| advice(end, flight));
    api::Flight {
        stream: api_id(flight.stream()),
        listener: end.and_then(|end| end.listener.as_deref().map(str::to_owned)),
        job: flight.job(),
        local: flight.local().to_string(),
        remote: flight.remote().to_string(),
        began_us: clock(flight.began),
        end: end.map(|end| FlightEnd {
            time_us: end.at.map_or(0, &clock),
            by: by(end.origin).into(),
            reason: end.reason.into(),
            code: end.numbers.map(|(layer, kind, code)| format!("{layer:x}/{kind:x}/{code:02x}")),
            key: advice.and_then(|advice| advice.key).map(str::to_owned),
        }),
        sentences: sentences(flight, advice.map(|advice| advice.sentence)),
        events: events(flight),
        left_out: flight.left_out,
        recorder_left_out: flight.recorded.as_ref().map_or(0, |recorded| recorded.left_out),
        counters: end.map(|end| end.counters.clone()).unwrap_or_default(),
    }
}

/// Merges the control thread's entries with the worker's records, in order of time. An event that
/// both have appears once, with the control thread's detail and the worker's time.
fn events(flight: &Flight) -> Vec<FlightEvent> {
    let after = |at: Instant| at.saturating_duration_since(flight.began);
    let micros = |at: Instant| u64::try_from(after(at).as_micros()).unwrap_or(u64::MAX);
    let mut records: Vec<(Instant, &Record)> =
        flight.recorded.iter().flat_map(|recorded| recorded.records()).collect();
    let mut events = Vec::new();
    for entry in flight.entries() {
        let (event, detail) = words(&entry.what, after);
        let same = entry.what.error_of().and_then(|what| {
            records.iter().position(|(_, record)| Recorded::error(record) == Some(what))
        });
        let at = same.map_or(entry.at, |same| records.remove(same).0);
        events.push(FlightEvent {
            after_us: micros(at),
            event: event.into(),
            detail,
            header: None,
        });
    }
    if let Some(recorded) = &flight.recorded {
        events.extend(records.into_iter().map(|(at, record)| {
            let (event, detail) = recorded.words(record);
            let header = recorded.header(record);
            FlightEvent { after_us: micros(at), event: event.into(), detail, header }
        }));
        events.sort_by_key(|event| event.after_us);
    }
    events
}

fn by(origin: Origin) -> &'static str {
    match origin {
        Origin::Local => "this_end",
        Origin::Peer => "peer",
        Origin::Network => "network",
    }
}

fn sentences(flight: &Flight, advice: Option<&'static str>) -> Vec<String> {
    let mut told = vec![beginning(flight)];
    let errors = flight.entries().iter().filter_map(|entry| error(flight, entry));
    told.extend(errors);
    if let Some(recorded) = &flight.recorded {
        let after = |at: Instant| at.saturating_duration_since(flight.began);
        told.extend(recorded.sentences(after));
    }
    let Some(end) = flight.end.as_deref() else {
        told.push("It has not ended.".to_owned());
        return told;
    };
    let who = match end.origin {
        Origin::Local => "This end ended it",
        Origin::Peer => "The peer caused its end",
        Origin::Network => "The network, or the peer's host, ended it",
    };
    let life = end.at.unwrap_or(flight.began).saturating_duration_since(flight.began);
    told.push(format!("{who} after {}: {}.", seconds(life), end.sentence.trim_end_matches('.')));
    if let Some((layer, kind, code)) = end.numbers {
        let name = layer_name(layer, kind);
        told.push(format!("In the protocol's numbers: layer {layer} ({name}), error type {kind}, code {code:#04x}."));
    }
    told.push(traffic(&end.counters));
    told.extend(advice.map(str::to_owned));
    told
}

fn beginning(flight: &Flight) -> String {
    let end = flight.end.as_deref();
    let whence = match (flight.accepted, end.and_then(|end| end.listener.as_deref())) {
        (true, Some(listener)) => format!("accepted by listener {listener}"),
        (true, None) => "opened by the peer".to_owned(),
        (false, _) => "opened from here".to_owned(),
    };
    let established = flight.entries().iter().find_map(|entry| match &entry.what {
        What::Established { transport, ulp, .. } => {
            let after = seconds(entry.at.saturating_duration_since(flight.began));
            Some(format!("{} over {transport}, established after {after}", ulp_name(*ulp)))
        }
        _ => None,
    });
    let established = established.unwrap_or_else(|| "never established".to_owned());
    let job = flight.job().map_or(String::new(), |job| format!(", job {job}"));
    let (id, remote) = (api_id(flight.stream()), flight.remote());
    format!("Stream {id} with {remote}: {whence}{job}, {established}.")
}

/// Returns a sentence on an error or Terminate.
fn error(flight: &Flight, entry: &Entry) -> Option<String> {
    let after = seconds(entry.at.saturating_duration_since(flight.began));
    Some(match &entry.what {
        What::Error { layer, code, reason, header } => {
            let header = match header.is_empty() {
                true => String::new(),
                false => format!(" The segment's header: {}.", hex(header)),
            };
            let layer = layer.to_uppercase();
            format!(
                "At {after} this end found an error of the peer in {layer}, {}/{:02x}: {reason}.{header}",
                code.0, code.1
            )
        }
        What::Terminate { by_peer, reason, .. } => {
            let who = if *by_peer { "the peer" } else { "this end" };
            format!("At {after} {who} sent a Terminate: {reason}.")
        }
        What::PeerClosed { incomplete: true } => {
            format!("At {after} the peer closed its direction within a message.")
        }
        What::Stalled { timeouts } => {
            format!("At {after} the peer had not answered {timeouts} time-outs in a row.")
        }
        What::PostFailed { reason } => format!("At {after} a message could not be sent: {reason}."),
        _ => return None,
    })
}

fn traffic(counters: &Counters) -> String {
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    let placed = of("placed_in_order_bytes") + of("placed_out_of_order_bytes");
    let mut sentence = format!(
        "The peer placed {placed} bytes, and acknowledged {} bytes of ours",
        of("sent_bytes")
    );
    let timeouts = of("tcp_timeouts") + of("sctp_timeouts");
    if of("retransmitted_bytes") > 0 || timeouts > 0 {
        let (bytes, segments) = (of("retransmitted_bytes"), of("retransmitted_segments"));
        sentence += &format!(
            "; {bytes} bytes were retransmitted in {segments} segments, with {timeouts} time-outs"
        );
    }
    let probes = of("tcp_window_probes");
    if probes > 0 {
        sentence += &format!("; its window was closed: {probes} probes");
    }
    sentence + "."
}

/// Returns an entry's word and its detail.
fn words(what: &What, after: impl Fn(Instant) -> Duration) -> (&'static str, String) {
    match what {
        What::Requested { revision: Some(revision) } => {
            ("requested", format!("MPA revision {revision}"))
        }
        What::Requested { revision: None } => ("requested", "DDP session over SCTP".to_owned()),
        What::Established { transport, ulp, mulpdu } => {
            ("established", format!("{} over {transport}, MULPDU {mulpdu}", ulp_name(*ulp)))
        }
        What::Delivered { messages, bytes, last } => {
            let last = seconds(after(*last));
            ("delivered", format!("{messages} messages, {bytes} bytes, the last after {last}"))
        }
        What::Error { layer, code, reason, .. } => {
            ("error", format!("{layer} {}/{:02x}: {reason}", code.0, code.1))
        }
        What::Terminate { by_peer, numbers: (layer, kind, code), reason } => {
            let who = if *by_peer { "by the peer" } else { "by this end" };
            ("terminate", format!("{who} {layer:x}/{kind:x}/{code:02x}: {reason}"))
        }
        What::PeerClosed { incomplete } => (
            "peer_closed",
            if *incomplete { "within a message" } else { "between messages" }.to_owned(),
        ),
        What::Stalled { timeouts } => ("stalled", format!("{timeouts} time-outs in a row")),
        What::Resumed => ("resumed", "the peer acknowledges again".to_owned()),
        What::PostFailed { reason } => ("post_failed", reason.to_string()),
    }
}

fn ulp_name(ulp: UlpKind) -> &'static str {
    match ulp {
        UlpKind::Ddp => "bare DDP",
        UlpKind::Rdmap => "RDMAP",
    }
}

fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes
        .chunks(4)
        .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        .collect();
    words.join(" ")
}
