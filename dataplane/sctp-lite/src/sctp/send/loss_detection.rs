//! Loss detection by RACK (RFC 8985 §6.2 step 5, §6.3) instead of the miss indications of RFC 9260 §7.2.4. Three
//! packets received beyond a gap also indicate loss at once, and lost retransmissions are detected.
//! [`transport::detect`] searches the chunks in flight for losses; this module adapts it to TSNs.

use std::collections::VecDeque;

use base::Instant;
use transport::delivery::Transmission;
use transport::detect::{Fate, InFlight, detect};
use transport::loss_recovery::DetectedLosses;
use transport::rack::LossCriterion;
use transport::seq::ExtSeq;

use super::record::{LOST, RETRANSMITTED, SACKED};
use super::scoreboard::Board;

/// The scoreboard during a search for lost chunks.
struct Search<'a, F> {
    board: &'a mut Board,
    /// Number of chunks found lost.
    chunks: u64,
    /// Called with length and transmission time of each lost chunk.
    lost: F,
}

impl Board {
    /// Detects losses (RACK_detect_loss, RFC 8985 §6.2). Calls `lost` with the length and transmission time of each
    /// lost chunk.
    pub(super) fn detect_losses(
        &mut self,
        criterion: LossCriterion,
        lost: impl FnMut(u64, Instant),
    ) -> DetectedLosses {
        let mut search = Search { board: self, chunks: 0, lost };
        let next_search_at = detect(&mut search, criterion);
        let chunks = search.chunks;
        DetectedLosses { segments: chunks, congestion_segments: chunks, next_search_at }
    }

    /// Marks losses after T3-rtx expired: the oldest chunk, and chunks sent at least `criterion.timeout` ago, unless
    /// they are SACKed (RFC 8985 §6.3). RFC 9260 §6.3.3 E3 would also mark the chunks sent later, although the next
    /// SACK may report them as received.
    pub(super) fn mark_lost_on_timeout(&mut self, criterion: LossCriterion) {
        for i in 0..self.records.len() {
            let record = self.records[i];
            let overdue = record.sent_at + criterion.timeout <= criterion.now;
            if !record.has_mark(SACKED) && (i == 0 || overdue) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
            }
        }
        self.high_rxt = self.una;
    }

    /// Adds a retransmission to the queue of retransmissions, which is ordered by transmission time.
    pub(super) fn note_resent(&mut self, tsn: ExtSeq, now: Instant) {
        Search { board: self, chunks: 0, lost: |_, _| {} }.note_resent(tsn, now);
    }
}

impl<F: FnMut(u64, Instant)> InFlight for Search<'_, F> {
    fn edge(&self) -> usize {
        self.board.index(self.board.loss_edge)
    }

    fn set_edge(&mut self, index: usize) {
        self.board.loss_edge = self.board.tsn(index);
    }

    fn fate(&self, index: usize) -> Option<Fate> {
        let board = &*self.board;
        let record = board.records.get(index)?;
        let tsn = board.tsn(index);
        Some(if record.has_mark(SACKED) {
            let range = board.sacked.containing(tsn);
            Fate::Arrived(range.map_or(index + 1, |range| board.index(range.end)))
        } else if !record.has_mark(LOST) && record.sends == 1 {
            Fate::Sent(Transmission { at: record.sent_at, end: tsn.plus(1) })
        } else {
            Fate::LostOrRetransmitted
        })
    }

    fn mark_lost(&mut self, index: usize) {
        self.chunks += 1;
        let record = &self.board.records[index];
        (self.lost)(record.chunk_len(), record.sent_at);
        self.board.mark(index, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
        self.board.high_rxt = self.board.high_rxt.min(self.board.tsn(index));
    }

    fn resend_queue(&mut self) -> &mut VecDeque<(ExtSeq, Instant)> {
        &mut self.board.resent_by_time
    }

    fn find_resent(&self, tsn: ExtSeq, at: Instant) -> Option<(usize, ExtSeq)> {
        if tsn < self.board.una {
            return None;
        }
        let i = self.board.index(tsn);
        let record = self.board.records.get(i)?;
        (record.sent_at == at && record.is_retransmission_in_flight()).then_some((i, tsn.plus(1)))
    }
}
