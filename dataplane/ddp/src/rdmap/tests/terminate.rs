//! The Terminate for every error, sent once and as the last message, and the peer's Terminate (RFC 5040 §4.8, §5.4,
//! §6.2.1, §7.1).

use super::pair::Pair;
use super::*;
use crate::error::{ErrorCode as DdpCode, Field, Mismatch};
use crate::{Counters as DdpCounters, DdpError};

fn mismatch() -> Mismatch {
    Mismatch::unexpected(Field::Stag, 1)
}

fn ddp_error(code: DdpCode, header: &[u8], segment_len: u32) -> Error {
    let header = header.iter().copied().collect();
    Error::Ddp(DdpError { code, mismatch: mismatch(), key: OrderKey(0), header, segment_len })
}

fn rdmap_error(code: ErrorCode, header: &[u8], read_request: Option<ReadRequestRepr>) -> Error {
    let (header, segment_len) = (header.iter().copied().collect(), 46);
    Error::Rdmap(RdmapError { code, mismatch: mismatch(), header, segment_len, read_request })
}

fn tagged_header() -> Vec<u8> {
    tagged(Opcode::Write, STAG, 0, true, b"")
}

fn untagged_header() -> Vec<u8> {
    untagged(Opcode::ReadRequest, 1, 1, b"")
}

// RFC 5040 §5.5 (15), §7.1: operations that completed before the peer's Terminate are reported before it.
#[test]
fn completions_precede_the_peers_terminate() {
    let mut a = End::new();
    a.post(read(0, 0, 4, 1));
    a.post(read(8, 0, 4, 2));
    a.sent_segments();
    let sink_to = TaggedOffset(BASE).0;
    let response = tagged(Opcode::ReadResponse, SINK, sink_to - BASE, true, b"data");
    let peer_terminate = Terminate::new(0, 0, 0);
    // One call delivers both messages, when the gap closes.
    a.input_at(1, &untagged(Opcode::Terminate, 2, 1, &peer_terminate.emit()));
    a.input_at(0, &response);
    let flushed = Event::Flushed { cookie: Cookie::user(2) };
    let terminated = Event::Terminated { by_peer: true, terminate: peer_terminate };
    assert_eq!(a.events()[..3], [completed(1, Outcome::Read { len: 4 }), terminated, flushed]);
}

// RFC 5040 figures 9 and 10: the Terminate of a DDP error contains the error's numbers. Except for a local error, the
// Terminate also contains the segment length (M) and the DDP header (D), but never a Read Request (R).
#[test]
fn every_ddp_error_has_its_terminate() {
    for code in DdpCode::ALL {
        for header in [tagged_header(), untagged_header()] {
            let terminate = ddp_error(code, &header, 0x123).terminate().unwrap();
            let numbers = (terminate.layer, terminate.error_type, terminate.code);
            assert_eq!(numbers, (1, code.error_type(), code.code()));
            let local = code == DdpCode::LocalCatastrophic;
            assert_eq!(terminate.segment_len, (!local).then_some(0x123));
            let expected = if local { &[][..] } else { &header };
            assert_eq!(terminate.ddp_header.as_slice(), expected);
            assert_eq!(terminate.read_request, None);
            assert_eq!(Terminate::parse(&terminate.emit()), Ok(terminate));
        }
    }
}

// RFC 5040 figures 9 and 10: the Read Request (R) is included only with Remote Protection Errors.
#[test]
fn every_rdmap_error_has_its_terminate() {
    let numbers: [(ErrorCode, u8, u8); 10] = [
        (ErrorCode::LocalCatastrophic, 0, 0x00),
        (ErrorCode::InvalidStag, 1, 0x00),
        (ErrorCode::BaseOrBounds, 1, 0x01),
        (ErrorCode::AccessRights, 1, 0x02),
        (ErrorCode::StagNotAssociated, 1, 0x03),
        (ErrorCode::ToWrap, 1, 0x04),
        (ErrorCode::CannotInvalidate, 1, 0x09),
        (ErrorCode::InvalidVersion, 2, 0x05),
        (ErrorCode::UnexpectedOpcode, 2, 0x06),
        (ErrorCode::StreamCatastrophic, 2, 0x07),
    ];
    for (i, (code, error_type, number)) in numbers.into_iter().enumerate() {
        assert_eq!((ErrorCode::ALL[i], code.index()), (code, i));
        assert_ne!(code.description(), "unknown error");
        for request in [None, Some(read_request(STAG, 1, 2))] {
            let header = untagged_header();
            let terminate = rdmap_error(code, &header, request).terminate().unwrap();
            let numbers = (terminate.layer, terminate.error_type, terminate.code);
            assert_eq!(numbers, (0, error_type, number));
            assert_eq!(terminate.segment_len.is_some(), error_type != 0);
            assert_eq!(terminate.ddp_header.is_empty(), error_type == 0);
            let expected = request.filter(|_| error_type == 1);
            assert_eq!(terminate.read_request, expected);
            assert_eq!(Terminate::parse(&terminate.emit()), Ok(terminate));
        }
    }
}

// RFC 5040 figure 10: the Terminate of an LLP error has the LLP's numbers and no header.
#[test]
fn every_llp_error_has_its_terminate() {
    for code in 0..=255 {
        let terminate = Error::Llp { error_type: 0, code }.terminate().unwrap();
        assert_eq!(terminate, Terminate::new(2, 0, code));
        assert_eq!(terminate.emit().as_slice(), [0x20, code, 0, 0]);
    }
    assert_eq!(Error::InvalidTerminate { len: 3 }.terminate(), None);
}

// A segment without a whole header is reported by its length only. A segment without bytes is not reported.
#[test]
fn truncated_header_is_left_out_of_terminate() {
    let whole = untagged_header();
    for len in 1..whole.len() {
        let error = ddp_error(DdpCode::UntaggedVersion, &whole[..len], len as u32);
        let terminate = error.terminate().unwrap();
        assert!(terminate.ddp_header.is_empty());
        assert_eq!(terminate.segment_len, Some(len as u16));
        assert_eq!(terminate.emit()[2], 0x80);
    }
    let nothing = ddp_error(DdpCode::UntaggedVersion, &[], 0).terminate().unwrap();
    assert_eq!(nothing.emit()[2], 0);
    let long = ddp_error(DdpCode::BaseOrBounds, &tagged_header(), 70_000).terminate().unwrap();
    assert_eq!(long.segment_len, Some(u16::MAX));
}

#[test]
fn rdmap_errors_read_as_sentences() {
    let stag = Mismatch::unexpected(Field::Stag, 0x77);
    let header = Default::default();
    let error = Error::Rdmap(RdmapError {
        code: ErrorCode::CannotInvalidate,
        mismatch: stag,
        header,
        segment_len: 0,
        read_request: None,
    });
    let text = "RDMAP error 1/09: RDMAP: STag cannot be invalidated (STag 0x00000077)";
    assert_eq!(error.to_string(), text);
    let llp = Error::Llp { error_type: 0, code: 2 };
    assert_eq!(llp.to_string(), "LLP error 0/02: MPA: CRC error");
}

// RFC 5040 §5.4: the Terminate has queue 2, MSN 1, MO 0, and no message follows it.
#[test]
fn a_terminate_is_the_last_message() {
    let mut b = End::new();
    b.post(send(b"out", 1));
    b.post(send(b"too late", 2));
    let (_, token, len) = b.next_segment(1500).unwrap();
    b.input(&tagged(Opcode::Write, Stag(1), 0, true, b"x"));
    let terminate = b.terminate();
    assert_eq!(b.stream.post(send(b"", 3)), Err(PostError::Closed));
    b.stream.on_acknowledged(token, len);
    let segments = b.sent_segments();
    assert_eq!(segments.len(), 1);
    assert_eq!(segments[0][..2], [0x41, 0x47]);
    assert_eq!(segments[0][2..18], [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(segments[0][18..], terminate.emit()[..]);
    assert!(b.stream.is_terminated() && b.stream.is_closed() && !b.stream.has_unsent());
    // RFC 5040 §5.4: messages handed to DDP complete, others are flushed, in the order of posting.
    assert_eq!(
        b.events(),
        [completed(1, Outcome::Sent), Event::Flushed { cookie: Cookie::user(2) }]
    );
}

// RFC 5040 §7.1 (2): the Terminate is the next message. A partly sent message is completed first, unless too many of
// its bytes are unsent.
#[test]
fn short_unfinished_message_precedes_the_terminate() {
    for (len, finished) in [(3000, true), (400_000, false)] {
        let mut b = End::new();
        b.post(write(0, &vec![1; len], 1));
        let (_, first, first_len) = b.next_segment(500).unwrap();
        b.input(&tagged(Opcode::Write, Stag(1), 0, true, b"x"));
        let mut segments = Vec::new();
        let mut tokens = vec![(first, first_len)];
        while let Some((segment, token, len)) = b.next_segment(500) {
            segments.push(segment);
            tokens.push((token, len));
        }
        let shape = shape(&segments);
        assert_eq!(shape.last(), Some(&(Opcode::Terminate, true)));
        let whole = shape.len() > 1 && shape[shape.len() - 2] == (Opcode::Write, true);
        assert_eq!(whole, finished);
        tokens.into_iter().for_each(|(token, len)| b.stream.on_acknowledged(token, len));
        let events = b.events();
        let expected = match finished {
            true => completed(1, Outcome::Written),
            false => Event::Flushed { cookie: Cookie::user(1) },
        };
        assert_eq!(events.last(), Some(&expected));
    }
}

// RFC 5040 §7.1 (4): only the first error is reported. No data after the segment in error is placed or delivered.
#[test]
fn only_the_first_error_is_reported() {
    let mut b = End::new();
    // Both errors arrive beyond a gap, the later one first.
    b.input_at(3, &untagged(Opcode::Send, 9, 1, b"x"));
    b.input_at(1, &tagged(Opcode::Write, Stag(1), 0, true, b"x"));
    b.input_at(2, &tagged(Opcode::Write, STAG, 0, true, b"never"));
    assert!(b.events().is_empty());
    b.input_at(0, &tagged(Opcode::Write, STAG, 100, true, b"good"));
    assert_eq!(b.terminate_numbers(), (1, 1, 0));
    b.input_at(4, &tagged(Opcode::Write, STAG, 0, true, b"never"));
    b.complete_order(10);
    b.input_at(10, &untagged(Opcode::Send, 0, 1, b"x"));
    assert_eq!(b.events(), []);
    assert_eq!(b.memory.to_vec()[..5], [0; 5]);
    assert_eq!(b.memory.to_vec()[100..104], *b"good");
    b.stream.report_llp_error(0, 2);
    b.stream.terminate_locally();
    assert_eq!(b.events(), []);
    assert_eq!(b.sent_segments().len(), 1);
}

// An error in one of several messages that are delivered at once ends delivery.
#[test]
fn messages_delivered_after_an_error_are_dropped() {
    let mut b = End::new();
    b.input_at(2, &untagged(Opcode::Send, 0, 1, b"behind"));
    b.input_at(1, &untagged(Opcode::ReadRequest, 1, 1, &read_request(Stag(1), 0, 5).emit()));
    b.input_at(0, &tagged(Opcode::Write, STAG, 0, true, b"first"));
    let events = b.events();
    assert!(matches!(events[0], Event::WriteDelivered { len: 5, .. }));
    assert!(
        matches!(&events[1], Event::Error(Error::Rdmap(error)) if error.code == ErrorCode::InvalidStag)
    );
    assert!(matches!(events[2], Event::Terminated { by_peer: false, .. }));
    assert_eq!(events.len(), 3);
    assert_eq!(b.pool.in_use(), 0);
}

// RFC 5040 §6.2.1: the Terminate for an error of the LLP or the ULP has no header.
#[test]
fn errors_without_a_segment_have_no_header() {
    let mut b = End::new();
    b.stream.report_llp_error(0, 2);
    assert_eq!(b.terminate(), Terminate::new(2, 0, 2));
    let mut b = End::new();
    b.stream.terminate_locally();
    assert_eq!(b.terminate(), Terminate::new(0, 0, 0));
    assert_eq!(b.sent_segments()[0][18..], [0, 0, 0, 0]);
}

// RFC 5040 §5.4: the peer's Terminate is reported to the ULP and ends the stream.
#[test]
fn a_terminate_of_the_peer_ends_the_stream() {
    let mut pair = Pair::new(config());
    pair.a.post(WorkRequest::Write {
        stag: Stag(1),
        to: TaggedOffset(0),
        source: bytes(b"x"),
        cookie: Cookie::user(1),
    });
    pair.a.post(read(0, 0, 10, 2));
    let (wrong, token, len) = pair.a.next_segment(1500).unwrap();
    pair.b.input(&wrong);
    let peer_terminate = pair.b.terminate();
    let (segment, ..) = pair.b.next_segment(1500).unwrap();
    pair.a.input(&segment);
    let events = pair.a.events();
    assert_eq!(events[0], Event::Terminated { by_peer: true, terminate: peer_terminate });
    assert_eq!(events.len(), 1);
    pair.a.stream.on_acknowledged(token, len);
    let flushed = Event::Flushed { cookie: Cookie::user(2) };
    assert_eq!(pair.a.events(), [completed(1, Outcome::Written), flushed]);
    assert!(pair.a.stream.is_terminated() && pair.a.stream.is_closed());
    assert!(pair.a.next_segment(1500).is_none());
    // No segment is accepted after the Terminate.
    pair.a.input(&tagged(Opcode::Write, STAG, 0, true, b"never"));
    assert_eq!(pair.a.memory.to_vec()[..5], [0; 5]);
    assert_eq!(pair.a.pool.in_use(), 0);
}

// Terminates in siw's layout are parsed, even with trailing bytes.
#[test]
fn siw_terminates_are_parsed() {
    let mut a = End::with_config(Config { siw: true, ..config() });
    let mut bytes = vec![0x11, 0x01, 0x03, 0x00, 0x05, 0xdc];
    bytes.extend(tagged_header());
    bytes.extend([0xee; 40]);
    a.input(&untagged(Opcode::Terminate, 2, 1, &bytes));
    let [Event::Terminated { by_peer: true, terminate }] = &a.events()[..] else { panic!() };
    assert_eq!((terminate.layer, terminate.error_type, terminate.code), (1, 1, 1));
    assert_eq!(terminate.layout, Layout::Siw);
    assert_eq!(terminate.ddp_header.as_slice(), tagged_header());
}

// RFC 5040 §4.8: the bits that siw uses as flags are reserved. These bits are ignored unless the peer is siw.
#[test]
fn reserved_bits_of_a_terminate_are_ignored() {
    for (bytes, layer, error_type, code) in
        [([0x20, 0x02, 0x01, 0x00], 2, 0, 2), ([0x21, 0x01, 0x00, 0x00], 2, 1, 1)]
    {
        let mut a = End::new();
        a.input(&untagged(Opcode::Terminate, 2, 1, &bytes));
        let terminate = Terminate::new(layer, error_type, code);
        assert_eq!(a.events(), [Event::Terminated { by_peer: true, terminate }]);
    }
}

// RFC 5040 §5.4, §7.1: an invalid Terminate is reported to the ULP, and no Terminate is sent in answer.
#[test]
fn an_invalid_terminate_is_surfaced_and_not_answered() {
    for bytes in [&[][..], &[0x11, 0, 0xc0], &[0x11, 0, 0xc0, 0, 0, 0, 0xc1]] {
        let mut a = End::new();
        a.post(send(b"never", 1));
        a.post(send(b"never", 2));
        a.input(&untagged(Opcode::Terminate, 2, 1, bytes));
        let events = a.events();
        assert_eq!(events[0], Event::Error(Error::InvalidTerminate { len: bytes.len() }));
        assert!(a.next_segment(1500).is_none() && a.stream.is_closed());
        assert_eq!(a.events(), []);
    }
}

// RFC 5040 §5.4: the buffer for the Terminate is independent of the ULP's receive buffers.
#[test]
fn terminate_uses_no_ulp_buffer() {
    let mut a = End::with_config(Config { recv_buffers: 0, ..config() });
    a.input(&untagged(Opcode::Terminate, 2, 1, &[0x20, 2, 0, 0]));
    let terminate = Terminate::new(2, 0, 2);
    assert_eq!(a.events(), [Event::Terminated { by_peer: true, terminate }]);
}

// RFC 5040 §4.8: the Terminate has the DDP header as received, reserved bits included, wherever the error is found.
// Cases: at arrival; at delivery, in order or beyond a gap; in a message of one or several segments; in a Read that has
// begun.
#[test]
fn terminate_carries_the_ddp_header_as_received() {
    let with_bits = |mut segment: Vec<u8>| {
        segment[0] |= 0x2c;
        segment
    };
    let send = || untagged(Opcode::Send, 0, 1, b"first");
    let read = |stag| untagged(Opcode::ReadRequest, 1, 1, &read_request(stag, 0, 8).emit());
    let immediate = |mo, last| {
        let opcode = Opcode::Immediate;
        untagged_with(opcode, None, 0, 2, mo, last, &[7; 5])
    };
    type Case = (Vec<Vec<u8>>, (u8, u8, u8));
    let cases: [Case; 4] = [
        (vec![with_bits(tagged(Opcode::Write, Stag(1), 0, true, b"x"))], (1, 1, 0)),
        (vec![with_bits(read(Stag(1)))], (0, 1, 0)),
        (vec![with_bits(untagged(Opcode::Immediate, 0, 2, b"short"))], (0, 2, 7)),
        (vec![immediate(0, false), with_bits(immediate(5, true))], (0, 2, 7)),
    ];
    for (segments, numbers) in cases {
        for behind_a_gap in [false, true] {
            let mut a = End::new();
            let mut arrivals: Vec<(u64, &Vec<u8>)> = (1..).zip(&segments).collect();
            let first = send();
            arrivals.insert(if behind_a_gap { segments.len() } else { 0 }, (0, &first));
            for (key, segment) in arrivals {
                let _ = a.input_at(key, segment);
            }
            let terminate = a.terminate();
            assert_eq!((terminate.layer, terminate.error_type, terminate.code), numbers);
            let wrong = &segments[segments.len() - 1];
            let header = wire::ddp::Control(wrong[0]).header_len();
            assert_eq!(terminate.ddp_header.as_slice(), &wrong[..header], "{numbers:?}");
            assert_eq!(terminate.segment_len, Some(wrong.len() as u16));
        }
    }
    let mut a = End::new();
    let request = with_bits(read(STAG));
    a.input(&request);
    a.stags.remove(STAG).unwrap();
    assert!(a.stream.on_stag_revoked(STAG));
    assert_eq!(a.terminate().ddp_header.as_slice(), &request[..18]);
}

// DDP's errors count in DDP's counters, RDMAP's errors in RDMAP's.
#[test]
fn errors_are_counted_by_their_layer() {
    let mut b = End::new();
    b.input(&tagged(Opcode::Write, Stag(1), 0, true, b"x"));
    let counted: u8 = b.stream.ddp_counters().errors.iter().sum();
    assert_eq!((counted, b.stream.counters().errors.iter().sum::<u64>()), (1, 0));
    let mut b = End::new();
    b.input(&tagged(Opcode::Send, STAG, 0, true, b"x"));
    assert_eq!(b.stream.ddp_counters().errors, DdpCounters::default().errors);
    assert_eq!(b.stream.counters().errors[ErrorCode::UnexpectedOpcode.index()], 1);
    assert_eq!(b.stream.counters().terminates_sent, 1);
}
