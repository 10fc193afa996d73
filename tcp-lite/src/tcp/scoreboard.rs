//! The scoreboard of segments sent and not acknowledged: one record of 16 bytes each, and the peer's SACK blocks
//! (RFC 2018, RFC 6675 §3, §4).
//!
//! ```text
//!   SND.UNA                                              SND.NXT
//!     |  record  | record |  record  | record |  record  |
//!        lost      SACKed    in flight  SACKed   in flight
//! ```
//!
//! The estimate of the bytes in the network (pipe) is updated record by record. Losses are detected in `detect`, by time
//! (RACK). Without SACK only the oldest segment is ever marked lost.

mod detect;
mod record;

use std::collections::VecDeque;

use base::Instant;
use transport::delivery::{By, Delivery, Transmission};
use transport::ranges::{Range, Ranges};
use transport::seq::{ExtSeq, SeqNumber};

use self::record::{AGAIN, FIN, LOST, PROBE, Record, SACKED};

/// Most ranges of SACKed sequence space remembered. What would need more is ignored: SACK is advisory.
const MAX_SACKED_RANGES: usize = 512;

/// What became of a segment that was sent to probe the path MTU (RFC 4821 §7.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeFate {
    /// It arrived: the path carries segments with this many bytes of payload.
    Arrived(u16),
    /// It was lost. That is no sign of congestion; its bytes are sent again in segments of the effective MSS.
    Lost(u16),
}

/// A segment as it is sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resend {
    pub(crate) index: usize,
    pub(crate) start: ExtSeq,
    pub(crate) len: usize,
    pub(crate) fin: bool,
}

/// The scoreboard of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    /// First sequence number on it, SND.UNA.
    una: ExtSeq,
    sacked: Ranges,
    /// Bytes in the network (RFC 6675 §4, SetPipe).
    pipe: u64,
    /// Records that are lost and not sent again.
    awaiting: u64,
    /// Records that are SACKed.
    sacked_records: u64,
    /// Records that were sent again and not SACKed since.
    out_again: u64,
    /// Every record that ends at or below is SACKed, lost, or was sent again.
    loss_edge: ExtSeq,
    /// Retransmissions by time: the first number of the segment, and when.
    resent: VecDeque<(ExtSeq, Instant)>,
    /// HighRxt: where the search for the next retransmission starts.
    high_rxt: ExtSeq,
    /// What became of the probe, until it is asked for.
    probe_fate: Option<ProbeFate>,
    /// Longest payload that was acknowledged (RFC 5927 §7.2, maxsizeacked).
    longest_acked: u16,
}

base::prefetch!(Scoreboard: records);

impl Scoreboard {
    /// Nothing is in flight. Takes no memory.
    pub(crate) const fn new() -> Self {
        Scoreboard {
            records: VecDeque::new(),
            una: ExtSeq::NONE,
            sacked: Ranges::new(),
            pipe: 0,
            awaiting: 0,
            sacked_records: 0,
            out_again: 0,
            loss_edge: ExtSeq::NONE,
            resent: VecDeque::new(),
            high_rxt: ExtSeq::NONE,
            probe_fate: None,
            longest_acked: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn pipe(&self) -> u64 {
        self.pipe
    }

    /// Records that are SACKed: RACK.segs_sacked (RFC 8985 §5.2).
    pub(crate) fn segs_sacked(&self) -> u64 {
        self.sacked_records
    }

    /// True while a retransmission may be in the network.
    pub(crate) fn resent_in_flight(&self) -> bool {
        self.out_again > 0
    }

    /// True while something is lost and not sent again.
    pub(crate) fn awaits_retransmission(&self) -> bool {
        self.awaiting > 0
    }

    /// True when the oldest segment is SACKed. A receiver that keeps SACKed data acknowledges it, so at a time-out this
    /// means reneging (RFC 2018 §8).
    pub(crate) fn head_sacked(&self) -> bool {
        self.records.front().is_some_and(|r| r.is(SACKED))
    }

    /// A segment was sent for the first time, right after the one before.
    pub(crate) fn push(&mut self, start: ExtSeq, len: u16, fin: bool, now: Instant) {
        let marks = if fin { FIN } else { 0 };
        let record = Record { sent_at: now, start: start.wire().0, len, marks, sends: 1 };
        if self.records.is_empty() {
            self.una = start;
        }
        self.count(&record, |total, n| *total += n);
        self.records.push_back(record);
    }

    /// The segment pushed last is a probe of the path MTU.
    pub(crate) fn last_is_probe(&mut self) {
        if let Some(record) = self.records.back_mut() {
            record.marks |= PROBE;
        }
    }

    /// What became of the probe of the path MTU, returned once.
    pub(crate) fn take_probe_fate(&mut self) -> Option<ProbeFate> {
        self.probe_fate.take()
    }

    /// True when the oldest segment is a probe of the path MTU that was not sent again, lost or not.
    pub(crate) fn head_is_probe(&self) -> bool {
        self.records.front().is_some_and(|r| r.is(PROBE))
    }

    /// Longest payload that was acknowledged at once, bytes (RFC 5927 §7.2, maxsizeacked).
    pub(crate) fn longest_acked(&self) -> u16 {
        self.longest_acked
    }

    /// Payload bytes of the segment that holds `seq`, which is in flight.
    pub(crate) fn len_at(&self, seq: ExtSeq) -> Option<u16> {
        self.records.get(self.first_ending_after(seq)).map(|r| r.len)
    }

    /// True when the segment that holds `seq` is considered lost, or was, and has not arrived.
    pub(crate) fn is_lost(&self, seq: ExtSeq) -> bool {
        let record = self.records.get(self.first_ending_after(seq));
        record.is_some_and(|r| r.marks & (LOST | SACKED) == LOST)
    }

    /// True when something shorter than the oldest segment was sent after it and has arrived.
    pub(crate) fn shorter_arrived(&self) -> bool {
        let Some(head) = self.records.front() else { return false };
        self.records.iter().any(|r| r.is(SACKED) && r.len > 0 && r.len < head.len)
    }

    /// True when one segment is in flight, sent once, not SACKed, not considered lost, no probe and without a FIN.
    #[inline]
    pub(crate) fn is_lone(&self) -> bool {
        self.records.len() == 1
            && self.records.front().is_some_and(|r| r.marks == 0 && r.sends == 1)
            && self.sacked.is_empty()
    }

    /// [`acknowledge`](Self::acknowledge) of all that is in flight, up to `una`, if that [is lone](Self::is_lone). Returns
    /// when it was sent.
    #[inline]
    pub(crate) fn acknowledge_lone(&mut self, una: ExtSeq) -> Option<Instant> {
        let record = self.records.pop_front()?;
        self.una = una;
        self.longest_acked = self.longest_acked.max(record.len);
        self.pipe = 0;
        self.loss_edge = self.loss_edge.max(una);
        self.high_rxt = self.high_rxt.max(una);
        self.resent.clear();
        Some(record.sent_at)
    }

    /// Everything below `una` is acknowledged. A record of which only a part is keeps the rest.
    pub(crate) fn acknowledge(&mut self, una: ExtSeq, delivery: &mut Delivery) {
        let mut left = una.since(self.una);
        let mut at = self.una;
        self.una = una;
        while let Some(record) = self.records.front().copied() {
            if left == 0 {
                break;
            }
            let len = u64::from(record.seq_len());
            if record.is_plain() && len <= left {
                let bytes = self.acknowledge_run(at, left, delivery);
                left -= bytes;
                at = at.plus(bytes);
                continue;
            }
            delivery.ambiguous |= record.sends > 1;
            if !record.is(SACKED) {
                delivery.bytes += len.min(left);
            }
            if len > left {
                self.mark(0, |r| {
                    r.start = una.wire().0;
                    r.len -= left as u16;
                });
                break;
            }
            left -= len;
            at = at.plus(len);
            if !record.is(SACKED) {
                let sent = Transmission { at: record.sent_at, end: at };
                delivery.take(sent, record.sends > 1, By::CumulativeAck);
            }
            if record.marks & (PROBE | LOST) == PROBE {
                self.probe_fate = Some(ProbeFate::Arrived(record.len));
            }
            self.longest_acked = self.longest_acked.max(record.len);
            self.count(&record, |total, n| *total -= n);
            self.records.pop_front();
        }
        if !self.sacked.is_empty() {
            self.sacked.remove_below(una);
        }
        self.loss_edge = self.loss_edge.max(una);
        self.high_rxt = self.high_rxt.max(una);
        if self.records.is_empty() {
            self.resent.clear();
        }
    }

    /// Removes the plain records from the front on that `left` bytes, counted from `at`, cover. Returns how many bytes
    /// they have.
    fn acknowledge_run(&mut self, at: ExtSeq, left: u64, delivery: &mut Delivery) -> u64 {
        let mut bytes = 0;
        let mut longest = self.longest_acked;
        let mut run = None;
        while let Some(record) = self.records.front() {
            let end = bytes + u64::from(record.seq_len());
            if !record.is_plain() || end > left {
                break;
            }
            let sent_at = record.sent_at;
            longest = longest.max(record.len);
            bytes = end;
            let (first, _) =
                *run.get_or_insert((Transmission { at: sent_at, end: at.plus(end) }, sent_at));
            run = Some((first, sent_at));
            self.records.pop_front();
        }
        self.longest_acked = longest;
        self.pipe -= bytes;
        if let Some((first, last)) = run {
            delivery.bytes += bytes;
            delivery.take_run(first, Transmission { at: last, end: at.plus(bytes) });
        }
        bytes
    }

    /// A SACK block, `SND.UNA <= start < end <= SND.NXT` (RFC 6675 §4, Update). Returns whether it reported
    /// anything new. A record counts as SACKed when all of it is.
    pub(crate) fn sack(&mut self, start: ExtSeq, end: ExtSeq, delivery: &mut Delivery) -> bool {
        let mut at = start;
        let mut news = false;
        while let Some(gap) = self.sacked.first_gap(at, end) {
            if self.sacked.len() >= MAX_SACKED_RANGES && !self.sacked.touches(gap) {
                break;
            }
            let whole = self.sacked.insert(gap);
            self.mark_sacked(gap, whole, delivery);
            news = true;
            at = gap.end;
        }
        news
    }

    fn mark_sacked(&mut self, gap: Range, whole: Range, delivery: &mut Delivery) {
        let mut i = self.first_ending_after(gap.start);
        while let Some(record) = self.records.get(i).copied() {
            let range = self.range_of(&record);
            if range.start >= gap.end {
                break;
            }
            if whole.start <= range.start && range.end <= whole.end && !record.is(SACKED) {
                self.mark(i, |r| r.marks |= SACKED);
                let sent = Transmission { at: record.sent_at, end: range.end };
                delivery.bytes += range.len();
                delivery.take(sent, record.sends > 1, By::Sack);
            }
            i += 1;
        }
    }

    /// The oldest segment is lost (RFC 6582 §3.2), sent again before or not.
    pub(crate) fn mark_head_lost(&mut self) {
        if !self.is_empty() && !self.head_sacked() {
            self.mark(0, |r| r.marks = (r.marks | LOST) & !AGAIN);
            self.high_rxt = self.una;
        }
    }

    /// A time-out: everything that is not SACKed is lost (RFC 6675 §5.1, RFC 5681 §3.1).
    pub(crate) fn mark_all_lost(&mut self) {
        for i in 0..self.records.len() {
            if !self.records[i].is(SACKED) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !AGAIN);
            }
        }
        self.high_rxt = self.una;
        self.resent.clear();
    }

    /// What was thought lost was not: it is in the network or has arrived.
    pub(crate) fn forget_losses(&mut self) {
        for i in 0..self.records.len() {
            if self.records[i].is(LOST) {
                self.mark(i, |r| r.marks &= !LOST);
            }
        }
        self.loss_edge = self.una;
    }

    /// Segments longer than `emss` did not pass: they are lost (RFC 1191 §6.5).
    pub(crate) fn mark_longer_lost(&mut self, emss: usize) {
        for i in 0..self.records.len() {
            if usize::from(self.records[i].len) > emss && !self.records[i].is(SACKED) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !AGAIN);
            }
        }
        self.high_rxt = self.una;
    }

    /// Forgets all that was SACKed (RFC 2018 §8: the peer has reneged).
    pub(crate) fn forget_sacks(&mut self) {
        self.sacked.clear();
        for i in 0..self.records.len() {
            if self.records[i].is(SACKED) {
                self.mark(i, |r| r.marks &= !SACKED);
            }
        }
        self.loss_edge = self.una;
    }

    /// The next segment that is lost and not sent again (RFC 6675 §4, NextSeg rule 1).
    pub(crate) fn next_lost(&mut self) -> Option<Resend> {
        if self.awaiting == 0 {
            return None;
        }
        let from = self.first_ending_after(self.high_rxt);
        let found = (from..self.records.len())
            .chain(0..from)
            .find(|i| self.records[*i].awaits_retransmission())?;
        Some(self.resend(found))
    }

    /// The last segment that is not SACKed.
    pub(crate) fn last(&self) -> Option<Resend> {
        let found = (0..self.records.len()).rev().find(|i| !self.records[*i].is(SACKED))?;
        Some(self.resend(found))
    }

    /// The oldest segment.
    pub(crate) fn head(&self) -> Option<Resend> {
        (!self.is_empty()).then(|| self.resend(0))
    }

    /// Cuts a segment in two, the first with `at` bytes of payload; its length becomes `at`.
    pub(crate) fn cut(&mut self, resend: Resend, at: usize) -> Resend {
        debug_assert!(0 < at && at < resend.len + usize::from(resend.fin));
        let mut second = self.records[resend.index];
        self.mark(resend.index, |first| {
            first.len = at as u16;
            first.marks &= !(FIN | PROBE);
        });
        second.marks &= !PROBE;
        second.start = second.start.wrapping_add(at as u32);
        second.len -= at as u16;
        self.count(&second, |total, n| *total += n);
        self.records.insert(resend.index + 1, second);
        Resend { len: at, fin: false, ..resend }
    }

    /// The segment was sent again now. A `probe`, of a window or of the tail, is not the next of those that
    /// are lost.
    pub(crate) fn resent(&mut self, resend: Resend, now: Instant, probe: bool) {
        self.mark(resend.index, |r| {
            r.marks |= AGAIN;
            r.sends = r.sends.saturating_add(1);
            r.sent_at = now;
        });
        self.note_resent(resend.start, now);
        if !probe {
            let end = self.range_of(&self.records[resend.index]).end;
            self.high_rxt = self.high_rxt.max(end);
        }
    }

    /// True when all of `range` is SACKed.
    pub(crate) fn has_sacked(&self, range: Range) -> bool {
        self.sacked.covers(range)
    }

    /// Sequence space of the segment at `index`, and how often it was sent.
    pub(crate) fn sends_at(&self, index: usize) -> Option<(Range, u8)> {
        self.records.get(index).map(|record| (self.range_of(record), record.sends))
    }

    fn resend(&self, index: usize) -> Resend {
        let record = &self.records[index];
        Resend {
            index,
            start: self.range_of(record).start,
            len: usize::from(record.len),
            fin: record.is(FIN),
        }
    }

    fn range_of(&self, record: &Record) -> Range {
        let start = self.una.near(SeqNumber(record.start));
        Range { start, end: start.plus(u64::from(record.seq_len())) }
    }

    /// Index of the first record that ends after `at`.
    fn first_ending_after(&self, at: ExtSeq) -> usize {
        self.records.partition_point(|r| self.range_of(r).end <= at)
    }

    /// Changes a record and what is counted of it.
    fn mark(&mut self, index: usize, change: impl FnOnce(&mut Record)) {
        let before = self.records[index];
        self.count(&before, |total, n| *total -= n);
        let record = &mut self.records[index];
        change(record);
        if record.is(PROBE) && record.marks != before.marks {
            self.probe_fate = match record.marks & (SACKED | LOST | AGAIN) {
                SACKED => Some(ProbeFate::Arrived(record.len)),
                LOST if !before.is(LOST) => Some(ProbeFate::Lost(record.len)),
                _ => self.probe_fate,
            };
            if record.is(SACKED | AGAIN) {
                record.marks &= !PROBE;
            }
        }
        let after = *record;
        self.count(&after, |total, n| *total += n);
    }

    /// Adds a record to what is counted, or takes it off.
    fn count(&mut self, record: &Record, change: impl Fn(&mut u64, u64)) {
        change(&mut self.pipe, record.in_pipe());
        change(&mut self.awaiting, u64::from(record.awaits_retransmission()));
        change(&mut self.sacked_records, u64::from(record.is(SACKED)));
        change(&mut self.out_again, u64::from(record.is_out_again()));
    }
}

#[cfg(test)]
mod tests;
