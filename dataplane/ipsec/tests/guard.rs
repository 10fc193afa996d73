//! What a worker does with packets: what comes out of one guard goes into another, and nothing else.
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base::Instant;
use ipsec::crypto::{Algorithm, Keys};
use ipsec::esp::Refused;
use ipsec::guard::{
    Direction, Drop, Guard, Incoming, Notice, Outgoing, Protection, ReplayWindows, SaId,
};
use ipsec::policy::{Action, Denied, Flow, Policy, Selector, Spd};
use ipsec::sa::{Fragments, Lifetime, Mode, Parameters, Tunnel};
use ipsec::strength::Strength;

const NOW: Instant = Instant::from_millis(5000);
const ROOM: usize = 128;
const STRONG: Protection = Protection(0);
const OTHER: Protection = Protection(1);

fn address(n: u8) -> Ipv4Addr {
    [10, 0, 0, n].into()
}

fn policy(remote: &str, protocol: Option<u8>, action: Action<Protection>) -> Policy<Protection> {
    let selector = Selector {
        local: "0.0.0.0/0".parse().unwrap(),
        remote: remote.parse().unwrap(),
        protocol,
        local_ports: 0..=u16::MAX,
        remote_ports: 0..=u16::MAX,
    };
    Policy { direction: None, selector, action }
}

/// TCP with 10.0.0.0/28 is protected by one protection, with 10.0.0.16/28 by another; UDP passes.
fn guard(worker: u16, owners: [u16; 2]) -> Guard {
    let policies = vec![
        policy("10.0.0.0/8", Some(17), Action::Bypass),
        policy("10.0.0.0/28", None, Action::Protect(STRONG)),
        policy("10.0.0.16/28", None, Action::Protect(OTHER)),
    ];
    Guard::new(worker, Spd::new(policies).unwrap(), owners)
}

fn parameters(spi: u32, mode: Mode) -> Parameters {
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

/// Tests name SAs by their SPIs.
fn id(parameters: &Parameters) -> SaId {
    SaId(parameters.spi.into())
}

/// A packet with ports 1000 and 2000.
fn packet(protocol: u8, source: u8, destination: u8, len: usize) -> Vec<u8> {
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

/// A packet goes out as it is to.
fn send(guard: &mut Guard, packet: &[u8], now: Instant) -> Result<Vec<u8>, Drop> {
    match guard.outgoing(packet, now)? {
        Outgoing::Clear => Ok(packet.to_vec()),
        Outgoing::Elsewhere(_) => panic!("another worker's"),
        Outgoing::Wait(_) => Err(Drop::NoSa),
        Outgoing::Protect { protection, ahead, total, .. } => {
            let mut buffer = vec![0; ROOM];
            buffer.extend(packet);
            buffer.resize(buffer.len() + ROOM, 0);
            let at = ROOM..ROOM + packet.len();
            let out = guard.seal(protection, &mut buffer, at, now)?;
            assert_eq!((out.start, out.len()), (ROOM - ahead, total));
            Ok(buffer[out].to_vec())
        }
    }
}

fn receive(guard: &mut Guard, packet: &[u8], now: Instant) -> Result<Vec<u8>, Drop> {
    match guard.incoming(packet, now)? {
        Incoming::Clear => Ok(packet.to_vec()),
        Incoming::Elsewhere(_) | Incoming::Piece | Incoming::Keepalive => panic!("not ours"),
        Incoming::Protected(spi) => {
            let mut buffer = packet.to_vec();
            let (out, _) = guard.open(spi, &mut buffer, 0..packet.len(), now)?;
            Ok(buffer[out].to_vec())
        }
    }
}

/// Host 1 with SAs to and from host 2.
fn pair(mode: impl Fn(u8, u8) -> Mode) -> (Guard, Guard) {
    let (mut a, mut b) = (guard(0, [0, 0]), guard(0, [0, 0]));
    let (there, back) = (parameters(1001, mode(1, 2)), parameters(1002, mode(2, 1)));
    a.add_outbound(id(&there), STRONG, &there, None).unwrap();
    b.add_inbound(id(&there), STRONG, &there, (64, 0)).unwrap();
    b.add_outbound(id(&back), STRONG, &back, None).unwrap();
    a.add_inbound(id(&back), STRONG, &back, (64, 0)).unwrap();
    (a, b)
}

fn transport(_: u8, _: u8) -> Mode {
    Mode::Transport
}

fn tunnel(from: u8, to: u8) -> Mode {
    Mode::Tunnel(Tunnel {
        source: [192, 0, 2, from].into(),
        destination: [192, 0, 2, to].into(),
        ttl: 64,
        dscp: None,
        ecn: true,
        fragments: Fragments::Copy,
    })
}

#[test]
fn what_one_protects_the_other_takes() {
    for mode in [transport, tunnel] {
        let (mut a, mut b) = pair(mode);
        for len in [4, 40, 1400] {
            let clear = packet(6, 1, 2, len);
            let sealed = send(&mut a, &clear, NOW).unwrap();
            assert_ne!(sealed, clear);
            assert_eq!(receive(&mut b, &sealed, NOW), Ok(clear));
            let back = packet(6, 2, 1, len);
            let sealed = send(&mut b, &back, NOW).unwrap();
            assert_eq!(receive(&mut a, &sealed, NOW), Ok(back));
        }
        assert_eq!((a.counts().sealed, a.counts().opened), (3, 3));
        assert_eq!(a.counts().sealed_bytes, 3 * 20 + 4 + 40 + 1400);
        assert!(!a.has_notices() && !b.has_notices());
    }
}

#[test]
fn a_bypass_goes_in_clear_both_ways() {
    let (mut a, mut b) = pair(transport);
    let clear = packet(17, 1, 2, 100);
    assert_eq!(send(&mut a, &clear, NOW).unwrap(), clear);
    assert_eq!(receive(&mut b, &clear, NOW).unwrap(), clear);
}

#[test]
fn what_is_to_be_protected_is_neither_taken_nor_sent_in_clear() {
    let (mut a, mut b) = pair(transport);
    let clear = packet(6, 1, 2, 100);
    assert_eq!(receive(&mut b, &clear, NOW), Err(Denied::Unprotected.into()));
    assert!(matches!(b.take_notice(), Some(Notice::Audit { spi: None, flow: Some(_), .. })));
    // Nobody has an SA for it yet: it is asked for once a second.
    let other = packet(6, 1, 20, 100);
    for _ in 0..5 {
        assert_eq!(send(&mut a, &other, NOW), Err(Drop::NoSa));
    }
    assert!(matches!(a.take_notice(), Some(Notice::Wanted { protection: OTHER, .. })));
    assert_eq!(a.take_notice(), None);
    assert_eq!(send(&mut a, &other, NOW + Duration::from_secs(1)), Err(Drop::NoSa));
    assert!(matches!(a.take_notice(), Some(Notice::Wanted { .. })));
    assert_eq!(send(&mut a, &packet(6, 1, 200, 9), NOW), Err(Denied::NoPolicy.into()));
}

// RFC 4301 §5.2: the SA's own policy must select what came by it.
#[test]
fn an_sa_carries_only_what_its_policy_selects() {
    let (mut a, mut b) = pair(tunnel);
    // The peer puts a packet of another policy, or of none, or in clear, into the tunnel.
    for (clear, why) in [
        (packet(6, 20, 2, 60), Denied::WrongProtection),
        (packet(17, 1, 2, 60), Denied::WrongProtection),
        (packet(6, 200, 2, 60), Denied::NoPolicy),
    ] {
        let mut buffer = vec![0; ROOM];
        buffer.extend(&clear);
        buffer.resize(buffer.len() + ROOM, 0);
        let out = a.seal(STRONG, &mut buffer, ROOM..ROOM + clear.len(), NOW).unwrap();
        assert_eq!(receive(&mut b, &buffer[out], NOW), Err(why.into()));
        assert!(matches!(b.take_notice(), Some(Notice::Audit { spi: Some(1001), .. })));
    }
}

#[test]
fn replayed_changed_and_unknown_packets_are_told_but_not_too_often() {
    let (mut a, mut b) = pair(transport);
    let sealed = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    receive(&mut b, &sealed, NOW).unwrap();
    for _ in 0..100 {
        assert_eq!(receive(&mut b, &sealed, NOW), Err(Refused::Duplicate.into()));
    }
    let mut changed = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    changed[60] ^= 1;
    assert_eq!(receive(&mut b, &changed, NOW), Err(Refused::Integrity.into()));
    changed[60] ^= 1;
    receive(&mut b, &changed, NOW).unwrap();
    changed[23] ^= 1;
    assert_eq!(receive(&mut b, &changed, NOW), Err(Drop::UnknownSpi));
    let mut told = Vec::new();
    while let Some(notice) = b.take_notice() {
        told.push(notice);
    }
    assert_eq!(told.len(), 16);
    assert!(b.counts().notices_lost >= 86);
    let Notice::Audit { why, spi, flow: Some(flow), sequence } = &told[0] else { panic!() };
    assert_eq!((*why, *spi, *sequence), (Refused::Duplicate.into(), Some(1001), Some(1)));
    assert_eq!((flow.local, flow.remote), (address(2).into(), address(1).into()));
}

#[test]
fn the_newest_sa_sends_and_all_receive_until_they_are_removed() {
    let (mut a, mut b) = pair(transport);
    let old = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    let next = parameters(3001, Mode::Transport);
    b.add_inbound(id(&next), STRONG, &next, (64, 0)).unwrap();
    a.add_outbound(id(&next), STRONG, &next, None).unwrap();
    let new = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    assert_eq!(new[20..24], 3001u32.to_be_bytes());
    receive(&mut b, &new, NOW).unwrap();
    receive(&mut b, &old, NOW).unwrap();
    assert_eq!(a.sas().filter(|sa| sa.direction == Direction::Out).count(), 2);
    assert!(a.remove(SaId(1001), Direction::Out) && !a.remove(SaId(1001), Direction::Out));
    assert!(b.remove(SaId(1001), Direction::In));
    assert_eq!(receive(&mut b, &old, NOW), Err(Drop::UnknownSpi));
    // The last one goes, too: what is to be sent waits for the next.
    assert!(a.remove(SaId(3001), Direction::Out));
    assert_eq!(send(&mut a, &packet(6, 1, 2, 100), NOW), Err(Drop::NoSa));
}

#[test]
fn another_workers_packets_go_there() {
    let (mut a, _) = pair(transport);
    let mut b = guard(1, [0, 0]);
    let there = parameters(1001, Mode::Transport);
    b.add_inbound(id(&there), STRONG, &there, (64, 0)).unwrap();
    let back = parameters(1002, Mode::Transport);
    b.add_outbound(id(&back), STRONG, &back, None).unwrap();
    let sealed = send(&mut a, &packet(6, 1, 2, 100), NOW).unwrap();
    assert_eq!(b.incoming(&sealed, NOW), Ok(Incoming::Elsewhere(0)));
    assert_eq!(b.outgoing(&packet(6, 2, 1, 100), NOW), Ok(Outgoing::Elsewhere(0)));
    assert_eq!(b.sas().count(), 0);
    // It knows how long packets become all the same.
    let flow = Flow::read(&packet(6, 2, 1, 100), false).unwrap();
    assert_eq!(b.largest(&flow, 1500, 20, NOW), a.largest(&flow, 1500, 20, NOW));
    assert!(b.largest(&flow, 1500, 20, NOW).unwrap() < 1500);
}

#[test]
fn only_reserved_sequence_numbers_are_used() {
    let mut a = guard(0, [0, 0]);
    let there = parameters(1001, Mode::Transport);
    a.add_outbound(id(&there), STRONG, &there, Some((101, 10))).unwrap();
    let clear = packet(6, 1, 2, 60);
    let sequence = |sealed: &[u8]| u32::from_be_bytes(sealed[24..28].try_into().unwrap());
    for n in 101..=105 {
        assert_eq!(sequence(&send(&mut a, &clear, NOW).unwrap()), n);
        assert!(!a.has_notices());
    }
    assert_eq!(sequence(&send(&mut a, &clear, NOW).unwrap()), 106);
    assert_eq!(a.take_notice(), Some(Notice::Reserve(SaId(1001))));
    for _ in 107..=110 {
        send(&mut a, &clear, NOW).unwrap();
    }
    assert_eq!(send(&mut a, &clear, NOW), Err(Refused::Unreserved.into()));
    // The SA is not over, and nobody is told that it is.
    assert_eq!(a.take_notice(), None);
    a.reserve(SaId(1001), 120);
    assert_eq!(sequence(&send(&mut a, &clear, NOW).unwrap()), 111);
}

#[test]
fn fragments_in_clear_pass_only_where_no_policy_protects_their_packet() {
    let mut a = guard(0, [0, 0]);
    let piece = |protocol, source| {
        let mut piece = packet(protocol, source, 1, 64);
        piece[6..8].copy_from_slice(&[0x20, 0]);
        piece
    };
    // What is put together is looked up then; what is not, is judged by what its packet may be.
    for (protocol, source, judged) in [
        (6, 2, Err(Denied::Unprotected.into())),
        (50, 2, Err(Denied::Unprotected.into())),
        (47, 2, Err(Denied::Unprotected.into())),
        (47, 200, Err(Denied::NoPolicy.into())),
        (17, 2, Ok(())),
    ] {
        let piece = piece(protocol, source);
        assert_eq!(a.incoming(&piece, NOW), Ok(Incoming::Piece));
        assert_eq!(a.piece(&piece, NOW), judged, "{protocol}");
    }
    // To the wire too: a policy for ports does not see them.
    let mut out = packet(6, 1, 2, 64);
    out[6] |= 0x20;
    assert_eq!(a.outgoing(&out, NOW), Err(Denied::Unprotected.into()));
    let mut out = packet(17, 1, 2, 64);
    out[6] |= 0x20;
    assert_eq!(a.outgoing(&out, NOW), Ok(Outgoing::Clear));
}

#[test]
fn a_flow_knows_its_tunnel() {
    let (mut a, _) = pair(tunnel);
    let flow = Flow::read(&packet(6, 1, 2, 40), false).unwrap();
    assert_eq!(a.tunnel(&flow), Some(IpAddr::from([192, 0, 2, 2])));
    let udp = Flow::read(&packet(17, 1, 2, 40), false).unwrap();
    assert_eq!(a.tunnel(&udp), None);
    assert_eq!(a.largest(&udp, 1500, 20, NOW), Some(1500));
}

// The lists of an IKE daemon change while packets pass: what stays protected keeps its SAs.
#[test]
fn other_policies_count_at_once_and_sas_stay() {
    let (mut a, mut b) = pair(transport);
    let clear = packet(6, 1, 2, 60);
    let sealed = send(&mut a, &clear, NOW).unwrap();
    assert_eq!(receive(&mut b, &sealed, NOW).as_ref(), Ok(&clear));
    let next = || {
        let list = vec![
            policy("10.0.0.0/8", Some(17), Action::Discard),
            policy("10.0.0.0/24", None, Action::Protect(STRONG)),
            policy("10.0.1.0/24", None, Action::Protect(Protection(2))),
        ];
        Spd::of_others(list, ipsec::policy::Unselected::PASS)
    };
    for guard in [&mut a, &mut b] {
        guard.set_policies(next(), [0, 0, 1]);
    }
    let sealed = send(&mut a, &clear, NOW).unwrap();
    assert_eq!(receive(&mut b, &sealed, NOW), Ok(clear));
    assert_eq!(send(&mut a, &packet(17, 1, 2, 60), NOW), Err(Denied::Discarded.into()));
    // Those that came belong to whom the list says.
    let mut beyond = packet(6, 1, 2, 60);
    beyond[18] = 1;
    assert_eq!(a.outgoing(&beyond, NOW), Ok(Outgoing::Elsewhere(1)));
    beyond[16] = 11;
    assert_eq!(a.outgoing(&beyond, NOW), Ok(Outgoing::Clear));
}

#[test]
fn a_receiver_goes_on_where_another_was() {
    let (mut a, _) = pair(transport);
    let there = parameters(1001, Mode::Transport);
    let first: Vec<_> =
        (0..100).map(|_| send(&mut a, &packet(6, 1, 2, 60), NOW).unwrap()).collect();
    let mut b = guard(0, [0, 0]);
    b.add_inbound(id(&there), STRONG, &there, (64, 90)).unwrap();
    for (n, sealed) in (1..).zip(&first) {
        let taken = receive(&mut b, sealed, NOW);
        // Left of the window it is taken for one of 2^32 later (RFC 4303 appendix A2.2), whose ICV is another.
        let why = if n <= 26 { Refused::Integrity } else { Refused::Duplicate };
        if n <= 90 {
            assert_eq!(taken, Err(why.into()), "{n}");
        } else {
            assert!(taken.is_ok(), "{n}");
        }
    }
}

// RFC 4301 §8.2.1: what a router reports about ESP makes the packets inside shorter.
#[test]
fn a_reported_path_mtu_counts_if_the_quoted_packet_may_have_been_ours() {
    let (mut a, _) = pair(transport);
    let flow = Flow::read(&packet(6, 1, 2, 40), false).unwrap();
    let whole = a.largest(&flow, 1500, 20, NOW).unwrap();
    // Nothing was sent yet: nobody can have seen anything.
    assert!(!a.too_big(1001, 1, 1400, NOW));
    (0..3).for_each(|_| drop(send(&mut a, &packet(6, 1, 2, 40), NOW)));
    for (spi, sequence) in [(1002, 2), (1001, 0), (1001, 4), (1001, u32::MAX)] {
        assert!(!a.too_big(spi, sequence, 1400, NOW), "{spi} {sequence}");
    }
    assert!(a.too_big(1001, 2, 1400, NOW));
    // A later report of more does not take it back.
    assert!(a.too_big(1001, 3, 1450, NOW));
    assert_eq!(a.largest(&flow, 1500, 20, NOW), Some(whole - 100));
    let Ok(Outgoing::Protect { path_mtu, .. }) = a.outgoing(&packet(6, 1, 2, 40), NOW) else {
        panic!()
    };
    assert_eq!(path_mtu, Some(1400));
    let later = NOW + Duration::from_secs(600);
    let Ok(Outgoing::Protect { path_mtu, .. }) = a.outgoing(&packet(6, 1, 2, 40), later) else {
        panic!()
    };
    assert_eq!(path_mtu, None);
    assert_eq!(a.largest(&flow, 1500, 20, later), Some(whole));
}

#[test]
fn a_flow_is_as_strong_as_the_weakest_of_its_sas() {
    let mut a = guard(0, [0, 0]);
    let flow = Flow::read(&packet(6, 1, 2, 40), false).unwrap();
    let of = |spi, algorithm: Algorithm| Parameters {
        algorithm,
        keys: Keys::new(vec![7; algorithm.key_len()], vec![7; algorithm.auth_key_len()]),
        ..parameters(spi, Mode::Transport)
    };
    assert_eq!(a.strength(&flow), None);
    let strong = of(1001, Algorithm::AesGcm256);
    a.add_outbound(id(&strong), STRONG, &strong, None).unwrap();
    assert_eq!(a.strength(&flow), None);
    a.add_inbound(id(&strong), STRONG, &strong, (64, 0)).unwrap();
    assert_eq!(a.strength(&flow), Some(Strength::of_bits(256)));
    for (spi, algorithm, bits) in
        [(1002, Algorithm::AesGcm128, 128), (1003, Algorithm::NullHmacSha256, 0)]
    {
        let weaker = of(spi, algorithm);
        a.add_inbound(id(&weaker), STRONG, &weaker, (64, 0)).unwrap();
        assert_eq!(a.strength(&flow), Some(Strength::of_bits(bits)));
    }
    let udp = Flow::read(&packet(17, 1, 2, 40), false).unwrap();
    assert_eq!(a.strength(&udp), None);
}

// RFC 4303 §3.3.3: another SA is asked for before the numbers of this one end.
#[test]
fn an_sa_without_esn_is_renewed_before_its_numbers_end() {
    let mut a = guard(0, [0, 0]);
    let short = Parameters { esn: false, ..parameters(1001, Mode::Transport) };
    let last = u64::from(u32::MAX);
    let near = last / 16 * 15;
    a.add_outbound(id(&short), STRONG, &short, Some((near, 10))).unwrap();
    send(&mut a, &packet(6, 1, 2, 40), NOW).unwrap();
    assert_eq!(a.take_notice(), None);
    send(&mut a, &packet(6, 1, 2, 40), NOW).unwrap();
    assert_eq!(a.take_notice(), Some(Notice::Soft(SaId(1001))));
    send(&mut a, &packet(6, 1, 2, 40), NOW).unwrap();
    assert_eq!(a.take_notice(), None, "once");
}

// The kernel seals by an SA that is mirrored: both would use each sequence number.
#[test]
fn what_somebody_else_sealed_by_an_sa_of_ours_is_not_sent() {
    let (mut a, mut other) = pair(transport);
    let there = parameters(1001, Mode::Transport);
    other.add_outbound(SaId(9), STRONG, &there, None).unwrap();
    let sealed = send(&mut other, &packet(6, 1, 2, 60), NOW).unwrap();
    assert_eq!(a.outgoing(&sealed, NOW), Err(Drop::Twice));
    let mut in_udp = packet(17, 1, 2, 60);
    in_udp[20..24].copy_from_slice(&[0x11, 0x94, 0x12, 0x34]);
    in_udp[28..32].copy_from_slice(&1001u32.to_be_bytes());
    assert_eq!(a.outgoing(&in_udp, NOW), Err(Drop::Twice));
    // IKE beside it, and ESP of others, which is not sealed again.
    in_udp[28..32].fill(0);
    assert_eq!(a.outgoing(&in_udp, NOW), Ok(Outgoing::Clear));
    let foreign = parameters(7001, Mode::Transport);
    other.add_outbound(id(&foreign), STRONG, &foreign, None).unwrap();
    let sealed = send(&mut other, &packet(6, 1, 2, 60), NOW).unwrap();
    assert_eq!(a.outgoing(&sealed, NOW), Ok(Outgoing::Clear));
    // Where all SAs are to be ours it may be one that is on its way here.
    a.seals_alone();
    assert_eq!(a.outgoing(&sealed, NOW), Err(Drop::Twice));
    a.remove(SaId(1001), Direction::Out);
    assert_eq!(a.outgoing(&packet(6, 1, 2, 60), NOW), Ok(Outgoing::Wait(STRONG)));
}

#[test]
fn an_older_sa_may_be_chosen_again() {
    let (mut a, _) = pair(transport);
    let next = parameters(3001, Mode::Transport);
    a.add_outbound(id(&next), STRONG, &next, None).unwrap();
    let spi = |a: &mut Guard| send(a, &packet(6, 1, 2, 60), NOW).unwrap()[20..24].to_vec();
    assert_eq!(spi(&mut a), 3001u32.to_be_bytes());
    a.select(SaId(1001));
    assert_eq!(spi(&mut a), 1001u32.to_be_bytes());
    a.remove(SaId(1001), Direction::Out);
    assert_eq!(spi(&mut a), 3001u32.to_be_bytes());
}

/// An IPv6 packet to host 2 from `source`: these headers, each with the number of the one before it, then 8 bytes of TCP.
fn v6(headers: &[(u8, &[u8])], tail: &[u8]) -> Vec<u8> {
    let first = headers.first().map_or(6, |(kind, _)| *kind);
    let mut out = vec![0x60, 0, 0, 0, 0, 0, first, 64];
    out.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    out.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    for (at, (_, bytes)) in headers.iter().enumerate() {
        let next = headers.get(at + 1).map_or(6, |(kind, _)| *kind);
        out.push(next);
        out.extend(*bytes);
    }
    out.extend(tail);
    let len = (out.len() as u16 - 40).to_be_bytes();
    out[4..6].copy_from_slice(&len);
    out
}

// RFC 6946, RFC 8200 §4: what a receiver makes of a chain of headers is what policies see.
#[test]
fn extension_headers_hide_no_port_from_a_policy() {
    let mut protect = policy("0.0.0.0/0", Some(6), Action::Protect(STRONG));
    protect.selector.local = "::/0".parse().unwrap();
    protect.selector.remote = "::/0".parse().unwrap();
    protect.selector.local_ports = 7471..=7471;
    let mut rest = protect.clone();
    (rest.selector.protocol, rest.selector.local_ports) = (None, 0..=u16::MAX);
    rest.action = Action::Bypass;
    let mut guard = Guard::new(0, Spd::new(vec![protect, rest]).unwrap(), [0]);
    let tcp = |port: u16| [&[0x30, 0x39][..], &port.to_be_bytes(), &[0; 16]].concat();
    let (options, routing) = ((60, &[0, 1, 4, 0, 0, 0, 0][..]), (43, &[0, 0, 0, 0, 0, 0, 0][..]));
    let hop = (0, &[0, 1, 4, 0, 0, 0, 0][..]);
    let whole = (44, &[0, 0, 0, 1, 2, 3, 4][..]);
    let many = [options; 9];
    for headers in [
        &[][..],
        &[options],
        &[whole],
        &[hop, options, routing, whole, options],
        &[options, whole],
        // Too long a chain to be seen to its end: it may be anything.
        &many,
    ] {
        let clear = v6(headers, &tcp(7471));
        assert_eq!(guard.incoming(&clear, NOW), Err(Denied::Unprotected.into()), "{headers:?}");
    }
    for headers in [&[][..], &[options], &[whole], &[hop, options, routing, whole, options]] {
        assert_eq!(guard.incoming(&v6(headers, &tcp(22)), NOW), Ok(Incoming::Clear));
    }
    // A fragment, and one whose protocol does not show.
    for headers in
        [&[(44, &[0, 0, 1, 1, 2, 3, 4][..])][..], &[(44, &[0, 0, 9, 1, 2, 3, 4][..]), options]]
    {
        let piece = v6(headers, &tcp(22));
        if let Ok(found) = guard.incoming(&piece, NOW) {
            assert_eq!(found, Incoming::Piece);
            assert_eq!(guard.piece(&piece, NOW), Err(Denied::Unprotected.into()));
        }
    }
}

/// A UDP datagram between hosts 1 and 2, from our side if `out`; `length`: its length field.
fn datagram(v6: bool, out: bool, local_port: u16, length: usize, payload: &[u8]) -> Vec<u8> {
    let ports = if out { [local_port, 61_000] } else { [61_000, local_port] };
    let mut udp = ports.map(u16::to_be_bytes).concat();
    udp.extend((length as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let (from, to) = if out { (1, 2) } else { (2, 1) };
    let total = |header: u16| (header + udp.len() as u16).to_be_bytes();
    let mut packet = match v6 {
        false => {
            let mut packet =
                vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
            packet[2..4].copy_from_slice(&total(20));
            ipsec::ip::write_checksum(&mut packet);
            packet
        }
        true => {
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
            packet[4..6].copy_from_slice(&total(0));
            for host in [from, to] {
                packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
            }
            packet
        }
    };
    packet.extend(udp);
    packet
}

// RFC 3948 §2.2, §2.3: at port 4500 IKE is told from ESP by its first bytes, and by nothing else from data in clear.
#[test]
fn port_4500_passes_ike_and_keepalives_in_clear() {
    let all = |v6: bool| {
        let any = if v6 { "::/0" } else { "0.0.0.0/0" };
        let mut policy = policy("10.0.0.0/8", None, Action::Protect(STRONG));
        policy.selector.local = any.parse().unwrap();
        policy.selector.remote = any.parse().unwrap();
        policy
    };
    let spd = || Spd::new(vec![all(false), all(true)]).unwrap();
    let marked = |data: &[u8]| [&[0; 4], data].concat();
    let cases: [(&str, u16, Vec<u8>, usize, bool); 11] = [
        ("IKE", 500, vec![7; 28], 36, true),
        ("IKE at 4500", 4500, marked(&[7; 28]), 40, true),
        ("a keepalive", 4500, vec![0xff], 9, true),
        ("data", 4500, b"in clear".to_vec(), 16, false),
        ("little data", 4500, b"abc".to_vec(), 11, false),
        ("no data", 4500, Vec::new(), 8, false),
        ("another byte", 4500, vec![0xfe], 9, false),
        ("two bytes", 4500, vec![0xff, 0xff], 10, false),
        ("a marker behind the end", 4500, marked(&[7; 28]), 11, false),
        ("a length beyond the end", 4500, marked(&[7; 28]), 41, false),
        ("a marker elsewhere", 4501, marked(&[7; 28]), 40, false),
    ];
    for alone in [false, true] {
        for (name, port, payload, length, passes) in &cases {
            for v6 in [false, true] {
                let mut guard = Guard::new(0, spd(), [0]);
                if alone {
                    guard.seals_alone();
                }
                let out = datagram(v6, true, *port, *length, payload);
                let sent = guard.outgoing(&out, NOW);
                assert_eq!(sent == Ok(Outgoing::Clear), *passes, "{name}, {v6}: {sent:?}");
                let came = datagram(v6, false, *port, *length, payload);
                let taken = guard.incoming(&came, NOW);
                let clear = matches!(taken, Ok(Incoming::Clear | Incoming::Keepalive));
                assert_eq!(clear, *passes, "{name}, {v6}: {taken:?}");
                // A flow that is remembered makes no exception.
                assert_eq!(guard.outgoing(&out, NOW) == Ok(Outgoing::Clear), *passes, "{name}");
            }
        }
    }
}

#[test]
fn data_to_port_4500_of_a_peer_is_protected() {
    let (mut a, _) = pair(transport);
    let mut guard = Guard::new(
        0,
        {
            let protect = policy("10.0.0.0/8", None, Action::Protect(STRONG));
            Spd::new(vec![protect]).unwrap()
        },
        [0],
    );
    let mut out = datagram(false, true, 4000, 40, &[7; 32]);
    out[22..24].copy_from_slice(&4500u16.to_be_bytes());
    assert_eq!(guard.outgoing(&out, NOW), Ok(Outgoing::Wait(STRONG)));
    // One flow: IKE and data in turns.
    for _ in 0..3 {
        let ike = datagram(false, true, 4500, 40, &[0; 32]);
        assert_eq!(guard.outgoing(&ike, NOW), Ok(Outgoing::Clear));
        let data = datagram(false, true, 4500, 40, &[7; 32]);
        assert_eq!(guard.outgoing(&data, NOW), Ok(Outgoing::Wait(STRONG)));
    }
    // ESP of others goes on.
    let foreign = parameters(7001, Mode::Transport);
    a.add_outbound(id(&foreign), STRONG, &foreign, None).unwrap();
    let sealed = send(&mut a, &packet(6, 1, 2, 60), NOW).unwrap();
    assert_eq!(guard.outgoing(&sealed, NOW), Ok(Outgoing::Clear));
}

/// An update of an SA: removed and added, here or at another worker, with a number that was reported some time before.
#[test]
fn an_sa_that_comes_back_with_its_keys_opens_no_packet_twice() {
    // The new owner may hear of it before the old one has removed it.
    for (owner, late) in [(0, false), (1, false), (1, true)] {
        let windows = ReplayWindows::default();
        let mut sender = pair(transport).0;
        let mut workers = [0, 1].map(|worker| guard(worker, [0, owner]));
        workers.iter_mut().for_each(|worker| worker.share_windows(windows.clone()));
        let there = parameters(1001, Mode::Transport);
        for worker in &mut workers {
            worker.add_inbound(SaId(1), STRONG, &there, (64, 0)).unwrap();
        }
        let clear = packet(6, 1, 2, 100);
        let mut sealed = || send(&mut sender, &clear, NOW).unwrap();
        let first: Vec<_> = (0..20).map(|_| sealed()).collect();
        let missing = sealed();
        let last = sealed();
        for packet in first.iter().chain([&last]) {
            receive(&mut workers[0], packet, NOW).unwrap();
        }
        // Policies have changed too, and select the flow for another protection.
        let list = vec![policy("10.0.0.0/28", None, Action::Protect(OTHER))];
        for worker in &mut workers {
            worker.set_policies(Spd::new(list.clone()).unwrap(), [0, owner]);
        }
        let add = |worker: &mut Guard| {
            worker.add_inbound(SaId(2), OTHER, &there, (1024, 7)).unwrap();
        };
        if late {
            add(&mut workers[1]);
            assert_eq!(receive(&mut workers[1], &sealed(), NOW), Err(Drop::UnknownSpi));
        }
        assert!(workers[0].remove(SaId(1), Direction::In));
        add(&mut workers[0]);
        if !late {
            workers[1].remove(SaId(1), Direction::In);
            add(&mut workers[1]);
        }
        let worker = &mut workers[usize::from(owner)];
        for packet in first.iter().chain([&last]) {
            assert_eq!(
                receive(worker, packet, NOW),
                Err(Refused::Duplicate.into()),
                "{owner} {late}"
            );
        }
        // A gap stays open, and the next packets are taken.
        assert_eq!(receive(worker, &missing, NOW).as_ref(), Ok(&clear));
        assert_eq!(receive(worker, &sealed(), NOW).as_ref(), Ok(&clear));
        // Other keys are another SA.
        worker.remove(SaId(2), Direction::In);
        let keys = Keys::new(vec![8; 20], Vec::new());
        let renewed = Parameters { keys, ..parameters(1001, Mode::Transport) };
        worker.add_inbound(SaId(3), OTHER, &renewed, (64, 0)).unwrap();
        let mut sender = guard(0, [0, 0]);
        sender.add_outbound(SaId(3), STRONG, &renewed, None).unwrap();
        let sealed = send(&mut sender, &clear, NOW).unwrap();
        assert_eq!(receive(worker, &sealed, NOW).as_ref(), Ok(&clear));
    }
}

#[test]
fn a_flow_keeps_its_protection_while_no_policy_or_sa_lets_less_pass() {
    // The SAs are another worker's.
    for worker in [0, 1] {
        let mut a = guard(worker, [0, 0]);
        let flow = Flow::read(&packet(6, 1, 2, 40), false).unwrap();
        let of = |spi, algorithm: Algorithm| Parameters {
            algorithm,
            keys: Keys::new(vec![7; algorithm.key_len()], vec![7; algorithm.auth_key_len()]),
            ..parameters(spi, Mode::Transport)
        };
        let (strong, weak) = (of(1001, Algorithm::AesGcm256), of(1002, Algorithm::AesGcm128));
        let least = Strength::of_bits(256);
        // Without an SA nothing passes.
        assert!(a.keeps(&flow, least));
        a.add_outbound(id(&strong), STRONG, &strong, None).unwrap();
        a.add_inbound(id(&strong), STRONG, &strong, (64, 0)).unwrap();
        assert!(a.keeps(&flow, least));
        a.add_inbound(id(&weak), STRONG, &weak, (64, 0)).unwrap();
        assert!(!a.keeps(&flow, least) && a.keeps(&flow, Strength::of_bits(128)));
        a.remove(id(&weak), Direction::In);
        a.add_outbound(id(&weak), STRONG, &weak, None).unwrap();
        assert!(!a.keeps(&flow, least));
        a.select(id(&strong));
        assert!(a.keeps(&flow, least));
        a.remove(id(&strong), Direction::Out);
        assert!(!a.keeps(&flow, least));
        a.remove(id(&weak), Direction::Out);
        assert!(a.keeps(&flow, least));
        let clear = Flow::read(&packet(17, 1, 2, 40), false).unwrap();
        assert!(!a.keeps(&clear, Strength::of_bits(0)));
    }
}
