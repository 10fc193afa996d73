//! The tester's end of an association, over a UDP socket.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sctp_lite::sctp::{self, Ends, Secrets};

use super::core::{Core, Ended, config, protocol_time};
use super::packet::{self, Greeting};
use super::{Chunk, DDP, PACKET};

/// Maximum number of packets kept for the transcript between two steps.
const MAX_LOG: usize = 4096;
/// Maximum length of a UDP datagram, bytes.
const DATAGRAM: usize = 65536;

/// Direction of a logged packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the tester to the device.
    Out,
    /// From the device to the tester.
    In,
}

/// Parameters of the tester's INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Adaptation indication; `None` omits it.
    pub adaptation: Option<u32>,
    /// Number of stream pairs.
    pub streams: u16,
}

impl Default for Options {
    fn default() -> Options {
        Options { adaptation: Some(DDP), streams: 16 }
    }
}

/// Result of waiting for a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// A user message.
    Chunk(Chunk),
    /// The association has ended.
    Ended(Ended),
    /// The deadline has passed.
    Nothing,
}

/// An association with the device.
#[derive(Debug)]
pub struct Association {
    socket: UdpSocket,
    core: Core,
    options: Options,
    /// Parameters of the device's INIT ACK; `None` before it arrives.
    pub greeting: Option<Greeting>,
    /// Packets since the last call of `take_log`.
    log: Vec<(Direction, Vec<u8>)>,
}

impl Association {
    /// Opens an association to the SCTP port of `device`, through its UDP port. Returns once it is established or has
    /// ended.
    ///
    /// # Errors
    /// The socket cannot be opened, or the device does not answer before `deadline`.
    pub fn connect(
        device: SocketAddr,
        udp_port: u16,
        options: Options,
        deadline: Instant,
    ) -> Result<Association, String> {
        let any: SocketAddr =
            if device.is_ipv6() { ([0; 16], 0).into() } else { ([0; 4], 0).into() };
        let udp = SocketAddr::new(device.ip(), udp_port);
        let socket = UdpSocket::bind(any)
            .and_then(|s| s.connect(udp).map(|()| s))
            .map_err(|e| format!("no UDP socket to {udp}: {e}"))?;
        let local = socket.local_addr().map_err(|e| format!("the socket has no address: {e}"))?;
        let mut random = [0; 18];
        getrandom::fill(&mut random).map_err(|e| format!("no random numbers: {e}"))?;
        let mut key = [0; 16];
        key.copy_from_slice(&random[..16]);
        let port = u16::from_be_bytes([random[16], random[17]]) | 0x8000;
        let ends = Ends { local: SocketAddr::new(local.ip(), port), remote: device };
        let begin = Instant::now();
        let association = sctp::Association::connect(
            config(options.streams),
            Arc::new(Secrets::new(key)),
            ends,
            PACKET,
            protocol_time(begin),
        );
        let core = Core::new(association, begin);
        let mut a = Association { socket, core, options, greeting: None, log: vec![] };
        a.pump(deadline, |core| core.up || core.ended.is_some());
        if a.core.up || a.core.ended.is_some() {
            return Ok(a);
        }
        Err(format!("no association with {device} in UDP port {udp_port}: no answer"))
    }

    /// Returns the addresses of the UDP socket and of its peer.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((self.socket.local_addr().ok()?, self.socket.peer_addr().ok()?))
    }

    /// Queues a message. Returns false if the message is too long for a packet.
    pub fn send(&mut self, chunk: Chunk) -> bool {
        self.core.upper.send(chunk)
    }

    /// Sends the queued messages and due SCTP packets.
    pub fn transmit(&mut self) {
        let requested = self.options.adaptation;
        loop {
            let packets = self.core.output();
            if packets.is_empty() {
                return;
            }
            for mut bytes in packets {
                if requested != Some(DDP) {
                    packet::set_adaptation(&mut bytes, requested);
                }
                // A failed send counts as a lost packet, which SCTP retransmits.
                let _ = self.socket.send(&bytes);
                self.note(Direction::Out, bytes);
            }
        }
    }

    /// Receives the next message or the end of the association, until `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> Arrival {
        self.pump(deadline, |core| core.upper.has_received() || core.ended.is_some());
        match (self.core.upper.take(), &self.core.ended) {
            (Some(chunk), _) => Arrival::Chunk(chunk),
            (None, Some(ended)) => Arrival::Ended(ended.clone()),
            (None, None) => Arrival::Nothing,
        }
    }

    /// Waits for `time`, and sends acknowledgements meanwhile.
    pub fn wait(&mut self, time: Duration) {
        self.pump(Instant::now() + time, |_| false);
    }

    /// Begins the shutdown of the association.
    pub fn shutdown(&mut self) {
        self.core.shutdown();
        self.transmit();
    }

    /// Sends an ABORT.
    pub fn abort(&mut self) {
        self.core.abort();
        self.transmit();
    }

    /// Returns the packets sent and received since the last call.
    pub fn take_log(&mut self) -> Vec<(Direction, Vec<u8>)> {
        std::mem::take(&mut self.log)
    }

    fn note(&mut self, direction: Direction, bytes: Vec<u8>) {
        if self.log.len() < MAX_LOG {
            self.log.push((direction, bytes));
        }
    }

    /// Exchanges packets until `done` returns true, or until `deadline`.
    fn pump(&mut self, deadline: Instant, done: impl Fn(&Core) -> bool) {
        let mut buffer = vec![0; DATAGRAM];
        loop {
            self.transmit();
            let left = deadline.saturating_duration_since(Instant::now());
            if done(&self.core) || left.is_zero() {
                return;
            }
            let timer = self.core.due().unwrap_or(left);
            let wait = left.min(timer).max(Duration::from_millis(1));
            if self.socket.set_read_timeout(Some(wait)).is_err() {
                return;
            }
            match self.socket.recv(&mut buffer) {
                Ok(length) => {
                    let bytes = &buffer[..length];
                    if self.greeting.is_none() {
                        self.greeting = packet::greeting(bytes);
                    }
                    self.core.input(bytes);
                    let bytes = bytes.to_vec();
                    self.note(Direction::In, bytes);
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                // ICMP port unreachable: the device may not have opened its UDP port yet.
                Err(_) => std::thread::sleep(wait.min(Duration::from_millis(20))),
            }
        }
    }
}

impl Drop for Association {
    /// Aborts an association that is still open, so that the device frees it.
    fn drop(&mut self) {
        if self.core.up && self.core.ended.is_none() {
            self.abort();
        }
    }
}
