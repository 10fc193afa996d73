//! Selection by policies: packets protected, passed in clear or dropped.

use std::time::Duration;

use ipsec::guard::{Guard, InboundVerdict, IpsecDrop, Notice, OutboundVerdict, Protection};
use ipsec::policy::{Action, Denial, Spd};
use ipsec::sa::Mode;

use super::hosts::*;

#[test]
fn bypass_passes_in_clear_both_directions() {
    let (mut a, mut b) = pair(transport);
    let clear = packet(17, 1, 2, 100);
    assert_eq!(send(&mut a, &clear, NOW).unwrap(), clear);
    assert_eq!(receive(&mut b, &clear, NOW).unwrap(), clear);
}

#[test]
fn protected_flow_never_passes_in_clear() {
    let (mut a, mut b) = pair(transport);
    let clear = packet(6, 1, 2, 100);
    assert_eq!(receive(&mut b, &clear, NOW), Err(Denial::Unprotected.into()));
    assert!(matches!(b.take_notice(), Some(Notice::Audit { spi: None, flow: Some(_), .. })));
    // No worker has an SA for this flow: one is requested, at most once per second.
    let other = packet(6, 1, 20, 100);
    for _ in 0..5 {
        assert_eq!(send(&mut a, &other, NOW), Err(IpsecDrop::NoSa));
    }
    assert!(matches!(a.take_notice(), Some(Notice::Acquire { protection: OTHER, .. })));
    assert_eq!(a.take_notice(), None);
    assert_eq!(send(&mut a, &other, NOW + Duration::from_secs(1)), Err(IpsecDrop::NoSa));
    assert!(matches!(a.take_notice(), Some(Notice::Acquire { .. })));
    assert_eq!(send(&mut a, &packet(6, 1, 200, 9), NOW), Err(Denial::NoPolicy.into()));
}

// RFC 4301 §5.2: the policy of the SA must match packets that arrive with it.
#[test]
fn sa_carries_only_packets_its_policy_selects() {
    let (mut a, mut b) = pair(tunnel);
    // The peer sends packets of another policy, of no policy, or of a bypass policy through the tunnel.
    for (clear, why, number) in [
        (packet(6, 20, 2, 60), Denial::WrongProtection, 1),
        (packet(17, 1, 2, 60), Denial::WrongProtection, 2),
        (packet(6, 200, 2, 60), Denial::NoPolicy, 3),
    ] {
        let mut buffer = vec![0; HEADROOM];
        buffer.extend(&clear);
        buffer.resize(buffer.len() + HEADROOM, 0);
        let out = a.seal(STRONG, &mut buffer, HEADROOM..HEADROOM + clear.len(), NOW).unwrap();
        assert_eq!(receive(&mut b, &buffer[out], NOW), Err(why.into()));
        let Some(Notice::Audit { spi, sequence, .. }) = b.take_notice() else { panic!("a notice") };
        assert_eq!(
            (spi, sequence),
            (Some(1001), Some(number)),
            "SPI and sequence number of the ESP packet"
        );
    }
}

#[test]
fn clear_fragment_passes_only_without_protecting_policy() {
    let mut a = guard(0, [0, 0]);
    let piece = |protocol, source| {
        let mut piece = packet(protocol, source, 1, 64);
        piece[6..8].copy_from_slice(&[0x20, 0]);
        piece
    };
    // Fragments that the worker reassembles are matched afterwards. Any other fragment is denied if a policy that
    // protects or drops may match its packet (RFC 4301 §7.4).
    for (protocol, source, judged) in [
        (6, 2, Err(Denial::Unprotected.into())),
        (50, 2, Err(Denial::Unprotected.into())),
        (47, 2, Err(Denial::Unprotected.into())),
        (47, 200, Err(Denial::NoPolicy.into())),
        (17, 2, Ok(())),
    ] {
        let piece = piece(protocol, source);
        assert_eq!(a.inbound_verdict(&piece, NOW), Ok(InboundVerdict::Fragment));
        assert_eq!(a.decide_fragment(&piece, NOW), judged, "{protocol}");
    }
    // Fragments to the wire are denied under the same condition.
    let mut out = packet(6, 1, 2, 64);
    out[6] |= 0x20;
    assert_eq!(a.outbound_verdict(&out, NOW), Err(Denial::Unprotected.into()));
    let mut out = packet(17, 1, 2, 64);
    out[6] |= 0x20;
    assert_eq!(a.outbound_verdict(&out, NOW), Ok(OutboundVerdict::Clear));
}

// An IKE daemon replaces the policies while packets pass. Protections that remain keep their SAs.
#[test]
fn replaced_policies_apply_at_once_and_keep_sas() {
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
        Spd::from_checked(list, ipsec::policy::Unmatched::PASS)
    };
    for guard in [&mut a, &mut b] {
        guard.set_policies(next(), [0, 0, 1]);
    }
    let sealed = send(&mut a, &clear, NOW).unwrap();
    assert_eq!(receive(&mut b, &sealed, NOW), Ok(clear));
    assert_eq!(send(&mut a, &packet(17, 1, 2, 60), NOW), Err(Denial::Discarded.into()));
    // New protections belong to the owners in the new list.
    let mut beyond = packet(6, 1, 2, 60);
    beyond[18] = 1;
    assert_eq!(a.outbound_verdict(&beyond, NOW), Ok(OutboundVerdict::OtherWorker(1)));
    beyond[16] = 11;
    assert_eq!(a.outbound_verdict(&beyond, NOW), Ok(OutboundVerdict::Clear));
}

/// Returns an IPv6 packet to host 2 with these extension headers, then `tail`. Each header consists of its number
/// and the bytes after its Next Header field.
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

// RFC 6946, RFC 8200 §4: policies see the same chain of extension headers as a receiver.
#[test]
fn extension_headers_do_not_hide_ports_from_policy() {
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
        // The chain exceeds the limit: the protocol is unknown and may be any.
        &many,
    ] {
        let clear = v6(headers, &tcp(7471));
        assert_eq!(
            guard.inbound_verdict(&clear, NOW),
            Err(Denial::Unprotected.into()),
            "{headers:?}"
        );
    }
    for headers in [&[][..], &[options], &[whole], &[hop, options, routing, whole, options]] {
        assert_eq!(guard.inbound_verdict(&v6(headers, &tcp(22)), NOW), Ok(InboundVerdict::Clear));
    }
    // A fragment, and a fragment with a hidden protocol.
    for headers in
        [&[(44, &[0, 0, 1, 1, 2, 3, 4][..])][..], &[(44, &[0, 0, 9, 1, 2, 3, 4][..]), options]]
    {
        let piece = v6(headers, &tcp(22));
        if let Ok(found) = guard.inbound_verdict(&piece, NOW) {
            assert_eq!(found, InboundVerdict::Fragment);
            assert_eq!(guard.decide_fragment(&piece, NOW), Err(Denial::Unprotected.into()));
        }
    }
}

/// Returns a UDP datagram between hosts 1 and 2, sent by host 1 if `out`. `length` is the value of its length
/// field.
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

// RFC 3948 §2.2, §2.3: at port 4500, only the first payload bytes distinguish IKE from ESP and from data in clear.
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
                    guard.set_sole_sealer();
                }
                let out = datagram(v6, true, *port, *length, payload);
                let sent = guard.outbound_verdict(&out, NOW);
                assert_eq!(sent == Ok(OutboundVerdict::Clear), *passes, "{name}, {v6}: {sent:?}");
                let received = datagram(v6, false, *port, *length, payload);
                let taken = guard.inbound_verdict(&received, NOW);
                let clear = matches!(taken, Ok(InboundVerdict::Clear | InboundVerdict::Keepalive));
                assert_eq!(clear, *passes, "{name}, {v6}: {taken:?}");
                // A cached flow has the same result.
                assert_eq!(
                    guard.outbound_verdict(&out, NOW) == Ok(OutboundVerdict::Clear),
                    *passes,
                    "{name}"
                );
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
    assert_eq!(guard.outbound_verdict(&out, NOW), Ok(OutboundVerdict::AwaitSa(STRONG)));
    // The same ports carry IKE and data alternately.
    for _ in 0..3 {
        let ike = datagram(false, true, 4500, 40, &[0; 32]);
        assert_eq!(guard.outbound_verdict(&ike, NOW), Ok(OutboundVerdict::Clear));
        let data = datagram(false, true, 4500, 40, &[7; 32]);
        assert_eq!(guard.outbound_verdict(&data, NOW), Ok(OutboundVerdict::AwaitSa(STRONG)));
    }
    // ESP that another sender has sealed with its own SA still passes.
    let foreign = parameters(7001, Mode::Transport);
    a.add_outbound(id(&foreign), STRONG, &foreign, None).unwrap();
    let sealed = send(&mut a, &packet(6, 1, 2, 60), NOW).unwrap();
    assert_eq!(guard.outbound_verdict(&sealed, NOW), Ok(OutboundVerdict::Clear));
}
