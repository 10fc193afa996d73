//! What one pass over an extent of the stream takes and gives.

use core::ops::Range;

use super::super::error::Fault;

/// What one pass over an extent hands up.
#[derive(Clone, Copy, Default)]
pub(super) struct HandedUp {
    pub(super) fpdus: u64,
    pub(super) bytes: u64,
}

/// What became of one pass over an extent.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    /// FPDUs `from..to` were handed up, without a gap.
    pub(super) from: u64,
    pub(super) to: u64,
    /// True when an FPDU is known to begin at `from`, if only to be whole later.
    pub(super) located: bool,
    /// What was wrong with the FPDU at `to`.
    pub(super) fault: Option<Fault>,
    /// Where that one ends by its length.
    pub(super) fault_end: u64,
    /// The sink has no room for the FPDU at `to`, which ends before this.
    pub(super) refused: Option<u64>,
    /// An FPDU begins where the span begins.
    pub(super) begins_aligned: bool,
}

/// What becomes of a segment with a bad FPDU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It counts as lost from the FPDU on.
    Drop,
    /// The stream ends.
    Fail,
    /// The stream ends once the order is there.
    Remember,
}

/// A span as it arrived, and where the bytes around it end.
pub(super) struct Span<'a> {
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    pub(super) extent_end: u64,
    pub(super) in_order: bool,
}

impl Span<'_> {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl Pass {
    /// No FPDU was found.
    pub(super) fn nothing_at(at: u64) -> Self {
        Pass {
            from: at,
            to: at,
            located: false,
            fault: None,
            fault_end: at,
            refused: None,
            begins_aligned: false,
        }
    }

    /// FPDUs up to `at`, where another begins.
    pub(super) fn reach(&mut self, at: u64, span: &Range<u64>) {
        self.to = at;
        self.begins_aligned |= at == span.start;
    }
}

/// Where an extent is in the stream.
pub(super) struct Order {
    /// It begins with the next FPDU in order.
    pub(super) in_order: bool,
    /// It ends where another FPDU is known to begin.
    pub(super) bounded: bool,
    /// The bytes in it that have just arrived.
    pub(super) span: Range<u64>,
}
