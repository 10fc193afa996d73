//! Events of completion channels, and asynchronous events.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::channel;
use std::time::Duration;

use ibverbs::api::completion::{
    ibv_ack_cq_events, ibv_create_cq, ibv_destroy_cq, ibv_get_cq_event,
};
use ibverbs::api::event::{ibv_ack_async_event, ibv_get_async_event};
use ibverbs::api::queue_pair::ibv_destroy_qp;
use ibverbs::api::shared_receives::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq};
use ibverbs::bindings::*;
use ibverbs::completion_queue::CompletionQueue;
use ibverbs::queue_pair::QueuePair;
use ibverbs::registry::Object;
use ibverbs::report;
use ibverbs::shared_receives::SharedReceiveQueue;

use crate::world::{
    LONG, World, connect, hook_next_event, modify, next, post_recv, post_send, receive, request,
    wait, wait_for_end,
};

fn arm(queue: *mut ibv_cq, solicited: bool) {
    // SAFETY: the queue exists.
    unsafe { (*(*queue).context).ops.req_notify_cq.unwrap()(queue, solicited.into()) };
}

/// Waits for the next event of a context, and acknowledges it. Returns its type and element.
fn next_event(context: *mut ibv_context) -> (ibv_event_type, *mut c_void) {
    let mut event = ibv_async_event::default();
    // SAFETY: the pointers are valid, and all members of the union are pointers.
    unsafe {
        assert_eq!(ibv_get_async_event(context, &raw mut event), 0);
        ibv_ack_async_event(&raw mut event);
        (event.event_type, event.element.qp.cast())
    }
}

#[test]
#[ignore = "needs an appliance"]
fn event_names_the_notified_queue_of_a_channel() {
    let world = World::new();
    let its_context = std::ptr::without_provenance_mut::<c_void>(77);
    let other = ibv_create_cq(world.context, 8, its_context, world.channel, 0);
    let (a, b) = (world.create_pair(), world.create_pair_with(other, null_mut()));
    connect(a, b);
    arm(world.queue, true);
    arm(other, false);
    assert_eq!(post_recv(b, 1, world.sge(0, 8)), 0);
    assert_eq!(post_send(a, request(2, IBV_WR_SEND, &mut world.sge(8, 8))), 0);
    let (mut queue, mut found) = (null_mut(), null_mut());
    // SAFETY: the pointers are valid.
    unsafe {
        assert_eq!(ibv_get_cq_event(world.channel, &raw mut queue, &raw mut found), 0);
    }
    assert_eq!((queue, found), (other, its_context));
    ibv_ack_cq_events(queue, 1);
    assert_eq!(next(other).wr_id, 1);
    assert_eq!(ibv_destroy_cq(other), libc::EBUSY);
    assert_eq!((ibv_destroy_qp(b), ibv_destroy_cq(other)), (0, 0));
}

/// Requests events as perftest does: its polls leave completions in the CQ.
#[test]
#[ignore = "needs an appliance"]
fn completions_before_the_request_are_an_event() {
    let world = World::new();
    let (a, b) = world.connected();
    let idle = ibv_create_cq(world.context, 8, null_mut(), world.channel, 0);
    arm(idle, false);
    arm(world.queue, false);
    for wr_id in 0..3 {
        assert_eq!(post_recv(b, wr_id, world.sge(0, 8)), 0);
        assert_eq!(post_send(a, request(wr_id + 10, IBV_WR_SEND, &mut world.sge(8, 8))), 0);
    }
    // SAFETY: the descriptor is open.
    unsafe {
        assert_eq!(libc::fcntl((*world.channel).fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
    }
    let take = || {
        let (mut queue, mut found) = (null_mut(), null_mut());
        // SAFETY: the pointers are valid.
        let result = unsafe { ibv_get_cq_event(world.channel, &raw mut queue, &raw mut found) };
        (result == 0).then(|| {
            assert_eq!(queue, world.queue);
            ibv_ack_cq_events(queue, 1);
        })
    };
    wait("the first event", || take().is_some());
    let mut count = 0;
    while count < 6 {
        arm(world.queue, false);
        wait("a completion that is not polled, or a later one", || take().is_some());
        count += usize::from(crate::world::poll(world.queue).is_some());
    }
    arm(world.queue, false);
    // The worker may have sent one signal too many for the last request that it served.
    assert!((0..3).any(|_| take().is_none()), "the CQ is empty");
}

#[test]
#[ignore = "needs an appliance"]
fn channel_without_an_event_does_not_block_a_non_blocking_program() {
    let world = World::new();
    // SAFETY: the pointers are valid, and the descriptor is open.
    unsafe {
        let fd = (*world.channel).fd;
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
        let (mut queue, mut found) = (null_mut(), null_mut());
        assert_eq!(ibv_get_cq_event(world.channel, &raw mut queue, &raw mut found), -1);
        assert_eq!(crate::world::errno(), libc::EAGAIN);
        let fd = (*world.context).async_fd;
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
        let mut event = ibv_async_event::default();
        assert_eq!(ibv_get_async_event(world.context, &raw mut event), -1);
        assert_eq!(crate::world::errno(), libc::EAGAIN);
    }
}

#[test]
#[ignore = "needs an appliance"]
fn shared_receives_serve_a_pair_and_report_their_limit() {
    let world = World::new();
    let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
    // SAFETY: the pointers are valid.
    let shared = unsafe { ibv_create_srq(world.domain, &raw mut init) };
    let (a, b) = (world.create_pair(), world.create_pair_with(world.queue, shared));
    for wr_id in 0..3 {
        let mut sge = world.sge(64, 8);
        let mut receive = receive(wr_id, &mut sge);
        let mut bad = null_mut();
        // SAFETY: the pointers are valid.
        unsafe {
            let post = (*world.context).ops.post_srq_recv.unwrap();
            assert_eq!(post(shared, &raw mut receive, &raw mut bad), 0);
        }
    }
    let mut attr = ibv_srq_attr { srq_limit: 3, ..attr };
    // SAFETY: the pointers are valid.
    let limited = unsafe { ibv_modify_srq(shared, &raw mut attr, IBV_SRQ_LIMIT as i32) };
    assert_eq!(limited, 0);
    connect(a, b);
    assert_eq!(post_send(a, request(9, IBV_WR_SEND, &mut world.sge(0, 8))), 0);
    let mut ids = [world.next().wr_id, world.next().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [0, 9]);
    let (kind, element) = next_event(world.context);
    assert_eq!((kind, element), (IBV_EVENT_SRQ_LIMIT_REACHED, shared.cast()));
    assert_eq!(ibv_destroy_srq(shared), libc::EBUSY);
    assert_eq!(ibv_destroy_qp(a), 0);
    let (kind, element) = next_event(world.context);
    assert_eq!((kind, element), (IBV_EVENT_QP_LAST_WQE_REACHED, b.cast()));
    assert_eq!((ibv_destroy_qp(b), ibv_destroy_srq(shared)), (0, 0));
}

#[test]
#[ignore = "needs an appliance"]
fn queue_is_unused_after_its_pair_is_destroyed_during_an_event() {
    let world = World::new();
    let queue = ibv_create_cq(world.context, 8, null_mut(), null_mut(), 0);
    let (a, b) = (world.create_pair(), world.create_pair_with(queue, null_mut()));
    connect(a, b);
    let ((entered, is_entered), (leave, may_leave)) = (channel::<()>(), channel::<()>());
    let pointer = b.expose_provenance();
    let hook = move || {
        entered.send(()).unwrap();
        let pointer = std::ptr::with_exposed_provenance_mut(pointer);
        wait("removed", || QueuePair::find(pointer).is_err());
        // A destruction that wrongly does not wait for this function ends within this time.
        let _ = may_leave.recv_timeout(Duration::from_millis(200));
    };
    hook_next_event(b, Box::new(hook));
    assert_eq!(ibv_destroy_qp(a), 0);
    is_entered.recv_timeout(LONG).unwrap();
    assert_eq!((ibv_destroy_qp(b), ibv_destroy_cq(queue)), (0, 0));
    drop(leave);
}

#[test]
#[ignore = "needs an appliance"]
fn transitions_of_a_program_that_is_later_than_the_connection_manager_keep_the_pair_connected() {
    let world = World::new();
    let (a, _) = world.connected();
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        assert_eq!(modify(a, state), 0);
        assert_eq!(QueuePair::find(a).unwrap().state(), IBV_QPS_RTS);
    }
    assert_eq!(modify(a, IBV_QPS_RESET), libc::EOPNOTSUPP);
}

#[test]
#[ignore = "needs an appliance"]
fn overflow_of_a_completion_queue_is_an_event_of_the_queue() {
    let world = World::new();
    let small = ibv_create_cq(world.context, 1, null_mut(), null_mut(), 0);
    // The queue has more room than requested, but not for the requests of so many QPs.
    let pairs: Vec<_> = (0..6).map(|_| world.create_pair_with(small, null_mut())).collect();
    pairs.iter().for_each(|pair| connect(*pair, world.create_pair()));
    for pair in &pairs {
        let write = |wr_id| {
            let write = request(wr_id, IBV_WR_RDMA_WRITE, &mut world.sge(0, 8));
            post_send(*pair, crate::world::rdma(write, world.address(64), world.rkey()))
        };
        assert!((0..16).all(|wr_id| write(wr_id) == 0));
        // A QP cannot fill the CQ alone. Once the CQ has failed, the requests are flushed.
        // SAFETY: the QP exists.
        let has_ended = || unsafe { (&raw const (**pair).state).read_volatile() } == IBV_QPS_ERR;
        assert!(write(16) == libc::ENOMEM || has_ended());
    }
    let mut failed = 0;
    loop {
        match next_event(world.context) {
            (IBV_EVENT_CQ_ERR, queue) => {
                assert_eq!(queue, small.cast());
                break;
            }
            (IBV_EVENT_QP_FATAL, _) => failed += 1,
            event => panic!("{event:?}"),
        }
    }
    assert!(failed <= pairs.len());
}

/// Calls `destroy` in another thread, which must wait for the acknowledgement of an event. Acknowledges the event once
/// `is_found` returns false, which shows that the destruction has begun.
fn destroy_during_an_event(
    destroy: impl FnOnce() -> i32 + Send,
    is_found: impl Fn() -> bool,
    acknowledge: impl FnOnce(),
) {
    std::thread::scope(|scope| {
        let (sender, done) = channel();
        scope.spawn(move || sender.send(destroy()).unwrap());
        wait("destroyed", || !is_found());
        assert!(done.try_recv().is_err(), "the event is not acknowledged");
        acknowledge();
        let result = done.recv_timeout(LONG).unwrap_or_else(|_| {
            // The other thread would never end, so the test could not end either.
            report::line(format_args!("an acknowledgement has no effect"));
            std::process::abort()
        });
        assert_eq!(result, 0);
    });
}

/// Takes the next event of a context.
fn take_event(context: *mut ibv_context) -> ibv_async_event {
    let mut event = ibv_async_event::default();
    // SAFETY: the pointers are valid.
    assert_eq!(unsafe { ibv_get_async_event(context, &raw mut event) }, 0);
    event
}

#[test]
#[ignore = "needs an appliance"]
fn events_can_be_acknowledged_while_their_object_is_being_destroyed() {
    let world = World::new();
    let queue = ibv_create_cq(world.context, 8, null_mut(), world.channel, 0);
    let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
    // SAFETY: the pointers are valid.
    let shared = unsafe { ibv_create_srq(world.domain, &raw mut init) };
    let (a, b) = (world.create_pair(), world.create_pair_with(queue, shared));
    connect(a, b);
    // An event of the SRQ: there are fewer receives than the limit.
    let mut attr = ibv_srq_attr { srq_limit: 1, ..attr };
    // SAFETY: the pointers are valid.
    assert_eq!(unsafe { ibv_modify_srq(shared, &raw mut attr, IBV_SRQ_LIMIT as i32) }, 0);
    let mut of_shared = take_event(world.context);
    assert_eq!(of_shared.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    // An event of the QP, and a notification of its CQ.
    arm(queue, false);
    assert_eq!(ibv_destroy_qp(a), 0);
    let mut of_pair = take_event(world.context);
    assert_eq!(of_pair.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    assert_eq!(post_send(b, request(1, IBV_WR_SEND, &mut world.sge(0, 8))), 0);
    let (mut notified, mut found) = (null_mut(), null_mut());
    // SAFETY: the pointers are valid.
    unsafe {
        assert_eq!(ibv_get_cq_event(world.channel, &raw mut notified, &raw mut found), 0);
    }
    assert_eq!(notified, queue);

    let pointers = (b.expose_provenance(), queue.expose_provenance(), shared.expose_provenance());
    destroy_during_an_event(
        || ibv_destroy_qp(std::ptr::with_exposed_provenance_mut(pointers.0)),
        || QueuePair::find(b).is_ok(),
        // SAFETY: the event was taken and not acknowledged.
        || unsafe { ibv_ack_async_event(&raw mut of_pair) },
    );
    destroy_during_an_event(
        || ibv_destroy_cq(std::ptr::with_exposed_provenance_mut(pointers.1)),
        || CompletionQueue::find(queue).is_ok(),
        || ibv_ack_cq_events(queue, 1),
    );
    destroy_during_an_event(
        || ibv_destroy_srq(std::ptr::with_exposed_provenance_mut(pointers.2)),
        || SharedReceiveQueue::from_ptr(shared).is_ok(),
        // SAFETY: as above.
        || unsafe { ibv_ack_async_event(&raw mut of_shared) },
    );
}

#[test]
#[ignore = "needs an appliance"]
fn last_receive_of_a_failed_pair_is_reported_once() {
    let world = World::new();
    let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
    // SAFETY: the pointers are valid.
    let shared = unsafe { ibv_create_srq(world.domain, &raw mut init) };
    let (a, b) = (world.create_pair(), world.create_pair_with(world.queue, shared));
    connect(a, b);
    // SAFETY: the descriptor is open.
    let set = unsafe { libc::fcntl((*world.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(set, 0);
    let drain = || {
        let mut kinds = Vec::new();
        let mut event = ibv_async_event::default();
        // SAFETY: the pointers are valid.
        while unsafe { ibv_get_async_event(world.context, &raw mut event) } == 0 {
            // SAFETY: the event was just taken.
            unsafe { ibv_ack_async_event(&raw mut event) };
            kinds.push(event.event_type);
        }
        kinds
    };
    let ((failed, has_failed), (leave, may_leave)) = (channel::<()>(), channel::<()>());
    // The first event is the failure. The dispatcher waits after it.
    let hook = move || {
        failed.send(()).unwrap();
        may_leave.recv_timeout(LONG).unwrap();
    };
    hook_next_event(b, Box::new(hook));
    let mut sge = ibv_sge { lkey: world.sge(0, 8).lkey ^ 0xff00, ..world.sge(0, 8) };
    assert_eq!(post_send(b, request(1, IBV_WR_SEND, &mut sge)), 0);
    has_failed.recv_timeout(LONG).unwrap();
    let mut kinds = drain();
    leave.send(()).unwrap();
    wait_for_end(b);
    kinds.extend(drain());
    assert_eq!(kinds, [IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED]);
    assert_eq!((ibv_destroy_qp(b), ibv_destroy_srq(shared)), (0, 0));
}
