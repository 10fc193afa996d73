//! What was sent and is not acknowledged: one record of 16 octets per segment, and what the peer SACKed
//! (RFC 2018, RFC 6675 §3, §4).
//!
//! ```text
//!   SND.UNA                                              SND.NXT
//!     |  record  | record |  record  | record |  record  |
//!        lost      SACKed    in flight  SACKed   in flight
//! ```
//!
//! The estimate of what is in the network (pipe) is kept up to date record by record; whether a record is
//! lost is decided once for each, as the loss edge moves right.

use core::time::Duration;
use std::collections::VecDeque;

use wire::Instant;

use super::ranges::{Range, Ranges};
use super::seq::{ExtSeq, SeqNumber};

/// RFC 6675 §2.
pub(crate) const DUP_THRESH: u32 = 3;

/// Most ranges of SACKed sequence space remembered. What would need more is ignored: SACK is advisory.
const MAX_SACKED_RANGES: usize = 512;

/// One segment in flight.
#[derive(Clone, Copy, Debug)]
struct Record {
    sent_at: Instant,
    /// First sequence number.
    start: u32,
    /// Octets of payload.
    len: u16,
    marks: u8,
    /// Transmissions, saturating.
    sends: u8,
}

const _: () = assert!(size_of::<Record>() == 16);

/// Carries the FIN after its payload.
const FIN: u8 = 1;
/// The peer reported it as received.
const SACKED: u8 = 1 << 1;
/// Considered lost.
const LOST: u8 = 1 << 2;
/// Sent again since it was considered lost, or without being so.
const AGAIN: u8 = 1 << 3;
/// Longer than the effective MSS, to see whether the path carries it (RFC 4821 §7); still the first
/// transmission.
const PROBE: u8 = 1 << 4;

/// What became of a segment that was sent to probe the path MTU (RFC 4821 §7.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeFate {
    /// It arrived: the path carries segments with this many octets of payload.
    Arrived(u16),
    /// It was lost. That says nothing about congestion; its octets go again in segments of the effective
    /// MSS.
    Lost(u16),
}

impl Record {
    fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    fn seq_len(&self) -> u32 {
        u32::from(self.len) + u32::from(self.is(FIN))
    }

    /// Octets of it that are thought to be in the network (RFC 6675 §4, SetPipe).
    fn in_pipe(&self) -> u64 {
        if self.is(SACKED) {
            return 0;
        }
        let copies = u64::from(!self.is(LOST)) + u64::from(self.is(AGAIN));
        copies * u64::from(self.seq_len())
    }

    fn awaits_retransmission(&self) -> bool {
        self.marks & (SACKED | LOST | AGAIN) == LOST
    }
}

/// What an acknowledgement took off the scoreboard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Acked {
    /// When the oldest of the segments was sent that were not SACKed before, if none of all was sent twice:
    /// fit for a measurement (Karn's algorithm, RFC 6298 §3). What waited behind a retransmission says
    /// nothing about the path.
    pub(crate) sent_at: Option<Instant>,
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
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    /// First sequence number on it, SND.UNA.
    una: ExtSeq,
    sacked: Ranges,
    /// Octets in the network (RFC 6675 §4, SetPipe).
    pipe: u64,
    /// Records that are lost and not sent again.
    awaiting: usize,
    /// Every record that ends at or below is SACKed or marked lost.
    loss_edge: ExtSeq,
    /// HighRxt: where the search for the next retransmission starts.
    high_rxt: ExtSeq,
    /// When the latest segment was sent of those that were sent once and have arrived.
    delivered: Instant,
    /// What became of the probe, until it is asked for.
    probe_fate: Option<ProbeFate>,
    /// Longest payload that was acknowledged (RFC 5927 §7.2, maxsizeacked).
    longest_acked: u16,
}

impl Scoreboard {
    /// With space reserved for `records` records.
    pub(crate) fn new(una: ExtSeq, records: usize) -> Self {
        Scoreboard {
            records: VecDeque::with_capacity(records),
            una,
            loss_edge: una,
            high_rxt: una,
            ..Scoreboard::default()
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

    /// True when what was SACKed above says that the oldest segment is lost (RFC 6675 §5 (2)).
    pub(crate) fn head_lost_by_sack(&self) -> bool {
        self.loss_edge > self.una && self.records.front().is_some_and(|r| r.is(LOST))
    }

    /// True when the oldest segment is SACKed, which no honest receiver says for long: it is then
    /// acknowledged. At a time-out it means that the peer has thrown SACKed data away (RFC 2018 §8).
    pub(crate) fn head_sacked(&self) -> bool {
        self.records.front().is_some_and(|r| r.is(SACKED))
    }

    /// True when the oldest segment was sent again and something sent `reordering` later has arrived: the
    /// retransmission is lost too (RFC 8985 §6.2 step 5, for one segment).
    pub(crate) fn head_lost_again(&self, reordering: Duration) -> bool {
        self.records.front().is_some_and(|r| {
            r.marks & (AGAIN | SACKED) == AGAIN && self.delivered > r.sent_at + reordering
        })
    }

    /// End of the oldest segment.
    pub(crate) fn head_end(&self) -> ExtSeq {
        self.records.front().map_or(self.una, |r| self.una.plus(u64::from(r.seq_len())))
    }

    /// A segment was sent for the first time, right after the one before.
    pub(crate) fn push(&mut self, start: ExtSeq, len: u16, fin: bool, now: Instant) {
        let marks = if fin { FIN } else { 0 };
        let record = Record { sent_at: now, start: start.wire().0, len, marks, sends: 1 };
        self.pipe += record.in_pipe();
        self.records.push_back(record);
    }

    /// The segment pushed last is a probe of the path MTU.
    pub(crate) fn last_is_probe(&mut self) {
        if let Some(record) = self.records.back_mut() {
            record.marks |= PROBE;
        }
    }

    /// What became of the probe of the path MTU, said once.
    pub(crate) fn take_probe_fate(&mut self) -> Option<ProbeFate> {
        self.probe_fate.take()
    }

    /// True when the oldest segment is a probe of the path MTU that was not sent again, lost or not.
    pub(crate) fn head_is_probe(&self) -> bool {
        self.records.front().is_some_and(|r| r.is(PROBE))
    }

    /// Longest payload that was acknowledged at once, octets (RFC 5927 §7.2, maxsizeacked).
    pub(crate) fn longest_acked(&self) -> u16 {
        self.longest_acked
    }

    /// Payload octets of the segment that holds `seq`, which is in flight.
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

    /// Everything below `una` is acknowledged. A record of which only a part is keeps the rest.
    pub(crate) fn acknowledge(&mut self, una: ExtSeq) -> Acked {
        let mut acked = Acked::default();
        let mut sent_twice = false;
        let mut left = una.since(self.una);
        self.una = una;
        while let Some(record) = self.records.front_mut() {
            if left == 0 {
                break;
            }
            let len = u64::from(record.seq_len());
            self.pipe -= record.in_pipe();
            self.awaiting -= usize::from(record.awaits_retransmission());
            sent_twice |= record.sends > 1;
            if record.sends == 1 && !record.is(SACKED) {
                acked.sent_at.get_or_insert(record.sent_at);
                self.delivered = self.delivered.max(record.sent_at);
            }
            if len > left {
                record.start = una.wire().0;
                record.len -= left as u16;
                self.pipe += record.in_pipe();
                self.awaiting += usize::from(record.awaits_retransmission());
                break;
            }
            left -= len;
            if record.marks & (PROBE | LOST) == PROBE {
                self.probe_fate = Some(ProbeFate::Arrived(record.len));
            }
            self.longest_acked = self.longest_acked.max(record.len);
            self.records.pop_front();
        }
        if sent_twice {
            acked.sent_at = None;
        }
        self.sacked.remove_below(una);
        self.loss_edge = self.loss_edge.max(una);
        self.high_rxt = self.high_rxt.max(una);
        acked
    }

    /// A SACK block, `SND.UNA <= start < end <= SND.NXT` (RFC 6675 §4, Update). Returns whether it told
    /// anything new. A record counts as SACKed when all of it is.
    pub(crate) fn sack(&mut self, start: ExtSeq, end: ExtSeq) -> bool {
        let mut at = start;
        let mut news = false;
        while let Some(gap) = self.sacked.first_gap(at, end) {
            if self.sacked.len() >= MAX_SACKED_RANGES && !self.sacked.touches(gap) {
                break;
            }
            let whole = self.sacked.insert(gap);
            self.mark_sacked(gap, whole);
            news = true;
            at = gap.end;
        }
        news
    }

    fn mark_sacked(&mut self, gap: Range, whole: Range) {
        let mut i = self.first_ending_after(gap.start);
        while let Some(record) = self.records.get(i).copied() {
            let range = self.range_of(&record);
            if range.start >= gap.end {
                break;
            }
            if whole.start <= range.start && range.end <= whole.end && !record.is(SACKED) {
                self.mark(i, |r| r.marks |= SACKED);
                if record.sends == 1 {
                    self.delivered = self.delivered.max(record.sent_at);
                }
            }
            i += 1;
        }
    }

    /// Marks lost what RFC 6675 §4 (IsLost) calls lost: below [`loss_edge`] and not SACKed.
    pub(crate) fn mark_lost(&mut self, smss: u64) {
        let Some(edge) = loss_edge(self.sacked.iter().rev(), smss) else { return };
        if edge <= self.loss_edge {
            return;
        }
        let mut i = self.first_ending_after(self.loss_edge);
        while let Some(record) = self.records.get(i).copied() {
            if self.range_of(&record).end > edge {
                break;
            }
            if record.marks & (SACKED | LOST) == 0 {
                self.mark(i, |r| r.marks |= LOST);
            }
            i += 1;
        }
        self.loss_edge = edge;
    }

    /// The oldest segment is lost (RFC 6675 §5 (4.3), RFC 6582 §3.2), sent again before or not.
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

    /// The next segment that may be lost: below something SACKed, not SACKed, not sent again (NextSeg
    /// rule 3).
    pub(crate) fn next_doubtful(&mut self) -> Option<Resend> {
        let highest = self.sacked.highest()?;
        let from = self.first_ending_after(self.high_rxt);
        let found = (from..self.records.len())
            .take_while(|i| self.range_of(&self.records[*i]).end <= highest)
            .find(|i| self.records[*i].marks & (SACKED | LOST | AGAIN) == 0);
        if found.is_none() {
            self.high_rxt = self.high_rxt.max(highest);
        }
        found.map(|i| self.resend(i))
    }

    /// The last segment that is not SACKed, unless it was sent again (NextSeg rule 4).
    pub(crate) fn last_unsacked(&self) -> Option<Resend> {
        let found = (0..self.records.len()).rev().find(|i| !self.records[*i].is(SACKED))?;
        (!self.records[found].is(AGAIN)).then(|| self.resend(found))
    }

    /// The oldest segment.
    pub(crate) fn head(&self) -> Option<Resend> {
        (!self.is_empty()).then(|| self.resend(0))
    }

    /// Cuts a segment in two, the first with `at` octets of payload; its length becomes `at`.
    pub(crate) fn cut(&mut self, resend: Resend, at: usize) -> Resend {
        debug_assert!(0 < at && at < resend.len + usize::from(resend.fin));
        let first = &mut self.records[resend.index];
        let mut second = *first;
        first.len = at as u16;
        first.marks &= !(FIN | PROBE);
        second.marks &= !PROBE;
        second.start = second.start.wrapping_add(at as u32);
        second.len -= at as u16;
        self.awaiting += usize::from(second.awaits_retransmission());
        self.records.insert(resend.index + 1, second);
        Resend { len: at, fin: false, ..resend }
    }

    /// The segment was sent again now; `rescue` does not move HighRxt (RFC 6675 §5 (C.2)).
    pub(crate) fn resent(&mut self, resend: Resend, now: Instant, rescue: bool) {
        self.mark(resend.index, |r| {
            r.marks |= AGAIN;
            r.sends = r.sends.saturating_add(1);
            r.sent_at = now;
        });
        if !rescue {
            let end = self.range_of(&self.records[resend.index]).end;
            self.high_rxt = self.high_rxt.max(end);
        }
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
        let record = &mut self.records[index];
        self.pipe -= record.in_pipe();
        self.awaiting -= usize::from(record.awaits_retransmission());
        let before = record.marks;
        change(record);
        if record.is(PROBE) && record.marks != before {
            self.probe_fate = match record.marks & (SACKED | LOST | AGAIN) {
                SACKED => Some(ProbeFate::Arrived(record.len)),
                LOST if before & LOST == 0 => Some(ProbeFate::Lost(record.len)),
                _ => self.probe_fate,
            };
            if record.is(SACKED | AGAIN) {
                record.marks &= !PROBE;
            }
        }
        self.pipe += record.in_pipe();
        self.awaiting += usize::from(record.awaits_retransmission());
    }
}

/// Where sequence numbers stop being lost: below it, either [`DUP_THRESH`] separate ranges were SACKed
/// above, or more than `DUP_THRESH - 1` segments' worth of octets (RFC 6675 §4, IsLost). `highest_first`
/// are the SACKed ranges.
fn loss_edge(highest_first: impl Iterator<Item = Range>, smss: u64) -> Option<ExtSeq> {
    let mut octets = 0;
    for (i, range) in highest_first.enumerate() {
        octets += range.len();
        if octets > u64::from(DUP_THRESH - 1) * smss || i + 1 >= DUP_THRESH as usize {
            return Some(range.start);
        }
    }
    None
}

#[cfg(test)]
mod tests;
