//! Ages of policies and SAs, and the last dump that listed each of them.
//!
//! The kernel adds entries at the head of its lists and dumps from the head: the newest first. The monitor is the
//! kernel's multicast of changes. Entries that the monitor sends after a dump has begun are newer than all entries of
//! the dump.
//!
//! ```text
//!   order number | ... base - SPAN | base - SPAN + 1 ...    base - 2   base - 1  | base | base + 1 ...
//!   entry        | older entries   | of the dump:    ...    second     first     | none | sent by the monitor since
//!                |                 |                                             |      | the dump began, oldest first
//! ```

/// Order numbers reserved for one dump. At most `SPAN - 1` entries of a dump have different numbers.
const SPAN: u64 = 1 << 20;

/// Assigns order numbers to entries of one kind (policies or SAs): newer entries have larger numbers. Also counts
/// dumps.
#[derive(Debug, Default)]
pub(crate) struct AgeCounter {
    /// Order number of the newest entry that the monitor has sent; `base` if none since the dump began.
    newest: u64,
    /// End of the order numbers of the current dump, which are `base - SPAN + 1` to `base - 1`.
    base: u64,
    /// Number of new entries in the current dump, at most `SPAN - 1`.
    listed: u64,
    /// Number of dumps begun.
    dumps: u32,
}

/// Age of an entry, and the number of dumps begun when it was last seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    /// Order number: newer entries have larger numbers.
    pub(crate) order: u64,
    /// Number of dumps begun when the entry was last seen.
    dump: u32,
}

impl AgeCounter {
    /// Begins a dump. Entries that the monitor sends later are newer than all entries of the dump.
    pub(crate) fn begin_dump(&mut self) {
        self.newest += SPAN;
        self.base = self.newest;
        self.listed = 0;
        self.dumps += 1;
    }

    /// Returns the age of an entry seen for the first time. With `of_dump`, the dump lists the entry next, so that it
    /// is older than the entries listed before. Otherwise the monitor sent it, and it is the newest entry.
    pub(crate) fn next_age(&mut self, of_dump: bool) -> Age {
        let order = match of_dump {
            true => {
                self.listed = (self.listed + 1).min(SPAN - 1);
                self.base.saturating_sub(self.listed)
            }
            false => {
                self.newest += 1;
                self.newest
            }
        };
        Age { order, dump: self.dumps }
    }

    /// Returns the age of a changed entry: same order number, seen in the current dump.
    pub(crate) fn mark_seen(&self, age: Age) -> Age {
        Age { dump: self.dumps, ..age }
    }

    /// Returns true if the dump has listed the entry, or the monitor has sent it since the dump began. Must be called
    /// at the end of a dump.
    pub(crate) fn is_current(&self, age: Age) -> bool {
        age.dump == self.dumps
    }
}
