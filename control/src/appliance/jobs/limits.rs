//! How long operations may take in all, where their requests say so.

use std::time::{Duration, Instant};

use crate::appliance::pending::Task;

/// Operations with a bound that are not at their end.
#[derive(Default)]
pub(super) struct Limits(Vec<Limit>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    at: Instant,
    pub(super) within: Duration,
    pub(super) task: Task,
}

impl Limits {
    /// Bounds an operation. Those that have ended, of which `goes_on` is false, are forgotten.
    pub(super) fn add(
        &mut self,
        task: Task,
        within: Option<Duration>,
        now: Instant,
        goes_on: impl Fn(Task) -> bool,
    ) {
        self.0.retain(|limit| goes_on(limit.task));
        let Some(within) = within else { return };
        self.0.push(Limit { at: now + within, within, task });
    }

    /// When the next one is over.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|limit| limit.at).min()
    }

    /// Takes those that are over.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<Limit> {
        self.0.extract_if(.., |limit| limit.at <= now).collect()
    }
}
