//! Records of streams as sentences and events for the API.

use std::time::{Duration, Instant};

use api::{self, Counters, FlightEnd, FlightEvent};
use base::ErrorNumbers;
use dataplane::Record;
use ddp::{Origin, UlpKind};

use super::advice::advice;
use super::flight::{Entry, EntryKind, Flight};
use super::names::{layer_name, seconds};
use super::recording::WorkerRecording;
use crate::appliance::env::api_id;

/// Returns the complete record. `clock` converts an instant to microseconds since 1970.
pub(super) fn api_flight(flight: &Flight, clock: impl Fn(Instant) -> u64) -> api::Flight {
    let end = flight.end.as_deref();
    let advice = end.and_then(|end| advice(end, flight));
    api::Flight {
        stream: api_id(flight.stream()),
        listener: end.and_then(|end| end.listener.as_deref().map(str::to_owned)),
        job: flight.job(),
        program: flight.program,
        local: flight.local().to_string(),
        remote: flight.remote().to_string(),
        began_us: clock(flight.started_at),
        end: end.map(|end| FlightEnd {
            time_us: end.at.map_or(0, &clock),
            by: origin_name(end.origin).into(),
            reason: end.reason.into(),
            code: end.numbers.map(|numbers| numbers.to_string()),
            key: advice.and_then(|advice| advice.key).map(str::to_owned),
        }),
        sentences: sentences(flight, advice.map(|advice| advice.sentence)),
        events: events(flight),
        left_out: flight.dropped_entries,
        recorder_left_out: flight.recording.as_ref().map_or(0, |recorded| recorded.dropped_records),
        counters: end.map(|end| end.counters.clone()).unwrap_or_default(),
    }
}

/// Merges the control thread's entries with the worker's records by time. An event in both appears once, with the
/// control thread's details and the worker's time.
fn events(flight: &Flight) -> Vec<FlightEvent> {
    let after = |at: Instant| at.saturating_duration_since(flight.started_at);
    let micros = |at: Instant| u64::try_from(after(at).as_micros()).unwrap_or(u64::MAX);
    let mut records: Vec<(Instant, &Record)> =
        flight.recording.iter().flat_map(|recorded| recorded.records()).collect();
    let mut events = Vec::new();
    for entry in flight.entries() {
        let (event, detail) = describe_entry(&entry.kind, after);
        debug_assert!(FlightEvent::OF_CONTROL_THREAD.contains(&event), "{event}");
        let same = entry.kind.error_numbers().and_then(|what| {
            records.iter().position(|(_, record)| WorkerRecording::error(record) == Some(what))
        });
        let at = same.map_or(entry.at, |same| records.remove(same).0);
        events.push(FlightEvent {
            after_us: micros(at),
            event: event.into(),
            detail,
            header: None,
        });
    }
    if let Some(recorded) = &flight.recording {
        events.extend(records.into_iter().map(|(at, record)| {
            let (event, detail) = recorded.describe(record);
            let header = recorded.header(record);
            FlightEvent { after_us: micros(at), event: event.into(), detail, header }
        }));
        events.sort_by_key(|event| event.after_us);
    }
    events
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Local => "this_end",
        Origin::Peer => "peer",
        Origin::Network => "network",
    }
}

fn sentences(flight: &Flight, advice: Option<&'static str>) -> Vec<String> {
    let mut sentences = vec![beginning_sentence(flight)];
    let errors = flight.entries().iter().filter_map(|entry| error_sentence(flight, entry));
    sentences.extend(errors);
    if let Some(recorded) = &flight.recording {
        let after = |at: Instant| at.saturating_duration_since(flight.started_at);
        sentences.extend(recorded.sentences(after));
    }
    let Some(end) = flight.end.as_deref() else {
        sentences.push("It has not ended.".to_owned());
        return sentences;
    };
    let subject = match end.origin {
        Origin::Local => "This end ended it",
        Origin::Peer => "The peer caused its end",
        Origin::Network => "The network, or the peer's host, ended it",
    };
    let lifetime = end.at.unwrap_or(flight.started_at).saturating_duration_since(flight.started_at);
    sentences.push(format!(
        "{subject} after {}: {}.",
        seconds(lifetime),
        end.sentence.trim_end_matches('.')
    ));
    if let Some(numbers) = end.numbers {
        let name = layer_name(numbers);
        let ErrorNumbers { layer, error_type, code } = numbers;
        sentences.push(format!("In the protocol's numbers: layer {layer} ({name}), error type {error_type}, code {code:#04x}."));
    }
    sentences.push(traffic_sentence(&end.counters));
    sentences.extend(advice.map(str::to_owned));
    sentences
}

fn beginning_sentence(flight: &Flight) -> String {
    let end = flight.end.as_deref();
    let origin = match (flight.accepted, end.and_then(|end| end.listener.as_deref())) {
        (true, Some(listener)) => format!("accepted by listener {listener}"),
        (true, None) => "opened by the peer".to_owned(),
        (false, _) => "opened from here".to_owned(),
    };
    let established = flight.entries().iter().find_map(|entry| match &entry.kind {
        EntryKind::Established { transport, ulp, .. } => {
            let after = seconds(entry.at.saturating_duration_since(flight.started_at));
            Some(format!("{} over {transport}, established after {after}", ulp_name(*ulp)))
        }
        _ => None,
    });
    let established = established.unwrap_or_else(|| "never established".to_owned());
    let job = flight.job().map_or(String::new(), |job| format!(", job {job}"));
    let program = flight.program.map_or(String::new(), |program| format!(", program {program}"));
    let (id, remote) = (api_id(flight.stream()), flight.remote());
    format!("Stream {id} with {remote}: {origin}{job}{program}, {established}.")
}

/// Returns the sentence about an entry, if it is an error or shows a problem.
fn error_sentence(flight: &Flight, entry: &Entry) -> Option<String> {
    let after = seconds(entry.at.saturating_duration_since(flight.started_at));
    Some(match &entry.kind {
        EntryKind::Error { layer, code, reason, header } => {
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
        EntryKind::Terminate { by_peer, reason, .. } => {
            let sender = if *by_peer { "the peer" } else { "this end" };
            format!("At {after} {sender} sent a Terminate: {reason}.")
        }
        EntryKind::PeerClosed { incomplete: true } => {
            format!("At {after} the peer closed its direction within a message.")
        }
        EntryKind::Stalled { timeouts } => {
            format!("At {after} the peer had not answered {timeouts} time-outs in a row.")
        }
        EntryKind::PostFailed { reason } => {
            format!("At {after} a message could not be sent: {reason}.")
        }
        _ => return None,
    })
}

fn traffic_sentence(counters: &Counters) -> String {
    let value = |name: &str| counters.get(name).copied().unwrap_or(0);
    let placed = value("placed_in_order_bytes") + value("placed_out_of_order_bytes");
    let mut sentence = format!(
        "The peer placed {placed} bytes, and acknowledged {} bytes of ours",
        value("sent_bytes")
    );
    let timeouts = value("tcp_timeouts") + value("sctp_timeouts");
    if value("retransmitted_bytes") > 0 || timeouts > 0 {
        let (bytes, segments) = (value("retransmitted_bytes"), value("retransmitted_segments"));
        sentence += &format!(
            "; {bytes} bytes were retransmitted in {segments} segments, with {timeouts} time-outs"
        );
    }
    let probes = value("tcp_window_probes");
    if probes > 0 {
        sentence += &format!("; its window was closed: {probes} probes");
    }
    sentence + "."
}

/// Returns the event name of an entry, and details.
fn describe_entry(
    entry_kind: &EntryKind,
    after: impl Fn(Instant) -> Duration,
) -> (&'static str, String) {
    match entry_kind {
        EntryKind::Requested { revision: Some(revision) } => {
            ("requested", format!("MPA revision {revision}"))
        }
        EntryKind::Requested { revision: None } => {
            ("requested", "DDP session over SCTP".to_owned())
        }
        EntryKind::Established { transport, ulp, mulpdu } => {
            ("established", format!("{} over {transport}, MULPDU {mulpdu}", ulp_name(*ulp)))
        }
        EntryKind::Delivered { messages, bytes, last } => {
            let last = seconds(after(*last));
            ("delivered", format!("{messages} messages, {bytes} bytes, the last after {last}"))
        }
        EntryKind::Error { layer, code, reason, .. } => {
            ("error", format!("{layer} {}/{:02x}: {reason}", code.0, code.1))
        }
        EntryKind::Terminate { by_peer, numbers, reason } => {
            let sender = if *by_peer { "by the peer" } else { "by this end" };
            ("terminate", format!("{sender} {numbers}: {reason}"))
        }
        EntryKind::PeerClosed { incomplete } => (
            "peer_closed",
            if *incomplete { "within a message" } else { "between messages" }.to_owned(),
        ),
        EntryKind::Stalled { timeouts } => ("stalled", format!("{timeouts} time-outs in a row")),
        EntryKind::Resumed => ("resumed", "the peer acknowledges again".to_owned()),
        EntryKind::PostFailed { reason } => ("post_failed", reason.to_string()),
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
