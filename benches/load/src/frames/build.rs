//! Builders of Ethernet frames, IP packets, TCP segments and UDP datagrams, with correct checksums.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header,
    TcpHeader, UdpHeader,
};
use fastrand::Rng;

use super::{MAX_FRAME, MIN_FRAME, Mac};

/// Length of an Ethernet header, bytes.
pub const ETHERNET_LEN: usize = 14;

/// MAC and IP addresses of a frame.
#[derive(Clone, Copy)]
pub struct FrameAddresses {
    /// Ethernet source address.
    pub source_mac: Mac,
    /// Ethernet destination address.
    pub destination_mac: Mac,
    /// Source address of the IP packet.
    pub source: IpAddr,
    /// Destination address of the IP packet.
    pub destination: IpAddr,
}

/// Fragment fields of an IP packet; IPv4 uses the low 16 bits of `id`.
pub struct FragmentFields {
    /// Identification field of the datagram.
    pub id: u32,
    /// Fragment offset, in units of 8 bytes.
    pub offset: u16,
    /// More-fragments flag.
    pub more: bool,
}

/// Returns the length of an IP header without options, bytes.
pub fn ip_header_len(v6: bool) -> usize {
    if v6 { Ipv6Header::LEN } else { Ipv4Header::MIN_LEN }
}

/// Builds an IP packet with `payload`. With `fragment`, the packet is a fragment.
pub fn packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: IpNumber,
    hops: u8,
    fragment: Option<&FragmentFields>,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(MAX_FRAME);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = Ipv4Header::new(
                payload.len() as u16,
                hops,
                protocol,
                source.octets(),
                destination.octets(),
            )?;
            header.dont_fragment = fragment.is_none();
            if let Some(fragment) = fragment {
                header.identification = fragment.id as u16;
                header.fragment_offset = IpFragOffset::try_new(fragment.offset)?;
                header.more_fragments = fragment.more;
            }
            header.header_checksum = header.calc_header_checksum();
            out.extend(header.to_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let extension = fragment
                .map(|fragment| -> Result<_> {
                    let offset = IpFragOffset::try_new(fragment.offset)?;
                    Ok(Ipv6FragmentHeader::new(protocol, offset, fragment.more, fragment.id)
                        .to_bytes())
                })
                .transpose()?;
            let header = Ipv6Header {
                payload_length: (payload.len() + extension.map_or(0, |bytes| bytes.len())) as u16,
                next_header: if extension.is_some() {
                    IpNumber::IPV6_FRAGMENTATION_HEADER
                } else {
                    protocol
                },
                hop_limit: hops,
                source: source.octets(),
                destination: destination.octets(),
                ..Default::default()
            };
            out.extend(header.to_bytes());
            out.extend(extension.into_iter().flatten());
        }
        _ => bail!("{source} and {destination} are of two versions of IP"),
    }
    out.extend(payload);
    Ok(out)
}

/// Builds a frame with an IP packet, padded with zeros to at least [`MIN_FRAME`].
pub fn frame(ends: &FrameAddresses, packet: &[u8]) -> Result<Vec<u8>> {
    let ether_type = if ends.destination.is_ipv6() { EtherType::IPV6 } else { EtherType::IPV4 };
    ethernet(ends.source_mac, ends.destination_mac, ether_type, packet)
}

/// Builds a frame of any EtherType, padded with zeros to at least 60 bytes. Fails above 1514 bytes.
pub fn ethernet(
    source: Mac,
    destination: Mac,
    ether_type: EtherType,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let mut out = Ethernet2Header { source, destination, ether_type }.to_bytes().to_vec();
    out.extend(payload);
    ensure!(out.len() <= MAX_FRAME, "a frame of {} bytes is longer than {MAX_FRAME}", out.len());
    out.resize(out.len().max(MIN_FRAME), 0);
    Ok(out)
}

/// Builds a frame with an unfragmented IP packet, hop limit 64.
pub fn ip_frame(ends: &FrameAddresses, protocol: IpNumber, payload: &[u8]) -> Result<Vec<u8>> {
    frame(ends, &packet(ends.source, ends.destination, protocol, 64, None, payload)?)
}

/// Builds a TCP segment with a correct checksum.
pub fn tcp_segment(
    ends: &FrameAddresses,
    mut header: TcpHeader,
    payload: &[u8],
) -> Result<Vec<u8>> {
    header.checksum = match (ends.source, ends.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            header.calc_checksum_ipv4_raw(source.octets(), destination.octets(), payload)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            header.calc_checksum_ipv6_raw(source.octets(), destination.octets(), payload)
        }
        _ => bail!("two versions of IP"),
    }
    .context("the segment is too long")?;
    let mut out = header.to_bytes().to_vec();
    out.extend(payload);
    Ok(out)
}

/// Builds a frame with a TCP segment.
pub fn tcp_frame(ends: &FrameAddresses, header: TcpHeader, payload: &[u8]) -> Result<Vec<u8>> {
    ip_frame(ends, IpNumber::TCP, &tcp_segment(ends, header, payload)?)
}

/// Builds a frame with a UDP datagram.
pub fn udp_frame(
    ends: &FrameAddresses,
    source_port: u16,
    destination_port: u16,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let header = match (ends.source, ends.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header =
                Ipv4Header::new(0, 64, IpNumber::UDP, source.octets(), destination.octets())?;
            UdpHeader::with_ipv4_checksum(source_port, destination_port, &header, payload)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6Header {
                source: source.octets(),
                destination: destination.octets(),
                ..Default::default()
            };
            UdpHeader::with_ipv6_checksum(source_port, destination_port, &header, payload)
        }
        _ => bail!("two versions of IP"),
    }
    .context("the datagram is too long")?;
    let mut out = header.to_bytes().to_vec();
    out.extend(payload);
    ip_frame(ends, IpNumber::UDP, &out)
}

/// Returns a random client port, 1024 or above: the user ports and dynamic ports of RFC 6335 §6.
pub fn client_port(rng: &mut Rng) -> u16 {
    rng.u16(1024..)
}

/// Returns the addresses of a frame from `source` to `destination`, with the plan's MAC addresses.
pub fn frame_addresses(
    plan: &super::Plan,
    source: IpAddr,
    destination: SocketAddr,
) -> FrameAddresses {
    FrameAddresses {
        source_mac: plan.source_mac,
        destination_mac: plan.destination_mac,
        source,
        destination: destination.ip(),
    }
}

/// Returns `len` random bytes.
pub fn random_bytes(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}
