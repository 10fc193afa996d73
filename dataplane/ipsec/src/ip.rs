//! IP headers as ESP requires them: the offset of the protected part, and the header's update when that part is
//! replaced. Also reads the addresses and the upper-layer part, which policies match, and the traffic class.

use std::net::IpAddr;

/// Protocol number of ESP.
pub const ESP: u8 = 50;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of SCTP.
pub const SCTP: u8 = 132;
/// Next header of an IPv4 packet in a tunnel.
pub const IPV4: u8 = 4;
/// Next header of an IPv6 packet in a tunnel.
pub const IPV6: u8 = 41;
/// Next header of a dummy packet (RFC 4303 §2.6).
pub const NO_NEXT_HEADER: u8 = 59;

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_HEADER: usize = 40;

/// Maximum number of IPv6 extension headers that are parsed.
const MAX_EXTENSIONS: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const OPTIONS: u8 = 60;

/// Reasons to reject a packet: it is not an IP packet, or not one that ESP accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpError {
    /// Shorter than its headers require, or of an unknown version.
    Malformed,
    /// A fragment. ESP protects whole datagrams; fragmented ESP packets are reassembled before they are opened (RFC
    /// 4303 §3.3.4, §3.4.1).
    Fragment,
}

/// The fields of an IP header that ESP uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// True for IPv6.
    pub v6: bool,
    /// Bytes before the part that ESP protects in transport mode.
    pub len: usize,
    /// Offset of the field that holds the protocol number of the protected part.
    pub protocol_at: usize,
    /// Protocol number of the protected part.
    pub protocol: u8,
    /// Length of the packet according to its header, bytes.
    pub total: usize,
}

impl Header {
    /// Reads the header of the packet at the start of `packet`. Other bytes may follow the packet. In IPv6, ESP follows
    /// hop-by-hop options and routing headers, and precedes destination options (RFC 4303 §3.1.1).
    #[inline]
    pub fn read(packet: &[u8]) -> Result<Header, IpError> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => read_v4(packet),
            Some(6) => read_v6(packet),
            _ => Err(IpError::Malformed),
        }
    }
}

#[inline]
fn read_v4(packet: &[u8]) -> Result<Header, IpError> {
    let header = packet.first_chunk::<IPV4_HEADER>().ok_or(IpError::Malformed)?;
    let len = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if len < IPV4_HEADER || total < len || total > packet.len() {
        return Err(IpError::Malformed);
    }
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(IpError::Fragment);
    }
    Ok(Header { v6: false, len, protocol_at: 9, protocol: header[9], total })
}

fn read_v6(packet: &[u8]) -> Result<Header, IpError> {
    let header = packet.first_chunk::<IPV6_HEADER>().ok_or(IpError::Malformed)?;
    let total = IPV6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = packet.get(..total).ok_or(IpError::Malformed)?;
    let (mut protocol_at, mut protocol, mut len) = (6, header[6], IPV6_HEADER);
    for _ in 0..MAX_EXTENSIONS {
        match protocol {
            HOP_BY_HOP | ROUTING => {}
            // Each router of the route processes destination options before a routing header (RFC 8200 §4.1), so ESP
            // follows them.
            OPTIONS if packet.get(len) == Some(&ROUTING) => {}
            FRAGMENT if is_fragment(packet, len) => return Err(IpError::Fragment),
            FRAGMENT => {}
            _ => break,
        }
        let extension = packet.get(len..len + 2).ok_or(IpError::Malformed)?;
        let more = if protocol == FRAGMENT { 0 } else { usize::from(extension[1]) };
        (protocol_at, protocol) = (len, extension[0]);
        len += 8 * (more + 1);
    }
    match len <= total {
        true => Ok(Header { v6: true, len, protocol_at, protocol, total }),
        false => Err(IpError::Malformed),
    }
}

/// Replaces a packet's length and protocol; `header` holds the old values. The IPv4 checksum must be correct before the
/// call, because it is updated incrementally (RFC 1624 §3): a full sum would have to wait for the bytes that were just
/// written.
#[inline]
pub fn rewrite(packet: &mut [u8], header: &Header, protocol: u8, total: usize) {
    packet[header.protocol_at] = protocol;
    if header.v6 {
        packet[4..6].copy_from_slice(&((total - IPV6_HEADER) as u16).to_be_bytes());
    } else {
        let old = u16::from_be_bytes([packet[10], packet[11]]);
        let (total, before) = (total as u16, header.total as u16);
        let was = [!old, !before, !u16::from(header.protocol)].map(u64::from);
        let sum = was.iter().sum::<u64>() + u64::from(total) + u64::from(protocol);
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
    }
}

/// Computes and writes an IPv4 header's checksum.
pub fn write_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = !fold(sum_words(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Computes and writes the checksum of the UDP datagram from offset `udp` to the end of an IPv6 packet (RFC 8200 §8.1).
pub fn write_udp_checksum(packet: &mut [u8], udp: usize) {
    packet[udp + 6..udp + 8].fill(0);
    let len = packet.len() - udp;
    let sum = sum_words(&packet[8..IPV6_HEADER])
        + sum_words(&packet[udp..])
        + len as u64
        + u64::from(UDP);
    // A checksum of zero is sent as 0xffff: zero means no checksum.
    let sum = if fold(sum) == 0xffff { 0xffff } else { !fold(sum) };
    packet[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
}

/// Returns a sum that [`fold`] reduces to the ones' complement sum of the 16-bit words. An odd last byte is the high
/// byte of a word.
fn sum_words(bytes: &[u8]) -> u64 {
    let (whole, rest) = bytes.as_chunks::<4>();
    let word = |word: &[u8]| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| low.into());
    // A ones' complement sum is modulo 2^16 - 1, so a 32-bit word counts as the sum of its two 16-bit words.
    let sum: u64 = whole.iter().map(|four| u64::from(u32::from_be_bytes(*four))).sum();
    sum + rest.chunks(2).map(word).sum::<u64>()
}

#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Returns true if the fragment header at offset `at` belongs to a fragment, or is truncated. Returns false for an
/// atomic fragment, which is a whole packet: offset 0 and no more fragments (RFC 6946).
fn is_fragment(packet: &[u8], at: usize) -> bool {
    packet.get(at + 2..at + 4).is_none_or(|field| field[0] != 0 || field[1] & 0xf9 != 0)
}

/// Visibility of a packet's upper-layer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Not a fragment, and the upper-layer protocol is known.
    Whole,
    /// A fragment. Of the upper layer, only the protocol is known.
    Fragment,
    /// The upper-layer protocol is unknown: too many, truncated or fragmented extension headers.
    Hidden,
}

/// The upper-layer part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// Protocol number; for [`Visibility::Hidden`], the number of the last extension header.
    pub protocol: u8,
    /// Offset of the upper layer's first byte; 0 unless the packet is whole.
    pub at: usize,
    /// Offset after the upper layer's last byte; 0 unless the packet is whole.
    pub end: usize,
    /// Visibility of the upper-layer header.
    pub visibility: Visibility,
}

/// Returns the upper-layer part of a packet, after all extension headers. `None` if `packet` is not an IP packet.
#[inline]
pub fn upper_layer(packet: &[u8]) -> Option<UpperLayer> {
    if packet.first()? >> 4 == 6 {
        return upper_layer_v6(packet);
    }
    match Header::read(packet) {
        Ok(Header { len, protocol, total, .. }) => {
            Some(UpperLayer { protocol, at: len, end: total, visibility: Visibility::Whole })
        }
        Err(IpError::Fragment) => Some(UpperLayer {
            protocol: packet[9],
            at: 0,
            end: 0,
            visibility: Visibility::Fragment,
        }),
        Err(IpError::Malformed) => None,
    }
}

fn upper_layer_v6(packet: &[u8]) -> Option<UpperLayer> {
    let header = packet.first_chunk::<IPV6_HEADER>()?;
    let end = IPV6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = packet.get(..end)?;
    let (mut protocol, mut at) = (header[6], IPV6_HEADER);
    let hidden =
        |protocol| Some(UpperLayer { protocol, at: 0, end: 0, visibility: Visibility::Hidden });
    for _ in 0..MAX_EXTENSIONS {
        let len = match protocol {
            HOP_BY_HOP | ROUTING | OPTIONS => match packet.get(at + 1) {
                Some(&len) => 8 * (usize::from(len) + 1),
                None => return hidden(protocol),
            },
            FRAGMENT if is_fragment(packet, at) => {
                return match packet.get(at) {
                    None | Some(&(HOP_BY_HOP | ROUTING | OPTIONS | FRAGMENT)) => hidden(FRAGMENT),
                    Some(&protocol) => Some(UpperLayer {
                        protocol,
                        at: 0,
                        end: 0,
                        visibility: Visibility::Fragment,
                    }),
                };
            }
            FRAGMENT => 8,
            _ => {
                return Some(UpperLayer {
                    protocol,
                    at: at.min(end),
                    end,
                    visibility: Visibility::Whole,
                });
            }
        };
        protocol = *packet.get(at)?;
        at += len;
    }
    hidden(protocol)
}

/// Returns source and destination address; `None` if `packet` is too short or not an IP packet.
#[inline]
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

/// Returns the traffic class (IPv6) or type of service (IPv4): DSCP and ECN. Panics if `packet` has fewer than two
/// bytes.
pub fn traffic_class(packet: &[u8]) -> u8 {
    match packet[0] >> 4 {
        4 => packet[1],
        _ => packet[0] << 4 | packet[1] >> 4,
    }
}

/// Sets the traffic class, and updates an IPv4 header's checksum. Panics if `packet` is shorter than its IP header.
pub fn set_traffic_class(packet: &mut [u8], traffic_class: u8) {
    if packet[0] >> 4 == 4 {
        packet[1] = traffic_class;
        let len = usize::from(packet[0] & 15) * 4;
        write_checksum(&mut packet[..len]);
    } else {
        packet[0] = 0x60 | traffic_class >> 4;
        packet[1] = traffic_class << 4 | packet[1] & 15;
    }
}
