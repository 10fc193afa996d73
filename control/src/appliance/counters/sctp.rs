//! SCTP's counters under the names that the API has for them. A session's are its own; an association's are
//! those of all of its sessions and are summed once.

use dataplane::AssociationStats;
use sctp_lite::endpoint::SessionStats;

use super::ulp::put_ulp;
use crate::api::Counters;

/// What a session did.
pub(super) fn of_session(stats: &SessionStats) -> Counters {
    let SessionStats { session, ddp, rdmap } = stats;
    let mut counters = Counters::new();
    put(
        &mut counters,
        &[
            ("session_segments_in", session.segments),
            ("session_controls_in", session.controls),
            ("session_bytes_in", session.octets),
            ("session_messages_refused", session.refused),
            ("session_messages_ignored", session.ignored),
            ("session_segments_out", session.tx.segments),
            ("session_controls_out", session.tx.controls),
            ("session_bytes_retransmitted", session.tx.retransmitted),
            ("session_bytes_kept_max", session.tx.kept_max),
        ],
    );
    put_ulp(&mut counters, ddp, rdmap);
    counters
}

/// What an association did.
pub(in crate::appliance) fn of_association(stats: &AssociationStats) -> Counters {
    let AssociationStats { endpoint, receive, send } = stats;
    let (sctp, adaptation) = (&endpoint.sctp, &endpoint.adaptation);
    let mut counters = Counters::new();
    put(
        &mut counters,
        &[
            ("sctp_packets_in", sctp.packets_in),
            ("sctp_packets_out", sctp.packets_out),
            ("sctp_setups_retransmitted", sctp.setup_retransmitted),
            ("sctp_shutdowns_retransmitted", sctp.shutdown_retransmitted),
            ("sctp_heartbeats_in", sctp.heartbeats_in),
            ("sctp_heartbeats_out", sctp.heartbeats_out),
            ("sctp_heartbeats_answered", sctp.heartbeats_answered),
            ("sctp_errors_in", sctp.errors_in),
            ("sctp_errors_out", sctp.errors_out),
            ("sctp_unknown_chunks", sctp.unknown_chunks),
            ("sctp_inits_answered", sctp.inits_answered),
            ("sctp_unsent", sctp.unsent),
            ("sctp_path_mtu_reductions", sctp.path_mtu_reductions),
            ("sctp_path_mtu_raises", sctp.path_mtu_raises),
            ("sctp_path_mtu_probes", sctp.path_mtu_probes),
            ("sctp_path_mtu_probes_lost", sctp.path_mtu_probes_lost),
            ("sctp_path_mtu_black_holes", sctp.path_mtu_black_holes),
            ("sctp_chunks_in", receive.chunks),
            ("sctp_bytes_in", receive.octets),
            ("sctp_chunks_duplicate", receive.duplicates),
            ("sctp_chunks_refused", receive.refused),
            ("sctp_chunks_not_taken", receive.not_taken),
            ("sctp_invalid_streams", receive.invalid_streams),
            ("sctp_gaps_max", receive.most_gaps),
            ("sctp_chunks_out", send.chunks),
            ("sctp_bytes_out", send.octets),
            ("retransmitted_segments", send.retransmitted),
            ("retransmitted_bytes", send.octets_retransmitted),
            ("sctp_bytes_acknowledged", send.octets_acknowledged),
            ("sctp_sacks_in", send.sacks),
            ("sctp_old_sacks_in", send.old_sacks),
            ("sctp_bad_sacks_in", send.bad_sacks),
            ("sctp_duplicates_reported", send.duplicates_reported),
            ("sctp_duplicates_ignored", send.duplicates_ignored),
            ("sctp_chunks_lost", send.lost),
            ("sctp_fast_recoveries", send.fast_recoveries),
            ("sctp_timeouts", send.timeouts),
            ("sctp_tail_loss_probes", send.tail_loss_probes),
            ("sctp_tail_losses_repaired", send.tail_losses_repaired),
            ("sctp_window_probes", send.window_probes),
            ("sctp_undone_by_duplicates", send.undone_by_duplicates),
            ("sctp_undone_by_frto", send.undone_by_frto),
            ("sctp_reneged", send.reneged),
            ("sctp_paced_waits", send.paced_waits),
            ("session_requests", adaptation.requests),
            ("session_turned_away", adaptation.turned_away),
            ("session_illegal", adaptation.illegal),
            ("session_early", adaptation.early),
            ("session_stray", adaptation.stray),
            ("session_unpaired", adaptation.unpaired),
        ],
    );
    counters
}

fn put(counters: &mut Counters, these: &[(&str, u64)]) {
    counters.extend(these.iter().map(|&(name, value)| (name.to_owned(), value)));
}
