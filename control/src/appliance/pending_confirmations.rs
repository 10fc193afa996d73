//! Confirmations to peers that wait until their data is written to files.
//!
//! ```text
//!  message or Write ------> region, queue --dirty, append--> file writer
//!  peer's close, Read(0) --flush of each file--> written, synced as configured ---> our close, the answer
//!  our close --AnnounceClose-> worker --all events--> flush  \--> not written ---> the stream fails
//! ```
//!
//! Two signals tell a peer that all its data was stored: the orderly end of its stream, and with RDMAP the response to
//! a Read of 0 bytes. A stream that writes to files is closed only when the files are written. This holds for a close
//! by the peer, an operator, a drain or the idle time-out. The worker holds back responses and closes until then
//! ([`hold_confirmations`](ddp::StreamConfig::hold_confirmations)). Confirmations of one stream are sent in order, the
//! close last.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use ddp::StreamId;

use crate::files::FileId;

/// Maximum time of a confirmation without progress of the file writer. Then its stream fails.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of a confirmation in total.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(600);
/// Interval of the checks for progress of the file writer.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Signal that tells a peer that all its data was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Confirmation {
    /// The response to the peer's Read of 0 bytes.
    Read,
    /// The close of this end's direction.
    Close,
}

/// Pending confirmations, and the files that later ones will wait for.
#[derive(Default)]
pub(super) struct PendingConfirmations {
    /// Files written by each stream since its last confirmation.
    pub(super) written_files: HashMap<StreamId, HashSet<FileId>>,
    /// Pending confirmations; those of one stream are in order.
    pub(super) pending: Vec<PendingConfirmation>,
    /// The file writer's progress at the last check.
    progress: u64,
    /// Time of the last check that found progress.
    progressed_at: Option<Instant>,
    checked_at: Option<Instant>,
}

/// A confirmation, and the files that it waits for.
pub(super) struct PendingConfirmation {
    pub(super) stream: StreamId,
    pub(super) confirmation: Confirmation,
    /// True until the worker has answered `Command::AnnounceClose` with `Event::Confirming`.
    pub(super) awaits_worker: bool,
    pub(super) files: HashSet<FileId>,
    /// Tags of flushes that have not been reported.
    pub(super) tags: HashSet<u64>,
    pub(super) since: Instant,
}

impl PendingConfirmation {
    /// Returns true if this is the close of `stream`.
    pub(super) fn closes(&self, stream: StreamId) -> bool {
        self.stream == stream && self.confirmation == Confirmation::Close
    }
}

impl PendingConfirmations {
    /// Adds a confirmation. A close is placed last; others are placed before the close of their stream.
    pub(super) fn push(&mut self, wait: PendingConfirmation) {
        let close = self.pending.iter().position(|other| other.closes(wait.stream));
        self.pending.insert(close.unwrap_or(self.pending.len()), wait);
    }

    /// Returns the streams with data for this file that is not yet confirmed.
    pub(super) fn streams_of(&self, file: FileId) -> HashSet<StreamId> {
        let written = self.written_files.iter().filter(|(_, files)| files.contains(&file));
        let waiting = self.pending.iter().filter(|wait| wait.files.contains(&file));
        written.map(|(&stream, _)| stream).chain(waiting.map(|wait| wait.stream)).collect()
    }

    /// Returns the stream that waits for the flush with this tag.
    pub(super) fn stream_of(&self, tag: u64) -> Option<StreamId> {
        self.pending.iter().find(|wait| wait.tags.contains(&tag)).map(|wait| wait.stream)
    }

    /// Returns the streams whose confirmations have waited too long. `progress`: the file writer's counter.
    pub(super) fn expired(&mut self, now: Instant, progress: u64) -> HashSet<StreamId> {
        self.checked_at = Some(now);
        if progress != self.progress {
            (self.progress, self.progressed_at) = (progress, Some(now));
        }
        let expired = self.pending.iter().filter(|wait| self.deadline(wait) <= now);
        expired.map(|wait| wait.stream).collect()
    }

    fn deadline(&self, wait: &PendingConfirmation) -> Instant {
        let last_progress = self.progressed_at.map_or(wait.since, |moved| moved.max(wait.since));
        (last_progress + STALL_TIMEOUT).min(wait.since + MAX_WAIT)
    }

    /// Returns when [`expired`](Self::expired) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.pending.iter().map(|wait| self.deadline(wait)).min()?;
        Some(self.checked_at.map_or(deadline, |looked| deadline.min(looked + CHECK_INTERVAL)))
    }

    /// Removes all confirmations of a stream that has ended or failed.
    pub(super) fn remove_stream(&mut self, stream: StreamId) {
        self.written_files.remove(&stream);
        self.pending.retain(|wait| wait.stream != stream);
    }
}
