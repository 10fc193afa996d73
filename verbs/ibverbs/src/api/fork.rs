//! Fork support. The native library gives a forked child private copies of registered memory, so these functions have
//! nothing to do.

use std::ffi::{c_int, c_void};

use crate::bindings::{IBV_FORK_UNNEEDED, ibv_fork_status};

/// Does nothing, and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Reports that fork support needs no initialisation.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

/// Does nothing, and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Does nothing, and succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
