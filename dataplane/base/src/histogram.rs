//! Histograms with bounds that double from bucket to bucket. One thread records values, any thread reads them, and no
//! lock is taken.

use core::sync::atomic::{AtomicU64, Ordering};

/// Histogram with `BOUNDS` buckets, whose upper bounds are `FIRST`, 2 × `FIRST`, 4 × `FIRST` and so on. Values above
/// the last bound are counted separately. Written by one thread with relaxed stores, read by any.
#[derive(Debug)]
pub struct Histogram<const FIRST: u64, const BOUNDS: usize> {
    counts: [AtomicU64; BOUNDS],
    overflow: AtomicU64,
    sum: AtomicU64,
}

/// Histogram of durations, nanoseconds, with bounds from 1 µs to 16.8 s.
pub type Durations = Histogram<1000, 25>;

/// Snapshot of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pairs of an inclusive upper bound and the number of values between the previous bound and this one.
    pub buckets: Vec<(u64, u64)>,
    /// Values above the last bound.
    pub overflow: u64,
    /// Sum of all values.
    pub sum: u64,
}

impl<const FIRST: u64, const BOUNDS: usize> Default for Histogram<FIRST, BOUNDS> {
    fn default() -> Self {
        Histogram {
            counts: [const { AtomicU64::new(0) }; BOUNDS],
            overflow: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }
}

impl<const FIRST: u64, const BOUNDS: usize> Histogram<FIRST, BOUNDS> {
    /// Counts a value. Only one thread may call this: the increments are not atomic.
    #[inline]
    pub fn record(&self, value: u64) {
        let steps = value.saturating_sub(1) / FIRST;
        let at = (u64::BITS - steps.leading_zeros()) as usize;
        let count = self.counts.get(at).unwrap_or(&self.overflow);
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed);
        self.sum.store(sum.wrapping_add(value), Ordering::Relaxed);
    }

    /// Returns a snapshot. A concurrent [`record`](Self::record) may be included in part.
    pub fn counts(&self) -> Counts {
        let bound = |at: usize| FIRST << at;
        let counts = self.counts.iter().enumerate();
        Counts {
            buckets: counts.map(|(at, n)| (bound(at), n.load(Ordering::Relaxed))).collect(),
            overflow: self.overflow.load(Ordering::Relaxed),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl Counts {
    /// Returns the number of values.
    pub fn len(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum::<u64>() + self.overflow
    }

    /// Returns true if no value was counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the counts of another snapshot, which must have the same bounds.
    pub fn add(&mut self, other: &Counts) {
        if self.buckets.is_empty() {
            *self = other.clone();
            return;
        }
        for ((_, n), (_, more)) in self.buckets.iter_mut().zip(&other.buckets) {
            *n += more;
        }
        self.overflow += other.overflow;
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_counted_at_first_bound_not_below_it() {
        let small: Histogram<1, 7> = Histogram::default();
        for value in [0, 1, 2, 3, 4, 5, 64, 65, u64::MAX] {
            small.record(value);
        }
        let counts = small.counts();
        let expected = [(1, 2), (2, 1), (4, 2), (8, 1), (16, 0), (32, 0), (64, 1)];
        assert_eq!(counts.buckets, expected);
        assert_eq!((counts.overflow, counts.len()), (2, 9));
        let times = Durations::default();
        times.record(1000);
        times.record(1001);
        times.record(2001);
        assert_eq!(times.counts().buckets[..3], [(1000, 1), (2000, 1), (4000, 1)]);
        assert_eq!(times.counts().sum, 4002);
        assert_eq!(times.counts().buckets.last(), Some(&(1000 << 24, 0)));
    }

    #[test]
    fn added_counts_sum_buckets() {
        let (one, two): (Histogram<1, 2>, Histogram<1, 2>) = Default::default();
        one.record(2);
        two.record(2);
        two.record(3);
        let mut sum = Counts::default();
        assert!(sum.is_empty());
        sum.add(&one.counts());
        sum.add(&two.counts());
        assert_eq!(sum, Counts { buckets: vec![(1, 0), (2, 2)], overflow: 1, sum: 7 });
    }
}
