//! Jobs: files that are put into peers' regions.
//!
//! ```text
//!  Staging (file into memory) -> Connecting -> Running (tagged messages of 1 MiB) -> [close] -> Done
//! ```
//!
//! The file is read into memory that nobody can change, so that retransmissions are framed again from
//! it. A bounded number of messages is posted at a time; a message counts when the peer's LLP has
//! acknowledged all of it.

use std::path::PathBuf;
use std::time::Instant;

use dataplane::memory::Memory;
use dataplane::{Command, StreamStats};
use ddp::rdmap::WorkRequest;
use ddp::{Cookie, Message, Source, Stag, StreamId, TaggedOffset};

use super::connect::Purpose;
use super::core::Core;
use super::counters::stream_counters;
use super::gets::Fetch;
use super::loader::{Loaded, Wanted};
use super::pending::{Loading, Post};
use super::streams::has_ended;
use crate::advert::Advertised;
use crate::api::{
    ApiError, Counters, ErrorKind, EventKind, JobInfo, JobState, PutSpec, PutTarget, Via,
};
use crate::transport::Transport;

/// Octets of one message.
pub(super) const MESSAGE: u64 = 1 << 20;
/// Messages posted and not acknowledged.
const POSTED: usize = 16;
/// Jobs that are going on.
const MAX_RUNNING: usize = 16;
/// Jobs that are remembered, going on or not.
const MAX_JOBS: usize = 64;

/// A file on its way.
pub(super) struct Job {
    pub work: Work,
    file: PathBuf,
    via: Via,
    pub target: PutTarget,
    pub state: JobState,
    remote: String,
    pub stream: Option<StreamId>,
    pub memory: Option<Memory>,
    pub total: u64,
    pub posted: u64,
    pub acknowledged: u64,
    outstanding: usize,
    /// Messages posted so far.
    messages: u64,
    pub stag: Stag,
    pub to: u64,
    pub started: Option<Instant>,
    ended: Option<Instant>,
    error: Option<ApiError>,
    counters: Counters,
}

/// Which way the octets go.
pub(super) enum Work {
    /// From a file into the peer's memory.
    Put,
    /// From the peer's memory.
    Get(Fetch),
}

/// What must be possible at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    Write,
    Read,
    Atomic,
}

impl Core {
    pub(super) fn put(&mut self, spec: PutSpec, now: Instant) -> Result<JobInfo, ApiError> {
        let PutSpec { file, via, target } = spec;
        if !file.is_absolute() {
            let file = file.display();
            return Err(ApiError::bad_request(format!("`{file}` is not an absolute path")));
        }
        let id = self.new_job(file.clone(), via, target, Work::Put)?;
        self.env.load(Wanted::File(file), Loading::Put { job: id });
        self.job_info(id, now)
    }

    /// A job in its first state.
    pub(super) fn new_job(
        &mut self,
        file: PathBuf,
        via: Via,
        target: PutTarget,
        work: Work,
    ) -> Result<u64, ApiError> {
        if !self.env.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        let going_on = self.running_jobs();
        if going_on >= MAX_RUNNING {
            return Err(ApiError::unavailable(format!("{going_on} jobs are going on already")));
        }
        let (remote, stream) = match &via {
            Via::Connect(connect) => (connect.remote.to_string(), None),
            Via::Stream(id) => {
                let (stream, reads) = (StreamId(id.0), matches!(work, Work::Get(_)));
                (self.usable(stream, reads)?, Some(stream))
            }
        };
        while self.jobs.len() >= MAX_JOBS {
            let oldest = self.jobs.iter().find(|(_, job)| job.state.is_final());
            let Some((&id, _)) = oldest else { break };
            self.jobs.remove(&id);
        }
        let id = self.env.number();
        let job = Job {
            work,
            file,
            via,
            target,
            state: JobState::Staging,
            remote,
            stream,
            memory: None,
            total: 0,
            posted: 0,
            acknowledged: 0,
            outstanding: 0,
            messages: 0,
            stag: Stag(0),
            to: 0,
            started: None,
            ended: None,
            error: None,
            counters: Counters::new(),
        };
        self.jobs.insert(id, job);
        if let Some(stream) = stream.and_then(|stream| self.streams.get_mut(&stream)) {
            stream.job = Some(id);
        }
        Ok(id)
    }

    pub(super) fn on_staged(&mut self, id: u64, result: Result<Loaded, String>, now: Instant) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.is_final() {
            return; // cancelled meanwhile
        }
        match result {
            Err(sentence) => self.fail_job(id, ApiError::bad_request(sentence)),
            Ok(loaded) => {
                job.total = loaded.len;
                job.memory = Some(loaded.memory);
                job.state = JobState::Connecting;
                match (job.stream, job.via.clone()) {
                    (Some(stream), _) => self.job_connected(id, stream, now),
                    (None, Via::Connect(spec)) => {
                        let tagged = matches!(job.target, PutTarget::Tagged { .. });
                        // The draft's revision 0 has no private data to find a region by name with.
                        let over_tcp = spec.transport == Transport::Tcp;
                        let start_key = over_tcp && spec.revision() == 0 && tagged;
                        self.open(spec, Purpose::Job(id), start_key);
                    }
                    (None, Via::Stream(_)) => {
                        self.fail_job(id, ApiError::peer_refused("the stream has ended"));
                    }
                }
            }
        }
    }

    /// The stream stands: finds the place and begins.
    pub(super) fn job_connected(&mut self, id: u64, stream: StreamId, now: Instant) {
        let known = self.streams.get(&stream);
        let peer_regions = known.map(|stream| stream.peer_regions.as_slice()).unwrap_or_default();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.is_final() {
            self.env.tell(stream.worker(), Command::Close { stream, abort: false });
            return;
        }
        if matches!(job.work, Work::Get(_)) {
            return self.get_connected(id, stream);
        }
        match place(&job.target, job.total, peer_regions, Need::Write) {
            Ok((stag, to)) => {
                job.stream = Some(stream);
                (job.stag, job.to) = (stag, to);
                job.state = JobState::Running;
                job.started = Some(now);
                self.feed_job(id, now);
            }
            Err(error) => {
                job.stream = Some(stream);
                self.fail_job(id, error);
            }
        }
    }

    /// Posts what may be posted; at the end, closes.
    pub(super) fn feed_job(&mut self, id: u64, now: Instant) {
        loop {
            let Some(job) = self.jobs.get_mut(&id) else { return };
            let (Some(stream), Some(memory)) = (job.stream, job.memory.clone()) else { return };
            let rest = job.total - job.posted;
            // A file without octets is one message without octets.
            let complete = rest == 0 && job.messages > 0;
            if job.state != JobState::Running || job.outstanding >= POSTED || complete {
                break;
            }
            if matches!(job.work, Work::Get(_)) {
                self.post_read(id);
                continue;
            }
            let len = rest.min(MESSAGE);
            let source = Source::Region { memory, offset: job.posted, len: len as u32 };
            let to = TaggedOffset(job.to.wrapping_add(job.posted));
            let stag = job.stag;
            job.advance(len);
            let post = Post::Job { job: id, octets: len };
            if self.streams.get(&stream).is_some_and(|known| known.rdmap) {
                let request = WorkRequest::Write { stag, to, source, cookie: Cookie::of(0) };
                self.post_rdmap(stream, request, None, post);
            } else {
                let message =
                    Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::of(0) };
                self.post(stream, message, post);
            }
        }
        self.finish_if_sent(id, now);
    }

    fn finish_if_sent(&mut self, id: u64, now: Instant) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let all = job.messages > 0 && job.outstanding == 0 && job.acknowledged == job.total;
        if job.state != JobState::Running || !all || job.ended.is_some() {
            return;
        }
        job.ended = Some(now);
        let (stream, opened) = (job.stream, matches!(job.via, Via::Connect(_)));
        if matches!(job.work, Work::Get(_)) {
            // Every response has come: the peer has nothing more to say about it.
            if !self.save_if_file(id) {
                self.end_job(id, JobState::Done, None);
            }
            return;
        }
        match stream.filter(|_| opened) {
            // The peer's own end, and with it what it thought of the messages, is awaited.
            Some(stream) => self.hang_up(stream, false),
            None => self.end_job(id, JobState::Done, None),
        }
    }

    pub(super) fn job_posted(
        &mut self,
        id: u64,
        octets: u64,
        result: Result<(), ApiError>,
        now: Instant,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.outstanding -= 1;
        match result {
            Ok(()) => {
                job.acknowledged += octets;
                self.feed_job(id, now);
            }
            Err(error) => self.fail_job(id, has_ended(error)),
        }
    }

    /// The job's stream is gone; `failed` says why if not in order.
    pub(super) fn job_closed(
        &mut self,
        id: u64,
        failed: Option<ApiError>,
        stats: &StreamStats,
        now: Instant,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.counters = stream_counters(stats);
        // What is being saved needs the stream no more.
        if job.state.is_final() || job.state == JobState::Saving {
            return;
        }
        let all_sent = job.state == JobState::Running && job.ended.is_some();
        job.ended = job.ended.or(Some(now));
        match failed {
            None if all_sent => self.end_job(id, JobState::Done, None),
            failed => {
                let early = || ApiError::peer_refused("closed before everything was sent");
                self.fail_job(id, has_ended(failed.unwrap_or_else(early)));
            }
        }
    }

    /// Ends a job with an error; a stream that was opened for it is aborted.
    pub(super) fn fail_job(&mut self, id: u64, error: ApiError) {
        self.end_job(id, JobState::Failed, Some(error));
    }

    pub(super) fn end_job(&mut self, id: u64, state: JobState, error: Option<ApiError>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.state.is_final() {
            return;
        }
        self.end_fetch(id);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state = state;
        job.ended = job.ended.or_else(|| Some(Instant::now()));
        job.memory = None;
        job.error = error.clone();
        let (stream, opened) = (job.stream, matches!(job.via, Via::Connect(_)));
        match stream {
            Some(stream) if opened => self.hang_up(stream, state != JobState::Done),
            Some(stream) => {
                if let Some(known) = self.streams.get_mut(&stream) {
                    known.job = None;
                }
            }
            None => {}
        }
        let error = error.map(|error| error.message);
        self.env.log.push(EventKind::JobFinished { job: id, error });
    }

    pub(super) fn cancel_job(&mut self, id: u64, now: Instant) -> Result<JobInfo, ApiError> {
        self.job_info(id, now)?;
        self.end_job(id, JobState::Cancelled, None);
        self.job_info(id, now)
    }

    /// Jobs that are not at their end.
    pub(super) fn running_jobs(&self) -> usize {
        self.jobs.values().filter(|job| !job.state.is_final()).count()
    }

    pub(super) fn job_infos(&self, now: Instant) -> Vec<JobInfo> {
        self.jobs.iter().map(|(&id, job)| job.info(id, now)).collect()
    }

    pub(super) fn job_info(&self, id: u64, now: Instant) -> Result<JobInfo, ApiError> {
        let job = self.jobs.get(&id);
        let job = job.ok_or_else(|| ApiError::not_found(format!("there is no job {id}")))?;
        Ok(job.info(id, now))
    }
}

impl Job {
    /// A message of so many octets is posted.
    pub(super) fn advance(&mut self, len: u64) {
        self.posted += len;
        self.outstanding += 1;
        self.messages += 1;
    }

    fn info(&self, id: u64, now: Instant) -> JobInfo {
        let end = self.ended.unwrap_or(now);
        let seconds = self.started.map_or(0.0, |start| end.duration_since(start).as_secs_f64());
        JobInfo {
            id,
            kind: match self.work {
                Work::Put => "put".into(),
                Work::Get(_) => "get".into(),
            },
            file: self.file.clone(),
            region: match &self.work {
                Work::Get(fetch) => fetch.region().map(str::to_owned),
                Work::Put => None,
            },
            remote: self.remote.clone(),
            state: self.state,
            total: self.total,
            acknowledged: self.acknowledged,
            seconds,
            error: self.error.as_ref().map(|error| error.message.clone()),
            refused: self.error.as_ref().is_some_and(|e| e.error == ErrorKind::PeerRefused),
            counters: self.counters.clone(),
        }
    }
}

/// Where `total` octets go in the peer's memory.
pub(super) fn place(
    target: &PutTarget,
    total: u64,
    regions: &[Advertised],
    need: Need,
) -> Result<(Stag, u64), ApiError> {
    match target {
        PutTarget::Tagged { stag, to } => match to.checked_add(total) {
            Some(_) => Ok((Stag(*stag), *to)),
            None => Err(ApiError::bad_request("the tagged offset and the file's length wrap")),
        },
        PutTarget::Region { name, offset } => {
            let Some(region) = regions.iter().find(|region| region.name == *name) else {
                let names: Vec<&str> = regions.iter().map(|region| region.name.as_str()).collect();
                let has = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(ApiError::peer_refused(format!(
                    "the peer offers no region `{name}` (it offers: {has})"
                )));
            };
            let (open, to) = match need {
                Need::Write => (region.remote_write, "writes"),
                Need::Read => (region.remote_read, "reads"),
                Need::Atomic => (region.remote_atomic, "atomics"),
            };
            if !open {
                let sentence = format!("the peer's region `{name}` is not open to {to}");
                return Err(ApiError::peer_refused(sentence));
            }
            match offset.checked_add(total) {
                Some(end) if end <= region.len => {
                    Ok((Stag(region.stag), region.base_to.wrapping_add(*offset)))
                }
                _ => Err(ApiError::bad_request(format!(
                    "{total} octets at offset {offset} do not fit into the peer's region `{name}` \
                     of {} octets",
                    region.len
                ))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Advertised {
        Advertised {
            name: "in".into(),
            stag: 7,
            base_to: 1000,
            len: 100,
            remote_write: true,
            remote_read: false,
            remote_atomic: false,
        }
    }

    fn by_name(name: &str, offset: u64) -> PutTarget {
        PutTarget::Region { name: name.into(), offset }
    }

    #[test]
    fn a_place_is_found_by_name_and_checked() {
        let regions = [region()];
        assert_eq!(place(&by_name("in", 10), 90, &regions, Need::Write), Ok((Stag(7), 1010)));
        let error = place(&by_name("in", 11), 90, &regions, Need::Write).unwrap_err();
        assert_eq!(error.error, ErrorKind::BadRequest);
        assert!(place(&by_name("in", u64::MAX), 90, &regions, Need::Write).is_err());
        let error = place(&by_name("out", 0), 1, &regions, Need::Write).unwrap_err();
        assert_eq!(error.message, "the peer offers no region `out` (it offers: in)");
        let closed = [Advertised { remote_write: false, ..region() }];
        assert_eq!(
            place(&by_name("in", 0), 1, &closed, Need::Write).unwrap_err().error,
            ErrorKind::PeerRefused
        );
    }

    #[test]
    fn a_known_stag_is_taken_as_it_is_unless_it_wraps() {
        let target = PutTarget::Tagged { stag: 9, to: u64::MAX - 5 };
        assert_eq!(place(&target, 5, &[], Need::Write), Ok((Stag(9), u64::MAX - 5)));
        assert!(place(&target, 6, &[], Need::Write).is_err());
    }
}
