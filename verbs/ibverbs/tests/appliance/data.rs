//! Operations between two connected QPs.

use std::ptr::null_mut;

use ibverbs::bindings::*;
use ibverbs::queue_pair::QueuePair;
use verbs_client::{Remote, SendWork, post};

use crate::world::{World, next, post_recv, post_send, rdma, request};

#[test]
#[ignore = "needs an appliance"]
fn send_fills_the_peers_receive() {
    let world = World::new();
    let (a, b) = world.connected();
    world.write(0, b"hello peer");
    assert_eq!(post_recv(b, 7, world.sge(100, 50)), 0);
    assert_eq!(post_send(a, request(8, IBV_WR_SEND, &mut world.sge(0, 10))), 0);
    let mut found = [world.next(), world.next()];
    found.sort_by_key(|wc| wc.wr_id);
    // SAFETY: the QPs exist.
    let numbers = unsafe { [(*b).qp_num, (*a).qp_num] };
    assert_eq!(found.map(|wc| wc.status), [IBV_WC_SUCCESS; 2]);
    assert_eq!(found.map(|wc| wc.opcode), [IBV_WC_RECV, IBV_WC_SEND]);
    assert_eq!(found.map(|wc| wc.qp_num), numbers);
    assert_eq!((found[0].byte_len, found[0].wc_flags), (10, 0));
    assert_eq!(world.read(100, 10), b"hello peer");
}

#[test]
#[ignore = "needs an appliance"]
fn writes_reads_and_atomics_use_the_peers_memory() {
    let world = World::new();
    let (a, _) = world.connected();
    world.write(0, b"written");
    let to = |request, at| rdma(request, world.address(at), world.rkey());
    assert_eq!(post_send(a, to(request(1, IBV_WR_RDMA_WRITE, &mut world.sge(0, 7)), 200)), 0);
    assert_eq!(world.next().opcode, IBV_WC_RDMA_WRITE);
    assert_eq!(post_send(a, to(request(2, IBV_WR_RDMA_READ, &mut world.sge(300, 7)), 200)), 0);
    let read = world.next();
    assert_eq!((read.status, read.opcode, read.byte_len), (IBV_WC_SUCCESS, IBV_WC_RDMA_READ, 7));
    assert_eq!(world.read(300, 7), b"written");

    world.write(1024, &40_u64.to_ne_bytes());
    let mut add = request(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut world.sge(1032, 8));
    add.wr.atomic.remote_addr = world.address(1024);
    add.wr.atomic.rkey = world.rkey();
    add.wr.atomic.compare_add = 2;
    assert_eq!(post_send(a, add), 0);
    let added = world.next();
    assert_eq!((added.status, added.opcode), (IBV_WC_SUCCESS, IBV_WC_FETCH_ADD));
    assert_eq!(world.read(1032, 8), 40_u64.to_ne_bytes());
    assert_eq!(world.read(1024, 8), 42_u64.to_ne_bytes());
}

#[test]
#[ignore = "needs an appliance"]
fn write_with_immediate_is_one_request_for_both_sides() {
    let world = World::new();
    let (a, b) = world.connected();
    world.write(0, b"with data");
    assert_eq!(post_recv(b, 5, world.sge(0, 0)), 0);
    let mut write = request(6, IBV_WR_RDMA_WRITE_WITH_IMM, &mut world.sge(0, 9));
    write.__bindgen_anon_1.imm_data = 0x1234_5678_u32.to_be();
    assert_eq!(post_send(a, rdma(write, world.address(400), world.rkey())), 0);
    let mut found = [world.next(), world.next()];
    found.sort_by_key(|wc| wc.wr_id);
    assert_eq!(found.map(|wc| wc.opcode), [IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_RDMA_WRITE]);
    assert_eq!((found[0].byte_len, found[0].wc_flags), (9, IBV_WC_WITH_IMM));
    // SAFETY: the flag selects this member.
    let immediate = unsafe { found[0].__bindgen_anon_1.imm_data };
    assert_eq!(u32::from_be(immediate), 0x1234_5678);
    assert_eq!(world.read(400, 9), b"with data");
    assert!(crate::world::poll(world.queue).is_none());
}

#[test]
#[ignore = "needs an appliance"]
fn list_of_requests_is_posted_in_order_with_inline_data_and_without_completions() {
    let world = World::new();
    let (a, b) = world.connected();
    for wr_id in 0..2 {
        assert_eq!(post_recv(b, wr_id, world.sge(wr_id as usize * 16, 16)), 0);
    }
    let text = b"inline";
    let mut sge = ibv_sge { addr: text.as_ptr() as u64, length: 6, lkey: 0 };
    let mut second = request(11, IBV_WR_SEND, &mut sge);
    second.send_flags |= IBV_SEND_INLINE;
    let mut first = ibv_send_wr { wr_id: 10, send_flags: IBV_SEND_INLINE, ..second };
    first.next = &raw mut second;
    let mut bad = null_mut();
    // SAFETY: the pointers are valid.
    unsafe {
        assert_eq!((*(*a).context).ops.post_send.unwrap()(a, &raw mut first, &raw mut bad), 0);
    }
    let mut ids: Vec<_> = (0..3).map(|_| next(world.queue).wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 11]);
    assert_eq!((world.read(0, 6), world.read(16, 6)), (text.to_vec(), text.to_vec()));
}

#[test]
#[ignore = "needs an appliance"]
fn threads_on_one_pair_lose_no_request() {
    const THREADS: u64 = 4;
    const REQUESTS: u64 = 500;
    struct Pair(*mut ibv_qp);
    // SAFETY: a QP may be used by several threads.
    unsafe impl Sync for Pair {}
    let world = World::new();
    let (a, _) = world.connected();
    let (a, rkey) = (&Pair(a), world.rkey());
    let (address, sge) = (world.address(512), world.sge(0, 8));
    let mut seen = vec![0; THREADS as usize];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for number in 0..REQUESTS {
                    let mut sge = sge;
                    let write = request(thread << 32 | number, IBV_WR_RDMA_WRITE, &mut sge);
                    let write = rdma(write, address, rkey);
                    let Pair(pair) = a;
                    crate::world::wait("posted", || match post_send(*pair, write) {
                        0 => true,
                        libc::ENOMEM => false,
                        value => panic!("{value}"),
                    });
                }
            });
        }
        for _ in 0..THREADS * REQUESTS {
            let found = next(world.queue);
            assert_eq!(found.status, IBV_WC_SUCCESS);
            let thread = (found.wr_id >> 32) as usize;
            assert_eq!(found.wr_id & 0xffff_ffff, seen[thread], "the order of a thread");
            seen[thread] += 1;
        }
    });
    assert_eq!(seen, [REQUESTS; THREADS as usize]);
}

#[test]
#[ignore = "needs an appliance"]
fn length_of_a_received_write_with_immediate_is_that_of_the_placed_bytes() {
    let world = World::new();
    let (a, b) = world.connected();
    assert_eq!(post_recv(b, 5, world.sge(0, 0)), 0);
    assert_eq!(post_recv(b, 6, world.sge(0, 0)), 0);
    // The peer claims more than it has written.
    let mut claim = [0; 8];
    claim[4..].copy_from_slice(&1_000_000_u32.to_be_bytes());
    let remote = Remote { stag: world.rkey(), to: world.address(400) };
    let write = post::write(remote, post::inline(b"9 bytes..").unwrap());
    let native = QueuePair::find(a).unwrap();
    let native = native.native();
    for work in [write, post::immediate(claim), post::immediate(claim)] {
        native.post_send(&SendWork { signalled: false, ..work }).unwrap();
    }
    let found = [world.next(), world.next()];
    assert_eq!(found.map(|wc| (wc.wr_id, wc.byte_len)), [(5, 9), (6, 0)]);
    assert_eq!(found.map(|wc| wc.opcode), [IBV_WC_RECV_RDMA_WITH_IMM; 2]);
}
