//! Frames of ICMP, ARP, neighbour discovery, IP fragments and SCTP's INIT.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, Result, bail};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, IcmpEchoHeader, Icmpv4Header, Icmpv4Type,
    Icmpv6Header, Icmpv6Type, IpNumber, TcpHeader, UdpHeader, icmpv4, icmpv6,
};
use fastrand::Rng;
use wire::sctp::{InitHeader, PacketBuilder, Parameter, Ports, Tag, Tsn};

use super::build::{
    self, FragmentFields, FrameAddresses, client_port, frame_addresses, ip_frame, packet,
    random_bytes, tcp_segment,
};
use super::{Mac, Plan};

/// Number of bytes after the IP header that an ICMPv4 error quotes. ICMPv6 errors quote as much as fits (RFC 4443
/// §3.1).
const ICMP_QUOTE_LEN: usize = 8;
/// Length of a fragment's payload, bytes.
const FRAGMENT_LEN: usize = 512;

/// Returns, by `index % 3`: an echo request, a port unreachable error, or a report of a smaller path MTU. The errors
/// quote a segment from the appliance.
pub(super) fn icmp(plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let ends = frame_addresses(plan, plan.random_source(rng), plan.destination);
    let echo = IcmpEchoHeader { id: rng.u16(..), seq: rng.u16(..) };
    let mtu = rng.u16(68..1500);
    let (payload, v4, v6) = match index % 3 {
        0 => (random_bytes(56, rng), Icmpv4Type::EchoRequest(echo), Icmpv6Type::EchoRequest(echo)),
        1 => (
            quoted_segment(plan, ends.source, rng)?,
            Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port),
            Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port),
        ),
        _ => (
            quoted_segment(plan, ends.source, rng)?,
            Icmpv4Type::DestinationUnreachable(
                icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu },
            ),
            Icmpv6Type::PacketTooBig { mtu: u32::from(mtu.max(1280)) },
        ),
    };
    if plan.is_v6() {
        return icmpv6_frame(&ends, v6, 64, &payload);
    }
    let mut bytes = Icmpv4Header::with_checksum(v4, &payload).to_bytes().to_vec();
    bytes.extend(payload);
    ip_frame(&ends, IpNumber::ICMP, &bytes)
}

/// Returns the part of a segment that an ICMP error quotes, from the IP header on. The segment goes from the
/// appliance's listener to a random port of `peer`.
fn quoted_segment(plan: &Plan, peer: IpAddr, rng: &mut Rng) -> Result<Vec<u8>> {
    let back = FrameAddresses {
        source: plan.destination.ip(),
        destination: peer,
        ..frame_addresses(plan, peer, plan.destination)
    };
    let mut header = TcpHeader::new(plan.destination.port(), client_port(rng), rng.u32(..), 1000);
    header.ack = true;
    let segment = tcp_segment(&back, header, &[])?;
    let mut quoted = packet(back.source, back.destination, IpNumber::TCP, 64, None, &segment)?;
    if !plan.is_v6() {
        quoted.truncate(build::ip_header_len(false) + ICMP_QUOTE_LEN);
    }
    Ok(quoted)
}

fn icmpv6_frame(
    ends: &FrameAddresses,
    kind: Icmpv6Type,
    hops: u8,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (ends.source, ends.destination) else {
        bail!("not IPv6")
    };
    let header = Icmpv6Header::with_checksum(kind, source.octets(), destination.octets(), payload)?;
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(payload);
    build::frame(
        ends,
        &packet(ends.source, ends.destination, IpNumber::IPV6_ICMP, hops, None, &bytes)?,
    )
}

/// Returns an ARP frame from a random sender: a request for the appliance's address, or for odd `index` an unsolicited
/// reply.
pub(super) fn arp(plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let (IpAddr::V4(sender), IpAddr::V4(target)) = (plan.random_source(rng), plan.destination.ip())
    else {
        bail!("not IPv4")
    };
    let mac = neighbour_mac(plan, rng);
    let (operation, destination, target_mac) = if index.is_multiple_of(2) {
        (ArpOperation::REQUEST, [0xff; 6], [0; 6])
    } else {
        (ArpOperation::REPLY, plan.destination_mac, plan.destination_mac)
    };
    let arp = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &mac,
        &sender.octets(),
        &target_mac,
        &target.octets(),
    )
    .context("ARP")?;
    build::ethernet(mac, destination, EtherType::ARP, &arp.to_bytes())
}

/// Returns a Neighbour Solicitation for the appliance's address (RFC 4861 §4.3). For an odd `index`, returns a Neighbour
/// Advertisement for the source address, which the appliance did not solicit (§4.4).
pub(super) fn neighbour(plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let (IpAddr::V6(source), IpAddr::V6(target)) = (plan.random_source(rng), plan.destination.ip())
    else {
        bail!("not IPv6")
    };
    let mac = neighbour_mac(plan, rng);
    let mut ends = FrameAddresses {
        source_mac: mac,
        ..frame_addresses(plan, source.into(), plan.destination)
    };
    let (kind, about, option) = if index.is_multiple_of(2) {
        let [.., a, b, c] = target.octets();
        // The solicited-node multicast address (RFC 4291 §2.7.1) and its MAC address (RFC 2464 §7).
        ends.destination =
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
                .into();
        ends.destination_mac = [0x33, 0x33, 0xff, a, b, c];
        (Icmpv6Type::NeighborSolicitation, target, 1)
    } else {
        let flags = icmpv6::NeighborAdvertisementHeader {
            router: false,
            solicited: true,
            r#override: true,
        };
        (Icmpv6Type::NeighborAdvertisement(flags), source, 2)
    };
    let mut body = about.octets().to_vec();
    // The link-layer address option (RFC 4861 §4.6.1), length 1 in units of 8 bytes.
    body.extend([option, 1]);
    body.extend(mac);
    icmpv6_frame(&ends, kind, 255, &body)
}

/// Returns the sender's MAC address: the plan's address for one source, otherwise a random address.
fn neighbour_mac(plan: &Plan, rng: &mut Rng) -> Mac {
    if plan.one_source {
        return plan.source_mac;
    }
    let mut mac = [0; 6];
    rng.fill(&mut mac);
    // Locally administered, not multicast.
    mac[0] = mac[0] & 0xfc | 0x02;
    mac
}

/// Returns, by `index % 4`: the first or a middle fragment of a UDP datagram, or the first or a middle fragment of a
/// TCP segment. Each fragment belongs to a different packet.
pub(super) fn fragment(plan: &Plan, index: usize, rng: &mut Rng) -> Result<Vec<u8>> {
    let ends = frame_addresses(plan, plan.random_source(rng), plan.destination);
    let tcp = index % 4 >= 2;
    let first = index.is_multiple_of(2);
    let mut payload = random_bytes(FRAGMENT_LEN, rng);
    if first && tcp {
        let mut header =
            TcpHeader::new(client_port(rng), plan.destination.port(), rng.u32(..), 64240);
        header.ack = true;
        payload[..TcpHeader::MIN_LEN].copy_from_slice(&header.to_bytes());
    } else if first {
        let whole = (UdpHeader::LEN + 4 * FRAGMENT_LEN) as u16;
        let header = UdpHeader {
            source_port: client_port(rng),
            destination_port: plan.destination.port(),
            length: whole,
            checksum: rng.u16(1..),
        };
        payload[..UdpHeader::LEN].copy_from_slice(&header.to_bytes());
    }
    let offset = if first { 0 } else { (FRAGMENT_LEN / 8) as u16 * rng.u16(1..64) };
    let part = FragmentFields { id: rng.u32(..), offset, more: true };
    let protocol = if tcp { IpNumber::TCP } else { IpNumber::UDP };
    build::frame(
        &ends,
        &packet(ends.source, ends.destination, protocol, 64, Some(&part), &payload)?,
    )
}

/// Returns an SCTP INIT (RFC 9260 §3.3.2) with a correct CRC32c.
pub(super) fn init(plan: &Plan, rng: &mut Rng) -> Result<Vec<u8>> {
    let ends = frame_addresses(plan, plan.random_source(rng), plan.destination);
    let ports = Ports { source: client_port(rng), destination: plan.destination.port() };
    let mut room = [0; 128];
    // RFC 9260 §8.5.1: the verification tag of an INIT is zero.
    let mut builder = PacketBuilder::new(&mut room, ports, Tag(0));
    let header = InitHeader {
        tag: Tag(rng.u32(1..)),
        a_rwnd: 106_496,
        outbound_streams: 10,
        inbound_streams: 2048,
        initial_tsn: Tsn(rng.u32(..)),
    };
    // RFC 5043 §7.1: an INIT without DDP's adaptation indication is refused.
    builder
        .init(&header, &[Parameter::Adaptation(1)])
        .ok()
        .context("an INIT of more than 128 bytes")?;
    let len = builder.finish();
    ip_frame(&ends, IpNumber::SCTP, &room[..len])
}
