//! SCTP's counters as named by the API. Those of a session are its own; those of an association cover all its sessions
//! and are summed once.

use api::Counters;
use dataplane::AssociationStats;
use sctp_lite::endpoint::SessionStats;

use super::table::counters;
use super::ulp::put_ulp;

/// Returns the counters of a session.
pub(super) fn session_counters(stats: &SessionStats) -> Counters {
    let mut counters = Counters::new();
    put_session(&mut counters, stats);
    put_ulp(&mut counters, &stats.ddp, &stats.rdmap);
    counters
}

/// Returns the counters of an association.
pub(in crate::appliance) fn association_counters(stats: &AssociationStats) -> Counters {
    let mut counters = Counters::new();
    put_association(&mut counters, stats);
    counters
}

counters! { SESSION, fn put_session(stats: &SessionStats) {
    /// DDP segments taken.
    session_segments_in: Counter = stats.session.segments,
    /// Session control messages taken.
    session_controls_in: Counter = stats.session.controls,
    /// Bytes of DDP segments taken.
    session_bytes_in: Counter Bytes = stats.session.bytes,
    /// Messages not taken, because it was too early for them or DDP had no room: the peer sends them again.
    session_messages_refused: Counter = stats.session.refused,
    /// Messages taken and thrown away, after the end.
    session_messages_ignored: Counter = stats.session.ignored,
    /// DDP segments written for the first time.
    session_segments_out: Counter = stats.session.tx.segments,
    /// Session control messages written for the first time.
    session_controls_out: Counter = stats.session.tx.controls,
    /// Bytes of messages written again.
    session_bytes_retransmitted: Counter Bytes = stats.session.tx.retransmitted,
    /// Most bytes kept for retransmission at any time.
    session_bytes_kept_max: Maximum Bytes = stats.session.tx.kept_max,
}}

counters! { ASSOCIATION, fn put_association(stats: &AssociationStats) {
    /// Packets received that belong to the association.
    sctp_packets_in: Counter = stats.endpoint.sctp.packets_in,
    /// Packets sent.
    sctp_packets_out: Counter = stats.endpoint.sctp.packets_out,
    /// INIT and COOKIE ECHO chunks sent again.
    sctp_setups_retransmitted: Counter = stats.endpoint.sctp.setup_retransmitted,
    /// SHUTDOWN and SHUTDOWN ACK chunks sent again.
    sctp_shutdowns_retransmitted: Counter = stats.endpoint.sctp.shutdown_retransmitted,
    /// HEARTBEAT chunks received and answered.
    sctp_heartbeats_in: Counter = stats.endpoint.sctp.heartbeats_in,
    /// HEARTBEAT chunks sent.
    sctp_heartbeats_out: Counter = stats.endpoint.sctp.heartbeats_out,
    /// HEARTBEAT chunks of ours that were answered.
    sctp_heartbeats_answered: Counter = stats.endpoint.sctp.heartbeats_answered,
    /// Causes in ERROR chunks received.
    sctp_errors_in: Counter = stats.endpoint.sctp.errors_in,
    /// ERROR chunks sent.
    sctp_errors_out: Counter = stats.endpoint.sctp.errors_out,
    /// Chunks of unknown types received.
    sctp_unknown_chunks: Counter = stats.endpoint.sctp.unknown_chunks,
    /// INITs answered while there was an association.
    sctp_inits_answered: Counter = stats.endpoint.sctp.inits_answered,
    /// Answers, causes to report and last packets that were not sent for want of room.
    sctp_unsent: Counter = stats.endpoint.sctp.unsent,
    /// Times packets became smaller because the path carries less.
    sctp_path_mtu_reductions: Counter = stats.endpoint.sctp.path_mtu_reductions,
    /// Times packets became larger again.
    sctp_path_mtu_raises: Counter = stats.endpoint.sctp.path_mtu_raises,
    /// Packets sent to find out whether the path carries their size.
    sctp_path_mtu_probes: Counter = stats.endpoint.sctp.path_mtu_probes,
    /// Probes of the path MTU that were not answered.
    sctp_path_mtu_probes_lost: Counter = stats.endpoint.sctp.path_mtu_probes_lost,
    /// Black holes found.
    sctp_path_mtu_black_holes: Counter = stats.endpoint.sctp.path_mtu_black_holes,
    /// DATA chunks that were taken, fragments among them.
    sctp_chunks_in: Counter = stats.receive.chunks,
    /// Bytes of user data in DATA chunks that were taken.
    sctp_bytes_in: Counter Bytes = stats.receive.bytes,
    /// DATA chunks that came again.
    sctp_chunks_duplicate: Counter = stats.receive.duplicates,
    /// DATA chunks dropped without acknowledgement.
    sctp_chunks_refused: Counter = stats.receive.refused,
    /// DATA chunks that the upper layer did not take.
    sctp_chunks_not_taken: Counter = stats.receive.not_taken,
    /// DATA chunks for streams that do not exist.
    sctp_invalid_streams: Counter = stats.receive.invalid_streams,
    /// Most ranges beyond a gap at a time.
    sctp_gaps_max: Maximum = stats.receive.gaps_max,
    /// DATA chunks sent for the first time.
    sctp_chunks_out: Counter = stats.send.chunks,
    /// Bytes of user data in DATA chunks sent for the first time.
    sctp_bytes_out: Counter Bytes = stats.send.bytes,
    /// DATA chunks sent again.
    retransmitted_segments: Counter = stats.send.retransmitted,
    /// Bytes of user data sent again.
    retransmitted_bytes: Counter Bytes = stats.send.bytes_retransmitted,
    /// Bytes of user data that were acknowledged.
    sctp_bytes_acknowledged: Counter Bytes = stats.send.bytes_acknowledged,
    /// SACKs received.
    sctp_sacks_in: Counter = stats.send.sacks,
    /// SACKs older than one that came before (RFC 9260 §6.2.1 D i).
    sctp_old_sacks_in: Counter = stats.send.old_sacks,
    /// SACKs that made no sense.
    sctp_bad_sacks_in: Counter = stats.send.bad_sacks,
    /// Duplicate TSNs that the peer reported.
    sctp_duplicates_reported: Counter = stats.send.duplicates_reported,
    /// Reports of duplicate TSNs about nothing that was sent again: duplicates of the network, or forged.
    sctp_duplicates_ignored: Counter = stats.send.duplicates_ignored,
    /// DATA chunks that were considered lost.
    sctp_chunks_lost: Counter = stats.send.lost,
    /// Fast recoveries.
    sctp_fast_recoveries: Counter = stats.send.fast_recoveries,
    /// Expirations of T3-rtx.
    sctp_timeouts: Counter = stats.send.timeouts,
    /// Tail loss probes sent.
    sctp_tail_loss_probes: Counter = stats.send.tail_loss_probes,
    /// Tail losses that a probe repaired.
    sctp_tail_losses_repaired: Counter = stats.send.tail_losses_repaired,
    /// Probes of a closed window.
    sctp_window_probes: Counter = stats.send.window_probes,
    /// Loss episodes undone because all that was sent again had arrived before.
    sctp_undone_by_duplicates: Counter = stats.send.undone_by_duplicates,
    /// Time-outs that F-RTO found spurious.
    sctp_undone_by_frto: Counter = stats.send.undone_by_frto,
    /// Times the peer took back what it had reported in Gap Ack Blocks.
    sctp_reneged: Counter = stats.send.reneged,
    /// Times that a burst waited by pacing.
    sctp_paced_waits: Counter = stats.send.paced_waits,
    /// Sessions that the peer asked for.
    session_requests: Counter = stats.endpoint.adaptation.requests,
    /// Initiates answered by a Terminate, because a bound was reached (RFC 5043 §6.4).
    session_turned_away: Counter = stats.endpoint.adaptation.turned_away,
    /// Sessions terminated because the peer's messages fit no legal sequence (RFC 5043 §6.1).
    session_illegal: Counter = stats.endpoint.adaptation.illegal,
    /// Messages on streams without a session that begin none and are behind the beginning of one.
    session_early: Counter = stats.endpoint.adaptation.early_messages,
    /// Terminates on streams without a session.
    session_stray: Counter = stats.endpoint.adaptation.unmatched_terminates,
    /// Messages on streams that have no counterpart in the other direction.
    session_unpaired: Counter = stats.endpoint.adaptation.unpaired_messages,
}}
