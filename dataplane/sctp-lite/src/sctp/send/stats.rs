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
    /// SACKs received, old and invalid ones included.
    pub sacks: u64,
    /// SACKs older than an earlier one (RFC 9260 §6.2.1 D i).
    pub old_sacks: u64,
    /// Acknowledgements that are impossible for the data sent; those of SHUTDOWNs included.
    pub bad_sacks: u64,
    /// Duplicate TSNs that the peer reported.
    pub duplicates_reported: u64,
    /// Reported duplicates without effect: neither retransmitted in the present loss episode nor as a tail
    /// loss probe, or reported before. Such duplicates were made by the network, or are forged.
    pub duplicates_ignored: u64,
    /// DATA chunks marked as lost.
    pub lost: u64,
    /// Fast recoveries begun.
    pub fast_recoveries: u64,
    /// Expirations of T3-rtx.
    pub timeouts: u64,
    /// Tail loss probes sent.
    pub tail_loss_probes: u64,
    /// Tail losses that a probe repaired.
    pub tail_losses_repaired: u64,
    /// Probes of a closed window sent.
    pub window_probes: u64,
    /// Loss episodes undone because all retransmitted data had arrived before.
    pub undone_by_duplicates: u64,
    /// Time-outs that F-RTO found spurious.
    pub undone_by_frto: u64,
    /// Reneging events: the peer withdrew data reported in Gap Ack Blocks.
    pub reneged: u64,
    /// Transmissions delayed by pacing.
    pub paced_waits: u64,
}
