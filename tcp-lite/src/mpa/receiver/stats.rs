//! What the receive half counts.

use base::Blank;

/// What a [`Receiver`](super::Receiver) counts, in bytes where no other unit is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiverStats {
    /// FPDUs handed up.
    pub fpdus: u64,
    /// Payload placed in order.
    pub placed_in_order: u64,
    /// Payload placed while something before it was missing.
    pub placed_out_of_order: u64,
    /// Held now, because their FPDU is incomplete or not located.
    pub held: u64,
    /// The most that was held at any time.
    pub held_max: u64,
    /// Held now, and the FPDUs' boundaries in it are unknown.
    pub unlocatable: u64,
    /// The most that was unlocatable at any time.
    pub unlocatable_max: u64,
    /// Refused for lack of room to hold them; the peer retransmits them.
    pub refused: u64,
    /// Segments dropped because an FPDU in them could not be verified: a wrong CRC, or a length that
    /// cannot be.
    pub bad_crc_dropped: u64,
    /// Segments that did not begin with an FPDU, as far as that was known when they came: in order, or by
    /// a marker. What was refused here is refused at FPDU boundaries and is never the cause.
    pub alignment_lost: u64,
    /// Taken and thrown away after an error.
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
