//! A defect of the library ends its session with an event, and the program does not wait for ever. The session belongs
//! to the whole process, so the test runs in its own process.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use ibverbs::api::context::ibv_open_device;
use ibverbs::api::device::{ibv_free_device_list, ibv_get_device_list};
use ibverbs::api::domain::ibv_alloc_pd;
use ibverbs::api::event::ibv_get_async_event;
use ibverbs::bindings::{IBV_EVENT_DEVICE_FATAL, ibv_async_event};
use ibverbs::context::Context;
use ibverbs::dispatcher::{ConnectionEvents, SessionEvents, set_connection_events};
use ibverbs::instance::Instance;
use ibverbs::queue_pair::QueuePair;
use verbs_client::{ConnectionRequest, PairEvent, Transport};

/// A receiver of events that fails.
struct Defect;

impl SessionEvents for Defect {
    fn incoming(&self, _request: ConnectionRequest) {
        panic!("a defect, on purpose");
    }

    fn ended(&self, _instance: &Arc<Instance>) {}
}

impl ConnectionEvents for Defect {
    fn pair(&self, _pair: &Arc<QueuePair>, _event: PairEvent) {}
}

#[test]
#[ignore = "needs an appliance"]
fn panic_of_the_dispatcher_is_the_loss_of_the_device() {
    set_connection_events(&Defect);
    let mut count = 0;
    // SAFETY: this library created the pointers, and they are valid.
    let context = unsafe {
        let list = ibv_get_device_list(&raw mut count);
        assert!(!list.is_null() && count > 0, "no device: is DDPD_PROGRAMS_SOCKET set?");
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        context
    };
    let session = Context::from_ptr(context).unwrap().session().clone();
    let local = SocketAddr::new(session.devices()[0].addresses[0], 0);
    let listener = session.listen(local, Transport::Tcp, 4).unwrap();
    // A peer in another session.
    let peer = verbs_client::Session::open().unwrap();
    let queue = peer.create_completion_queue(4, None).unwrap();
    let config = verbs_client::QueuePairConfig {
        send_completions: &queue,
        receive_completions: &queue,
        max_sends: 1,
        max_receives: 1,
        copy_sources: false,
        shared_receives: None,
    };
    let pair = peer.create_domain().unwrap().create_queue_pair(&config).unwrap();
    pair.start_connect(listener.local(), &verbs_client::ConnectOptions::default()).unwrap();
    let mut event = ibv_async_event::default();
    // SAFETY: the pointers are valid.
    assert_eq!(unsafe { ibv_get_async_event(context, &raw mut event) }, 0);
    assert_eq!(event.event_type, IBV_EVENT_DEVICE_FATAL);
    assert!(ibv_alloc_pd(context).is_null());
}
