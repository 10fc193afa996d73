//! Load that a worker generates for benchmarks and soak tests. The worker posts the messages itself, without a round
//! trip to the control thread for each.

use std::time::Duration;

use ddp::{Qn, Stag, TaggedOffset};
use hdrhistogram::Histogram;

use super::failure::PostFailure;

/// Maximum latency recorded in [`LoadReport::latency`], in nanoseconds. Longer latencies are recorded as this value.
pub const MAX_LATENCY_NANOS: u64 = 10_000_000_000;

/// Load on a stream: the worker posts messages until it has posted `count`, or until a command stops the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Kind of the messages.
    pub kind: LoadKind,
    /// Length of each message in bytes; for [`LoadKind::Notify`], of each write.
    pub len: u32,
    /// Number of messages to post; a write with its notice counts as one.
    pub count: u64,
    /// Maximum number of outstanding messages; 0 means 1. The limit of the stream also applies.
    pub depth: u32,
    /// Schedule of the posts.
    pub pace: Pace,
    /// True to record the time from post to completion also for messages that the peer does not answer.
    pub timed: bool,
}

impl Load {
    /// Returns an endless closed loop: each completion posts the next message.
    pub fn closed(kind: LoadKind, len: u32, depth: u32) -> Load {
        Load { kind, len, count: u64::MAX, depth, pace: Pace::Closed, timed: false }
    }
}

/// Timing of a load's posts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// Closed loop: a message is posted as soon as the depth allows.
    #[default]
    Closed,
    /// Open loop: one message per `interval`, independent of completions. If `depth` delays a message, its latency
    /// still counts from the time at which it was due. The distribution therefore includes stalls.
    Open {
        /// Time between two messages, at least 1 ns.
        interval: Duration,
        /// Time from the start of the load to the first message.
        phase: Duration,
    },
}

/// Kind of a load's messages. On a bare DDP stream the messages are DDP messages, on an RDMAP stream RDMAP operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadKind {
    /// Tagged messages, or RDMA Writes. A message is complete when the peer's LLP has acknowledged it.
    Write(Window),
    /// RDMA Reads. A Read is complete when its data has arrived. Round-trip times are recorded.
    Read(Window),
    /// Untagged messages to `qn`, or Sends, to a peer that reposts their buffers. A message is complete when the peer's
    /// LLP has acknowledged it.
    Send {
        /// Receive queue of the peer; always 0 with RDMAP.
        qn: Qn,
    },
    /// Untagged messages or Sends to a peer that returns each of them. A message is complete when the returned message
    /// has arrived. Round-trip times are recorded.
    Echo {
        /// Receive queue of the peer; always 0 with RDMAP.
        qn: Qn,
    },
    /// Pairs of a write and a notice: an untagged message (or Send) of [`NOTICE_LEN`] bytes, which the peer returns. A
    /// pair is complete when the returned notice has arrived. Round-trip times are recorded.
    Notify {
        /// Source and destination of the writes.
        window: Window,
        /// Receive queue of the peer; always 0 with RDMAP.
        qn: Qn,
    },
}

/// Length in bytes of the notice that follows each write of a [`LoadKind::Notify`].
pub const NOTICE_LEN: usize = 8;

/// Source and destination of tagged messages: a range of tagged offsets, the same in both regions. [`Order`] determines
/// the offset of each message in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Local region, in this worker's STag table.
    pub local: Stag,
    /// Region of the peer. With [`Order::Random`], the first of several.
    pub remote: Stag,
    /// Tagged offset of the first byte of the window, in both regions.
    pub base: TaggedOffset,
    /// Size of the window in bytes.
    pub bytes: u64,
    /// Order of the message offsets.
    pub order: Order,
}

/// Order of the message offsets in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Consecutive offsets. After the last message that fits, the offset in the window is 0 again.
    #[default]
    Sequential,
    /// A random STag of the peer, and a random offset in this STag's part of the window.
    Random {
        /// Number of STags of the peer that share the window in equal parts, at least 1. Their indexes (the upper 24
        /// bits) are consecutive and begin with the index of [`Window::remote`].
        stags: u32,
    },
}

impl Window {
    /// Returns the length in bytes of each STag's part of the window.
    pub fn stag_bytes(&self) -> u64 {
        match self.order {
            Order::Sequential => self.bytes,
            Order::Random { stags } => self.bytes / u64::from(stags.max(1)),
        }
    }

    /// Returns the peer's STag for a message at offset `at` in the window.
    pub fn stag_at(&self, at: u64) -> Stag {
        match self.order {
            Order::Sequential => self.remote,
            Order::Random { .. } => {
                let index = at / self.stag_bytes().max(1);
                Stag(self.remote.0.wrapping_add((index as u32) << 8))
            }
        }
    }
}

impl LoadKind {
    /// Returns the window of the tagged messages; `None` without tagged messages.
    pub fn window(&self) -> Option<Window> {
        match *self {
            LoadKind::Write(window) | LoadKind::Read(window) | LoadKind::Notify { window, .. } => {
                Some(window)
            }
            LoadKind::Send { .. } | LoadKind::Echo { .. } => None,
        }
    }

    /// Returns true if the peer answers each message, so that round-trip times are recorded.
    pub fn has_response(&self) -> bool {
        matches!(self, LoadKind::Read(_) | LoadKind::Echo { .. } | LoadKind::Notify { .. })
    }
}

/// Results of a load.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// Number of completed messages; a write with its notice counts as one.
    pub messages: u64,
    /// Bytes of the completed messages, without notices.
    pub bytes: u64,
    /// Nanoseconds from the start of the load to the last completion, at the resolution of one iteration of the
    /// worker's loop.
    pub nanoseconds: u64,
    /// Latencies in nanoseconds with three significant digits; `None` if not recorded.
    pub latency: Option<Histogram<u64>>,
    /// Number of messages posted but never completed. With [`Pace::Open`], messages that were due but not posted when
    /// the load ended are included. `latency` then includes the time that each of them has waited, so the distribution
    /// includes a stall at the end.
    pub unfinished: u64,
    /// Reason of a premature end; `None` if the load completed or was stopped by a command.
    pub failure: Option<PostFailure>,
}
