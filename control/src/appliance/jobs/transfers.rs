//! Put and get jobs: a put writes a source into a peer's memory, a get reads from a peer's memory into a sink.
//!
//! ```text
//!  put: Staging (file opened) -> Connecting -> Running (tagged messages of 1 MiB) -> [close] -> Done
//!  get: see `gets`
//!  any state but a final one: error -> Failed, DELETE -> Cancelled
//! ```
//!
//! The destination is checked before the source is read. A bounded part of the source is in memory
//! ([`puts`](super::puts)), unchanged while its messages may be retransmitted. A bounded number of messages is
//! outstanding. A message is considered transferred when the peer's LLP has acknowledged all of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::{
    ApiError, Counters, ErrorKind, EventKind, Input, JobInfo, JobState, PutSpec, RemotePlace, Via,
};
use base::histogram::Durations;
use config::Transport;
use dataplane::StreamStats;
use ddp::advert::Advertised;
use ddp::{Stag, StreamId};

use super::job::{ConfirmState, ERROR_WAIT, Job, Work};
use super::remote_target::{Need, resolve_target};
use super::staging::{Staging, target_capacity};
use crate::appliance::counters::stream_counters;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::Env;
use crate::appliance::loader::{LoadTask, LoadedMemory};
use crate::appliance::pending::{Loading, Task, stream_ended_error};
use crate::appliance::source::PIECE;

/// Maximum length of a message, bytes.
pub(in crate::appliance) const MAX_MESSAGE: u64 = PIECE;
/// Maximum number of unacknowledged messages of a job.
pub(super) const MAX_POSTED: usize = 16;
/// Time-out for the client to begin the input of a put without a file.
pub(in crate::appliance) const INPUT_WAIT: Duration = Duration::from_secs(30);
/// Maximum number of jobs in progress.
const MAX_RUNNING: usize = 16;
/// Maximum number of stored jobs, in progress or ended. A client that starts many jobs and queries them late still
/// finds their results.
const MAX_JOBS: usize = 512;

/// Jobs in progress and recent ended jobs.
#[derive(Default)]
pub(super) struct Transfers {
    pub(super) jobs: BTreeMap<u64, Job>,
    /// Times from posting a Read to its completion, nanoseconds.
    pub(super) reads: Durations,
}

/// Parameters of a new job.
pub(super) struct NewJob {
    pub(super) file: PathBuf,
    pub(super) via: Via,
    pub(super) target: RemotePlace,
    pub(super) work: Work,
    /// Remote address of the job's stream, or the error if the stream cannot be used.
    pub(super) peer: Result<String, ApiError>,
}

impl Transfers {
    /// Starts a put. Returns its job number. `peer` is the remote address of the job's stream, or the error if the
    /// stream cannot be used.
    pub(super) fn put(
        &mut self,
        env: &mut Env,
        spec: PutSpec,
        peer: Result<String, ApiError>,
        now: Instant,
        out: &mut Effects,
    ) -> Result<u64, ApiError> {
        let PutSpec { file, via, target } = spec;
        if let Some(file) = &file {
            if !file.is_absolute() {
                let file = file.display();
                return Err(ApiError::bad_request(format!("`{file}` is not an absolute path")));
            }
            env.check_path(file)?;
        }
        let input_until = file.is_none().then(|| now + INPUT_WAIT);
        let work = Work::Put(Staging { input_until, ..Staging::default() });
        let shown = file.clone().unwrap_or_default();
        let id = self.new_job(env, NewJob { file: shown, via, target, work, peer }, out)?;
        if let Some(file) = file {
            env.load(LoadTask::File(file), Loading::Put { job: id });
        }
        Ok(id)
    }

    /// Records the address at which the job's stream reached the peer.
    pub(super) fn on_reached(&mut self, id: u64, remote: SocketAddr) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.remote = remote.to_string();
        }
    }

    /// Passes the client's input to a put without a file.
    ///
    /// # Errors
    /// The job does not exist, or does not wait for input.
    pub(super) fn take_input(
        &mut self,
        env: &mut Env,
        id: u64,
        input: Input,
    ) -> Result<(), ApiError> {
        let job = self.jobs.get_mut(&id);
        let job = job.ok_or_else(|| ApiError::not_found(format!("there is no put {id}")))?;
        let wait = match &mut job.work {
            Work::Put(staging) if !job.state.is_finished() => staging.input_until.take(),
            _ => None,
        };
        if wait.is_none() {
            let message =
                format!("job {id} waits for no input: it has a file or its input, or has ended");
            return Err(ApiError::conflict(message));
        }
        env.load(LoadTask::Input(input), Loading::Put { job: id });
        Ok(())
    }

    /// Creates a job in its initial state, and reserves its stream if that exists already. Returns the job number.
    pub(super) fn new_job(
        &mut self,
        env: &mut Env,
        wanted: NewJob,
        out: &mut Effects,
    ) -> Result<u64, ApiError> {
        let NewJob { file, via, target, work, peer } = wanted;
        env.check_not_draining()?;
        let going_on = self.running();
        if going_on >= MAX_RUNNING {
            return Err(ApiError::unavailable(format!("{going_on} jobs are going on already")));
        }
        let remote = peer?;
        let stream = match &via {
            Via::Connect(_) => None,
            Via::Stream(id) => Some(StreamId(id.0)),
        };
        while self.jobs.len() >= MAX_JOBS {
            let oldest = self.jobs.iter().find(|(_, job)| job.state.is_finished());
            let Some((&id, _)) = oldest else { break };
            self.jobs.remove(&id);
        }
        let id = env.allocate_number();
        let job = Job {
            work,
            file,
            via,
            target,
            state: JobState::Staging,
            remote,
            stream,
            memory: None,
            watch: None,
            total: 0,
            posted: 0,
            acknowledged: 0,
            outstanding: 0,
            messages: 0,
            remote_start: (Stag(0), 0),
            started: None,
            ended: None,
            error: None,
            counters: Counters::new(),
            confirm: ConfirmState::NotYet,
        };
        self.jobs.insert(id, job);
        if let Some(stream) = stream {
            out.push(Effect::Claim { stream, job: id });
        }
        Ok(id)
    }

    /// Handles the loader's result for a put: the open source with the memory for its slots (see
    /// [`puts`](super::puts)), or an error. Then the job uses its stream, or opens one.
    pub(super) fn on_staged(
        &mut self,
        id: u64,
        result: Result<LoadedMemory, String>,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.is_finished() {
            return; // cancelled meanwhile
        }
        match result {
            Err(sentence) => self.fail(id, ApiError::bad_request(sentence), out),
            Ok(loaded) => {
                job.total = loaded.len;
                if let Work::Put(staging) = &mut job.work {
                    staging.set_source(loaded.source);
                }
                job.memory = Some(loaded.memory);
                job.state = JobState::Connecting;
                match (job.stream, job.via.clone()) {
                    (Some(stream), _) => out.push(Effect::Begin { task: Task::Job(id), stream }),
                    (None, Via::Connect(spec)) => {
                        let tagged = matches!(job.target, RemotePlace::Tagged { .. });
                        // Start Keys (revision 0 as in the first draft) carry no private data, so a region cannot be
                        // found by name.
                        let over_tcp = spec.transport == Transport::Tcp;
                        let start_key = over_tcp && spec.revision() == 0 && tagged;
                        let (spec, task) = (Box::new(spec), Task::Job(id));
                        out.push(Effect::Open { spec, task, start_key });
                    }
                    (None, Via::Stream(_)) => {
                        self.fail(id, ApiError::peer_refused("the stream has ended"), out);
                    }
                }
            }
        }
    }

    /// Resolves the destination and starts the transfer on the established stream.
    pub(super) fn begin(
        &mut self,
        env: &mut Env,
        id: u64,
        stream: StreamId,
        peer_regions: &[Advertised],
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.is_finished() {
            return out.push(Effect::Close { stream, abort: false });
        }
        if matches!(job.work, Work::Get(_)) {
            return self.begin_get(env, id, stream, peer_regions, out);
        }
        match resolve_target(&job.target, job.total, peer_regions, Need::Write) {
            Ok(place) => {
                job.stream = Some(stream);
                job.remote_start = place;
                if let Work::Put(staging) = &mut job.work {
                    staging.set_capacity(target_capacity(&job.target, peer_regions));
                }
                job.state = JobState::Running;
                job.started = Some(now);
                self.feed(env, id, now, out);
            }
            Err(error) => {
                job.stream = Some(stream);
                self.fail(id, error, out);
            }
        }
    }

    /// Posts messages up to the limits. Ends the transfer once all bytes are acknowledged.
    pub(super) fn feed(&mut self, env: &mut Env, id: u64, now: Instant, out: &mut Effects) {
        loop {
            let Some(job) = self.jobs.get_mut(&id) else { return };
            if job.stream.is_none() || job.memory.is_none() {
                return;
            }
            if matches!(job.work, Work::Put(_)) {
                self.feed_put(env, id, out);
                break;
            }
            // An empty get is one Read of 0 bytes.
            let complete = job.total == job.posted && job.messages > 0;
            if job.state != JobState::Running || job.outstanding >= MAX_POSTED || complete {
                break;
            }
            self.post_read(id, now, out);
        }
        self.finish_if_sent(env, id, now, out);
    }

    fn finish_if_sent(&mut self, env: &mut Env, id: u64, now: Instant, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let all = job.messages > 0 && job.outstanding == 0 && job.acknowledged == job.total;
        let all = all && !matches!(&job.work, Work::Put(staging) if !staging.is_done());
        if job.state != JobState::Running || !all || job.ended.is_some() {
            return;
        }
        job.ended = Some(now);
        if matches!(job.work, Work::Get(_)) {
            // All responses have arrived, so no later error of the peer concerns this job.
            if !self.save_if_file(env, id) {
                self.end(id, JobState::Done, None, out);
            }
            return;
        }
        let Some(stream) = job.stream else { return };
        job.confirm = ConfirmState::Requested;
        out.push(Effect::Confirm { stream, task: Task::Job(id) });
    }

    /// Handles a job whose stream cannot request a confirmation. A stream that was opened for the job is closed; its
    /// graceful end confirms the bytes. On any other stream an error of the peer is awaited for `ERROR_WAIT`.
    pub(super) fn on_unconfirmable(&mut self, id: u64, now: Instant, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_finished()) else {
            return;
        };
        match (job.stream, &job.via) {
            (Some(stream), Via::Connect(_)) => out.push(Effect::Close { stream, abort: false }),
            _ => job.confirm = ConfirmState::AwaitingError(now + ERROR_WAIT),
        }
    }

    /// Ends a put whose confirmation is decided. `is_confirmed`: true if the peer has confirmed the bytes.
    fn on_confirmed(&mut self, id: u64, is_confirmed: bool, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.confirm = ConfirmState::Settled(is_confirmed);
        match job.excess() {
            Some(error) => self.fail(id, error, out),
            None => self.end(id, JobState::Done, None, out),
        }
    }

    /// Returns the time at which the next wait, for a peer's error or for a client's input, ends. `None` if there is no
    /// wait.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let waits = |job: &Job| match job.confirm {
            _ if job.state.is_finished() => None,
            ConfirmState::AwaitingError(at) => Some(at),
            _ => job.input_until(),
        };
        self.jobs.values().filter_map(waits).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Effects) {
        let waited = |job: &Job| {
            !job.state.is_finished()
                && matches!(job.confirm, ConfirmState::AwaitingError(at) if at <= now)
        };
        let all: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| waited(job)).map(|(&id, _)| id).collect();
        for id in all {
            self.on_confirmed(id, false, out);
        }
        let without_input = |job: &Job| job.input_until().is_some_and(|at| at <= now);
        let all: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| without_input(job)).map(|(&id, _)| id).collect();
        for id in all {
            let (seconds, path) = (INPUT_WAIT.as_secs(), format!("POST /v1/jobs/{id}/input"));
            let message = format!("no input came within {seconds} s: {path} sends it");
            self.fail(id, ApiError::timeout(message), out);
        }
    }

    /// Handles the acknowledgement, confirmation or failure of a message.
    pub(super) fn on_posted(
        &mut self,
        env: &mut Env,
        id: u64,
        bytes: u64,
        result: Result<(), ApiError>,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let is_requested = job.confirm == ConfirmState::Requested;
        job.outstanding -= usize::from(!is_requested);
        match result {
            Ok(()) if is_requested => {
                job.confirm = ConfirmState::Settled(true);
                match (job.stream, &job.via) {
                    (Some(stream), Via::Connect(_)) => {
                        out.push(Effect::Close { stream, abort: false });
                    }
                    _ => self.on_confirmed(id, true, out),
                }
            }
            Ok(()) => {
                job.acknowledged += bytes;
                if let Work::Get(fetch) = &mut job.work
                    && let Some(posted) = fetch.posted.pop_front()
                {
                    self.reads.record(now.duration_since(posted).as_nanos() as u64);
                }
                self.feed(env, id, now, out);
            }
            Err(error) => self.fail(id, stream_ended_error(error), out),
        }
    }

    /// Handles the end of the job's stream. `failed`: the cause, unless the stream ended gracefully.
    pub(super) fn on_closed(
        &mut self,
        id: u64,
        failed: Option<ApiError>,
        stats: &StreamStats,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.counters = stream_counters(stats);
        // A job in `Saving` writes its file, which does not need the stream.
        if job.state.is_finished() || job.state == JobState::Saving {
            return;
        }
        let all_sent = job.state == JobState::Running && job.ended.is_some();
        job.ended = job.ended.or(Some(now));
        match failed {
            // A confirmation remains valid if the stream fails later.
            _ if job.confirm == ConfirmState::Settled(true) => self.on_confirmed(id, true, out),
            None if all_sent => self.on_confirmed(id, true, out),
            // All bytes were acknowledged before the peer stopped responding, so the job succeeds without a
            // confirmation.
            Some(error) if all_sent && error.error == ErrorKind::Timeout => {
                self.on_confirmed(id, false, out);
            }
            failed => {
                let early = || ApiError::peer_refused("closed before everything was sent");
                self.fail(id, stream_ended_error(failed.unwrap_or_else(early)), out);
            }
        }
    }

    /// Ends a job with an error. A stream that was opened for the job is aborted, unless the peer has confirmed the
    /// bytes.
    pub(super) fn fail(&mut self, id: u64, error: ApiError, out: &mut Effects) {
        self.end(id, JobState::Failed, Some(error), out);
    }

    pub(super) fn end(
        &mut self,
        id: u64,
        state: JobState,
        error: Option<ApiError>,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.is_finished() {
            return;
        }
        self.end_fetch(id, out);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state = state;
        job.ended = job.ended.or_else(|| Some(Instant::now()));
        job.memory = None;
        if let Some(watch) = job.watch.take() {
            watch.cancel();
        }
        if let Work::Put(staging) = &mut job.work {
            staging.close();
        }
        job.error = error.clone();
        let (stream, opened) = (job.stream, matches!(job.via, Via::Connect(_)));
        match stream {
            Some(stream) if opened => {
                let abort = state != JobState::Done && job.confirm != ConfirmState::Settled(true);
                out.push(Effect::Close { stream, abort });
            }
            Some(stream) => out.push(Effect::Release { stream }),
            None => {}
        }
        let error = error.map(|error| error.message);
        out.push(Effect::Log(EventKind::JobFinished { job: id, error }));
    }

    pub(super) fn cancel(&mut self, id: u64, out: &mut Effects) {
        self.end(id, JobState::Cancelled, None, out);
    }

    /// Returns true while the job is in progress.
    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.jobs.get(&id).is_some_and(|job| !job.state.is_finished())
    }

    /// Fails a job whose time limit has expired. While its stream is being opened, the open's own time-out applies.
    pub(super) fn expire(&mut self, id: u64, time_limit: &str, out: &mut Effects) {
        let Some(job) = self.jobs.get(&id) else { return };
        let sentence = match (job.state, &job.work) {
            (JobState::Connecting, _) => return,
            (JobState::Staging, _) => {
                format!("not done within {time_limit}: the file is not open yet")
            }
            (_, Work::Get(_)) if job.acknowledged < job.total || job.messages == 0 => {
                format!("not done within {time_limit}: the peer has not answered all Reads")
            }
            (_, Work::Get(_)) => format!("not done within {time_limit}: the file is being written"),
            (_, Work::Put(_)) if job.outstanding > 0 => {
                format!("not done within {time_limit}: the peer has not acknowledged all bytes")
            }
            (_, Work::Put(_)) if job.ended.is_none() => {
                format!("not done within {time_limit}: the file's bytes have not all been read")
            }
            (_, Work::Put(_)) => {
                format!("not done within {time_limit}: the peer has not confirmed the bytes")
            }
        };
        self.fail(id, ApiError::timeout(sentence), out);
    }

    /// Returns the number of jobs in progress.
    pub(super) fn running(&self) -> usize {
        self.jobs.values().filter(|job| !job.state.is_finished()).count()
    }

    pub(super) fn infos(&self, now: Instant) -> Vec<JobInfo> {
        self.jobs.iter().map(|(&id, job)| job.info(id, now)).collect()
    }

    pub(super) fn info(&self, id: u64, now: Instant) -> Option<JobInfo> {
        Some(self.jobs.get(&id)?.info(id, now))
    }
}
