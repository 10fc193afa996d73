//! Pools of packet buffers.
//!
//! A pool must outlive its buffers, and those travel: a buffer that was sent through a ring belongs to
//! the receiver, perhaps long after the sending port is gone. So a dropped pool retires, and the
//! environment frees it when all its buffers are back ([`Eal::sweep`]).

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

/// How a pool is made.
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// Buffers in it.
    pub buffers: u32,
    /// Bytes of a frame that fit.
    pub room: Room,
    /// NUMA node, or none in particular.
    pub numa: Option<u32>,
}

/// Bytes of a frame that fit into a buffer, without headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// So many, at most 65,407.
    Bytes(u16),
    /// What is left of a page of 4096 bytes, which the buffer and its headers fill. The AF_XDP driver
    /// hands the pool to the kernel and miscounts unless buffers lie exactly as far apart as they are long;
    /// in ordinary memory that is so for whole pages only.
    Page,
}

impl Room {
    /// As a number.
    pub fn bytes(self) -> u16 {
        match self {
            Room::Bytes(bytes) => bytes,
            // Headers of the pool's and the buffer's own, 64 and 128.
            Room::Page => 4096 - 64 - 128 - HEADROOM as u16,
        }
    }
}

/// A pool of packet buffers, to be used from any thread. Clones are the same pool.
#[derive(Clone)]
pub struct Mempool(Arc<Inner>);

struct Inner {
    /// Taken only while the value goes.
    pool: Option<Pool>,
    config: MempoolConfig,
    eal: Eal,
}

impl Mempool {
    /// Buffers that a registered thread keeps for itself, at most. Pools are sized for this many more per queue. Few,
    /// for those that go round between two threads lie in the caches of both.
    pub const CACHE: u32 = 64;

    /// Makes a pool; every byte of it is touched, so that no later use faults.
    pub fn new(eal: &Eal, config: MempoolConfig) -> Result<Mempool, Error> {
        log::forget_recent();
        let name = CString::new(format!("ddpd_pool_{}", next_id())).expect("no NUL in it");
        // DPDK refuses a cache of more than 2/3 of the pool.
        let cache = Self::CACHE.min(config.buffers / 4);
        let room = match config.room {
            Room::Page => 0,
            Room::Bytes(bytes) => u16::try_from(HEADROOM + usize::from(bytes))
                .map_err(|_| Error::new("a packet buffer of more than 65,407 bytes", 22))?,
        };
        let numa = config.numa.map_or(-1, |node| node as i32);
        // SAFETY: the name is NUL-terminated and copied by DPDK.
        let raw =
            unsafe { sys::ddpd_pool_create(name.as_ptr(), config.buffers, cache, room, numa) };
        let Some(raw) = NonNull::new(raw) else {
            // SAFETY: reads a number of this thread.
            let errno = unsafe { sys::ddpd_errno() };
            let what = format!(
                "a pool of {} packet buffers of {} bytes cannot be made",
                config.buffers,
                config.room.bytes()
            );
            return Err(Error::new(what, errno));
        };
        let pool = Pool::new(raw, config.buffers);
        Ok(Mempool(Arc::new(Inner { pool: Some(pool), config, eal: eal.clone() })))
    }

    /// A buffer with no data, or `None` when all are in use.
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is valid; what comes back is null or a buffer of ours alone.
        let raw = NonNull::new(unsafe { sys::ddpd_mbuf_alloc(self.raw()) })?;
        // SAFETY: see above.
        Some(unsafe { Mbuf::from_raw(raw) })
    }

    /// Fills `out` with fresh buffers, all or none; false when there are not so many.
    #[must_use]
    pub fn alloc_bulk<const N: usize>(&self, out: &mut ArrayVec<Mbuf, N>) -> bool {
        let old = out.len();
        let room = N - old;
        // SAFETY: `Mbuf` is a transparent pointer, so the spare room is an array of pointers that the
        // call fills whole or not at all; the length is set only after success.
        unsafe {
            let at = out.as_mut_ptr().add(old).cast();
            if sys::ddpd_mbuf_alloc_bulk(self.raw(), at, room as u32) != 0 {
                return false;
            }
            out.set_len(N);
        }
        true
    }

    /// Buffers that are free now, those in caches included; an instant's guess while others run.
    pub fn available(&self) -> u32 {
        self.0.pool.map_or(0, Pool::available)
    }

    /// How it was made.
    pub fn config(&self) -> &MempoolConfig {
        &self.0.config
    }

    /// Frees the pool, its buffers with it, unless there are other clones.
    ///
    /// # Safety
    /// No buffer of the pool is in use or will be used.
    pub(crate) unsafe fn free_with_all_buffers(self) {
        if let Some(mut inner) = Arc::into_inner(self.0)
            && let Some(pool) = inner.pool.take()
        {
            // SAFETY: this was the last owner, and the caller's promise.
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
