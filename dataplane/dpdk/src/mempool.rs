//! Pools of packet buffers.
//!
//! A pool must outlive its buffers, including buffers that have left the port for which the pool was created. A buffer
//! sent through a ring belongs to the receiver, perhaps long after the sending port has closed. A dropped pool is
//! therefore retired. [`Eal::sweep`] frees it when all its buffers have returned.

use std::ffi::CString;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use crate::eal::{Eal, next_id};
use crate::error::Error;
use crate::log;
use crate::mbuf::{HEADROOM, Mbuf};
use crate::pool::Pool;

/// Parameters of a pool.
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// Number of buffers in the pool, fixed at creation.
    pub buffers: u32,
    /// Data room of each buffer, without headroom.
    pub data_room: DataRoom,
    /// NUMA node; `None` for any.
    pub numa: Option<u32>,
}

/// Room of a buffer: bytes of the largest frame, without headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataRoom {
    /// The given number of bytes, at most 65,407.
    Bytes(u16),
    /// The rest of a 4096-byte page after the buffer's headers and headroom. The AF_XDP driver passes the pool's memory
    /// to the kernel, and calculates wrong addresses if the distance of adjacent buffers is not their size. In ordinary
    /// memory the distance is the size only if each buffer fills one page.
    Page,
}

impl DataRoom {
    /// Returns the size of the data room in bytes.
    pub fn bytes(self) -> u16 {
        match self {
            DataRoom::Bytes(bytes) => bytes,
            // A page minus the mempool's object header (64 bytes), the `rte_mbuf` (128 bytes) and the headroom.
            DataRoom::Page => 4096 - 64 - 128 - HEADROOM as u16,
        }
    }
}

/// A pool of packet buffers for use by any thread. Clones refer to the same pool.
#[derive(Clone)]
pub struct Mempool(Arc<Inner>);

struct Inner {
    /// `None` only during `drop` and [`Mempool::free_with_all_buffers`].
    pool: Option<Pool>,
    config: MempoolConfig,
    eal: Eal,
}

impl Mempool {
    /// Nominal number of buffers in a registered thread's cache; less for small pools. Pools are sized for this many
    /// more buffers per queue. The cache is small, because buffers that alternate between two threads occupy the CPU
    /// caches of both.
    pub const CACHE: u32 = 64;

    /// Creates a pool and writes all bytes of its buffers, so that later use causes no page faults.
    pub fn new(eal: &Eal, config: MempoolConfig) -> Result<Mempool, Error> {
        log::clear_recent();
        let name = CString::new(format!("ddpd_pool_{}", next_id())).expect("no NUL in it");
        // DPDK refuses a cache larger than 2/3 of the pool.
        let cache = Self::CACHE.min(config.buffers / 4);
        let room = match config.data_room {
            DataRoom::Page => 0,
            DataRoom::Bytes(bytes) => u16::try_from(HEADROOM + usize::from(bytes))
                .map_err(|_| Error::new("a packet buffer of more than 65,407 bytes", 22))?,
        };
        let numa = config.numa.map_or(-1, |node| node as i32);
        // SAFETY: the name is NUL-terminated and copied by DPDK.
        let raw =
            unsafe { sys::ddpd_pool_create(name.as_ptr(), config.buffers, cache, room, numa) };
        let Some(raw) = NonNull::new(raw) else {
            // SAFETY: the call only reads this thread's error number.
            let errno = unsafe { sys::ddpd_errno() };
            let what = format!(
                "a pool of {} packet buffers of {} bytes cannot be created",
                config.buffers,
                config.data_room.bytes()
            );
            return Err(Error::new(what, errno));
        };
        let pool = Pool::new(raw, config.buffers);
        Ok(Mempool(Arc::new(Inner { pool: Some(pool), config, eal: eal.clone() })))
    }

    /// Allocates a buffer without data. Returns `None` if all are in use.
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is valid; the result is null or a buffer that is ours alone.
        let raw = NonNull::new(unsafe { sys::ddpd_mbuf_alloc(self.raw()) })?;
        // SAFETY: the buffer was just allocated, so it is ours alone.
        Some(unsafe { Mbuf::from_raw(raw) })
    }

    /// Fills the spare capacity of `out` with empty buffers. Returns false and allocates none if too few are free.
    #[must_use]
    pub fn alloc_bulk<const N: usize>(&self, out: &mut ArrayVec<Mbuf, N>) -> bool {
        let old = out.len();
        let room = N - old;
        // SAFETY: `Mbuf` is a transparent pointer, so the spare room is an array of pointers. The call fills all of it
        // or none; the length is set only after success.
        unsafe {
            let at = out.as_mut_ptr().add(old).cast();
            if sys::ddpd_mbuf_alloc_bulk(self.raw(), at, room as u32) != 0 {
                return false;
            }
            out.set_len(N);
        }
        true
    }

    /// Returns the number of free buffers, including buffers in caches; approximate while other threads use the pool.
    pub fn available(&self) -> u32 {
        self.0.pool.map_or(0, Pool::available)
    }

    /// Returns the pool's parameters.
    pub fn config(&self) -> &MempoolConfig {
        &self.0.config
    }

    /// Frees the pool with its buffers. Does nothing while the pool has other clones.
    ///
    /// # Safety
    /// No buffer of the pool is in use or will be used.
    pub(crate) unsafe fn free_with_all_buffers(self) {
        if let Some(mut inner) = Arc::into_inner(self.0)
            && let Some(pool) = inner.pool.take()
        {
            // SAFETY: this was the last owner, and the caller guarantees that no buffer is in use.
            unsafe { pool.free() };
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.0.pool.map_or(std::ptr::null_mut(), |pool| pool.raw())
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool").field("config", self.config()).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            self.eal.retire(pool);
        }
    }
}
