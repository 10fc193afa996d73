//! The receive half: received ranges, acknowledgements due, and the receive window.
//!
//! Each byte is passed to the upper layer at once, and never again after the upper layer accepted it. The receive half
//! stores ranges, not bytes.

use arrayvec::ArrayVec;
use base::{Blank, Instant, Lazy, Nanos};
use transport::ranges::{Range, Ranges};
use transport::right_sizing::{self, WindowUsage};
use transport::seq::{ExtSeq, SeqNumber};

use super::config::Config;
use super::segment::{MAX_SACK_BLOCKS, Timestamps};
use super::stats::Counters;
use super::window::ReceiveWindow;
use crate::seam::{SpanOutcome, SpanSink};

/// Lifetime of TS.Recent without an update: 24 days (RFC 7323 §5.5), in units of 2^32 nanoseconds.
const TS_RECENT_LIFETIME: u32 = ((24 * 86_400 * 1_000_000_000_u64) >> 32) as u32;

/// Segments that a peer may send before our first acknowledgement: its initial window (RFC 6928).
const INITIAL_WINDOW: u64 = 10;

/// Maximum number of duplicate acknowledgements owed to a peer without SACK.
const MAX_OWED_DUP_ACKS: u8 = 8;

/// Maximum number of pending acknowledgements with an older ECE state (RFC 8257 §3.2). Each change of the CE mark
/// within a burst adds one. After more changes, the remaining segments are acknowledged with the ECE state at the end
/// of the burst.
const MAX_EARLIER_ACKS: usize = 4;

/// Number of segments that are acknowledged without delay after a gap was filled.
const QUICK_ACKS: u8 = 16;

/// The receive half of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// RCV.NXT.
    pub(crate) nxt: ExtSeq,
    /// RCV.NXT + RCV.WND as last advertised.
    pub(crate) edge: ExtSeq,
    irs: SeqNumber,
    out_of_order: Lazy<OutOfOrder>,
    /// True if the peer uses SACK: duplicates are then reported by D-SACK.
    pub(crate) d_sacks: bool,
    /// Sequence number of the peer's FIN; [`ExtSeq::NONE`] before it was received.
    fin: ExtSeq,
    /// TS.Recent (RFC 7323 §4.3).
    ts_recent: u32,
    /// Time of the last update of TS.Recent, in units of 2^32 nanoseconds (RFC 7323 §5.5).
    ts_recent_at: u32,
    /// Last.ACK.sent (RFC 7323 §4.3).
    last_ack_sent: SeqNumber,
    /// Start of the measurement of window usage, in [`right_sizing::ticks`].
    measured_since: u32,
    /// RCV.NXT at which half a window has been received since `measured_since`, in [units](Self::units).
    half_used_at: u16,
    /// Target size of the window, in units of 2^`shift` bytes. It never shrinks.
    target_scaled: u16,
    /// RMSS: maximum payload bytes of a segment from the peer.
    rmss: u16,
    /// Our window scale shift.
    pub(crate) shift: u8,
    /// True if an acknowledgement is due at the next transmission.
    pub(crate) ack_now: bool,
    /// Data segments received since the last acknowledgement.
    pub(crate) unacked_segments: u8,
    /// Number of further segments to acknowledge without delay after a gap. After a loss the peer's congestion
    /// window is small, perhaps one segment, and acknowledgements may also be lost.
    quick_acks_left: u8,
    /// Duplicate acknowledgements owed to a peer without SACK. The acknowledgement of `ack_now` counts as one of them.
    pub(crate) owed_dup_acks: u8,
}

// A cache line has 64 bytes.
const _: () = assert!(size_of::<Receiver>() <= 64);

/// Out-of-order state: ranges beyond a gap, an unreported duplicate, and pending acknowledgements. Not allocated while
/// data arrives in order.
#[derive(Clone, Debug)]
struct OutOfOrder {
    /// Ranges beyond a gap that the upper layer accepted.
    ranges: Ranges,
    /// A sequence number in each of the most recent ranges, newest first (RFC 2018 §4).
    recent: ArrayVec<ExtSeq, MAX_SACK_BLOCKS>,
    /// The last range received twice, reported with the next acknowledgement (RFC 2883).
    d_sack: Option<Range>,
    /// Acknowledgements to send before the current acknowledgement: acknowledgement number, and true if ECE is set.
    earlier_acks: ArrayVec<(ExtSeq, bool), MAX_EARLIER_ACKS>,
}

/// A pending acknowledgement of the segments before a change of the CE mark, with the ECE state before the change (RFC
/// 8257 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EarlierAck {
    /// Acknowledgement number.
    pub(crate) ack: ExtSeq,
    /// Window field, scaled.
    pub(crate) window: u16,
    /// True if ECE is set.
    pub(crate) echo: bool,
    /// Right edge of `window`.
    edge: ExtSeq,
}

impl Blank for OutOfOrder {
    fn blank() -> &'static Self {
        static BLANK: OutOfOrder = OutOfOrder {
            ranges: Ranges::new(),
            recent: ArrayVec::new_const(),
            d_sack: None,
            earlier_acks: ArrayVec::new_const(),
        };
        &BLANK
    }
}

/// Result of processing a segment's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TextOutcome {
    /// The upper layer accepted new bytes, or there were none.
    Taken,
    /// There were new bytes, and the upper layer accepted none.
    Refused,
}

/// Byte counts of a received segment's payload. `len`: all bytes. `new_bytes`: in the window and not accepted before.
/// `taken`: the part of `new_bytes` that the upper layer accepted. `outside`: beyond the window or the peer's FIN.
#[derive(Clone, Copy)]
struct ReceivedText {
    len: u64,
    new_bytes: u64,
    taken: u64,
    outside: u64,
    /// True if the receiver had a gap when the segment arrived.
    had_gap: bool,
    /// True if the segment begins beyond RCV.NXT.
    beyond_nxt: bool,
}

impl Receiver {
    /// Creates the receive half for a peer with initial sequence number `irs`. No window is advertised yet. `shift` is
    /// zero unless both sides scale.
    pub(crate) fn new(irs: SeqNumber, config: &Config, rmss: u16, shift: u8, now: Instant) -> Self {
        let nxt = ExtSeq::initial(irs).plus(1);
        let mut receiver = Receiver {
            nxt,
            edge: nxt,
            irs,
            out_of_order: Lazy::new(),
            d_sacks: false,
            fin: ExtSeq::NONE,
            ts_recent: 0,
            ts_recent_at: coarse_ticks(now),
            last_ack_sent: nxt.wire(),
            measured_since: 0,
            half_used_at: 0,
            target_scaled: Self::initial_target(config, shift),
            rmss,
            shift,
            ack_now: false,
            unacked_segments: 0,
            quick_acks_left: 0,
            owed_dup_acks: 0,
        };
        receiver.restart_measurement(now);
        receiver
    }

    /// Returns IRS, the peer's initial sequence number.
    pub(crate) fn irs(&self) -> ExtSeq {
        ExtSeq::initial(self.irs)
    }

    /// Returns the number of ranges stored beyond a gap.
    pub(crate) fn ranges(&self) -> usize {
        self.out_of_order.ranges.len()
    }

    /// Returns true if no out-of-order state is allocated.
    pub(crate) fn is_shrunk(&self) -> bool {
        self.out_of_order.is_blank()
    }

    /// Returns the bytes that the upper layer accepted, in order or beyond a gap.
    pub(crate) fn bytes_taken(&self) -> u64 {
        let fin = self.fin().is_some_and(|fin| fin < self.nxt);
        self.offset(self.nxt) - u64::from(fin) + self.out_of_order.ranges.bytes()
    }

    /// Frees the out-of-order state if it is empty. Called when the connection is idle.
    pub(crate) fn shrink(&mut self) {
        if self.is_out_of_order_empty() {
            self.out_of_order.release();
        }
    }

    /// Returns true if no range, duplicate or earlier acknowledgement is stored.
    #[inline]
    fn is_out_of_order_empty(&self) -> bool {
        !self.has_gap() && !self.has_d_sack() && self.out_of_order.earlier_acks.is_empty()
    }

    /// Returns true while data is missing below a stored range.
    pub(crate) fn has_gap(&self) -> bool {
        !self.out_of_order.ranges.is_empty()
    }

    /// Returns the stream offset of a sequence number: zero for the first byte after the SYN.
    pub(crate) fn offset(&self, seq: ExtSeq) -> u64 {
        seq.since(self.irs().plus(1))
    }

    // --- payload ------------------------------------------------------------------------------------

    /// Passes the payload of an acceptable segment at `start` to `up`: all bytes in the window that were not accepted
    /// before (RFC 9293 §3.10.7.4, seventh check; SHLD-31).
    pub(crate) fn hand_up_text(
        &mut self,
        now: Instant,
        start: ExtSeq,
        payload: &[u8],
        config: &Config,
        stats: &mut Counters,
        up: &mut impl SpanSink,
    ) -> TextOutcome {
        let had_gap = self.has_gap();
        let beyond = start > self.nxt;
        let end = start.plus(payload.len() as u64).min(self.edge);
        let end = self.fin().map_or(end, |fin| fin.min(end));
        let len = payload.len() as u64;
        if had_gap || start < self.nxt {
            self.note_duplicate(start, start.plus(len));
        }
        let (mut new_bytes, mut taken) = (0, 0);
        let mut at = start.max(self.nxt);
        while let Some(gap) = self.out_of_order.ranges.first_gap(at, end) {
            let from = gap.start.since(start) as usize;
            let bytes = &payload[from..from + gap.len() as usize];
            new_bytes += gap.len();
            taken += self.hand_up(now, gap, bytes, config, stats, up);
            at = gap.end.max(self.nxt);
        }
        if beyond && let Some(range) = self.out_of_order.ranges.containing(start) {
            self.note_recent(range); // also if the segment is a duplicate (RFC 2018 §4)
        }
        let outside = start.plus(len).since(end.max(start));
        self.on_text_handed_up(
            now,
            start,
            ReceivedText { len, new_bytes, taken, outside, had_gap, beyond_nxt: beyond },
            stats,
        )
    }

    /// Returns true if a payload of `len` bytes at RCV.NXT is all new and in the window, and the out-of-order state is
    /// empty.
    #[inline]
    pub(crate) fn is_in_order_text(&self, len: usize) -> bool {
        (1..=self.edge.since(self.nxt)).contains(&(len as u64))
            && self.fin == ExtSeq::NONE
            && (self.out_of_order.is_blank() || self.is_out_of_order_empty())
    }

    /// Passes the payload of the next segment in order to `up`. Equivalent to [`hand_up_text`](Self::hand_up_text), but
    /// faster. Requires that [`is_in_order_text`](Self::is_in_order_text) is true for the payload.
    #[inline]
    pub(crate) fn hand_up_next_text(
        &mut self,
        now: Instant,
        payload: &[u8],
        stats: &mut Counters,
        up: &mut impl SpanSink,
    ) -> TextOutcome {
        let (start, len) = (self.nxt, payload.len() as u64);
        let gap = Range { start, end: start.plus(len) };
        let offset = self.offset(start);
        let outcome = up.receive_span(now, offset, payload, true);
        if matches!(outcome, SpanOutcome::All) && self.out_of_order.is_blank() {
            // The usual case: nothing is missing, and all bytes were taken.
            self.nxt = gap.end;
            up.advance_in_order(now, offset + len);
            self.count_segment(false);
            return TextOutcome::Taken;
        }
        let taken = self.record_taken(now, gap, outcome, stats, up);
        let text = ReceivedText {
            len,
            new_bytes: len,
            taken,
            outside: 0,
            had_gap: false,
            beyond_nxt: false,
        };
        self.on_text_handed_up(now, start, text, stats)
    }

    /// Updates acknowledgement state and counters after a segment's new bytes were passed to the upper layer.
    #[inline]
    fn on_text_handed_up(
        &mut self,
        now: Instant,
        start: ExtSeq,
        text: ReceivedText,
        stats: &mut Counters,
    ) -> TextOutcome {
        if text.taken < text.len {
            self.ack_now = true;
            self.count_untaken(now, &text, stats);
        }
        if self.has_gap() {
            let max = &mut stats.cold_stats().recv.out_of_order_max;
            *max = (*max).max(self.out_of_order.ranges.bytes());
        }
        self.count_segment(text.had_gap);
        if text.beyond_nxt && self.owed_dup_acks < MAX_OWED_DUP_ACKS {
            self.owed_dup_acks += 1;
        }
        if text.taken == 0 && text.new_bytes > 0 {
            self.withdraw_window(start);
            return TextOutcome::Refused;
        }
        TextOutcome::Taken
    }

    /// Counts a data segment and decides whether to acknowledge at once (RFC 5681 §4.2): while there is a gap, and when
    /// a gap is filled. Otherwise every second segment is acknowledged.
    #[inline]
    fn count_segment(&mut self, had_gap: bool) {
        self.unacked_segments = self.unacked_segments.saturating_add(1);
        // An acknowledgement is also due at once if the window has no room for another full segment, and for
        // `QUICK_ACKS` segments after a gap.
        let full = self.edge.since(self.nxt) < self.rmss.into();
        let quick = self.must_quick_ack();
        if had_gap || quick || full || self.unacked_segments >= 2 {
            self.ack_now = true;
        }
    }

    /// Closes the window after the upper layer refused in-order data. A peer probes a closed window for as long as
    /// probes are answered, but aborts the connection if an open window accepts no data. RFC 9293 §3.8.6 MUST-34:
    /// senders tolerate a window that shrinks.
    #[cold]
    fn withdraw_window(&mut self, start: ExtSeq) {
        if start <= self.nxt && !self.has_gap() {
            self.edge = self.nxt;
        }
    }

    /// Counts the bytes of a segment that were not accepted, as duplicate or refused.
    #[cold]
    fn count_untaken(&mut self, now: Instant, text: &ReceivedText, stats: &mut Counters) {
        let &ReceivedText { len, new_bytes, taken, outside, .. } = text;
        stats.add(len - new_bytes - outside.min(len - new_bytes), |s| &mut s.recv.bytes_duplicate);
        stats.add(new_bytes - taken + outside, |s| &mut s.recv.bytes_refused);
        if taken < new_bytes {
            self.restart_measurement(now); // the upper layer, not the window, limits the peer
        }
    }

    /// Returns true if the segment must be acknowledged without delay because of a present or recent gap.
    /// Counts down `quick_acks_left`.
    fn must_quick_ack(&mut self) -> bool {
        if self.has_gap() {
            self.quick_acks_left = QUICK_ACKS;
            return true;
        }
        let quick = self.quick_acks_left > 0;
        self.quick_acks_left = self.quick_acks_left.saturating_sub(1);
        quick
    }

    /// Records the first contiguous part of `start..end` that was received before. The next acknowledgement reports
    /// this part, once (RFC 2883 §4).
    pub(crate) fn note_duplicate(&mut self, start: ExtSeq, end: ExtSeq) {
        if !self.d_sacks {
            return;
        }
        let below = Range { start, end: end.min(self.nxt) };
        let first = if below.start < below.end {
            Some(below)
        } else {
            self.out_of_order.ranges.first_overlap(start, end)
        };
        if first.is_some() {
            self.out_of_order.d_sack = first;
        }
    }

    /// Returns true if a duplicate is recorded that no acknowledgement has reported yet.
    pub(crate) fn has_d_sack(&self) -> bool {
        self.out_of_order.d_sack.is_some()
    }

    /// Passes new bytes, the range `gap`, to `up`. Returns the number of bytes that the upper layer accepted.
    fn hand_up(
        &mut self,
        now: Instant,
        gap: Range,
        bytes: &[u8],
        config: &Config,
        stats: &mut Counters,
        up: &mut impl SpanSink,
    ) -> u64 {
        let in_order = gap.start == self.nxt;
        if !in_order && !self.can_store_range(gap, config.max_ranges) {
            return 0;
        }
        let outcome = up.receive_span(now, self.offset(gap.start), bytes, in_order);
        self.record_taken(now, gap, outcome, stats, up)
    }

    /// Records the part of `gap` that the upper layer took. Returns its length in bytes.
    fn record_taken(
        &mut self,
        now: Instant,
        gap: Range,
        outcome: SpanOutcome,
        stats: &mut Counters,
        up: &mut impl SpanSink,
    ) -> u64 {
        let offset = self.offset(gap.start);
        let taken = match outcome {
            SpanOutcome::All => gap,
            SpanOutcome::Part(part) => {
                let start = part.start.clamp(offset, offset + gap.len());
                let end = part.end.clamp(start, offset + gap.len());
                Range { start: self.irs().plus(1 + start), end: self.irs().plus(1 + end) }
            }
        };
        if taken.len() == 0 {
            return 0;
        }
        if taken.start == self.nxt {
            self.nxt = match self.out_of_order.get_mut() {
                Some(out_of_order) => out_of_order.ranges.advance(taken.end),
                None => taken.end,
            };
            up.advance_in_order(now, self.offset(self.nxt));
        } else {
            stats.cold_stats().recv.bytes_out_of_order += taken.len();
            let range = self.out_of_order.ranges.insert(taken);
            self.note_recent(range);
        }
        taken.len()
    }

    /// Returns true if an out-of-order `range` can be stored. From `max_ranges` stored ranges on, `range` must touch
    /// one of these ranges. If the upper layer accepts only a part of such a `range`, one range more may result. The
    /// absolute limit is therefore twice `max_ranges`.
    fn can_store_range(&self, range: Range, max_ranges: usize) -> bool {
        let n = self.out_of_order.ranges.len();
        n < max_ranges || (n < 2 * max_ranges && self.out_of_order.ranges.touches(range))
    }

    /// Records a FIN at `at`, in the window. Returns false if the FIN contradicts received data or an earlier FIN.
    pub(crate) fn record_fin(&mut self, at: ExtSeq) -> bool {
        let taken_past =
            at < self.nxt || self.out_of_order.ranges.highest().is_some_and(|end| end > at);
        match self.fin() {
            Some(fin) if fin != at => return false,
            None if taken_past => return false,
            _ => self.fin = at,
        }
        if at > self.nxt {
            self.ack_now = true;
        }
        true
    }

    /// Advances RCV.NXT over the peer's FIN once everything before the FIN was accepted. Returns true if RCV.NXT was
    /// advanced.
    pub(crate) fn take_fin(&mut self) -> bool {
        let due = self.fin == self.nxt;
        if due {
            self.nxt = self.nxt.plus(1);
            self.edge = self.edge.max(self.nxt);
            self.ack_now = true;
        }
        due
    }

    /// Returns the sequence number of the peer's FIN, if received.
    pub(crate) fn fin(&self) -> Option<ExtSeq> {
        (self.fin != ExtSeq::NONE).then_some(self.fin)
    }

    // --- SACK ---------------------------------------------------------------------------------------

    fn note_recent(&mut self, range: Range) {
        let recent = &mut self.out_of_order.recent;
        recent.retain(|at| *at < range.start || *at >= range.end);
        if recent.is_full() {
            recent.pop();
        }
        recent.insert(0, range.start);
    }

    /// Returns the SACK blocks to send: an unreported duplicate (RFC 2883 §4), the range that changed last, then the
    /// others, most recent first (RFC 2018 §4).
    pub(crate) fn sack_blocks(&self) -> ArrayVec<(SeqNumber, SeqNumber), MAX_SACK_BLOCKS> {
        let mut blocks: ArrayVec<Range, MAX_SACK_BLOCKS> = ArrayVec::new();
        let OutOfOrder { ranges, recent, d_sack, .. } = &*self.out_of_order;
        blocks.extend(*d_sack);
        let recent = recent.iter().filter_map(|at| ranges.containing(*at));
        for range in recent.chain(ranges.iter()) {
            if blocks.is_full() {
                break;
            }
            // The range of the D-SACK block may also be a separate block (RFC 2883 §4).
            let d_sacks = usize::from(d_sack.is_some());
            if !blocks[d_sacks..].contains(&range) {
                blocks.push(range);
            }
        }
        // The FIN occupies one sequence number after the data.
        let end = |r: &Range| if self.fin == r.end { r.end.plus(1) } else { r.end };
        blocks.iter().map(|r| (r.start.wire(), end(r).wire())).collect()
    }

    // --- window -------------------------------------------------------------------------------------

    /// Returns the target size of the window, bytes.
    #[inline]
    fn target(&self) -> u64 {
        u64::from(self.target_scaled) << self.shift
    }

    /// Returns `bytes` in units of 2^`shift` bytes, rounded down, 1 to 65,535. A target of zero would close the window
    /// for ever.
    fn scaled(bytes: u64, shift: u8) -> u16 {
        u16::try_from(bytes >> shift).unwrap_or(u16::MAX).max(1)
    }

    fn initial_target(config: &Config, shift: u8) -> u16 {
        Self::scaled(config.receive_window.into(), shift)
    }

    #[inline]
    fn window(&self, room: u64) -> ReceiveWindow {
        let target = self.target();
        ReceiveWindow {
            rcv_nxt: self.nxt,
            right_edge: self.edge,
            target: target.min(room),
            step: u64::from(self.rmss).min(target / 2), // RFC 9293 §3.8.6.2.2
            shift: self.shift,
        }
    }

    /// Returns the window field of a segment sent now, and records the right edge as advertised. `room`: free space of
    /// the upper layer, bytes.
    pub(crate) fn advertise(&mut self, room: u64) -> u16 {
        let window = self.window(room);
        self.edge = window.next_edge();
        self.last_ack_sent = self.nxt.wire();
        window.window_field(self.edge)
    }

    // --- growth of the window -----------------------------------------------------------------------

    /// Returns RCV.NXT in units of 2^(shift + 1) bytes, modulo 2^16. A window has at most 32,768 units.
    #[inline]
    fn units(&self) -> u16 {
        (self.nxt.since(ExtSeq::NONE) >> (self.shift + 1)) as u16
    }

    fn half_in_units(&self) -> u16 {
        self.target_scaled / 4
    }

    /// Starts a new measurement of the time in which the peer uses half the window.
    #[cold]
    pub(crate) fn restart_measurement(&mut self, now: Instant) {
        self.measured_since = right_sizing::ticks(now);
        self.half_used_at = self.units().wrapping_add(self.half_in_units() + 1);
    }

    /// Returns true if half a window was accepted in order since the measurement began.
    #[inline]
    pub(crate) fn is_half_used(&self) -> bool {
        self.units().wrapping_sub(self.half_used_at) < 1 << 15
    }

    /// Returns the usage of the window since the measurement began. Called after half of the window was received.
    pub(crate) fn window_usage(&self, now: Instant, rtt: Nanos) -> WindowUsage {
        let units = self.units().wrapping_sub(self.half_used_at);
        // The result is a lower bound; the error is less than one unit.
        let delivered = u64::from(units) + u64::from(self.half_in_units());
        let ticks = right_sizing::ticks(now).wrapping_sub(self.measured_since);
        right_sizing::judge_usage(delivered << (self.shift + 1), self.target(), ticks, rtt)
    }

    /// Returns the next larger target of the window, bytes: twice the current target, within the configured limit.
    /// `None` at the limit.
    pub(crate) fn next_window(&self, config: &Config) -> Option<u64> {
        let most = Self::scaled(config.window_limit(), self.shift);
        let next = self.target_scaled.saturating_mul(2).min(most);
        (next > self.target_scaled).then(|| u64::from(next) << self.shift)
    }

    /// Returns the bytes by which `window` exceeds the target.
    pub(crate) fn growth_to(&self, window: u64) -> u64 {
        window - self.target()
    }

    /// Returns the bytes by which the target exceeds the initial target.
    pub(crate) fn growth(&self, config: &Config) -> u64 {
        let first = u64::from(Self::initial_target(config, self.shift));
        (u64::from(self.target_scaled) - first) << self.shift
    }

    /// Sets the target to the value that [`next_window`](Self::next_window) returned.
    pub(crate) fn grow(&mut self, window: u64) {
        self.target_scaled = Self::scaled(window, self.shift);
    }

    /// Schedules an acknowledgement, with ECE if `echo`, of everything received before the current segment (RFC 8257
    /// §3.2). Has no effect if such an acknowledgement was sent or is pending, or if the list is full.
    pub(crate) fn schedule_earlier_ack(&mut self, echo: bool) {
        let acked = self.nxt.nearest(self.last_ack_sent);
        let acked = self.out_of_order.earlier_acks.last().map_or(acked, |(ack, _)| *ack);
        if self.nxt > acked && !self.out_of_order.earlier_acks.is_full() {
            self.out_of_order.earlier_acks.push((self.nxt, echo));
        }
    }

    /// Returns the next pending acknowledgement with an older ECE state. Its window ends at the last right
    /// edge, rounded up to the scale.
    pub(crate) fn earlier_ack(&self) -> Option<EarlierAck> {
        let (ack, echo) = *self.out_of_order.earlier_acks.first()?;
        let unit = 1u64 << self.shift;
        let units = self.edge.since(ack).div_ceil(unit).min(u16::MAX.into());
        Some(EarlierAck { ack, window: units as u16, echo, edge: ack.plus(units * unit) })
    }

    /// Records that the first pending acknowledgement was sent, and removes it.
    pub(crate) fn on_earlier_ack_sent(&mut self, earlier: EarlierAck) {
        self.last_ack_sent = self.nxt.nearest(self.last_ack_sent).max(earlier.ack).wire();
        self.edge = self.edge.max(earlier.edge);
        if let Some(out_of_order) = self.out_of_order.get_mut() {
            out_of_order.earlier_acks.remove(0);
        }
    }

    /// Returns the unscaled window of a SYN (RFC 7323 §2.2).
    pub(crate) fn syn_window(target: u64, room: u64) -> u16 {
        u16::try_from(target.min(room)).unwrap_or(u16::MAX)
    }

    /// Records the window that our SYN or SYN-ACK offered.
    pub(crate) fn on_window_offered(&mut self, window: u16) {
        self.edge = self.edge.max(self.nxt.plus(u64::from(window)));
    }

    /// Returns true if an acknowledgement is due because the right edge can advance. `room`: free space of the upper
    /// layer, bytes.
    pub(crate) fn is_window_update_due(&self, room: u64) -> bool {
        // The window of our SYN is unscaled, so it may be smaller than the target. Before the first data no update is
        // needed if the peer's initial window fits.
        let fresh = self.nxt == self.irs().plus(1);
        if fresh && self.edge.since(self.nxt) >= INITIAL_WINDOW * u64::from(self.rmss) {
            return false;
        }
        self.window(room).is_update_due(self.rmss.into(), self.target())
    }

    /// Records that a segment with an acknowledgement was sent. `pure`: without data. Data segments have no SACK
    /// blocks, so they do not replace a due acknowledgement while there is a gap or an unreported duplicate.
    pub(crate) fn on_ack_sent(&mut self, pure: bool) {
        if pure && let Some(out_of_order) = self.out_of_order.get_mut() {
            out_of_order.d_sack = None;
        }
        if pure || (!self.has_gap() && !self.has_d_sack()) {
            self.ack_now = false;
            self.unacked_segments = 0;
        }
    }

    // --- timestamps ---------------------------------------------------------------------------------

    /// Returns TS.Recent, which is echoed as TSecr.
    pub(crate) fn ts_recent(&self) -> u32 {
        self.ts_recent
    }

    /// Sets TS.Recent and the time of its update.
    pub(crate) fn set_ts_recent(&mut self, val: u32, now: Instant) {
        self.ts_recent = val;
        self.ts_recent_at = coarse_ticks(now);
    }

    /// Returns true if the timestamp is older than a TS.Recent that is still valid (RFC 7323 §5.3 R1, §5.5).
    pub(crate) fn is_old_timestamp(&self, stamps: Timestamps, now: Instant) -> bool {
        let idle = coarse_ticks(now).saturating_sub(self.ts_recent_at);
        SeqNumber(stamps.val).before(SeqNumber(self.ts_recent)) && idle < TS_RECENT_LIFETIME
    }

    /// Updates TS.Recent from an acceptable segment at `seq` (RFC 7323 §4.3 (2), §5.3 R3).
    pub(crate) fn record_timestamp(&mut self, seq: ExtSeq, stamps: Timestamps, now: Instant) {
        if !self.last_ack_sent.before(seq.wire()) {
            self.set_ts_recent(stamps.val, now);
        }
    }
}

/// Returns a time in units of 2^32 nanoseconds.
fn coarse_ticks(at: Instant) -> u32 {
    (at.as_nanos() >> 32) as u32
}
