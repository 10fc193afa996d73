//! TCP's and MPA's counters under the names that the API has for them.

use tcp_lite::endpoint::EndpointStats;

use super::ulp::put_ulp;
use crate::api::Counters;

/// What a stream over TCP did.
pub(super) fn tcp_counters(stats: &EndpointStats) -> Counters {
    let EndpointStats { tcp, mpa_rx, mpa_tx, ddp, rdmap } = stats;
    let mut counters = Counters::new();
    let mut put = |name: &str, value: u64| {
        counters.insert(name.to_owned(), value);
    };
    put("tcp_segments_in", tcp.segments_in);
    put("tcp_segments_out", tcp.segments_out);
    put("tcp_bytes_in", tcp.octets_in);
    put("tcp_bytes_out_of_order", tcp.octets_out_of_order);
    put("tcp_bytes_duplicate", tcp.octets_duplicate);
    put("tcp_bytes_refused", tcp.octets_refused);
    put("tcp_bytes_out", tcp.octets_out);
    put("tcp_bytes_acknowledged", tcp.octets_acknowledged);
    put("retransmitted_segments", tcp.segments_retransmitted);
    put("retransmitted_bytes", tcp.octets_retransmitted);
    put("tcp_acks_out", tcp.acks_out);
    put("tcp_duplicate_acks_in", tcp.duplicate_acks_in);
    put("tcp_fast_recoveries", tcp.fast_recoveries);
    put("tcp_timeouts", tcp.timeouts);
    put("tcp_segments_lost", tcp.segments_lost);
    put("tcp_tail_loss_probes", tcp.tail_loss_probes);
    put("tcp_tail_losses_repaired", tcp.tail_losses_repaired);
    put("tcp_undone_by_frto", tcp.undone_by_frto);
    put("tcp_undone_by_timestamp", tcp.undone_by_timestamp);
    put("tcp_undone_by_d_sack", tcp.undone_by_d_sack);
    put("tcp_d_sacks_in", tcp.d_sacks_in);
    put("tcp_d_sacks_ignored", tcp.d_sacks_ignored);
    put("tcp_d_sacks_out", tcp.d_sacks_out);
    put("tcp_paced_waits", tcp.paced_waits);
    put("tcp_window_probes", tcp.window_probes);
    put("tcp_keepalive_probes", tcp.keepalive_probes);
    put("tcp_challenge_acks", tcp.challenge_acks);
    put("tcp_ecn_marks_in", tcp.ecn_marks_in);
    put("tcp_ecn_reductions", tcp.ecn_reductions);
    put("tcp_path_mtu_reductions", tcp.path_mtu_reductions);
    put("tcp_path_mtu_raises", tcp.path_mtu_raises);
    put("tcp_path_mtu_probes", tcp.path_mtu_probes);
    put("tcp_path_mtu_probes_lost", tcp.path_mtu_probes_lost);
    put("tcp_path_mtu_black_holes", tcp.path_mtu_black_holes);
    put("mpa_fpdus_in", mpa_rx.fpdus);
    put("held_bytes_max", mpa_rx.held_max);
    put("unlocatable_bytes_max", mpa_rx.unlocatable_max);
    put("mpa_bytes_refused", mpa_rx.refused);
    put("mpa_bad_crc_dropped", mpa_rx.bad_crc_dropped);
    put("mpa_alignment_lost", mpa_rx.alignment_lost);
    put("mpa_bytes_discarded", mpa_rx.discarded);
    put("mpa_fpdus_out", mpa_tx.fpdus);
    put("mpa_segments_packed", mpa_tx.packed);
    put("mpa_segments_cut", mpa_tx.cut);
    put("mpa_bytes_kept_max", mpa_tx.kept_max);
    put_ulp(&mut counters, ddp, rdmap);
    counters
}
