//! Loss detection by RACK (RFC 8985 §6.2 step 5, §6.3): the search of [`transport::detect`] applied to the scoreboard.

use std::collections::VecDeque;

use base::Instant;
use transport::delivery::Transmission;
use transport::detect::{Fate, InFlight, detect};
use transport::loss_recovery::DetectedLosses;
use transport::rack::LossCriterion;
use transport::seq::{ExtSeq, SeqNumber};

use super::Scoreboard;
use super::record::{LOST, PROBE, RETRANSMITTED, Record, SACKED};

/// A search for losses on a scoreboard, with its result.
struct Search<'a, F> {
    board: &'a mut Scoreboard,
    found: DetectedLosses,
    /// Called for each lost segment with its length in sequence space, in bytes, and its time of transmission.
    lost: F,
}

impl Scoreboard {
    /// Finds and marks losses (RFC 8985 §6.2, RACK_detect_loss). Calls `lost` for each lost segment with its length in
    /// sequence space, in bytes, and its time of transmission.
    pub(crate) fn detect_losses(
        &mut self,
        criterion: LossCriterion,
        lost: impl FnMut(u64, Instant),
    ) -> DetectedLosses {
        let mut search = Search { board: self, found: DetectedLosses::default(), lost };
        let next_search_at = detect(&mut search, criterion);
        DetectedLosses { next_search_at, ..search.found }
    }

    /// Marks losses after a retransmission time-out: the oldest segment, and segments sent at least `criterion.timeout`
    /// ago (RFC 8985 §6.3).
    pub(crate) fn mark_lost_on_timeout(&mut self, criterion: LossCriterion) {
        for i in 0..self.records.len() {
            let record = self.records[i];
            let overdue = record.sent_at + criterion.timeout <= criterion.now;
            if !record.has_mark(SACKED) && (i == 0 || overdue) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
            }
        }
        self.high_rxt = self.una;
    }

    /// Adds a retransmission at `now` to the queue of retransmissions.
    pub(super) fn note_resent(&mut self, start: ExtSeq, now: Instant) {
        let found = DetectedLosses::default();
        Search { board: self, found, lost: |_, _| {} }.note_resent(start, now);
    }
}

impl<F: FnMut(u64, Instant)> InFlight for Search<'_, F> {
    fn edge(&self) -> usize {
        self.board.first_ending_after(self.board.loss_edge)
    }

    fn set_edge(&mut self, index: usize) {
        if let Some(last) = self.board.records.get(index - 1) {
            self.board.loss_edge = self.board.range_of(last).end;
        }
    }

    fn fate(&self, index: usize) -> Option<Fate> {
        let board = &*self.board;
        let record = board.records.get(index)?;
        let range = board.range_of(record);
        Some(if record.has_mark(SACKED) {
            let sacked = board.sacked.containing(range.start);
            Fate::Arrived(sacked.map_or(index + 1, |sacked| board.first_ending_after(sacked.end)))
        } else if !record.has_mark(LOST) && record.sends == 1 {
            Fate::Sent(Transmission { at: record.sent_at, end: range.end })
        } else {
            Fate::LostOrRetransmitted
        })
    }

    fn mark_lost(&mut self, index: usize) {
        let record = self.board.records[index];
        self.found.segments += 1;
        self.found.congestion_segments += u64::from(!record.has_mark(PROBE));
        (self.lost)(record.seq_len().into(), record.sent_at);
        let start = self.board.range_of(&record).start;
        self.board.mark(index, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
        self.board.high_rxt = self.board.high_rxt.min(start);
    }

    fn resend_queue(&mut self) -> &mut VecDeque<(ExtSeq, Instant)> {
        &mut self.board.resend_queue
    }

    fn find_resent(&self, start: ExtSeq, at: Instant) -> Option<(usize, ExtSeq)> {
        let board = &*self.board;
        let i = board.first_ending_after(start.max(board.una));
        let record: &Record = board.records.get(i)?;
        let same = record.sent_at == at && record.has_resend_in_flight();
        // The first part of the segment may have been acknowledged since the retransmission.
        let here = SeqNumber(record.start) == start.wire() || (i == 0 && start < board.una);
        (same && here).then(|| (i, board.range_of(record).end))
    }
}
