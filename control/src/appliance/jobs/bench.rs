//! Benches: load tests in which the workers generate the load, on dedicated streams. One bench runs at a time.
//!
//! ```text
//!  Connecting -> [Staging -> Connecting ->] Running --time elapsed--> Stopping -> Done
//!  any state --error--> Stopping -> Failed
//!  any state --DELETE, expired lease--> Stopping -> Cancelled
//! ```
//!
//! Connecting opens the streams in sequence. Staging creates the local memory of writes and reads, and registers it for
//! each stream. In Running, the workers post messages without the control thread. In Stopping, the posted messages
//! complete, then the streams are closed. The run fails if Stopping lasts longer than a minute, or if one of the
//! checks, made every 5 s, finds no progress. After an error or a cancellation the streams are reset.
//!
//! The results are from the workers' reports at the end of the run. Until then the workers' counters show the progress.
//!
//! All bounds are in [`limits`]. The local memory of a run is as long as the part of the peer's region that the
//! run uses. Each stream adds one message and a histogram of about 200 KiB. The newest [`MAX_RUNS`] runs are kept.

mod connects;
mod limits;
mod perftest;
mod results;
mod run;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::{ApiError, BenchLoad, BenchPeer, BenchSpec, EventKind, JobInfo, JobState};
use dataplane::{Command, LoadReport, PostFailure, StreamInfo, Ticket};
use ddp::advert::Advertised;
use ddp::{PostError, Stag, StreamId};

use self::limits::{ANSWER_TIMEOUT, GRACE_TIME, LEASE_TIME, MAX_END_TIME, MAX_RUNS, check};
use self::results::Results;
use self::run::{Run, RunStream, load_counters};
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::Env;
use crate::appliance::loader::LoadedMemory;
use crate::appliance::pending::stream_ended_error;

/// An established stream for a run.
pub(super) struct OpenedStream<'a> {
    pub(super) stream: StreamId,
    /// Time from which the duration of the open is measured.
    pub(super) since: Instant,
    /// Regions that the peer advertised.
    pub(super) regions: &'a [Advertised],
}

/// The current run and recent ended runs, by job number.
#[derive(Default)]
pub(super) struct Benches {
    runs: BTreeMap<u64, Run>,
}

impl Benches {
    // --- requests ---

    /// Starts a run. Returns its job number.
    pub(super) fn request(
        &mut self,
        env: &mut Env,
        spec: BenchSpec,
        now: Instant,
        out: &mut Effects,
    ) -> Result<u64, ApiError> {
        if !env.context.config.management.bench {
            let sentence = "bench is off here: set `bench = true` in [management], and restart";
            return Err(ApiError::unavailable(sentence));
        }
        env.check_not_draining()?;
        check(&spec).map_err(ApiError::bad_request)?;
        if let Some((id, _)) = self.runs.iter().find(|(_, run)| !run.state.is_finished()) {
            let sentence = format!("job {id} is a bench that goes on: one runs at a time");
            return Err(ApiError::conflict(sentence));
        }
        while self.runs.len() >= MAX_RUNS {
            self.runs.pop_first();
        }
        let id = env.allocate_number();
        let again_until = (spec.peer == BenchPeer::Perftest).then_some(now + ANSWER_TIMEOUT);
        let run = Run {
            spec,
            state: JobState::Connecting,
            ending: None,
            streams: Vec::new(),
            memory: None,
            window: 0,
            lease_renewed_at: now,
            started: None,
            deadline: None,
            end_deadline: None,
            bytes_at_last_check: None,
            baseline: (0, 0),
            opening: 0,
            next_open_at: now,
            results: Results::new(),
            perftest: None,
            retry_at: None,
            retry_until: again_until,
        };
        self.runs.insert(id, run);
        self.continue_setup(env, id, now, out);
        Ok(id)
    }

    pub(super) fn renew_lease(&mut self, id: u64, now: Instant) {
        if let Some(run) = self.runs.get_mut(&id) {
            run.lease_renewed_at = now;
        }
    }

    pub(super) fn cancel(&mut self, id: u64, out: &mut Effects) {
        self.end(id, JobState::Cancelled, None, out);
    }

    pub(super) fn cancel_all(&mut self, out: &mut Effects) {
        let ids: Vec<u64> = self.runs.keys().copied().collect();
        ids.into_iter().for_each(|id| self.cancel(id, out));
    }

    // --- set-up ---

    /// Adds an established stream to its run.
    pub(super) fn begin(
        &mut self,
        env: &mut Env,
        id: u64,
        opened: OpenedStream<'_>,
        now: Instant,
        out: &mut Effects,
    ) {
        let OpenedStream { stream, since, regions } = opened;
        let run = self.runs.get_mut(&id).filter(|run| run.ending.is_none());
        // The run has ended while the stream was being opened.
        let Some(run) = run else { return out.push(Effect::Close { stream, abort: true }) };
        run.opening -= 1;
        let fresh = (Stag(0), 0);
        let open = true;
        run.streams.push(RunStream {
            id: stream,
            stag: None,
            remote: fresh,
            loaded: false,
            reported: false,
            open,
            control: false,
        });
        if run.spec.peer == BenchPeer::Perftest {
            return self.begin_perftest(id, now, out);
        }
        if run.spec.load == BenchLoad::Connect {
            run.count_open(since, now);
            if run.state == JobState::Stopping {
                run.deadline = Some(now + GRACE_TIME);
            }
            return out.push(Effect::Close { stream, abort: true });
        }
        if !run.spec.load.is_tagged() {
            return self.continue_setup(env, id, now, out);
        }
        match run.locate_target(regions) {
            Err(error) => return self.fail(id, error, out),
            Ok(remote) => {
                if let Some(part) = run.streams.last_mut() {
                    part.remote = remote;
                }
            }
        }
        if run.memory.is_some() {
            return run.add_sink(id, out);
        }
        run.make_memory(env, id);
    }

    /// Records the address at which the first stream reached the peer. Later streams use only this address.
    pub(super) fn on_reached(&mut self, id: u64, remote: SocketAddr) {
        if let Some(run) = self.runs.get_mut(&id) {
            run.spec.connect.remote = remote;
            run.spec.connect.alternatives.clear();
        }
    }

    /// Schedules a retry after a refused open, or fails the run.
    pub(super) fn on_refused(&mut self, id: u64, error: ApiError, now: Instant, out: &mut Effects) {
        if let Some(run) = self.runs.get_mut(&id)
            && run.schedule_retry(&error, now)
        {
            run.opening -= 1;
            return;
        }
        self.fail(id, error, out);
    }

    pub(super) fn on_memory(
        &mut self,
        id: u64,
        result: Result<LoadedMemory, String>,
        out: &mut Effects,
    ) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.ending.is_none()) else { return };
        match result {
            Ok(loaded) => {
                run.memory = Some(loaded.memory);
                run.add_sink(id, out);
            }
            Err(sentence) => self.fail(id, ApiError::unavailable(sentence), out),
        }
    }

    /// Records the STag of the local memory for a stream.
    pub(super) fn on_sink_added(&mut self, id: u64, stream: StreamId, stag: Stag) {
        if let Some(part) = self.runs.get_mut(&id).and_then(|run| run.stream_mut(stream)) {
            part.stag = Some(stag);
        }
    }

    pub(super) fn on_sink_ready(
        &mut self,
        env: &mut Env,
        id: u64,
        result: Result<(), String>,
        now: Instant,
        out: &mut Effects,
    ) {
        match result {
            Ok(()) => self.continue_setup(env, id, now, out),
            Err(reason) => self.fail(id, ApiError::internal(reason), out),
        }
    }

    /// Continues the set-up: opens the next stream, or starts the load on all streams.
    fn continue_setup(&mut self, env: &mut Env, id: u64, now: Instant, out: &mut Effects) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.ending.is_none()) else { return };
        let connects = run.spec.load == BenchLoad::Connect;
        if !connects && run.loaded_streams() < run.spec.streams as usize {
            run.state = JobState::Connecting;
            return run.open_one(id, now, out);
        }
        run.state = JobState::Running;
        run.started = Some(now);
        run.deadline = Some(now + Duration::from_micros(run.spec.time_us));
        run.baseline = load_counters(env);
        for slot in 0..run.streams.len() {
            let Some(load) = run.load(slot) else { continue };
            let part = &mut run.streams[slot];
            part.loaded = true;
            let stream = part.id;
            env.send_command(stream.worker(), Command::Load { stream, load, ticket: Ticket(id) });
        }
        run.next_open_at = now;
        run.open_more(id, now, out);
        out.push(Effect::Log(EventKind::BenchStarted {
            job: id,
            load: run.spec.load.as_str().into(),
            remote: run.spec.connect.remote.to_string(),
            streams: run.spec.streams,
        }));
    }

    // --- end of a run ---

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let active = self.runs.values().filter(|run| run.ending.is_none());
        active
            .flat_map(|run| {
                [
                    run.deadline,
                    run.next_open(),
                    run.retry_at,
                    Some(run.lease_renewed_at + LEASE_TIME),
                ]
            })
            .flatten()
            .min()
    }

    pub(super) fn handle_timeout(&mut self, env: &mut Env, now: Instant, out: &mut Effects) {
        let active = self.runs.iter_mut().find(|(_, run)| run.ending.is_none());
        let Some((&id, run)) = active else { return };
        if run.lease_renewed_at + LEASE_TIME <= now {
            let error = ApiError::timeout("no client has requested the job for 10 s");
            return self.end(id, JobState::Cancelled, Some(error), out);
        }
        if run.retry_at.take_if(|at| *at <= now).is_some() {
            return run.open_one(id, now, out);
        }
        if run.deadline.is_none_or(|at| at > now) {
            return run.open_more(id, now, out);
        }
        if run.awaits_perftest() {
            return self.perftest_timeout(id, out);
        }
        if run.is_done_with_perftest() {
            return self.end(id, JobState::Done, None, out);
        }
        if run.state == JobState::Running {
            run.count_unopened(now);
            run.state = JobState::Stopping;
            run.deadline = Some(now + GRACE_TIME);
            run.end_deadline = Some(now + MAX_END_TIME);
            for part in run.streams.iter().filter(|part| part.loaded && !part.reported) {
                let stream = part.id;
                env.send_command(stream.worker(), Command::StopLoad { stream });
            }
            if run.spec.load != BenchLoad::Connect {
                out.push(Effect::PollProgress { job: id });
            }
            return self.end_if_idle(id, out);
        }
        if run.spec.load == BenchLoad::Connect {
            let unopened = run.opening;
            run.results.unfinished += u64::from(unopened);
            let sentence = match unopened {
                1 => "1 stream was not established within 5 s".to_owned(),
                _ => format!("{unopened} streams were not established within 5 s"),
            };
            return self.fail(id, ApiError::timeout(sentence), out);
        }
        if run.end_deadline.is_some_and(|at| at > now) {
            run.deadline = run.end_deadline;
            return out.push(Effect::PollProgress { job: id });
        }
        let sentence = format!(
            "{} within {} s of the end: the path is too slow for {} messages of {} bytes in flight on each",
            run.incomplete(),
            MAX_END_TIME.as_secs(),
            run.spec.depth,
            run.spec.size
        );
        self.fail(id, ApiError::timeout(sentence), out);
    }

    /// Checks the progress of a run in `Stopping`. Progress extends the deadline; without progress the run fails.
    pub(super) fn on_progress(
        &mut self,
        id: u64,
        streams: &HashMap<StreamId, StreamInfo>,
        now: Instant,
        out: &mut Effects,
    ) {
        let run = self.runs.get_mut(&id).filter(|run| run.ending.is_none());
        let Some(run) = run else { return };
        // The loads are complete, and only the perftest server's answer or close is awaited, with its own deadline.
        if run.awaits_perftest() || run.is_done_with_perftest() {
            return;
        }
        let moved = run.bytes_moved(streams);
        let Some(before) = run.bytes_at_last_check.replace(moved) else { return };
        if moved > before {
            run.deadline = Some(now + GRACE_TIME).min(run.end_deadline);
            return;
        }
        let mut sentence =
            format!("{} and no byte moved for {} s", run.incomplete(), GRACE_TIME.as_secs());
        if run.spec.load == BenchLoad::Echo {
            sentence += ": does the peer send them back (service = \"echo\")?";
        }
        self.fail(id, ApiError::timeout(sentence), out);
    }

    /// Adds the report of a stream's load. After the last report, ends the run or continues the perftest exchange. If
    /// the load has failed, fails the run.
    pub(super) fn on_load_done(
        &mut self,
        id: u64,
        stream: StreamId,
        report: &LoadReport,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        let Some(part) = run.stream_mut(stream) else { return };
        part.reported = true;
        run.results.add(report);
        match &report.failure {
            None => {}
            // The stream is ending. `on_closed` will report the cause.
            Some(
                PostFailure::Flushed
                | PostFailure::NoStream
                | PostFailure::Refused(PostError::Closed),
            ) => return,
            Some(reason) => return self.fail(id, ApiError::unavailable(reason.to_string()), out),
        }
        if run.streams.iter().all(|part| part.reported || part.control) {
            match run.perftest {
                Some(_) => self.end_perftest(id, now, out),
                None => self.end(id, JobState::Done, None, out),
            }
        }
    }

    /// Handles the end of a stream. `failed`: the cause, unless the stream ended gracefully.
    pub(super) fn on_closed(
        &mut self,
        id: u64,
        stream: StreamId,
        failed: Option<&ApiError>,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if run.spec.load == BenchLoad::Connect {
            run.streams.retain(|part| part.id != stream);
            run.open_more(id, now, out);
            self.end_if_idle(id, out);
            return self.finish(id, out);
        }
        let Some(part) = run.stream_mut(stream) else { return };
        part.open = false;
        // A perftest server closes both streams when it has the results. The control stream decides the run's result.
        let expected = part.reported && failed.is_none() && !part.control;
        if expected && run.perftest.is_some() {
            return self.finish(id, out);
        }
        if failed.is_none() && run.ending.is_none() && run.is_done_with_perftest() {
            return self.end(id, JobState::Done, None, out);
        }
        match (&mut run.ending, failed) {
            (None, failed) => {
                let early =
                    || ApiError::peer_refused("closed by the peer before the time was over");
                let error = stream_ended_error(failed.cloned().unwrap_or_else(early));
                let error = run.with_hint(error);
                self.fail(id, error, out);
            }
            // The peer refused data at the end, so the data was not placed: the run fails.
            (Some((state @ JobState::Done, error)), Some(failed)) => {
                *state = JobState::Failed;
                *error = Some(stream_ended_error(failed.clone()));
                self.finish(id, out);
            }
            (Some(_), _) => self.finish(id, out),
        }
    }

    pub(super) fn fail(&mut self, id: u64, error: ApiError, out: &mut Effects) {
        self.end(id, JobState::Failed, Some(error), out);
    }

    /// Starts the end of a run. Streams are closed if `state` is `Done`, else aborted.
    fn end(&mut self, id: u64, state: JobState, error: Option<ApiError>, out: &mut Effects) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| run.ending.is_none()) else { return };
        run.ending = Some((state, error));
        run.state = JobState::Stopping;
        for part in run.streams.iter().filter(|part| part.open) {
            out.push(Effect::Close { stream: part.id, abort: state != JobState::Done });
        }
        self.finish(id, out);
    }

    /// Ends a `connect` run in `Stopping` once no stream is open or being opened.
    fn end_if_idle(&mut self, id: u64, out: &mut Effects) {
        let Some(run) = self.runs.get(&id) else { return };
        let connects = run.spec.load == BenchLoad::Connect;
        if connects && run.state == JobState::Stopping && run.is_idle() {
            self.end(id, JobState::Done, None, out);
        }
    }

    /// Completes the end of a run once all its streams have ended.
    fn finish(&mut self, id: u64, out: &mut Effects) {
        let Some(run) = self.runs.get_mut(&id).filter(|run| !run.state.is_finished()) else {
            return;
        };
        let Some((state, error)) = &run.ending else { return };
        if run.streams.iter().any(|part| part.open) {
            return;
        }
        run.state = *state;
        run.memory = None;
        let error = error.as_ref().map(|error| error.message.clone());
        out.extend(
            run.streams.iter_mut().filter_map(|part| part.stag.take()).map(Effect::RemoveSink),
        );
        out.push(Effect::Log(EventKind::JobFinished { job: id, error }));
    }

    // --- queries ---

    pub(super) fn running(&self) -> usize {
        self.runs.values().filter(|run| !run.state.is_finished()).count()
    }

    pub(super) fn infos(&self, env: &Env, now: Instant) -> impl Iterator<Item = JobInfo> {
        self.runs.iter().map(move |(&id, run)| run.info(env, id, now))
    }

    pub(super) fn info(&self, env: &Env, id: u64, now: Instant) -> Option<JobInfo> {
        Some(self.runs.get(&id)?.info(env, id, now))
    }
}
