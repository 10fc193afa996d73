//! CRC32c (Castagnoli), alone and in one pass with a copy and the Internet checksum (RFC 1071).
//!
//! Functions take the CRC32c of the preceding bytes as a `u32`, initially zero, and return the updated CRC. They take
//! and return a [`Sum`] likewise. The input may be split anywhere.
//!
//! [`Path`] describes the four engines. The free functions use the fastest one for this CPU and length. The position of
//! a CRC field, and the byte order in which it is sent, are up to the caller.
//!
//! `unsafe` occurs only in `avx2`, `avx512`, `pass` and the calls of their functions below, in `combine`, in
//! [`update_numbers`], and in [`Target::copy_from`], whose source another program may write to.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod combine;
mod digest;
mod inserts;
#[cfg(target_arch = "x86_64")]
mod pass;
mod sum;
#[cfg(test)]
mod tests;

pub use combine::combine;
pub use digest::{Digest, Target};
pub use inserts::Inserts;
pub use sum::Sum;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
#[cfg(target_arch = "x86_64")]
use pass::Pass as _;

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, Ordering};
use crc_fast::CrcAlgorithm;

/// Method to compute a CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Path {
    /// The CPU's CRC instruction, 8 bytes at a time (`crc32c-hw`). Fastest for few bytes, because it needs no set-up.
    Instruction = 1,
    /// Carry-less multiplication by `crc-fast`, which has its own dispatch.
    Clmul = 2,
    /// Carry-less multiplication in 256-bit registers (AVX2, VPCLMULQDQ). Fused operations take one pass.
    Avx2 = 3,
    /// Carry-less multiplication in 512-bit registers with masked ends (AVX-512, VPCLMULQDQ). Fused operations
    /// take one pass.
    Avx512 = 4,
}

/// Maximum length of a copy with inserted words in one pass, bytes.
const MAX_INSERTING_LEN: usize = 1 << 16;
#[cfg(target_arch = "x86_64")]
const _: () = assert!(MAX_INSERTING_LEN <= pass::MAX_SUM_LEN);

/// Length in bytes below which the instruction is fastest on every CPU.
const MIN_CLMUL_LEN: usize = Path::Avx512.break_even_len();

impl Path {
    /// All paths, in the order of their values.
    pub const ALL: [Path; 4] = [Path::Instruction, Path::Clmul, Path::Avx2, Path::Avx512];

    /// Returns the stable name, used for baselines of instruction counts.
    pub const fn name(self) -> &'static str {
        match self {
            Path::Instruction => "instruction",
            Path::Clmul => "clmul",
            Path::Avx2 => "avx2",
            Path::Avx512 => "avx512",
        }
    }

    /// Returns the minimum length in bytes at which the path is faster than the instruction. Measured with
    /// `examples/paired.rs`.
    const fn break_even_len(self) -> usize {
        match self {
            Path::Instruction => 0,
            Path::Clmul => 384,
            Path::Avx2 | Path::Avx512 => 224,
        }
    }
}

/// A path that this CPU supports. Its methods use this path for every length from its minimum on: 144 bytes for
/// [`Path::Avx2`], 4 for [`Path::Avx512`]. The CRC instruction handles shorter input. Code other than tests and
/// benchmarks should call the free functions, which choose the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Engine(Path);

impl Engine {
    /// Returns the engine of `path`; `None` if this CPU does not support it.
    pub fn with_path(path: Path) -> Option<Engine> {
        is_supported(path).then_some(Engine(path))
    }

    /// Returns the engine of this CPU that is fastest for long inputs.
    #[inline]
    pub fn best() -> Engine {
        const WIDE: u8 = Path::Avx512 as u8;
        const HALF: u8 = Path::Avx2 as u8;
        const MULTIPLY: u8 = Path::Clmul as u8;
        match BEST.load(Ordering::Relaxed) {
            WIDE => Engine(Path::Avx512),
            HALF => Engine(Path::Avx2),
            MULTIPLY => Engine(Path::Clmul),
            _ => detect(),
        }
    }

    /// Makes [`best`](Self::best) return this engine in the whole process. For measurements of engines that are not the
    /// best of this CPU.
    pub fn make_best(self) {
        BEST.store(self.0 as u8, Ordering::Relaxed);
    }

    /// Returns true if the engine uses the carry-less multiplication of this crate, not of `crc-fast`.
    #[inline]
    fn uses_own_clmul(self) -> bool {
        matches!(self.0, Path::Avx2 | Path::Avx512)
    }

    /// Returns true if the engine copies, inserts words and computes the CRC in one pass.
    #[inline]
    fn can_insert(self) -> bool {
        self.0 == Path::Avx512
    }

    #[inline]
    fn best_for(len: usize) -> Engine {
        let best = Engine::best();
        if len < best.0.break_even_len() { Engine(Path::Instruction) } else { best }
    }

    /// Computes [`update`] on this path.
    #[inline]
    pub fn update(self, crc: u32, bytes: &[u8]) -> u32 {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: `from` and `len` describe a slice. Without `COPY` nothing is written.
        let run = unsafe { self.run::<false, false>(crc, Sum::default(), from, null_mut(), len) };
        match run {
            Some((crc, _)) => crc,
            None if self.0 == Path::Clmul => crc_by_clmul(crc, bytes),
            None => crc32c_hw::update(crc, bytes),
        }
    }

    /// Computes [`crc_sum`] on this path.
    #[inline]
    pub fn crc_sum(self, crc: u32, sum: Sum, bytes: &[u8]) -> (u32, Sum) {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: `from` and `len` describe a slice. Without `COPY` nothing is written.
        let run = unsafe { self.run::<false, true>(crc, sum, from, null_mut(), len) };
        run.unwrap_or_else(|| (self.update(crc, bytes), sum.add_bytes(bytes)))
    }

    /// Copies `from` to `to` and returns the CRC32c including the copied bytes. The CRC matches the copy even
    /// if another program writes to the source.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_crc(self, crc: u32, from: &[u8], to: &mut [u8]) -> u32 {
        assert_eq!(from.len(), to.len(), "a copy has the length of its source");
        // SAFETY: the lengths are equal, and a shared slice does not overlap a mutable one.
        unsafe { self.copy_from::<false>(crc, Sum::default(), from.as_ptr(), to).0 }
    }

    /// Copies as [`copy_crc`](Self::copy_crc) does, and also returns `sum` including the copied bytes.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_crc_sum(self, crc: u32, sum: Sum, from: &[u8], to: &mut [u8]) -> (u32, Sum) {
        assert_eq!(from.len(), to.len(), "a copy has the length of its source");
        // SAFETY: the lengths are equal, and a shared slice does not overlap a mutable one.
        unsafe { self.copy_from::<true>(crc, sum, from.as_ptr(), to) }
    }

    /// Copies `to.len()` bytes from `from` to `to`. Returns the CRC, and with `SUM` the sum, including the copied
    /// bytes. Without `SUM` the sum is returned unchanged.
    ///
    /// # Safety
    /// `to.len()` bytes may be read at `from`, and do not overlap `to`.
    #[inline]
    unsafe fn copy_from<const SUM: bool>(
        self,
        crc: u32,
        sum: Sum,
        from: *const u8,
        to: &mut [u8],
    ) -> (u32, Sum) {
        let len = to.len();
        // SAFETY: the caller guarantees `len` readable bytes at `from`. `to` has `len` bytes, which do not overlap
        // them.
        let run = unsafe { self.run::<true, SUM>(crc, sum, from, to.as_mut_ptr(), len) };
        run.unwrap_or_else(|| {
            // SAFETY: as above.
            unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), len) };
            (self.update(crc, to), if SUM { sum.add_bytes(to) } else { sum })
        })
    }

    /// Copies as [`copy_from`](Self::copy_from) does, with words inserted between the bytes of the source.
    ///
    /// # Safety
    /// `inserts.source_len(to.len())` bytes may be read at `from`, and do not overlap `to`.
    #[inline]
    unsafe fn copy_inserting<const SUM: bool>(
        self,
        crc: u32,
        sum: Sum,
        from: *const u8,
        to: &mut [u8],
        inserts: Inserts,
    ) -> (u32, Sum) {
        #[cfg(target_arch = "x86_64")]
        if self.can_insert()
            && (Avx512::MIN_LEN..=MAX_INSERTING_LEN).contains(&to.len())
            && to.len().is_multiple_of(Inserts::LEN)
            && inserts.first_offset().is_multiple_of(Inserts::LEN)
        {
            let (dst, len) = (to.as_mut_ptr(), to.len());
            // SAFETY: an engine of this path exists only on CPUs that support it. The lengths are checked above. The
            // caller guarantees the rest.
            let (crc, words) =
                unsafe { avx512::pass_inserting::<SUM>(crc, from, dst, len, inserts) };
            return (crc, if SUM { sum.add_words(words.into(), len) } else { sum });
        }
        inserts.interleave(to, |at, piece| {
            // SAFETY: the caller guarantees this for the whole source, of which this piece is a part.
            unsafe { from.add(at).copy_to_nonoverlapping(piece.as_mut_ptr(), piece.len()) }
        });
        (self.update(crc, to), if SUM { sum.add_bytes(to) } else { sum })
    }

    /// Computes CRC and, if requested, sum and copy in one pass. Returns `None` if this path has no such pass or `len`
    /// is below the minimum of its pass.
    ///
    /// # Safety
    /// `from` may be read and, with `COPY`, `to` written for `len` bytes, without overlap.
    #[inline]
    unsafe fn run<const COPY: bool, const SUM: bool>(
        self,
        crc: u32,
        sum: Sum,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> Option<(u32, Sum)> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 if len >= Avx512::MIN_LEN => {
                // SAFETY: an engine of this path exists only on CPUs that support it. The lengths are checked above.
                // The caller guarantees the rest.
                Some(unsafe { pass::run::<Avx512, COPY, SUM>(crc, sum, from, to, len) })
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 if len >= Avx2::MIN_LEN => {
                // SAFETY: as above.
                Some(unsafe { pass::run::<Avx2, COPY, SUM>(crc, sum, from, to, len) })
            }
            _ => None,
        }
    }
}

/// Returns the CRC32c of `bytes` that follow bytes whose CRC32c is `crc`.
#[inline]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    // Short inputs are frequent, and skip the choice of an engine.
    if bytes.len() < MIN_CLMUL_LEN {
        crc32c_hw::update(crc, bytes)
    } else {
        update_long(crc, bytes)
    }
}

/// Returns the CRC32c of the bytes of `numbers`, most significant byte first, that follow bytes whose CRC32c is `crc`.
#[inline]
pub fn update_numbers<const N: usize>(crc: u32, numbers: [u64; N]) -> u32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse4.2"))]
    {
        let state = numbers.iter().fold(u64::from(!crc), |state, number| {
            // SAFETY: code compiled with `sse4.2` runs only on CPUs that support it.
            unsafe { core::arch::x86_64::_mm_crc32_u64(state, number.swap_bytes()) }
        });
        !(state as u32)
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse4.2")))]
    numbers.iter().fold(crc, |crc, number| update(crc, &number.to_be_bytes()))
}

/// Computes [`update`] of at least [`MIN_CLMUL_LEN`] bytes. Dispatches on the path only once, which saves 17
/// instructions per CRC compared with [`Engine::update`].
#[inline]
fn update_long(crc: u32, bytes: &[u8]) -> u32 {
    let (sum, none) = (Sum::default(), null_mut());
    let (from, len) = (bytes.as_ptr(), bytes.len());
    match Engine::best().0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this is the best path only on CPUs that support it; `len` is at least `MIN_LEN`, and nothing is
        // copied.
        Path::Avx512 => unsafe { pass::run::<Avx512, false, false>(crc, sum, from, none, len).0 },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Path::Avx2 => unsafe { pass::run::<Avx2, false, false>(crc, sum, from, none, len).0 },
        path if bytes.len() >= path.break_even_len() => crc_by_clmul(crc, bytes),
        _ => crc32c_hw::update(crc, bytes),
    }
}

/// Returns CRC32c and Internet checksum of `bytes` that follow bytes with `crc` and `sum`.
#[inline]
pub fn crc_sum(crc: u32, sum: Sum, bytes: &[u8]) -> (u32, Sum) {
    Engine::best_for(bytes.len()).crc_sum(crc, sum, bytes)
}

/// The [`Path`] of [`Engine::best`]; zero before it is detected.
static BEST: AtomicU8 = AtomicU8::new(0);

#[cold]
fn detect() -> Engine {
    let fast = [Path::Avx512, Path::Avx2].into_iter().find(|&path| is_supported(path));
    let path = fast.unwrap_or(Path::Clmul);
    BEST.store(path as u8, Ordering::Relaxed);
    Engine(path)
}

/// Returns true if this CPU has the features of the path.
fn is_supported(path: Path) -> bool {
    match path {
        Path::Instruction | Path::Clmul => true,
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => avx2::is_supported(),
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => avx512::is_supported(),
        #[cfg(not(target_arch = "x86_64"))]
        Path::Avx2 | Path::Avx512 => false,
    }
}

fn crc_by_clmul(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest =
        crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}
