//! A pass over an extent of the stream: input, result and reaction to faults.

use core::ops::Range;

use super::super::error::Fault;

/// Totals of the FPDUs that DDP receives in one pass.
#[derive(Clone, Copy, Default)]
pub(super) struct HandUpTotals {
    pub(super) fpdus: u64,
    /// Payload bytes placed.
    pub(super) bytes: u64,
}

/// Result of one pass over an extent.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    /// Stream offset of the first FPDU handed up in this pass.
    pub(super) start: u64,
    /// End of the FPDUs handed up in this pass, which are contiguous from `start` on.
    pub(super) end: u64,
    /// True if an FPDU is known to begin at `start`, even an incomplete one.
    pub(super) located: bool,
    /// Fault of the FPDU at `end`.
    pub(super) fault: Option<Fault>,
    /// End of the faulty FPDU, according to its length field.
    pub(super) fault_end: u64,
    /// End of the FPDU at `end`, if the sink has refused it for lack of room.
    pub(super) refused_end: Option<u64>,
    /// True if an FPDU begins at the first byte of the span.
    pub(super) begins_aligned: bool,
}

/// Reaction to a segment with a faulty FPDU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The segment counts as lost from the faulty FPDU on.
    Drop,
    /// The stream ends at once.
    Fail,
    /// The stream ends once the data before the fault is complete.
    Defer,
}

/// A received span, and its position in the stream.
pub(super) struct Span<'a> {
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    /// End of the bytes that are contiguous with the span, held bytes after it included.
    pub(super) extent_end: u64,
    /// True if the span, with the held bytes directly before it, begins with the next FPDU in order.
    pub(super) in_order: bool,
}

impl Span<'_> {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl Pass {
    /// Returns the result of a pass that handed up nothing.
    pub(super) fn empty_at(at: u64) -> Self {
        Pass {
            start: at,
            end: at,
            located: false,
            fault: None,
            fault_end: at,
            refused_end: None,
            begins_aligned: false,
        }
    }

    /// Extends the pass to `at`, where another FPDU begins. `span`: stream offsets of the received span.
    pub(super) fn extend_to(&mut self, at: u64, span: &Range<u64>) {
        self.end = at;
        self.begins_aligned |= at == span.start;
    }
}

/// Position of an extent in the stream.
pub(super) struct ExtentPosition {
    /// True if the extent begins with the next FPDU in order.
    pub(super) in_order: bool,
    /// True if the extent ends where another FPDU is known to begin.
    pub(super) bounded: bool,
    /// Stream offsets of the newly received bytes.
    pub(super) span: Range<u64>,
}
