//! What the engines of carry-less multiplication have in common: one pass over bytes, and pieces of them.

use crate::sum::Sum;

/// Most bytes of one pass with a sum: one of so many words is below 2^32.
pub(crate) const MOST: usize = 1 << 16;

/// One pass over bytes.
pub(crate) trait Pass {
    /// Fewest bytes.
    const LEAST: usize;

    /// The CRC, and with `SUM` the folded sum of little-endian words, of `len` bytes, which with `COPY` are copied.
    ///
    /// # Safety
    /// The CPU has what the engine is compiled for; `len` is at least [`LEAST`](Self::LEAST), with `SUM` at most [`MOST`];
    /// `src` may be read and, with `COPY`, `dst` written for `len` bytes, without overlap.
    unsafe fn pass<const COPY: bool, const SUM: bool>(
        crc: u32,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> (u32, u16);
}

/// CRC32c of at least [`Pass::LEAST`] bytes.
///
/// # Safety
/// The CPU has what the engine is compiled for.
#[inline]
pub(crate) unsafe fn update<P: Pass>(crc: u32, bytes: &[u8]) -> u32 {
    let none = core::ptr::null_mut();
    // SAFETY: the CPU has the features; the bytes may be read; nothing is written.
    unsafe { P::pass::<false, false>(crc, bytes.as_ptr(), none, bytes.len()).0 }
}

/// CRC32c of at least [`Pass::LEAST`] bytes that are copied.
///
/// # Safety
/// The CPU has what the engine is compiled for; `to` has the length of `from`.
#[inline]
pub(crate) unsafe fn copy_crc<P: Pass>(crc: u32, from: &[u8], to: &mut [u8]) -> u32 {
    debug_assert_eq!(from.len(), to.len());
    // SAFETY: the CPU has the features; `from` may be read and `to`, of its length, be written.
    unsafe { P::pass::<true, false>(crc, from.as_ptr(), to.as_mut_ptr(), from.len()).0 }
}

/// CRC32c and sum of at least [`Pass::LEAST`] bytes.
///
/// # Safety
/// The CPU has what the engine is compiled for.
#[inline]
pub(crate) unsafe fn crc_sum<P: Pass>(mut crc: u32, mut sum: Sum, bytes: &[u8]) -> (u32, Sum) {
    let mut done = 0;
    while done < bytes.len() {
        let piece = &bytes[done..done + step::<P>(bytes.len() - done)];
        let none = core::ptr::null_mut();
        // SAFETY: the CPU has the features; the piece may be read; nothing is written.
        let (c, words) = unsafe { P::pass::<false, true>(crc, piece.as_ptr(), none, piece.len()) };
        (crc, sum) = (c, sum.add_words(words.into(), piece.len()));
        done += piece.len();
    }
    (crc, sum)
}

/// CRC32c and sum of at least [`Pass::LEAST`] bytes that are copied.
///
/// # Safety
/// The CPU has what the engine is compiled for; `to` has the length of `from`.
#[inline]
pub(crate) unsafe fn copy_crc_sum<P: Pass>(
    mut crc: u32,
    mut sum: Sum,
    from: &[u8],
    to: &mut [u8],
) -> (u32, Sum) {
    debug_assert_eq!(from.len(), to.len());
    let mut done = 0;
    while done < from.len() {
        let range = done..done + step::<P>(from.len() - done);
        let (piece, copy) = (&from[range.clone()], &mut to[range]);
        // SAFETY: the CPU has the features; `piece` may be read and `copy`, of its length, be written.
        let (c, words) =
            unsafe { P::pass::<true, true>(crc, piece.as_ptr(), copy.as_mut_ptr(), piece.len()) };
        (crc, sum) = (c, sum.add_words(words.into(), piece.len()));
        done += piece.len();
    }
    (crc, sum)
}

/// Bytes of the next pass with a sum: what remains after it is nothing or at least [`Pass::LEAST`].
fn step<P: Pass>(left: usize) -> usize {
    if left <= MOST { left } else { MOST.min(left - P::LEAST) }
}

/// The factors that move a lane by `bits`: of its first and of its last 8 bytes.
pub(crate) const fn factors(bits: u32) -> [u64; 2] {
    // Reflected values: the product of two is one bit short, which the shift makes good; reduction by the CRC
    // instruction multiplies by x^32.
    [(power(bits + 32) as u64) << 1, (power(bits - 32) as u64) << 1]
}

/// x^`exponent` modulo the polynomial, reflected.
const fn power(exponent: u32) -> u32 {
    let mut value = 1 << 31;
    let mut i = 0;
    while i < exponent {
        value = (value >> 1) ^ (0x82f6_3b78 * (value & 1));
        i += 1;
    }
    value
}
