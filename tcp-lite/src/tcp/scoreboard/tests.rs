//! Tests the scoreboard against the definitions of RFC 6675 and RFC 8985.

use core::time::Duration;

use base::Nanos;
use transport::rack::LossCriterion;

use super::*;
use proptest::prelude::*;
use transport::loss_recovery::DetectedLosses;

const LEN: u64 = 100;

fn at(n: u64) -> ExtSeq {
    ExtSeq::initial(SeqNumber(u32::MAX - 350)).plus(n)
}

impl Scoreboard {
    /// Finds losses, without a callback for each lost segment.
    fn losses(&mut self, criterion: LossCriterion) -> DetectedLosses {
        self.detect_losses(criterion, |_, _| {})
    }
}

/// Returns a board with ten segments of 100 bytes in flight.
fn ten_segments() -> Scoreboard {
    let mut board = Scoreboard::new();
    for i in 0..10 {
        board.push(at(i * LEN), LEN as u16, false, Instant::from_millis(i));
    }
    board
}

/// Calls `apply` to process an acknowledgement, and returns the delivered data.
fn delivery_of(
    board: &mut Scoreboard,
    apply: impl FnOnce(&mut Scoreboard, &mut Delivery),
) -> Delivery {
    let mut delivery = Delivery::new(Instant::from_millis(200), None, None, at(0));
    apply(board, &mut delivery);
    delivery
}

fn sack(board: &mut Scoreboard, start: u64, end: u64) -> bool {
    let mut news = false;
    delivery_of(board, |board, d| news = board.sack(at(start), at(end), d));
    news
}

fn acknowledge(board: &mut Scoreboard, una: u64) -> Delivery {
    delivery_of(board, |board, d| board.acknowledge(at(una), d))
}

/// Returns the RACK criterion at `now`, after the delivery of a segment sent at `ms` that ends at `end`. Segments sent
/// `timeout` before `now` are lost (times in milliseconds).
fn criterion_at(ms: u64, end: u64, timeout: u64, now: u64) -> LossCriterion {
    LossCriterion {
        latest: Transmission { at: Instant::from_millis(ms), end: at(end) },
        timeout: Nanos::from_millis(timeout),
        now: Instant::from_millis(now),
    }
}

fn resends(board: &mut Scoreboard) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(r) = board.next_lost() {
        all.push(r.start.since(at(0)) / LEN);
        board.record_resent(r, Instant::from_millis(100), false);
    }
    all
}

// RFC 6675 §4, SetPipe: pipe counts the bytes of segments that are neither SACKed nor lost, plus retransmissions.
#[test]
fn pipe_excludes_sacked_and_lost_segments() {
    let mut board = ten_segments();
    assert_eq!(board.pipe(), 1000);
    assert!(sack(&mut board, 400, 700));
    assert_eq!((board.pipe(), board.segs_sacked()), (700, 3));
    let found = board.losses(criterion_at(6, 700, 50, 100));
    assert_eq!((found.segments, found.next_search_at), (4, None));
    assert_eq!(board.pipe(), 300, "0 to 3 are lost");
    assert_eq!(resends(&mut board), [0, 1, 2, 3]);
    assert_eq!(board.pipe(), 700, "sent again");
    assert!(board.resent_in_flight());
    assert_eq!(acknowledge(&mut board, 700).bytes, 400, "SACKed segments were delivered before");
    assert_eq!(board.pipe(), 300);
    assert!(!board.resent_in_flight());
    assert_eq!(board.next_lost(), None);
}

// RFC 4015 §3: after a spurious time-out it is unknown which of the two transmissions arrived.
#[test]
fn resent_segment_is_not_single_after_undo() {
    let mut board = Scoreboard::new();
    board.push(at(0), LEN as u16, false, Instant::ZERO);
    assert!(board.has_single_segment());
    board.mark_all_lost();
    assert_eq!(resends(&mut board), [0]);
    board.mark_all_lost();
    board.clear_losses();
    assert!(!board.has_single_segment());
}

// RFC 8985 §6.2 step 5: only segments sent before the latest delivered segment are lost, each after its reordering
// time. The next search is due when the last of them is overdue.
#[test]
fn segment_is_lost_after_reordering_time() {
    let mut board = ten_segments();
    sack(&mut board, 500, 600);
    let found = board.losses(criterion_at(5, 600, 50, 52));
    assert_eq!((found.segments, found.congestion_segments), (3, 3), "sent at 0, 1 and 2 ms");
    assert_eq!(found.next_search_at, Some(Instant::from_millis(54)));
    let found = board.losses(criterion_at(5, 600, 50, 54));
    assert_eq!((found.segments, found.next_search_at), (2, None));
    assert_eq!(resends(&mut board), [0, 1, 2, 3, 4]);
    assert_eq!(board.losses(criterion_at(5, 600, 50, 500)).segments, 0, "sent later");
}

/// Returns a scoreboard with `n` segments, sent one per millisecond, and a SACKed segment after them. Also returns the
/// RACK criterion after delivery of the SACKed segment.
fn waiting_segments(n: u64) -> (Scoreboard, LossCriterion) {
    let mut board = Scoreboard::new();
    for i in 0..=n {
        board.push(at(i * LEN), LEN as u16, false, Instant::from_millis(i));
    }
    assert!(sack(&mut board, n * LEN, (n + 1) * LEN));
    (board, criterion_at(n, (n + 1) * LEN, n * 2, n))
}

// The cost of an acknowledgement does not grow with the number of segments within the reordering time. The reordering
// timer finds their losses in batches.
#[test]
fn loss_search_examines_waiting_segments_in_batches() {
    const N: u64 = 5000;
    let (mut board, mut criterion) = waiting_segments(N);
    let (mut lost, mut turns) = (0, 0);
    while let Some(next_search_at) = {
        let found = board.losses(criterion);
        lost += found.segments;
        found.next_search_at
    } {
        turns += 1;
        let reach = Duration::from_millis(64);
        assert!(next_search_at <= Instant::from_millis(lost) + criterion.timeout + reach);
        criterion.now = next_search_at;
    }
    assert_eq!(lost, N, "each loss is found when due, at most 64 segments later");
    assert!(turns <= N / 64 + 1, "{turns}");
}

#[test]
fn loss_search_examines_waiting_resends_in_batches() {
    const N: u64 = 5000;
    let (mut board, criterion) = waiting_segments(N);
    board.losses(LossCriterion { now: Instant::from_millis(10 * N), ..criterion });
    for i in 0..N {
        let resend = board.next_lost().unwrap();
        board.record_resent(resend, Instant::from_millis(10 * N + i), false);
    }
    board.push(at((N + 1) * LEN), LEN as u16, false, Instant::from_millis(12 * N));
    assert!(sack(&mut board, (N + 1) * LEN, (N + 2) * LEN));
    let mut criterion = criterion_at(12 * N, (N + 2) * LEN, 3 * N, 12 * N);
    let (mut lost, mut turns) = (0, 0);
    while let Some(next_search_at) = {
        let found = board.losses(criterion);
        lost += found.segments;
        found.next_search_at
    } {
        turns += 1;
        let reach = Duration::from_millis(64);
        assert!(next_search_at <= Instant::from_millis(10 * N + lost) + criterion.timeout + reach);
        criterion.now = next_search_at;
    }
    assert_eq!(lost, N);
    assert!(turns <= N / 64 + 1, "{turns}");
}

// RFC 6675 §5.1 and RFC 5681 §3.1: after a time-out everything not SACKed is retransmitted in order, earlier
// retransmissions included.
#[test]
fn mark_all_lost_resends_everything_unsacked() {
    let mut board = ten_segments();
    sack(&mut board, 400, 700);
    board.losses(criterion_at(6, 700, 50, 100));
    resends(&mut board);
    board.mark_all_lost();
    assert_eq!(board.pipe(), 0);
    assert_eq!(resends(&mut board), [0, 1, 2, 3, 7, 8, 9]);
}

// RFC 2018 §8: the peer has reneged, so all data is retransmitted.
#[test]
fn reneged_data_is_sent_again() {
    let mut board = ten_segments();
    sack(&mut board, 0, 1000);
    assert!(board.head_sacked());
    board.clear_sacks();
    board.mark_all_lost();
    assert_eq!(resends(&mut board).len(), 10);
}

// RFC 8985 §6.2: a segment that was sent after two retransmissions is SACKed, and the retransmissions are not. Each
// retransmission is found to be lost at its own time.
#[test]
fn lost_retransmissions_are_found() {
    let mut board = ten_segments();
    sack(&mut board, 200, 1000);
    board.losses(criterion_at(9, 1000, 50, 100));
    for ms in [100, 110] {
        let lost = board.next_lost().unwrap();
        board.record_resent(lost, Instant::from_millis(ms), false);
    }
    board.push(at(1000), 100, false, Instant::from_millis(120));
    sack(&mut board, 1000, 1100);
    let found = board.losses(criterion_at(120, 1100, 50, 155));
    assert_eq!(found.segments, 1);
    assert_eq!(found.next_search_at, Some(Instant::from_millis(160)));
    let lost = board.next_lost().unwrap();
    assert_eq!(lost.start, at(0));
    board.record_resent(lost, Instant::from_millis(155), false);
    assert_eq!(board.losses(criterion_at(120, 1100, 50, 160)).segments, 1);
    let lost = board.next_lost().unwrap();
    assert_eq!(lost.start, at(100));
    board.record_resent(lost, Instant::from_millis(160), false);
    assert_eq!(board.losses(criterion_at(120, 1100, 50, 900)).segments, 0, "sent after it");
}

// RFC 8985 §6.3: a time-out marks the oldest segment lost, and the segments that were sent at least the criterion's
// time-out ago.
#[test]
fn timeout_spares_recently_sent_segments() {
    let mut board = ten_segments();
    board.mark_lost_on_timeout(criterion_at(0, 0, 50, 53));
    assert_eq!(resends(&mut board), [0, 1, 2, 3]);
    let mut board = ten_segments();
    board.mark_lost_on_timeout(criterion_at(0, 0, 50, 10));
    assert_eq!(resends(&mut board), [0]);
}

// After an undo, segments that were marked lost count as in the network again, and can be marked lost later.
#[test]
fn undo_clears_loss_marks() {
    let mut board = ten_segments();
    sack(&mut board, 500, 600);
    board.losses(criterion_at(5, 600, 50, 100));
    let lost = board.next_lost().unwrap();
    board.record_resent(lost, Instant::from_millis(100), false);
    board.clear_losses();
    assert_eq!(board.next_lost(), None);
    assert_eq!(board.pipe(), 1000, "nine segments, one of them twice");
    assert_eq!(board.losses(criterion_at(5, 600, 50, 150)).segments, 4);
}

// RFC 8985 §7.3: the tail is the last segment that is not SACKed.
#[test]
fn tail_is_the_last_unsacked_segment() {
    let mut board = ten_segments();
    assert_eq!(board.last_unsacked().unwrap().start, at(900));
    sack(&mut board, 800, 1000);
    assert_eq!(board.last_unsacked().unwrap().start, at(700));
}

// Karn's algorithm (RFC 6298 §3): the round-trip sample is the age of the oldest newly acknowledged segment. No sample
// is taken if a newly acknowledged segment was sent twice.
#[test]
fn rtt_sample_excludes_resent_segments() {
    let rtt = |board: &mut Scoreboard, una| acknowledge(board, una).rtt();
    let mut board = ten_segments();
    board.mark_head_lost();
    resends(&mut board);
    assert_eq!(rtt(&mut board, 100), None);
    let mut behind = ten_segments();
    behind.mark_head_lost();
    resends(&mut behind);
    assert_eq!(rtt(&mut behind, 300), None, "waited behind a retransmission");
    sack(&mut board, 100, 200);
    assert_eq!(rtt(&mut board, 400), Some(Nanos::from_millis(198)));
}

// The unacknowledged part of the segment remains as one record.
#[test]
fn a_partial_acknowledgement_cuts_the_head() {
    let mut board = ten_segments();
    acknowledge(&mut board, 130);
    let head = board.head().unwrap();
    assert_eq!((head.start, head.len, board.len()), (at(130), 70, 9));
    assert_eq!(board.pipe(), 870);
}

#[test]
fn cut_keeps_loss_mark_and_moves_fin_to_second_part() {
    let mut board = Scoreboard::new();
    board.push(at(0), 100, true, Instant::ZERO);
    assert_eq!(board.pipe(), 101);
    board.mark_all_lost();
    let whole = board.next_lost().unwrap();
    let first = board.cut(whole, 40);
    assert_eq!((first.len, first.fin), (40, false));
    board.record_resent(first, Instant::ZERO, false);
    let second = board.next_lost().unwrap();
    assert_eq!((second.start, second.len, second.fin), (at(40), 60, true));
    board.record_resent(second, Instant::ZERO, false);
    assert_eq!(board.pipe(), 101);
}

// RFC 1191 §6.4: only the segment that is too long for the path is marked lost.
#[test]
fn segments_longer_than_path_mtu_are_marked_lost() {
    let mut board = Scoreboard::new();
    board.push(at(0), 100, false, Instant::ZERO);
    board.push(at(100), 300, false, Instant::ZERO);
    board.mark_longer_lost(200);
    assert_eq!(board.next_lost().unwrap().start, at(100));
}

// RFC 4821 §7.6: the fate of the probe is reported once. A lost probe is retransmitted as an ordinary segment.
#[test]
fn path_mtu_probe_fate_is_reported() {
    let probed = || {
        let mut board = Scoreboard::new();
        board.push(at(0), 300, false, Instant::ZERO);
        board.mark_last_as_probe();
        board.push(at(300), 100, false, Instant::ZERO);
        board
    };
    let mut board = probed();
    assert_eq!(board.take_probe_fate(), None);
    acknowledge(&mut board, 300);
    assert_eq!(board.take_probe_fate(), Some(ProbeFate::Arrived(300)));
    let mut board = probed();
    sack(&mut board, 0, 300);
    assert_eq!(board.take_probe_fate(), Some(ProbeFate::Arrived(300)));
    let mut board = probed();
    board.mark_all_lost();
    assert!(board.head_is_probe());
    assert_eq!(board.take_probe_fate(), Some(ProbeFate::Lost(300)));
    let whole = board.next_lost().unwrap();
    let first = board.cut(whole, 100);
    board.record_resent(first, Instant::ZERO, false);
    acknowledge(&mut board, 300);
    assert_eq!(board.take_probe_fate(), None, "reported once");
}

proptest! {
    // After any SACK blocks, acknowledgements, losses and retransmissions the totals equal a recount, and records are
    // contiguous.
    #[test]
    fn scoreboard_totals_agree_with_a_recount(
        steps in prop::collection::vec((0u8..8, 0u64..1200, 1u64..400), 1..60),
    ) {
        let mut board = ten_segments();
        let mut nxt = 1000;
        for (what, start, len) in steps {
            let una = board.una.since(at(0));
            match what {
                0 | 1 => {
                    let (start, end) = (start.max(una), (start.max(una) + len).min(nxt));
                    if start < end {
                        sack(&mut board, start, end);
                        board.losses(criterion_at(50, end, len, 200));
                    }
                }
                2 => { acknowledge(&mut board, (una + len / 2).min(nxt)); }
                3 => if let Some(r) = board.next_lost() { board.record_resent(r, Instant::ZERO, false) },
                4 => board.mark_head_lost(),
                5 => if let Some(r) = board.last_unsacked() { board.record_resent(r, Instant::from_millis(start), true) },
                6 => { board.push(at(nxt), 100, false, Instant::ZERO); nxt += 100; }
                _ if start < 50 => board.mark_all_lost(),
                _ if start < 100 => board.mark_lost_on_timeout(criterion_at(0, 0, len, 200)),
                _ if start < 150 => board.clear_losses(),
                _ => if let Some(r) = board.next_lost() && r.len > 1 { board.cut(r, r.len / 2); }
            }
            let pipe: u64 = board.records.iter().map(Record::pipe_bytes).sum();
            prop_assert_eq!(board.pipe(), pipe);
            let awaiting = board.records.iter().filter(|r| r.awaits_retransmission()).count();
            prop_assert_eq!(board.awaiting_resend, awaiting as u64);
            let sacked = board.records.iter().filter(|r| r.has_mark(SACKED)).count();
            prop_assert_eq!(board.segs_sacked(), sacked as u64);
            let again = board.records.iter().filter(|r| r.has_resend_in_flight()).count();
            prop_assert_eq!(board.resent_in_flight(), again > 0);
            let mut expected = board.una;
            for r in &board.records {
                prop_assert_eq!(SeqNumber(r.start), expected.wire());
                prop_assert!(r.seq_len() > 0);
                expected = expected.plus(u64::from(r.seq_len()));
            }
            prop_assert_eq!(expected, at(nxt));
        }
    }
}
