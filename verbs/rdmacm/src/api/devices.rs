//! Devices.

use std::ffi::c_int;

use ibverbs::api::context::shared;
use ibverbs::bindings::ibv_context;
use ibverbs::boundary::{pointer, store, value};
use ibverbs::device::Device;
use ibverbs::errno::{ENODEV, ENOMEM, Result};

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
        let size = (contexts.len() + 1) * size_of::<*mut ibv_context>();
        // SAFETY: a plain allocation. NULL is checked.
        let list = unsafe { libc::malloc(size) }.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(ENOMEM);
        }
        let all = contexts.iter().copied().chain([std::ptr::null_mut()]);
        for (at, context) in all.enumerate() {
            // SAFETY: the list has room for all contexts and NULL.
            unsafe { list.add(at).write(context) };
        }
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
