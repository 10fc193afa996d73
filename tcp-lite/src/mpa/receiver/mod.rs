//! Reassembles ULPDUs from bytes that arrive in any order (RFC 5044 §6, draft-culley-iwarp-mpa-03 §7.4.1).
//!
//! ```text
//!        next          gap                    gap
//!  ......|##held##|           |==placed==|##|    |????held????|==placed==|
//!        an FPDU begins here  FPDUs handed up      an FPDU tail, or small
//!        and is not whole     out of order         FPDUs before the first
//!                                                  marker: unlocatable
//! ```
//!
//! TCP offers a byte again with each retransmission until the receiver accepts it. An FPDU is handed up to DDP as soon
//! as it is complete, located and verified. Until then its bytes are held or refused. FPDUs handed up out of order
//! cost one list entry per contiguous range (island).
//!
//! Invariants:
//! - An FPDU begins at `next`. Everything before it was handed up.
//! - `pieces` are sorted, do not overlap, and are at or beyond `next`.
//! - A run of held pieces whose start is known begins with an incomplete FPDU. The start is known if it is `next` or
//!   the end of an island, or if a marker locates it.
//! - Since `first_error` was recorded, no FPDU at or beyond its offset was handed up.

mod extent;
mod fast_path;
mod pass;
mod pieces;
mod stats;

use super::config::{BadCrcPolicy, Config, Params};
use super::error::{Fault, MpaError};
use super::framing::Framing;
use crate::seam::SpanOutcome;
use base::Lazy;
use core::ops::Range;
use ddp::HoldBudget;
use ddp::llp::{Disposition, OrderKey, Ulpdu, UlpduSink};
use extent::{Checks, Extent, Inspection, Location};
use pass::{ExtentPosition, HandUpTotals, Pass, Span, Verdict};
use pieces::Pieces;

pub use stats::ReceiverStats;

/// Minimum of the receive window, in bytes, so that in-order data always advances.
const MIN_ROOM: u64 = 64 * 1024;

/// The receive half of MPA in Full Operation.
#[derive(Debug)]
pub struct Receiver {
    checks: Checks,
    on_bad_crc: BadCrcPolicy,
    /// Limit of [`Pieces::bad_crc_tries`]: how often the FPDU at `next` may be dropped for a wrong CRC, or for a length
    /// above `max_fpdu`. The drop after that is an error of the stream.
    max_tries: u8,
    hold_limit: u32,
    /// Free bytes of the worker's hold budget after the last span. Saturates at `u32::MAX`: a stream may hold half of
    /// the free bytes, and half of `u32::MAX` exceeds any window.
    budget_room: u32,
    /// Stream offset up to which every FPDU has been handed up.
    next: u64,
    /// First error in stream order. No FPDU at or beyond its offset is handed up.
    first_error: Option<Box<MpaError>>,
    /// True after an error in the FPDU at `next`, or after a call of [`discard`](Self::discard): all further bytes are
    /// dropped.
    failed: bool,
    /// True if the next FPDU is complete and its bytes are accepted, but the sink has no room for it.
    blocked: bool,
    pieces: Lazy<Pieces>,
    /// Number of FPDUs handed up.
    fpdus: u64,
    /// Payload bytes placed in order.
    placed_in_order: u64,
    /// The other counters, allocated at the first increment.
    stats: Lazy<ReceiverStats>,
}

impl Receiver {
    /// Creates a receiver for a direction whose Full Operation begins at stream offset `start`.
    pub fn new(config: &Config, params: &Params, start: u64) -> Self {
        Receiver {
            checks: Checks {
                framing: Framing::new(start, params.markers_rx),
                crc: params.crc,
                draft_pointers: params.revision.is_zero(),
                max_fpdu: config.max_fpdu,
            },
            on_bad_crc: config.on_bad_crc,
            max_tries: config.bad_crc_tries,
            hold_limit: config.hold_limit,
            budget_room: u32::MAX,
            next: start,
            first_error: None,
            failed: false,
            blocked: false,
            pieces: Lazy::new(),
            fpdus: 0,
            placed_in_order: 0,
            stats: Lazy::new(),
        }
    }

    /// Processes bytes at `offset`, none of which was accepted before, and passes whole FPDUs to `sink`. Returns the
    /// accepted part. `crc` is the CRC32c of all but the last four bytes, if known.
    pub fn take_span(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crc: Option<u32>,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> SpanOutcome {
        if let Some(pieces) = self.pieces.get_mut() {
            pieces.failed_verify_bytes =
                pieces.failed_verify_bytes.saturating_sub(bytes.len() as u32);
            pieces.refused_verified_bytes =
                pieces.refused_verified_bytes.saturating_sub(bytes.len() as u32);
        }
        let taken = match self.take_single_fpdu(offset, bytes, crc, sink, budget) {
            Some(taken) => taken,
            None => self.take_before_error(offset, bytes, crc, sink, budget),
        };
        self.budget_room = u32::try_from(budget.remaining()).unwrap_or(u32::MAX);
        taken
    }

    /// Accepts the bytes before the first error and discards the others.
    fn take_before_error(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crc: Option<u32>,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> SpanOutcome {
        let end = offset + bytes.len() as u64;
        let limit = self.error_offset();
        if self.failed || offset >= limit {
            // RFC 5044 §8: no FPDU is passed to DDP after an error.
            self.stats.discarded += bytes.len() as u64;
            return SpanOutcome::All;
        }
        if end <= limit {
            return self.take_bytes(offset, bytes, crc, sink, budget);
        }
        let within = (limit - offset) as usize;
        match self.take_bytes(offset, &bytes[..within], None, sink, budget) {
            SpanOutcome::Part(range) if range.end < limit => SpanOutcome::Part(range),
            SpanOutcome::Part(range) => SpanOutcome::Part(range.start..end),
            SpanOutcome::All => {
                self.stats.discarded += end - limit;
                SpanOutcome::All
            }
        }
    }

    /// Returns true if the sink has refused an FPDU after TCP accepted its bytes. The peer does not retransmit these
    /// bytes. The caller calls [`retry`](Self::retry) when the sink may have room.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Hands up the refused FPDU again.
    pub fn retry(&mut self, sink: &mut impl UlpduSink, budget: &mut HoldBudget) {
        if self.blocked && !self.failed {
            self.blocked = false;
            self.take_bytes(self.next, &[], None, sink, budget);
        }
    }

    /// Returns the error that ended the stream, once all FPDUs before the error have been handed up. No FPDU is handed
    /// up after that.
    pub fn error(&self) -> Option<MpaError> {
        self.first_error.as_deref().copied().filter(|_| self.failed)
    }

    /// Returns true after an error in the next in-order FPDU, or after a call of [`discard`](Self::discard): all
    /// further bytes are dropped.
    pub fn is_discarding(&self) -> bool {
        self.failed
    }

    /// Handles the peer's close. Returns an error if the peer closed inside an FPDU (RFC 5044 §8, code 1).
    pub fn on_peer_closed(&mut self, budget: &mut HoldBudget) -> Option<MpaError> {
        if !self.failed && !self.pieces.is_empty() {
            self.fail(self.next, Fault::Truncated, budget);
        }
        self.error()
    }

    /// Stops handing up FPDUs and frees held bytes.
    pub fn discard(&mut self, budget: &mut HoldBudget) {
        self.failed = true;
        self.blocked = false;
        if let Some(pieces) = self.pieces.get_mut() {
            pieces.clear(budget, &mut self.stats);
        }
    }

    /// Returns the window to advertise: bytes beyond the in-order offset that can be accepted now (RFC 5041 appendix
    /// A).
    ///
    /// Without markers all bytes beyond a gap may have to be held, so the window is the hold capacity. With markers few
    /// bytes are held: the window is unlimited until half of the capacity is in use. The window is never below the
    /// larger of `max_fpdu` and 64 KiB.
    pub fn room(&self) -> u64 {
        if self.failed {
            return u64::MAX;
        }
        let ahead = self.held_beyond_gap();
        let capacity = self.hold_capacity(ahead, self.budget_room.into());
        let least = u64::from(self.checks.max_fpdu).max(MIN_ROOM);
        match self.checks.framing.has_markers() {
            true if 2 * ahead > capacity => least,
            true => u64::MAX,
            false => capacity.max(least),
        }
    }

    /// Returns the stream offset up to which every FPDU has been handed up.
    #[cfg(test)]
    fn next_offset(&self) -> u64 {
        self.next
    }

    /// Returns the counters.
    pub fn stats(&self) -> ReceiverStats {
        let (fpdus, placed_in_order) = (self.fpdus, self.placed_in_order);
        ReceiverStats { fpdus, placed_in_order, ..*self.stats }
    }

    /// Returns true once an FPDU has been handed up.
    pub fn has_handed_up(&self) -> bool {
        self.fpdus > 0
    }

    /// Returns true once an FPDU has been handed up in order.
    pub fn has_handed_up_in_order(&self) -> bool {
        self.next > self.checks.framing.start()
    }

    /// Frees empty buffers of an idle stream.
    pub fn shrink(&mut self) {
        if self.pieces.is_unused() {
            self.pieces.release();
        }
    }

    fn error_offset(&self) -> u64 {
        self.first_error.as_ref().map_or(u64::MAX, |error| error.at.0)
    }

    /// Slow path: processes any bytes, in or out of order, with FPDUs in any number of pieces.
    fn take_slow_path(
        &mut self,
        offset: u64,
        bytes: &[u8],
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> SpanOutcome {
        let end = offset + bytes.len() as u64;
        let run = self.pieces.adjacent_run(offset, end, self.next);
        let in_order = run.start == self.next;
        if self.must_refuse(in_order) && !bytes.is_empty() {
            return self.refuse_rest(offset, end, offset..offset);
        }
        let markers = self.checks.framing.has_markers();
        let mut pass = Pass::empty_at(end);
        let mut extent_end = end;
        if run.start_known || markers {
            let mut extent = Extent::new(run.start);
            self.pieces.for_each_held(run.before.clone(), |held| extent.push(held));
            extent.push(bytes);
            self.pieces.for_each_held(run.after.clone(), |held| extent.push(held));
            extent_end = extent.end();
            let bounded = run.bounded || extent_end == self.error_offset();
            let located = match run.start_known {
                true => Location { start: Some(run.start), begins_inside: false },
                false => extent.locate(&self.checks, &(offset..end)),
            };
            if located.begins_inside && run.start == offset {
                self.stats.alignment_lost += 1;
            }
            if let Some(start) = located.start {
                let order = ExtentPosition { in_order, bounded, span: offset..end };
                let mut up = HandUpTotals::default();
                pass = hand_up(&self.checks, &mut up, &extent, start, order, sink);
                self.fpdus += up.fpdus;
                match in_order {
                    true => self.placed_in_order += up.bytes,
                    false if up.bytes > 0 => self.stats.placed_out_of_order += up.bytes,
                    false => {}
                }
            }
        }
        self.record_handed_up(&pass, in_order, sink, budget);
        let taken = self.keep_rest(Span { offset, bytes, extent_end, in_order }, &pass, budget);
        if self.next > pass.end && in_order && self.pieces.starts_with_held(self.next) {
            // `next` has advanced over an island. The held bytes after it may be an FPDU that the sink refused.
            self.take_slow_path(self.next, &[], sink, budget);
        }
        taken
    }

    /// Returns true if bytes must be refused regardless of their content. Such bytes are not examined.
    fn must_refuse(&self, in_order: bool) -> bool {
        match in_order {
            // The next FPDU is complete and refused. Further bytes would only cause another verification of its CRC.
            true => self.blocked,
            false => {
                self.pieces.is_full(self.stats.held)
                    || self.pieces.refused_verified_bytes > self.verify_budget()
            }
        }
    }

    /// Returns the budget, in bytes, for the verification of FPDUs beyond gaps that are not handed up, because they are
    /// invalid or the sink refuses them. Above the budget, segments are refused, and a fault ends the stream.
    fn verify_budget(&self) -> u32 {
        self.checks.max_fpdu.saturating_mul(u32::from(self.max_tries.max(1)))
    }

    /// Handles an FPDU that the sink refused. Returns the end of the bytes to accept. Bytes of the FPDU are accepted
    /// only if the span is in order and contains only a part of the FPDU. If such a part were refused, each
    /// retransmission of it would cause a verification of the whole FPDU.
    fn on_sink_refusal(&mut self, fpdu: Range<u64>, span: &Span<'_>) -> u64 {
        let (offset, end) = (span.offset, span.end());
        let whole = fpdu.start >= offset && fpdu.end <= end;
        if span.in_order && !whole {
            self.blocked = true;
            return fpdu.end.min(end);
        }
        if !whole {
            let unwanted = &mut self.pieces.refused_verified_bytes;
            *unwanted = unwanted.saturating_add((fpdu.end - fpdu.start) as u32);
        }
        // The FPDU's bytes count as lost, so the peer retransmits them.
        fpdu.start.clamp(offset, end)
    }

    /// Records the FPDUs that a pass has handed up.
    fn record_handed_up(
        &mut self,
        pass: &Pass,
        in_order: bool,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) {
        if pass.end == pass.start {
            return;
        }
        if let Some(pieces) = self.pieces.get_mut()
            && !pieces.is_empty()
        {
            pieces.release(pass.start, pass.end, budget, &mut self.stats);
        }
        if in_order {
            self.next = match self.pieces.get_mut() {
                Some(pieces) => {
                    let next = pieces.absorb_islands(pass.end);
                    pieces.shrink();
                    pieces.bad_crc_tries = 0;
                    next
                }
                None => pass.end,
            };
            if self.next > pass.end {
                sink.order_complete(OrderKey(self.next));
            }
            if self.next == self.error_offset() {
                self.discard(budget);
            }
        } else {
            self.pieces.add_island(pass.start, pass.end);
        }
    }

    /// Holds or refuses the bytes of the span that were not handed up.
    fn keep_rest(&mut self, span: Span<'_>, pass: &Pass, budget: &mut HoldBudget) -> SpanOutcome {
        let Span { offset, bytes, in_order, .. } = span;
        let end = span.end();
        let mut until = end;
        match pass.fault.map(|fault| (fault, self.judge_fault(&fault, pass, &span))) {
            Some((_, Verdict::Drop)) => {
                self.stats.bad_crc_dropped += 1;
                until = pass.end.clamp(offset, end);
            }
            Some((fault, Verdict::Fail)) => self.fail(pass.end, fault, budget),
            Some((fault, Verdict::Defer)) => self.set_first_error(pass.end, fault, budget),
            None => {}
        }
        if self.failed {
            return SpanOutcome::All;
        }
        if in_order {
            self.blocked = false;
        }
        if let Some(refused_end) = pass.refused_end {
            until = self.on_sink_refusal(pass.end..refused_end, &span);
        }
        if !pass.located {
            let held = self.hold(&span, offset..end, false, budget);
            return self.span_outcome(&span, offset..held);
        }
        if !bytes.is_empty() && !pass.begins_aligned && pass.start < offset {
            self.stats.alignment_lost += 1;
        }
        self.mark_located(pass.end, offset);
        let mut taken = offset..until;
        // Bytes before the first located FPDU.
        let head = offset..pass.start.min(end);
        if !head.is_empty() {
            if head.end - head.start <= self.hold_room(&span, budget) {
                self.hold(&span, head, false, budget);
            } else {
                taken.start = head.end;
            }
        }
        // Bytes after the handed-up FPDUs: the start of the next FPDU. Bytes beyond an error are not held.
        let tail = pass.end.max(offset)..until.min(self.error_offset());
        if !tail.is_empty() {
            taken.end = self.hold(&span, tail, true, budget);
        }
        if taken.end == end {
            self.mark_located(pass.end.max(end), span.extent_end);
        }
        self.span_outcome(&span, taken)
    }

    /// Returns the reaction to a fault of the FPDU at `pass.end`.
    fn judge_fault(&mut self, fault: &Fault, pass: &Pass, span: &Span<'_>) -> Verdict {
        match fault {
            // RFC 5044 §8: if the CRC is valid and a marker wrong, the fault is the sender's, not the path's.
            // A retransmission would repeat the fault, so the stream ends once the data before the fault is
            // complete.
            Fault::Marker { .. } if !span.in_order => Verdict::Defer,
            // Beyond a gap the fault is not certain. The segment is dropped, and the peer retransmits it. A short
            // segment can cost the CRC of a whole held FPDU, therefore `verify_budget` bounds the bytes that failed.
            // If more bytes fail, the stream ends once the data before the fault is complete.
            _ if !span.in_order => {
                let (verify_budget, failed_verify_bytes) =
                    (self.verify_budget(), &mut self.pieces.failed_verify_bytes);
                *failed_verify_bytes =
                    failed_verify_bytes.saturating_add((pass.fault_end - pass.end) as u32);
                if *failed_verify_bytes > verify_budget { Verdict::Defer } else { Verdict::Drop }
            }
            // RFC 5044 §8 allows a silent drop. The peer retransmits the FPDU only if no byte of it was acknowledged.
            Fault::Crc { .. } | Fault::TooLong { .. }
                if self.on_bad_crc == BadCrcPolicy::Retransmit
                    && self.checks.crc
                    && self.pieces.bad_crc_tries < self.max_tries
                    && (span.offset..span.end()).contains(&pass.end)
                    && pass.fault_end.min(span.extent_end) <= span.end() =>
            {
                self.pieces.bad_crc_tries += 1;
                Verdict::Drop
            }
            _ => Verdict::Fail,
        }
    }

    /// Holds a part of the span, if there is room. Returns the end of the accepted bytes. For the next FPDU in order
    /// there is always room.
    fn hold(
        &mut self,
        span: &Span<'_>,
        part: Range<u64>,
        located: bool,
        budget: &mut HoldBudget,
    ) -> u64 {
        let n = part.end - part.start;
        if n > self.hold_room(span, budget) {
            // A part is never held in fragments. This keeps the sender's segment boundaries and avoids SACKs for
            // fragments.
            return part.start;
        }
        if n > 0 {
            let at = (part.start - span.offset) as usize;
            let bytes = &span.bytes[at..at + n as usize];
            self.pieces.hold(part.start, bytes, located, budget, &mut self.stats);
        }
        part.end
    }

    /// Marks held bytes `from..to` as parts of located FPDUs.
    fn mark_located(&mut self, from: u64, to: u64) {
        if let Some(pieces) = self.pieces.get_mut()
            && !pieces.is_empty()
        {
            pieces.mark_located(from, to, &mut self.stats);
        }
    }

    fn hold_room(&self, span: &Span<'_>, budget: &HoldBudget) -> u64 {
        if span.in_order {
            return u64::MAX;
        }
        let ahead = self.held_beyond_gap();
        self.hold_capacity(ahead, budget.remaining()).saturating_sub(ahead)
    }

    /// Returns the bytes held beyond a gap. Excludes the next FPDU in order, which is always kept.
    fn held_beyond_gap(&self) -> u64 {
        match self.stats.held {
            0 => 0,
            held => held - self.pieces.contiguous_held(self.next),
        }
    }

    /// Returns the maximum number of bytes held beyond a gap. A stream holds at most `hold_limit` bytes, and at most as
    /// many as it leaves free in the worker's budget. `ahead` is the number of bytes held now, `room` the free budget.
    fn hold_capacity(&self, ahead: u64, room: u64) -> u64 {
        u64::from(self.hold_limit).min(room.saturating_add(ahead) / 2)
    }

    fn span_outcome(&mut self, span: &Span<'_>, taken: Range<u64>) -> SpanOutcome {
        if taken == (span.offset..span.end()) {
            return SpanOutcome::All;
        }
        self.refuse_rest(span.offset, span.end(), taken)
    }

    fn refuse_rest(&mut self, offset: u64, end: u64, taken: Range<u64>) -> SpanOutcome {
        let taken = if taken.is_empty() { offset..offset } else { taken };
        self.stats.refused += (end - offset) - (taken.end - taken.start);
        SpanOutcome::Part(taken)
    }

    /// Records an error beyond a gap. Releases all pieces at and beyond the error.
    fn set_first_error(&mut self, at: u64, fault: Fault, budget: &mut HoldBudget) {
        if let Some(pieces) = self.pieces.get_mut() {
            pieces.truncate(at, budget, &mut self.stats);
        }
        self.first_error = Some(Box::new(MpaError { at: OrderKey(at), fault }));
    }

    /// Fails the stream with an error that is next in order.
    fn fail(&mut self, at: u64, fault: Fault, budget: &mut HoldBudget) {
        self.first_error = Some(Box::new(MpaError { at: OrderKey(at), fault }));
        self.discard(budget);
    }
}

/// Hands up all complete, verified FPDUs of `extent` from `start` on.
fn hand_up(
    checks: &Checks,
    up: &mut HandUpTotals,
    extent: &Extent<'_>,
    start: u64,
    order: ExtentPosition,
    sink: &mut impl UlpduSink,
) -> Pass {
    let mut pass = Pass { located: true, ..Pass::empty_at(start) };
    pass.extend_to(start, &order.span);
    if order.in_order {
        sink.order_complete(OrderKey(start));
    }
    while pass.end < extent.end() {
        let (end, ulpdu_len) = match extent.inspect(checks, pass.end) {
            Inspection::Fpdu { end, ulpdu_len } => (end, ulpdu_len),
            // RFC 5044 §8, code 3: no gap remains, but the length fields and a marker disagree.
            Inspection::Incomplete if order.bounded => {
                pass.fault = Some(Fault::Boundary { boundary: extent.end() });
                pass.fault_end = extent.end();
                break;
            }
            Inspection::Incomplete => break,
            Inspection::Bad { fault, end } => {
                pass.fault = Some(fault);
                pass.fault_end = end;
                break;
            }
        };
        let pieces = extent.ulpdu(checks.framing, pass.end, ulpdu_len);
        match sink.ulpdu(OrderKey(pass.end), Ulpdu::new(&pieces)) {
            Disposition::Placed(n) => up.bytes += n as u64,
            Disposition::Ignored => {}
            Disposition::Refused => {
                pass.refused_end = Some(end);
                break;
            }
        }
        up.fpdus += 1;
        pass.extend_to(end, &order.span);
        if order.in_order {
            sink.order_complete(OrderKey(end));
        }
    }
    pass
}

#[cfg(test)]
mod tests;
