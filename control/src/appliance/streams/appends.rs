//! Received untagged messages that are being appended to files.

use std::collections::{BTreeSet, HashMap};

use ddp::{Qn, StreamId};

/// Messages whose append is not complete, by the tag of the append.
#[derive(Default)]
pub(super) struct Appends {
    /// Stream and queue of each message.
    messages: HashMap<u64, (StreamId, Qn)>,
    /// Tags of each stream's messages.
    by_stream: BTreeSet<(StreamId, u64)>,
}

impl Appends {
    pub(super) fn insert(&mut self, tag: u64, stream: StreamId, qn: Qn) {
        self.messages.insert(tag, (stream, qn));
        self.by_stream.insert((stream, tag));
    }

    /// Removes a message whose append is complete. Returns its stream and queue, or `None` if the stream has ended.
    pub(super) fn remove(&mut self, tag: u64) -> Option<(StreamId, Qn)> {
        let (stream, qn) = self.messages.remove(&tag)?;
        self.by_stream.remove(&(stream, tag));
        Some((stream, qn))
    }

    /// Removes the messages of a stream that has ended.
    pub(super) fn remove_stream(&mut self, stream: StreamId) {
        while let Some(&entry) = self.by_stream.range((stream, 0)..=(stream, u64::MAX)).next() {
            self.by_stream.remove(&entry);
            self.messages.remove(&entry.1);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }
}
