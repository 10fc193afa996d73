//! An attacker's stream over the kernel's TCP. This program builds and parses the MPA, DDP and RDMAP bytes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, Socket, Type};
use wire::mpa::{CRC_LEN, FRAME_HEADER_LEN, LENGTH_LEN, fpdu_len};

use crate::attack_context::AttackContext;
use crate::segments;
use crate::testbed;

/// Maximum wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait for an answer over the lossy cable: the kernel sends a SYN at 0, 1, 3 and 7 s.
const LOSSY_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of received bytes that are not parsed yet.
const MAX_UNPARSED: usize = 1 << 20;

/// A TCP stream of an attacker, before or after MPA start-up.
pub(crate) struct Attacker {
    stream: TcpStream,
    /// Received bytes that are not parsed yet.
    received: Vec<u8>,
    /// True for bare DDP, false for RDMAP.
    bare: bool,
    /// Maximum wait for an answer.
    timeout: Duration,
}

/// End of a stream, as observed by the attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// Bare DDP's last message or a Terminate, with this error.
    Error(segments::ErrorCode),
    /// FIN or RST without an error message.
    Closed,
    /// The stream is still open.
    Open,
}

impl Attacker {
    /// Connects to a listener of the target from the kernel's address [`testbed::SOCKETS_V4`].
    pub(crate) fn connect(port: u16) -> Result<Attacker> {
        let bare = ![testbed::VICTIM_VERBS_PORT, testbed::VICTIM_SINK_PORT].contains(&port);
        Attacker::connect_to(port, bare, ANSWER_TIMEOUT, |_| {})
    }

    fn connect_to(
        port: u16,
        bare: bool,
        timeout: Duration,
        bound: impl FnOnce(SocketAddr),
    ) -> Result<Attacker> {
        let to = testbed::target_address(port);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((testbed::SOCKETS_V4, 0)).into())?;
        bound(socket.local_addr()?.as_socket().context("no address")?);
        socket.connect_timeout(&to.into(), timeout).with_context(|| format!("connect to {to}"))?;
        let stream: TcpStream = socket.into();
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        Ok(Attacker { stream, received: Vec::new(), bare, timeout })
    }

    /// Connects and completes the MPA start-up: revision 1 for bare DDP, 2 for RDMAP.
    pub(crate) fn start(port: u16) -> Result<Attacker> {
        Attacker::connect(port)?.finish_startup()
    }

    /// Connects to a listener over the lossy cable and completes the MPA start-up. Calls `bound` with the socket's
    /// local address before the connect.
    pub(crate) fn start_with_address_callback(
        port: u16,
        bare: bool,
        bound: impl FnOnce(SocketAddr),
    ) -> Result<Attacker> {
        Attacker::connect_to(port, bare, LOSSY_ANSWER_TIMEOUT, bound)?.finish_startup()
    }

    fn finish_startup(mut self) -> Result<Attacker> {
        let request =
            if self.bare { segments::mpa_request(1) } else { segments::enhanced_request(8, 8) };
        self.send(&request)?;
        let reply = self.read_reply()?.context("no MPA Reply")?;
        ensure!(reply[16] & 0x20 == 0, "the stream is refused");
        Ok(self)
    }

    /// Writes bytes. Write errors are ignored.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        // The next read detects a stream that the target has closed.
        let _ = self.stream.write_all(bytes);
        Ok(())
    }

    /// Sends a DDP segment in an FPDU.
    pub(crate) fn send_segment(&mut self, segment: &[u8]) -> Result<()> {
        self.send(&segments::fpdu(segment))
    }

    /// Returns the MPA Reply, header and private data. Returns `None` if the stream ends, the time-out passes or more
    /// than [`MAX_UNPARSED`] bytes arrive before the reply is complete.
    pub(crate) fn read_reply(&mut self) -> Result<Option<Vec<u8>>> {
        let until = Instant::now() + self.timeout;
        loop {
            if let Some(head) = self.received.first_chunk::<FRAME_HEADER_LEN>() {
                let len = FRAME_HEADER_LEN + usize::from(u16::from_be_bytes([head[18], head[19]]));
                if self.received.len() >= len {
                    let rest = self.received.split_off(len);
                    return Ok(Some(std::mem::replace(&mut self.received, rest)));
                }
            }
            if !self.read_more(until)? {
                return Ok(None);
            }
        }
    }

    /// Returns the target's next segment. Returns `None` if the stream ends, `until` passes or more than
    /// [`MAX_UNPARSED`] bytes arrive before the segment is complete.
    pub(crate) fn next_segment(&mut self, until: Instant) -> Result<Option<Vec<u8>>> {
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
            if !self.read_more(until)? {
                return Ok(None);
            }
        }
    }

    /// Reads until the stream ends, at most [`ANSWER_TIMEOUT`].
    pub(crate) fn await_end(&mut self) -> Result<StreamEnd> {
        self.await_end_within(ANSWER_TIMEOUT)
    }

    /// Reads until the stream ends, at most `time`.
    pub(crate) fn await_end_within(&mut self, time: Duration) -> Result<StreamEnd> {
        let until = Instant::now() + time;
        let mut error = None;
        while let Some(segment) = self.next_segment(until)? {
            error = error.or(segments::terminate_error(&segment, self.bare));
        }
        Ok(match error {
            Some(error) => StreamEnd::Error(error),
            None if Instant::now() >= until => StreamEnd::Open,
            None => StreamEnd::Closed,
        })
    }

    /// Reads more bytes. Returns false at the end of the stream, at `until`, or with more than [`MAX_UNPARSED`] bytes.
    fn read_more(&mut self, until: Instant) -> Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || self.received.len() > MAX_UNPARSED {
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
            // RST or time-out: no more bytes.
            Err(_) => Ok(false),
        }
    }
}

/// An attacker's segments on a stream, and the error with which the target must end it.
pub(crate) struct ErrorCase<'a> {
    pub(crate) name: &'a str,
    pub(crate) segments: Vec<Vec<u8>>,
    pub(crate) error: segments::ErrorCode,
}

/// Runs each case on a new stream to `port`. Reports a violation if the stream does not end with the case's error.
pub(crate) fn run_cases(
    context: &mut AttackContext<'_>,
    port: u16,
    cases: &[ErrorCase<'_>],
) -> Result<()> {
    for ErrorCase { name: what, segments, error } in cases {
        context.attempts += 1;
        let mut attacker = Attacker::start(port).with_context(|| (*what).to_owned())?;
        for segment in segments {
            attacker.send_segment(segment)?;
        }
        let end = attacker.await_end()?;
        if end != StreamEnd::Error(*error) {
            context.report_violation(format!("{what}: {end:x?} instead of {error:x?}"));
        }
    }
    Ok(())
}
