//! Parameters of a stream, with bare DDP's queue numbers.

use wire::{DdpVersion, Qn};

/// Queue of bare DDP's ordinary messages (docs/protocol.md).
pub const MESSAGE_QUEUE: Qn = Qn(0);
/// Queue of bare DDP's last message after an error (docs/protocol.md). The same number as RDMAP's
/// Terminate queue (RFC 5040 §4.2), so that one set of tools reads both.
pub const ERROR_QUEUE: Qn = Qn(2);

/// One queue of untagged receive buffers (RFC 5041 §5.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Its number.
    pub qn: Qn,
    /// Buffers posted at the start.
    pub buffers: u32,
    /// Bytes of each, the longest message that fits.
    pub buffer_size: u32,
}

impl QueueConfig {
    /// The error queue of bare DDP: room for the last message.
    pub const fn error_queue() -> QueueConfig {
        let buffer_size = crate::last_message::MAX_LEN as u32;
        QueueConfig { qn: ERROR_QUEUE, buffers: 1, buffer_size }
    }
}

/// Which DDP version a stream sends and takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VersionPolicy {
    /// RFC 5041's.
    #[default]
    V1,
    /// The RDMA Consortium's (RFC 5044 appendix C).
    V0,
    /// That of the first segment in order. Until it has come, nothing is sent. For the responder to a
    /// revision 0 request frame.
    AdoptFirst,
}

impl VersionPolicy {
    /// The version that is fixed from the start.
    pub const fn fixed(self) -> Option<DdpVersion> {
        match self {
            VersionPolicy::V0 => Some(DdpVersion::V0),
            VersionPolicy::V1 => Some(DdpVersion::V1),
            VersionPolicy::AdoptFirst => None,
        }
    }
}

impl From<DdpVersion> for VersionPolicy {
    fn from(version: DdpVersion) -> Self {
        match version {
            DdpVersion::V0 => VersionPolicy::V0,
            DdpVersion::V1 => VersionPolicy::V1,
        }
    }
}

/// Parameters of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamConfig {
    /// The untagged queues that the peer may name; each number once.
    pub queues: Vec<QueueConfig>,
    /// The version.
    pub version: VersionPolicy,
    /// Most segments beyond a gap that are remembered, about 40 bytes each. Beyond it they are
    /// refused.
    pub max_ooo_records: usize,
    /// Most messages posted and not yet acknowledged.
    pub max_posts: usize,
    /// Deliveries of tagged messages are reported as [`Event::TaggedDelivered`](crate::Event); counted they are
    /// in any case. A ULP that does not look at them is quicker without.
    pub tagged_events: bool,
    /// The ULP stores received data. The LLP does not confirm it without the ULP: an idle time-out is reported instead of
    /// closing the stream, and data behind this end's close ends the stream with a local error. For RDMAP's Reads of no
    /// bytes see [`rdmap::Config::hold_confirmations`](crate::rdmap::Config::hold_confirmations).
    pub hold_confirmations: bool,
}

impl Default for StreamConfig {
    /// Version 1, the error queue alone, 8192 records, 1024 posts, all deliveries reported.
    fn default() -> Self {
        StreamConfig {
            queues: vec![QueueConfig::error_queue()],
            version: VersionPolicy::V1,
            max_ooo_records: 8192,
            max_posts: 1024,
            tagged_events: true,
            hold_confirmations: false,
        }
    }
}
