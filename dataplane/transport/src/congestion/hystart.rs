//! HyStart++ (RFC 9406): the first slow start ends when round trips grow, before the queue overflows. Later slow starts
//! do not use this module. The window itself is in [`window`](super::window).

use base::{Blank, Nanos};

use crate::seq::ExtSeq;

/// MIN_RTT_THRESH and MAX_RTT_THRESH in microseconds, and MIN_RTT_DIVISOR (RFC 9406 §4.3).
const MIN_THRESHOLD: u32 = 4_000;
const MAX_THRESHOLD: u32 = 16_000;
const DIVISOR: u32 = 8;
/// N_RTT_SAMPLE: round-trip samples that a round needs before its minimum is compared with the previous round's (RFC
/// 9406 §4.3).
const SAMPLES: u8 = 8;
/// CSS_GROWTH_DIVISOR: divisor of the growth in conservative slow start (RFC 9406 §4.3).
const GROWTH_DIVISOR: u64 = 4;
/// CSS_ROUNDS: maximum rounds of conservative slow start (RFC 9406 §4.3).
const ROUNDS: u8 = 5;

/// Mode of slow start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlowStartMode {
    /// Ordinary slow start.
    Full,
    /// Conservative slow start.
    Conservative,
    /// Slow start is over.
    Finished,
}

/// State of the first slow start. Times are in microseconds; zero means no sample yet, or no baseline.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HyStart {
    /// lastRoundMinRTT: the shortest round trip of the previous round.
    last_round_min_rtt: u32,
    /// currentRoundMinRTT: the shortest round trip of this round so far.
    current_round_min_rtt: u32,
    /// cssBaselineMinRtt: the shortest round trip of the round in which conservative slow start
    /// began; zero outside conservative slow start.
    css_baseline_min_rtt: u32,
    /// windowEnd: the sequence number whose acknowledgement ends the round.
    window_end: ExtSeq,
    /// rttSampleCount: samples in this round.
    samples: u8,
    /// Rounds of conservative slow start so far.
    css_rounds: u8,
}

impl Blank for HyStart {
    fn blank() -> &'static Self {
        static BLANK: HyStart = HyStart {
            last_round_min_rtt: 0,
            current_round_min_rtt: 0,
            css_baseline_min_rtt: 0,
            window_end: ExtSeq::NONE,
            samples: 0,
            css_rounds: 0,
        };
        &BLANK
    }
}

impl HyStart {
    /// Processes a round-trip measurement (RFC 9406 §4.2). Returns the mode of slow start afterwards.
    pub(super) fn on_round_trip(&mut self, rtt: Nanos, una: ExtSeq, nxt: ExtSeq) -> SlowStartMode {
        if una >= self.window_end {
            self.window_end = nxt;
            self.last_round_min_rtt = self.current_round_min_rtt;
            self.current_round_min_rtt = 0;
            self.samples = 0;
            if self.css_baseline_min_rtt > 0 {
                self.css_rounds += 1;
                if self.css_rounds >= ROUNDS {
                    return SlowStartMode::Finished;
                }
            }
        }
        let rtt = u32::try_from(rtt.get() / 1000).unwrap_or(u32::MAX).max(1);
        self.current_round_min_rtt =
            if self.current_round_min_rtt == 0 { rtt } else { self.current_round_min_rtt.min(rtt) };
        self.samples = self.samples.saturating_add(1);
        if self.samples >= SAMPLES && self.last_round_min_rtt > 0 {
            if self.css_baseline_min_rtt > 0
                && self.current_round_min_rtt < self.css_baseline_min_rtt
            {
                self.css_baseline_min_rtt = 0; // the delay was not a growing queue
                self.css_rounds = 0;
            } else if self.css_baseline_min_rtt == 0 {
                let threshold =
                    (self.last_round_min_rtt / DIVISOR).clamp(MIN_THRESHOLD, MAX_THRESHOLD);
                if self.current_round_min_rtt >= self.last_round_min_rtt.saturating_add(threshold) {
                    self.css_baseline_min_rtt = self.current_round_min_rtt;
                    self.css_rounds = 0;
                }
            }
        }
        if self.css_baseline_min_rtt > 0 {
            SlowStartMode::Conservative
        } else {
            SlowStartMode::Full
        }
    }

    /// Returns the divisor of slow start's growth: [`GROWTH_DIVISOR`] in conservative slow start, else 1.
    pub(super) fn divisor(&self) -> u64 {
        if self.css_baseline_min_rtt > 0 { GROWTH_DIVISOR } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::SeqNumber;

    const MS: Nanos = Nanos::from_millis(1);

    /// Runs a round of ten samples.
    fn round(h: &mut HyStart, n: u64, rtt: Nanos) -> SlowStartMode {
        let at = |n: u64| ExtSeq::initial(SeqNumber(0)).plus(n * 1000);
        let mut mode = SlowStartMode::Full;
        for i in 0..10 {
            mode = h.on_round_trip(rtt, at(n).plus(i), at(n + 1));
            if mode == SlowStartMode::Finished {
                break;
            }
        }
        mode
    }

    // RFC 9406 §4.2: slow start becomes conservative when round trips grow by an eighth, at least 4 ms. Five rounds
    // later slow start is over.
    #[test]
    fn growing_round_trips_end_slow_start() {
        let mut h = HyStart::default();
        assert_eq!(round(&mut h, 0, 40 * MS), SlowStartMode::Full);
        assert_eq!(round(&mut h, 1, 44 * MS), SlowStartMode::Full, "less than an eighth");
        assert_eq!(round(&mut h, 2, 50 * MS), SlowStartMode::Conservative);
        assert_eq!(h.divisor(), 4);
        for n in 3..7 {
            assert_eq!(round(&mut h, n, 55 * MS), SlowStartMode::Conservative);
        }
        assert_eq!(round(&mut h, 7, 55 * MS), SlowStartMode::Finished);
    }

    // RFC 9406 §4.2: slow start resumes once the delay has ended.
    #[test]
    fn transient_delay_resumes_slow_start() {
        let mut h = HyStart::default();
        round(&mut h, 0, 10 * MS);
        assert_eq!(round(&mut h, 1, 20 * MS), SlowStartMode::Conservative);
        assert_eq!(round(&mut h, 2, 10 * MS), SlowStartMode::Full);
        assert_eq!(h.divisor(), 1);
    }

    // RFC 9406 §4.2: a longer delay that persists for five rounds ends slow start.
    #[test]
    fn persistent_delay_ends_slow_start() {
        let mut h = HyStart::default();
        round(&mut h, 0, 40 * MS);
        for n in 1..6 {
            assert_eq!(round(&mut h, n, 50 * MS), SlowStartMode::Conservative, "{n}");
        }
        assert_eq!(round(&mut h, 6, 50 * MS), SlowStartMode::Finished);
    }

    #[test]
    fn constant_rtt_keeps_slow_start() {
        let mut h = HyStart::default();
        assert!((0..30).all(|n| round(&mut h, n, 40 * MS) == SlowStartMode::Full));
    }
}
