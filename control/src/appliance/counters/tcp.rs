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
    /// Bytes of the stream that the upper layer accepted, each once.
    tcp_bytes_in: Counter Bytes = stats.tcp.recv.bytes,
    /// Bytes of the stream that the upper layer accepted out of order.
    tcp_bytes_out_of_order: Counter Bytes = stats.tcp.recv.bytes_out_of_order,
    /// Duplicate bytes received: the upper layer had accepted them before.
    tcp_bytes_duplicate: Counter Bytes = stats.tcp.recv.bytes_duplicate,
    /// Bytes refused: by the upper layer, by the limit of out-of-order ranges, or outside the window.
    tcp_bytes_refused: Counter Bytes = stats.tcp.recv.bytes_refused,
    /// Bytes of the stream sent for the first time.
    tcp_bytes_out: Counter Bytes = stats.tcp.bytes_out,
    /// Bytes cumulatively acknowledged by the peer, the FIN included.
    tcp_bytes_acknowledged: Counter Bytes = stats.tcp.bytes_acknowledged,
    /// Segments retransmitted, probes included; over SCTP, DATA chunks.
    retransmitted_segments: Counter = stats.tcp.loss.segments_retransmitted,
    /// Payload bytes retransmitted.
    retransmitted_bytes: Counter Bytes = stats.tcp.loss.bytes_retransmitted,
    /// Pure acknowledgements sent: segments without data, SYN, FIN and RST.
    tcp_acks_out: Counter = stats.tcp.acks_out,
    /// Duplicate acknowledgements received (RFC 5681 §2).
    tcp_duplicate_acks_in: Counter = stats.tcp.loss.duplicate_acks_in,
    /// Fast recoveries: loss recovery entered without a time-out.
    tcp_fast_recoveries: Counter = stats.tcp.loss.fast_recoveries,
    /// Retransmission time-outs.
    tcp_timeouts: Counter = stats.tcp.loss.timeouts,
    /// Segments marked lost by RACK (RFC 8985 §6.2).
    tcp_segments_lost: Counter = stats.tcp.loss.segments_lost,
    /// Tail loss probes sent (RFC 8985 §7.3).
    tcp_tail_loss_probes: Counter = stats.tcp.loss.tail_loss_probes,
    /// Losses of the last segment repaired by a tail loss probe (RFC 8985 §7.4.2).
    tcp_tail_losses_repaired: Counter = stats.tcp.loss.tail_losses_repaired,
    /// Spurious time-outs detected by F-RTO (RFC 5682) and undone.
    tcp_undone_by_frto: Counter = stats.tcp.loss.undone_by_frto,
    /// Spurious recoveries and time-outs detected by timestamps (RFC 3522) and undone.
    tcp_undone_by_timestamp: Counter = stats.tcp.loss.undone_by_timestamp,
    /// Spurious recoveries and time-outs detected by D-SACK (RFC 3708) and undone.
    tcp_undone_by_d_sack: Counter = stats.tcp.loss.undone_by_d_sack,
    /// Acknowledgements with D-SACK received (RFC 2883).
    tcp_d_sacks_in: Counter = stats.tcp.loss.d_sacks_in,
    /// D-SACKs that match no retransmission: the network duplicated the segment, or the D-SACK is forged.
    tcp_d_sacks_ignored: Counter = stats.tcp.loss.d_sacks_ignored,
    /// Acknowledgements with D-SACK sent.
    tcp_d_sacks_out: Counter = stats.tcp.recv.d_sacks,
    /// Bursts delayed by pacing.
    tcp_paced_waits: Counter = stats.tcp.paced_waits,
    /// Window probes sent (RFC 9293 §3.8.6.1).
    tcp_window_probes: Counter = stats.tcp.window_probes,
    /// Keepalive probes sent (RFC 9293 §3.8.4).
    tcp_keepalive_probes: Counter = stats.tcp.keepalive_probes,
    /// Challenge acknowledgements sent (RFC 5961).
    tcp_challenge_acks: Counter = stats.tcp.challenge_acks,
    /// Data segments received with a CE mark (RFC 3168).
    tcp_ecn_marks_in: Counter = stats.tcp.recv.ecn_marks,
    /// Reductions of the congestion window because the peer echoed a CE mark (RFC 3168).
    tcp_ecn_reductions: Counter = stats.tcp.ecn_reductions,
    /// Reductions of the path MTU.
    tcp_path_mtu_reductions: Counter = stats.tcp.path_mtu.reductions,
    /// Increases of the path MTU.
    tcp_path_mtu_raises: Counter = stats.tcp.path_mtu.raises,
    /// Path MTU probes sent (RFC 4821).
    tcp_path_mtu_probes: Counter = stats.tcp.path_mtu.probes,
    /// Path MTU probes lost.
    tcp_path_mtu_probes_lost: Counter = stats.tcp.path_mtu.probes_lost,
    /// Path MTU black holes detected: long segments are lost without an ICMP report (RFC 4821 §7.7).
    tcp_path_mtu_black_holes: Counter = stats.tcp.path_mtu.black_holes,
    /// FPDUs delivered to DDP.
    mpa_fpdus_in: Counter = stats.mpa_rx.fpdus,
    /// Largest value of `held_bytes` so far.
    held_bytes_max: Maximum Bytes = stats.mpa_rx.held_max,
    /// Largest value of `unlocatable_bytes` so far.
    unlocatable_bytes_max: Maximum Bytes = stats.mpa_rx.unlocatable_max,
    /// Bytes refused because the receive buffers had reached a limit. The peer retransmits them.
    mpa_bytes_refused: Counter Bytes = stats.mpa_rx.refused,
    /// Segments dropped because an FPDU failed verification: wrong CRC or impossible length.
    mpa_bad_crc_dropped: Counter = stats.mpa_rx.bad_crc_dropped,
    /// Segments that did not begin with an FPDU. Counted only if they arrived in order or contain a marker, so that the
    /// start of the FPDU is known.
    mpa_alignment_lost: Counter = stats.mpa_rx.alignment_lost,
    /// Bytes discarded after an error.
    mpa_bytes_discarded: Counter Bytes = stats.mpa_rx.discarded,
    /// FPDUs framed for the first time.
    mpa_fpdus_out: Counter = stats.mpa_tx.fpdus,
    /// Segments with more than one FPDU.
    mpa_segments_packed: Counter = stats.mpa_tx.packed,
    /// Segments that end inside an FPDU, or continue a cut FPDU.
    mpa_segments_cut: Counter = stats.mpa_tx.cut,
    /// Largest number of bytes kept for retransmission at one time, so far.
    mpa_bytes_kept_max: Maximum Bytes = stats.mpa_tx.kept_max,
}}
