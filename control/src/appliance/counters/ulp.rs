//! Counters of DDP and RDMAP as named by the API, and the names of errors.

use api::Counters;
use base::ErrorNumbers;
use ddp::{ErrorCode, rdmap};
use wire::rdmap::terminate::LAYER_RDMAP;

use super::table::counters;

/// Adds the counters of DDP and RDMAP, and one counter per error code that has occurred.
pub(super) fn put_ulp(counters: &mut Counters, ddp: &ddp::Counters, rdmap: &rdmap::Counters) {
    put_ddp(counters, ddp);
    put_rdmap(counters, rdmap);
    put_errors(counters, ddp.errors.map(u64::from), rdmap.errors);
}

/// Adds one counter per DDP or RDMAP error code that has occurred.
pub(super) fn put_errors(
    counters: &mut Counters,
    ddp: [u64; ErrorCode::ALL.len()],
    rdmap: [u64; rdmap::ErrorCode::ALL.len()],
) {
    let ddp_errors = ErrorCode::ALL.map(ErrorCode::numbers).into_iter().zip(ddp);
    let rdmap_errors = rdmap::ErrorCode::ALL.map(rdmap::ErrorCode::numbers).into_iter().zip(rdmap);
    for (numbers, count) in ddp_errors.chain(rdmap_errors).filter(|(_, count)| *count > 0) {
        let name = error_name(dataplane::Transport::Tcp, numbers);
        counters.insert(format!("error_{name}").into(), count);
    }
}

counters! { DDP, fn put_ddp(ddp: &ddp::Counters) {
    /// Payload bytes placed in order.
    placed_in_order_bytes: Counter Bytes = ddp.placed_in_order_bytes,
    /// Payload bytes placed out of order.
    placed_out_of_order_bytes: Counter Bytes = ddp.placed_out_of_order_bytes,
    /// Segments accepted, in order or not.
    ddp_segments_in: Counter = ddp.segments_received,
    /// Segments refused because a limit was reached. The peer retransmits them.
    ddp_segments_refused: Counter = ddp.segments_refused,
    /// Segments ignored: beyond an error, after the end, or duplicate.
    ddp_segments_ignored: Counter = ddp.segments_ignored,
    /// Largest number of records of out-of-order segments at one time, so far.
    ddp_out_of_order_records_max: Maximum = ddp.ooo_records_max,
    /// Tagged messages delivered.
    ddp_tagged_delivered: Counter = ddp.tagged_delivered,
    /// Untagged messages delivered.
    ddp_untagged_delivered: Counter = ddp.untagged_delivered,
    /// Bytes of delivered messages.
    delivered_bytes: Counter Bytes = ddp.delivered_bytes,
    /// Segments passed to the LLP for the first time.
    ddp_segments_out: Counter = ddp.segments_sent,
    /// Payload bytes passed to the LLP for the first time.
    sent_bytes: Counter Bytes = ddp.sent_bytes,
    /// Messages completely acknowledged.
    ddp_messages_sent: Counter = ddp.messages_sent,
    /// Messages flushed: not sent, or not completely.
    ddp_messages_flushed: Counter = ddp.messages_flushed,
}}

counters! { RDMAP, fn put_rdmap(rdmap: &rdmap::Counters) {
    /// Sends of all four kinds delivered.
    rdmap_sends_in: Counter = rdmap.sends_received,
    /// Immediate Data delivered.
    rdmap_immediates_in: Counter = rdmap.immediates_received,
    /// Writes delivered.
    rdmap_writes_in: Counter = rdmap.writes_received,
    /// Payload bytes of Writes delivered.
    rdmap_written_bytes: Counter Bytes = rdmap.written_bytes,
    /// Read Requests delivered.
    rdmap_reads_in: Counter = rdmap.reads_received,
    /// Read Responses completely acknowledged.
    rdmap_reads_served: Counter = rdmap.reads_served,
    /// Payload bytes of acknowledged Read Responses.
    rdmap_read_bytes_served: Counter Bytes = rdmap.read_bytes_served,
    /// Atomics of the peer executed in local memory.
    rdmap_atomics_served: Counter = rdmap.atomics_served,
    /// STags that the peer has invalidated.
    rdmap_invalidations: Counter = rdmap.invalidations,
    /// Local operations completed.
    rdmap_completed: Counter = rdmap.completed,
    /// Local operations flushed.
    rdmap_flushed: Counter = rdmap.flushed,
    /// Payload bytes received by local Reads.
    rdmap_read_bytes: Counter Bytes = rdmap.read_bytes,
    /// Reads and atomics delayed because ORD requests were outstanding.
    rdmap_ord_waits: Counter = rdmap.ord_waits,
    /// Largest number of the peer's outstanding requests at one time, so far.
    rdmap_requests_max: Maximum = rdmap.requests_max,
    /// Terminates sent, at most one per stream.
    rdmap_terminates_out: Counter = rdmap.terminates_sent,
    /// Terminates received, at most one per stream.
    rdmap_terminates_in: Counter = rdmap.terminates_received,
}}

/// Returns the name of an error. Examples: `ddp_1_02` for error type 1, code 2 of RFC 5041 §7.2; `rdmap_1_09` for type
/// 1, code 9 of RFC 5040 §4.8; `mpa_2` for code 2 of RFC 5044 §8; `session_5` for code 5 of RFC 6581 §8 over SCTP.
pub(super) fn error_name(transport: dataplane::Transport, numbers: ErrorNumbers) -> String {
    let ErrorNumbers { layer, error_type, code } = numbers;
    match layer {
        ddp::LAYER_DDP => format!("ddp_{error_type}_{code:02}"),
        LAYER_RDMAP => format!("rdmap_{error_type}_{code:02x}"),
        _ if transport == dataplane::Transport::Sctp => format!("session_{code}"),
        _ => format!("mpa_{code}"),
    }
}
