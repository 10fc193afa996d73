//! Message source of the tests, with given message lengths and bytes derived from each message's
//! tag.

use std::collections::VecDeque;

use crate::seam::{MessageRef, MessageSource, WrittenMessage};

/// Messages to send, and their progress.
#[derive(Default)]
pub(super) struct Source {
    /// Lengths of queued messages; `usize::MAX`: the longest that fits a packet.
    waiting: VecDeque<usize>,
    next_tag: u64,
    /// Messages sent and not acknowledged.
    pub(super) out: VecDeque<MessageRef>,
    pub(super) acknowledged: u64,
    pub(super) max_len: usize,
    /// True to set the I bit on all messages.
    pub(super) immediate: bool,
}

impl Source {
    pub(super) fn push(&mut self, messages: usize, len: usize) {
        self.waiting.extend(core::iter::repeat_n(len, messages));
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Writes the bytes of a message, starting with its tag.
pub(super) fn write(tag: u64, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = if i < 8 { tag.to_be_bytes()[i] } else { tag as u8 ^ i as u8 };
    }
}

impl MessageSource for Source {
    fn has_data(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn next(&mut self, max_len: usize, out: &mut [u8]) -> Option<WrittenMessage> {
        assert_eq!(max_len, self.max_len, "the limit of the last notification");
        assert!(out.len() <= max_len);
        let len = (*self.waiting.front()?).min(max_len);
        if len > out.len() {
            return None;
        }
        self.waiting.pop_front();
        write(self.next_tag, &mut out[..len]);
        let message =
            MessageRef { stream: (self.next_tag % 5) as u16, len: len as u16, tag: self.next_tag };
        self.next_tag += 1;
        self.out.push_back(message);
        Some(WrittenMessage {
            message,
            ppid: 16,
            immediate: self.immediate,
            crc: None,
            next_len: None,
        })
    }

    fn rewrite(&mut self, message: MessageRef, out: &mut [u8]) {
        assert_eq!(out.len(), usize::from(message.len));
        assert!(self.out.contains(&message), "sent and not acknowledged");
        write(message.tag, out);
    }

    fn on_acknowledged(&mut self, message: MessageRef) {
        assert_eq!(self.out.pop_front(), Some(message), "in the order of sending");
        self.acknowledged += 1;
    }

    fn on_max_len_changed(&mut self, max_len: usize) {
        self.max_len = max_len;
    }
}
