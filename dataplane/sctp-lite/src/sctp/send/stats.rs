//! Counters of the send half.

/// Counters of an association's send half.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendStats {
    /// DATA chunks sent for the first time.
    pub chunks: u64,
    /// Bytes of user data in `chunks`.
    pub bytes: u64,
    /// DATA chunks retransmitted.
    pub retransmitted: u64,
    /// Bytes of user data in `retransmitted`.
    pub bytes_retransmitted: u64,
    /// Bytes of user data acknowledged.
    pub bytes_acknowledged: u64,
    /// SACKs received, outdated and invalid ones included.
    pub sacks: u64,
    /// SACKs with a lower cumulative TSN than an earlier one (RFC 9260 §6.2.1 D i).
    pub old_sacks: u64,
    /// SACKs and SHUTDOWNs whose acknowledgement is impossible for the data sent.
    pub bad_sacks: u64,
    /// Duplicate TSNs that the peer reported.
    pub duplicates_reported: u64,
    /// Reported duplicates without effect: not retransmitted in the present loss episode or as a tail loss probe, or
    /// reported before. The network made such duplicates, or they are forged.
    pub duplicates_ignored: u64,
    /// DATA chunks marked as lost.
    pub lost: u64,
    /// Fast recoveries begun.
    pub fast_recoveries: u64,
    /// Expirations of T3-rtx.
    pub timeouts: u64,
    /// Tail loss probes sent.
    pub tail_loss_probes: u64,
    /// Tail losses repaired by a probe.
    pub tail_losses_repaired: u64,
    /// Window probes sent.
    pub window_probes: u64,
    /// Loss episodes undone because duplicate reports showed that all retransmissions were unnecessary.
    pub undone_by_duplicates: u64,
    /// Time-outs that F-RTO found spurious (RFC 5682).
    pub undone_by_frto: u64,
    /// Reneging events: the peer withdrew data reported in Gap Ack Blocks (RFC 9260 §6.2.1 D iii).
    pub reneged: u64,
    /// Transmissions delayed by pacing.
    pub paced_waits: u64,
}
