//! Gives the confirmations of [`stores`](super::stores) when the files have been flushed.

use std::collections::HashSet;

use dataplane::Command;
use ddp::StreamId;

use super::env::Env;
use super::stores::{Confirmation, PATIENCE, Wait};
use crate::files::FileId;

impl Env {
    /// Bytes that a stream's peer sent are on their way to a file.
    pub(super) fn wrote(&mut self, stream: StreamId, file: FileId) {
        self.stores.written.entry(stream).or_default().insert(file);
    }

    /// Gives a confirmation as soon as the files have what the stream's peer sent before.
    pub(super) fn confirm(&mut self, stream: StreamId, confirmation: Confirmation) {
        let files = self.stores.written.remove(&stream).unwrap_or_default();
        let mut tags = HashSet::new();
        for &file in &files {
            let tag = self.number();
            // A file that is closed has been written to its end.
            if self.writer.flush(file, tag) {
                tags.insert(tag);
            }
        }
        let until = self.now + PATIENCE;
        self.stores.waits.push(Wait { stream, confirmation, files, tags, until });
        self.give_confirmations(stream);
    }

    /// A file has what came before this flush.
    pub(super) fn on_flushed(&mut self, tag: u64) {
        let Some(stream) = self.stores.stream_of(tag) else { return };
        for wait in &mut self.stores.waits {
            wait.tags.remove(&tag);
        }
        self.give_confirmations(stream);
    }

    fn give_confirmations(&mut self, stream: StreamId) {
        loop {
            let waits = &mut self.stores.waits;
            let first = waits.iter().position(|wait| wait.stream == stream);
            let Some(at) = first.filter(|&at| waits[at].tags.is_empty()) else { return };
            let command = match waits.remove(at).confirmation {
                Confirmation::Read => Command::ReleaseRead { stream },
                Confirmation::Close => Command::Close { stream, abort: false },
            };
            self.command(stream.worker(), command);
        }
    }
}
