//! The Internet checksum (RFC 1071) over whole segments: the only pass that software makes over a
//! payload besides its copy and its CRC, so it is written to be vectorised.

use std::net::IpAddr;

/// Bytes below which it does not pay to ask for wide registers.
const MIN_SIMD_LEN: usize = 128;

/// Ones' complement sum of `data` as big-endian 16-bit words, an odd byte padded with zero; not
/// complemented. Sums of pieces of even length may be added with [`add`].
pub fn sum(data: &[u8]) -> u16 {
    // The sum of swapped words is the swapped sum (RFC 1071 §2 (B)).
    fold(if data.len() < MIN_SIMD_LEN { sum_words(data) } else { sum_simd(data) }).to_be()
}

/// The same of an IPv4 header without options.
#[inline]
pub fn ipv4_header(data: &[u8; 20]) -> u16 {
    let (words, _) = data.as_chunks::<4>();
    fold(words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()).to_be()
}

/// [`words`] in the widest registers that this CPU has. Besides needing fewer instructions, it asks for more of
/// the data at a time: what another core wrote last takes longest to come.
fn sum_simd(data: &[u8]) -> u64 {
    struct Words<'a>(&'a [u8]);
    impl pulp::WithSimd for Words<'_> {
        type Output = u64;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) -> u64 {
            sum_words(self.0)
        }
    }
    pulp::Arch::new().dispatch(Words(data))
}

/// The sum of words of the CPU's order of bytes, in no particular part of 64 bits. Compiled for each width of
/// registers.
#[inline(always)]
fn sum_words(data: &[u8]) -> u64 {
    // One sum over all: of several the compiler makes a gathering of bytes far apart.
    let (words, rest) = data.as_chunks::<4>();
    let total: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    total
        + match *rest {
            [a] => u64::from(u16::from_ne_bytes([a, 0])),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c] => {
                u64::from(u16::from_ne_bytes([a, b])) + u64::from(u16::from_ne_bytes([c, 0]))
            }
            _ => 0,
        }
}

/// Ones' complement addition.
pub fn add(a: u16, b: u16) -> u16 {
    add_all([a, b])
}

/// The same of several.
#[inline]
pub fn add_all<const N: usize>(words: [u16; N]) -> u16 {
    fold(words.into_iter().map(u64::from).sum())
}

/// Sum of the pseudo-header of TCP and ICMPv6 (RFC 9293 §3.1, RFC 8200 §8.1), not complemented: what
/// a device that fills in checksums wants to find in the field.
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u16 {
    pseudo_header_with_addresses(sum_addresses(source, destination), protocol, len)
}

/// The part of two addresses in it.
pub fn sum_addresses(source: IpAddr, destination: IpAddr) -> u16 {
    match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => fold(u64::from(u32::from(s)) + u64::from(u32::from(d))),
        (IpAddr::V6(s), IpAddr::V6(d)) => add(sum(&s.octets()), sum(&d.octets())),
        _ => 0,
    }
}

/// The same sum with the part of both addresses known.
pub fn pseudo_header_with_addresses(addresses: u16, protocol: u8, len: usize) -> u16 {
    fold(u64::from(addresses) + len as u64 + u64::from(protocol))
}

/// The checksum of a segment whose checksum field is zero. Zero for a received segment whose field
/// is right.
pub fn segment(source: IpAddr, destination: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    segment_with_sum(sum_addresses(source, destination), protocol, bytes.len(), sum(bytes))
}

/// The same of a segment of `len` bytes of which the sum is known, with the part of both addresses known.
pub fn segment_with_sum(addresses: u16, protocol: u8, len: usize, sum: u16) -> u16 {
    !fold(u64::from(addresses) + len as u64 + u64::from(protocol) + u64::from(sum))
}

#[inline]
fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::{IpProtocol, checksum};

    use super::*;

    proptest! {
        #[test]
        fn checksum_agrees_with_smoltcp(data in prop::collection::vec(any::<u8>(), 0..300), s: [u8; 16], d: [u8; 16]) {
            prop_assert_eq!(sum(&data), checksum::data(&data));
            if let Some(first) = data.first_chunk() {
                prop_assert_eq!(ipv4_header(first), sum(first));
            }
            let (s, d) = (s.into(), d.into());
            prop_assert_eq!(
                pseudo_header(IpAddr::V6(s), IpAddr::V6(d), 6, data.len()),
                checksum::pseudo_header_v6(&s, &d, IpProtocol::Tcp, data.len() as u32)
            );
        }

        #[test]
        fn a_filled_segment_verifies(mut data in prop::collection::vec(any::<u8>(), 18..200), s: [u8; 4], d: [u8; 4], flip in 0usize..144) {
            let (s, d) = (IpAddr::V4(s.into()), IpAddr::V4(d.into()));
            data[16..18].fill(0);
            let value = segment(s, d, 6, &data);
            data[16..18].copy_from_slice(&value.to_be_bytes());
            prop_assert_eq!(segment(s, d, 6, &data), 0);
            data[flip / 8] ^= 1 << (flip % 8);
            prop_assert_ne!(segment(s, d, 6, &data), 0);
        }
    }
}
