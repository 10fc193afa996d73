//! Errors of RFC 5044 §8: when they are reported, and which FPDUs are not handed up.

use super::*;

fn error_code(bench: &Bench) -> Option<(u64, u8)> {
    bench.receiver.error().map(|error| (error.at.0 - START, error.code()))
}

/// Damages the FPDU that begins at `at`.
fn damage(stream: &mut Stream, at: usize) {
    stream.bytes[at + 20] ^= 1;
}

/// Replaces FPDUPTR in the marker at offset `marker`, and updates the CRC of the FPDU with index `fpdu`.
fn forge_marker(stream: &mut Stream, fpdu: usize, marker: usize, pointer: u16) {
    stream.bytes[marker + 2..marker + 4].copy_from_slice(&pointer.to_be_bytes());
    let b = stream.boundaries();
    let crc = crate::mpa::testing::bitwise_crc(&stream.bytes[b[fpdu]..b[fpdu + 1] - 4]);
    stream.bytes[b[fpdu + 1] - 4..b[fpdu + 1]].copy_from_slice(&crc.to_le_bytes());
}

/// A wrong CRC in order is error 2, reported at once. No later FPDU is handed up; all later bytes are discarded.
#[test]
fn wrong_crc_in_order_stops_the_stream() {
    let mut stream = stream(true, &[1000, 1000, 1000]);
    let b = stream.boundaries();
    damage(&mut stream, b[1]);
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[0]..b[3]);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 2)));
    assert_eq!(bench.handed_up(&stream), [0]);
    assert!(bench.is_taken(b[0]..b[3]));
    bench.arrive(b[2]..b[3]);
    assert_eq!(bench.sink.received.len(), 1);
    assert_eq!(bench.budget.used(), 0);
}

/// Beyond a gap a segment with a wrong CRC counts as lost. An undamaged retransmission is accepted.
#[test]
fn wrong_crc_ahead_of_a_gap_is_dropped() {
    let good = stream(true, &[1000, 1000, 1000, 1000]);
    let b = good.boundaries();
    let mut bad = good.clone();
    damage(&mut bad, b[2]);
    let mut bench = Bench::new(&bad, &Config::default());
    bench.arrive(b[1]..b[4]);
    assert_eq!(bench.handed_up(&good), [1], "the FPDU before it is valid");
    assert!(bench.is_taken(b[1]..b[2]) && bench.is_refused(b[2]..b[4]));
    assert_eq!((error_code(&bench), bench.stats().bad_crc_dropped), (None, 1));
    bench.bytes = good.bytes.clone();
    bench.arrive(b[2]..b[4]).arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&good), [0, 1, 2, 3]);
}

/// A segment that is damaged in each transmission is an error once it is next in order.
#[test]
fn wrong_crc_at_the_source_is_reported_in_order() {
    let mut stream = stream(true, &[1000, 1000]);
    let b = stream.boundaries();
    damage(&mut stream, b[1]);
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[1]..b[2]);
    assert!(bench.is_refused(b[1]..b[2]));
    bench.arrive(b[0]..b[1]);
    assert_eq!(error_code(&bench), None);
    bench.arrive(b[1]..b[2]);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 2)));
}

/// RFC 5044 §8: with [`BadCrcPolicy::Retransmit`] a segment with a wrong CRC is dropped instead of reported.
#[test]
fn wrong_crc_in_order_may_be_dropped() {
    let good = stream(true, &[1000, 1000]);
    let b = good.boundaries();
    let mut bad = good.clone();
    damage(&mut bad, b[0]);
    let config = Config { on_bad_crc: BadCrcPolicy::Retransmit, ..Config::default() };
    let mut bench = Bench::new(&bad, &config);
    bench.arrive(b[0]..b[1]);
    assert!(bench.is_refused(b[0]..b[1]));
    assert_eq!(error_code(&bench), None);
    bench.bytes = good.bytes.clone();
    bench.arrive(b[0]..b[2]);
    assert_eq!(bench.handed_up(&good), [0, 1]);
    // An FPDU in two segments cannot be dropped as a whole: it is an error.
    let mut bench = Bench::new(&bad, &config);
    bench.arrive(b[0]..b[0] + 500).arrive(b[0] + 500..b[1]);
    assert_eq!(error_code(&bench), Some((0, 2)));
    // Only acknowledged bytes of the FPDU itself prevent the drop, not SACKed bytes after it.
    let mut bench = Bench::new(&bad, &config);
    bench.arrive(b[1]..b[1] + 600).arrive(b[0]..b[1]);
    assert_eq!((error_code(&bench), bench.stats().bad_crc_dropped), (None, 1));
    let mut bench = Bench::new(&bad, &config);
    bench.arrive(b[1] - 300..b[1]).arrive(b[0]..b[1] - 300);
    assert_eq!(error_code(&bench), Some((0, 2)), "its tail had been SACKed");
}

/// After `bad_crc_tries` drops a further wrong CRC is error 2. Each FPDU has its own count.
#[test]
fn wrong_crc_in_order_is_an_error_after_max_tries() {
    let good = stream(true, &[1000, 1000, 1000]);
    let b = good.boundaries();
    let mut bad = good.clone();
    damage(&mut bad, b[0]);
    damage(&mut bad, b[1]);
    let config =
        Config { on_bad_crc: BadCrcPolicy::Retransmit, bad_crc_tries: 3, ..Config::default() };
    let mut bench = Bench::new(&bad, &config);
    for _ in 0..3 {
        bench.arrive(b[0]..b[1]);
        assert!(bench.is_refused(b[0]..b[1]) && error_code(&bench).is_none());
    }
    bench.bytes[..b[1]].copy_from_slice(&good.bytes[..b[1]]);
    for _ in 0..3 {
        bench.arrive(b[0]..b[3]);
        assert_eq!((bench.handed_up(&good), error_code(&bench)), (vec![0], None));
        assert!(bench.is_refused(b[1]..b[3]));
    }
    bench.arrive(b[1]..b[3]);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 2)));
    assert_eq!(bench.stats().bad_crc_dropped, 6);
    // With `bad_crc_tries` of 0 the policy acts as `BadCrcPolicy::Error`.
    let config = Config { bad_crc_tries: 0, ..config };
    let mut bench = Bench::new(&bad, &config);
    bench.arrive(b[0]..b[1]);
    assert_eq!(error_code(&bench), Some((0, 2)));
}

/// Beyond a gap, an FPDU of 60,000 bytes lacks only its end, which arrives damaged several times. Each arrival costs a
/// CRC over the whole FPDU. Above the limit the wrong CRC is an error, reported when the FPDU is in order.
#[test]
fn wrong_crc_beyond_a_gap_exhausts_verify_budget() {
    let good = stream(true, &[1000, 60_000, 1000]);
    let b = good.boundaries();
    let mut bench = Bench::new(&good, &Config { bad_crc_tries: 3, ..Config::default() });
    bench.arrive(b[1]..b[2] - 4);
    bench.bytes[b[2] - 2] ^= 1;
    for _ in 0..100 {
        bench.arrive(b[2] - 4..b[2]);
    }
    assert_eq!(bench.stats().bad_crc_dropped, 3);
    assert_eq!((bench.stats().held, bench.budget.used()), (0, 0));
    assert_eq!(error_code(&bench), None);
    bench.arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&good), [0]);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 2)));
    // Each received byte lowers the count of bytes that failed verification. A damaged segment with a whole FPDU thus
    // lowers the count by as many bytes as it adds. Any number of these segments is dropped.
    let good = stream(true, &[1000, 1400]);
    let b = good.boundaries();
    let mut bench = Bench::new(&good, &Config { bad_crc_tries: 1, ..Config::default() });
    for n in 1..500 {
        bench.bytes[b[1] + 100] ^= 1;
        bench.arrive(b[1]..b[2]);
        assert_eq!(bench.stats().bad_crc_dropped, n);
        bench.bytes[b[1] + 100] ^= 1;
    }
    bench.arrive(b[1]..b[2]).arrive(b[0]..b[1]);
    assert_eq!((bench.handed_up(&good), error_code(&bench)), (vec![0, 1], None));
}

/// RFC 5044 §4.2, §4.3: a marker is invalid if it points to an FPDU that ends before the marker, to a position before
/// the stream, or further back than the longest FPDU. Such a marker is ignored beyond a gap, and is error 3 in order.
#[test]
fn marker_outside_its_fpdu_does_not_locate_it() {
    // From its fifth byte on, the second FPDU looks like another whole FPDU with a valid CRC.
    let inner = {
        let mut inner = Stream::new(false, true);
        inner.fpdu(&ulpdu(9, 40));
        inner.bytes
    };
    let mut carrier = ulpdu(1, 700);
    carrier[2..2 + inner.len()].copy_from_slice(&inner);
    let mut good = stream(true, &[600]);
    good.fpdu(&carrier).fpdu(&ulpdu(3, 900));
    let b = good.boundaries();
    let marker = b[1].next_multiple_of(512);
    assert!(marker > b[1] + 4 + inner.len() && marker < b[2]);
    let forged = [
        (marker - (b[1] + 4)) as u16, // at the FPDU inside FPDU 1
        (marker + 4) as u16,          // before the start of Full Operation
        0xfffc,
        b[1] as u16, // at the start of another FPDU
    ];
    for pointer in forged {
        let mut bad = good.clone();
        forge_marker(&mut bad, 1, marker, pointer);
        let mut bench = Bench::new(&bad, &Config::default());
        bench.arrive(b[1]..b[2]);
        assert_eq!(bench.sink.received.len(), 0, "{pointer}");
        bench.arrive(b[0]..b[1]);
        let again = bench.is_refused(b[1]..b[2]);
        bench.arrive(b[1]..b[2]);
        assert_eq!(error_code(&bench), Some((b[1] as u64, 3)), "{pointer}, again {again}");
        assert_eq!(bench.handed_up(&bad), [0]);
    }
}

/// Code 3: the CRC is valid, but a marker in the FPDU points elsewhere.
#[test]
fn marker_length_mismatch_in_order_is_error_3() {
    let mut stream = stream(true, &[1000, 1000]);
    let b = stream.boundaries();
    forge_marker(&mut stream, 1, 1536, 1536 - b[1] as u16 - 4);
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[0]..b[2]);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 3)));
    assert_eq!(bench.handed_up(&stream), [0]);
}

/// An error with code 3 beyond a gap is stored, and reported when its FPDU is next in order. Meanwhile only earlier
/// FPDUs are handed up.
#[test]
fn marker_length_mismatch_beyond_a_gap_is_deferred() {
    let mut stream = stream(true, &[1000, 1000, 1400, 1000, 1000]);
    let b = stream.boundaries();
    let markers: Vec<usize> = (b[2]..b[3]).filter(|at| at % 512 == 0).collect();
    forge_marker(&mut stream, 2, *markers.last().expect("two markers"), 4);
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[2]..b[3]);
    assert_eq!((error_code(&bench), bench.handed_up(&stream)), (None, vec![]));
    assert!(bench.is_taken(b[2]..b[3]));
    bench.arrive(b[4]..b[5]).arrive(b[3]..b[4]);
    assert_eq!(bench.handed_up(&stream), [], "nothing beyond the error");
    bench.arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), [1], "the earlier FPDU is placed");
    assert_eq!(error_code(&bench), None);
    bench.arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&stream), [0, 1]);
    assert_eq!(bench.sink.complete, START + b[2] as u64);
    assert_eq!(error_code(&bench), Some((b[2] as u64, 3)));
    assert_eq!(bench.budget.used(), 0);
}

/// A span contains the start of the stored error. The span's bytes before the error are accepted. Its other bytes are
/// discarded and counted.
#[test]
fn span_across_deferred_error_is_cut_at_it() {
    let mut stream = stream(true, &[1000, 1000, 1400]);
    let b = stream.boundaries();
    let markers: Vec<usize> = (b[2]..b[3]).filter(|at| at % 512 == 0).collect();
    forge_marker(&mut stream, 2, *markers.last().expect("two markers"), 4);
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[2]..b[3]);
    let before = bench.stats().discarded;
    bench.span(b[1], b[2] + 100);
    assert_eq!(bench.stats().discarded - before, 100);
    assert_eq!((error_code(&bench), bench.handed_up(&stream)), (None, vec![1]));
}

/// Code 3: the length of an FPDU extends into a later FPDU that a marker has located.
#[test]
fn length_into_located_fpdu_is_error_when_gap_closes() {
    let mut stream = stream(true, &[400, 40, 1000]);
    let b = stream.boundaries();
    // The length field of FPDU 1 exceeds its real length.
    stream.bytes[b[1]..b[1] + 2].copy_from_slice(&200_u16.to_be_bytes());
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[2]..b[3]);
    assert_eq!(bench.handed_up(&stream), [2]);
    bench.arrive(b[0]..b[1]);
    assert_eq!(error_code(&bench), None);
    bench.arrive(b[1]..b[2]);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 3)));
    assert_eq!(
        bench.receiver.error().map(|e| e.fault),
        Some(Fault::Boundary { boundary: START + b[2] as u64 })
    );
}

/// Beyond a gap, a length that extends into a located FPDU may be damaged, so the segment is dropped. The
/// same bytes received in order are an error.
#[test]
fn length_into_located_fpdu_beyond_a_gap_is_dropped() {
    let mut stream = stream(true, &[1000, 1000, 40, 1000]);
    let b = stream.boundaries();
    stream.bytes[b[2]..b[2] + 2].copy_from_slice(&400_u16.to_be_bytes());
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[3]..b[4]).arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), [1, 3]);
    bench.arrive(b[2]..b[3]);
    assert!(bench.is_refused(b[2]..b[3]));
    bench.arrive(b[0]..b[1]);
    assert_eq!(error_code(&bench), None);
    bench.arrive(b[2]..b[3]);
    assert_eq!(error_code(&bench), Some((b[2] as u64, 3)));
}

/// A stored error marks the start of an FPDU. A length that extends beyond this start is an earlier
/// error.
#[test]
fn length_beyond_deferred_error_is_an_earlier_error() {
    let mut stream = stream(true, &[900, 40, 1400]);
    let b = stream.boundaries();
    let marker = b[2].next_multiple_of(512) + 512;
    forge_marker(&mut stream, 2, marker, 4);
    stream.bytes[b[1]..b[1] + 2].copy_from_slice(&400_u16.to_be_bytes());
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[2]..b[3]).arrive(b[0]..b[1]);
    assert_eq!(error_code(&bench), None);
    bench.arrive(b[1]..b[2]);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 3)));
}

/// RFC 6581 §8, code 5: an FPDU above `max_fpdu` is an error in order, without a check of its CRC. Beyond a gap the
/// segment is dropped.
#[test]
fn fpdu_above_max_fpdu_is_error_5_in_order() {
    let config = Config { max_fpdu: 1024, ..Config::default() };
    let stream = stream(true, &[100, 1500, 100]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &config);
    bench.arrive(b[1]..b[2]);
    assert!(bench.is_refused(b[1]..b[2]));
    bench.arrive(b[0]..b[1] + 8);
    assert_eq!(error_code(&bench), Some((b[1] as u64, 5)));
    assert!(matches!(
        bench.receiver.error().map(|e| e.fault),
        Some(Fault::TooLong { limit: 1024, .. })
    ));
    assert_eq!(bench.handed_up(&stream), [0]);
}

/// After a length field above `max_fpdu` the receiver neither waits for the rest of the FPDU nor holds any of it.
#[test]
fn length_field_alone_shows_fpdu_too_long() {
    let config = Config { max_fpdu: 1024, ..Config::default() };
    for markers in [false, true] {
        let stream = stream(markers, &[100, 1500]);
        let b = stream.boundaries();
        let mut bench = Bench::new(&stream, &config);
        bench.arrive(b[0]..b[1] + 2);
        assert_eq!((error_code(&bench), bench.stats().held), (Some((b[1] as u64, 5)), 0));
        bench.arrive(b[1] + 2..b[2]);
        assert_eq!(bench.stats().discarded, (b[2] - b[1] - 2) as u64);
    }
}

/// RFC 5044 §3: the largest ULPDU has 64,768 bytes.
#[test]
fn largest_ulpdu_is_accepted_by_default() {
    for phase in [0, 1, 60, 120] {
        let stream = stream(true, &[4 * phase, 64_768]);
        let mut bench = Bench::new(&stream, &Config::default());
        for from in (0..stream.bytes.len()).step_by(1448) {
            bench.arrive(from..(from + 1448).min(stream.bytes.len()));
        }
        assert_eq!(bench.handed_up(&stream), [0, 1]);
        assert!(bench.stats().held_max < 64 * 1024);
    }
}
