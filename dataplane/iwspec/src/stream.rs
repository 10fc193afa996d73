//! A TCP connection: the kernel's, or one on the raw port.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::raw::stream::RawStream;
use crate::raw::tcp::Arrival;

/// EMSS assumed if the kernel does not report one, bytes.
const DEFAULT_EMSS: usize = 1460;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// A socket of the kernel.
    Kernel(TcpStream),
    /// A connection on the raw port.
    Raw(Box<RawStream>),
}

/// Result of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Bytes of any number of segments.
    Bytes(Vec<u8>),
    /// Payload of one segment, on the raw port.
    Segment(Vec<u8>),
    /// FIN.
    Fin,
    /// RST.
    Reset,
    /// The deadline has passed.
    Nothing,
    /// The raw port has failed, with the reason.
    Failed(String),
}

impl Stream {
    /// Returns the addresses of this end and of the peer.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn addresses(&self) -> std::io::Result<(SocketAddr, SocketAddr)> {
        match self {
            Stream::Kernel(stream) => Ok((stream.local_addr()?, stream.peer_addr()?)),
            Stream::Raw(stream) => Ok(stream.addresses()),
        }
    }

    /// Returns the longest payload of a segment to the peer, bytes.
    pub fn emss(&self) -> usize {
        match self {
            Stream::Kernel(stream) => {
                SockRef::from(stream).tcp_mss().map_or(DEFAULT_EMSS, |mss| mss as usize)
            }
            Stream::Raw(stream) => stream.emss(),
        }
    }

    /// Sends bytes; on the raw port as one segment, if they fit.
    ///
    /// # Errors
    /// The connection has ended, or the peer accepts no bytes until `deadline`. The raw port reports this in
    /// [`Self::receive`].
    pub fn send(&mut self, bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
        match self {
            Stream::Kernel(stream) => {
                let time = deadline.saturating_duration_since(Instant::now());
                stream.set_write_timeout(Some(time.max(Duration::from_millis(1))))?;
                stream.write_all(bytes)
            }
            Stream::Raw(stream) => {
                let position = stream.reserve(bytes.len());
                stream.send(position, bytes);
                Ok(())
            }
        }
    }

    /// Receives bytes, or the end of the stream, until `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> Input {
        match self {
            Stream::Kernel(stream) => read(stream, deadline),
            Stream::Raw(stream) => match stream.receive(deadline) {
                Ok(Some(Arrival::Payload(bytes))) => Input::Segment(bytes),
                Ok(Some(Arrival::Fin)) => Input::Fin,
                Ok(Some(Arrival::Reset)) => Input::Reset,
                Ok(None) => Input::Nothing,
                Err(why) => Input::Failed(why),
            },
        }
    }

    /// Half-closes the connection.
    pub fn finish(&mut self) {
        match self {
            // A failure means that the connection has ended already.
            Stream::Kernel(stream) => drop(stream.shutdown(Shutdown::Write)),
            Stream::Raw(stream) => stream.finish(),
        }
    }

    /// Resets the connection.
    pub fn reset(self) {
        match self {
            // Closing with a linger time of zero sends RST.
            Stream::Kernel(stream) => {
                drop(SockRef::from(&stream).set_linger(Some(Duration::ZERO)));
            }
            Stream::Raw(mut stream) => stream.reset(),
        }
    }
}

fn read(stream: &mut TcpStream, deadline: Instant) -> Input {
    let mut buffer = vec![0; 65536];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Input::Nothing;
        }
        return match stream.read(&mut buffer) {
            Ok(0) => Input::Fin,
            Ok(n) => {
                buffer.truncate(n);
                Input::Bytes(buffer)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Input::Nothing
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(_) => Input::Reset,
        };
    }
}
