//! Counters of an RDMAP stream, in addition to [`ddp::Counters`](crate::Counters).

use base::Blank;

use crate::rdmap::ErrorCode;

/// Counters of one stream. Bytes are payload bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Delivered Sends of all four kinds: with or without Solicited Event and Invalidate.
    pub sends_received: u64,
    /// Delivered Immediate Data messages.
    pub immediates_received: u64,
    /// Delivered Writes.
    pub writes_received: u64,
    /// Payload bytes of delivered Writes.
    pub written_bytes: u64,
    /// Delivered Read Requests, including refused requests.
    pub reads_received: u64,
    /// Read Responses whose last byte is acknowledged.
    pub reads_served: u64,
    /// Payload bytes of acknowledged Read Responses.
    pub read_bytes_served: u64,
    /// Atomics of the peer executed in this end's memory.
    pub atomics_served: u64,
    /// STags that the peer has invalidated.
    pub invalidations: u64,
    /// This end's operations that completed.
    pub completed: u64,
    /// This end's operations that were flushed.
    pub flushed: u64,
    /// Payload bytes received by this end's Reads.
    pub read_bytes: u64,
    /// Times that a Read or atomic waited because ORD requests were outstanding.
    pub ord_waits: u64,
    /// Largest number of the peer's requests that awaited their response at one time, so far.
    pub requests_max: u64,
    /// Terminates sent: 0 or 1.
    pub terminates_sent: u64,
    /// Terminates received: 0 or 1.
    pub terminates_received: u64,
    /// RDMAP errors that this end found, indexed by [`ErrorCode::index`].
    pub errors: [u64; ErrorCode::ALL.len()],
}

base::prefetch!(Counters:);

impl Blank for Counters {
    fn blank() -> &'static Self {
        static BLANK: Counters = Counters {
            sends_received: 0,
            immediates_received: 0,
            writes_received: 0,
            written_bytes: 0,
            reads_received: 0,
            reads_served: 0,
            read_bytes_served: 0,
            atomics_served: 0,
            invalidations: 0,
            completed: 0,
            flushed: 0,
            read_bytes: 0,
            ord_waits: 0,
            requests_max: 0,
            terminates_sent: 0,
            terminates_received: 0,
            errors: [0; ErrorCode::ALL.len()],
        };
        &BLANK
    }
}
