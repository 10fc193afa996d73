//! Tests without an appliance: channels, events, ids and misuse; `appliance` needs one.
#![allow(unsafe_code)]

mod appliance;

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use ibverbs::errno::{EAGAIN, EINVAL, EOPNOTSUPP, EPROTONOSUPPORT};
use ibverbs::registry::Object;
use libc::{EADDRNOTAVAIL, ENOSYS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::api::addresses::{rdma_freeaddrinfo, rdma_getaddrinfo};
use crate::api::connections::{rdma_accept, rdma_connect, rdma_disconnect, rdma_reject};
use crate::api::events::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_event_str,
    rdma_get_cm_event,
};
use crate::api::ids::{
    rdma_create_id, rdma_destroy_id, rdma_get_src_port, rdma_migrate_id, rdma_resolve_route,
    rdma_set_option,
};
use crate::api::rsockets::{rsend, rsocket};
use crate::api::unsupported::{rdma_join_multicast, rdma_leave_multicast};
use crate::bindings::*;
use crate::id::Id;
use crate::id::channel::Channel;
use crate::id::event::NewEvent;

/// Maximum wait for a result: the test then fails.
const STALL: Duration = Duration::from_secs(30);

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns the error number of a call that must fail with -1.
fn failed(result: c_int) -> c_int {
    let value = errno();
    assert_eq!(result, -1);
    value
}

fn create(channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
    let mut id = std::ptr::null_mut();
    // SAFETY: `id` is valid, and each other pointer is NULL or was created by the library.
    let result = unsafe { rdma_create_id(channel, &raw mut id, std::ptr::null_mut(), RDMA_PS_TCP) };
    assert_eq!(result, 0);
    id
}

fn take(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, c_int> {
    let mut event = std::ptr::null_mut();
    // SAFETY: `event` is valid.
    match unsafe { rdma_get_cm_event(channel, &raw mut event) } {
        0 => Ok(event),
        _ => Err(errno()),
    }
}

fn kind(event: *mut rdma_cm_event) -> rdma_cm_event_type {
    // SAFETY: an event that was not acknowledged.
    unsafe { (*event).event }
}

fn queue(id: *mut rdma_cm_id, kind: rdma_cm_event_type) {
    let id = Id::from_ptr(id).unwrap();
    let state = id.lock();
    id.push(&state, kind, 0);
}

fn is_readable(channel: *mut rdma_event_channel) -> bool {
    // SAFETY: the channel was not destroyed, so its descriptor is open.
    let fd = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

fn set_nonblocking(channel: *mut rdma_event_channel) {
    // SAFETY: as in `is_readable`.
    let fd = unsafe { BorrowedFd::borrow_raw((*channel).fd) };
    rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).unwrap();
}

#[test]
fn channel_is_readable_while_it_has_events_and_returns_them_in_order() {
    let channel = rdma_create_event_channel();
    let (one, other) = (create(channel), create(channel));
    set_nonblocking(channel);
    assert!(!is_readable(channel));
    assert_eq!(take(channel), Err(EAGAIN));
    queue(one, RDMA_CM_EVENT_ADDR_RESOLVED);
    queue(other, RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert!(is_readable(channel));
    let first = take(channel).unwrap();
    assert!(is_readable(channel));
    let second = take(channel).unwrap();
    assert!(!is_readable(channel));
    assert_eq!(take(channel), Err(EAGAIN));
    assert_eq!(
        (kind(first), kind(second)),
        (RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED)
    );
    // SAFETY: an event that was not acknowledged.
    assert_eq!(unsafe { (*first).id }, one);
    assert_eq!((rdma_ack_cm_event(first), rdma_ack_cm_event(second)), (0, 0));
    assert_eq!(failed(rdma_ack_cm_event(first)), EINVAL, "twice");
    assert_eq!((rdma_destroy_id(one), rdma_destroy_id(other)), (0, 0));
    rdma_destroy_event_channel(channel);
    assert_eq!(take(channel), Err(EINVAL));
}

#[test]
fn destroyed_id_takes_its_events_from_the_channel() {
    let channel = rdma_create_event_channel();
    let (one, other) = (create(channel), create(channel));
    queue(one, RDMA_CM_EVENT_DISCONNECTED);
    queue(other, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(rdma_destroy_id(one), 0);
    let event = take(channel).unwrap();
    assert_eq!(kind(event), RDMA_CM_EVENT_ESTABLISHED);
    assert!(!is_readable(channel));
    rdma_ack_cm_event(event);
    assert_eq!(rdma_destroy_id(other), 0);
    assert_eq!(failed(rdma_destroy_id(other)), EINVAL, "twice");
    rdma_destroy_event_channel(channel);
}

#[test]
fn destroy_and_migration_wait_for_acknowledgements() {
    let channel = rdma_create_event_channel();
    let id = create(channel);
    for migrates in [true, false] {
        queue(id, RDMA_CM_EVENT_ESTABLISHED);
        let event = take(channel).unwrap();
        let (sender, done) = std::sync::mpsc::channel();
        let (id, to) = (id.expose_provenance(), channel.expose_provenance());
        let thread = std::thread::spawn(move || {
            let id = std::ptr::with_exposed_provenance_mut(id);
            let result = match migrates {
                true => rdma_migrate_id(id, std::ptr::with_exposed_provenance_mut(to)),
                false => rdma_destroy_id(id),
            };
            sender.send(result).unwrap();
        });
        assert!(done.recv_timeout(Duration::from_millis(50)).is_err(), "without acknowledgement");
        assert_eq!(rdma_ack_cm_event(event), 0);
        assert_eq!(done.recv_timeout(STALL), Ok(0));
        thread.join().unwrap();
    }
    rdma_destroy_event_channel(channel);
}

#[test]
fn two_threads_on_a_channel_take_each_event_once() {
    const EVENTS: usize = 1000;
    let channel = Channel::create().unwrap();
    let id = Id::create(Some(channel.clone()), std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
    let (sender, taken) = self::channel();
    for _ in 0..2 {
        let (channel, sender) = (channel.clone(), sender.clone());
        // The threads wait for further events when the test ends, and end with the process.
        std::thread::spawn(move || {
            while let Ok(event) = channel.take() {
                let status = event.status();
                rdma_ack_cm_event(event.as_ptr());
                if sender.send(status).is_err() {
                    return;
                }
            }
        });
    }
    for at in 0..EVENTS {
        channel.push(NewEvent::new(&id, RDMA_CM_EVENT_ADDR_CHANGE, at as c_int));
    }
    let mut all: Vec<_> = (0..EVENTS).map(|_| taken.recv_timeout(STALL).unwrap()).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..EVENTS as c_int));
    let pointer = id.as_ptr();
    drop(id);
    assert_eq!(rdma_destroy_id(pointer), 0);
}

#[test]
fn migration_moves_events_and_changes_the_mode() {
    let (old, new) = (rdma_create_event_channel(), rdma_create_event_channel());
    let id = create(old);
    queue(id, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(rdma_migrate_id(id, new), 0);
    assert!(!is_readable(old) && is_readable(new));
    // SAFETY: the id was not destroyed.
    assert_eq!(unsafe { (*id).channel }, new);
    let event = take(new).unwrap();
    rdma_ack_cm_event(event);
    assert_eq!(rdma_migrate_id(id, std::ptr::null_mut()), 0);
    let found = Id::from_ptr(id).unwrap();
    assert!(found.lock().is_synchronous);
    queue(id, RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(found.complete(), Ok(()));
    // SAFETY: as above, and the event belongs to the id until its next call.
    assert_eq!(kind(unsafe { (*id).event }), RDMA_CM_EVENT_DISCONNECTED);
    drop(found);
    assert_eq!(rdma_destroy_id(id), 0);
    rdma_destroy_event_channel(old);
    rdma_destroy_event_channel(new);
}

#[test]
fn migration_moves_the_ids_of_queued_requests() {
    let (old, new) = (rdma_create_event_channel(), rdma_create_event_channel());
    let listener = create(old);
    let found = Id::from_ptr(listener).unwrap();
    let children: Vec<_> = (0..2).map(|_| create(old)).collect();
    for child in &children {
        let child = Id::from_ptr(*child).unwrap();
        found.lock().channel.push(NewEvent::request(&found, child));
    }
    assert_eq!(rdma_migrate_id(listener, new), 0);
    // SAFETY: the ids were not destroyed.
    let channels = || unsafe { [(*children[0]).channel, (*children[1]).channel] };
    assert_eq!(channels(), [new, new]);
    let event = take(new).unwrap();
    // SAFETY: an event that was not acknowledged.
    assert_eq!(unsafe { (*event).id }, children[0]);
    rdma_ack_cm_event(event);
    // The second request becomes synchronous, like its listener. The program has taken the first one, whose channel
    // stays.
    assert_eq!(rdma_migrate_id(listener, std::ptr::null_mut()), 0);
    let is_synchronous = |id| Id::from_ptr(id).unwrap().lock().is_synchronous;
    assert!(!is_synchronous(children[0]) && is_synchronous(children[1]));
    // SAFETY: the listener was not destroyed.
    let own = unsafe { (*listener).channel };
    assert!(channels()[0] == new && channels()[1] != own && channels()[1] != new);
    assert_eq!(rdma_migrate_id(listener, new), 0);
    assert_eq!(channels(), [new, new]);
    drop(found);
    // Destroying the listener also destroys the second request, because the program has not received its event.
    assert_eq!((rdma_destroy_id(listener), rdma_destroy_id(children[0])), (0, 0));
    assert_eq!(failed(rdma_destroy_id(children[1])), EINVAL);
    rdma_destroy_event_channel(old);
    rdma_destroy_event_channel(new);
}

#[test]
fn event_has_the_private_data_and_depths_of_the_peer() {
    let channel = rdma_create_event_channel();
    let id = create(channel);
    let found = Id::from_ptr(id).unwrap();
    let depths = verbs_client::Depths { ird: 3, ord: 1000 };
    let new = NewEvent::new(&found, RDMA_CM_EVENT_ESTABLISHED, 0);
    found.lock().channel.push(new.with(Some(depths), vec![7; 300]));
    let event = take(channel).unwrap();
    // SAFETY: an event that was not acknowledged, of a connection.
    let conn = unsafe { (*event).param.conn };
    assert_eq!((conn.responder_resources, conn.initiator_depth), (3, 255));
    assert_eq!(conn.private_data_len, 255);
    // SAFETY: as above. The private data is valid until the acknowledgement.
    let data = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), 255) };
    assert_eq!(data, [7; 255]);
    rdma_ack_cm_event(event);
    drop(found);
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
}

#[test]
fn calls_in_a_wrong_state_or_on_no_id_are_refused() {
    let id = create(std::ptr::null_mut());
    let mut no_id = rdma_cm_id::default();
    for id in [id, &raw mut no_id, std::ptr::null_mut()] {
        assert_eq!(failed(rdma_resolve_route(id, 1)), EINVAL);
        assert_eq!(failed(rdma_disconnect(id)), EINVAL);
        // SAFETY: NULL parameters are allowed.
        unsafe {
            assert_eq!(failed(rdma_connect(id, std::ptr::null_mut())), EINVAL);
            assert_eq!(failed(rdma_accept(id, std::ptr::null_mut())), EINVAL);
            assert_eq!(failed(rdma_reject(id, std::ptr::null(), 0)), EINVAL);
        }
        assert_eq!(rdma_get_src_port(id), 0);
    }
    assert_eq!(rdma_destroy_id(id), 0);
}

#[test]
fn options_have_their_sizes() {
    let id = create(std::ptr::null_mut());
    let set = |level: u32, name: u32, value: &[u8]| {
        let pointer = value.as_ptr().cast_mut().cast::<c_void>();
        let (level, name) = (level.cast_signed(), name.cast_signed());
        // SAFETY: valid for its length.
        match unsafe { rdma_set_option(id, level, name, pointer, value.len()) } {
            0 => 0,
            _ => errno(),
        }
    };
    let one = 1i32.to_ne_bytes();
    assert_eq!(set(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one), 0);
    assert_eq!(set(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one), 0);
    assert_eq!(set(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &[14]), 0);
    assert_eq!(set(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[0]), 0);
    assert_eq!(set(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[8]), EOPNOTSUPP);
    assert_eq!(set(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &[1]), EINVAL);
    assert_eq!(set(RDMA_OPTION_ID, 77, &one), ENOSYS);
    assert_eq!(set(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &one), ENOSYS);
    {
        let id = Id::from_ptr(id).unwrap();
        let state = id.lock();
        assert!(state.reuses_address && state.is_one_family);
    }
    rdma_destroy_id(id);
}

#[test]
fn functions_without_iwarp_counterpart_fail_with_their_errno() {
    let mut id = std::ptr::null_mut();
    let null = std::ptr::null_mut();
    for space in [RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB] {
        // SAFETY: `id` is valid.
        let result = unsafe { rdma_create_id(null, &raw mut id, std::ptr::null_mut(), space) };
        assert_eq!(failed(result), EPROTONOSUPPORT);
    }
    let id = create(null);
    assert_eq!(failed(rdma_join_multicast(id, std::ptr::null_mut(), null.cast())), EOPNOTSUPP);
    assert_eq!(failed(rdma_leave_multicast(id, std::ptr::null_mut())), EADDRNOTAVAIL);
    rdma_destroy_id(id);
    assert_eq!((rsocket(), errno()), (-1, EOPNOTSUPP));
    assert_eq!((rsend(), errno()), (-1, EOPNOTSUPP));
}

#[test]
fn every_event_has_a_name() {
    for event in RDMA_CM_EVENT_ADDR_RESOLVED..=RDMA_CM_EVENT_TIMEWAIT_EXIT + 1 {
        // SAFETY: a text of the library.
        let name = unsafe { std::ffi::CStr::from_ptr(rdma_event_str(event)) };
        let is_known = event <= RDMA_CM_EVENT_TIMEWAIT_EXIT;
        assert_eq!(name.to_bytes().starts_with(b"RDMA_CM_EVENT_"), is_known, "{event}");
    }
}

#[test]
fn addresses_are_resolved_for_both_sides() {
    let resolve = |node: Option<&std::ffi::CStr>, flags: u32, family: c_int| {
        let hints = rdma_addrinfo {
            ai_flags: flags.cast_signed(),
            ai_family: family,
            ..rdma_addrinfo::default()
        };
        let mut found = std::ptr::null_mut();
        let node = node.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
        // SAFETY: all pointers are valid or NULL.
        let code =
            unsafe { rdma_getaddrinfo(node, c"7471".as_ptr(), &raw const hints, &raw mut found) };
        (code, found)
    };
    for (flags, is_passive) in [(RAI_NUMERICHOST, false), (RAI_NUMERICHOST | RAI_PASSIVE, true)] {
        let (code, found) = resolve(Some(c"10.1.2.3"), flags, 0);
        assert_eq!(code, 0);
        // SAFETY: the call returned 0, so `found` is a valid list until `rdma_freeaddrinfo`.
        let info = unsafe { &*found };
        let (address, other) = match is_passive {
            true => (info.ai_src_addr, info.ai_dst_addr),
            false => (info.ai_dst_addr, info.ai_src_addr),
        };
        assert!(!address.is_null() && other.is_null());
        assert_eq!((info.ai_family, info.ai_port_space), (libc::AF_INET, RDMA_PS_TCP as c_int));
        // SAFETY: as above. It is freed once.
        unsafe { rdma_freeaddrinfo(found) };
    }
    assert_eq!(resolve(Some(c"no address"), RAI_NUMERICHOST, 0).0, libc::EAI_NONAME);
    assert_ne!(resolve(Some(c"10.1.2.3"), RAI_NUMERICHOST, libc::AF_INET6).0, 0);
    let mut found = std::ptr::null_mut();
    // SAFETY: NULL is allowed.
    let code = unsafe {
        rdma_getaddrinfo(std::ptr::null(), std::ptr::null(), std::ptr::null(), &raw mut found)
    };
    assert_eq!(failed(code), EINVAL);
}

/// The objects can be shared between threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Arc<Id>>();
    shared::<Arc<Channel>>();
};
