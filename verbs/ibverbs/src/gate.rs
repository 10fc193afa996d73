//! A lock that one C function takes and another one releases.

use std::sync::{Condvar, Mutex, PoisonError};

use verbs_client::lock::lock;

/// A lock without a guard.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Waits until the gate is open, and closes it.
    pub(crate) fn enter(&self) {
        let mut is_closed = lock(&self.is_closed);
        while *is_closed {
            is_closed = self.opened.wait(is_closed).unwrap_or_else(PoisonError::into_inner);
        }
        *is_closed = true;
    }

    /// Opens the gate.
    pub(crate) fn leave(&self) {
        *lock(&self.is_closed) = false;
        self.opened.notify_one();
    }
}
