//! Opening and closing of devices, and the tables of functions that the inline functions of the header call.

use std::ffi::c_int;
use std::sync::Arc;

use super::{completion, memory, poller, post, query, queue_pair, shared_receives};
use crate::bindings::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::boundary;
use crate::errno::{EOPNOTSUPP, Result};
use crate::objects::context::{Context, Functions};
use crate::objects::device::Device;

/// Opens a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    boundary::pointer(|| Ok(open(Device::from_ptr(device)?)?.as_ptr()))
}

/// Opens a device.
///
/// # Errors
/// No session can be opened, or the process has no free file descriptor.
pub fn open(device: &'static Device) -> Result<Arc<Context>> {
    Context::open(device, Functions { context: functions, pair: super::wr::functions })
}

/// Returns the connection manager's shared context of `device`. The first call opens it. The program never closes it.
///
/// # Errors
/// The errors of [`open`].
pub fn shared(device: &'static Device) -> Result<Arc<Context>> {
    Context::shared(device, open)
}

/// Closes a device. Returns -1 on an error.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    boundary::minus_one(|| Context::close(context).map(|()| 0))
}

/// Refused: contexts cannot be shared between processes.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_descriptor: c_int) -> *mut ibv_context {
    boundary::pointer(|| Err(EOPNOTSUPP))
}

/// Returns the functions of a context. The header's inline functions report `EOPNOTSUPP` for those that are missing.
fn functions() -> verbs_context {
    let ops = ibv_context_ops {
        alloc_mw: Some(memory::alloc_mw),
        bind_mw: Some(memory::bind_mw),
        dealloc_mw: Some(memory::dealloc_mw),
        poll_cq: Some(post::poll_cq),
        req_notify_cq: Some(completion::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..ibv_context_ops::default()
    };
    verbs_context {
        query_port: Some(query::query_port_ex),
        query_device_ex: Some(query::query_device_ex),
        create_cq_ex: Some(poller::create_cq_ex),
        create_qp_ex: Some(queue_pair::create_qp_ex),
        create_srq_ex: Some(shared_receives::create_srq_ex),
        context: ibv_context { ops, ..ibv_context::default() },
        ..verbs_context::default()
    }
}
