//! Rings that connect two devices of one process.

use std::ffi::CString;
use std::ptr::NonNull;

use dpdk_sys as sys;

use crate::error::Error;

/// The rings of a pair, shared by its two devices. Freed after both devices, together with the frames in them.
pub(crate) struct Rings(Vec<NonNull<sys::rte_ring>>);

// SAFETY: each ring has one producer and one consumer: a queue of each device. This value does not access the rings. It
// keeps them alive and frees them.
unsafe impl Send for Rings {}
// SAFETY: through a shared reference, only the pointers are accessible, not the rings.
unsafe impl Sync for Rings {}

impl Rings {
    /// Creates `count` rings of `slots` slots. Their names are `name` and a number.
    pub(crate) fn new(name: &str, count: u16, slots: u32) -> Result<Rings, Error> {
        // If a ring cannot be created, the drop frees the earlier rings.
        let mut rings = Rings(Vec::new());
        for i in 0..count {
            rings.0.push(ring(&format!("{name}_{i}"), slots)?);
        }
        Ok(rings)
    }

    pub(crate) fn as_slice(&self) -> &[NonNull<sys::rte_ring>] {
        &self.0
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        for ring in &self.0 {
            // SAFETY: both devices on the ring are removed, and no one else owns the buffers still in it.
            unsafe { sys::ddpd_ring_free_with_mbufs(ring.as_ptr()) }
        }
    }
}

fn ring(name: &str, slots: u32) -> Result<NonNull<sys::rte_ring>, Error> {
    let c_name = CString::new(name).expect("no NUL in it");
    // SAFETY: the name is NUL-terminated and copied by DPDK.
    let ring = unsafe { sys::ddpd_ring_create(c_name.as_ptr(), slots, -1) };
    NonNull::new(ring).ok_or_else(|| {
        // SAFETY: the call only reads this thread's error number.
        let errno = unsafe { sys::ddpd_errno() };
        Error::new(format!("a ring of {slots} frames cannot be created"), errno)
    })
}
