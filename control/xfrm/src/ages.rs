//! Ages of policies and SAs, and which of them a dump has listed.
//!
//! The kernel adds at the head of its lists and dumps from there: the newest first. What the monitor sends later is
//! newer than all of a dump.
//!
//! ```text
//!   age:  … older | … third, second, first of the dump | base | of the monitor since …
//! ```

/// More than a dump lists of what is kept.
const SPAN: u64 = 1 << 20;

/// Counts ages and dumps of one kind of entry.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    newest: u64,
    base: u64,
    listed: u64,
    dumps: u32,
}

/// How new an entry is, and the last dump in which, or after whose begin, it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    pub(crate) order: u64,
    dump: u32,
}

impl Ages {
    /// The kernel has begun to list: what comes now is not older than that.
    pub(crate) fn begin(&mut self) {
        self.newest += SPAN;
        self.base = self.newest;
        self.listed = 0;
        self.dumps += 1;
    }

    /// Of an entry that the dump lists next, or that the monitor sends.
    pub(crate) fn next(&mut self, of_dump: bool) -> Age {
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

    /// An entry that was changed, and is not newer for it.
    pub(crate) fn seen(&self, age: Age) -> Age {
        Age { dump: self.dumps, ..age }
    }

    /// At the end of a dump: it was listed, or sent by the monitor since.
    pub(crate) fn is_current(&self, age: Age) -> bool {
        age.dump == self.dumps
    }
}
