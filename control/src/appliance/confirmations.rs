//! Confirmations to peers: responses to RDMA Reads of 0 bytes, and graceful closes. Each is sent once the files contain
//! all earlier data of the peer. Until then, [`pending_confirmations`](super::pending_confirmations) stores it.

use dataplane::Command;
use ddp::StreamId;

use super::env::Env;
use super::pending_confirmations::{Confirmation, PendingFlushes, STALL_TIMEOUT};
use crate::files::FileId;

impl Env {
    /// Records that data of the stream's peer is being written to `file`.
    pub(super) fn record_write(&mut self, stream: StreamId, file: FileId) {
        self.confirmations.written_files.entry(stream).or_default().insert(file);
    }

    /// Sends a confirmation once the files contain all earlier data of the stream's peer.
    pub(super) fn confirm(&mut self, stream: StreamId, confirmation: Confirmation) {
        let flushes = self.flush(stream);
        self.confirmations.push(stream, confirmation, Some(flushes), self.now);
        self.send_confirmations(stream);
        if confirmation == Confirmation::Close && self.confirmations.is_close_pending(stream) {
            // While the close is pending, the control thread, not the worker, limits how long the stream stays
            // half-closed.
            self.send_command(stream.worker(), Command::AnnounceClose { stream });
        }
    }

    /// Starts a close by this end. First, the worker reports all data received so far.
    pub(super) fn request_close_confirmation(&mut self, stream: StreamId) {
        self.confirmations.push(stream, Confirmation::Close, None, self.now);
        self.send_command(stream.worker(), Command::AnnounceClose { stream });
    }

    /// Continues a close after [`Event::Confirming`](dataplane::Event::Confirming): the worker has reported all data
    /// received so far, so the files are flushed.
    pub(super) fn on_confirming(&mut self, stream: StreamId) {
        if self.confirmations.close_awaits_worker(stream) {
            let flushes = self.flush(stream);
            self.confirmations.on_reported(stream, flushes);
            self.send_confirmations(stream);
        }
    }

    /// Handles the end of a flush: the file contains all data that was queued before the flush.
    pub(super) fn on_flushed(&mut self, tag: u64) {
        if let Some(stream) = self.confirmations.on_flushed(tag) {
            self.send_confirmations(stream);
        }
    }

    /// Flushes the files that the stream has written to.
    fn flush(&mut self, stream: StreamId) -> PendingFlushes {
        let files = self.confirmations.written_files.remove(&stream).unwrap_or_default();
        let mut flushes = PendingFlushes::default();
        for &file in &files {
            let tag = self.allocate_number();
            // `flush` returns false for a closed file. All data of a closed file has already been written.
            if self.writer.flush(file, tag) {
                flushes.tags.insert(tag);
            }
        }
        PendingFlushes { files, ..flushes }
    }

    fn send_confirmations(&mut self, stream: StreamId) {
        while let Some((confirmation, since)) = self.confirmations.first_done(stream) {
            // More data arrived while the files were written. The close is announced again, so that the worker reports
            // all data before it: a close with unreported data is an error.
            if confirmation == Confirmation::Close
                && self.confirmations.written_files.contains_key(&stream)
                && self.now < since + STALL_TIMEOUT
            {
                self.confirmations.await_worker(stream);
                return self.send_command(stream.worker(), Command::AnnounceClose { stream });
            }
            self.confirmations.pop(stream);
            let command = match confirmation {
                Confirmation::Read => Command::ReleaseRead { stream },
                Confirmation::Close => Command::Close { stream, abort: false },
            };
            self.send_command(stream.worker(), command);
        }
    }
}
