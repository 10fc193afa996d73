//! Confirmations that wait until files have what a peer sent.
//!
//! ```text
//!  message or Write --> region, queue --dirty, append--> file writer
//!  peer's close, Read of no bytes  --flush of each file--> written, synced as configured --> our close, the answer
//!                                                     \--> not written ---------------> the stream fails
//! ```
//!
//! A peer takes two things for the confirmation that all it sent has been taken: the end in order of its stream, and with
//! RDMAP the answer to a Read of no bytes. The control thread closes a stream that reaches a file when the files are written, and
//! the worker holds the answer back (`StreamConfig::hold_confirmations`). Confirmations of one stream are given in order.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use ddp::StreamId;

use crate::files::FileId;

/// How long a confirmation waits for the disk, before its stream fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What a peer takes for a confirmation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Confirmation {
    /// The answer to its Read of no bytes.
    Read,
    /// The end of this direction, after its own.
    Close,
}

/// What waits for files.
#[derive(Default)]
pub(super) struct Stores {
    /// Files that streams have written to since their last confirmation.
    pub(super) written: HashMap<StreamId, HashSet<FileId>>,
    /// The oldest first.
    pub(super) waits: Vec<Wait>,
}

/// A confirmation that waits for files.
pub(super) struct Wait {
    pub(super) stream: StreamId,
    pub(super) confirmation: Confirmation,
    pub(super) files: HashSet<FileId>,
    /// Flushes that are not reported.
    pub(super) tags: HashSet<u64>,
    pub(super) until: Instant,
}

impl Stores {
    /// Streams whose bytes are to be in this file and are not known to be.
    pub(super) fn streams_of(&self, file: FileId) -> HashSet<StreamId> {
        let written = self.written.iter().filter(|(_, files)| files.contains(&file));
        let waiting = self.waits.iter().filter(|wait| wait.files.contains(&file));
        written.map(|(&stream, _)| stream).chain(waiting.map(|wait| wait.stream)).collect()
    }

    /// The stream that waits for this flush.
    pub(super) fn stream_of(&self, tag: u64) -> Option<StreamId> {
        self.waits.iter().find(|wait| wait.tags.contains(&tag)).map(|wait| wait.stream)
    }

    /// Streams that have waited too long.
    pub(super) fn late(&self, now: Instant) -> HashSet<StreamId> {
        self.waits.iter().filter(|wait| wait.until <= now).map(|wait| wait.stream).collect()
    }

    /// When [`late`](Self::late) has something.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waits.iter().map(|wait| wait.until).min()
    }

    /// The stream has ended or fails: nothing of it is confirmed any more.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.written.remove(&stream);
        self.waits.retain(|wait| wait.stream != stream);
    }
}
