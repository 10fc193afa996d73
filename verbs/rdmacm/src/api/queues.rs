//! Functions that create and destroy the QP and the SRQ of an id.

use std::ffi::c_int;

use ibverbs::api::queue_pair::extended;
use ibverbs::bindings::{
    IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, ibv_pd,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use ibverbs::boundary::{borrow_mut, minus_one, value};
use ibverbs::errno::{EOPNOTSUPP, Result};
use ibverbs::registry::Object;
use std::sync::Arc;

use crate::bindings::rdma_cm_id;
use crate::id::Id;

/// `rdma_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attributes = unsafe { borrow_mut(qp_init_attr) }?;
        create_pair(&id, pd, attributes).map(|()| 0)
    })
}

/// `rdma_create_qp_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attributes = unsafe { borrow_mut(qp_init_attr) }?;
        id.create_pair(attributes).map(|()| 0)
    })
}

/// `rdma_destroy_qp(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    value((), || {
        if let Ok(id) = Id::from_ptr(id) {
            id.destroy_pair();
        }
    });
}

/// `rdma_create_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attributes = unsafe { borrow_mut(attr) }?;
        id.create_shared_receives(pd, attributes).map(|()| 0)
    })
}

/// `rdma_create_srq_ex(3)`. Only the basic type is supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let extended = unsafe { borrow_mut(attr) }?;
        let has_type = extended.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0;
        if has_type && extended.srq_type != IBV_SRQT_BASIC {
            return Err(EOPNOTSUPP);
        }
        let pd = match extended.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0 {
            true => extended.pd,
            false => std::ptr::null_mut(),
        };
        let mut attributes =
            ibv_srq_init_attr { srq_context: extended.srq_context, attr: extended.attr };
        id.create_shared_receives(pd, &mut attributes)?;
        extended.attr = attributes.attr;
        Ok(0)
    })
}

/// `rdma_destroy_srq(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    value((), || {
        if let Ok(id) = Id::from_ptr(id) {
            id.destroy_shared_receives();
        }
    });
}

/// Creates the QP of an id in `pd`, or for NULL in the PD of the id. `attributes` receives the actual capabilities and
/// the CQs.
pub(super) fn create_pair(
    id: &Arc<Id>,
    pd: *mut ibv_pd,
    attributes: &mut ibv_qp_init_attr,
) -> Result<()> {
    let mut extended = extended(attributes);
    if !pd.is_null() {
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
    }
    id.create_pair(&mut extended)?;
    attributes.send_cq = extended.send_cq;
    attributes.recv_cq = extended.recv_cq;
    attributes.srq = extended.srq;
    attributes.cap = extended.cap;
    attributes.qp_type = extended.qp_type;
    Ok(())
}
