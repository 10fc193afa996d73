//! The scoreboard against RFC 6675's definitions.

use super::*;
use proptest::prelude::*;

const LEN: u64 = 100;

fn at(n: u64) -> ExtSeq {
    ExtSeq::initial(SeqNumber(u32::MAX - 350)).plus(n)
}

/// Ten segments of 100 octets in flight.
fn ten() -> Scoreboard {
    let mut board = Scoreboard::new(at(0), 16);
    for i in 0..10 {
        board.push(at(i * LEN), LEN as u16, false, Instant::from_millis(i));
    }
    board
}

fn resends(board: &mut Scoreboard) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(r) = board.next_lost() {
        all.push(r.start.since(at(0)) / LEN);
        board.resent(r, Instant::from_millis(100), false);
    }
    all
}

// RFC 6675 §4, SetPipe: what is neither SACKed nor lost, and what was sent again.
#[test]
fn pipe_counts_what_is_in_the_network() {
    let mut board = ten();
    assert_eq!(board.pipe(), 1000);
    assert!(board.sack(at(400), at(700)));
    assert_eq!(board.pipe(), 700);
    board.mark_lost(LEN);
    assert_eq!(board.pipe(), 300, "0 to 3 are lost");
    assert_eq!(resends(&mut board), [0, 1, 2, 3]);
    assert_eq!(board.pipe(), 700, "sent again");
    board.acknowledge(at(700));
    assert_eq!(board.pipe(), 300);
    assert_eq!(board.next_lost(), None);
}

// RFC 6675 §4, IsLost: three separate ranges above, or more than two segments' worth of octets.
#[test]
fn lost_by_ranges_or_by_octets() {
    let mut board = ten();
    board.sack(at(200), at(300));
    board.sack(at(400), at(500));
    board.mark_lost(LEN);
    assert!(!board.head_lost_by_sack(), "two ranges, two segments");
    board.sack(at(600), at(700));
    board.mark_lost(LEN);
    assert_eq!(resends(&mut board), [0, 1], "what is between the ranges has fewer above");
    let mut board = ten();
    board.sack(at(700), at(901));
    board.mark_lost(LEN);
    assert_eq!(resends(&mut board), [0, 1, 2, 3, 4, 5, 6], "201 octets in one range");
}

// RFC 6675 §5.1 and RFC 5681 §3.1: after a time-out everything but the SACKed is sent again, in order,
// also what was sent again before.
#[test]
fn a_timeout_loses_all_that_is_not_sacked() {
    let mut board = ten();
    board.sack(at(400), at(700));
    board.mark_lost(LEN);
    resends(&mut board);
    board.mark_all_lost();
    assert_eq!(board.pipe(), 0);
    assert_eq!(resends(&mut board), [0, 1, 2, 3, 7, 8, 9]);
}

// RFC 2018 §8: what the peer threw away is sent again.
#[test]
fn reneged_data_is_sent_again() {
    let mut board = ten();
    board.sack(at(0), at(1000));
    assert!(board.head_sacked());
    board.forget_sacks();
    board.mark_all_lost();
    assert_eq!(resends(&mut board).len(), 10);
}

// RFC 6675 §4, NextSeg rules 3 and 4.
#[test]
fn last_resorts() {
    let mut board = ten();
    board.sack(at(200), at(300));
    let doubtful = board.next_doubtful().unwrap();
    assert_eq!(doubtful.start, at(0));
    board.resent(doubtful, Instant::from_millis(100), false);
    assert_eq!(board.pipe(), 1000, "counted twice");
    assert_eq!(board.next_doubtful().unwrap().start, at(100));
    let next = board.next_doubtful().unwrap();
    board.resent(next, Instant::from_millis(100), false);
    assert_eq!(board.next_doubtful(), None, "nothing above the highest SACKed");
    assert_eq!(board.last_unsacked().unwrap().start, at(900));
}

// RFC 8985 §6.2: what was sent after a retransmission has arrived, the retransmission has not.
#[test]
fn a_lost_retransmission_is_found() {
    let reordering = Duration::from_millis(5);
    let mut board = ten();
    board.mark_head_lost();
    resends(&mut board); // at 100 ms
    board.push(at(1000), 100, false, Instant::from_millis(105));
    board.push(at(1100), 100, false, Instant::from_millis(106));
    board.sack(at(100), at(1100));
    assert!(!board.head_lost_again(reordering), "not later than reordering explains");
    board.sack(at(1100), at(1200));
    assert!(board.head_lost_again(reordering));
    board.mark_head_lost();
    assert!(!board.head_lost_again(reordering), "it waits to be sent");
    assert_eq!(resends(&mut board), [0]);
}

// Karn's algorithm (RFC 6298 §3): the oldest that was not SACKed before, if none was sent twice.
#[test]
fn measurements_are_of_segments_sent_once() {
    let mut board = ten();
    board.mark_head_lost();
    resends(&mut board);
    assert_eq!(board.acknowledge(at(100)).sent_at, None);
    let mut behind = ten();
    behind.mark_head_lost();
    resends(&mut behind);
    assert_eq!(behind.acknowledge(at(300)).sent_at, None, "waited behind a retransmission");
    board.sack(at(100), at(200));
    assert_eq!(board.acknowledge(at(400)).sent_at, Some(Instant::from_millis(2)));
}

// A part acknowledged: the rest stays as one record.
#[test]
fn a_partial_acknowledgement_cuts_the_head() {
    let mut board = ten();
    board.acknowledge(at(130));
    let head = board.head().unwrap();
    assert_eq!((head.start, head.len, board.len()), (at(130), 70, 9));
    assert_eq!(board.pipe(), 870);
}

#[test]
fn cutting_keeps_marks_and_the_fin_at_the_end() {
    let mut board = Scoreboard::new(at(0), 4);
    board.push(at(0), 100, true, Instant::ZERO);
    assert_eq!(board.pipe(), 101);
    board.mark_all_lost();
    let whole = board.next_lost().unwrap();
    let first = board.cut(whole, 40);
    assert_eq!((first.len, first.fin), (40, false));
    board.resent(first, Instant::ZERO, false);
    let second = board.next_lost().unwrap();
    assert_eq!((second.start, second.len, second.fin), (at(40), 60, true));
    board.resent(second, Instant::ZERO, false);
    assert_eq!(board.pipe(), 101);
}

// RFC 1191 §6.5: what did not pass is sent again in smaller pieces.
#[test]
fn longer_than_the_path_allows_is_lost() {
    let mut board = Scoreboard::new(at(0), 4);
    board.push(at(0), 100, false, Instant::ZERO);
    board.push(at(100), 300, false, Instant::ZERO);
    board.mark_longer_lost(200);
    assert_eq!(board.next_lost().unwrap().start, at(100));
}

// RFC 4821 §7.6: a probe tells whether it arrived; lost, it goes again as an ordinary segment.
#[test]
fn a_probe_of_the_path_tells_its_fate() {
    let probed = || {
        let mut board = Scoreboard::new(at(0), 4);
        board.push(at(0), 300, false, Instant::ZERO);
        board.last_is_probe();
        board.push(at(300), 100, false, Instant::ZERO);
        board
    };
    let mut board = probed();
    assert_eq!(board.take_probe_fate(), None);
    board.acknowledge(at(300));
    assert_eq!(board.take_probe_fate(), Some(ProbeFate::Arrived(300)));
    let mut board = probed();
    board.sack(at(0), at(300));
    assert_eq!(board.take_probe_fate(), Some(ProbeFate::Arrived(300)));
    let mut board = probed();
    board.mark_all_lost();
    assert!(board.head_is_probe());
    assert_eq!(board.take_probe_fate(), Some(ProbeFate::Lost(300)));
    let whole = board.next_lost().unwrap();
    let first = board.cut(whole, 100);
    board.resent(first, Instant::ZERO, false);
    board.acknowledge(at(300));
    assert_eq!(board.take_probe_fate(), None, "said once");
}

proptest! {
    // Any SACK blocks, acknowledgements, losses and retransmissions: the counted pipe is what the
    // definition says, and records stay contiguous.
    #[test]
    fn counters_agree_with_a_recount(
        steps in prop::collection::vec((0u8..8, 0u64..1200, 1u64..400), 1..60),
    ) {
        let mut board = ten();
        let mut nxt = 1000;
        for (what, start, len) in steps {
            let una = board.una.since(at(0));
            match what {
                0 | 1 => {
                    let (start, end) = (start.max(una), (start.max(una) + len).min(nxt));
                    if start < end {
                        board.sack(at(start), at(end));
                        board.mark_lost(LEN);
                    }
                }
                2 => { board.acknowledge(at((una + len / 2).min(nxt))); }
                3 => if let Some(r) = board.next_lost() { board.resent(r, Instant::ZERO, false) },
                4 => board.mark_head_lost(),
                5 => if let Some(r) = board.next_doubtful() { board.resent(r, Instant::ZERO, false) },
                6 => { board.push(at(nxt), 100, false, Instant::ZERO); nxt += 100; }
                _ if start < 100 => board.mark_all_lost(),
                _ => if let Some(r) = board.next_lost() && r.len > 1 { board.cut(r, r.len / 2); }
            }
            let pipe: u64 = board.records.iter().map(Record::in_pipe).sum();
            prop_assert_eq!(board.pipe(), pipe);
            let awaiting = board.records.iter().filter(|r| r.awaits_retransmission()).count();
            prop_assert_eq!(board.awaiting, awaiting);
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
