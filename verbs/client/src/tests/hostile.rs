//! Tests with appliances that break the protocol, the layout of shared memory or the rules of its queues. The library
//! must return from each call, stay within the mapped memory and never panic.
//!
//! A queue in an area must have an offset that is a multiple of 128 bytes and not in the area's header, and a capacity
//! that is a power of two. The queues of an area must not overlap.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use proptest::prelude::*;
use rustix::net::SocketType;
use verbs_layout::session::HEADER_WORDS;
use verbs_layout::version::VERSION;
use verbs_layout::{completion, ring};
use verbs_session::message::{
    Answer, Call, Event, Message, Refusal, RefusalKind, Reply, Request, Ring, Welcome,
};
use verbs_session::socket::SessionSocket;

use super::world::{DEPTHS, area, first_parts, post, receive, sealed_file, sockets, welcome};
use super::{ALL, LONG};
use crate::mapping::Area;
use crate::{
    CompletionQueue, ConnectOptions, Error, ProtectionDomain, QueuePair, QueuePairConfig, Session,
    Transport, post as posts,
};

pub(super) type Fds = Vec<OwnedFd>;

/// Opens a session with an appliance whose first answer is valid and which calls `script` for each later request.
pub(super) fn scripted(script: impl FnMut(&SessionSocket, Request) + Send + 'static) -> Session {
    opened(welcome(1), first_parts().2, script).unwrap()
}

/// Opens a session with an appliance that answers `Hello` with `first` and `descriptors`, and calls `script` for each
/// later request.
fn opened(
    first: Welcome,
    descriptors: Fds,
    mut script: impl FnMut(&SessionSocket, Request) + Send + 'static,
) -> Result<Session, Error> {
    let (ours, theirs) = sockets(SocketType::SEQPACKET);
    std::thread::spawn(move || {
        let socket = SessionSocket::new(ours);
        let hello = receive(&socket).unwrap();
        reply(&socket, hello.id, Ok(Answer::Welcome(first)), &descriptors);
        drop(descriptors);
        while let Some(request) = receive(&socket) {
            script(&socket, request);
        }
    });
    Session::from_socket(theirs)
}

pub(super) fn reply(
    socket: &SessionSocket,
    id: u32,
    result: Result<Answer, Refusal>,
    fds: &[OwnedFd],
) {
    post(socket, &Message::Reply(Reply { id, result }), fds);
}

fn event(socket: &SessionSocket, event: Event) {
    post(socket, &Message::Event(event), &[]);
}

pub(super) const CAPACITY: u32 = 8;

fn create_pair(domain: &ProtectionDomain, queue: &CompletionQueue) -> Result<QueuePair, Error> {
    domain.create_queue_pair(&QueuePairConfig {
        send_completions: queue,
        receive_completions: queue,
        max_sends: 1,
        max_receives: 1,
        copy_sources: false,
        shared_receives: None,
    })
}

/// Returns a valid answer to a call, for an appliance with two workers that numbers each object 1. The areas of CQs and
/// QPs are sent to `areas`.
pub(super) fn honest(call: &Call, areas: &Sender<&'static Area>) -> (Answer, Fds) {
    let number = 1;
    let at = HEADER_WORDS as u64 * 8;
    match call {
        Call::CreatePd => (Answer::Created { number }, Vec::new()),
        Call::CreateChannel => (Answer::Created { number }, vec![sockets(SocketType::STREAM).1]),
        Call::RegisterMemory { .. } => (Answer::Registered { stag: 256 }, Vec::new()),
        Call::CreateCompletionQueue { .. } => {
            let bytes = completion::words(CAPACITY as usize) as u64 * 8;
            let (area, file) = area(at + 2 * bytes);
            areas.send(area).unwrap();
            let offsets = vec![at, at + bytes];
            (Answer::CompletionQueue { queue: number, capacity: CAPACITY, offsets }, vec![file])
        }
        Call::CreateQueuePair { .. } => {
            let bytes = ring::words(CAPACITY as usize) as u64 * 8;
            let (area, file) = area(at + 2 * bytes);
            areas.send(area).unwrap();
            let sends = Ring { offset: at, capacity: CAPACITY };
            let receives = Ring { offset: at + bytes, capacity: CAPACITY };
            (Answer::QueuePair { pair: number, sends, receives: Some(receives) }, vec![file])
        }
        Call::Listen { local, .. } => {
            (Answer::Listening { listener: number, local: *local }, Vec::new())
        }
        _ => (Answer::Done, Vec::new()),
    }
}

/// Creates one object of each kind, connects, posts and polls. Returns how many of 7 calls succeeded: six creations and
/// the connect.
fn call_all(session: &Session) -> usize {
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut succeeded = 0;
    let mut count = |is_ok: bool| succeeded += usize::from(is_ok);
    let channel = session.create_channel();
    count(channel.is_ok());
    let queue = session.create_completion_queue(CAPACITY, channel.as_ref().ok());
    let domain = session.create_domain();
    count(queue.is_ok());
    count(domain.is_ok());
    let listener = session.listen(local, Transport::Tcp, 2);
    count(listener.is_ok());
    if let Ok(domain) = &domain {
        count(domain.alloc(100, ALL).is_ok());
        if let Ok(queue) = &queue {
            let pair = create_pair(domain, queue);
            count(pair.is_ok());
            if let Ok(pair) = pair {
                let work = posts::send(posts::inline(b"x").unwrap());
                count(pair.start_connect(local, &ConnectOptions::default()).is_ok());
                (0..40).for_each(|_| drop(pair.post_send(&work)));
                let _ = (pair.start_disconnect(), pair.next_event(Some(Duration::ZERO)));
            }
            let _ = (queue.poll_one(), queue.arm(crate::Request::Next));
        }
    }
    if let Ok(listener) = listener {
        let _ = listener.next_request(Some(Duration::ZERO));
    }
    let _ = session.next_event(Some(Duration::ZERO));
    succeeded
}

#[test]
fn replies_in_any_order_with_events_between_reach_their_callers() {
    let mut first = None;
    let session = scripted(move |socket, request| match (first.take(), &request.call) {
        (None, Call::CreatePd) => first = Some(request.id),
        (Some(before), Call::CreatePd) => {
            let number = 2;
            reply(socket, request.id, Ok(Answer::Created { number }), &[]);
            event(socket, Event::Rejected { pair: 77, private_data: vec![] });
            event(socket, Event::RequestEnded { request: 5 });
            reply(socket, before, Ok(Answer::Created { number: 1 }), &[]);
        }
        _ => reply(socket, request.id, Ok(Answer::Done), &[]),
    });
    std::thread::scope(|scope| {
        let calls = [0, 1].map(|_| scope.spawn(|| session.create_domain().unwrap()));
        let mut numbers = calls.map(|call| call.join().unwrap().number());
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2]);
    });
    assert_eq!(session.unmatched_events(), 2);
}

#[test]
fn honest_script_carries_out_every_call() {
    let (areas, _kept) = channel();
    let session = scripted(move |socket, request| {
        let (answer, fds) = honest(&request.call, &areas);
        reply(socket, request.id, Ok(answer), &fds);
    });
    assert_eq!(call_all(&session), 7);
    assert!(session.end_reason().is_none());
}

#[test]
fn impossible_first_answers_are_refused() {
    let assert_refused = |first: Welcome, fds: Fds| {
        let error = opened(first, fds, |_, _| ()).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
    };
    let parts = || first_parts().2;
    for version in [0, VERSION + 1, u32::MAX] {
        assert_refused(Welcome { version, ..welcome(1) }, parts());
    }
    for workers in [0, 1, 3, u16::MAX] {
        assert_refused(Welcome { workers, ..welcome(1) }, parts());
    }
    for arena in [0, 1, 4096, 1 << 50, u64::MAX, welcome(1).arena + 4096] {
        assert_refused(Welcome { arena, ..welcome(1) }, parts());
    }
    assert_refused(welcome(1), Vec::new());
    // Files that are refused: an arena that can shrink, sockets, an area that is too short, files without a header, and
    // an area with a forged header.
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, welcome(1).arena).unwrap();
    let replace = |at: usize, file: OwnedFd| {
        let mut fds = parts();
        fds[at] = file;
        assert_refused(welcome(1), fds);
    };
    replace(0, unsealed);
    replace(0, sockets(SocketType::STREAM).0);
    replace(1, sockets(SocketType::STREAM).0);
    replace(1, area(256).1);
    replace(3, sealed_file(4096));
    replace(3, sealed_file(0));
    let (forged, file) = area(4096);
    forged.words()[4].store(0, std::sync::atomic::Ordering::Relaxed);
    replace(1, file);
}

#[test]
fn reply_without_call_events_with_descriptors_and_other_packets_end_the_session() {
    let assert_ends_session = |misbehave: fn(&SessionSocket, Request)| {
        let session = scripted(misbehave);
        let error = session.create_domain().unwrap_err();
        assert!(matches!(error, Error::Disconnected(_) | Error::Protocol(_)), "{error}");
        assert!(session.end_reason().is_some());
        assert!(matches!(session.create_domain(), Err(Error::Disconnected(_))));
    };
    assert_ends_session(|socket, request| reply(socket, request.id + 1, Ok(Answer::Done), &[]));
    assert_ends_session(|socket, request| reply(socket, request.id, Ok(Answer::Done), &[]));
    assert_ends_session(|socket, request| {
        let fds = [sockets(SocketType::STREAM).0];
        reply(socket, request.id, Ok(Answer::Created { number: 1 }), &fds);
    });
    assert_ends_session(|socket, _| {
        let event = Event::RequestEnded { request: 1 };
        post(socket, &Message::Event(event), &[sockets(SocketType::STREAM).0]);
    });
    assert_ends_session(|socket, _| socket.send(&"a string", &[]).unwrap());
}

#[test]
fn events_beyond_the_bound_of_an_object_and_unknown_workers_end_the_session() {
    let address: SocketAddr = "1.2.3.4:5".parse().unwrap();
    let rejected = Event::Rejected { pair: 1, private_data: vec![] };
    let incoming = Event::Incoming {
        listener: 1,
        request: 9,
        local: address,
        remote: address,
        depths: None,
        private_data: vec![],
    };
    let established = Event::Established {
        pair: 1,
        worker: 2,
        local: address,
        remote: address,
        depths: DEPTHS,
        private_data: vec![],
    };
    // Each event, and how many such events its object's mailbox accepts: none if its worker does not exist. All events
    // arrive before the reply, so the program takes none meanwhile.
    for (sent, permitted) in [(rejected, 4), (incoming, 2), (established, 0)] {
        for count in [permitted, permitted + 1] {
            let (areas, _kept) = channel();
            let sent = sent.clone();
            let session = scripted(move |socket, request| {
                let (answer, fds) = honest(&request.call, &areas);
                if let Call::Disconnect { .. } = request.call {
                    (0..count).for_each(|_| event(socket, sent.clone()));
                }
                reply(socket, request.id, Ok(answer), &fds);
            });
            let listener = session.listen(address, Transport::Tcp, 2).unwrap();
            let queue = session.create_completion_queue(CAPACITY, None).unwrap();
            let domain = session.create_domain().unwrap();
            let pair = create_pair(&domain, &queue).unwrap();
            assert_eq!(pair.start_disconnect().is_ok(), count == permitted);
            drop((listener, pair));
        }
    }
}

/// Opens a session whose appliance answers like [`honest`], with each answer changed by `twist`.
fn twisted(mut twist: impl FnMut(&mut Answer) + Send + 'static) -> Session {
    let (areas, _kept) = channel();
    scripted(move |socket, request| {
        // This line makes the closure capture `_kept`. If the receiver were dropped, `honest` could not send an area.
        let _kept = &_kept;
        let (mut answer, fds) = honest(&request.call, &areas);
        twist(&mut answer);
        reply(socket, request.id, Ok(answer), &fds);
    })
}

#[test]
fn impossible_queues_are_refused() {
    let assert_queue_refused = |change: fn(&mut u32, &mut Vec<u64>)| {
        let session = twisted(move |answer| {
            if let Answer::CompletionQueue { capacity, offsets, .. } = answer {
                change(capacity, offsets);
            }
        });
        let error = session.create_completion_queue(CAPACITY, None).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
        assert!(session.end_reason().is_some());
    };
    assert_queue_refused(|capacity, _| *capacity = 4);
    assert_queue_refused(|capacity, _| *capacity = 12);
    assert_queue_refused(|capacity, _| *capacity = u32::MAX);
    assert_queue_refused(|_, offsets| offsets[1] = offsets[0]);
    assert_queue_refused(|_, offsets| offsets[1] = offsets[0] + 128);
    assert_queue_refused(|_, offsets| offsets[0] = 0);
    assert_queue_refused(|_, offsets| offsets[1] += 128);
    assert_queue_refused(|_, offsets| offsets[1] = u64::MAX - 127);
    assert_queue_refused(|_, offsets| offsets.truncate(1));
    assert_queue_refused(|_, offsets| offsets.push(1 << 20));
    let assert_pair_refused = |change: fn(&mut u32, &mut Ring, &mut Ring)| {
        let session = twisted(move |answer| {
            if let Answer::QueuePair { pair, sends, receives: Some(receives) } = answer {
                change(pair, sends, receives);
            }
        });
        let queue = session.create_completion_queue(CAPACITY, None).unwrap();
        let domain = session.create_domain().unwrap();
        let error = create_pair(&domain, &queue).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
    };
    assert_pair_refused(|number, _, _| *number = 16384);
    assert_pair_refused(|_, sends, _| sends.capacity = 0);
    assert_pair_refused(|_, sends, _| sends.capacity = 9);
    assert_pair_refused(|_, sends, _| sends.capacity = 1 << 18);
    assert_pair_refused(|_, sends, receives| receives.offset = sends.offset);
    assert_pair_refused(|_, sends, receives| sends.offset = receives.offset + 128);
    assert_pair_refused(|_, sends, _| sends.offset += 64);
    assert_pair_refused(|_, _, receives| receives.offset += 128);
    let session = twisted(|answer| {
        if let Answer::QueuePair { receives, .. } = answer {
            *receives = None;
        }
    });
    let queue = session.create_completion_queue(CAPACITY, None).unwrap();
    let domain = session.create_domain().unwrap();
    assert!(matches!(create_pair(&domain, &queue), Err(Error::Protocol(_))), "no receive queue");
}

#[test]
fn numbers_that_are_in_use_end_the_session() {
    let session = twisted(|_| ());
    let _first = session.create_completion_queue(CAPACITY, None).unwrap();
    assert!(matches!(session.create_completion_queue(CAPACITY, None), Err(Error::Protocol(_))));
    let session = twisted(|_| ());
    let local = "127.0.0.1:1".parse().unwrap();
    let _first = session.listen(local, Transport::Tcp, 1).unwrap();
    assert!(matches!(session.listen(local, Transport::Tcp, 1), Err(Error::Disconnected(_))));
}

#[test]
fn memory_that_stays_registered_is_not_used_again() {
    let session = scripted(|socket, request| {
        let result = match request.call {
            Call::DeregisterMemory { .. } => {
                Err(Refusal { kind: RefusalKind::Invalid, message: "not now".into() })
            }
            Call::RegisterMemory { .. } => Ok(Answer::Registered { stag: 1 }),
            Call::CreatePd => Ok(Answer::Created { number: 1 }),
            _ => Ok(Answer::Done),
        };
        reply(socket, request.id, result, &[]);
    });
    let domain = session.create_domain().unwrap();
    let region = domain.alloc(4096, ALL).unwrap();
    let address = region.address();
    assert!(matches!(region.deregister(), Err(Error::Refused(_))));
    assert_ne!(domain.alloc(4096, ALL).unwrap().address(), address);
}

#[test]
fn requests_that_end_are_withdrawn_or_marked() {
    let incoming = |request| {
        let (local, remote) = ("1.2.3.4:5".parse().unwrap(), "1.2.3.4:5".parse().unwrap());
        let (listener, depths) = (1, None);
        Event::Incoming { listener, request, local, remote, depths, private_data: vec![] }
    };
    let (calls, made) = channel();
    let (areas, _kept) = channel();
    let session = scripted(move |socket, request| {
        let (answer, fds) = honest(&request.call, &areas);
        match request.call {
            Call::Listen { .. } => {
                reply(socket, request.id, Ok(answer), &fds);
                (1..=2).for_each(|number| event(socket, incoming(number)));
                event(socket, Event::RequestEnded { request: 1 });
                return;
            }
            Call::CreatePd => event(socket, Event::RequestEnded { request: 2 }),
            _ => {}
        }
        calls.send(request.call).unwrap();
        reply(socket, request.id, Ok(answer), &fds);
    });
    let listener = session.listen("127.0.0.1:1".parse().unwrap(), Transport::Tcp, 2).unwrap();
    // The reply to this call follows all events of the listener, which have then arrived.
    let _channel = session.create_channel().unwrap();
    let request = listener.next_request(LONG).unwrap().unwrap();
    assert!(listener.next_request(Some(Duration::ZERO)).unwrap().is_none());
    assert!(!request.is_ended());
    let _domain = session.create_domain().unwrap();
    assert!(request.is_ended());
    drop(request);
    assert!(made.try_iter().all(|call| !matches!(call, Call::Reject { .. })));
    assert_eq!(session.unmatched_events(), 0);
}

#[test]
fn broken_queues_are_errors() {
    let (areas, made) = channel();
    let session = scripted(move |socket, request| {
        let (answer, fds) = honest(&request.call, &areas);
        reply(socket, request.id, Ok(answer), &fds);
    });
    let queue = session.create_completion_queue(CAPACITY, None).unwrap();
    let completions = made.recv().unwrap().words();
    let domain = session.create_domain().unwrap();
    let pair = create_pair(&domain, &queue).unwrap();
    let rings = made.recv().unwrap().words();
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    // Stores the worker's index of the send queue, which is at word 16 of the ring: 5 units were released.
    rings[HEADER_WORDS + 16].store(5, relaxed);
    let work = posts::send(posts::inline(b"x").unwrap());
    let error = (0..14).find_map(|_| pair.post_send(&work).err()).unwrap();
    assert!(matches!(error, Error::Full), "{error}: 8 units, of which 5 were released");
    rings[HEADER_WORDS + 16].store(99, relaxed);
    let error = (0..9).find_map(|_| pair.post_send(&work).err()).unwrap();
    assert!(matches!(error, Error::Queue(_)), "{error}");
    // Overwrites the generation, word 7, of the first entry in the second worker's queue. Valid values are 0 and 1.
    let first = HEADER_WORDS + completion::words(CAPACITY as usize) + completion::HEADER_WORDS;
    completions[first + 7].store(3, relaxed);
    assert!(matches!(queue.poll_one(), Err(Error::CompletionQueue(_))));
    completions[first + 7].store(0, relaxed);
    assert!(matches!(queue.poll_one(), Err(Error::CompletionQueue(_))), "the queue stays broken");
}

/// Generates numbers at and beyond the bounds of the checks: small numbers, multiples of 128, powers of two and their
/// predecessors, and arbitrary numbers.
fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..10u64),
        (0..64u64).prop_map(|n| n * 128),
        (0..64u32).prop_map(|bit| 1 << bit),
        (0..64u32).prop_map(|bit| (1u64 << bit) - 1),
        any::<u64>(),
        Just(u64::MAX),
    ]
}

fn answers() -> impl Strategy<Value = Answer> {
    let number = || numbers().prop_map(|n| n as u32);
    let ring = || (numbers(), number()).prop_map(|(offset, capacity)| Ring { offset, capacity });
    prop_oneof![
        Just(Answer::Done),
        number().prop_map(|number| Answer::Created { number }),
        number().prop_map(|stag| Answer::Registered { stag }),
        (number(), number(), prop::collection::vec(numbers(), 0..4)).prop_map(
            |(queue, capacity, offsets)| Answer::CompletionQueue { queue, capacity, offsets }
        ),
        (number(), ring(), prop::option::of(ring()))
            .prop_map(|(pair, sends, receives)| { Answer::QueuePair { pair, sends, receives } }),
        (number(), ring())
            .prop_map(|(queue, receives)| Answer::SharedReceiveQueue { queue, receives }),
        number().prop_map(|stag| Answer::Window { stag }),
        number().prop_map(|listener| Answer::Listening {
            listener,
            local: "127.0.0.1:1".parse().unwrap()
        }),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let pair = || 0..3u32;
    let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
    prop_oneof![
        (pair(), numbers()).prop_map(move |(listener, request)| Event::Incoming {
            listener,
            request,
            local: address,
            remote: address,
            depths: None,
            private_data: vec![],
        }),
        numbers().prop_map(|request| Event::RequestEnded { request }),
        (pair(), 0..4u16).prop_map(move |(pair, worker)| Event::Established {
            pair,
            worker,
            local: address,
            remote: address,
            depths: DEPTHS,
            private_data: vec![],
        }),
        pair().prop_map(|pair| Event::Disconnected { pair, graceful: true, message: "".into() }),
        pair().prop_map(|pair| Event::QueuePairFailed { pair, message: "".into() }),
        pair().prop_map(|queue| Event::CompletionQueueFailed { queue, message: "".into() }),
    ]
}

/// A modification of an answer of [`honest`].
#[derive(Clone, Debug)]
enum Twist {
    Keep,
    Refuse,
    Replace(Answer),
    /// Sends this answer, with the valid descriptors, if the answer of `honest` has the same variant.
    Renumber(Answer),
    DropDescriptors,
    ShortFile(u64),
    Events(Vec<Event>),
}

fn twists() -> impl Strategy<Value = Twist> {
    prop_oneof![
        4 => Just(Twist::Keep),
        1 => Just(Twist::Refuse),
        1 => answers().prop_map(Twist::Replace),
        3 => answers().prop_map(Twist::Renumber),
        1 => Just(Twist::DropDescriptors),
        1 => (0..4000u64).prop_map(Twist::ShortFile),
        3 => prop::collection::vec(events(), 0..6).prop_map(Twist::Events),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn any_answers_and_events_end_in_results(twists in prop::collection::vec(twists(), 1..14)) {
        let (areas, _kept) = channel();
        let mut twists = twists.into_iter();
        let session = scripted(move |socket, request| {
            let (mut answer, mut fds) = honest(&request.call, &areas);
            match twists.next().unwrap_or(Twist::Keep) {
                Twist::Keep => {}
                Twist::Refuse => {
                    let refusal = Refusal { kind: RefusalKind::Limit, message: "no".into() };
                    return reply(socket, request.id, Err(refusal), &[]);
                }
                Twist::Replace(other) => (answer, fds) = (other, Vec::new()),
                Twist::Renumber(other) => {
                    if std::mem::discriminant(&other) == std::mem::discriminant(&answer) {
                        answer = other;
                    }
                }
                Twist::DropDescriptors => fds.clear(),
                Twist::ShortFile(bytes) => {
                    fds.iter_mut().for_each(|file| *file = sealed_file(bytes));
                }
                Twist::Events(events) => events.into_iter().for_each(|e| event(socket, e)),
            }
            reply(socket, request.id, Ok(answer), &fds);
        });
        call_all(&session);
    }
}
