//! How often something may happen.

use wire::Instant;

/// A token bucket: `per_second` on average, at most a tenth of that (but one at least) at once.
#[derive(Debug)]
pub struct RateLimit {
    /// Nanoseconds that one takes; zero when there is none at all.
    cost: u64,
    /// Nanoseconds saved at most.
    depth: u64,
    saved: u64,
    last: Instant,
}

impl RateLimit {
    /// A full bucket.
    pub fn new(per_second: u32, now: Instant) -> Self {
        let cost = 1_000_000_000u64.checked_div(u64::from(per_second)).unwrap_or(0);
        let depth = cost.max(100_000_000).max(cost);
        RateLimit { cost, depth, saved: depth, last: now }
    }

    /// True when it may happen now; it is then counted.
    pub fn take(&mut self, now: Instant) -> bool {
        if self.cost == 0 {
            return false;
        }
        let gained = (now - self.last).as_nanos().min(u128::from(self.depth)) as u64;
        self.last = now;
        self.saved = (self.saved + gained).min(self.depth);
        let may = self.saved >= self.cost;
        if may {
            self.saved -= self.cost;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_then_average() {
        let mut limit = RateLimit::new(100, Instant::ZERO);
        let burst = (0..100).filter(|_| limit.take(Instant::ZERO)).count();
        assert_eq!(burst, 10);
        let second = (1..=1000).filter(|&ms| limit.take(Instant::from_millis(ms))).count();
        assert_eq!(second, 100);
        assert!(!RateLimit::new(0, Instant::ZERO).take(Instant::from_millis(5)));
    }
}
