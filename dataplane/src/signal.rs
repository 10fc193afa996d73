//! Wake-ups between a worker and a local program: a pair of connected sockets, one for the worker and one for the
//! program.
//!
//! An eventfd is unsuitable, because the worker and the program would share one file description and its flags. A
//! program that clears `O_NONBLOCK` and drains or fills the counter would block the worker. With sockets, each call of
//! the worker passes `MSG_DONTWAIT`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};

/// Maximum number of bytes read by one [`Signal::drain`]. A program that sends more only keeps the worker awake.
const MAX_DRAINED: usize = 512;

/// This process's end of a socket pair.
#[derive(Debug)]
pub struct Signal(OwnedFd);

impl Signal {
    /// Creates a pair: this process's end, and the end that is passed to the program.
    ///
    /// # Errors
    /// The sockets cannot be created.
    pub fn pair() -> Result<(Signal, OwnedFd), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Signal(ours), theirs))
    }

    /// Makes the program's end readable. Never waits.
    pub fn notify(&self) {
        // A failed send needs no handling. If the buffer is full, the program's end is readable already. A program that
        // has closed its end needs no notification.
        let _ = rustix::net::send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Consumes the program's wake-ups. Never waits. Returns false once the program has closed its end.
    pub fn drain(&self) -> bool {
        let mut bytes = [0; MAX_DRAINED];
        match rustix::net::recv(&self.0, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => false,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_never_wait_and_report_the_end() {
        let (ours, theirs) = Signal::pair().unwrap();
        assert!(ours.drain(), "nothing was sent");
        // A program may clear O_NONBLOCK on its end and never read. The test sends more signals than the buffer
        // holds.
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        (0..100_000).for_each(|_| ours.notify());
        assert_eq!(rustix::net::send(&theirs, &[0; 1000], SendFlags::empty()), Ok(1000));
        assert!(ours.drain() && ours.drain() && ours.drain(), "512 bytes each");
        drop(theirs);
        ours.notify();
        assert!(!ours.drain());
    }
}
