//! RACK's search for losses among the records in flight (RFC 8985 §6.2 step 5), in sequence order.
//!
//! Records that were sent once are in the same order by time and by sequence number, so the search examines each of
//! them once, from left to right: every record left of the edge has arrived, is lost, or was retransmitted.
//! Retransmitted records are in a queue by time.
//!
//! The edge stops at the first record that is not due yet, where the next search begins; the following ones are due
//! later. The search examines `AHEAD` of them at most, and the timer is set for the last.

use std::collections::VecDeque;

use base::Instant;

use crate::delivery::Transmission;
use crate::rack::LossCriterion;
use crate::seq::ExtSeq;

/// Records that are examined beyond the first that is not due yet, to set the timer.
const AHEAD: usize = 64;

/// What is known of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It has arrived, and so has every record before this index.
    Arrived(usize),
    /// It was sent once and is not known to be lost.
    Sent(Transmission),
    /// It is lost, or was sent again.
    LostOrAgain,
}

/// What is in flight: records by index, the oldest first.
pub trait InFlight {
    /// The first record beyond the edge.
    fn edge(&self) -> usize;

    /// Everything before this index, which is above zero, has arrived, is lost or was sent again.
    fn set_edge(&mut self, index: usize);

    /// What is known of the record at `index`, `None` beyond the last.
    fn fate(&self, index: usize) -> Option<Fate>;

    /// Marks a record as lost.
    fn lose(&mut self, index: usize);

    /// Retransmissions by time: the first number of each, and when.
    fn resent(&mut self) -> &mut VecDeque<(ExtSeq, Instant)>;

    /// The record that was sent again at `at` and has not arrived, been lost or sent since; and its end.
    fn resent_record(&self, start: ExtSeq, at: Instant) -> Option<(usize, ExtSeq)>;

    /// Remembers a retransmission by its time.
    fn note_resent(&mut self, start: ExtSeq, now: Instant) {
        while let Some(&(start, at)) = self.resent().front() {
            if self.resent_record(start, at).is_some() {
                break;
            }
            self.resent().pop_front();
        }
        self.resent().push_back((start, now));
    }
}

/// RACK_detect_loss of RFC 8985 §6.2: [loses](InFlight::lose) what is lost and was not before. Returns when to
/// look again (the reordering timer).
pub fn detect(records: &mut impl InFlight, criterion: LossCriterion) -> Option<Instant> {
    let originals = originals(records, criterion);
    originals.max(retransmissions(records, criterion))
}

fn originals(records: &mut impl InFlight, criterion: LossCriterion) -> Option<Instant> {
    let mut again_at = None;
    let mut i = records.edge();
    // Steps since the first that waits.
    let mut waiting = None;
    while let Some(fate) = records.fate(i) {
        match &mut waiting {
            Some(AHEAD) => break,
            Some(steps) => *steps += 1,
            None => {}
        }
        let mut next = i + 1;
        match fate {
            Fate::Arrived(until) => next = until.max(next),
            Fate::Sent(sent) => match criterion.lost_at(sent) {
                None => break,
                Some(at) if at <= criterion.now => records.lose(i),
                Some(at) => {
                    // RFC 8985 §6.2: the timer covers all that wait, up to AHEAD.
                    again_at = again_at.max(Some(at));
                    waiting.get_or_insert(0);
                }
            },
            Fate::LostOrAgain => {}
        }
        if waiting.is_none() {
            records.set_edge(next);
        }
        i = next;
    }
    again_at
}

fn retransmissions(records: &mut impl InFlight, criterion: LossCriterion) -> Option<Instant> {
    let mut again_at = None;
    // The first `n` wait, but for such that have arrived meanwhile.
    let mut n = 0;
    while let Some(&(start, at)) = records.resent().get(n).filter(|_| n <= AHEAD) {
        let live = records.resent_record(start, at);
        let lost_at = live.and_then(|(_, end)| criterion.lost_at(Transmission { at, end }));
        match (live, lost_at) {
            (None, _) if n == 0 => {
                records.resent().pop_front();
                continue;
            }
            (None, _) => {}
            (Some(_), None) => break,
            (Some((i, _)), Some(lost_at)) if lost_at <= criterion.now => {
                records.lose(i);
                if n == 0 {
                    records.resent().pop_front();
                    continue;
                }
            }
            (Some(_), Some(lost_at)) => again_at = again_at.max(Some(lost_at)),
        }
        n += 1;
    }
    again_at
}
