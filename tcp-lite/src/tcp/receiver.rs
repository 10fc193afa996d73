//! The receive half: what was taken, what to acknowledge, how much to let the peer send.
//!
//! Every byte goes up at once and at most once; this half remembers ranges only.

use arrayvec::ArrayVec;
use base::{Blank, Instant, Lazy, Nanos};
use transport::ranges::{Range, Ranges};
use transport::right_size::{self, Usage};
use transport::seq::{ExtSeq, SeqNumber};

use super::config::Config;
use super::segment::{MAX_SACK_BLOCKS, Timestamps};
use super::stats::Counts;
use super::window::ReceiveWindow;
use crate::seam::{SpanSink, Taken};

/// After this long without a segment the saved timestamp is invalid (RFC 7323 §5.5): 24 days, in
/// units of 2^32 nanoseconds.
const TS_RECENT_LIFETIME: u32 = ((24 * 86_400 * 1_000_000_000_u64) >> 32) as u32;

/// Segments that a peer sends before our first acknowledgement (RFC 6928).
const INITIAL_WINDOW: u64 = 10;

/// Duplicate acknowledgements owed at most to a peer without SACK.
const MAX_OWED: u8 = 8;

/// Changes of the echo that wait for their acknowledgement. What changes more often within a burst is acknowledged
/// with the echo as it is at its end.
const MAX_EARLIER: usize = 4;

/// Segments acknowledged at once after something arrived beyond a gap.
const QUICK: u8 = 16;

/// The receive half of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// RCV.NXT.
    pub(crate) nxt: ExtSeq,
    /// RCV.NXT + RCV.WND as last advertised.
    pub(crate) edge: ExtSeq,
    irs: SeqNumber,
    apart: Lazy<Apart>,
    /// The peer uses SACK: duplicates are reported to it by D-SACK.
    pub(crate) d_sacks: bool,
    /// Sequence number of the peer's FIN; none before it is seen.
    fin: ExtSeq,
    /// TS.Recent and when it was set, in units of 2^32 nanoseconds (RFC 7323 §4.3, §5.5).
    ts_recent: u32,
    ts_recent_at: u32,
    /// Last.ACK.sent (RFC 7323 §4.3).
    last_ack_sent: SeqNumber,
    /// When the measurement of the window's use began, in [`right_size::ticks`].
    measured_since: u32,
    /// RCV.NXT in [units](Self::units) when half a window will have come since.
    half_used_at: u16,
    /// The window that is wanted now, scaled. It never becomes smaller.
    wanted: u16,
    /// RMSS: most bytes of payload that the peer puts into a segment.
    rmss: u16,
    /// Our window scale shift.
    pub(crate) shift: u8,
    /// An acknowledgement is due now.
    pub(crate) ack_now: bool,
    /// Data segments since the last acknowledgement.
    pub(crate) unacked_segments: u8,
    /// Segments still to be acknowledged at once: the path loses, so that the peer's window is small, and
    /// may hold one segment, and acknowledgements get lost too.
    quick: u8,
    /// Duplicate acknowledgements owed to a peer without SACK, beyond the one of `ack_now`.
    pub(crate) owed: u8,
}

// One cache line of each stream.
const _: () = assert!(size_of::<Receiver>() <= 64);

/// What is there only beside the order.
#[derive(Clone, Debug)]
struct Apart {
    /// What was taken beyond a gap.
    ranges: Ranges,
    /// A number inside each of the most recent ranges, the latest first (RFC 2018 §4).
    recent: ArrayVec<ExtSeq, MAX_SACK_BLOCKS>,
    /// The last duplicate, to be reported with the next acknowledgement (RFC 2883).
    d_sack: Option<Range>,
    /// What is to be acknowledged before the rest, with ECE or without.
    earlier: ArrayVec<(ExtSeq, bool), MAX_EARLIER>,
}

/// An acknowledgement of less than all that came (RFC 8257 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EarlierAck {
    pub(crate) ack: ExtSeq,
    pub(crate) window: u16,
    /// ECE.
    pub(crate) echo: bool,
    edge: ExtSeq,
}

impl Blank for Apart {
    fn blank() -> &'static Self {
        static BLANK: Apart = Apart {
            ranges: Ranges::new(),
            recent: ArrayVec::new_const(),
            d_sack: None,
            earlier: ArrayVec::new_const(),
        };
        &BLANK
    }
}

/// What became of the text of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Text {
    /// Something was taken, or there was nothing new in it.
    Taken,
    /// New bytes, none of which was taken.
    Refused,
}

/// The text of a segment, in bytes: `fresh` were new and in the window, of these `taken` were taken; `outside` were
/// outside of it.
#[derive(Clone, Copy)]
struct Came {
    len: u64,
    fresh: u64,
    taken: u64,
    outside: u64,
    /// Something was missing before it came.
    had_gap: bool,
    /// It lies beyond what was taken in order.
    beyond: bool,
}

impl Receiver {
    /// For a peer whose initial sequence number is `irs`; nothing is advertised yet. `shift` is zero
    /// unless both sides scale.
    pub(crate) fn new(irs: SeqNumber, config: &Config, rmss: u16, shift: u8, now: Instant) -> Self {
        let nxt = ExtSeq::initial(irs).plus(1);
        let mut receiver = Receiver {
            nxt,
            edge: nxt,
            irs,
            apart: Lazy::new(),
            d_sacks: false,
            fin: ExtSeq::NONE,
            ts_recent: 0,
            ts_recent_at: coarse(now),
            last_ack_sent: nxt.wire(),
            measured_since: 0,
            half_used_at: 0,
            wanted: Self::wanted_at_first(config, shift),
            rmss,
            shift,
            ack_now: false,
            unacked_segments: 0,
            quick: 0,
            owed: 0,
        };
        receiver.measure(now);
        receiver
    }

    /// IRS.
    pub(crate) fn irs(&self) -> ExtSeq {
        ExtSeq::initial(self.irs)
    }

    /// Ranges taken beyond the gap.
    pub(crate) fn ranges(&self) -> usize {
        self.apart.ranges.len()
    }

    /// No memory is taken for what is beside the order.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.apart.is_blank()
    }

    /// Bytes taken, in order or beyond a gap.
    pub(crate) fn bytes(&self) -> u64 {
        let fin = self.fin().is_some_and(|fin| fin < self.nxt);
        self.offset(self.nxt) - u64::from(fin) + self.apart.ranges.bytes()
    }

    /// Nothing has come for a while: frees what is there only beside the order.
    pub(crate) fn shrink(&mut self) {
        if self.has_nothing_apart() {
            self.apart.release();
        }
    }

    /// Nothing is there beside the order.
    #[inline]
    fn has_nothing_apart(&self) -> bool {
        !self.has_gap() && !self.has_d_sack() && self.apart.earlier.is_empty()
    }

    /// True while something is missing before what was taken.
    pub(crate) fn has_gap(&self) -> bool {
        !self.apart.ranges.is_empty()
    }

    /// Stream offset of a sequence number: zero for the first byte after the SYN.
    pub(crate) fn offset(&self, seq: ExtSeq) -> u64 {
        seq.since(self.irs().plus(1))
    }

    // --- text ---------------------------------------------------------------------------------------

    /// The text of an acceptable segment, which starts at `start`: what is in the window and was never
    /// taken goes up (RFC 9293 §3.10.7.4, seventh check; SHLD-31).
    pub(crate) fn text(
        &mut self,
        now: Instant,
        start: ExtSeq,
        payload: &[u8],
        config: &Config,
        stats: &mut Counts,
        up: &mut impl SpanSink,
    ) -> Text {
        let had_gap = self.has_gap();
        let beyond = start > self.nxt;
        let end = start.plus(payload.len() as u64).min(self.edge);
        let end = self.fin().map_or(end, |fin| fin.min(end));
        let len = payload.len() as u64;
        if had_gap || start < self.nxt {
            self.came_twice(start, start.plus(len));
        }
        let (mut fresh, mut taken) = (0, 0);
        let mut at = start.max(self.nxt);
        while let Some(gap) = self.apart.ranges.first_gap(at, end) {
            let from = gap.start.since(start) as usize;
            let bytes = &payload[from..from + gap.len() as usize];
            fresh += gap.len();
            taken += self.hand_up(now, gap, bytes, config, stats, up);
            at = gap.end.max(self.nxt);
        }
        if beyond && let Some(range) = self.apart.ranges.containing(start) {
            self.note_recent(range); // also for a duplicate (RFC 2018 §4)
        }
        let outside = start.plus(len).since(end.max(start));
        self.text_came(now, start, Came { len, fresh, taken, outside, had_gap, beyond }, stats)
    }

    /// True when text of `len` bytes at RCV.NXT is all new and in the window, and nothing is there beside the order.
    #[inline]
    pub(crate) fn is_plain(&self, len: usize) -> bool {
        (1..=self.edge.since(self.nxt)).contains(&(len as u64))
            && self.fin == ExtSeq::NONE
            && (self.apart.is_blank() || self.has_nothing_apart())
    }

    /// [`text`](Self::text) of the next segment in order, for which [`is_plain`](Self::is_plain).
    #[inline]
    pub(crate) fn next_text(
        &mut self,
        now: Instant,
        payload: &[u8],
        config: &Config,
        stats: &mut Counts,
        up: &mut impl SpanSink,
    ) -> Text {
        let (start, len) = (self.nxt, payload.len() as u64);
        let gap = Range { start, end: start.plus(len) };
        let taken = self.hand_up(now, gap, payload, config, stats, up);
        let came = Came { len, fresh: len, taken, outside: 0, had_gap: false, beyond: false };
        self.text_came(now, start, came, stats)
    }

    /// The text of a segment at `start` was handed up, as far as it was new.
    #[inline]
    fn text_came(&mut self, now: Instant, start: ExtSeq, came: Came, stats: &mut Counts) -> Text {
        if came.taken < came.len {
            self.ack_now = true;
            self.not_all_taken(now, &came, stats);
        }
        if self.has_gap() {
            let max = &mut stats.more().recv.out_of_order_max;
            *max = (*max).max(self.apart.ranges.bytes());
        }
        self.count_segment(came.had_gap);
        if came.beyond && self.owed < MAX_OWED {
            self.owed += 1;
        }
        if came.taken == 0 && came.fresh > 0 {
            self.take_back(start);
            return Text::Refused;
        }
        Text::Taken
    }

    /// A data segment has come. RFC 5681 §4.2: it is acknowledged at once beyond a gap, when a gap is filled, for what was
    /// not taken or not new; else every second one is.
    #[inline]
    fn count_segment(&mut self, had_gap: bool) {
        self.unacked_segments = self.unacked_segments.saturating_add(1);
        // The same when the window holds no second one, and for a while after a gap: only then is waiting
        // for a second one worth it.
        let full = self.edge.since(self.nxt) < self.rmss.into();
        let quick = self.acknowledges_at_once();
        if had_gap || quick || full || self.unacked_segments >= 2 {
            self.ack_now = true;
        }
    }

    /// Text from `start` on was refused. In order that means that the owner takes nothing, and what was offered is offered no
    /// longer: a peer probes a closed window for as long as it is answered, but gives up one that is open and takes nothing (RFC
    /// 9293 §3.8.6, which asks senders to bear it: MUST-34).
    #[cold]
    fn take_back(&mut self, start: ExtSeq) {
        if start <= self.nxt && !self.has_gap() {
            self.edge = self.nxt;
        }
    }

    /// Some bytes of a segment were not taken.
    #[cold]
    fn not_all_taken(&mut self, now: Instant, came: &Came, stats: &mut Counts) {
        let &Came { len, fresh, taken, outside, .. } = came;
        stats.add(len - fresh - outside.min(len - fresh), |s| &mut s.recv.bytes_duplicate);
        stats.add(fresh - taken + outside, |s| &mut s.recv.bytes_refused);
        if taken < fresh {
            self.measure(now); // the window is not what limits the peer
        }
    }

    /// A segment has come: whether there is a gap now, or was not long ago.
    fn acknowledges_at_once(&mut self) -> bool {
        if self.has_gap() {
            self.quick = QUICK;
            return true;
        }
        let quick = self.quick > 0;
        self.quick = self.quick.saturating_sub(1);
        quick
    }

    /// Bytes `start..end` arrive. The first contiguous part of them that was taken before is reported to
    /// the peer once (RFC 2883 §4).
    pub(crate) fn came_twice(&mut self, start: ExtSeq, end: ExtSeq) {
        if !self.d_sacks {
            return;
        }
        let below = Range { start, end: end.min(self.nxt) };
        let first = if below.start < below.end {
            Some(below)
        } else {
            self.apart.ranges.first_overlap(start, end)
        };
        if first.is_some() {
            self.apart.d_sack = first;
        }
    }

    /// The duplicate that was not reported yet.
    pub(crate) fn has_d_sack(&self) -> bool {
        self.apart.d_sack.is_some()
    }

    /// Hands up bytes that were not taken before; returns how many are taken now.
    fn hand_up(
        &mut self,
        now: Instant,
        gap: Range,
        bytes: &[u8],
        config: &Config,
        stats: &mut Counts,
        up: &mut impl SpanSink,
    ) -> u64 {
        let in_order = gap.start == self.nxt;
        if !in_order && !self.has_place_for(gap, config.max_ranges) {
            return 0;
        }
        let offset = self.offset(gap.start);
        let taken = match up.span(now, offset, bytes, in_order) {
            Taken::All => gap,
            Taken::Only(part) => {
                let start = part.start.clamp(offset, offset + gap.len());
                let end = part.end.clamp(start, offset + gap.len());
                Range { start: self.irs().plus(1 + start), end: self.irs().plus(1 + end) }
            }
        };
        if taken.len() == 0 {
            return 0;
        }
        if taken.start == self.nxt {
            self.nxt = match self.apart.get_mut() {
                Some(apart) => apart.ranges.advance(taken.end),
                None => taken.end,
            };
            up.in_order_until(now, self.offset(self.nxt));
        } else {
            stats.more().recv.bytes_out_of_order += taken.len();
            let range = self.apart.ranges.insert(taken);
            self.note_recent(range);
        }
        taken.len()
    }

    /// Whether a span beyond the gap can be remembered: at the bound only next to a range, and never at
    /// twice the bound, which an upper layer that takes parts could reach.
    fn has_place_for(&self, range: Range, max_ranges: usize) -> bool {
        let n = self.apart.ranges.len();
        n < max_ranges || (n < 2 * max_ranges && self.apart.ranges.touches(range))
    }

    /// A FIN at `at`, in the window. Returns false when it contradicts what came before.
    pub(crate) fn fin_seen(&mut self, at: ExtSeq) -> bool {
        let taken_past = at < self.nxt || self.apart.ranges.highest().is_some_and(|end| end > at);
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

    /// The peer's FIN, once everything before it was taken: RCV.NXT goes over it, once.
    pub(crate) fn take_fin(&mut self) -> bool {
        let due = self.fin == self.nxt;
        if due {
            self.nxt = self.nxt.plus(1);
            self.edge = self.edge.max(self.nxt);
            self.ack_now = true;
        }
        due
    }

    /// The sequence number of the peer's FIN.
    pub(crate) fn fin(&self) -> Option<ExtSeq> {
        (self.fin != ExtSeq::NONE).then_some(self.fin)
    }

    // --- SACK ---------------------------------------------------------------------------------------

    fn note_recent(&mut self, range: Range) {
        let recent = &mut self.apart.recent;
        recent.retain(|at| *at < range.start || *at >= range.end);
        if recent.is_full() {
            recent.pop();
        }
        recent.insert(0, range.start);
    }

    /// SACK blocks to report: what came twice (RFC 2883 §4), then the range that changed last, then the
    /// others by age (RFC 2018 §4).
    pub(crate) fn sack_blocks(&self) -> ArrayVec<(SeqNumber, SeqNumber), MAX_SACK_BLOCKS> {
        let mut blocks: ArrayVec<Range, MAX_SACK_BLOCKS> = ArrayVec::new();
        let Apart { ranges, recent, d_sack, .. } = &*self.apart;
        blocks.extend(*d_sack);
        let recent = recent.iter().filter_map(|at| ranges.containing(*at));
        for range in recent.chain(ranges.iter()) {
            if blocks.is_full() {
                break;
            }
            // A range that came twice as a whole is reported by D-SACK and as a range.
            let d_sacks = usize::from(d_sack.is_some());
            if !blocks[d_sacks..].contains(&range) {
                blocks.push(range);
            }
        }
        // The FIN takes a sequence number too.
        let end = |r: &Range| if self.fin == r.end { r.end.plus(1) } else { r.end };
        blocks.iter().map(|r| (r.start.wire(), end(r).wire())).collect()
    }

    // --- window -------------------------------------------------------------------------------------

    /// The window that is wanted now, bytes.
    #[inline]
    fn target(&self) -> u64 {
        u64::from(self.wanted) << self.shift
    }

    /// A window of so many bytes, scaled, as far as the scale reaches; at least one unit, else it would be closed for ever.
    fn scaled(bytes: u64, shift: u8) -> u16 {
        u16::try_from(bytes >> shift).unwrap_or(u16::MAX).max(1)
    }

    fn wanted_at_first(config: &Config, shift: u8) -> u16 {
        Self::scaled(config.receive_window.into(), shift)
    }

    #[inline]
    fn window(&self, room: u64) -> ReceiveWindow {
        let target = self.target();
        ReceiveWindow {
            rcv_nxt: self.nxt,
            right_edge: self.edge,
            wanted: target.min(room),
            step: u64::from(self.rmss).min(target / 2), // RFC 9293 §3.8.6.2.2
            shift: self.shift,
        }
    }

    /// The window field of a segment sent now; `room` is what the upper layer takes.
    pub(crate) fn advertise(&mut self, room: u64) -> u16 {
        let window = self.window(room);
        self.edge = window.next_edge();
        self.last_ack_sent = self.nxt.wire();
        window.field(self.edge)
    }

    // --- growth of the window -----------------------------------------------------------------------

    /// RCV.NXT in units of twice the window's: a window has 32,768 of them at most.
    #[inline]
    fn units(&self) -> u16 {
        (self.nxt.since(ExtSeq::NONE) >> (self.shift + 1)) as u16
    }

    fn half_in_units(&self) -> u16 {
        self.wanted / 4
    }

    /// The use of the window is measured from now on.
    #[cold]
    pub(crate) fn measure(&mut self, now: Instant) {
        self.measured_since = right_size::ticks(now);
        self.half_used_at = self.units().wrapping_add(self.half_in_units() + 1);
    }

    /// Half a window has been taken in order since the measurement began.
    #[inline]
    pub(crate) fn is_half_used(&self) -> bool {
        self.units().wrapping_sub(self.half_used_at) < 1 << 15
    }

    /// How much of the window is used, when half of it has come.
    pub(crate) fn usage(&self, now: Instant, rtt: Nanos) -> Usage {
        let units = self.units().wrapping_sub(self.half_used_at);
        // Less than a unit came before.
        let delivered = u64::from(units) + u64::from(self.half_in_units());
        let ticks = right_size::ticks(now).wrapping_sub(self.measured_since);
        right_size::judge(delivered << (self.shift + 1), self.target(), ticks, rtt)
    }

    /// The window after it has grown once more, bytes; none if it may not.
    pub(crate) fn next_window(&self, config: &Config) -> Option<u64> {
        let most = Self::scaled(config.window_limit(), self.shift);
        let next = self.wanted.saturating_mul(2).min(most);
        (next > self.wanted).then(|| u64::from(next) << self.shift)
    }

    /// Bytes by which the window grows with that one.
    pub(crate) fn growth_to(&self, window: u64) -> u64 {
        window - self.target()
    }

    /// Bytes by which the window has grown.
    pub(crate) fn grown(&self, config: &Config) -> u64 {
        let first = u64::from(Self::wanted_at_first(config, self.shift));
        (u64::from(self.wanted) - first) << self.shift
    }

    /// The window grows to what [`next_window`](Self::next_window) gave.
    pub(crate) fn grow(&mut self, window: u64) {
        self.wanted = Self::scaled(window, self.shift);
    }

    /// All that came so far is acknowledged with `echo`, ahead of what comes now (RFC 8257 §3.2). Nothing is, if
    /// it was acknowledged already.
    pub(crate) fn acknowledge_so_far(&mut self, echo: bool) {
        let acked = self.nxt.near(self.last_ack_sent);
        let acked = self.apart.earlier.last().map_or(acked, |(ack, _)| *ack);
        if self.nxt > acked && !self.apart.earlier.is_full() {
            self.apart.earlier.push((self.nxt, echo));
        }
    }

    /// The next acknowledgement of that kind. Its window ends where the last one did, rounded up to the scale.
    pub(crate) fn earlier_ack(&self) -> Option<EarlierAck> {
        let (ack, echo) = *self.apart.earlier.first()?;
        let unit = 1u64 << self.shift;
        let units = self.edge.since(ack).div_ceil(unit).min(u16::MAX.into());
        Some(EarlierAck { ack, window: units as u16, echo, edge: ack.plus(units * unit) })
    }

    /// It was sent.
    pub(crate) fn sent_earlier(&mut self, earlier: EarlierAck) {
        self.last_ack_sent = self.nxt.near(self.last_ack_sent).max(earlier.ack).wire();
        self.edge = self.edge.max(earlier.edge);
        if let Some(apart) = self.apart.get_mut() {
            apart.earlier.remove(0);
        }
    }

    /// The unscaled window of a SYN (RFC 7323 §2.2).
    pub(crate) fn syn_window(target: u64, room: u64) -> u16 {
        u16::try_from(target.min(room)).unwrap_or(u16::MAX)
    }

    /// Our SYN, or SYN and ACK, offered this window.
    pub(crate) fn offered(&mut self, window: u16) {
        self.edge = self.edge.max(self.nxt.plus(u64::from(window)));
    }

    /// True when a window update should be sent although nothing else is to be sent.
    pub(crate) fn update_due(&self, room: u64) -> bool {
        // The window of a SYN is not scaled and less than what we could offer, but enough to begin with.
        let fresh = self.nxt == self.irs().plus(1);
        if fresh && self.edge.since(self.nxt) >= INITIAL_WINDOW * u64::from(self.rmss) {
            return false;
        }
        self.window(room).worth_an_update(self.rmss.into(), self.target())
    }

    /// The acknowledgement that was due was sent. With a gap left, one on a data segment does not count:
    /// it has no SACK blocks.
    pub(crate) fn acknowledged(&mut self, pure: bool) {
        if pure && let Some(apart) = self.apart.get_mut() {
            apart.d_sack = None;
        }
        if pure || (!self.has_gap() && !self.has_d_sack()) {
            self.ack_now = false;
            self.unacked_segments = 0;
        }
    }

    // --- timestamps ---------------------------------------------------------------------------------

    /// TS.Recent, to echo.
    pub(crate) fn ts_recent(&self) -> u32 {
        self.ts_recent
    }

    /// The timestamp of the SYN.
    pub(crate) fn set_ts_recent(&mut self, val: u32, now: Instant) {
        self.ts_recent = val;
        self.ts_recent_at = coarse(now);
    }

    /// RFC 7323 §5.3 R1 and §5.5: true for a timestamp older than the one saved, if that is still good.
    pub(crate) fn is_old(&self, stamps: Timestamps, now: Instant) -> bool {
        let idle = coarse(now).saturating_sub(self.ts_recent_at);
        SeqNumber(stamps.val).before(SeqNumber(self.ts_recent)) && idle < TS_RECENT_LIFETIME
    }

    /// RFC 7323 §4.3 (2), §5.3 R3: the timestamp of an acceptable segment at `seq`.
    pub(crate) fn record_timestamp(&mut self, seq: ExtSeq, stamps: Timestamps, now: Instant) {
        if !self.last_ack_sent.before(seq.wire()) {
            self.set_ts_recent(stamps.val, now);
        }
    }
}

/// In units of 2^32 nanoseconds.
fn coarse(at: Instant) -> u32 {
    (at.as_nanos() >> 32) as u32
}
