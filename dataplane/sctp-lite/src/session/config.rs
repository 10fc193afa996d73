//! What an operator chooses about the sessions of an association.

use core::time::Duration;
use ddp::enhanced::{Enhanced, Rtr};

/// Configuration of the sessions of one listener or of one active open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Whether sessions of RDMAP are opened by the enhanced Initiate (RFC 6581 §7). An Initiate is always
    /// answered in its own form; bare DDP has no Reads to negotiate and opens without it.
    pub open_enhanced: bool,
    /// What enhanced messages negotiate besides the read depths.
    pub enhanced: Enhanced,
    /// Ready-to-receive messages in the order in which this end likes to send them.
    pub rtr_preference: [Rtr; 3],
    /// How long an Initiate may go unanswered, by the peer or by this end's ULP, and how long an association
    /// may be without its first session.
    pub answer_timeout: Duration,
    /// Most Initiates of an association that await this end's decision; one more is answered by a
    /// Terminate (RFC 5043 §6.4).
    pub max_pending: u16,
    /// Most sessions of an association at one time, opened from either side; one more is answered by a
    /// Terminate.
    pub max_sessions: u16,
    /// Largest DDP segment to take, in bytes; a session in which a larger one comes is terminated
    /// (RFC 5043 §9).
    pub max_segment: usize,
    /// Bytes that a segment to send leaves of a packet for control chunks that are bundled with it, besides
    /// what SCTP keeps free for a SACK (RFC 5043 §9).
    pub control_room: usize,
}

impl Default for Config {
    /// Enhanced opens, client-server; 10 s; 16 requests, 512 sessions; segments up to 64 KiB, so that those of any
    /// MTU are taken; room for four gap blocks.
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
