//! CRC32c (Castagnoli), alone and in one pass with a copy and the Internet checksum (RFC 1071).
//!
//! A CRC is a `u32` in and out: the CRC32c of the bytes so far, zero before the first; a [`Sum`] likewise. The
//! bytes may be split anywhere.
//!
//! Four engines, see [`Path`]. The free functions use the fastest one for this CPU and length. The position of
//! a CRC field, and the byte order in which it is sent, are up to the caller.
//!
//! `unsafe` is limited to `half`, `wide` and `pass`, their calls below, `combine`, the CRC of numbers, and a
//! [`Target`]'s copy of bytes that others may write to.

mod combine;
mod digest;
#[cfg(target_arch = "x86_64")]
mod half;
mod inserts;
#[cfg(target_arch = "x86_64")]
mod pass;
mod sum;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use combine::combine;
pub use digest::{Digest, Target};
pub use inserts::Inserts;
pub use sum::Sum;

#[cfg(target_arch = "x86_64")]
use half::Half;
#[cfg(target_arch = "x86_64")]
use pass::Pass as _;
#[cfg(target_arch = "x86_64")]
use wide::Wide;

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU8, Ordering};
use crc_fast::CrcAlgorithm;

/// Method to compute a CRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Path {
    /// The CPU's CRC instruction, 8 bytes at a time (`crc32c-hw`). Fastest to start.
    Instruction = 1,
    /// Carry-less multiplication by `crc-fast`, which has its own dispatch.
    Multiply = 2,
    /// Carry-less multiplication in 256-bit registers (AVX2, VPCLMULQDQ). Fused operations take one pass.
    Half = 3,
    /// Carry-less multiplication in 512-bit registers with masked ends (AVX-512, VPCLMULQDQ). Fused operations
    /// take one pass.
    Wide = 4,
}

/// Longest copy with inserted words that takes one pass.
const MOST_INSERTING: usize = 1 << 16;
#[cfg(target_arch = "x86_64")]
const _: () = assert!(MOST_INSERTING <= pass::MOST);

/// Bytes below which the instruction is fastest on every CPU.
const SHORT: usize = Path::Wide.pays_from();

impl Path {
    /// All paths.
    pub const ALL: [Path; 4] = [Path::Instruction, Path::Multiply, Path::Half, Path::Wide];

    /// Returns the bytes from which on the path is faster than the instruction; measured by
    /// `examples/paired.rs`.
    const fn pays_from(self) -> usize {
        match self {
            Path::Instruction => 0,
            Path::Multiply => 384,
            Path::Half | Path::Wide => 224,
        }
    }
}

/// A path that this CPU supports. Its methods use this path for every length; the instruction handles runs too
/// short for [`Path::Half`] (144 bytes) and [`Path::Wide`] (4). Outside of tests and benchmarks the free
/// functions are better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Engine(Path);

impl Engine {
    /// Returns the engine of `path`; `None` if this CPU does not support it.
    pub fn with_path(path: Path) -> Option<Engine> {
        is_there(path).then_some(Engine(path))
    }

    /// Returns the fastest path of this CPU for long runs of bytes.
    #[inline]
    pub fn best() -> Engine {
        const WIDE: u8 = Path::Wide as u8;
        const HALF: u8 = Path::Half as u8;
        const MULTIPLY: u8 = Path::Multiply as u8;
        match BEST.load(Ordering::Relaxed) {
            WIDE => Engine(Path::Wide),
            HALF => Engine(Path::Half),
            MULTIPLY => Engine(Path::Multiply),
            _ => detect(),
        }
    }

    /// True if this crate's own code does the carry-less multiplication.
    #[inline]
    fn multiplies(self) -> bool {
        matches!(self.0, Path::Half | Path::Wide)
    }

    /// True if a copy that inserts words takes one pass.
    #[inline]
    fn inserts(self) -> bool {
        self.0 == Path::Wide
    }

    #[inline]
    fn best_for(len: usize) -> Engine {
        let best = Engine::best();
        if len < best.0.pays_from() { Engine(Path::Instruction) } else { best }
    }

    /// Computes [`update`](crate::update) on this path.
    #[inline]
    pub fn update(self, crc: u32, bytes: &[u8]) -> u32 {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes may be read, and nothing is copied.
        let run = unsafe { self.run::<false, false>(crc, Sum::default(), from, null_mut(), len) };
        match run {
            Some((crc, _)) => crc,
            None if self.0 == Path::Multiply => multiply(crc, bytes),
            None => crc32c_hw::update(crc, bytes),
        }
    }

    /// Computes [`crc_sum`](crate::crc_sum) on this path.
    #[inline]
    pub fn crc_sum(self, crc: u32, sum: Sum, bytes: &[u8]) -> (u32, Sum) {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes may be read, and nothing is copied.
        let run = unsafe { self.run::<false, true>(crc, sum, from, null_mut(), len) };
        run.unwrap_or_else(|| (self.update(crc, bytes), sum.with(bytes)))
    }

    /// Copies `from` to `to` and returns the CRC32c including the copied bytes. The CRC matches the copy even
    /// if another program writes to the source.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_crc(self, crc: u32, from: &[u8], to: &mut [u8]) -> u32 {
        assert_eq!(from.len(), to.len(), "a copy has the length of its source");
        // SAFETY: the lengths are equal, and a borrowed slice is not in one that is borrowed mutably.
        unsafe { self.copy_from::<false>(crc, Sum::default(), from.as_ptr(), to).0 }
    }

    /// Copies as [`copy_crc`](Self::copy_crc) does, and also returns the Internet checksum of the copied bytes.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_crc_sum(self, crc: u32, sum: Sum, from: &[u8], to: &mut [u8]) -> (u32, Sum) {
        assert_eq!(from.len(), to.len(), "a copy has the length of its source");
        // SAFETY: the lengths are equal, and a borrowed slice is not in one that is borrowed mutably.
        unsafe { self.copy_from::<true>(crc, sum, from.as_ptr(), to) }
    }

    /// Copies bytes from `from` into all of `to`. Without `SUM` the sum is returned unchanged.
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
        // SAFETY: the caller's.
        let run = unsafe { self.run::<true, SUM>(crc, sum, from, to.as_mut_ptr(), len) };
        run.unwrap_or_else(|| {
            // SAFETY: the caller's.
            unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), len) };
            (self.update(crc, to), if SUM { sum.with(to) } else { sum })
        })
    }

    /// Copies as [`copy_from`](Self::copy_from) does, with words inserted between the bytes of the source.
    ///
    /// # Safety
    /// The bytes of the source may be read at `from`, and do not overlap `to`.
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
        if self.inserts()
            && (Wide::LEAST..=MOST_INSERTING).contains(&to.len())
            && to.len().is_multiple_of(Inserts::LEN)
            && inserts.first().is_multiple_of(Inserts::LEN)
        {
            let (dst, len) = (to.as_mut_ptr(), to.len());
            // SAFETY: an engine of this path exists only where [`is_there`]; the rest is the caller's.
            let (crc, words) = unsafe { wide::pass_inserting::<SUM>(crc, from, dst, len, inserts) };
            return (crc, if SUM { sum.add_words(words.into(), len) } else { sum });
        }
        inserts.between(to, |at, piece| {
            // SAFETY: the caller's; the pieces together are all of the source.
            unsafe { from.add(at).copy_to_nonoverlapping(piece.as_mut_ptr(), piece.len()) }
        });
        (self.update(crc, to), if SUM { sum.with(to) } else { sum })
    }

    /// Does everything in one pass, if this path supports so many bytes.
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
            Path::Wide if len >= Wide::LEAST => {
                // SAFETY: an engine of this path exists only where [`is_there`]; the rest is the caller's.
                Some(unsafe { pass::run::<Wide, COPY, SUM>(crc, sum, from, to, len) })
            }
            #[cfg(target_arch = "x86_64")]
            Path::Half if len >= Half::LEAST => {
                // SAFETY: as above.
                Some(unsafe { pass::run::<Half, COPY, SUM>(crc, sum, from, to, len) })
            }
            _ => None,
        }
    }
}

/// Returns the CRC32c of `bytes` that follow bytes whose CRC32c is `crc`.
#[inline]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    // Short runs are frequent: they skip the choice of an engine.
    if bytes.len() < SHORT { crc32c_hw::update(crc, bytes) } else { update_long(crc, bytes) }
}

/// Returns the CRC32c after the bytes of numbers, most significant byte first.
#[inline]
pub fn update_numbers<const N: usize>(crc: u32, numbers: [u64; N]) -> u32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse4.2"))]
    {
        let state = numbers.iter().fold(u64::from(!crc), |state, number| {
            // SAFETY: code compiled with this feature requires a CPU that supports it.
            unsafe { core::arch::x86_64::_mm_crc32_u64(state, number.swap_bytes()) }
        });
        !(state as u32)
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse4.2")))]
    numbers.iter().fold(crc, |crc, number| update(crc, &number.to_be_bytes()))
}

/// Dispatches on the path once. With [`Engine::update`] each CRC took 17 more instructions.
#[inline]
fn update_long(crc: u32, bytes: &[u8]) -> u32 {
    let (sum, none) = (Sum::default(), null_mut());
    let (from, len) = (bytes.as_ptr(), bytes.len());
    match Engine::best().0 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the best path is this one only where [`is_there`]; there are more than `LEAST` bytes.
        Path::Wide => unsafe { pass::run::<Wide, false, false>(crc, sum, from, none, len).0 },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Path::Half => unsafe { pass::run::<Half, false, false>(crc, sum, from, none, len).0 },
        path if bytes.len() >= path.pays_from() => multiply(crc, bytes),
        _ => crc32c_hw::update(crc, bytes),
    }
}

/// Returns CRC32c and Internet checksum of `bytes` that follow those of `crc` and `sum`.
#[inline]
pub fn crc_sum(crc: u32, sum: Sum, bytes: &[u8]) -> (u32, Sum) {
    Engine::best_for(bytes.len()).crc_sum(crc, sum, bytes)
}

/// The [`Path`] of [`Engine::best`]; zero before it is detected.
static BEST: AtomicU8 = AtomicU8::new(0);

#[cold]
fn detect() -> Engine {
    let fast = [Path::Wide, Path::Half].into_iter().find(|&path| is_there(path));
    let path = fast.unwrap_or(Path::Multiply);
    BEST.store(path as u8, Ordering::Relaxed);
    Engine(path)
}

/// True if this CPU has the features of the path.
fn is_there(path: Path) -> bool {
    match path {
        Path::Instruction | Path::Multiply => true,
        #[cfg(target_arch = "x86_64")]
        Path::Half => half::is_there(),
        #[cfg(target_arch = "x86_64")]
        Path::Wide => wide::is_there(),
        #[cfg(not(target_arch = "x86_64"))]
        Path::Half | Path::Wide => false,
    }
}

fn multiply(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest =
        crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}
