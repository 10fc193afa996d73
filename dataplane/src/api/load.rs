//! Load that a worker makes by itself, for benchmarks and soak tests: messages at the pace of the stream,
//! without a round trip to the control thread for each.

use ddp::{Qn, Stag, TaggedOffset};
use hdrhistogram::Histogram;

use super::message::PostFailure;

/// Longest round trip that a [`LoadReport::latency`] tells apart, in nanoseconds; longer ones count as
/// this.
pub const LONGEST_LATENCY: u64 = 10_000_000_000;

/// Messages that the worker posts on a stream until `count` are complete or it is told to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// What they are.
    pub kind: LoadKind,
    /// Octets of each; of a [`LoadKind::Notify`], those of the write.
    pub len: u32,
    /// How many.
    pub count: u64,
    /// Most that are posted and not complete; 0 is taken as 1. The stream's own bound holds besides.
    pub depth: u32,
}

/// What a load is made of. Bare DDP's messages on a bare DDP stream, RDMAP's on one that speaks RDMAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadKind {
    /// Tagged messages, or Writes. Complete when the peer's LLP has acknowledged them.
    Write(Window),
    /// RDMAP's Reads. Complete when the octets are there. The round trips are recorded.
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
    /// A write and behind it an untagged message (or Send) of [`NOTICE_LEN`] octets, which the peer sends
    /// back; complete when it has. The round trips are recorded.
    Notify {
        /// Where the writes go.
        window: Window,
        /// The peer's queue; RDMAP's is always 0.
        qn: Qn,
    },
}

/// Octets of the message behind each write of a [`LoadKind::Notify`].
pub const NOTICE_LEN: usize = 8;

/// Where tagged messages come from and go to: at the same offset on both sides, which moves on by the
/// message's length and begins again where a message would not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Our region, in this worker's table.
    pub local: Stag,
    /// The peer's.
    pub remote: Stag,
    /// TO of the window's first octet, on both sides.
    pub base: TaggedOffset,
    /// Octets of the window.
    pub octets: u64,
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
    /// Octets of them.
    pub octets: u64,
    /// From the first post to the last completion, as the worker's turns see the time.
    pub nanoseconds: u64,
    /// Round trips in nanoseconds, three digits, where there are any.
    pub latency: Option<Histogram<u64>>,
    /// Why it ended before its time, unless it was told to.
    pub failure: Option<PostFailure>,
}
