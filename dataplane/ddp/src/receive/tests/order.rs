//! Arrival out of order. Segments are placed at once, and messages are delivered in order and once (RFC 5041 §5.3,
//! §5.4). Errors are reported when all earlier segments have arrived (§7.1).

use crate::llp::Disposition::{Ignored, Placed, Refused};
use crate::testing::*;
use crate::*;

// RFC 5041 §5.3: DDP may place out of order (MAY), and must deliver in order (MUST).
#[test]
fn segments_beyond_a_gap_are_placed_at_arrival_and_delivered_in_order() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(2, &tagged(4, true, b"cc")), Placed(2));
    assert_eq!(rig.input(1, &tagged(2, true, b"bb")), Placed(2));
    assert_eq!(rig.region(0, 6), b"\0\0bbcc");
    assert_eq!(rig.events(), []);
    assert_eq!(rig.input(0, &tagged(0, true, b"aa")), Placed(2));
    let expected = [(0, 2), (2, 2), (4, 2)].map(|(at, len)| tagged_delivered(at, len));
    assert_eq!(rig.events(), expected);
    let counters = rig.stream.counters();
    assert_eq!(counters.placed_out_of_order_bytes, 4);
    assert_eq!((counters.placed_in_order_bytes, counters.ooo_records_max), (2, 2));
}

// Keys need not be consecutive: the LLP reports the key below which no segment is missing.
#[test]
fn order_complete_delivers_messages_below_the_key() {
    let mut rig = Rig::new();
    let _ = rig.input(100, &tagged(0, true, b"a"));
    let _ = rig.input(340, &tagged(1, true, b"b"));
    rig.complete_order(100);
    assert_eq!(rig.events(), [tagged_delivered(0, 1)], "all segments up to key 100 have arrived");
    rig.complete_order(339);
    assert_eq!(rig.events(), []);
    rig.complete_order(341);
    assert_eq!(rig.events(), [tagged_delivered(1, 1)]);
    // The next segment is in order: its message is delivered at once, and the segment leaves no record.
    rig.complete_order(500);
    let _ = rig.input(500, &tagged(2, true, b"c"));
    assert_eq!(rig.events(), [tagged_delivered(2, 1)]);
}

// RFC 5041 §7.1: the error report has the header as received, reserved bits included, whether the error is found at
// arrival or when all earlier segments have arrived.
#[test]
fn error_report_carries_the_header_as_received() {
    let cases = [
        (untagged(1, 0, false, b"ab"), untagged(1, 3, true, b"d"), ErrorCode::InvalidMo, 19),
        (untagged(1, 0, false, b"ab"), untagged(2, 0, true, b""), ErrorCode::MsnRange, 18),
        (tagged(0, false, b"ab"), tagged_to(Stag(6), BASE, true, b"d"), ErrorCode::InvalidStag, 15),
    ];
    for (first, mut wrong, code, len) in cases {
        for reserved in [0x04, 0x38, 0x3c] {
            wrong[0] = wrong[0] & !0x3c | reserved;
            for wrong_first in [false, true] {
                let mut rig = Rig::new();
                let other = StagEntry { stag: Stag(6), ..rig.stags.get(STAG).unwrap().clone() };
                rig.stags.insert(other).unwrap();
                let mut arrivals = [(0, &first), (1, &wrong)];
                if wrong_first {
                    arrivals.reverse();
                }
                for (key, segment) in arrivals {
                    let _ = rig.input(key, segment);
                }
                let error = rig.error();
                assert_eq!((error.code, error.segment_len), (code, len));
                let header = wire::ddp::Control(wrong[0]).header_len();
                assert_eq!(error.header.as_slice(), &wrong[..header], "{code}, {wrong_first}");
            }
        }
    }
}

// RFC 5041 §5.3: a message is delivered at most once (MUST), even if the LLP hands over a segment twice.
#[test]
fn duplicate_segment_is_delivered_once() {
    let mut rig = Rig::new();
    let a = untagged(1, 0, true, b"a");
    let b = untagged(2, 0, true, b"b");
    assert_eq!(rig.input(1, &b), Placed(1));
    assert_eq!(rig.input(1, &b), Ignored);
    assert_eq!(rig.input(0, &a), Placed(1));
    assert_eq!(rig.input(0, &a), Ignored);
    assert_eq!(rig.input(1, &b), Ignored);
    assert_eq!(rig.events(), [untagged_delivered(1, b"a"), untagged_delivered(2, b"b")]);
    assert_eq!(rig.stream.counters().segments_ignored, 3);
}

// RFC 5041 §5.4: a message is not delivered before all its segments are placed.
#[test]
fn a_last_segment_beyond_a_gap_delivers_nothing() {
    let mut rig = Rig::new();
    let _ = rig.input(2, &tagged(2, true, b"c"));
    let _ = rig.input(0, &tagged(0, false, b"a"));
    assert_eq!(rig.events(), []);
    let _ = rig.input(1, &tagged(1, false, b"b"));
    assert_eq!(rig.events(), [tagged_delivered(0, 3)]);
}

// RFC 5041 §7.1: after an error beyond a gap, earlier segments are still placed and delivered, later segments are not.
// The error is reported in order.
#[test]
fn out_of_order_error_waits_for_order() {
    let mut rig = Rig::new();
    assert_eq!(rig.input(5, &tagged(5, true, b"5")), Placed(1));
    assert_eq!(rig.input(3, &tagged(LEN, true, b"!")), Ignored);
    assert_eq!(rig.input(4, &tagged(4, true, b"4")), Ignored, "beyond the error");
    assert_eq!(rig.input(1, &tagged(1, true, b"1")), Placed(1));
    assert_eq!(rig.events(), []);
    assert_eq!(rig.input(0, &tagged(0, true, b"0")), Placed(1));
    assert_eq!(rig.events(), [tagged_delivered(0, 1), tagged_delivered(1, 1)]);
    assert_eq!(rig.stream.error(), None);
    assert_eq!(rig.input(2, &tagged(2, true, b"2")), Placed(1));
    let events = rig.events();
    assert_eq!(events[0], tagged_delivered(2, 1));
    assert!(matches!(&events[1], Event::Error(e) if e.code == ErrorCode::BaseOrBounds));
    assert_eq!(events.len(), 2);
    assert!(rig.stream.error().is_some());
    // RFC 5041 §7.1: segments after the reported error are dropped silently.
    assert_eq!(rig.input(6, &tagged(6, true, b"6")), Ignored);
    rig.complete_order(7);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.region(0, 7), b"012\0\x005\0");
}

// Of two errors, the earlier in stream order is reported, in either order of arrival.
#[test]
fn an_earlier_error_replaces_a_later_one() {
    let mut rig = Rig::new();
    let _ = rig.input(4, &tagged_to(Stag(1), 0, true, b"x"));
    let _ = rig.input(3, &tagged(3, true, b"3"));
    let _ = rig.input(2, &tagged(LEN, true, b"x"));
    let _ = rig.input(0, &tagged(0, true, b"0"));
    let _ = rig.input(1, &tagged(1, true, b"1"));
    let events = rig.events();
    assert_eq!(events[..2], [tagged_delivered(0, 1), tagged_delivered(1, 1)]);
    assert!(matches!(&events[2], Event::Error(e) if e.code == ErrorCode::BaseOrBounds));
    assert_eq!(events.len(), 3);
}

// An error is reported once all segments before the segment in error have arrived.
#[test]
fn an_error_is_reported_when_the_order_reaches_its_key() {
    let mut rig = Rig::new();
    let _ = rig.input(50, &tagged(LEN, true, b"x"));
    rig.complete_order(49);
    assert_eq!(rig.events(), []);
    rig.complete_order(50);
    assert_eq!(rig.error().code, ErrorCode::BaseOrBounds);
    rig.complete_order(51);
    assert_eq!(rig.events(), []);
}

// The position of a recorded segment in its message is checked when all earlier segments have arrived.
#[test]
fn an_error_found_in_order_discards_the_records_behind_it() {
    let mut rig = Rig::new();
    let _ = rig.input(3, &tagged(0, true, b"3"));
    let _ = rig.input(2, &untagged(2, 0, true, b"2"));
    let _ = rig.input(1, &untagged(3, 0, true, b"1"));
    let _ = rig.input(0, &untagged(1, 0, true, b"0"));
    let events = rig.events();
    assert_eq!(events[0], untagged_delivered(1, b"0"));
    assert!(matches!(&events[1], Event::Error(e) if e.code == ErrorCode::MsnRange));
    assert_eq!(events.len(), 2);
    assert_eq!(rig.pool.in_use(), 0);
}

// Memory is bounded: a segment beyond the bound of records is refused, and the LLP must hand it over again.
#[test]
fn out_of_order_records_are_bounded() {
    let mut rig = Rig::with_config(StreamConfig { max_ooo_records: 2, ..config() });
    assert_eq!(rig.input(1, &tagged(1, true, b"1")), Placed(1));
    assert_eq!(rig.input(2, &tagged(2, true, b"2")), Placed(1));
    assert_eq!(rig.input(3, &tagged(3, true, b"3")), Refused);
    assert_eq!(rig.region(0, 4), b"\x0012\0", "a refused segment is not placed");
    assert_eq!(
        rig.input(0, &tagged(0, true, b"0")),
        Placed(1),
        "a segment in order needs no record"
    );
    assert_eq!(rig.input(3, &tagged(3, true, b"3")), Placed(1));
    assert_eq!(rig.events().len(), 4);
}

// RFC 5041 §4.1, RFC 5044 appendix C: the responder to revision 0 adopts the received version.
#[test]
fn the_first_segment_in_order_fixes_the_version() {
    let adopt = StreamConfig { version: VersionPolicy::AdoptFirst, ..config() };
    for dv in [0, 1] {
        let mut rig = Rig::with_config(adopt.clone());
        assert_eq!(rig.stream.version(), None);
        let _ = rig.input(0, &with_version(tagged(0, true, b"a"), dv));
        assert_eq!(rig.stream.version(), DdpVersion::from_bits(dv));
        assert_eq!(rig.input(1, &with_version(tagged(0, true, b"b"), 1 - dv)), Ignored);
        let events = rig.events();
        assert!(matches!(&events[1], Event::Error(e) if e.code == ErrorCode::TaggedVersion));
    }
    // The first segment in stream order determines the version, not the first to arrive.
    let mut rig = Rig::with_config(adopt.clone());
    let _ = rig.input(1, &with_version(untagged(1, 0, true, b"b"), 0));
    assert_eq!(rig.stream.version(), None);
    let _ = rig.input(0, &tagged(0, true, b"a"));
    assert_eq!(rig.stream.version(), Some(DdpVersion::V1));
    let events = rig.events();
    assert!(matches!(&events[1], Event::Error(e) if e.code == ErrorCode::UntaggedVersion));
    let mut rig = Rig::with_config(adopt);
    assert_eq!(rig.input(0, &with_version(tagged(0, true, b"a"), 2)), Ignored);
    assert_eq!(rig.error().code, ErrorCode::TaggedVersion);
}
