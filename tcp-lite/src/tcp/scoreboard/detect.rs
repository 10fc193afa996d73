//! Which records are lost, by RACK (RFC 8985 §6.2 step 5, §6.3).
//!
//! Segments sent once are in order of time as they are in order of numbers, so the search moves right and
//! looks at each once: what is left of the edge is SACKed, lost or was sent again. What was sent again is in
//! a queue by time.
//!
//! What is not due yet is looked at again at each acknowledgement, so only the first of it is looked at: what
//! follows is due later. The timer is set for the last of these, and finds the next.

use wire::Instant;

use super::super::delivery::Transmission;
use super::super::rack::Judgement;
use super::super::seq::{ExtSeq, SeqNumber};
use super::Scoreboard;
use super::record::{AGAIN, LOST, PROBE, Record, SACKED};

/// Records that are looked at beyond the first that waits for its time, to set the timer.
const AHEAD: usize = 64;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Detected {
    /// Segments that are lost and were not before.
    pub(crate) segments: u64,
    /// Of these, such that are a sign of congestion: all but probes of the path MTU.
    pub(crate) congestion: u64,
    /// When to look again (RFC 8985 §6.2: the reordering timer).
    pub(crate) again_at: Option<Instant>,
}

impl Scoreboard {
    /// RACK_detect_loss of RFC 8985 §6.2.
    pub(crate) fn detect_losses(&mut self, judgement: Judgement) -> Detected {
        let mut found = Detected::default();
        self.detect_originals(judgement, &mut found);
        self.detect_retransmissions(judgement, &mut found);
        found
    }

    fn detect_originals(&mut self, judgement: Judgement, found: &mut Detected) {
        let mut i = self.first_ending_after(self.loss_edge);
        // Steps since the first that waits.
        let mut waiting = None;
        while let Some(record) = self.records.get(i).copied() {
            match &mut waiting {
                Some(AHEAD) => break,
                Some(steps) => *steps += 1,
                None => {}
            }
            let range = self.range_of(&record);
            let mut next = i + 1;
            if record.is(SACKED) {
                let sacked = self.sacked.containing(range.start);
                next = sacked.map_or(next, |r| self.first_ending_after(r.end).max(next));
            } else if !record.is(LOST) && record.sends == 1 {
                let sent = Transmission { at: record.sent_at, end: range.end };
                match judgement.lost_at(sent) {
                    None => break,
                    Some(at) if at <= judgement.now => self.lose(i, found),
                    Some(at) => {
                        // RFC 8985 §6.2: the timer covers all that wait, up to AHEAD.
                        found.again_at = found.again_at.max(Some(at));
                        waiting.get_or_insert(0);
                    }
                }
            }
            if waiting.is_none() {
                let last = self.records.get(next - 1).unwrap_or(&record);
                self.loss_edge = self.range_of(last).end;
            }
            i = next;
        }
    }

    fn detect_retransmissions(&mut self, judgement: Judgement, found: &mut Detected) {
        // The first `n` wait, but for such that have arrived meanwhile.
        let mut n = 0;
        while let Some(&(start, at)) = self.resent.get(n).filter(|_| n <= AHEAD) {
            let live = self.resent_record(start, at);
            let lost_at = live.and_then(|i| {
                let end = self.range_of(&self.records[i]).end;
                judgement.lost_at(Transmission { at, end })
            });
            match (live, lost_at) {
                (None, _) if n == 0 => {
                    self.resent.pop_front();
                    continue;
                }
                (None, _) => {}
                (Some(_), None) => break,
                (Some(i), Some(lost_at)) if lost_at <= judgement.now => {
                    self.lose(i, found);
                    if n == 0 {
                        self.resent.pop_front();
                        continue;
                    }
                }
                (Some(_), Some(lost_at)) => found.again_at = found.again_at.max(Some(lost_at)),
            }
            n += 1;
        }
    }

    /// A time-out: the oldest segment is lost, and what has been on its way for long enough (RFC 8985
    /// §6.3).
    pub(crate) fn mark_lost_on_timeout(&mut self, judgement: Judgement) {
        for i in 0..self.records.len() {
            let record = self.records[i];
            let overdue = record.sent_at + judgement.patience <= judgement.now;
            if !record.is(SACKED) && (i == 0 || overdue) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !AGAIN);
            }
        }
        self.high_rxt = self.una;
    }

    /// Remembers a retransmission by its time.
    pub(super) fn note_resent(&mut self, start: ExtSeq, now: Instant) {
        while let Some(&(start, at)) = self.resent.front() {
            if self.resent_record(start, at).is_some() {
                break;
            }
            self.resent.pop_front();
        }
        self.resent.push_back((start, now));
    }

    /// The record that was sent again at `at` and is neither acknowledged, SACKed, lost nor sent since.
    fn resent_record(&self, start: ExtSeq, at: Instant) -> Option<usize> {
        let i = self.first_ending_after(start.max(self.una));
        let record: &Record = self.records.get(i)?;
        let same = record.sent_at == at && record.is_out_again();
        // A part may have been acknowledged since.
        let here = SeqNumber(record.start) == start.wire() || (i == 0 && start < self.una);
        (same && here).then_some(i)
    }

    fn lose(&mut self, index: usize, found: &mut Detected) {
        let record = self.records[index];
        found.segments += 1;
        found.congestion += u64::from(!record.is(PROBE));
        let start = self.range_of(&record).start;
        self.mark(index, |r| r.marks = (r.marks | LOST) & !AGAIN);
        self.high_rxt = self.high_rxt.min(start);
    }
}
