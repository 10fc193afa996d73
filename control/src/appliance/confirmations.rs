//! Gives the confirmations of [`stores`](super::stores) once the files are flushed.

use std::collections::HashSet;

use dataplane::Command;
use ddp::StreamId;

use super::env::Env;
use super::stores::{Confirmation, PATIENCE, Wait};
use crate::files::FileId;

impl Env {
    /// Records that data of a stream's peer is being written to a file.
    pub(super) fn wrote(&mut self, stream: StreamId, file: FileId) {
        self.stores.written.entry(stream).or_default().insert(file);
    }

    /// Gives a confirmation when the files have all earlier data of the stream's peer.
    pub(super) fn confirm(&mut self, stream: StreamId, confirmation: Confirmation) {
        let (files, tags) = self.flush(stream);
        let (asked, since) = (false, self.now);
        self.stores.push(Wait { stream, confirmation, asked, files, tags, since });
        self.give_confirmations(stream);
        let waits = || self.stores.waits.iter().any(|wait| wait.closes(stream));
        if confirmation == Confirmation::Close && waits() {
            // The control thread bounds the time of the half-closed stream, instead of the worker.
            self.command(stream.worker(), Command::Confirming { stream });
        }
    }

    /// Closes before the peer does. First the worker reports all data so far.
    pub(super) fn confirm_first(&mut self, stream: StreamId) {
        let (confirmation, asked, since) = (Confirmation::Close, true, self.now);
        let (files, tags) = (HashSet::new(), HashSet::new());
        self.stores.push(Wait { stream, confirmation, asked, files, tags, since });
        self.command(stream.worker(), Command::Confirming { stream });
    }

    /// Continues a close when the worker has reported all data before `Command::Confirming`.
    pub(super) fn on_confirming(&mut self, stream: StreamId) {
        let is_asked = |wait: &Wait| wait.closes(stream) && wait.asked;
        let Some(at) = self.stores.waits.iter().position(is_asked) else { return };
        let (files, tags) = self.flush(stream);
        let wait = &mut self.stores.waits[at];
        (wait.asked, wait.tags) = (false, tags);
        wait.files.extend(files);
        self.give_confirmations(stream);
    }

    /// Records that a file has the data that precedes this flush.
    pub(super) fn on_flushed(&mut self, tag: u64) {
        let Some(stream) = self.stores.stream_of(tag) else { return };
        for wait in &mut self.stores.waits {
            wait.tags.remove(&tag);
        }
        self.give_confirmations(stream);
    }

    /// Flushes the files that a stream has written to. Returns the files and the tags of the
    /// flushes.
    fn flush(&mut self, stream: StreamId) -> (HashSet<FileId>, HashSet<u64>) {
        let files = self.stores.written.remove(&stream).unwrap_or_default();
        let mut tags = HashSet::new();
        for &file in &files {
            let tag = self.number();
            // A closed file has been written to its end.
            if self.writer.flush(file, tag) {
                tags.insert(tag);
            }
        }
        (files, tags)
    }

    fn give_confirmations(&mut self, stream: StreamId) {
        loop {
            let first = self.stores.waits.iter().position(|wait| wait.stream == stream);
            let is_done = |wait: &Wait| wait.tags.is_empty() && !wait.asked;
            let Some(at) = first.filter(|&at| is_done(&self.stores.waits[at])) else { return };
            let wait = &mut self.stores.waits[at];
            let is_close = wait.confirmation == Confirmation::Close;
            // More data arrived meanwhile. Data that the worker has not reported turns the close
            // into an error.
            if is_close
                && self.stores.written.contains_key(&stream)
                && self.now < wait.since + PATIENCE
            {
                wait.asked = true;
                return self.command(stream.worker(), Command::Confirming { stream });
            }
            let command = match self.stores.waits.remove(at).confirmation {
                Confirmation::Read => Command::ReleaseRead { stream },
                Confirmation::Close => Command::Close { stream, abort: false },
            };
            self.command(stream.worker(), command);
        }
    }
}
