//! Gets: RDMA Reads from a peer's memory into a file or a region of the appliance.
//!
//! ```text
//!  Connecting -> Staging (memory created, its STag registered on all workers) -> Running (Reads of 1 MiB)
//!      -> [Saving to the file] -> [close] -> Done
//!  any state but a final one: error -> Failed, DELETE -> Cancelled
//! ```
//!
//! The sink has its own STag, which is valid on the job's stream only. If the sink is a region, peers do not get access
//! to it.

use std::collections::VecDeque;
use std::time::Instant;

use api::{ApiError, GetSink, GetSpec, JobState, RemotePlace, UlpChoice, Via};
use dataplane::memory::Memory;
use ddp::advert::Advertised;
use ddp::rdmap::WorkRequest;
use ddp::{Access, Cookie, Stag, StreamId, TaggedOffset};

use super::job::{Fetch, Job, Work};
use super::remote_target::{Need, resolve_target};
use super::transfers::{MAX_MESSAGE, NewJob, Transfers};
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::Env;
use crate::appliance::loader::LoadTask;
use crate::appliance::pending::{Loading, SinkOwner, Task};

impl Transfers {
    /// Starts a get. Returns its job number. `peer` is the remote address of the job's stream, or the error if the
    /// stream cannot be used.
    pub(super) fn get(
        &mut self,
        env: &mut Env,
        spec: GetSpec,
        peer: Result<String, ApiError>,
        out: &mut Effects,
    ) -> Result<u64, ApiError> {
        let GetSpec { via, source, length, sink } = spec;
        let file = match &sink {
            GetSink::File(file) if !file.is_absolute() => {
                let file = file.display();
                return Err(ApiError::bad_request(format!("`{file}` is not an absolute path")));
            }
            GetSink::File(file) => {
                env.check_path(file)?;
                file.clone()
            }
            GetSink::Region { .. } => std::path::PathBuf::new(),
        };
        if length.is_none() && matches!(source, RemotePlace::Tagged { .. }) {
            return Err(ApiError::bad_request("length must be given where a STag names the place"));
        }
        if matches!(&via, Via::Connect(connect) if connect.ulp != UlpChoice::Rdmap) {
            return Err(ApiError::bad_request("RDMA Reads need ulp rdmap"));
        }
        let fetch = Fetch { sink, length, stag: None, offset: 0, posted: VecDeque::new() };
        let (target, work) = (source, Work::Get(fetch));
        let wanted = NewJob { file, via: via.clone(), target, work, peer };
        let id = self.new_job(env, wanted, out)?;
        match via {
            Via::Connect(connect) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.state = JobState::Connecting;
                }
                let (spec, task) = (Box::new(connect), Task::Job(id));
                out.push(Effect::Open { spec, task, start_key: false });
            }
            Via::Stream(stream) => {
                let (task, stream) = (Task::Job(id), StreamId(stream.0));
                out.push(Effect::Begin { task, stream });
            }
        }
        Ok(id)
    }

    /// Determines the length on the job's established stream, and requests memory for the sink.
    pub(super) fn begin_get(
        &mut self,
        env: &mut Env,
        id: u64,
        stream: StreamId,
        regions: &[Advertised],
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.stream = Some(stream);
        let Work::Get(fetch) = &mut job.work else { return };
        let rest = match &job.target {
            RemotePlace::Region { name, offset } => {
                let region = regions.iter().find(|region| region.name == *name);
                region.map_or(0, |region| region.len.saturating_sub(*offset))
            }
            RemotePlace::Tagged { .. } => 0,
        };
        let total = fetch.length.unwrap_or(rest);
        let sink = fetch.sink.clone();
        let placed = resolve_target(&job.target, total, regions, Need::Read);
        let limit = env.context.config.limits.region_memory;
        match placed {
            Err(error) => return self.fail(id, error, out),
            Ok(_) if total > limit => {
                let sentence =
                    format!("{total} bytes are more than limits.region_memory ({limit})");
                return self.fail(id, ApiError::bad_request(sentence), out);
            }
            Ok(place) => job.remote_start = place,
        }
        job.total = total;
        job.state = JobState::Staging;
        match sink {
            GetSink::File(_) => {
                let number = env.load(LoadTask::Scratch(total), Loading::Get { job: id });
                job.watch = env.watch(number).cloned();
            }
            GetSink::Region { name, offset } => {
                out.push(Effect::UseRegion { job: id, name, offset, total });
            }
        }
    }

    /// Registers the memory of the sink, or fails the job.
    pub(super) fn on_sink_made(
        &mut self,
        id: u64,
        result: Result<(Memory, u64), ApiError>,
        out: &mut Effects,
    ) {
        match result {
            Ok((memory, offset)) => self.add_sink(id, memory, offset, out),
            Err(error) => self.fail(id, error, out),
        }
    }

    fn add_sink(&mut self, id: u64, memory: Memory, offset: u64, out: &mut Effects) {
        let job = self.jobs.get_mut(&id).filter(|job| !job.state.is_finished());
        // The job ended while the memory was being created.
        let Some(job) = job else { return };
        let Some(stream) = job.stream else { return };
        job.memory = Some(memory.clone());
        if let Work::Get(fetch) = &mut job.work {
            fetch.offset = offset;
        }
        let (of, access, len) = (SinkOwner::Job(id), Access::NONE, job.total.max(1));
        out.push(Effect::AddSink { owner: of, stream, memory, offset, base_to: 0, len, access });
    }

    /// Records the STag of the sink.
    pub(super) fn on_sink_added(&mut self, id: u64, stag: Stag) {
        if let Some(Work::Get(fetch)) = self.jobs.get_mut(&id).map(|job| &mut job.work) {
            fetch.stag = Some(stag);
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
        if let Err(reason) = result {
            return self.fail(id, ApiError::internal(reason), out);
        }
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_finished()) else {
            return;
        };
        job.state = JobState::Running;
        job.started = Some(now);
        self.feed(env, id, now, out);
    }

    /// Posts the job's next Read.
    pub(super) fn post_read(&mut self, id: u64, now: Instant, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Work::Get(fetch) = &mut job.work else { return };
        let (Some(stream), Some(sink_stag)) = (job.stream, fetch.stag) else { return };
        fetch.posted.push_back(now);
        let len = (job.total - job.posted).min(MAX_MESSAGE);
        let request = WorkRequest::Read {
            sink_stag,
            sink_to: TaggedOffset(job.posted),
            source_stag: job.remote_start.0,
            source_to: TaggedOffset(job.remote_start.1.wrapping_add(job.posted)),
            len: len as u32,
            cookie: Cookie::user(0),
        };
        job.advance(len);
        let (region, task) = (Some(sink_stag), Task::Job(id));
        out.push(Effect::Post { stream, request, region, task, bytes: len });
    }

    /// If the sink is a file, starts to write it and returns true.
    pub(super) fn save_if_file(&mut self, env: &mut Env, id: u64) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        let Work::Get(Fetch { sink: GetSink::File(path), .. }) = &job.work else { return false };
        let Some(memory) = job.memory.clone() else { return false };
        let wanted = LoadTask::Save { memory, len: job.total, path: path.clone() };
        job.state = JobState::Saving;
        let number = env.load(wanted, Loading::Save { job: id });
        job.watch = env.watch(number).cloned();
        true
    }

    /// Ends the job after its file was written, or fails it if the write failed.
    pub(super) fn on_saved(&mut self, id: u64, result: Result<(), String>, out: &mut Effects) {
        let saving = |job: &&mut Job| job.state == JobState::Saving;
        if self.jobs.get_mut(&id).filter(saving).is_none() {
            return;
        }
        match result {
            Ok(()) => self.end(id, JobState::Done, None, out),
            Err(sentence) => self.fail(id, ApiError::bad_request(sentence), out),
        }
    }

    /// Releases the sink: revokes its STag. If the sink is a region, also reports its bytes as changed.
    pub(super) fn end_fetch(&mut self, id: u64, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Work::Get(fetch) = &mut job.work else { return };
        let sink = fetch.sink.clone();
        let (stag, from, len) = (fetch.stag.take(), fetch.offset, job.acknowledged);
        if let Some(stag) = stag {
            out.push(Effect::RemoveSink(stag));
        }
        if let GetSink::Region { name, .. } = sink {
            out.push(Effect::RegionWritten { region: name, offset: from, bytes: len });
        }
    }
}
