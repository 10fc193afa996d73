//! What the send half counts.

/// Counters of an association's send half.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendStats {
    /// DATA chunks sent for the first time.
    pub chunks: u64,
    /// Bytes of user data in them.
    pub bytes: u64,
    /// DATA chunks sent again.
    pub retransmitted: u64,
    /// Bytes of user data in them.
    pub bytes_retransmitted: u64,
    /// Bytes of user data that were acknowledged.
    pub bytes_acknowledged: u64,
    /// SACKs.
    pub sacks: u64,
    /// SACKs older than one that came before (RFC 9260 §6.2.1 D i).
    pub old_sacks: u64,
    /// SACKs that made no sense.
    pub bad_sacks: u64,
    /// Duplicate TSNs that the peer reported.
    pub duplicates_reported: u64,
    /// Of these, such that were neither sent again in the present loss episode nor as a tail loss probe, or
    /// were reported before: duplicates of the network, or forged.
    pub duplicates_ignored: u64,
    /// DATA chunks that were considered lost.
    pub lost: u64,
    /// Fast recoveries.
    pub fast_recoveries: u64,
    /// Expirations of T3-rtx.
    pub timeouts: u64,
    /// Tail loss probes.
    pub tail_loss_probes: u64,
    /// Tail losses that a probe repaired.
    pub tail_losses_repaired: u64,
    /// Probes of a closed window.
    pub window_probes: u64,
    /// Loss episodes undone because all that was sent again had arrived before.
    pub undone_by_duplicates: u64,
    /// Time-outs that F-RTO found spurious.
    pub undone_by_frto: u64,
    /// Times the peer reneged on what it had reported in Gap Ack Blocks.
    pub reneged: u64,
    /// Waits for the next burst.
    pub paced_waits: u64,
}
