//! Configuration of the sessions of an association.

use core::time::Duration;
use ddp::enhanced::{Enhanced, Rtr};

/// Configuration of the sessions of one listener or of one active open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// True if RDMAP sessions are opened with the enhanced Initiate (RFC 6581 §7). An Initiate is always
    /// answered in its own form. Bare DDP does not negotiate Reads and uses the plain form.
    pub open_enhanced: bool,
    /// Parameters of enhanced messages besides the read depths.
    pub enhanced: Enhanced,
    /// Ready-to-receive messages in order of preference.
    pub rtr_preference: [Rtr; 3],
    /// Time in which an Initiate must be answered, by the peer or by this end's ULP, and in which an
    /// association must get its first session.
    pub answer_timeout: Duration,
    /// Undecided Initiates per association, at most; a further one is answered with a Terminate
    /// (RFC 5043 §6.4).
    pub max_pending: u16,
    /// Concurrent sessions per association, at most, opened from either side; a further one is answered with
    /// a Terminate.
    pub max_sessions: u16,
    /// Largest DDP segment accepted, bytes; a larger one terminates its session (RFC 5043 §9).
    pub max_segment: usize,
    /// Bytes of a packet that segments leave free for bundled control chunks, besides the room that SCTP
    /// reserves for a SACK (RFC 5043 §9).
    pub control_room: usize,
}

impl Default for Config {
    /// Enhanced opens, client-server model; 10 s; 16 requests, 512 sessions; segments up to 64 KiB, so that
    /// those of any MTU are accepted; room for four gap blocks.
    fn default() -> Self {
        Config {
            open_enhanced: true,
            enhanced: Enhanced::default(),
            rtr_preference: [Rtr::Write, Rtr::Read, Rtr::Send],
            answer_timeout: Duration::from_secs(10),
            max_pending: 16,
            max_sessions: 512,
            max_segment: 64 * 1024,
            control_room: 16,
        }
    }
}
