//! Confirmations that wait until files have the peers' data.
//!
//! ```text
//!  message or Write ------> region, queue --dirty, append--> file writer
//!  peer's close, Read(0) --flush of each file--> written, synced as configured ---> our close, the answer
//!  our close ----Confirming--> worker --all events--> flush  \--> not written ---> the stream fails
//! ```
//!
//! Two signals confirm to a peer that all its data was stored: the orderly end of its stream, and
//! with RDMAP the response to a Read of no bytes. The control thread closes a stream that writes to
//! a file when the files are written, whoever closes first: the peer, an operator, a drain or the
//! idle time-out. The worker holds back responses and closes
//! ([`hold_confirmations`](ddp::StreamConfig::hold_confirmations)). Confirmations of one stream are
//! given in order, the close last.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use ddp::StreamId;

use crate::files::FileId;

/// Longest wait of a confirmation without any progress of the file writer, before its stream fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait of a confirmation.
pub(super) const LIMIT: Duration = Duration::from_secs(600);
/// Interval between checks of the file writer's progress.
const LOOK: Duration = Duration::from_secs(1);

/// A confirmation to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Confirmation {
    /// The response to the peer's Read of no bytes.
    Read,
    /// The close of this end's direction.
    Close,
}

/// Waiting confirmations, and the files that later ones will wait for.
#[derive(Default)]
pub(super) struct Stores {
    /// Files that streams have written to since their last confirmation.
    pub(super) written: HashMap<StreamId, HashSet<FileId>>,
    /// Waiting confirmations; those of one stream are in order.
    pub(super) waits: Vec<Wait>,
    /// The file writer's progress at the last check.
    progress: u64,
    /// Last check that found progress.
    moved: Option<Instant>,
    looked: Option<Instant>,
}

/// A confirmation that waits for files.
pub(super) struct Wait {
    pub(super) stream: StreamId,
    pub(super) confirmation: Confirmation,
    /// True while the worker has not yet answered `Command::Confirming`.
    pub(super) asked: bool,
    pub(super) files: HashSet<FileId>,
    /// Tags of flushes that are not yet reported.
    pub(super) tags: HashSet<u64>,
    pub(super) since: Instant,
}

impl Wait {
    /// Returns true for the close of this stream.
    pub(super) fn closes(&self, stream: StreamId) -> bool {
        self.stream == stream && self.confirmation == Confirmation::Close
    }
}

impl Stores {
    /// Adds a confirmation. A close is last; any other precedes the close of its stream.
    pub(super) fn push(&mut self, wait: Wait) {
        let close = self.waits.iter().position(|other| other.closes(wait.stream));
        self.waits.insert(close.unwrap_or(self.waits.len()), wait);
    }

    /// Returns the streams whose data is not yet confirmed to be in this file.
    pub(super) fn streams_of(&self, file: FileId) -> HashSet<StreamId> {
        let written = self.written.iter().filter(|(_, files)| files.contains(&file));
        let waiting = self.waits.iter().filter(|wait| wait.files.contains(&file));
        written.map(|(&stream, _)| stream).chain(waiting.map(|wait| wait.stream)).collect()
    }

    /// Returns the stream that waits for this flush.
    pub(super) fn stream_of(&self, tag: u64) -> Option<StreamId> {
        self.waits.iter().find(|wait| wait.tags.contains(&tag)).map(|wait| wait.stream)
    }

    /// Returns the streams that have waited too long. `progress`: the file writer's.
    pub(super) fn late(&mut self, now: Instant, progress: u64) -> HashSet<StreamId> {
        self.looked = Some(now);
        if progress != self.progress {
            (self.progress, self.moved) = (progress, Some(now));
        }
        let late = self.waits.iter().filter(|wait| self.deadline(wait) <= now);
        late.map(|wait| wait.stream).collect()
    }

    fn deadline(&self, wait: &Wait) -> Instant {
        let moved = self.moved.map_or(wait.since, |moved| moved.max(wait.since));
        (moved + PATIENCE).min(wait.since + LIMIT)
    }

    /// Returns when [`late`](Self::late) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.waits.iter().map(|wait| self.deadline(wait)).min()?;
        Some(self.looked.map_or(deadline, |looked| deadline.min(looked + LOOK)))
    }

    /// Drops all confirmations of a stream that has ended or failed.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.written.remove(&stream);
        self.waits.retain(|wait| wait.stream != stream);
    }
}
