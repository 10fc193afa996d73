//! Arena pages that registrations of a session have put in the place of other memory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Arena ranges of a region, in the order of its addresses: start and end, bytes.
pub(crate) type Parts = Vec<(u64, u64)>;

/// Replaced pages of a session.
#[derive(Debug, Default)]
pub(crate) struct Replacements {
    /// Allocated ranges of the arena: start and end.
    taken: BTreeMap<u64, u64>,
    /// Arena ranges of each live region.
    held: HashMap<u64, Parts>,
    next: u64,
}

impl Replacements {
    /// Records an allocated range of the arena.
    pub(crate) fn add_taken(&mut self, range: &Range<u64>) {
        self.taken.insert(range.start, range.end);
    }

    /// Records that a region uses these ranges. Returns the key for [`release`](Self::release).
    pub(crate) fn hold(&mut self, parts: Parts) -> u64 {
        let key = self.next;
        self.next += 1;
        self.held.insert(key, parts);
        key
    }

    /// Ends the use by a region.
    pub(crate) fn release(&mut self, key: u64) {
        self.held.remove(&key);
    }
}
