//! IP headers as ESP sees them: where the protected part begins, and what changes when it is replaced.

use std::net::IpAddr;

/// Protocol numbers.
pub const ESP: u8 = 50;
/// See [`ESP`].
pub const UDP: u8 = 17;
/// IPv4 in a tunnel.
pub const IPV4: u8 = 4;
/// IPv6 in a tunnel.
pub const IPV6: u8 = 41;
/// RFC 4303 §2.6: a dummy packet.
pub const NO_NEXT: u8 = 59;

/// Bytes of the headers without options and extensions.
pub const IPV4_HEADER: usize = 20;
/// See [`IPV4_HEADER`].
pub const IPV6_HEADER: usize = 40;

/// IPv6 extension headers that are followed.
const EXTENSIONS: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const OPTIONS: u8 = 60;

/// Why a packet is none, or not one that ESP takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIp {
    /// Shorter than its headers say, or of no known version.
    Malformed,
    /// A fragment: ESP protects whole datagrams, and is put together before it is opened (RFC 4303 §3.3.4, §3.4.1).
    Fragment,
}

/// What is read of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// True for IPv6.
    pub v6: bool,
    /// Bytes before the part that ESP protects in transport mode.
    pub len: usize,
    /// Where the number of that part's protocol stands.
    pub protocol_at: usize,
    /// That number.
    pub protocol: u8,
    /// Bytes of the packet as its header says.
    pub total: usize,
}

impl Header {
    /// Reads the header of a packet, which may be followed by other bytes. In IPv6 ESP comes behind hop-by-hop options and
    /// routing headers, and before destination options (RFC 4303 §3.1.1).
    pub fn read(packet: &[u8]) -> Result<Header, NotIp> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => v4(packet),
            Some(6) => v6(packet),
            _ => Err(NotIp::Malformed),
        }
    }
}

fn v4(packet: &[u8]) -> Result<Header, NotIp> {
    let header = packet.first_chunk::<IPV4_HEADER>().ok_or(NotIp::Malformed)?;
    let len = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if len < IPV4_HEADER || total < len || total > packet.len() {
        return Err(NotIp::Malformed);
    }
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(NotIp::Fragment);
    }
    Ok(Header { v6: false, len, protocol_at: 9, protocol: header[9], total })
}

fn v6(packet: &[u8]) -> Result<Header, NotIp> {
    let header = packet.first_chunk::<IPV6_HEADER>().ok_or(NotIp::Malformed)?;
    let total = IPV6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = packet.get(..total).ok_or(NotIp::Malformed)?;
    let (mut protocol_at, mut protocol, mut len) = (6, header[6], IPV6_HEADER);
    for _ in 0..EXTENSIONS {
        match protocol {
            HOP_BY_HOP | ROUTING => {}
            // Before a routing header destination options are for each of its hosts (RFC 8200 §4.1).
            OPTIONS if packet.get(len) == Some(&ROUTING) => {}
            FRAGMENT => return Err(NotIp::Fragment),
            _ => break,
        }
        let extension = packet.get(len..len + 2).ok_or(NotIp::Malformed)?;
        (protocol_at, protocol) = (len, extension[0]);
        len += 8 * (usize::from(extension[1]) + 1);
    }
    match len <= total {
        true => Ok(Header { v6: true, len, protocol_at, protocol, total }),
        false => Err(NotIp::Malformed),
    }
}

/// Writes a packet's length and protocol, and its checksum.
pub fn rewrite(packet: &mut [u8], header: &Header, protocol: u8, total: usize) {
    packet[header.protocol_at] = protocol;
    if header.v6 {
        packet[4..6].copy_from_slice(&((total - IPV6_HEADER) as u16).to_be_bytes());
    } else {
        packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        write_checksum(&mut packet[..header.len]);
    }
}

/// Fills in an IPv4 header's checksum.
pub fn write_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !folded(words(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Fills in the checksum of the UDP datagram at `udp` of an IPv6 packet (RFC 8200 §8.1).
pub fn write_udp_checksum(packet: &mut [u8], udp: usize) {
    packet[udp + 6..udp + 8].fill(0);
    let len = packet.len() - udp;
    let sum = words(&packet[8..IPV6_HEADER]) + words(&packet[udp..]) + len as u64 + u64::from(UDP);
    // Zero would be none.
    let sum = if folded(sum) == 0xffff { 0xffff } else { !folded(sum) };
    packet[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
}

/// The sum of 16-bit words; a last byte is the first of one.
fn words(bytes: &[u8]) -> u64 {
    let word = |word: &[u8]| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| low.into());
    bytes.chunks(2).map(word).sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Source and destination.
pub fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let at = |from: usize, len: usize| packet.get(from..from + len);
    match packet.first()? >> 4 {
        4 => {
            let read = |from| <[u8; 4]>::try_from(at(from, 4)?).ok().map(IpAddr::from);
            Some((read(12)?, read(16)?))
        }
        6 => {
            let read = |from| <[u8; 16]>::try_from(at(from, 16)?).ok().map(IpAddr::from);
            Some((read(8)?, read(24)?))
        }
        _ => None,
    }
}

/// The traffic class, or type of service: DSCP and ECN.
pub fn class(packet: &[u8]) -> u8 {
    match packet[0] >> 4 {
        4 => packet[1],
        _ => packet[0] << 4 | packet[1] >> 4,
    }
}

/// Changes it.
pub fn set_class(packet: &mut [u8], class: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = class;
        let len = usize::from(packet[0] & 15) * 4;
        write_checksum(&mut packet[..len]);
    } else {
        packet[0] = 0x60 | class >> 4;
        packet[1] = class << 4 | packet[1] & 15;
    }
}
