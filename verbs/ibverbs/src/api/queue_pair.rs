//! Functions that create, change, query and destroy queue pairs. [`super::post`] and [`super::wr`] have the posts.

use std::ffi::c_int;

use crate::bindings::*;
use crate::boundary;
use crate::errno::{EINVAL, EOPNOTSUPP};
use crate::objects::context::Context;
use crate::objects::domain::Domain;
use crate::objects::queue_pair::QueuePair;
use crate::registry::Object;

/// Creates a queue pair. The actual capabilities are stored in `attr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    domain: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    boundary::pointer(|| {
        let domain = Domain::from_ptr(domain)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attr = unsafe { boundary::borrow_mut(attr) }?;
        let mut extended = extended(attr);
        let pair = QueuePair::create(&domain, &mut extended)?;
        attr.cap = extended.cap;
        Ok(pair.pointer())
    })
}

/// Returns attributes in their extended form.
pub fn extended(attr: &ibv_qp_init_attr) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        ..ibv_qp_init_attr_ex::default()
    }
}

/// Creates a queue pair with extended attributes.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    boundary::pointer(|| {
        let context = Context::from_ptr(context)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attr = unsafe { boundary::borrow_mut(attr) }?;
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(EINVAL);
        }
        if attr.comp_mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 {
            return Err(EOPNOTSUPP);
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0
            && attr.send_ops_flags & !u64::from(super::wr::SUPPORTED) != 0
        {
            return Err(EOPNOTSUPP);
        }
        let domain = Domain::from_ptr(attr.pd)?;
        if !std::sync::Arc::ptr_eq(domain.context(), &context) {
            return Err(EINVAL);
        }
        Ok(QueuePair::create(&domain, attr)?.pointer())
    })
}

/// Changes the attributes of a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    pair: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    boundary::code(|| {
        let pair = QueuePair::find(pair)?;
        // SAFETY: NULL or valid by the contract of C callers.
        pair.modify(unsafe { boundary::borrow(attr) }?, mask as u32)
    })
}

/// Stores all attributes of a queue pair. The mask is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    pair: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    boundary::code(|| {
        let (attributes, initial) = QueuePair::find(pair)?.query();
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe {
            boundary::store(attr, attributes)?;
            boundary::store(init, initial)
        }
    })
}

/// Returns 0: data is not placed in order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(
    _pair: *mut ibv_qp,
    _opcode: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// Destroys a queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    boundary::code(|| QueuePair::destroy(pair))
}

/// Returns the extended interface of a queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex {
    boundary::pointer(|| Ok(QueuePair::find(pair)?.as_ptr()))
}
