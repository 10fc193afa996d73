//! Resets for segments without a connection.

use transport::seq::SeqNumber;

use super::segment::{Flags, Segment};
use crate::seam::TxBatch;

/// Answers a segment without a connection with a reset that the sender of the segment accepts (RFC 9293 §3.10.7.1).
/// Returns false if nothing is sent: `seg` is a reset, or the batch is full.
pub fn reset_for(seg: &Segment<'_>, tx: &mut impl TxBatch) -> bool {
    // RFC 9293 §3.10.7.1: a reset is never answered.
    if seg.flags.has(Flags::RST) {
        return false;
    }
    let (seq, ack, flags) = if seg.flags.has(Flags::ACK) {
        (seg.ack, SeqNumber(0), Flags::RST)
    } else {
        (SeqNumber(0), seg.seq.add(seg.seq_len()), Flags::RST.with(Flags::ACK))
    };
    let reply = Segment {
        src_port: seg.dst_port,
        dst_port: seg.src_port,
        seq,
        ack,
        flags,
        ..Segment::default()
    };
    let Some(out) = tx.reserve_segment(reply.wire_len()) else { return false };
    let len = reply.emit(out);
    tx.commit(len);
    true
}
