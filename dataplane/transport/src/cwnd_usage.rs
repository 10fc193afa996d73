//! Usage of the congestion window. The window grows only if it was full or, in slow start, more than half full (RFC
//! 7661 §4.3, RFC 9438 §5.8). If the window was not full for the duration of a retransmission time-out, congestion
//! control reduces it towards the used part (RFC 2861 §3).

use base::{Instant, Nanos};

use crate::seq::ExtSeq;

/// Usage in the current round trip, and the time when the window was last full.
#[derive(Clone, Copy, Debug, Default)]
pub struct CwndUsage {
    /// True if the window was full in this round trip, so that it limited sending.
    limited: bool,
    /// Maximum of the bytes in flight in this round trip.
    max_flight: u64,
    /// Sequence number whose acknowledgement ends the round trip.
    round_end: ExtSeq,
    /// Time at which the window was last full, or at which underuse was last reported. Zero at
    /// first.
    full_at: Instant,
}

impl CwndUsage {
    /// Starts before the first transmission.
    pub const fn new() -> Self {
        let (round_end, full_at) = (ExtSeq::NONE, Instant::ZERO);
        CwndUsage { limited: false, max_flight: 0, round_end, full_at }
    }

    /// Records that data was sent, or that a full window stopped transmission (`limited`). `flight`: bytes in the
    /// network now.
    pub fn note(&mut self, now: Instant, limited: bool, flight: u64, una: ExtSeq, nxt: ExtSeq) {
        if una >= self.round_end || limited || (!self.limited && flight > self.max_flight) {
            self.limited = limited;
            self.max_flight = flight;
            self.round_end = nxt;
        }
        if limited {
            self.full_at = now;
        }
    }

    /// Returns true if the window may grow: it was full in this round trip, or in slow start more than half full.
    pub fn is_limited(&self, slow_start: bool, cwnd: u64) -> bool {
        self.limited || (slow_start && cwnd < 2 * self.max_flight)
    }

    /// Returns the used part of the window, bytes, if the window has not been full for `rto`; at most once per `rto`
    /// (RFC 2861 §3). Returns `None` while the window limits sending. If the window was never full, the first
    /// call only starts the clock.
    pub fn poll_underuse(&mut self, now: Instant, rto: Nanos) -> Option<u64> {
        if self.limited || now.nanos_since(self.full_at) < rto {
            return None;
        }
        let counted_before = self.full_at > Instant::ZERO;
        self.full_at = now;
        counted_before.then_some(self.max_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::SeqNumber;

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    const MS: fn(u64) -> Instant = Instant::from_millis;

    // RFC 7661 §4.3: a round trip in which the window was full at any time counts as full.
    #[test]
    fn cwnd_full_once_in_a_round_trip_is_limited() {
        let mut usage = CwndUsage::new();
        usage.note(MS(0), true, 1000, at(0), at(1000));
        usage.note(MS(1), false, 500, at(600), at(1100));
        assert!(usage.is_limited(false, 1000));
        usage.note(MS(2), false, 100, at(1000), at(1200));
        assert!(!usage.is_limited(false, 1000));
        assert!(!usage.is_limited(true, 1000), "less than half of the window was used");
        assert!(usage.is_limited(true, 150));
    }

    // RFC 2861 §3: underuse is reported once per time-out during which the window was not full.
    #[test]
    fn underused_cwnd_is_reported_once_per_rto() {
        let rto = Nanos::from_millis(200);
        let mut usage = CwndUsage::new();
        usage.note(MS(1000), false, 300, at(0), at(300));
        assert_eq!(usage.poll_underuse(MS(1000), rto), None, "no earlier usage is recorded");
        assert_eq!(usage.poll_underuse(MS(1199), rto), None);
        assert_eq!(usage.poll_underuse(MS(1200), rto), Some(300));
        assert_eq!(usage.poll_underuse(MS(1300), rto), None);
        usage.note(MS(1300), true, 900, at(300), at(1200));
        assert_eq!(usage.poll_underuse(MS(1900), rto), None);
    }
}
