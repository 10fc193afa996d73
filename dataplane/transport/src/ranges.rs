//! Disjoint ranges of sequence space, sorted. The receiver keeps the ranges received out of order, the sender the
//! ranges that the peer SACKed. A range stores its two ends only, no data.
//!
//! ```text
//!   in order -->|        |#####|    |##|  |########|
//!            RCV.NXT      range     range  range
//! ```

use crate::seq::ExtSeq;

/// The half-open range `start..end`; never empty inside [`Ranges`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First number.
    pub start: ExtSeq,
    /// Number after the last.
    pub end: ExtSeq,
}

impl Range {
    /// Returns the count of numbers in the range.
    #[allow(clippy::len_without_is_empty)] // never empty inside `Ranges`
    pub fn len(self) -> u64 {
        self.end.since(self.start)
    }
}

/// Sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    ranges: Vec<Range>,
    /// Sum of the lengths of all ranges, in sequence numbers.
    bytes: u64,
}

impl Ranges {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Ranges { ranges: Vec::new(), bytes: 0 }
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns true if there is no range.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the sum of the lengths of all ranges, in sequence numbers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Iterates from the lowest range to the highest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range> + '_ {
        self.ranges.iter().copied()
    }

    /// Returns the end of the highest range.
    pub fn highest(&self) -> Option<ExtSeq> {
        self.ranges.last().map(|r| r.end)
    }

    /// Returns the range that covers `at`.
    pub fn containing(&self, at: ExtSeq) -> Option<Range> {
        let i = self.ranges.partition_point(|r| r.end <= at);
        self.ranges.get(i).copied().filter(|r| r.start <= at)
    }

    /// Returns the first part of `start..end` that no range covers.
    pub fn first_gap(&self, start: ExtSeq, end: ExtSeq) -> Option<Range> {
        let mut i = self.ranges.partition_point(|r| r.end <= start);
        let mut at = start;
        if let Some(r) = self.ranges.get(i)
            && r.start <= at
        {
            at = r.end;
            i += 1;
        }
        let until = self.ranges.get(i).map_or(end, |r| r.start.min(end));
        (at < until).then_some(Range { start: at, end: until })
    }

    /// Returns the first part of `start..end` that a range covers.
    pub fn first_overlap(&self, start: ExtSeq, end: ExtSeq) -> Option<Range> {
        let i = self.ranges.partition_point(|r| r.end <= start);
        let r = self.ranges.get(i)?;
        let part = Range { start: r.start.max(start), end: r.end.min(end) };
        (part.start < part.end).then_some(part)
    }

    /// Returns true if `range` touches or overlaps a range of the set, so that its insertion adds no entry.
    pub fn touches(&self, range: Range) -> bool {
        let i = self.ranges.partition_point(|r| r.end < range.start);
        self.ranges.get(i).is_some_and(|r| r.start <= range.end)
    }

    /// Adds `range` and returns the range that now contains it.
    pub fn insert(&mut self, range: Range) -> Range {
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let past = first + self.ranges[first..].partition_point(|r| r.start <= range.end);
        if first == past {
            self.ranges.insert(first, range);
            self.bytes += range.len();
            return range;
        }
        let merged = Range {
            start: range.start.min(self.ranges[first].start),
            end: range.end.max(self.ranges[past - 1].end),
        };
        let before: u64 = self.ranges[first..past].iter().map(|r| r.len()).sum();
        self.ranges[first] = merged;
        self.ranges.drain(first + 1..past);
        self.bytes = self.bytes - before + merged.len();
        merged
    }

    /// Returns true if one range covers all of `range`.
    pub fn covers(&self, range: Range) -> bool {
        self.containing(range.start).is_some_and(|r| range.end <= r.end)
    }

    /// Removes `range` if one range [covers](Self::covers) all of it and at most `most` ranges would remain. Returns
    /// true if `range` was removed.
    pub fn remove(&mut self, range: Range, most: usize) -> bool {
        let i = self.ranges.partition_point(|r| r.end <= range.start);
        let Some(whole) = self.ranges.get(i).copied() else { return false };
        if range.start < whole.start || whole.end < range.end || range.end <= range.start {
            return false;
        }
        let before = Range { start: whole.start, end: range.start };
        let after = Range { start: range.end, end: whole.end };
        let left = [before, after].into_iter().filter(|r| r.start < r.end);
        if self.ranges.len() - 1 + left.clone().count() > most {
            return false;
        }
        self.bytes -= range.len();
        self.ranges.splice(i..=i, left);
        true
    }

    /// Removes all numbers below `at`.
    pub fn remove_below(&mut self, at: ExtSeq) {
        let gone = self.ranges.partition_point(|r| r.end <= at);
        if gone > 0 {
            self.bytes -= self.ranges.drain(..gone).map(|r| r.len()).sum::<u64>();
        }
        if let Some(r) = self.ranges.first_mut()
            && r.start < at
        {
            self.bytes -= at.since(r.start);
            r.start = at;
        }
    }

    /// Advances the contiguous part to `at` or, if a range contains `at`, to the end of that range. Removes all numbers
    /// below. Returns the new end of the contiguous part.
    pub fn advance(&mut self, at: ExtSeq) -> ExtSeq {
        let end = self.containing(at).map_or(at, |r| r.end);
        self.remove_below(end);
        end
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::SeqNumber;
    use proptest::prelude::*;

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(u32::MAX - 20)).plus(n)
    }

    fn range(start: u64, end: u64) -> Range {
        Range { start: at(start), end: at(end) }
    }

    proptest! {
        // Compares the ranges with a model, an array of flags: coverage, gaps, merging, byte count, order and advance.
        #[test]
        fn ranges_behave_like_a_set_of_bytes(
            inserts in prop::collection::vec((0u64..120, 1u64..20), 1..40),
            probe in 0u64..140,
            len in 1u64..30,
        ) {
            let mut ranges = Ranges::default();
            let mut set = [false; 160];
            for (start, n) in inserts {
                let touched = ranges.touches(range(start, start + n));
                let before = ranges.len();
                let merged = ranges.insert(range(start, start + n));
                prop_assert!(merged.start <= at(start) && merged.end >= at(start + n));
                prop_assert_eq!(touched, ranges.len() <= before);
                set[start as usize..(start + n) as usize].fill(true);
            }
            prop_assert_eq!(ranges.bytes(), set.iter().filter(|b| **b).count() as u64);
            let list: Vec<_> = ranges.iter().collect();
            prop_assert!(list.windows(2).all(|w| w[0].end < w[1].start));
            prop_assert_eq!(ranges.containing(at(probe)).is_some(), set[probe as usize]);
            let gap = (probe..probe + len).find(|i| !set[*i as usize % 160] || *i >= 160);
            match (ranges.first_gap(at(probe), at((probe + len).min(160))), gap) {
                (Some(found), Some(gap)) => {
                    prop_assert_eq!(found.start, at(gap));
                    let end = (gap..(probe + len).min(160)).find(|i| set[*i as usize]);
                    prop_assert_eq!(found.end, at(end.unwrap_or((probe + len).min(160))));
                }
                (None, gap) => prop_assert!(gap.is_none_or(|g| g >= 160)),
                (found, None) => prop_assert!(false, "{:?}", found),
            }
            let end = (probe + len).min(160);
            let covered = (probe..end).find(|i| set[*i as usize]).map(|first| {
                let past = (first..end).find(|i| !set[*i as usize]).unwrap_or(end);
                range(first, past)
            });
            prop_assert_eq!(ranges.first_overlap(at(probe), at(end)), covered);
            prop_assert_eq!(ranges.highest(), set.iter().rposition(|b| *b).map(|i| at(i as u64 + 1)));
            prop_assert!(!ranges.is_empty() && Ranges::new().is_empty());
            let mut without = ranges.clone();
            let whole = set[probe as usize..end as usize].iter().all(|b| *b);
            prop_assert_eq!(ranges.covers(range(probe, end)), whole);
            prop_assert_eq!(without.remove(range(probe, end), usize::MAX), whole);
            let mut bounded = ranges.clone();
            let fits = without.len() <= ranges.len();
            prop_assert_eq!(bounded.remove(range(probe, end), ranges.len()), whole && fits);
            prop_assert_eq!(bounded.bytes() == ranges.bytes(), !(whole && fits));
            for i in 0..160 {
                let there = set[i as usize] && !(whole && (probe..end).contains(&i));
                prop_assert_eq!(without.containing(at(i)).is_some(), there);
            }
            let taken = if whole { end - probe } else { 0 };
            prop_assert_eq!(without.bytes() + taken, ranges.bytes());
            let complete = (probe..160).find(|i| !set[*i as usize]).unwrap_or(160);
            prop_assert_eq!(ranges.advance(at(probe)), at(complete));
            let left = set[complete as usize..].iter().filter(|b| **b).count() as u64;
            prop_assert_eq!(ranges.bytes(), left);
        }
    }
}
