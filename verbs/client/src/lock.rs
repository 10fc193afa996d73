//! Locks whose holders do not panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. State behind these locks is consistent whenever a holder could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
