//! The Internet checksum (RFC 1071) over whole segments and IPv4 headers. Without checksum offload, software reads
//! each payload for this sum, so the sum is written for auto-vectorisation. SCTP's CRC32c is not included.

use std::net::IpAddr;

/// Minimum input length in bytes for [`sum_simd`]. For shorter inputs, the run-time dispatch costs more than wide
/// registers save.
const MIN_SIMD_LEN: usize = 128;

/// Returns the ones' complement sum of `data` as big-endian 16-bit words, not complemented. An odd last byte is padded
/// with a zero byte. [`add`] combines the sums of consecutive pieces. All pieces except the last must have an even
/// length.
pub fn sum(data: &[u8]) -> u16 {
    // Words are summed in native byte order: the sum of byte-swapped words is the byte-swapped sum (RFC 1071 §2 (B)).
    fold(if data.len() < MIN_SIMD_LEN { sum_words(data) } else { sum_simd(data) }).to_be()
}

/// Returns the [`sum`] of an IPv4 header without options.
#[inline]
pub fn ipv4_header(data: &[u8; 20]) -> u16 {
    let (words, _) = data.as_chunks::<4>();
    fold(words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()).to_be()
}

/// Returns [`sum_words`] of `data`, computed in the widest registers of this CPU. Wide loads also have more cache lines
/// in flight, which helps most if another core wrote the data last.
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

/// Returns the sum of `data` as words in native byte order, not folded to 16 bits. The function is inlined and compiled
/// for each register width.
#[inline(always)]
fn sum_words(data: &[u8]) -> u64 {
    // A single accumulator: with several, the compiler generates gather loads of distant bytes.
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

/// Returns the ones' complement sum of two 16-bit words.
pub fn add(a: u16, b: u16) -> u16 {
    add_all([a, b])
}

/// Returns the ones' complement sum of `words`.
#[inline]
pub fn add_all<const N: usize>(words: [u16; N]) -> u16 {
    fold(words.into_iter().map(u64::from).sum())
}

/// Returns the sum of the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1), not
/// complemented. A device with checksum offload expects this sum in the checksum field.
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u16 {
    pseudo_header_with_addresses(sum_addresses(source, destination), protocol, len)
}

/// Returns the sum of two addresses for the pseudo-header; 0 if their families differ.
pub fn sum_addresses(source: IpAddr, destination: IpAddr) -> u16 {
    match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => fold(u64::from(u32::from(s)) + u64::from(u32::from(d))),
        (IpAddr::V6(s), IpAddr::V6(d)) => add(sum(&s.octets()), sum(&d.octets())),
        _ => 0,
    }
}

/// Returns the pseudo-header sum. `addresses`: result of [`sum_addresses`]. `len`: length of the segment in bytes.
pub fn pseudo_header_with_addresses(addresses: u16, protocol: u8, len: usize) -> u16 {
    fold(u64::from(addresses) + len as u64 + u64::from(protocol))
}

/// Returns the checksum of the segment `bytes`, whose checksum field must be zero. For a received segment with its
/// checksum, a result of 0 means that the checksum is correct.
pub fn segment(source: IpAddr, destination: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    segment_with_sum(sum_addresses(source, destination), protocol, bytes.len(), sum(bytes))
}

/// Returns the checksum of a segment of `len` bytes. `addresses`: result of [`sum_addresses`]. `sum`: [`sum()`] of the
/// segment.
pub fn segment_with_sum(addresses: u16, protocol: u8, len: usize, sum: u16) -> u16 {
    !fold(u64::from(addresses) + len as u64 + u64::from(protocol) + u64::from(sum))
}

/// Folds the carries into 16 bits, without branches. Zero only if `sum` is zero.
#[inline]
fn fold(sum: u64) -> u16 {
    // Adds the number with exchanged halves. The upper half of the result is the sum of both halves, plus the carry out
    // of the lower half.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
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
