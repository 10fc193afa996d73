//! Wake-ups of an attached program: a pair of connected sockets, one for the appliance and one for the program. A
//! wake-up is a message of 8 bytes.
//!
//! An eventfd is unsuitable: both sides would share one file description and its flags. A program that clears
//! `O_NONBLOCK` and fills the counter would block the control thread. A call on a socket is nonblocking with
//! `MSG_DONTWAIT`, which the other side cannot change.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair, sockopt};

/// Requested size of the send buffer, bytes. The system replaces it by its minimum, which has room for a few wake-ups.
const SEND_BUFFER: usize = 1;

/// The appliance's end.
#[derive(Debug)]
pub(super) struct WakeUp(OwnedFd);

impl WakeUp {
    /// Creates a pair: the appliance's end, and the program's.
    pub(super) fn pair() -> io::Result<(WakeUp, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        sockopt::set_socket_send_buffer_size(&ours, SEND_BUFFER)?;
        Ok((WakeUp(ours), theirs))
    }

    /// Makes the program's end readable. Never waits.
    pub(super) fn send(&self) {
        // A failed send needs no handling: with a full buffer the program's end is readable already, and a program that
        // has closed its end needs no wake-up.
        let _ = send(&self.0, &1u64.to_ne_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn wake_ups_never_wait_for_a_program_and_are_bounded() {
        let (ours, theirs) = WakeUp::pair().unwrap();
        // A program may clear O_NONBLOCK on its end and never read.
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        (0..1000).for_each(|_| ours.send());
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        let mut pending = 0;
        while rustix::io::read(&theirs, &mut [0; 8]) == Ok(8) {
            pending += 1;
        }
        assert!((1..=16).contains(&pending), "{pending} wake-ups");
        ours.send();
        assert_eq!(rustix::io::read(&theirs, &mut [0; 8]), Ok(8));
        assert_eq!(rustix::io::read(&theirs, &mut [0; 8]), Err(Errno::AGAIN));
        drop(theirs);
        ours.send();
    }
}
