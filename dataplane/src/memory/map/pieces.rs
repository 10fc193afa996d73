//! Bounded kernel calls on a mapping. Each call that populates or unmaps pages holds the process's `mmap_lock`, for
//! which malloc, mmap and thread creation of all other threads wait. Between two pieces the lock is free.

use std::ops::Range;

/// Maximum number of bytes of one call, a multiple of the hugepage size. Zeroing them takes some milliseconds.
pub(in crate::memory) const PIECE: usize = 16 << 20;

/// Returns the pieces of `len` bytes, in ascending order.
pub(super) fn pieces(len: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    (0..len.div_ceil(PIECE)).map(move |n| n * PIECE..len.min((n + 1) * PIECE))
}

/// Records a kernel call on this many bytes, in tests only.
#[cfg(not(test))]
pub(super) fn called(_: KernelCall, _: usize) {}

/// A kernel call that holds `mmap_lock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum KernelCall {
    Populate,
    Lock,
    Unmap,
}

#[cfg(test)]
pub(in crate::memory) use counted::{called, take_calls};

#[cfg(test)]
mod counted {
    use std::cell::RefCell;

    use super::KernelCall;

    thread_local! {
        static CALLS: RefCell<Vec<(KernelCall, usize)>> = const { RefCell::new(Vec::new()) };
    }

    pub(in crate::memory) fn called(call: KernelCall, len: usize) {
        CALLS.with_borrow_mut(|calls| calls.push((call, len)));
    }

    /// Returns the kernel calls of this thread since the previous query, with their bytes.
    pub(in crate::memory) fn take_calls() -> Vec<(KernelCall, usize)> {
        CALLS.take()
    }
}
