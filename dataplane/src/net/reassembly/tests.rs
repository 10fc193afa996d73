//! Tests the reassembly of fragments in any order, refused fragments, and bounds.

use proptest::prelude::*;
use smoltcp::wire::IpProtocol;

use super::*;
use crate::ids::InterfaceId;
use crate::net::demux::{Kind, L4Check, demux};
use crate::net::interface::Interface;
use crate::net::path::{IpHeader, write_ip_frame};
use crate::net::protocol::TCP;
use crate::net::tests::config;

const NOW: Instant = Instant::from_millis(1000);

fn interface(vlan: Option<u16>, host: u8) -> Interface {
    Interface::new(InterfaceId(0), &config(host, vlan), [2, 0, 0, 0, 0, host], 16, [0; 16])
}

/// Returns an unfragmented frame with a TCP segment of `len` bytes from host `peer` to host 1. The segment's checksum
/// is correct.
fn packet(vlan: Option<u16>, v6: bool, peer: u8, len: usize) -> Vec<u8> {
    let sender = interface(vlan, peer);
    let pick = |i: &Interface| i.addresses().find(|a| a.is_ipv6() == v6).unwrap();
    let (source, destination) = (pick(&sender), pick(&interface(vlan, 1)));
    let mut out = Vec::new();
    let header = IpHeader { source, destination, protocol: IpProtocol::Tcp, hop_limit: 64 };
    write_ip_frame(&mut out, &sender, [2, 0, 0, 0, 0, 1], header, len, |p| {
        for (i, byte) in p.iter_mut().enumerate() {
            *byte = (i * 7 + i / 256) as u8;
        }
        p[16..18].fill(0);
        let sum = checksum::segment(source, destination, TCP, p);
        p[16..18].copy_from_slice(&sum.to_be_bytes());
    });
    out
}

fn ip_at(frame: &[u8]) -> usize {
    if frame[12..14] == [0x81, 0] { 18 } else { 14 }
}

fn header_len(frame: &[u8]) -> usize {
    if frame[ip_at(frame)] >> 4 == 6 { 40 } else { 20 }
}

/// Returns a frame with the fragment that has bytes `range` of the IP payload of `frame`. `id` is the identification.
fn fragment(frame: &[u8], id: u16, range: Range<usize>, more: bool) -> Vec<u8> {
    let ip = ip_at(frame);
    let payload = &frame[ip + header_len(frame)..];
    let mut out = frame[..ip + header_len(frame)].to_vec();
    let field = (range.start as u16 & 0xfff8) | u16::from(more);
    if header_len(frame) == 40 {
        out[ip + 4..ip + 6].copy_from_slice(&(range.len() as u16 + 8).to_be_bytes());
        out[ip + 6] = 44;
        out.extend([6, 0]);
        out.extend(field.to_be_bytes());
        out.extend([0, 0]);
        out.extend(id.to_be_bytes());
    } else {
        out[ip + 2..ip + 4].copy_from_slice(&(range.len() as u16 + 20).to_be_bytes());
        out[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
        let field = (range.start / 8) as u16 | if more { 0x2000 } else { 0 };
        out[ip + 6..ip + 8].copy_from_slice(&field.to_be_bytes());
        fix_checksum(&mut out);
    }
    out.extend(&payload[range]);
    out
}

/// Writes the correct checksum into the IPv4 header.
fn fix_checksum(frame: &mut [u8]) {
    let ip = ip_at(frame);
    frame[ip + 10..ip + 12].fill(0);
    let sum = !checksum::sum(&frame[ip..ip + 20]);
    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
}

fn input(reassembly: &mut Reassembly, frame: &[u8]) -> Result<Outcome, DropReason> {
    input_at(reassembly, frame, NOW)
}

fn input_at(r: &mut Reassembly, frame: &[u8], now: Instant) -> Result<Outcome, DropReason> {
    let interfaces = [interface(None, 1), interface(Some(7), 1)];
    let packet = demux(frame, 0, L4Check::Unknown, &interfaces)?;
    let Kind::Fragment(fragment) = &packet.kind else { panic!("{:?}", packet.kind) };
    r.input(packet.interface, fragment, frame, now).map(|(outcome, _)| outcome)
}

fn reassembly() -> Reassembly {
    Reassembly::new(16, 256 * 1024, [1; 16])
}

/// Asserts that the second of two fragments is refused as an overlap, and that the whole packet is discarded.
fn assert_discarded(v6: bool, first: (Range<usize>, bool), second: (Range<usize>, bool)) {
    let (mut r, frame) = (reassembly(), packet(None, v6, 2, 400));
    let fragment_of = |(range, more): (Range<usize>, bool)| fragment(&frame, 9, range, more);
    assert_eq!(input(&mut r, &fragment_of(first.clone())), Ok(Outcome::Waiting));
    assert_eq!(input(&mut r, &fragment_of(second)), Err(DropReason::FragmentOverlap));
    for part in [first, (0..200, true), (200..400, false)] {
        assert_eq!(
            input(&mut r, &fragment_of(part)),
            Err(DropReason::FragmentOverlap),
            "no fragment of the packet is accepted"
        );
    }
    assert_eq!((r.len(), r.bytes()), (1, PACKET_COST));
}

// RFC 5722 §4, RFC 8200 §4.5. The same rule applies to IPv4 packets (RFC 1858 §4).
#[test]
fn overlapping_fragments_discard_packet() {
    for v6 in [false, true] {
        assert_discarded(v6, (0..200, true), (192..400, false));
        assert_discarded(v6, (200..400, false), (0..208, true));
        assert_discarded(v6, (0..200, true), (0..208, true));
        assert_discarded(v6, (80..160, true), (88..96, true));
        // Fragments that contradict each other about the packet's end are refused, too.
        assert_discarded(v6, (80..160, false), (160..200, true));
        assert_discarded(v6, (80..160, false), (200..400, false));
        assert_discarded(v6, (200..400, false), (80..160, false));
    }
}

// RFC 8200 §4.5: an exact duplicate of a fragment may be ignored and the other fragments reassembled.
#[test]
fn duplicate_fragment_is_not_an_overlap() {
    let (mut r, frame) = (reassembly(), packet(None, true, 2, 400));
    let (a, b) = (fragment(&frame, 9, 0..200, true), fragment(&frame, 9, 200..400, false));
    assert_eq!(input(&mut r, &a), Ok(Outcome::Waiting));
    assert_eq!(input(&mut r, &a), Err(DropReason::FragmentDuplicate));
    assert!(matches!(input(&mut r, &b), Ok(Outcome::Complete(_))));
    let mut other = a.clone();
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(input(&mut r, &a), Ok(Outcome::Waiting));
    assert_eq!(input(&mut r, &other), Err(DropReason::FragmentOverlap), "same place, other bytes");
}

// RFC 1858 §3, RFC 3128, RFC 7112 §5: flags and ports must be in the first fragment, and no later fragment may
// overwrite them.
#[test]
fn tiny_fragments_are_refused() {
    for v6 in [false, true] {
        let (mut r, frame) = (reassembly(), packet(None, v6, 2, 400));
        for range in [0..8, 0..16, 8..400, 16..400] {
            let tiny = fragment(&frame, 9, range.clone(), range.end < 400);
            assert_eq!(input(&mut r, &tiny), Err(DropReason::FragmentTiny), "{range:?}");
        }
        assert!(r.is_empty());
    }
}

// RFC 791 §3.2, RFC 8200 §4.5: lengths other than multiples of eight, and ends beyond 65,535 bytes, are refused.
#[test]
fn fragment_length_and_offset_are_checked() {
    for v6 in [false, true] {
        let (mut r, frame) = (reassembly(), packet(None, v6, 2, 400));
        let odd = fragment(&frame, 9, 0..204, true);
        assert_eq!(input(&mut r, &odd), Err(DropReason::FragmentBad));
        let mut far = fragment(&frame, 9, 80..400, false);
        let field = if v6 { 14 + 40 + 2 } else { 14 + 6 };
        let value = if v6 { 0xfff8u16 } else { 0x1fff };
        far[field..field + 2].copy_from_slice(&value.to_be_bytes());
        if !v6 {
            fix_checksum(&mut far);
        }
        assert_eq!(input(&mut r, &far), Err(DropReason::FragmentBad));
        assert!(r.is_empty());
    }
}

/// Changes the protocol of an untagged IPv4 frame to SCTP.
fn as_sctp(mut piece: Vec<u8>) -> Vec<u8> {
    piece[23] = 132;
    fix_checksum(&mut piece);
    piece
}

// RFC 791 §3.2: the protocol is one of the fields that identify a packet. RFC 9260 §6.9: an SCTP peer fragments packets
// if the path MTU has decreased.
#[test]
fn sctp_and_tcp_fragments_do_not_mix() {
    let (mut r, frame) = (reassembly(), packet(None, false, 2, 400));
    let tcp = |range, more| fragment(&frame, 9, range, more);
    assert_eq!(input(&mut r, &as_sctp(tcp(0..8, true))), Err(DropReason::FragmentTiny));
    assert_eq!(input(&mut r, &as_sctp(tcp(0..24, true))), Ok(Outcome::Waiting));
    assert_eq!(input(&mut r, &tcp(24..400, false)), Ok(Outcome::Waiting));
    let last = input(&mut r, &as_sctp(tcp(24..400, false)));
    let Ok(Outcome::Complete(bytes)) = last else { panic!("{last:?}") };
    let interfaces = [interface(None, 1)];
    let kind = demux(&bytes, 0, L4Check::Unknown, &interfaces).unwrap().kind;
    assert!(matches!(kind, Kind::Sctp { packet, .. } if bytes[packet.clone()] == frame[34..]));
}

#[test]
fn packets_of_different_keys_do_not_mix() {
    let mut r = reassembly();
    let frames = [
        (packet(None, false, 2, 400), 1),
        (packet(None, false, 2, 400), 2),
        (packet(None, false, 3, 400), 1),
        (packet(Some(7), false, 2, 400), 1),
        (packet(None, true, 2, 400), 1),
    ];
    for (frame, id) in &frames {
        assert_eq!(input(&mut r, &fragment(frame, *id, 0..200, true)), Ok(Outcome::Waiting));
    }
    for (frame, id) in &frames {
        let last = input(&mut r, &fragment(frame, *id, 200..400, false));
        assert!(matches!(last, Ok(Outcome::Complete(_))));
    }
    assert_eq!((r.len(), r.bytes()), (0, 0));
}

#[test]
fn incomplete_packet_expires() {
    let (mut r, frame) = (reassembly(), packet(None, false, 2, 400));
    input(&mut r, &fragment(&frame, 1, 0..200, true)).unwrap();
    let later = NOW + TIMEOUT / 2;
    input_at(&mut r, &fragment(&frame, 2, 0..200, true), later).unwrap();
    assert_eq!(r.poll_timeout(), Some(NOW + TIMEOUT));
    assert_eq!(r.expire(NOW + TIMEOUT / 2), 0);
    assert_eq!(r.expire(NOW + TIMEOUT), 1);
    assert_eq!(r.poll_timeout(), Some(later + TIMEOUT));
    // The packet of the remaining fragment was freed. The fragment starts a new packet, which is never completed.
    assert_eq!(input(&mut r, &fragment(&frame, 1, 200..400, false)), Ok(Outcome::Waiting));
}

#[test]
fn fragment_flood_is_bounded_per_peer() {
    let mut r = Reassembly::new(16, 64 * 1024, [1; 16]);
    let flood = packet(None, false, 66, 1400);
    let mut refused = 0;
    for id in 0..1000 {
        refused += u32::from(input(&mut r, &fragment(&flood, id, 0..1000, true)).is_err());
        assert!(r.bytes() <= 64 * 1024 / PEER_SHARE_DIVISOR && r.len() <= 16 / PEER_SHARE_DIVISOR);
    }
    assert_eq!(refused, 996);
    // Other peers have their own shares. At the common limit, the oldest packets are evicted.
    for peer in 2..=60 {
        let frame = packet(None, false, peer, 1400);
        input(&mut r, &fragment(&frame, 1, 0..1000, true)).unwrap();
        assert!(r.bytes() <= 64 * 1024 && r.len() <= 16);
    }
    let frame = packet(None, false, 60, 1400);
    let last = input(&mut r, &fragment(&frame, 1, 1000..1400, false));
    assert!(matches!(last, Ok(Outcome::Complete(_))));
}

// A host may choose any address of its /64, so all addresses of a /64 share one budget. Another /64 has a separate
// budget.
#[test]
fn ipv6_prefix_shares_one_reassembly_budget() {
    let mut r = Reassembly::new(16, 64 * 1024, [1; 16]);
    let from = |prefix: u16, peer: u8| {
        let mut frame = fragment(&packet(None, true, peer, 1400), 1, 0..1000, true);
        let source = ip_at(&frame) + 8;
        frame[source + 6..source + 8].copy_from_slice(&prefix.to_be_bytes());
        frame
    };
    let accepted = (2..=60).filter(|&peer| input(&mut r, &from(1, peer)).is_ok()).count();
    assert_eq!((accepted, r.len()), (16 / PEER_SHARE_DIVISOR, 16 / PEER_SHARE_DIVISOR));
    assert!(input(&mut r, &from(2, 2)).is_ok());
}

#[test]
fn completed_packets_free_all_memory() {
    let (mut r, frame) = (reassembly(), packet(None, false, 2, 400));
    // The oldest packet remains incomplete during the whole test.
    input(&mut r, &fragment(&frame, 1, 0..200, true)).unwrap();
    let before = r.bytes();
    for id in 2..1000 {
        input(&mut r, &fragment(&frame, id, 0..200, true)).unwrap();
        let last = input(&mut r, &fragment(&frame, id, 200..400, false));
        assert!(matches!(last, Ok(Outcome::Complete(_))));
        assert!(r.deadlines.len() <= 2 * 16);
    }
    assert_eq!((r.len(), r.bytes(), r.peers.len()), (1, before, 1));
    assert_eq!(r.expire(NOW + TIMEOUT), 1);
    assert_eq!((r.len(), r.bytes(), r.peers.len(), r.deadlines.len()), (0, 0, 0, 0));
    assert_eq!(r.poll_timeout(), None);
}

/// The packet is as long as the maximum MTU of a port, 65,280 bytes. Its fragments fit into a path MTU of 576 bytes.
#[test]
fn longest_packet_reassembles_from_shortest_fragments() {
    const LEN: usize = 65_280 - 20;
    let (mut r, frame) = (Reassembly::new(16, 1 << 20, [1; 16]), packet(None, false, 2, LEN));
    for at in (0..LEN).step_by(552) {
        let (end, more) = ((at + 552).min(LEN), at + 552 < LEN);
        match input(&mut r, &fragment(&frame, 1, at..end, more)) {
            Ok(Outcome::Complete(bytes)) => assert!(!more && bytes[34..] == frame[34..]),
            other => assert!(more && other == Ok(Outcome::Waiting), "{at}: {other:?}"),
        }
    }
}

#[test]
fn packet_of_too_many_fragments_is_discarded() {
    let (mut r, frame) = (reassembly(), packet(None, false, 2, 2000));
    for n in 0..MAX_FRAGMENTS {
        let at = 24 + 8 * n;
        input(&mut r, &fragment(&frame, 1, at..at + 8, true)).unwrap();
    }
    let more = fragment(&frame, 1, 1600..1608, true);
    assert_eq!(input(&mut r, &more), Err(DropReason::FragmentLimit));
    assert_eq!(r.bytes(), PACKET_COST);
}

// RFC 3168 §5.3: a CE mark on any fragment marks the packet. Fragments marked CE and fragments that are Not-ECT do not
// form a packet.
#[test]
fn ecn_marks_of_fragments_are_kept() {
    for v6 in [false, true] {
        let with = |ecns: [u8; 2]| {
            let (mut r, frame) = (reassembly(), packet(None, v6, 2, 400));
            let mut parts =
                [fragment(&frame, 9, 0..200, true), fragment(&frame, 9, 200..400, false)];
            for (part, ecn) in parts.iter_mut().zip(ecns) {
                part[15] |= if v6 { ecn << 4 } else { ecn };
                if !v6 {
                    fix_checksum(part);
                }
            }
            input(&mut r, &parts[0]).unwrap();
            input(&mut r, &parts[1]).map(|outcome| match outcome {
                Outcome::Complete(frame) => crate::net::ecn::is_marked(&frame),
                Outcome::Waiting => panic!("both fragments arrived"),
            })
        };
        assert_eq!(with([2, 2]), Ok(false));
        assert_eq!(with([2, 3]), Ok(true));
        assert_eq!(with([0, 0]), Ok(false));
        assert_eq!(with([0, 3]), Err(DropReason::FragmentBad));
    }
}

proptest! {
    // Any fragments in any order, some of them duplicated, give the original packet. No state remains.
    #[test]
    fn any_fragments_in_any_order_reassemble(
        v6: bool,
        tagged: bool,
        len in 60usize..3000,
        cuts in prop::collection::btree_set(3usize..370, 1..12),
        order in any::<u64>(),
    ) {
        let vlan = tagged.then_some(7);
        let frame = packet(vlan, v6, 2, len);
        let mut ends: Vec<usize> = cuts.iter().map(|c| c * 8).filter(|&c| c < len).collect();
        ends.push(len);
        prop_assume!(ends.len() > 1);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let mut parts: Vec<Vec<u8>> = starts
            .zip(&ends)
            .map(|(start, &end)| fragment(&frame, 77, start..end, end < len))
            .collect();
        let mut state = order | 1;
        for i in (1..parts.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            parts.swap(i, (state % (i as u64 + 1)) as usize);
        }
        let mut r = reassembly();
        for (n, part) in parts.iter().enumerate() {
            let outcome = input(&mut r, part);
            if n + 1 < parts.len() {
                prop_assert_eq!(outcome, Ok(Outcome::Waiting));
                prop_assert_eq!(input(&mut r, part), Err(DropReason::FragmentDuplicate));
                continue;
            }
            let Ok(Outcome::Complete(again)) = outcome else { panic!("{outcome:?}") };
            let interfaces = [interface(None, 1), interface(Some(7), 1)];
            // The segment's checksum is verified.
            let packet = demux(&again, 0, L4Check::Unknown, &interfaces).unwrap();
            let Kind::Tcp { segment, .. } = packet.kind else { panic!("{:?}", packet.kind) };
            let payload = &frame[ip_at(&frame) + header_len(&frame)..];
            prop_assert_eq!(&again[segment], payload);
        }
        prop_assert_eq!((r.len(), r.bytes()), (0, 0));
    }
}
