//! The flight recorder's answer: the history of a stream, or of the streams of a job, a peer or a local program.

use axum::extract::State;
use base::address;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

use super::app::{App, PathParam, RouteResult};
use super::{ApiError, Counters, Request, StreamId};

/// The subject of a `GET /v1/why` request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplainSubject {
    /// A stream, by number.
    Stream(StreamId),
    /// A job, by number.
    Job(u64),
    /// A peer, by address and port; `None` for all ports.
    Peer(IpAddr, Option<u16>),
    /// A local program, by number.
    Program(u32),
}

impl ExplainSubject {
    /// Parses an address with or without a port, a stream (16 hexadecimal digits), a job (any other number), or a
    /// program (`program-` and a number). `None` for any other text.
    pub fn parse(text: &str) -> Option<ExplainSubject> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if let Ok(address) = address::parse(inner.unwrap_or(text)) {
            return Some(ExplainSubject::Peer(address, None));
        }
        if let Ok(end) = address::parse_socket(text) {
            return Some(ExplainSubject::Peer(end.ip(), Some(end.port())));
        }
        if let Some(number) = text.strip_prefix("program-") {
            return number.parse().ok().map(ExplainSubject::Program);
        }
        match text.len() {
            16 => text.parse().ok().map(ExplainSubject::Stream),
            _ => text.parse().ok().map(ExplainSubject::Job),
        }
    }
}

/// Recorded history of a stream, or of the streams of a job, a peer or a local program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// Result of the job, or the peer's failed attempts to open a stream, or the program's beginning, failures and
    /// end: one sentence each, the newest last.
    pub sentences: Vec<String>,
    /// Records of the streams, the newest last.
    pub streams: Vec<Flight>,
}

/// Record of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flight {
    /// Number of the stream.
    pub stream: StreamId,
    /// Listener that accepted the stream. `null` before the stream has ended, and if the appliance opened it.
    pub listener: Option<String>,
    /// Job that used the stream. `null` before the stream has ended, and without a job.
    pub job: Option<u64>,
    /// Local program that owns the stream. Absent for other streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<u32>,
    /// Local address and port.
    pub local: String,
    /// Address and port of the peer.
    pub remote: String,
    /// Start of the record, microseconds since 1970-01-01 UTC.
    pub began_us: u64,
    /// End of the stream. `null` for a live stream.
    pub end: Option<FlightEnd>,
    /// The record as sentences, for display.
    pub sentences: Vec<String>,
    /// Recorded events, in order of time.
    pub events: Vec<FlightEvent>,
    /// Number of events of the control thread that were dropped between the first and the last recorded events.
    pub left_out: u64,
    /// Number of events of the worker that were dropped. All of them are older than the worker's events in `events`.
    pub recorder_left_out: u64,
    /// Counters of the stream that are not 0. Empty before the stream has ended.
    pub counters: Counters,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlightEnd {
    /// Time of the end, microseconds since 1970-01-01 UTC.
    pub time_us: u64,
    /// Cause of the end: `peer`, `this_end` or `network`.
    pub by: String,
    /// Stable name of the reason, such as `peer_reset`.
    pub reason: String,
    /// Layer, error type and code in hexadecimal, such as `1/1/00`. `null` if the protocols define no numbers for the
    /// reason.
    pub code: Option<String>,
    /// Configuration key that affects the reason, such as `[tcp] user_timeout`. `null` if there is none.
    pub key: Option<String>,
}

/// A recorded event of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlightEvent {
    /// Time since the start of the record, microseconds.
    pub after_us: u64,
    /// Stable name of the event. Of the stream: `requested`, `established`, `delivered`, `error`, `terminate`,
    /// `peer_closed`, `stalled`, `resumed`, `post_failed`. Of its connection or association: `state`, `retransmission`,
    /// `tail_probe`, `window_probe`, `timeout`, `gave_up`, `recovery`, `undone`, `window_closed`, `window_opened`,
    /// `congestion_mark`, `path_mtu`, `probe_unanswered`, `reset`, `fin`, `error_found`, `terminate_sent`,
    /// `terminate_received`.
    pub event: String,
    /// Details of the event, as text.
    pub detail: String,
    /// Header of the segment or chunk concerned. `null` if none was recorded.
    pub header: Option<FlightHeader>,
}

impl FlightEvent {
    /// Names of the events of a stream, which the control thread records. A worker records all others.
    pub const OF_CONTROL_THREAD: [&'static str; 9] = [
        "requested",
        "established",
        "delivered",
        "error",
        "terminate",
        "peer_closed",
        "stalled",
        "resumed",
        "post_failed",
    ];
}

/// Recorded header fields of a TCP segment or an SCTP chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlightHeader {
    /// `tcp` or `sctp`.
    pub transport: String,
    /// True if the peer sent the segment or chunk, false if the appliance did.
    pub from_peer: bool,
    /// Sequence number or TSN.
    pub number: u32,
    /// Acknowledgement number or cumulative TSN.
    pub acknowledges: u32,
    /// Window field, without scaling. For SCTP the window in bytes, capped at 65535.
    pub window: u16,
    /// TCP flags or chunk type.
    pub flags: u8,
    /// Length of the payload, bytes.
    pub length: u16,
}

pub(super) async fn explain(
    State(app): State<App>,
    PathParam(what): PathParam<String>,
) -> RouteResult {
    let Some(subject) = ExplainSubject::parse(&what) else {
        let message = format!(
            "`{}` is not a stream (16 hexadecimal digits), a job (a number), a peer (an address, or address:port) or a \
             program (program-N)",
            what.escape_debug()
        );
        return Err(ApiError::bad_request(message));
    };
    app.respond_ok(Request::Explain(subject)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_is_parsed_as_stream_job_peer_or_program() {
        let address = |text: &str| text.parse().unwrap();
        for (text, subject) in [
            ("0000000001000003", Some(ExplainSubject::Stream(StreamId(0x0100_0003)))),
            ("7", Some(ExplainSubject::Job(7))),
            ("10.0.0.2", Some(ExplainSubject::Peer(address("10.0.0.2"), None))),
            ("10.0.0.2:7471", Some(ExplainSubject::Peer(address("10.0.0.2"), Some(7471)))),
            ("2001:db8::1", Some(ExplainSubject::Peer(address("2001:db8::1"), None))),
            ("[2001:db8::1]", Some(ExplainSubject::Peer(address("2001:db8::1"), None))),
            ("[2001:db8::1]:9", Some(ExplainSubject::Peer(address("2001:db8::1"), Some(9)))),
            ("program-3", Some(ExplainSubject::Program(3))),
            ("program-", None),
            ("program-x", None),
            ("::ffff:10.0.0.2", None),
            ("10.0.0.02", None),
            ("[10.0.0.2", None),
            ("ingest", None),
            ("", None),
            ("zzzzzzzzzzzzzzzz", None),
        ] {
            assert_eq!(ExplainSubject::parse(text), subject, "{text}");
        }
    }
}
