//! An event descriptor that wakes a thread: the control thread, a worker, or the worker that receives from a ring.
//!
//! It is written to only while its reader has said that it is about to sleep ([`Doorbell`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::Doorbell;
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// The descriptor and whether it must be written to.
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

    /// From now on `notify` writes. The caller looks at its rings once more before it sleeps.
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
        // Nothing to read is the usual case: it was a port or the time that ended the sleep.
        let _ = rustix::io::read(&self.fd, &mut count);
    }

    /// Something was pushed: wakes the reader if it sleeps.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.bell.must_ring() {
            // Cannot fail but for a count of 2^64 - 2, which is readable already.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until notified, or for as long as `limit` says.
    pub(crate) fn wait(&self, limit: Option<&Timespec>) {
        let mut fds = [rustix::event::PollFd::new(&self.fd, rustix::event::PollFlags::IN)];
        // An interruption is as good as a notification: the caller looks again.
        let _ = rustix::event::poll(&mut fds, limit);
    }
}
