//! Functions for shared receive queues. [`super::post`] has the posts.

use std::ffi::c_int;

use crate::bindings::*;
use crate::boundary;
use crate::errno::{EINVAL, EOPNOTSUPP};
use crate::objects::domain::Domain;
use crate::objects::shared_receives::SharedReceiveQueue;
use crate::registry::Object;

/// Creates a shared receive queue. The actual capabilities are stored in `attr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    domain: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    boundary::pointer(|| {
        let domain = Domain::from_ptr(domain)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attr = unsafe { boundary::borrow_mut(attr) }?;
        Ok(SharedReceiveQueue::create(&domain, attr)?.pointer())
    })
}

/// Creates a shared receive queue with extended attributes. Only the basic type is supported.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    boundary::pointer(|| {
        // SAFETY: NULL or valid by the contract of C callers.
        let attr = unsafe { boundary::borrow_mut(attr) }?;
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(EINVAL);
        }
        let known = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
        let is_basic =
            attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == IBV_SRQT_BASIC;
        if attr.comp_mask & !known != 0 || !is_basic {
            return Err(EOPNOTSUPP);
        }
        let domain = Domain::from_ptr(attr.pd)?;
        let mut basic = ibv_srq_init_attr { srq_context: attr.srq_context, attr: attr.attr };
        let queue = SharedReceiveQueue::create(&domain, &mut basic)?;
        attr.attr = basic.attr;
        Ok(queue.pointer())
    })
}

/// Requests the event `IBV_EVENT_SRQ_LIMIT_REACHED`. The size cannot be changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    queue: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    boundary::code(|| {
        let queue = SharedReceiveQueue::from_ptr(queue)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attr = unsafe { boundary::borrow(attr) }?;
        let mask = mask as u32;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(EINVAL);
        }
        if mask & IBV_SRQ_MAX_WR != 0 {
            return Err(EOPNOTSUPP);
        }
        if mask & IBV_SRQ_LIMIT != 0 { queue.set_limit(attr.srq_limit) } else { Ok(()) }
    })
}

/// Returns the attributes of a shared receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(queue: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    boundary::code(|| {
        let attributes = SharedReceiveQueue::from_ptr(queue)?.attributes();
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { boundary::store(attr, attributes) }
    })
}

/// Destroys a shared receive queue.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_srq(queue: *mut ibv_srq) -> c_int {
    boundary::code(|| SharedReceiveQueue::destroy(queue))
}
