//! Connections: listen, connect, accept, reject, disconnect.

use std::ffi::{c_int, c_void};

use ibverbs::bindings::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS,
    IBV_QP_STATE, ibv_qp_attr,
};
use ibverbs::boundary::{borrow_mut, elements, minus_one, store};
use ibverbs::errno::{EINVAL, Result};
use ibverbs::registry::Object;

use crate::bindings::{rdma_cm_id, rdma_conn_param};
use crate::boundary::fields;
use crate::id::connect::{Parameters, is_state_of_connection};
use crate::id::{Id, Phase};

/// `rdma_listen(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one(|| Id::from_ptr(id)?.listen(backlog).map(|()| 0))
}

/// `rdma_connect(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let parameters = unsafe { parameters(conn_param) }?;
        id.connect(parameters).map(|()| 0)
    })
}

/// `rdma_accept(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let parameters = unsafe { parameters(conn_param) }?;
        id.accept(parameters).map(|()| 0)
    })
}

/// `rdma_reject(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or valid for the length by the contract of C callers.
        let private_data = unsafe { elements(private_data.cast::<u8>(), private_data_len.into()) }?;
        id.reject(private_data).map(|()| 0)
    })
}

/// `rdma_reject_ece(3)`: like [`rdma_reject`]. An MPA Reply Frame has no field for the reason of an ECE reject.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the same contract of C callers.
    unsafe { rdma_reject(id, private_data, private_data_len) }
}

/// `rdma_disconnect(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| Id::from_ptr(id)?.disconnect().map(|()| 0))
}

/// `rdma_establish(3)`. An iWARP connect has no response that the program must acknowledge: the connection of a QP that
/// was not created for the id is established already.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        let is_connected = id.lock().phase == Phase::Connected;
        match is_connected && id.c().read(fields::qp).is_null() {
            true => Ok(0),
            false => Err(EINVAL),
        }
    })
}

/// `rdma_init_qp_attr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    minus_one(|| {
        Id::from_ptr(id)?.context()?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attr = unsafe { borrow_mut(qp_attr) }?;
        is_state_of_connection(attr.qp_state)?;
        attr.qp_access_flags =
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let mask = (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS).cast_signed();
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { store(qp_attr_mask, mask) }?;
        Ok(0)
    })
}

/// Returns a copy of the parameters of a connection; `None` for NULL.
///
/// # Safety
/// The pointer is NULL, or valid with its private data.
unsafe fn parameters(from: *const rdma_conn_param) -> Result<Option<Parameters>> {
    // SAFETY: NULL or valid, as this function's `# Safety` section requires.
    let Some(from) = (unsafe { from.as_ref() }) else { return Ok(None) };
    let (first, len) = (from.private_data.cast::<u8>(), from.private_data_len);
    // As in rdma-core, a NULL pointer means that there is no private data, whatever its length.
    let len = if first.is_null() { 0 } else { len };
    // SAFETY: valid for the length, as this function's `# Safety` section requires.
    let private_data = unsafe { elements(first, len.into()) }?.to_vec();
    Ok(Some(Parameters {
        private_data,
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        qp_num: from.qp_num,
    }))
}
