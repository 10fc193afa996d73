//! The time limit of a whole transfer.

use std::time::{Duration, Instant};

/// A deadline for a whole transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// Time limit, for messages.
    pub(super) timeout: Duration,
    /// End of the time limit.
    pub(super) expires_at: Instant,
}
