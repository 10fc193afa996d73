//! The scoreboard of unacknowledged segments: a record of 16 bytes per segment, and the sequence ranges that the peer
//! has SACKed (RFC 2018, RFC 6675 §3, §4).
//!
//! ```text
//!   SND.UNA                                              SND.NXT
//!     |  record  | record |  record  | record |  record  |
//!        lost      SACKed    in flight  SACKed   in flight
//! ```
//!
//! The estimate of the bytes in the network (pipe) is updated with each change of a record. With SACK, `detect` finds
//! losses by time (RACK). Without SACK, duplicate and partial acknowledgements mark only the oldest segment lost; a
//! time-out or a reopened window marks all.

mod detect;
mod record;

use std::collections::VecDeque;

use base::Instant;
use transport::delivery::{AckKind, Delivery, Transmission};
use transport::ranges::{Range, Ranges};
use transport::seq::{ExtSeq, SeqNumber};

use self::record::{FIN, LOST, PROBE, RETRANSMITTED, Record, SACKED};

/// Maximum number of ranges of SACKed sequence space. Blocks that would need another range are ignored, because SACK is
/// advisory.
const MAX_SACKED_RANGES: usize = 512;

/// Fate of a path MTU probe (RFC 4821 §7.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeFate {
    /// The probe arrived: the path carries segments with this many payload bytes.
    Arrived(u16),
    /// The probe was lost, which is not a sign of congestion. Its bytes are retransmitted in segments of the
    /// effective MSS.
    Lost(u16),
}

/// A segment to retransmit: index of its record, first sequence number, payload bytes, and true if it carries the FIN.
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
    /// First sequence number on the scoreboard: SND.UNA.
    una: ExtSeq,
    /// Ranges of sequence space that the peer has SACKed.
    sacked: Ranges,
    /// Estimated bytes in the network (RFC 6675 §4, SetPipe).
    pipe: u64,
    /// Number of lost records that are not yet retransmitted.
    awaiting_resend: u64,
    /// Number of SACKed records.
    sacked_records: u64,
    /// Number of records that were retransmitted, after a loss or as a probe, and are neither SACKed nor marked lost
    /// since.
    resends_in_flight: u64,
    /// Start of the search for losses: all records that end at or below this sequence number are SACKed, lost, or
    /// retransmitted.
    loss_edge: ExtSeq,
    /// Retransmissions, oldest first: first sequence number and time of transmission.
    resend_queue: VecDeque<(ExtSeq, Instant)>,
    /// HighRxt (RFC 6675 §2): start of the search for the next retransmission.
    high_rxt: ExtSeq,
    /// Fate of the last path MTU probe, until [`take_probe_fate`](Self::take_probe_fate) returns it.
    probe_fate: Option<ProbeFate>,
    /// Longest acknowledged payload, bytes (RFC 5927 §7.2, maxsizeacked).
    longest_acked: u16,
}

base::prefetch!(Scoreboard: records);

impl Scoreboard {
    /// Creates an empty scoreboard. Allocates no memory.
    pub(crate) const fn new() -> Self {
        Scoreboard {
            records: VecDeque::new(),
            una: ExtSeq::NONE,
            sacked: Ranges::new(),
            pipe: 0,
            awaiting_resend: 0,
            sacked_records: 0,
            resends_in_flight: 0,
            loss_edge: ExtSeq::NONE,
            resend_queue: VecDeque::new(),
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

    /// Returns the number of SACKed records: RACK.segs_sacked (RFC 8985 §5.3).
    pub(crate) fn segs_sacked(&self) -> u64 {
        self.sacked_records
    }

    /// Returns true while a retransmission may be in the network.
    pub(crate) fn resent_in_flight(&self) -> bool {
        self.resends_in_flight > 0
    }

    /// Returns true while a lost segment is not yet retransmitted.
    pub(crate) fn awaits_retransmission(&self) -> bool {
        self.awaiting_resend > 0
    }

    /// Returns true if the oldest segment is SACKed. If so at a time-out, the peer has reneged (RFC 2018 §8): a
    /// receiver that had kept the SACKed segment would have acknowledged it cumulatively.
    pub(crate) fn head_sacked(&self) -> bool {
        self.records.front().is_some_and(|r| r.has_mark(SACKED))
    }

    /// Adds a segment that was sent for the first time at `now` and directly follows the last segment. `len`: payload
    /// bytes.
    pub(crate) fn push(&mut self, start: ExtSeq, len: u16, fin: bool, now: Instant) {
        let marks = if fin { FIN } else { 0 };
        let record = Record { sent_at: now, start: start.wire().0, len, marks, sends: 1 };
        if self.records.is_empty() {
            self.una = start;
        }
        self.add_to_totals(&record);
        self.records.push_back(record);
    }

    /// Marks the last segment as a path MTU probe.
    pub(crate) fn mark_last_as_probe(&mut self) {
        if let Some(record) = self.records.back_mut() {
            record.marks |= PROBE;
        }
    }

    /// Returns the fate of the path MTU probe, once, when it is decided.
    pub(crate) fn take_probe_fate(&mut self) -> Option<ProbeFate> {
        self.probe_fate.take()
    }

    /// Returns true if the oldest segment is a path MTU probe that was not retransmitted. The probe may be marked lost.
    pub(crate) fn head_is_probe(&self) -> bool {
        self.records.front().is_some_and(|r| r.has_mark(PROBE))
    }

    /// Returns the longest payload acknowledged as one segment, bytes (RFC 5927 §7.2, maxsizeacked).
    pub(crate) fn longest_acked(&self) -> u16 {
        self.longest_acked
    }

    /// Returns the payload bytes of the segment in flight that contains `seq`.
    pub(crate) fn len_at(&self, seq: ExtSeq) -> Option<u16> {
        self.records.get(self.first_ending_after(seq)).map(|r| r.len)
    }

    /// Returns true if the segment that contains `seq` is marked lost and not SACKed.
    pub(crate) fn is_lost(&self, seq: ExtSeq) -> bool {
        let record = self.records.get(self.first_ending_after(seq));
        record.is_some_and(|r| r.marks & (LOST | SACKED) == LOST)
    }

    /// Returns true if a segment that was sent after the oldest segment, and is shorter, was SACKed.
    pub(crate) fn has_shorter_arrived(&self) -> bool {
        let Some(head) = self.records.front() else { return false };
        self.records.iter().any(|r| r.has_mark(SACKED) && r.len > 0 && r.len < head.len)
    }

    /// Returns true if exactly one segment is in flight, sent once, not SACKed, not lost, not a probe, without FIN.
    #[inline]
    pub(crate) fn has_single_segment(&self) -> bool {
        self.records.len() == 1
            && self.records.front().is_some_and(|r| r.marks == 0 && r.sends == 1)
            && self.sacked.is_empty()
    }

    /// Acknowledges everything in flight, up to `una`. Equivalent to [`acknowledge`](Self::acknowledge), but faster.
    /// Requires [`has_single_segment`](Self::has_single_segment). Returns the segment's time of transmission.
    #[inline]
    pub(crate) fn acknowledge_single(&mut self, una: ExtSeq) -> Option<Instant> {
        let record = self.records.pop_front()?;
        self.una = una;
        self.longest_acked = self.longest_acked.max(record.len);
        self.pipe = 0;
        self.loss_edge = self.loss_edge.max(una);
        self.high_rxt = self.high_rxt.max(una);
        self.resend_queue.clear();
        Some(record.sent_at)
    }

    /// Removes everything below `una`, and adds the acknowledged segments to `delivery`. A partly acknowledged record
    /// keeps the unacknowledged part.
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
            if !record.has_mark(SACKED) {
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
            if !record.has_mark(SACKED) {
                let sent = Transmission { at: record.sent_at, end: at };
                delivery.add_segment(sent, record.sends > 1, AckKind::CumulativeAck);
            }
            if record.marks & (PROBE | LOST) == PROBE {
                self.probe_fate = Some(ProbeFate::Arrived(record.len));
            }
            self.longest_acked = self.longest_acked.max(record.len);
            self.subtract_from_totals(&record);
            self.records.pop_front();
        }
        if !self.sacked.is_empty() {
            self.sacked.remove_below(una);
        }
        self.loss_edge = self.loss_edge.max(una);
        self.high_rxt = self.high_rxt.max(una);
        if self.records.is_empty() {
            self.resend_queue.clear();
        }
    }

    /// Removes records from the front while they are [plain](Record::is_plain) and lie completely within the `left`
    /// bytes from `at` on. Returns the bytes removed.
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
            delivery.add_run(first, Transmission { at: last, end: at.plus(bytes) });
        }
        bytes
    }

    /// Applies a SACK block, SND.UNA <= `start` < `end` <= SND.NXT (RFC 6675 §4, Update). Returns true if the block
    /// reports new data. A record is marked SACKed only if all its bytes are.
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
            if whole.start <= range.start && range.end <= whole.end && !record.has_mark(SACKED) {
                self.mark(i, |r| r.marks |= SACKED);
                let sent = Transmission { at: record.sent_at, end: range.end };
                delivery.bytes += range.len();
                delivery.add_segment(sent, record.sends > 1, AckKind::Sack);
            }
            i += 1;
        }
    }

    /// Marks the oldest segment lost, even if it was retransmitted (RFC 6582 §3.2). Has no effect if the segment is
    /// SACKed.
    pub(crate) fn mark_head_lost(&mut self) {
        if !self.is_empty() && !self.head_sacked() {
            self.mark(0, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
            self.high_rxt = self.una;
        }
    }

    /// Marks every segment lost that is not SACKed (RFC 6675 §5.1, RFC 5681 §3.1).
    pub(crate) fn mark_all_lost(&mut self) {
        for i in 0..self.records.len() {
            if !self.records[i].has_mark(SACKED) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
            }
        }
        self.high_rxt = self.una;
        self.resend_queue.clear();
    }

    /// Clears all LOST marks after a spurious loss detection: the segments are in the network or have arrived.
    pub(crate) fn clear_losses(&mut self) {
        for i in 0..self.records.len() {
            if self.records[i].has_mark(LOST) {
                self.mark(i, |r| r.marks &= !LOST);
            }
        }
        self.loss_edge = self.una;
    }

    /// Marks segments longer than `emss` lost, because the path does not carry them (RFC 1191 §6.4).
    pub(crate) fn mark_longer_lost(&mut self, emss: usize) {
        for i in 0..self.records.len() {
            if usize::from(self.records[i].len) > emss && !self.records[i].has_mark(SACKED) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
            }
        }
        self.high_rxt = self.una;
    }

    /// Clears all SACKED marks, because the peer has reneged (RFC 2018 §8).
    pub(crate) fn clear_sacks(&mut self) {
        self.sacked.clear();
        for i in 0..self.records.len() {
            if self.records[i].has_mark(SACKED) {
                self.mark(i, |r| r.marks &= !SACKED);
            }
        }
        self.loss_edge = self.una;
    }

    /// Returns the next segment that is lost and not yet retransmitted (RFC 6675 §4, NextSeg rule 1).
    pub(crate) fn next_lost(&mut self) -> Option<Resend> {
        if self.awaiting_resend == 0 {
            return None;
        }
        let from = self.first_ending_after(self.high_rxt);
        let found = (from..self.records.len())
            .chain(0..from)
            .find(|i| self.records[*i].awaits_retransmission())?;
        Some(self.resend_at(found))
    }

    /// Returns the segment with the highest sequence number that is not SACKed.
    pub(crate) fn last_unsacked(&self) -> Option<Resend> {
        let found = (0..self.records.len()).rev().find(|i| !self.records[*i].has_mark(SACKED))?;
        Some(self.resend_at(found))
    }

    /// Returns the oldest segment.
    pub(crate) fn head(&self) -> Option<Resend> {
        (!self.is_empty()).then(|| self.resend_at(0))
    }

    /// Cuts a segment in two. Returns the first part, with `at` bytes of payload.
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
        self.add_to_totals(&second);
        self.records.insert(resend.index + 1, second);
        Resend { len: at, fin: false, ..resend }
    }

    /// Records a retransmission at `now`. A `probe` (window probe or tail loss probe) does not advance HighRxt.
    pub(crate) fn record_resent(&mut self, resend: Resend, now: Instant, probe: bool) {
        self.mark(resend.index, |r| {
            r.marks |= RETRANSMITTED;
            r.sends = r.sends.saturating_add(1);
            r.sent_at = now;
        });
        self.note_resent(resend.start, now);
        if !probe {
            let end = self.range_of(&self.records[resend.index]).end;
            self.high_rxt = self.high_rxt.max(end);
        }
    }

    /// Returns true if all of `range` is SACKed.
    pub(crate) fn has_sacked(&self, range: Range) -> bool {
        self.sacked.covers(range)
    }

    /// Returns the range and the number of transmissions (saturating) of the segment at `index`.
    pub(crate) fn transmissions_at(&self, index: usize) -> Option<(Range, u8)> {
        self.records.get(index).map(|record| (self.range_of(record), record.sends))
    }

    fn resend_at(&self, index: usize) -> Resend {
        let record = &self.records[index];
        Resend {
            index,
            start: self.range_of(record).start,
            len: usize::from(record.len),
            fin: record.has_mark(FIN),
        }
    }

    fn range_of(&self, record: &Record) -> Range {
        let start = self.una.nearest(SeqNumber(record.start));
        Range { start, end: start.plus(u64::from(record.seq_len())) }
    }

    /// Returns the index of the first record that ends after `at`.
    fn first_ending_after(&self, at: ExtSeq) -> usize {
        self.records.partition_point(|r| self.range_of(r).end <= at)
    }

    /// Changes a record, updates the totals, and sets the fate of a path MTU probe.
    fn mark(&mut self, index: usize, change: impl FnOnce(&mut Record)) {
        let before = self.records[index];
        self.subtract_from_totals(&before);
        let record = &mut self.records[index];
        change(record);
        if record.has_mark(PROBE) && record.marks != before.marks {
            self.probe_fate = match record.marks & (SACKED | LOST | RETRANSMITTED) {
                SACKED => Some(ProbeFate::Arrived(record.len)),
                LOST if !before.has_mark(LOST) => Some(ProbeFate::Lost(record.len)),
                _ => self.probe_fate,
            };
            if record.has_mark(SACKED | RETRANSMITTED) {
                record.marks &= !PROBE;
            }
        }
        let after = *record;
        self.add_to_totals(&after);
    }

    fn add_to_totals(&mut self, record: &Record) {
        self.pipe += record.pipe_bytes();
        self.awaiting_resend += u64::from(record.awaits_retransmission());
        self.sacked_records += u64::from(record.has_mark(SACKED));
        self.resends_in_flight += u64::from(record.has_resend_in_flight());
    }

    fn subtract_from_totals(&mut self, record: &Record) {
        self.pipe -= record.pipe_bytes();
        self.awaiting_resend -= u64::from(record.awaits_retransmission());
        self.sacked_records -= u64::from(record.has_mark(SACKED));
        self.resends_in_flight -= u64::from(record.has_resend_in_flight());
    }
}

#[cfg(test)]
mod tests;
