//! An attacker with a stream of its own over the kernel's TCP: MPA and what is above it are written here.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, Socket, Type};
use wire::mpa::{CRC_LEN, FRAME_HEADER_LEN, LENGTH_LEN, fpdu_len};

use crate::bed;
use crate::field::Field;
use crate::ulp;

/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same over a cable that loses frames: the kernel sends a SYN at 0, 1, 3 and 7 s.
const PATIENCE_WITH_LOSSES: Duration = Duration::from_secs(10);
/// An answer that is longer is not read on.
const MOST: usize = 1 << 20;

/// A stream, MPA started or not.
pub(crate) struct Attacker {
    stream: TcpStream,
    /// Bytes received and not used yet.
    received: Vec<u8>,
    /// The ULP is bare DDP.
    bare: bool,
    /// Longest time for an answer.
    patience: Duration,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A last message or Terminate with this error, then the end.
    Error(ulp::Error),
    /// A FIN or a reset without one.
    Closed,
    /// It did not end.
    Open,
}

impl Attacker {
    /// Connects from the attackers' address of the kernel.
    pub(crate) fn connect(port: u16) -> Result<Attacker> {
        let bare = ![bed::PREY_VERBS, bed::PREY_SINK].contains(&port);
        Attacker::connect_to(port, bare, PATIENCE, |_| {})
    }

    fn connect_to(
        port: u16,
        bare: bool,
        patience: Duration,
        bound: impl FnOnce(SocketAddr),
    ) -> Result<Attacker> {
        let to = bed::target(port);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((bed::SOCKETS_V4, 0)).into())?;
        bound(socket.local_addr()?.as_socket().context("no address")?);
        socket.connect_timeout(&to.into(), patience).with_context(|| format!("connect to {to}"))?;
        let stream: TcpStream = socket.into();
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Attacker { stream, received: Vec::new(), bare, patience })
    }

    /// Connects and starts MPA: revision 1 for bare DDP, 2 for RDMAP.
    pub(crate) fn start(port: u16) -> Result<Attacker> {
        Attacker::connect(port)?.started()
    }

    /// The same to any listener, over a cable that loses frames; `bound` gets the socket's address first.
    pub(crate) fn start_at(
        port: u16,
        bare: bool,
        bound: impl FnOnce(SocketAddr),
    ) -> Result<Attacker> {
        Attacker::connect_to(port, bare, PATIENCE_WITH_LOSSES, bound)?.started()
    }

    fn started(mut self) -> Result<Attacker> {
        let request = if self.bare { ulp::request(1, false, true) } else { ulp::enhanced(8, 8) };
        self.send(&request)?;
        let reply = self.reply()?.context("no MPA Reply")?;
        ensure!(reply[16] & 0x20 == 0, "the stream is refused");
        Ok(self)
    }

    /// Writes bytes; what the target has closed already is no error.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        // It may have closed: what came of it is read.
        let _ = self.stream.write_all(bytes);
        Ok(())
    }

    /// Sends a DDP segment in an FPDU.
    pub(crate) fn segment(&mut self, segment: &[u8]) -> Result<()> {
        self.send(&ulp::fpdu(segment))
    }

    /// The MPA Reply with its private data, `None` if the stream ends without.
    pub(crate) fn reply(&mut self) -> Result<Option<Vec<u8>>> {
        let until = Instant::now() + self.patience;
        loop {
            if let Some(head) = self.received.first_chunk::<FRAME_HEADER_LEN>() {
                let len = FRAME_HEADER_LEN + usize::from(u16::from_be_bytes([head[18], head[19]]));
                if self.received.len() >= len {
                    let rest = self.received.split_off(len);
                    return Ok(Some(std::mem::replace(&mut self.received, rest)));
                }
            }
            if !self.read(until)? {
                return Ok(None);
            }
        }
    }

    /// The next segment from the target, `None` if the stream ends without.
    pub(crate) fn next(&mut self, until: Instant) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(len) = self.received.first_chunk::<LENGTH_LEN>() {
                let len = usize::from(u16::from_be_bytes(*len));
                let whole = fpdu_len(len);
                debug_assert!(whole >= LENGTH_LEN + len + CRC_LEN);
                if self.received.len() >= whole {
                    let rest = self.received.split_off(whole);
                    let bytes = std::mem::replace(&mut self.received, rest);
                    return Ok(Some(bytes[LENGTH_LEN..LENGTH_LEN + len].to_vec()));
                }
            }
            if !self.read(until)? {
                return Ok(None);
            }
        }
    }

    /// Reads until the stream ends, at most two seconds.
    pub(crate) fn end(&mut self) -> Result<End> {
        self.end_within(PATIENCE)
    }

    /// Reads until the stream ends, at most `time`.
    pub(crate) fn end_within(&mut self, time: Duration) -> Result<End> {
        let until = Instant::now() + time;
        let mut error = None;
        while let Some(segment) = self.next(until)? {
            error = error.or(ulp::error_of(&segment, self.bare));
        }
        Ok(match error {
            Some(error) => End::Error(error),
            None if Instant::now() >= until => End::Open,
            None => End::Closed,
        })
    }

    /// Reads more; false at the end of the stream or of the time.
    fn read(&mut self, until: Instant) -> Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || self.received.len() > MOST {
            return Ok(false);
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut room = [0; 16 << 10];
        match self.stream.read(&mut room) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.received.extend_from_slice(&room[..n]);
                Ok(true)
            }
            // A reset, or the end of the time: both are no more bytes.
            Err(_) => Ok(false),
        }
    }
}

/// What an attacker does on a stream, and the error that must end it.
pub(crate) struct Case<'a> {
    pub(crate) what: &'a str,
    pub(crate) segments: Vec<Vec<u8>>,
    pub(crate) error: ulp::Error,
}

/// Each on a stream of its own to `port`.
pub(crate) fn cases(field: &mut Field<'_>, port: u16, cases: &[Case<'_>]) -> Result<()> {
    for Case { what, segments, error } in cases {
        field.attempts += 1;
        let mut attacker = Attacker::start(port).with_context(|| (*what).to_owned())?;
        for segment in segments {
            attacker.segment(segment)?;
        }
        let end = attacker.end()?;
        if end != End::Error(*error) {
            field.find(format!("{what}: {end:x?} instead of {error:x?}"));
        }
    }
    Ok(())
}
