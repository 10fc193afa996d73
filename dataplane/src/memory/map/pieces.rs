//! Divides kernel calls on a mapping into bounded pieces. Each call that populates or unmaps pages holds the
//! process's `mmap_lock`. Meanwhile, system calls of other threads that map memory wait for the lock. malloc and thread
//! creation may make these calls. Between two pieces the lock is released.

use std::ops::Range;

/// Maximum number of bytes per kernel call, a multiple of the hugepage size. The kernel zeroes this many bytes in some
/// milliseconds.
pub(in crate::memory) const PIECE: usize = 16 << 20;

/// Divides `len` bytes into ranges of at most [`PIECE`] bytes, in ascending order.
pub(super) fn pieces(len: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..len.div_ceil(PIECE)).map(move |n| n * PIECE..len.min((n + 1) * PIECE))
}

/// Does nothing. In tests, another function of this name records the kernel call and its number of bytes.
#[cfg(not(test))]
pub(super) fn record_call(_: KernelCall, _: usize) {}

/// A kernel call that holds `mmap_lock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum KernelCall {
    Populate,
    Lock,
    Unmap,
}

#[cfg(test)]
pub(in crate::memory) use counted::{record_call, take_calls};

#[cfg(test)]
mod counted {
    use std::cell::RefCell;

    use super::KernelCall;

    thread_local! {
        static CALLS: RefCell<Vec<(KernelCall, usize)>> = const { RefCell::new(Vec::new()) };
    }

    pub(in crate::memory) fn record_call(call: KernelCall, len: usize) {
        CALLS.with_borrow_mut(|calls| calls.push((call, len)));
    }

    /// Returns and clears the list of this thread's kernel calls, each with its number of bytes.
    pub(in crate::memory) fn take_calls() -> Vec<(KernelCall, usize)> {
        CALLS.take()
    }
}
