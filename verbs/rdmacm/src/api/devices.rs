//! `rdma_get_devices` and `rdma_free_devices`.

use std::ffi::c_int;

use ibverbs::api::context::shared;
use ibverbs::bindings::ibv_context;
use ibverbs::boundary::{null_terminated, pointer, store, value};
use ibverbs::device::Device;
use ibverbs::errno::{ENODEV, Result};

/// `rdma_get_devices(3)`. The contexts stay open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    pointer(|| {
        let contexts: Vec<*mut ibv_context> = Device::all()?
            .into_iter()
            .map(|device| Ok(shared(device)?.as_ptr()))
            .collect::<Result<_>>()?;
        if contexts.is_empty() {
            return Err(ENODEV);
        }
        let list = null_terminated(&contexts)?;
        if !num_devices.is_null() {
            // SAFETY: not NULL, and valid by the contract of C callers.
            unsafe { store(num_devices, contexts.len() as c_int) }?;
        }
        Ok(list)
    })
}

/// `rdma_free_devices(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: NULL, or from `rdma_get_devices` by the contract of C callers, and thus from `malloc`.
    value((), || unsafe { libc::free(list.cast()) });
}
