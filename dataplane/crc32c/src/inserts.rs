//! Words that a copy puts between the bytes of its source.

/// Words of four bytes in a copy, one every [`APART`](Self::APART) bytes: two zeros, and a number that grows by as much from
/// one to the next, the most significant byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inserts {
    /// Where in the copy the first one begins.
    pub first: usize,
    /// The number in the first one.
    pub number: u16,
}

impl Inserts {
    /// Bytes of one.
    pub const LEN: usize = 4;
    /// Bytes from one to the next.
    pub const APART: usize = 512;

    /// Bytes of the source of which a copy has `len`.
    #[inline]
    pub fn source_len(self, len: usize) -> usize {
        let behind = len.saturating_sub(self.first);
        let (whole, part) = (behind / Self::APART, behind % Self::APART);
        len - Self::LEN * whole - part.min(Self::LEN)
    }

    /// The next one as it is in memory.
    #[inline]
    pub(crate) fn word(self) -> u32 {
        let [high, low] = self.number.to_be_bytes();
        u32::from_le_bytes([0, 0, high, low])
    }

    /// The one after it.
    #[inline]
    pub(crate) fn step(&mut self) {
        self.number = self.number.wrapping_add(Self::APART as u16);
    }

    /// Cuts `copy` where the words are and writes these; calls `fill` with each piece between them and where it begins in the
    /// source.
    pub(crate) fn between(mut self, copy: &mut [u8], mut fill: impl FnMut(usize, &mut [u8])) {
        let (front, mut rest) = copy.split_at_mut(self.first.min(copy.len()));
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
