//! Handle of a DPDK mempool (`rte_mempool`). The handle does not own the pool. The owner is [`crate::Mempool`]. After
//! the `Mempool` is dropped, the owner is [`crate::Eal`], which frees the pool when all buffers have returned.

use std::ptr::NonNull;

use dpdk_sys as sys;

/// Pointer to a DPDK mempool, and its number of buffers.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    raw: NonNull<sys::rte_mempool>,
    buffers: u32,
}

// SAFETY: pools are multi-producer and multi-consumer; no part of them belongs to a thread except the caches,
// which DPDK selects by the calling thread's registration.
unsafe impl Send for Pool {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pool {}

impl Pool {
    /// Wraps a pool created by DPDK with `buffers` buffers.
    pub(crate) fn new(raw: NonNull<sys::rte_mempool>, buffers: u32) -> Pool {
        Pool { raw, buffers }
    }

    pub(crate) fn raw(self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// Returns the number of free buffers, including buffers in caches.
    pub(crate) fn available(self) -> u32 {
        // SAFETY: the pool is valid until `free`, after which no copy of this value is used.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) }
    }

    pub(crate) fn is_full(self) -> bool {
        self.available() == self.buffers
    }

    /// Frees the pool.
    ///
    /// # Safety
    /// All buffers have returned, no thread is inside a call on the pool, and no copy of this value is used again.
    pub(crate) unsafe fn free(self) {
        // SAFETY: guaranteed by the caller.
        unsafe { sys::rte_mempool_free(self.raw.as_ptr()) }
    }
}
