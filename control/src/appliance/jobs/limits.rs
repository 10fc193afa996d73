//! Time limits of entire operations, for requests that set a limit.

use std::time::{Duration, Instant};

use crate::appliance::pending::Task;

/// Time limits of operations in progress.
#[derive(Default)]
pub(super) struct Limits(Vec<Limit>);

/// The time limit of one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    expires_at: Instant,
    pub(super) time_limit: Duration,
    pub(super) task: Task,
}

impl Limits {
    /// Adds the time limit of an operation, if it has one. First removes the limits of operations for which
    /// `is_pending` is false.
    pub(super) fn add(
        &mut self,
        task: Task,
        within: Option<Duration>,
        now: Instant,
        is_pending: impl Fn(Task) -> bool,
    ) {
        self.0.retain(|limit| is_pending(limit.task));
        let Some(within) = within else { return };
        self.0.push(Limit { expires_at: now + within, time_limit: within, task });
    }

    /// Returns the time at which the next limit expires. `None` without limits.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|limit| limit.expires_at).min()
    }

    /// Removes and returns the expired limits.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<Limit> {
        self.0.extract_if(.., |limit| limit.expires_at <= now).collect()
    }
}
