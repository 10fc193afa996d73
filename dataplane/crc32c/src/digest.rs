//! CRC32c and Internet checksum of bytes that are written one after the other, and copies that take them.

use core::fmt;

use crate::inserts::Inserts;
use crate::{Engine, MOST_INSERTING, SHORT, Sum, update, update_numbers};

/// CRC32c, and the Internet checksum if it is wanted, of the bytes so far.
///
/// In one number, so that it is always stored and loaded whole: a load of what was stored in parts waits until all stores before
/// it have reached the cache, among them those to a packet's lines, which another core may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

/// Behind the CRC and the sum's 16 bits: the number of bytes is odd; the sum is wanted.
const ODD: u64 = 1 << 48;
const SUMMED: u64 = 1 << 49;

impl Digest {
    /// Of no bytes yet.
    #[inline]
    pub fn new(summed: bool) -> Digest {
        Digest(if summed { SUMMED } else { 0 })
    }

    #[inline]
    fn of(crc: u32, sum: Option<Sum>) -> Digest {
        let sum = sum.map_or(0, |sum| {
            let (words, odd) = sum.parts();
            SUMMED | u64::from(words) << 32 | if odd { ODD } else { 0 }
        });
        Digest(sum | u64::from(crc))
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
        self.0 as u32
    }

    /// The sum, if it is wanted.
    #[inline]
    pub fn sum(&self) -> Option<Sum> {
        let sum = || Sum::of_parts((self.0 >> 32) as u16, self.0 & ODD != 0);
        (self.0 & SUMMED != 0).then(sum)
    }

    /// Takes bytes that are there.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        *self = Digest::of(update(self.crc(), bytes), self.sum().map(|sum| sum.with(bytes)));
    }

    /// Takes the bytes of numbers, each the most significant first: what is in registers does not go through memory.
    #[inline]
    pub fn add_numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        let sum = self.sum().map(|sum| {
            let halves = numbers.iter().map(|n| (n >> 32) + (n & 0xffff_ffff));
            sum.then(Sum::of_fields(halves.sum()))
        });
        *self = Digest::of(update_numbers(self.crc(), numbers), sum);
    }

    /// Takes bytes that follow all that the CRC is of: they are in the sum alone, as a CRC field is.
    #[inline]
    pub fn add_to_sum(&mut self, bytes: &[u8]) {
        *self = Digest::of(self.crc(), self.sum().map(|sum| sum.with(bytes)));
    }

    /// Copies `from` to `to` and takes the bytes copied.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy(&mut self, from: &[u8], to: &mut [u8]) {
        let mut target = Target::new(to, *self);
        target.copy(from);
        *self = target.into_digest();
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digest").field("crc", &self.crc()).field("sum", &self.sum()).finish()
    }
}

/// Where a copy goes: what it puts between the bytes of its source, and what takes the bytes written.
#[derive(Debug)]
pub struct Target<'a> {
    to: &'a mut [u8],
    /// Or none.
    inserts: Inserts,
    digest: Digest,
}

impl<'a> Target<'a> {
    /// All of `to`.
    #[inline]
    pub fn new(to: &'a mut [u8], digest: Digest) -> Self {
        Target { to, inserts: Inserts::NONE, digest }
    }

    /// All of `to`, with words between the bytes of the source.
    #[inline]
    pub fn inserting(to: &'a mut [u8], inserts: Inserts, digest: Digest) -> Self {
        Target { to, inserts, digest }
    }

    /// True if a copy to `len` bytes with words, and its digest, are one pass on this CPU. Else it is right but of no advantage.
    #[inline]
    pub fn inserts_in_one_pass(len: usize) -> bool {
        (SHORT..=MOST_INSERTING).contains(&len) && Engine::best().inserts()
    }

    /// Bytes of the source.
    #[inline]
    pub fn source_len(&self) -> usize {
        self.inserts.source_len(self.to.len())
    }

    /// The digest with what was written.
    #[inline]
    pub fn into_digest(self) -> Digest {
        self.digest
    }

    /// Copies `from`, all of the source.
    ///
    /// # Panics
    /// If it does not have [`source_len`](Self::source_len) bytes.
    #[inline]
    pub fn copy(&mut self, from: &[u8]) {
        assert_eq!(from.len(), self.source_len(), "a copy has the length of its source");
        // SAFETY: the lengths are equal, and a borrowed slice is not in one that is borrowed mutably.
        unsafe { self.copy_from(from.as_ptr()) }
    }

    /// [`copy`](Self::copy) from a source that another program may write to meanwhile.
    ///
    /// # Safety
    /// As many bytes as the source has may be read at `from`, and those of the target are not among them.
    #[inline]
    pub unsafe fn copy_from(&mut self, from: *const u8) {
        let (crc, none) = (self.digest.crc(), Sum::default());
        self.digest = match self.digest.sum() {
            None => {
                // SAFETY: the caller's.
                let (crc, _) = unsafe { self.copied::<false>(crc, none, from) };
                Digest::of(crc, None)
            }
            Some(sum) => {
                // SAFETY: the caller's.
                let (crc, sum) = unsafe { self.copied::<true>(crc, sum, from) };
                Digest::of(crc, Some(sum))
            }
        };
    }

    /// # Safety
    /// As of [`copy_from`](Self::copy_from).
    #[inline]
    unsafe fn copied<const SUM: bool>(
        &mut self,
        crc: u32,
        sum: Sum,
        from: *const u8,
    ) -> (u32, Sum) {
        let engine = Engine::best_for(self.to.len());
        match self.inserts {
            // SAFETY: the caller's.
            Inserts::NONE => unsafe { engine.copy_from::<SUM>(crc, sum, from, self.to) },
            // SAFETY: the caller's.
            inserts => unsafe { engine.copy_inserting::<SUM>(crc, sum, from, self.to, inserts) },
        }
    }

    /// Writes the source piece by piece: `fill` is called with the place of each in the source and with the room for it.
    pub fn fill(&mut self, fill: impl FnMut(usize, &mut [u8])) {
        self.inserts.between(self.to, fill);
        self.digest.add(self.to);
    }
}
