//! Words that a copy puts between the bytes of its source.

use core::fmt;

/// Words of four bytes in a copy, one every [`APART`](Self::APART) bytes: two zeros, and a number that grows by as much from
/// one to the next, the most significant byte first.
///
/// One number, as a [`Digest`](crate::Digest) is, and for the same reason.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inserts(u64);

impl Inserts {
    /// Bytes of one.
    pub const LEN: usize = 4;
    /// Bytes from one to the next.
    pub const APART: usize = 512;
    /// In no copy.
    pub(crate) const NONE: Inserts = Inserts::new(u32::MAX, 0);

    /// The first one begins at `first` of the copy, and this is its number.
    #[inline]
    pub const fn new(first: u32, number: u16) -> Inserts {
        Inserts((first as u64) << 16 | number as u64)
    }

    /// Where in the copy the first one begins.
    #[inline]
    pub(crate) fn first(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// Bytes of the source of which a copy has `len`.
    #[inline]
    pub fn source_len(self, len: usize) -> usize {
        let behind = len.saturating_sub(self.first());
        let (whole, part) = (behind / Self::APART, behind % Self::APART);
        len - Self::LEN * whole - part.min(Self::LEN)
    }

    /// The first one as it is in memory.
    #[inline]
    pub(crate) fn word(self) -> u32 {
        let [high, low] = (self.0 as u16).to_be_bytes();
        u32::from_le_bytes([0, 0, high, low])
    }

    /// The number of the one after it.
    #[inline]
    pub(crate) fn step(&mut self) {
        let number = (self.0 as u16).wrapping_add(Self::APART as u16);
        self.0 = self.0 >> 16 << 16 | u64::from(number);
    }

    /// Cuts `copy` where the words are and writes these; calls `fill` with each piece between them and where it begins in the
    /// source.
    pub(crate) fn between(mut self, copy: &mut [u8], mut fill: impl FnMut(usize, &mut [u8])) {
        let (front, mut rest) = copy.split_at_mut(self.first().min(copy.len()));
        let mut at = front.len();
        if !front.is_empty() {
            fill(0, front);
        }
        while !rest.is_empty() {
            let (word, behind) = rest.split_at_mut(rest.len().min(Self::LEN));
            word.copy_from_slice(&self.word().to_le_bytes()[..word.len()]);
            self.step();
            let (piece, next) = behind.split_at_mut(behind.len().min(Self::APART - Self::LEN));
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
        let fields = (self.first(), self.0 as u16);
        f.debug_struct("Inserts").field("first", &fields.0).field("number", &fields.1).finish()
    }
}
