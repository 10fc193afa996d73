//! Which chunks are lost, by RACK (RFC 8985 §6.2 step 5, §6.3) in the place of RFC 9260 §7.2.4's count of
//! missing reports: three packets beyond a gap say the same at once, and a lost retransmission is found, too.
//!
//! Chunks sent once are in order of time as they are in order of numbers, so the search moves right and looks
//! at each once: what is left of the edge is SACKed, lost or was sent again. What was sent again is in a queue
//! by time. What is not due yet is looked at again at each SACK, so only the first of it is looked at.

use transport::delivery::Transmission;
use transport::rack::Judgement;
use transport::seq::ExtSeq;
use wire::Instant;

use super::board::Board;
use super::record::{AGAIN, LOST, SACKED};

/// Records that are looked at beyond the first that waits for its time, to set the timer.
const AHEAD: usize = 64;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Detected {
    /// Chunks that are lost and were not before.
    pub(super) chunks: u64,
    /// When to look again (RFC 8985 §6.2: the reordering timer).
    pub(super) again_at: Option<Instant>,
}

impl Board {
    /// RACK_detect_loss of RFC 8985 §6.2.
    pub(super) fn detect_losses(&mut self, judgement: Judgement) -> Detected {
        let mut found = Detected::default();
        self.detect_originals(judgement, &mut found);
        self.detect_retransmissions(judgement, &mut found);
        found
    }

    fn detect_originals(&mut self, judgement: Judgement, found: &mut Detected) {
        let mut i = self.index(self.loss_edge);
        // Steps since the first that waits.
        let mut waiting = None;
        while let Some(record) = self.records.get(i).copied() {
            match &mut waiting {
                Some(AHEAD) => break,
                Some(steps) => *steps += 1,
                None => {}
            }
            let tsn = self.tsn(i);
            let mut next = i + 1;
            if record.is(SACKED) {
                next = self.sacked.containing(tsn).map_or(next, |r| self.index(r.end).max(next));
            } else if !record.is(LOST) && record.sends == 1 {
                let sent = Transmission { at: record.sent_at, end: tsn.plus(1) };
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
                self.loss_edge = self.tsn(next);
            }
            i = next;
        }
    }

    fn detect_retransmissions(&mut self, judgement: Judgement, found: &mut Detected) {
        // The first `n` wait, but for such that have arrived meanwhile.
        let mut n = 0;
        while let Some(&(tsn, at)) = self.resent.get(n).filter(|_| n <= AHEAD) {
            let live = self.resent_record(tsn, at);
            let lost_at =
                live.and_then(|_| judgement.lost_at(Transmission { at, end: tsn.plus(1) }));
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

    /// T3-rtx has expired: the oldest chunk is lost, and what has been on its way for long enough (RFC 8985
    /// §6.3; RFC 9260 §6.3.3 E3 marks the rest, too, which the next SACK would find to have arrived).
    pub(super) fn mark_lost_on_timeout(&mut self, judgement: Judgement) {
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
    pub(super) fn note_resent(&mut self, tsn: ExtSeq, now: Instant) {
        while let Some(&(tsn, at)) = self.resent.front() {
            if self.resent_record(tsn, at).is_some() {
                break;
            }
            self.resent.pop_front();
        }
        self.resent.push_back((tsn, now));
    }

    /// The record that was sent again at `at` and is neither acknowledged, SACKed, lost nor sent since.
    fn resent_record(&self, tsn: ExtSeq, at: Instant) -> Option<usize> {
        if tsn < self.una {
            return None;
        }
        let i = self.index(tsn);
        let record = self.records.get(i)?;
        (record.sent_at == at && record.is_out_again()).then_some(i)
    }

    fn lose(&mut self, index: usize, found: &mut Detected) {
        found.chunks += 1;
        self.mark(index, |r| r.marks = (r.marks | LOST) & !AGAIN);
        self.high_rxt = self.high_rxt.min(self.tsn(index));
    }
}
