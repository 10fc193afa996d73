//! Counters of an association, excluding its receive and send halves.

/// Counters of an association, in chunks unless noted otherwise. They never decrease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Packets received with this end's verification tag or a valid cookie.
    pub packets_in: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// INIT and COOKIE ECHO chunks retransmitted, including new INITs after a stale cookie.
    pub setup_retransmitted: u64,
    /// Expirations of T2-shutdown. Each retransmits SHUTDOWN or SHUTDOWN ACK, except one that ends the association.
    pub shutdown_retransmitted: u64,
    /// HEARTBEAT chunks sent; path MTU probes are not included.
    pub heartbeats_out: u64,
    /// HEARTBEAT chunks in `heartbeats_out` that the peer acknowledged.
    pub heartbeats_answered: u64,
    /// HEARTBEAT chunks received for which a HEARTBEAT ACK was queued.
    pub heartbeats_in: u64,
    /// Causes in ERROR chunks received.
    pub errors_in: u64,
    /// ERROR chunks sent.
    pub errors_out: u64,
    /// Chunks of unknown types received.
    pub unknown_chunks: u64,
    /// INITs answered by an existing association.
    pub inits_answered: u64,
    /// Replies, error causes and last packets that were not sent, because they are too long for a packet, too many are
    /// pending, or the batch had no room in time.
    pub unsent: u64,
    /// Reductions of the packet size, after an ICMP report, a black hole, or a reduction known from another
    /// association.
    pub path_mtu_reductions: u64,
    /// Increases of the packet size, as after a successful path MTU probe.
    pub path_mtu_raises: u64,
    /// Path MTU probes sent.
    pub path_mtu_probes: u64,
    /// Path MTU probes that went unanswered.
    pub path_mtu_probes_lost: u64,
    /// Black holes detected: packets above a size are lost without a report (RFC 8899 §4.3).
    pub path_mtu_black_holes: u64,
}
