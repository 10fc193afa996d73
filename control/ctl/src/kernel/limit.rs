//! The time limit of a whole transfer.

use std::time::{Duration, Instant};

/// A deadline for a whole transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// The time, for messages.
    pub(super) within: Duration,
    /// The deadline.
    pub(super) at: Instant,
}
