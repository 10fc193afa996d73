//! What happened, for operators: records of streams, what became of a job, and a peer's attempts.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use dataplane::Command;
use ddp::StreamId;

use super::Core;
use crate::appliance::pending::Then;
use api::{Answer, ApiError, EventFilter, EventKind, JobState, Reply, Subject, Why};

/// Attempts of a peer that are told, the newest.
const ATTEMPTS: usize = 16;

impl Core {
    /// Asks the workers what they have of the streams that live, and tells all of it then.
    pub(super) fn ask_why(&mut self, subject: Subject, answer: Answer, now: Instant) {
        let live = self.flights.live(subject);
        if live.is_empty() {
            return answer.send(self.why(subject, now).map(Reply::Why));
        }
        let then = Then::Why { subject, answer };
        self.env
            .broadcast(then, |ticket| Command::ListRecordings { streams: live.clone(), ticket });
    }

    pub(super) fn why(&self, subject: Subject, now: Instant) -> Result<Why, ApiError> {
        match subject {
            Subject::Stream(id) => {
                let flight = self.flights.stream(StreamId(id.0), now).ok_or_else(|| {
                    let message = format!("nothing is recorded of stream {id}");
                    let hint = self.why_nothing();
                    ApiError::not_found(message).with_hint(Some(hint.as_str()))
                })?;
                Ok(Why { sentences: Vec::new(), streams: vec![flight] })
            }
            Subject::Job(id) => {
                let job = self.jobs.info(&self.env, id, now)?;
                let state = match (&job.error, &job.hint) {
                    (Some(error), Some(hint)) => format!("failed: {error}. {hint}"),
                    (Some(error), None) => format!("failed: {error}"),
                    (None, _) if job.state == JobState::Done => "is done".to_owned(),
                    (None, _) if job.state == JobState::Cancelled => "was cancelled".to_owned(),
                    (None, _) => "is under way".to_owned(),
                };
                let sentence = format!(
                    "Job {id} ({}) with {} {}, after {} of {} bytes.",
                    job.kind,
                    job.remote,
                    state.trim_end_matches('.'),
                    job.acknowledged,
                    job.total
                );
                Ok(Why { sentences: vec![sentence], streams: self.flights.of_job(id, now) })
            }
            Subject::Peer(ip, port) => {
                let streams = self.flights.of_peer(ip, port, now);
                Ok(Why { sentences: self.attempts_of(ip, port), streams })
            }
        }
    }

    /// Streams that have ended of which the recorder keeps what happened, and their bytes.
    pub(super) fn recorder_bounds(&self) -> (usize, usize) {
        let management = &self.env.facts.config.management;
        let size = usize::try_from(management.recorder_size).unwrap_or(usize::MAX);
        (management.recorder_streams as usize, size)
    }

    fn why_nothing(&self) -> String {
        let management = &self.env.facts.config.management;
        match management.recorder {
            true => format!(
                "streams that ended in order are not kept, of the others the newest {} ([management] recorder_streams)",
                management.recorder_streams
            ),
            false => "the recorder is off: set `recorder = true` in [management]".to_owned(),
        }
    }

    /// Attempts of a peer, or to it, that did not become streams, as the log has them.
    fn attempts_of(&self, ip: IpAddr, port: Option<u16>) -> Vec<String> {
        let is = |remote: &str| {
            let end: Option<SocketAddr> = remote.parse().ok();
            end.is_some_and(|end| end.ip() == ip && port.is_none_or(|port| port == end.port()))
        };
        let page = self.env.log.read(0, usize::MAX, &EventFilter::default());
        let told = page.events.into_iter().filter_map(|event| match event.kind {
            EventKind::HandshakeFailed { remote, local, stage, reason, detail, hint, .. }
                if is(&remote) =>
            {
                let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                Some(format!("{remote} to {local}: no stream, {stage} {reason}: {detail}{hint}."))
            }
            EventKind::StreamRefused { remote, reason, hint, .. } if is(&remote) => {
                let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
                Some(format!("From here to {remote}: no stream: {reason}{hint}."))
            }
            _ => None,
        });
        let told: Vec<String> = told.collect();
        told[told.len().saturating_sub(ATTEMPTS)..].to_vec()
    }
}
