//! Functions for features that iWARP lacks: multicast and enhanced connection establishment (ECE).

use std::ffi::{c_int, c_void};

use ibverbs::bindings::ibv_ece;
use ibverbs::boundary::{borrow, minus_one, store};
use ibverbs::errno::{EADDRNOTAVAIL, EINVAL, EOPNOTSUPP, Result};
use ibverbs::registry::Object;
use ibverbs::report;

use crate::bindings::{rdma_cm_id, rdma_cm_join_mc_attr_ex, sockaddr};
use crate::boundary::fields;
use crate::id::Id;

/// `rdma_join_multicast(3)`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    minus_one(|| join(id))
}

/// `rdma_join_multicast_ex(3)`: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    _mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    minus_one(|| join(id))
}

/// `rdma_leave_multicast(3)`: no id is a member of a group.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    minus_one(|| {
        Id::from_ptr(id)?;
        Err(EADDRNOTAVAIL)
    })
}

/// `rdma_set_local_ece(3)`. iWARP does not carry the options, so they have no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    minus_one(|| {
        without_pair(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { borrow(ece) }?;
        Ok(0)
    })
}

/// `rdma_get_remote_ece(3)`: peers have no options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    minus_one(|| {
        without_pair(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { store(ece, ibv_ece::default()) }?;
        Ok(0)
    })
}

fn join(id: *mut rdma_cm_id) -> Result<c_int> {
    Id::from_ptr(id)?;
    report::once("multicast", format_args!("iWARP has no multicast"));
    Err(EOPNOTSUPP)
}

/// Checks that the id exists and has no QP.
fn without_pair(id: *mut rdma_cm_id) -> Result<()> {
    match Id::from_ptr(id)?.c().read(fields::qp).is_null() {
        true => Ok(()),
        false => Err(EINVAL),
    }
}
