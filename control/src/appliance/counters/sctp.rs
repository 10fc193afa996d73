//! SCTP's counters as named by the API. An association's counters cover all its sessions and are added to the totals
//! once.

use api::Counters;
use dataplane::AssociationStats;
use sctp_lite::endpoint::SessionStats;

use super::table::counters;
use super::ulp::put_ulp;

pub(super) fn session_counters(stats: &SessionStats) -> Counters {
    let mut counters = Counters::new();
    put_session(&mut counters, stats);
    put_ulp(&mut counters, &stats.ddp, &stats.rdmap);
    counters
}

pub(in crate::appliance) fn association_counters(stats: &AssociationStats) -> Counters {
    let mut counters = Counters::new();
    put_association(&mut counters, stats);
    counters
}

counters! { SESSION, fn put_session(stats: &SessionStats) {
    /// DDP segments accepted.
    session_segments_in: Counter = stats.session.segments,
    /// Session control messages accepted.
    session_controls_in: Counter = stats.session.controls,
    /// Bytes of DDP segments accepted.
    session_bytes_in: Counter Bytes = stats.session.bytes,
    /// Messages refused because they were too early or a limit of DDP was reached. The peer retransmits them.
    session_messages_refused: Counter = stats.session.refused,
    /// Messages accepted and discarded after the end of the session.
    session_messages_ignored: Counter = stats.session.ignored,
    /// DDP segments sent for the first time.
    session_segments_out: Counter = stats.session.tx.segments,
    /// Session control messages sent for the first time.
    session_controls_out: Counter = stats.session.tx.controls,
    /// Bytes of messages retransmitted.
    session_bytes_retransmitted: Counter Bytes = stats.session.tx.retransmitted,
    /// Largest number of bytes kept for retransmission at one time, so far.
    session_bytes_kept_max: Maximum Bytes = stats.session.tx.kept_max,
}}

counters! { ASSOCIATION, fn put_association(stats: &AssociationStats) {
    /// Packets received with the verification tag of this end, or with a valid cookie.
    sctp_packets_in: Counter = stats.endpoint.sctp.packets_in,
    /// Packets sent.
    sctp_packets_out: Counter = stats.endpoint.sctp.packets_out,
    /// INIT and COOKIE ECHO chunks retransmitted.
    sctp_setups_retransmitted: Counter = stats.endpoint.sctp.setup_retransmitted,
    /// SHUTDOWN and SHUTDOWN ACK chunks retransmitted.
    sctp_shutdowns_retransmitted: Counter = stats.endpoint.sctp.shutdown_retransmitted,
    /// HEARTBEAT chunks received for which a HEARTBEAT ACK was queued.
    sctp_heartbeats_in: Counter = stats.endpoint.sctp.heartbeats_in,
    /// HEARTBEAT chunks sent.
    sctp_heartbeats_out: Counter = stats.endpoint.sctp.heartbeats_out,
    /// HEARTBEAT chunks that the peer acknowledged, path MTU probes excluded.
    sctp_heartbeats_answered: Counter = stats.endpoint.sctp.heartbeats_answered,
    /// Error causes in ERROR chunks received.
    sctp_errors_in: Counter = stats.endpoint.sctp.errors_in,
    /// ERROR chunks sent.
    sctp_errors_out: Counter = stats.endpoint.sctp.errors_out,
    /// Chunks of unknown types received.
    sctp_unknown_chunks: Counter = stats.endpoint.sctp.unknown_chunks,
    /// INITs answered by an existing association.
    sctp_inits_answered: Counter = stats.endpoint.sctp.inits_answered,
    /// Replies, error causes and last packets not sent: too long for a packet, too many pending, or no transmit buffer
    /// in time.
    sctp_unsent: Counter = stats.endpoint.sctp.unsent,
    /// Reductions of the path MTU.
    sctp_path_mtu_reductions: Counter = stats.endpoint.sctp.path_mtu_reductions,
    /// Increases of the path MTU.
    sctp_path_mtu_raises: Counter = stats.endpoint.sctp.path_mtu_raises,
    /// Path MTU probes sent.
    sctp_path_mtu_probes: Counter = stats.endpoint.sctp.path_mtu_probes,
    /// Path MTU probes that went unanswered.
    sctp_path_mtu_probes_lost: Counter = stats.endpoint.sctp.path_mtu_probes_lost,
    /// Path MTU black holes detected: large packets are lost without a report (RFC 8899 §4.3).
    sctp_path_mtu_black_holes: Counter = stats.endpoint.sctp.path_mtu_black_holes,
    /// DATA chunks accepted, fragments included.
    sctp_chunks_in: Counter = stats.receive.chunks,
    /// Bytes of user data in accepted DATA chunks.
    sctp_bytes_in: Counter Bytes = stats.receive.bytes,
    /// Duplicate DATA chunks received.
    sctp_chunks_duplicate: Counter = stats.receive.duplicates,
    /// DATA chunks dropped without acknowledgement.
    sctp_chunks_refused: Counter = stats.receive.refused,
    /// DATA chunks that the upper layer refused, a part of `sctp_chunks_refused`.
    sctp_chunks_not_taken: Counter = stats.receive.not_taken,
    /// DATA chunks for streams that do not exist.
    sctp_invalid_streams: Counter = stats.receive.invalid_streams,
    /// Largest number of out-of-order ranges at one time, so far.
    sctp_gaps_max: Maximum = stats.receive.gaps_max,
    /// DATA chunks sent for the first time.
    sctp_chunks_out: Counter = stats.send.chunks,
    /// Bytes of user data in DATA chunks sent for the first time.
    sctp_bytes_out: Counter Bytes = stats.send.bytes,
    /// DATA chunks retransmitted; over TCP, segments.
    retransmitted_segments: Counter = stats.send.retransmitted,
    /// Bytes of user data retransmitted.
    retransmitted_bytes: Counter Bytes = stats.send.bytes_retransmitted,
    /// Bytes of user data acknowledged.
    sctp_bytes_acknowledged: Counter Bytes = stats.send.bytes_acknowledged,
    /// SACKs received, including outdated and invalid SACKs.
    sctp_sacks_in: Counter = stats.send.sacks,
    /// Outdated SACKs received: their cumulative TSN is lower than that of an earlier SACK (RFC 9260 §6.2.1 D i).
    sctp_old_sacks_in: Counter = stats.send.old_sacks,
    /// SACKs and SHUTDOWNs with an impossible acknowledgement.
    sctp_bad_sacks_in: Counter = stats.send.bad_sacks,
    /// Duplicate TSNs that the peer reported.
    sctp_duplicates_reported: Counter = stats.send.duplicates_reported,
    /// Reported duplicate TSNs that match no retransmission: the network duplicated the chunk, or the report is forged.
    sctp_duplicates_ignored: Counter = stats.send.duplicates_ignored,
    /// DATA chunks marked as lost.
    sctp_chunks_lost: Counter = stats.send.lost,
    /// Fast recoveries.
    sctp_fast_recoveries: Counter = stats.send.fast_recoveries,
    /// Expirations of T3-rtx.
    sctp_timeouts: Counter = stats.send.timeouts,
    /// Tail loss probes sent.
    sctp_tail_loss_probes: Counter = stats.send.tail_loss_probes,
    /// Tail losses repaired by a probe.
    sctp_tail_losses_repaired: Counter = stats.send.tail_losses_repaired,
    /// Window probes sent.
    sctp_window_probes: Counter = stats.send.window_probes,
    /// Loss episodes undone because duplicate reports showed that all retransmissions were unnecessary.
    sctp_undone_by_duplicates: Counter = stats.send.undone_by_duplicates,
    /// Spurious time-outs detected by F-RTO (RFC 5682) and undone.
    sctp_undone_by_frto: Counter = stats.send.undone_by_frto,
    /// Reneging events: the peer withdrew data reported in Gap Ack Blocks (RFC 9260 §6.2.1 D iii).
    sctp_reneged: Counter = stats.send.reneged,
    /// Transmissions delayed by pacing.
    sctp_paced_waits: Counter = stats.send.paced_waits,
    /// Sessions requested by the peer.
    session_requests: Counter = stats.endpoint.adaptation.requests,
    /// Initiates answered with a Terminate, because a limit was reached (RFC 5043 §6.4) or the association is closing.
    session_turned_away: Counter = stats.endpoint.adaptation.turned_away,
    /// Sessions terminated because the peer's messages violate the legal sequences (RFC 5043 §6.1).
    session_illegal: Counter = stats.endpoint.adaptation.illegal,
    /// Messages on streams without a session that arrived before their Initiate; refused.
    session_early: Counter = stats.endpoint.adaptation.early_messages,
    /// Terminates on streams without a session.
    session_stray: Counter = stats.endpoint.adaptation.unmatched_terminates,
    /// Messages on streams without a counterpart in the other direction; discarded.
    session_unpaired: Counter = stats.endpoint.adaptation.unpaired_messages,
}}
