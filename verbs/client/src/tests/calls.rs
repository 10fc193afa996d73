//! Tests of calls, their refusals, events, and the creation and removal of objects.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketType;

use super::world::{ARENA, Appliance, WORKERS, sockets};
use super::{ALL, LONG, Side, TempDirectory, connect, create_pair};
use crate::{
    AcceptOptions, ConnectOptions, Error, Event, MemoryAccess, PairEvent, RefusalKind, Session,
    Transport,
};

fn is_readable(descriptor: impl AsFd) -> bool {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&none)).unwrap() == 1
}

#[test]
fn session_has_limits_and_devices() {
    let session = Appliance::start().session();
    assert_eq!(session.limits().posts, 1024);
    assert_eq!(session.devices()[0].name, "ring0");
    assert_eq!((session.workers(), session.arena_len()), (WORKERS as u16, ARENA));
    assert!(session.end_reason().is_none());
}

#[test]
fn session_opens_at_its_path_and_reports_a_missing_one() {
    let directory = TempDirectory::new("calls");
    let path = directory.socket();
    assert!(matches!(Session::connect(&path), Err(Error::Connect { .. })));
    Appliance::start().listen(&path);
    assert!(Session::connect(&path).unwrap().create_domain().is_ok());
}

#[test]
fn memory_is_zero_private_and_used_again() {
    let session = Appliance::start().session();
    let domain = session.create_domain().unwrap();
    let first = domain.alloc(5000, ALL).unwrap();
    let second = domain.alloc(4096, ALL).unwrap();
    assert_eq!((first.len(), first.buffer().unwrap().len()), (5000, 8192));
    assert!(first.address().abs_diff(second.address()) >= 4096);
    for (at, len) in [(0, 1), (1, 30), (7, 9), (8, 64), (4990, 10), (13, 4000)] {
        let bytes: Vec<u8> = (0..len).map(|n| (n + at) as u8).collect();
        first.write(at, &bytes);
        let mut read = vec![0; len];
        first.read(at, &mut read);
        assert_eq!(read, bytes, "{len} bytes at {at}");
    }
    assert_eq!(first.bytes()[4990].load(std::sync::atomic::Ordering::Relaxed), 4990u32 as u8);
    let mut untouched = [1; 16];
    second.read(0, &mut untouched);
    assert_eq!(untouched, [0; 16]);
    let address = first.address();
    drop(first);
    let third = domain.alloc(8192, ALL).unwrap();
    assert_eq!(third.address(), address);
    assert!(third.bytes().iter().all(|b| b.load(std::sync::atomic::Ordering::Relaxed) == 0));
}

#[test]
fn arena_is_bounded_and_regions_share_buffers() {
    let session = Appliance::start().session();
    let domain = session.create_domain().unwrap();
    let whole = session.allocate(ARENA as usize).unwrap();
    assert!(matches!(session.allocate(1), Err(Error::ArenaFull(1))));
    assert!(matches!(session.allocate(usize::MAX), Err(Error::ArenaFull(_))));
    assert!(matches!(session.allocate(0), Err(Error::Argument(_))));
    let a = domain.register_buffer(&whole, 100..5000, ALL).unwrap();
    let b = domain.register_buffer(&whole, 4096..8192, MemoryAccess::default()).unwrap();
    a.write(4000, b"shared");
    let mut read = [0; 6];
    b.read(4, &mut read);
    assert_eq!(&read, b"shared");
    assert_eq!(a.remote(5).to, whole.address() + 105);
    for range in [0..0, 8192..ARENA as usize + 1, std::ops::Range { start: 5, end: 4 }] {
        assert!(matches!(domain.register_buffer(&whole, range, ALL), Err(Error::Argument(_))));
    }
    assert!(matches!(a.sge(0..4901), Err(Error::Argument(_))));
    drop(whole);
    assert!(session.allocate(1).is_err(), "regions keep the buffer");
    a.deregister().unwrap();
    drop(b);
    assert!(session.allocate(1).is_ok());
}

#[test]
fn objects_are_removed_in_any_order_of_drops() {
    let appliance = Appliance::start();
    let session = appliance.session();
    let program = session.program();
    let Side { pair, completions, channel, memory, domain, session } = Side::new(session, 4);
    drop((session, domain, channel, completions));
    drop(pair);
    drop(memory);
    // The drop of the last object ends the session, and the appliance removes the session's QPs.
    let gone = appliance.with(|world| world.programs.get(&program).map(|p| p.pairs.len()));
    assert!(gone.is_none_or(|pairs| pairs == 0));
}

#[test]
fn refusals_are_returned_and_objects_of_other_sessions_are_refused() {
    let appliance = Appliance::start();
    let (one, other) = (appliance.session(), appliance.session());
    let refused = one.create_completion_queue(1 << 20, None).unwrap_err();
    assert!(matches!(refused, Error::Refused(refusal) if refusal.kind == RefusalKind::Limit));
    let channel = other.create_channel().unwrap();
    assert!(matches!(one.create_completion_queue(4, Some(&channel)), Err(Error::Argument(_))));
    let buffer = other.allocate(1).unwrap();
    let domain = one.create_domain().unwrap();
    assert!(matches!(domain.register_buffer(&buffer, 0..1, ALL), Err(Error::Argument(_))));
    let queue = one.create_completion_queue(4, None).unwrap();
    assert!(matches!(queue.arm(crate::Request::Next), Err(Error::State(_))));
    assert!(matches!(queue.next(LONG), Err(Error::State(_))));
    let local = "127.0.0.1:7".parse().unwrap();
    let _listener = one.listen(local, Transport::Tcp, 1).unwrap();
    let refused = other.listen(local, Transport::Tcp, 1).unwrap_err();
    assert!(matches!(refused, Error::Refused(refusal) if refusal.kind == RefusalKind::InUse));
}

#[test]
fn connect_reports_failure_and_rejection_and_is_possible_once_per_pair() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 4), appliance.session());
    let missing = "127.0.0.1:9".parse().unwrap();
    let failed = client.pair.connect(missing, &ConnectOptions::default());
    assert!(matches!(failed, Err(Error::ConnectFailed { unreachable: false, refused: true, .. })));
    let again = client.pair.connect(missing, &ConnectOptions::default());
    assert!(matches!(again, Err(Error::State(_))));
    let long = ConnectOptions { private_data: vec![0; 509], ..ConnectOptions::default() };
    let second = create_pair(&client.domain, &client.completions, 4);
    assert!(matches!(second.connect(missing, &long), Err(Error::Argument(_))));
    let never = ConnectOptions { timeout: Duration::ZERO, ..ConnectOptions::default() };
    assert!(matches!(second.connect(missing, &never), Err(Error::Argument(_))));
    let listener = server.listen("127.0.0.1:0".parse().unwrap(), Transport::Tcp, 4).unwrap();
    second.start_connect(listener.local(), &ConnectOptions::default()).unwrap();
    let request = listener.next_request(LONG).unwrap().unwrap();
    request.reject(b"no").unwrap();
    let event = second.next_event(LONG).unwrap();
    assert_eq!(event, Some(PairEvent::Rejected { private_data: b"no".to_vec() }));
    let third = create_pair(&client.domain, &client.completions, 4);
    third.start_connect(listener.local(), &ConnectOptions::default()).unwrap();
    drop(listener.next_request(LONG).unwrap().unwrap());
    let event = third.next_event(LONG).unwrap();
    assert_eq!(event, Some(PairEvent::Rejected { private_data: Vec::new() }));
}

#[test]
fn route_returns_the_local_address_or_is_refused() {
    let appliance = Appliance::start();
    let session = appliance.session();
    let (peer, other) = ("127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
    assert_eq!(session.route(peer, None).unwrap(), peer);
    let refused = session.route(other, None).unwrap_err();
    assert!(matches!(refused, Error::Refused(refusal) if refusal.kind == RefusalKind::Unreachable));
}

#[test]
fn session_reports_events_of_all_objects_once() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 4), Side::new(appliance.session(), 4));
    let local = "127.0.0.1:0".parse().unwrap();
    let listener = server.session.listen(local, Transport::Tcp, 4).unwrap();
    assert!(server.session.next_event(Some(Duration::ZERO)).unwrap().is_none());
    assert!(!is_readable(&server.session));
    client.pair.start_connect(listener.local(), &ConnectOptions::default()).unwrap();
    let event = server.session.next_event(LONG).unwrap().unwrap();
    let Event::Incoming(request) = event else { panic!("{event:?}") };
    assert_eq!(request.listener(), listener.number());
    request.start_accept(&server.pair, &AcceptOptions::default()).unwrap();
    for side in [&client, &server] {
        let event = side.session.next_event(LONG).unwrap().unwrap();
        let Event::Pair { pair, event: PairEvent::Established(_) } = event else {
            panic!("{event:?}")
        };
        assert_eq!(pair, side.pair.number());
        assert!(!is_readable(&side.session));
    }
    client.pair.disconnect(Duration::from_secs(20)).unwrap();
    assert!(client.session.next_event(Some(Duration::ZERO)).unwrap().is_none());
    let event = server.session.next_event(LONG).unwrap().unwrap();
    let Event::Pair { event: PairEvent::Disconnected { graceful, .. }, .. } = event else {
        panic!("{event:?}")
    };
    assert!(graceful);
    let work = crate::post::send(crate::post::inline(b"x").unwrap());
    assert!(matches!(client.pair.post_send(&work), Err(Error::Ended(_))));
}

#[test]
fn outcome_of_a_connect_is_not_taken_by_the_session() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 4), Side::new(appliance.session(), 4));
    let waits = std::thread::spawn({
        let session = client.session.clone();
        move || session.next_event(LONG)
    });
    connect(&client.pair, &server.pair, &server.session);
    server.pair.start_disconnect().unwrap();
    let event = waits.join().unwrap().unwrap().unwrap();
    assert!(
        matches!(event, Event::Pair { event: PairEvent::Disconnected { .. }, .. }),
        "{event:?}"
    );
}

#[test]
fn vanished_appliance_ends_calls_posts_and_waits() {
    let appliance = Appliance::start();
    let (client, server) = (Side::new(appliance.session(), 4), Side::new(appliance.session(), 4));
    connect(&client.pair, &server.pair, &server.session);
    let waits = std::thread::spawn({
        let session = server.session.clone();
        move || session.next_event(None)
    });
    let waits_too = std::thread::spawn({
        let (channel, pair) = (server.channel.clone(), server.pair.clone());
        move || (channel.wait(None), pair.next_event(None))
    });
    appliance.stop();
    let gone = |error: &Error| matches!(error, Error::Disconnected(_));
    assert!(gone(&waits.join().unwrap().unwrap_err()));
    let (channel, pair) = waits_too.join().unwrap();
    assert!(gone(&channel.unwrap_err()) && gone(&pair.unwrap_err()));
    assert!(gone(&client.session.next_event(LONG).unwrap_err()));
    assert!(is_readable(&client.session));
    assert!(gone(&client.session.create_domain().unwrap_err()));
    assert!(gone(&client.domain.alloc(1, ALL).unwrap_err()));
    assert!(gone(&client.completions.poll_one().unwrap_err()));
    let work = crate::post::send(crate::post::inline(b"x").unwrap());
    assert!(gone(&client.pair.post_send(&work).unwrap_err()));
    client.memory.write(0, b"still mapped");
    assert!(client.session.end_reason().is_some());
}

#[test]
fn socket_that_closes_before_the_first_answer_is_an_error() {
    let (ours, theirs) = sockets(SocketType::SEQPACKET);
    drop(ours);
    assert!(matches!(Session::from_socket(theirs), Err(Error::Disconnected(_))));
}
