//! Records which arena pages have replaced memory of the program, and which of them can be freed. Offsets and lengths
//! are in bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Arena ranges of a region, in the order of its addresses: start and end, bytes.
pub(crate) type Parts = Vec<(u64, u64)>;

/// Minimum number of bytes to be allocated after a reclaim until [`Replacements::is_reclaim_due`] requests the next.
const RECLAIM: u64 = 16 << 20;

/// Replaced pages of a session.
#[derive(Debug, Default)]
pub(crate) struct Replacements {
    /// Allocated ranges of the arena: start, mapped to end.
    taken: BTreeMap<u64, u64>,
    /// Arena ranges of each live region, by the key that [`hold`](Self::hold) returned.
    held: HashMap<u64, Parts>,
    next: u64,
    /// Bytes added to `taken` since the last reclaim, or since a reclaim was last due.
    recent: u64,
    /// Bytes in `taken` after the last reclaim.
    kept: u64,
}

impl Replacements {
    /// Returns true if no range of the arena is allocated.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Records an allocated range of the arena.
    pub(crate) fn add_taken(&mut self, range: &Range<u64>) {
        self.taken.insert(range.start, range.end);
        self.recent += range.end - range.start;
    }

    /// Records that a region uses these ranges. Returns the key for [`release`](Self::release).
    pub(crate) fn hold(&mut self, parts: Parts) -> u64 {
        let key = self.next;
        self.next += 1;
        self.held.insert(key, parts);
        key
    }

    /// Ends the use of ranges that [`hold`](Self::hold) has recorded.
    pub(crate) fn release(&mut self, key: u64) {
        self.held.remove(&key);
    }

    /// Returns true if at least 16 MiB, and at least a quarter of the bytes that the last reclaim kept, were allocated
    /// since the last reclaim. A result of true resets the count.
    pub(crate) fn is_reclaim_due(&mut self) -> bool {
        let is_due = self.recent >= RECLAIM.max(self.kept / 4);
        if is_due {
            self.recent = 0;
        }
        is_due
    }

    /// Removes and returns the pages that are neither mapped by the program nor used by a region. The page after each
    /// mapped or used range stays allocated: see the module `registration`.
    pub(crate) fn reclaim(&mut self, mapped: Parts, page: u64) -> Vec<Range<u64>> {
        let used = self.used(mapped, page);
        let (mut free, mut kept) = (Vec::new(), BTreeMap::new());
        for (&start, &end) in &self.taken {
            let mut at = start;
            let first = used.partition_point(|part| part.1 <= start);
            for part in used[first..].iter().take_while(|part| part.0 < end) {
                let (from, to) = (part.0.max(start), part.1.min(end));
                if at < from {
                    free.push(at..from);
                }
                kept.insert(from, to);
                at = to;
            }
            if at < end {
                free.push(at..end);
            }
        }
        self.kept = kept.iter().map(|(start, end)| end - start).sum();
        self.recent = 0;
        self.taken = kept;
        free
    }

    /// Returns the mapped ranges and those of live regions, each extended by the page after it, sorted and merged.
    fn used(&self, mapped: Parts, page: u64) -> Parts {
        let mut parts = mapped;
        parts.extend(self.held.values().flatten());
        parts.sort_unstable();
        let mut used = Parts::new();
        for (start, end) in parts {
            let end = end + page;
            match used.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => used.push((start, end)),
            }
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn reclaim_returns_pages_that_are_neither_mapped_nor_held() {
        let pages = |range: Range<u64>| range.start * PAGE..range.end * PAGE;
        let parts = |range: Range<u64>| (range.start * PAGE, range.end * PAGE);
        let mut replacements = Replacements::default();
        replacements.add_taken(&pages(0..10));
        replacements.add_taken(&pages(20..24));
        replacements.add_taken(&pages(30..40));
        let region = replacements.hold(vec![parts(2..4)]);
        let mapped = vec![parts(32..33), parts(33..34), parts(3..5), parts(60..70)];
        let free = replacements.reclaim(mapped.clone(), PAGE);
        assert_eq!(free, [pages(0..2), pages(6..10), pages(20..24), pages(30..32), pages(35..40)]);
        assert_eq!(replacements.reclaim(mapped.clone(), PAGE), []);
        replacements.release(region);
        assert_eq!(replacements.reclaim(mapped, PAGE), [pages(2..3)]);
        assert_eq!(replacements.reclaim(Parts::new(), PAGE), [pages(3..6), pages(32..35)]);
        assert!(replacements.is_empty());
    }

    #[test]
    fn reclaim_is_due_again_when_a_quarter_of_the_rest_was_taken() {
        let mut replacements = Replacements::default();
        replacements.add_taken(&(0..10 * RECLAIM));
        assert!(replacements.is_reclaim_due());
        replacements.reclaim(vec![(0, 8 * RECLAIM - PAGE)], PAGE);
        replacements.add_taken(&(20 * RECLAIM..22 * RECLAIM - PAGE));
        assert!(!replacements.is_reclaim_due());
        replacements.add_taken(&(30 * RECLAIM..30 * RECLAIM + PAGE));
        assert!(replacements.is_reclaim_due());
        assert!(!replacements.is_reclaim_due());
    }
}
