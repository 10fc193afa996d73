//! Demultiplexing of frames by their Ethernet, VLAN, IPv4 and IPv6 headers. [`demux`] returns the kind of packet or the
//! drop reason, and changes no bytes.
//!
//! A packet to one of our addresses is dropped if its IPv4 options are malformed or contain a source route
//! ([`super::options`]). [`local_ip_offset`] excludes such packets from IPsec policies. Packets to other addresses, and
//! packets of unsupported protocols on interfaces without IPsec policies, are dropped regardless of their options. On
//! an interface that is shared with the host's kernel, the kernel may process the packets dropped here, under its own
//! rules.
//!
//! Fragments of the protocols that [`super::reassembly`] supports are returned as [`Kind::Fragment`]. Other fragments
//! are dropped ([`DropReason::Fragment`]), except atomic fragments (RFC 6946). At most [`MAX_EXTENSIONS`] IPv6
//! extension headers are followed. The SCTP layer verifies the checksum of SCTP packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use smoltcp::wire::{
    EthernetProtocol, Icmpv6Message, IpProtocol, Ipv4Packet, Ipv6ExtHeader, Ipv6FragmentHeader,
    Ipv6Option, Ipv6OptionFailureType, Ipv6OptionType, Ipv6Packet,
};

use super::interface::Interface;
use super::link::Link;
use super::neighbour::Mac;
use super::options;
use super::protocol::{ESP, ICMPV6, SCTP, TCP, UDP, UDP_HEADER};
use super::reassembly::Fragment;
use crate::checksum;
use crate::drops::DropReason;

/// Maximum number of IPv6 extension headers followed in one packet.
pub const MAX_EXTENSIONS: usize = 8;
/// A packet is dropped if an IPv6 extension header has this many options or more, padding included.
const MAX_OPTIONS: usize = 16;

const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options, and of TCP's port fields.
const IPV4: usize = 20;
const PORTS: usize = 4;
/// The DF flag in IPv4's 16-bit field of flags and fragment offset.
const DONT_FRAGMENT: u16 = 0x4000;

/// A classified frame. Ranges are byte offsets in the frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Index of the receiving interface.
    pub interface: usize,
    /// Source MAC address.
    pub source_mac: Mac,
    /// Kind and location of the packet.
    pub kind: Kind,
}

/// Kinds of packets that the stack processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An ARP packet.
    Arp(Range<usize>),
    /// A TCP segment to one of our addresses. Its checksum is correct, or need not be verified.
    Tcp {
        /// Address and port of the peer.
        source: SocketAddr,
        /// One of our addresses, with the TCP port.
        destination: SocketAddr,
        /// Range of the segment in the frame.
        segment: Range<usize>,
    },
    /// An SCTP packet to one of our addresses. Its checksum is not verified yet.
    Sctp {
        /// The peer, with its SCTP port.
        source: SocketAddr,
        /// One of our addresses, with the SCTP port.
        destination: SocketAddr,
        /// Range of the packet in the frame, from its common header on.
        packet: Range<usize>,
        /// The peer's UDP port if encapsulated in UDP (RFC 6951).
        udp: Option<u16>,
    },
    /// A fragment to one of our addresses that is to be reassembled.
    Fragment(Fragment),
    /// An ICMPv4 message with a correct checksum, to one of our addresses.
    Icmp4 {
        /// Source address.
        source: Ipv4Addr,
        /// One of our addresses.
        destination: Ipv4Addr,
        /// Range of the message in the frame.
        message: Range<usize>,
    },
    /// An ICMPv6 message with a correct checksum, to one of our addresses or groups.
    Icmp6 {
        /// Source address; may be unspecified.
        source: Ipv6Addr,
        /// One of our addresses or groups.
        destination: Ipv6Addr,
        /// Hop limit on arrival.
        hop_limit: u8,
        /// Range of the message in the frame.
        message: Range<usize>,
    },
}

/// State of the transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum L4Check {
    /// Correct according to the device, or not verified because the configuration trusts the port.
    Good,
    /// To be verified in software.
    Unknown,
}

/// Origin of a frame, which determines the fields that are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// The link of a port, with the state of the TCP checksum. An `Unknown` checksum is verified.
    Link(L4Check),
    /// A stream of this worker, at an address of the same interface. MAC addresses, the source address and TCP's
    /// checksum are not checked.
    Loopback,
}

/// Classifies `frame`, received on `port`.
///
/// # Errors
/// The drop reason.
pub fn demux(
    frame: &[u8],
    port: usize,
    check: L4Check,
    interfaces: &[Interface],
) -> Result<Packet, DropReason> {
    if check == L4Check::Good
        && let Some(packet) = fast_path(frame, port, interfaces)
    {
        return Ok(packet);
    }
    slow_path(frame, port, Origin::Link(check), interfaces)
}

/// Classifies a frame that a stream of this worker has sent to an address of its own interface. MAC addresses, the
/// source address and TCP's checksum are not checked. All packets but unfragmented TCP and SCTP are dropped, because
/// streams send no others.
///
/// # Errors
/// The drop reason.
#[cold]
pub fn demux_looped(
    frame: &[u8],
    port: usize,
    interfaces: &[Interface],
) -> Result<Packet, DropReason> {
    let packet = slow_path(frame, port, Origin::Loopback, interfaces)?;
    match packet.kind {
        Kind::Tcp { .. } | Kind::Sctp { .. } => Ok(packet),
        Kind::Fragment(_) => Err(DropReason::Fragment),
        _ => Err(DropReason::IpProtocol),
    }
}

/// Returns the offset of the IP packet if IPsec policies apply to the frame, otherwise `None`. Policies apply if an
/// interface has the frame's VLAN, the destination is that interface's link-layer address or a group, and the IP header
/// is intact ([`is_intact`]).
pub fn local_ip_offset(frame: &[u8], port: usize, interfaces: &[Interface]) -> Option<usize> {
    let link = Link::read(frame).ok()?;
    let at = link.ip_offset()?;
    let interface = &interfaces[link.find_interface(port, interfaces)?];
    let is_for_us = link.destination == interface.mac || link.destination[0] & 1 != 0;
    (is_for_us && is_intact(frame.get(at..)?)).then_some(at)
}

/// Returns true if an IPv4 header is complete, has a correct checksum, and has no options that forbid processing.
/// Always true for other packets.
pub fn is_intact(packet: &[u8]) -> bool {
    let first = packet.first().copied().unwrap_or_default();
    first >> 4 != 4
        || packet
            .get(..usize::from(first & 15) * 4)
            .is_some_and(|header| checksum::sum(header) == 0xffff && check_options(header).is_ok())
}

/// Checks the options of an IPv4 header, if it has any.
#[inline]
fn check_options(header: &[u8]) -> Result<(), DropReason> {
    match header.get(IPV4..) {
        Some(bytes @ [_, ..]) => options::check(bytes),
        _ => Ok(()),
    }
}

/// Returns true if the frame is a fragment to one of our addresses, of a protocol that [`super::reassembly`]
/// reassembles.
#[cold]
#[inline(never)]
pub fn is_reassembled_here(frame: &[u8], port: usize, interfaces: &[Interface]) -> bool {
    let parsed = slow_path(frame, port, Origin::Link(L4Check::Unknown), interfaces);
    parsed.is_ok_and(|packet| matches!(packet.kind, Kind::Fragment(_)))
}

/// Slow path: parses any frame. Inlining saves 25 instructions per frame.
#[inline(always)]
fn slow_path(
    frame: &[u8],
    port: usize,
    origin: Origin,
    interfaces: &[Interface],
) -> Result<Packet, DropReason> {
    let link = Link::read(frame)?;
    let index = link.find_interface(port, interfaces).ok_or(DropReason::Vlan)?;
    let (interface, at) = (&interfaces[index], link.payload);
    if origin != Origin::Loopback && !interface.accepts_mac(link.destination) {
        return Err(DropReason::NotOurMac);
    }
    let kind = match link.protocol {
        EthernetProtocol::Ipv4 => parse_ipv4(frame, at, origin, interface)?,
        EthernetProtocol::Ipv6 => parse_ipv6(frame, at, origin, interface)?,
        EthernetProtocol::Arp => Kind::Arp(at..frame.len()),
        EthernetProtocol::Unknown(_) => return Err(DropReason::EtherType),
    };
    let is_transport = matches!(kind, Kind::Tcp { .. } | Kind::Sctp { .. } | Kind::Fragment(_));
    if is_transport && origin != Origin::Loopback && link.destination != interface.mac {
        // RFC 9293 §3.9.2.3, RFC 9260 §8.4 (1): TCP and SCTP are accepted in unicast frames only.
        return Err(DropReason::NotOurMac);
    }
    Ok(Packet { interface: index, source_mac: link.source, kind })
}

/// Fast path: parses an unfragmented TCP segment in IPv4 without VLAN tag and options, from another host to one of our
/// addresses. Returns `None` for all other frames, including malformed frames; the slow path then parses the frame and
/// returns the drop reason.
#[inline]
fn fast_path(frame: &[u8], port: usize, interfaces: &[Interface]) -> Option<Packet> {
    let headers = frame.first_chunk::<{ ETHERNET + IPV4 + PORTS }>()?;
    let (ethernet, rest) = headers.split_first_chunk::<ETHERNET>()?;
    let (ip, ports) = rest.split_first_chunk::<IPV4>()?;
    let (destination_mac, rest) = ethernet.split_first_chunk::<6>()?;
    let (source_mac, ether_type) = rest.split_first_chunk::<6>()?;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let cut = u16::from_be_bytes([ip[6], ip[7]]) & !DONT_FRAGMENT;
    if *ether_type != [8, 0]
        || (ip[0], ip[9], cut) != (0x45, TCP, 0)
        || source_mac[0] & 1 != 0
        || total < IPV4 + PORTS
        || total > frame.len() - ETHERNET
        || checksum::ipv4_header(ip) != 0xffff
    {
        return None;
    }
    let is_untagged_here = |i: &Interface| i.port == port && i.vlan.is_none();
    let index = interfaces.iter().position(is_untagged_here)?;
    let interface = &interfaces[index];
    let source = Ipv4Addr::from([ip[12], ip[13], ip[14], ip[15]]);
    let destination = Ipv4Addr::from([ip[16], ip[17], ip[18], ip[19]]);
    if *destination_mac != interface.mac
        || is_invalid_source(source, interface)
        || !interface.has_v4_address(destination)
    {
        return None;
    }
    let source = SocketAddr::new(source.into(), u16::from_be_bytes([ports[0], ports[1]]));
    let destination = SocketAddr::new(destination.into(), u16::from_be_bytes([ports[2], ports[3]]));
    let segment = ETHERNET + IPV4..ETHERNET + total;
    let kind = Kind::Tcp { source, destination, segment };
    Some(Packet { interface: index, source_mac: *source_mac, kind })
}

/// Returns true if the source address cannot belong to another host.
#[inline]
fn is_invalid_source(source: Ipv4Addr, interface: &Interface) -> bool {
    source.is_unspecified()
        || source.is_loopback()
        || source.is_multicast()
        || interface.is_broadcast(source)
        || interface.has_v4_address(source)
}

/// Addresses in the IP header of a received packet, of one family.
#[derive(Clone, Copy)]
struct Addresses {
    source: IpAddr,
    destination: IpAddr,
}

fn parse_ipv4(
    frame: &[u8],
    at: usize,
    origin: Origin,
    interface: &Interface,
) -> Result<Kind, DropReason> {
    let packet = Ipv4Packet::new_checked(&frame[at..]).map_err(|_| DropReason::Truncated)?;
    let header = usize::from(packet.header_len());
    if packet.version() != 4 || header < 20 {
        return Err(DropReason::IpHeader);
    }
    let header_sum = match frame[at..at + header].try_into() {
        Ok(header) => checksum::ipv4_header(header),
        Err(_) => checksum::sum(&frame[at..at + header]),
    };
    if header_sum != 0xffff {
        return Err(DropReason::IpChecksum);
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    if origin != Origin::Loopback && is_invalid_source(source, interface) {
        return Err(DropReason::BadSource);
    }
    if !interface.has_v4_address(destination) {
        return Err(DropReason::NotOurAddress);
    }
    let options = check_options(&frame[at..at + header]);
    if interface.has_ipsec_policies {
        options?; // IPsec policies were not applied to a packet with refused options
    }
    let payload = at + header..at + usize::from(packet.total_len());
    let addresses = Addresses { source: IpAddr::V4(source), destination: IpAddr::V4(destination) };
    if packet.more_frags() || packet.frag_offset() != 0 {
        let protocol = packet.next_header();
        if !is_reassembled(protocol, interface) {
            return Err(DropReason::Fragment);
        }
        options?;
        return Ok(Kind::Fragment(Fragment {
            source: addresses.source,
            destination: addresses.destination,
            protocol: protocol.into(),
            id: packet.ident().into(),
            offset: packet.frag_offset().into(),
            more_fragments: packet.more_frags(),
            ip: at,
            payload,
        }));
    }
    let kind = match packet.next_header() {
        IpProtocol::Tcp => parse_tcp(frame, addresses, payload, origin)?,
        SCTP => parse_sctp(frame, addresses, payload)?,
        IpProtocol::Udp => parse_udp(frame, addresses, payload, interface)?,
        IpProtocol::Icmp => {
            if checksum::sum(&frame[payload.clone()]) != 0xffff {
                return Err(DropReason::L4Checksum);
            }
            Kind::Icmp4 { source, destination, message: payload }
        }
        _ => return Err(DropReason::IpProtocol),
    };
    options.map(|()| kind)
}

/// Returns true if the payload is a neighbour advertisement (RFC 4861 §4.4).
fn is_advertisement(protocol: IpProtocol, payload: &[u8]) -> bool {
    let advertisement = u8::from(Icmpv6Message::NeighborAdvert);
    protocol == IpProtocol::Icmpv6 && payload.first() == Some(&advertisement)
}

fn parse_ipv6(
    frame: &[u8],
    at: usize,
    origin: Origin,
    interface: &Interface,
) -> Result<Kind, DropReason> {
    let packet = Ipv6Packet::new_checked(&frame[at..]).map_err(|_| DropReason::Truncated)?;
    if packet.version() != 6 {
        return Err(DropReason::IpHeader);
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    // Another host sends from our address legitimately only if it also uses the address and defends it by a neighbour
    // advertisement (RFC 4862 §5.4.4).
    let spoofed = origin != Origin::Loopback
        && interface.has_address(source.into())
        && !is_advertisement(packet.next_header(), &frame[at + 40..]);
    if source.is_loopback() || source.is_multicast() || spoofed {
        return Err(DropReason::BadSource);
    }
    let unicast = interface.has_address(destination.into());
    if !unicast && !interface.is_in_group(destination) {
        return Err(DropReason::NotOurAddress);
    }
    let end = at + packet.header_len() + usize::from(packet.payload_len());
    let chain = skip_extensions(&frame[..end], packet.next_header(), at + packet.header_len())?;
    let addresses = Addresses { source: IpAddr::V6(source), destination: IpAddr::V6(destination) };
    let (protocol, begin) = match chain {
        ExtensionChain::Upper(protocol, begin) => (protocol, begin),
        // RFC 8200 §4.5. Only fragments between unicast addresses are reassembled: TCP and SCTP are unicast.
        ExtensionChain::Fragment { protocol, id, offset, more, begin }
            if unicast
                && !source.is_unspecified()
                && is_reassembled(IpProtocol::from(protocol), interface) =>
        {
            return Ok(Kind::Fragment(Fragment {
                source: addresses.source,
                destination: addresses.destination,
                protocol,
                id,
                offset,
                more_fragments: more,
                ip: at,
                payload: begin..end,
            }));
        }
        ExtensionChain::Fragment { .. } => return Err(DropReason::Fragment),
    };
    match protocol {
        IpProtocol::Tcp | IpProtocol::Udp | SCTP if !unicast => Err(DropReason::NotOurAddress),
        IpProtocol::Tcp | IpProtocol::Udp | SCTP if source.is_unspecified() => {
            Err(DropReason::BadSource)
        }
        IpProtocol::Tcp => parse_tcp(frame, addresses, begin..end, origin),
        SCTP => parse_sctp(frame, addresses, begin..end),
        IpProtocol::Udp => parse_udp(frame, addresses, begin..end, interface),
        IpProtocol::Icmpv6 => {
            let message = &frame[begin..end];
            if checksum::segment(addresses.source, addresses.destination, ICMPV6, message) != 0 {
                return Err(DropReason::L4Checksum);
            }
            let hop_limit = packet.hop_limit();
            Ok(Kind::Icmp6 { source, destination, hop_limit, message: begin..end })
        }
        _ => Err(DropReason::IpProtocol),
    }
}

/// Returns true if fragments of this protocol are reassembled. False if another extension header follows the fragment
/// header: `protocol` is then that header's number.
fn is_reassembled(protocol: IpProtocol, interface: &Interface) -> bool {
    match protocol {
        IpProtocol::Tcp | SCTP => true,
        IpProtocol::Udp => interface.encapsulation.is_some() || interface.has_ipsec_policies,
        ESP => interface.has_ipsec_policies,
        _ => false,
    }
}

fn parse_sctp(
    frame: &[u8],
    addresses: Addresses,
    packet: Range<usize>,
) -> Result<Kind, DropReason> {
    let [s0, s1, d0, d1, ..] = frame[packet.clone()] else { return Err(DropReason::Truncated) };
    let source = SocketAddr::new(addresses.source, u16::from_be_bytes([s0, s1]));
    let destination = SocketAddr::new(addresses.destination, u16::from_be_bytes([d0, d1]));
    Ok(Kind::Sctp { source, destination, packet, udp: None })
}

/// Parses an SCTP packet in a UDP datagram to the configured port (RFC 6951 §5.4). Other UDP ports are not supported.
fn parse_udp(
    frame: &[u8],
    addresses: Addresses,
    datagram: Range<usize>,
    interface: &Interface,
) -> Result<Kind, DropReason> {
    let bytes = &frame[datagram.clone()];
    let &[s0, s1, d0, d1, l0, l1, c0, c1, ..] = bytes else { return Err(DropReason::Truncated) };
    if interface.encapsulation != Some(u16::from_be_bytes([d0, d1])) {
        return Err(DropReason::IpProtocol);
    }
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    let bytes = bytes.get(..len).filter(|o| o.len() > UDP_HEADER).ok_or(DropReason::Truncated)?;
    // RFC 768: a zero field means no checksum. RFC 8200 §8.1: IPv6 requires a checksum.
    let unused = [c0, c1] == [0, 0];
    let wrong = match unused {
        true => addresses.source.is_ipv6(),
        false => checksum::segment(addresses.source, addresses.destination, UDP, bytes) != 0,
    };
    if wrong {
        return Err(DropReason::L4Checksum);
    }
    match parse_sctp(frame, addresses, datagram.start + UDP_HEADER..datagram.start + len)? {
        Kind::Sctp { source, destination, packet, .. } => {
            let udp = Some(u16::from_be_bytes([s0, s1]));
            Ok(Kind::Sctp { source, destination, packet, udp })
        }
        other => Ok(other),
    }
}

fn parse_tcp(
    frame: &[u8],
    addresses: Addresses,
    segment: Range<usize>,
    origin: Origin,
) -> Result<Kind, DropReason> {
    let bytes = &frame[segment.clone()];
    let [s0, s1, d0, d1, ..] = *bytes else { return Err(DropReason::Truncated) };
    if origin == Origin::Link(L4Check::Unknown)
        && checksum::segment(addresses.source, addresses.destination, TCP, bytes) != 0
    {
        return Err(DropReason::L4Checksum);
    }
    let source = SocketAddr::new(addresses.source, u16::from_be_bytes([s0, s1]));
    let destination = SocketAddr::new(addresses.destination, u16::from_be_bytes([d0, d1]));
    Ok(Kind::Tcp { source, destination, segment })
}

/// The header after a chain of IPv6 extension headers.
enum ExtensionChain {
    /// Upper-layer protocol, and the offset of its header.
    Upper(IpProtocol, usize),
    /// A fragment. `begin` is the offset of the fragment's data in the frame, `offset` the data's offset in the
    /// original packet.
    Fragment { protocol: u8, id: u32, offset: usize, more: bool, begin: usize },
}

/// Follows the chain of extension headers that begins at offset `at` with a header of type `next` (RFC 8200 §4).
fn skip_extensions(
    packet: &[u8],
    mut next: IpProtocol,
    mut at: usize,
) -> Result<ExtensionChain, DropReason> {
    for n in 0..=MAX_EXTENSIONS {
        let rest = packet.get(at..).ok_or(DropReason::Truncated)?;
        let len = match next {
            // RFC 8200 §4.1: hop-by-hop options are allowed only directly after the IPv6 header.
            IpProtocol::HopByHop if n > 0 => return Err(DropReason::HopByHop),
            IpProtocol::HopByHop | IpProtocol::Ipv6Opts | IpProtocol::Ipv6Route => {
                let header = Ipv6ExtHeader::new_checked(rest).map_err(|_| DropReason::Truncated)?;
                if next != IpProtocol::Ipv6Route {
                    check_options_v6(header.payload())?;
                } else if header.payload().get(1) != Some(&0) {
                    // RFC 8200 §4.4: a host is not a router, so no segments of the route may be left.
                    return Err(DropReason::ExtensionHeader);
                }
                8 * (usize::from(header.header_len()) + 1)
            }
            IpProtocol::Ipv6Frag => {
                // RFC 6946: an atomic fragment contains the whole packet and is processed as an unfragmented one.
                let header = rest.get(2..8).ok_or(DropReason::Truncated)?;
                let header =
                    Ipv6FragmentHeader::new_checked(header).map_err(|_| DropReason::Truncated)?;
                if header.more_frags() || header.frag_offset() != 0 {
                    return Ok(ExtensionChain::Fragment {
                        protocol: rest[0],
                        id: header.ident(),
                        offset: 8 * usize::from(header.frag_offset()),
                        more: header.more_frags(),
                        begin: at + 8,
                    });
                }
                8
            }
            _ => return Ok(ExtensionChain::Upper(next, at)),
        };
        next = IpProtocol::from(rest[0]);
        at += len;
    }
    Err(DropReason::ExtensionHeader)
}

/// Checks the options of an IPv6 extension header. The two high bits of an unknown option's type decide whether the
/// packet may be processed (RFC 8200 §4.2).
fn check_options_v6(options: &[u8]) -> Result<(), DropReason> {
    let mut at = 0;
    for _ in 0..MAX_OPTIONS {
        let Some(rest) = options.get(at..).filter(|r| !r.is_empty()) else { return Ok(()) };
        let option = Ipv6Option::new_checked(rest).map_err(|_| DropReason::ExtensionHeader)?;
        let kind = option.option_type();
        if kind == Ipv6OptionType::Pad1 {
            at += 1;
            continue;
        }
        let known = !matches!(kind, Ipv6OptionType::Unknown(_));
        if !known && Ipv6OptionFailureType::from(u8::from(kind)) != Ipv6OptionFailureType::Skip {
            return Err(DropReason::ExtensionHeader);
        }
        at += 2 + usize::from(option.data_len());
    }
    Err(DropReason::ExtensionHeader)
}

#[cfg(test)]
mod tests;
