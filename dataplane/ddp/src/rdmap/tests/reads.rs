//! RDMA Read: the request queue, its limits, and the checks at both ends (RFC 5040 §5.2, §6.1, §7.2).

use super::*;

fn request(msn: u32, repr: &ReadRequestRepr) -> Vec<u8> {
    untagged(Opcode::ReadRequest, 1, msn, &repr.emit())
}

fn response(at: u64, last: bool, data: &[u8]) -> Vec<u8> {
    tagged(Opcode::ReadResponse, SINK, at, last, data)
}

/// Returns a requester with Reads of these lengths outstanding, whose sink buffers are consecutive from `BASE` on.
fn reader(lens: &[u32]) -> End {
    let mut a = End::new();
    let mut at = 0;
    for (i, len) in lens.iter().enumerate() {
        a.post(read(at, 0, *len, i as u64));
        at += u64::from(*len);
    }
    assert_eq!(a.sent_segments().len(), lens.len());
    a
}

// RFC 5040 §4.4, §5.2.2: a response has the sink STag and TO of its request. Responses are in the order of requests.
#[test]
fn read_responses_are_in_order_with_the_requested_sink() {
    let mut b = End::new();
    b.memory.write(0, &pattern(1, 1000));
    b.input(&request(1, &ReadRequestRepr { sink_stag: Stag(5), ..read_request(STAG, 10, 300) }));
    b.input(&request(2, &ReadRequestRepr { sink_stag: Stag(6), ..read_request(STAG, 500, 20) }));
    let segments = b.sent_segments();
    let first = &segments[0];
    assert_eq!(first[..2], [0xc1, 0x42]);
    assert_eq!(first[2..6], 5u32.to_be_bytes());
    assert_eq!(first[6..14], 0x1000u64.to_be_bytes());
    assert_eq!(first[14..], pattern(1, 1000)[10..310]);
    assert_eq!(segments[1][2..6], 6u32.to_be_bytes());
    assert_eq!(segments[1][14..], pattern(1, 1000)[500..520]);
    assert_eq!(b.events(), [Event::ReadServed { len: 300 }, Event::ReadServed { len: 20 }]);
}

// RFC 5040 §6.1: at most IRD requests await their response. A further Read is an error, which bounds the queue.
#[test]
fn a_read_beyond_ird_is_1_2_02() {
    let mut b = End::new();
    for msn in 1..=4 {
        b.input(&request(msn, &read_request(STAG, 0, 10)));
    }
    assert_eq!(b.stream.counters().requests_max, 4);
    assert!(b.events().is_empty());
    b.input(&request(5, &read_request(STAG, 0, 10)));
    assert_eq!(b.terminate_numbers(), (1, 2, 2));
}

// An IRD slot is free once its response is sent, before the response is acknowledged.
#[test]
fn sent_response_frees_its_ird_slot() {
    let mut b = End::new();
    for msn in 1..=7 {
        b.input(&request(msn, &read_request(STAG, 0, 10)));
        b.next_segment(1500).unwrap();
    }
    assert!(b.events().is_empty());
    assert_eq!(b.stream.outstanding(), 7);
}

// The number of unacknowledged responses is bounded. Requests without response keep their IRD slots.
#[test]
fn unacknowledged_responses_are_bounded() {
    let mut b = End::with_config(Config { max_responses: 2, ..config() });
    for msn in 1..=4 {
        b.input(&request(msn, &read_request(STAG, 0, 10)));
    }
    let (_, token, len) = b.next_segment(1500).unwrap();
    b.next_segment(1500).unwrap();
    assert!(b.next_segment(1500).is_none() && b.stream.has_unsent());
    b.stream.on_acknowledged(token, len);
    assert!(b.next_segment(1500).is_some());
    assert!(b.next_segment(1500).is_none());
}

// RFC 5040 §6.1: at most ORD Reads are outstanding. Further operations wait, in order.
#[test]
fn reads_beyond_ord_wait() {
    let mut a = End::with_config(Config { ord: 2, ..config() });
    (0..3).for_each(|i| a.post(read(i * 4, 0, 4, i)));
    a.post(send(b"behind", 3));
    assert_eq!(shape(&a.sent_segments()), [(Opcode::ReadRequest, true); 2]);
    assert_eq!((a.stream.requests_outstanding(), a.stream.counters().ord_waits), (2, 1));
    a.input(&response(0, true, b"1234"));
    assert_eq!(shape(&a.sent_segments()), [(Opcode::ReadRequest, true), (Opcode::Send, true)]);
    a.input(&response(4, true, b"5678"));
    a.input(&response(8, true, b"abcd"));
    let read = |cookie| completed(cookie, Outcome::Read { len: 4 });
    assert_eq!(a.events(), [read(0), read(1), read(2), completed(3, Outcome::Sent)]);
    assert_eq!(a.sink.to_vec()[..12], *b"12345678abcd");
}

// RFC 5040 §7.2 (4), figure 10: the Terminate has the segment's length (M), the DDP header (D) and the Read Request
// (R).
#[test]
fn read_without_access_is_remote_protection_error() {
    let other = Stag(0x55);
    let bound = |stream| StagEntry {
        stag: other,
        stream,
        ..entry(other, Access::REMOTE_READ, &VecMemory::new(100))
    };
    let foreign = |pd| StagEntry { pd, ..bound(None) };
    let write_only = entry(other, Access::REMOTE_WRITE, &VecMemory::new(100));
    let read = read_request;
    let cases: [(Option<StagEntry<VecMemory>>, ReadRequestRepr, u8); 10] = [
        (None, read(other, 0, 1), 0x00),
        (None, read(STAG, LEN - 3, 4), 0x01),
        (None, read(STAG, LEN, 1), 0x01),
        (None, read(STAG, u64::MAX, 1), 0x01),
        (Some(write_only), read(other, 0, 1), 0x02),
        (None, read(SINK, 0, 1), 0x02),
        (Some(bound(Some(StreamId(8)))), read(other, 0, 1), 0x03),
        (Some(foreign(PdId(2))), read(other, 0, 1), 0x03),
        (None, read(STAG, u64::MAX - BASE - 1, 3), 0x04),
        (None, ReadRequestRepr { sink_to: TaggedOffset(u64::MAX - 1), ..read(STAG, 0, 3) }, 0x04),
    ];
    for (entry, repr, code) in cases {
        let mut b = End::new();
        if let Some(entry) = entry {
            b.stags.insert(entry).unwrap();
        }
        let segment = request(1, &repr);
        b.input(&segment);
        let terminate = b.terminate();
        assert_eq!((terminate.layer, terminate.error_type, terminate.code), (0, 1, code));
        assert_eq!(terminate.segment_len, Some(46));
        assert_eq!(terminate.ddp_header.as_slice(), &segment[..18]);
        assert_eq!(terminate.read_request, Some(repr));
        // Only the Terminate is sent.
        let sent = b.sent_segments();
        assert_eq!(shape(&sent), [(Opcode::Terminate, true)]);
        assert_eq!(sent[0][18..], terminate.emit()[..]);
        assert_eq!(b.stream.counters().reads_served, 0);
    }
    // Reading the last byte of a region bound to this stream succeeds.
    let mut b = End::new();
    b.stags.insert(bound(Some(StreamId(9)))).unwrap();
    b.input(&request(1, &read(other, 99, 1)));
    b.input(&request(2, &read(STAG, 0, LEN as u32)));
    assert_eq!(b.sent_segments().len(), 1 + LEN.div_ceil(1486) as usize);
}

// RFC 5040 §5.5 (12), (17): a Read beyond a gap is served when all earlier segments have arrived.
#[test]
fn out_of_order_read_waits_for_order() {
    let mut b = End::new();
    b.input_at(1, &request(1, &read_request(STAG, 0, 4)));
    assert!(b.next_segment(1500).is_none());
    b.input_at(0, &tagged(Opcode::Write, STAG, 0, true, b"new!"));
    let segments = b.sent_segments();
    assert_eq!(segments[0][14..], *b"new!", "the Read sees the Write before it");
}

// A long response is segmented only when the LLP requests the next segment.
#[test]
fn long_read_response_is_segmented_on_demand() {
    let mut b = End::new();
    b.input(&request(1, &read_request(STAG, 0, LEN as u32)));
    let (first, ..) = b.next_segment(128).unwrap();
    assert_eq!(first[14..], [0; 114]);
    // A response carries the memory's content at the time of sending.
    b.memory.write(0, &[7; LEN as usize]);
    let (second, ..) = b.next_segment(128).unwrap();
    assert_eq!(second[14..], [7; 114]);
    assert!(!b.stream.reframe(UlpduToken { message: 0, offset: 0 }, 114).stable);
}

// The LLP keeps a copy of a Read Response: the region may change or be removed before the response is acknowledged.
#[test]
fn read_responses_are_retransmitted_from_copies() {
    let mut b = End::new();
    let stable = VecMemory::from_vec(vec![1; 100]).into_stable();
    b.stags.insert(entry(Stag(3), Access::REMOTE_READ, &stable)).unwrap();
    b.input(&request(1, &read_request(Stag(3), 0, 100)));
    assert!(!b.stream.next(1500).unwrap().stable);
    let source = Source::Region { memory: stable, offset: 0, len: 10 };
    b.post(WorkRequest::send(source, Cookie::user(1)));
    assert!(b.stream.next(1500).unwrap().stable);
}

/// Kernel bug "Read Response overrun": a response longer than requested was written beyond the buffer. Here the segment
/// beyond the request is not placed.
#[test]
fn read_response_overrun_is_refused() {
    let cases: [(&[(u64, usize)], u64); 5] = [
        (&[(0, 11)], 0),
        (&[(0, 10), (10, 1)], 10),
        (&[(0, 4), (4, 7)], 4),
        (&[(4000, 1)], 0),
        (&[(u64::MAX, 2)], 0),
    ];
    for (segments, placed) in cases {
        let mut a = reader(&[10]);
        for (at, len) in segments {
            a.input(&response(*at, false, &vec![9; *len]));
        }
        let terminate = a.terminate();
        let numbers = (terminate.layer, terminate.error_type, terminate.code);
        assert!(numbers == (1, 1, 1), "{segments:?}: {numbers:?}");
        let sink = a.sink.to_vec();
        let seen = sink.iter().filter(|byte| **byte == 9).count() as u64;
        assert_eq!(seen, placed, "{segments:?}");
        assert!(sink[10..].iter().all(|byte| *byte == 0));
    }
}

// A response segment beyond a gap is placed only if it lies within the bytes of an outstanding Read.
#[test]
fn out_of_order_response_is_bounded_by_its_read() {
    let mut a = reader(&[10, 10]);
    assert_eq!(a.input_at(1, &response(10, true, &[2; 10])), Disposition::Placed(10));
    assert_eq!(a.input_at(2, &response(5, true, &[9; 20])), Disposition::Ignored);
    assert!(a.events().is_empty());
    a.input_at(0, &response(0, true, &[1; 10]));
    let events = a.events();
    let read = |cookie| completed(cookie, Outcome::Read { len: 10 });
    assert_eq!(events[..2], [read(0), read(1)]);
    // The error was found at arrival and is reported when all earlier segments have arrived. At that time no Read is
    // outstanding.
    assert!(matches!(&events[2], Event::Error(Error::Ddp(error)) if error.code.code() == 1));
    assert_eq!(
        a.sink.to_vec()[..21],
        [[1; 10], [2; 10]].concat().into_iter().chain([0]).collect::<Vec<_>>()
    );
}

// A response to the second Read is refused if it precedes the response to the first Read in the stream.
#[test]
fn responses_to_a_later_read_are_refused() {
    let mut a = reader(&[10, 10]);
    a.input_at(1, &response(0, true, &[1; 10]));
    a.input_at(0, &response(10, true, &[2; 10]));
    assert_eq!(a.terminate_numbers(), (1, 1, 1));
}

#[test]
fn a_response_with_another_stag_is_refused() {
    let mut a = reader(&[10]);
    a.input(&tagged(Opcode::ReadResponse, STAG, 0, true, &[1; 10]));
    assert_eq!(a.terminate_numbers(), (1, 1, 0));
    assert_eq!(a.memory.to_vec()[..10], [0; 10]);
}

#[test]
fn a_response_without_a_read_is_0_2_06() {
    for data in [&b""[..], b"x"] {
        let mut a = End::new();
        a.input(&response(0, true, data));
        assert_eq!(a.terminate_numbers(), (0, 2, 6));
    }
    let mut a = reader(&[4]);
    a.input(&response(0, true, b"1234"));
    a.input(&response(0, true, b""));
    assert_eq!(a.terminate_numbers(), (0, 2, 6));
}

#[test]
fn a_response_that_is_too_short_or_has_holes_is_0_2_07() {
    for segments in [&[(0u64, 9usize)][..], &[(1, 9)], &[(0, 4), (5, 5)], &[]] {
        let mut a = reader(&[10]);
        for (at, len) in segments {
            a.input(&response(*at, false, &vec![1; *len]));
        }
        a.input(&response(0, true, b""));
        assert_eq!(a.terminate_numbers(), (0, 2, 7), "{segments:?}");
    }
}

#[test]
fn overlapping_read_response_is_refused() {
    let mut a = reader(&[10]);
    a.input(&response(0, false, &[1; 6]));
    a.input(&response(4, true, &[2; 4]));
    assert_eq!(a.terminate_numbers(), (1, 1, 1));
    assert_eq!(a.sink.to_vec()[..10], [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]);
}

// RFC 5041 §5.3: increasing offsets are only recommended (SHOULD). Segments may fill the buffer in any order.
#[test]
fn read_response_in_any_offset_order_completes() {
    let mut a = reader(&[10]);
    a.input(&response(6, false, &[2; 4]));
    a.input(&response(0, true, &[1; 6]));
    assert_eq!(a.events(), [completed(0, Outcome::Read { len: 10 })]);
}

// RFC 5041 §5.2: a response may arrive in any number of separate ranges.
#[test]
fn read_response_in_many_ranges_completes() {
    let mut a = reader(&[600, 4]);
    let order = (1..600).step_by(2).chain((0..600).step_by(2));
    for at in order.clone() {
        let seen = a.input(&response(at, at == 598, &[at as u8]));
        assert_eq!(seen, Disposition::Placed(1));
        if at == 599 {
            assert!(a.pool.in_use() >= 300 * 8, "the records of the ranges use pool bytes");
        }
    }
    assert_eq!(a.events(), [completed(0, Outcome::Read { len: 600 })]);
    assert_eq!(a.pool.in_use(), 0);
    let expected: Vec<u8> = (0..600).map(|at| at as u8).collect();
    assert_eq!(a.sink.to_vec()[..600], expected);
    // A stream that ends within such a response releases all memory.
    let mut a = reader(&[600]);
    order
        .take(200)
        .for_each(|at| assert_eq!(a.input(&response(at, false, b"x")), Disposition::Placed(1)));
    assert!(a.pool.in_use() > 0);
    a.stream.release(&mut a.pool);
    assert_eq!(a.pool.in_use(), 0);
}

#[test]
fn a_write_into_the_sink_of_a_read_is_refused() {
    let mut a = reader(&[10]);
    a.input(&tagged(Opcode::Write, SINK, 0, true, &[1; 10]));
    assert_eq!(a.terminate_numbers(), (1, 1, 0));
    assert_eq!(a.sink.to_vec()[..10], [0; 10]);
}

// Deregistration of a region ends unanswered Reads from it: a Terminate reports the current position to the peer.
#[test]
fn revoked_region_terminates_an_active_read() {
    let mut b = End::new();
    b.input(&request(1, &read_request(STAG, 0, 1000)));
    b.input(&request(2, &read_request(STAG, 0, 50)));
    assert!(!b.stream.on_stag_revoked(SINK));
    b.next_segment(128).unwrap();
    b.stags.remove(STAG).unwrap();
    assert!(b.stream.on_stag_revoked(STAG));
    let terminate = b.terminate();
    assert_eq!((terminate.layer, terminate.error_type, terminate.code), (0, 1, 0));
    // RFC 5040 §4.8: the Read Request is updated to the current position.
    assert_eq!(terminate.read_request, Some(read_request(STAG, 0, 1000).advanced(114)));
    assert_eq!(
        shape(&b.sent_segments()),
        [(Opcode::Terminate, true)],
        "no further byte of the region is read"
    );
    // Revocation does not end the stream if the Read has no unsent bytes.
    let mut b = End::new();
    b.input(&request(1, &read_request(STAG, 0, 100)));
    b.next_segment(1500).unwrap();
    assert!(!b.stream.on_stag_revoked(STAG));
    b.input(&request(2, &read_request(STAG, 0, 0)));
    assert!(!b.stream.on_stag_revoked(STAG));
}

// If a Terminate is queued after the response, neither the rest of the response nor the Terminate is sent.
#[test]
fn region_revoked_during_last_response_is_not_read() {
    let mut b = End::new();
    b.input(&request(1, &read_request(STAG, 0, 1000)));
    b.next_segment(128).unwrap();
    b.stream.report_llp_error(0, 2);
    assert!(b.stream.has_unsent());
    assert!(b.stream.on_stag_revoked(STAG));
    assert!(b.next_segment(128).is_none() && !b.stream.has_unsent());
}

// A response that was sent before a Terminate counts as served once it is acknowledged. The flush of the response after
// it does not count.
#[test]
fn flushed_response_is_not_counted_as_acknowledged() {
    let mut b = End::new();
    b.input(&request(1, &read_request(STAG, 0, 10)));
    b.input(&request(2, &read_request(STAG, 0, 20)));
    let (_, token, len) = b.next_segment(1500).unwrap();
    b.stream.report_llp_error(0, 2);
    b.terminate();
    assert_eq!(b.stream.outstanding(), 1);
    b.stream.on_acknowledged(token, len);
    assert_eq!(b.events(), [Event::ReadServed { len: 10 }]);
    assert_eq!(b.stream.outstanding(), 0);
}

// RFC 5040 §7.2 (4b): the protection domain is checked before the rights, the stream and the bounds.
#[test]
fn read_checks_protection_domain_first() {
    const FOREIGN: Stag = Stag(0x900);
    let refused = (0, 1, 3);
    for (access, stream, at) in [
        (Access::NONE, None, 0),
        (Access::REMOTE_READ, Some(StreamId(77)), 0),
        (Access::REMOTE_READ, None, LEN),
    ] {
        let mut b = End::new();
        let memory = VecMemory::new(100);
        let foreign = StagEntry { pd: PdId(2), stream, ..entry(FOREIGN, access, &memory) };
        b.stags.insert(foreign).unwrap();
        b.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(FOREIGN, at, 4).emit()));
        let terminate = b.terminate();
        assert_eq!((terminate.layer, terminate.error_type, terminate.code), refused);
        let seen = b.stream.error().map(|error| error.to_string()).unwrap_or_default();
        assert!(seen.contains("protection domain"), "{seen}");
    }
}
