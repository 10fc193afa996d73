//! Send with Invalidate (RFC 5040 §5.3, §7.2).

use super::*;

const OWN: Stag = Stag(0x600);

fn send_invalidate(msn: u32, stag: Stag) -> Vec<u8> {
    untagged_with(Opcode::SendInvalidate, Some(stag), 0, msn, 0, true, b"done")
}

/// Returns an end with a region bound to its stream alone.
fn end_with_bound_stag() -> (End, VecMemory) {
    let mut b = End::new();
    let memory = VecMemory::new(100);
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC;
    let stream = Some(StreamId(9));
    b.stags.insert(StagEntry { stream, ..entry(OWN, all, &memory) }).unwrap();
    (b, memory)
}

fn delivered(solicited: bool) -> Event {
    Event::Received { data: b"done".to_vec(), solicited, invalidated: Some(OWN) }
}

// Access ends before the Send with Invalidate is delivered.
#[test]
fn send_with_invalidate_revokes_streams_own_stag() {
    let (mut b, memory) = end_with_bound_stag();
    b.input(&tagged(Opcode::Write, OWN, 0, true, b"before"));
    b.input(&send_invalidate(1, OWN));
    assert!(b.stags.get(OWN).is_none());
    assert_eq!(b.events()[1..], [delivered(false)]);
    assert_eq!(b.stream.counters().invalidations, 1);
    b.input(&tagged(Opcode::Write, OWN, 0, true, b"behind"));
    assert_eq!(b.terminate_numbers(), (1, 1, 0));
    assert_eq!(memory.to_vec()[..6], *b"before");
    let (mut b, _) = end_with_bound_stag();
    let opcode = Opcode::SendSolicitedInvalidate;
    b.input(&untagged_with(opcode, Some(OWN), 0, 1, 0, true, b"done"));
    assert_eq!(b.events(), [delivered(true)]);
    // A Read of the invalidated STag is refused like a Write.
    b.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(OWN, 0, 1).emit()));
    assert_eq!(b.terminate_numbers(), (0, 1, 0));
}

// RFC 6581 §9.2: a ready-to-receive Send has no bytes and does not invalidate. An empty Send with Invalidate is delivered
// to the ULP.
#[test]
fn empty_send_with_invalidate_is_not_ready_to_receive() {
    let empty = |stag| untagged_with(Opcode::SendInvalidate, Some(stag), 0, 1, 0, true, b"");
    let (mut b, memory) = end_with_bound_stag();
    b.stream = Stream::new(StreamId(9), PdId(1), Config { rtr_send: true, ..config() });
    b.input(&empty(OWN));
    let received = Event::Received { data: Vec::new(), solicited: false, invalidated: Some(OWN) };
    assert_eq!(b.events(), [received]);
    assert!(b.stags.get(OWN).is_none());
    assert_eq!(memory.to_vec(), [0; 100]);
    // Invalidation of an STag not bound to the stream is refused, whether a ready-to-receive Send is expected or not.
    for rtr_send in [false, true] {
        let (mut b, _) = end_with_bound_stag();
        b.stream = Stream::new(StreamId(9), PdId(1), Config { rtr_send, ..config() });
        b.input(&empty(Stag(0x666)));
        assert_eq!(b.terminate_numbers(), (0, 1, 9));
        assert_eq!(b.stream.counters().sends_received, 0);
    }
}

// Only an STag bound to the stream alone can be invalidated. The error is 0/1/09, without a Read Request.
#[test]
fn invalidating_shared_or_foreign_stag_is_0_1_09() {
    for stag in [STAG, SINK, Stag(0x666), Stag(0)] {
        let (mut b, _) = end_with_bound_stag();
        let segment = send_invalidate(1, stag);
        b.input(&segment);
        let terminate = b.terminate();
        assert_eq!((terminate.layer, terminate.error_type, terminate.code), (0, 1, 9));
        assert_eq!(terminate.ddp_header.as_slice(), &segment[..18]);
        assert_eq!((terminate.segment_len, terminate.read_request), (Some(22), None));
        assert!(b.stags.get(STAG).is_some(), "the STag stays valid");
        assert_eq!(b.stream.counters().sends_received, 0, "the Send is not delivered");
    }
    let (mut b, _) = end_with_bound_stag();
    b.stags.bind(OWN, Some(StreamId(8))).unwrap();
    b.input(&send_invalidate(1, OWN));
    assert_eq!(b.terminate_numbers(), (0, 1, 9));
    // A second invalidation is an error.
    let (mut b, _) = end_with_bound_stag();
    b.input(&send_invalidate(1, OWN));
    b.events();
    b.input(&send_invalidate(2, OWN));
    assert_eq!(b.terminate_numbers(), (0, 1, 9));
}

// A Send with Invalidate beyond a gap does not end access. Once the gap is closed, access ends before the next
// segment is placed.
#[test]
fn out_of_order_invalidation_waits_for_order() {
    let (mut b, memory) = end_with_bound_stag();
    b.input_at(2, &tagged(Opcode::Write, OWN, 50, true, b"early"));
    b.input_at(1, &send_invalidate(1, OWN));
    assert!(b.stags.get(OWN).is_some());
    b.input_at(0, &tagged(Opcode::Write, OWN, 0, true, b"first"));
    assert!(b.stags.get(OWN).is_none());
    assert_eq!(b.input_at(3, &tagged(Opcode::Write, OWN, 0, true, b"never")), Disposition::Ignored);
    assert_eq!(memory.to_vec()[..5], *b"first");
}

// Invalidation ends the peer's unanswered Reads from the STag with a Terminate. No further byte of the region is read.
#[test]
fn invalidation_terminates_reads_of_the_stag() {
    let (mut b, _) = end_with_bound_stag();
    b.input(&untagged(Opcode::ReadRequest, 1, 1, &read_request(OWN, 0, 100).emit()));
    b.input(&send_invalidate(1, OWN));
    let events = b.events();
    assert_eq!(events[0], delivered(false));
    let Event::Terminated { by_peer: false, terminate } = &events[2] else {
        panic!("{events:?}");
    };
    assert_eq!((terminate.error_type, terminate.code), (1, 0));
    assert_eq!(terminate.read_request, Some(read_request(OWN, 0, 100)));
    assert_eq!(shape(&b.sent_segments()), [(Opcode::Terminate, true)]);
}

// The Terminate carries the header of the message's last segment, even if the Send has several segments.
#[test]
fn invalidation_error_reports_the_last_segment() {
    let (mut b, _) = end_with_bound_stag();
    let opcode = Opcode::SendInvalidate;
    let last = untagged_with(opcode, Some(STAG), 0, 1, 100, true, &[1; 60]);
    b.input(&untagged_with(opcode, Some(STAG), 0, 1, 0, false, &[1; 100]));
    b.input(&last);
    let terminate = b.terminate();
    assert_eq!(terminate.ddp_header.as_slice(), &last[..18]);
    assert_eq!(terminate.segment_len, Some(78));
}
