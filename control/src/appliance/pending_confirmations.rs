//! Confirmations to peers, which wait until the peers' data is written to files.
//!
//! ```text
//!  peer's message or Write ---> dirty bytes of a region, or an appended message ---> file writer
//!  peer's close, or its Read of 0 bytes ----------------> flush of each file
//!  our close --AnnounceClose--> worker --all its events-> flush of each file
//!  flush of each file --+--> written, and synced as configured ---> our close, or the response to the Read
//!                       +--> not written ---> the stream fails
//! ```
//!
//! Two signals tell a peer that all its data was stored: the graceful end of its stream, and with RDMAP the response to
//! a Read of 0 bytes. A stream that writes to files is closed only when the files are written, whether the peer, an
//! operator, a drain or the idle time-out closes it. The worker delays responses and closes until the files are written
//! ([`hold_confirmations`](ddp::StreamConfig::hold_confirmations)). Confirmations of one stream are sent in order, the
//! close last.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ddp::StreamId;

use crate::files::FileId;

/// Maximum time for which a confirmation waits while the file writer makes no progress. Then the stream fails.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum total wait of a confirmation.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(600);
/// Interval of the checks for progress of the file writer.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Signal that tells a peer that all its data was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Confirmation {
    /// The response to the peer's Read of 0 bytes.
    Read,
    /// The close of this end's sending direction.
    Close,
}

/// Pending confirmations, and the files that later confirmations will wait for.
#[derive(Default)]
pub(super) struct PendingConfirmations {
    /// Files written by each stream since its last confirmation.
    pub(super) written_files: HashMap<StreamId, HashSet<FileId>>,
    /// Pending confirmations of each stream, in order.
    pending: HashMap<StreamId, VecDeque<PendingConfirmation>>,
    /// All pending confirmations, oldest first: start of the wait, number, and stream.
    ages: BTreeSet<(Instant, u64, StreamId)>,
    /// Stream that waits for a flush, by the flush's tag.
    flushes: HashMap<u64, StreamId>,
    next_number: u64,
    /// The file writer's progress at the last check.
    progress: u64,
    /// Time of the last check that found progress.
    progressed_at: Option<Instant>,
    /// Time of the last check, with or without progress.
    checked_at: Option<Instant>,
}

/// Flushes of the files that a confirmation waits for.
#[derive(Default)]
pub(super) struct PendingFlushes {
    pub(super) files: HashSet<FileId>,
    /// Tags of flushes that have not been reported.
    pub(super) tags: HashSet<u64>,
}

/// A confirmation, and the files that it waits for.
struct PendingConfirmation {
    /// Unique number, by which the confirmation is found in [`PendingConfirmations::ages`].
    number: u64,
    confirmation: Confirmation,
    /// True until the worker has answered `Command::AnnounceClose` with `Event::Confirming`.
    awaits_worker: bool,
    flushes: PendingFlushes,
    /// Start of the wait.
    since: Instant,
}

impl PendingConfirmations {
    /// Adds a confirmation that waits for `flushes`; if that is `None`, for the worker's `Event::Confirming`. A close
    /// is placed last; other confirmations are placed before the close of their stream.
    pub(super) fn push(
        &mut self,
        stream: StreamId,
        confirmation: Confirmation,
        flushes: Option<PendingFlushes>,
        since: Instant,
    ) {
        let number = self.next_number;
        self.next_number += 1;
        let awaits_worker = flushes.is_none();
        let flushes = flushes.unwrap_or_default();
        self.flushes.extend(flushes.tags.iter().map(|&tag| (tag, stream)));
        self.ages.insert((since, number, stream));
        let close = self.is_close_pending(stream);
        let queue = self.pending.entry(stream).or_default();
        let at = if close { queue.len() - 1 } else { queue.len() };
        queue.insert(
            at,
            PendingConfirmation { number, confirmation, awaits_worker, flushes, since },
        );
    }

    /// Returns true if the stream's close is pending.
    pub(super) fn is_close_pending(&self, stream: StreamId) -> bool {
        let last = self.pending.get(&stream).and_then(VecDeque::back);
        last.is_some_and(|wait| wait.confirmation == Confirmation::Close)
    }

    /// Returns true if the stream's close waits for `Event::Confirming`.
    pub(super) fn close_awaits_worker(&self, stream: StreamId) -> bool {
        let last = self.pending.get(&stream).and_then(VecDeque::back);
        last.is_some_and(|wait| wait.confirmation == Confirmation::Close && wait.awaits_worker)
    }

    /// Records that the worker has reported all data: the stream's close waits for `flushes` from now on.
    pub(super) fn on_reported(&mut self, stream: StreamId, flushes: PendingFlushes) {
        let Some(wait) = self.pending.get_mut(&stream).and_then(VecDeque::back_mut) else { return };
        self.flushes.extend(flushes.tags.iter().map(|&tag| (tag, stream)));
        wait.awaits_worker = false;
        wait.flushes.tags = flushes.tags;
        wait.flushes.files.extend(flushes.files);
    }

    /// Returns the stream's first pending confirmation and the start of its wait, if this wait is over.
    pub(super) fn first_done(&self, stream: StreamId) -> Option<(Confirmation, Instant)> {
        let wait = self.pending.get(&stream)?.front()?;
        let done = wait.flushes.tags.is_empty() && !wait.awaits_worker;
        done.then_some((wait.confirmation, wait.since))
    }

    /// Makes the stream's first pending confirmation wait for `Event::Confirming` again.
    pub(super) fn await_worker(&mut self, stream: StreamId) {
        if let Some(wait) = self.pending.get_mut(&stream).and_then(VecDeque::front_mut) {
            wait.awaits_worker = true;
        }
    }

    /// Removes the stream's first pending confirmation.
    pub(super) fn pop(&mut self, stream: StreamId) {
        let Some(queue) = self.pending.get_mut(&stream) else { return };
        if let Some(wait) = queue.pop_front() {
            self.ages.remove(&(wait.since, wait.number, stream));
        }
        if queue.is_empty() {
            self.pending.remove(&stream);
        }
    }

    /// Returns the streams with data for this file that is not yet confirmed.
    pub(super) fn streams_of(&self, file: FileId) -> HashSet<StreamId> {
        let written = self.written_files.iter().filter(|(_, files)| files.contains(&file));
        let waits = |queue: &VecDeque<PendingConfirmation>| {
            queue.iter().any(|wait| wait.flushes.files.contains(&file))
        };
        let waiting = self.pending.iter().filter(|(_, queue)| waits(queue));
        written.map(|(&stream, _)| stream).chain(waiting.map(|(&stream, _)| stream)).collect()
    }

    /// Returns the stream that waits for the flush with this tag. `None` for an unknown tag.
    pub(super) fn stream_of(&self, tag: u64) -> Option<StreamId> {
        self.flushes.get(&tag).copied()
    }

    /// Ends the wait for a flush. Returns the stream that has waited for it. `None` if it no longer waits.
    pub(super) fn on_flushed(&mut self, tag: u64) -> Option<StreamId> {
        let stream = self.flushes.remove(&tag)?;
        for wait in self.pending.get_mut(&stream)? {
            wait.flushes.tags.remove(&tag);
        }
        Some(stream)
    }

    /// Returns the streams whose confirmations have waited too long. `progress`: the file writer's progress counter.
    pub(super) fn expired(&mut self, now: Instant, progress: u64) -> HashSet<StreamId> {
        self.checked_at = Some(now);
        if progress != self.progress {
            (self.progress, self.progressed_at) = (progress, Some(now));
        }
        // Deadlines have the same order as the starts of the waits.
        let expired = self.ages.iter().take_while(|&&(since, ..)| self.deadline(since) <= now);
        expired.map(|&(.., stream)| stream).collect()
    }

    /// Returns the deadline of a confirmation that has waited since `since`.
    fn deadline(&self, since: Instant) -> Instant {
        let last_progress = self.progressed_at.map_or(since, |moved| moved.max(since));
        (last_progress + STALL_TIMEOUT).min(since + MAX_WAIT)
    }

    /// Returns the time at which [`expired`](Self::expired) is due; `None` if no confirmation is pending.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.ages.first().map(|&(since, ..)| self.deadline(since))?;
        Some(self.checked_at.map_or(deadline, |looked| deadline.min(looked + CHECK_INTERVAL)))
    }

    /// Removes all confirmations of a stream that has ended or failed.
    pub(super) fn remove_stream(&mut self, stream: StreamId) {
        self.written_files.remove(&stream);
        for wait in self.pending.remove(&stream).into_iter().flatten() {
            self.ages.remove(&(wait.since, wait.number, stream));
            for tag in &wait.flushes.tags {
                self.flushes.remove(tag);
            }
        }
    }
}
