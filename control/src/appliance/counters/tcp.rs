//! Counters of TCP and MPA as named by the API.

use api::Counters;
use tcp_lite::endpoint::EndpointStats;

use super::table::counters;
use super::ulp::put_ulp;

/// Returns the counters of a stream over TCP.
pub(super) fn tcp_counters(stats: &EndpointStats) -> Counters {
    let mut counters = Counters::new();
    put_tcp(&mut counters, stats);
    put_ulp(&mut counters, &stats.ddp, &stats.rdmap);
    counters
}

counters! { TCP, fn put_tcp(stats: &EndpointStats) {
    /// Segments received that belong to the connection.
    tcp_segments_in: Counter = stats.tcp.segments_in,
    /// Segments sent, retransmissions and acknowledgements included.
    tcp_segments_out: Counter = stats.tcp.segments_out,
    /// Bytes of the stream that the upper layer took, each once.
    tcp_bytes_in: Counter Bytes = stats.tcp.recv.bytes,
    /// Bytes of the stream that the upper layer took beyond a gap.
    tcp_bytes_out_of_order: Counter Bytes = stats.tcp.recv.bytes_out_of_order,
    /// Bytes received again after they had been taken.
    tcp_bytes_duplicate: Counter Bytes = stats.tcp.recv.bytes_duplicate,
    /// Bytes in the window that were not taken: by the upper layer or past the bound on ranges.
    tcp_bytes_refused: Counter Bytes = stats.tcp.recv.bytes_refused,
    /// Bytes of the stream sent for the first time.
    tcp_bytes_out: Counter Bytes = stats.tcp.bytes_out,
    /// Bytes cumulatively acknowledged by the peer.
    tcp_bytes_acknowledged: Counter Bytes = stats.tcp.bytes_acknowledged,
    /// Segments sent again.
    retransmitted_segments: Counter = stats.tcp.loss.segments_retransmitted,
    /// Bytes sent again.
    retransmitted_bytes: Counter Bytes = stats.tcp.loss.bytes_retransmitted,
    /// Segments without data, SYN, FIN and RST, that only acknowledge.
    tcp_acks_out: Counter = stats.tcp.acks_out,
    /// Duplicate acknowledgements received (RFC 5681 §2).
    tcp_duplicate_acks_in: Counter = stats.tcp.loss.duplicate_acks_in,
    /// Times loss recovery was entered without a time-out.
    tcp_fast_recoveries: Counter = stats.tcp.loss.fast_recoveries,
    /// Retransmission time-outs.
    tcp_timeouts: Counter = stats.tcp.loss.timeouts,
    /// Segments found lost by time (RFC 8985 §6.2).
    tcp_segments_lost: Counter = stats.tcp.loss.segments_lost,
    /// Tail loss probes sent (RFC 8985 §7.3).
    tcp_tail_loss_probes: Counter = stats.tcp.loss.tail_loss_probes,
    /// Losses of a last segment that a probe repaired (RFC 8985 §7.4.2).
    tcp_tail_losses_repaired: Counter = stats.tcp.loss.tail_losses_repaired,
    /// Time-outs that F-RTO showed to be spurious (RFC 5682), undone.
    tcp_undone_by_frto: Counter = stats.tcp.loss.undone_by_frto,
    /// Recoveries and time-outs that timestamps showed to be spurious (RFC 3522), undone.
    tcp_undone_by_timestamp: Counter = stats.tcp.loss.undone_by_timestamp,
    /// Recoveries and time-outs that D-SACK showed to be spurious (RFC 3708), undone.
    tcp_undone_by_d_sack: Counter = stats.tcp.loss.undone_by_d_sack,
    /// Acknowledgements with D-SACK received (RFC 2883).
    tcp_d_sacks_in: Counter = stats.tcp.loss.d_sacks_in,
    /// Reports of D-SACK about nothing that was sent again: duplicates of the network, or forged.
    tcp_d_sacks_ignored: Counter = stats.tcp.loss.d_sacks_ignored,
    /// Acknowledgements with D-SACK sent.
    tcp_d_sacks_out: Counter = stats.tcp.recv.d_sacks,
    /// Times that a burst waited by pacing.
    tcp_paced_waits: Counter = stats.tcp.paced_waits,
    /// Probes of a closed window.
    tcp_window_probes: Counter = stats.tcp.window_probes,
    /// Keepalive probes.
    tcp_keepalive_probes: Counter = stats.tcp.keepalive_probes,
    /// Challenge acknowledgements sent (RFC 5961).
    tcp_challenge_acks: Counter = stats.tcp.challenge_acks,
    /// Data segments that the network marked instead of dropping them (RFC 3168).
    tcp_ecn_marks_in: Counter = stats.tcp.recv.ecn_marks,
    /// Times the congestion window was reduced because the peer echoed a mark (RFC 3168).
    tcp_ecn_reductions: Counter = stats.tcp.ecn_reductions,
    /// Times the path MTU shrank.
    tcp_path_mtu_reductions: Counter = stats.tcp.path_mtu.reductions,
    /// Times the path MTU grew again.
    tcp_path_mtu_raises: Counter = stats.tcp.path_mtu.raises,
    /// Probes of the path MTU (RFC 4821).
    tcp_path_mtu_probes: Counter = stats.tcp.path_mtu.probes,
    /// Probes of the path MTU that were lost.
    tcp_path_mtu_probes_lost: Counter = stats.tcp.path_mtu.probes_lost,
    /// Times that long segments vanished without a report (RFC 4821 §7.7).
    tcp_path_mtu_black_holes: Counter = stats.tcp.path_mtu.black_holes,
    /// FPDUs handed up.
    mpa_fpdus_in: Counter = stats.mpa_rx.fpdus,
    /// Most bytes held beyond a gap at any time.
    held_bytes_max: Maximum Bytes = stats.mpa_rx.held_max,
    /// Most bytes at any time that could not be located beyond a gap.
    unlocatable_bytes_max: Maximum Bytes = stats.mpa_rx.unlocatable_max,
    /// Bytes not taken, for want of room to hold them; the peer sends them again.
    mpa_bytes_refused: Counter Bytes = stats.mpa_rx.refused,
    /// Segments dropped because an FPDU in them could not be verified: a wrong CRC, or a length that cannot be.
    mpa_bad_crc_dropped: Counter = stats.mpa_rx.bad_crc_dropped,
    /// Segments that did not begin with an FPDU, as far as that was known when they came.
    mpa_alignment_lost: Counter = stats.mpa_rx.alignment_lost,
    /// Bytes taken and thrown away after an error.
    mpa_bytes_discarded: Counter Bytes = stats.mpa_rx.discarded,
    /// FPDUs framed for the first time.
    mpa_fpdus_out: Counter = stats.mpa_tx.fpdus,
    /// Segments that hold more than one FPDU.
    mpa_segments_packed: Counter = stats.mpa_tx.packed,
    /// Segments that begin or end inside an FPDU.
    mpa_segments_cut: Counter = stats.mpa_tx.cut,
    /// Most bytes kept for retransmission at any time.
    mpa_bytes_kept_max: Maximum Bytes = stats.mpa_tx.kept_max,
}}
