//! Posted receives: each is filled by one message, which is placed at arrival. Receives are flushed in the order of
//! posting.

use super::*;
use crate::llp::Disposition::{Ignored, Placed, Refused};
use crate::{Span, SpanList};

/// Distance between the memory of consecutive receives, bytes.
const STRIDE: u64 = 64;

pub(super) fn posted(max_receives: u32) -> Config {
    Config { receives: ReceiveMode::Posted { max_receives }, ..config() }
}

/// Returns a stream with receives of these lengths. The n-th has cookie `n` and offset `n * STRIDE` in the region.
fn end_with(lens: &[u32]) -> End {
    end_of(posted(8), lens)
}

fn end_of(config: Config, lens: &[u32]) -> End {
    let mut end = End::with_config(config);
    lens.iter().enumerate().for_each(|(n, len)| end.receive(n as u64, *len).unwrap());
    end
}

impl End {
    fn receive(&mut self, cookie: u64, len: u32) -> Result<(), PostError> {
        let span = Span { memory: self.memory.clone(), offset: cookie * STRIDE, len };
        self.stream.post_receive(Receive { cookie, spans: span.into() })
    }

    /// Returns the bytes at the start of a receive's memory.
    fn placed(&self, cookie: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(cookie * STRIDE, &mut bytes);
        bytes
    }
}

fn into(cookie: u64, len: u32) -> Event {
    Event::ReceivedInto { cookie, len, solicited: false, invalidated: None }
}

fn flushed(cookie: u64) -> Event {
    Event::ReceiveFlushed { cookie }
}

/// Returns one segment of a Send.
fn part(msn: u32, mo: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    untagged_with(Opcode::Send, None, 0, msn, mo, last, payload)
}

/// Returns the cookies of flushed receives. The events of flushes must be the last events.
fn flushes(events: &[Event]) -> Vec<u64> {
    let cookie = |event: &Event| match event {
        Event::ReceiveFlushed { cookie } => Some(*cookie),
        _ => None,
    };
    let first = events.iter().position(|event| cookie(event).is_some()).unwrap_or(events.len());
    events[first..]
        .iter()
        .map(|event| cookie(event).expect("only flushes after the first flush"))
        .collect()
}

// RFC 5041 §5.1.2: a message fills the buffer that has its MSN.
#[test]
fn messages_fill_receives_in_order_of_posting() {
    let mut b = end_with(&[16, 0, 64]);
    assert_eq!(b.input(&untagged(Opcode::Send, 0, 1, b"one")), Placed(3));
    assert_eq!(b.input(&untagged(Opcode::Send, 0, 2, b"")), Placed(0));
    assert_eq!(b.input(&part(3, 0, false, b"three")), Placed(5));
    assert_eq!(b.placed(2, 5), b"three", "before the message is complete");
    assert_eq!(
        b.input(&untagged_with(Opcode::SendSolicited, None, 0, 3, 5, true, b"+")),
        Placed(1)
    );
    let last = Event::ReceivedInto { cookie: 2, len: 6, solicited: true, invalidated: None };
    assert_eq!(b.events(), [into(0, 3), into(1, 0), last]);
    assert_eq!((b.placed(0, 4), b.placed(2, 7)), (b"one\0".to_vec(), b"three+\0".to_vec()));
    assert_eq!((b.pool.high_water(), b.stream.counters().sends_received), (0, 3));
    assert_eq!(b.stream.ddp_counters().delivered_bytes, 9);
}

// RFC 5041 §5.3: segments are placed at arrival and delivered in order. No pooled buffer is used.
#[test]
fn segments_beyond_a_gap_are_placed_at_arrival() {
    let mut b = end_with(&[8, 8]);
    assert_eq!(b.input_at(3, &part(2, 4, true, b"cd")), Placed(2));
    assert_eq!(b.input_at(2, &part(2, 0, false, b"abab")), Placed(4));
    assert_eq!(b.placed(1, 7), b"ababcd\0");
    assert_eq!(b.input_at(1, &part(1, 4, true, b"yy")), Placed(2));
    assert_eq!((b.events(), b.pool.in_use()), (vec![], 0));
    assert_eq!(b.input_at(0, &part(1, 0, false, b"xxxx")), Placed(4));
    assert_eq!(b.events(), [into(0, 6), into(1, 6)]);
    assert_eq!(b.placed(0, 7), b"xxxxyy\0");
    assert!(b.pool.high_water() == 0 && b.stream.posted_buffers() == 0);
}

// RFC 5041 §7.1 (3), (4): each message is checked against the length of its own receive.
#[test]
fn message_is_checked_with_the_length_of_its_receive() {
    for (msn, mo, len, expected) in [
        (1, 9, 0, Some((1, 2, 4))),
        (1, 8, 0, None),
        (1, 0, 9, Some((1, 2, 5))),
        (1, 8, 1, Some((1, 2, 5))),
        (2, 0, 20, None),
        (2, 20, 1, Some((1, 2, 5))),
        (2, 21, 0, Some((1, 2, 4))),
        (2, u32::MAX, 20, Some((1, 2, 4))),
    ] {
        for beyond in [false, true] {
            let mut b = end_with(&[8, 20]);
            let case = format!("{msn} {mo} {len} {beyond}");
            let mut key = 0;
            if msn == 2 {
                assert_eq!(b.input(&untagged(Opcode::Send, 0, 1, b"")), Placed(0));
                (key, b.key) = (1, 1);
            }
            let segment = part(msn, mo, false, &vec![7; len]);
            let disposition = b.input_at(key + u64::from(beyond), &segment);
            match expected {
                // A segment in the LLP's order may leave a hole before it in the message. Only the last segment must
                // not leave one.
                None => assert_eq!(disposition, Placed(len), "{case}"),
                Some(numbers) => {
                    assert_eq!(disposition, Ignored, "{case}");
                    if beyond {
                        b.complete_order(key + 1);
                    }
                    assert_eq!(b.terminate_numbers(), numbers, "{case}");
                    assert!(b.memory.to_vec().iter().all(|byte| *byte == 0), "{case}");
                }
            }
        }
    }
}

// RFC 5041 §7.1 (2) and its note: without a receive, a segment in order is an error; a segment beyond a gap is
// refused.
#[test]
fn missing_receive_is_an_error_only_in_order() {
    let mut b = end_with(&[8]);
    assert_eq!(b.input_at(1, &untagged(Opcode::Send, 0, 2, b"two")), Refused);
    b.receive(1, 8).unwrap();
    assert_eq!(b.input_at(1, &untagged(Opcode::Send, 0, 2, b"two")), Placed(3));
    assert_eq!(b.input_at(0, &untagged(Opcode::Send, 0, 1, b"one")), Placed(3));
    assert_eq!(b.events(), [into(0, 3), into(1, 3)]);
    assert_eq!(b.input_at(2, &untagged(Opcode::Send, 0, 3, b"")), Ignored);
    assert_eq!(b.terminate_numbers(), (1, 2, 2));
    let mut b = end_with(&[8]);
    assert_eq!(b.input(&untagged(Opcode::Send, 0, 2, b"x")), Ignored);
    assert_eq!(b.terminate_numbers(), (1, 2, 3));
}

// RFC 5041 §4.1, §5.2: the segments of a message neither overlap nor leave holes, and no segment follows
// the last.
#[test]
fn segments_of_a_receive_tile_the_message() {
    let overlap = [part(1, 0, false, b"abc"), part(1, 2, true, b"c")];
    let hole = [part(1, 0, false, b"abc"), part(1, 4, true, b"e")];
    let behind_last = [part(1, 0, true, b"abc"), part(1, 3, true, b"d")];
    for (segments, numbers) in [(overlap, (1, 2, 4)), (hole, (1, 2, 4)), (behind_last, (1, 2, 3))] {
        for order in [[0, 1], [1, 0]] {
            let mut b = end_with(&[8, 8]);
            for at in order {
                let _disposition = b.input_at(at, &segments[at as usize]);
            }
            assert_eq!(b.terminate_numbers(), numbers, "{order:?}");
        }
    }
}

// A message in many ranges reserves range memory from the worker's pool, and returns it when complete.
#[test]
fn message_in_many_ranges_reserves_range_memory() {
    let len = 600u32;
    let mut b = End::with_config(posted(1));
    let span = Span { memory: b.memory.clone(), offset: 100, len };
    b.stream.post_receive(Receive { cookie: 0, spans: span.into() }).unwrap();
    let bytes = pattern(1, len as usize);
    // The segments with an even MO arrive first. The last segment has the highest MO.
    let order = (0..len).step_by(2).chain((1..len).step_by(2));
    for mo in order {
        let segment = part(1, mo, mo + 1 == len, &bytes[mo as usize..=mo as usize]);
        assert_eq!(b.input(&segment), Placed(1), "{mo}");
    }
    assert!(b.pool.high_water() > 0);
    assert_eq!((b.events(), b.pool.in_use()), (vec![into(0, len)], 0));
    assert_eq!(b.memory.to_vec()[100..700], bytes);
}

// A receive neither takes nor returns pooled buffers of the other queues.
#[test]
fn receives_leave_the_accounts_of_pooled_queues_alone() {
    let mut b = end_with(&[8, 8]);
    let request = read_request(STAG, 0, 4).emit();
    b.input(&untagged_with(Opcode::ReadRequest, None, 1, 1, 0, false, &request[..5]));
    let reserved = b.pool.in_use();
    assert!(reserved > 0);
    b.input(&part(1, 0, false, b"ab"));
    b.input(&part(1, 2, true, b"cd"));
    assert_eq!((b.events(), b.pool.in_use()), (vec![into(0, 4)], reserved));
    b.input(&untagged_with(Opcode::ReadRequest, None, 1, 1, 5, true, &request[5..]));
    assert_eq!(b.pool.in_use(), 0);
}

// RFC 7306 §6.3: Immediate Data consumes a receive and is not placed.
#[test]
fn immediate_data_uses_up_a_receive_without_memory() {
    let mut b = end_with(&[0, 32, 0]);
    let data = *b"12345678";
    let split = |opcode, at: usize| {
        let part = |mo: usize, last, payload: &[u8]| {
            untagged_with(opcode, None, 0, 2, mo as u32, last, payload)
        };
        [part(0, false, &data[..at]), part(at, true, &data[at..])]
    };
    let solicited = split(Opcode::ImmediateSolicited, 5);
    assert_eq!(b.input_at(3, &untagged(Opcode::Send, 0, 3, b"")), Placed(0));
    assert_eq!(b.input_at(2, &solicited[1]), Placed(3));
    assert_eq!(b.input_at(0, &untagged(Opcode::Immediate, 0, 1, &data)), Placed(8));
    assert_eq!(b.input_at(1, &solicited[0]), Placed(5));
    let immediate = |cookie, solicited| Event::ImmediateInto { cookie, data, solicited };
    assert_eq!(b.events(), [immediate(0, false), immediate(1, true), into(2, 0)]);
    assert!(b.memory.to_vec().iter().all(|byte| *byte == 0));
    assert_eq!(b.pool.in_use(), 0);
}

// RFC 7306 §6.3: Immediate Data has exactly 8 bytes, in one or several segments. The receive of a message with another
// length is flushed first.
#[test]
fn immediate_data_of_wrong_length_flushes_its_receive() {
    for len in [0, 7, 9, 100] {
        for parts in [1, 2] {
            let mut b = end_with(&[200, 8]);
            let bytes = vec![7; len];
            let cut = if parts == 1 { len } else { len / 2 };
            if parts == 2 {
                let first = untagged_with(Opcode::Immediate, None, 0, 1, 0, false, &bytes[..cut]);
                assert_eq!(b.input(&first), Placed(cut));
            }
            let (start, rest) = if parts == 1 { (0, &bytes[..]) } else { (cut, &bytes[cut..]) };
            let last = untagged_with(Opcode::Immediate, None, 0, 1, start as u32, true, rest);
            assert_eq!(b.input(&last), Placed(rest.len()));
            let events = b.events();
            let Event::Error(Error::Rdmap(error)) = &events[0] else { panic!("{events:?}") };
            assert_eq!(error.code, ErrorCode::StreamCatastrophic);
            assert_eq!(error.mismatch.seen, len as u64);
            assert_eq!(flushes(&events), [0, 1], "{len}");
            assert!(b.memory.to_vec().iter().all(|byte| *byte == 0));
        }
    }
}

// RFC 5040 §4.1: a message has one opcode. A Send's bytes must not be reported as Immediate Data, nor the reverse.
#[test]
fn message_of_two_opcodes_is_refused() {
    let opcodes = [Opcode::Send, Opcode::Immediate];
    for order in [[0, 1], [1, 0]] {
        for swap in [false, true] {
            let mut b = end_with(&[8]);
            for at in order {
                let opcode = opcodes[(at ^ u64::from(swap)) as usize];
                let (mo, last) = (at as u32 * 4, at == 1);
                let segment = untagged_with(opcode, None, 0, 1, mo, last, b"abcd");
                assert_eq!(b.input_at(at, &segment), Placed(4));
            }
            let events = b.events();
            let Event::Error(Error::Rdmap(error)) = &events[0] else { panic!("{events:?}") };
            assert_eq!(error.code, ErrorCode::UnexpectedOpcode);
            assert_eq!(flushes(&events), [0]);
        }
    }
}

// RFC 6581 §9.2: the zero-length Send that signals readiness consumes no receive.
#[test]
fn ready_to_receive_message_uses_up_no_receive() {
    let rtr = || Config { rtr_send: true, ..posted(8) };
    let ready = untagged(Opcode::Send, 0, 1, b"");
    // The Send arrives without a posted receive, then with a posted receive.
    for lens in [&[][..], &[8]] {
        let mut b = end_of(rtr(), lens);
        assert_eq!(b.input(&ready), Placed(0));
        assert_eq!(b.events(), [Event::ReadyToReceive]);
        b.receive(7, 8).unwrap();
        b.input(&untagged(Opcode::Send, 0, 2, b""));
        assert_eq!(b.events(), [into(if lens.is_empty() { 7 } else { 0 }, 0)]);
    }
    // Any other first message signals readiness and is delivered as an ordinary message.
    for first in [untagged(Opcode::Send, 0, 1, b"x"), untagged(Opcode::SendSolicited, 0, 1, b"x")] {
        let mut b = end_of(rtr(), &[8]);
        b.input(&first);
        assert!(matches!(b.events()[..], [Event::ReceivedInto { cookie: 0, len: 1, .. }]));
    }
    let mut b = end_of(rtr(), &[8, 8]);
    b.stream.on_peer_ready();
    b.input(&ready);
    assert_eq!(b.events(), [into(0, 0)]);
    let mut b = end_of(rtr(), &[8, 8]);
    b.input(&untagged(Opcode::Immediate, 0, 1, b"12345678"));
    b.input(&untagged(Opcode::Send, 0, 2, b""));
    assert!(matches!(
        b.events()[..],
        [Event::ImmediateInto { cookie: 0, .. }, Event::ReceivedInto { cookie: 1, .. }]
    ));
}

// Until it is decided whether the first message consumes a receive, later messages beyond a gap are refused.
#[test]
fn undecided_first_message_refuses_messages_behind_it() {
    let rtr = Config { rtr_send: true, ..posted(8) };
    let (first, second) = (untagged(Opcode::Send, 0, 1, b""), untagged(Opcode::Send, 0, 2, b"two"));
    let mut b = end_of(rtr.clone(), &[8, 8]);
    assert_eq!(b.input_at(1, &second), Refused);
    assert_eq!(b.input_at(0, &first), Placed(0));
    assert_eq!(b.input_at(1, &second), Placed(3));
    assert_eq!(b.events(), [Event::ReadyToReceive, into(0, 3)]);
    // The first Send arrives beyond a gap, which an empty Write then fills. With `peer_ready`, the initiator is ready
    // before the Send is in order, so that the Send is an ordinary message.
    for peer_ready in [false, true] {
        let mut b = end_of(rtr.clone(), &[]);
        assert_eq!(b.input_at(1, &first), Refused, "the message may need a receive");
        b.receive(0, 8).unwrap();
        assert_eq!(b.input_at(1, &first), Placed(0));
        if peer_ready {
            b.stream.on_peer_ready();
        }
        let _disposition = b.input_at(0, &tagged(Opcode::Write, STAG, 0, true, b""));
        let expected = if peer_ready { into(0, 0) } else { Event::ReadyToReceive };
        assert_eq!(b.events()[1..], [expected]);
        assert_eq!(b.stream.posted_buffers(), u32::from(!peer_ready));
    }
}

#[test]
fn posts_of_receives_are_bounded_and_checked() {
    let mut b = end_of(posted(2), &[8]);
    let outside = b.receive(LEN / STRIDE, 1);
    let (offset, len) = (LEN, LEN);
    assert_eq!(outside, Err(PostError::OutOfBounds { offset, end: LEN + 1, len }));
    let memory = b.memory.clone();
    let spans =
        [(0, 4), (u64::MAX, 2)].map(|(offset, len)| Span { memory: memory.clone(), offset, len });
    let spans = SpanList::new(spans).unwrap();
    let outside = b.stream.post_receive(Receive { cookie: 1, spans });
    assert!(matches!(outside, Err(PostError::OutOfBounds { .. })));
    b.receive(1, 8).unwrap();
    assert_eq!(b.receive(2, 8), Err(PostError::Full));
    b.input(&untagged(Opcode::Send, 0, 1, b""));
    b.receive(2, 8).unwrap();
    assert_eq!(b.stream.posted_buffers(), 2);
    assert_eq!(b.stream.post_buffers(1), Err(PostError::OtherReceiveMode));
    assert_eq!(End::new().receive(0, 8), Err(PostError::OtherReceiveMode));
    assert_eq!(End::with_config(posted(0)).receive(0, 8), Err(PostError::Closed));
    // Receiving continues after this end's close.
    b.stream.close();
    b.input(&untagged(Opcode::Send, 0, 2, b""));
    b.receive(3, 8).unwrap();
    b.input(&untagged(Opcode::Send, 0, 3, b""));
    assert_eq!(b.events(), [into(0, 0), into(1, 0), into(2, 0)]);
}

// However a stream ends, each receive is flushed once, in order, and its memory is released.
#[test]
fn end_of_the_stream_flushes_receives_in_order() {
    let wrong = tagged(Opcode::Write, Stag(1), 0, true, b"x");
    let bye = untagged(Opcode::Terminate, 2, 1, &[0, 0, 0, 0]);
    type Way<'a> = (&'a str, &'a dyn Fn(&mut End));
    let ways: [Way<'_>; 8] = [
        ("failure", &|b| b.stream.fail(Failure::LlpLost)),
        ("peer close", &|b| b.stream.on_peer_closed()),
        ("error", &|b| assert_eq!(b.input(&wrong), Ignored)),
        ("peer's Terminate", &|b| assert_eq!(b.input(&bye), Placed(4))),
        ("local error", &|b| b.stream.terminate_locally()),
        ("LLP error", &|b| b.stream.report_llp_error(0, 2)),
        ("close now", &|b| b.stream.close_now()),
        ("release", &|b| b.stream.release(&mut b.pool)),
    ];
    for (way, end) in ways {
        let mut b = end_with(&[8, 8, 8, 8]);
        b.input(&untagged(Opcode::Send, 0, 1, b"one"));
        b.input(&part(2, 0, false, b"tw"));
        // Places a segment of the fourth message beyond a gap.
        let _disposition = b.input_at(9, &part(4, 0, false, b"four"));
        assert!(b.stream.uses_memory(&b.memory));
        end(&mut b);
        assert!(!b.stream.uses_memory(&b.memory), "{way}");
        let before = b.memory.to_vec();
        let events = b.events();
        assert_eq!(events[0], into(0, 3), "{way}");
        let flushed: Vec<&Event> =
            events.iter().filter(|event| matches!(event, Event::ReceiveFlushed { .. })).collect();
        assert_eq!(flushed, [&self::flushed(1), &self::flushed(2), &self::flushed(3)], "{way}");
        assert_eq!(b.receive(5, 8), Err(PostError::Closed), "{way}");
        // Segments that arrive after the end place no bytes and flush no receives.
        let _disposition = b.input_at(b.key, &part(2, 2, true, b"o"));
        let _disposition = b.input_at(b.key + 3, &untagged(Opcode::Send, 0, 3, b"xyz"));
        b.complete_order(20);
        b.stream.fail(Failure::Aborted);
        b.stream.release(&mut b.pool);
        let late = b.events();
        assert!(
            !late
                .iter()
                .any(|e| matches!(e, Event::ReceiveFlushed { .. } | Event::ReceivedInto { .. })),
            "{way}: {late:?}"
        );
        assert_eq!((b.memory.to_vec(), b.pool.in_use()), (before, 0), "{way}");
    }
}

// The receives of messages that DDP delivered after a message in error are flushed before the receives without a
// message.
#[test]
fn delivered_messages_behind_an_error_are_flushed_in_order() {
    let mut b = end_with(&[8, 8, 8, 8]);
    assert_eq!(b.input_at(3, &untagged(Opcode::Send, 0, 3, b"three")), Placed(5));
    assert_eq!(b.input_at(2, &untagged(Opcode::Immediate, 0, 2, b"short")), Placed(5));
    assert_eq!(b.input_at(1, &untagged(Opcode::Send, 0, 1, b"one")), Placed(3));
    assert_eq!(b.events(), []);
    b.input_at(0, &tagged(Opcode::Write, STAG, 0, true, b""));
    let events = b.events();
    assert_eq!(events[1], into(0, 3));
    assert!(matches!(events[2..4], [Event::Error(_), Event::Terminated { .. }]), "{events:?}");
    assert_eq!(flushes(&events), [1, 2, 3]);
    // RFC 5040 §5.3: a Send with Invalidate names an STag that the peer may not invalidate.
    let mut b = end_with(&[8, 8]);
    b.input(&untagged_with(Opcode::SendInvalidate, Some(STAG), 0, 1, 0, true, b"x"));
    assert_eq!(flushes(&b.events()), [0, 1]);
}

#[test]
fn invalidated_stag_is_reported_with_the_receive() {
    let own = Stag(0x0b00);
    let mut b = end_with(&[8]);
    let memory = b.memory.clone();
    b.stags
        .insert(StagEntry { stream: Some(StreamId(9)), ..entry(own, Access::NONE, &memory) })
        .unwrap();
    b.input(&untagged_with(Opcode::SendSolicitedInvalidate, Some(own), 0, 1, 0, true, b"done"));
    let expected =
        Event::ReceivedInto { cookie: 0, len: 4, solicited: true, invalidated: Some(own) };
    assert_eq!(b.events(), [expected]);
}

// For deregistration, `uses_memory` must find each kind of reference to a region.
#[test]
fn references_to_a_region_are_found() {
    let (ours, other) = (VecMemory::new(64), VecMemory::new(64));
    let span = |memory: &VecMemory| Span { memory: memory.clone(), offset: 0, len: 8 };
    let region = |memory: &VecMemory| Source::Region { memory: memory.clone(), offset: 0, len: 8 };
    let gather = |memory: &VecMemory| {
        Source::Gather(Box::new(SpanList::new([span(&other), span(memory)]).unwrap()))
    };
    for source in [region(&ours), gather(&ours)] {
        let mut a = End::new();
        a.post(send(b"first", 1));
        a.post(WorkRequest::send(source, Cookie::user(2)));
        assert!(a.stream.uses_memory(&ours), "waiting");
        let (_, first, len) = a.next_segment(1500).unwrap();
        let (_, second, second_len) = a.next_segment(1500).unwrap();
        a.stream.on_acknowledged(first, len);
        assert!(a.stream.uses_memory(&ours), "in flight");
        a.stream.on_acknowledged(second, second_len);
        assert!(!a.stream.uses_memory(&ours) && !a.stream.uses_memory(&other));
    }
    let mut a = End::new();
    a.post(WorkRequest::send(gather(&ours), Cookie::user(1)));
    a.stream.fail(Failure::LlpLost);
    assert!(!a.stream.uses_memory(&ours));
    // Two Read Responses refer to the region until they are sent and acknowledged.
    let mut a = End::new();
    let memory = a.memory.clone();
    for msn in [1, 2] {
        a.input(&untagged(Opcode::ReadRequest, 1, msn, &read_request(STAG, 0, 4).emit()));
    }
    assert!(a.stream.uses_memory(&memory));
    a.sent_segments();
    assert!(!a.stream.uses_memory(&memory));
}

// `shrink` frees the receive queue's memory after the last receive.
#[test]
fn idle_stream_without_receives_holds_no_memory_for_them() {
    let mut b = end_with(&[8]);
    assert!(b.stream.holds_unfinished_state());
    b.input(&untagged(Opcode::Send, 0, 1, b""));
    assert_eq!(b.events(), [into(0, 0)]);
    b.stream.shrink();
    assert!(!b.stream.holds_unfinished_state());
    b.receive(1, 8).unwrap();
    b.stream.shrink();
    b.input(&untagged(Opcode::Send, 0, 2, b"x"));
    assert_eq!(b.events(), [into(1, 1)]);
}
