//! The flight recorder's answer: the history of a stream, of a job's streams or of a peer's streams.

use axum::extract::State;
use base::address;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

use super::app::{App, PathParam, RouteResult};
use super::{ApiError, Counters, Request, StreamId};

/// The subject of a `why` request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExplainSubject {
    /// A stream.
    Stream(StreamId),
    /// A job.
    Job(u64),
    /// A peer; all its ports, or one.
    Peer(IpAddr, Option<u16>),
}

impl ExplainSubject {
    /// Parses an address with or without a port, a stream (16 hexadecimal digits) or a job (any other number).
    pub fn parse(text: &str) -> Option<ExplainSubject> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if let Ok(address) = address::parse(inner.unwrap_or(text)) {
            return Some(ExplainSubject::Peer(address, None));
        }
        if let Ok(end) = address::parse_socket(text) {
            return Some(ExplainSubject::Peer(end.ip(), Some(end.port())));
        }
        match text.len() {
            16 => text.parse().ok().map(ExplainSubject::Stream),
            _ => text.parse().ok().map(ExplainSubject::Job),
        }
    }
}

/// What is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// What became of the job; of a peer's attempts that did not become streams, one sentence each, the newest last.
    pub sentences: Vec<String>,
    /// The streams, the newest last.
    pub streams: Vec<Flight>,
}

/// What happened to one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flight {
    /// The stream.
    pub stream: StreamId,
    /// Its listener; none if it was opened from here.
    pub listener: Option<String>,
    /// The job that had it.
    pub job: Option<u64>,
    /// Our address and port.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// When it began, microseconds since 1970-01-01 UTC.
    pub began_us: u64,
    /// How it ended; none of a stream that lives.
    pub end: Option<FlightEnd>,
    /// All of it in words.
    pub sentences: Vec<String>,
    /// What was recorded, in order.
    pub events: Vec<FlightEvent>,
    /// Events of the control thread that had no room, between the first and the last ones.
    pub left_out: u64,
    /// Events of the worker that had no room, before those that are here.
    pub recorder_left_out: u64,
    /// What the stream did, where it is not 0; once it has ended.
    pub counters: Counters,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlightEnd {
    /// Microseconds since 1970-01-01 UTC.
    pub time_us: u64,
    /// `peer`, `this_end` or `network`.
    pub by: String,
    /// A stable word, such as `peer_reset`.
    pub reason: String,
    /// Layer, error type and code in hexadecimal, such as `1/1/00`, where the protocols have numbers for it.
    pub code: Option<String>,
    /// The key of the configuration that matters, such as `[tcp] user_timeout`.
    pub key: Option<String>,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlightEvent {
    /// Microseconds since the stream began.
    pub after_us: u64,
    /// A stable word: `requested`, `established`, `delivered`, `error`, `terminate`, `peer_closed`, `post_failed`; and
    /// of what carries the stream: `state`, `retransmission`, `tail_probe`, `window_probe`, `timeout`, `gave_up`,
    /// `recovery`, `undone`, `window_closed`, `window_opened`, `congestion_mark`, `path_mtu`, `probe_unanswered`,
    /// `reset`, `fin`, `error_found`, `terminate_sent`, `terminate_received`.
    pub event: String,
    /// What is known of it.
    pub detail: String,
    /// The header of the segment or chunk that shows it, of some events.
    pub header: Option<FlightHeader>,
}

/// What a worker keeps of a segment or chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlightHeader {
    /// `tcp` or `sctp`.
    pub transport: String,
    /// It came from the peer.
    pub from_peer: bool,
    /// Sequence number, or TSN.
    pub number: u32,
    /// Acknowledgement number, or cumulative TSN.
    pub acknowledges: u32,
    /// The window field, not scaled; of SCTP at most 65535.
    pub window: u16,
    /// TCP's flags, or the type of the chunk.
    pub flags: u8,
    /// Bytes of payload.
    pub length: u16,
}

pub(super) async fn explain(
    State(app): State<App>,
    PathParam(what): PathParam<String>,
) -> RouteResult {
    let Some(subject) = ExplainSubject::parse(&what) else {
        let message = format!(
            "`{}` is no stream (16 hexadecimal digits), job (a number) or peer (an address, or address:port)",
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
    fn subject_is_parsed_as_stream_job_or_peer() {
        let address = |text: &str| text.parse().unwrap();
        for (text, subject) in [
            ("0000000001000003", Some(ExplainSubject::Stream(StreamId(0x0100_0003)))),
            ("7", Some(ExplainSubject::Job(7))),
            ("10.0.0.2", Some(ExplainSubject::Peer(address("10.0.0.2"), None))),
            ("10.0.0.2:7471", Some(ExplainSubject::Peer(address("10.0.0.2"), Some(7471)))),
            ("2001:db8::1", Some(ExplainSubject::Peer(address("2001:db8::1"), None))),
            ("[2001:db8::1]", Some(ExplainSubject::Peer(address("2001:db8::1"), None))),
            ("[2001:db8::1]:9", Some(ExplainSubject::Peer(address("2001:db8::1"), Some(9)))),
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
