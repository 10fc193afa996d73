//! Extended verbs: batches of posts, pollers, memory windows and queries.

use std::ptr::null_mut;

use ibverbs::api::completion::ibv_destroy_cq;
use ibverbs::api::memory::{ibv_dereg_mr, ibv_rereg_mr};
use ibverbs::api::queue_pair::{ibv_destroy_qp, ibv_qp_to_qp_ex};
use ibverbs::bindings::*;

use crate::world::{World, connect, poll, post_recv, wait};

/// Returns the extended functions of a context.
fn verbs(context: *mut ibv_context) -> *mut verbs_context {
    context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast()
}

#[test]
#[ignore = "needs an appliance"]
fn batch_is_posted_by_its_completion_and_not_after_an_abort() {
    let world = World::new();
    let (a, b) = world.connected();
    assert_eq!(post_recv(b, 1, world.sge(0, 16)), 0);
    // SAFETY: the pointers are valid.
    unsafe {
        let qp = ibv_qp_to_qp_ex(a);
        (*qp).wr_start.unwrap()(qp);
        (*qp).wr_id = 90;
        (*qp).wr_flags = IBV_SEND_SIGNALED;
        (*qp).wr_send.unwrap()(qp);
        (*qp).wr_abort.unwrap()(qp);

        world.write(32, b"batched");
        (*qp).wr_start.unwrap()(qp);
        (*qp).wr_id = 2;
        (*qp).wr_flags = IBV_SEND_SIGNALED;
        (*qp).wr_rdma_write.unwrap()(qp, world.rkey(), world.address(64));
        let sge = world.sge(32, 7);
        (*qp).wr_set_sge.unwrap()(qp, sge.lkey, sge.addr, sge.length);
        (*qp).wr_id = 3;
        (*qp).wr_send.unwrap()(qp);
        (*qp).wr_set_inline_data.unwrap()(qp, b"inline".as_ptr().cast_mut().cast(), 6);
        assert_eq!((*qp).wr_complete.unwrap()(qp), 0);

        (*qp).wr_start.unwrap()(qp);
        (*qp).wr_send_imm.unwrap()(qp, 5);
        (*qp).wr_send.unwrap()(qp);
        assert_eq!((*qp).wr_complete.unwrap()(qp), libc::EOPNOTSUPP);
    }
    let mut ids: Vec<_> = (0..3).map(|_| world.next().wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!((world.read(64, 7), world.read(0, 6)), (b"batched".to_vec(), b"inline".to_vec()));
    assert!(poll(world.queue).is_none());
}

#[test]
#[ignore = "needs an appliance"]
fn poller_returns_the_fields_of_completions() {
    let world = World::new();
    let mut attr = ibv_cq_init_attr_ex {
        cqe: 16,
        wc_flags: u64::from(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM),
        ..ibv_cq_init_attr_ex::default()
    };
    // SAFETY: the pointers are valid.
    unsafe {
        let create = (*verbs(world.context)).create_cq_ex.unwrap();
        let queue = create(world.context, &raw mut attr);
        assert!(!queue.is_null());
        let (a, b) = (world.create_pair(), world.create_pair_with(queue.cast(), null_mut()));
        connect(a, b);
        let mut poll = ibv_poll_cq_attr::default();
        assert_eq!((*queue).start_poll.unwrap()(queue, &raw mut poll), libc::ENOENT);
        assert_eq!(post_recv(b, 4, world.sge(0, 16)), 0);
        let send = crate::world::request(5, IBV_WR_SEND, &mut world.sge(16, 9));
        assert_eq!(crate::world::post_send(a, send), 0);
        wait("polled", || (*queue).start_poll.unwrap()(queue, &raw mut poll) == 0);
        assert_eq!(((*queue).wr_id, (*queue).status), (4, IBV_WC_SUCCESS));
        assert_eq!((*queue).read_opcode.unwrap()(queue), IBV_WC_RECV);
        assert_eq!((*queue).read_byte_len.unwrap()(queue), 9);
        assert_eq!((*queue).read_qp_num.unwrap()(queue), (*b).qp_num);
        assert_eq!((*queue).next_poll.unwrap()(queue), libc::ENOENT);
        (*queue).end_poll.unwrap()(queue);
        assert_eq!((ibv_destroy_qp(b), ibv_destroy_cq(queue.cast())), (0, 0));
        attr.wc_flags = u64::from(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
        assert!(create(world.context, &raw mut attr).is_null());
        assert_eq!(crate::world::errno(), libc::EOPNOTSUPP);
    }
}

#[test]
#[ignore = "needs an appliance"]
fn window_gives_the_peer_access_until_the_next_binding() {
    let world = World::new();
    let (a, b) = world.connected();
    world.write(0, b"by window");
    // SAFETY: the pointers are valid.
    unsafe {
        let ops = (*world.context).ops;
        let window = ops.alloc_mw.unwrap()(world.domain, IBV_MW_TYPE_1);
        assert!(!window.is_null());
        let before = (*window).rkey;
        let mut bind = ibv_mw_bind {
            wr_id: 3,
            send_flags: IBV_SEND_SIGNALED,
            bind_info: ibv_mw_bind_info {
                mr: world.region,
                addr: world.address(128),
                length: 64,
                mw_access_flags: IBV_ACCESS_REMOTE_WRITE,
            },
        };
        // The side that connects sends first.
        assert_eq!(ops.bind_mw.unwrap()(a, window, &raw mut bind), 0);
        let bound = world.next();
        assert_eq!((bound.status, bound.opcode), (IBV_WC_SUCCESS, IBV_WC_BIND_MW));
        assert_ne!((*window).rkey, before);
        let write = crate::world::request(4, IBV_WR_RDMA_WRITE, &mut world.sge(0, 9));
        let write = crate::world::rdma(write, world.address(128), (*window).rkey);
        assert_eq!(crate::world::post_send(a, write), 0);
        assert_eq!(world.next().status, IBV_WC_SUCCESS);
        // A Write completes once the peer's TCP has acknowledged it, possibly before its data are placed. The peer
        // executes the later Read after the placement.
        let read = crate::world::request(5, IBV_WR_RDMA_READ, &mut world.sge(256, 9));
        let read = crate::world::rdma(read, world.address(128), world.rkey());
        assert_eq!(crate::world::post_send(a, read), 0);
        assert_eq!(world.next().status, IBV_WC_SUCCESS);
        assert_eq!(world.read(256, 9), b"by window");
        // A region with a bound window keeps its keys, and stays valid.
        let (lkey, rkey) = ((*world.region).lkey, (*world.region).rkey);
        assert_eq!(ibv_dereg_mr(world.region), libc::EBUSY);
        let flags = IBV_REREG_MR_CHANGE_ACCESS as i32;
        let rights = IBV_ACCESS_LOCAL_WRITE as i32;
        let changed = ibv_rereg_mr(world.region, flags, null_mut(), null_mut(), 0, rights);
        assert_eq!((changed, crate::world::errno()), (IBV_REREG_MR_ERR_CMD, libc::EBUSY));
        assert_eq!(((*world.region).lkey, (*world.region).rkey), (lkey, rkey));
        let read = crate::world::request(6, IBV_WR_RDMA_READ, &mut world.sge(512, 9));
        let read = crate::world::rdma(read, world.address(128), world.rkey());
        assert_eq!(crate::world::post_send(a, read), 0);
        assert_eq!(world.next().status, IBV_WC_SUCCESS);
        assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0));
        assert_eq!(ops.dealloc_mw.unwrap()(window), 0);
        assert_eq!(ibv_rereg_mr(world.region, flags, null_mut(), null_mut(), 0, rights), 0);
        assert_ne!((*world.region).rkey, rkey);
        assert_eq!(ibv_dereg_mr(world.region), 0);
    }
}

#[test]
#[ignore = "needs an appliance"]
fn queries_return_what_fits_into_the_callers_structure() {
    let world = World::new();
    // SAFETY: the pointers are valid.
    unsafe {
        let query = (*verbs(world.context)).query_device_ex.unwrap();
        let mut attr = ibv_device_attr_ex::default();
        let size = size_of::<ibv_device_attr_ex>();
        assert_eq!(query(world.context, std::ptr::null(), &raw mut attr, size), 0);
        assert!(attr.orig_attr.max_qp > 0 && attr.phys_port_cnt_ex == 1);
        attr.phys_port_cnt_ex = 99;
        let size = size_of::<ibv_device_attr>();
        assert_eq!(query(world.context, std::ptr::null(), &raw mut attr, size), 0);
        assert_eq!(attr.phys_port_cnt_ex, 99, "beyond the caller's structure");
        assert_eq!(query(world.context, std::ptr::null(), &raw mut attr, 4), libc::EINVAL);
        let mut port = ibv_port_attr::default();
        let query = (*verbs(world.context)).query_port.unwrap();
        let size = size_of::<ibv_port_attr>();
        assert_eq!(query(world.context, 1, &raw mut port, size), 0);
        assert_eq!(port.state, IBV_PORT_ACTIVE);
        assert_eq!(query(world.context, 2, &raw mut port, size), libc::EINVAL);
    }
}
