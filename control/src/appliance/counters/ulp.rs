//! Counters of DDP and RDMAP under the names that the API has for them, and the names of errors.

use ddp::ErrorCode;
use ddp::rdmap;
use wire::rdmap::terminate::LAYER_RDMAP;

use crate::api::Counters;

/// What DDP and RDMAP counted.
pub(super) fn put_ulp(counters: &mut Counters, ddp: &ddp::Counters, rdmap: &rdmap::Counters) {
    let mut put = |name: &str, value: u64| {
        counters.insert(name.to_owned(), value);
    };
    put("placed_in_order_bytes", ddp.placed_in_order_octets);
    put("placed_out_of_order_bytes", ddp.placed_out_of_order_octets);
    put("ddp_segments_in", ddp.segments_received);
    put("ddp_segments_refused", ddp.segments_refused);
    put("ddp_segments_ignored", ddp.segments_ignored);
    put("ddp_out_of_order_records_max", ddp.ooo_records_max);
    put("ddp_tagged_delivered", ddp.tagged_delivered);
    put("ddp_untagged_delivered", ddp.untagged_delivered);
    put("delivered_bytes", ddp.delivered_octets);
    put("ddp_segments_out", ddp.segments_sent);
    put("sent_bytes", ddp.sent_octets);
    put("ddp_messages_sent", ddp.messages_sent);
    put("ddp_messages_flushed", ddp.messages_flushed);
    for (code, count) in ErrorCode::ALL.into_iter().zip(ddp.errors) {
        if count > 0 {
            let numbers = (ddp::LAYER_DDP, code.error_type(), code.code());
            put(
                &format!("error_{}", error_name(dataplane::Transport::Tcp, numbers)),
                u64::from(count),
            );
        }
    }
    put("rdmap_sends_in", rdmap.sends_received);
    put("rdmap_immediates_in", rdmap.immediates_received);
    put("rdmap_writes_in", rdmap.writes_received);
    put("rdmap_written_bytes", rdmap.written_octets);
    put("rdmap_reads_in", rdmap.reads_received);
    put("rdmap_reads_served", rdmap.reads_served);
    put("rdmap_read_bytes_served", rdmap.read_octets_served);
    put("rdmap_atomics_served", rdmap.atomics_served);
    put("rdmap_invalidations", rdmap.invalidations);
    put("rdmap_completed", rdmap.completed);
    put("rdmap_flushed", rdmap.flushed);
    put("rdmap_read_bytes", rdmap.read_octets);
    put("rdmap_ord_waits", rdmap.ord_waits);
    put("rdmap_requests_max", rdmap.requests_max);
    put("rdmap_terminates_out", rdmap.terminates_sent);
    put("rdmap_terminates_in", rdmap.terminates_received);
    for (code, count) in rdmap::ErrorCode::ALL.into_iter().zip(rdmap.errors) {
        if count > 0 {
            let numbers = (LAYER_RDMAP, code.error_type(), code.code());
            put(&format!("error_{}", error_name(dataplane::Transport::Tcp, numbers)), count);
        }
    }
}

/// `ddp_1_02` for RFC 5041 §7.2's 1/02, `rdmap_1_09` for RFC 5040 §4.8's 1/09, `mpa_2` for RFC 5044 §8's code 2,
/// `session_5` for RFC 6581 §8's code 5 over SCTP.
pub(super) fn error_name(
    transport: dataplane::Transport,
    (layer, error_type, code): (u8, u8, u8),
) -> String {
    match layer {
        ddp::LAYER_DDP => format!("ddp_{error_type}_{code:02}"),
        LAYER_RDMAP => format!("rdmap_{error_type}_{code:02x}"),
        _ if transport == dataplane::Transport::Sctp => format!("session_{code}"),
        _ => format!("mpa_{code}"),
    }
}
