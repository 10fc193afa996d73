//! Allocator of ranges of the arena. Offsets and lengths are in bytes and multiples of the page size.

use std::collections::BTreeMap;
use std::ops::Range;

/// The free ranges. They are disjoint and not adjacent.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Start of each free range, mapped to its end.
    free: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Creates an allocator with one free range, `0..len`.
    pub(crate) fn new(len: u64) -> Ranges {
        Ranges { free: BTreeMap::from([(0, len)]) }
    }

    /// Allocates `len` bytes from the lowest free range that is long enough; `None` if there is none.
    pub(crate) fn take(&mut self, len: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.free.iter().find(|(start, end)| **end - **start >= len)?;
        self.free.remove(&start);
        let rest = start + len;
        if rest < end {
            self.free.insert(rest, end);
        }
        Some(start..rest)
    }

    /// Frees an allocated range and merges it with adjacent free ranges.
    pub(crate) fn put(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if let Some((&before, &touching)) = self.free.range(..start).next_back() {
            debug_assert!(touching <= start);
            if touching == start {
                start = before;
            }
        }
        if let Some(behind) = self.free.remove(&end) {
            end = behind;
        }
        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn taken_ranges_are_disjoint_and_merge_when_returned(
            steps in prop::collection::vec((any::<bool>(), 1..6u64, any::<prop::sample::Index>()), 1..80)
        ) {
            let mut ranges = Ranges::new(32);
            let mut taken: Vec<Range<u64>> = Vec::new();
            for (take, len, which) in steps {
                if take {
                    let used: u64 = taken.iter().map(|range| range.end - range.start).sum();
                    match ranges.take(len) {
                        Some(range) => {
                            prop_assert_eq!(range.end - range.start, len);
                            prop_assert!(range.end <= 32);
                            prop_assert!(taken.iter().all(|other| other.end <= range.start || range.end <= other.start));
                            taken.push(range);
                        }
                        None => prop_assert!(used > 0),
                    }
                } else if !taken.is_empty() {
                    ranges.put(taken.swap_remove(which.index(taken.len())));
                }
            }
            taken.into_iter().for_each(|range| ranges.put(range));
            prop_assert_eq!(ranges.free, BTreeMap::from([(0, 32)]));
        }
    }
}
