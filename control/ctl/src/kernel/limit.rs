//! The time of a whole transfer.

use std::time::{Duration, Instant};

/// A bound on all of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// The time, for messages.
    pub(super) within: Duration,
    /// Its end.
    pub(super) at: Instant,
}
