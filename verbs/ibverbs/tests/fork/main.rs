//! A forked child destroys objects that a thread of its parent uses. The test runs in its own process, so that no other
//! test holds a lock at the fork.
#![allow(unsafe_code)]

#[allow(dead_code)]
#[path = "../appliance/world.rs"]
mod world;

use std::ptr::null_mut;
use std::sync::mpsc::channel;

use ibverbs::api::completion::{ibv_create_cq, ibv_destroy_cq};
use ibverbs::api::queue_pair::ibv_destroy_qp;

use world::{LONG, World, connect, hook_next_event};

#[test]
#[ignore = "needs an appliance"]
fn forked_child_does_not_wait_for_threads_of_its_parent() {
    let world = World::new();
    let queue = ibv_create_cq(world.context, 8, null_mut(), null_mut(), 0);
    let (a, b) = (world.create_pair(), world.create_pair_with(queue, null_mut()));
    connect(a, b);
    let ((entered, is_entered), (leave, may_leave)) = (channel::<()>(), channel::<()>());
    let hook = move || {
        entered.send(()).unwrap();
        may_leave.recv_timeout(LONG).unwrap();
    };
    hook_next_event(b, Box::new(hook));
    assert_eq!(ibv_destroy_qp(a), 0);
    // The dispatcher refers to the QP, and the child has no dispatcher.
    is_entered.recv_timeout(LONG).unwrap();
    // SAFETY: no other thread holds a lock that the child needs. The child calls only this library and ends itself.
    let status = unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(LONG.as_secs() as u32);
                // The child finds no QP after the first destruction. The dispatcher's reference keeps the QP's memory
                // allocated, so its CQ stays in use.
                let destroyed = (ibv_destroy_qp(b), ibv_destroy_qp(b), ibv_destroy_cq(queue));
                libc::_exit(i32::from(destroyed != (0, libc::EINVAL, libc::EBUSY)))
            }
            child => {
                assert!(child > 0);
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status
            }
        }
    };
    assert!(libc::WIFEXITED(status), "the child did not end: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0);
    leave.send(()).unwrap();
    assert_eq!((ibv_destroy_qp(b), ibv_destroy_cq(queue)), (0, 0));
}
