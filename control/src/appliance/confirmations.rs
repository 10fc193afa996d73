//! Confirmations to peers: responses to RDMA Reads of 0 bytes, and orderly closes. Each is sent once the files contain
//! all earlier data of the peer. [`pending_confirmations`](super::pending_confirmations) keeps those that wait.

use std::collections::HashSet;

use dataplane::Command;
use ddp::StreamId;

use super::env::Env;
use super::pending_confirmations::{Confirmation, PendingConfirmation, STALL_TIMEOUT};
use crate::files::FileId;

impl Env {
    /// Records that data of the stream's peer is being written to `file`.
    pub(super) fn record_write(&mut self, stream: StreamId, file: FileId) {
        self.confirmations.written_files.entry(stream).or_default().insert(file);
    }

    /// Sends a confirmation once the files contain all earlier data of the stream's peer.
    pub(super) fn confirm(&mut self, stream: StreamId, confirmation: Confirmation) {
        let (files, tags) = self.flush(stream);
        let (awaits_worker, since) = (false, self.now);
        self.confirmations.push(PendingConfirmation {
            stream,
            confirmation,
            awaits_worker,
            files,
            tags,
            since,
        });
        self.send_confirmations(stream);
        let waits = || self.confirmations.pending.iter().any(|wait| wait.closes(stream));
        if confirmation == Confirmation::Close && waits() {
            // While the close is pending, the control thread limits how long the stream is half-closed; the worker
            // does not.
            self.send_command(stream.worker(), Command::AnnounceClose { stream });
        }
    }

    /// Starts a close by this end. First, the worker reports all data received so far.
    pub(super) fn request_close_confirmation(&mut self, stream: StreamId) {
        let (confirmation, awaits_worker, since) = (Confirmation::Close, true, self.now);
        let (files, tags) = (HashSet::new(), HashSet::new());
        self.confirmations.push(PendingConfirmation {
            stream,
            confirmation,
            awaits_worker,
            files,
            tags,
            since,
        });
        self.send_command(stream.worker(), Command::AnnounceClose { stream });
    }

    /// Continues a close after [`Event::Confirming`](dataplane::Event::Confirming): the worker has reported all data
    /// received so far, so the files are flushed.
    pub(super) fn on_confirming(&mut self, stream: StreamId) {
        let is_asked = |wait: &PendingConfirmation| wait.closes(stream) && wait.awaits_worker;
        let Some(at) = self.confirmations.pending.iter().position(is_asked) else { return };
        let (files, tags) = self.flush(stream);
        let wait = &mut self.confirmations.pending[at];
        (wait.awaits_worker, wait.tags) = (false, tags);
        wait.files.extend(files);
        self.send_confirmations(stream);
    }

    /// Handles the end of a flush: the file contains all data that was queued before the flush.
    pub(super) fn on_flushed(&mut self, tag: u64) {
        let Some(stream) = self.confirmations.stream_of(tag) else { return };
        for wait in &mut self.confirmations.pending {
            wait.tags.remove(&tag);
        }
        self.send_confirmations(stream);
    }

    /// Flushes the files that the stream has written to. Returns the files, and the tags of the flushes.
    fn flush(&mut self, stream: StreamId) -> (HashSet<FileId>, HashSet<u64>) {
        let files = self.confirmations.written_files.remove(&stream).unwrap_or_default();
        let mut tags = HashSet::new();
        for &file in &files {
            let tag = self.allocate_number();
            // A closed file is already written completely.
            if self.writer.flush(file, tag) {
                tags.insert(tag);
            }
        }
        (files, tags)
    }

    fn send_confirmations(&mut self, stream: StreamId) {
        loop {
            let first = self.confirmations.pending.iter().position(|wait| wait.stream == stream);
            let is_done = |wait: &PendingConfirmation| wait.tags.is_empty() && !wait.awaits_worker;
            let Some(at) = first.filter(|&at| is_done(&self.confirmations.pending[at])) else {
                return;
            };
            let wait = &mut self.confirmations.pending[at];
            let is_close = wait.confirmation == Confirmation::Close;
            // More data arrived while the close was pending. The worker must report all of this data first: unreported
            // data makes the close an error.
            if is_close
                && self.confirmations.written_files.contains_key(&stream)
                && self.now < wait.since + STALL_TIMEOUT
            {
                wait.awaits_worker = true;
                return self.send_command(stream.worker(), Command::AnnounceClose { stream });
            }
            let command = match self.confirmations.pending.remove(at).confirmation {
                Confirmation::Read => Command::ReleaseRead { stream },
                Confirmation::Close => Command::Close { stream, abort: false },
            };
            self.send_command(stream.worker(), command);
        }
    }
}
