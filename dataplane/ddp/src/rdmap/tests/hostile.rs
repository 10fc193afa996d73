//! Regression tests for attacks by hostile peers, such as those on Linux's iWARP implementation (siw). The Read
//! Response overrun is in `reads.rs`.

use super::*;

/// Kernel bug "FPDU length underflow": for a ULPDU shorter than the header of its opcode, the computed remaining length
/// wrapped. Tests all lengths below the header's length, for every opcode.
#[test]
fn a_ulpdu_shorter_than_the_header_of_its_opcode_is_refused() {
    for opcode in Opcode::ALL {
        let whole = match opcode.queue() {
            None => tagged(opcode, STAG, 0, true, b""),
            Some(qn) => untagged(opcode, qn.0, 1, b""),
        };
        for len in 0..whole.len() {
            let mut b = End::new();
            assert_eq!(b.input(&whole[..len]), Disposition::Ignored);
            let terminate = b.terminate();
            assert_eq!(terminate.layer, 1, "{opcode:?} of {len} bytes");
            assert!(terminate.ddp_header.is_empty());
            assert_eq!(terminate.segment_len, (len > 0).then_some(len as u16));
            assert_eq!(shape(&b.sent_segments()), [(Opcode::Terminate, true)]);
        }
    }
    // A whole DDP header is followed by a truncated RDMAP header.
    let request = untagged(Opcode::ReadRequest, 1, 1, &read_request(STAG, 0, 4).emit());
    for len in 18..request.len() {
        let mut b = End::new();
        b.input(&request[..len]);
        assert_eq!(b.terminate_numbers(), (0, 2, 7), "{len} bytes");
        assert_eq!(shape(&b.sent_segments()), [(Opcode::Terminate, true)]);
    }
    // A Read Request with one byte too many is refused.
    let mut b = End::new();
    b.input(&[&request[..], &[0]].concat());
    assert_eq!(b.terminate_numbers(), (0, 2, 7));
    let mut b = End::with_config(Config { atomics: false, ..config() });
    b.input(&[&request[..], &[0]].concat());
    assert_eq!(b.terminate_numbers(), (1, 2, 5));
}

/// Kernel bug "header error on a half-open stream": an error before the stream was established, or with one direction
/// closed, was handled with state that did not exist.
#[test]
fn header_error_on_half_open_stream_closes_in_order() {
    let wrong = tagged(Opcode::Write, Stag(1), 0, true, b"x");
    // An error arrives before any exchange, while an operation waits.
    let mut b = End::new();
    b.post(read(0, 0, 4, 1));
    b.input(&wrong);
    assert_eq!(b.terminate_numbers(), (1, 1, 0));
    assert_eq!(shape(&b.sent_segments()), [(Opcode::Terminate, true)]);
    // The ULP has closed, but the LLP still sends.
    let mut b = End::new();
    b.stream.close();
    b.input(&wrong);
    assert_eq!(b.terminate_numbers(), (1, 1, 0));
    assert_eq!(shape(&b.sent_segments()), [(Opcode::Terminate, true)]);
    // If no more data may be sent, the error is at most reported locally.
    let mut b = End::new();
    b.stream.close_now();
    b.input(&wrong);
    let events = b.events();
    assert!(events.is_empty() || matches!(events[..], [Event::Error(_)]), "{events:?}");
    assert!(b.sent_segments().is_empty() && !b.stream.has_unsent());
    // The peer's direction is closed: any further data fails the stream.
    let mut b = End::new();
    b.post(send(b"x", 1));
    b.stream.on_peer_closed();
    b.input(&wrong);
    let events = b.events();
    let closed = Event::PeerClosed { incomplete: false };
    let flushed = Event::Flushed { cookie: Cookie::user(1) };
    assert_eq!(events, [closed, flushed.clone(), Event::Failed(Failure::DataAfterClose)]);
    // The version is not determined yet, so no message can be sent.
    let mut b = End::with_config(Config { version: VersionPolicy::AdoptFirst, ..config() });
    b.post(send(b"x", 1));
    b.input(&tagged(Opcode::Write, STAG, 0, true, b"x")[..5]);
    let events = b.events();
    assert!(matches!(&events[..], [Event::Error(_), last] if *last == flushed), "{events:?}");
    assert!(b.sent_segments().is_empty() && !b.stream.has_unsent() && b.stream.is_closed());
    // After a failure and after `release`, segments are ignored.
    let mut b = End::new();
    b.stream.fail(Failure::LlpLost);
    b.input(&wrong);
    b.stream.release(&mut b.pool);
    b.input(&wrong);
    assert_eq!(b.events(), [Event::Failed(Failure::LlpLost)]);
}

/// Requests whose responses are unsent or unacknowledged occupy bounded memory, however many the peer sends.
#[test]
fn requests_without_acknowledgement_are_bounded() {
    let mut b = End::with_config(Config { ird: 3, max_responses: 5, ..config() });
    let mut requests = 0;
    loop {
        requests += 1;
        let request = read_request(STAG, 0, 4).emit();
        b.input(&untagged(Opcode::ReadRequest, 1, requests, &request));
        if b.stream.error().is_some() {
            break;
        }
        // The LLP sends; no acknowledgement arrives.
        b.next_segment(1500);
        assert!(b.stream.outstanding() <= 3 + 5);
    }
    assert_eq!(requests, 3 + 5 + 1);
    assert_eq!(b.terminate_numbers(), (1, 2, 2));
}

/// The second segment of a Write lies beyond the end of the region and is refused. The end's other region, the sink,
/// does not change.
#[test]
fn write_past_region_end_is_refused_there() {
    let mut b = End::new();
    b.input(&tagged(Opcode::Write, STAG, LEN - 8, false, &[1; 8]));
    b.input(&tagged(Opcode::Write, STAG, LEN, true, &[1; 8]));
    assert_eq!(b.terminate_numbers(), (1, 1, 1));
    let mut placed = [0; LEN as usize];
    placed[LEN as usize - 8..].fill(1);
    assert_eq!(b.memory.to_vec(), placed);
    assert_eq!(b.sink.to_vec(), [0; LEN as usize]);
}
