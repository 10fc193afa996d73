//! Tests of the receiver: the cases of draft-culley-iwarp-mpa-03 §7.4.1 and of RFC 5044 §6 and §8, in and out of order.

use super::*;
use crate::mpa::testing::{Collector, Stream, large_hold_config, ulpdu};
use proptest::prelude::*;

mod arrivals;
mod captured;
mod errors;
mod fast_path;
mod vectors;

/// Start of Full Operation in the test streams, after a start-up frame.
const START: u64 = 36;

/// A receiver with its sink and budget. Like TCP, it offers a byte repeatedly until the receiver accepts it.
pub(super) struct Bench {
    pub(super) receiver: Receiver,
    pub(super) sink: Collector,
    pub(super) budget: HoldBudget,
    bytes: Vec<u8>,
    taken: Vec<bool>,
}

impl Bench {
    pub(super) fn new(stream: &Stream, config: &Config) -> Self {
        Bench {
            receiver: Receiver::new(config, &stream.params(), START),
            sink: Collector::default(),
            budget: HoldBudget::new(1 << 30),
            bytes: stream.bytes.clone(),
            taken: vec![false; stream.bytes.len()],
        }
    }

    /// Receives a segment with these bytes of the stream.
    pub(super) fn arrive(&mut self, range: Range<usize>) -> &mut Self {
        let mut at = range.start;
        while at < range.end {
            let Some(from) = (at..range.end).find(|i| !self.taken[*i]) else { break };
            let to = (from..range.end).find(|i| self.taken[*i]).unwrap_or(range.end);
            self.span(from, to);
            at = to;
        }
        self
    }

    fn span(&mut self, from: usize, to: usize) {
        let offset = START + from as u64;
        let bytes = self.bytes[from..to].to_vec();
        let taken = self.receiver.take_span(offset, &bytes, None, &mut self.sink, &mut self.budget);
        let taken = match taken {
            SpanOutcome::All => from..to,
            SpanOutcome::Part(range) => {
                assert!(range.start >= offset && range.end <= offset + bytes.len() as u64);
                (range.start - START) as usize..(range.end - START) as usize
            }
        };
        self.taken[taken].fill(true);
        let stats = self.receiver.stats();
        assert_eq!(stats.held, self.budget.used(), "budget and counter agree");
        assert!(stats.unlocatable <= stats.held && stats.held <= stats.held_max);
    }

    pub(super) fn is_taken(&self, range: Range<usize>) -> bool {
        self.taken[range].iter().all(|taken| *taken)
    }

    pub(super) fn is_refused(&self, range: Range<usize>) -> bool {
        self.taken[range].iter().all(|taken| !*taken)
    }

    /// Returns the indices of the FPDUs that were passed to DDP, in stream order.
    pub(super) fn handed_up(&self, stream: &Stream) -> Vec<usize> {
        let at = |i: &usize| START + stream.fpdus[*i].0 as u64;
        let up: Vec<usize> =
            (0..stream.fpdus.len()).filter(|i| self.sink.received.contains_key(&at(i))).collect();
        assert_eq!(up.len(), self.sink.received.len(), "every key is where an FPDU begins");
        for i in &up {
            assert_eq!(self.sink.received[&at(i)], stream.fpdus[*i].1);
        }
        up
    }

    pub(super) fn stats(&self) -> ReceiverStats {
        self.receiver.stats()
    }
}

/// Returns a stream with ULPDUs of these lengths.
pub(super) fn stream(markers: bool, lens: &[usize]) -> Stream {
    let mut stream = Stream::new(markers, true);
    for (i, len) in lens.iter().enumerate() {
        stream.fpdu(&ulpdu(i, *len));
    }
    stream
}

/// draft-culley-iwarp-mpa-03 §7.4.1, first case: each segment is one FPDU.
#[test]
fn aligned_fpdu_is_placed_in_and_out_of_order() {
    let stream = stream(true, &[1000, 1000, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&stream), [0]);
    assert_eq!(bench.sink.complete, START + b[1] as u64);
    bench.arrive(b[2]..b[3]);
    assert_eq!(bench.handed_up(&stream), [0, 2]);
    assert_eq!(bench.sink.complete, START + b[1] as u64, "order stops at the gap");
    bench.arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
    assert_eq!(bench.sink.complete, START + b[3] as u64);
    let stats = bench.stats();
    assert_eq!((stats.placed_in_order, stats.placed_out_of_order), (2000, 1000));
    assert_eq!((stats.held_max, stats.alignment_lost), (0, 0));
}

/// draft-culley-iwarp-mpa-03 §7.4.1, second case: several FPDUs in one segment.
#[test]
fn packed_fpdus_are_placed_in_and_out_of_order() {
    let stream = stream(true, &[1400, 200, 300, 400, 200, 250, 260]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[4]..b[7]);
    // Bytes after the segment's first marker are located. Bytes before it are held.
    let first_marker = b[4].next_multiple_of(512);
    let located: Vec<usize> = (4..7).filter(|i| b[*i + 1] > first_marker).collect();
    assert_eq!(bench.handed_up(&stream), located);
    bench.arrive(b[1]..b[4]).arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(bench.stats().held, 0);
}

/// draft-culley-iwarp-mpa-03 §7.4.1, third and fourth case: an FPDU in two segments, received in either order.
#[test]
fn incomplete_fpdu_waits_for_its_rest() {
    let stream = stream(true, &[1000, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(0..700);
    assert_eq!(bench.handed_up(&stream), []);
    assert_eq!((bench.stats().held, bench.stats().unlocatable), (700, 0));
    bench.arrive(700..b[1]);
    assert_eq!(bench.handed_up(&stream), [0]);
    // Out of order, the tail arrives first. Its marker points to a position before the tail.
    bench.arrive(b[1] + 300..b[2]);
    assert_eq!(bench.handed_up(&stream), [0]);
    assert_eq!(bench.stats().unlocatable, (b[2] - b[1] - 300) as u64);
    bench.arrive(b[1]..b[1] + 300);
    assert_eq!(bench.handed_up(&stream), [0, 1]);
    assert_eq!((bench.stats().held, bench.stats().unlocatable), (0, 0));
    assert_eq!(
        bench.stats().alignment_lost,
        2,
        "the second and the third segment began inside an FPDU"
    );
}

/// draft-culley-iwarp-mpa-03 §7.4.1, fifth case: the tail of an FPDU, a whole FPDU, and the head of another FPDU in one
/// segment.
#[test]
fn unaligned_segment_beyond_a_gap_places_whole_fpdus() {
    let stream = stream(true, &[700, 700, 700, 700]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[0] + 100..b[2] + 600);
    // FPDU 1 follows the tail of FPDU 0. A marker in FPDU 1 locates it.
    assert_eq!(bench.handed_up(&stream), [1]);
    let stats = bench.stats();
    assert_eq!(stats.unlocatable, (b[1] - b[0] - 100) as u64);
    assert_eq!(stats.held, stats.unlocatable + 600);
    bench.arrive(b[2] + 600..b[4]);
    assert_eq!(bench.handed_up(&stream), [1, 2, 3]);
    bench.arrive(0..100);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2, 3]);
    assert_eq!(bench.stats().held, 0);
}

/// RFC 5044 §6 (3): an FPDU without a marker is located from the FPDU before it, also from an island.
#[test]
fn fpdu_without_marker_is_chained_from_an_island() {
    let stream = stream(true, &[900, 900, 40, 40, 40]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), [1]);
    for i in 2..5 {
        assert!(!(b[i]..b[i + 1]).any(|at| at % 512 == 0), "no marker in it");
        bench.arrive(b[i]..b[i + 1]);
    }
    assert_eq!(bench.handed_up(&stream), [1, 2, 3, 4]);
    assert_eq!(bench.stats().held_max, 0);
}

/// A small FPDU between two markers cannot be located while the bytes before it are missing.
#[test]
fn fpdu_between_markers_is_held_as_unlocatable() {
    let stream = stream(true, &[900, 900, 40, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[2]..b[3]);
    assert_eq!(bench.stats().unlocatable, (b[3] - b[2]) as u64);
    bench.arrive(b[3]..b[4]);
    assert_eq!(bench.handed_up(&stream), [3], "the FPDU after it is not delayed");
    assert_eq!(bench.stats().held_max, bench.stats().unlocatable_max);
    bench.arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), [1, 2, 3], "located from the FPDU before it");
    assert_eq!(bench.stats().held, 0);
}

/// The first segment ends shortly after the marker in front of an FPDU. The FPDU is located if the whole marker has
/// arrived.
#[test]
fn marker_locates_fpdu_before_its_header_arrives() {
    let stream = stream(true, &[502, 900]);
    let b = stream.boundaries();
    assert_eq!(b[1], 512, "the second FPDU begins with a marker");
    for known in 1..8 {
        let mut bench = Bench::new(&stream, &Config::default());
        bench.arrive(b[1]..b[1] + known);
        assert_eq!(bench.stats().unlocatable, if known < 4 { known as u64 } else { 0 }, "{known}");
        bench.arrive(b[1] + known..b[2]);
        assert_eq!(bench.handed_up(&stream), [1]);
        bench.arrive(b[0]..b[1]);
        assert_eq!(bench.handed_up(&stream), [0, 1]);
    }
}

/// Checks the receiver's state before the first FPDU, after it, and after an error.
#[test]
fn receiver_state_follows_first_fpdu_and_error() {
    let mut stream = stream(true, &[100, 100, 100]);
    let b = stream.boundaries();
    stream.bytes[b[1] + 20] ^= 1;
    let mut bench = Bench::new(&stream, &Config::default());
    assert!(!bench.receiver.has_handed_up_in_order() && !bench.receiver.has_handed_up());
    bench.arrive(b[0]..b[1]);
    assert!(bench.receiver.has_handed_up_in_order() && bench.receiver.has_handed_up());
    assert!(!bench.receiver.is_discarding());
    bench.arrive(b[1]..b[2]);
    assert!(bench.receiver.is_discarding());
    assert_eq!(bench.receiver.room(), u64::MAX, "discarded bytes take no room");
}

/// `shrink` keeps the counters that bound the CRC work. `shrink` frees the memory if these counters
/// are zero.
#[test]
fn shrink_keeps_bad_crc_counts() {
    let good = stream(true, &[1000, 1000]);
    let b = good.boundaries();
    let mut bad = good.clone();
    bad.bytes[b[0] + 20] ^= 1;
    let config =
        Config { on_bad_crc: BadCrcPolicy::Retransmit, bad_crc_tries: 3, ..Config::default() };
    let mut bench = Bench::new(&bad, &config);
    for n in 0..3 {
        bench.arrive(b[0]..b[1]);
        bench.receiver.shrink();
        assert_eq!((bench.stats().bad_crc_dropped, bench.receiver.error()), (n + 1, None));
    }
    bench.arrive(b[0]..b[1]);
    assert_eq!(bench.receiver.error().map(|e| e.code()), Some(2));
    // If these counters are zero, the memory is freed.
    let mut bench = Bench::new(&good, &config);
    bench.arrive(b[1]..b[1] + 500).arrive(b[0]..b[1]).arrive(b[1] + 500..b[2]);
    assert!(!bench.receiver.pieces.is_blank());
    bench.receiver.shrink();
    assert!(bench.receiver.pieces.is_blank());
    assert_eq!(bench.handed_up(&good), [0, 1]);
}

/// RFC 5044 §6 (1): without markers, bytes beyond a gap are held or refused.
#[test]
fn without_markers_no_fpdu_beyond_a_gap_is_placed() {
    let stream = stream(false, &[1000, 1000, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config { hold_limit: 1500, ..Config::default() });
    bench.arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), []);
    assert!(bench.is_taken(b[1]..b[2]));
    bench.arrive(b[2]..b[3]);
    assert_eq!(bench.stats().held, (b[2] - b[1]) as u64, "no room for the other FPDU");
    assert!(bench.is_refused(b[2]..b[3]));
    assert_eq!(bench.stats().refused, (b[3] - b[2]) as u64);
    bench.arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&stream), [0, 1]);
    bench.arrive(b[2]..b[3]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
    assert_eq!(bench.budget.used(), 0);
}

/// RFC 5041 appendix A: without markers the window is the hold capacity. With markers it is unlimited until half of the
/// capacity is in use. The window is never below 64 KiB.
#[test]
fn receive_window_is_the_hold_capacity() {
    let config = Config { hold_limit: 300_000, ..Config::default() };
    let lens = [1000; 400];
    let plain = stream(false, &lens);
    let b = plain.boundaries();
    let mut bench = Bench::new(&plain, &config);
    assert_eq!(bench.receiver.room(), 300_000);
    // The worker's budget is smaller: the stream may use half of the budget.
    bench.budget = HoldBudget::new(400_000);
    bench.arrive(b[1]..b[2]);
    assert_eq!(bench.receiver.room(), 200_000);
    // All data in the window is accepted. Held bytes do not shrink the window.
    let fits = b.iter().filter(|end| **end < 200_000).count() - 1;
    bench.arrive(b[2]..b[fits]);
    assert!(bench.is_taken(b[1]..b[fits]) && bench.receiver.room() == 200_000);
    assert_eq!(bench.stats().refused, 0);
    bench.arrive(b[0]..b[1]);
    assert_eq!((bench.handed_up(&plain).len(), bench.receiver.room()), (fits, 200_000));
    // The budget is exhausted: the minimum remains, which fits one FPDU.
    bench.budget = HoldBudget::new(0);
    bench.arrive(b[fits]..b[fits + 1]);
    assert_eq!(bench.receiver.room(), 64 * 1024);
    // A `max_fpdu` below 64 KiB does not reduce the minimum.
    let mut bench = Bench::new(&plain, &Config { max_fpdu: 4000, ..config.clone() });
    bench.budget = HoldBudget::new(0);
    bench.arrive(b[0]..b[1]);
    assert_eq!(bench.receiver.room(), 64 * 1024);
    // With markers, only small FPDUs between two markers are held.
    let marked = stream(true, &[40; 400]);
    let b = marked.boundaries();
    let mut bench = Bench::new(&marked, &Config { hold_limit: 400, ..config });
    for i in (1..400).step_by(2) {
        bench.arrive(b[i]..b[i + 1]);
        let ahead = bench.stats().held;
        assert_eq!(bench.receiver.room(), if ahead > 200 { 64 * 1024 } else { u64::MAX });
    }
    assert!(bench.stats().held > 200 && bench.stats().refused > 0);
    bench.arrive(b[0]..b[400]);
    assert_eq!((bench.stats().held, bench.receiver.room()), (0, u64::MAX));
}

#[test]
fn hold_budget_of_worker_bounds_held_bytes() {
    let stream = stream(true, &[900, 40, 1000, 3000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.budget = HoldBudget::new(60);
    bench.arrive(b[1]..b[1] + 20);
    assert_eq!(bench.stats().held, 20);
    // The located FPDU is accepted, although the bytes before it are refused.
    bench.arrive(b[1] + 20..b[3]);
    assert_eq!(bench.handed_up(&stream), [2]);
    assert!(bench.is_taken(b[2]..b[3]) && bench.is_refused(b[1] + 20..b[2]));
    // In order, one FPDU is held with any budget.
    bench.arrive(b[0]..b[1] - 4).arrive(b[1] - 4..b[1]);
    bench.arrive(b[1]..b[2]).arrive(b[3]..b[4] - 1);
    assert_eq!(bench.stats().held, (b[4] - 1 - b[3]) as u64);
    bench.arrive(b[4] - 1..b[4]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2, 3]);
}

/// The head of an FPDU beyond a gap exceeds the hold limit and is refused. The FPDU before it is passed to DDP.
#[test]
fn located_tail_beyond_budget_is_refused_alone() {
    let stream = stream(true, &[1000, 1000, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config { hold_limit: 100, ..Config::default() });
    bench.arrive(b[1]..b[2] + 500);
    assert_eq!(bench.handed_up(&stream), [1]);
    assert!(bench.is_taken(b[1]..b[2]) && bench.is_refused(b[2]..b[2] + 500));
    bench.arrive(b[2] + 500..b[3]);
    assert!(bench.is_refused(b[2] + 500..b[3]));
    assert_eq!(bench.stats().alignment_lost, 1, "refused bytes did not move a boundary");
    bench.arrive(b[0]..b[1]).arrive(b[2]..b[3]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
}

/// In order, single bytes are joined. Beyond a gap the number of pieces is limited.
#[test]
fn single_byte_pieces_are_joined_or_bounded() {
    let stream = stream(false, &[60_000]);
    let n = stream.bytes.len();
    let mut bench = Bench::new(&stream, &Config::default());
    for at in 0..n {
        bench.arrive(at..at + 1);
        assert!(!bench.receiver.pieces.is_full(bench.stats().held));
    }
    assert_eq!(bench.handed_up(&stream), [0]);
    let mut bench = Bench::new(&stream, &Config::default());
    for at in (2..n).step_by(2) {
        bench.arrive(at..at + 1);
    }
    assert!(bench.receiver.pieces.is_full(bench.stats().held));
    assert!(bench.stats().held < 2000 && bench.stats().refused > 20_000);
    for at in (0..n).step_by(1000) {
        bench.arrive(at..(at + 1000).min(n));
    }
    assert_eq!(bench.handed_up(&stream), [0]);
}

/// Whole FPDUs that DDP refuses, in order or beyond a gap, count as not received. Retransmissions of them are accepted.
#[test]
fn refused_ulpdu_is_accepted_when_retransmitted() {
    let stream = stream(true, &[1000, 1000, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.sink.refuse.extend(b[..3].iter().map(|at| START + *at as u64));
    bench.arrive(b[1]..b[3]);
    assert!(bench.is_refused(b[1]..b[3]));
    bench.arrive(b[0]..b[3]);
    assert!(bench.is_refused(b[0]..b[3]), "in order too");
    bench.arrive(b[1]..b[3]);
    assert!(bench.is_taken(b[1]..b[2]) && bench.is_refused(b[2]..b[3]));
    bench.arrive(b[0]..b[1]).arrive(b[2]..b[3]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
    assert_eq!((bench.sink.refused, bench.receiver.is_blocked()), (3, false));
}

/// An FPDU that DDP refused after TCP has acknowledged its bytes is handed up by `retry`.
#[test]
fn blocked_ulpdu_is_handed_up_on_retry() {
    let stream = stream(false, &[1000, 1000, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.sink.refuse.insert(START + b[1] as u64);
    bench.arrive(b[1]..b[3]).arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&stream), [0]);
    assert!(bench.receiver.is_blocked());
    bench.receiver.retry(&mut bench.sink, &mut bench.budget);
    assert!(!bench.receiver.is_blocked());
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
    assert_eq!((bench.budget.used(), bench.sink.complete), (0, START + b[3] as u64));
}

/// DDP refuses a large FPDU, and the segment with the FPDU's end is received repeatedly. The FPDU is verified once, and
/// again only when the owner retries.
#[test]
fn repeated_end_of_refused_fpdu_is_verified_once() {
    for markers in [false, true] {
        let stream = stream(markers, &[60_000, 1000]);
        let b = stream.boundaries();
        let mut bench = Bench::new(&stream, &Config::default());
        bench.arrive(b[0]..b[1] - 1);
        bench.sink.refuse.insert(START);
        bench.arrive(b[1] - 1..b[1] + 1);
        assert!(bench.receiver.is_blocked() && bench.is_taken(b[1] - 1..b[1]));
        for _ in 0..100 {
            bench.arrive(b[1]..b[1] + 1);
        }
        assert_eq!((bench.handed_up(&stream), bench.sink.refused), (vec![], 1));
        assert!(bench.is_refused(b[1]..b[2]));
        bench.receiver.retry(&mut bench.sink, &mut bench.budget);
        bench.arrive(b[1]..b[2]);
        assert_eq!(bench.handed_up(&stream), [0, 1]);
        assert_eq!((bench.receiver.is_blocked(), bench.budget.used()), (false, 0));
    }
}

/// Beyond a gap the last byte of a refused FPDU is not accepted. The number of its verifications has the same limit as
/// for an FPDU with a wrong CRC.
#[test]
fn refused_fpdu_beyond_a_gap_exhausts_verify_budget() {
    let stream = stream(true, &[1000, 60_000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[1]..b[2] - 1);
    for _ in 0..1000 {
        bench.sink.refuse.insert(START + b[1] as u64);
        bench.arrive(b[2] - 1..b[2]);
    }
    assert!(bench.is_refused(b[2] - 1..b[2]));
    assert!((2..8).contains(&bench.sink.refused), "{}", bench.sink.refused);
    bench.sink.refuse.clear();
    bench.arrive(b[0]..b[1]).arrive(b[2] - 1..b[2]);
    assert_eq!(bench.handed_up(&stream), [0, 1]);
    assert_eq!(bench.budget.used(), 0);
}

/// RFC 5044 §8, code 1: the peer's close inside an FPDU is an error, a close between two FPDUs is not.
#[test]
fn close_inside_an_fpdu_is_truncation_error() {
    let stream = stream(true, &[100, 100]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[0]..b[1]);
    assert_eq!(bench.receiver.on_peer_closed(&mut bench.budget), None);
    bench.arrive(b[1]..b[1] + 4);
    let error = bench.receiver.on_peer_closed(&mut bench.budget).map(|e| (e.at.0, e.code()));
    assert_eq!(error, Some((START + b[1] as u64, 1)));
    assert_eq!(bench.budget.used(), 0);
}

/// RFC 5044 §4.1, §7.1.1: with CRCs off, the CRC field is present and not checked.
#[test]
fn crc_off_skips_crc_check() {
    let mut stream = Stream::new(true, false);
    stream.fpdu(&ulpdu(1, 600)).fpdu(&ulpdu(2, 600)).fpdu(&ulpdu(3, 600));
    let b = stream.boundaries();
    stream.bytes[b[1] - 4..b[1]].copy_from_slice(&[1, 2, 3, 4]);
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[1]..b[3]).arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
}

/// RFC 5044 §4.1, §4.2: pad, the reserved half of a marker and the low bits of FPDUPTR are covered by the CRC and
/// otherwise ignored.
#[test]
fn pad_and_reserved_bits_are_ignored() {
    let mut stream = stream(true, &[100, 599, 599]);
    let b = stream.boundaries();
    for i in 1..3 {
        let (start, end) = (b[i], b[i + 1]);
        stream.bytes[end - 7..end - 4].fill(0xff);
        for at in (start..end).filter(|at| at % 512 == 0) {
            stream.bytes[at..at + 2].fill(0xff);
            stream.bytes[at + 3] |= 3;
        }
        let crc = crate::mpa::testing::bitwise_crc(&stream.bytes[start..end - 4]);
        stream.bytes[end - 4..end].copy_from_slice(&crc.to_le_bytes());
    }
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[2]..b[3]).arrive(b[0]..b[1]).arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
}

/// draft-culley-iwarp-mpa-03 §7.1 allows FPDUPTR to count from a marker in front of the length field.
#[test]
fn revision_zero_accepts_draft_fpduptr() {
    let build = |from_marker| {
        let mut stream = Stream { from_marker, ..Stream::new(true, true) };
        stream.fpdu(&ulpdu(1, 502)).fpdu(&ulpdu(2, 1400)).fpdu(&ulpdu(3, 900));
        stream
    };
    let (draft, rfc) = (build(true), build(false));
    let b = draft.boundaries();
    assert_eq!(b[1], 512, "the second FPDU begins with a marker");
    assert_ne!(draft.bytes, rfc.bytes);
    let mut bench = Bench::new(&draft, &Config::default());
    bench.arrive(b[1]..b[2]).arrive(b[2] + 8..b[3]).arrive(b[2]..b[2] + 8).arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&draft), [0, 1, 2]);
    // Revision 0 also accepts FPDUPTR as the RFC defines it.
    let mut bench = Bench::new(&Stream { from_marker: true, ..rfc.clone() }, &Config::default());
    bench.arrive(b[1]..b[3]).arrive(b[0]..b[1]);
    assert_eq!(bench.handed_up(&rfc), [0, 1, 2]);
    // Revision 1 accepts FPDUPTR only as the RFC defines it.
    let mut bench = Bench::new(&Stream { from_marker: false, ..draft }, &Config::default());
    bench.arrive(b[0]..b[2]);
    assert_eq!(bench.receiver.error().map(|e| e.code()), Some(3));
}

/// The receiver itself has at most 184 bytes. The list of held bytes and islands is freed once their data is in order.
#[test]
fn idle_receiver_memory_is_bounded() {
    assert!(size_of::<Receiver>() <= 184, "{}", size_of::<Receiver>());
    let stream = stream(true, &[1000, 40, 1000]);
    let b = stream.boundaries();
    let mut bench = Bench::new(&stream, &Config::default());
    bench.arrive(b[2]..b[3]).arrive(b[1]..b[2] - 4).arrive(b[0]..b[1]).arrive(b[1]..b[2]);
    assert_eq!(bench.handed_up(&stream), [0, 1, 2]);
    assert_eq!(bench.receiver.pieces.capacity(), 0, "the list is freed");
}

/// A stream holds at most as many bytes as it leaves free in the worker's budget. Three streams, filled one after
/// another, leave an eighth of the budget.
#[test]
fn stream_holds_at_most_half_of_free_budget() {
    let stream = stream(false, &[1000; 200]);
    let b = stream.boundaries();
    let mut budget = HoldBudget::new(120_000);
    let mut sink = Collector::default();
    let config = Config::default();
    let mut fill = |budget: &mut HoldBudget| {
        let mut receiver = Receiver::new(&config, &stream.params(), START);
        for i in 1..b.len() - 1 {
            let bytes = &stream.bytes[b[i]..b[i + 1]];
            let _held_or_not =
                receiver.take_span(START + b[i] as u64, bytes, None, &mut sink, budget);
        }
        receiver
    };
    let mut greedy: Vec<Receiver> = (0..3).map(|_| fill(&mut budget)).collect();
    let held: Vec<u64> = greedy.iter().map(|receiver| receiver.stats().held).collect();
    assert!((58_000..=60_000).contains(&held[0]), "{held:?}");
    assert!((28_000..=31_000).contains(&held[1]), "{held:?}");
    assert!(budget.remaining() > 14_000, "{held:?}");
    for receiver in &mut greedy {
        receiver.discard(&mut budget);
    }
    assert_eq!(budget.used(), 0);
}
