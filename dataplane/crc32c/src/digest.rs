//! CRC32c and Internet checksum of bytes written in sequence, and copies that update them.

use core::fmt;

use crate::inserts::Inserts;
use crate::{Engine, MAX_INSERTING_LEN, MIN_CLMUL_LEN, Sum, update, update_numbers};

/// CRC32c, and optionally the Internet checksum, of the bytes so far.
///
/// Packed into one `u64`, so that store-to-load forwarding works. A load that spans several stores stalls until these
/// have left the store buffer. Stores leave it in order, so they wait behind earlier stores, for example to a packet's
/// cache lines, which another core may own.
///
/// Bits 0–31 are the CRC, 32–47 the sum, 48 `ODD`, and 49 `SUMMED`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

/// Set if a sum was requested and covers an odd number of bytes.
const ODD: u64 = 1 << 48;
/// Set if a sum was requested.
const SUMMED: u64 = 1 << 49;

impl Digest {
    /// Returns the digest of an empty input. With `summed`, the digest includes a sum.
    #[inline]
    pub fn new(summed: bool) -> Digest {
        Digest(if summed { SUMMED } else { 0 })
    }

    #[inline]
    fn from_parts(crc: u32, sum: Option<Sum>) -> Digest {
        let sum = sum.map_or(0, |sum| {
            let (words, odd) = sum.parts();
            SUMMED | u64::from(words) << 32 | if odd { ODD } else { 0 }
        });
        Digest(sum | u64::from(crc))
    }

    /// Returns true if a copy of `len` bytes and its digest take one pass on this CPU. Otherwise [`copy`](Self::copy)
    /// is correct but not faster than a copy and a separate pass.
    #[inline]
    pub fn is_one_pass(len: usize) -> bool {
        len >= MIN_CLMUL_LEN && Engine::best().uses_own_clmul()
    }

    /// Returns the CRC32c of the bytes so far.
    #[inline]
    pub fn crc(&self) -> u32 {
        self.0 as u32
    }

    /// Returns the sum, if it was requested.
    #[inline]
    pub fn sum(&self) -> Option<Sum> {
        let sum = || Sum::from_parts((self.0 >> 32) as u16, self.0 & ODD != 0);
        (self.0 & SUMMED != 0).then(sum)
    }

    /// Adds `bytes`, without a copy.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        *self = Digest::from_parts(
            update(self.crc(), bytes),
            self.sum().map(|sum| sum.add_bytes(bytes)),
        );
    }

    /// Adds the bytes of numbers, most significant byte first. The numbers need not be stored to memory.
    #[inline]
    pub fn add_numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        let sum = self.sum().map(|sum| {
            let halves = numbers.iter().map(|n| (n >> 32) + (n & 0xffff_ffff));
            sum.concat(Sum::from_fields(halves.sum()))
        });
        *self = Digest::from_parts(update_numbers(self.crc(), numbers), sum);
    }

    /// Adds bytes to the sum but not to the CRC, such as a CRC field after the bytes that it covers.
    #[inline]
    pub fn add_to_sum(&mut self, bytes: &[u8]) {
        *self = Digest::from_parts(self.crc(), self.sum().map(|sum| sum.add_bytes(bytes)));
    }

    /// Copies `from` to `to` and adds the copied bytes.
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

/// Destination of a copy, with words to insert between the bytes of the source, and a digest of the written
/// bytes.
#[derive(Debug)]
pub struct Target<'a> {
    to: &'a mut [u8],
    /// Words to insert, or [`Inserts::NONE`].
    inserts: Inserts,
    digest: Digest,
}

impl<'a> Target<'a> {
    /// Returns a target that writes all of `to`, without inserted words.
    #[inline]
    pub fn new(to: &'a mut [u8], digest: Digest) -> Self {
        Target { to, inserts: Inserts::NONE, digest }
    }

    /// Returns a target that writes all of `to`, with words inserted between the bytes of the source.
    #[inline]
    pub fn with_inserts(to: &'a mut [u8], inserts: Inserts, digest: Digest) -> Self {
        Target { to, inserts, digest }
    }

    /// Returns true if this CPU copies to `len` bytes, inserts words and computes the digest in one pass. If not, a
    /// target of [`with_inserts`](Self::with_inserts) gives the same result, but not faster than separate steps.
    #[inline]
    pub fn inserts_in_one_pass(len: usize) -> bool {
        (MIN_CLMUL_LEN..=MAX_INSERTING_LEN).contains(&len) && Engine::best().can_insert()
    }

    /// Returns the length of the source, bytes.
    #[inline]
    pub fn source_len(&self) -> usize {
        self.inserts.source_len(self.to.len())
    }

    /// Returns the digest including the written bytes.
    #[inline]
    pub fn into_digest(self) -> Digest {
        self.digest
    }

    /// Copies `from`, the whole source.
    ///
    /// # Panics
    /// If `from` does not have [`source_len`](Self::source_len) bytes.
    #[inline]
    pub fn copy(&mut self, from: &[u8]) {
        assert_eq!(from.len(), self.source_len(), "a copy has the length of its source");
        // SAFETY: the lengths are equal, and a shared slice does not overlap a mutable one.
        unsafe { self.copy_from(from.as_ptr()) }
    }

    /// Copies as [`copy`](Self::copy) does, from a source that another program may write to during the copy.
    ///
    /// # Safety
    /// [`source_len`](Self::source_len) bytes may be read at `from`, and do not overlap the target.
    #[inline]
    pub unsafe fn copy_from(&mut self, from: *const u8) {
        let (crc, none) = (self.digest.crc(), Sum::default());
        self.digest = match self.digest.sum() {
            None => {
                // SAFETY: `source_len` bytes may be read at `from` and do not overlap the target, as the caller
                // guarantees.
                let (crc, _) = unsafe { self.copy_and_digest::<false>(crc, none, from) };
                Digest::from_parts(crc, None)
            }
            Some(sum) => {
                // SAFETY: `source_len` bytes may be read at `from` and do not overlap the target, as the caller
                // guarantees.
                let (crc, sum) = unsafe { self.copy_and_digest::<true>(crc, sum, from) };
                Digest::from_parts(crc, Some(sum))
            }
        };
    }

    /// Copies the source and returns its CRC and, with `SUM`, its sum, appended to `crc` and `sum`.
    ///
    /// # Safety
    /// [`source_len`](Self::source_len) bytes may be read at `from`, and do not overlap the target.
    #[inline]
    unsafe fn copy_and_digest<const SUM: bool>(
        &mut self,
        crc: u32,
        sum: Sum,
        from: *const u8,
    ) -> (u32, Sum) {
        let engine = Engine::best_for(self.to.len());
        match self.inserts {
            // SAFETY: without inserted words, `source_len` is `to.len()`: as many bytes may be read at `from`, and do
            // not overlap `to`.
            Inserts::NONE => unsafe { engine.copy_from::<SUM>(crc, sum, from, self.to) },
            // SAFETY: `inserts.source_len(to.len())` bytes may be read at `from` and do not overlap `to`, as the caller
            // guarantees.
            inserts => unsafe { engine.copy_inserting::<SUM>(crc, sum, from, self.to, inserts) },
        }
    }

    /// Writes the source piece by piece: calls `fill` with the offset of each piece in the source and its
    /// destination.
    pub fn fill(&mut self, fill: impl FnMut(usize, &mut [u8])) {
        self.inserts.interleave(self.to, fill);
        self.digest.add(self.to);
    }
}
