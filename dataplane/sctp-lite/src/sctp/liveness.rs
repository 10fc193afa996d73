//! Liveness of the peer (RFC 9260 §8.3).

use base::Instant;

/// Times of the last packet received and the last DATA sent, and the state of the last HEARTBEAT.
#[derive(Debug)]
pub(super) struct Liveness {
    pub(super) heartbeat: Heartbeat,
    /// Time of the last transmission of DATA.
    pub(super) data_sent: Instant,
    /// Time of the peer's last packet with a valid tag.
    pub(super) last_received: Instant,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Liveness {
        Liveness { heartbeat: Heartbeat::default(), data_sent: now, last_received: now }
    }
}

/// State of the last HEARTBEAT.
#[derive(Clone, Debug, Default)]
pub(super) struct Heartbeat {
    /// Nonce of the last HEARTBEAT; `None` before the first HEARTBEAT and once it is answered.
    pub(super) nonce: Option<u64>,
    /// Time of transmission of the last HEARTBEAT.
    pub(super) sent: Instant,
    /// True while a HEARTBEAT ACK is awaited and not overdue.
    pub(super) awaited: bool,
    /// Consecutive unanswered HEARTBEATs.
    pub(super) unanswered: u32,
    /// Nonces issued, for HEARTBEATs and path MTU probes.
    pub(super) count: u64,
}
