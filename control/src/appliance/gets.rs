//! Jobs that get: a peer's octets by RDMA Reads, into a file or into a region of the appliance.
//!
//! ```text
//!  Connecting -> Staging (memory made, its STag known to all workers) -> Running (Reads of 1 MiB)
//!      -> [Saving to the file] -> [close] -> Done
//! ```
//!
//! The STag of the sink is the job's own, for its stream alone: also with a region as the sink no peer
//! can reach it otherwise.

use std::time::Instant;

use dataplane::memory::Memory;
use ddp::rdmap::WorkRequest;
use ddp::{Access, Cookie, Stag, StreamId, TaggedOffset};

use super::connect::Purpose;
use super::core::Core;
use super::jobs::{Job, MESSAGE, Need, Work, place};
use super::loader::{Loaded, Wanted};
use super::pending::{Loading, Post, SinkOf};
use super::regions::Sink;
use crate::api::{ApiError, GetSink, GetSpec, JobInfo, JobState, PutTarget, UlpChoice, Via};

/// What a job that gets has besides other jobs.
pub(super) struct Fetch {
    sink: GetSink,
    length: Option<u64>,
    /// The job's own name for the memory that the Reads go to.
    stag: Option<Stag>,
    /// Offset of the first octet in that memory.
    offset: u64,
}

impl Fetch {
    /// The region that the octets go to, if it is one.
    pub(super) fn region(&self) -> Option<&str> {
        match &self.sink {
            GetSink::Region { name, .. } => Some(name),
            GetSink::File(_) => None,
        }
    }
}

impl Core {
    pub(super) fn get(&mut self, spec: GetSpec, now: Instant) -> Result<JobInfo, ApiError> {
        let GetSpec { via, source, length, sink } = spec;
        let file = match &sink {
            GetSink::File(file) if !file.is_absolute() => {
                let file = file.display();
                return Err(ApiError::bad_request(format!("`{file}` is not an absolute path")));
            }
            GetSink::File(file) => file.clone(),
            GetSink::Region { .. } => std::path::PathBuf::new(),
        };
        if length.is_none() && matches!(source, PutTarget::Tagged { .. }) {
            return Err(ApiError::bad_request("length must be given where a STag names the place"));
        }
        if matches!(&via, Via::Connect(connect) if connect.ulp != UlpChoice::Rdmap) {
            return Err(ApiError::bad_request("RDMA Reads need ulp rdmap"));
        }
        let fetch = Fetch { sink, length, stag: None, offset: 0 };
        let id = self.new_job(file, via.clone(), source, Work::Get(fetch))?;
        match via {
            Via::Connect(connect) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.state = JobState::Connecting;
                }
                self.open(connect, Purpose::Job(id), false);
            }
            Via::Stream(stream) => self.get_connected(id, StreamId(stream.0)),
        }
        self.job_info(id, now)
    }

    /// The stream stands: how much is to be fetched is known, and memory for it is made.
    pub(super) fn get_connected(&mut self, id: u64, stream: StreamId) {
        let known = self.streams.get(&stream);
        let regions = known.map(|stream| stream.peer_regions.clone()).unwrap_or_default();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.stream = Some(stream);
        let Work::Get(fetch) = &mut job.work else { return };
        let rest = match &job.target {
            PutTarget::Region { name, offset } => {
                let region = regions.iter().find(|region| region.name == *name);
                region.map_or(0, |region| region.len.saturating_sub(*offset))
            }
            PutTarget::Tagged { .. } => 0,
        };
        let total = fetch.length.unwrap_or(rest);
        let sink = fetch.sink.clone();
        let placed = place(&job.target, total, &regions, Need::Read);
        let limit = self.env.facts.config.limits.region_memory;
        match placed {
            Err(error) => return self.fail_job(id, error),
            Ok(_) if total > limit => {
                let sentence =
                    format!("{total} octets are more than limits.region_memory ({limit})");
                return self.fail_job(id, ApiError::bad_request(sentence));
            }
            Ok((stag, to)) => (job.stag, job.to) = (stag, to),
        }
        job.total = total;
        job.state = JobState::Staging;
        match sink {
            GetSink::File(_) => {
                self.env.load(Wanted::Scratch(total), Loading::Get { job: id });
            }
            GetSink::Region { name, offset } => {
                match self.regions.sink_memory(&name, offset, total) {
                    Ok(memory) => self.add_sink(id, memory, offset),
                    Err(error) => self.fail_job(id, error),
                }
            }
        }
    }

    pub(super) fn on_sink_made(&mut self, id: u64, result: Result<Loaded, String>) {
        match result {
            Ok(loaded) => self.add_sink(id, loaded.memory, 0),
            Err(sentence) => self.fail_job(id, ApiError::unavailable(sentence)),
        }
    }

    fn add_sink(&mut self, id: u64, memory: Memory, offset: u64) {
        let pd = |stream| self.streams.get(&stream).map(|known| known.pd);
        let job = self.jobs.get_mut(&id).filter(|job| !job.state.is_final());
        // Without it, it was given up meanwhile.
        let Some(job) = job else { return };
        let Some((stream, pd)) = job.stream.and_then(|s| Some((s, pd(s)?))) else { return };
        let (of, access, len) = (SinkOf::Job(id), Access::NONE, job.total.max(1));
        let sink = Sink { of, stream, pd, memory: memory.clone(), offset, len, access };
        match self.regions.add_sink(&mut self.env, sink) {
            Ok(stag) => {
                job.memory = Some(memory);
                if let Work::Get(fetch) = &mut job.work {
                    fetch.stag = Some(stag);
                    fetch.offset = offset;
                }
            }
            Err(error) => self.fail_job(id, error),
        }
    }

    pub(super) fn on_sink_ready(&mut self, id: u64, result: Result<(), String>, now: Instant) {
        if let Err(reason) = result {
            return self.fail_job(id, ApiError::internal(reason));
        }
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_final()) else { return };
        job.state = JobState::Running;
        job.started = Some(now);
        self.feed_job(id, now);
    }

    /// Posts the next Read of a job.
    pub(super) fn post_read(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Work::Get(fetch) = &job.work else { return };
        let (Some(stream), Some(sink_stag)) = (job.stream, fetch.stag) else { return };
        let len = (job.total - job.posted).min(MESSAGE);
        let request = WorkRequest::Read {
            sink_stag,
            sink_to: TaggedOffset(job.posted),
            source_stag: job.stag,
            source_to: TaggedOffset(job.to.wrapping_add(job.posted)),
            len: len as u32,
            cookie: Cookie::of(0),
        };
        job.advance(len);
        self.post_rdmap(stream, request, Some(sink_stag), Post::Job { job: id, octets: len });
    }

    /// Every octet is there: a file is written, and waits for nobody.
    pub(super) fn save_if_file(&mut self, id: u64) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        let Work::Get(Fetch { sink: GetSink::File(path), .. }) = &job.work else { return false };
        let Some(memory) = job.memory.clone() else { return false };
        let wanted = Wanted::Save { memory, len: job.total, path: path.clone() };
        job.state = JobState::Saving;
        self.env.load(wanted, Loading::Save { job: id });
        true
    }

    pub(super) fn on_saved(&mut self, id: u64, result: Result<(), String>) {
        let saving = |job: &&mut Job| job.state == JobState::Saving;
        if self.jobs.get_mut(&id).filter(saving).is_none() {
            return;
        }
        match result {
            Ok(()) => self.end_job(id, JobState::Done, None),
            Err(sentence) => self.fail_job(id, ApiError::bad_request(sentence)),
        }
    }

    /// The job is over: its name for the memory goes, and the octets of a region are known to have changed.
    pub(super) fn end_fetch(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Work::Get(fetch) = &mut job.work else { return };
        let sink = fetch.sink.clone();
        let (stag, from, len) = (fetch.stag.take(), fetch.offset, job.acknowledged);
        if let Some(stag) = stag {
            self.regions.remove_sink(&mut self.env, stag);
        }
        if let GetSink::Region { name, .. } = sink {
            self.regions.on_fetched(&mut self.env, name, from, len);
        }
    }
}
