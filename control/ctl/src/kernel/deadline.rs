//! The time limit of a whole transfer.

use std::time::{Duration, Instant};

/// A deadline for a whole transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// The time, for messages.
    pub(super) timeout: Duration,
    /// The deadline.
    pub(super) expires_at: Instant,
}
