//! Fragmentation of the worker's own packets that exceed the path MTU (RFC 791 §3.2, RFC 8200 §4.5). Used only for SCTP
//! messages that were segmented before the path MTU decreased. Such messages cannot be segmented again (RFC 9260 §6.9).
//!
//! ```text
//!  | Ethernet, VLAN | IPv4: identification, DF clear | 8n bytes ...
//!  | Ethernet, VLAN | IPv6 | fragment header 8       | 8n bytes ...
//! ```
//!
//! Reassembly is in [`super::reassembly`].

use std::net::IpAddr;
use std::ops::Range;

use siphasher::sip::SipHasher13;

use super::path::Path;
use crate::checksum;

/// Bytes of IPv6's fragment header (RFC 8200 §4.5).
const FRAGMENT_HEADER: usize = 8;
const IPV6_FRAGMENT: u8 = 44;

const IPV4_LEN: Range<usize> = 2..4;
const IPV4_ID: Range<usize> = 4..6;
const IPV4_FLAGS: Range<usize> = 6..8;
const IPV4_CHECKSUM: Range<usize> = 10..12;
const IPV4_MORE: u16 = 0x2000;
const IPV6_LEN: Range<usize> = 4..6;
const IPV6_NEXT: usize = 6;

/// A fragment of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Range of the packet's payload that the fragment contains, in bytes.
    pub range: Range<usize>,
    /// True if more fragments follow.
    pub more_fragments: bool,
}

/// Returns the fragments of a packet with `len` bytes after its IP header. `mtu` is the path MTU in bytes, at least
/// 68.
pub fn fragments(path: &Path, len: usize, mtu: usize) -> impl Iterator<Item = Fragment> + use<> {
    let max_payload = mtu.saturating_sub(path.l3_len() + extra_header_len(path));
    // RFC 791 §3.2, RFC 8200 §4.5: all fragments but the last have a multiple of eight bytes.
    let step = (max_payload & !7).max(8);
    (0..len).step_by(step).map(move |start| {
        let end = (start + step).min(len);
        Fragment { range: start..end, more_fragments: end < len }
    })
}

/// Returns the length in bytes of the frame that contains `fragment`.
pub fn frame_len(path: &Path, fragment: &Fragment) -> usize {
    path.header_len() + extra_header_len(path) + fragment.range.len()
}

/// Writes the frame that contains `fragment` to `out`, whose length is [`frame_len`]. `packet` is the frame of the
/// unfragmented packet, with headers for `path`. `id` is the identification; IPv4 uses its low 16 bits.
pub fn emit(path: &Path, packet: &[u8], fragment: &Fragment, id: u32, out: &mut [u8]) {
    let at = path.header_len();
    out[..at].copy_from_slice(&packet[..at]);
    let (head, rest) = out.split_at_mut(at);
    rest[extra_header_len(path)..].copy_from_slice(&packet[at..][fragment.range.clone()]);
    let ip = &mut head[path.l2_len()..];
    let start = fragment.range.start as u16;
    if path.is_v6() {
        ip[IPV6_LEN].copy_from_slice(&(rest.len() as u16).to_be_bytes());
        rest[..2].copy_from_slice(&[ip[IPV6_NEXT], 0]);
        rest[2..4].copy_from_slice(&(start | u16::from(fragment.more_fragments)).to_be_bytes());
        rest[4..8].copy_from_slice(&id.to_be_bytes());
        ip[IPV6_NEXT] = IPV6_FRAGMENT;
    } else {
        let more = if fragment.more_fragments { IPV4_MORE } else { 0 };
        let len = (ip.len() + rest.len()) as u16;
        ip[IPV4_LEN].copy_from_slice(&len.to_be_bytes());
        ip[IPV4_ID].copy_from_slice(&(id as u16).to_be_bytes());
        // DF is clear, so a router may fragment this fragment again (RFC 1191 §6).
        ip[IPV4_FLAGS].copy_from_slice(&((start / 8) | more).to_be_bytes());
        ip[IPV4_CHECKSUM].fill(0);
        let sum = !checksum::sum(ip);
        ip[IPV4_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    }
}

fn extra_header_len(path: &Path) -> usize {
    if path.is_v6() { FRAGMENT_HEADER } else { 0 }
}

/// Generator of fragment identifications. An identification is the worker's counter of fragmented packets plus a secret
/// offset for the pair of addresses. So a host cannot predict the identifications sent to another host (RFC 7739 §5).
/// From two identifications that a host receives, it can infer how many packets the worker has fragmented in between.
///
/// For a pair of addresses, an identification repeats after the worker has fragmented 2^16 packets over IPv4, or 2^32
/// over IPv6, to any hosts. A repetition over IPv4 may violate RFC 6864 §4.3, which requires unique identifications
/// within a packet's lifetime. A host may then reassemble a packet from fragments of two packets, which only SCTP's
/// checksum detects. Workers do not coordinate their counters.
#[derive(Debug)]
pub struct IdentificationGenerator {
    key: SipHasher13,
    counter: u32,
}

impl IdentificationGenerator {
    /// Creates a generator. `key` is secret and differs between workers.
    pub fn new(key: [u8; 16]) -> Self {
        IdentificationGenerator { key: SipHasher13::new_with_key(&key), counter: 0 }
    }

    /// Returns the identification of the next packet from `source` to `destination`.
    pub fn next(&mut self, source: IpAddr, destination: IpAddr) -> u32 {
        let mut bytes = [0; 32];
        for (out, address) in bytes.chunks_exact_mut(16).zip([source, destination]) {
            match address {
                IpAddr::V4(address) => out[..4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => out.copy_from_slice(&address.octets()),
            }
        }
        self.counter = self.counter.wrapping_add(1);
        (self.key.hash(&bytes) as u32).wrapping_add(self.counter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::SocketAddr;

    use base::Instant;

    use super::*;
    use crate::ids::InterfaceId;
    use crate::net::demux::{Kind, L4Check, demux};
    use crate::net::interface::Interface;
    use crate::net::path::TxChecksum;
    use crate::net::reassembly::{Outcome, Reassembly};
    use crate::net::sctp_path::{SctpPath, UdpPorts};
    use crate::net::tests::config;

    fn interface(vlan: Option<u16>, host: u8) -> Interface {
        let mac = [2, 0, 0, 0, 0, host];
        let mut interface = Interface::new(InterfaceId(0), &config(host, vlan), mac, 16, [0; 16]);
        interface.encapsulation = Some(9899);
        interface
    }

    fn sctp_path(vlan: Option<u16>, v6: bool, udp: Option<UdpPorts>) -> SctpPath {
        let (here, there) = (interface(vlan, 1), interface(vlan, 2));
        let end =
            |i: &Interface| SocketAddr::new(i.addresses().find(|a| a.is_ipv6() == v6).unwrap(), 7);
        let mut carrier = SctpPath::new(Path::new(0, &here, end(&here), end(&there)).unwrap(), udp);
        carrier.set_mac([2, 0, 0, 0, 0, 2]);
        carrier
    }

    // RFC 791 §3.2, RFC 8200 §4.5: reassembly of the fragments gives the original packet, and no fragment exceeds
    // the path MTU.
    #[test]
    fn fragmented_packet_reassembles() {
        let udp = UdpPorts { local: 4000, remote: 9899 };
        for (vlan, v6, udp) in [
            (None, false, None),
            (None, true, None),
            (Some(7), false, Some(udp)),
            (Some(7), true, Some(udp)),
        ] {
            for (len, mtu) in [(1400, 1280), (1400, 576), (3000, 1281), (8960, 1287)] {
                let carrier = sctp_path(vlan, v6, udp);
                let path = &carrier.path;
                let mut frame = vec![0; carrier.header_len()];
                frame.extend((0..len).map(|i| (i * 7 + i / 256) as u8));
                carrier.finish(&mut frame, TxChecksum::SOFTWARE);
                let mut reassembly = Reassembly::new(16, 256 * 1024, [0; 16]);
                let (us, now) = ([interface(vlan, 2)], Instant::ZERO);
                let mut whole = None;
                for piece in fragments(path, frame.len() - path.header_len(), mtu) {
                    let mut out = vec![0xdd; frame_len(path, &piece)];
                    emit(path, &frame, &piece, 0x1234_5678, &mut out);
                    assert!(out.len() - path.l2_len() <= mtu);
                    assert_eq!(whole, None);
                    let found = demux(&out, 0, L4Check::Unknown, &us).unwrap();
                    let Kind::Fragment(fragment) = &found.kind else { panic!("{found:?}") };
                    assert_eq!(fragment.id, if v6 { 0x1234_5678 } else { 0x5678 });
                    if let Outcome::Complete(bytes) =
                        reassembly.input(0, fragment, &out, now).unwrap().0
                    {
                        whole = Some(bytes);
                    }
                }
                let whole = whole.expect("all pieces");
                assert_eq!(whole[carrier.header_len()..], frame[carrier.header_len()..]);
                let found = demux(&whole, 0, L4Check::Unknown, &us).unwrap();
                let packet = carrier.header_len()..frame.len();
                assert!(
                    matches!(found.kind, Kind::Sctp { packet: ref p, udp: ref u, .. }
                        if *p == packet && u.is_some() == udp.is_some()),
                    "{found:?}"
                );
            }
        }
    }

    // RFC 791 §2.3: IPv4 fragments have DF clear, so that a router may fragment them again.
    #[test]
    fn ipv4_fragments_may_be_refragmented() {
        let carrier = sctp_path(None, false, None);
        let mut frame = vec![0; carrier.header_len() + 1000];
        carrier.finish(&mut frame, TxChecksum::SOFTWARE);
        assert_eq!(frame[20] & 0x40, 0x40, "DF is set in the unfragmented packet");
        for piece in fragments(&carrier.path, 1000, 600) {
            let mut out = vec![0; frame_len(&carrier.path, &piece)];
            emit(&carrier.path, &frame, &piece, 1, &mut out);
            assert_eq!(out[20] & 0x40, 0);
        }
    }

    // RFC 6864 §4.3, RFC 7739 §5: no repetition in 60,000 packets to one host; different values for another host and
    // from another worker.
    #[test]
    fn identifications_differ_by_packet_host_and_worker() {
        let us = IpAddr::from([10, 0, 0, 1]);
        let peer = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut ids = IdentificationGenerator::new([1; 16]);
        let seen: HashSet<_> = (0..60_000).map(|_| ids.next(us, peer(2)) as u16).collect();
        assert_eq!(seen.len(), 60_000, "identifications to one host do not repeat");
        let mut other = IdentificationGenerator::new([2; 16]);
        let (mut a, mut b) =
            (IdentificationGenerator::new([1; 16]), IdentificationGenerator::new([1; 16]));
        let first = a.next(us, peer(2));
        assert_ne!(first, b.next(us, peer(3)), "identifications differ between hosts");
        assert_ne!(first, other.next(us, peer(2)), "identifications differ between workers");
    }

    // Fragments of UDP are accepted only on an interface with a UDP port for SCTP in UDP.
    #[test]
    fn udp_is_reassembled_where_sctp_is_expected() {
        let udp = UdpPorts { local: 4000, remote: 9899 };
        for v6 in [false, true] {
            let carrier = sctp_path(None, v6, Some(udp));
            assert!(carrier.path.is_v6() == v6);
            let mut frame = vec![0; carrier.header_len() + 1000];
            carrier.finish(&mut frame, TxChecksum::SOFTWARE);
            let piece = fragments(&carrier.path, 1008, 600).next().unwrap();
            let mut out = vec![0; frame_len(&carrier.path, &piece)];
            emit(&carrier.path, &frame, &piece, 1, &mut out);
            let mut us = interface(None, 2);
            assert!(demux(&out, 0, L4Check::Unknown, std::slice::from_ref(&us)).is_ok());
            us.encapsulation = None;
            let refused = demux(&out, 0, L4Check::Unknown, &[us]);
            assert_eq!(refused.map(|p| p.kind), Err(crate::drops::DropReason::Fragment));
        }
    }
}
