//! Versions of the layout.
//!
//! When a session opens, the program offers the versions that it can use. The appliance chooses the newest version that
//! both sides support, and writes it into the header of each area ([`crate::session`]). Any change of a structure of
//! this crate is a new version.
//!
//! | version | change |
//! |---|---|
//! | 2 | shared receive queues ([`crate::ring::SharedConsumer`]); the structures of version 1 are the same |
//! | 3 | doorbells of 32768 queues instead of 16384. Versions 1 and 2 cannot be used any more |

/// Newest version of the layout that this crate supports.
pub const VERSION: u32 = 3;
/// Oldest version of the layout that this crate supports.
pub const OLDEST: u32 = 3;

/// The range of versions that one side supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest version.
    pub oldest: u32,
    /// The newest version, inclusive.
    pub newest: u32,
}

/// The versions that this crate supports.
pub const VERSIONS: Versions = Versions { oldest: OLDEST, newest: VERSION };

/// The two sides have no version in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no common version of the layout: versions {} to {} here, {} to {} there",
    .ours.oldest, .ours.newest, .theirs.oldest, .theirs.newest
)]
pub struct NoCommonVersion {
    /// Versions of this side.
    pub ours: Versions,
    /// Versions that the other side offered, possibly an empty range.
    pub theirs: Versions,
}

impl Versions {
    /// Returns the newest version that is also in `theirs`.
    pub fn negotiate(self, theirs: Versions) -> Result<u32, NoCommonVersion> {
        let newest = self.newest.min(theirs.newest);
        if newest >= self.oldest.max(theirs.oldest) {
            Ok(newest)
        } else {
            Err(NoCommonVersion { ours: self, theirs })
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn versions(oldest: u32, newest: u32) -> Versions {
        Versions { oldest, newest }
    }

    #[test]
    fn newest_common_version_is_chosen() {
        let ours = versions(2, 5);
        for (theirs, chosen) in [((1, 3), 3), ((5, 9), 5), ((3, 4), 4), ((0, u32::MAX), 5)] {
            assert_eq!(ours.negotiate(versions(theirs.0, theirs.1)), Ok(chosen));
        }
    }

    #[test]
    fn disjoint_and_empty_ranges_are_refused() {
        let ours = versions(2, 5);
        for theirs in [versions(0, 1), versions(6, 9), versions(4, 3), versions(u32::MAX, 0)] {
            assert_eq!(ours.negotiate(theirs), Err(NoCommonVersion { ours, theirs }));
        }
    }
}
