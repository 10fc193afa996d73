//! Arbitrary SACKs: the totals of the scoreboard stay correct, and only acknowledged data is freed.

use proptest::prelude::*;

use super::super::record::{FIRST_IN_PACKET, LOST, RETRANSMITTED, SACKED};
use super::loss::side_with_rtt;
use super::*;

/// One step of a test: an action of the peer, the source or the path, or the passage of time.
#[derive(Clone, Debug)]
enum Step {
    Sack { next: u32, a_rwnd: u32, blocks: Vec<(u16, u16)>, duplicates: Vec<u32> },
    Wait(u64),
    Timer,
    Push(usize, usize),
    Shutdown(u32),
    Path(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let near = prop_oneof![10 => 0u32..60, 1 => any::<u32>()];
    let block = prop_oneof![
        10 => (1u16..30, 0u16..10).prop_map(|(start, len)| (start, start + len)),
        1 => any::<(u16, u16)>(),
    ];
    let a_rwnd = prop_oneof![Just(0u32), Just(3000), Just(1 << 20)];
    prop_oneof![
        8 => (near.clone(), a_rwnd, prop::collection::vec(block, 0..6),
              prop::collection::vec(0u32..60, 0..4))
            .prop_map(|(next, a_rwnd, blocks, duplicates)| Step::Sack {
                next, a_rwnd, blocks, duplicates }),
        3 => (0u64..2000).prop_map(Step::Wait),
        2 => Just(Step::Timer),
        2 => (1usize..20, prop_oneof![1usize..300, Just(5000)]).prop_map(|(n, len)| Step::Push(n, len)),
        1 => near.prop_map(Step::Shutdown),
        1 => (600usize..1500).prop_map(|len| Step::Path(len & !3)),
    ]
}

impl Side {
    /// Checks the totals of the scoreboard against its records.
    fn check(&self) -> Result<(), TestCaseError> {
        let board = &self.sender.board;
        let sum = |count: &dyn Fn(&super::super::record::Record) -> u64| {
            board.records.iter().map(count).sum::<u64>()
        };
        prop_assert_eq!(board.pipe(), sum(&|r| r.pipe_bytes()));
        prop_assert_eq!(board.flight(), sum(&|r| r.chunk_len()));
        prop_assert_eq!(board.outstanding(), sum(&|r| r.outstanding_bytes()));
        prop_assert_eq!(
            board.sacked_packets(),
            sum(&|r| u64::from(r.has_mark(SACKED) && r.has_mark(FIRST_IN_PACKET)))
        );
        prop_assert_eq!(
            board.resent_in_flight(),
            sum(&|r| u64::from(r.has_mark(RETRANSMITTED) && !r.has_mark(SACKED))) > 0
        );
        prop_assert_eq!(board.sacked.bytes(), sum(&|r| u64::from(r.has_mark(SACKED))));
        let awaits = |r: &super::super::record::Record| {
            r.has_mark(LOST) && !r.has_mark(SACKED) && !r.has_mark(RETRANSMITTED)
        };
        prop_assert_eq!(board.awaits_retransmission(), board.records.iter().any(awaits));
        for (i, record) in board.records.iter().enumerate() {
            prop_assert_eq!(
                board.sacked.containing(board.tsn(i)).is_some(),
                record.has_mark(SACKED)
            );
        }
        prop_assert_eq!(self.source.out.len(), board.len());
        prop_assert!(
            self.source.out.iter().eq(board
                .records
                .iter()
                .map(|r| r.message())
                .collect::<Vec<_>>()
                .iter())
        );
        // A timer runs while data is in flight.
        prop_assert!(board.is_empty() || self.sender.poll_timeout().is_some());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_sacks_keep_the_scoreboard_consistent(steps in prop::collection::vec(step(), 1..60), cubic: bool) {
        let congestion = match cubic {
            true => transport::CongestionControl::Cubic,
            false => transport::CongestionControl::NewReno,
        };
        let mut side = side_with(SendConfig { congestion, ..SendConfig::default() }, ROOM);
        side.source.push(30, 400);
        for step in steps {
            match step {
                Step::Sack { next, a_rwnd, blocks, duplicates } => {
                    let acknowledged = side.source.acknowledged;
                    let sent = side.sender.stats().chunks;
                    let result = side.try_sack(next, a_rwnd, &blocks, &duplicates);
                    if result.is_ok_and(|done| done != AckEffect::Stale) {
                        prop_assert_eq!(side.source.acknowledged, u64::from(next).max(acknowledged));
                    } else {
                        prop_assert_eq!(side.source.acknowledged, acknowledged);
                    }
                    prop_assert!(side.source.acknowledged <= sent);
                }
                Step::Wait(ms) => side.wait(Duration::from_millis(ms)),
                Step::Timer if side.sender.poll_timeout().is_some() => {
                    side.now = side.now.max(side.sender.poll_timeout().unwrap());
                    side.sender.handle_timeout(side.now);
                }
                Step::Timer => {}
                Step::Push(n, len) => side.source.push(n, len),
                Step::Shutdown(next) => {
                    let _ = side.sender.on_shutdown(side.now, tsn(next).sub(1), &mut side.source);
                }
                Step::Path(len) => side.sender.set_packet_len(len),
            }
            side.send();
            side.check()?;
        }
        // A correct final SACK completes the transfer.
        let sent_count = side.sender.next_tsn().distance_from(Tsn(FIRST));
        side.try_sack(sent_count, ROOM, &[], &[]).unwrap();
        prop_assert!(side.sender.is_idle() && side.sender.pipe() == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    // RFC 3708 §3, §5: a chunk was lost and retransmitted. Duplicates that a peer reports, before and after it
    // receives the retransmission, do not restore the congestion window.
    #[test]
    fn forged_duplicates_do_not_undo_window_reduction(
        before in prop::collection::vec(prop::collection::vec(0u32..12, 0..6), 0..10),
        after in prop::collection::vec(prop::collection::vec(0u32..12, 0..6), 1..20),
    ) {
        let mut side = side_with_rtt(10);
        let initial_cwnd = side.sender.cwnd();
        side.wait(40 * MS);
        side.sack(1, &[(2, 5)]);
        prop_assert_eq!(side.numbers()[0], 1);
        for duplicates in before {
            side.try_sack(1, ROOM, &[(2, 5)], &duplicates).unwrap();
        }
        side.wait(40 * MS);
        for duplicates in after.into_iter().chain([vec![1], vec![1, 1, 1]]) {
            side.try_sack(11, ROOM, &[], &duplicates).unwrap();
            prop_assert!(side.sender.cwnd() < initial_cwnd);
        }
        let stats = side.sender.stats();
        prop_assert_eq!((stats.fast_recoveries, stats.undone_by_duplicates), (1, 0));
    }
}
