//! A bounded set of dirty byte ranges.

/// Maximum number of separate ranges. Beyond it, the two ranges with the smallest gap are merged. The bytes of the gap
/// are then written although they have not changed. This is harmless, because the region always has the intended
/// contents of the file.
pub(super) const MAX_RANGES: usize = 1024;

/// Sorted ranges `start..end` that neither overlap nor touch.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct Ranges {
    ranges: Vec<(u64, u64)>,
}

impl Ranges {
    /// Adds `start..start + len`.
    pub(super) fn insert(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = start.saturating_add(len);
        // The ranges that touch the new range are `first..last`.
        let first = self.ranges.partition_point(|&(_, e)| e < start);
        let last = self.ranges.partition_point(|&(s, _)| s <= end);
        if first == last {
            self.ranges.insert(first, (start, end));
            self.bound();
        } else {
            let merged = (start.min(self.ranges[first].0), end.max(self.ranges[last - 1].1));
            self.ranges.splice(first..last, [merged]);
        }
    }

    /// Returns true if no range is dirty.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Removes and returns all ranges, sorted, as (start, length).
    pub(super) fn take(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.ranges).into_iter().map(|(s, e)| (s, e - s)).collect()
    }

    fn bound(&mut self) {
        if self.ranges.len() <= MAX_RANGES {
            return;
        }
        let gaps = self.ranges.windows(2).map(|pair| pair[1].0 - pair[0].1).enumerate();
        if let Some((at, _)) = gaps.min_by_key(|&(_, gap)| gap) {
            self.ranges[at].1 = self.ranges[at + 1].1;
            self.ranges.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn inserted_ranges_form_their_union(inserts in prop::collection::vec((0u64..200, 0u64..20), 0..60)) {
            let mut ranges = Ranges::default();
            let mut naive = [false; 220];
            for (start, len) in inserts {
                ranges.insert(start, len);
                (start..start + len).for_each(|i| naive[i as usize] = true);
            }
            let taken = ranges.take();
            prop_assert!(taken.windows(2).all(|p| p[0].0 + p[0].1 < p[1].0));
            let mut got = [false; 220];
            for (start, len) in taken {
                (start..start + len).for_each(|i| got[i as usize] = true);
            }
            prop_assert_eq!(got, naive);
            prop_assert!(ranges.is_empty());
        }
    }

    #[test]
    fn excess_ranges_merge_across_smallest_gap() {
        let mut ranges = Ranges::default();
        (0..MAX_RANGES as u64).for_each(|i| ranges.insert(i * 100, 10));
        ranges.insert(10 + 5, 80); // gaps of 5 bytes on both sides
        let taken = ranges.take();
        assert_eq!(taken.len(), MAX_RANGES);
        assert_eq!(taken[0], (0, 95));
    }
}
