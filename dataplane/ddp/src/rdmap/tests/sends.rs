//! Messages of RDMAP as sent and received: headers, opcodes, queues and lengths of all kinds, Reads, atomics and
//! Terminates included; delivery of Sends and Immediate Data; interleaving.

use super::pair::received;
use wire::rdmap::{AtomicRequestRepr, AtomicResponseRepr};

use super::*;

// RFC 5040 figures 3 and 4, RFC 7306 figure 2: every message's T, QN, opcode and Invalidate STag.
#[test]
fn message_headers_match_rfc_5040_tables() {
    let mut a = End::new();
    let source = || bytes(b"data");
    let some = Some(Stag(0x0badf00d));
    let one = |solicited, invalidate, cookie| WorkRequest::Send {
        source: source(),
        solicited,
        invalidate,
        cookie,
    };
    a.post(one(false, None, Cookie::user(1)));
    a.post(one(false, some, Cookie::user(2)));
    a.post(one(true, None, Cookie::user(3)));
    a.post(one(true, some, Cookie::user(4)));
    a.post(write(0, b"w", 5));
    a.post(read(1, 2, 3, 6));
    a.post(atomic(AtomicOp::swap(1), 8, 7));
    a.post(WorkRequest::Immediate { data: [7; 8], solicited: false, cookie: Cookie::user(8) });
    a.post(WorkRequest::Immediate { data: [7; 8], solicited: true, cookie: Cookie::user(9) });
    let segments = a.sent_segments();
    let stag = [0x0b, 0xad, 0xf0, 0x0d];
    let none = [0; 4];
    // Columns: DDP control, RDMAP control, Invalidate STag (Write: STag), QN, MSN.
    let expected: [(u8, u8, [u8; 4], u8, u8); 9] = [
        (0x41, 0x43, none, 0, 1),
        (0x41, 0x44, stag, 0, 2),
        (0x41, 0x45, none, 0, 3),
        (0x41, 0x46, stag, 0, 4),
        (0xc1, 0x40, STAG.0.to_be_bytes(), 0, 0),
        (0x41, 0x41, none, 1, 1),
        (0x41, 0x4a, none, 1, 2),
        (0x41, 0x48, none, 0, 5),
        (0x41, 0x49, none, 0, 6),
    ];
    assert_eq!(segments.len(), expected.len());
    for (segment, (ddp, control, stag, qn, msn)) in segments.iter().zip(expected) {
        assert_eq!((segment[0], segment[1]), (ddp, control));
        assert_eq!(segment[2..6], stag);
        if ddp & 0x80 == 0 {
            assert_eq!((segment[9], segment[13]), (qn, msn));
        }
    }
    assert_eq!(segments[5][18..].len(), 28);
    assert_eq!(segments[6][18..].len(), 52);
    // RFC 7306 §6.3: Immediate Data has 8 bytes.
    assert_eq!(segments[7][18..], [7; 8]);
}

// RFC 5040 §5.3, RFC 7306 §6.3: Sends and Immediate Data are delivered in order, and each uses up one buffer.
#[test]
fn sends_of_all_kinds_are_delivered_in_order() {
    let mut b = End::new();
    b.input(&untagged(Opcode::Send, 0, 1, b"one"));
    b.input(&untagged(Opcode::SendSolicited, 0, 2, b"two"));
    b.input(&untagged(Opcode::Immediate, 0, 3, b"12345678"));
    b.input(&untagged(Opcode::Send, 0, 4, b""));
    let two = Event::Received { data: b"two".to_vec(), solicited: true, invalidated: None };
    let immediate = Event::Immediate { data: *b"12345678", solicited: false };
    assert_eq!(b.events(), [received(b"one"), two, immediate, received(b"")]);
    assert_eq!(b.stream.posted_buffers(), 0);
    b.stream.post_buffers(1).unwrap();
    b.input(&untagged(Opcode::ImmediateSolicited, 0, 5, b"abcdefgh"));
    assert_eq!(b.events(), [Event::Immediate { data: *b"abcdefgh", solicited: true }]);
    // All buffers are used up, so DDP rejects the Send.
    b.input(&untagged(Opcode::Send, 0, 6, b""));
    assert_eq!(b.terminate_numbers(), (1, 2, 2));
}

// RFC 5040 §5.3, RFC 5041 §7.1 (4): a Send must fit into its buffer.
#[test]
fn a_send_larger_than_its_buffer_is_1_2_05() {
    let mut b = End::new();
    b.input(&untagged(Opcode::Send, 0, 1, &[0; 257]));
    assert_eq!(b.terminate_numbers(), (1, 2, 5));
}

// RFC 7306 §6.3: Immediate Data has exactly 8 bytes.
#[test]
fn immediate_data_of_another_length_is_an_error() {
    for len in [0, 7, 9] {
        let mut b = End::new();
        b.input(&untagged(Opcode::Immediate, 0, 1, &vec![0; len]));
        let terminate = b.terminate();
        assert_eq!((terminate.layer, terminate.error_type, terminate.code), (0, 2, 7));
        // RFC 7306 §8.1 (2): the DDP header is included, an RDMAP header is not.
        assert_eq!((terminate.ddp_header.len(), terminate.read_request), (18, None));
    }
}

// RFC 5040 §4.1: reserved bits and an unused Invalidate STag are ignored.
#[test]
fn rdmap_reserved_bits_are_not_checked() {
    let mut b = End::new();
    let mut segment = untagged(Opcode::Send, 0, 1, b"x");
    segment[1] |= 0x30;
    segment[2..6].fill(0xff);
    b.input(&segment);
    assert_eq!(b.events(), [received(b"x")]);
}

// RFC 5040 §4.1, RFC 7306 §4.1: in every untagged message that does not invalidate, reserved bits and the Invalidate
// STag are ignored. RFC 7306 §5.2.1: unused fields of an Atomic Request are also ignored.
#[test]
fn reserved_bits_and_unused_fields_are_ignored() {
    let noisy = |opcode: Opcode, qn, payload: &[u8]| {
        let mut segment = untagged(opcode, qn, 1, payload);
        segment[1] |= 0x30;
        segment[2..6].fill(0xff);
        segment
    };
    let no_error = |b: &mut End, opcode: Opcode| {
        let events = b.events();
        assert!(!events.iter().any(|e| matches!(e, Event::Error(_))), "{opcode:?}: {events:?}");
        events
    };
    for opcode in [Opcode::Send, Opcode::SendSolicited] {
        let mut b = End::new();
        b.input(&noisy(opcode, 0, b"x"));
        let solicited = opcode == Opcode::SendSolicited;
        let data = b"x".to_vec();
        let expected = Event::Received { data, solicited, invalidated: None };
        assert_eq!(no_error(&mut b, opcode), [expected]);
    }
    for opcode in [Opcode::Immediate, Opcode::ImmediateSolicited] {
        let mut b = End::new();
        b.input(&noisy(opcode, 0, b"12345678"));
        let solicited = opcode == Opcode::ImmediateSolicited;
        let expected = Event::Immediate { data: *b"12345678", solicited };
        assert_eq!(no_error(&mut b, opcode), [expected]);
    }
    let mut b = End::new();
    b.input(&noisy(Opcode::ReadRequest, 1, &read_request(STAG, 0, 8).emit()));
    no_error(&mut b, Opcode::ReadRequest);
    assert_eq!(shape(&b.sent_segments()), [(Opcode::ReadResponse, true)]);
    let mut b = End::new();
    b.input(&noisy(Opcode::Terminate, 2, &[0x20, 2, 0, 0]));
    let terminate = Terminate::new(2, 0, 2);
    assert_eq!(
        no_error(&mut b, Opcode::Terminate),
        [Event::Terminated { by_peer: true, terminate }]
    );

    let op = AtomicOp::FetchAdd { add: 5, mask: 0 };
    let to = TaggedOffset(BASE);
    let mut request = AtomicRequestRepr { id: 1, stag: STAG, to, op }.emit();
    request[..3].fill(0xff);
    request[3] |= 0xf0;
    request[36..].fill(0xa5);
    let mut b = End::new();
    b.input(&noisy(Opcode::AtomicRequest, 1, &request));
    no_error(&mut b, Opcode::AtomicRequest);
    assert_eq!(b.memory.to_vec()[..8], 5u64.to_ne_bytes());
    assert_eq!(shape(&b.sent_segments()), [(Opcode::AtomicResponse, true)]);
    let mut a = End::new();
    a.post(atomic(op, 0, 9));
    let id = AtomicRequestRepr::parse(&a.sent_segments()[0][18..]).unwrap().id;
    let response = AtomicResponseRepr { id, original: 77 }.emit();
    a.input(&noisy(Opcode::AtomicResponse, 3, &response));
    let done = completed(9, Outcome::Atomic { original: 77 });
    assert_eq!(no_error(&mut a, Opcode::AtomicResponse), [done]);
}

// RFC 5040 §7.2 (2), figure 4: each opcode is valid either on one queue or in tagged messages.
#[test]
fn opcode_on_wrong_queue_is_unexpected() {
    for bits in 0..16u8 {
        let opcode = Opcode::from_bits(bits);
        for queue in [None, Some(0), Some(1), Some(2), Some(3)] {
            let mut b = End::new();
            let own = opcode.is_some_and(|opcode| opcode.queue() == queue.map(Qn));
            let mut segment = match queue {
                None => tagged(Opcode::Write, STAG, 0, true, b"12345678"),
                Some(qn) => untagged(Opcode::Send, qn, 1, b"12345678"),
            };
            segment[1] = 0x40 | bits;
            b.input(&segment);
            if own && !matches!(opcode, Some(Opcode::ReadResponse | Opcode::AtomicResponse)) {
                let unexpected = |event: &Event| match event {
                    Event::Error(Error::Rdmap(error)) => error.code == ErrorCode::UnexpectedOpcode,
                    _ => false,
                };
                assert!(!b.events().iter().any(unexpected), "{opcode:?} on {queue:?}");
            } else if queue == Some(3) {
                // No Atomic Request is outstanding, so DDP has no buffer on this queue.
                assert_eq!(b.terminate_numbers(), (1, 2, 2));
            } else {
                assert_eq!(b.terminate_numbers(), (0, 2, 6), "{bits:#x} on {queue:?}");
                assert_eq!(b.memory.to_vec(), [0; LEN as usize], "nothing is placed");
            }
        }
    }
}

// RFC 7306 §1: without the extensions, their opcodes are undefined.
#[test]
fn disabled_extensions_are_unexpected() {
    let off = Config { atomics: false, immediate: false, ..config() };
    for (opcode, qn) in
        [(Opcode::Immediate, 0), (Opcode::ImmediateSolicited, 0), (Opcode::AtomicRequest, 1)]
    {
        let mut b = End::with_config(off.clone());
        b.input(&untagged(opcode, qn, 1, &[0; 8]));
        assert_eq!(b.terminate_numbers(), (0, 2, 6));
    }
    let mut b = End::with_config(off);
    b.input(&untagged(Opcode::AtomicResponse, 3, 1, &[0; 12]));
    assert_eq!(b.terminate_numbers(), (1, 2, 1), "there is no such queue");
}

// RFC 5040 §4.1, §7.2 (3): RV must be the stream's version.
#[test]
fn a_wrong_rdmap_version_is_0_2_05() {
    for rv in [0x00, 0x80, 0xc0] {
        for mut segment in
            [untagged(Opcode::Send, 0, 1, b"x"), tagged(Opcode::Write, STAG, 0, true, b"x")]
        {
            let mut b = End::new();
            segment[1] = segment[1] & 0x3f | rv;
            b.input(&segment);
            assert_eq!(b.terminate_numbers(), (0, 2, 5));
            assert_eq!(b.memory.to_vec()[0], 0);
        }
    }
}

// Chelsio's hardware sends an untagged Send between the segments of a tagged message.
#[test]
fn send_within_a_tagged_message_is_accepted() {
    let mut b = End::new();
    b.input(&tagged(Opcode::Write, STAG, 0, false, &[1; 100]));
    b.input(&untagged(Opcode::Send, 0, 1, b"between"));
    b.input(&tagged(Opcode::Write, STAG, 100, false, &[2; 100]));
    b.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(STAG, 0, 4).emit()));
    b.input(&tagged(Opcode::Write, STAG, 200, true, &[3; 100]));
    let written = Event::WriteDelivered { stag: STAG, to: TaggedOffset(BASE), len: 300 };
    assert_eq!(b.events(), [received(b"between"), written]);
    assert_eq!(shape(&b.sent_segments()), [(Opcode::ReadResponse, true)]);
}

// RFC 5040 §4.1: all segments of a message have one opcode.
#[test]
fn a_tagged_message_that_changes_its_opcode_is_0_2_06() {
    let mut a = End::new();
    a.post(read(0, 0, 100, 1));
    a.sent_segments();
    a.input(&tagged(Opcode::Write, STAG, 0, false, &[1; 10]));
    a.input(&tagged(Opcode::ReadResponse, SINK, 0, true, &[1; 100]));
    assert_eq!(a.terminate_numbers(), (0, 2, 6));
    assert_eq!(a.sink.to_vec()[..100], [0; 100]);
}

// siw treats interleaved messages as an attack, so messages are sent one after the other.
#[test]
fn messages_of_a_stream_are_not_interleaved() {
    let mut a = End::new();
    a.post(send(&[1; 200], 1));
    a.post(write(0, &[2; 400], 2));
    a.next_segment(128).unwrap();
    a.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(STAG, 0, 300).emit()));
    a.input(&untagged(Opcode::ReadRequest, 1, 2, &read_request(STAG, 0, 300).emit()));
    a.post(send(b"third", 3));
    let segments: Vec<_> = core::iter::from_fn(|| a.next_segment(128).map(|(s, ..)| s)).collect();
    let mut open = Some(Opcode::Send);
    let mut order = Vec::new();
    for (opcode, last) in shape(&segments) {
        assert!(open.is_none_or(|open| open == opcode), "{opcode:?} within {open:?}");
        open = (!last).then_some(opcode);
        if last {
            order.push(opcode);
        }
    }
    // Operations and responses alternate.
    let (response, write) = (Opcode::ReadResponse, Opcode::Write);
    assert_eq!(order, [Opcode::Send, response, write, response, Opcode::Send]);
}
