//! Words that a copy inserts between the bytes of its source, such as MPA markers (RFC 5044 §4.3).

use core::fmt;

/// Words of four bytes in a copy, one every [`INTERVAL`](Self::INTERVAL) bytes. Each has two zero bytes and a 16-bit
/// number, most significant byte first, which grows by [`INTERVAL`](Self::INTERVAL) from word to word.
///
/// Packed into one `u64`, so that store-to-load forwarding works; see [`Digest`](crate::Digest).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inserts(u64);

impl Inserts {
    /// Length of a word, bytes.
    pub const LEN: usize = 4;
    /// Bytes from the start of a word to the start of the next.
    pub const INTERVAL: usize = 512;
    /// No words, in a copy of less than 2^32 bytes.
    pub(crate) const NONE: Inserts = Inserts::new(u32::MAX, 0);

    /// Returns words to insert. `first`: offset of the first word in the copy; `number`: number of the first word.
    #[inline]
    pub const fn new(first: u32, number: u16) -> Inserts {
        Inserts((first as u64) << 16 | number as u64)
    }

    /// Returns the offset of the first word in the copy.
    #[inline]
    pub(crate) fn first_offset(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// Returns the length of the source for a copy of `len` bytes.
    #[inline]
    pub fn source_len(self, len: usize) -> usize {
        let behind = len.saturating_sub(self.first_offset());
        let (whole, part) = (behind / Self::INTERVAL, behind % Self::INTERVAL);
        len - Self::LEN * whole - part.min(Self::LEN)
    }

    /// Returns the next word to insert; the copy contains its `to_le_bytes`.
    #[inline]
    pub(crate) fn first_word(self) -> u32 {
        let [high, low] = (self.0 as u16).to_be_bytes();
        u32::from_le_bytes([0, 0, high, low])
    }

    /// Advances to the number of the next word.
    #[inline]
    pub(crate) fn advance(&mut self) {
        let number = (self.0 as u16).wrapping_add(Self::INTERVAL as u16);
        self.0 = self.0 >> 16 << 16 | u64::from(number);
    }

    /// Writes the words into `copy`; calls `fill` with each piece between them and its offset in the source.
    pub(crate) fn interleave(mut self, copy: &mut [u8], mut fill: impl FnMut(usize, &mut [u8])) {
        let (front, mut rest) = copy.split_at_mut(self.first_offset().min(copy.len()));
        let mut at = front.len();
        if !front.is_empty() {
            fill(0, front);
        }
        while !rest.is_empty() {
            let (word, behind) = rest.split_at_mut(rest.len().min(Self::LEN));
            word.copy_from_slice(&self.first_word().to_le_bytes()[..word.len()]);
            self.advance();
            let (piece, next) = behind.split_at_mut(behind.len().min(Self::INTERVAL - Self::LEN));
            if !piece.is_empty() {
                fill(at, piece);
            }
            at += piece.len();
            rest = next;
        }
    }
}

impl fmt::Debug for Inserts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = (self.first_offset(), self.0 as u16);
        f.debug_struct("Inserts").field("first", &fields.0).field("number", &fields.1).finish()
    }
}
