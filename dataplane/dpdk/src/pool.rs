//! A pool of C, by its pointer. [`crate::Mempool`] owns it, and the environment after that.

use std::ptr::NonNull;

use dpdk_sys as sys;

/// A pool of C and how many buffers it has.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    raw: NonNull<sys::rte_mempool>,
    buffers: u32,
}

// SAFETY: pools are multi-producer and multi-consumer; nothing in them belongs to a thread but the
// caches, which DPDK picks by the calling thread's registration.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A pool as DPDK made it, of `buffers`.
    pub(crate) fn new(raw: NonNull<sys::rte_mempool>, buffers: u32) -> Pool {
        Pool { raw, buffers }
    }

    pub(crate) fn raw(self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// Buffers that are free now, those in caches included.
    pub(crate) fn available(self) -> u32 {
        // SAFETY: the pool is valid until it is freed, which consumes the last copy of this.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) }
    }

    pub(crate) fn is_whole(self) -> bool {
        self.available() == self.buffers
    }

    /// # Safety
    /// All buffers are back and no thread is inside a call on the pool; no copy of this is used again.
    pub(crate) unsafe fn free(self) {
        // SAFETY: the caller's promise.
        unsafe { sys::rte_mempool_free(self.raw.as_ptr()) }
    }
}
