//! Size of pages, from the C library. `rustix::param` is not used: it needs the kernel's auxiliary vector and the vDSO,
//! which a program under valgrind does not have.
#![allow(unsafe_code)]

/// Returns the size of a page, bytes.
pub fn size() -> usize {
    // SAFETY: the call has no requirement.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
