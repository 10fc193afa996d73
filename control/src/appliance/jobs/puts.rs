//! The source of a put, read into a bounded ring of memory.
//!
//! ```text
//!           fill                post               acknowledged
//!   file ---------> read -------------> outstanding ------------> slot free
//!           <------------- slots of 1 MiB, a ring ------------->
//! ```
//!
//! A slot is reused when its message is acknowledged, because retransmissions are read from the slot. Messages of a
//! stream complete in order, so the oldest slot is free first.

use std::sync::Arc;
use std::time::Instant;

use api::{ApiError, JobState, RemotePlace};
use ddp::{Source, TaggedOffset};

use super::job::{Job, Work};
use super::transfers::{MAX_MESSAGE, MAX_POSTED, Transfers};
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::Env;
use crate::appliance::loader::{LoadTask, LoadedMemory};
use crate::appliance::pending::{Loading, Task};
use crate::appliance::source::{Fill, SLOTS};

/// Maximum number of outstanding read requests for a file. Small, because all jobs share the loader.
const MAX_FILLS: u64 = 4;

impl Transfers {
    /// Requests pieces for the free slots of the memory, and posts the pieces that were read.
    pub(super) fn feed_put(&mut self, env: &mut Env, id: u64, out: &mut Effects) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.state == JobState::Running) else {
            return;
        };
        while let Some(fill) = next_fill(job) {
            env.load(LoadTask::Fill(fill), Loading::Fill { job: id });
        }
        while let Some(write) = next_write(id, job) {
            out.push(write);
        }
    }

    /// Handles a piece that was read, or a failed read.
    pub(super) fn on_filled(
        &mut self,
        env: &mut Env,
        id: u64,
        result: Result<LoadedMemory, String>,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_finished()) else {
            return;
        };
        let Work::Put(staging) = &mut job.work else { return };
        staging.filling -= 1;
        let pipe = staging.source.as_ref().is_some_and(|source| source.is_pipe());
        match result {
            Err(sentence) => return self.fail(id, ApiError::bad_request(sentence), out),
            Ok(loaded) if pipe && loaded.len > staging.capacity - job.total => {
                // The pipe has more bytes than the target has room for. The pieces read before this one are sent, then
                // the job fails.
                let sentence = full_error(&job.target, job.total, staging.capacity);
                if job.total == 0 {
                    return self.fail(id, ApiError::bad_request(sentence), out);
                }
                staging.excess = Some(sentence);
                staging.ended = true;
            }
            Ok(loaded) if pipe && loaded.len == 0 => {
                staging.ended = true;
                if job.total == 0 {
                    staging.ready.push_back((0, 0));
                }
            }
            Ok(loaded) => {
                // Pieces are read in the order in which they were requested.
                let slot = (staging.fills - staging.filling - 1) % SLOTS;
                staging.ready.push_back((slot * MAX_MESSAGE, loaded.len));
                if pipe {
                    staging.requested += loaded.len;
                    job.total += loaded.len;
                }
            }
        }
        self.feed(env, id, now, out);
    }
}

/// Returns the request for the next piece, if a slot is free and more must be read.
fn next_fill(job: &mut Job) -> Option<Fill> {
    let acknowledged = job.messages - job.outstanding as u64;
    let (total, memory) = (job.total, job.memory.clone()?);
    let Work::Put(staging) = &mut job.work else { return None };
    let source = Arc::clone(staging.source.as_ref()?);
    let most = if source.is_pipe() { 1 } else { MAX_FILLS };
    if staging.ended || staging.filling >= most || staging.fills - acknowledged >= SLOTS {
        return None;
    }
    let (at, from) = (staging.fills % SLOTS * MAX_MESSAGE, staging.requested);
    let len = if source.is_pipe() {
        // If the region is full, reading one more byte shows whether the pipe has ended.
        (staging.capacity - total).clamp(1, MAX_MESSAGE)
    } else {
        let len = (total - staging.requested).min(MAX_MESSAGE);
        staging.requested += len;
        staging.ended = staging.requested == total;
        if len == 0 {
            // An empty file is one message of 0 bytes.
            staging.ready.push_back((0, 0));
            return None;
        }
        len
    };
    staging.fills += 1;
    staging.filling += 1;
    Some(Fill { source, memory, memory_offset: at, file_offset: from, len })
}

/// Returns the write of the next message of job `id`, if one may be posted.
fn next_write(id: u64, job: &mut Job) -> Option<Effect> {
    if job.outstanding >= MAX_POSTED {
        return None;
    }
    let (stream, memory) = (job.stream?, job.memory.clone()?);
    let Work::Put(staging) = &mut job.work else { return None };
    let (at, len) = staging.ready.pop_front()?;
    let source = Source::Region { memory, offset: at, len: len as u32 };
    let to = TaggedOffset(job.remote_start.1.wrapping_add(job.posted));
    let (stag, task) = (job.remote_start.0, Task::Job(id));
    job.advance(len);
    Some(Effect::Write { stream, stag, to, source, task, bytes: len })
}

fn full_error(target: &RemotePlace, done: u64, capacity: u64) -> String {
    let place = match target {
        RemotePlace::Region { name, offset } => {
            format!("the peer's region `{name}` has {capacity} bytes from offset {offset} on")
        }
        RemotePlace::Tagged { stag, to } => {
            format!("STag {stag:#010x} ends {capacity} bytes after {to}")
        }
    };
    format!("{place}, and the pipe has more than the {done} bytes that it took: the region is full")
}
