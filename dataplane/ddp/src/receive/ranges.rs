//! Received byte ranges of one message. The ranges show which bytes arrive twice, and when the message is complete.
//! Memory for many ranges is reserved in the worker's pool before it is used.

use std::collections::BTreeMap;

/// Maximum number of ranges of one message as long as no memory is reserved for them in the worker's pool.
const FREE_RANGES: u32 = 64;
/// Number of further ranges for each [`STEP_BYTES`] of reserved memory.
const STEP_RANGES: u32 = 64;
/// Maximum memory of one range, bytes: its share of a B-tree whose nodes are half full.
const RANGE_BYTES: u32 = 32;
/// Bytes reserved in the worker's pool for [`STEP_RANGES`] more ranges.
pub(crate) const STEP_BYTES: u32 = STEP_RANGES * RANGE_BYTES;

/// Received bytes of one message, as ranges that neither touch nor overlap. If the sender uses increasing offsets,
/// there is one range only.
#[derive(Debug)]
pub(crate) enum Ranges {
    /// At most one range, from the first value to the second; empty if they are equal.
    One(u32, u32),
    /// Ranges of a message that had several at some time. The message stays `Many` even if its ranges merge into one.
    Many(Box<RangeMap>),
}

#[derive(Debug)]
pub(crate) struct RangeMap {
    /// Maps the start of each range to its end.
    ranges: BTreeMap<u32, u32>,
    /// Maximum number of separate ranges.
    max_ranges: u32,
}

/// Reasons not to add a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InsertError {
    /// A part of the range was received before.
    Overlap,
    /// The bound on separate ranges is reached; [`grow`](Ranges::grow) raises it.
    TooMany,
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges::One(0, 0)
    }
}

impl Ranges {
    /// Returns the end of the bytes received without a hole from 0 on.
    #[inline]
    pub(crate) fn prefix(&self) -> u32 {
        match self {
            Ranges::One(0, end) => *end,
            Ranges::One(..) => 0,
            Ranges::Many(many) => many.ranges.get(&0).copied().unwrap_or(0),
        }
    }

    /// Returns true if exactly `0..end` was received.
    #[inline]
    pub(crate) fn is_exactly(&self, end: u32) -> bool {
        match self {
            Ranges::One(start, last) => (*start, *last) == (0, end),
            Ranges::Many(many) => many.ranges.len() == 1 && many.ranges.get(&0) == Some(&end),
        }
    }

    /// Returns the number of separate ranges.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        match self {
            Ranges::One(start, end) => usize::from(start != end),
            Ranges::Many(many) => many.ranges.len(),
        }
    }

    /// Adds the range `start..end`. An empty range has no effect.
    ///
    /// # Errors
    /// The range overlaps a received range, or would exceed the bound on separate ranges.
    #[inline]
    pub(crate) fn insert(&mut self, start: u32, end: u32) -> Result<(), InsertError> {
        match self {
            Ranges::One(_, last) if *last == start => {
                *last = end;
                Ok(())
            }
            _ => self.insert_disjoint(start, end),
        }
    }

    #[inline(never)]
    fn insert_disjoint(&mut self, start: u32, end: u32) -> Result<(), InsertError> {
        if start == end {
            return Ok(());
        }
        match self {
            &mut Ranges::One(a, b) if a == b => *self = Ranges::One(start, end),
            &mut Ranges::One(a, b) => {
                let ranges = BTreeMap::from([(a, b)]);
                let mut many = Box::new(RangeMap { ranges, max_ranges: FREE_RANGES });
                many.insert(start, end)?;
                *self = Ranges::Many(many);
            }
            Ranges::Many(many) => many.insert(start, end)?,
        }
        Ok(())
    }

    /// Makes room for [`STEP_RANGES`] more ranges; the caller has reserved [`STEP_BYTES`].
    pub(crate) fn grow(&mut self) {
        if let Ranges::Many(many) = self {
            many.max_ranges = many.max_ranges.saturating_add(STEP_RANGES);
        }
    }

    /// Returns the bytes reserved for [`grow`](Self::grow) so far.
    #[inline]
    pub(crate) fn reserved_bytes(&self) -> u64 {
        match self {
            Ranges::One(..) => 0,
            Ranges::Many(many) => u64::from(many.max_ranges - FREE_RANGES) * u64::from(RANGE_BYTES),
        }
    }
}

impl RangeMap {
    fn insert(&mut self, start: u32, end: u32) -> Result<(), InsertError> {
        let before = self.ranges.range(..=start).next_back().map(|(start, end)| (*start, *end));
        let after = self.ranges.range(start..).next().map(|(start, end)| (*start, *end));
        if before.is_some_and(|(_, its)| its > start) || after.is_some_and(|(its, _)| its < end) {
            return Err(InsertError::Overlap);
        }
        let before = before.filter(|(_, its)| *its == start).map(|(its, _)| its);
        let after = after.filter(|(its, _)| *its == end);
        if before.is_none() && after.is_none() && self.ranges.len() >= self.max_ranges as usize {
            return Err(InsertError::TooMany);
        }
        let end = after.map_or(end, |(_, its)| its);
        if let Some((its, _)) = after {
            self.ranges.remove(&its);
        }
        self.ranges.insert(before.unwrap_or(start), end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the ranges with a bitmap of received bytes.
        #[test]
        fn ranges_agree_with_a_bitmap(
            inserts in proptest::collection::vec((0u32..200, 0u32..20), 0..60),
        ) {
            let mut ranges = Ranges::default();
            let mut bitmap = [false; 256];
            for (start, len) in inserts {
                let slots = &mut bitmap[start as usize..(start + len) as usize];
                let free = slots.iter().all(|b| !b);
                let expected = if free { Ok(()) } else { Err(InsertError::Overlap) };
                prop_assert_eq!(ranges.insert(start, start + len), expected);
                if free {
                    slots.fill(true);
                }
                let prefix = bitmap.iter().take_while(|b| **b).count() as u32;
                prop_assert_eq!(ranges.prefix(), prefix);
                let count = bitmap.iter().filter(|b| **b).count() as u32;
                prop_assert_eq!(ranges.is_exactly(prefix), prefix == count);
                let runs = bitmap.windows(2).filter(|pair| pair[0] && !pair[1]).count();
                prop_assert_eq!(ranges.count(), runs);
            }
        }
    }

    #[test]
    fn ranges_beyond_free_ranges_are_reserved() {
        let mut ranges = Ranges::default();
        for i in 0..FREE_RANGES {
            assert_eq!((ranges.insert(2 * i, 2 * i + 1), ranges.reserved_bytes()), (Ok(()), 0));
        }
        assert_eq!(ranges.insert(1000, 1001), Err(InsertError::TooMany));
        assert_eq!(ranges.insert(0, 1), Err(InsertError::Overlap));
        assert_eq!(
            ranges.insert(1, 2),
            Ok(()),
            "merges with a range, so no further range is needed"
        );
        ranges.grow();
        assert_eq!(ranges.reserved_bytes(), u64::from(STEP_BYTES));
        for i in 0..=STEP_RANGES {
            assert_eq!(ranges.insert(1000 + 2 * i, 1001 + 2 * i), Ok(()));
        }
        assert_eq!(ranges.insert(2000, 2001), Err(InsertError::TooMany));
    }
}
