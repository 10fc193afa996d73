//! Alternative implementations of the copy into and out of region memory, for a benchmark. Workers use
//! [`CopyKernel::LibraryPrefetch`], and [`CopyKernel::Streaming`] for long pieces into large mappings.
//!
//! Lengths and offsets are in bytes and checked as in [`Mapping::write`].

use std::ptr;

use super::Mapping;

/// An implementation of the copy into or out of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyKernel {
    /// The C library's memcpy, with a prefetch of the following bytes.
    LibraryPrefetch,
    /// The C library's memcpy without prefetch.
    Library,
    /// `rep movsb` without prefetch.
    String,
    /// `rep movsb`, with a prefetch of the following bytes.
    StringPrefetch,
    /// 64-byte registers (AVX-512), with a prefetch of the following bytes.
    Avx512,
    /// Non-temporal stores, which bypass the caches.
    Streaming,
}

impl CopyKernel {
    /// All kernels, including kernels that this CPU does not support.
    pub const ALL: [CopyKernel; 6] = [
        CopyKernel::LibraryPrefetch,
        CopyKernel::Library,
        CopyKernel::String,
        CopyKernel::StringPrefetch,
        CopyKernel::Avx512,
        CopyKernel::Streaming,
    ];

    /// Returns the kernel's stable name.
    pub fn name(self) -> &'static str {
        match self {
            CopyKernel::LibraryPrefetch => "memcpy, prefetch",
            CopyKernel::Library => "memcpy",
            CopyKernel::String => "rep movsb",
            CopyKernel::StringPrefetch => "rep movsb, prefetch",
            CopyKernel::Avx512 => "AVX-512, prefetch",
            CopyKernel::Streaming => "non-temporal",
        }
    }

    /// Returns true if this CPU supports the kernel.
    pub fn is_available(self) -> bool {
        match self {
            CopyKernel::LibraryPrefetch | CopyKernel::Library => true,
            CopyKernel::String | CopyKernel::StringPrefetch | CopyKernel::Streaming => {
                cfg!(target_arch = "x86_64")
            }
            CopyKernel::Avx512 => has_avx512(),
        }
    }

    fn prefetches(self) -> bool {
        use CopyKernel::{Avx512, LibraryPrefetch, StringPrefetch};
        matches!(self, LibraryPrefetch | StringPrefetch | Avx512)
    }
}

impl Mapping {
    /// Copies `bytes` to offset `at` with `kernel`. Panics as [`Mapping::write`] does, and if the CPU lacks the
    /// instructions of `kernel`.
    pub(in crate::memory) fn write_with(&self, kernel: CopyKernel, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len && at <= self.len - bytes.len());
        assert!(kernel.is_available());
        // SAFETY: the destination lies inside the mapping, checked above, and cannot overlap `bytes`, as in `write`.
        // The CPU supports the kernel.
        unsafe { copy(kernel, bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
        if kernel.prefetches() {
            let (ahead, len) = self.prefetch_range(at, bytes.len());
            dpdk::prefetch::write(ahead, len);
        }
    }

    /// Copies the bytes at offset `at` to `out` with `kernel`. Panics as [`Mapping::read`] does, and if the CPU lacks
    /// the instructions of `kernel`.
    pub(in crate::memory) fn read_with(&self, kernel: CopyKernel, at: usize, out: &mut [u8]) {
        assert!(out.len() <= self.len && at <= self.len - out.len());
        assert!(kernel.is_available());
        // SAFETY: the source lies inside the mapping, checked above, and cannot overlap `out`, as in `read`. The CPU
        // supports the kernel.
        unsafe { copy(kernel, self.start.as_ptr().add(at), out.as_mut_ptr(), out.len()) };
        if kernel.prefetches() {
            let (ahead, len) = self.prefetch_range(at, out.len());
            dpdk::prefetch::read(ahead, len);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

/// # Safety
/// `len` bytes can be read at `from` and written at `to`, the two ranges do not overlap, and the CPU supports the
/// kernel.
unsafe fn copy(kernel: CopyKernel, from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees the conditions of each kernel: `len` readable bytes at `from`, `len` writable bytes
    // at `to`, no overlap, and CPU support.
    unsafe {
        match kernel {
            CopyKernel::LibraryPrefetch | CopyKernel::Library => {
                ptr::copy_nonoverlapping(from, to, len);
            }
            #[cfg(target_arch = "x86_64")]
            CopyKernel::String | CopyKernel::StringPrefetch => x86::copy_string(from, to, len),
            #[cfg(target_arch = "x86_64")]
            CopyKernel::Avx512 => x86::copy_avx512(from, to, len),
            CopyKernel::Streaming => super::stream::copy(from, to, len),
            #[cfg(not(target_arch = "x86_64"))]
            _ => ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m512i, _mm512_loadu_si512, _mm512_mask_storeu_epi8, _mm512_maskz_loadu_epi8,
        _mm512_storeu_si512,
    };

    const LINE: usize = 64;

    /// # Safety
    /// As [`super::copy`].
    pub(super) unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the instruction reads `len` bytes at `from` and writes `len` bytes at `to`, as the caller permits.
        // The direction flag is clear by the calling convention.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// The conditions of [`super::copy`]. The CPU supports AVX-512 F and BW.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn copy_avx512(mut from: *const u8, mut to: *mut u8, mut len: usize) {
        // Whole-line stores begin at a cache line, so that none crosses a line boundary.
        let first = to.align_offset(LINE).min(len);
        // SAFETY: the caller's ranges have `len` bytes; `first <= len`, and `first` is below 64.
        unsafe { copy_partial_line(from, to, first) };
        len -= first;
        // SAFETY: the new pointers are inside the caller's bytes, or one past their end.
        unsafe { (from, to) = (from.add(first), to.add(first)) };
        while len >= LINE {
            // SAFETY: at least `LINE` bytes of the caller's ranges remain at `from` and at `to`, and `to` is
            // line-aligned.
            unsafe {
                let line = _mm512_loadu_si512(from.cast::<__m512i>());
                _mm512_storeu_si512(to.cast::<__m512i>(), line);
                (from, to) = (from.add(LINE), to.add(LINE));
            }
            len -= LINE;
        }
        // SAFETY: `len`, now below `LINE`, is the rest of the caller's ranges at `from` and at `to`.
        unsafe { copy_partial_line(from, to, len) };
    }

    /// Copies less than one cache line.
    ///
    /// # Safety
    /// As [`copy_avx512`]; `len` is below 64.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn copy_partial_line(from: *const u8, to: *mut u8, len: usize) {
        let mask = (1u64 << len) - 1;
        // SAFETY: the mask selects the first `len` bytes, which the caller permits to read at `from` and to write at
        // `to`. No other byte is read or written.
        unsafe {
            let bytes = _mm512_maskz_loadu_epi8(mask, from.cast());
            _mm512_mask_storeu_epi8(to.cast(), mask, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_copies_exactly_every_length() {
        let mapping = Mapping::anonymous(1 << 14).unwrap();
        let bytes: Vec<u8> = (0..9000usize).map(|n| (n % 251) as u8 + 1).collect();
        let kernels = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_available());
        for kernel in kernels {
            for (at, len) in [(0, 0), (1, 1), (63, 63), (64, 64), (5, 65), (100, 1428), (3, 8948)] {
                mapping.write(0, &vec![0; 1 << 14]);
                mapping.write_with(kernel, at, &bytes[..len]);
                let mut all = vec![0; 1 << 14];
                mapping.read_with(kernel, 0, &mut all);
                assert_eq!(&all[at..at + len], &bytes[..len], "{kernel:?} {at} {len}");
                let beside = all[..at].iter().chain(&all[at + len..]);
                assert!(beside.copied().all(|byte| byte == 0), "{kernel:?} {at} {len}");
            }
        }
    }
}
