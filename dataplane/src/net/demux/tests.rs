//! Tests the classification of frames: VLANs, options and extension headers, malformed headers. Fast path and slow path
//! must return the same result.

use proptest::prelude::*;

use super::*;
use crate::ids::InterfaceId;
use crate::net::path::{IpHeader, write_ip_frame};
use crate::net::tests::config;
use smoltcp::wire::Ipv6Packet;

const US: Mac = [2, 0, 0, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 2];

fn interface(vlan: Option<u16>, mac: Mac, host: u8) -> Interface {
    Interface::new(InterfaceId(0), &config(host, vlan), mac, 16, [0; 16])
}

fn our_interfaces() -> [Interface; 2] {
    [interface(None, US, 1), interface(Some(9), US, 1)]
}

/// Returns a frame from the peer with `payload` after the IP header.
fn frame(vlan: Option<u16>, v6: bool, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let peer = interface(vlan, PEER, 2);
    let (source, destination) = if v6 {
        ("2001:db8::2".parse().unwrap(), "2001:db8::1".parse().unwrap())
    } else {
        ([10, 0, 0, 2].into(), [10, 0, 0, 1].into())
    };
    let mut out = Vec::new();
    let header = IpHeader { source, destination, protocol, hop_limit: 64 };
    write_ip_frame(&mut out, &peer, US, header, payload.len(), |p| {
        p.copy_from_slice(payload);
    });
    out
}

/// A TCP segment from port 7 to port 8 without payload. Its checksum is wrong.
const SEGMENT: [u8; 20] = [0, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0];

fn drop_reason(frame: &[u8]) -> DropReason {
    demux(frame, 0, L4Check::Good, &our_interfaces()).unwrap_err()
}

fn segment_range(frame: &[u8]) -> Range<usize> {
    match demux(frame, 0, L4Check::Good, &our_interfaces()).unwrap().kind {
        Kind::Tcp { segment, .. } => segment,
        kind => panic!("{kind:?}"),
    }
}

#[test]
fn vlan_selects_interface() {
    for (vlan, index) in [(None, 0), (Some(9), 1)] {
        let f = frame(vlan, false, IpProtocol::Tcp, &SEGMENT);
        assert_eq!(demux(&f, 0, L4Check::Good, &our_interfaces()).unwrap().interface, index);
    }
    assert_eq!(drop_reason(&frame(Some(10), false, IpProtocol::Tcp, &SEGMENT)), DropReason::Vlan);
    let priority = frame(Some(0), false, IpProtocol::Tcp, &SEGMENT);
    assert_eq!(demux(&priority, 0, L4Check::Good, &our_interfaces()).unwrap().interface, 0);
    assert_eq!(demux(&priority, 1, L4Check::Good, &our_interfaces()), Err(DropReason::Vlan));
}

#[test]
fn ethernet_padding_is_cut_off() {
    let mut f = frame(None, false, IpProtocol::Tcp, &SEGMENT);
    f.resize(60, 0xee);
    assert_eq!(segment_range(&f), 34..54);
}

fn set_ipv4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !checksum::sum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the frame with `options` added to its IPv4 header. Their length is a multiple of four bytes.
fn with_options(mut frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    frame.splice(34..34, options.iter().copied());
    frame[14] += options.len() as u8 / 4;
    frame[17] += options.len() as u8;
    set_ipv4_checksum(&mut frame[14..34 + options.len()]);
    frame
}

#[test]
fn ipv4_options_are_skipped_and_covered_by_the_checksum() {
    let plain = || frame(None, false, IpProtocol::Tcp, &SEGMENT);
    // A full record route, a router alert, a security option, and an unknown option.
    for options in [[7, 3, 4, 0], [148, 4, 0, 0], [130, 3, 1, 1], [222, 2, 0, 9]] {
        let mut f = with_options(plain(), &options);
        assert_eq!(segment_range(&f), 38..58, "{options:?}");
        f[34] ^= 1;
        assert_eq!(drop_reason(&f), DropReason::IpChecksum);
    }
    assert_eq!(segment_range(&with_options(plain(), &[1; 40])), 74..94);
}

// RFC 1122 §3.2.1.8 (c), RFC 7126 §4.3, §4.4: packets with a source route, completed or not, are dropped for every
// protocol, also in fragments.
#[test]
fn source_routes_and_malformed_options_are_dropped() {
    let loose = [131, 7, 4, 10, 0, 0, 3, 0];
    let completed = [137, 7, 8, 10, 0, 0, 3, 0];
    let mut us = our_interfaces();
    us[0].encapsulation = Some(9899);
    let udp = [&[0, 7, 0x26, 0xab, 0, 28, 0, 0][..], &SEGMENT].concat();
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    for (protocol, payload, ours) in [
        (IpProtocol::Tcp, &SEGMENT[..], true),
        (SCTP, &SEGMENT, true),
        (IpProtocol::Udp, &udp, true),
        (IpProtocol::Icmp, &echo, true),
        // The stack drops packets of these protocols. The host's kernel may process them.
        (IpProtocol::Udp, &SEGMENT, false),
        (IpProtocol::Igmp, &SEGMENT, false),
    ] {
        let drop_of =
            |frame: &[u8]| demux(frame, 0, L4Check::Good, &us).map(|p| p.kind).unwrap_err();
        let plain = frame(None, false, protocol, payload);
        assert_eq!(demux(&plain, 0, L4Check::Good, &us).is_ok(), ours, "{protocol}");
        for (options, reason) in [
            (&loose[..], DropReason::SourceRoute),
            (&completed, DropReason::SourceRoute),
            (&[7, 5, 4, 0], DropReason::IpOptions),
        ] {
            let whole = with_options(plain.clone(), options);
            let expected = if ours { reason } else { DropReason::IpProtocol };
            assert_eq!(drop_of(&whole), expected, "{protocol} {options:?}");
            let mut piece = plain.clone();
            piece[20] = 0x20;
            let piece = with_options(piece, options);
            let expected = match protocol {
                IpProtocol::Icmp | IpProtocol::Igmp => DropReason::Fragment,
                _ => reason,
            };
            assert_eq!(drop_of(&piece), expected, "a fragment of {protocol} {options:?}");
            let mut elsewhere = plain.clone();
            elsewhere[33] = 77;
            assert_eq!(drop_of(&with_options(elsewhere, options)), DropReason::NotOurAddress);
        }
    }
}

// RFC 4301 §5.2: packets that the stack drops anyway are not matched against IPsec policies.
#[test]
fn source_routed_packets_do_not_reach_policies() {
    let mut us = our_interfaces();
    us[0].has_ipsec_policies = true;
    let esp = frame(None, false, ESP, &SEGMENT);
    assert_eq!(local_ip_offset(&esp, 0, &us), Some(14));
    assert_eq!(local_ip_offset(&with_options(esp.clone(), &[7, 3, 4, 0]), 0, &us), Some(14));
    let routed = with_options(esp, &[131, 3, 4, 0]);
    assert_eq!(local_ip_offset(&routed, 0, &us), None);
    assert_eq!(demux(&routed, 0, L4Check::Unknown, &us), Err(DropReason::SourceRoute));
}

#[test]
fn malformed_headers_have_distinct_drop_reasons() {
    let good = frame(None, false, IpProtocol::Tcp, &SEGMENT);
    let with = |at: usize, bytes: &[u8]| {
        let mut f = good.clone();
        f[at..at + bytes.len()].copy_from_slice(bytes);
        set_ipv4_checksum(&mut f[14..34]);
        drop_reason(&f)
    };
    assert_eq!(drop_reason(&good[..13]), DropReason::Truncated);
    assert_eq!(drop_reason(&good[..53]), DropReason::Truncated);
    assert_eq!(with(0, &[2, 0, 0, 0, 0, 9]), DropReason::NotOurMac);
    assert_eq!(with(0, &[0xff; 6]), DropReason::NotOurMac, "TCP to broadcast");
    assert_eq!(with(6, &[3]), DropReason::BadSourceMac);
    assert_eq!(with(12, &[0x88, 0xcc]), DropReason::EtherType);
    assert_eq!(with(14, &[0x55]), DropReason::IpHeader);
    // Fragments of ICMP, and of UDP without encapsulation, are not reassembled.
    assert_eq!(with(20, &[0x20, 0, 64, 1]), DropReason::Fragment);
    assert_eq!(with(20, &[0, 1, 64, 17]), DropReason::Fragment);
    assert_eq!(with(23, &[17]), DropReason::IpProtocol);
    for source in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [10, 0, 0, 255], [10, 0, 0, 1]] {
        assert_eq!(with(26, &source), DropReason::BadSource, "{source:?}");
    }
    assert_eq!(with(30, &[10, 0, 0, 3]), DropReason::NotOurAddress);
    assert_eq!(with(30, &[10, 0, 0, 255]), DropReason::NotOurAddress);
    assert_eq!(demux(&good, 0, L4Check::Unknown, &our_interfaces()), Err(DropReason::L4Checksum));
}

/// Returns an IPv6 frame with a TCP segment after the extension headers `headers`. `first` is the type of the first
/// extension header.
fn extended(first: u8, headers: &[u8]) -> Vec<u8> {
    let payload = [headers, &SEGMENT].concat();
    frame(None, true, IpProtocol::from(first), &payload)
}

#[test]
fn extension_headers_are_followed_within_a_bound() {
    const PAD6: [u8; 6] = [1, 4, 0, 0, 0, 0];
    let header = |next: u8, content: [u8; 6]| [[next, 0].as_slice(), &content].concat();
    assert_eq!(segment_range(&extended(0, &header(6, PAD6))), 62..82);
    assert_eq!(segment_range(&extended(60, &header(6, PAD6))), 62..82);
    // RFC 8200 §4.2: the unknown option 0x3e may be skipped, but 0x7e, 0xbe and 0xfe may not.
    assert_eq!(segment_range(&extended(60, &header(6, [0x3e, 4, 0, 0, 0, 0]))), 62..82);
    for kind in [0x7e, 0xbe, 0xfe] {
        let f = extended(60, &header(6, [kind, 4, 0, 0, 0, 0]));
        assert_eq!(drop_reason(&f), DropReason::ExtensionHeader);
    }
    // RFC 8200 §4.4: a routing header without segments left is skipped, one with segments left is refused.
    assert_eq!(segment_range(&extended(43, &header(6, [0; 6]))), 62..82);
    assert_eq!(
        drop_reason(&extended(43, &header(6, [0, 1, 0, 0, 0, 0]))),
        DropReason::ExtensionHeader
    );
    // RFC 6946: an atomic fragment is not treated as a fragment.
    assert_eq!(segment_range(&extended(44, &[6, 0x77, 0, 0, 1, 2, 3, 4])), 62..82);
    // Other fragments of TCP are returned for reassembly; fragments of ICMPv6 (58) are dropped.
    let packet =
        demux(&extended(44, &[6, 0, 0, 9, 1, 2, 3, 4]), 0, L4Check::Unknown, &our_interfaces());
    let Kind::Fragment(fragment) = packet.unwrap().kind else { panic!("a fragment") };
    assert_eq!((fragment.id, fragment.offset, fragment.more_fragments), (0x01020304, 8, true));
    assert_eq!((fragment.ip, fragment.payload), (14, 62..82));
    assert_eq!(drop_reason(&extended(44, &[58, 0, 0, 1, 1, 2, 3, 4])), DropReason::Fragment);
    // RFC 8200 §4.1: hop-by-hop options are allowed only first.
    let late = [header(0, PAD6), header(6, PAD6)].concat();
    assert_eq!(drop_reason(&extended(60, &late)), DropReason::HopByHop);
    // A chain of the maximum length, and a longer chain.
    let chain = |n: usize| {
        let links: Vec<u8> =
            (0..n).flat_map(|i| header(if i + 1 == n { 6 } else { 60 }, PAD6)).collect();
        extended(60, &links)
    };
    assert_eq!(segment_range(&chain(MAX_EXTENSIONS)).len(), 20);
    assert_eq!(drop_reason(&chain(MAX_EXTENSIONS + 1)), DropReason::ExtensionHeader);
    // A header longer than the packet.
    assert_eq!(drop_reason(&extended(60, &[6, 9, 1, 4, 0, 0, 0, 0])), DropReason::Truncated);
}

#[test]
fn ipv6_groups_get_icmp_but_not_tcp() {
    let mut f = frame(None, true, IpProtocol::Tcp, &SEGMENT);
    f[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    f[38..54].copy_from_slice(&"ff02::1".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(drop_reason(&f), DropReason::NotOurAddress);
    let len = Ipv6Packet::new_checked(&f[14..]).unwrap().payload_len();
    assert_eq!(len, 20);
}

#[test]
fn looped_frame_needs_neither_tcp_checksum_nor_foreign_source() {
    for v6 in [false, true] {
        let mut looped = frame(Some(9), v6, IpProtocol::Tcp, &SEGMENT);
        // The interface's MAC address has changed since the frame's path was created.
        looped[..6].copy_from_slice(&PEER);
        if v6 {
            looped.copy_within(42..58, 26);
        } else {
            looped.copy_within(34..38, 30);
            set_ipv4_checksum(&mut looped[18..38]);
        }
        let us = our_interfaces();
        let packet = demux_looped(&looped, 0, &us).unwrap();
        assert_eq!(packet.interface, 1);
        let Kind::Tcp { source, destination, segment } = packet.kind else { panic!() };
        assert_eq!((source.ip(), source.port(), destination.port()), (destination.ip(), 7, 8));
        assert_eq!(segment, if v6 { 58..78 } else { 38..58 });
        looped[..6].copy_from_slice(&US);
        assert_eq!(demux(&looped, 0, L4Check::Good, &us), Err(DropReason::BadSource));
    }
}

#[test]
fn looped_frames_carry_whole_transport_packets_only() {
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    let looped = |frame: &[u8]| demux_looped(frame, 0, &our_interfaces()).map(|packet| packet.kind);
    assert_eq!(looped(&frame(None, false, IpProtocol::Icmp, &echo)), Err(DropReason::IpProtocol));
    let fragment = extended(44, &[6, 0, 0, 9, 1, 2, 3, 4]);
    assert_eq!(looped(&fragment), Err(DropReason::Fragment));
    let mut elsewhere = frame(None, true, IpProtocol::Tcp, &SEGMENT);
    elsewhere[53] = 77;
    assert_eq!(looped(&elsewhere), Err(DropReason::NotOurAddress));
}

#[test]
fn plain_segment_takes_fast_path() {
    let frame = frame(None, false, IpProtocol::Tcp, &SEGMENT);
    assert!(fast_path(&frame, 0, &our_interfaces()).is_some());
}

proptest! {
    // If the fast path accepts a frame with any changed bytes, the slow path returns the same packet.
    #[test]
    fn fast_and_slow_path_classify_alike(changes in prop::collection::vec((0usize..54, any::<u8>()), 0..4), cut in 0usize..8, right: bool) {
        let mut frame = frame(None, false, IpProtocol::Tcp, &SEGMENT);
        for (at, byte) in changes {
            frame[at] = byte;
        }
        frame.truncate(frame.len() - cut);
        if right && let Some(ip) = frame.get_mut(14..34) {
            set_ipv4_checksum(ip);
        }
        if let Some(packet) = fast_path(&frame, 0, &our_interfaces()) {
            prop_assert_eq!(slow_path(&frame, 0, Origin::Link(L4Check::Good), &our_interfaces()), Ok(packet));
        }
    }

    #[test]
    fn any_frame_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), shape in 0u8..6) {
        // Purely random frames are dropped at the MAC address, so most cases begin with a valid header.
        let likely = match shape {
            0 => Vec::new(),
            1 => frame(None, false, IpProtocol::Tcp, &SEGMENT)[..14].to_vec(),
            2 => frame(None, true, IpProtocol::Tcp, &SEGMENT)[..14].to_vec(),
            3 => frame(Some(9), true, IpProtocol::Icmpv6, &SEGMENT)[..58].to_vec(),
            4 => frame(None, true, IpProtocol::HopByHop, &SEGMENT)[..54].to_vec(),
            _ => frame(None, true, IpProtocol::Ipv6Frag, &SEGMENT)[..54].to_vec(),
        };
        bytes.splice(0..0, likely);
        if let Ok(packet) = demux(&bytes, 0, L4Check::Good, &our_interfaces()) {
            prop_assert!(packet.interface < 2);
        }
    }
}
