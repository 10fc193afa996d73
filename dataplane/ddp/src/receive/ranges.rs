//! Which bytes of one message have come.

use smallvec::SmallVec;

/// Most pieces of one message that may stand apart. A sender in increasing offset has one.
const MAX_RANGES: usize = 64;

/// Bytes of one message that have come, as sorted ranges that neither touch nor overlap.
#[derive(Debug, Default)]
pub(crate) struct Ranges(SmallVec<[(u32, u32); 1]>);

impl Ranges {
    /// End of what has come without a hole from 0 on.
    pub(crate) fn prefix(&self) -> u32 {
        self.0.first().filter(|r| r.0 == 0).map_or(0, |r| r.1)
    }

    /// True when exactly `0..end` has come.
    pub(crate) fn is(&self, end: u32) -> bool {
        self.0.len() <= 1 && self.prefix() == end && (end > 0 || self.0.is_empty())
    }

    /// Adds a range; false when it overlaps or would be one range too many.
    pub(crate) fn insert(&mut self, start: u32, end: u32) -> bool {
        if start == end {
            return true;
        }
        if let Some(last) = self.0.last_mut()
            && last.1 == start
        {
            last.1 = end;
            return true;
        }
        let at = self.0.partition_point(|r| r.1 < start);
        let touches_before = self.0.get(at).is_some_and(|r| r.1 == start);
        let after = if touches_before { at + 1 } else { at };
        if self.0.get(after).is_some_and(|r| r.0 < end) {
            return false;
        }
        let touches_after = self.0.get(after).is_some_and(|r| r.0 == end);
        match (touches_before, touches_after) {
            (true, true) => {
                self.0[at].1 = self.0[after].1;
                self.0.remove(after);
            }
            (true, false) => self.0[at].1 = end,
            (false, true) => self.0[after].0 = start,
            (false, false) if self.0.len() < MAX_RANGES => self.0.insert(at, (start, end)),
            (false, false) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a bitmap of bytes.
        #[test]
        fn ranges_agree_with_a_bitmap(
            inserts in proptest::collection::vec((0u32..200, 0u32..20), 0..60),
        ) {
            let mut ranges = Ranges::default();
            let mut bitmap = [false; 256];
            for (start, len) in inserts {
                let slots = &mut bitmap[start as usize..(start + len) as usize];
                let free = slots.iter().all(|b| !b);
                prop_assert_eq!(ranges.insert(start, start + len), free);
                if free {
                    slots.fill(true);
                }
                let prefix = bitmap.iter().take_while(|b| **b).count() as u32;
                prop_assert_eq!(ranges.prefix(), prefix);
                let count = bitmap.iter().filter(|b| **b).count() as u32;
                prop_assert_eq!(ranges.is(prefix), prefix == count);
            }
        }
    }

    #[test]
    fn ranges_are_bounded() {
        let mut ranges = Ranges::default();
        for i in 0..MAX_RANGES as u32 {
            assert!(ranges.insert(2 * i, 2 * i + 1));
        }
        assert!(!ranges.insert(1000, 1001));
        assert!(ranges.insert(1, 2));
    }
}
