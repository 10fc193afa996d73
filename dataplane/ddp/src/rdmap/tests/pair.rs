//! Two ends back to back: every operation, in both directions.

use super::*;

/// Two ends without a network between them.
pub(super) struct Pair {
    pub(super) a: End,
    pub(super) b: End,
}

impl Pair {
    pub(super) fn new(config: Config) -> Pair {
        Pair { a: End::with_config(config.clone()), b: End::with_config(config) }
    }

    /// Carries segments of at most `mulpdu` bytes in both directions until neither end has one to send.
    pub(super) fn run(&mut self, mulpdu: usize) {
        loop {
            let forth = deliver(&mut self.a, &mut self.b, mulpdu);
            let back = deliver(&mut self.b, &mut self.a, mulpdu);
            if !forth && !back {
                return;
            }
        }
    }
}

fn deliver(from: &mut End, to: &mut End, mulpdu: usize) -> bool {
    let Some((segment, token, len)) = from.next_segment(mulpdu) else { return false };
    to.input(&segment);
    from.stream.on_acknowledged(token, len);
    true
}

#[test]
fn every_operation_arrives_and_completes() {
    let mut pair = Pair::new(config());
    pair.b.memory.write(100, &pattern(3, 3000));
    pair.b.memory.write(4096, &5u64.to_ne_bytes());
    let (a, b) = (&mut pair.a, &mut pair.b);
    a.post(send(b"hello", 1));
    a.post(write(7000, &pattern(1, 900), 2));
    a.post(read(50, 100, 3000, 3));
    a.post(atomic(AtomicOp::FetchAdd { add: 2, mask: 0 }, 4096, 4));
    a.post(atomic(AtomicOp::swap(11), 4096, 5));
    a.post(WorkRequest::Immediate { data: *b"12345678", solicited: true, cookie: Cookie::user(6) });
    b.post(send(b"answer", 7));
    pair.run(400);
    let outcomes = [
        (1, Outcome::Sent),
        (2, Outcome::Written),
        (3, Outcome::Read { len: 3000 }),
        (4, Outcome::Atomic { original: 5 }),
        (5, Outcome::Atomic { original: 7 }),
        (6, Outcome::Sent),
    ];
    let mut expected: Vec<Event> = outcomes.map(|(c, o)| completed(c, o)).into();
    let seen = pair.a.events();
    // The Send of the other end may arrive between any two completions, so its position is taken from `seen`.
    let answer = seen.iter().position(|event| matches!(event, Event::Received { .. })).unwrap();
    expected.insert(answer, received(b"answer"));
    assert_eq!(seen, expected);
    let to = |at| TaggedOffset(BASE + at);
    let events = pair.b.events();
    let ulp: Vec<&Event> = events
        .iter()
        .filter(|event| !matches!(event, Event::Completed { .. } | Event::ReadServed { .. }))
        .collect();
    let expected = [
        received(b"hello"),
        Event::WriteDelivered { stag: STAG, to: to(7000), len: 900 },
        Event::AtomicServed { stag: STAG, to: to(4096) },
        Event::AtomicServed { stag: STAG, to: to(4096) },
        Event::Immediate { data: *b"12345678", solicited: true },
    ];
    assert_eq!(ulp, expected.iter().collect::<Vec<_>>());
    assert!(events.contains(&Event::ReadServed { len: 3000 }));
    assert_eq!(pair.b.memory.to_vec()[7000..7900], pattern(1, 900));
    assert_eq!(pair.b.memory.to_vec()[4096..4104], 11u64.to_ne_bytes());
    assert_eq!(pair.a.sink.to_vec()[50..3050], pattern(3, 3000));
    let counters = pair.b.stream.counters();
    assert_eq!((counters.reads_served, counters.read_bytes_served), (1, 3000));
    assert_eq!((counters.atomics_served, counters.sends_received), (2, 1));
    assert_eq!(pair.a.stream.counters().completed, 6);
    assert_eq!((pair.a.stream.outstanding(), pair.b.stream.outstanding()), (0, 0));
    assert_eq!((pair.a.pool.in_use(), pair.b.pool.in_use()), (0, 0));
}

pub(super) fn received(data: &[u8]) -> Event {
    Event::Received { data: data.to_vec(), solicited: false, invalidated: None }
}

// RFC 5040 §5.1, §5.2.1, §5.3: Writes, Reads and Sends may have no bytes. The STags and TOs of such operations are not
// checked.
#[test]
fn zero_length_operations_check_no_stag() {
    let mut pair = Pair::new(config());
    let (nowhere, to) = (Stag(0), TaggedOffset(u64::MAX));
    pair.a.post(WorkRequest::Write {
        stag: nowhere,
        to,
        source: bytes(b""),
        cookie: Cookie::user(1),
    });
    pair.a.post(WorkRequest::Read {
        sink_stag: nowhere,
        sink_to: to,
        source_stag: Stag(1),
        source_to: to,
        len: 0,
        cookie: Cookie::user(2),
    });
    pair.a.post(send(b"", 3));
    pair.run(1500);
    let expected = [
        completed(1, Outcome::Written),
        completed(2, Outcome::Read { len: 0 }),
        completed(3, Outcome::Sent),
    ];
    assert_eq!(pair.a.events(), expected);
    let events = pair.b.events();
    assert!(events.contains(&received(b"")));
    assert!(events.contains(&Event::ReadServed { len: 0 }));
    assert!(!events.iter().any(|event| matches!(event, Event::Error(_))));
}

// RFC 6581 §4.4.2, §9.2: the ready-to-receive Send uses up none of the ULP's buffers.
#[test]
fn ready_to_receive_send_is_not_delivered_to_the_ulp() {
    let rtr = Config { recv_buffers: 1, rtr_send: true, ..config() };
    let mut pair = Pair::new(rtr.clone());
    pair.a.post(send(b"", 1));
    pair.a.post(send(b"", 2));
    pair.run(1500);
    assert_eq!(pair.b.events(), [Event::ReadyToReceive, received(b"")]);
    // A first Send with data is an ordinary message.
    let mut pair = Pair::new(rtr);
    pair.a.post(send(b"x", 1));
    pair.a.post(send(b"", 2));
    pair.run(1500);
    assert_eq!(pair.b.events(), [received(b"x"), received(b"")]);
}

// RFC 6581 §9.2: a first message with data shows readiness, even if it is Immediate Data. A later empty Send is
// delivered to the ULP.
#[test]
fn empty_send_behind_immediate_data_is_delivered() {
    let mut b = End::with_config(Config { rtr_send: true, ..config() });
    b.input(&untagged(Opcode::Immediate, 0, 1, b"12345678"));
    b.input(&untagged(Opcode::Send, 0, 2, b""));
    let immediate = Event::Immediate { data: *b"12345678", solicited: false };
    assert_eq!(b.events(), [immediate, received(b"")]);
}

/// Sets the versions of a segment to 0: DV, the low two bits of the first byte, and RV, the high two of the second.
fn clear_versions(segment: &mut [u8]) {
    segment[0] &= !0b11;
    segment[1] &= !0b1100_0000;
}

// RFC 5040 §4.1: the RDMA Consortium's version has RV 00b. RFC 7306 §4.1: the extensions require RV 01b.
#[test]
fn rdma_consortium_version_is_used_in_ddp_and_rdmap() {
    let v0 = Config { version: VersionPolicy::V0, ..config() };
    let mut pair = Pair::new(v0);
    pair.a.post(send(b"old", 1));
    let data = [0; 8];
    let immediate = WorkRequest::Immediate { data, solicited: false, cookie: Cookie::user(2) };
    assert_eq!(pair.a.stream.post(immediate), Err(PostError::NoExtensions));
    let op = AtomicOp::swap(1);
    assert_eq!(pair.a.stream.post(atomic(op, 0, 3)), Err(PostError::NoExtensions));
    let (segment, ..) = pair.a.next_segment(1500).unwrap();
    assert_eq!(segment[..2], [0x40, 0x03]);
    pair.b.input(&segment);
    assert_eq!(pair.b.events(), [received(b"old")]);
    let mut wrong = untagged(Opcode::Immediate, 0, 2, &data);
    clear_versions(&mut wrong);
    pair.b.input(&wrong);
    assert_eq!(pair.b.terminate_numbers(), (0, 2, 6));
}

// A responder to an MPA request of revision 0 adopts the version of the first segment, and sends nothing before.
#[test]
fn version_adopting_stream_sends_after_first_segment() {
    let mut b = End::with_config(Config { version: VersionPolicy::AdoptFirst, ..config() });
    b.post(send(b"early", 1));
    assert!(b.next_segment(1500).is_none() && b.stream.has_unsent());
    let mut first = untagged(Opcode::Send, 0, 1, b"x");
    clear_versions(&mut first);
    b.input(&first);
    assert_eq!(b.next_segment(1500).unwrap().0[..2], [0x40, 0x03]);
}

#[test]
fn invalid_operations_are_refused_at_post() {
    let config = Config { ord: 0, atomics: false, immediate: false, max_operations: 1, ..config() };
    let mut a = End::with_config(config);
    assert_eq!(a.stream.post(read(0, 0, 1, 1)), Err(PostError::NoReads));
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    assert_eq!(a.stream.post(atomic(op, 0, 1)), Err(PostError::NoExtensions));
    let immediate =
        WorkRequest::Immediate { data: [0; 8], solicited: false, cookie: Cookie::user(1) };
    assert_eq!(a.stream.post(immediate), Err(PostError::NoExtensions));
    let to = TaggedOffset(u64::MAX);
    let wrapping =
        WorkRequest::Write { stag: STAG, to, source: bytes(b"ab"), cookie: Cookie::user(1) };
    assert_eq!(a.stream.post(wrapping), Err(PostError::ToWrap { to: u64::MAX, len: 2 }));
    let memory = VecMemory::new(10);
    let source = Source::Region { memory, offset: 8, len: 3 };
    let outside = WorkRequest::send(source, Cookie::user(1));
    let error = PostError::OutOfBounds { offset: 8, end: 11, len: 10 };
    assert_eq!(a.stream.post(outside), Err(error));
    a.post(send(b"1", 1));
    assert_eq!(a.stream.post(send(b"2", 2)), Err(PostError::Full));
    let mut a = End::new();
    let wrapping = WorkRequest::Read {
        sink_stag: SINK,
        sink_to: to,
        source_stag: STAG,
        source_to: TaggedOffset(0),
        len: 2,
        cookie: Cookie::user(1),
    };
    assert_eq!(a.stream.post(wrapping), Err(PostError::ToWrap { to: u64::MAX, len: 2 }));
    a.stream.close();
    assert_eq!(a.stream.post(send(b"", 1)), Err(PostError::Closed));
}

#[test]
fn lost_llp_flushes_operations_in_order() {
    let mut a = End::new();
    a.post(send(b"out", 1));
    a.post(read(0, 0, 10, 2));
    a.post(write(0, b"w", 3));
    a.next_segment(1500).unwrap();
    a.next_segment(1500).unwrap();
    a.stream.fail(Failure::LlpLost);
    a.stream.fail(Failure::Aborted);
    let flushed = |cookie| Event::Flushed { cookie };
    let events = a.events();
    assert_eq!(
        events,
        [
            flushed(Cookie::user(1)),
            flushed(Cookie::user(2)),
            flushed(Cookie::user(3)),
            Event::Failed(Failure::LlpLost)
        ]
    );
    assert_eq!(a.stream.post(send(b"", 4)), Err(PostError::Closed));
    assert!(a.next_segment(1500).is_none());
    assert_eq!(a.stream.failure(), Some(Failure::LlpLost));
}

// RFC 5041 §6.2.1: after the peer's close, Sends are still sent. Reads and atomics are flushed, because their responses
// cannot arrive.
#[test]
fn peer_close_flushes_requests_only() {
    let mut a = End::with_config(Config { ord: 1, ..config() });
    a.post(read(0, 0, 10, 1));
    a.post(read(0, 0, 10, 2));
    a.post(send(b"still", 3));
    assert_eq!(a.sent_segments().len(), 1);
    a.stream.on_peer_closed();
    assert_eq!(shape(&a.sent_segments()), [(Opcode::Send, true)]);
    let flushed = |cookie| Event::Flushed { cookie };
    let events = a.events();
    let closed = Event::PeerClosed { incomplete: false };
    assert_eq!(
        events,
        [flushed(Cookie::user(1)), flushed(Cookie::user(2)), closed, completed(3, Outcome::Sent)]
    );
    assert_eq!(a.stream.post(read(0, 0, 1, 4)), Err(PostError::Closed));
    a.post(send(b"", 5));
}

// After the ULP's close, posted operations and the peer's requests are still completed.
#[test]
fn graceful_close_sends_posted_operations_first() {
    let mut a = End::with_config(Config { ord: 1, ..config() });
    a.post(read(0, 0, 4, 1));
    a.post(read(8, 0, 4, 2));
    a.stream.close();
    assert!(a.stream.is_closed());
    assert_eq!(a.sent_segments().len(), 1);
    assert!(
        a.stream.has_unsent() && a.next_segment(1500).is_none(),
        "the second Read waits for ORD"
    );
    a.input(&tagged(Opcode::ReadResponse, SINK, 0, true, b"1234"));
    assert_eq!(a.sent_segments().len(), 1);
    assert!(!a.stream.has_unsent());
    a.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(STAG, 0, 4).emit()));
    assert_eq!(shape(&a.sent_segments()), [(Opcode::ReadResponse, true)]);
    a.input(&tagged(Opcode::ReadResponse, SINK, 8, true, b"5678"));
    assert_eq!(a.stream.outstanding(), 0);
}

// After an abrupt close, the rest of a partly sent message and the posted operations are not sent.
#[test]
fn abrupt_close_flushes_unsent_operations() {
    let mut a = End::new();
    a.post(send(&[1; 3000], 1));
    a.post(send(b"", 2));
    let (_, token, len) = a.next_segment(500).unwrap();
    a.stream.close_now();
    assert!(a.next_segment(500).is_none());
    a.stream.on_acknowledged(token, len);
    assert_eq!(
        a.events(),
        [Event::Flushed { cookie: Cookie::user(1) }, Event::Flushed { cookie: Cookie::user(2) }]
    );
}
