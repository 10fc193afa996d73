//! Counters of an association, besides those of its two halves.

/// Counters of an association; they never decrease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Packets received that belong to the association.
    pub packets_in: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// INIT and COOKIE ECHO chunks retransmitted.
    pub setup_retransmitted: u64,
    /// SHUTDOWN and SHUTDOWN ACK chunks retransmitted.
    pub shutdown_retransmitted: u64,
    /// HEARTBEAT chunks sent.
    pub heartbeats_out: u64,
    /// HEARTBEAT chunks sent that were answered.
    pub heartbeats_answered: u64,
    /// HEARTBEAT chunks received and answered.
    pub heartbeats_in: u64,
    /// Causes in ERROR chunks received.
    pub errors_in: u64,
    /// ERROR chunks sent.
    pub errors_out: u64,
    /// Chunks of unknown types received.
    pub unknown_chunks: u64,
    /// INITs answered while an association existed.
    pub inits_answered: u64,
    /// Answers, error causes and last packets not sent: too long for a packet, beyond the number kept, or
    /// without room for too long.
    pub unsent: u64,
    /// Reductions of the packet size to the path MTU.
    pub path_mtu_reductions: u64,
    /// Increases of the packet size.
    pub path_mtu_raises: u64,
    /// Path MTU probes sent.
    pub path_mtu_probes: u64,
    /// Path MTU probes that went unanswered.
    pub path_mtu_probes_lost: u64,
    /// Black holes detected.
    pub path_mtu_black_holes: u64,
}
