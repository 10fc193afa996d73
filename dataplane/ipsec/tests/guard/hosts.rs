//! Hosts with policies and SAs, and a worker's decisions on packets between them.

use std::net::Ipv4Addr;

use base::Instant;
use ipsec::crypto::{Algorithm, Keys};
use ipsec::guard::{Guard, InboundVerdict, IpsecDrop, OutboundVerdict, Protection, SaId};
use ipsec::policy::{Action, Policy, Selector, Spd};
use ipsec::sa::{Fragments, Lifetime, Mode, Parameters, Tunnel};

pub(crate) const NOW: Instant = Instant::from_millis(5000);
pub(crate) const HEADROOM: usize = 128;
pub(crate) const STRONG: Protection = Protection(0);
pub(crate) const OTHER: Protection = Protection(1);

pub(crate) fn address(n: u8) -> Ipv4Addr {
    [10, 0, 0, n].into()
}

pub(crate) fn policy(
    remote: &str,
    protocol: Option<u8>,
    action: Action<Protection>,
) -> Policy<Protection> {
    let selector = Selector {
        local: "0.0.0.0/0".parse().unwrap(),
        remote: remote.parse().unwrap(),
        protocol,
        local_ports: 0..=u16::MAX,
        remote_ports: 0..=u16::MAX,
    };
    Policy { direction: None, selector, action }
}

/// Returns a guard that protects packets to 10.0.0.0/28 and to 10.0.0.16/28 with different protections. UDP passes in
/// clear.
pub(crate) fn guard(worker: u16, owners: [u16; 2]) -> Guard {
    let policies = vec![
        policy("10.0.0.0/8", Some(17), Action::Bypass),
        policy("10.0.0.0/28", None, Action::Protect(STRONG)),
        policy("10.0.0.16/28", None, Action::Protect(OTHER)),
    ];
    Guard::new(worker, Spd::new(policies).unwrap(), owners)
}

pub(crate) fn parameters(spi: u32, mode: Mode) -> Parameters {
    Parameters {
        spi,
        algorithm: Algorithm::AesGcm128,
        keys: Keys::new(vec![7; 20], Vec::new()),
        mode,
        esn: true,
        encapsulation: None,
        soft: Lifetime::default(),
        hard: Lifetime::default(),
    }
}

/// Returns the SA's identifier, which in these tests is its SPI.
pub(crate) fn id(parameters: &Parameters) -> SaId {
    SaId(parameters.spi.into())
}

/// Returns an IPv4 packet between two hosts. Its payload has `len` bytes and begins with ports 1000 and 2000.
pub(crate) fn packet(protocol: u8, source: u8, destination: u8, len: usize) -> Vec<u8> {
    let mut out = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    out.extend(address(source).octets());
    out.extend(address(destination).octets());
    out.extend([1000u16.to_be_bytes(), 2000u16.to_be_bytes()].concat());
    out.resize(20 + len, 0x5a);
    let total = (out.len() as u16).to_be_bytes();
    out[2..4].copy_from_slice(&total);
    ipsec::ip::write_checksum(&mut out[..20]);
    out
}

/// Sends a packet according to the guard's verdict. Returns the packet on the wire.
pub(crate) fn send(guard: &mut Guard, packet: &[u8], now: Instant) -> Result<Vec<u8>, IpsecDrop> {
    match guard.outbound_verdict(packet, now)? {
        OutboundVerdict::Clear => Ok(packet.to_vec()),
        OutboundVerdict::OtherWorker(_) => panic!("another worker owns the SA"),
        OutboundVerdict::AwaitSa(_) => Err(IpsecDrop::NoSa),
        OutboundVerdict::Protect { protection, headroom: ahead, total, .. } => {
            let mut buffer = vec![0; HEADROOM];
            buffer.extend(packet);
            buffer.resize(buffer.len() + HEADROOM, 0);
            let at = HEADROOM..HEADROOM + packet.len();
            let out = guard.seal(protection, &mut buffer, at, now)?;
            assert_eq!((out.start, out.len()), (HEADROOM - ahead, total));
            Ok(buffer[out].to_vec())
        }
    }
}

pub(crate) fn receive(
    guard: &mut Guard,
    packet: &[u8],
    now: Instant,
) -> Result<Vec<u8>, IpsecDrop> {
    match guard.inbound_verdict(packet, now)? {
        InboundVerdict::Clear => Ok(packet.to_vec()),
        InboundVerdict::OtherWorker(_) | InboundVerdict::Fragment | InboundVerdict::Keepalive => {
            panic!("not ours")
        }
        InboundVerdict::Protected(spi) => {
            let mut buffer = packet.to_vec();
            let (out, _) = guard.open(spi, &mut buffer, 0..packet.len(), now)?;
            Ok(buffer[out].to_vec())
        }
    }
}

/// Returns the guards of hosts 1 and 2, with SAs in both directions.
pub(crate) fn pair(mode: impl Fn(u8, u8) -> Mode) -> (Guard, Guard) {
    let (mut a, mut b) = (guard(0, [0, 0]), guard(0, [0, 0]));
    let (there, back) = (parameters(1001, mode(1, 2)), parameters(1002, mode(2, 1)));
    a.add_outbound(id(&there), STRONG, &there, None).unwrap();
    b.add_inbound(id(&there), STRONG, &there, 64, 0).unwrap();
    b.add_outbound(id(&back), STRONG, &back, None).unwrap();
    a.add_inbound(id(&back), STRONG, &back, 64, 0).unwrap();
    (a, b)
}

pub(crate) fn transport(_: u8, _: u8) -> Mode {
    Mode::Transport
}

pub(crate) fn tunnel(from: u8, to: u8) -> Mode {
    Mode::Tunnel(Tunnel {
        source: [192, 0, 2, from].into(),
        destination: [192, 0, 2, to].into(),
        ttl: 64,
        dscp: None,
        ecn: true,
        fragments: Fragments::Copy,
    })
}
