//! Access to the fields of `rdma_cm_id`, which the program may read and write at any time. [`ibverbs::fields!`]
//! generates a function for each field, which returns its address.

/// Fields of `rdma_cm_id` for `Shared::read` and `Shared::write`.
pub(crate) mod fields {
    use std::ffi::c_void;

    use ibverbs::bindings::{
        ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq,
    };

    use crate::address::{LEN, RawAddress};
    use crate::bindings::{rdma_cm_event, rdma_cm_id, rdma_event_channel};

    ibverbs::fields! {
        verbs: rdma_cm_id, verbs, *mut ibv_context;
        channel: rdma_cm_id, channel, *mut rdma_event_channel;
        context: rdma_cm_id, context, *mut c_void;
        qp: rdma_cm_id, qp, *mut ibv_qp;
        port_num: rdma_cm_id, port_num, u8;
        event: rdma_cm_id, event, *mut rdma_cm_event;
        send_cq_channel: rdma_cm_id, send_cq_channel, *mut ibv_comp_channel;
        send_cq: rdma_cm_id, send_cq, *mut ibv_cq;
        recv_cq_channel: rdma_cm_id, recv_cq_channel, *mut ibv_comp_channel;
        recv_cq: rdma_cm_id, recv_cq, *mut ibv_cq;
        srq: rdma_cm_id, srq, *mut ibv_srq;
        pd: rdma_cm_id, pd, *mut ibv_pd;
        source: rdma_cm_id, route.addr.__bindgen_anon_1, RawAddress;
        destination: rdma_cm_id, route.addr.__bindgen_anon_2, RawAddress;
        source_gid: rdma_cm_id, route.addr.addr.ibaddr.sgid, ibv_gid;
        destination_gid: rdma_cm_id, route.addr.addr.ibaddr.dgid, ibv_gid;
    }

    // The unions of the addresses have the size of `sockaddr_storage`.
    const _: () = assert!(LEN <= size_of::<crate::bindings::sockaddr_storage>());
}
