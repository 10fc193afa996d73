//! A netlink socket to the kernel's XFRM. What it brings may hold keys: the buffer is kept out of swap and wiped after each use.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::io::Errno;
use rustix::net::netlink::{SocketAddrNetlink, XFRM};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};
use zeroize::Zeroize as _;

/// The name of who has the kernel's SAs.
const ALONE: &[u8] = b"ddpd-xfrm";
/// Bytes of a datagram at most: a dump's have up to 32 KiB.
const DATAGRAM: usize = 64 << 10;
/// Bytes that the kernel may keep for us.
const KEPT: usize = 4 << 20;
/// Groups: expiries, SAs, policies and migrations (`linux/xfrm.h`).
const GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// What came.
pub(super) enum Received<'a> {
    /// A datagram of the kernel.
    Datagram(&'a [u8]),
    /// The kernel has lost messages for us.
    Lost,
    /// Nothing more.
    Nothing,
}

/// The socket.
pub(super) struct Socket {
    fd: OwnedFd,
    buffer: Box<[u8]>,
    /// Held: two that use the kernel's SAs would use each sequence number twice.
    _alone: UnixDatagram,
    /// Dropped before the buffer is freed; `None` where the limit forbids it.
    _locked: Option<region::LockGuard>,
}

impl Socket {
    /// One that hears of changes from now on.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn open() -> Result<Socket, String> {
        let failed = |error: Errno| {
            format!(
                "[ipsec] keys = \"kernel\": no netlink socket for XFRM (it takes CAP_NET_ADMIN): {error}"
            )
        };
        // Names of this kind belong to the network namespace, as SAs do.
        let name = SocketAddr::from_abstract_name(ALONE).map_err(|error| error.to_string())?;
        let alone = UnixDatagram::bind_addr(&name).map_err(|error| {
            format!(
                "[ipsec] keys = \"kernel\": another appliance of this network namespace has the kernel's SAs, and an SA has \
                 one sender: {error}"
            )
        })?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(XFRM));
        let fd = fd.map_err(failed)?;
        // The second needs no capability, but has a bound.
        if set_socket_recv_buffer_size_force(&fd, KEPT).is_err() {
            set_socket_recv_buffer_size(&fd, KEPT).map_err(failed)?;
        }
        bind(&fd, &SocketAddrNetlink::new(0, GROUPS)).map_err(failed)?;
        let buffer = vec![0; DATAGRAM].into_boxed_slice();
        let locked = region::lock(buffer.as_ptr(), buffer.len());
        if let Err(error) = &locked {
            tracing::warn!("ipsec: the buffer for the kernel's keys may be swapped out: {error}");
        }
        Ok(Socket { fd, buffer, _alone: alone, _locked: locked.ok() })
    }

    /// The next datagram is given to `take`, and wiped.
    pub(super) fn receive<T>(&mut self, take: impl FnOnce(Received<'_>) -> T) -> io::Result<T> {
        let (len, whole, from) = match recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(take(Received::Nothing)),
            Err(Errno::NOBUFS) => return Ok(take(Received::Lost)),
            Err(error) => return Err(error.into()),
        };
        let kernel = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        let kernels = kernel.is_some_and(|from| from.pid() == 0);
        let taken = take(match whole > len || !kernels {
            // A datagram that was cut off, as if it had been lost; other processes have nothing to say.
            true if kernels => Received::Lost,
            true => Received::Datagram(&[]),
            false => Received::Datagram(&self.buffer[..len]),
        });
        self.buffer[..len].zeroize();
        Ok(taken)
    }

    /// Sends a request to the kernel, which carries it out at once.
    pub(super) fn send(&self, request: &[u8]) -> io::Result<()> {
        sendto(&self.fd, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
