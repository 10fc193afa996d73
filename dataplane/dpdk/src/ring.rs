//! Two devices of one process that are joined back to back by rings.
//!
//! ```text
//!  left   TX queue i ──> ring ──> RX queue i   right
//!         RX queue i <── ring <── TX queue i
//! ```
//!
//! A buffer that is sent belongs to the receiver afterwards; nothing is copied.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::device::Device;
use crate::eal::{Eal, next_id};
use crate::error::{Error, check};
use crate::log;

/// Rings of one pair, shared by both of its devices and emptied with the last of them.
pub(crate) struct Rings(Vec<NonNull<sys::rte_ring>>);

// SAFETY: the rings are made for one producer and one consumer each, which are the queues over them;
// this value only keeps and finally frees them.
unsafe impl Send for Rings {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Rings {}

impl Drop for Rings {
    fn drop(&mut self) {
        for ring in &self.0 {
            // SAFETY: both devices over the ring are gone; the buffers still in it are nobody's.
            unsafe { sys::ddpd_ring_free_with_mbufs(ring.as_ptr()) }
        }
    }
}

/// Makes two devices with `queues` queue pairs each, at most 16, joined by rings of `slots` frames (a
/// power of two; one slot stays empty).
pub fn ring_pair(eal: &Eal, queues: u16, slots: u32) -> Result<(Device, Device), Error> {
    log::forget_recent();
    let id = next_id();
    let mut rings = Rings(Vec::new());
    for i in 0..2 * queues {
        rings.0.push(ring(&format!("ddpd_r{id}_{i}"), slots)?);
    }
    let rings = Arc::new(rings);
    let (there, back) = rings.0.split_at(queues as usize);
    let left = device(eal, &format!("{id}l"), back, there, &rings)?;
    let right = device(eal, &format!("{id}r"), there, back, &rings)?;
    Ok((left, right))
}

fn ring(name: &str, slots: u32) -> Result<NonNull<sys::rte_ring>, Error> {
    let c_name = CString::new(name).expect("no NUL in it");
    // SAFETY: a NUL-terminated name, which is copied.
    let ring = unsafe { sys::ddpd_ring_create(c_name.as_ptr(), slots, -1) };
    NonNull::new(ring).ok_or_else(|| {
        // SAFETY: reads a number of this thread.
        let errno = unsafe { sys::ddpd_errno() };
        Error::new(format!("a ring of {slots} frames cannot be made"), errno)
    })
}

fn device(
    eal: &Eal,
    name: &str,
    rx: &[NonNull<sys::rte_ring>],
    tx: &[NonNull<sys::rte_ring>],
    rings: &Arc<Rings>,
) -> Result<Device, Error> {
    let lock = eal.lock_devices();
    let c_name = CString::new(name).expect("no NUL in it");
    // SAFETY: two arrays of as many valid rings as are said; the device's handle keeps the rings.
    let port = unsafe {
        sys::ddpd_port_from_rings(
            c_name.as_ptr(),
            rx.as_ptr().cast_mut().cast(),
            tx.as_ptr().cast_mut().cast(),
            rx.len() as u32,
            -1,
        )
    };
    let port = check("a device over rings cannot be made", port)?;
    drop(lock);
    Ok(Device::from_port(eal, port as u16, &format!("net_ring_{name}"), Some(rings.clone())))
}
