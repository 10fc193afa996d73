//! Load that a worker makes by itself, for benchmarks and soak tests: messages at the pace of the stream,
//! without a round trip to the control thread for each.

use std::time::Duration;

use ddp::{Qn, Stag, TaggedOffset};
use hdrhistogram::Histogram;

use super::failure::PostFailure;

/// Longest round trip that a [`LoadReport::latency`] resolves, in nanoseconds; longer ones count as
/// this.
pub const LONGEST_LATENCY: u64 = 10_000_000_000;

/// Messages that the worker posts on a stream until `count` are complete or it gets the command to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// What they are.
    pub kind: LoadKind,
    /// Bytes of each; of a [`LoadKind::Notify`], those of the write.
    pub len: u32,
    /// How many.
    pub count: u64,
    /// Most that are posted and not complete; 0 is taken as 1. The stream's own bound holds besides.
    pub depth: u32,
    /// When they are posted.
    pub pace: Pace,
    /// The times from post to completion are recorded, also of messages that are not answered.
    pub timed: bool,
}

impl Load {
    /// A closed loop without end: the next message is posted when one is complete.
    pub fn closed(kind: LoadKind, len: u32, depth: u32) -> Load {
        Load { kind, len, count: u64::MAX, depth, pace: Pace::Closed, timed: false }
    }
}

/// When a load's messages are posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// As soon as the depth allows.
    #[default]
    Closed,
    /// Open loop: one each `every`, the first after `phase`, whatever has become of those before. One that the
    /// depth holds back is posted later, and its time still counts from the moment at which it was due, so that
    /// a stall is not omitted from the distribution.
    Open {
        /// From one message to the next; at least 1 ns.
        every: Duration,
        /// From the begin of the load to the first.
        phase: Duration,
    },
}

/// The messages of a load: bare DDP's on a bare DDP stream, RDMAP's on an RDMAP stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadKind {
    /// Tagged messages, or Writes. Complete when the peer's LLP has acknowledged them.
    Write(Window),
    /// RDMAP's Reads. Complete when the bytes are there. The round trips are recorded.
    Read(Window),
    /// Untagged messages to `qn`, or Sends, for a peer that gives the buffers back. Complete when the
    /// peer's LLP has acknowledged them.
    Send {
        /// The peer's queue; RDMAP's is always 0.
        qn: Qn,
    },
    /// The same for a peer that sends each back; complete when it has. The round trips are recorded.
    Echo {
        /// The peer's queue; RDMAP's is always 0.
        qn: Qn,
    },
    /// A write and behind it an untagged message (or Send) of [`NOTICE_LEN`] bytes, which the peer sends
    /// back; complete when it has. The round trips are recorded.
    Notify {
        /// Where the writes go.
        window: Window,
        /// The peer's queue; RDMAP's is always 0.
        qn: Qn,
    },
}

/// Bytes of the message behind each write of a [`LoadKind::Notify`].
pub const NOTICE_LEN: usize = 8;

/// Where tagged messages come from and go to: at the same offset on both sides, which moves on by the
/// message's length and begins again where a message would not fit, or is drawn at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Our region, in this worker's table.
    pub local: Stag,
    /// The peer's.
    pub remote: Stag,
    /// TO of the window's first byte, on both sides.
    pub base: TaggedOffset,
    /// Bytes of the window.
    pub bytes: u64,
    /// Where in it the messages go.
    pub order: Order,
}

/// Where in a window messages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// One behind the other.
    #[default]
    Sequential,
    /// Anywhere: an STag at random, and a TO at random in its part of the window.
    Random {
        /// STags of the peer that share the window in equal parts, in the order of their indexes (RFC 5040
        /// §4.1: the upper 24 bits) from [`Window::remote`] on; at least 1.
        stags: u32,
    },
}

impl Window {
    /// Bytes of the part of each of the peer's STags.
    pub fn part(&self) -> u64 {
        match self.order {
            Order::Sequential => self.bytes,
            Order::Random { stags } => self.bytes / u64::from(stags.max(1)),
        }
    }

    /// The peer's STag of a message that begins `at` bytes behind the window's begin.
    pub fn stag_at(&self, at: u64) -> Stag {
        match self.order {
            Order::Sequential => self.remote,
            Order::Random { .. } => {
                let index = at / self.part().max(1);
                Stag(self.remote.0.wrapping_add((index as u32) << 8))
            }
        }
    }
}

impl LoadKind {
    /// Where tagged messages come from and go to, if there are any.
    pub fn window(&self) -> Option<Window> {
        match *self {
            LoadKind::Write(window) | LoadKind::Read(window) | LoadKind::Notify { window, .. } => {
                Some(window)
            }
            LoadKind::Send { .. } | LoadKind::Echo { .. } => None,
        }
    }

    /// True when each message is answered, so that there is a round trip to record.
    pub fn is_answered(&self) -> bool {
        matches!(self, LoadKind::Read(_) | LoadKind::Echo { .. } | LoadKind::Notify { .. })
    }
}

/// What a load has done.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// Messages complete; a write with its notice counts as one.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// From the first post to the last completion, as the worker's turns see the time.
    pub nanoseconds: u64,
    /// Times in nanoseconds, three digits, where there are any.
    pub latency: Option<Histogram<u64>>,
    /// Messages that were posted and never complete, and of a load with a [`Pace::Open`] those that were due when it
    /// ended and were not posted. With a pace, `latency` has the time that each had waited until then, so that a
    /// peer that stalls is not omitted from the distribution.
    pub unfinished: u64,
    /// Why it ended before its time, unless by command.
    pub failure: Option<PostFailure>,
}
