//! Counters of a stream.

use base::Blank;

use crate::error::ErrorCode;

/// Counters of one stream. Bytes are payload bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes placed in order.
    pub placed_in_order_bytes: u64,
    /// Bytes placed beyond a gap.
    pub placed_out_of_order_bytes: u64,
    /// Segments accepted, in order or beyond a gap.
    pub segments_received: u64,
    /// Segments refused because a bound was reached; the peer retransmits them.
    pub segments_refused: u64,
    /// Segments ignored: after an error, after the end of the stream, or duplicate.
    pub segments_ignored: u64,
    /// Largest number of records of segments beyond a gap at one time, so far.
    pub ooo_records_max: u64,
    /// Tagged messages delivered.
    pub tagged_delivered: u64,
    /// Untagged messages delivered.
    pub untagged_delivered: u64,
    /// Payload bytes of delivered messages.
    pub delivered_bytes: u64,
    /// Segments handed to the LLP for the first time.
    pub segments_sent: u64,
    /// Payload bytes of the sent segments.
    pub sent_bytes: u64,
    /// Messages of which all bytes are acknowledged.
    pub messages_sent: u64,
    /// Messages that were posted and ended before they were sent and acknowledged completely.
    pub messages_flushed: u64,
    /// Number of errors of the peer by [`ErrorCode::index`]. All entries together are at most 1, because reception ends
    /// with the first error.
    pub errors: [u8; ErrorCode::ALL.len()],
}

base::prefetch!(Counters:);

impl Blank for Counters {
    fn blank() -> &'static Self {
        static BLANK: Counters = Counters {
            placed_in_order_bytes: 0,
            placed_out_of_order_bytes: 0,
            segments_received: 0,
            segments_refused: 0,
            segments_ignored: 0,
            ooo_records_max: 0,
            tagged_delivered: 0,
            untagged_delivered: 0,
            delivered_bytes: 0,
            segments_sent: 0,
            sent_bytes: 0,
            messages_sent: 0,
            messages_flushed: 0,
            errors: [0; ErrorCode::ALL.len()],
        };
        &BLANK
    }
}
