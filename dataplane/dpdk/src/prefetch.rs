//! Prefetch hints to the CPU. A hint never faults, at any address, and affects only timing. On CPUs other than x86-64
//! the hints do nothing.

/// Length of a cache line, bytes.
const LINE: usize = 64;

/// Prefetches for reading the cache line that contains the byte `offset` bytes after `at`.
#[inline]
pub fn line(at: *const u8, offset: usize) {
    hint::<false, 0>(at.wrapping_add(offset));
}

/// Prefetches for reading the cache lines of the `len` bytes at `at`.
#[inline]
pub fn read(at: *const u8, len: usize) {
    lines::<false>(at, len);
}

/// Prefetches for writing, exclusively for this core, the cache lines of the `len` bytes at `at`.
#[inline]
pub fn write(at: *const u8, len: usize) {
    lines::<true>(at, len);
}

#[inline]
fn lines<const WRITE: bool>(at: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let within = at.addr() % LINE;
    let mut line = at.wrapping_sub(within);
    let mut count = (within + len).div_ceil(LINE);
    // Unrolled by hand, because the compiler does not unroll a loop with assembly.
    while count >= 4 {
        hint::<WRITE, 0>(line);
        hint::<WRITE, LINE>(line);
        hint::<WRITE, { 2 * LINE }>(line);
        hint::<WRITE, { 3 * LINE }>(line);
        line = line.wrapping_add(4 * LINE);
        count -= 4;
    }
    for _ in 0..count {
        hint::<WRITE, 0>(line);
        line = line.wrapping_add(LINE);
    }
}

/// Prefetches the line that contains the byte `OFFSET` bytes after `at`.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn hint<const WRITE: bool, const OFFSET: usize>(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    if WRITE {
        // SAFETY: the instruction reads and writes no byte and cannot fault; every x86-64 CPU decodes it.
        unsafe {
            std::arch::asm!(
                "prefetchw [{at} + {offset}]",
                at = in(reg) at,
                offset = const OFFSET,
                options(nostack, preserves_flags, readonly)
            );
        }
    } else {
        // SAFETY: a hint cannot fault at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(OFFSET).cast()) };
    }
}

#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
fn hint<const WRITE: bool, const OFFSET: usize>(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetch_of_any_address_is_harmless() {
        let bytes = [1u8, 2, 3];
        read(bytes.as_ptr(), 3);
        write(bytes.as_ptr(), 3);
        line(std::ptr::null(), 0);
        read(std::ptr::null(), 5000);
        write(std::ptr::without_provenance(usize::MAX - 100), 90);
        assert_eq!(bytes, [1, 2, 3]);
    }
}
