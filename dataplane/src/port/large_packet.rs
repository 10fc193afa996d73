//! Merges consecutive TCP segments of one flow into a large packet for TSO. The device cuts the packet into the same
//! segments; only the IPv4 identification and the header checksum may differ.
//!
//! ```text
//!  segments       seq 0, n bytes | seq n, n bytes | seq 2n, m <= n bytes, PSH or FIN
//!  large packet   seq 0, 2n + m bytes, PSH or FIN, to be cut every n bytes
//! ```
//!
//! The device cuts at the original segment boundaries, so each segment on the wire begins with an FPDU as before (RFC
//! 5044 §5.1). A device increments sequence number and IPv4 identification, sets lengths and checksums, and sets PSH
//! and FIN in the last segment only. All other header bytes must be the same in all segments.
//!
//! Not merged: fragments, packets with IP options or extension headers, and segments with CWR, SYN, RST or URG.

use arrayvec::ArrayVec;
use core::ops::Range;

use dpdk::{LARGE_HEADERS, LargePacket, Segmentation};

use crate::checksum;

/// Minimum payload in bytes of merged segments, except the last of a packet. Some devices do not cut smaller segments.
const MIN_SEGMENT: usize = 256;
/// Maximum length of a large packet with its headers, bytes. IP's length fields have 16 bits, and the limits of devices
/// are near this value.
const MAX_BYTES: usize = 65_535;

const TCP: u8 = 6;
const ACK: u8 = 0x10;
/// PSH and FIN, which only the last segment of a large packet may have.
const LAST_SEGMENT_FLAGS: u8 = 0x09;
/// PSH, ACK, FIN and ECE. A segment with any other flag is not merged, because the flag applies to this segment alone
/// (RFC 9293 §3.1, RFC 3168 §6.1.2).
const MERGEABLE_FLAGS: u8 = 0x59;

// Offsets in a TCP header (RFC 9293 §3.1).
const SEQ: Range<usize> = 4..8;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const TCP_CHECKSUM: Range<usize> = 16..18;
// Offsets in an IPv4 header (RFC 791 §3.1).
const V4_LEN: Range<usize> = 2..4;
const V4_FRAGMENT: Range<usize> = 6..8;
const V4_PROTOCOL: usize = 9;
const V4_CHECKSUM: Range<usize> = 10..12;
// Offsets in an IPv6 header (RFC 8200 §3).
const V6_LEN: Range<usize> = 4..6;
const V6_NEXT: usize = 6;

/// Offsets of a segment's headers in its frame.
#[derive(Clone, Copy, Debug)]
struct Layout {
    v6: bool,
    /// Length of the link header: offset of the IP header.
    l2: usize,
    /// Offset of the TCP header.
    l4: usize,
    /// Offset of the payload.
    end: usize,
}

/// Plans a large packet that merges the first of `frames` with the longest possible run of following frames. `bytes`
/// returns the content of a frame that may be merged, and `None` for other frames. `cuts` is the segmentation that the
/// device supports. Returns `None` if fewer than two frames can be merged.
pub fn plan_large_packet<F>(
    frames: &[F],
    bytes: impl Fn(&F) -> Option<&[u8]>,
    cuts: Segmentation,
) -> Option<LargePacket> {
    let (first, others) = frames.split_first()?;
    let first = bytes(first)?;
    let at = Layout::parse(first)?;
    let segment = first.len() - at.end;
    let cut = if at.v6 { cuts.ipv6 } else { cuts.ipv4 };
    if !cut || segment < MIN_SEGMENT || first[at.l4 + FLAGS] & LAST_SEGMENT_FLAGS != 0 {
        return None;
    }
    let max_segments = usize::from(cuts.segments).saturating_sub(1);
    let (mut payload, mut count, mut ends) = (segment, 1, 0);
    for next in others.iter().take(max_segments) {
        let Some(next) = bytes(next) else { break };
        let len = next.len().saturating_sub(at.end);
        if len == 0 || len > segment || at.end + payload + len > MAX_BYTES {
            break;
        }
        if !at.continues(first, next, payload) {
            break;
        }
        (payload, count) = (payload + len, count + 1);
        ends = next[at.l4 + FLAGS] & LAST_SEGMENT_FLAGS;
        if len < segment || ends != 0 {
            break;
        }
    }
    (count > 1).then(|| LargePacket {
        headers: at.headers(first, payload, ends, cuts),
        ipv6: at.v6,
        l2_len: at.l2 as u16,
        l3_len: (at.l4 - at.l2) as u16,
        segment_len: segment as u16,
        frames: count,
    })
}

impl Layout {
    /// Returns the layout of a frame whose TCP segment may be merged; `None` for other frames.
    fn parse(frame: &[u8]) -> Option<Layout> {
        let tag = frame.get(12..14)? == [0x81, 0];
        let l2 = if tag { 18 } else { 14 };
        let ip = frame.get(l2..)?;
        let (v6, l3, len, protocol) = match frame[l2 - 2..l2] {
            [0x08, 0x00] if ip.len() >= 20 => {
                // Packets with IP options are not merged. DF must be set: the identification of other packets has a
                // meaning (RFC 6864 §4.1), and the device changes it.
                if ip[0] != 0x45 || ip[V4_FRAGMENT] != [0x40, 0] {
                    return None;
                }
                (false, 20, usize::from(read_u16(ip, V4_LEN)), ip[V4_PROTOCOL])
            }
            [0x86, 0xdd] if ip.len() >= 40 => {
                (true, 40, 40 + usize::from(read_u16(ip, V6_LEN)), ip[V6_NEXT])
            }
            _ => return None,
        };
        let tcp = ip.get(l3..)?;
        if protocol != TCP || len != ip.len() || tcp.len() < 20 {
            return None;
        }
        let end = l2 + l3 + usize::from(tcp[DATA_OFFSET] >> 4) * 4;
        let flags = tcp[FLAGS];
        // The low bits of the byte with the data offset are flags, too, such as AccECN's (RFC 9768 §3.1.1).
        let plain =
            flags & ACK != 0 && flags & !MERGEABLE_FLAGS == 0 && tcp[DATA_OFFSET] & 0x0f == 0;
        let fits = end >= l2 + l3 + 20 && end <= frame.len() && end <= LARGE_HEADERS;
        (plain && fits).then_some(Layout { v6, l2, l4: l2 + l3, end })
    }

    /// Returns true if a device that segments a large packet with the headers of `first` would send the headers of
    /// `next` at payload offset `offset`.
    fn continues(self, first: &[u8], next: &[u8], offset: usize) -> bool {
        if Layout::parse(next).is_none() {
            return false;
        }
        let same = |range: Range<usize>| first[range.clone()] == next[range];
        let (l2, l4) = (self.l2, self.l4);
        let ip = if self.v6 {
            same(0..l2 + V6_LEN.start) && same(l2 + V6_LEN.end..l4)
        } else {
            same(0..l2 + V4_LEN.start)
                && same(l2 + V4_LEN.end..l2 + V4_CHECKSUM.start)
                && same(l2 + V4_CHECKSUM.end..l4)
        };
        let seq = |frame: &[u8]| {
            frame[l4..][SEQ].iter().fold(0_u32, |seq, byte| seq << 8 | u32::from(*byte))
        };
        let flags = |frame: &[u8]| frame[l4 + FLAGS] & !LAST_SEGMENT_FLAGS;
        // The compared bytes include the header lengths, so `next` has the same layout.
        ip && same(l4..l4 + SEQ.start)
            && same(l4 + SEQ.end..l4 + FLAGS)
            && flags(first) == flags(next)
            && same(l4 + FLAGS + 1..l4 + TCP_CHECKSUM.start)
            && same(l4 + TCP_CHECKSUM.end..self.end)
            && seq(next) == seq(first).wrapping_add(offset as u32)
    }

    /// Returns the headers of a large packet with `payload` bytes, derived from the headers of the frame `first`.
    /// `last_flags` are the PSH and FIN flags of the last segment.
    fn headers(
        self,
        first: &[u8],
        payload: usize,
        last_flags: u8,
        cuts: Segmentation,
    ) -> ArrayVec<u8, LARGE_HEADERS> {
        let mut headers: ArrayVec<u8, LARGE_HEADERS> = first[..self.end].iter().copied().collect();
        let (front, tcp) = headers.split_at_mut(self.l4);
        let ip = &mut front[self.l2..];
        let segment = (tcp.len() + payload) as u16;
        let addresses = if self.v6 {
            ip[V6_LEN].copy_from_slice(&segment.to_be_bytes());
            checksum::sum(&ip[8..40])
        } else {
            ip[V4_LEN].copy_from_slice(&(20 + segment).to_be_bytes());
            ip[V4_CHECKSUM].fill(0);
            if cuts.virtio {
                let sum = !checksum::sum(ip);
                ip[V4_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
            }
            checksum::sum(&ip[12..20])
        };
        let len = if cuts.virtio { segment.into() } else { 0 };
        let sum = checksum::pseudo_header_with_addresses(addresses, TCP, len);
        tcp[TCP_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        tcp[FLAGS] |= last_flags;
        headers
    }
}

fn read_u16(bytes: &[u8], range: Range<usize>) -> u16 {
    bytes[range].iter().fold(0, |word, byte| word << 8 | u16::from(*byte))
}

#[cfg(test)]
mod tests;
