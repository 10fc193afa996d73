//! Common parts of the engines with carry-less multiplication: division of the bytes into passes, reduction, and
//! factors.

use core::arch::x86_64::*;

use crate::combine::power;
use crate::sum::{Sum, fold};

/// Maximum number of bytes of one pass with a sum: the sum of their 16-bit words is below 2^32.
pub(crate) const MAX_SUM_LEN: usize = 1 << 16;

/// An engine that computes the CRC, and optionally the sum and a copy, in one pass over the bytes.
pub(crate) trait Pass {
    /// Minimum number of bytes of a pass.
    const MIN_LEN: usize;

    /// Returns the CRC of `len` bytes, and with `SUM` the folded sum of their little-endian words. With `COPY`, also
    /// copies the bytes from `src` to `dst`.
    ///
    /// # Safety
    /// The CPU supports the features that the engine is compiled for; `len` is at least [`MIN_LEN`](Self::MIN_LEN),
    /// with `SUM` at most [`MAX_SUM_LEN`]; `src` may be read and, with `COPY`, `dst` written for `len` bytes, without
    /// overlap.
    unsafe fn pass<const COPY: bool, const SUM: bool>(
        crc: u32,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> (u32, u16);
}

/// Returns the CRC32c, and with `SUM` the sum, including `len` more bytes. With `COPY`, also copies these bytes.
///
/// # Safety
/// The CPU supports the features that the engine is compiled for; `len` is at least [`Pass::MIN_LEN`]; `from` may be
/// read and, with `COPY`, `to` written for `len` bytes, without overlap.
#[inline]
pub(crate) unsafe fn run<P: Pass, const COPY: bool, const SUM: bool>(
    mut crc: u32,
    mut sum: Sum,
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> (u32, Sum) {
    if !SUM {
        // SAFETY: the caller guarantees the CPU's features, the minimum of `len`, and the bytes at `from` and `to`.
        // Without `SUM`, `len` has no maximum.
        let (crc, _) = unsafe { P::pass::<COPY, SUM>(crc, from, to, len) };
        return (crc, sum);
    }
    if len <= MAX_SUM_LEN {
        // SAFETY: the caller guarantees the CPU's features, the minimum of `len`, and the bytes at `from` and `to`. The
        // maximum of `len` is checked above.
        let (crc, words) = unsafe { P::pass::<COPY, SUM>(crc, from, to, len) };
        return (crc, sum.add_words(words.into(), len));
    }
    let mut at = 0;
    while at < len {
        let piece = pass_len::<P>(len - at);
        let (src, dst) = (from.wrapping_add(at), to.wrapping_add(at));
        // SAFETY: the caller guarantees the CPU's features and the `len` bytes at `from` and `to`, which include the
        // piece. `pass_len` keeps to the limits of a pass.
        let (c, words) = unsafe { P::pass::<COPY, SUM>(crc, src, dst, piece) };
        (crc, sum) = (c, sum.add_words(words.into(), piece));
        at += piece;
    }
    (crc, sum)
}

/// Returns the length of the next pass with a sum. The remainder is empty or at least [`Pass::MIN_LEN`] bytes.
fn pass_len<P: Pass>(left: usize) -> usize {
    if left <= MAX_SUM_LEN { left } else { MAX_SUM_LEN.min(left - P::MIN_LEN) }
}

/// Returns the CRC of a message from two 128-bit remainders that are both folded to its last 16 bytes. XORs them, reduces
/// the result with the CRC instruction, and inverts it.
#[target_feature(enable = "avx2,sse4.2")]
#[inline]
pub(crate) fn reduce(lanes: __m256i) -> u32 {
    let lane = _mm_xor_si128(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(lane) as u64);
    !(_mm_crc32_u64(state, _mm_extract_epi64::<1>(lane) as u64) as u32)
}

/// Folds `words` into the 16-bit sum of the message. The words were counted from `lead` bytes before the message. If
/// `lead` is odd, each byte was in the other half of its word, so the bytes of the sum are swapped.
#[inline]
pub(crate) fn message_sum(words: u64, lead: usize) -> u16 {
    let words = fold(words);
    if lead % 2 == 1 { words.swap_bytes() } else { words }
}

/// Returns the factors that move a lane of 16 bytes by `bits`: one for its first and one for its last 8 bytes.
pub(crate) const fn factors(bits: u32) -> [u64; 2] {
    // The product of two reflected values is one bit short, which the shift compensates. Reduction by the CRC
    // instruction multiplies by x^32.
    [(power(bits + 32) as u64) << 1, (power(bits - 32) as u64) << 1]
}
