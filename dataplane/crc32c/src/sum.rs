//! The Internet checksum (RFC 1071) of bytes that come in pieces of any length.

/// Ones' complement sum of 16-bit big-endian words, not complemented; knows whether the next byte is the second of
/// a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Of little-endian words.
    words: u16,
    odd: bool,
}

impl Sum {
    /// The words' sum, and whether the next byte is the second of a word.
    #[inline]
    pub(crate) fn parts(self) -> (u16, bool) {
        (self.words, self.odd)
    }

    #[inline]
    pub(crate) fn of_parts(words: u16, odd: bool) -> Sum {
        Sum { words, odd }
    }

    /// The sum, an odd last byte padded with zero. Zero only if all bytes are.
    #[inline]
    pub fn value(self) -> u16 {
        // The sum of swapped words is the swapped sum (RFC 1071 §2 (B)).
        self.words.swap_bytes()
    }

    /// Of big-endian numbers of 16, 32 or 64 bits, an even number of bytes together, of which `total` is the sum: the
    /// fields of a header that are in registers.
    #[inline]
    pub fn of_fields(total: u64) -> Sum {
        Sum { words: fold(total).swap_bytes(), odd: false }
    }

    /// With the bytes of `later` that follow.
    #[inline]
    #[must_use]
    pub fn then(self, later: Sum) -> Sum {
        let piece = if self.odd { later.words.swap_bytes() } else { later.words };
        let words = fold(u64::from(self.words) + u64::from(piece));
        Sum { words, odd: self.odd ^ later.odd }
    }

    /// With the bytes that follow, in a pass of their own.
    #[inline]
    pub fn with(self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<4>();
        let total: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        self.add_words(total + u64::from(u32::from_le_bytes(last)), bytes.len())
    }

    /// With `len` bytes that follow, of whose little-endian words the sum is `total`, from the first of them on.
    #[inline]
    pub(crate) fn add_words(self, total: u64, len: usize) -> Sum {
        self.then(Sum { words: fold(total), odd: len % 2 == 1 })
    }
}

/// In 16 bits, with the carries added.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}
