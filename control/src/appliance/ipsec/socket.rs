//! A netlink socket to the kernel's XFRM. Datagrams may contain keys, so the buffer is locked in memory and wiped after
//! each use.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{SocketAddrNetlink, XFRM};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};
use zeroize::Zeroize as _;

/// Maximum length of a datagram, bytes. Datagrams of a dump have up to 32 KiB.
const MAX_DATAGRAM: usize = 64 << 10;
/// Length of the socket's receive buffer in the kernel, bytes.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Multicast groups: expiries, SAs, policies, reports and migrations (`linux/xfrm.h`).
///
/// Joining them requires `CAP_NET_ADMIN` in the network namespace, and `/proc/net/netlink` lists the groups of each
/// socket. Therefore this set also identifies the socket of another appliance. Reports are included only to make the
/// set unique: IKE daemons join other sets.
const GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6;
/// List of netlink sockets in the thread's network namespace.
const NETLINK_SOCKETS: &str = "/proc/thread-self/net/netlink";

pub(super) enum ReceiveOutcome<'a> {
    /// A datagram of the kernel.
    Datagram(&'a [u8]),
    /// The kernel has dropped messages to this socket.
    Lost,
    /// No datagram is pending.
    Empty,
}

pub(super) struct Socket {
    fd: OwnedFd,
    buffer: Box<[u8]>,
    /// Unlocks the buffer before it is freed; `None` if locking it was refused.
    _locked: Option<region::LockGuard>,
}

impl Socket {
    /// Opens a socket that receives all changes from now on.
    ///
    /// # Errors
    /// Returns one sentence if the socket cannot be opened, or if another appliance in the network namespace has
    /// already opened one.
    pub(super) fn open() -> Result<Socket, String> {
        let failed = |error: Errno| {
            format!(
                "[ipsec] keys = \"kernel\": no netlink socket for XFRM (it takes CAP_NET_ADMIN): {error}"
            )
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(XFRM));
        let fd = fd.map_err(failed)?;
        // The second call needs no capability, but `rmem_max` limits the size that it sets.
        if set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER).is_err() {
            set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER).map_err(failed)?;
        }
        bind(&fd, &SocketAddrNetlink::new(0, GROUPS)).map_err(failed)?;
        // After bind(2): of two appliances that start at the same time, at least one finds the other's socket.
        refuse_second(rustix::fs::fstat(&fd).map_err(failed)?.st_ino)?;
        let buffer = vec![0; MAX_DATAGRAM].into_boxed_slice();
        let locked = region::lock(buffer.as_ptr(), buffer.len());
        if let Err(error) = &locked {
            tracing::warn!("ipsec: the buffer for the kernel's keys may be swapped out: {error}");
        }
        Ok(Socket { fd, buffer, _locked: locked.ok() })
    }

    /// Passes the next datagram to `take`, then wipes it.
    pub(super) fn receive<T>(
        &mut self,
        take: impl FnOnce(ReceiveOutcome<'_>) -> T,
    ) -> io::Result<T> {
        let (len, whole, from) = match recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(take(ReceiveOutcome::Empty)),
            Err(Errno::NOBUFS) => return Ok(take(ReceiveOutcome::Lost)),
            Err(error) => return Err(error.into()),
        };
        let kernel = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        let kernels = kernel.is_some_and(|from| from.pid() == 0);
        let taken = take(match whole > len || !kernels {
            // A truncated datagram is handled as lost. Datagrams from other processes are ignored.
            true if kernels => ReceiveOutcome::Lost,
            true => ReceiveOutcome::Datagram(&[]),
            false => ReceiveOutcome::Datagram(&self.buffer[..len]),
        });
        self.buffer[..len].zeroize();
        Ok(taken)
    }

    /// Sends a request. The kernel executes it before the call returns.
    pub(super) fn send(&self, request: &[u8]) -> io::Result<()> {
        sendto(&self.fd, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }
}

/// Refuses a second appliance in the network namespace: both would use the same sequence numbers of the kernel's SAs.
/// `own`: inode of this socket.
fn refuse_second(own: u64) -> Result<(), String> {
    let listed = std::fs::read_to_string(NETLINK_SOCKETS)
        .map_err(|error| format!("[ipsec] keys = \"kernel\": {NETLINK_SOCKETS}: {error}"))?;
    match listed.lines().filter_map(port_of_mark).find(|(_, inode)| *inode != own) {
        None => Ok(()),
        Some((port, _)) => Err(format!(
            "[ipsec] keys = \"kernel\": another appliance of this network namespace has the kernel's SAs, and an SA has one \
             sender (its netlink port, usually its process, is {port})"
        )),
    }
}

/// Returns netlink port and inode if this line of `NETLINK_SOCKETS` is an XFRM socket that joined exactly `GROUPS`.
/// Columns: sk, Eth (protocol), Pid, Groups (hexadecimal), Rmem, Wmem, Dump, Locks, Drops, Inode.
fn port_of_mark(line: &str) -> Option<(u32, u64)> {
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, protocol, port, groups, .., inode] = columns[..] else { return None };
    let is_xfrm = protocol.parse() == Ok(libc::NETLINK_XFRM);
    let marked = is_xfrm && u32::from_str_radix(groups, 16) == Ok(GROUPS);
    marked.then_some((port.parse().ok()?, inode.parse().ok()?))
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_groups_tell_appliance_from_ike_daemon() {
        let line = |protocol: i32, groups: u32| {
            let (columns, inode) = ("0        0        0     2        0       ", 34125);
            format!("000000006846c17d {protocol:<3} 1722       {groups:08x} {columns} {inode}   ")
        };
        assert_eq!(port_of_mark(&line(libc::NETLINK_XFRM, GROUPS)), Some((1722, 34125)));
        // Groups of an IKE daemon (acquire, expire, migrate, mapping), all groups, and no group.
        for groups in [0xc3, u32::MAX, 0] {
            assert_eq!(port_of_mark(&line(libc::NETLINK_XFRM, groups)), None, "{groups:x}");
        }
        assert_eq!(port_of_mark(&line(libc::NETLINK_ROUTE, GROUPS)), None);
        let head = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode";
        assert_eq!((port_of_mark(head), port_of_mark("")), (None, None));
    }
}
