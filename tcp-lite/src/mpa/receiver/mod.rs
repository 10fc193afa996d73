//! From bytes in any order to ULPDUs (RFC 5044 §6, the cases of draft §7.4.1).
//!
//! ```text
//!        next                gap              gap
//!  ......|##held##|           |==placed==|##|    |????held????|==placed==|
//!        an FPDU begins here  FPDUs that were      an FPDU tail, or small
//!        and is not whole     handed up ahead      FPDUs before the first
//!                             of the gap           marker: unlocatable
//! ```
//!
//! Every byte is passed in once. It is handed up with its FPDU as soon as that is complete, located and verified;
//! until then it is held or refused. What was handed up out of order costs 16 bytes for each contiguous range
//! between two gaps.
//!
//! Invariants:
//! - `next` is where an FPDU begins; everything before it was handed up.
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
    /// Most tries of an FPDU with a wrong CRC.
    max_tries: u8,
    hold_limit: u32,
    /// What the core had left to hold when the last span came; no window is half as large as the most that
    /// fits here.
    core_room: u32,
    next: u64,
    /// The first error, and where: nothing at or beyond it is handed up.
    stop: Option<Box<MpaError>>,
    failed: bool,
    /// The next FPDU is whole, all of it was taken, and the sink has no room for it.
    blocked: bool,
    pieces: Lazy<Pieces>,
    /// FPDUs handed up, and the payload of those in order.
    fpdus: u64,
    placed_in_order: u64,
    /// The other counters, once there is any of it.
    stats: Lazy<ReceiverStats>,
}

impl Receiver {
    /// A receiver for the direction whose Full Operation begins at stream offset `start`.
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

    /// Takes bytes at `offset`, none of which was taken before, and hands whole FPDUs to `sink`. `crc` is the CRC32c of
    /// all but the last four of them, if it is known.
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

    /// Takes what lies before the first error, and throws away the rest.
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

    /// True when the sink refused an FPDU that will not come again because TCP has acknowledged its
    /// bytes: call [`retry`](Self::retry) when the sink may have room.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Hands up what the sink had refused.
    pub fn retry(&mut self, sink: &mut impl UlpduSink, budget: &mut HoldBudget) {
        if self.blocked && !self.failed {
            self.blocked = false;
            self.take(self.next, &[], None, sink, budget);
        }
    }

    /// The error that the order has reached, if any. From then on nothing is handed up.
    pub fn error(&self) -> Option<MpaError> {
        self.stop.as_deref().copied().filter(|_| self.failed)
    }

    /// True after an error: what comes is thrown away.
    pub fn discards(&self) -> bool {
        self.failed
    }

    /// The peer has closed its direction. If it did so inside an FPDU, that is the error (RFC 5044 §8
    /// code 1).
    pub fn closed(&mut self, budget: &mut HoldBudget) -> Option<MpaError> {
        if !self.failed && !self.pieces.is_empty() {
            self.fail(self.next, Fault::Truncated, budget);
        }
        self.error()
    }

    /// Hands up nothing more, and frees what is held.
    pub fn discard(&mut self, budget: &mut HoldBudget) {
        self.failed = true;
        self.blocked = false;
        if let Some(pieces) = self.pieces.get_mut() {
            pieces.clear(budget, &mut self.stats);
        }
    }

    /// Bytes beyond the in-order point that can be taken now, for the window to advertise
    /// (RFC 5041 appendix A). Without markers, all but the first gap of them may have to be held; with
    /// markers only little of them, so the window stops growing only while half of what may be held is.
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

    /// The stream offset up to which every FPDU has been handed up.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Counters.
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

    /// To be called when idle: frees empty buffers.
    pub fn shrink(&mut self) {
        if self.pieces.has_nothing() {
            self.pieces.release();
        }
    }

    fn stop_at(&self) -> u64 {
        self.stop.as_ref().map_or(u64::MAX, |error| error.at.0)
    }

    /// The long way: bytes of any place and any part of FPDUs.
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
            // The order has passed an island. What follows it may be an FPDU that was refused.
            self.take_any(self.next, &[], sink, budget);
        }
        taken
    }

    /// True when what has come could not be kept, whatever it is: it is not examined.
    fn is_in_vain(&self, in_order: bool) -> bool {
        match in_order {
            // The next FPDU is whole. What brings nothing to it does not cost its CRC once more.
            true => self.blocked,
            false => self.pieces.is_full(self.stats.held) || self.pieces.unwanted > self.patience(),
        }
    }

    /// Bytes ahead of gaps that may be verified in vain at a stretch.
    fn patience(&self) -> u32 {
        self.checks.max_fpdu.saturating_mul(u32::from(self.max_tries.max(1)))
    }

    /// What the sink has no room for is taken only if it belongs to an FPDU of which more has been taken
    /// or is held: it would come again and again, for the CRC of all of it each time. Returns up to where.
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
        // As if it had never arrived: the peer sends it again.
        fpdu.start.clamp(offset, end)
    }

    /// Enters what a pass has handed up.
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

    /// Decides about the bytes of the span that were not handed up.
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
        // Bytes after them: the beginning of one more, or what an error makes worthless.
        let tail = pass.to.max(offset)..until.min(self.stop_at());
        if !tail.is_empty() {
            taken.end = self.hold(&span, tail, true, budget);
        }
        if taken.end == end {
            self.locate(pass.to.max(end), span.extent_end);
        }
        self.answer(&span, taken)
    }

    /// What is to be done about a fault of the FPDU at `pass.to`.
    fn verdict(&mut self, fault: &Fault, pass: &Pass, span: &Span<'_>) -> Verdict {
        match fault {
            // RFC 5044 §8: a valid CRC and a wrong start is the sender's doing.
            Fault::Marker { .. } if !span.in_order => Verdict::Remember,
            // Ahead of a gap nothing is certain yet: the peer sends it again. Not for ever, where what is
            // held makes little bytes cost the CRC of many.
            _ if !span.in_order => {
                let (patience, vain) = (self.patience(), &mut self.pieces.vain);
                *vain = vain.saturating_add((pass.fault_end - pass.to) as u32);
                if *vain > patience { Verdict::Remember } else { Verdict::Drop }
            }
            // RFC 5044 §8: dropped silently only while no byte of it was acknowledged.
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

    /// Holds a part of the span if there is room for it, and returns where what was taken of it ends. In
    /// order there is always room for one FPDU.
    fn hold(
        &mut self,
        span: &Span<'_>,
        part: Range<u64>,
        located: bool,
        budget: &mut HoldBudget,
    ) -> u64 {
        let n = part.end - part.start;
        if n > self.room_for(span, budget) {
            // All or nothing: the sender's boundaries stay, and no fragments are SACKed.
            return part.start;
        }
        if n > 0 {
            let at = (part.start - span.offset) as usize;
            let bytes = &span.bytes[at..at + n as usize];
            self.pieces.hold(part.start, bytes, located, budget, &mut self.stats);
        }
        part.end
    }

    /// Bytes `from..to` that are held belong to FPDUs that are located now.
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

    /// Bytes held ahead of a gap: not those of the next FPDU in order, which are always kept.
    fn held_ahead(&self) -> u64 {
        match self.stats.held {
            0 => 0,
            held => held - self.pieces.held_from(self.next),
        }
    }

    /// Bytes that may be held ahead of a gap, when `ahead` are and the core has `room` for more: no stream
    /// takes more of what the core has than it leaves to the others.
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

    /// An error ahead of a gap: remembers it, and that nothing beyond it counts.
    fn stop(&mut self, at: u64, fault: Fault, budget: &mut HoldBudget) {
        if let Some(pieces) = self.pieces.get_mut() {
            pieces.truncate(at, budget, &mut self.stats);
        }
        self.stop = Some(Box::new(MpaError { at: OrderKey(at), fault }));
    }

    /// An error that the order has reached.
    fn fail(&mut self, at: u64, fault: Fault, budget: &mut HoldBudget) {
        self.stop = Some(Box::new(MpaError { at: OrderKey(at), fault }));
        self.discard(budget);
    }
}

/// Hands up every FPDU from `start` on that is whole and verified.
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
