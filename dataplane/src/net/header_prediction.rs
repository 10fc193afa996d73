//! Header prediction for successive frames of one flow. The headers of a frame are compared with the headers of the
//! previous frame, except for the fields that vary per packet. If the compared fields are equal, the previous parse
//! result is also valid for this frame. Then only the length and IPv4's header checksum are checked.
//!
//! ```text
//!  | Ethernet 14, or 18 with a tag | IPv4 20 or IPv6 40 | ports 4 | rest of the segment ...
//!    equal                           equal except for     equal
//!                                    length, identification, hop limit, ECN, checksum
//! ```
//!
//! Frames with other headers, such as IPv4 options, IPv6 extension headers or SCTP in UDP, take the slow path,
//! [`demux`](super::demux). So do frames of less than 64 bytes, because the comparison always covers 64 bytes.

use core::ops::Range;

use crate::checksum;

/// Number of bytes compared. The headers up to the ports have at most 62.
const WINDOW: usize = 64;
const PORTS: usize = 4;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// Bits of the first 64 bytes that must be equal in both frames.
type Mask = [u8; WINDOW];

const fn ipv4_mask(l3: usize) -> Mask {
    let mut mask = mask_until(l3 + IPV4 + PORTS);
    mask[l3 + 1] = !0b11; // ECN
    clear_bytes(&mut mask, l3 + 2, 4); // length, identification
    clear_bytes(&mut mask, l3 + 8, 1); // time to live
    clear_bytes(&mut mask, l3 + 10, 2); // checksum
    mask
}

const fn ipv6_mask(l3: usize) -> Mask {
    let mut mask = mask_until(l3 + IPV6 + PORTS);
    mask[l3 + 1] = !0b11_0000; // ECN
    clear_bytes(&mut mask, l3 + 4, 2); // length
    clear_bytes(&mut mask, l3 + 7, 1); // hop limit
    mask
}

const fn mask_until(end: usize) -> Mask {
    let mut mask = [0; WINDOW];
    let mut at = 0;
    while at < end {
        mask[at] = 0xff;
        at += 1;
    }
    mask
}

const fn clear_bytes(mask: &mut Mask, at: usize, len: usize) {
    let mut i = at;
    while i < at + len {
        mask[i] = 0;
        i += 1;
    }
}

static MASKS: [[Mask; 2]; 2] = [[ipv4_mask(14), ipv4_mask(18)], [ipv6_mask(14), ipv6_mask(18)]];

/// Returns the range of the TCP segment or SCTP packet in `frame` if its headers equal the headers of `last`, except
/// for the fields that vary per packet. The frame then belongs to the same interface and flow. `last` is the previous
/// frame, or a reassembled packet with its Ethernet and IP headers; `start` is the offset of the segment or SCTP packet
/// in `last`. Returns `None` if the frame must be parsed in full. The full parse then also finds the drop reason of an
/// invalid frame.
pub fn predicted_segment(frame: &[u8], last: &[u8], start: usize) -> Option<Range<usize>> {
    let (frame_head, last_head) = (frame.first_chunk::<WINDOW>()?, last.first_chunk::<WINDOW>()?);
    let tagged = last_head[12..14] == [0x81, 0];
    let l3 = if tagged { 18 } else { 14 };
    let v6 = match last_head[l3] {
        // An IPv4 header without options.
        0x45 if start == l3 + IPV4 => false,
        // An IPv6 header without extension headers.
        first if first >> 4 == 6 && start == l3 + IPV6 => true,
        _ => return None,
    };
    let mask = &MASKS[usize::from(v6)][usize::from(tagged)];
    let difference =
        (0..WINDOW).fold(0, |differ, i| differ | (frame_head[i] ^ last_head[i]) & mask[i]);
    if difference != 0 {
        return None;
    }
    let number = |at: usize| usize::from(u16::from_be_bytes([frame_head[at], frame_head[at + 1]]));
    let end = match v6 {
        true => start + number(l3 + 4),
        false => {
            let header = frame_head[l3..].first_chunk::<IPV4>()?;
            if checksum::ipv4_header(header) != 0xffff {
                return None;
            }
            l3 + number(l3 + 2)
        }
    };
    (end >= start + PORTS && end <= frame.len()).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use tcp_lite::tcp::{Flags, Segment, SeqNumber};

    use super::*;
    use crate::net::demux::{Kind, L4Check, demux};
    use crate::net::interface::Interface;
    use crate::net::path::{Path, TxChecksum};
    use crate::net::sctp_path::SctpPath;

    /// Returns a TCP frame and the interface that receives it.
    fn frame(vlan: bool, v6: bool, ect: bool, payload: &[u8]) -> (Vec<u8>, Interface) {
        let vlan = vlan.then_some(42);
        let a = Interface::with_addresses(vlan, [2, 0, 0, 0, 0, 1], ["10.0.0.1", "2001:db8::1"]);
        let b = Interface::with_addresses(vlan, [2, 0, 0, 0, 0, 2], ["10.0.0.2", "2001:db8::2"]);
        let (from, to) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let end = |address: &str, port| SocketAddr::new(address.parse().unwrap(), port);
        let mut path = Path::new(0, &a, end(from, 700), end(to, 800)).unwrap();
        path.set_mac(b.mac);
        let segment = Segment {
            src_port: 700,
            dst_port: 800,
            seq: SeqNumber(payload.len() as u32),
            ack: SeqNumber(6),
            flags: Flags::ACK,
            window: 7,
            options: Default::default(),
            payload,
            ce: false,
            text_crc: None,
        };
        let mut frame = vec![0; path.header_len() + segment.wire_len()];
        segment.emit(&mut frame[path.header_len()..]);
        path.finish(&mut frame, TxChecksum::SOFTWARE, ect, None);
        (frame, b)
    }

    /// Returns a frame with an SCTP packet of `chunks`, and the interface that receives it.
    fn sctp_frame(vlan: bool, v6: bool, chunks: &[u8]) -> (Vec<u8>, Interface) {
        let (like, own) = frame(vlan, v6, false, &[]);
        let (from, to) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let end = |address: &str, port| SocketAddr::new(address.parse().unwrap(), port);
        let vlan = vlan.then_some(42);
        let a = Interface::with_addresses(vlan, [2, 0, 0, 0, 0, 1], ["10.0.0.1", "2001:db8::1"]);
        let mut path = SctpPath::new(Path::new(0, &a, end(from, 700), end(to, 800)).unwrap(), None);
        path.set_mac(own.mac);
        let mut frame = like[..path.header_len()].to_vec();
        frame.extend([2, 188, 3, 32, 1, 2, 3, 4, 5, 6, 7, 8]);
        frame.extend_from_slice(chunks);
        path.finish(&mut frame, TxChecksum::SOFTWARE);
        (frame, own)
    }

    #[test]
    fn sctp_flow_packets_are_predicted_and_tcp_is_not() {
        for (vlan, v6) in vlan_and_version_cases() {
            let (last, own) = sctp_frame(vlan, v6, &[1; 28]);
            let start = last.len() - 40;
            let (next, _) = sctp_frame(vlan, v6, &[2; 1000]);
            assert_eq!(predicted_segment(&next, &last, start), Some(start..next.len()));
            assert_equals_demux(&next, &last, start..next.len(), &[own]);
            // An SCTP packet in UDP would begin eight bytes later: its headers are too long for prediction.
            assert_eq!(predicted_segment(&next, &last, start + 8), None);
            let (tcp, _) = frame(vlan, v6, false, &[1; 20]);
            assert_eq!(
                (predicted_segment(&next, &tcp, start), predicted_segment(&tcp, &last, start)),
                (None, None)
            );
        }
    }

    fn vlan_and_version_cases() -> impl Iterator<Item = (bool, bool)> {
        [(false, false), (true, false), (false, true), (true, true)].into_iter()
    }

    #[test]
    fn segments_of_a_flow_are_predicted_at_any_length() {
        for (vlan, v6) in vlan_and_version_cases() {
            let (last, _) = frame(vlan, v6, false, &[1; 20]);
            let start = last.len() - 40;
            let (next, _) = frame(vlan, v6, true, &[2; 1000]);
            assert_eq!(predicted_segment(&next, &last, start), Some(start..next.len()));
            let mut padded = next.clone();
            padded.extend([0; 6]);
            assert_eq!(predicted_segment(&padded, &last, start), Some(start..next.len()));
            assert_eq!(predicted_segment(&next[..next.len() - 1], &last, start), None);
            assert_eq!(predicted_segment(&next, &last, start + 4), None);
        }
    }

    /// Writes the correct checksum into the IPv4 header between `l3` and `start`.
    fn fix_checksum(frame: &mut [u8], l3: usize, start: usize) {
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = !checksum::sum(&frame[l3..start]);
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }

    /// Asserts that full parses of `next` and `last` have equal results, except for the segment's range.
    fn assert_equals_demux(
        next: &[u8],
        last: &[u8],
        found: Range<usize>,
        interfaces: &[Interface; 1],
    ) {
        let mut expected = demux(last, 0, L4Check::Good, interfaces).unwrap();
        match &mut expected.kind {
            Kind::Tcp { segment, .. } => *segment = found,
            Kind::Sctp { packet, .. } => *packet = found,
            other => panic!("{other:?}"),
        }
        // Both parses return the same interface, source link-layer address, and addresses and ports of the flow.
        assert_eq!(demux(next, 0, L4Check::Good, interfaces), Ok(expected), "{next:02x?}");
    }

    #[test]
    fn changed_header_bit_prevents_prediction() {
        for (vlan, v6) in vlan_and_version_cases() {
            let (last, own) = frame(vlan, v6, false, &[1; 20]);
            let start = last.len() - 40;
            let l3 = start - if v6 { IPV6 } else { IPV4 };
            let own = [own];
            for bit in 0..8 * (start + PORTS) {
                let at = bit / 8;
                let mut next = last.clone();
                next[at] ^= 1 << (bit % 8);
                if !v6 && (l3..start).contains(&at) && !(l3 + 10..l3 + 12).contains(&at) {
                    // With a wrong checksum, every changed bit would prevent the prediction.
                    fix_checksum(&mut next, l3, start);
                }
                if let Some(found) = predicted_segment(&next, &last, start) {
                    assert_equals_demux(&next, &last, found, &own);
                }
            }
        }
    }

    proptest! {
        /// For every frame that header prediction accepts, the full parse gives the same result.
        #[test]
        fn header_prediction_agrees_with_slow_path(
            vlan: bool,
            v6: bool,
            sctp: bool,
            changes in prop::collection::vec((0usize..70, any::<u8>()), 0..4),
            fix: bool,
            cut in 0usize..8,
        ) {
            let (last, own) = match sctp {
                true => sctp_frame(vlan, v6, &[1; 28]),
                false => frame(vlan, v6, false, &[1; 20]),
            };
            let start = last.len() - 40;
            let mut next = last.clone();
            changes.into_iter().for_each(|(at, to)| next[at] = to);
            let l3 = start - if v6 { IPV6 } else { IPV4 };
            if fix && !v6 {
                fix_checksum(&mut next, l3, start);
            }
            next.truncate(next.len() - cut);
            if let Some(found) = predicted_segment(&next, &last, start) {
                assert_equals_demux(&next, &last, found, &[own]);
            }
        }
    }
}
