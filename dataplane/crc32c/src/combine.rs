//! The CRC32c of two concatenated byte strings, from the CRC32c of each. The CRC of the first string is moved by the
//! length of the second: it is multiplied by x^8 for each byte, modulo the polynomial. Tables hold the factors.

use crate::Engine;

/// The polynomial without x^32, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^0, reflected.
const ONE: u32 = 1 << 31;
/// Maximum number of bytes by which one step moves a CRC.
const MAX_SHIFT_LEN: usize = 0xffff;

/// Returns the CRC32c of two concatenated byte strings. `front` is the CRC of the first string, `back` is the CRC of
/// the second, which has `len` bytes. Takes a few nanoseconds per 64 KiB or part of it.
///
/// ```
/// # use crc32c::{combine, update};
/// assert_eq!(combine(update(0, b"1234"), update(0, b"56789"), 5), update(0, b"123456789"));
/// ```
#[inline]
pub fn combine(front: u32, back: u32, len: usize) -> u32 {
    let (mut moved, mut left) = (front, len);
    while left > 0 {
        let step = left.min(MAX_SHIFT_LEN);
        moved = shift(moved, step);
        left -= step;
    }
    moved ^ back
}

/// Returns `crc` moved by `len` bytes, at most [`MAX_SHIFT_LEN`].
#[inline]
fn shift(crc: u32, len: usize) -> u32 {
    let (low, high) = (&POWERS.low[len & 0xff], &POWERS.high[len >> 8]);
    #[cfg(target_arch = "x86_64")]
    if Engine::best().uses_own_clmul() {
        // SAFETY: an engine that uses this crate's carry-less multiplication exists only on CPUs with PCLMULQDQ and
        // SSE4.2.
        return unsafe { multiply_x32(multiply_x32(crc, *low), *high) };
    }
    multiply(multiply(multiply(crc, *low), *high), X_POW_64)
}

/// Factors that move a CRC by a number of bytes: powers of x, reflected. Each is divided by x^32, because
/// [`multiply_x32`] also multiplies by x^32.
struct Powers {
    /// Factors for the lower 8 bits of a 16-bit number of bytes.
    low: [u32; 256],
    /// Factors for the upper 8 bits of a 16-bit number of bytes.
    high: [u32; 256],
}

static POWERS: Powers = {
    let mut powers = Powers { low: [0; 256], high: [0; 256] };
    let by_byte = power(8);
    let mut by_256 = ONE;
    let (mut at, mut i) = (divide_by_x_pow(ONE, 32), 0);
    while i < 256 {
        powers.low[i] = at;
        at = multiply(at, by_byte);
        by_256 = multiply(by_256, by_byte);
        i += 1;
    }
    (at, i) = (divide_by_x_pow(ONE, 32), 0);
    while i < 256 {
        powers.high[i] = at;
        at = multiply(at, by_256);
        i += 1;
    }
    powers
};

/// x^64, reflected. Compensates the divisors x^32 of two factors from [`Powers`].
const X_POW_64: u32 = power(64);

/// Returns x^`exponent` modulo the polynomial, reflected.
pub(crate) const fn power(exponent: u32) -> u32 {
    let (mut value, mut i) = (ONE, 0);
    while i < exponent {
        value = (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg());
        i += 1;
    }
    value
}

/// Returns `value` divided by x^`exponent`, modulo the polynomial.
const fn divide_by_x_pow(mut value: u32, exponent: u32) -> u32 {
    let mut i = 0;
    while i < exponent {
        // Multiplication by x sets the term x^0 exactly when it also subtracts the polynomial.
        let reduced = value & ONE != 0;
        value = if reduced { ((value ^ POLYNOMIAL) << 1) | 1 } else { value << 1 };
        i += 1;
    }
    value
}

/// Returns the product modulo the polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut i) = (0, 0);
    while i < 32 {
        product ^= b & ((a >> (31 - i)) & 1).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        i += 1;
    }
    product
}

/// Returns the product multiplied by x^32, modulo the polynomial.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.2")]
#[inline]
fn multiply_x32(a: u32, b: u32) -> u32 {
    use core::arch::x86_64::*;
    let (a, b) = (_mm_cvtsi32_si128(a as i32), _mm_cvtsi32_si128(b as i32));
    // The carry-less product of two reflected 32-bit values has 63 bits. The shift aligns the product to 64 bits.
    let product = (_mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(a, b)) as u64) << 1;
    _mm_crc32_u64(0, product) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update;

    fn shift_by_plain_products(crc: u32, len: usize) -> u32 {
        multiply(multiply(multiply(crc, POWERS.low[len & 0xff]), POWERS.high[len >> 8]), X_POW_64)
    }

    /// Checks `combine` on this CPU's path, and the products without its instructions, at many lengths.
    #[test]
    fn combined_crc_equals_crc_of_concatenation() {
        let bytes: Vec<u8> = (0..140_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for front in [0, 1, 3, 44, 4096] {
            for len in (0..5000).chain([65_534, 65_535, 65_536, 65_537, 131_071, 135_000]) {
                let (head, tail) = bytes[..front + len].split_at(front);
                let crcs = (update(0, head), update(0, tail));
                let whole = update(crcs.0, tail);
                assert_eq!(combine(crcs.0, crcs.1, len), whole, "{front} and {len}");
                if len <= MAX_SHIFT_LEN {
                    assert_eq!(
                        shift_by_plain_products(crcs.0, len) ^ crcs.1,
                        whole,
                        "{front} and {len}, plain"
                    );
                }
            }
        }
    }
}
