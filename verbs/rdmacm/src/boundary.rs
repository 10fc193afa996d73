//! Fields of the C structures, and locks.
#![allow(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic of another thread.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fields of `rdma_cm_id` for `Shared::read` and `Shared::write`.
pub(crate) mod fields {
    use std::ffi::c_void;

    use ibverbs::bindings::{
        ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq,
    };

    use crate::address::{LEN, RawAddress};
    use crate::bindings::{rdma_cm_event, rdma_cm_id, rdma_event_channel};

    macro_rules! field {
        ($($name:ident: $type:ty;)*) => {
            $(pub(crate) fn $name(id: *mut rdma_cm_id) -> *mut $type {
                // SAFETY: `Shared` passes a valid pointer, of which an address within the structure is computed.
                unsafe { &raw mut (*id).$name }
            })*
        };
    }

    field! {
        verbs: *mut ibv_context;
        channel: *mut rdma_event_channel;
        context: *mut c_void;
        qp: *mut ibv_qp;
        port_num: u8;
        event: *mut rdma_cm_event;
        send_cq_channel: *mut ibv_comp_channel;
        send_cq: *mut ibv_cq;
        recv_cq_channel: *mut ibv_comp_channel;
        recv_cq: *mut ibv_cq;
        srq: *mut ibv_srq;
        pd: *mut ibv_pd;
    }

    pub(crate) fn source(id: *mut rdma_cm_id) -> *mut RawAddress {
        // SAFETY: as in `field`. The union has the size of `sockaddr_storage`, which is more than `LEN`.
        unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
    }

    pub(crate) fn destination(id: *mut rdma_cm_id) -> *mut RawAddress {
        // SAFETY: as in `source`.
        unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
    }

    pub(crate) fn source_gid(id: *mut rdma_cm_id) -> *mut ibv_gid {
        // SAFETY: as in `field`.
        unsafe { &raw mut (*id).route.addr.addr.ibaddr.sgid }
    }

    pub(crate) fn destination_gid(id: *mut rdma_cm_id) -> *mut ibv_gid {
        // SAFETY: as in `field`.
        unsafe { &raw mut (*id).route.addr.addr.ibaddr.dgid }
    }

    const _: () = assert!(LEN <= size_of::<crate::bindings::sockaddr_storage>());
}
