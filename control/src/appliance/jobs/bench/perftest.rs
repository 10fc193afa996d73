//! Benches against a perftest server: the exchange before and after the load, on a control stream.
//!
//! ```text
//!  control stream -> greeting -> data stream -> server's memory -> load, as in any run
//!      -> results, end -> LINGER_TIME -> Done
//! ```

use std::sync::Arc;
use std::time::Instant;

use api::{ApiError, BenchLoad, ErrorKind, JobState, RemotePlace};
use ddp::rdmap::WorkRequest;
use ddp::{Cookie, Source, StreamId};

use super::Benches;
use super::limits::{ANSWER_TIMEOUT, LINGER_TIME, MAX_WINDOW, RETRY_INTERVAL};
use super::run::Run;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::Env;
use crate::appliance::pending::Task;
use crate::service::perftest::client::{CYCLE_BUFFER, Client, Next, Report};

impl Benches {
    /// Continues the exchange when the newest stream, control or data, is established.
    pub(super) fn begin_perftest(&mut self, id: u64, now: Instant, out: &mut Effects) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let next = match &mut run.perftest {
            Some(client) => client.on_opened(),
            None => {
                run.streams.iter_mut().for_each(|part| part.control = true);
                run.perftest.insert(Client::default()).begin()
            }
        };
        self.advance_perftest(None, id, next, now, out);
    }

    /// Handles a Send of a peer. Returns false if the stream is not the control stream of a bench.
    pub(in crate::appliance::jobs) fn on_received(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        data: &[u8],
        now: Instant,
        out: &mut Effects,
    ) -> bool {
        let control = |run: &Run| run.streams.iter().any(|part| part.control && part.id == stream);
        let is_active = |(_, run): &(&u64, &mut Run)| run.ending.is_none() && control(run);
        let Some((&id, run)) = self.runs.iter_mut().find(is_active) else { return false };
        let Some(client) = &mut run.perftest else { return false };
        let next = client.on_received(data);
        self.advance_perftest(Some(env), id, next, now, out);
        true
    }

    /// Sends the results to the server after the load.
    pub(super) fn end_perftest(&mut self, id: u64, now: Instant, out: &mut Effects) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        run.state = JobState::Stopping;
        let (size, messages) = (run.spec.size, run.results.messages);
        let seconds = run.results.nanoseconds as f64 * 1e-9;
        let per_s = if seconds > 0.0 { messages as f64 / seconds } else { 0.0 };
        let mib_per_s = per_s * f64::from(size) / f64::from(1 << 20);
        let report = Report { size, messages, mib_per_s, millions_per_s: per_s * 1e-6 };
        let Some(client) = &mut run.perftest else { return };
        let next = client.end(report);
        self.advance_perftest(None, id, next, now, out);
    }

    /// Fails a run whose server did not answer in time.
    pub(super) fn perftest_timeout(&mut self, id: u64, out: &mut Effects) {
        let Some(run) = self.runs.get(&id) else { return };
        let error = ApiError::timeout(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()));
        let error = run.with_hint(error);
        self.fail(id, error, out);
    }

    /// Performs the next step of the exchange. `env` is given only if the step follows an answer of the server.
    fn advance_perftest(
        &mut self,
        env: Option<&mut Env>,
        id: u64,
        next: Next,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        run.deadline = None;
        match next {
            Next::Send(bytes) => {
                let Some(control) = run.streams.iter().find(|part| part.control) else { return };
                run.deadline = Some(now + ANSWER_TIMEOUT);
                out.push(Effect::Post {
                    stream: control.id,
                    request: WorkRequest::send(Source::Bytes(Arc::from(bytes)), Cookie::user(0)),
                    region: None,
                    task: Task::Bench(id, now),
                    bytes: 0,
                });
            }
            Next::Open => {
                run.retry_until = Some(now + ANSWER_TIMEOUT);
                run.open_one(id, now, out);
            }
            Next::Load(place) => {
                let Some(env) = env else { return };
                // The server's buffer has the length of a message, but at least `CYCLE_BUFFER` bytes.
                run.window = u64::from(run.spec.size.max(CYCLE_BUFFER)).min(MAX_WINDOW);
                run.spec.target = Some(RemotePlace::Tagged { stag: place.stag.0, to: place.to });
                if let Some(part) = run.streams.last_mut() {
                    part.remote = (place.stag, place.to);
                }
                run.make_memory(env, id);
            }
            Next::Done => run.deadline = Some(now + LINGER_TIME),
            Next::Failed(sentence) => {
                let sentence = format!("the peer is no perftest server: {sentence}");
                let error = run.with_hint(ApiError::peer_refused(sentence));
                self.fail(id, error, out);
            }
        }
    }
}

impl Run {
    /// Returns true while an answer of the perftest server is outstanding.
    pub(super) fn awaits_perftest(&self) -> bool {
        self.perftest.as_ref().is_some_and(Client::is_awaiting_answer)
    }

    /// If time is left, schedules a retry of a refused open and returns true. A perftest server listens again for each
    /// stream, so an open may come too early.
    pub(super) fn schedule_retry(&mut self, error: &ApiError, now: Instant) -> bool {
        let refused = error.error == ErrorKind::PeerRefused && self.ending.is_none();
        let may = refused && self.retry_until.is_some_and(|until| now < until);
        self.retry_at = may.then_some(now + RETRY_INTERVAL);
        may
    }

    /// Returns true if the perftest exchange is complete.
    pub(super) fn is_done_with_perftest(&self) -> bool {
        self.perftest.as_ref().is_some_and(Client::is_done)
    }

    /// Returns the perftest program that must run at the peer.
    pub(super) fn perftest_program(&self) -> &'static str {
        if self.spec.load == BenchLoad::Read { "ib_read_bw" } else { "ib_write_bw" }
    }
}
