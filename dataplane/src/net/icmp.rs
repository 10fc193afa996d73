//! ICMP (RFC 792, RFC 4443) of a host: echo is answered, and "too big" is believed if it is about a
//! packet that could have been ours; everything else is counted.

use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol,
    Ipv4Packet, Ipv6Packet,
};

use super::demux::ICMPV6;
use super::interface::Interface;
use super::neighbour::Mac;
use super::{Outbox, checksum, path};
use crate::api::DropReason;

/// A path to this peer carries less than was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathMtu {
    /// Place of the interface.
    pub interface: usize,
    /// Our end of the flow.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// Sequence number of the segment that was too big.
    pub seq: u32,
    /// Octets of an IP packet that pass.
    pub mtu: u16,
}

/// The least MTU that is believed. IPv4 routers may say 68 (RFC 791), but a lie that small costs more
/// than such a link is worth; the least that IPv6 knows is 1280 (RFC 8200 §5).
const MIN_MTU_V4: u32 = 552;
const MIN_MTU_V6: u32 = 1280;
const HOP_LIMIT: u8 = 64;

/// What an ICMP message means to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmp {
    /// Asks for an echo.
    Echo,
    /// Reports that a packet of ours was too big.
    TooBig(PathMtu),
}

/// Reads an ICMPv4 message whose checksum is right.
///
/// # Errors
/// Why it is of no use.
pub fn parse_v4(index: usize, interface: &Interface, message: &[u8]) -> Result<Icmp, DropReason> {
    let packet = Icmpv4Packet::new_checked(message).map_err(|_| DropReason::Icmp)?;
    match packet.msg_type() {
        Icmpv4Message::EchoRequest if packet.msg_code() == 0 => Ok(Icmp::Echo),
        Icmpv4Message::DstUnreachable
            if Icmpv4DstUnreachable::from(packet.msg_code())
                == Icmpv4DstUnreachable::FragRequired =>
        {
            // RFC 1191 §4: the MTU is in the low half of the unused word.
            let mtu = u32::from(u16::from_be_bytes([message[6], message[7]]));
            let inner = &message[8..];
            // `new_checked` would want all of it; a router sends the header and eight octets.
            let header = inner.first().map_or(0, |b| usize::from(b & 15) * 4);
            if header < 20 || inner.len() < header + 8 {
                return Err(DropReason::Icmp);
            }
            let ip = Ipv4Packet::new_unchecked(inner);
            if ip.version() != 4 || ip.next_header() != IpProtocol::Tcp {
                return Err(DropReason::IcmpNotBelieved);
            }
            let (local, remote) = (ip.src_addr().into(), ip.dst_addr().into());
            too_big(index, interface, (local, remote), &inner[header..], mtu, MIN_MTU_V4)
        }
        _ => Err(DropReason::IcmpIgnored),
    }
}

/// Reads an ICMPv6 message whose checksum is right, other than neighbour discovery.
///
/// # Errors
/// Why it is of no use.
pub fn parse_v6(index: usize, interface: &Interface, message: &[u8]) -> Result<Icmp, DropReason> {
    let packet = Icmpv6Packet::new_checked(message).map_err(|_| DropReason::Icmp)?;
    match packet.msg_type() {
        Icmpv6Message::EchoRequest if packet.msg_code() == 0 => Ok(Icmp::Echo),
        Icmpv6Message::PktTooBig => {
            // RFC 4443 §3.2
            let inner = &message[8..];
            if inner.len() < 48 {
                return Err(DropReason::Icmp);
            }
            let ip = Ipv6Packet::new_unchecked(inner);
            // What we send has no extension headers.
            if ip.version() != 6 || ip.next_header() != IpProtocol::Tcp {
                return Err(DropReason::IcmpNotBelieved);
            }
            let (local, remote) = (ip.src_addr().into(), ip.dst_addr().into());
            let mtu = packet.pkt_too_big_mtu();
            too_big(index, interface, (local, remote), &inner[40..], mtu, MIN_MTU_V6)
        }
        _ => Err(DropReason::IcmpIgnored),
    }
}

fn too_big(
    index: usize,
    interface: &Interface,
    (local, remote): (IpAddr, IpAddr),
    tcp: &[u8],
    mtu: u32,
    min: u32,
) -> Result<Icmp, DropReason> {
    let &[s0, s1, d0, d1, q0, q1, q2, q3, ..] = tcp else { return Err(DropReason::Icmp) };
    // RFC 5927 §7.2: a larger MTU than ours reports nothing; the owner checks the sequence number.
    if !interface.has(local) || mtu < min || mtu >= u32::from(interface.mtu) {
        return Err(DropReason::IcmpNotBelieved);
    }
    Ok(Icmp::TooBig(PathMtu {
        interface: index,
        local: SocketAddr::new(local, u16::from_be_bytes([s0, s1])),
        remote: SocketAddr::new(remote, u16::from_be_bytes([d0, d1])),
        seq: u32::from_be_bytes([q0, q1, q2, q3]),
        mtu: mtu as u16,
    }))
}

/// Answers an echo request with its own octets, to the link-layer address that it came from.
pub fn echo(
    interface: &Interface,
    mac: Mac,
    (source, destination): (IpAddr, IpAddr),
    request: &[u8],
    out: &mut Outbox,
) {
    let (protocol, kind) = match source {
        IpAddr::V4(_) => (IpProtocol::Icmp, u8::from(Icmpv4Message::EchoReply)),
        IpAddr::V6(_) => (IpProtocol::Icmpv6, u8::from(Icmpv6Message::EchoReply)),
    };
    out.frame(interface.port, |octets| {
        let addresses = (source, destination);
        let how = (protocol, HOP_LIMIT);
        path::ip_frame(octets, interface, mac, addresses, how, request.len(), |m| {
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
