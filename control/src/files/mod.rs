//! Writes regions and message queues to files on a separate thread.
//!
//! Workers place bytes in memory and never access a file. The control thread handles deliveries and must not wait for a
//! disk. It marks ranges as dirty or queues messages; this module's thread writes and syncs them. Dirty ranges are
//! coalesced and bounded ([`ranges`]). Queued messages are bounded by the caller, which posts a new receive buffer for
//! the peer only after [`Report::Appended`].
//!
//! Writes and syncs proceed in steps ([`job`]), counted by [`Writer::progress`]. A slow disk advances this counter, a
//! hung disk does not.
//!
//! A failed write (for example on a full disk) is reported and retried every [`RETRY_INTERVAL`]; its data is kept.
//! Closing a file tries once more and reports a failure.
//!
//! The file's name is resolved before each batch. If it refers to another file ([`open_file`]), that file is opened,
//! and a region is written to it completely.
//!
//! Messages of a queue are appended as records: length, then message ([`frame`]).

mod job;
mod open_file;
mod ranges;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use config::Fsync;
use config::directories::{Directories, OpenPurpose};
use ddp::memory::RegionMemory;

use self::job::{Job, JobOutcome};
use self::open_file::OpenFile;
use self::ranges::Ranges;

/// Interval between attempts after a failure.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Identifier of a file at the writer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// Counters of a file.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FileStats {
    /// Bytes of regions written. Overlapping deliveries that were coalesced count once.
    pub written: u64,
    /// Bytes of messages appended, including their framing.
    pub appended: u64,
    /// Successful syncs at the end of a job.
    pub syncs: u64,
    /// Failed jobs: a write, a sync or opening the file again failed.
    pub errors: u64,
}

/// Reports to the control thread.
#[derive(Debug)]
pub enum Report {
    /// The message is in the file. With [`Fsync::Message`] it is also durable: after a failed sync the report waits for
    /// a successful one.
    Appended {
        /// The tag passed to [`Writer::append`].
        tag: u64,
    },
    /// The file was synced as its policy requires.
    Synced {
        /// The synced file.
        file: FileId,
    },
    /// A job failed. The writer retries it.
    Failed {
        /// The file that could not be written or synced.
        file: FileId,
        /// Path and reason, one sentence.
        reason: String,
        /// True unless the policy is [`Fsync::Never`].
        durable: bool,
    },
    /// All data queued before [`Writer::flush`] is in the file, or writing it failed. Written data is durable unless
    /// the policy is [`Fsync::Never`] or an interval.
    Flushed {
        /// The tag passed to [`Writer::flush`].
        tag: u64,
        /// The error is a sentence with path and reason.
        result: Result<(), String>,
    },
    /// The file's name referred to another file or to no file. The file was opened again.
    Reopened {
        /// Path of the file, as configured.
        path: PathBuf,
    },
    /// A job succeeded after a failure.
    Recovered {
        /// The file that was written again.
        file: FileId,
    },
    /// The file was closed after a last attempt to write its data.
    Closed {
        /// The closed file.
        file: FileId,
        /// Final counters of the file.
        stats: FileStats,
        /// The error of the last attempt, a sentence with path and reason.
        result: Result<(), String>,
    },
}

/// Handle of the writer thread. Dropping it writes, syncs and closes all files and waits for the thread.
#[derive(Debug)]
pub struct Writer<M: RegionMemory + Send + 'static> {
    shared: Arc<Shared<M>>,
    reports: Receiver<Report>,
    /// Number of the next file.
    next: u64,
    thread: Option<JoinHandle<()>>,
}

impl<M: RegionMemory + Send + 'static> Writer<M> {
    /// Starts the thread, which calls `wake` after each report.
    pub fn start(name: &str, wake: impl Fn() + Send + 'static) -> io::Result<Writer<M>> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            progress: AtomicU64::new(0),
        });
        let (sender, reports) = channel();
        let worker = Thread { shared: Arc::clone(&shared), reports: sender, wake, buffer: vec![] };
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || worker.run())?;
        Ok(Writer { shared, reports, next: 1, thread: Some(thread) })
    }

    /// Registers an open file that receives the contents of `memory`, from offset 0.
    pub fn open_region(&mut self, path: PathBuf, file: File, memory: M, fsync: Fsync) -> FileId {
        self.open(path, file, Some(memory), fsync)
    }

    /// Opens files again if their names refer to other files, now and before each batch. Only paths below the
    /// directories `files` are opened.
    pub fn reopen_moved_files(&self, files: Arc<Directories>) {
        let mut state = self.shared.lock();
        state.directories = Some(files);
        state.files.values_mut().for_each(|slot| slot.check_name = true);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Registers an open file to which messages are appended.
    pub fn open_log(&mut self, path: PathBuf, file: File, fsync: Fsync) -> FileId {
        self.open(path, file, None, fsync)
    }

    /// Marks `len` bytes of the region, from `offset`, as dirty. Unknown files are ignored.
    pub fn mark_dirty(&self, file: FileId, offset: u64, len: u64) {
        self.update_slot(file, |slot| slot.dirty.insert(offset, len));
    }

    /// Queues `record` to be appended. [`Report::Appended`] with `tag` follows. Returns false for unknown or closing
    /// files.
    pub fn append(&self, file: FileId, record: Vec<u8>, tag: u64) -> bool {
        let mut taken = false;
        self.update_slot(file, |slot| {
            taken = !slot.closing;
            if taken {
                slot.appends.push_back((record, tag));
            }
        });
        taken
    }

    /// Requests [`Report::Flushed`] when all data queued so far is written. Returns false for unknown files.
    pub fn flush(&self, file: FileId, tag: u64) -> bool {
        let mut taken = false;
        self.update_slot(file, |slot| {
            taken = true;
            slot.flushes.push(tag);
        });
        taken
    }

    /// Tells the file thread that a stream that wrote to the file has ended. With [`Fsync::Close`] the thread then
    /// syncs the file.
    pub fn on_stream_closed(&self, file: FileId) {
        self.update_slot(file, |slot| {
            let pending = !slot.dirty.is_empty() || !slot.appends.is_empty();
            if slot.fsync == Fsync::Close && (pending || slot.writing || slot.unsynced) {
                slot.sync_by = Some(Instant::now());
            }
        });
    }

    /// Writes and syncs the remaining data, then closes the file. [`Report::Closed`] follows.
    pub fn close(&self, file: FileId) {
        self.update_slot(file, |slot| slot.closing = true);
    }

    /// Returns the number of successful writes and syncs so far, of all files.
    pub fn progress(&self) -> u64 {
        self.shared.progress.load(Ordering::Relaxed)
    }

    /// Counts a step, for tests.
    #[cfg(test)]
    pub(crate) fn step(&self) {
        self.shared.step();
    }

    /// Returns the next report, if any.
    pub fn poll_report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Returns the counters of a file; `None` once it is closed.
    pub fn stats(&self, file: FileId) -> Option<FileStats> {
        self.shared.lock().files.get(&file).map(|slot| slot.stats)
    }

    fn open(&mut self, path: PathBuf, file: File, memory: Option<M>, fsync: Fsync) -> FileId {
        let id = FileId(self.next);
        self.next += 1;
        let usage = if memory.is_some() { OpenPurpose::ReadWrite } else { OpenPurpose::Append };
        let slot = Slot {
            open_file: OpenFile { path, file: Arc::new(file), usage },
            memory,
            flushes: Vec::new(),
            check_name: false,
            fsync,
            dirty: Ranges::default(),
            appends: VecDeque::new(),
            unsynced_appends: Vec::new(),
            writing: false,
            unsynced: false,
            unsynced_bytes: 0,
            sync_by: None,
            retry_at: None,
            closing: false,
            stats: FileStats::default(),
        };
        self.shared.lock().files.insert(id, slot);
        id
    }

    fn update_slot(&self, file: FileId, change: impl FnOnce(&mut Slot<M>)) {
        if let Some(slot) = self.shared.lock().files.get_mut(&file) {
            change(slot);
            self.shared.changed.notify_one();
        }
    }
}

impl<M: RegionMemory + Send + 'static> Drop for Writer<M> {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.stop = true;
            state.files.values_mut().for_each(|slot| slot.closing = true);
        }
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the file writer thread panicked");
        }
    }
}

/// Returns the record of a message in a queue's file: length (u32, big-endian), then the message.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(4 + message.len());
    record.extend_from_slice(&(message.len() as u32).to_be_bytes());
    record.extend_from_slice(message);
    record
}

#[derive(Debug)]
struct Shared<M> {
    state: Mutex<State<M>>,
    changed: Condvar,
    progress: AtomicU64,
}

impl<M> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        // No statement that may panic leaves the state inconsistent, so a poisoned lock can be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct State<M> {
    files: BTreeMap<FileId, Slot<M>>,
    /// Directories below which moved files are opened again; `None` if moved files are not opened again.
    directories: Option<Arc<Directories>>,
    /// True once the [`Writer`] is dropped: the thread ends when all files are closed.
    stop: bool,
}

impl<M> Default for State<M> {
    fn default() -> Self {
        State { files: BTreeMap::new(), directories: None, stop: false }
    }
}

/// State of an open file between its jobs.
#[derive(Debug)]
struct Slot<M> {
    open_file: OpenFile,
    memory: Option<M>,
    fsync: Fsync,
    dirty: Ranges,
    /// Records to append, each with its tag, oldest first.
    appends: VecDeque<(Vec<u8>, u64)>,
    /// Tags of messages in the file that wait for a sync before they are reported.
    unsynced_appends: Vec<u64>,
    /// Tags of flushes that wait for the data queued so far.
    flushes: Vec<u64>,
    /// True if the name must be resolved even without bytes to write.
    check_name: bool,
    /// True while a job writes bytes.
    writing: bool,
    /// True if bytes were written since the last sync.
    unsynced: bool,
    /// Bytes written since the last sync.
    unsynced_bytes: u64,
    /// Time at which the written bytes are to be synced.
    sync_by: Option<Instant>,
    /// Earliest time of the next job after a failure.
    retry_at: Option<Instant>,
    /// True if the next job is the last, and the file is closed after it.
    closing: bool,
    stats: FileStats,
}

impl<M: RegionMemory> Slot<M> {
    /// Returns the time at which the next job for this file is due; `now` or earlier means at once. `None` if no job is
    /// due.
    fn next_work(&self, now: Instant) -> Option<Instant> {
        if self.closing {
            return Some(now);
        }
        let pending = !self.dirty.is_empty() || !self.appends.is_empty();
        let pending = pending || !self.flushes.is_empty() || self.check_name;
        let earliest = if pending { Some(now) } else { self.sync_by };
        earliest.map(|at| self.retry_at.map_or(at, |retry| retry.max(at)))
    }

    fn job(&mut self, id: FileId, directories: Option<Arc<Directories>>, now: Instant) -> Job<M> {
        self.check_name = false;
        let flushes = std::mem::take(&mut self.flushes);
        let ranges = self.dirty.take();
        let appends = std::mem::take(&mut self.appends);
        let writes = !ranges.is_empty() || !appends.is_empty();
        let sync = match self.fsync {
            Fsync::Never => false,
            Fsync::Message => writes || self.unsynced,
            Fsync::Interval(_) | Fsync::Close => {
                let unsynced = writes || self.unsynced;
                let is_requested = self.fsync == Fsync::Close && !flushes.is_empty();
                self.sync_by.is_some_and(|by| by <= now)
                    || (self.closing || is_requested) && unsynced
            }
        };
        self.writing = writes;
        if sync {
            self.sync_by = None; // set again if a sync is requested while the job runs
        }
        Job {
            id,
            open_file: self.open_file.clone(),
            directories,
            memory: self.memory.clone(),
            ranges,
            appends,
            flushes,
            syncs: self.fsync != Fsync::Never,
            unsynced: self.unsynced && self.fsync != Fsync::Never,
            unsynced_bytes: self.unsynced_bytes,
            new: self.stats.syncs == 0,
            sync,
            is_last: self.closing,
        }
    }

    /// Applies the outcome of a job: counters, unwritten data, next sync and retry.
    fn apply_outcome(&mut self, done: &mut JobOutcome, now: Instant) {
        if let Some(file) = &done.reopened {
            self.open_file.file = Arc::clone(file);
        }
        self.stats.written += done.written_bytes;
        self.stats.appended += done.appended_bytes;
        for (start, len) in done.unwritten_ranges.drain(..) {
            self.dirty.insert(start, len);
        }
        done.unwritten_appends.append(&mut self.appends);
        self.appends = std::mem::take(&mut done.unwritten_appends);
        self.unsynced_appends.append(&mut done.appended);
        if done.synced || self.fsync != Fsync::Message {
            std::mem::swap(&mut done.appended, &mut self.unsynced_appends);
        }
        let wrote = done.written_bytes + done.appended_bytes > 0;
        self.writing = false;
        self.unsynced = !done.synced && (self.unsynced || wrote);
        self.unsynced_bytes = done.unsynced_bytes;
        if done.synced {
            self.stats.syncs += 1;
        } else if wrote || done.sync_failed {
            self.sync_by = match self.fsync {
                Fsync::Never => None,
                Fsync::Close if !done.sync_failed => self.sync_by,
                Fsync::Interval(interval) if !done.sync_failed => {
                    self.sync_by.or(Some(now + interval))
                }
                _ => Some(now),
            };
        }
        self.retry_at = done.failure.as_ref().map(|_| now + RETRY_INTERVAL);
        self.stats.errors += u64::from(done.failure.is_some());
    }
}

struct Thread<M, W> {
    shared: Arc<Shared<M>>,
    reports: Sender<Report>,
    wake: W,
    buffer: Vec<u8>,
}

impl<M: RegionMemory, W: Fn()> Thread<M, W> {
    fn run(mut self) {
        let mut last = FileId(0);
        while let Some(job) = self.next_job(last) {
            last = job.id;
            let done = job.perform(&mut self.buffer, &|| self.shared.step());
            self.finish_job(done);
        }
    }

    /// Waits for a job and returns it. Files are served round-robin. Returns `None` once the writer is stopped and all
    /// files are closed.
    fn next_job(&self, after: FileId) -> Option<Job<M>> {
        let mut state = self.shared.lock();
        loop {
            if state.stop && state.files.is_empty() {
                return None;
            }
            let now = Instant::now();
            let order = |id: FileId| (id <= after, id);
            let ready = state
                .files
                .iter()
                .filter(|(_, slot)| slot.next_work(now).is_some_and(|at| at <= now))
                .map(|(id, _)| *id)
                .min_by_key(|id| order(*id));
            if let Some(id) = ready {
                let directories = state.directories.clone();
                return state.files.get_mut(&id).map(|slot| slot.job(id, directories, now));
            }
            let next = state.files.values().filter_map(|slot| slot.next_work(now)).min();
            state = match next {
                Some(at) => {
                    let wait = self.shared.changed.wait_timeout(state, at - now);
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn finish_job(&self, mut done: JobOutcome) {
        let file = done.id;
        let mut state = self.shared.lock();
        let Some(slot) = state.files.get_mut(&file) else { return };
        let (had_failed, durable) = (slot.retry_at.is_some(), slot.fsync != Fsync::Never);
        slot.apply_outcome(&mut done, Instant::now());
        if had_failed && done.failure.is_none() {
            self.report(Report::Recovered { file });
        }
        if done.reopened.is_some() {
            self.report(Report::Reopened { path: slot.open_file.path.clone() });
        }
        let flushed = done.failure.clone().map_or(Ok(()), Err);
        for tag in done.flushes.drain(..) {
            self.report(Report::Flushed { tag, result: flushed.clone() });
        }
        for tag in done.appended.drain(..) {
            self.report(Report::Appended { tag });
        }
        if done.synced {
            self.report(Report::Synced { file });
        }
        if done.is_last {
            let stats = slot.stats;
            state.files.remove(&file);
            let result = done.failure.map_or(Ok(()), Err);
            self.report(Report::Closed { file, stats, result });
        } else if let Some(reason) = done.failure {
            self.report(Report::Failed { file, reason, durable });
        }
    }

    fn report(&self, report: Report) {
        // The channel is closed only while the handle is being dropped: no reader remains.
        if self.reports.send(report).is_ok() {
            (self.wake)();
        }
    }
}
