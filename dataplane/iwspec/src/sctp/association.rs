//! The tester's end of an association, over a UDP socket or on the raw port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sctp_lite::sctp::{self, Ends, Listener, ListenerResult, Secrets};

use super::carrier::Carrier;
use super::core::{Batch, Core, Ended, config, protocol_time};
use super::packet::{self, Greeting};
use super::{Chunk, DDP, PACKET};

/// Maximum number of packets kept for the transcript between two calls of [`Association::take_log`].
const MAX_LOG: usize = 4096;

/// Direction of a logged packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the tester to the device.
    Out,
    /// From the device to the tester.
    In,
}

/// Parameters of the tester's INIT or INIT ACK.
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
    carrier: Carrier,
    core: Core,
    options: Options,
    /// Parameters of the device's INIT or INIT ACK; `None` before it arrives.
    pub greeting: Option<Greeting>,
    /// Packets since the last call of `take_log`.
    log: Vec<(Direction, Vec<u8>)>,
    /// Reason why the carrier has failed.
    failure: Option<String>,
}

impl Association {
    /// Opens an association to the SCTP port `device`. Returns once it is established or has ended.
    ///
    /// # Errors
    /// The carrier has failed, or the device does not answer before `deadline`.
    pub fn connect(
        carrier: Carrier,
        device: SocketAddr,
        options: Options,
        deadline: Instant,
    ) -> Result<Association, String> {
        let (key, port) = random()?;
        let ends =
            Ends { local: SocketAddr::new(carrier.addresses()?.0, port | 0x8000), remote: device };
        let begin = Instant::now();
        let association = sctp::Association::connect(
            config(options.streams),
            Arc::new(Secrets::new(key)),
            ends,
            PACKET,
            protocol_time(begin),
        );
        let core = Core::new(association, begin);
        let mut a =
            Association { carrier, core, options, greeting: None, log: vec![], failure: None };
        a.pump(deadline, |core| core.up || core.ended.is_some());
        if a.core.up || a.core.ended.is_some() {
            return Ok(a);
        }
        Err(a.failure.take().unwrap_or(format!("no association with {device}: no answer")))
    }

    /// Waits for an association of a device to the SCTP port `port`. Returns `None` if the device ends the handshake
    /// after an INIT ACK with an unusual adaptation indication.
    ///
    /// # Errors
    /// The carrier has failed, or no device opens an association before `deadline`.
    pub fn accept(
        mut carrier: Carrier,
        port: u16,
        options: Options,
        deadline: Instant,
    ) -> Result<Option<Association>, String> {
        let (key, _) = random()?;
        let secrets = Arc::new(Secrets::new(key));
        let listener = Listener::new(config(options.streams), Arc::clone(&secrets));
        let begin = Instant::now();
        let mut greeting = None;
        let mut log = vec![];
        while Instant::now() < deadline {
            let Some(received) = carrier.receive(deadline)? else { continue };
            let Some((own, peer)) = packet::ports(&received.sctp).filter(|p| p.0 == port) else {
                continue;
            };
            if packet::greeting(&received.sctp).is_some() {
                greeting = packet::greeting(&received.sctp);
                log.clear();
            } else if greeting.is_some() && packet::is_abort(&received.sctp) {
                return if options.adaptation == Some(DDP) { continue } else { Ok(None) };
            }
            if !wire::sctp::Packet::new(&received.sctp).is_ok_and(|p| p.checksum_ok()) {
                continue;
            }
            if log.len() < MAX_LOG {
                log.push((Direction::In, received.logged));
            }
            let (local, remote) = carrier.addresses()?;
            let ends =
                Ends { local: SocketAddr::new(local, own), remote: SocketAddr::new(remote, peer) };
            // The listener accepts only the adaptation indication of DDP, so any other indication is replaced.
            // `greeting` contains the device's indication.
            let mut bytes = received.sctp;
            packet::set_adaptation(&mut bytes, Some(DDP));
            let Ok(parsed) = wire::sctp::Packet::new(&bytes) else { continue };
            let mut batch = Batch::default();
            let now = protocol_time(begin);
            let result = listener.input(now, &ends, &parsed, &mut batch);
            for mut answer in batch.packets {
                packet::set_adaptation(&mut answer, options.adaptation);
                log.push((Direction::Out, carrier.send(answer)?));
            }
            if let ListenerResult::Accept(cookie) = result {
                carrier.fix_device();
                let association = sctp::Association::accept(
                    config(options.streams),
                    secrets,
                    ends,
                    PACKET,
                    &cookie,
                    now,
                );
                let mut core = Core::new(association, begin);
                core.input(&bytes);
                let mut a = Association { carrier, core, options, greeting, log, failure: None };
                a.transmit();
                return Ok(Some(a));
            }
        }
        match greeting {
            Some(_) if options.adaptation != Some(DDP) => Ok(None),
            _ => Err("the device has opened no association".into()),
        }
    }

    /// Returns the addresses of the UDP socket and of its peer; `None` on the raw port.
    pub fn udp_addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.carrier.udp_addresses()
    }

    /// Returns the reason why the carrier has failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
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
                match self.carrier.send(bytes) {
                    Ok(logged) => self.note(Direction::Out, logged),
                    Err(failure) => self.failure = Some(failure),
                }
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

    /// Exchanges packets until `done` returns true, until `deadline`, or until the carrier fails.
    fn pump(&mut self, deadline: Instant, done: impl Fn(&Core) -> bool) {
        loop {
            self.transmit();
            let now = Instant::now();
            if done(&self.core) || now >= deadline || self.failure.is_some() {
                return;
            }
            let until = self.core.due().map_or(deadline, |timer| (now + timer).min(deadline));
            match self.carrier.receive(until) {
                Ok(None) => {}
                Ok(Some(received)) => {
                    if self.greeting.is_none() {
                        self.greeting = packet::greeting(&received.sctp);
                    }
                    self.core.input(&received.sctp);
                    self.note(Direction::In, received.logged);
                }
                Err(failure) => self.failure = Some(failure),
            }
        }
    }
}

/// Returns a random key and port number.
fn random() -> Result<([u8; 16], u16), String> {
    let mut random = [0; 18];
    getrandom::fill(&mut random).map_err(|e| format!("no random numbers: {e}"))?;
    let mut key = [0; 16];
    key.copy_from_slice(&random[..16]);
    Ok((key, u16::from_be_bytes([random[16], random[17]])))
}

impl Drop for Association {
    /// Aborts an association that is still open, so that the device frees it.
    fn drop(&mut self) {
        if self.core.up && self.core.ended.is_none() {
            self.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Raw;
    use crate::raw::port::{Hub, Medium};

    const PORT: u16 = 7471;

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn message(data: &[u8]) -> Chunk {
        Chunk { stream: 3, ppid: 17, unordered: true, whole: true, data: data.to_vec() }
    }

    /// Opens an association between two testers, and exchanges a message in each direction.
    fn exchange(accepting: Carrier, connecting: impl FnOnce() -> Carrier + Send, at: SocketAddr) {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let options = Options { streams: 9, ..Options::default() };
                let mut a =
                    Association::connect(connecting(), at, options, deadline()).expect("up");
                assert_eq!(a.greeting.expect("an INIT ACK").adaptation, Some(DDP));
                assert!(a.send(message(b"question")));
                let answer = a.receive(deadline());
                a.shutdown();
                assert!(matches!(a.receive(deadline()), Arrival::Ended(Ended::Shutdown)));
                answer
            });
            let accepted = Association::accept(accepting, PORT, Options::default(), deadline());
            let mut a = accepted.expect("up").expect("not refused");
            assert_eq!(a.greeting.expect("an INIT").outbound, 9);
            assert_eq!(a.receive(deadline()), Arrival::Chunk(message(b"question")));
            assert!(a.send(message(b"answer")));
            assert!(matches!(a.receive(deadline()), Arrival::Ended(Ended::Shutdown)));
            let log = a.take_log();
            assert!(log.len() > 4 && log.iter().all(|(_, packet)| packet.len() >= 16));
            assert_eq!(other.join().expect("no panic"), Arrival::Chunk(message(b"answer")));
        });
    }

    #[test]
    fn association_in_udp_is_accepted() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let udp = socket.local_addr().expect("bound");
        let accepting = Carrier::listen_udp(&socket).expect("a socket");
        let connecting = move || Carrier::udp(udp).expect("a socket");
        exchange(accepting, connecting, SocketAddr::new(udp.ip(), PORT));
    }

    #[test]
    fn association_on_the_raw_port_is_accepted() {
        let hub = Hub::default();
        let end = |last: u8| Raw {
            medium: Medium::Memory(hub.clone()),
            address: std::net::Ipv4Addr::new(192, 0, 2, last).into(),
            via: None,
            mtu: 1500,
        };
        let (one, other) = (end(1), end(2));
        let at = SocketAddr::new(one.address, PORT);
        let accepting = Carrier::listen_raw(&one).expect("a port");
        let connecting = move || Carrier::raw(&other, at.ip(), deadline()).expect("resolved");
        exchange(accepting, connecting, at);
    }
}
