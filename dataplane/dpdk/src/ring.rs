//! Two devices of one process, connected back to back by DPDK rings.
//!
//! ```text
//!  left   TX queue i ──> ring ──> RX queue i   right
//!         RX queue i <── ring <── TX queue i
//! ```
//!
//! A sent buffer belongs to the receiver afterwards; no bytes are copied.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use crate::device::Device;
use crate::eal::{Eal, next_id};
use crate::error::{Error, check};
use crate::log;
use crate::rings::Rings;

/// Creates two devices with `queues` RX and `queues` TX queues each; `queues` is at most 16. The rings between them
/// have `slots` slots, a power of two, and hold at most `slots` - 1 frames each.
pub fn ring_pair(eal: &Eal, queues: u16, slots: u32) -> Result<(Device, Device), Error> {
    log::clear_recent();
    let id = next_id();
    let rings = Arc::new(Rings::new(&format!("ddpd_r{id}"), 2 * queues, slots)?);
    let (forward, backward) = rings.as_slice().split_at(queues as usize);
    let left = device(eal, &format!("{id}l"), backward, forward, &rings)?;
    let right = device(eal, &format!("{id}r"), forward, backward, &rings)?;
    Ok((left, right))
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
    // SAFETY: both arrays have `rx.len()` valid rings, which the device's handle keeps alive.
    let port = unsafe {
        sys::ddpd_port_from_rings(
            c_name.as_ptr(),
            rx.as_ptr().cast_mut().cast(),
            tx.as_ptr().cast_mut().cast(),
            rx.len() as u32,
            -1,
        )
    };
    let port = check("a device over rings cannot be created", port)?;
    drop(lock);
    Ok(Device::from_port(eal, port as u16, &format!("net_ring_{name}"), Some(rings.clone())))
}
