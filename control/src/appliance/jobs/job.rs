//! A job: what it moves, how far it has come.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::memory::Memory;
use ddp::{Stag, StreamId};

use super::staging::Staging;
use crate::appliance::loader::Watch;
use api::{ApiError, Counters, ErrorKind, GetSink, JobInfo, JobState, RemotePlace, Via};

/// A file on its way.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) file: PathBuf,
    pub(super) via: Via,
    pub(super) target: RemotePlace,
    pub(super) state: JobState,
    pub(super) remote: String,
    pub(super) stream: Option<StreamId>,
    pub(super) memory: Option<Memory>,
    /// The request for memory, or the writing of the file, that the job waits for.
    pub(super) watch: Option<Arc<Watch>>,
    pub(super) total: u64,
    pub(super) posted: u64,
    pub(super) acknowledged: u64,
    pub(super) outstanding: usize,
    /// Messages posted so far.
    pub(super) messages: u64,
    /// Where the peer's memory begins: its STag, and the TO of the first byte.
    pub(super) place: (Stag, u64),
    pub(super) started: Option<Instant>,
    pub(super) ended: Option<Instant>,
    pub(super) error: Option<ApiError>,
    pub(super) counters: Counters,
    pub(super) confirm: Confirm,
}

/// Whether the peer has what was put: its acknowledgement says that its TCP or SCTP has the bytes, and no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Confirm {
    /// Not all is acknowledged.
    NotYet,
    /// The answer to a Read is awaited, or the stream's end.
    Asked,
    /// There is no way to ask. An error of the peer is awaited until then.
    Until(Instant),
    /// It is confirmed, or is not.
    Known(bool),
}

/// How long an error of the peer is awaited on a stream that goes on, when all is acknowledged and nothing else can tell.
pub(super) const ERROR_WAIT: Duration = Duration::from_millis(250);

/// Which way the bytes go.
pub(super) enum Work {
    /// From a file into the peer's memory.
    Put(Staging),
    /// From the peer's memory.
    Get(Fetch),
}

/// What a job that gets has besides other jobs.
pub(super) struct Fetch {
    pub(super) sink: GetSink,
    pub(super) length: Option<u64>,
    /// The job's own name for the memory that the Reads go to.
    pub(super) stag: Option<Stag>,
    /// Offset of the first byte in that memory.
    pub(super) offset: u64,
    /// When the Reads that are not complete were posted.
    pub(super) posted: VecDeque<Instant>,
}

impl Fetch {
    /// The region that the bytes go to, if it is one.
    pub(super) fn region(&self) -> Option<&str> {
        match &self.sink {
            GetSink::Region { name, .. } => Some(name),
            GetSink::File(_) => None,
        }
    }
}

impl Job {
    /// The source has more than the place takes.
    pub(super) fn excess(&self) -> Option<ApiError> {
        match &self.work {
            Work::Put(staging) => staging.excess.clone().map(ApiError::bad_request),
            Work::Get(_) => None,
        }
    }

    /// When it stops waiting for its input.
    pub(super) fn input_until(&self) -> Option<Instant> {
        match &self.work {
            Work::Put(staging) if !self.state.is_final() => staging.input_until,
            _ => None,
        }
    }

    /// A message of so many bytes is posted.
    pub(super) fn advance(&mut self, len: u64) {
        self.posted += len;
        self.outstanding += 1;
        self.messages += 1;
    }

    pub(super) fn info(&self, id: u64, now: Instant) -> JobInfo {
        let end = self.ended.unwrap_or(now);
        let seconds = self.started.map_or(0.0, |start| end.duration_since(start).as_secs_f64());
        JobInfo {
            id,
            kind: match self.work {
                Work::Put(_) => "put".into(),
                Work::Get(_) => "get".into(),
            },
            file: self.file.clone(),
            region: match &self.work {
                Work::Get(fetch) => fetch.region().map(str::to_owned),
                Work::Put(_) => None,
            },
            remote: self.remote.clone(),
            state: self.state,
            total: self.total,
            acknowledged: self.acknowledged,
            seconds,
            error: self.error.as_ref().map(|error| error.message.clone()),
            hint: self.error.as_ref().and_then(|error| error.hint.clone()),
            refused: self.error.as_ref().is_some_and(|e| e.error == ErrorKind::PeerRefused),
            counters: self.counters.clone(),
            confirmed: match self.confirm {
                Confirm::Known(known) if self.state == JobState::Done => Some(known),
                _ => None,
            },
            bench: None,
        }
    }
}
