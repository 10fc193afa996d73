//! Explanations for operators: records of streams, results of jobs, and attempts of peers.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use api::{
    self, ApiError, Event, EventFilter, EventKind, EventPage, ExplainSubject, JobState, Reply,
    Responder, Why,
};
use dataplane::Command;
use ddp::StreamId;

use super::Core;
use crate::appliance::flights::ArchiveBounds;
use crate::appliance::pending::Continuation;

/// Maximum number of a peer's attempts, or of a program's events, in a reply. Older entries are omitted, except a
/// program's first event.
const ATTEMPTS: usize = 16;

impl Core {
    /// Requests the workers' records of the subject's live streams. The answer follows when all workers have answered;
    /// at once if there is no live stream.
    pub(super) fn request_diagnosis(
        &mut self,
        subject: ExplainSubject,
        answer: Responder,
        now: Instant,
    ) {
        let live = self.flights.live(subject);
        if live.is_empty() {
            return answer.send(self.diagnosis(subject, now).map(Reply::Explanation));
        }
        let then = Continuation::Diagnosis { subject, answer };
        self.env
            .broadcast(then, |ticket| Command::ListRecordings { streams: live.clone(), ticket });
    }

    pub(super) fn diagnosis(&self, subject: ExplainSubject, now: Instant) -> Result<Why, ApiError> {
        match subject {
            ExplainSubject::Stream(id) => {
                let flight = self.flights.stream(StreamId(id.0), now);
                let flight = flight.ok_or_else(|| self.no_stream_error(id))?;
                Ok(Why { sentences: Vec::new(), streams: vec![flight] })
            }
            ExplainSubject::Job(id) => {
                let job = self.jobs.info(&self.env, id, now)?;
                let state = match (&job.error, &job.hint) {
                    (Some(error), Some(hint)) => format!("failed: {error}. {hint}"),
                    (Some(error), None) => format!("failed: {error}"),
                    (None, _) if job.state == JobState::Done => "is done".to_owned(),
                    (None, _) if job.state == JobState::Cancelled => "was cancelled".to_owned(),
                    (None, _) => "is in progress".to_owned(),
                };
                let sentence = format!(
                    "Job {id} ({}) with {} {}, after {} of {} bytes.",
                    job.kind,
                    job.remote,
                    state.trim_end_matches('.'),
                    job.acknowledged,
                    job.total
                );
                Ok(Why { sentences: vec![sentence], streams: self.flights.job_flights(id, now) })
            }
            ExplainSubject::Program(id) => {
                let streams = self.flights.program_flights(id, now);
                let log = self.log();
                let sentences = program_sentences(&log.events, id);
                match streams.is_empty() && sentences.is_empty() {
                    true => {
                        let message = format!("no program {id} was seen {}", log_period(&log));
                        let hint = "`ddpctl programs` lists those that are attached, `ddpctl events` has others";
                        Err(ApiError::not_found(message).with_hint(Some(hint)))
                    }
                    false => Ok(Why { sentences, streams }),
                }
            }
            ExplainSubject::Peer(ip, port) => {
                let streams = self.flights.peer_flights(ip, port, now);
                let log = self.log();
                let sentences = attempts_of(&log.events, ip, port);
                match streams.is_empty() && sentences.is_empty() {
                    true => Err(self.no_peer_error(&log, ip, port)),
                    false => Ok(Why { sentences, streams }),
                }
            }
        }
    }

    /// Returns the limits of the flight recorder's archive.
    pub(super) fn recorder_bounds(&self) -> ArchiveBounds {
        let management = &self.env.context.config.management;
        ArchiveBounds {
            streams: management.recorder_streams as usize,
            bytes: usize::try_from(management.recorder_size).unwrap_or(usize::MAX),
        }
    }

    fn log(&self) -> EventPage {
        self.env.log.read(0, usize::MAX, &EventFilter::default())
    }

    /// Returns the error for a stream without a record. States the reason of the stream's end if the event log still
    /// contains it.
    fn no_stream_error(&self, id: api::StreamId) -> ApiError {
        let log = self.log();
        match end_reason(&log.events, id) {
            Some(reason) => self.not_recorded_error(format!("stream {id} ended: {reason}")),
            None if log.events.iter().any(|event| event.kind.stream() == Some(id)) => {
                self.not_recorded_error(format!("nothing is recorded of stream {id}"))
            }
            None => {
                let message = format!("no stream {id} was seen {}", log_period(&log));
                let hint =
                    "`ddpctl streams` lists live streams, `ddpctl events` reports ended streams";
                ApiError::not_found(message).with_hint(Some(hint))
            }
        }
    }

    /// Returns the error for a peer without a recorded stream or attempt. Names the peer's last stream if the event log
    /// still contains it.
    fn no_peer_error(&self, log: &EventPage, ip: IpAddr, port: Option<u16>) -> ApiError {
        let peer = port.map_or(ip.to_string(), |port| SocketAddr::new(ip, port).to_string());
        let last = log.events.iter().rev().find_map(|event| match &event.kind {
            EventKind::StreamEstablished { stream, remote, .. } if is_peer(remote, ip, port) => {
                Some(*stream)
            }
            _ => None,
        });
        match last.map(|last| (last, end_reason(&log.events, last))) {
            Some((last, Some(reason))) => self.not_recorded_error(format!(
                "the last stream with {peer}, {last}, ended: {reason}"
            )),
            Some((last, None)) => self.not_recorded_error(format!(
                "nothing is recorded of the last stream with {peer}, {last}"
            )),
            None => {
                let message = format!(
                    "no stream with {peer} and no attempt of it was seen {}",
                    log_period(log)
                );
                let hint = "no packet of the peer arrived, or all were dropped below TCP and SCTP: `ddpctl stats` \
                            counts drops by reason, and `ddpctl explain` explains the reasons";
                ApiError::not_found(message).with_hint(Some(hint))
            }
        }
    }

    fn not_recorded_error(&self, message: String) -> ApiError {
        let management = &self.env.context.config.management;
        let hint = match management.recorder {
            true => format!(
                "only streams that did not close gracefully are kept: the newest {} ([management] recorder_streams)",
                management.recorder_streams
            ),
            false => "the recorder is off: set `recorder = true` in [management]".to_owned(),
        };
        ApiError::not_found(message).with_hint(Some(&hint))
    }
}

/// Returns the reason why a stream ended, if the log still contains it.
fn end_reason(events: &[Event], id: api::StreamId) -> Option<&str> {
    events.iter().rev().find_map(|event| match &event.kind {
        EventKind::StreamClosed { stream, reason, .. } if *stream == id => Some(reason.as_str()),
        _ => None,
    })
}

/// Returns one sentence per logged event of a local program, oldest first: its beginning, failures and end. Of more
/// than [`ATTEMPTS`] events, the first and the newest are returned.
fn program_sentences(events: &[Event], id: u32) -> Vec<String> {
    let sentence = |event: &Event| match &event.kind {
        EventKind::ProgramAttached { program, name, uid, pid } if *program == id => {
            Some(format!("Program {id} ({name}) of uid {uid}, pid {pid}, attached."))
        }
        EventKind::ProgramError { program, reason } if *program == id => {
            Some(format!("It failed: {}.", reason.trim_end_matches('.')))
        }
        EventKind::ProgramEnded { program, .. } if *program == id => Some("It ended.".to_owned()),
        _ => None,
    };
    let mut sentences: Vec<String> = events.iter().filter_map(sentence).collect();
    if sentences.len() > ATTEMPTS {
        // The first sentence names the program.
        sentences.drain(1..=sentences.len() - ATTEMPTS);
    }
    sentences
}

/// Describes the period that the event log covers, for the end of a sentence.
fn log_period(log: &EventPage) -> String {
    match log.lost {
        0 => "since ddpd started".to_owned(),
        lost => format!("in the log, which has lost its oldest {lost} events"),
    }
}

/// Returns true if `remote` has address `ip`, and port `port` if given.
fn is_peer(remote: &str, ip: IpAddr, port: Option<u16>) -> bool {
    let end: Option<SocketAddr> = remote.parse().ok();
    end.is_some_and(|end| end.ip() == ip && port.is_none_or(|port| port == end.port()))
}

/// Returns one sentence per failed attempt to open a stream from or to a peer: the newest [`ATTEMPTS`], oldest first.
fn attempts_of(events: &[Event], ip: IpAddr, port: Option<u16>) -> Vec<String> {
    let sentences = events.iter().filter_map(|event| match &event.kind {
        EventKind::HandshakeFailed { remote, local, stage, reason, detail, hint, .. }
            if is_peer(remote, ip, port) =>
        {
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            Some(format!("{remote} to {local}: no stream, {stage} {reason}: {detail}{hint}."))
        }
        EventKind::StreamRefused { remote, reason, hint, .. } if is_peer(remote, ip, port) => {
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            Some(format!("From here to {remote}: no stream: {reason}{hint}."))
        }
        _ => None,
    });
    let sentences: Vec<String> = sentences.collect();
    sentences[sentences.len().saturating_sub(ATTEMPTS)..].to_vec()
}
