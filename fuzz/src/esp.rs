//! Fuzz target for IPsec: unauthenticated packets, packets sealed by a peer that has the keys, and packets sealed
//! locally.

use base::Instant;
use ipsec::crypto::{Algorithm, Keys, Transform};
use ipsec::guard::{Guard, InboundVerdict, OutboundVerdict, Protection, SaId};
use ipsec::ip;
use ipsec::policy::{Action, Policy, Selector, Spd};
use ipsec::sa::{Encapsulation, Fragments, Lifetime, Mode, Parameters, Tunnel};

const SPI: u32 = 0x0102_0304;
/// Free bytes in front of a packet, and as many after it.
const ROOM: usize = 160;

/// Configuration of both ends, from the first input byte.
struct EspSetup {
    algorithm: Algorithm,
    tunnel: bool,
    udp: bool,
    esn: bool,
}

impl EspSetup {
    fn from_byte(byte: u8) -> EspSetup {
        let algorithm = Algorithm::ALL[usize::from(byte & 15) % Algorithm::ALL.len()];
        EspSetup { algorithm, tunnel: byte & 16 != 0, udp: byte & 32 != 0, esn: byte & 64 != 0 }
    }

    fn keys(&self) -> Keys {
        let algorithm = self.algorithm;
        Keys::new(vec![1; algorithm.key_len()], vec![2; algorithm.auth_key_len()])
    }

    fn parameters(&self) -> Parameters {
        let tunnel = Tunnel {
            source: [192, 0, 2, 1].into(),
            destination: [192, 0, 2, 2].into(),
            ttl: 64,
            dscp: None,
            ecn: true,
            fragments: Fragments::Copy,
        };
        Parameters {
            spi: SPI,
            algorithm: self.algorithm,
            keys: self.keys(),
            mode: if self.tunnel { Mode::Tunnel(tunnel) } else { Mode::Transport },
            esn: self.esn,
            encapsulation: self.udp.then_some(Encapsulation { source: 4500, destination: 4500 }),
            soft: Lifetime::default(),
            hard: Lifetime::default(),
        }
    }
}

/// Returns a guard that protects all packets except UDP over IPv4 with remote port 9, which stays in clear text.
fn build_guard(suite: &EspSetup) -> Guard {
    let policy = |net: &str, protocol, port: Option<u16>, action| {
        let net = net.parse().unwrap();
        let ports = port.map_or(0..=u16::MAX, |port| port..=port);
        let (local_ports, remote_ports) = (0..=u16::MAX, ports);
        let selector = Selector { local: net, remote: net, protocol, local_ports, remote_ports };
        Policy { direction: None, selector, action }
    };
    let policies = vec![
        policy("0.0.0.0/0", Some(17), Some(9), Action::Bypass),
        policy("0.0.0.0/0", None, None, Action::Protect(Protection(0))),
        policy("::/0", None, None, Action::Protect(Protection(0))),
    ];
    let mut guard = Guard::new(0, Spd::new(policies).unwrap(), [0]);
    let parameters = suite.parameters();
    guard.add_outbound(SaId(1), Protection(0), &parameters, None).unwrap();
    guard.add_inbound(SaId(2), Protection(0), &parameters, 64, 0).unwrap();
    guard
}

/// Passes a received packet to the guard. Returns the inner packet if it was opened.
fn receive(guard: &mut Guard, packet: &[u8]) -> Option<Vec<u8>> {
    let Ok(InboundVerdict::Protected(spi)) = guard.inbound_verdict(packet, Instant::ZERO) else {
        return None;
    };
    let mut buffer = packet.to_vec();
    let (out, _) = guard.open(spi, &mut buffer, 0..packet.len(), Instant::ZERO).ok()?;
    assert!(out.start <= out.end && out.end <= packet.len(), "{out:?}");
    Some(buffer[out].to_vec())
}

pub(crate) fn esp(data: &[u8]) {
    let Some((&first, packet)) = data.split_first() else { return };
    let suite = EspSetup::from_byte(first);
    feed_without_keys(&suite, packet);
    feed_sealed_by_peer(&suite, packet);
    check_round_trip(&suite, packet);
}

/// Passes the input to a guard as a packet from a host without keys.
fn feed_without_keys(suite: &EspSetup, packet: &[u8]) {
    let mut guard = build_guard(suite);
    receive(&mut guard, packet);
    while guard.take_notice().is_some() {}
}

/// Seals `content` with the keys of the peer. `content` is the whole encrypted part of the ESP packet, so padding, pad
/// length and next header are arbitrary. Checks that an opened packet is not longer than the ESP packet, and that a
/// replay is dropped.
fn feed_sealed_by_peer(suite: &EspSetup, content: &[u8]) {
    let algorithm = suite.algorithm;
    let block = algorithm.block();
    let len = content.len().min(1400) / block * block;
    let front = if suite.udp { 8 } else { 0 };
    let header = 20 + front;
    let body = header + 8 + algorithm.iv_len();
    let total = body + len + algorithm.icv_len();
    let mut out = vec![0; total];
    out[0] = 0x45;
    out[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    (out[8], out[9]) = (64, if suite.udp { ip::UDP } else { ip::ESP });
    out[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    ip::write_checksum(&mut out[..20]);
    if suite.udp {
        out[20..28].copy_from_slice(&[0x11, 0x94, 0x11, 0x94, 0, 0, 0, 0]);
    }
    out[header..header + 4].copy_from_slice(&SPI.to_be_bytes());
    out[header + 7] = 1;
    out[body..body + len].copy_from_slice(&content[..len]);
    let transform = Transform::new(algorithm, &suite.keys()).unwrap();
    if transform.seal(&mut out, header, body + len, 1, suite.esn).is_ok() {
        let mut guard = build_guard(suite);
        let inner = receive(&mut guard, &out);
        assert!(inner.is_none_or(|inner| inner.len() <= total));
        // A replay must be dropped.
        assert!(receive(&mut guard, &out).is_none(), "replayed");
    }
}

/// Seals a local packet and opens it. An IPv6 packet must open to the same bytes.
fn check_round_trip(suite: &EspSetup, packet: &[u8]) {
    let mut guard = build_guard(suite);
    let Ok(OutboundVerdict::Protect { protection, headroom: ahead, total, .. }) =
        guard.outbound_verdict(packet, Instant::ZERO)
    else {
        return;
    };
    let mut buffer = [&[0; ROOM][..], packet, &[0; ROOM]].concat();
    let at = ROOM..ROOM + packet.len();
    let Ok(out) = guard.seal(protection, &mut buffer, at, Instant::ZERO) else { return };
    assert_eq!((out.start, out.len()), (ROOM - ahead, total));
    let sealed = buffer[out].to_vec();
    // Bytes after the IP packet's length do not belong to the packet.
    if let Some(opened) = receive(&mut guard, &sealed)
        && packet[0] >> 4 == 6
    {
        assert_eq!(opened, packet[..opened.len()]);
    }
}
