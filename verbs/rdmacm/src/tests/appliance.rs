//! Tests with an appliance, whose socket `DDPD_PROGRAMS_SOCKET` names.

use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::mpsc::channel;

use ibverbs::bindings::{IBV_QPS_ERR, ibv_qp_attr, ibv_qp_init_attr_ex};
use ibverbs::device::Device;
use ibverbs::errno::EINVAL;
use ibverbs::queue_pair::QueuePair;
use ibverbs::registry::Object;
use verbs_client::ConnectOptions;

use super::STALL;
use crate::bindings::RDMA_PS_TCP;
use crate::id::channel::Channel;
use crate::id::connect::Parameters;
use crate::id::{Id, Phase};

/// Returns an address of the appliance.
fn local(port: u16) -> SocketAddr {
    let device = Device::all().unwrap()[0].info();
    let address = device.addresses.into_iter().find(|address| address.is_ipv4());
    SocketAddr::new(address.expect("an IPv4 address"), port)
}

fn new_id() -> Arc<Id> {
    Id::create(Some(Channel::create().unwrap()), null_mut(), RDMA_PS_TCP).unwrap()
}

/// Returns the QP that is created for an id.
fn new_pair(id: &Arc<Id>) -> Arc<QueuePair> {
    let mut attributes = ibv_qp_init_attr_ex::default();
    attributes.cap.max_send_wr = 4;
    attributes.cap.max_recv_wr = 4;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_sge = 1;
    id.create_pair(&mut attributes).unwrap();
    QueuePair::find(id.c().read(crate::boundary::fields::qp)).unwrap()
}

#[test]
#[ignore = "needs an appliance"]
fn ids_that_exchange_their_pairs_do_not_wait_for_each_other() {
    const ROUNDS: usize = 2000;
    let resolved = || {
        let id = new_id();
        id.resolve_address(None, local(9)).unwrap();
        id.resolve_route().unwrap();
        id
    };
    let ended = || {
        let of = resolved();
        let pair = new_pair(&of);
        let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
        pair.modify(&attr, ibverbs::bindings::IBV_QP_STATE).unwrap();
        pair
    };
    // Each connect makes its id the owner of the QP, and fails: the QP has ended.
    let (ids, pairs) = ([resolved(), resolved()], [ended().number(), ended().number()]);
    let (sender, done) = channel();
    for at in 0..2 {
        let (ids, sender) = (ids.clone(), sender.clone());
        std::thread::spawn(move || {
            for round in 0..ROUNDS {
                let qp_num = pairs[(at + round) % 2];
                let parameters = Parameters { qp_num, ..Parameters::default() };
                assert_eq!(ids[at].connect(Some(parameters)), Err(EINVAL));
            }
            sender.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        done.recv_timeout(STALL).expect("both threads wait for the lock of the other id");
    }
}

#[test]
#[ignore = "needs an appliance"]
fn requests_before_the_listen_are_removed_when_their_peers_withdraw_them() {
    let listener = new_id();
    listener.bind(local(0)).unwrap();
    let to = local(listener.source().unwrap().port());
    let count = || listener.lock().early.len();
    let wait = |what: &str, is_true: &dyn Fn() -> bool| {
        let deadline = std::time::Instant::now() + STALL;
        while !is_true() {
            assert!(std::time::Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    };
    for _ in 0..5 {
        let peer = new_id();
        peer.resolve_address(None, to).unwrap();
        let pair = new_pair(&peer);
        pair.native().start_connect(to, &ConnectOptions::default()).unwrap();
        wait("the request", &|| {
            listener.lock().early.last().is_some_and(|request| !request.is_ended())
        });
        assert_eq!(count(), 1, "earlier requests have ended");
        // Resets the connection.
        drop(pair);
        peer.destroy_pair();
        wait("its end", &|| listener.lock().early.iter().all(|request| request.is_ended()));
    }
    assert_eq!(listener.lock().phase, Phase::Bound);
    let pointer = listener.as_ptr();
    drop(listener);
    Id::destroy(pointer).unwrap();
}
