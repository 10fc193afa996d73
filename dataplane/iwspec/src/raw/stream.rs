//! A TCP connection on the raw port, with deadlines.

use std::net::SocketAddr;
use std::time::{Duration, Instant as Clock};

use base::Instant;
use dialogue::segment::{Flags, Segment};

use super::station::{ETHERNET, ReceivedFrame, TransportPacket, mss_of};
use super::tcp::{Arrival, Settings, Tcp};
use super::{Host, Raw, Timeline, random};

/// First port and number of ports of the dynamic range (RFC 6335 §6).
const DYNAMIC: (u16, u16) = (49_152, 16_384);

/// Time for the handshake after the device's SYN, even if the caller's deadline is earlier.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// Direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Sent by the tester.
    Out,
    /// Received by the tester.
    In,
}

/// A TCP connection to the device on a raw port.
#[derive(Debug)]
pub struct RawStream {
    host: Host,
    tcp: Tcp,
    timeline: Timeline,
    /// Position after the bytes that [`reserve`](Self::reserve) has appended to the stream.
    end: u64,
    /// MTU of a simulated router between device and tester, bytes; `None` without a router.
    path: Option<u16>,
    /// IP packets since the last [`take_packets`](Self::take_packets), up to a maximum number.
    packets: Vec<(Direction, Vec<u8>)>,
    /// Address and port of the tester and of the device.
    addresses: (SocketAddr, SocketAddr),
    failure: Option<String>,
}

impl RawStream {
    /// Opens a connection to the device.
    ///
    /// # Errors
    /// The reason why no connection is established before `deadline`.
    pub fn connect(
        raw: &Raw,
        device: SocketAddr,
        settings: Settings,
        deadline: Clock,
    ) -> Result<RawStream, String> {
        let host = Host::open(raw, device.ip(), deadline)?;
        let port = DYNAMIC.0 + (random()? % u32::from(DYNAMIC.1)) as u16;
        let tcp = Tcp::connect(settings, (port, device.port()), random()?, Instant::ZERO);
        let addresses = (SocketAddr::new(raw.address, port), device);
        RawStream::new(host, tcp, addresses).established(deadline)
    }

    /// Waits until `deadline` for the device to connect to `port`, and accepts this connection. If the device
    /// abandons a connection during the handshake, waits for the next one.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub fn accept(
        raw: &Raw,
        port: u16,
        settings: Settings,
        deadline: Clock,
    ) -> Result<RawStream, String> {
        loop {
            let host = Host::unresolved(raw, raw.address)?;
            match RawStream::accept_next(host, port, settings, deadline) {
                Err(_) if Clock::now() < deadline => {}
                result => return result,
            }
        }
    }

    fn accept_next(
        mut host: Host,
        port: u16,
        settings: Settings,
        deadline: Clock,
    ) -> Result<RawStream, String> {
        let address = host.station.address;
        loop {
            let Some((received, frame)) = host.receive_from_any(deadline)? else {
                return Err("the device has opened no connection".into());
            };
            let ReceivedFrame::Transport(TransportPacket::Tcp(syn)) = received else { continue };
            let opens = syn.flags.has(Flags::SYN) && !syn.flags.has(Flags::ACK);
            if !opens || syn.dst_port != port {
                continue;
            }
            let device = SocketAddr::new(host.station.host, syn.src_port);
            let tcp = Tcp::accept(settings, &syn, random()?, Instant::ZERO);
            let addresses = (SocketAddr::new(address, port), device);
            let mut stream = RawStream::new(host, tcp, addresses);
            stream.record(Direction::In, &frame);
            return stream.established(deadline.max(Clock::now() + HANDSHAKE));
        }
    }

    fn new(host: Host, tcp: Tcp, addresses: (SocketAddr, SocketAddr)) -> RawStream {
        RawStream {
            host,
            tcp,
            timeline: Timeline::new(),
            end: 0,
            path: None,
            packets: vec![],
            addresses,
            failure: None,
        }
    }

    fn established(mut self, deadline: Clock) -> Result<RawStream, String> {
        while !self.tcp.is_open() {
            if self.tcp.is_closed() {
                return Err(format!("{} refuses the connection", self.addresses.1));
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if Clock::now() >= deadline {
                return Err(format!("{} does not answer a SYN", self.addresses.1));
            }
            self.step(deadline);
        }
        self.flush();
        Ok(self)
    }

    /// Returns address and port of the tester and of the device.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.addresses
    }

    /// Returns the maximum payload of a segment to the device, bytes.
    pub fn emss(&self) -> usize {
        self.tcp.emss()
    }

    /// Reserves the next `length` bytes of the stream, which [`Self::send`] sends later. Returns the position of the
    /// first.
    pub fn reserve(&mut self, length: usize) -> u64 {
        let position = self.end;
        self.end += length as u64;
        position
    }

    /// Sends bytes at a position of the stream, as one segment if they fit.
    pub fn send(&mut self, position: u64, bytes: &[u8]) {
        self.tcp.handle_timeout(self.timeline.now());
        if !self.tcp.send(position, bytes) {
            self.failure = Some("too many segments wait for the device's acknowledgements".into());
        }
        self.flush();
    }

    /// Drops the next `segments` segments of the device that have payload.
    pub fn lose(&mut self, segments: usize) {
        self.tcp.lose(segments);
    }

    /// From now on, drops segments with payload whose IP packet is longer than `mtu` bytes. Reports this MTU to the
    /// device by ICMP, as a router does.
    pub fn limit_path(&mut self, mtu: u16) {
        self.path = Some(mtu);
    }

    /// Sends a FIN after all bytes of the stream.
    pub fn finish(&mut self) {
        self.tcp.handle_timeout(self.timeline.now());
        self.tcp.finish(self.end);
        self.flush();
    }

    /// Resets the connection.
    pub fn reset(&mut self) {
        if !self.tcp.is_closed() {
            self.tcp.reset();
            self.flush();
        }
    }

    /// Returns the next event; `None` if none occurs before `deadline`.
    ///
    /// # Errors
    /// The port has failed, a packet of the device is damaged, or too many segments are unacknowledged.
    pub fn receive(&mut self, deadline: Clock) -> Result<Option<Arrival>, String> {
        loop {
            if let Some(arrival) = self.tcp.poll_arrival() {
                return Ok(Some(arrival));
            }
            if let Some(failure) = self.failure.clone() {
                return Err(failure);
            }
            if Clock::now() >= deadline {
                return Ok(None);
            }
            self.step(deadline);
        }
    }

    /// Acknowledges and retransmits until `deadline`. Events that arrive meanwhile remain queued for
    /// [`receive`](Self::receive).
    pub fn wait(&mut self, deadline: Clock) {
        while self.failure.is_none() && Clock::now() < deadline {
            self.step(deadline);
        }
    }

    /// Removes and returns the recorded IP packets.
    pub fn take_packets(&mut self) -> Vec<(Direction, Vec<u8>)> {
        std::mem::take(&mut self.packets)
    }

    /// Waits for one packet, at most until TCP's next time-out or `deadline`. Processes the packet and transmits.
    fn step(&mut self, deadline: Clock) {
        self.flush();
        let until = match self.tcp.poll_timeout() {
            Some(time) => self.timeline.at(time).min(deadline),
            None => deadline,
        };
        match self.host.receive(until) {
            Ok(Some((received, frame))) => self.input(received, &frame),
            Ok(None) => {}
            Err(failure) => self.failure = Some(failure),
        }
        self.tcp.handle_timeout(self.timeline.now());
        self.flush();
    }

    fn input(&mut self, received: ReceivedFrame, frame: &[u8]) {
        match received {
            ReceivedFrame::Transport(TransportPacket::Tcp(segment)) => {
                let ports = (self.addresses.0.port(), self.addresses.1.port());
                if (segment.dst_port, segment.src_port) != ports {
                    return;
                }
                self.record(Direction::In, frame);
                if self.path.is_some_and(|mtu| self.refuse(&segment, frame, mtu)) {
                    return;
                }
                self.tcp.input(self.timeline.now(), &segment);
            }
            ReceivedFrame::TooBig(mtu) => {
                self.record(Direction::In, frame);
                self.tcp.lower_mss(mss_of(mtu, self.addresses.0.ip()));
            }
            ReceivedFrame::Damaged(what) => {
                self.failure = Some(format!("a packet of the device is damaged: {what}"));
            }
            _ => {}
        }
    }

    /// Reports a segment with payload whose IP packet is longer than `mtu` bytes, as a router does. Returns false for
    /// any other segment.
    fn refuse(&mut self, segment: &Segment, frame: &[u8], mtu: u16) -> bool {
        let packet = &frame[ETHERNET..];
        let too_long = packet.len() > usize::from(mtu) && !segment.payload.is_empty();
        if too_long && let Some(report) = self.host.station.packet_too_big(packet, mtu) {
            self.record(Direction::Out, &report);
            if let Err(failure) = self.host.send_frame(&report) {
                self.failure = Some(failure);
            }
        }
        too_long
    }

    fn flush(&mut self) {
        while let Some(segment) = self.tcp.poll_transmit() {
            self.transmit(segment);
        }
    }

    fn transmit(&mut self, segment: Segment) {
        match self.host.send(&TransportPacket::Tcp(segment)) {
            Ok(frame) => self.record(Direction::Out, &frame),
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn record(&mut self, direction: Direction, frame: &[u8]) {
        /// Maximum number of packets kept for the transcript.
        const MAX_PACKETS: usize = 4096;
        if self.packets.len() < MAX_PACKETS {
            self.packets.push((direction, frame.get(ETHERNET..).unwrap_or_default().to_vec()));
        }
    }
}

impl Drop for RawStream {
    /// Resets the connection, so that the device's end does not remain open.
    fn drop(&mut self) {
        self.flush();
        self.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::port::{Hub, Medium};

    #[test]
    fn connection_that_is_given_up_in_the_handshake_is_followed_by_the_next() {
        let hub = Hub::default();
        let end = |last: u8| Raw {
            medium: Medium::Memory(hub.clone()),
            address: std::net::Ipv4Addr::new(192, 0, 2, last).into(),
            via: None,
            mtu: 1500,
        };
        let (tester, device) = (end(1), end(2));
        let at = SocketAddr::new(tester.address, 7471);
        let deadline = Clock::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                // Resolved once the tester listens.
                let mut host = Host::open(&device, tester.address, deadline).expect("resolved");
                let mut segment = Segment {
                    src_port: 50_000,
                    dst_port: at.port(),
                    seq: 1,
                    flags: Flags::SYN,
                    ..Segment::default()
                };
                host.send(&TransportPacket::Tcp(segment.clone())).expect("sent");
                segment.flags = Flags::RST;
                segment.seq = 2;
                host.send(&TransportPacket::Tcp(segment)).expect("sent");
                RawStream::connect(&device, at, Settings::default(), deadline)
            });
            let accepted = RawStream::accept(&tester, at.port(), Settings::default(), deadline);
            let mut accepted = accepted.expect("a connection");
            let mut connected = connecting.join().expect("no panic").expect("established");
            let position = connected.reserve(1);
            connected.send(position, b"a");
            assert_eq!(accepted.receive(deadline), Ok(Some(Arrival::Payload(b"a".to_vec()))));
        });
    }
}
