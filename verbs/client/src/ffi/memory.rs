//! C functions for protection domains, memory regions and memory windows.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use super::types::{access, window_kind};
use super::{NULL, borrow, close, give, guard};
use crate::domain::ProtectionDomain;
use crate::region::MemoryRegion;
use crate::session::Session;
use crate::window::MemoryWindow;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_domain_create(
    session: *const Session,
    domain: *mut *mut ProtectionDomain,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe { give(domain, || borrow(session)?.create_domain()) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_domain_destroy(domain: *mut ProtectionDomain) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(domain) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_region_alloc(
    domain: *const ProtectionDomain,
    length: usize,
    rights: u32,
    region: *mut *mut MemoryRegion,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe { give(region, || borrow(domain)?.alloc(length, access(rights)?)) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_register(
    domain: *const ProtectionDomain,
    address: *mut c_void,
    length: usize,
    rights: u32,
    region: *mut *mut MemoryRegion,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked. The
    // memory is mapped during the call, as `ddpd.h` requires, and C callers have no access to the region's bytes by
    // Rust references.
    guard(|| unsafe {
        give(region, || {
            let address = NonNull::new(address.cast()).ok_or(NULL)?;
            borrow(domain)?.register(address, length, access(rights)?)
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_region_destroy(region: *mut MemoryRegion) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(region) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_region_address(region: *const MemoryRegion) -> *mut c_void {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    let region = unsafe { borrow(region) };
    region.map_or(std::ptr::null_mut(), |region| region.as_ptr().cast())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_region_length(region: *const MemoryRegion) -> usize {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { borrow(region) }.map_or(0, MemoryRegion::len)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_region_stag(region: *const MemoryRegion) -> u32 {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { borrow(region) }.map_or(0, MemoryRegion::stag)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_window_alloc(
    domain: *const ProtectionDomain,
    type_: u32,
    window: *mut *mut MemoryWindow,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe { give(window, || borrow(domain)?.allocate_window(window_kind(type_)?)) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_window_destroy(window: *mut MemoryWindow) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(window) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_window_stag(window: *const MemoryWindow, key: u8) -> u32 {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { borrow(window) }.map_or(0, |window| window.stag(key))
}
