//! Reassembles ULPDUs from bytes in any order (RFC 5044 §6, the cases of draft §7.4.1).
//!
//! ```text
//!        next                gap              gap
//!  ......|##held##|           |==placed==|##|    |????held????|==placed==|
//!        an FPDU begins here  FPDUs that were      an FPDU tail, or small
//!        and is not whole     handed up ahead      FPDUs before the first
//!                             of the gap           marker: unlocatable
//! ```
//!
//! Every byte is passed in once. An FPDU is handed up as soon as it is complete, located and verified; until
//! then its bytes are held or refused. FPDUs handed up out of order cost 16 bytes of state per contiguous
//! range.
//!
//! Invariants:
//! - An FPDU begins at `next`; everything before it was handed up.
//! - `pieces` are sorted, do not overlap, and lie at or beyond `next`.
//! - A run of held pieces whose start is known (it follows `next`, placed bytes, or is located by a
//!   marker) begins with an incomplete FPDU: all before it has been handed up.
//! - Nothing at or beyond `stop` was handed up since `stop` was set.

mod extent;
mod pass;
mod pieces;
mod stats;
mod whole;

use super::config::{Config, OnBadCrc, Params};
use super::error::{Fault, MpaError};
use super::framing::Framing;
use crate::seam::Taken;
use base::Lazy;
use core::ops::Range;
use ddp::HoldBudget;
use ddp::llp::{Disposition, OrderKey, Ulpdu, UlpduSink};
use extent::{Checks, Extent, Found, Located};
use pass::{HandedUp, Order, Pass, Span, Verdict};
use pieces::Pieces;

pub use stats::ReceiverStats;

/// The window is never kept below this many bytes, so that in-order data keeps moving.
const MIN_ROOM: u64 = 64 * 1024;

/// The receive half of MPA in Full Operation.
#[derive(Debug)]
pub struct Receiver {
    checks: Checks,
    on_bad_crc: OnBadCrc,
    /// Most retransmissions of an FPDU with a wrong CRC.
    max_tries: u8,
    hold_limit: u32,
    /// Free bytes of the worker's hold budget after the last span. Saturates at `u32::MAX`, of which half
    /// exceeds any window.
    core_room: u32,
    next: u64,
    /// The first error. No FPDU at or beyond its offset is handed up.
    stop: Option<Box<MpaError>>,
    failed: bool,
    /// True if the next FPDU is complete and taken, but the sink has no room for it.
    blocked: bool,
    pieces: Lazy<Pieces>,
    /// Number of FPDUs handed up.
    fpdus: u64,
    placed_in_order: u64,
    /// The other counters, allocated with the first count.
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
            core_room: u32::MAX,
            next: start,
            stop: None,
            failed: false,
            blocked: false,
            pieces: Lazy::new(),
            fpdus: 0,
            placed_in_order: 0,
            stats: Lazy::new(),
        }
    }

    /// Takes bytes at `offset`, none of which was taken before, and hands whole FPDUs to `sink`. `crc`: the
    /// CRC32c of all but the last four bytes, if known.
    pub fn span(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crc: Option<u32>,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> Taken {
        if let Some(pieces) = self.pieces.get_mut() {
            pieces.vain = pieces.vain.saturating_sub(bytes.len() as u32);
            pieces.unwanted = pieces.unwanted.saturating_sub(bytes.len() as u32);
        }
        let taken = match self.take_one(offset, bytes, crc, sink, budget) {
            Some(taken) => taken,
            None => self.take_before_stop(offset, bytes, crc, sink, budget),
        };
        self.core_room = u32::try_from(budget.room()).unwrap_or(u32::MAX);
        taken
    }

    /// Takes the bytes before the first error and discards the others.
    fn take_before_stop(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crc: Option<u32>,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> Taken {
        let end = offset + bytes.len() as u64;
        let limit = self.stop_at();
        if self.failed || offset >= limit {
            // RFC 5044 §8: nothing is passed up after an error.
            self.stats.discarded += bytes.len() as u64;
            return Taken::All;
        }
        if end <= limit {
            return self.take(offset, bytes, crc, sink, budget);
        }
        let within = (limit - offset) as usize;
        match self.take(offset, &bytes[..within], None, sink, budget) {
            Taken::Only(range) if range.end < limit => Taken::Only(range),
            Taken::Only(range) => Taken::Only(range.start..end),
            Taken::All => {
                self.stats.discarded += end - limit;
                Taken::All
            }
        }
    }

    /// True if the sink has refused an FPDU whose bytes TCP has acknowledged: the peer does not retransmit
    /// it. Call [`retry`](Self::retry) when the sink may have room.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Retries to hand up the FPDU that the sink refused.
    pub fn retry(&mut self, sink: &mut impl UlpduSink, budget: &mut HoldBudget) {
        if self.blocked && !self.failed {
            self.blocked = false;
            self.take(self.next, &[], None, sink, budget);
        }
    }

    /// Returns the error that is next in order, if any. No FPDU is handed up from then on.
    pub fn error(&self) -> Option<MpaError> {
        self.stop.as_deref().copied().filter(|_| self.failed)
    }

    /// True after an error: received bytes are discarded.
    pub fn discards(&self) -> bool {
        self.failed
    }

    /// Handles the peer's close. Returns an error if it closed inside an FPDU (RFC 5044 §8 code 1).
    pub fn closed(&mut self, budget: &mut HoldBudget) -> Option<MpaError> {
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

    /// Returns the window to advertise: bytes beyond the in-order point that can be taken now (RFC 5041
    /// appendix A). Without markers all bytes beyond a gap may have to be held, so the window is the hold
    /// capacity. With markers few are held: the window is unlimited until half of the capacity is in use. It
    /// is never below one FPDU or 64 KiB.
    pub fn room(&self) -> u64 {
        if self.failed {
            return u64::MAX;
        }
        let ahead = self.held_ahead();
        let capacity = self.capacity(ahead, self.core_room.into());
        let least = u64::from(self.checks.max_fpdu).max(MIN_ROOM);
        match self.checks.framing.has_markers() {
            true if 2 * ahead > capacity => least,
            true => u64::MAX,
            false => capacity.max(least),
        }
    }

    /// Returns the stream offset up to which every FPDU has been handed up.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the counters.
    pub fn stats(&self) -> ReceiverStats {
        let (fpdus, placed_in_order) = (self.fpdus, self.placed_in_order);
        ReceiverStats { fpdus, placed_in_order, ..*self.stats }
    }

    /// True once an FPDU has been handed up.
    pub fn has_handed_up(&self) -> bool {
        self.fpdus > 0
    }

    /// True once an FPDU has been handed up in order.
    pub fn is_begun(&self) -> bool {
        self.next > self.checks.framing.start()
    }

    /// Frees empty buffers; called when idle.
    pub fn shrink(&mut self) {
        if self.pieces.has_nothing() {
            self.pieces.release();
        }
    }

    fn stop_at(&self) -> u64 {
        self.stop.as_ref().map_or(u64::MAX, |error| error.at.0)
    }

    /// Slow path: takes any bytes, with FPDUs in any number of pieces.
    fn take_any(
        &mut self,
        offset: u64,
        bytes: &[u8],
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) -> Taken {
        let end = offset + bytes.len() as u64;
        let run = self.pieces.run_around(offset, end, self.next);
        let in_order = run.start == self.next;
        if self.is_in_vain(in_order) && !bytes.is_empty() {
            return self.refuse(offset, end, offset..offset);
        }
        let markers = self.checks.framing.has_markers();
        let mut pass = Pass::nothing_at(end);
        let mut extent_end = end;
        if run.known || markers {
            let mut extent = Extent::new(run.start);
            self.pieces.each(run.before.clone(), |held| extent.push(held));
            extent.push(bytes);
            self.pieces.each(run.after.clone(), |held| extent.push(held));
            extent_end = extent.end();
            let bounded = run.bounded || extent_end == self.stop_at();
            let located = match run.known {
                true => Located { start: Some(run.start), begins_inside: false },
                false => extent.locate(&self.checks, &(offset..end)),
            };
            if located.begins_inside && run.start == offset {
                self.stats.alignment_lost += 1;
            }
            if let Some(start) = located.start {
                let order = Order { in_order, bounded, span: offset..end };
                let mut up = HandedUp::default();
                pass = hand_up(&self.checks, &mut up, &extent, start, order, sink);
                self.fpdus += up.fpdus;
                match in_order {
                    true => self.placed_in_order += up.bytes,
                    false if up.bytes > 0 => self.stats.placed_out_of_order += up.bytes,
                    false => {}
                }
            }
        }
        self.settle(&pass, in_order, sink, budget);
        let taken = self.keep_rest(Span { offset, bytes, extent_end, in_order }, &pass, budget);
        if self.next > pass.to && in_order && self.pieces.begin_with_held(self.next) {
            // The in-order point has passed an island. The bytes behind it may be an FPDU that the sink
            // refused.
            self.take_any(self.next, &[], sink, budget);
        }
        taken
    }

    /// True if the bytes could not be kept, whatever their content: they are not examined.
    fn is_in_vain(&self, in_order: bool) -> bool {
        match in_order {
            // The next FPDU is complete and refused. Bytes beyond it would only repeat its CRC.
            true => self.blocked,
            false => self.pieces.is_full(self.stats.held) || self.pieces.unwanted > self.patience(),
        }
    }

    /// Returns the limit of bytes beyond gaps that are verified to no effect. Beyond it, segments are refused
    /// and faults are final.
    fn patience(&self) -> u32 {
        self.checks.max_fpdu.saturating_mul(u32::from(self.max_tries.max(1)))
    }

    /// Handles an FPDU that the sink refused, and returns the end of the bytes to take. They are taken only
    /// in order and if the span holds a part of the FPDU. Otherwise each retransmission of the part would
    /// verify the whole FPDU again.
    fn refused_by_sink(&mut self, fpdu: Range<u64>, span: &Span<'_>) -> u64 {
        let (offset, end) = (span.offset, span.end());
        let whole = fpdu.start >= offset && fpdu.end <= end;
        if span.in_order && !whole {
            self.blocked = true;
            return fpdu.end.min(end);
        }
        if !whole {
            let unwanted = &mut self.pieces.unwanted;
            *unwanted = unwanted.saturating_add((fpdu.end - fpdu.start) as u32);
        }
        // Treated as lost: the peer retransmits the FPDU.
        fpdu.start.clamp(offset, end)
    }

    /// Records the FPDUs that a pass has handed up.
    fn settle(
        &mut self,
        pass: &Pass,
        in_order: bool,
        sink: &mut impl UlpduSink,
        budget: &mut HoldBudget,
    ) {
        if pass.to == pass.from {
            return;
        }
        if let Some(pieces) = self.pieces.get_mut()
            && !pieces.is_empty()
        {
            pieces.release(pass.from, pass.to, budget, &mut self.stats);
        }
        if in_order {
            self.next = match self.pieces.get_mut() {
                Some(pieces) => {
                    let next = pieces.absorb(pass.to);
                    pieces.shrink();
                    pieces.tries = 0;
                    next
                }
                None => pass.to,
            };
            if self.next > pass.to {
                sink.order_complete(OrderKey(self.next));
            }
            if self.next == self.stop_at() {
                self.discard(budget);
            }
        } else {
            self.pieces.placed(pass.from, pass.to);
        }
    }

    /// Holds or refuses the span's bytes that were not handed up.
    fn keep_rest(&mut self, span: Span<'_>, pass: &Pass, budget: &mut HoldBudget) -> Taken {
        let Span { offset, bytes, in_order, .. } = span;
        let end = span.end();
        let mut until = end;
        match pass.fault.map(|fault| (fault, self.verdict(&fault, pass, &span))) {
            Some((_, Verdict::Drop)) => {
                self.stats.bad_crc_dropped += 1;
                until = pass.to.clamp(offset, end);
            }
            Some((fault, Verdict::Fail)) => self.fail(pass.to, fault, budget),
            Some((fault, Verdict::Remember)) => self.stop(pass.to, fault, budget),
            None => {}
        }
        if self.failed {
            return Taken::All;
        }
        if in_order {
            self.blocked = false;
        }
        if let Some(refused_end) = pass.refused {
            until = self.refused_by_sink(pass.to..refused_end, &span);
        }
        if !pass.located {
            let held = self.hold(&span, offset..end, false, budget);
            return self.answer(&span, offset..held);
        }
        if !bytes.is_empty() && !pass.begins_aligned && pass.from < offset {
            self.stats.alignment_lost += 1;
        }
        self.locate(pass.to, offset);
        let mut taken = offset..until;
        // Bytes before the first located FPDU.
        let head = offset..pass.from.min(end);
        if !head.is_empty() {
            if head.end - head.start <= self.room_for(&span, budget) {
                self.hold(&span, head, false, budget);
            } else {
                taken.start = head.end;
            }
        }
        // Bytes behind the handed-up FPDUs: the start of another one, or bytes made worthless by an error.
        let tail = pass.to.max(offset)..until.min(self.stop_at());
        if !tail.is_empty() {
            taken.end = self.hold(&span, tail, true, budget);
        }
        if taken.end == end {
            self.locate(pass.to.max(end), span.extent_end);
        }
        self.answer(&span, taken)
    }

    /// Returns the reaction to a fault of the FPDU at `pass.to`.
    fn verdict(&mut self, fault: &Fault, pass: &Pass, span: &Span<'_>) -> Verdict {
        match fault {
            // RFC 5044 §8: a valid CRC with a wrong start is the sender's error.
            Fault::Marker { .. } if !span.in_order => Verdict::Remember,
            // Ahead of a gap the fault is not certain yet, so the peer is to retransmit. The number is
            // limited: with held bytes, a short segment costs the CRC of a long FPDU.
            _ if !span.in_order => {
                let (patience, vain) = (self.patience(), &mut self.pieces.vain);
                *vain = vain.saturating_add((pass.fault_end - pass.to) as u32);
                if *vain > patience { Verdict::Remember } else { Verdict::Drop }
            }
            // RFC 5044 §8: a silent drop is allowed only if no byte of the FPDU was acknowledged.
            Fault::Crc { .. } | Fault::TooLong { .. }
                if self.on_bad_crc == OnBadCrc::Retransmit
                    && self.checks.crc
                    && self.pieces.tries < self.max_tries
                    && (span.offset..span.end()).contains(&pass.to)
                    && pass.fault_end.min(span.extent_end) <= span.end() =>
            {
                self.pieces.tries += 1;
                Verdict::Drop
            }
            _ => Verdict::Fail,
        }
    }

    /// Holds a part of the span if there is room, and returns the end of the taken bytes. In order there is
    /// always room for one FPDU.
    fn hold(
        &mut self,
        span: &Span<'_>,
        part: Range<u64>,
        located: bool,
        budget: &mut HoldBudget,
    ) -> u64 {
        let n = part.end - part.start;
        if n > self.room_for(span, budget) {
            // All or nothing: keeps the sender's segment boundaries and SACKs no fragments.
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
    fn locate(&mut self, from: u64, to: u64) {
        if let Some(pieces) = self.pieces.get_mut()
            && !pieces.is_empty()
        {
            pieces.locate(from, to, &mut self.stats);
        }
    }

    fn room_for(&self, span: &Span<'_>, budget: &HoldBudget) -> u64 {
        if span.in_order {
            return u64::MAX;
        }
        let ahead = self.held_ahead();
        self.capacity(ahead, budget.room()).saturating_sub(ahead)
    }

    /// Returns the bytes held beyond a gap. Excludes the next FPDU in order, which is always kept.
    fn held_ahead(&self) -> u64 {
        match self.stats.held {
            0 => 0,
            held => held - self.pieces.held_from(self.next),
        }
    }

    /// Returns the bytes that may be held beyond a gap, with `ahead` held now and `room` free in the worker's
    /// budget. A stream holds at most as much as it leaves free for the others.
    fn capacity(&self, ahead: u64, room: u64) -> u64 {
        u64::from(self.hold_limit).min(room.saturating_add(ahead) / 2)
    }

    fn answer(&mut self, span: &Span<'_>, taken: Range<u64>) -> Taken {
        if taken == (span.offset..span.end()) {
            return Taken::All;
        }
        self.refuse(span.offset, span.end(), taken)
    }

    fn refuse(&mut self, offset: u64, end: u64, taken: Range<u64>) -> Taken {
        let taken = if taken.is_empty() { offset..offset } else { taken };
        self.stats.refused += (end - offset) - (taken.end - taken.start);
        Taken::Only(taken)
    }

    /// Records an error ahead of a gap and releases everything beyond it.
    fn stop(&mut self, at: u64, fault: Fault, budget: &mut HoldBudget) {
        if let Some(pieces) = self.pieces.get_mut() {
            pieces.truncate(at, budget, &mut self.stats);
        }
        self.stop = Some(Box::new(MpaError { at: OrderKey(at), fault }));
    }

    /// Fails the stream with an error that is next in order.
    fn fail(&mut self, at: u64, fault: Fault, budget: &mut HoldBudget) {
        self.stop = Some(Box::new(MpaError { at: OrderKey(at), fault }));
        self.discard(budget);
    }
}

/// Hands up all complete, verified FPDUs from `start` on.
fn hand_up(
    checks: &Checks,
    up: &mut HandedUp,
    extent: &Extent<'_>,
    start: u64,
    order: Order,
    sink: &mut impl UlpduSink,
) -> Pass {
    let mut pass = Pass { located: true, ..Pass::nothing_at(start) };
    pass.reach(start, &order.span);
    if order.in_order {
        sink.order_complete(OrderKey(start));
    }
    while pass.to < extent.end() {
        let (end, ulpdu_len) = match extent.inspect(checks, pass.to) {
            Found::Fpdu { end, ulpdu_len } => (end, ulpdu_len),
            // RFC 5044 §8 code 3: the gap is closed, and lengths and marker disagree.
            Found::Incomplete if order.bounded => {
                pass.fault = Some(Fault::Boundary { boundary: extent.end() });
                pass.fault_end = extent.end();
                break;
            }
            Found::Incomplete => break,
            Found::Bad { fault, end } => {
                pass.fault = Some(fault);
                pass.fault_end = end;
                break;
            }
        };
        let pieces = extent.ulpdu(checks.framing, pass.to, ulpdu_len);
        match sink.ulpdu(OrderKey(pass.to), Ulpdu::new(&pieces)) {
            Disposition::Placed(n) => up.bytes += n as u64,
            Disposition::Ignored => {}
            Disposition::Refused => {
                pass.refused = Some(end);
                break;
            }
        }
        up.fpdus += 1;
        pass.reach(end, &order.span);
        if order.in_order {
            sink.order_complete(OrderKey(end));
        }
    }
    pass
}

#[cfg(test)]
mod tests;
