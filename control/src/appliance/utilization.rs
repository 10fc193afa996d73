//! Utilization of the workers: the share of the last second in which they had work.

use std::time::{Duration, Instant};

use dataplane::Counters;

/// Interval between measurements.
const INTERVAL: Duration = Duration::from_secs(1);

/// Busy time at the last measurement, and the shares of the last interval.
#[derive(Debug)]
pub(super) struct Utilization {
    /// Time of the last measurement.
    measured_at: Instant,
    /// Busy time of each worker since its start, as of the last measurement, nanoseconds.
    nanoseconds: Vec<u64>,
    /// Share of the last interval in which each worker was busy, 0 to 1. `None` before the first measurement.
    shares: Vec<Option<f64>>,
}

impl Utilization {
    pub(super) fn new(workers: usize, now: Instant) -> Utilization {
        Utilization { measured_at: now, nanoseconds: vec![0; workers], shares: vec![None; workers] }
    }

    /// Returns the time at which the next measurement is due.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.measured_at + INTERVAL
    }

    /// Measures the workers' shares if `INTERVAL` has elapsed since the last measurement.
    pub(super) fn handle_timeout<'a>(
        &mut self,
        counters: impl Iterator<Item = &'a Counters>,
        now: Instant,
    ) {
        let passed = now.saturating_duration_since(self.measured_at);
        if passed < INTERVAL {
            return;
        }
        self.measured_at = now;
        for ((seen, share), counters) in
            self.nanoseconds.iter_mut().zip(&mut self.shares).zip(counters)
        {
            let busy = counters.run.busy_nanoseconds.get();
            let worked = Duration::from_nanos(busy.saturating_sub(*seen));
            *seen = busy;
            *share = Some((worked.as_secs_f64() / passed.as_secs_f64()).min(1.0));
        }
    }

    /// Returns the share of time in which a worker had work, 0 to 1; `None` before the first measurement.
    pub(super) fn busy_share(&self, worker: usize) -> Option<f64> {
        self.shares.get(worker).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_share_covers_time_between_two_measurements() {
        let (start, counters) = (Instant::now(), Counters::default());
        let mut busy = Utilization::new(1, start);
        let at = |ms| start + Duration::from_millis(ms);
        counters.run.busy_nanoseconds.add(100_000_000);
        busy.handle_timeout([&counters].into_iter(), at(999));
        assert_eq!(busy.busy_share(0), None);
        busy.handle_timeout([&counters].into_iter(), at(1000));
        assert_eq!(busy.busy_share(0), Some(0.1));
        counters.run.busy_nanoseconds.add(1_000_000_000);
        busy.handle_timeout([&counters].into_iter(), at(1999));
        assert_eq!(busy.busy_share(0), Some(0.1));
        busy.handle_timeout([&counters].into_iter(), at(3000));
        assert_eq!((busy.busy_share(0), busy.poll_timeout()), (Some(0.5), at(4000)));
    }
}
