//! Wakes a thread that polls descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// An event descriptor that wakes a thread. Clones share it.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates a waker; the thread polls its descriptor.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> std::io::Result<Waker> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Waker(Arc::new(eventfd(0, flags)?)))
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        // The write fails only if the counter is at its maximum: then the thread is awake anyway.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Clears the pending wake-up, if any.
    pub fn reset(&self) {
        // EAGAIN: no wake-up was pending.
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    /// Returns the descriptor to poll, readable after a wake-up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
