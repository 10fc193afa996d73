//! What an association counts besides what its halves count.

/// Counters of an association; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Packets received that belong to the association.
    pub packets_in: u64,
    /// Packets sent.
    pub packets_out: u64,
    /// INIT and COOKIE ECHO chunks sent again.
    pub setup_retransmitted: u64,
    /// SHUTDOWN and SHUTDOWN ACK chunks sent again.
    pub shutdown_retransmitted: u64,
    /// HEARTBEAT chunks sent.
    pub heartbeats_out: u64,
    /// Of these, answered.
    pub heartbeats_answered: u64,
    /// HEARTBEAT chunks received and answered.
    pub heartbeats_in: u64,
    /// Causes in ERROR chunks received.
    pub errors_in: u64,
    /// ERROR chunks sent.
    pub errors_out: u64,
    /// Chunks of unknown types received.
    pub unknown_chunks: u64,
    /// INITs answered while there was an association.
    pub inits_answered: u64,
    /// Answers, causes to report and last packets that were not sent: too long for a packet, more than are kept, or
    /// without room for too long.
    pub unsent: u64,
    /// Times packets became smaller because the path carries less.
    pub path_mtu_reductions: u64,
    /// Times they became larger again.
    pub path_mtu_raises: u64,
    /// Packets sent to find out whether the path carries their size.
    pub path_mtu_probes: u64,
    /// Of these, unanswered.
    pub path_mtu_probes_lost: u64,
    /// Black holes found.
    pub path_mtu_black_holes: u64,
}
