//! Counters of MPA's receive half.

use base::Blank;

/// Counters of a [`Receiver`](super::Receiver), in bytes unless another unit is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiverStats {
    /// FPDUs passed to DDP (number).
    pub fpdus: u64,
    /// Payload placed in order.
    pub placed_in_order: u64,
    /// Payload placed out of order, beyond a gap.
    pub placed_out_of_order: u64,
    /// Bytes held now because their FPDU is incomplete, not located, or refused by DDP.
    pub held: u64,
    /// Largest value of `held` so far.
    pub held_max: u64,
    /// Bytes held now whose FPDU boundaries are unknown, a part of `held`.
    pub unlocatable: u64,
    /// Largest value of `unlocatable` so far.
    pub unlocatable_max: u64,
    /// Bytes refused for lack of room. The peer retransmits them.
    pub refused: u64,
    /// Segments dropped because an FPDU failed verification: wrong CRC or impossible length (number).
    pub bad_crc_dropped: u64,
    /// Segments that did not begin with an FPDU (number). Counted only if FPDU boundaries are known on arrival: in
    /// order, or by a marker. Refused bytes are never the cause, because refusals end at FPDU boundaries.
    pub alignment_lost: u64,
    /// Bytes discarded after an error.
    pub discarded: u64,
}

impl Blank for ReceiverStats {
    fn blank() -> &'static Self {
        static BLANK: ReceiverStats = ReceiverStats {
            fpdus: 0,
            placed_in_order: 0,
            placed_out_of_order: 0,
            held: 0,
            held_max: 0,
            unlocatable: 0,
            unlocatable_max: 0,
            refused: 0,
            bad_crc_dropped: 0,
            alignment_lost: 0,
            discarded: 0,
        };
        &BLANK
    }
}
