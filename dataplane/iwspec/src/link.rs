//! Connection to the device with deadlines (TCP or an SCTP association), and its transcript.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use crate::case::{Role, Transport};
use crate::raw::Raw;
use crate::raw::station::mss_of;
use crate::raw::stream::{self, RawStream};
use crate::raw::tcp::Settings;
use crate::sctp::association::{Arrival, Association, Direction, Options};
use crate::sctp::carrier::Carrier;
use crate::sctp::{Chunk, Ended};
use crate::stream::{Input, Stream};

/// Pause between two attempts to connect or accept.
const RETRY: Duration = Duration::from_millis(20);
/// Maximum number of bytes in a transcript.
const MAX_TRANSCRIPT: usize = 1 << 20;

/// Sender of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// This program.
    Tester,
    /// The device under test.
    Device,
}

/// An entry of the transcript.
#[derive(Clone, Debug)]
pub struct Event {
    /// Time since the start of the case.
    pub at: Duration,
    /// Sender of the bytes, message or FIN.
    pub from: Side,
    /// Kind and data of the event.
    pub what: What,
}

/// Kind of an event, and its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// TCP connection established.
    Opened {
        /// Address of this program.
        local: SocketAddr,
        /// Address of the device under test.
        peer: SocketAddr,
    },
    /// UDP socket of an SCTP association connected.
    Bound {
        /// Address of this program.
        local: SocketAddr,
        /// Address of the device under test.
        peer: SocketAddr,
    },
    /// SCTP packet, from the common header on.
    Packet(Vec<u8>),
    /// Bytes of one write or read.
    Bytes(Vec<u8>),
    /// IP packet of the raw port.
    Segment(Vec<u8>),
    /// A decoded message, or a remark.
    Note(String),
    /// FIN sent or received.
    Fin,
    /// RST sent or received.
    Reset,
}

/// Events of one case, at most 1 MiB.
#[derive(Clone, Debug)]
pub struct Transcript {
    start: Instant,
    /// Events in the order of occurrence.
    pub events: Vec<Event>,
    bytes: usize,
}

impl Transcript {
    fn new() -> Transcript {
        Transcript { start: Instant::now(), events: vec![], bytes: 0 }
    }

    /// Appends an event. Drops it if the transcript would exceed its limit.
    pub fn add(&mut self, from: Side, what: What) {
        let size = match &what {
            What::Bytes(bytes) | What::Packet(bytes) | What::Segment(bytes) => bytes.len(),
            _ => 100,
        };
        if self.bytes + size <= MAX_TRANSCRIPT {
            self.bytes += size;
            self.events.push(Event { at: self.start.elapsed(), from, what });
        }
    }
}

/// Address of the device and transport to it.
#[derive(Debug)]
pub enum Target {
    /// The device accepts connections at this address.
    Connect(SocketAddr),
    /// The device connects to this listener.
    Listen(Mutex<TcpListener>),
    /// The device accepts connections from the raw port at this address.
    Raw(Raw, SocketAddr),
    /// The device connects to this TCP port of the raw port.
    RawListen(Raw, u16),
    /// The device accepts SCTP associations in UDP (RFC 6951).
    Sctp {
        /// IP address and SCTP port.
        address: SocketAddr,
        /// UDP port of the device.
        udp_port: u16,
    },
    /// The device opens SCTP associations in UDP to this socket.
    SctpListen {
        /// UDP socket of the tester.
        socket: UdpSocket,
        /// SCTP port of the tester.
        port: u16,
    },
    /// The device accepts SCTP associations from the raw port at this IP address and SCTP port.
    RawSctp(Raw, SocketAddr),
    /// The device opens SCTP associations to this SCTP port of the raw port.
    RawSctpListen(Raw, u16),
}

impl Target {
    /// Returns the transport to the device.
    pub fn transport(&self) -> Transport {
        match self {
            Target::Connect(_) | Target::Listen(_) | Target::Raw(..) | Target::RawListen(..) => {
                Transport::Tcp
            }
            Target::Sctp { .. }
            | Target::SctpListen { .. }
            | Target::RawSctp(..)
            | Target::RawSctpListen(..) => Transport::Sctp,
        }
    }

    /// Returns the role of the device.
    pub fn role(&self) -> Role {
        match self {
            Target::Connect(_) | Target::Raw(..) | Target::Sctp { .. } | Target::RawSctp(..) => {
                Role::Responder
            }
            Target::Listen(_)
            | Target::RawListen(..)
            | Target::SctpListen { .. }
            | Target::RawSctpListen(..) => Role::Initiator,
        }
    }

    /// Returns true if concurrent cases would receive each other's packets.
    pub fn is_serial(&self) -> bool {
        self.role() == Role::Initiator && !matches!(self, Target::Listen(_))
    }

    /// Returns true for TCP on the raw port: the test builds each segment itself.
    pub fn is_raw(&self) -> bool {
        matches!(self, Target::Raw(..) | Target::RawListen(..))
    }
}

/// Data or event received from the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// Bytes of the TCP stream.
    Bytes(Vec<u8>),
    /// Payload of one TCP segment, on the raw port.
    Segment(Vec<u8>),
    /// User message of the SCTP association.
    Chunk(Chunk),
    /// FIN of the device.
    Fin,
    /// SHUTDOWN of the SCTP association.
    Shutdown,
    /// RST of the device.
    Reset,
    /// The deadline has passed.
    Nothing,
    /// The raw port has failed, with the reason.
    Failed(String),
}

/// TCP connection or SCTP association with the device.
#[derive(Debug)]
pub struct Link {
    stream: Option<Stream>,
    /// TCP maximum segment size to announce, bytes. `None`: default of the kernel.
    pub mss: Option<u16>,
    /// True to offer timestamps (RFC 7323) on the raw port.
    pub timestamps: bool,
    association: Option<Box<Association>>,
    /// Events since the start of the case.
    pub transcript: Transcript,
    /// The end of the connection or association. Every later receive returns it again.
    ended: Option<Received>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            stream: None,
            mss: None,
            timestamps: false,
            association: None,
            transcript: Transcript::new(),
            ended: None,
        }
    }
}

impl Link {
    /// Opens a connection, or accepts one, until `deadline`.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub fn open(&mut self, target: &Target, deadline: Instant) -> Result<(), String> {
        let stream = match target {
            Target::Sctp { .. }
            | Target::SctpListen { .. }
            | Target::RawSctp(..)
            | Target::RawSctpListen(..) => {
                return self.associate(target, Options::default(), deadline);
            }
            Target::Connect(address) => kernel(connect(*address, self.mss, deadline)?)?,
            Target::Listen(listener) => kernel(accept(listener, deadline)?)?,
            Target::Raw(raw, device) => {
                Stream::Raw(Box::new(connect_raw(raw, *device, self.settings(raw), deadline)?))
            }
            Target::RawListen(raw, port) => {
                let settings = self.settings(raw);
                Stream::Raw(Box::new(RawStream::accept(raw, *port, settings, deadline)?))
            }
        };
        let (local, peer) =
            stream.addresses().map_err(|e| format!("the connection has no addresses: {e}"))?;
        if let Stream::Kernel(_) = stream {
            self.transcript.add(Side::Tester, What::Opened { local, peer });
        }
        self.stream = Some(stream);
        self.ended = None;
        self.note_packets();
        Ok(())
    }

    /// Closes the TCP connection.
    pub fn close(&mut self) {
        self.stream = None;
    }

    fn settings(&self, raw: &Raw) -> Settings {
        let mss = self.mss.unwrap_or_else(|| mss_of(raw.mtu, raw.address));
        Settings { mss, timestamps: self.timestamps, ..Settings::default() }
    }

    /// Returns the connection if it is on the raw port.
    pub fn raw(&mut self) -> Option<&mut RawStream> {
        match &mut self.stream {
            Some(Stream::Raw(stream)) => Some(stream),
            Some(Stream::Kernel(_)) | None => None,
        }
    }

    /// Reserves the next `length` bytes of the stream on the raw port, which [`Self::send_segment`] sends later.
    /// Returns the position of the first.
    pub fn reserve(&mut self, length: usize) -> u64 {
        self.raw().map_or(0, |stream| stream.reserve(length))
    }

    /// Drops the next `segments` segments of the device that have payload, on the raw port.
    pub fn lose(&mut self, segments: usize) {
        if let Some(stream) = self.raw() {
            stream.lose(segments);
        }
    }

    /// Limits the MTU of the device's path, on the raw port.
    pub fn limit_path(&mut self, mtu: u16) {
        if let Some(stream) = self.raw() {
            stream.limit_path(mtu);
        }
    }

    /// Sends `bytes` as a segment at `position` of the stream, on the raw port.
    pub fn send_segment(&mut self, position: u64, bytes: &[u8]) {
        if let Some(stream) = self.raw() {
            stream.send(position, bytes);
        }
        self.note_packets();
    }

    /// Opens an SCTP association, and closes any previous one. If the device refuses the association, the next receive
    /// reports its end.
    ///
    /// # Errors
    /// The reason why there is no association.
    pub fn associate(
        &mut self,
        target: &Target,
        options: Options,
        deadline: Instant,
    ) -> Result<(), String> {
        self.close_association();
        let association = match target {
            Target::Sctp { address, udp_port } => {
                let carrier = Carrier::udp(SocketAddr::new(address.ip(), *udp_port))?;
                Some(Association::connect(carrier, *address, options, deadline)?)
            }
            Target::RawSctp(raw, address) => {
                let carrier = Carrier::raw(raw, address.ip(), deadline)?;
                Some(Association::connect(carrier, *address, options, deadline)?)
            }
            Target::SctpListen { socket, port } => {
                Association::accept(Carrier::listen_udp(socket)?, *port, options, deadline)?
            }
            Target::RawSctpListen(raw, port) => {
                Association::accept(Carrier::listen_raw(raw)?, *port, options, deadline)?
            }
            Target::Connect(_) | Target::Listen(_) | Target::Raw(..) | Target::RawListen(..) => {
                return Err("SCTP needs --transport sctp".into());
            }
        };
        if let Some((local, peer)) = association.as_ref().and_then(Association::udp_addresses) {
            self.transcript.add(Side::Tester, What::Bound { local, peer });
        }
        self.ended = if association.is_some() { None } else { Some(Received::Reset) };
        self.association = association.map(Box::new);
        self.note_packets();
        Ok(())
    }

    /// Returns the SCTP association; `None` over TCP.
    pub fn association(&self) -> Option<&Association> {
        self.association.as_deref()
    }

    /// Queues a user message. Returns false if the message is too long for a packet.
    pub fn send_chunk(&mut self, chunk: Chunk) -> bool {
        self.association.as_mut().is_none_or(|a| a.send(chunk))
    }

    /// Sends the queued user messages.
    pub fn transmit(&mut self) {
        if let Some(association) = &mut self.association {
            association.transmit();
        }
        self.note_packets();
    }

    /// Waits for `time`. An SCTP association and a connection of the raw port continue to send acknowledgements.
    pub fn wait(&mut self, time: Duration) {
        match (&mut self.association, &mut self.stream) {
            (Some(association), _) => association.wait(time),
            (None, Some(Stream::Raw(stream))) => stream.wait(Instant::now() + time),
            (None, _) => std::thread::sleep(time),
        }
        self.note_packets();
    }

    /// Shuts the SCTP association down.
    pub fn shut_down(&mut self) {
        if let Some(association) = &mut self.association {
            association.shutdown();
        }
        self.note_packets();
    }

    fn close_association(&mut self) {
        if let Some(association) = &mut self.association {
            association.abort();
        }
        self.note_packets();
        self.association = None;
    }

    /// Moves the packets of the association or of the raw port to the transcript.
    fn note_packets(&mut self) {
        let packets = self.raw().map(|stream| stream.take_packets()).unwrap_or_default();
        for (direction, packet) in packets {
            let from = match direction {
                stream::Direction::Out => Side::Tester,
                stream::Direction::In => Side::Device,
            };
            self.transcript.add(from, What::Segment(packet));
        }
        let in_udp = self.association.as_ref().is_some_and(|a| a.udp_addresses().is_some());
        let log = self.association.as_mut().map(|a| a.take_log()).unwrap_or_default();
        for (direction, bytes) in log {
            let from = match direction {
                Direction::Out => Side::Tester,
                Direction::In => Side::Device,
            };
            let what = if in_udp { What::Packet(bytes) } else { What::Segment(bytes) };
            self.transcript.add(from, what);
        }
    }

    fn receive_chunk(&mut self, deadline: Instant) -> Received {
        let Some(association) = &mut self.association else { return Received::Nothing };
        let arrival = association.receive(deadline);
        let failure = association.failure().map(String::from);
        self.note_packets();
        if let Some(failure) = failure {
            return Received::Failed(failure);
        }
        match arrival {
            Arrival::Chunk(chunk) => Received::Chunk(chunk),
            Arrival::Nothing => Received::Nothing,
            Arrival::Ended(Ended::Shutdown) => {
                self.end(Received::Shutdown, What::Note("the association is shut down".into()))
            }
            Arrival::Ended(Ended::Abort) => {
                self.end(Received::Reset, What::Note("the device aborts the association".into()))
            }
            Arrival::Ended(Ended::Lost(why)) => {
                self.end(Received::Reset, What::Note(format!("the association is lost: {why}")))
            }
        }
    }

    /// Sends bytes. Does not report a connection error: the next `receive` does.
    pub fn send(&mut self, bytes: &[u8], deadline: Instant) {
        let Some(stream) = &mut self.stream else { return };
        let sent = stream.send(bytes, deadline);
        if let Stream::Kernel(_) = stream {
            self.transcript.add(Side::Tester, What::Bytes(bytes.to_vec()));
        }
        self.note_packets();
        if let Err(e) = sent {
            self.transcript.add(Side::Tester, What::Note(format!("the write failed: {e}")));
        }
    }

    /// Receives bytes, or the end of the stream, until `deadline`.
    pub fn receive(&mut self, deadline: Instant) -> Received {
        if let Some(end) = &self.ended {
            return end.clone();
        }
        let Some(stream) = &mut self.stream else { return self.receive_chunk(deadline) };
        let input = stream.receive(deadline);
        self.note_packets();
        match input {
            Input::Bytes(bytes) => {
                self.transcript.add(Side::Device, What::Bytes(bytes.clone()));
                Received::Bytes(bytes)
            }
            Input::Segment(bytes) => Received::Segment(bytes),
            Input::Fin => self.end(Received::Fin, What::Fin),
            Input::Reset => self.end(Received::Reset, What::Reset),
            Input::Nothing => Received::Nothing,
            Input::Failed(why) => Received::Failed(why),
        }
    }

    fn end(&mut self, end: Received, what: What) -> Received {
        self.transcript.add(Side::Device, what);
        self.ended = Some(end.clone());
        end
    }

    /// Half-closes the connection.
    pub fn finish(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.finish();
            self.transcript.add(Side::Tester, What::Fin);
        }
        self.note_packets();
    }

    /// Resets the TCP connection, or aborts the SCTP association.
    pub fn reset(&mut self) {
        if self.association.is_some() {
            self.close_association();
        }
        if let Some(stream) = self.stream.take() {
            stream.reset();
            self.transcript.add(Side::Tester, What::Reset);
        }
    }
}

/// Sets TCP_NODELAY: each write becomes a separate segment, unless the kernel coalesces it.
fn kernel(stream: TcpStream) -> Result<Stream, String> {
    stream.set_nodelay(true).map_err(|e| format!("cannot set TCP_NODELAY: {e}"))?;
    Ok(Stream::Kernel(stream))
}

fn connect(address: SocketAddr, mss: Option<u16>, deadline: Instant) -> Result<TcpStream, String> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match connect_once(address, mss, left) {
            Ok(stream) => return Ok(stream),
            // Retries: a server of a single connection, such as ib_write_bw, may be restarting.
            Err(_) if Instant::now() + RETRY < deadline => std::thread::sleep(RETRY),
            Err(e) => return Err(format!("no connection to {address}: {e}")),
        }
    }
}

fn connect_raw(
    raw: &Raw,
    device: SocketAddr,
    settings: Settings,
    deadline: Instant,
) -> Result<RawStream, String> {
    loop {
        match RawStream::connect(raw, device, settings, deadline) {
            // Retries: a server of a single connection may be restarting.
            Err(_) if Instant::now() + RETRY < deadline => std::thread::sleep(RETRY),
            result => return result,
        }
    }
}

fn connect_once(
    address: SocketAddr,
    mss: Option<u16>,
    time: Duration,
) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(mss) = mss {
        socket.set_tcp_mss(mss.into())?;
    }
    socket.connect_timeout(&address.into(), time)?;
    Ok(socket.into())
}

fn accept(listener: &Mutex<TcpListener>, deadline: Instant) -> Result<TcpStream, String> {
    loop {
        // The listener is non-blocking, so the lock is held only briefly.
        let accepted = match listener.lock() {
            Ok(listener) => listener.accept(),
            Err(_) => return Err("another case has failed inside the listener".into()),
        };
        match accepted {
            Ok((stream, _)) => {
                stream
                    .set_nonblocking(false)
                    .map_err(|e| format!("the connection cannot block: {e}"))?;
                return Ok(stream);
            }
            Err(_) if Instant::now() + RETRY < deadline => std::thread::sleep(RETRY),
            Err(_) => return Err("the device has opened no connection".into()),
        }
    }
}
