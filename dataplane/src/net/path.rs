//! The headers in front of a flow's segments, written once and patched per frame ([`Path`]). [`TxChecksum`] specifies
//! whether the worker or the device computes each checksum of a sent packet. [`write_ip_frame`] writes single IP
//! packets that belong to no flow. The header of SCTP in UDP is in [`super::sctp_path`].
//!
//! ```text
//!  | Ethernet 14 | VLAN 4, if any | IPv4 20 or IPv6 40 | TCP segment ...
//!                                 ^ l2_len()           ^ header_len()
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet,
};

use super::ecn;
use super::interface::Interface;
use super::neighbour::Mac;
use super::protocol::TCP;
use crate::checksum;
use crate::port::ChecksumSite;
use port_kind::policy::IpFields;
use wire::crc32c::Sum;

const ETHERNET_LEN: usize = 14;
const VLAN_TAG_LEN: usize = 4;
/// Length of an IPv4 header without options, bytes.
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;

/// Maximum length of the headers in front of a segment, bytes: Ethernet, VLAN tag, IPv6.
pub const MAX_HEADERS: usize = ETHERNET_LEN + VLAN_TAG_LEN + IPV6_HEADER_LEN;
/// Maximum length of the headers in front of a segment over IPv4, bytes.
const V4_HEADERS: usize = ETHERNET_LEN + VLAN_TAG_LEN + IPV4_HEADER_LEN;

/// Offset of the checksum in a TCP header (RFC 9293 §3.1).
const TCP_CHECKSUM: core::ops::Range<usize> = 16..18;
/// Length of a TCP header without options, bytes.
const TCP_HEADER_LEN: u16 = 20;
const IPV4_PROTOCOL: usize = 9;
const IPV6_PROTOCOL: usize = 6;
const IPV4_LEN: core::ops::Range<usize> = 2..4;
const IPV4_CHECKSUM: core::ops::Range<usize> = 10..12;
const IPV6_LEN: core::ops::Range<usize> = 4..6;
const IPV4_TTL: usize = 8;
const IPV6_HOP_LIMIT: usize = 7;
const HOP_LIMIT: u8 = 64;

/// Site (device or worker) that computes each checksum of a sent packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxChecksum {
    /// True if the device computes IPv4's header checksum, false if the worker does.
    pub ip_by_device: bool,
    /// Site that computes TCP's checksum.
    pub tcp: ChecksumSite,
    /// Site that computes SCTP's checksum, unless SCTP is encapsulated in UDP. `Skipped` only in
    /// [`LOOPBACK`](Self::LOOPBACK) and in the result of [`for_tcp`](Self::for_tcp).
    pub sctp: ChecksumSite,
}

impl TxChecksum {
    /// The worker computes all checksums.
    pub const SOFTWARE: TxChecksum = TxChecksum {
        ip_by_device: false,
        tcp: ChecksumSite::Software,
        sctp: ChecksumSite::Software,
    };

    /// The worker computes the IPv4 header checksum and no other, for packets that do not leave the worker.
    pub const LOOPBACK: TxChecksum =
        TxChecksum { ip_by_device: false, tcp: ChecksumSite::Skipped, sctp: ChecksumSite::Skipped };

    /// Returns the sites for TCP segments. SCTP's site is `Skipped`, because a frame can request the checksum of one
    /// protocol only.
    #[must_use]
    #[inline]
    pub fn for_tcp(self) -> TxChecksum {
        TxChecksum { sctp: ChecksumSite::Skipped, ..self }
    }

    /// Returns the sites for SCTP packets; TCP's site is `Skipped`. For SCTP in UDP, software computes SCTP's checksum,
    /// because devices do not find an SCTP packet in UDP.
    #[must_use]
    pub fn for_sctp(self, in_udp: bool) -> TxChecksum {
        let sctp = if in_udp { ChecksumSite::Software } else { self.sctp };
        TxChecksum { tcp: ChecksumSite::Skipped, sctp, ..self }
    }

    /// Returns true if the device computes a checksum of a TCP segment or of its IPv4 header.
    #[inline]
    pub fn needs_device(self) -> bool {
        self.ip_by_device || self.tcp == ChecksumSite::Device
    }

    /// Returns true if the device computes a checksum of an SCTP packet or of its IPv4 header.
    #[inline]
    pub fn needs_device_for_sctp(self) -> bool {
        self.ip_by_device || self.sctp == ChecksumSite::Device
    }
}

/// The constant headers in front of a flow's segments, and the next hop.
#[derive(Clone, Debug)]
pub struct Path {
    headers: Headers,
    interface: u16,
    port: u16,
    /// Length of the headers in front of a segment, bytes.
    len: u8,
    /// Offset of the IP header: length of the Ethernet header with its VLAN tag, bytes.
    l3: u8,
    /// Ones' complement sum of source and destination address, for the pseudo-header.
    addresses: u16,
}

/// The header bytes and the next hop's address. Every stream stores this value, so the IPv4 variant is as short as
/// possible, and the IPv6 variant is boxed.
#[derive(Clone, Debug)]
enum Headers {
    V4 { next_hop: Ipv4Addr, bytes: [u8; V4_HEADERS] },
    V6(Box<V6Headers>),
}

#[derive(Clone, Debug)]
struct V6Headers {
    next_hop: Ipv6Addr,
    bytes: [u8; MAX_HEADERS],
}

const _: () = assert!(size_of::<Path>() == 56);

impl AsRef<Path> for Path {
    #[inline]
    fn as_ref(&self) -> &Path {
        self
    }
}

impl AsMut<Path> for Path {
    #[inline]
    fn as_mut(&mut self) -> &mut Path {
        self
    }
}

impl Path {
    /// Creates the path from `local` to `remote` through `interface`, whose index is `index`. Returns `None` if the
    /// interface has no route to `remote`, or the address families differ.
    pub fn new(
        index: usize,
        interface: &Interface,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<Path> {
        let next_hop = interface.next_hop(remote.ip())?;
        Path::via(index, interface, local.ip(), remote.ip(), next_hop)
    }

    /// Creates a path as [`new`](Self::new) does, through the neighbour `next_hop` instead of a route. The path to an
    /// address of the interface is a loopback path, regardless of the next hop. Returns `None` if the address families
    /// differ.
    pub fn via(
        index: usize,
        interface: &Interface,
        source: IpAddr,
        destination: IpAddr,
        next_hop: IpAddr,
    ) -> Option<Path> {
        if source.is_ipv4() != destination.is_ipv4() {
            return None;
        }
        let protocol = match source {
            IpAddr::V4(_) => EthernetProtocol::Ipv4,
            IpAddr::V6(_) => EthernetProtocol::Ipv6,
        };
        // The unspecified address marks a loopback path.
        let (next_hop, mac) = match interface.has_address(destination) {
            true if source.is_ipv4() => (Ipv4Addr::UNSPECIFIED.into(), interface.mac),
            true => (Ipv6Addr::UNSPECIFIED.into(), interface.mac),
            false => (next_hop, [0; 6]),
        };
        let mut headers = match next_hop {
            IpAddr::V4(next_hop) if source.is_ipv4() => {
                Headers::V4 { next_hop, bytes: [0; V4_HEADERS] }
            }
            IpAddr::V6(next_hop) if source.is_ipv6() => {
                Headers::V6(Box::new(V6Headers { next_hop, bytes: [0; MAX_HEADERS] }))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => return None,
        };
        let bytes = headers.bytes_mut();
        let l3 = write_ethernet(bytes, interface, mac, protocol);
        let ip = IpRepr::new(source.into(), destination.into(), IpProtocol::Tcp, 0, HOP_LIMIT);
        ip.emit(&mut bytes[l3..], &ChecksumCapabilities::default());
        let mut path = Path {
            headers,
            interface: index as u16,
            port: interface.port as u16,
            len: (l3 + ip.header_len()) as u8,
            l3: l3 as u8,
            addresses: checksum::sum_addresses(source, destination),
        };
        path.set_fields(interface.ip);
        Some(path)
    }

    /// Replaces the IP header fields that are set in `fields` (RFC 9293 §3.9.1.9 MUST-48, §3.9.2 MUST-49). The ECN
    /// field is unchanged.
    #[must_use]
    #[inline]
    pub fn with_fields(mut self, fields: IpFields) -> Path {
        // If no field changes, the header checksum remains valid.
        if fields.dscp.is_some() || fields.ttl.is_some() {
            self.set_fields_cold(fields);
        }
        self
    }

    /// Keeps [`set_fields`](Self::set_fields) out of line, so that [`with_fields`](Self::with_fields) costs only its
    /// check if no field is set.
    #[inline(never)]
    fn set_fields_cold(&mut self, fields: IpFields) {
        self.set_fields(fields);
    }

    /// Sets the fields that are `Some` and updates the stored sum of IPv4's header.
    #[inline(always)]
    fn set_fields(&mut self, IpFields { dscp, ttl }: IpFields) {
        let (l3, is_v6) = (self.l2_len(), self.is_v6());
        let ip = &mut self.headers.bytes_mut()[l3..];
        if let Some(ttl) = ttl {
            ip[if is_v6 { IPV6_HOP_LIMIT } else { IPV4_TTL }] = ttl;
        }
        if let Some(dscp) = dscp {
            ecn::set_dscp(ip, dscp);
        }
        self.set_header_sum();
    }

    /// Stores the ones' complement sum, not inverted, of the constant header bytes in IPv4's checksum field. Length and
    /// checksum count as zero. [`finish_ip`](Self::finish_ip) adds the fields that vary per packet.
    fn set_header_sum(&mut self) {
        if let Headers::V4 { bytes, .. } = &mut self.headers {
            let ip = &mut bytes[self.l3.into()..self.len.into()];
            ip[IPV4_LEN].fill(0);
            ip[IPV4_CHECKSUM].fill(0);
            let sum = checksum::sum(ip);
            ip[IPV4_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Sets the source link-layer address.
    pub fn set_source_mac(&mut self, mac: Mac) {
        EthernetFrame::new_unchecked(self.headers.bytes_mut()).set_src_addr(EthernetAddress(mac));
    }

    /// Returns the index of the interface.
    pub fn interface(&self) -> usize {
        self.interface.into()
    }

    /// Returns the index of the interface's port.
    pub fn port(&self) -> usize {
        self.port.into()
    }

    /// Returns true if the destination is an address of the interface itself: packets are looped back in the worker.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        match &self.headers {
            Headers::V4 { next_hop, .. } => next_hop.is_unspecified(),
            Headers::V6(headers) => headers.next_hop.is_unspecified(),
        }
    }

    /// Returns the address of the next hop; unspecified for a loopback path.
    pub fn next_hop(&self) -> IpAddr {
        match &self.headers {
            Headers::V4 { next_hop, .. } => (*next_hop).into(),
            Headers::V6(headers) => headers.next_hop.into(),
        }
    }

    /// Returns the path with this IP protocol instead of TCP.
    pub fn with_protocol(mut self, protocol: IpProtocol) -> Path {
        let at = self.l2_len() + if self.is_v6() { IPV6_PROTOCOL } else { IPV4_PROTOCOL };
        self.headers.bytes_mut()[at] = protocol.into();
        self.set_header_sum();
        self
    }

    /// Returns the local and the remote address, in this order.
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        let ip = &self.headers.bytes()[self.l2_len()..];
        let v4 = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap_or_default());
        let v6 =
            |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap_or_default());
        match self.is_v6() {
            true => (v6(8), v6(24)),
            false => (v4(12), v4(16)),
        }
    }

    /// Returns true if the [`addresses`](Self::addresses) are these. Compares IPv4 addresses as one number.
    #[inline]
    pub fn has_addresses(&self, local: IpAddr, remote: IpAddr) -> bool {
        if let (Headers::V4 { bytes, .. }, IpAddr::V4(local), IpAddr::V4(remote)) =
            (&self.headers, local, remote)
            && let Some(both) = bytes.get(self.l2_len() + 12..).and_then(|b| b.first_chunk())
        {
            let expected = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
            return u64::from_be_bytes(*both) == expected;
        }
        self.addresses() == (local, remote)
    }

    /// Sets the link-layer address of the next hop.
    pub fn set_mac(&mut self, mac: Mac) {
        self.headers.bytes_mut()[..6].copy_from_slice(&mac);
    }

    /// Returns the length of the headers in front of a segment, bytes.
    pub fn header_len(&self) -> usize {
        self.len.into()
    }

    /// Returns the length of the Ethernet header with its VLAN tag, bytes.
    pub fn l2_len(&self) -> usize {
        self.l3.into()
    }

    /// Returns the length of the IP header, bytes.
    pub fn l3_len(&self) -> usize {
        usize::from(self.len - self.l3)
    }

    /// Returns the number of header bytes to subtract from an MTU: the IP header, and a TCP header without options.
    pub fn tcp_headers(&self) -> u16 {
        self.l3_len() as u16 + TCP_HEADER_LEN
    }

    /// Returns true for IPv6.
    pub fn is_v6(&self) -> bool {
        matches!(self.headers, Headers::V6(_))
    }

    /// Returns the maximum length of a segment, TCP header included, in an IP packet of `mtu` bytes. `mtu` must be at
    /// least the length of the IP header.
    pub fn segment_limit(&self, mtu: u16) -> usize {
        usize::from(mtu) - self.l3_len()
    }

    /// Writes the headers and checksums of `frame`. The frame has space for the headers, then a TCP segment whose
    /// checksum field is zero. If `ect` is true, the packet is sent as ECN-capable (RFC 3168 §5). `sum` is the ones'
    /// complement sum of the segment, if the caller has computed it.
    pub fn finish(&self, frame: &mut [u8], checksums: TxChecksum, ect: bool, sum: Option<Sum>) {
        self.finish_ip(frame, checksums, ect);
        let at = self.header_len();
        let len = frame.len() - at;
        let sum = match checksums.tcp {
            ChecksumSite::Software => {
                let sum = sum.map_or_else(|| checksum::sum(&frame[at..]), Sum::value);
                checksum::segment_with_sum(self.addresses, TCP, len, sum)
            }
            // The device expects the pseudo-header's sum in the checksum field and adds the segment's sum.
            ChecksumSite::Device => {
                checksum::pseudo_header_with_addresses(self.addresses, TCP, len)
            }
            ChecksumSite::Skipped => return,
        };
        frame[at..][TCP_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    }

    /// Writes the Ethernet and IP headers of `frame`, which has space for them in front of a complete payload. If `ect`
    /// is true, the packet is sent as ECN-capable.
    pub fn finish_ip(&self, frame: &mut [u8], checksums: TxChecksum, ect: bool) {
        match &self.headers {
            Headers::V4 { bytes, .. } => match self.l3 {
                L3_UNTAGGED => {
                    write_v4::<L3_UNTAGGED, V4_UNTAGGED>(bytes, frame, checksums, ect);
                }
                _ => write_v4::<L3_TAGGED, V4_HEADERS>(bytes, frame, checksums, ect),
            },
            Headers::V6(headers) => {
                let at = self.header_len();
                frame[..at].copy_from_slice(&headers.bytes[..at]);
                let len = frame.len() - at;
                let ip = &mut frame[self.l2_len()..at];
                if ect {
                    ecn::set_capable(ip);
                }
                ip[IPV6_LEN].copy_from_slice(&(len as u16).to_be_bytes());
            }
        }
    }
}

/// Length of an Ethernet header without and with a VLAN tag, bytes.
const L3_UNTAGGED: u8 = ETHERNET_LEN as u8;
const L3_TAGGED: u8 = (ETHERNET_LEN + VLAN_TAG_LEN) as u8;
/// Length of the headers in front of a segment over IPv4 without a VLAN tag, bytes.
const V4_UNTAGGED: usize = ETHERNET_LEN + IPV4_HEADER_LEN;

/// Writes Ethernet and IPv4 headers of `END` bytes to `frame`, from the template `bytes`. The IPv4 header is at `L3`.
/// `L3` and `END` are constants, so that the compiler copies the template through registers.
#[inline(always)]
fn write_v4<const L3: u8, const END: usize>(
    bytes: &[u8; V4_HEADERS],
    frame: &mut [u8],
    checksums: TxChecksum,
    ect: bool,
) {
    let l3 = usize::from(L3);
    let len = (frame.len() - l3) as u16;
    let out = frame.first_chunk_mut::<END>().expect("room for the headers");
    let template = bytes.first_chunk::<END>().expect("the template has all headers");
    *out = *template;
    let (ip, template) = (&mut out[l3..], &template[l3..]);
    if ect {
        ecn::set_capable(ip);
    }
    ip[IPV4_LEN].copy_from_slice(&len.to_be_bytes());
    let sum = match checksums.ip_by_device {
        true => 0,
        // RFC 1624 §2: length and ECN field are added to the stored sum of the constant header.
        false => {
            let known = &template[IPV4_CHECKSUM];
            let known = u16::from_be_bytes([known[0], known[1]]);
            let ecn = if ect { ecn::ECT_0.into() } else { 0 };
            !checksum::add_all([known, len, ecn])
        }
    };
    ip[IPV4_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
}

impl Headers {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Headers::V4 { bytes, .. } => bytes,
            Headers::V6(headers) => &headers.bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Headers::V4 { bytes, .. } => bytes,
            Headers::V6(headers) => &mut headers.bytes,
        }
    }
}

/// Writes a frame's Ethernet header, with the interface's VLAN tag if it has one. Returns the length written, 14 or 18
/// bytes.
pub fn write_ethernet(
    frame: &mut [u8],
    interface: &Interface,
    destination: Mac,
    protocol: EthernetProtocol,
) -> usize {
    let mut ethernet = EthernetFrame::new_unchecked(&mut *frame);
    ethernet.set_dst_addr(EthernetAddress(destination));
    ethernet.set_src_addr(EthernetAddress(interface.mac));
    let Some(vlan) = interface.vlan else {
        ethernet.set_ethertype(protocol);
        return ETHERNET_LEN;
    };
    ethernet.set_ethertype(EthernetProtocol::Unknown(0x8100));
    frame[14..16].copy_from_slice(&vlan.to_be_bytes());
    frame[16..18].copy_from_slice(&u16::from(protocol).to_be_bytes());
    ETHERNET_LEN + VLAN_TAG_LEN
}

/// Fields of the IP header that the caller of [`write_ip_frame`] determines.
#[derive(Clone, Copy, Debug)]
pub struct IpHeader {
    /// Source address, of the same family as `destination`.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol number of the payload, or the IPv6 next header.
    pub protocol: IpProtocol,
    /// IPv4's time to live, or IPv6's hop limit.
    pub hop_limit: u8,
}

/// Appends an Ethernet frame with an IP packet to `out`. The frame has the destination `mac`, and a VLAN tag if the
/// interface has one. The IP header is `header`, whose addresses must be of one family. `fill` writes the `len` bytes
/// of payload.
pub fn write_ip_frame(
    out: &mut Vec<u8>,
    interface: &Interface,
    mac: Mac,
    header: IpHeader,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    let IpHeader { source, destination, protocol, hop_limit } = header;
    let begin = out.len();
    out.resize(begin + MAX_HEADERS + len, 0);
    let frame = &mut out[begin..];
    let kind = match source {
        IpAddr::V4(_) => EthernetProtocol::Ipv4,
        IpAddr::V6(_) => EthernetProtocol::Ipv6,
    };
    let l3 = write_ethernet(frame, interface, mac, kind);
    let header_len = match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            let mut ip = Ipv4Packet::new_unchecked(&mut frame[l3..]);
            ip.set_version(4);
            ip.set_header_len(IPV4_HEADER_LEN as u8);
            ip.set_total_len((IPV4_HEADER_LEN + len) as u16);
            ip.set_dont_frag(true);
            ip.set_hop_limit(hop_limit);
            ip.set_next_header(protocol);
            ip.set_src_addr(s);
            ip.set_dst_addr(d);
            ip.fill_checksum();
            IPV4_HEADER_LEN
        }
        (IpAddr::V6(s), IpAddr::V6(d)) => {
            let mut ip = Ipv6Packet::new_unchecked(&mut frame[l3..]);
            ip.set_version(6);
            ip.set_payload_len(len as u16);
            ip.set_next_header(protocol);
            ip.set_hop_limit(hop_limit);
            ip.set_src_addr(s);
            ip.set_dst_addr(d);
            IPV6_HEADER_LEN
        }
        // Not reached: all callers pass addresses of the same family.
        _ => 0,
    };
    fill(&mut frame[l3 + header_len..][..len]);
    out.truncate(begin + l3 + header_len + len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::demux::{Kind, L4Check, demux};
    use tcp_lite::tcp::{Flags, Segment, SeqNumber};

    #[test]
    fn path_has_only_its_own_addresses() {
        let ends = [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")];
        let ends = ends.map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap()));
        for vlan in [None, Some(42)] {
            let own = Interface::with_addresses(vlan, [2; 6], ["10.0.0.1", "2001:db8::1"]);
            for (local, remote) in ends {
                let path = Path::via(0, &own, local, remote, remote).unwrap();
                let all = ends.iter().flat_map(|&(a, b)| [a, b]);
                for other in all.chain(["10.0.0.3".parse().unwrap()]) {
                    assert_eq!(path.has_addresses(local, other), other == remote);
                    assert_eq!(path.has_addresses(other, remote), other == local);
                }
            }
        }
    }

    #[test]
    fn written_headers_pass_demux() {
        let segment = Segment {
            src_port: 700,
            dst_port: 800,
            seq: SeqNumber(5),
            ack: SeqNumber(6),
            flags: Flags::ACK,
            window: 7,
            options: Default::default(),
            payload: b"a short text.",
            ce: false,
            text_crc: None,
        };
        for vlan in [None, Some(42)] {
            for (from, to) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")] {
                let a = Interface::with_addresses(
                    vlan,
                    [2, 0, 0, 0, 0, 1],
                    ["10.0.0.1", "2001:db8::1"],
                );
                let b = Interface::with_addresses(
                    vlan,
                    [2, 0, 0, 0, 0, 2],
                    ["10.0.0.2", "2001:db8::2"],
                );
                let (local, remote) = (
                    SocketAddr::new(from.parse().unwrap(), 700),
                    SocketAddr::new(to.parse().unwrap(), 800),
                );
                let mut path = Path::new(0, &a, local, remote).unwrap();
                path.set_mac(b.mac);
                let mut frame = vec![0; path.header_len() + segment.wire_len()];
                segment.emit(&mut frame[path.header_len()..]);
                let at = path.header_len();
                let sum = Sum::default().add_bytes(&frame[at..]);
                path.finish(&mut frame, TxChecksum::SOFTWARE, vlan.is_some(), None);
                // A precomputed sum of the segment gives the same frame.
                let summed = frame.clone();
                segment.emit(&mut frame[at..]);
                path.finish(&mut frame, TxChecksum::SOFTWARE, vlan.is_some(), Some(sum));
                assert_eq!(frame, summed);
                let packet = demux(&frame, 0, L4Check::Unknown, &[b]).unwrap();
                let range = path.header_len()..frame.len();
                assert_eq!(
                    packet.kind,
                    Kind::Tcp { source: local, destination: remote, segment: range }
                );
            }
        }
    }

    // RFC 9293 §3.9.1.9 MUST-48, §3.9.2 MUST-49, RFC 2474 §3, RFC 3168 §5: DSCP and TTL are set as configured for
    // the interface or the stream. The transport sets ECN. IPv4's checksum is correct.
    #[test]
    fn dscp_and_ttl_are_configured_and_ecn_is_not() {
        let mut a =
            Interface::with_addresses(None, [2, 0, 0, 0, 0, 1], ["10.0.0.1", "2001:db8::1"]);
        a.ip = IpFields { dscp: Some(0b10_1110), ttl: None };
        let own = IpFields { dscp: None, ttl: Some(255) };
        let both = IpFields { dscp: Some(0b00_1001), ttl: Some(1) };
        for (from, to) in [("10.0.0.1:7", "10.0.0.2:8"), ("[2001:db8::1]:7", "[2001:db8::2]:8")] {
            let path = Path::new(0, &a, from.parse().unwrap(), to.parse().unwrap()).unwrap();
            let seen = |path: Path, ect: bool| {
                let path = path.with_protocol(IpProtocol::Unknown(132));
                let mut frame = vec![0; path.header_len() + 40];
                path.finish(&mut frame, TxChecksum::SOFTWARE, ect, None);
                let ip = &frame[14..];
                if path.is_v6() {
                    let ip = Ipv6Packet::new_checked(ip).unwrap();
                    return (ip.traffic_class() >> 2, ip.traffic_class() & 3, ip.hop_limit());
                }
                let ip = Ipv4Packet::new_checked(ip).unwrap();
                assert!(ip.verify_checksum(), "{ip}");
                (ip.dscp(), ip.ecn(), ip.hop_limit())
            };
            assert_eq!(seen(path.clone(), false), (0b10_1110, 0, 64));
            assert_eq!(seen(path.clone().with_fields(own), true), (0b10_1110, 2, 255));
            assert_eq!(seen(path.clone().with_fields(both), true), (0b00_1001, 2, 1));
            assert_eq!(seen(path.with_fields(both), false), (0b00_1001, 0, 1));
        }
    }

    #[test]
    fn checksum_fields_hold_offload_pseudo_header() {
        let a = Interface::with_addresses(None, [2, 0, 0, 0, 0, 1], ["10.0.0.1", "2001:db8::1"]);
        let (local, remote) = ("10.0.0.1:7".parse().unwrap(), "10.0.0.2:8".parse().unwrap());
        let path = Path::new(0, &a, local, remote).unwrap();
        let written = |how| {
            let mut frame = vec![0; path.header_len() + 30];
            path.finish(&mut frame, how, false, None);
            (frame[24..26].to_vec(), frame[50..52].to_vec())
        };
        let (by, sctp) = (ChecksumSite::Device, ChecksumSite::Software);
        let device = TxChecksum { ip_by_device: true, tcp: by, sctp };
        let pseudo = checksum::pseudo_header(local.ip(), remote.ip(), TCP, 30);
        assert_eq!(written(device), (vec![0, 0], pseudo.to_be_bytes().to_vec()));
        let trusted = TxChecksum { ip_by_device: false, tcp: ChecksumSite::Skipped, sctp };
        let (ip, tcp) = written(trusted);
        assert_eq!(tcp, [0, 0]);
        // The IP header checksum is the same whether the worker or the device computes TCP's.
        let (software, tcp) = written(TxChecksum::SOFTWARE);
        assert_eq!(software, ip);
        // RFC 9293 §3.1: the pseudo-header's sum plus the segment's, inverted, is the checksum computed in software.
        let segment = checksum::sum(&[0; 30]);
        assert_eq!(tcp, (!checksum::add(pseudo, segment)).to_be_bytes());
    }
}
