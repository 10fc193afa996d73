//! Invalid calls: each fails with the error of its manual page, and none ends the process.

use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::ptr::null_mut;

use ibverbs::api::completion::{ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq};
use ibverbs::api::context::{ibv_close_device, ibv_open_device};
use ibverbs::api::device::{ibv_get_device_name, ibv_read_sysfs_file};
use ibverbs::api::domain::{ibv_alloc_pd, ibv_dealloc_pd};
use ibverbs::api::memory::{ibv_dereg_mr, ibv_reg_mr};
use ibverbs::api::queue_pair::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use ibverbs::api::unsupported::ibv_create_ah;
use ibverbs::bindings::*;
use ibverbs::queue_pair::QueuePair;
use verbs_client::{ConnectOptions, Remote, post};

use crate::world::{
    ALL_RIGHTS, NULL, World, errno, modify, poll, post_recv, post_send, rdma, request, wait,
    wait_for_end,
};

#[test]
#[ignore = "needs an appliance"]
fn second_destruction_of_an_object_is_an_error() {
    let world = World::new();
    let (a, b) = world.connected();
    for pair in [a, b] {
        assert_eq!((ibv_destroy_qp(pair), ibv_destroy_qp(pair)), (0, libc::EINVAL));
    }
    for (destroyed, again) in [
        (ibv_dereg_mr(world.region), ibv_dereg_mr(world.region)),
        (ibv_destroy_cq(world.queue), ibv_destroy_cq(world.queue)),
        (ibv_destroy_comp_channel(world.channel), ibv_destroy_comp_channel(world.channel)),
        (ibv_dealloc_pd(world.domain), ibv_dealloc_pd(world.domain)),
    ] {
        assert_eq!((destroyed, again), (0, libc::EINVAL));
    }
    assert_eq!((ibv_close_device(world.context), ibv_close_device(world.context)), (0, -1));
    assert!(ibv_alloc_pd(world.context).is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert!(ibv_open_device(null_mut()).is_null());
}

#[test]
#[ignore = "needs an appliance"]
fn sysfs_files_that_a_device_does_not_have_are_not_found() {
    let world = World::new();
    // SAFETY: the context exists, and devices are never freed.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name((*world.context).device)) };
    let directory = format!("/sys/class/infiniband/{}", name.to_str().unwrap());
    let read = |directory: &str, file: &CStr| {
        let directory = CString::new(directory).unwrap();
        let mut buffer = [0; 32];
        // SAFETY: the texts end with NUL, and the buffer has the length that is passed.
        let len = unsafe {
            let (directory, file) = (directory.as_ptr(), file.as_ptr());
            ibv_read_sysfs_file(directory, file, buffer.as_mut_ptr(), buffer.len())
        };
        if len < 0 { Err(errno()) } else { Ok(len as usize) }
    };
    assert_eq!(read(&directory, c"node_type"), Ok("4: RNIC".len()));
    assert_eq!(read(&directory, c"ports/1/node_type"), Err(libc::ENOENT));
    let port = format!("{directory}/ports/1");
    assert_eq!(read(&port, c"node_type"), Err(libc::ENOENT));
}

#[test]
#[ignore = "needs an appliance"]
fn object_in_use_is_not_destroyed() {
    let world = World::new();
    let pair = world.create_pair();
    assert_eq!(ibv_dealloc_pd(world.domain), libc::EBUSY);
    assert_eq!(ibv_destroy_cq(world.queue), libc::EBUSY);
    assert_eq!(ibv_destroy_comp_channel(world.channel), libc::EBUSY);
    assert_eq!(ibv_close_device(world.context), -1);
    assert_eq!(errno(), libc::EBUSY);
    assert_eq!(ibv_destroy_qp(pair), 0);
}

#[test]
#[ignore = "needs an appliance"]
fn wrong_lkey_completes_as_a_protection_error_and_ends_the_pair() {
    let world = World::new();
    let (a, b) = world.connected();
    assert_eq!(post_recv(a, 1, world.sge(0, 8)), 0);
    let mut sge = ibv_sge { lkey: world.sge(0, 8).lkey ^ 0xff00, ..world.sge(0, 8) };
    assert_eq!(post_send(a, request(2, IBV_WR_SEND, &mut sge)), 0);
    let mut found = [world.next(), world.next()];
    found.sort_by_key(|wc| wc.wr_id);
    assert_eq!(found.map(|wc| wc.status), [IBV_WC_WR_FLUSH_ERR, IBV_WC_LOC_PROT_ERR]);
    // SAFETY: the QPs exist.
    let state = |pair: *mut ibv_qp| unsafe { (&raw const (*pair).state).read_volatile() };
    wait("ended", || state(a) == IBV_QPS_ERR && state(b) == IBV_QPS_ERR);
    // Posts of a QP in the state ERR complete as flushed.
    assert_eq!(post_send(a, request(3, IBV_WR_SEND, &mut world.sge(0, 8))), 0);
    let flushed = world.next();
    assert_eq!((flushed.wr_id, flushed.status), (3, IBV_WC_WR_FLUSH_ERR));
    assert_eq!(post_recv(b, 4, world.sge(0, 8)), 0);
    assert_eq!(world.next().status, IBV_WC_WR_FLUSH_ERR);
}

#[test]
#[ignore = "needs an appliance"]
fn wrong_rkey_ends_the_pair_without_an_access() {
    let world = World::new();
    let (a, _) = world.connected();
    world.write(0, b"secret");
    let read = request(1, IBV_WR_RDMA_READ, &mut world.sge(64, 6));
    assert_eq!(post_send(a, rdma(read, world.address(0), world.rkey() ^ 0xff00)), 0);
    let found = world.next();
    assert!([IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR].contains(&found.status));
    assert_eq!(world.read(64, 6), [0; 6]);
}

#[test]
#[ignore = "needs an appliance"]
fn full_queues_refuse_the_request_that_does_not_fit() {
    let world = World::new();
    let pair = world.create_pair();
    let mut posted = [0, 0];
    while post_recv(pair, 0, world.sge(0, 8)) == 0 {
        posted[0] += 1;
    }
    assert_eq!(post_recv(pair, 0, world.sge(0, 8)), libc::ENOMEM);
    while post_send(pair, request(0, IBV_WR_SEND, &mut world.sge(0, 8))) == 0 {
        posted[1] += 1;
    }
    let send = request(0, IBV_WR_SEND, &mut world.sge(0, 8));
    assert_eq!(post_send(pair, send), libc::ENOMEM);
    assert!(posted.iter().all(|count| (16..1000).contains(count)), "{posted:?}");
    assert_eq!(ibv_destroy_qp(pair), 0);
    assert!(poll(world.queue).is_none());
}

#[test]
#[ignore = "needs an appliance"]
fn invalid_requests_are_refused_at_once() {
    let world = World::new();
    let (a, _) = world.connected();
    let mut sges = [world.sge(0, 1); 7];
    let mut many = request(1, IBV_WR_SEND, &mut sges[0]);
    many.num_sge = 7;
    assert_eq!(post_send(a, many), libc::EINVAL);
    many.num_sge = -1;
    assert_eq!(post_send(a, many), libc::EINVAL);
    let mut long = request(2, IBV_WR_SEND, &mut world.sge(0, 257));
    long.send_flags |= IBV_SEND_INLINE;
    assert_eq!(post_send(a, long), libc::EINVAL);
    let immediate = request(3, IBV_WR_SEND_WITH_IMM, &mut world.sge(0, 1));
    assert_eq!(post_send(a, immediate), libc::EOPNOTSUPP);
    assert_eq!(post_send(a, request(4, 99, &mut world.sge(0, 1))), libc::EINVAL);
    assert!(poll(world.queue).is_none());
}

#[test]
#[ignore = "needs an appliance"]
fn features_that_iwarp_lacks_are_refused() {
    let world = World::new();
    let mut init = ibv_qp_init_attr {
        send_cq: world.queue,
        recv_cq: world.queue,
        qp_type: IBV_QPT_UD,
        ..ibv_qp_init_attr::default()
    };
    // SAFETY: the pointers are valid.
    unsafe {
        assert!(ibv_create_qp(world.domain, &raw mut init).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert!(ibv_create_ah(world.domain, null_mut()).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert!(ibv_create_cq(world.context, 1 << 30, NULL, null_mut(), 0).is_null());
        assert!(ibv_create_cq(world.context, 8, NULL, null_mut(), 1).is_null());
        let pair = world.create_pair();
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, ..ibv_qp_attr::default() };
        let mask = (IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN) as i32;
        assert_eq!(ibv_modify_qp(pair, &raw mut attr, mask), libc::EOPNOTSUPP);
        assert_eq!(modify(pair, IBV_QPS_SQD), libc::EINVAL);
        assert_eq!(modify(pair, IBV_QPS_RESET), 0);
        let send = request(1, IBV_WR_SEND, &mut world.sge(0, 8));
        assert_eq!(post_send(pair, send), libc::EINVAL);
    }
}

#[test]
#[ignore = "needs an appliance"]
fn impossible_registrations_are_refused() {
    let world = World::new();
    let memory = std::ptr::with_exposed_provenance_mut(world.address(0) as usize);
    for (address, length, access, expected) in [
        (NULL, 64, ALL_RIGHTS, libc::EINVAL),
        (memory, 0, ALL_RIGHTS, libc::EINVAL),
        (memory, 64, IBV_ACCESS_REMOTE_WRITE as i32, libc::EINVAL),
        (memory, 64, IBV_ACCESS_ON_DEMAND as i32, libc::EOPNOTSUPP),
    ] {
        // SAFETY: the call neither reads nor writes memory.
        let region = unsafe { ibv_reg_mr(world.domain, address, length, access) };
        assert!(region.is_null());
        assert_eq!(errno(), expected);
    }
}

#[test]
#[ignore = "needs an appliance"]
fn failed_write_with_immediate_has_one_completion_and_hides_no_other() {
    let world = World::new();
    let (a, b) = world.connected();
    let write = |sge: &mut ibv_sge| {
        let write = request(0, IBV_WR_RDMA_WRITE_WITH_IMM, sge);
        rdma(write, world.address(400), world.rkey())
    };
    let mut wrong = ibv_sge { lkey: world.sge(0, 8).lkey ^ 0xff00, ..world.sge(0, 8) };
    let mut sge = world.sge(0, 8);
    // The requests are posted as one list, so that the worker has all of them when the first one fails.
    let mut third = request(0, IBV_WR_SEND, &mut sge);
    let mut second = write(&mut sge);
    second.next = &raw mut third;
    let mut first = write(&mut wrong);
    first.next = &raw mut second;
    let mut bad = null_mut();
    // SAFETY: the pointers are valid.
    let posted = unsafe { (*(*a).context).ops.post_send.unwrap()(a, &raw mut first, &raw mut bad) };
    assert_eq!(posted, 0);
    wait_for_end(a);
    // All completions are in the CQ: each poll returns one.
    let polled: Vec<_> = (0..3).filter_map(|_| poll(world.queue)).collect();
    let kinds: Vec<_> = polled.iter().map(|wc| (wc.status, wc.opcode)).collect();
    let expected = [
        (IBV_WC_LOC_PROT_ERR, IBV_WC_RDMA_WRITE),
        (IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE),
        (IBV_WC_WR_FLUSH_ERR, IBV_WC_SEND),
    ];
    assert_eq!(kinds, expected);
    assert!(poll(world.queue).is_none());
    assert_eq!((ibv_destroy_qp(a), ibv_destroy_qp(b)), (0, 0));
}

#[test]
#[ignore = "needs an appliance"]
fn failed_immediate_data_has_a_completion_unless_its_write_has() {
    let world = World::new();
    let number = |pair| QueuePair::find(pair).unwrap().number();
    let post = |pair, opcode| {
        let remote = Remote { stag: world.rkey(), to: world.address(400) };
        let work = match opcode {
            IBV_WR_RDMA_WRITE => post::write(remote, post::inline(b"x").unwrap()),
            IBV_WR_SEND => post::send(post::inline(b"x").unwrap()),
            _ => post::immediate([0; 8]),
        };
        QueuePair::find(pair).unwrap().native().post_send(&work).unwrap();
    };
    let flushed = |pair, opcode| {
        let found = world.next();
        assert_eq!((found.qp_num, found.opcode), (number(pair), opcode));
        assert_eq!((found.wr_id, found.status), (0, IBV_WC_WR_FLUSH_ERR));
    };
    let (a, b) = (world.create_pair(), world.create_pair());
    assert_eq!((modify(a, IBV_QPS_ERR), modify(b, IBV_QPS_ERR)), (0, 0));
    for pair in [a, b] {
        post(pair, IBV_WR_RDMA_WRITE);
        flushed(pair, IBV_WC_RDMA_WRITE);
    }
    // The Immediate Data of `a` has no completion, although a request of `b` has failed since the Write of `a`.
    post(a, IBV_WR_RDMA_WRITE_WITH_IMM);
    post(a, IBV_WR_SEND);
    flushed(a, IBV_WC_SEND);
    // A new QP with the same number starts without a recorded failure: its failed Immediate Data has a completion.
    let reused = number(a);
    assert_eq!(ibv_destroy_qp(a), 0);
    let mut others = Vec::new();
    let again = loop {
        let pair = world.create_pair();
        if number(pair) == reused {
            break pair;
        }
        others.push(pair);
    };
    assert_eq!(modify(again, IBV_QPS_ERR), 0);
    post(again, IBV_WR_RDMA_WRITE_WITH_IMM);
    flushed(again, IBV_WC_RDMA_WRITE);
    others.extend([again, b]);
    others.into_iter().for_each(|pair| assert_eq!(ibv_destroy_qp(pair), 0));
}

#[test]
#[ignore = "needs an appliance"]
fn pair_in_the_state_err_flushes_without_a_connection() {
    let world = World::new();
    for from in [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR] {
        let pair = world.create_pair();
        assert_eq!(modify(pair, from), 0);
        if from != IBV_QPS_RESET {
            assert_eq!(post_recv(pair, 1, world.sge(0, 8)), 0);
        }
        assert_eq!(modify(pair, IBV_QPS_ERR), 0);
        assert_eq!(post_recv(pair, 2, world.sge(0, 8)), 0);
        assert_eq!(post_send(pair, request(3, IBV_WR_SEND, &mut world.sge(0, 8))), 0);
        let expected = if from == IBV_QPS_RESET { vec![2, 3] } else { vec![1, 2, 3] };
        let mut found: Vec<_> = expected.iter().map(|_| world.next()).collect();
        assert!(found.iter().all(|wc| wc.status == IBV_WC_WR_FLUSH_ERR));
        found.sort_by_key(|wc| wc.wr_id);
        assert_eq!(found.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), expected);
        assert_eq!(modify(pair, IBV_QPS_ERR), 0);
        assert_eq!(ibv_destroy_qp(pair), 0);
    }
}

#[test]
#[ignore = "needs an appliance"]
fn pair_flushes_after_a_failed_connect() {
    let world = World::new();
    let pair = world.create_pair();
    assert_eq!(post_recv(pair, 1, world.sge(0, 8)), 0);
    let found = QueuePair::find(pair).unwrap();
    let address = found.context().session().devices()[0].addresses[0];
    // No listener has this port.
    let remote = SocketAddr::new(address, 9);
    found.native().start_connect(remote, &ConnectOptions::default()).unwrap();
    drop(found);
    assert_eq!(world.next().wr_id, 1);
    wait("failed", || QueuePair::find(pair).unwrap().state() == IBV_QPS_ERR);
    assert_eq!(post_recv(pair, 2, world.sge(0, 8)), 0);
    assert_eq!(post_send(pair, request(3, IBV_WR_SEND, &mut world.sge(0, 8))), 0);
    let mut found = [world.next(), world.next()].map(|wc| (wc.wr_id, wc.status));
    found.sort_unstable();
    assert_eq!(found, [(2, IBV_WC_WR_FLUSH_ERR), (3, IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(ibv_destroy_qp(pair), 0);
}
