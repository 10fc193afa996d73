//! Configuration of the sessions of an association.

use core::time::Duration;
use ddp::enhanced::{Enhanced, Rtr};

/// Configuration of the sessions of one listener or of one active open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// True to open RDMAP sessions with the enhanced Initiate (RFC 6581 §7). Bare DDP does not negotiate Reads and
    /// uses the plain form. Answers always have the form of the Initiate.
    pub open_enhanced: bool,
    /// Parameters of enhanced messages (RFC 6581), without the read depths (IRD, ORD).
    pub enhanced: Enhanced,
    /// Ready-to-receive messages in order of preference.
    pub rtr_preference: [Rtr; 3],
    /// Time limit for the answer to an Initiate, by the peer or by this end's ULP. On the passive side of the
    /// peer-to-peer model, also for the ready-to-receive message. The same limit applies to the first session of a new
    /// association.
    pub answer_timeout: Duration,
    /// Maximum Initiates per association that the ULP has not yet answered. A further Initiate is answered with a
    /// Terminate (RFC 5043 §6.4).
    pub max_pending: u16,
    /// Maximum concurrent sessions per association, opened by either end. An ended session counts while its messages
    /// may be outstanding. A further Initiate is answered with a Terminate.
    pub max_sessions: u16,
    /// Largest DDP segment accepted, bytes. A larger segment terminates its session (RFC 5043 §9).
    pub max_segment: usize,
    /// Bytes of a packet that segments leave free for bundled control chunks, in addition to SCTP's room for a SACK
    /// (RFC 5043 §9).
    pub control_room: usize,
}

impl Default for Config {
    /// Returns these defaults: enhanced opens in the client-server model, 10 s for answers, 16 pending
    /// Initiates, 512 sessions. Segments up to 64 KiB are accepted, which suffices for any MTU. `control_room`
    /// has room for four Gap Ack Blocks.
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
