//! Untagged segments: RFC 5041 §4.3, §5.1.2, §5.2, §7.1.

use crate::llp::Disposition::{Ignored, Placed, Refused};
use crate::testing::*;
use crate::*;

fn assert_refused_with(
    rig: &mut Rig,
    key: u64,
    segment: &[u8],
    code: ErrorCode,
    mismatch: Mismatch,
) {
    assert_eq!(rig.input(key, segment), Ignored);
    let error = rig.error();
    assert_eq!((error.code, error.mismatch), (code, mismatch));
    assert_eq!(error.header.as_slice(), &segment[..18]);
    assert_eq!(error.segment_len as usize, segment.len());
    assert_eq!(rig.pool.in_use(), 0);
}

// RFC 5041 §5.4: the delivery has data, ULP Message Length and RsvdULP.
#[test]
fn an_untagged_message_is_delivered_with_its_length() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(0, &untagged(1, 0, true, b"hello")), Placed(5));
    assert_eq!(rig.events(), [untagged_delivered(1, b"hello")]);
    assert_eq!(rig.stream.posted_buffers(QUEUE), Some(3));
    assert_eq!(rig.pool.in_use(), 0);
}

// RFC 5041 §5.2: segments of a message are reassembled by MO.
#[test]
fn segments_are_reassembled_by_mo() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, false, b"abc"));
    let _ = rig.input(1, &untagged(1, 3, false, b"de"));
    assert_eq!(rig.pool.in_use(), 256);
    assert_eq!(rig.events(), []);
    let _ = rig.input(2, &untagged(1, 5, true, b"f"));
    assert_eq!(rig.events(), [untagged_delivered(1, b"abcdef")]);
    assert_eq!(rig.pool.in_use(), 0);
}

// RFC 5041 §5.3: increasing MOs are recommended to the sender only (SHOULD). §4.1: the segment with L has the highest
// MO.
#[test]
fn segments_in_any_mo_order_are_reassembled() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 2, false, b"cd"));
    let _ = rig.input(1, &untagged(1, 0, false, b"ab"));
    let _ = rig.input(2, &untagged(1, 4, true, b""));
    assert_eq!(rig.events(), [untagged_delivered(1, b"abcd")]);
}

// RFC 5041 §5.2: a zero-length message has one segment. QN and MSN are checked, and a buffer is used up.
#[test]
fn zero_length_untagged_uses_a_buffer() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(0, &untagged(1, 0, true, b"")), Placed(0));
    assert_eq!(rig.events(), [untagged_delivered(1, b"")]);
    assert_eq!(rig.stream.posted_buffers(QUEUE), Some(3));
    assert_eq!(rig.input(1, &untagged(3, 0, true, b"")), Ignored);
    assert_eq!(rig.error().code, ErrorCode::MsnRange);
    let mut rig = Rig::new();
    assert_eq!(rig.input(0, &untagged_to(Qn(1), 1, 0, true, b"")), Ignored);
    assert_eq!(rig.error().code, ErrorCode::InvalidQn);
}

// RFC 5041 §7.1 (1), §7.2: an unknown queue is error 2/01.
#[test]
fn unknown_queue_is_2_01() {
    let segment = untagged_to(Qn(1), 1, 0, true, b"x");
    let mismatch = Mismatch::unexpected(Field::Qn, 1);
    assert_refused_with(&mut Rig::new(), 0, &segment, ErrorCode::InvalidQn, mismatch);
}

// RFC 5041 §7.1 (2), §7.2: a message without a posted buffer is error 2/02.
#[test]
fn no_buffer_is_2_02() {
    let mut rig = Rig::new();
    for i in 0..4 {
        assert_eq!(rig.input(i, &untagged(i as u32 + 1, 0, true, b"x")), Placed(1));
    }
    assert_eq!(rig.events().len(), 4);
    let mismatch = Mismatch::new(Field::Buffers, 0, 1, i32::MAX as u64);
    assert_refused_with(&mut rig, 4, &untagged(5, 0, true, b"x"), ErrorCode::NoBuffer, mismatch);
}

// RFC 5041 §7.1 (2), (5): the MSN is checked before the buffers. Without a posted buffer, a wrong MSN is 2/03, not
// 2/02.
#[test]
fn wrong_msn_without_a_buffer_is_2_03() {
    let mut rig = Rig::new();
    for i in 0..4 {
        assert_eq!(rig.input(i, &untagged(i as u32 + 1, 0, true, b"x")), Placed(1));
    }
    rig.events();
    assert_eq!(rig.stream.posted_buffers(QUEUE), Some(0));
    let _ = rig.input(4, &untagged(6, 0, true, b"x"));
    assert_eq!(rig.error().code, ErrorCode::MsnRange);
}

// RFC 5041 §5.1.2: the ULP may add buffers to a queue at any time.
#[test]
fn posted_buffers_are_used() {
    let mut rig = Rig::new();
    rig.stream.post_buffers(QUEUE, 1).unwrap();
    for i in 0..5 {
        assert_eq!(rig.input(i, &untagged(i as u32 + 1, 0, true, b"x")), Placed(1));
    }
    assert_eq!(rig.stream.posted_buffers(QUEUE), Some(0));
    assert_eq!(rig.stream.post_buffers(Qn(1), 1), Err(PostError::NoSuchQueue(1)));
}

// RFC 5041 §4.3, §7.1 (5), §7.2: a wrong MSN is error 2/03. The MSN grows by one with each message.
#[test]
fn wrong_msn_is_2_03() {
    for msn in [0, 2, 4, 5, 1000, u32::MAX] {
        let mismatch = Mismatch::new(Field::Msn, msn.into(), 1, 4);
        let segment = untagged(msn, 0, true, b"x");
        assert_refused_with(&mut Rig::new(), 0, &segment, ErrorCode::MsnRange, mismatch);
    }
}

// RFC 5041 §4.1: no segment of a message follows the segment with L.
#[test]
fn a_segment_after_the_last_is_2_03() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, true, b"ab"));
    assert_eq!(rig.events().len(), 1);
    let mismatch = Mismatch::new(Field::Msn, 1, 2, 4);
    assert_refused_with(&mut rig, 1, &untagged(1, 2, true, b"c"), ErrorCode::MsnRange, mismatch);
    // The same error beyond a gap: the second segment does not change the message.
    let mut rig = Rig::new();
    let _ = rig.input(1, &untagged(1, 0, true, b"ab"));
    assert_eq!(rig.input(2, &untagged(1, 0, true, b"XY")), Ignored);
    let _ = rig.input(0, &tagged(0, true, b""));
    let events = rig.events();
    assert_eq!(events[1], untagged_delivered(1, b"ab"));
    assert!(matches!(&events[2], Event::Error(e) if e.code == ErrorCode::MsnRange));
}

// RFC 5041 §4.3: MSN 0 follows MSN 0xFFFFFFFF.
#[test]
fn msn_wraps_within_a_queue() {
    let mut rig = Rig::new();
    rig.stream.start_queue_at(QUEUE, Msn(u32::MAX - 1));
    // The message after the wrap arrives first, beyond a gap.
    assert_eq!(rig.input(2, &untagged(0, 0, true, b"c")), Placed(1));
    assert_eq!(rig.input(0, &untagged(u32::MAX - 1, 0, true, b"a")), Placed(1));
    assert_eq!(rig.input(1, &untagged(u32::MAX, 0, true, b"b")), Placed(1));
    assert_eq!(rig.input(3, &untagged(1, 0, true, b"d")), Placed(1));
    let expected = [(u32::MAX - 1, b"a"), (u32::MAX, b"b"), (0, b"c"), (1, b"d")];
    assert_eq!(rig.events(), expected.map(|(msn, data)| untagged_delivered(msn, data)));
}

// RFC 5041 §7.1 (3), §7.2: an MO outside the buffer is error 2/04.
#[test]
fn mo_outside_the_buffer_is_2_04() {
    for mo in [257, u32::MAX] {
        let mismatch = Mismatch::new(Field::MessageOffset, mo.into(), 0, 256);
        let segment = untagged(1, mo, true, b"x");
        assert_refused_with(&mut Rig::new(), 0, &segment, ErrorCode::InvalidMo, mismatch);
    }
}

// RFC 5041 §7.1 (4), §7.2: payload beyond the end of the buffer is error 2/05.
#[test]
fn a_message_longer_than_its_buffer_is_2_05() {
    let code = ErrorCode::MessageTooLong;
    let mismatch = Mismatch::new(Field::MessageEnd, 257, 0, 256);
    assert_refused_with(&mut Rig::new(), 0, &untagged(1, 0, true, &[1; 257]), code, mismatch);
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, false, &[1; 256]));
    assert_refused_with(&mut rig, 1, &untagged(1, 256, true, b"x"), code, mismatch);
    assert_eq!(Rig::new().input(0, &untagged(1, 0, true, &[1; 256])), Placed(256));
}

// A hole in an untagged message is error 2/04, whether its last segment arrives in order or beyond a gap.
#[test]
fn a_hole_in_a_message_is_2_04() {
    let mut rig = Rig::new();
    let mismatch = Mismatch::exact(Field::MessageOffset, 3, 2);
    let _ = rig.input(0, &untagged(1, 0, false, b"ab"));
    assert_refused_with(&mut rig, 1, &untagged(1, 3, true, b"d"), ErrorCode::InvalidMo, mismatch);

    let mut rig = Rig::new();
    assert_eq!(rig.input(1, &untagged(1, 3, true, b"d")), Placed(1));
    let _ = rig.input(0, &untagged(1, 0, false, b"ab"));
    let error = rig.error();
    assert_eq!((error.code, error.mismatch), (ErrorCode::InvalidMo, mismatch));
    assert_eq!(error.header.as_slice(), &untagged(1, 3, true, b"")[..]);
    assert_eq!(error.segment_len, 19);
    assert_eq!(rig.pool.in_use(), 0);

    let mismatch = Mismatch::exact(Field::MessageOffset, 5, 0);
    let segment = untagged(1, 5, true, b"");
    assert_refused_with(&mut Rig::new(), 0, &segment, ErrorCode::InvalidMo, mismatch);
}

// RFC 5041 §5.2: MO is the offset in the message, so segments must not overlap.
#[test]
fn overlapping_segments_are_2_04() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, false, b"abc"));
    let mismatch = Mismatch::exact(Field::MessageOffset, 2, 3);
    assert_refused_with(&mut rig, 1, &untagged(1, 2, true, b"cd"), ErrorCode::InvalidMo, mismatch);
}

// RFC 5041 §4.1: the segment with L must have the highest MO.
#[test]
fn a_last_segment_that_is_not_the_highest_is_2_04() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 2, false, b"cd"));
    let mismatch = Mismatch::exact(Field::MessageOffset, 0, 0);
    assert_refused_with(&mut rig, 1, &untagged(1, 0, true, b"ab"), ErrorCode::InvalidMo, mismatch);
}

// RFC 5041 §4.3: the next message must not begin before the present one is complete.
#[test]
fn the_next_message_before_the_last_segment_is_2_03() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, false, b"ab"));
    let mismatch = Mismatch::new(Field::Msn, 2, 1, 4);
    assert_refused_with(&mut rig, 1, &untagged(2, 0, true, b"x"), ErrorCode::MsnRange, mismatch);
}

// RFC 5041 §4.1, §7.2: a wrong version in an untagged segment is error 2/06.
#[test]
fn wrong_version_of_an_untagged_segment_is_2_06() {
    for (dv, low, high) in [(0, 1, 1), (2, 0, 1), (3, 0, 1)] {
        let segment = with_version(untagged(1, 0, true, b"x"), dv);
        let mismatch = Mismatch::new(Field::Version, dv.into(), low, high);
        assert_refused_with(&mut Rig::new(), 0, &segment, ErrorCode::UntaggedVersion, mismatch);
    }
}

// RFC 5041 §5.1.2: each queue has its own MSNs.
#[test]
fn queues_have_independent_msns() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, true, b"a"));
    let _ = rig.input(1, &untagged_to(Qn(7), 1, 0, true, b"b"));
    let _ = rig.input(2, &untagged(2, 0, true, b"c"));
    let queues = rig.events().into_iter().map(|e| match e {
        Event::UntaggedDelivered { qn, msn, data, .. } => (qn.0, msn.0, data),
        other => panic!("{other:?}"),
    });
    let expected = [(0, 1, b"a".to_vec()), (7, 1, b"b".to_vec()), (0, 2, b"c".to_vec())];
    assert_eq!(queues.collect::<Vec<_>>(), expected);
}

// RFC 5041 §7.1 (2), note: a segment beyond a gap without a buffer is refused, and the LLP recovers it.
#[test]
fn missing_buffer_beyond_a_gap_refuses_until_in_order() {
    let mut rig = Rig::new();
    let fifth = untagged(5, 0, true, b"5");
    assert_eq!(rig.input(4, &fifth), Refused);
    assert_eq!(rig.stream.counters().segments_refused, 1);
    for i in 0..4 {
        let _ = rig.input(i, &untagged(i as u32 + 1, 0, true, b"x"));
    }
    assert_eq!(rig.events().len(), 4);
    rig.stream.post_buffers(QUEUE, 1).unwrap();
    assert_eq!(rig.input(4, &fifth), Placed(1));
    assert_eq!(rig.events(), [untagged_delivered(5, b"5")]);
}

/// Returns a message of `len` bytes in segments of one byte: first the odd offsets, then the even offsets, then the
/// last byte.
fn scattered(len: u32) -> Vec<Vec<u8>> {
    let order = (1..len - 1).step_by(2).chain((0..len).step_by(2)).chain([len - 1]);
    order.map(|mo| untagged(1, mo, mo == len - 1, &[mo as u8])).collect()
}

fn rig_with_buffers_of(buffer_size: u32) -> Rig {
    let queues = vec![QueueConfig { qn: QUEUE, buffers: 4, buffer_size }];
    Rig::with_config(StreamConfig { queues, ..config() })
}

// RFC 5041 §5.2: the payload of all valid segments is placed. §5.3: increasing MOs are recommended to the sender only
// (SHOULD).
#[test]
fn a_message_in_any_number_of_ranges_is_delivered() {
    let data: Vec<u8> = (0..1000).map(|mo| mo as u8).collect();
    for first_key in [0, 1] {
        let mut rig = rig_with_buffers_of(1000);
        let segments = scattered(1000);
        for (key, segment) in (first_key..).zip(&segments) {
            assert_eq!(rig.input(key, segment), Placed(1));
        }
        if first_key > 0 {
            // All segments of the message are beyond a gap.
            assert_eq!(rig.events(), []);
            let _ = rig.input(0, &tagged(0, true, b""));
            assert_eq!(rig.events().len(), 2);
        } else {
            assert_eq!(rig.events(), [untagged_delivered(1, &data)]);
        }
        assert_eq!(rig.pool.in_use(), 0);
        assert!(rig.pool.high_water() > 500 * 8, "the records of the ranges use pool bytes");
    }
}

// The ranges of a message are bounded by the peer's share of the worker's memory. A segment in order is refused until
// memory is available. A segment beyond a gap was acknowledged already, so lack of memory ends the stream with a local
// error.
#[test]
fn ranges_are_bounded_by_the_peers_memory() {
    let occupied = || {
        let mut rig = rig_with_buffers_of(4096);
        rig.pool = BufferPool::new(16384);
        let mut other = crate::buffers::Account::EMPTY;
        other.peer = PeerId::from_address([192, 0, 2, 1].into());
        assert!(rig.pool.reserve(&mut other, 8192, true));
        (rig, other)
    };
    let segments = scattered(1000);
    let (mut rig, mut other) = occupied();
    for (key, segment) in (0..64).zip(&segments) {
        assert_eq!(rig.input(key, segment), Placed(1));
    }
    assert_eq!(rig.input(64, &segments[64]), Refused);
    assert_eq!((rig.events(), rig.pool.refused_share()), (vec![], 1));
    rig.pool.release_all(&mut other);
    assert_eq!(rig.input(64, &segments[64]), Placed(1));
    assert_eq!(rig.pool.in_use(), 4096 + 2048);
    rig.stream.release(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);

    let (mut rig, _other) = occupied();
    // The first step of range memory is granted, because the peer has no other reservation for data in order.
    for (key, segment) in (1..=129).zip(&segments) {
        assert_eq!(rig.input(key, segment), Placed(1));
    }
    let _ = rig.input(0, &tagged(0, false, b""));
    let error = rig.error();
    assert_eq!(error.code, ErrorCode::LocalCatastrophic);
    assert_eq!(error.mismatch, Mismatch::exact(Field::RangeMemory, 0, 2048));
    assert_eq!(rig.pool.in_use(), 8192, "only the other peer's bytes are in use");
}

// Memory is bounded: a full pool refuses segments, which slows the peer and is not an error.
#[test]
fn full_pool_refuses_until_buffers_are_released() {
    let mut rig = Rig::new();
    rig.pool = BufferPool::new(256);
    assert_eq!(rig.input(0, &untagged(1, 0, false, b"a")), Placed(1));
    assert_eq!(rig.input(2, &untagged(2, 0, true, b"b")), Refused);
    assert_eq!(rig.input(1, &untagged(1, 1, true, b"c")), Placed(1));
    assert_eq!(rig.input(2, &untagged(2, 0, true, b"b")), Placed(1));
    assert_eq!(rig.events(), [untagged_delivered(1, b"ac"), untagged_delivered(2, b"b")]);
}

// Messages beyond a gap cannot use up the buffer memory that the missing message needs.
#[test]
fn out_of_order_messages_leave_room_for_the_gap() {
    let mut rig = Rig::new();
    rig.pool = BufferPool::new(512);
    assert_eq!(rig.input(2, &untagged(2, 0, true, b"b")), Placed(1));
    assert_eq!(rig.input(3, &untagged(3, 0, true, b"c")), Refused);
    assert_eq!(rig.input(0, &untagged(1, 0, false, b"a")), Placed(1));
    assert_eq!(rig.input(1, &untagged(1, 1, true, b"a")), Placed(1));
    assert_eq!(rig.input(3, &untagged(3, 0, true, b"c")), Placed(1));
    let expected = [(1, &b"aa"[..]), (2, b"b"), (3, b"c")];
    assert_eq!(rig.events(), expected.map(|(msn, data)| untagged_delivered(msn, data)));
}

// A buffer is emptied before it is reused for another message.
#[test]
fn reused_buffer_exposes_no_earlier_bytes() {
    let mut rig = Rig::new();
    rig.pool.recycle(vec![0xee; 256]);
    // The segment beyond a gap leaves a hole in the buffer, which the next segment fills.
    let _ = rig.input(1, &untagged(1, 100, true, b"z"));
    let _ = rig.input(0, &untagged(1, 0, false, &[1; 100]));
    let mut expected = vec![1; 100];
    expected.push(b'z');
    assert_eq!(rig.events(), [untagged_delivered(1, &expected)]);
}

#[test]
fn release_returns_unfinished_buffers_to_the_pool() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &untagged(1, 0, false, b"a"));
    let _ = rig.input(5, &untagged(3, 0, false, b"a"));
    assert_eq!(rig.pool.in_use(), 512);
    rig.stream.release(&mut rig.pool);
    assert_eq!(rig.pool.in_use(), 0);
    assert_eq!(rig.input(1, &untagged(1, 1, true, b"b")), Ignored);
    assert_eq!(rig.events(), []);
}

// The pool reserves no bytes for a whole message in order, but must have room for its buffer.
#[test]
fn single_segment_message_needs_pool_room_transiently() {
    let mut rig = Rig::new();
    rig.pool = BufferPool::new(255);
    assert_eq!(rig.input(0, &untagged(1, 0, true, b"hello")), Refused);
    assert_eq!((rig.pool.refused_full(), rig.stream.posted_buffers(QUEUE)), (1, Some(4)));
    rig.pool = BufferPool::new(256);
    assert_eq!(rig.input(0, &untagged(1, 0, true, b"hello")), Placed(5));
    assert_eq!(rig.events(), [untagged_delivered(1, b"hello")]);
    assert_eq!((rig.pool.in_use(), rig.pool.high_water()), (0, 256));
}
