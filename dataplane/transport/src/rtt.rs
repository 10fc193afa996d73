//! Round-trip time and retransmission time-out (RFC 6298, RFC 7323 appendix G). SRTT and RTTVAR are in nanoseconds, the
//! time-out in microseconds.
//!
//! Not included: the choice of valid measurements (Karn's algorithm, [`delivery`](crate::delivery)), and the timer.

use core::time::Duration;

use base::Nanos;

use crate::parameters::Parameters;

/// Divisor that gives the minimum of the variance term, 4 * RTTVAR, from the configured minimum RTO. For a minimum RTO
/// of 200 ms the term is at least 50 ms, more than the 40 ms for which peers delay acknowledgements.
const VARIANCE_FLOOR: u64 = 4;

/// Initial time-out for data after a lost SYN (RFC 6298 §5.7).
const RTO_AFTER_SYN_LOSS: Duration = Duration::from_secs(3);

/// Round-trip estimator of one connection or association.
#[derive(Clone, Copy, Debug)]
pub struct RttEstimator {
    /// SRTT and RTTVAR, nanoseconds; zero, with `measured` false, before the first measurement.
    srtt: u64,
    rttvar: u64,
    measured: bool,
    /// Retransmission time-out without backoff, microseconds.
    rto: u32,
    /// Number of times that the time-out is doubled, at most 16.
    backoff: u8,
    /// Consecutive time-outs without progress.
    timeouts: u16,
}

impl RttEstimator {
    /// Creates an estimator without a measurement.
    pub fn new(config: &impl Parameters) -> Self {
        // RFC 6298 §2.1
        RttEstimator {
            srtt: 0,
            rttvar: 0,
            measured: false,
            rto: micros(config.initial_rto()),
            backoff: 0,
            timeouts: 0,
        }
    }

    /// Processes a measurement from a segment sent once, or by timestamps (RFC 6298 §3). `per_rtt`:
    /// measurements expected per round trip (RFC 7323 appendix G), at least 1.
    pub fn sample(&mut self, rtt: Nanos, per_rtt: u64, config: &impl Parameters) {
        let r = rtt.get().min(u64::MAX / 4);
        if self.measured {
            // RFC 6298 §2.3: alpha = 1/8, beta = 1/4, RTTVAR first.
            let (var, srtt) = (self.rttvar, self.srtt);
            (self.rttvar, self.srtt) = match per_rtt {
                // The most frequent case, without a division.
                0 | 1 => (blend(var, srtt.abs_diff(r), 4), blend(srtt, r, 8)),
                n => (blend(var, srtt.abs_diff(r), 4 * n), blend(srtt, r, 8 * n)),
            };
        } else {
            // RFC 6298 §2.2
            self.srtt = r;
            self.rttvar = r / 2;
            self.measured = true;
        }
        self.backoff = 0;
        let [min, max] = [config.min_rto(), config.max_rto()].map(|time| Nanos::from(time).get());
        let var = self.rttvar.saturating_mul(4).max(min / VARIANCE_FLOOR);
        let rto = self.srtt.saturating_add(var).max(min).min(max); // RFC 6298 §2.4, §2.5
        self.rto = u32::try_from(rto.div_ceil(1000)).unwrap_or(u32::MAX);
    }

    /// Returns the retransmission time-out with backoff, at most the configured maximum.
    pub fn rto(&self, config: &impl Parameters) -> Nanos {
        let micros = u64::from(self.rto) << self.backoff.min(16);
        Nanos::new(1000 * micros).min(config.max_rto().into())
    }

    /// Doubles the time-out after an expiry of the timer (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// Records that a transmission was not answered in time.
    pub(crate) fn on_unanswered(&mut self) {
        self.timeouts = self.timeouts.saturating_add(1);
        self.back_off();
    }

    /// Records that the peer acknowledged new data.
    #[inline]
    pub(crate) fn on_progress(&mut self) {
        self.timeouts = 0;
    }

    /// Returns the number of consecutive time-outs without progress.
    #[inline]
    pub(crate) fn consecutive_timeouts(&self) -> u16 {
        self.timeouts
    }

    /// Ends the backoff because the peer answers again, although no measurement was possible. Example: a closed window
    /// opens.
    pub fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Raises the time-out to 3 s after a retransmission of the SYN if no round trip was measured (RFC 6298 §5.7).
    pub fn on_syn_loss(&mut self) {
        if !self.measured {
            self.rto = self.rto.max(micros(RTO_AFTER_SYN_LOSS));
        }
        self.backoff = 0;
    }

    /// Returns SRTT; `None` before the first measurement.
    pub fn srtt(&self) -> Option<Nanos> {
        self.measured.then(|| Nanos::new(self.srtt))
    }
}

impl RttEstimator {
    /// Returns RTTVAR; zero before the first measurement.
    #[inline]
    pub fn rttvar(&self) -> Nanos {
        Nanos::new(self.rttvar)
    }
}

/// Returns `time` in microseconds, rounded up; at most `u32::MAX`.
fn micros(time: Duration) -> u32 {
    u32::try_from(Nanos::from(time).get().div_ceil(1000)).unwrap_or(u32::MAX)
}

/// Returns (1 - 1/weight) * old + new / weight; the change from `old` is rounded towards zero.
#[inline(always)]
fn blend(old: u64, new: u64, weight: u64) -> u64 {
    if new >= old { old + (new - old) / weight } else { old - (old - new) / weight }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::TestParameters;

    const MS: Nanos = Nanos::from_millis(1);

    fn config() -> TestParameters {
        TestParameters::default()
    }

    // RFC 6298 §2.1: one second before the first measurement.
    #[test]
    fn initial_rto_is_one_second() {
        assert_eq!(RttEstimator::new(&config()).rto(&config()), 1000 * MS);
    }

    // RFC 6298 §2.2 and §2.3; the expected values were calculated by hand.
    #[test]
    fn rto_follows_rfc_6298_formulas() {
        let mut rtt = RttEstimator::new(&config());
        rtt.sample(100 * MS, 1, &config());
        assert_eq!(rtt.srtt(), Some(100 * MS));
        assert_eq!(rtt.rto(&config()), 300 * MS); // 100 + 4 * 50
        rtt.sample(180 * MS, 1, &config());
        // RTTVAR = 3/4 * 50 + 1/4 * 80 = 57.5; SRTT = 7/8 * 100 + 1/8 * 180 = 110
        assert_eq!(rtt.srtt(), Some(110 * MS));
        assert_eq!(rtt.rto(&config()), 340 * MS);
    }

    // RFC 6298 §2.4, §2.5: the time-out stays between the configured minimum and maximum.
    #[test]
    fn rto_stays_within_configured_bounds() {
        let mut rtt = RttEstimator::new(&config());
        for _ in 0..100 {
            rtt.sample(Nanos::new(50_000), 1, &config());
        }
        assert_eq!(rtt.rto(&config()), 40 * MS);
        for _ in 0..100 {
            rtt.sample(100000 * MS, 1, &config());
        }
        assert_eq!(rtt.rto(&config()), 60000 * MS);
    }

    // RFC 6298 §5.5: the time-out doubles up to the maximum; a measurement ends the backoff.
    #[test]
    fn rto_backs_off_exponentially_to_maximum() {
        let mut rtt = RttEstimator::new(&config());
        rtt.sample(100 * MS, 1, &config());
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(rtt.rto(&config()).get() / 1_000_000);
            rtt.back_off();
        }
        assert_eq!(seen, [300, 600, 1200, 2400, 4800, 9600, 19200, 38400, 60000, 60000]);
        rtt.sample(100 * MS, 1, &config());
        assert!(rtt.rto(&config()) < 300 * MS);
    }

    // RFC 6298 §5.7: three seconds for data after a lost SYN.
    #[test]
    fn lost_syn_sets_rto_to_three_seconds() {
        let mut rtt = RttEstimator::new(&config());
        rtt.back_off();
        rtt.on_syn_loss();
        assert_eq!(rtt.rto(&config()), 3000 * MS);
    }

    // RFC 7323 appendix G: many measurements per round trip weigh as one.
    #[test]
    fn many_rtt_samples_per_round_trip_weigh_as_one() {
        let mut one = RttEstimator::new(&config());
        let mut many = one;
        one.sample(100 * MS, 1, &config());
        many.sample(100 * MS, 1, &config());
        one.sample(200 * MS, 1, &config());
        for _ in 0..10 {
            many.sample(200 * MS, 10, &config());
        }
        let (one, many) = (one.srtt().unwrap(), many.srtt().unwrap());
        assert!(one.get().abs_diff(many.get()) < 1_000_000, "{one:?} {many:?}");
    }
}
