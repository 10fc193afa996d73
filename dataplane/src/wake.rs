//! An event descriptor that wakes a thread: the control thread, a worker, or a thread that serves the host's kernel.
//!
//! A notification is written only if the reader has announced that it is about to sleep ([`Doorbell`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::Doorbell;
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// An eventfd, and the flag that determines whether [`notify`](Self::notify) must write to it.
#[derive(Debug)]
pub(crate) struct Wake {
    fd: OwnedFd,
    bell: Doorbell,
}

impl Wake {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Wake { fd, bell: Doorbell::new() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Arms the descriptor: [`notify`](Self::notify) writes to it from now on. The caller then checks its rings once
    /// more before it sleeps.
    pub(crate) fn arm(&self) {
        self.bell.arm();
    }

    #[cfg(test)]
    pub(crate) fn is_armed(&self) -> bool {
        self.bell.is_armed()
    }

    pub(crate) fn disarm(&self) {
        self.bell.disarm();
        let mut count = [0; 8];
        // The read usually fails with EAGAIN, because a port or the time-out ended the sleep.
        let _ = rustix::io::read(&self.fd, &mut count);
    }

    /// Wakes the reader if it has armed the descriptor. Called after each push to the reader's ring.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.bell.must_ring() {
            // The write fails only at a count of 2^64 - 2. The descriptor is then readable anyway.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until notified, at most for `limit` (`None`: without limit).
    pub(crate) fn wait(&self, limit: Option<&Timespec>) {
        let mut fds = [rustix::event::PollFd::new(&self.fd, rustix::event::PollFlags::IN)];
        // An interruption counts as a wake-up: the caller polls again.
        let _ = rustix::event::poll(&mut fds, limit);
    }
}
