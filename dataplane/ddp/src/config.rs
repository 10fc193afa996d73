//! Parameters of a stream, and the queue numbers of bare DDP.

use wire::{DdpVersion, Qn};

/// Queue of bare DDP's ordinary messages (docs/protocol.md).
pub const MESSAGE_QUEUE: Qn = Qn(0);
/// Queue of bare DDP's last message after an error (docs/protocol.md). This queue has the number of RDMAP's Terminate
/// queue (RFC 5040 §4.1), so that the same tools can read both.
pub const ERROR_QUEUE: Qn = Qn(2);

/// One queue of untagged receive buffers (RFC 5041 §5.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueConfig {
    /// Queue number (QN) of the messages that use the queue.
    pub qn: Qn,
    /// Number of buffers posted at the start.
    pub buffers: u32,
    /// Length of each buffer in bytes, which is the maximum length of a message.
    pub buffer_size: u32,
}

impl QueueConfig {
    /// Returns the error queue of bare DDP, with one buffer for the last message.
    pub const fn error_queue() -> QueueConfig {
        let buffer_size = crate::last_message::MAX_LEN as u32;
        QueueConfig { qn: ERROR_QUEUE, buffers: 1, buffer_size }
    }
}

/// The DDP version that a stream sends and accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VersionPolicy {
    /// Version 1 (RFC 5041).
    #[default]
    V1,
    /// Version 0 of the RDMA Consortium (RFC 5044 appendix C).
    V0,
    /// The version of the first segment in order. Until that segment arrives, the stream sends nothing. Used by the
    /// responder to an MPA Request of revision 0.
    AdoptFirst,
}

impl VersionPolicy {
    /// Returns the version; `None` for [`AdoptFirst`](Self::AdoptFirst).
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
    /// The untagged queues to which the peer may send. Each queue number occurs once.
    pub queues: Vec<QueueConfig>,
    /// DDP version to send and accept.
    pub version: VersionPolicy,
    /// Maximum number of records of segments beyond a gap, about 40 bytes each. Further segments are refused.
    pub max_ooo_records: usize,
    /// Maximum number of messages that are posted and not yet acknowledged.
    pub max_posts: usize,
    /// True to report deliveries of tagged messages as [`Event::TaggedDelivered`](crate::Event). Deliveries are
    /// counted in any case. A ULP that ignores these events runs faster without them.
    pub tagged_events: bool,
    /// True if the ULP stores received data and confirms the data by closing. The LLP then never closes by itself. An
    /// idle time-out is reported instead of closing the stream. Data that arrives after this end's close ends the
    /// stream with a local error. For RDMAP's zero-length Reads see
    /// [`rdmap::Config::hold_confirmations`](crate::rdmap::Config::hold_confirmations).
    pub hold_confirmations: bool,
    /// True if the LLP keeps copies of sent bytes even if their memory is declared [stable](crate::RegionMemory): the
    /// memory's owner may break that promise.
    pub copy_sources: bool,
}

impl Default for StreamConfig {
    /// Returns version 1, the error queue alone, 8192 records, 1024 posts, all deliveries reported, no copies of stable
    /// sources.
    fn default() -> Self {
        StreamConfig {
            queues: vec![QueueConfig::error_queue()],
            version: VersionPolicy::V1,
            max_ooo_records: 8192,
            max_posts: 1024,
            tagged_events: true,
            hold_confirmations: false,
            copy_sources: false,
        }
    }
}

/// Receive buffers of the first queue, which RDMAP uses for Sends and Immediate Data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReceiveMode {
    /// [`recv_buffers`](crate::rdmap::Config::recv_buffers) buffers of the worker, each of
    /// [`recv_size`](crate::rdmap::Config::recv_size) bytes.
    #[default]
    Pooled,
    /// The memory of receives that the ULP posts with
    /// [`Stream::post_receive`](crate::rdmap::Stream::post_receive). `recv_buffers` and `recv_size` are not used.
    Posted {
        /// Maximum number of receives posted and not used up. With 0, none can be posted.
        max_receives: u32,
    },
    /// The memory of receives that the stream takes from a
    /// [source](crate::rdmap::Stream::set_receive_source) shared with other streams. The stream takes each receive
    /// when the first segment of the receive's message arrives. `recv_buffers` and `recv_size` are not used.
    Shared {
        /// Maximum number of receives taken and not used up, and of messages that may arrive out of order.
        max_receives: u32,
    },
}
