//! What one acknowledgement delivered, gathered while the scoreboard takes it in: the questions that RACK
//! (RFC 8985 §6.2), round-trip measurement (RFC 6298 §3), F-RTO (RFC 5682) and PRR (RFC 6937) ask of it.

use base::{Instant, Nanos};

use crate::seq::ExtSeq;

/// A transmission of a segment: when, and the end of the segment. The order is RACK_sent_after of
/// RFC 8985 §6.2: by time, then by sequence number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Transmission {
    /// When it was sent.
    pub at: Instant,
    /// The number after its last one.
    pub end: ExtSeq,
}

/// The sum of what an acknowledgement delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    now: Instant,
    /// When the timestamp was made that it echoes, on the millisecond clock.
    echoed_ms: Option<u64>,
    min_rtt: Option<Nanos>,
    /// RACK.fack before it.
    fack: ExtSeq,
    /// Sequence space that was not known to have arrived before.
    pub bytes: u64,
    /// The latest transmission among what arrived, ambiguous ones left out (RFC 8985 §6.2 step 2).
    pub latest: Option<Transmission>,
    /// End of what arrived, SND.UNA or the end of a SACK block.
    pub highest: ExtSeq,
    /// A segment sent once arrived after later ones (RFC 8985 §6.2 step 3).
    pub reordered: bool,
    /// The lowest end of a segment sent once that arrived.
    pub original_end: Option<ExtSeq>,
    /// Something cumulatively acknowledged was sent more than once.
    pub ambiguous: bool,
    /// When the latest of the segments sent again was sent again, of those that arrived and whose first
    /// transmission is not known to have: that takes a report within less than the shortest round trip.
    pub needed: Option<Instant>,
    /// When the oldest segment sent once was sent, of those cumulatively acknowledged and not SACKed before.
    acked_sent_at: Option<Instant>,
    /// When the latest of them was sent, and of those SACKed.
    newest_sent_at: Option<Instant>,
    sacked_sent_at: Option<Instant>,
}

/// How a segment became known to have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A cumulative acknowledgement.
    CumulativeAck,
    /// A selective one.
    Sack,
}

impl Delivery {
    /// Nothing yet. `echoed_ms` is when the echoed timestamp was made, by the clock of
    /// [`Instant::as_millis`].
    pub fn new(now: Instant, echoed_ms: Option<u64>, min_rtt: Option<Nanos>, fack: ExtSeq) -> Self {
        Delivery {
            now,
            echoed_ms,
            min_rtt,
            fack,
            bytes: 0,
            latest: None,
            highest: fack,
            reordered: false,
            original_end: None,
            ambiguous: false,
            needed: None,
            acked_sent_at: None,
            newest_sent_at: None,
            sacked_sent_at: None,
        }
    }

    /// A whole segment that was not SACKed before has arrived.
    pub fn take(&mut self, sent: Transmission, again: bool, by: By) {
        if !again {
            match by {
                By::CumulativeAck => self.acked_sent_at.get_or_insert(sent.at),
                By::Sack => self.sacked_sent_at.get_or_insert(sent.at),
            };
            return self.take_sent_once(sent, sent);
        }
        if !self.is_too_soon(sent.at) {
            self.needed = self.needed.max(Some(sent.at));
        }
        self.highest = self.highest.max(sent.end);
        if self.is_of_the_last_transmission(sent.at) {
            self.latest = self.latest.max(Some(sent));
        }
    }

    /// As [`take`](Self::take) of each segment of a run in the order of its numbers, of which the first and the last
    /// are given: sent once, and therefore in order by time, too, and now cumulatively acknowledged.
    #[inline]
    pub fn take_run(&mut self, first: Transmission, last: Transmission) {
        self.acked_sent_at.get_or_insert(first.at);
        self.take_sent_once(first, last);
    }

    /// What both have in common, of segments that were sent once.
    #[inline]
    fn take_sent_once(&mut self, first: Transmission, last: Transmission) {
        self.reordered |= first.end < self.fack;
        self.original_end = Some(self.original_end.map_or(first.end, |e| e.min(first.end)));
        self.newest_sent_at = Some(self.newest_sent_at.map_or(last.at, |at| at.max(last.at)));
        self.highest = self.highest.max(last.end);
        if self.latest.is_none_or(|latest| last > latest) {
            self.latest = Some(last);
        }
    }

    /// For Karn's algorithm (RFC 6298 §3): the age of the oldest segment cumulatively acknowledged, if none
    /// of all was sent twice: what waited behind a retransmission does not measure the path. Else of one
    /// that was SACKed.
    pub fn rtt(&self) -> Option<Nanos> {
        let acked = self.acked_sent_at.filter(|_| !self.ambiguous);
        let sent_at = acked.or(self.sacked_sent_at)?;
        Some(self.now.nanos_since(sent_at))
    }

    /// The age of the latest segment sent once that arrived: the least that the path took.
    pub fn shortest_rtt(&self) -> Option<Nanos> {
        let sent_at = self.newest_sent_at?;
        // What waited at the receiver behind a retransmission is older than the path.
        let waited = self.ambiguous && self.sacked_sent_at.is_none();
        (!waited).then(|| self.now.nanos_since(sent_at))
    }

    /// RFC 8985 §6.2 step 2: whether what arrived of a segment sent again can be its last transmission.
    fn is_of_the_last_transmission(&self, sent_at: Instant) -> bool {
        let echoes_earlier = self.echoed_ms.is_some_and(|ms| ms < sent_at.as_millis());
        !echoes_earlier && !self.is_too_soon(sent_at)
    }

    /// What was sent then cannot have been acknowledged yet.
    fn is_too_soon(&self, sent_at: Instant) -> bool {
        self.min_rtt.is_some_and(|rtt| self.now.nanos_since(sent_at) < rtt)
    }

    /// A round trip was measured before it.
    pub fn is_measured(&self) -> bool {
        self.min_rtt.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::SeqNumber;

    fn sent(ms: u64, end: u64) -> Transmission {
        Transmission { at: Instant::from_millis(ms), end: ExtSeq::initial(SeqNumber(0)).plus(end) }
    }

    fn delivery(echoed_ms: Option<u64>) -> Delivery {
        let min_rtt = Some(Nanos::from_millis(20));
        Delivery::new(Instant::from_millis(100), echoed_ms, min_rtt, sent(0, 50).end)
    }

    // RFC 8985 §6.2: by time, ties by sequence number.
    #[test]
    fn transmissions_are_ordered_by_time_then_by_number() {
        assert!(sent(2, 10) > sent(1, 20));
        assert!(sent(1, 20) > sent(1, 10));
    }

    // What a run brings is what its segments bring one by one, whatever came before.
    #[test]
    fn a_run_is_the_sum_of_its_segments() {
        let run = [sent(20, 40), sent(20, 60), sent(30, 80), sent(31, 90)];
        let before: [&[(Transmission, bool, By)]; 4] = [
            &[],
            &[(sent(5, 20), false, By::CumulativeAck)],
            &[(sent(70, 30), true, By::CumulativeAck)],
            &[(sent(25, 100), false, By::Sack), (sent(60, 10), true, By::Sack)],
        ];
        for before in before {
            for len in 1..=run.len() {
                let (mut one, mut each) = (delivery(None), delivery(None));
                for &(sent, again, by) in before {
                    one.take(sent, again, by);
                    each.take(sent, again, by);
                }
                one.take_run(run[0], run[len - 1]);
                run[..len].iter().for_each(|sent| each.take(*sent, false, By::CumulativeAck));
                assert_eq!(format!("{one:?}"), format!("{each:?}"), "{before:?}, {len}");
            }
        }
    }

    // RFC 8985 §6.2 step 2: a retransmission counts only if what arrived can be it.
    #[test]
    fn ambiguous_retransmissions_are_left_out() {
        let latest = |echoed, at| {
            let mut d = delivery(echoed);
            d.take(sent(10, 60), false, By::Sack);
            d.take(sent(at, 10), true, By::Sack);
            d.latest.unwrap()
        };
        assert_eq!(latest(None, 80), sent(80, 10), "a round trip ago");
        assert_eq!(latest(None, 81), sent(10, 60), "less than the shortest round trip ago");
        assert_eq!(latest(Some(80), 80), sent(80, 10));
        assert_eq!(latest(Some(79), 80), sent(10, 60), "the timestamp is of an earlier one");
    }

    // A retransmission that is reported sooner than any round trip took was not needed; all others may have
    // been.
    #[test]
    fn what_is_reported_too_soon_was_not_needed() {
        let needed = |at| {
            let mut d = delivery(None);
            d.take(sent(10, 60), false, By::Sack);
            d.take(sent(81, 5), true, By::Sack);
            d.take(sent(at, 10), true, By::Sack);
            d.needed
        };
        assert_eq!(needed(81), None, "less than the shortest round trip ago");
        assert_eq!(needed(80), Some(Instant::from_millis(80)), "a round trip ago");
        let mut d = Delivery::new(Instant::from_millis(100), None, None, sent(0, 50).end);
        d.take(sent(99, 10), true, By::CumulativeAck);
        assert_eq!((d.needed, d.is_measured()), (Some(Instant::from_millis(99)), false));
    }

    // RFC 8985 §6.2 step 3: only what was sent once, only below what had arrived before.
    #[test]
    fn reordering_shows_in_originals_below_what_arrived() {
        let mut d = delivery(None);
        d.take(sent(10, 60), false, By::Sack);
        d.take(sent(10, 55), false, By::Sack);
        assert!(!d.reordered, "both above what had arrived before this acknowledgement");
        d.take(sent(70, 20), true, By::Sack);
        assert!(!d.reordered, "sent again");
        d.take(sent(10, 20), false, By::Sack);
        assert!(d.reordered);
    }

    // RFC 6298 §3: no measurement of what was sent twice, or waited for it.
    #[test]
    fn measurements_are_of_segments_sent_once() {
        let mut d = delivery(None);
        assert_eq!(d.rtt(), None);
        d.take(sent(60, 10), false, By::CumulativeAck);
        d.take(sent(70, 20), false, By::CumulativeAck);
        assert_eq!(d.rtt(), Some(Nanos::from_millis(40)));
        assert_eq!(d.shortest_rtt(), Some(Nanos::from_millis(30)));
        d.ambiguous = true;
        assert_eq!((d.rtt(), d.shortest_rtt()), (None, None));
        d.take(sent(75, 30), false, By::Sack);
        assert_eq!(d.rtt(), Some(Nanos::from_millis(25)), "SACKed: it has just arrived");
    }
}
