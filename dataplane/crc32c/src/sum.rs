//! The Internet checksum (RFC 1071) of bytes in pieces of any length.

/// Ones' complement sum of 16-bit big-endian words, not complemented, and whether the next byte is the second of a
/// word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Sum of the bytes as little-endian words.
    words: u16,
    odd: bool,
}

impl Sum {
    /// Returns the words' sum, and whether the next byte is the second of a word.
    #[inline]
    pub(crate) fn parts(self) -> (u16, bool) {
        (self.words, self.odd)
    }

    #[inline]
    pub(crate) fn from_parts(words: u16, odd: bool) -> Sum {
        Sum { words, odd }
    }

    /// Returns the sum; a single last byte is padded with a zero byte. Zero only if all bytes are zero.
    #[inline]
    pub fn value(self) -> u16 {
        // The sum of swapped words is the swapped sum (RFC 1071 §2 (B)).
        self.words.swap_bytes()
    }

    /// Returns the sum of header fields. `total` is the sum of their values, without overflow of 64 bits. Each field
    /// has 16, 32 or 64 bits and begins at an even offset.
    #[inline]
    pub fn from_fields(total: u64) -> Sum {
        Sum { words: fold(total).swap_bytes(), odd: false }
    }

    /// Returns the sum of the bytes of `self` followed by the bytes of `later`.
    #[inline]
    #[must_use]
    pub fn concat(self, later: Sum) -> Sum {
        let piece = if self.odd { later.words.swap_bytes() } else { later.words };
        let (words, carry) = self.words.overflowing_add(piece);
        // The sum of two words with a carry is below 2^16 - 1, so the carry does not overflow.
        Sum { words: words + u16::from(carry), odd: self.odd ^ later.odd }
    }

    /// Returns the sum including the following `bytes`, which it reads in a separate pass.
    #[inline]
    pub fn add_bytes(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<4>();
        let total: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
        // A copy of a variable number of bytes would call memcpy.
        let last = match *rest {
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c] => [a, b, c, 0],
            _ => [0; 4],
        };
        self.add_words(total + u64::from(u32::from_le_bytes(last)), bytes.len())
    }

    /// Returns the sum including `len` following bytes. `total` is the sum of their little-endian words, counted from
    /// the first of these bytes.
    #[inline]
    pub(crate) fn add_words(self, total: u64, len: usize) -> Sum {
        self.concat(Sum { words: fold(total), odd: len % 2 == 1 })
    }
}

/// Folds the carries into 16 bits. Zero only if `sum` is zero.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    // The upper half of a number plus the same number with exchanged halves is the sum of the halves, including the
    // carry out of the lower half.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}
