//! The upper layer of an association: received user messages, and user messages to send.

use std::collections::{BTreeMap, VecDeque};

use base::Instant;
use sctp_lite::seam::{
    MessageOutcome, MessageRef, MessageSink, MessageSource, ReceivedMessage, WrittenMessage,
};

use super::{Chunk, PACKET};

/// Maximum size of the received messages held, bytes.
pub const MAX_BYTES: usize = 4 << 20;
/// Bytes counted per message in addition to its data.
const OVERHEAD: usize = 64;
/// Maximum user data of a packet with one DATA chunk, bytes.
const MAX_DATA: usize = PACKET - 12 - 16;

/// User messages in both directions.
#[derive(Debug, Default)]
pub struct Upper {
    received: VecDeque<Chunk>,
    /// Size of `received`, bytes, with [`OVERHEAD`] for each message; at most [`MAX_BYTES`].
    bytes: usize,
    outgoing: VecDeque<Chunk>,
    /// Sent messages, by tag.
    unacknowledged: BTreeMap<u64, Chunk>,
    /// Number of sent messages, which is the tag of the next message.
    sent: u64,
    /// Maximum length of a message on the current path, bytes; `None` before the association has reported it.
    longest: Option<usize>,
}

impl Upper {
    /// Removes and returns the oldest received message.
    pub fn take(&mut self) -> Option<Chunk> {
        let chunk = self.received.pop_front()?;
        self.bytes -= chunk.data.len() + OVERHEAD;
        Some(chunk)
    }

    /// Returns true if a received message is queued.
    pub fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Returns the maximum length of a message, bytes.
    pub fn longest(&self) -> usize {
        self.longest.unwrap_or(MAX_DATA)
    }

    /// Queues a message. Returns false if the message is too long for a packet.
    pub fn send(&mut self, chunk: Chunk) -> bool {
        let fits = chunk.data.len() <= self.longest();
        if fits {
            self.outgoing.push_back(chunk);
        }
        fits
    }

    /// Returns true if all messages were sent and acknowledged.
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.unacknowledged.is_empty()
    }

    /// Returns true if an unacknowledged message with this data must be sent ordered.
    pub fn is_ordered(&self, data: &[u8]) -> bool {
        self.unacknowledged.values().any(|c| !c.unordered && c.data == data)
    }
}

impl MessageSink for Upper {
    fn deliver(&mut self, _now: Instant, message: ReceivedMessage<'_>) -> MessageOutcome {
        let chunk = Chunk {
            stream: message.stream,
            ppid: message.ppid,
            unordered: message.unordered,
            whole: message.pieces.len() == 1,
            data: message.pieces.concat(),
        };
        let size = chunk.data.len() + OVERHEAD;
        if self.bytes + size > MAX_BYTES {
            return MessageOutcome::Refused;
        }
        self.bytes += size;
        self.received.push_back(chunk);
        MessageOutcome::Accepted
    }

    fn free_space(&self) -> u32 {
        (MAX_BYTES - self.bytes) as u32
    }
}

impl MessageSource for Upper {
    fn has_data(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn next(&mut self, max_len: usize, out: &mut [u8]) -> Option<WrittenMessage> {
        // Drops messages that no longer fit into a packet because the path MTU has decreased.
        while self.outgoing.front().is_some_and(|c| c.data.len() > max_len) {
            self.outgoing.pop_front();
        }
        let front = self.outgoing.front()?;
        out.get_mut(..front.data.len())?.copy_from_slice(&front.data);
        let chunk = self.outgoing.pop_front()?;
        let message =
            MessageRef { stream: chunk.stream, len: chunk.data.len() as u16, tag: self.sent };
        let ppid = chunk.ppid;
        self.unacknowledged.insert(self.sent, chunk);
        self.sent += 1;
        Some(WrittenMessage {
            message,
            ppid,
            immediate: self.outgoing.is_empty(),
            crc: None,
            next_len: self.outgoing.front().map(|c| c.data.len() as u16),
        })
    }

    fn rewrite(&mut self, message: MessageRef, out: &mut [u8]) {
        if let Some(chunk) = self.unacknowledged.get(&message.tag) {
            out.copy_from_slice(&chunk.data);
        }
    }

    fn on_acknowledged(&mut self, message: MessageRef) {
        self.unacknowledged.remove(&message.tag);
    }

    fn on_max_len_changed(&mut self, max_len: usize) {
        self.longest = Some(max_len);
    }
}
