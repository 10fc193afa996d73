//! The delivery report of one acknowledgement, collected while the scoreboard processes it. RACK (RFC 8985 §6.2),
//! round-trip measurement (RFC 6298 §3), F-RTO (RFC 5682) and PRR (RFC 6937) evaluate the report.

use base::{Instant, Nanos};

use crate::seq::ExtSeq;

/// Transmission time of a segment, and the segment's end. The order is RACK_sent_after of RFC 8985 §6.2: by
/// time, then by sequence number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Transmission {
    /// Transmission time.
    pub at: Instant,
    /// First sequence number after the segment.
    pub end: ExtSeq,
}

/// Totals of the segments that one acknowledgement delivered.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Arrival time of the acknowledgement.
    now: Instant,
    /// Time at which this sender sent the timestamp that the acknowledgement echoes, in [`Instant::as_millis`].
    echoed_ms: Option<u64>,
    /// RACK.min_RTT before this acknowledgement: the shortest round trip measured.
    min_rtt: Option<Nanos>,
    /// RACK.fack before this acknowledgement.
    fack: ExtSeq,
    /// Bytes newly known to have arrived; in TCP, bytes of sequence space.
    pub bytes: u64,
    /// The latest transmission among the arrived segments, ambiguous retransmissions excluded (RFC 8985 §6.2 step 2).
    pub latest: Option<Transmission>,
    /// Highest end of a segment that arrived; at least RACK.fack before this acknowledgement.
    pub highest: ExtSeq,
    /// True if a segment sent once arrived after later segments (RFC 8985 §6.2 step 3).
    pub reordered: bool,
    /// Lowest end among the arrived segments that were sent once.
    pub original_end: Option<ExtSeq>,
    /// True if a cumulatively acknowledged segment was sent more than once.
    pub ambiguous: bool,
    /// Transmission time of the latest retransmission that arrived and may have been needed. A retransmission reported
    /// within less than the shortest round trip was not needed, because the first transmission had arrived.
    pub needed_resent_at: Option<Instant>,
    /// Transmission time of the oldest segment that was sent once, is cumulatively acknowledged now, and was not SACKed
    /// before.
    acked_sent_at: Option<Instant>,
    /// Latest transmission time among the arrived segments that were sent once.
    newest_sent_at: Option<Instant>,
    /// Transmission time of the first newly SACKed segment among those that were sent once.
    sacked_sent_at: Option<Instant>,
}

/// The kind of acknowledgement that reported a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckKind {
    /// A cumulative acknowledgement.
    CumulativeAck,
    /// A selective acknowledgement.
    Sack,
}

impl Delivery {
    /// Starts an empty report. `now`: arrival time of the acknowledgement. `echoed_ms`: time at which this sender sent
    /// the timestamp that the acknowledgement echoes, in [`Instant::as_millis`]. `min_rtt` and `fack`: RACK.min_RTT and
    /// RACK.fack before this acknowledgement.
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
            needed_resent_at: None,
            acked_sent_at: None,
            newest_sent_at: None,
            sacked_sent_at: None,
        }
    }

    /// Counts a whole segment that has arrived and was not SACKed before. `retransmitted`: the segment was sent more
    /// than once.
    pub fn add_segment(&mut self, sent: Transmission, retransmitted: bool, ack_kind: AckKind) {
        if !retransmitted {
            match ack_kind {
                AckKind::CumulativeAck => self.acked_sent_at.get_or_insert(sent.at),
                AckKind::Sack => self.sacked_sent_at.get_or_insert(sent.at),
            };
            return self.add_sent_once(sent, sent);
        }
        if !self.is_within_min_rtt(sent.at) {
            self.needed_resent_at = self.needed_resent_at.max(Some(sent.at));
        }
        self.highest = self.highest.max(sent.end);
        if self.may_be_last_transmission(sent.at) {
            self.latest = self.latest.max(Some(sent));
        }
    }

    /// Counts a run of segments that were sent once and are now cumulatively acknowledged. `first` and `last` are its
    /// first and last segments. Has the same effect as [`add_segment`](Self::add_segment) for each segment in
    /// sequence order, which is also the order by time.
    #[inline]
    pub fn add_run(&mut self, first: Transmission, last: Transmission) {
        self.acked_sent_at.get_or_insert(first.at);
        self.add_sent_once(first, last);
    }

    /// Performs the common part of [`add_segment`](Self::add_segment) and [`add_run`](Self::add_run), for segments sent
    /// once.
    #[inline]
    fn add_sent_once(&mut self, first: Transmission, last: Transmission) {
        self.reordered |= first.end < self.fack;
        self.original_end = Some(self.original_end.map_or(first.end, |e| e.min(first.end)));
        self.newest_sent_at = Some(self.newest_sent_at.map_or(last.at, |at| at.max(last.at)));
        self.highest = self.highest.max(last.end);
        if self.latest.is_none_or(|latest| last > latest) {
            self.latest = Some(last);
        }
    }

    /// Returns the round-trip time by Karn's algorithm (RFC 6298 §3): the age of the oldest newly acknowledged segment.
    /// If the acknowledgement covers a retransmitted segment, later segments may have waited behind it at the receiver.
    /// The first newly SACKed segment is then measured instead. Returns `None` if there is none.
    pub fn rtt(&self) -> Option<Nanos> {
        let acked = self.acked_sent_at.filter(|_| !self.ambiguous);
        let sent_at = acked.or(self.sacked_sent_at)?;
        Some(self.now.nanos_since(sent_at))
    }

    /// Returns the age of the newest arrived segment among those sent once: an upper bound of the path's shortest round
    /// trip.
    pub fn shortest_rtt(&self) -> Option<Nanos> {
        let sent_at = self.newest_sent_at?;
        // The age of a segment that waited at the receiver behind a retransmission exceeds the path's round trip.
        let waited = self.ambiguous && self.sacked_sent_at.is_none();
        (!waited).then(|| self.now.nanos_since(sent_at))
    }

    /// Returns true if the arrived copy of a retransmitted segment can be its last transmission, sent at `sent_at`
    /// (RFC 8985 §6.2 step 2): the echoed timestamp is not older, and at least the shortest round trip has passed.
    fn may_be_last_transmission(&self, sent_at: Instant) -> bool {
        let echoes_earlier = self.echoed_ms.is_some_and(|ms| ms < sent_at.as_millis());
        !echoes_earlier && !self.is_within_min_rtt(sent_at)
    }

    /// Returns true if a segment sent at `sent_at` cannot have been acknowledged yet, because less than the shortest
    /// round trip has passed.
    fn is_within_min_rtt(&self, sent_at: Instant) -> bool {
        self.min_rtt.is_some_and(|rtt| self.now.nanos_since(sent_at) < rtt)
    }

    /// Returns true if the shortest round trip was known before this acknowledgement.
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

    // RFC 8985 §6.2: order by time, ties by sequence number.
    #[test]
    fn transmissions_are_ordered_by_time_then_by_number() {
        assert!(sent(2, 10) > sent(1, 20));
        assert!(sent(1, 20) > sent(1, 10));
    }

    // Counting a run has the same effect as counting its segments separately, whichever segments were counted before.
    #[test]
    fn run_counts_same_as_its_segments() {
        let run = [sent(20, 40), sent(20, 60), sent(30, 80), sent(31, 90)];
        let before: [&[(Transmission, bool, AckKind)]; 4] = [
            &[],
            &[(sent(5, 20), false, AckKind::CumulativeAck)],
            &[(sent(70, 30), true, AckKind::CumulativeAck)],
            &[(sent(25, 100), false, AckKind::Sack), (sent(60, 10), true, AckKind::Sack)],
        ];
        for before in before {
            for len in 1..=run.len() {
                let (mut one, mut each) = (delivery(None), delivery(None));
                for &(sent, again, by) in before {
                    one.add_segment(sent, again, by);
                    each.add_segment(sent, again, by);
                }
                one.add_run(run[0], run[len - 1]);
                run[..len]
                    .iter()
                    .for_each(|sent| each.add_segment(*sent, false, AckKind::CumulativeAck));
                assert_eq!(format!("{one:?}"), format!("{each:?}"), "{before:?}, {len}");
            }
        }
    }

    // RFC 8985 §6.2 step 2: a retransmission counts only if the arrived copy can be the retransmission.
    #[test]
    fn ambiguous_retransmission_does_not_become_latest() {
        let latest = |echoed, at| {
            let mut d = delivery(echoed);
            d.add_segment(sent(10, 60), false, AckKind::Sack);
            d.add_segment(sent(at, 10), true, AckKind::Sack);
            d.latest.unwrap()
        };
        assert_eq!(latest(None, 80), sent(80, 10), "a round trip ago");
        assert_eq!(latest(None, 81), sent(10, 60), "less than the shortest round trip ago");
        assert_eq!(latest(Some(80), 80), sent(80, 10));
        assert_eq!(
            latest(Some(79), 80),
            sent(10, 60),
            "the echoed timestamp is older than the retransmission"
        );
    }

    // A retransmission reported sooner than the shortest round trip was not needed. A retransmission reported later may
    // have been needed.
    #[test]
    fn resend_acked_within_min_rtt_was_not_needed() {
        let needed = |at| {
            let mut d = delivery(None);
            d.add_segment(sent(10, 60), false, AckKind::Sack);
            d.add_segment(sent(81, 5), true, AckKind::Sack);
            d.add_segment(sent(at, 10), true, AckKind::Sack);
            d.needed_resent_at
        };
        assert_eq!(needed(81), None, "less than the shortest round trip ago");
        assert_eq!(needed(80), Some(Instant::from_millis(80)), "a round trip ago");
        let mut d = Delivery::new(Instant::from_millis(100), None, None, sent(0, 50).end);
        d.add_segment(sent(99, 10), true, AckKind::CumulativeAck);
        assert_eq!((d.needed_resent_at, d.is_measured()), (Some(Instant::from_millis(99)), false));
    }

    // RFC 8985 §6.2 step 3: a segment sent once shows reordering if it ends below RACK.fack at its arrival.
    #[test]
    fn reordering_shows_in_originals_below_what_arrived() {
        let mut d = delivery(None);
        d.add_segment(sent(10, 60), false, AckKind::Sack);
        d.add_segment(sent(10, 55), false, AckKind::Sack);
        assert!(!d.reordered, "both end above RACK.fack");
        d.add_segment(sent(70, 20), true, AckKind::Sack);
        assert!(!d.reordered, "sent again");
        d.add_segment(sent(10, 20), false, AckKind::Sack);
        assert!(d.reordered);
    }

    // RFC 6298 §3: neither a retransmitted segment nor a segment that waited behind one at the receiver is measured.
    #[test]
    fn rtt_sample_uses_only_segments_sent_once() {
        let mut d = delivery(None);
        assert_eq!(d.rtt(), None);
        d.add_segment(sent(60, 10), false, AckKind::CumulativeAck);
        d.add_segment(sent(70, 20), false, AckKind::CumulativeAck);
        assert_eq!(d.rtt(), Some(Nanos::from_millis(40)));
        assert_eq!(d.shortest_rtt(), Some(Nanos::from_millis(30)));
        d.ambiguous = true;
        assert_eq!((d.rtt(), d.shortest_rtt()), (None, None));
        d.add_segment(sent(75, 30), false, AckKind::Sack);
        assert_eq!(d.rtt(), Some(Nanos::from_millis(25)), "SACKed: it has just arrived");
    }
}
