//! Tagged segments: RFC 5041 §4.2, §5.2, §7.1, §8.

use crate::llp::Disposition::{Ignored, Placed};
use crate::testing::*;
use crate::*;

/// Asserts that a segment in order is refused: no byte is placed, and the error is reported at once.
fn assert_refused_with(rig: &mut Rig, segment: &[u8], code: ErrorCode, mismatch: Mismatch) {
    let before = rig.memory.to_vec();
    assert_eq!(rig.input(0, segment), Ignored);
    let error = rig.error();
    assert_eq!((error.code, error.mismatch), (code, mismatch));
    // RFC 5041 §7.1: the error report has the segment's header and length.
    assert_eq!(error.header.as_slice(), &segment[..segment.len().min(error.header.len())]);
    assert_eq!(error.segment_len as usize, segment.len());
    assert_eq!(rig.memory.to_vec(), before, "RFC 5041 §7.1: no byte of the segment is placed");
    assert_eq!(rig.stream.counters().errors[code.index()], 1);
}

// RFC 5041 §4.2, §5.1.1: the payload is placed at any TO that the segment names, and only there.
#[test]
fn tagged_payload_is_placed_at_its_to() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(0, &tagged(100, true, b"hello")), Placed(5));
    assert_eq!(rig.region(98, 9), b"\0\0hello\0\0");
    let nonzero = rig.memory.to_vec().iter().filter(|b| **b != 0).count();
    assert_eq!(nonzero, 5);
    assert_eq!(rig.events(), [tagged_delivered(100, 5)]);
    assert_eq!(rig.stream.counters().placed_in_order_bytes, 5);
}

// RFC 5041 §5.4: the segment with L delivers the message once, with RsvdULP and STag.
#[test]
fn a_tagged_message_is_delivered_at_its_last_segment() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &tagged(0, false, b"abc"));
    let _ = rig.input(1, &tagged(3, false, b"def"));
    assert_eq!(rig.events(), []);
    let _ = rig.input(2, &tagged(6, true, b"g"));
    assert_eq!(rig.events(), [tagged_delivered(0, 7)]);
    assert_eq!(rig.region(0, 7), b"abcdefg");
}

// The LLP hands over a segment in pieces if markers interrupted the segment.
#[test]
fn payload_pieces_are_placed_contiguously() {
    let mut rig = Rig::new();
    let segment = tagged(8, true, b"0123456789");
    for cut in 0..segment.len() {
        let (a, b) = segment.split_at(cut);
        let (b, c) = b.split_at(b.len() / 2);
        let _ = rig.input_pieces(cut as u64, &[a, b, &[], c]);
        assert_eq!(rig.region(8, 10), b"0123456789");
        rig.memory.write(0, &[0; LEN as usize]);
        assert_eq!(rig.events(), [tagged_delivered(8, 10)]);
    }
}

// RFC 5041 §5.2: STag and TO of a zero-length message MUST NOT be checked.
#[test]
fn zero_length_tagged_is_not_checked() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(0, &tagged_to(Stag(0), u64::MAX, true, b"")), Placed(0));
    let (stag, to) = (Stag(0), TaggedOffset(u64::MAX));
    assert_eq!(rig.events(), [Event::TaggedDelivered { stag, to, len: 0, rsvd_ulp: 0xab }]);
    // A last segment without bytes completes the message for any STag and TO.
    let _ = rig.input(1, &tagged(4, false, b"abcd"));
    let _ = rig.input(2, &tagged_to(Stag(99), 0, true, b""));
    assert_eq!(rig.events(), [tagged_delivered(4, 4)]);
}

// RFC 5041 §7.1 (1), §7.2: an unknown STag is error 1/00.
#[test]
fn unknown_stag_is_1_00() {
    let segment = tagged_to(Stag(5), BASE, true, b"x");
    let mismatch = Mismatch::unexpected(Field::Stag, 5);
    assert_refused_with(&mut Rig::new(), &segment, ErrorCode::InvalidStag, mismatch);
}

// RFC 5041 §8.3 (2), §8.3.1 (6): a revoked STag is invalid for all later segments.
#[test]
fn revoked_stag_is_1_00() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(0, &tagged(0, true, b"x")), Placed(1));
    rig.stags.remove(STAG);
    assert_eq!(rig.input(1, &tagged(1, true, b"y")), Ignored);
    let events = rig.events();
    assert!(matches!(&events[1], Event::Error(e) if e.code == ErrorCode::InvalidStag));
    assert_eq!(rig.region(0, 2), b"x\0");
}

// RFC 5041 §7.1 (2), §8.3.1 (5): an STag without the right to write is error 1/00.
#[test]
fn stag_without_remote_write_is_1_00() {
    for access in [Access::NONE, Access::REMOTE_READ] {
        let mut rig = Rig::new();
        rig.stags.set_access(STAG, access).unwrap();
        let mismatch = Mismatch::exact(Field::Access, access.bits().into(), 2);
        assert_refused_with(&mut rig, &tagged(0, true, b"x"), ErrorCode::InvalidStag, mismatch);
    }
}

// RFC 5041 §8.2, §8.3.1 (1): an STag of another protection domain is error 1/02.
#[test]
fn stag_of_another_protection_domain_is_1_02() {
    let mut rig = Rig::new();
    rig.stream.set_pd(PdId(2));
    let mismatch = Mismatch::exact(Field::ProtectionDomain, 1, 2);
    assert_refused_with(&mut rig, &tagged(0, true, b"x"), ErrorCode::StagNotAssociated, mismatch);
}

// RFC 5041 §8.2: the protection domain is checked first. The error for an STag of another domain does not depend on its
// rights, bounds and stream, so a peer learns nothing about that STag.
#[test]
fn tagged_segment_checks_protection_domain_first() {
    for (stream, access, at) in [
        (None, Access::NONE, 0),
        (Some(StreamId(77)), Access::REMOTE_WRITE, 0),
        (None, Access::REMOTE_WRITE, LEN + 1),
    ] {
        let mut rig = Rig::new();
        rig.stags.set_access(STAG, access).unwrap();
        rig.stags.bind(STAG, stream).unwrap();
        rig.stream.set_pd(PdId(2));
        let mismatch = Mismatch::exact(Field::ProtectionDomain, 1, 2);
        assert_refused_with(
            &mut rig,
            &tagged(at, true, b"x"),
            ErrorCode::StagNotAssociated,
            mismatch,
        );
    }
}

// RFC 5041 §8.2, §8.3.1 (2): an STag bound to another stream is error 1/02.
#[test]
fn stag_of_another_stream_is_1_02() {
    let mut rig = Rig::new();
    rig.stags.bind(STAG, Some(StreamId(8))).unwrap();
    let mismatch = Mismatch::exact(Field::Stream, 8, 9);
    assert_refused_with(&mut rig, &tagged(0, true, b"x"), ErrorCode::StagNotAssociated, mismatch);
    let mut rig = Rig::new();
    rig.stags.bind(STAG, Some(StreamId(9))).unwrap();
    assert_eq!(rig.input(0, &tagged(0, true, b"x")), Placed(1));
}

// RFC 5041 §7.1 (3), (4), §8.1, §8.3.1 (3): the bounds are exact to the byte at both ends of the region.
#[test]
fn segment_outside_the_region_is_1_01() {
    let code = ErrorCode::BaseOrBounds;
    let (low, high) = (BASE, BASE + LEN);
    for (to, field, seen) in [
        (BASE - 1, Field::TaggedOffset, BASE - 1),
        (0, Field::TaggedOffset, 0),
        (BASE + LEN, Field::TaggedEnd, BASE + LEN + 2),
        (BASE + LEN - 1, Field::TaggedEnd, BASE + LEN + 1),
        (BASE + LEN + 1, Field::TaggedOffset, BASE + LEN + 1),
        (u64::MAX - 2, Field::TaggedOffset, u64::MAX - 2),
    ] {
        let segment = tagged_to(STAG, to, true, b"xy");
        assert_refused_with(&mut Rig::new(), &segment, code, Mismatch::new(field, seen, low, high));
    }
}

#[test]
fn first_and_last_byte_of_the_region_can_be_written() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(0, &tagged(0, true, b"a")), Placed(1));
    assert_eq!(rig.input(1, &tagged(LEN - 1, true, b"z")), Placed(1));
    assert_eq!(rig.input(2, &tagged(0, true, &[7; LEN as usize])), Placed(LEN as usize));
    let all = rig.memory.to_vec();
    assert_eq!((all[31], all[32], all[31 + LEN as usize], all[32 + LEN as usize]), (0, 7, 7, 0));
}

// RFC 5041 §7.1 (5), §7.2: TO plus length above 2^64 is error 1/03.
#[test]
fn wrapping_to_is_1_03() {
    for (to, end) in [(u64::MAX, 1), (u64::MAX - 1, 0)] {
        let segment = tagged_to(STAG, to, true, b"xy");
        let mismatch = Mismatch::new(Field::TaggedEnd, end, BASE, BASE + LEN);
        assert_refused_with(&mut Rig::new(), &segment, ErrorCode::ToWrap, mismatch);
    }
}

// RFC 5041 §4.1, §7.2: a wrong version in a tagged segment is error 1/04.
#[test]
fn wrong_version_of_a_tagged_segment_is_1_04() {
    for (dv, low, high) in [(0, 1, 1), (2, 0, 1), (3, 0, 1)] {
        let segment = with_version(tagged(0, true, b"x"), dv);
        let mismatch = Mismatch::new(Field::Version, dv.into(), low, high);
        assert_refused_with(&mut Rig::new(), &segment, ErrorCode::TaggedVersion, mismatch);
    }
}

#[test]
fn version_0_stream_accepts_version_0_segments() {
    let mut rig = Rig::with_config(StreamConfig { version: VersionPolicy::V0, ..config() });
    assert_eq!(rig.input(0, &with_version(tagged(0, true, b"x"), 0)), Placed(1));
    assert_eq!(rig.input(1, &tagged(0, true, b"x")), Ignored);
}

// RFC 5041 §4.1: reserved bits are not checked on receive.
#[test]
fn tagged_reserved_bits_are_not_checked() {
    let mut rig = Rig::new();
    let mut segment = tagged(0, true, b"x");
    segment[0] |= 0x3c;
    assert_eq!(rig.input(0, &segment), Placed(1));
    let mut segment = untagged(1, 0, true, b"x");
    segment[0] |= 0x3c;
    assert_eq!(rig.input(1, &segment), Placed(1));
}

// RFC 5041 §4.4, §6.2.2: each segment must contain a whole header.
#[test]
fn a_segment_shorter_than_its_header_is_an_error_of_version() {
    for len in 0..14 {
        let segment = &tagged(0, true, b"")[..len];
        let code = if len == 0 { ErrorCode::UntaggedVersion } else { ErrorCode::TaggedVersion };
        let needed = if len == 0 { 18 } else { 14 };
        let (seen, max) = (len as u64, u32::MAX.into());
        let mismatch = Mismatch::new(Field::SegmentLength, seen, needed, max);
        assert_refused_with(&mut Rig::new(), segment, code, mismatch);
    }
}

// RFC 5041 §4.2: all segments of a message must have the same STag.
#[test]
fn a_message_with_two_stags_is_1_00() {
    let mut rig = Rig::new();
    let other = StagEntry { stag: Stag(6), ..rig.stags.get(STAG).unwrap().clone() };
    rig.stags.insert(other).unwrap();
    let _ = rig.input(0, &tagged(0, false, b"a"));
    assert_eq!(rig.input(1, &tagged_to(Stag(6), BASE + 1, true, b"b")), Ignored);
    assert_eq!(rig.error().code, ErrorCode::InvalidStag);
    assert_eq!(rig.region(0, 2), b"a\0");
}

// RFC 5041 §5.3: increasing TOs are recommended to the sender only (SHOULD).
#[test]
fn tagged_segments_in_any_to_order_are_delivered() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &tagged(4, false, b"efgh"));
    let _ = rig.input(1, &tagged(0, true, b"abcd"));
    assert_eq!(rig.events(), [tagged_delivered(0, 8)]);
    assert_eq!(rig.region(0, 8), b"abcdefgh");
}

// Some hardware peers send an untagged message between the segments of a tagged message.
#[test]
fn an_untagged_message_within_a_tagged_one_is_delivered_first() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &tagged(0, false, b"ab"));
    let _ = rig.input(1, &untagged(1, 0, true, b"!"));
    let _ = rig.input(2, &tagged(2, true, b"cd"));
    assert_eq!(rig.events(), [untagged_delivered(1, b"!"), tagged_delivered(0, 4)]);
}

// RFC 5041 §5.1.1: a tagged buffer can be written many times.
#[test]
fn written_region_can_be_overwritten() {
    let mut rig = Rig::new();
    let _ = rig.input(0, &tagged(0, true, b"old"));
    let _ = rig.input(1, &tagged(0, true, b"new"));
    assert_eq!(rig.region(0, 3), b"new");
    assert_eq!(rig.events().len(), 2);
}

// If the ULP ignores tagged deliveries, they are counted and not reported as events.
#[test]
fn tagged_deliveries_without_events_are_counted() {
    let mut rig = Rig::with_config(StreamConfig { tagged_events: false, ..config() });
    assert_eq!(rig.input(0, &tagged(0, true, b"abc")), Placed(3));
    assert_eq!(rig.events(), []);
    let counters = rig.stream.counters();
    assert_eq!((counters.tagged_delivered, counters.delivered_bytes), (1, 3));
}
