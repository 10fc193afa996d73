//! A batch of writes to one file. Regions are written in chunks of at most [`CHUNK`] bytes. Unless the policy is never
//! to sync, a sync follows every [`SYNC_STEP`] bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use config::directories::Directories;
use ddp::memory::RegionMemory;

use super::FileId;
use super::open_file::OpenFile;

/// Maximum number of bytes copied from a region and written at once.
const CHUNK: usize = 1 << 20;
/// Bytes written between two syncs, unless the policy is never to sync. A sync of more bytes would take long without
/// visible progress.
const SYNC_STEP: u64 = 32 << 20;

/// A batch of work for one file.
pub(super) struct Job<M> {
    pub(super) id: FileId,
    pub(super) open_file: OpenFile,
    /// Directories below which a moved file is opened again. `None`: it is not opened again.
    pub(super) directories: Option<Arc<Directories>>,
    /// Memory of the region. `None` for a file of messages.
    pub(super) memory: Option<M>,
    /// Ranges of the region to write: offset and length, bytes.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Records to append, each with its tag, oldest first.
    pub(super) appends: VecDeque<(Vec<u8>, u64)>,
    /// Tags of the flushes that this job completes.
    pub(super) flushes: Vec<u64>,
    /// True unless the policy is never to sync.
    pub(super) syncs: bool,
    /// True if the policy requires syncs and the open file has bytes that are not synced.
    pub(super) unsynced: bool,
    /// Bytes written by earlier jobs since the last sync.
    pub(super) unsynced_bytes: u64,
    /// True until the first sync: the file's name may not be durable yet.
    pub(super) new: bool,
    /// True if the job ends with a sync.
    pub(super) sync: bool,
    /// True if the file is closed after the job.
    pub(super) is_last: bool,
}

/// Outcome of a job, with the ranges and messages that were not written.
pub(super) struct JobOutcome {
    pub(super) id: FileId,
    pub(super) unwritten_ranges: Vec<(u64, u64)>,
    pub(super) unwritten_appends: VecDeque<(Vec<u8>, u64)>,
    /// Tags of the appended records.
    pub(super) appended: Vec<u64>,
    /// Tags of the flushes that this job completes.
    pub(super) flushes: Vec<u64>,
    /// The new file, if the job opened the file again.
    pub(super) reopened: Option<Arc<File>>,
    /// Bytes of the ranges that were written completely.
    pub(super) written_bytes: u64,
    /// Bytes of the appended records, including their framing.
    pub(super) appended_bytes: u64,
    /// True if the job ended with a successful sync.
    pub(super) synced: bool,
    /// Bytes written since the last sync.
    pub(super) unsynced_bytes: u64,
    /// True if the job should have ended with a sync, but no sync succeeded.
    pub(super) sync_failed: bool,
    /// Path of the file and first error, one sentence.
    pub(super) failure: Option<String>,
    pub(super) is_last: bool,
}

impl<M: RegionMemory> Job<M> {
    /// Performs the job. Calls `step` after each successful write or sync.
    pub(super) fn perform(mut self, buffer: &mut Vec<u8>, step: &dyn Fn()) -> JobOutcome {
        let mut done = JobOutcome {
            id: self.id,
            unwritten_ranges: Vec::new(),
            unwritten_appends: VecDeque::new(),
            appended: Vec::new(),
            flushes: std::mem::take(&mut self.flushes),
            reopened: None,
            written_bytes: 0,
            appended_bytes: 0,
            synced: false,
            unsynced_bytes: self.unsynced_bytes,
            sync_failed: false,
            failure: None,
            is_last: self.is_last,
        };
        let result = self
            .reopen_if_moved(&mut done)
            .and_then(|()| self.write(&mut done, buffer, step))
            .and_then(|()| self.make_durable(&mut done, step));
        done.sync_failed = self.sync && !done.synced;
        if let Err(error) = result {
            done.failure = Some(format!("cannot write {}: {error}", self.open_file.path.display()));
        }
        done.unwritten_ranges.append(&mut self.ranges);
        done.unwritten_appends.append(&mut self.appends);
        done
    }

    /// Opens the file again if its name refers to another file. A region is then written completely.
    fn reopen_if_moved(&mut self, done: &mut JobOutcome) -> io::Result<()> {
        if let Some(directories) = &self.directories
            && self.open_file.reopen_if_moved(directories, self.unsynced)?
        {
            done.reopened = Some(Arc::clone(&self.open_file.file));
            self.ranges = self.memory.iter().map(|memory| (0, memory.len())).collect();
        }
        Ok(())
    }

    /// Writes ranges, then messages. If the write of a range fails, the whole range remains to be written. If the write
    /// of a message fails, its written part is truncated from a regular file.
    fn write(
        &mut self,
        done: &mut JobOutcome,
        buffer: &mut Vec<u8>,
        step: &dyn Fn(),
    ) -> io::Result<()> {
        if let Some(memory) = &self.memory {
            while let Some(&(start, len)) = self.ranges.last() {
                self.write_range(memory, start, len, done, buffer, step)?;
                done.written_bytes += len;
                self.ranges.pop();
            }
        }
        while let Some((record, tag)) = self.appends.front() {
            let file = &self.open_file.file;
            let end = file.metadata()?.len();
            if let Err(error) = (&**file).write_all(record) {
                // A partial record would corrupt the sequence of records. A device cannot be truncated, and
                // needs no truncation.
                if file.metadata()?.is_file() {
                    file.set_len(end)?;
                }
                return Err(error);
            }
            let bytes = record.len() as u64;
            done.appended_bytes += bytes;
            done.appended.push(*tag);
            self.appends.pop_front();
            self.count_written(bytes, done, step)?;
        }
        Ok(())
    }

    /// Writes a range of the region to the file in chunks of at most [`CHUNK`] bytes.
    fn write_range(
        &self,
        memory: &M,
        start: u64,
        len: u64,
        done: &mut JobOutcome,
        buffer: &mut Vec<u8>,
        step: &dyn Fn(),
    ) -> io::Result<()> {
        let end = start.saturating_add(len).min(memory.len());
        let mut at = start;
        while at < end {
            let n = (end - at).min(CHUNK as u64) as usize;
            buffer.resize(n, 0);
            memory.read(at, buffer);
            self.open_file.file.write_all_at(buffer, at)?;
            at += n as u64;
            self.count_written(n as u64, done, step)?;
        }
        Ok(())
    }

    /// Counts `bytes` as written. Syncs after `SYNC_STEP` bytes.
    fn count_written(&self, bytes: u64, done: &mut JobOutcome, step: &dyn Fn()) -> io::Result<()> {
        step();
        done.unsynced_bytes += bytes;
        if self.syncs && done.unsynced_bytes >= SYNC_STEP {
            self.open_file.sync(false)?;
            done.unsynced_bytes = 0;
            step();
        }
        Ok(())
    }

    /// Ends the job with a sync, if it requires one.
    fn make_durable(&self, done: &mut JobOutcome, step: &dyn Fn()) -> io::Result<()> {
        if self.sync {
            self.open_file.sync(self.new || done.reopened.is_some())?;
            (done.synced, done.unsynced_bytes) = (true, 0);
            step();
        }
        Ok(())
    }
}
