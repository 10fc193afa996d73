//! RACK's search for losses among the records in flight (RFC 8985 §6.2 step 5), in sequence order.
//!
//! Among records sent once, the order by time equals the order by sequence number. The search therefore passes each of
//! these records once, from left to right. The *edge* is the first record not passed: every record to its left has
//! arrived, is lost, or was retransmitted. Retransmitted records are in a separate queue, in the order of their last
//! transmission.
//!
//! The edge stops at the first record that is not due yet, because later records are due later. The next search begins
//! at the edge. To set the reordering timer, the search also examines up to `MAX_LOOKAHEAD` records beyond the edge.
//! The timer expires when the last of these records is due, so that one search finds all of them.

use std::collections::VecDeque;

use base::Instant;

use crate::delivery::Transmission;
use crate::rack::LossCriterion;
use crate::seq::ExtSeq;

/// Maximum number of records examined beyond the first record that is not due yet, to set the
/// timer.
const MAX_LOOKAHEAD: usize = 64;

/// The known state of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The record has arrived, and so has every record before this index.
    Arrived(usize),
    /// The record was sent once and is not known to be lost.
    Sent(Transmission),
    /// The record is lost, or was retransmitted.
    LostOrRetransmitted,
}

/// Records in flight by index, the oldest first.
pub trait InFlight {
    /// Returns the edge: the index of the first record that the search has not passed.
    fn edge(&self) -> usize;

    /// Moves the edge to `index`, which is greater than 0. Every record before `index` has arrived, is lost or was
    /// retransmitted.
    fn set_edge(&mut self, index: usize);

    /// Returns the state of the record at `index`; `None` if `index` is beyond the last record.
    fn fate(&self, index: usize) -> Option<Fate>;

    /// Marks a record as lost.
    fn mark_lost(&mut self, index: usize);

    /// Returns the queue of retransmissions, oldest first: the first sequence number of each, and its transmission
    /// time.
    fn resend_queue(&mut self) -> &mut VecDeque<(ExtSeq, Instant)>;

    /// Returns index and end of the record that begins at `start` and was retransmitted at `at`. `None` if it has
    /// arrived, is lost again or was retransmitted again since.
    fn find_resent(&self, start: ExtSeq, at: Instant) -> Option<(usize, ExtSeq)>;

    /// Appends a retransmission to the queue. Drops entries at the front that [`find_resent`](Self::find_resent) no
    /// longer finds.
    fn note_resent(&mut self, start: ExtSeq, now: Instant) {
        while let Some(&(start, at)) = self.resend_queue().front() {
            if self.find_resent(start, at).is_some() {
                break;
            }
            self.resend_queue().pop_front();
        }
        self.resend_queue().push_back((start, now));
    }
}

/// [Marks](InFlight::mark_lost) newly lost records: RACK_detect_loss of RFC 8985 §6.2. Returns the time of the next
/// search, for the reordering timer.
pub fn detect(records: &mut impl InFlight, criterion: LossCriterion) -> Option<Instant> {
    let originals = detect_lost_originals(records, criterion);
    originals.max(detect_lost_resends(records, criterion))
}

fn detect_lost_originals(records: &mut impl InFlight, criterion: LossCriterion) -> Option<Instant> {
    let mut next_search_at = None;
    let mut i = records.edge();
    // Records examined since the first record that is not due yet.
    let mut waiting = None;
    while let Some(fate) = records.fate(i) {
        match &mut waiting {
            Some(MAX_LOOKAHEAD) => break,
            Some(steps) => *steps += 1,
            None => {}
        }
        let mut next = i + 1;
        match fate {
            Fate::Arrived(until) => next = until.max(next),
            Fate::Sent(sent) => match criterion.lost_at(sent) {
                None => break,
                Some(at) if at <= criterion.now => records.mark_lost(i),
                Some(at) => {
                    // RFC 8985 §6.2: the timer covers all waiting records, up to MAX_LOOKAHEAD.
                    next_search_at = next_search_at.max(Some(at));
                    waiting.get_or_insert(0);
                }
            },
            Fate::LostOrRetransmitted => {}
        }
        if waiting.is_none() {
            records.set_edge(next);
        }
        i = next;
    }
    next_search_at
}

fn detect_lost_resends(records: &mut impl InFlight, criterion: LossCriterion) -> Option<Instant> {
    let mut next_search_at = None;
    // The first `n` entries remain in the queue: the first is not due yet, the others may be obsolete.
    let mut n = 0;
    while let Some(&(start, at)) = records.resend_queue().get(n).filter(|_| n <= MAX_LOOKAHEAD) {
        let live = records.find_resent(start, at);
        let lost_at = live.and_then(|(_, end)| criterion.lost_at(Transmission { at, end }));
        match (live, lost_at) {
            (None, _) if n == 0 => {
                records.resend_queue().pop_front();
                continue;
            }
            (None, _) => {}
            (Some(_), None) => break,
            (Some((i, _)), Some(lost_at)) if lost_at <= criterion.now => {
                records.mark_lost(i);
                if n == 0 {
                    records.resend_queue().pop_front();
                    continue;
                }
            }
            (Some(_), Some(lost_at)) => next_search_at = next_search_at.max(Some(lost_at)),
        }
        n += 1;
    }
    next_search_at
}

#[cfg(test)]
mod tests {
    use base::Nanos;

    use super::*;
    use crate::seq::SeqNumber;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn number(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    fn sent(ms: u64, n: u64) -> Transmission {
        Transmission { at: MS(ms), end: number(n + 1) }
    }

    /// Record `n` covers the single number `n`.
    #[derive(Default)]
    struct Records {
        fates: Vec<Fate>,
        edge: usize,
        lost: Vec<usize>,
        /// Last transmission time of each record that is in flight again.
        resent_at: Vec<Option<Instant>>,
        resent: VecDeque<(ExtSeq, Instant)>,
    }

    impl Records {
        fn resend(&mut self, n: u64, ms: u64) {
            self.resent_at.resize(self.fates.len(), None);
            self.resent_at[n as usize] = Some(MS(ms));
            self.note_resent(number(n), MS(ms));
        }

        fn resent_numbers(&self) -> Vec<u64> {
            self.resent.iter().map(|(start, _)| start.since(number(0))).collect()
        }
    }

    impl InFlight for Records {
        fn edge(&self) -> usize {
            self.edge
        }
        fn set_edge(&mut self, index: usize) {
            self.edge = index;
        }
        fn fate(&self, index: usize) -> Option<Fate> {
            self.fates.get(index).copied()
        }
        fn mark_lost(&mut self, index: usize) {
            self.lost.push(index);
            self.fates[index] = Fate::LostOrRetransmitted;
            if let Some(again) = self.resent_at.get_mut(index) {
                *again = None;
            }
        }
        fn resend_queue(&mut self) -> &mut VecDeque<(ExtSeq, Instant)> {
            &mut self.resent
        }
        fn find_resent(&self, start: ExtSeq, at: Instant) -> Option<(usize, ExtSeq)> {
            let n = start.since(number(0)) as usize;
            (self.resent_at[n] == Some(at)).then_some((n, start.plus(1)))
        }
    }

    fn criterion(now: u64) -> LossCriterion {
        LossCriterion { latest: sent(160, 99), timeout: Nanos::from_millis(50), now: MS(now) }
    }

    // RFC 8985 §6.2 step 5: a record sent before the latest arrived record is lost at the end of its reordering time,
    // not before.
    #[test]
    fn loss_search_resumes_at_its_edge() {
        use Fate::*;
        let fates = vec![
            Sent(sent(100, 0)),
            Arrived(3),
            Sent(sent(100, 2)),
            LostOrRetransmitted,
            Sent(sent(140, 4)),
            Sent(sent(150, 5)),
            Sent(sent(170, 6)),
            Sent(sent(100, 7)),
        ];
        let mut records = Records { fates, ..Records::default() };
        assert_eq!(detect(&mut records, criterion(149)), Some(MS(200)), "all waiting records");
        assert_eq!((records.lost.len(), records.edge), (0, 0));
        assert_eq!(detect(&mut records, criterion(150)), Some(MS(200)));
        assert_eq!(
            (&records.lost[..], records.edge),
            (&[0][..], 4),
            "the arrived record is skipped"
        );
        assert_eq!(detect(&mut records, criterion(190)), Some(MS(200)));
        assert_eq!((&records.lost[..], records.edge), (&[0, 4][..], 5));
        assert_eq!(
            detect(&mut records, criterion(500)),
            None,
            "a record sent after the latest delivered record waits"
        );
        assert_eq!((&records.lost[..], records.edge), (&[0, 4, 5][..], 6));
    }

    #[test]
    fn reorder_timer_covers_examined_records_only() {
        let fates = (0..200).map(|n| Fate::Sent(sent(n / 2, n))).collect();
        let mut records = Records { fates, ..Records::default() };
        let last = MAX_LOOKAHEAD as u64 / 2;
        assert_eq!(detect(&mut records, criterion(10)), Some(MS(50 + last)));
        assert_eq!((records.lost.len(), records.edge), (0, 0));
    }

    // RFC 8985 §6.2: the time of the last transmission decides whether a retransmitted record is lost.
    #[test]
    fn resent_record_is_lost_by_its_last_transmission_time() {
        let fates = vec![Fate::LostOrRetransmitted; 5];
        let mut records = Records { fates, edge: 5, ..Records::default() };
        for (n, ms) in [(0, 100), (1, 110), (2, 120), (3, 150), (4, 170)] {
            records.resend(n, ms);
        }
        records.resent_at[1] = None;
        assert_eq!(detect(&mut records, criterion(149)), Some(MS(200)));
        assert!(records.lost.is_empty());
        assert_eq!(detect(&mut records, criterion(170)), Some(MS(200)));
        assert_eq!(
            (&records.lost[..], records.resent_numbers()),
            (&[0, 2][..], vec![3, 4]),
            "1 has arrived"
        );
        assert_eq!(detect(&mut records, criterion(200)), None);
        assert_eq!((&records.lost[..], records.resent_numbers()), (&[0, 2, 3][..], vec![4]));
        // A further retransmission removes the obsolete entry at the front of the queue.
        records.resent_at[4] = None;
        records.resend(0, 300);
        assert_eq!(records.resent_numbers(), [0]);
    }
}
