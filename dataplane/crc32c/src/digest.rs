//! CRC32c and Internet checksum of bytes that are written one after the other.

use crate::{Engine, SHORT, Sum, update, update_numbers};

/// CRC32c, and the Internet checksum if it is wanted, of the bytes so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    crc: u32,
    sum: Option<Sum>,
}

impl Digest {
    /// Of no bytes yet.
    #[inline]
    pub fn new(summed: bool) -> Digest {
        Digest { crc: 0, sum: summed.then(Sum::default) }
    }

    /// True if a copy of `len` bytes and its digest are one pass on this CPU. Else [`copy`](Self::copy) is right but has
    /// no advantage over a copy and a pass over everything that was written.
    #[inline]
    pub fn is_one_pass(len: usize) -> bool {
        len >= SHORT && Engine::best().multiplies()
    }

    /// The CRC.
    #[inline]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The sum, if it is wanted.
    #[inline]
    pub fn sum(&self) -> Option<Sum> {
        self.sum
    }

    /// Takes bytes that are there.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        self.crc = update(self.crc, bytes);
        self.sum = self.sum.map(|sum| sum.with(bytes));
    }

    /// Takes the bytes of numbers, each the most significant first: what is in registers does not go through memory.
    #[inline]
    pub fn add_numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        self.crc = update_numbers(self.crc, numbers);
        if let Some(sum) = &mut self.sum {
            let halves = numbers.iter().map(|n| (n >> 32) + (n & 0xffff_ffff));
            *sum = sum.then(Sum::of_fields(halves.sum()));
        }
    }

    /// Takes bytes that follow all that the CRC is of: they are in the sum alone, as a CRC field is.
    #[inline]
    pub fn add_to_sum(&mut self, bytes: &[u8]) {
        self.sum = self.sum.map(|sum| sum.with(bytes));
    }

    /// Copies `from` to `to` and takes the bytes copied.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy(&mut self, from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len(), "a copy has the length of its source");
        // SAFETY: the lengths are equal, and a borrowed slice is not in one that is borrowed mutably.
        unsafe { self.copy_from(from.as_ptr(), to) }
    }

    /// Copies as many bytes as `to` has from `from`, and takes the bytes copied, also if another program writes to the
    /// source meanwhile.
    ///
    /// # Safety
    /// So many bytes may be read at `from`, and `to` is not among them.
    #[inline]
    pub unsafe fn copy_from(&mut self, from: *const u8, to: &mut [u8]) {
        let (engine, none) = (Engine::best_for(to.len()), Sum::default());
        match self.sum {
            None => {
                // SAFETY: the caller's.
                (self.crc, _) = unsafe { engine.copy_from::<false>(self.crc, none, from, to) };
            }
            Some(sum) => {
                // SAFETY: the caller's.
                let (crc, sum) = unsafe { engine.copy_from::<true>(self.crc, sum, from, to) };
                (self.crc, self.sum) = (crc, Some(sum));
            }
        }
    }
}
