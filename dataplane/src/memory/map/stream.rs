//! A copy whose stores pass the caches by: memory is filled without being read into a cache first.
//!
//! Of a store that misses, the CPU reads the line before it changes it. Where the bytes that a peer places do not stay in
//! a cache anyway, that read is for nothing, and stores wait for it.

use std::ptr;

/// A line, which such stores fill whole.
const LINE: usize = 64;

/// Copies `len` bytes. They are visible to other cores before anything that this core stores afterwards, and the last of
/// them after all others: programs that wait for it may rely on no more than that of a memcpy, but find no less.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`, and they do not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const PART: usize = size_of::<__m128i>();
    // Up to a line's begin.
    let first = to.align_offset(LINE).min(len);
    // At least one byte is left for the end.
    let whole = len.saturating_sub(first + 1) / LINE * LINE;
    let end = first + whole;
    // SAFETY: `first` is at most `len`.
    unsafe { ptr::copy_nonoverlapping(from, to, first) };
    for at in (first..end).step_by(LINE) {
        // SAFETY: a line from `at` on is inside of the caller's bytes, and begins one at `to`.
        unsafe {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let parts: [__m128i; LINE / PART] =
                std::array::from_fn(|i| _mm_loadu_si128(from.add(i)));
            parts.into_iter().enumerate().for_each(|(i, part)| _mm_stream_si128(to.add(i), part));
        }
    }
    // Without it such stores are in no order with later ones.
    // SAFETY: every x86-64 CPU has it.
    unsafe { _mm_sfence() };
    // SAFETY: `end` is at most `len`.
    unsafe { ptr::copy_nonoverlapping(from.add(end), to.add(end), len - end) };
}

/// The same without such stores.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}
