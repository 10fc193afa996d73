//! A nonblocking kernel TCP socket with the operations that MPA requires.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::deadline::Deadline;
use super::{ConnectFailure, KernelError};

/// MSS in bytes if the kernel does not report one (draft-culley-iwarp-mpa-03 §5.1.1).
const DEFAULT_MSS: usize = 1460;

/// A connected nonblocking TCP socket.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    peer: SocketAddr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadResult {
    /// Number of bytes read, at least 1.
    Bytes(usize),
    /// No bytes are available yet.
    WouldBlock,
    /// The peer has closed its sending direction.
    Eof,
}

impl Socket {
    /// Connects to the first address of `host` that answers. All attempts together take at most `timeout`, and end at
    /// `limit` at the latest. The remaining time is divided equally among the remaining addresses.
    pub(super) fn connect(
        host: &str,
        port: u16,
        timeout: Duration,
        limit: Option<Deadline>,
    ) -> Result<Self, KernelError> {
        let resolve = |source| KernelError::Resolve { host: host.to_owned(), source };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(resolve)?.collect();
        if addresses.is_empty() {
            return Err(resolve(io::ErrorKind::NotFound.into()));
        }
        let left = |limit: Deadline| limit.expires_at.saturating_duration_since(Instant::now());
        let timeout = limit.map_or(timeout, |limit| timeout.min(left(limit)));
        Self::connect_any(&addresses, timeout).map_err(|error| match limit {
            Some(limit) if left(limit).is_zero() => KernelError::Late {
                during: "waiting for the peer to answer the SYN",
                within: limit.timeout,
            },
            _ => error,
        })
    }

    fn connect_any(addresses: &[SocketAddr], timeout: Duration) -> Result<Self, KernelError> {
        let until = Instant::now() + timeout;
        let (mut left, mut failures) = (addresses.len(), Vec::new());
        for &address in addresses {
            let share = until.saturating_duration_since(Instant::now());
            let share = share / u32::try_from(left).unwrap_or(u32::MAX);
            left -= 1;
            // `connect_timeout` rejects a time-out of 0.
            let share = share.max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, share).and_then(Self::new) {
                Ok(socket) => return Ok(socket),
                Err(source) => failures.push(ConnectFailure { address, source }),
            }
        }
        Err(KernelError::Connect(failures))
    }

    /// Takes ownership of a connected socket, disables Nagle's algorithm and makes the socket nonblocking.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        // RFC 5044 §5.1: Nagle's algorithm would combine FPDUs of several messages.
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let peer = stream.peer_addr()?;
        Ok(Socket { stream, peer })
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the number of payload bytes of a full segment: the current MSS without TCP options.
    pub(super) fn mss(&self) -> usize {
        let mss = socket2::SockRef::from(&self.stream).tcp_mss();
        mss.ok().and_then(|mss| usize::try_from(mss).ok()).filter(|&m| m > 0).unwrap_or(DEFAULT_MSS)
    }

    /// Sets the congestion control algorithm by its name in the kernel, such as `cubic`.
    pub(super) fn set_congestion(&self, name: &str) -> io::Result<()> {
        socket2::SockRef::from(&self.stream).set_tcp_congestion(name.as_bytes())
    }

    /// Sends as many bytes as the kernel accepts, as a record that is not coalesced with the next record. Returns
    /// `None` if the send buffer is full.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | SendFlags::EOR;
        loop {
            match rustix::net::send(&self.stream, bytes, flags) {
                Ok(n) => return Ok(Some(n)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads available bytes into `out` without blocking.
    pub(super) fn receive(&mut self, out: &mut [u8]) -> io::Result<ReadResult> {
        loop {
            return match self.stream.read(out) {
                Ok(0) => Ok(ReadResult::Eof),
                Ok(n) => Ok(ReadResult::Bytes(n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    Ok(ReadResult::WouldBlock)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Closes our sending direction with a FIN. Also succeeds if the connection no longer exists.
    pub(super) fn shut_down_write(&self) -> io::Result<()> {
        match self.stream.shutdown(std::net::Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    /// Sets whether closing the socket resets the connection (RST) instead of closing it gracefully (FIN).
    pub(super) fn set_reset_on_close(&self, resets: bool) -> io::Result<()> {
        socket2::SockRef::from(&self.stream).set_linger(resets.then_some(Duration::ZERO))
    }

    /// Returns true once both directions are closed and the peer's TCP has acknowledged all data and our FIN.
    ///
    /// # Errors
    /// The connection was reset before.
    pub(super) fn is_closed(&self) -> io::Result<bool> {
        // A socket in state CLOSE has no peer address.
        let closed = match self.stream.peer_addr() {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => true,
            Err(error) => return Err(error),
        };
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(closed),
        }
    }

    /// Returns the descriptor and the events to wait for with [`poll_until`].
    pub(super) fn poll_fd(&self, interest: Interest) -> PollFd<'_> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read);
        flags.set(PollFlags::OUT, interest.write);
        PollFd::new(&self.stream, flags)
    }
}

/// Events that the owner of a socket waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    pub(super) read: bool,
    pub(super) write: bool,
}

/// Waits until one of `fds` is ready, at most until `until`.
pub(super) fn poll_until(fds: &mut [PollFd<'_>], until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn connect_tries_all_addresses_and_reports_each_failure() {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener();
        let closed = [listener(), listener()].map(|listener| listener.local_addr().unwrap());
        let [first, second] = closed;
        let time = Duration::from_secs(60);
        let there = open.local_addr().unwrap();
        let socket = Socket::connect_any(&[first, second, there], time).unwrap();
        assert_eq!(socket.peer(), there);
        let error = Socket::connect_any(&closed, time).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot connect to {first}: ")), "{error}");
        assert!(error.contains(&format!("; {second}: ")), "{error}");
    }
}
