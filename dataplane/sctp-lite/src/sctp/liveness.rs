//! Liveness of the peer (RFC 9260 §8.3).

use base::Instant;

/// Times of the last packet received and the last DATA sent, and the heartbeat.
#[derive(Debug)]
pub(super) struct Liveness {
    pub(super) heartbeat: Heartbeat,
    /// When DATA went out last.
    pub(super) data_sent: Instant,
    /// When a packet of the peer came last that belonged to the association.
    pub(super) last_received: Instant,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Liveness {
        Liveness { heartbeat: Heartbeat::default(), data_sent: now, last_received: now }
    }
}

/// The HEARTBEAT that was sent last.
#[derive(Clone, Debug, Default)]
pub(super) struct Heartbeat {
    /// What only its answer can know; none was sent yet, or it was answered.
    pub(super) nonce: Option<u64>,
    pub(super) sent: Instant,
    /// Its answer is not overdue yet.
    pub(super) awaited: bool,
    /// Unanswered ones in a row.
    pub(super) unanswered: u32,
    /// How many were sent, probes of the path included.
    pub(super) count: u64,
}
