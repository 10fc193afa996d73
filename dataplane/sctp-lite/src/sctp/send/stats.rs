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
    /// SACKs received, including outdated and invalid SACKs.
    pub sacks: u64,
    /// SACKs with a lower cumulative TSN than an earlier one (RFC 9260 §6.2.1 D i).
    pub old_sacks: u64,
    /// SACKs and SHUTDOWNs that acknowledge data never sent, and SACKs with an impossible Gap Ack Block.
    pub bad_sacks: u64,
    /// Duplicate TSNs that the peer reported; at most 32 per SACK are counted.
    pub duplicates_reported: u64,
    /// Reported duplicate TSNs without effect. The chunk was not retransmitted in the present loss episode or as a tail
    /// loss probe, or its duplicate was reported before. The network copied the chunk, or the report is forged.
    pub duplicates_ignored: u64,
    /// DATA chunks that loss detection (RFC 8985 §6.2) found lost. Chunks marked for other reasons, such as T3-rtx, are
    /// not included.
    pub lost: u64,
    /// Fast recoveries started.
    pub fast_recoveries: u64,
    /// Expirations of T3-rtx, excluding window probes.
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
    /// Number of times that pacing delayed a packet.
    pub paced_waits: u64,
}
