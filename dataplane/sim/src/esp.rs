//! ESP on one direction of a path. Packets are sealed before the link and opened after it, so the link loses, delays,
//! duplicates and damages sealed packets. SAs are replaced during the transfer: the receiver installs the new SA before
//! the sender uses it.
//!
//! Packets of the simulation have no IP header; this module adds an IPv4 or IPv6 header. Not included: policies and key
//! exchange.

use std::net::IpAddr;

use base::Instant;
use ipsec::crypto::{Algorithm, Keys};
use ipsec::esp::{Refusal, find_esp};
use ipsec::ip::{self, Header};
use ipsec::sa::{
    Encapsulation, Fragments, Inbound, Lifetime, Mode, Outbound, Parameters, SaError, Shape, Tunnel,
};

use crate::packet::{Ecn, IP_HEADER, Packet};

/// UDP port of UDP-encapsulated ESP.
const PORT: u16 = 4500;
/// SPI of the first SA.
const FIRST: u32 = 0x1000;
/// Maximum number of valid inbound SAs: the newest and its predecessor.
const MAX_INBOUND_SAS: usize = 2;

/// ESP protection of one direction.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Algorithm for encryption and integrity.
    pub algorithm: Algorithm,
    /// True if inner packets are IPv6, false if IPv4.
    pub v6: bool,
    /// `None`: transport mode. Otherwise tunnel mode, with an outer IPv6 header if true, IPv4 if false.
    pub tunnel: Option<bool>,
    /// True if ESP is encapsulated in UDP, on port 4500.
    pub udp: bool,
    /// True for extended sequence numbers (64 bits).
    pub esn: bool,
    /// Sequence number after which the first SA starts.
    pub sequence: u64,
    /// Anti-replay window, packets.
    pub window: u16,
    /// Number of packets after which an SA is replaced; `None`: never.
    pub rekey: Option<u64>,
}

impl Config {
    fn shape(&self) -> Shape {
        Shape { mode: self.mode(), algorithm: self.algorithm, udp: self.udp }
    }

    fn mode(&self) -> Mode {
        let Some(v6) = self.tunnel else { return Mode::Transport };
        let (source, destination) = (address(v6, 3), address(v6, 4));
        let fragments = Fragments::Copy;
        Mode::Tunnel(Tunnel { source, destination, ttl: 64, dscp: None, ecn: true, fragments })
    }

    fn parameters(&self, generation: u32) -> Parameters {
        let algorithm = self.algorithm;
        let key = |len| (0..len).map(|n| (n as u8).wrapping_add(generation as u8)).collect();
        Parameters {
            spi: FIRST + generation,
            algorithm,
            keys: Keys::new(key(algorithm.key_len()), key(algorithm.auth_key_len())),
            mode: self.mode(),
            esn: self.esn,
            encapsulation: self.udp.then_some(Encapsulation { source: PORT, destination: PORT }),
            soft: Lifetime::default(),
            hard: Lifetime::default(),
        }
    }

    fn header(&self) -> usize {
        if self.v6 { ip::IPV6_HEADER } else { ip::IPV4_HEADER }
    }

    /// Returns the length of the largest inner packet whose ESP packet fits `mtu`, bytes. The inner IP header counts as
    /// [`IP_HEADER`] bytes, even if it is IPv6.
    pub fn inner_mtu(&self, mtu: usize) -> usize {
        let largest = self.shape().max_packet_len(mtu, self.header());
        largest.map_or(0, |largest| largest - self.header() + IP_HEADER)
    }
}

fn address(v6: bool, n: u8) -> IpAddr {
    match v6 {
        false => [192, 0, 2, n].into(),
        true => [0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()].into(),
    }
}

/// Counters of refused packets and replaced SAs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets refused as replayed, too old, or with an impossible sequence number.
    pub replayed: u64,
    /// Packets refused as damaged, or because no SA matches.
    pub refused: u64,
    /// Replacements of an SA by a new one.
    pub rekeyed: u64,
}

impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.replayed += other.replayed;
        self.refused += other.refused;
        self.rekeyed += other.rekeyed;
    }
}

/// ESP state of sender and receiver in one direction.
#[derive(Debug)]
pub struct Esp {
    config: Config,
    generation: u32,
    outbound: Outbound,
    /// Valid SAs, the newest last.
    inbound: Vec<Inbound>,
    counters: Counters,
}

impl Esp {
    /// Creates both ends of the first SA.
    ///
    /// # Errors
    /// No SA can be created from the configuration.
    pub fn new(config: Config) -> Result<Esp, SaError> {
        let (outbound, inbound) = pair(&config, 0)?;
        let counters = Counters::default();
        Ok(Esp { config, generation: 0, outbound, inbound: vec![inbound], counters })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Seals a packet for the link; `protocol` is the IP protocol number of its bytes. Returns `None` if the packet
    /// cannot be sealed.
    pub fn seal(&mut self, now: Instant, packet: Packet, protocol: u8) -> Option<Packet> {
        let due = |every| self.outbound.used().packets >= every;
        if self.config.rekey.is_some_and(due) {
            self.rekey();
        }
        let Packet { bytes, ecn, flow } = packet;
        let ahead = self.outbound.shape().headroom();
        let total = self.config.header() + bytes.len();
        let mut buffer = vec![0; ahead];
        let ends = (address(self.config.v6, 1), address(self.config.v6, 2));
        push_header(&mut buffer, ends, total, protocol, traffic_class(ecn));
        buffer.extend(&bytes);
        buffer.resize(buffer.len() + 64, 0);
        let done = self.outbound.seal(&mut buffer, ahead..ahead + total, now).ok()?;
        let sealed = &buffer[done.packet];
        debug_assert_eq!(
            ip::traffic_class(sealed),
            traffic_class(ecn),
            "sealing copies ECN to the outer header"
        );
        // The first `IP_HEADER` bytes are omitted, because the link adds this length itself.
        Some(Packet { bytes: sealed[IP_HEADER..].to_vec(), ecn, flow })
    }

    /// Opens a packet at the receiver. Returns `None` if the packet is refused; the counters show why.
    pub fn open(&mut self, now: Instant, packet: Packet) -> Option<Packet> {
        let Packet { bytes, ecn, flow } = packet;
        let v6 = self.config.tunnel.unwrap_or(self.config.v6);
        let first = if self.config.tunnel.is_some() { 3 } else { 1 };
        let ends = (address(v6, first), address(v6, first + 1));
        let protocol = if self.config.udp { ip::UDP } else { ip::ESP };
        let mut buffer = Vec::new();
        push_header(&mut buffer, ends, IP_HEADER + bytes.len(), protocol, traffic_class(ecn));
        buffer.truncate(IP_HEADER);
        buffer.extend(&bytes);
        let len = buffer.len();
        let spi = find_esp(&buffer, Some(PORT)).map(|found| found.spi);
        let inbound = self.inbound.iter_mut().find(|sa| Some(sa.spi()) == spi);
        let opened = inbound.ok_or(Refusal::NotOfSa);
        match opened.and_then(|sa| sa.open(&mut buffer, 0..len, now)) {
            Ok(done) => {
                let inner = &buffer[done.packet];
                let header = Header::read(inner).ok()?.len;
                let ecn = match ip::traffic_class(inner) & 3 {
                    0 => Ecn::NotEct,
                    3 => Ecn::Ce,
                    _ => Ecn::Ect,
                };
                Some(Packet { bytes: inner[header..].to_vec(), ecn, flow })
            }
            Err(Refusal::Duplicate | Refusal::TooOld | Refusal::ImpossibleSequence) => {
                self.counters.replayed += 1;
                None
            }
            Err(_) => {
                self.counters.refused += 1;
                None
            }
        }
    }

    /// Replaces the SA. The receiver installs the new SA before the sender uses it.
    fn rekey(&mut self) {
        // Cannot fail: the first SA had the same parameters, apart from SPI and keys.
        let Ok((outbound, inbound)) = pair(&self.config, self.generation + 1) else { return };
        self.generation += 1;
        self.inbound.push(inbound);
        if self.inbound.len() > MAX_INBOUND_SAS {
            self.inbound.remove(0);
        }
        self.outbound = outbound;
        self.counters.rekeyed += 1;
    }
}

/// Creates the outbound and the inbound end of an SA. The first SA starts after [`Config::sequence`].
fn pair(config: &Config, generation: u32) -> Result<(Outbound, Inbound), SaError> {
    let parameters = config.parameters(generation);
    let mut outbound = Outbound::new(&parameters)?;
    let mut inbound = Inbound::new(&parameters, config.window)?;
    if generation == 0 && config.sequence > 0 {
        outbound.resume(config.sequence);
        inbound.resume(config.sequence);
    }
    Ok((outbound, inbound))
}

/// Returns the traffic class with these ECN bits. ECN-capable packets have ECT(0).
fn traffic_class(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::NotEct => 0,
        Ecn::Ect => 2,
        Ecn::Ce => 3,
    }
}

fn push_header(out: &mut Vec<u8>, ends: (IpAddr, IpAddr), total: usize, protocol: u8, class: u8) {
    match ends {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let len = ((total - ip::IPV6_HEADER) as u16).to_be_bytes();
            out.extend([0x60 | class >> 4, class << 4, 0, 0, len[0], len[1], protocol, 64]);
            out.extend(source.octets());
            out.extend(destination.octets());
        }
        (source, destination) => {
            let (len, at) = ((total as u16).to_be_bytes(), out.len());
            out.extend([0x45, class, len[0], len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0]);
            for end in [source, destination] {
                if let IpAddr::V4(end) = end {
                    out.extend(end.octets());
                }
            }
            ip::write_checksum(&mut out[at..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Config = Config {
        algorithm: Algorithm::AesGcm128,
        v6: false,
        tunnel: None,
        udp: false,
        esn: true,
        sequence: 0,
        window: 64,
        rekey: None,
    };

    fn packet(len: usize, ecn: Ecn) -> Packet {
        Packet { bytes: vec![7; len], ecn, flow: 0 }
    }

    #[test]
    fn sealed_packet_opens_once_with_ecn_and_not_if_damaged() {
        for algorithm in Algorithm::ALL {
            for (v6, tunnel, udp) in [
                (false, None, false),
                (true, None, true),
                (false, Some(true), true),
                (true, Some(false), false),
                (true, Some(true), false),
            ] {
                let mut esp = Esp::new(Config { algorithm, v6, tunnel, udp, ..CONFIG }).unwrap();
                for ecn in [Ecn::NotEct, Ecn::Ect] {
                    let mut sealed = esp.seal(Instant::ZERO, packet(100, ecn), 6).unwrap();
                    let mut damaged = sealed.clone();
                    *damaged.bytes.last_mut().unwrap() ^= 1;
                    assert_eq!(esp.open(Instant::ZERO, damaged), None);
                    let copy = sealed.clone();
                    if ecn == Ecn::Ect {
                        sealed.ecn = Ecn::Ce;
                    }
                    let marked = sealed.ecn;
                    assert_eq!(esp.open(Instant::ZERO, sealed), Some(packet(100, marked)));
                    assert_eq!(esp.open(Instant::ZERO, copy), None);
                }
                assert_eq!(esp.counters(), Counters { replayed: 2, refused: 2, rekeyed: 0 });
            }
        }
    }

    #[test]
    fn inner_mtu_packet_fits_and_one_byte_more_does_not() {
        for (v6, tunnel, udp) in [(false, None, false), (true, Some(true), true)] {
            let config = Config { v6, tunnel, udp, ..CONFIG };
            let inner = config.inner_mtu(1500);
            let mut esp = Esp::new(config).unwrap();
            let mut len = |len| {
                let sealed = esp.seal(Instant::ZERO, packet(len - IP_HEADER, Ecn::NotEct), 6);
                sealed.unwrap().bytes.len() + IP_HEADER
            };
            assert!(len(inner) <= 1500 && len(inner + 1) > 1500);
        }
    }

    #[test]
    fn previous_sa_is_accepted_and_older_sas_are_not() {
        let mut esp = Esp::new(Config { rekey: Some(2), ..CONFIG }).unwrap();
        let mut sealed: Vec<Packet> =
            (0..6).map(|_| esp.seal(Instant::ZERO, packet(50, Ecn::NotEct), 6).unwrap()).collect();
        assert_eq!(esp.counters().rekeyed, 2);
        sealed.reverse();
        let opened = sealed.into_iter().filter_map(|packet| esp.open(Instant::ZERO, packet));
        assert_eq!(opened.count(), 4);
        assert_eq!(esp.counters().refused, 2);
    }
}
