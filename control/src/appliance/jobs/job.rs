//! A put or get job and its progress.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, Counters, ErrorKind, GetSink, JobInfo, JobState, RemotePlace, Via};
use dataplane::memory::Memory;
use ddp::{Stag, StreamId};

use super::staging::Staging;
use crate::appliance::loader::Watch;

/// A put or a get.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) file: PathBuf,
    pub(super) via: Via,
    /// Location in the peer's memory: destination of a put, source of a get.
    pub(super) target: RemotePlace,
    pub(super) state: JobState,
    pub(super) remote: String,
    pub(super) stream: Option<StreamId>,
    pub(super) memory: Option<Memory>,
    /// Progress and cancellation of the memory request or file write for which the job waits.
    pub(super) watch: Option<Arc<Watch>>,
    /// Length of the transfer, bytes; for a pipe, the bytes read so far.
    pub(super) total: u64,
    /// Bytes posted so far.
    pub(super) posted: u64,
    /// Bytes of completed messages.
    pub(super) acknowledged: u64,
    /// Number of messages posted and not yet completed.
    pub(super) outstanding: usize,
    /// Number of messages posted so far.
    pub(super) messages: u64,
    /// STag and TO of the first byte in the peer's memory.
    pub(super) remote_start: (Stag, u64),
    /// Start of the transfer on the stream.
    pub(super) started: Option<Instant>,
    /// End of the transfer: all bytes are acknowledged, or the job has failed.
    pub(super) ended: Option<Instant>,
    pub(super) error: Option<ApiError>,
    pub(super) counters: Counters,
    pub(super) confirm: ConfirmState,
}

/// State of the peer's confirmation of a put's bytes. An acknowledgement shows only that the peer's TCP or SCTP has
/// received the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConfirmState {
    /// Not all bytes are acknowledged.
    NotYet,
    /// The response to a Read, or the graceful end of the stream, will confirm the bytes.
    Requested,
    /// The stream cannot confirm. An error of the peer is awaited until this time.
    AwaitingError(Instant),
    /// Final; true if the peer has confirmed.
    Settled(bool),
}

/// Wait for an error of the peer after all bytes are acknowledged, on a stream that stays open and cannot confirm.
pub(super) const ERROR_WAIT: Duration = Duration::from_millis(250);

/// Direction of the transfer.
pub(super) enum Work {
    /// From a source into the peer's memory.
    Put(Staging),
    /// From the peer's memory into a sink.
    Get(Fetch),
}

/// State of a get.
pub(super) struct Fetch {
    pub(super) sink: GetSink,
    /// Requested length, bytes; `None` for all bytes from the source to the end of its region.
    pub(super) length: Option<u64>,
    /// STag of the local memory into which the Reads write.
    pub(super) stag: Option<Stag>,
    /// Offset of the first transferred byte in the local memory.
    pub(super) offset: u64,
    /// Times at which the outstanding Reads were posted, oldest first.
    pub(super) posted: VecDeque<Instant>,
}

impl Fetch {
    /// Returns the name of the sink's region; `None` if the sink is a file.
    pub(super) fn region(&self) -> Option<&str> {
        match &self.sink {
            GetSink::Region { name, .. } => Some(name),
            GetSink::File(_) => None,
        }
    }
}

impl Job {
    /// Returns the error if the source has more bytes than the destination.
    pub(super) fn excess(&self) -> Option<ApiError> {
        match &self.work {
            Work::Put(staging) => staging.excess.clone().map(ApiError::bad_request),
            Work::Get(_) => None,
        }
    }

    /// Returns the time at which the wait for the client's input ends; `None` if the job does not wait for input.
    pub(super) fn input_until(&self) -> Option<Instant> {
        match &self.work {
            Work::Put(staging) if !self.state.is_finished() => staging.input_until,
            _ => None,
        }
    }

    /// Counts a posted message of `len` bytes.
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
                ConfirmState::Settled(known) if self.state == JobState::Done => Some(known),
                _ => None,
            },
            bench: None,
        }
    }
}
