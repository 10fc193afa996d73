//! A netlink socket (NETLINK_XFRM) for `xfrm::Mirror`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{SocketAddrNetlink, XFRM};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};
use zeroize::Zeroizing;

/// Largest datagram, bytes. The kernel's dumps have datagrams of up to 32 KiB.
const MAX_DATAGRAM: usize = 64 << 10;

/// Multicast groups (include/uapi/linux/xfrm.h `XFRMNLGRP`), as bits.
#[derive(Clone, Copy)]
pub(crate) struct Groups(pub(crate) u32);

impl Groups {
    /// Groups that the mirror reads: EXPIRE, SA, POLICY, MIGRATE.
    pub(crate) const MIRROR: Groups = Groups(1 << 1 | 1 << 2 | 1 << 3 | 1 << 6);
}

/// Outcome of a receive call.
pub(crate) enum Received {
    /// A datagram of the kernel. It may contain keys, so it is wiped when it is freed.
    Datagram(Zeroizing<Vec<u8>>),
    /// Messages were lost.
    Overrun,
    /// No datagram arrived within the time-out.
    Timeout,
}

/// A socket of NETLINK_XFRM.
pub(crate) struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// Opens a socket in these multicast groups. A receive call waits at most `timeout`, or without limit if `None`.
    pub(crate) fn open(groups: Groups, timeout: Option<Duration>) -> io::Result<Socket> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let fd = socket_with(family, kind, SocketFlags::CLOEXEC, Some(XFRM))?;
        bind(&fd, &SocketAddrNetlink::new(0, groups.0))?;
        set_socket_timeout(&fd, Timeout::Recv, timeout)?;
        Ok(Socket { fd })
    }

    pub(crate) fn send(&self, request: &[u8]) -> io::Result<()> {
        sendto(&self.fd, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    pub(crate) fn receive(&self) -> io::Result<Received> {
        let mut bytes = Zeroizing::new(vec![0; MAX_DATAGRAM]);
        loop {
            match recvfrom(self.as_fd(), &mut bytes[..], RecvFlags::TRUNC) {
                Ok((taken, whole, from)) => {
                    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                    // Other processes may also send to this socket; the kernel's port is 0.
                    if from.is_none_or(|from| from.pid() != 0) {
                        continue;
                    }
                    if whole > taken {
                        return Ok(Received::Overrun);
                    }
                    bytes.truncate(taken);
                    return Ok(Received::Datagram(bytes));
                }
                Err(Errno::NOBUFS) => return Ok(Received::Overrun),
                Err(Errno::AGAIN) => return Ok(Received::Timeout),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
