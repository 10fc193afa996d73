//! The time limit of a whole transfer, from connecting to the confirmed close.

use std::time::{Duration, Instant};

/// Time limit of a transfer, and the time at which the limit expires.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// Time limit as requested; shown in error messages.
    pub(super) timeout: Duration,
    /// Time at which the limit expires.
    pub(super) expires_at: Instant,
}
