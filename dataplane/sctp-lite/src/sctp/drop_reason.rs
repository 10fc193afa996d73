//! Reasons for dropping a packet or a chunk.

use core::fmt;

use super::receive::Refusal;

/// Reason why a packet, or the first unused chunk of it, was dropped. A packet that only elicits a reply counts as
/// dropped, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// Shorter than the common header, a port of zero, or no chunk (RFC 9260 §3.1).
    BadHeader,
    /// The checksum is wrong (RFC 9260 §6.8).
    BadChecksum,
    /// A chunk, parameter or cause with a wrong length (RFC 9260 §3.2).
    BadChunk,
    /// A verification tag that is not this association's (RFC 9260 §8.5).
    BadTag,
    /// A packet of no association (RFC 9260 §8.4).
    OutOfTheBlue,
    /// The association is closed.
    Closed,
    /// A chunk that is invalid in this state, or that shares a packet although it must be alone.
    UnexpectedChunk,
    /// A chunk of an unknown type that stops the processing of its packet (RFC 9260 §3.2).
    UnknownChunk,
    /// An INIT or INIT ACK with an illegal value or without a mandatory parameter (RFC 9260 §3.3.2, §3.3.3).
    BadInit,
    /// The peer does not indicate the required adaptation (RFC 5043 §7.1).
    OtherAdaptation,
    /// A cookie not issued here, or issued for other ends or another association (RFC 9260 §5.1.5, §5.2.4).
    BadCookie,
    /// An expired cookie (RFC 9260 §5.1.5).
    StaleCookie,
    /// A SACK of data that was never sent, with an invalid Gap Ack Block, or outdated (RFC 9260 §6.2.1).
    BadSack,
    /// A DATA chunk whose TSN is too far beyond the cumulative TSN for a Gap Ack Block.
    BeyondWindow,
    /// A DATA chunk that would exceed the limit of ranges beyond gaps.
    TooManyGaps,
    /// A DATA chunk while the window is closed (RFC 9260 §6.2).
    WindowClosed,
    /// A fragment that exceeds the association's budget for fragments.
    TooManyFragments,
    /// A fragment that exceeds the worker's budget for held bytes, or the peer's share of it.
    HoldBudget,
    /// A message that the upper layer refused.
    NotTaken,
    /// A chunk that violates the protocol; the association was aborted.
    Violation,
    /// An INIT whose INIT ACK found no room. The peer retransmits the INIT.
    NoRoom,
}

impl DropReason {
    /// All reasons, in the order of their [`index`](Self::index).
    pub const ALL: [DropReason; 21] = [
        DropReason::BadHeader,
        DropReason::BadChecksum,
        DropReason::BadChunk,
        DropReason::BadTag,
        DropReason::OutOfTheBlue,
        DropReason::Closed,
        DropReason::UnexpectedChunk,
        DropReason::UnknownChunk,
        DropReason::BadInit,
        DropReason::OtherAdaptation,
        DropReason::BadCookie,
        DropReason::StaleCookie,
        DropReason::BadSack,
        DropReason::BeyondWindow,
        DropReason::TooManyGaps,
        DropReason::WindowClosed,
        DropReason::TooManyFragments,
        DropReason::HoldBudget,
        DropReason::NotTaken,
        DropReason::Violation,
        DropReason::NoRoom,
    ];

    /// Returns the index of the reason, dense from zero, for tables of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns a stable name for counters and machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::BadHeader => "sctp_bad_header",
            DropReason::BadChecksum => "sctp_bad_checksum",
            DropReason::BadChunk => "sctp_bad_chunk",
            DropReason::BadTag => "sctp_bad_tag",
            DropReason::OutOfTheBlue => "sctp_out_of_the_blue",
            DropReason::Closed => "sctp_closed",
            DropReason::UnexpectedChunk => "sctp_unexpected_chunk",
            DropReason::UnknownChunk => "sctp_unknown_chunk",
            DropReason::BadInit => "sctp_bad_init",
            DropReason::OtherAdaptation => "sctp_other_adaptation",
            DropReason::BadCookie => "sctp_bad_cookie",
            DropReason::StaleCookie => "sctp_stale_cookie",
            DropReason::BadSack => "sctp_bad_sack",
            DropReason::BeyondWindow => "sctp_beyond_window",
            DropReason::TooManyGaps => "sctp_too_many_gaps",
            DropReason::WindowClosed => "sctp_window_closed",
            DropReason::TooManyFragments => "sctp_too_many_fragments",
            DropReason::HoldBudget => "sctp_hold_budget",
            DropReason::NotTaken => "sctp_not_taken",
            DropReason::Violation => "sctp_violation",
            DropReason::NoRoom => "sctp_no_room",
        }
    }
}

impl From<Refusal> for DropReason {
    fn from(refusal: Refusal) -> DropReason {
        match refusal {
            Refusal::BeyondWindow => DropReason::BeyondWindow,
            Refusal::TooManyGaps => DropReason::TooManyGaps,
            Refusal::WindowClosed => DropReason::WindowClosed,
            Refusal::TooManyFragments => DropReason::TooManyFragments,
            Refusal::HoldBudget => DropReason::HoldBudget,
            Refusal::NotTaken => DropReason::NotTaken,
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_dense_and_names_distinct() {
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), i);
            assert!(DropReason::ALL[..i].iter().all(|r| r.name() != reason.name()));
        }
    }
}
