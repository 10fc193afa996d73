//! Frames between the tester, which has one address on one link, and the tested host.
//!
//! This module answers ARP requests and neighbour solicitations for the tester's address, and resolves the next hop's
//! address. The module also encapsulates and decapsulates TCP segments and SCTP packets. Not included: more than one
//! next hop (the host itself or a router), VLANs and fragments. Lengths are bytes.

use std::net::{IpAddr, Ipv6Addr};

use super::SendError;
use dialogue::segment::{Ecn, Segment};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv4Packet, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet,
    NdiscNeighborFlags, NdiscRepr, TcpPacket,
};

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const SCTP: IpProtocol = IpProtocol::Unknown(132);
/// Maximum number of bytes of a packet that an ICMP report quotes.
const QUOTED: usize = 500;
/// Hop limit of sent packets; RFC 4861 §7.1 requires 255 for neighbour discovery.
const HOP_LIMIT: u8 = 255;

/// Addresses of the tester on its link, and of the tested host.
#[derive(Clone, Debug)]
pub struct Station {
    /// Hardware address of the port.
    pub mac: EthernetAddress,
    /// The tester's address on the link; no other host may use it.
    pub address: IpAddr,
    /// IP address of the tested host.
    pub host: IpAddr,
    /// Next hop of sent frames: the host, or the router to it. Same family as `address`.
    pub next_hop: IpAddr,
    /// Hardware address of the next hop; `None` until resolved.
    pub next_mac: Option<EthernetAddress>,
}

/// Transport packet between tester and host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransportPacket {
    /// A TCP segment.
    Tcp(Segment),
    /// An SCTP packet with its checksum.
    Sctp(Vec<u8>),
}

/// Classification of a received frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceivedFrame {
    /// A packet from the tested host to the tester. The checksum of an SCTP packet is not checked.
    Transport(TransportPacket),
    /// An ARP request or neighbour solicitation for the tester's address, with the reply frame.
    AddressRequest(Vec<u8>),
    /// The reply that resolved the next hop's hardware address.
    Resolved,
    /// An ICMP report that a packet was too big. Contains the MTU, bytes. The report's checksum and the packet that it
    /// quotes are not checked; over IPv6, neither is its sender.
    TooBig(u16),
    /// A packet of the tested host with a wrong IPv4 header checksum, a wrong TCP checksum or an incomplete TCP header,
    /// or an ICMPv6 report with an MTU above 65,535. Contains the reason. Packets with an incomplete IP header are
    /// [`Other`](ReceivedFrame::Other).
    Damaged(&'static str),
    /// Any other frame.
    Other,
}

impl Station {
    /// Returns the ARP request or neighbour solicitation for the next hop; empty if the address families differ.
    pub fn next_hop_request(&self) -> Vec<u8> {
        match (self.address, self.next_hop) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let repr = ArpRepr::EthernetIpv4 {
                    operation: ArpOperation::Request,
                    source_hardware_addr: self.mac,
                    source_protocol_addr: source,
                    target_hardware_addr: EthernetAddress([0; 6]),
                    target_protocol_addr: target,
                };
                self.arp(&repr, EthernetAddress::BROADCAST)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let repr = NdiscRepr::NeighborSolicit {
                    target_addr: target,
                    lladdr: Some(self.mac.into()),
                };
                // RFC 4291 §2.7.1: the solicited-node multicast address.
                let o = target.octets();
                let group: Ipv6Addr =
                    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, o[13], o[14], o[15]].into();
                // RFC 2464 §7: the Ethernet address of that group.
                let mac = EthernetAddress([0x33, 0x33, 0xff, o[13], o[14], o[15]]);
                self.nd(&repr, source, group, mac)
            }
            _ => Vec::new(),
        }
    }

    /// Encapsulates `carried` in a frame to the host. Computes the TCP checksum, and copies the segment's ECN field to
    /// the IP header.
    ///
    /// # Errors
    /// The next hop's hardware address is not resolved, or no IP packet is that long.
    pub fn wrap(&self, carried: &TransportPacket) -> Result<Vec<u8>, SendError> {
        let unresolved = || SendError::Failed("the next hop is not resolved".into());
        let next_mac = self.next_mac.ok_or_else(unresolved)?;
        let (protocol, ecn, bytes) = match carried {
            TransportPacket::Tcp(segment) => {
                let mut bytes = segment.emit();
                TcpPacket::new_unchecked(&mut bytes)
                    .fill_checksum(&self.address.into(), &self.host.into());
                let ecn = match segment.ecn {
                    Ecn::NotEct => 0,
                    Ecn::Ect => 2,
                    Ecn::Ce => 3,
                };
                (IpProtocol::Tcp, ecn, bytes)
            }
            TransportPacket::Sctp(bytes) => (SCTP, 0, bytes.clone()),
        };
        let packet = ip_packet(self.address, self.host, protocol, ecn, &bytes)
            .ok_or(SendError::TooLong(ip_header(self.host) + bytes.len()))?;
        Ok(self.ethernet(next_mac, ether_type(self.host), &packet))
    }

    /// Processes a frame received on the port and returns its classification. Records the next hop's hardware address
    /// if the frame resolves it.
    pub fn input(&mut self, frame: &[u8]) -> ReceivedFrame {
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return ReceivedFrame::Other };
        if ethernet.src_addr() == self.mac {
            return ReceivedFrame::Other;
        }
        match ethernet.ethertype() {
            EthernetProtocol::Arp => self.arp_input(ethernet.payload()),
            EthernetProtocol::Ipv4 => self.ipv4_input(ethernet.payload()),
            EthernetProtocol::Ipv6 => self.ipv6_input(ethernet.payload()),
            _ => ReceivedFrame::Other,
        }
    }

    /// Returns the IP and hardware address of the sender of an IP packet to the tester; `None` for other frames.
    pub fn sender(&self, frame: &[u8]) -> Option<(IpAddr, EthernetAddress)> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let (source, destination) = match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => {
                let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
                (IpAddr::V4(packet.src_addr()), IpAddr::V4(packet.dst_addr()))
            }
            EthernetProtocol::Ipv6 => {
                let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
                (IpAddr::V6(packet.src_addr()), IpAddr::V6(packet.dst_addr()))
            }
            _ => return None,
        };
        let is_for_tester = destination == self.address && ethernet.src_addr() != self.mac;
        is_for_tester.then_some((source, ethernet.src_addr()))
    }

    /// Returns the frame of an ICMP report that the host's IP packet `packet` is longer than `mtu` bytes (RFC 1191 §4,
    /// RFC 4443 §3.2); `None` before the next hop's hardware address is resolved.
    pub fn packet_too_big(&self, packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
        let quoted = &packet[..packet.len().min(QUOTED)];
        let (protocol, head) = match self.host {
            IpAddr::V4(_) => (IpProtocol::Icmp, [3, 4, 0, 0, 0, 0]),
            IpAddr::V6(_) => (IpProtocol::Icmpv6, [2, 0, 0, 0, 0, 0]),
        };
        let mut bytes = [&head[..], &mtu.to_be_bytes(), quoted].concat();
        match (self.address, self.host) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Icmpv6Packet::new_unchecked(&mut bytes).fill_checksum(&from, &to);
            }
            _ => Icmpv4Packet::new_unchecked(&mut bytes).fill_checksum(),
        }
        let packet = ip_packet(self.address, self.host, protocol, 0, &bytes)?;
        Some(self.ethernet(self.next_mac?, ether_type(self.host), &packet))
    }

    fn arp_input(&mut self, bytes: &[u8]) -> ReceivedFrame {
        let Some(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: mac,
            source_protocol_addr: sender,
            target_protocol_addr: target,
            ..
        }) = ArpPacket::new_checked(bytes).ok().and_then(|p| ArpRepr::parse(&p).ok())
        else {
            return ReceivedFrame::Other;
        };
        if operation == ArpOperation::Request && self.address == IpAddr::V4(target) {
            let repr = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: self.mac,
                source_protocol_addr: target,
                target_hardware_addr: mac,
                target_protocol_addr: sender,
            };
            return ReceivedFrame::AddressRequest(self.arp(&repr, mac));
        }
        if operation == ArpOperation::Reply && self.next_hop == IpAddr::V4(sender) {
            self.next_mac = Some(mac);
            return ReceivedFrame::Resolved;
        }
        ReceivedFrame::Other
    }

    fn ipv4_input(&mut self, bytes: &[u8]) -> ReceivedFrame {
        let Ok(packet) = Ipv4Packet::new_checked(bytes) else { return ReceivedFrame::Other };
        let ends = (IpAddr::V4(packet.src_addr()), IpAddr::V4(packet.dst_addr()));
        let protocol = packet.next_header();
        let known = matches!(protocol, IpProtocol::Tcp | IpProtocol::Icmp | SCTP);
        if !known || ends != (self.host, self.address) {
            return ReceivedFrame::Other;
        }
        if !packet.verify_checksum() {
            return ReceivedFrame::Damaged("the IP header's checksum is wrong");
        }
        match protocol {
            SCTP => ReceivedFrame::Transport(TransportPacket::Sctp(packet.payload().to_vec())),
            // RFC 1191 §4: 16 bits after two unused bytes.
            IpProtocol::Icmp => too_big([3, 4], 6, packet.payload()),
            _ => self.segment(packet.payload(), packet.ecn()),
        }
    }

    fn ipv6_input(&mut self, bytes: &[u8]) -> ReceivedFrame {
        let Ok(packet) = Ipv6Packet::new_checked(bytes) else { return ReceivedFrame::Other };
        let source = packet.src_addr();
        let ends = (IpAddr::V6(source), IpAddr::V6(packet.dst_addr()));
        let is_ours = ends == (self.host, self.address);
        match packet.next_header() {
            IpProtocol::Tcp if is_ours => {
                self.segment(packet.payload(), packet.traffic_class() & 3)
            }
            SCTP if is_ours => {
                ReceivedFrame::Transport(TransportPacket::Sctp(packet.payload().to_vec()))
            }
            IpProtocol::Icmpv6 if packet.payload().first() == Some(&2) => {
                // RFC 4443 §3.2: 32 bits.
                too_big([2, 0], 4, packet.payload())
            }
            IpProtocol::Icmpv6 if packet.hop_limit() == HOP_LIMIT => {
                self.nd_input(source, packet.payload())
            }
            _ => ReceivedFrame::Other,
        }
    }

    fn nd_input(&mut self, source: Ipv6Addr, bytes: &[u8]) -> ReceivedFrame {
        let repr = Icmpv6Packet::new_checked(bytes).ok().and_then(|p| NdiscRepr::parse(&p).ok());
        let hardware = |lladdr: Option<smoltcp::wire::RawHardwareAddress>| {
            let bytes: [u8; 6] = lladdr?.as_bytes().try_into().ok()?;
            Some(EthernetAddress(bytes))
        };
        match repr {
            Some(NdiscRepr::NeighborSolicit { target_addr, lladdr })
                if self.address == IpAddr::V6(target_addr) =>
            {
                let known = || self.next_mac.filter(|_| self.next_hop == IpAddr::V6(source));
                let Some(mac) = hardware(lladdr).or_else(known) else {
                    return ReceivedFrame::Other;
                };
                let repr = NdiscRepr::NeighborAdvert {
                    flags: NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE,
                    target_addr,
                    lladdr: Some(self.mac.into()),
                };
                ReceivedFrame::AddressRequest(self.nd(&repr, target_addr, source, mac))
            }
            Some(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. })
                if self.next_hop == IpAddr::V6(target_addr) =>
            {
                match hardware(lladdr) {
                    Some(mac) => {
                        self.next_mac = Some(mac);
                        ReceivedFrame::Resolved
                    }
                    None => ReceivedFrame::Other,
                }
            }
            _ => ReceivedFrame::Other,
        }
    }

    /// Checks and parses a TCP segment of the host. `ecn` is the ECN field of its IP header.
    fn segment(&self, bytes: &[u8], ecn: u8) -> ReceivedFrame {
        let Ok(packet) = TcpPacket::new_checked(bytes) else {
            return ReceivedFrame::Damaged("the TCP header is cut short");
        };
        if !packet.verify_checksum(&self.host.into(), &self.address.into()) {
            return ReceivedFrame::Damaged(concat!(
                "the TCP checksum is wrong (between virtual interfaces of one machine: ",
                base::veth_peer_offloads_off!(),
                ")"
            ));
        }
        let Some(mut segment) = Segment::parse(bytes) else {
            return ReceivedFrame::Damaged("the TCP header is cut short");
        };
        segment.ecn = match ecn {
            0 => Ecn::NotEct,
            3 => Ecn::Ce,
            _ => Ecn::Ect,
        };
        ReceivedFrame::Transport(TransportPacket::Tcp(segment))
    }

    /// Returns the frame of an ARP message.
    fn arp(&self, repr: &ArpRepr, to: EthernetAddress) -> Vec<u8> {
        let mut bytes = vec![0; repr.buffer_len()];
        repr.emit(&mut ArpPacket::new_unchecked(&mut bytes));
        self.ethernet(to, EthernetProtocol::Arp, &bytes)
    }

    /// Returns the frame of a neighbour discovery message. `mac` is the hardware address of the receiver or group.
    fn nd(
        &self,
        repr: &NdiscRepr<'_>,
        from: Ipv6Addr,
        to: Ipv6Addr,
        mac: EthernetAddress,
    ) -> Vec<u8> {
        let mut bytes = vec![0; repr.buffer_len()];
        let mut message = Icmpv6Packet::new_unchecked(&mut bytes);
        repr.emit(&mut message);
        message.fill_checksum(&from, &to);
        let packet = ip_packet(from.into(), to.into(), IpProtocol::Icmpv6, 0, &bytes);
        self.ethernet(mac, EthernetProtocol::Ipv6, &packet.unwrap_or_default())
    }

    /// Returns an Ethernet frame from the tester.
    fn ethernet(
        &self,
        to: EthernetAddress,
        ethertype: EthernetProtocol,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut bytes = vec![0; ETHERNET + payload.len()];
        bytes[ETHERNET..].copy_from_slice(payload);
        let repr = EthernetRepr { src_addr: self.mac, dst_addr: to, ethertype };
        repr.emit(&mut EthernetFrame::new_unchecked(&mut bytes));
        bytes
    }
}

/// Returns the MTU of an ICMP report that a packet was too big, or [`ReceivedFrame::Other`] for another message.
/// `kind`: type and code of such a report. `at`: position of the MTU, which ends at byte 8.
fn too_big(kind: [u8; 2], at: usize, message: &[u8]) -> ReceivedFrame {
    let Some(report) = message.get(..8).filter(|report| report[..2] == kind) else {
        return ReceivedFrame::Other;
    };
    let mtu = report[at..].iter().fold(0, |mtu, &byte| mtu << 8 | u32::from(byte));
    match u16::try_from(mtu) {
        Ok(mtu) => ReceivedFrame::TooBig(mtu),
        Err(_) => ReceivedFrame::Damaged("an ICMPv6 report has an MTU above 65535"),
    }
}

/// Returns an IP packet; `None` if the two addresses have different families, or if no IP packet has a `payload` of that
/// length. `ecn` is the ECN field.
pub fn ip_packet(
    from: IpAddr,
    to: IpAddr,
    protocol: IpProtocol,
    ecn: u8,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut bytes;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = u16::try_from(IPV4 + payload.len()).ok()?;
            bytes = vec![0; IPV4 + payload.len()];
            bytes[IPV4..].copy_from_slice(payload);
            let mut packet = Ipv4Packet::new_unchecked(&mut bytes);
            packet.set_version(4);
            packet.set_header_len(IPV4 as u8);
            packet.set_ecn(ecn);
            packet.set_total_len(len);
            packet.set_dont_frag(true);
            packet.set_hop_limit(HOP_LIMIT);
            packet.set_next_header(protocol);
            packet.set_src_addr(from);
            packet.set_dst_addr(to);
            packet.fill_checksum();
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = u16::try_from(payload.len()).ok()?;
            bytes = vec![0; IPV6 + payload.len()];
            bytes[IPV6..].copy_from_slice(payload);
            let mut packet = Ipv6Packet::new_unchecked(&mut bytes);
            packet.set_version(6);
            packet.set_traffic_class(ecn);
            packet.set_payload_len(len);
            packet.set_next_header(protocol);
            packet.set_hop_limit(HOP_LIMIT);
            packet.set_src_addr(from);
            packet.set_dst_addr(to);
        }
        _ => return None,
    }
    Some(bytes)
}

/// Returns the MSS in bytes for a path with this MTU: the MTU minus the IP header of the family of `address` and the
/// TCP header, both without options.
pub fn mss_of(mtu: u16, address: IpAddr) -> u16 {
    usize::from(mtu).saturating_sub(ip_header(address) + TCP) as u16
}

/// Returns the length of an IP header without options, bytes.
fn ip_header(address: IpAddr) -> usize {
    if address.is_ipv4() { IPV4 } else { IPV6 }
}

fn ether_type(address: IpAddr) -> EthernetProtocol {
    if address.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dialogue::segment::Flags;

    fn stations(a: &str, b: &str) -> (Station, Station) {
        let (a, b): (IpAddr, IpAddr) = (a.parse().expect("address"), b.parse().expect("address"));
        let station = |n: u8, address, host| Station {
            mac: EthernetAddress([2, 0, 0, 0, 0, n]),
            address,
            host,
            next_hop: host,
            next_mac: None,
        };
        (station(1, a, b), station(2, b, a))
    }

    #[test]
    fn resolved_stations_exchange_a_segment() {
        for (a, b) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::12:3456")] {
            let (mut one, mut other) = stations(a, b);
            let segment = Segment {
                src_port: 1000,
                dst_port: 2000,
                seq: 7,
                flags: Flags::SYN,
                payload: b"odd".to_vec(),
                ecn: Ecn::Ce,
                ..Segment::default()
            };
            let segment = TransportPacket::Tcp(segment);
            assert!(matches!(one.wrap(&segment), Err(SendError::Failed(_))), "no next hop");
            let ReceivedFrame::AddressRequest(answer) = other.input(&one.next_hop_request()) else {
                panic!("{a}")
            };
            assert_eq!(one.input(&answer), ReceivedFrame::Resolved);
            assert_eq!(one.next_mac, Some(other.mac));
            let mut frame = one.wrap(&segment).expect("the address is known");
            assert_eq!(other.input(&frame), ReceivedFrame::Transport(segment));
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert!(matches!(other.input(&frame), ReceivedFrame::Damaged(_)));
            let packet = TransportPacket::Sctp(vec![1; 13]);
            let frame = one.wrap(&packet).expect("the address is known");
            assert_eq!(other.input(&frame), ReceivedFrame::Transport(packet));
            // The port may receive frames that the tester sent.
            assert_eq!(one.input(&one.next_hop_request()), ReceivedFrame::Other);
        }
    }

    #[test]
    fn too_long_packets_are_reported_to_their_sender() {
        for (a, b) in [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")] {
            let (mut one, mut other) = stations(a, b);
            assert_eq!(one.packet_too_big(&[0; 60], 600), None, "no next hop");
            let ReceivedFrame::AddressRequest(answer) = other.input(&one.next_hop_request()) else {
                panic!("{a}")
            };
            one.input(&answer);
            let report = one.packet_too_big(&[7; 600], 1234).expect("resolved");
            assert_eq!(other.sender(&report), Some((one.address, one.mac)));
            assert_eq!(one.sender(&report), None, "it is for the other host");
            assert_eq!(other.input(&report), ReceivedFrame::TooBig(1234));
            let icmp = &report[ETHERNET + if one.address.is_ipv4() { IPV4 } else { IPV6 }..];
            assert_eq!(icmp[6..8], 1234u16.to_be_bytes());
            assert_eq!(icmp[8..], [7; QUOTED]);
            match (one.address, one.host) {
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    let packet = Icmpv6Packet::new_checked(icmp).expect("whole");
                    assert_eq!(icmp[..2], [2, 0]);
                    assert!(packet.verify_checksum(&from, &to));
                }
                _ => {
                    assert_eq!(icmp[..2], [3, 4]);
                    assert!(Icmpv4Packet::new_checked(icmp).expect("whole").verify_checksum());
                }
            }
        }
    }

    #[test]
    fn lengths_and_mtus_above_16_bits_are_errors() {
        for (a, b, longest) in
            [("192.0.2.1", "192.0.2.2", 65_515), ("2001:db8::1", "2001:db8::2", 65_535)]
        {
            let (mut one, mut other) = stations(a, b);
            let ReceivedFrame::AddressRequest(answer) = other.input(&one.next_hop_request()) else {
                panic!("{a}")
            };
            one.input(&answer);
            let packet = TransportPacket::Sctp(vec![1; longest]);
            let frame = one.wrap(&packet).expect("fits");
            assert_eq!(other.input(&frame), ReceivedFrame::Transport(packet));
            let longer = TransportPacket::Sctp(vec![1; longest + 1]);
            assert!(matches!(one.wrap(&longer), Err(SendError::TooLong(65_536 | 65_576))));
            let segment = Segment { payload: vec![1; 1 << 16], ..Segment::default() };
            assert!(matches!(one.wrap(&TransportPacket::Tcp(segment)), Err(SendError::TooLong(_))));

            // The MTU has 32 bits over IPv6, and 16 bits over IPv4.
            let mut report = one.packet_too_big(&[7; 600], 1280).expect("resolved");
            let mtu = ETHERNET + ip_header(one.address) + 4;
            report[mtu + 1] = 1;
            let received = other.input(&report);
            match one.address {
                IpAddr::V4(_) => assert_eq!(received, ReceivedFrame::TooBig(1280)),
                IpAddr::V6(_) => assert!(matches!(received, ReceivedFrame::Damaged(_))),
            }
        }
    }

    #[test]
    fn address_requests_for_other_hosts_are_ignored() {
        let (one, _) = stations("192.0.2.1", "192.0.2.2");
        let (_, mut third) = stations("192.0.2.1", "192.0.2.3");
        assert_eq!(third.input(&one.next_hop_request()), ReceivedFrame::Other);
        let (one, _) = stations("2001:db8::1", "2001:db8::2");
        let (_, mut third) = stations("2001:db8::1", "2001:db8::3");
        assert_eq!(third.input(&one.next_hop_request()), ReceivedFrame::Other);
        for cut in 0..one.next_hop_request().len() {
            assert_eq!(third.input(&one.next_hop_request()[..cut]), ReceivedFrame::Other);
        }
    }
}
