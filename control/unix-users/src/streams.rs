//! Standard streams that were closed when the process started.
//!
//! Before `main`, the standard library opens /dev/null in place of a closed descriptor 0, 1 or 2. A closed stream then
//! looks like a redirected stream. A function of `.init_array` therefore checks the descriptors earlier.

use std::sync::atomic::{AtomicU8, Ordering};

use libc::c_int;

/// One bit for each of the descriptors 0, 1 and 2, set if it was closed.
static CLOSED_AT_START: AtomicU8 = AtomicU8::new(0);

// SAFETY: the dynamic loader or the C library's start code calls each pointer in this section once, before `main`.
// `record_closed` has no parameters. The C calling convention permits the caller to pass arguments to it.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_CLOSED_AT_START: extern "C" fn() = record_closed;

extern "C" fn record_closed() {
    let is_closed = |fd: c_int| {
        // SAFETY: F_GETFD accesses no memory of this process and accepts any descriptor number.
        unsafe { libc::fcntl(fd, libc::F_GETFD) == -1 }
    };
    let closed = (0..3).filter(|fd| is_closed(*fd)).fold(0, |bits, fd| bits | 1 << fd);
    CLOSED_AT_START.store(closed, Ordering::Relaxed);
}

/// Returns true if `fd` is 0, 1 or 2 and was closed when the process started.
pub fn was_closed(fd: i32) -> bool {
    (0..3).contains(&fd) && CLOSED_AT_START.load(Ordering::Relaxed) & 1 << fd != 0
}
