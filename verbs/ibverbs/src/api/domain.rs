//! Functions for protection domains. Domains of other processes cannot be imported.

use std::ffi::c_int;

use crate::bindings::{ibv_context, ibv_pd};
use crate::boundary;
use crate::errno::EOPNOTSUPP;
use crate::objects::context::Context;
use crate::objects::domain::Domain;

/// Allocates a protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    boundary::pointer(|| Ok(Domain::create(&Context::from_ptr(context)?)?.pointer()))
}

/// Deallocates a protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    boundary::code(|| Domain::destroy(domain))
}

/// Refused: objects cannot be shared between processes.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    boundary::pointer(|| Err(EOPNOTSUPP))
}

/// Does nothing: there are no imported domains.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_domain: *mut ibv_pd) {}
