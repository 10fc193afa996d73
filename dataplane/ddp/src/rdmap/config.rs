//! Parameters of an RDMAP stream.

use wire::rdmap::terminate::MAX_LEN;
use wire::rdmap::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, ATOMIC_RESPONSE_QUEUE, READ_REQUEST_LEN,
    REQUEST_QUEUE, SEND_QUEUE, TERMINATE_QUEUE,
};

use crate::config::{QueueConfig, ReceiveMode, StreamConfig, VersionPolicy};

/// Size of the Terminate buffer in bytes. RFC 5040 requires less; the rest allows for trailing bytes, which are
/// ignored.
const TERMINATE_BUFFER: u32 = 256;
const _: () = assert!(TERMINATE_BUFFER as usize >= MAX_LEN);

/// Parameters of an RDMAP stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Maximum number of the peer's requests (Reads and atomics together, RFC 7306 §5.2) that await their response. A
    /// further request is answered with a Terminate.
    pub ird: u16,
    /// Maximum number of outstanding Reads and atomics of this end; further requests wait. With 0 none can be posted.
    pub ord: u16,
    /// Kind of the receive buffers.
    pub receives: ReceiveMode,
    /// Receive buffers posted at the start, for Sends and Immediate Data.
    pub recv_buffers: u32,
    /// Size of each buffer, bytes: the maximum length of a Send.
    pub recv_size: u32,
    /// Maximum number of operations posted and not yet complete.
    pub max_operations: usize,
    /// Maximum number of unacknowledged responses. Beyond that, responses to further requests wait.
    pub max_responses: usize,
    /// True to accept and send RFC 7306's atomics. Otherwise posts of atomics are refused, and received atomics have an
    /// unexpected opcode.
    pub atomics: bool,
    /// True to accept and send RFC 7306's Immediate Data. Otherwise the stream refuses to post Immediate Data, and
    /// received Immediate Data has an unexpected opcode.
    pub immediate: bool,
    /// True if the initiator may begin with a zero-length Send as its ready-to-receive message (RFC 6581 §9.2). For
    /// this message one more buffer is posted. The message is reported as
    /// [`Event::ReadyToReceive`](crate::rdmap::Event::ReadyToReceive).
    pub rtr_send: bool,
    /// True if the peer is siw (Linux's software iWARP), whose Terminates have their own layout. With any other peer
    /// the bits that identify that layout are reserved and ignored (RFC 5040 §4.8).
    pub siw: bool,
    /// Same meaning as [`StreamConfig::hold_confirmations`]. In addition, a zero-length Read of the peer is reported
    /// ([`Event::ReadHeld`](crate::rdmap::Event::ReadHeld)) and answered only when the ULP releases it. Later requests
    /// wait, too, because responses are in order (RFC 5040 §5.5 (20)). A close waits for the held Read.
    pub hold_confirmations: bool,
    /// Same meaning as [`StreamConfig::copy_sources`].
    pub copy_sources: bool,
    /// DDP version, which determines the version of RDMAP.
    pub version: VersionPolicy,
    /// Maximum number of records of segments beyond a gap, about 40 bytes each. Further segments are refused.
    pub max_ooo_records: usize,
}

impl Default for Config {
    /// Returns IRD and ORD 16, 64 buffers of 4096 bytes, 1024 operations, 256 responses, and atomics and Immediate Data
    /// (RFC 7306) enabled. Version and records are those of [`StreamConfig::default`].
    fn default() -> Self {
        let ddp = StreamConfig::default();
        Config {
            ird: 16,
            ord: 16,
            receives: ReceiveMode::Pooled,
            recv_buffers: 64,
            recv_size: 4096,
            max_operations: 1024,
            max_responses: 256,
            atomics: true,
            immediate: true,
            rtr_send: false,
            siw: false,
            hold_confirmations: false,
            copy_sources: false,
            version: ddp.version,
            max_ooo_records: ddp.max_ooo_records,
        }
    }
}

impl Config {
    /// Returns the parameters of the DDP stream below: the queues of RFC 5040 §4.1, and with atomics the Atomic
    /// Response queue of RFC 7306.
    pub(crate) fn stream(&self) -> StreamConfig {
        let request_len = if self.atomics { ATOMIC_REQUEST_LEN } else { READ_REQUEST_LEN };
        let queue = |qn, buffers, buffer_size| QueueConfig { qn, buffers, buffer_size };
        let sends = self.recv_buffers.saturating_add(self.rtr_send.into());
        let mut queues = vec![
            // Must be the first queue, because only the first may have posted receives.
            queue(SEND_QUEUE, sends, self.recv_size),
            // RFC 5040 §5.2.2: as many buffers as inbound Read Requests were negotiated.
            queue(REQUEST_QUEUE, self.ird.into(), request_len as u32),
            // RFC 5040 §5.4: room for a single Terminate.
            queue(TERMINATE_QUEUE, 1, TERMINATE_BUFFER),
        ];
        if self.atomics {
            // No buffers at first: one is posted with each atomic sent (RFC 7306 §5.2.2 (5)).
            queues.push(queue(ATOMIC_RESPONSE_QUEUE, 0, ATOMIC_RESPONSE_LEN as u32));
        }
        StreamConfig {
            queues,
            version: self.version,
            max_ooo_records: self.max_ooo_records,
            max_posts: self.max_operations.saturating_add(self.max_responses).saturating_add(1),
            tagged_events: true,
            hold_confirmations: self.hold_confirmations,
            copy_sources: self.copy_sources,
        }
    }
}
