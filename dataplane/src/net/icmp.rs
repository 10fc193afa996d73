//! ICMP (RFC 792, RFC 4443) of a host: answers to echo requests, and parsing of errors about packets that may be ours.
//! All other messages are dropped and counted. Not included: neighbour discovery ([`super::nd`]) and MLD
//! ([`super::presence`]).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipsec::guard::NAT_PORT;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol,
    Ipv4Packet, Ipv6Packet,
};

use super::interface::Interface;
use super::neighbour::Mac;
use super::path::IpHeader;
use super::protocol::{ESP, ICMPV6, SCTP, UDP_HEADER};
use super::{Outbox, path};
use crate::checksum;
use crate::drops::DropReason;

/// An ICMP error about a segment or packet of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Index of the interface.
    pub interface: usize,
    /// Our end of the flow.
    pub local: SocketAddr,
    /// The peer's end of the flow.
    pub remote: SocketAddr,
    /// Quoted field that an off-path attacker cannot know.
    pub quote: Quote,
    /// The reported problem.
    pub kind: IcmpErrorKind,
}

/// The field of a quoted packet that an off-path attacker must guess. A correct value proves that the sender of the
/// error has seen a packet of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quote {
    /// Sequence number of a TCP segment.
    Tcp(u32),
    /// Verification tag of an SCTP packet, chosen by the peer.
    Sctp(u32),
    /// Initiate tag of an SCTP INIT, chosen by us.
    SctpInit(u32),
    /// SPI of an ESP packet, and the low 32 bits of its sequence number. The encrypted flow is unknown.
    Esp(u32, u32),
}

/// The problem that an ICMP error reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpErrorKind {
    /// The packet was too big. The value is the reported path MTU: the largest IP packet in bytes.
    TooBig(u16),
    /// The destination, or its protocol or port, is unreachable.
    Unreachable(Unreachable),
}

/// The part of the path that is unreachable (RFC 792, RFC 1812 §5.2.7.1; RFC 4443 §3.1, §3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreachable {
    /// The network or the host is unreachable, perhaps only temporarily.
    #[error("a router reports by ICMP that it has no route to the peer")]
    Host,
    /// The host does not support the protocol.
    #[error("the peer reports by ICMP that it does not support this protocol")]
    Protocol,
    /// The port has no listener.
    #[error("the peer reports by ICMP that the port has no listener")]
    Port,
    /// A filter on the path prohibits the packet.
    #[error("a filter on the path prohibits the packet, as reported by ICMP")]
    Prohibited,
}

impl Unreachable {
    /// Returns true for a hard error, false for a soft error, which may be transient (RFC 1122 §4.2.3.9).
    pub fn is_hard(self) -> bool {
        self != Unreachable::Host
    }
}

/// Smallest reported MTUs that are accepted, in bytes (RFC 791 §3.2; RFC 8200 §5). The transport applies its own
/// minimum.
const MIN_MTU_V4: u16 = 68;
const MIN_MTU_V6: u16 = 1280;
const HOP_LIMIT: u8 = 64;

/// Common link MTUs in bytes. If a router reports none, the largest below the quoted packet's length is assumed (RFC
/// 1191 §5, Table 7-1).
const PLATEAUS: [u16; 10] = [32000, 17914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];

/// A parsed ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmp {
    /// An echo request.
    Echo,
    /// An error about a packet of ours.
    Error(Report),
}

/// A received ICMPv6 message with the fields of its IPv6 header that neighbour discovery and MLD check.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedIcmpv6<'a> {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Hop limit on arrival.
    pub hop_limit: u8,
    /// The message from its type on. Its checksum is correct.
    pub message: &'a [u8],
}

/// Parses an ICMPv4 message with a correct checksum. `index` is the index of `interface`, which received the message.
///
/// # Errors
/// The drop reason.
pub fn parse_v4(index: usize, interface: &Interface, message: &[u8]) -> Result<Icmp, DropReason> {
    let packet = Icmpv4Packet::new_checked(message).map_err(|_| DropReason::Icmp)?;
    let code = packet.msg_code();
    let unreachable = match packet.msg_type() {
        Icmpv4Message::EchoRequest if code == 0 => return Ok(Icmp::Echo),
        Icmpv4Message::DstUnreachable => match Icmpv4DstUnreachable::from(code) {
            Icmpv4DstUnreachable::FragRequired => None,
            Icmpv4DstUnreachable::ProtoUnreachable => Some(Unreachable::Protocol),
            Icmpv4DstUnreachable::PortUnreachable => Some(Unreachable::Port),
            Icmpv4DstUnreachable::NetProhibited
            | Icmpv4DstUnreachable::HostProhibited
            | Icmpv4DstUnreachable::CommProhibited => Some(Unreachable::Prohibited),
            _ if code < 16 => Some(Unreachable::Host),
            _ => return Err(DropReason::IcmpIgnored),
        },
        _ => return Err(DropReason::IcmpIgnored),
    };
    let inner = message.get(8..).ok_or(DropReason::Icmp)?;
    // `Ipv4Packet::new_checked` requires the complete packet, but a router may quote only the header and eight bytes.
    let header = inner.first().map_or(0, |b| usize::from(b & 15) * 4);
    if header < 20 || inner.len() < header + 8 {
        return Err(DropReason::Icmp);
    }
    let ip = Ipv4Packet::new_unchecked(inner);
    // Only the first fragment contains the ports, so errors about other fragments are dropped.
    if ip.version() != 4 || ip.frag_offset() != 0 {
        return Err(DropReason::IcmpNotBelieved);
    }
    let trouble = match unreachable {
        Some(what) => IcmpErrorKind::Unreachable(what),
        None => {
            let sent = ip.total_len();
            // RFC 1191 §4: the MTU is in the low half of the formerly unused word. §5: old routers leave this half
            // zero.
            let mtu = match u16::from_be_bytes([message[6], message[7]]) {
                0 => PLATEAUS.into_iter().find(|&mtu| mtu < sent).unwrap_or(0),
                mtu => mtu,
            };
            check_reported_mtu(interface, mtu.into(), sent.into(), MIN_MTU_V4)?
        }
    };
    let (local, remote) = (ip.src_addr().into(), ip.dst_addr().into());
    let quoted = &inner[header..];
    parse_report(index, interface, local, remote, ip.next_header(), quoted, trouble)
}

/// Parses an ICMPv6 message with a correct checksum, other than neighbour discovery and MLD. `index` is the index of
/// `interface`.
///
/// # Errors
/// The drop reason.
pub fn parse_v6(index: usize, interface: &Interface, message: &[u8]) -> Result<Icmp, DropReason> {
    let packet = Icmpv6Packet::new_checked(message).map_err(|_| DropReason::Icmp)?;
    let unreachable = match (packet.msg_type(), packet.msg_code()) {
        (Icmpv6Message::EchoRequest, 0) => return Ok(Icmp::Echo),
        (Icmpv6Message::PktTooBig, _) => None, // RFC 4443 §3.2: the code is ignored
        (Icmpv6Message::DstUnreachable, 0 | 2 | 3) => Some(Unreachable::Host),
        (Icmpv6Message::DstUnreachable, 1 | 5 | 6) => Some(Unreachable::Prohibited),
        (Icmpv6Message::DstUnreachable, 4) => Some(Unreachable::Port),
        (Icmpv6Message::ParamProblem, 1) => Some(Unreachable::Protocol),
        _ => return Err(DropReason::IcmpIgnored),
    };
    let inner = message.get(8..).filter(|inner| inner.len() >= 48).ok_or(DropReason::Icmp)?;
    let ip = Ipv6Packet::new_unchecked(inner);
    // Our TCP, SCTP and ESP packets have no extension headers except the fragment header.
    let first = inner[42..44] == [0, 0] || inner[42..44] == [0, 1];
    let (protocol, at) = match ip.next_header() {
        IpProtocol::Ipv6Frag if first => (IpProtocol::from(inner[40]), 48),
        other => (other, 40),
    };
    if ip.version() != 6 {
        return Err(DropReason::IcmpNotBelieved);
    }
    let trouble = match unreachable {
        Some(what) => IcmpErrorKind::Unreachable(what),
        None => {
            let mtu = u32::from_be_bytes([message[4], message[5], message[6], message[7]]);
            check_reported_mtu(interface, mtu, 40 + u32::from(ip.payload_len()), MIN_MTU_V6)?
        }
    };
    let (local, remote) = (ip.src_addr().into(), ip.dst_addr().into());
    parse_report(index, interface, local, remote, protocol, &inner[at..], trouble)
}

/// Checks a reported MTU, which must be at least `min`, below the interface's MTU, and below `sent`, the length of the
/// quoted packet in bytes (RFC 5927 §7.2).
fn check_reported_mtu(
    interface: &Interface,
    mtu: u32,
    sent: u32,
    min: u16,
) -> Result<IcmpErrorKind, DropReason> {
    match u16::try_from(mtu) {
        Ok(mtu) if mtu >= min && mtu < interface.mtu && u32::from(mtu) < sent => {
            Ok(IcmpErrorKind::TooBig(mtu))
        }
        _ => Err(DropReason::IcmpSize),
    }
}

/// Returns the report about a quoted packet from `local` to `remote`. `bytes` is the quoted part of the packet after
/// the IP header and the fragment header. If `bytes` is too short to identify the flow, the drop reason is returned.
/// The owner of the flow or SA later checks the sequence number (RFC 5927 §4.1) or the tag (RFC 9260 §10).
fn parse_report(
    index: usize,
    interface: &Interface,
    local: IpAddr,
    remote: IpAddr,
    protocol: IpProtocol,
    bytes: &[u8],
    trouble: IcmpErrorKind,
) -> Result<Icmp, DropReason> {
    let (protocol, bytes) = match protocol {
        // RFC 6951 §5.5: the error is about an SCTP packet in UDP. The quotation must extend beyond the UDP header.
        IpProtocol::Udp
            if interface
                .encapsulation
                .map(u16::to_be_bytes)
                .is_some_and(|port| bytes.starts_with(&port)) =>
        {
            (SCTP, bytes.get(UDP_HEADER..).ok_or(DropReason::Icmp)?)
        }
        // RFC 3948 §2.1: the error is about an ESP packet in UDP.
        IpProtocol::Udp
            if interface.has_ipsec_policies && bytes.get(2..4) == Some(&NAT_PORT.to_be_bytes()) =>
        {
            (ESP, bytes.get(UDP_HEADER..).ok_or(DropReason::Icmp)?)
        }
        other => (other, bytes),
    };
    let &[s0, s1, d0, d1, q0, q1, q2, q3, ..] = bytes else { return Err(DropReason::Icmp) };
    let number = u32::from_be_bytes([q0, q1, q2, q3]);
    let quote = match (protocol, number) {
        (IpProtocol::Tcp, seq) => Quote::Tcp(seq),
        (SCTP, 0) => Quote::SctpInit(initiate_tag(bytes).ok_or(DropReason::IcmpNotBelieved)?),
        (SCTP, tag) => Quote::Sctp(tag),
        (ESP, sequence) if interface.has_ipsec_policies => {
            Quote::Esp(u32::from_be_bytes([s0, s1, d0, d1]), sequence)
        }
        _ => return Err(DropReason::IcmpNotBelieved),
    };
    if !interface.has_address(local) {
        return Err(DropReason::IcmpNotBelieved);
    }
    let ports = match quote {
        Quote::Esp(..) => [0, 0],
        _ => [u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])],
    };
    Ok(Icmp::Error(Report {
        interface: index,
        local: SocketAddr::new(local, ports[0]),
        remote: SocketAddr::new(remote, ports[1]),
        quote,
        kind: trouble,
    }))
}

/// Returns the initiate tag of an SCTP packet whose first chunk is an INIT (RFC 9260 §10, rule ICMP6). Returns `None`
/// for other packets, and if the router quotes too little.
fn initiate_tag(packet: &[u8]) -> Option<u32> {
    const COMMON_HEADER: usize = 12;
    const INIT: u8 = 1;
    match packet.get(COMMON_HEADER..)? {
        &[INIT, _, _, _, t0, t1, t2, t3, ..] => Some(u32::from_be_bytes([t0, t1, t2, t3])),
        _ => None,
    }
}

/// Maximum number of bytes that a packet-too-big report quotes, so that its IPv4 packet has at most 576 bytes (RFC 1812
/// §4.3.2.3).
const QUOTED_V4: usize = 548;
/// Maximum number of quoted bytes over IPv6, so that the packet has at most 1280 bytes (RFC 4443 §2.4).
const QUOTED_V6: usize = 1232;

/// Appends to `out` a frame with a packet-too-big report to the host's kernel, which sent the IP packet `packet` (RFC
/// 1191 §4, RFC 4443 §3.2). `mtu` is the path MTU in bytes. The report's source is `remote`, the destination of
/// `packet`.
pub fn write_packet_too_big(
    interface: &Interface,
    packet: &[u8],
    local: IpAddr,
    remote: IpAddr,
    mtu: u16,
    out: &mut Vec<u8>,
) {
    let (protocol, kind, code, quoted) = match local {
        IpAddr::V4(_) => {
            let code = u8::from(Icmpv4DstUnreachable::FragRequired);
            (IpProtocol::Icmp, u8::from(Icmpv4Message::DstUnreachable), code, QUOTED_V4)
        }
        IpAddr::V6(_) => (IpProtocol::Icmpv6, u8::from(Icmpv6Message::PktTooBig), 0, QUOTED_V6),
    };
    let quote = &packet[..packet.len().min(quoted)];
    let header = IpHeader { source: remote, destination: local, protocol, hop_limit: HOP_LIMIT };
    path::write_ip_frame(out, interface, interface.mac, header, 8 + quote.len(), |message| {
        message[..8].fill(0);
        (message[0], message[1]) = (kind, code);
        message[6..8].copy_from_slice(&mtu.to_be_bytes());
        message[8..].copy_from_slice(quote);
        let sum = match protocol {
            IpProtocol::Icmp => !checksum::sum(message),
            _ => checksum::segment(remote, local, ICMPV6, message),
        };
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    });
}

/// Sends the reply to the echo request message `request`, with the same data, to the link-layer address `mac`. `source`
/// is our address.
pub fn write_echo_reply(
    interface: &Interface,
    mac: Mac,
    source: IpAddr,
    destination: IpAddr,
    request: &[u8],
    out: &mut Outbox,
) {
    let (protocol, kind) = match source {
        IpAddr::V4(_) => (IpProtocol::Icmp, u8::from(Icmpv4Message::EchoReply)),
        IpAddr::V6(_) => (IpProtocol::Icmpv6, u8::from(Icmpv6Message::EchoReply)),
    };
    let header = IpHeader { source, destination, protocol, hop_limit: HOP_LIMIT };
    out.push_frame(interface.port, |bytes| {
        path::write_ip_frame(bytes, interface, mac, header, request.len(), |m| {
            m.copy_from_slice(request);
            m[0] = kind;
            m[2..4].fill(0);
            let sum = match protocol {
                IpProtocol::Icmp => !checksum::sum(m),
                _ => checksum::segment(source, destination, ICMPV6, m),
            };
            m[2..4].copy_from_slice(&sum.to_be_bytes());
        });
    });
}
