//! Effects of SACKs (RFC 9260 §6.2.1, §6.7).

use super::*;

// RFC 9260 §6.7: acknowledged messages are freed in order. §6.3.2 R2: no timer runs once all data is acknowledged.
#[test]
fn cumulative_acknowledgements_free_messages_in_order() {
    let mut side = in_flight(5);
    assert_eq!(side.sack(3, &[]), AckEffect::Progress);
    assert_eq!((side.source.acknowledged, side.sender.in_flight()), (3, 2));
    assert_eq!(side.sack(3, &[]), AckEffect::NoProgress);
    assert_eq!(side.sack(2, &[]), AckEffect::Stale, "RFC 9260 §6.2.1 D i");
    assert_eq!(side.sender.stats().old_sacks, 1);
    assert!(side.sender.poll_timeout().is_some());
    side.sack(5, &[]);
    assert_eq!(side.source.acknowledged, 5);
    assert!(side.sender.is_idle() && side.sender.pipe() == 0);
    assert_eq!(side.sender.poll_timeout(), None);
}

// RFC 9260 §3.3.4: a chunk in a Gap Ack Block is not acknowledged yet, but has left the network.
#[test]
fn gap_blocks_take_chunks_out_of_the_pipe() {
    let mut side = in_flight(5);
    let pipe = side.sender.pipe();
    side.wait(20 * MS);
    assert_eq!(side.sack(1, &[(2, 3)]), AckEffect::Progress);
    assert_eq!(side.source.acknowledged, 1);
    assert_eq!(side.sender.pipe(), pipe / 5 * 2);
    assert_eq!(side.sack(1, &[(2, 3)]), AckEffect::NoProgress);
    assert_eq!(side.sack(4, &[]), AckEffect::Progress);
    assert_eq!(side.sender.pipe(), pipe / 5);
}

// A SACK of data that was never sent, or with an impossible block, has no effect.
#[test]
fn impossible_sacks_change_nothing() {
    let mut side = in_flight(5);
    let pipe = side.sender.pipe();
    let mut assert_rejected = |next, blocks: &[(u16, u16)], error| {
        assert_eq!(side.try_sack(next, 0, blocks, &[]), Err(error), "{next} {blocks:?}");
    };
    assert_rejected(6, &[], BadSack::Unsent);
    assert_rejected(1 << 30, &[], BadSack::Unsent);
    assert_rejected(1, &[(2, 5)], BadSack::Unsent);
    assert_rejected(1, &[(2, 2), (60_000, 60_000)], BadSack::Unsent);
    assert_rejected(1, &[(3, 2)], BadSack::Block);
    assert_rejected(1, &[(0, 2)], BadSack::Block);
    assert_rejected(1, &[(1, 1)], BadSack::Block);
    assert_eq!(side.sender.stats().bad_sacks, 7);
    assert_eq!((side.sender.pipe(), side.source.acknowledged), (pipe, 0));
    assert_eq!(side.sender.peer_window(), u64::from(ROOM), "the window is unchanged too");
}

// Gap Ack Blocks may be unsorted, overlapping or adjacent. All are applied.
#[test]
fn unsorted_or_overlapping_blocks_are_applied() {
    let mut side = in_flight(10);
    let pipe = side.sender.pipe();
    side.wait(20 * MS);
    side.sack(0, &[(6, 7), (2, 3), (2, 4), (5, 5), (9, 9)]);
    assert_eq!(side.sender.stats().lost, 2, "the first, and the one before the ninth");
    assert_eq!(side.sender.pipe(), pipe / 10);
    side.sack(8, &[]);
    assert_eq!(side.source.acknowledged, 8);
}

// RFC 8899 §4.3: only SACKed chunks that are shorter than the oldest chunk indicate that the oldest is too long for the
// path.
#[test]
fn only_shorter_arrivals_suggest_a_black_hole() {
    for (second, evident) in [(1000, true), (1436, false)] {
        let mut side = side_with(SendConfig { initial_window: Some(100), ..config() }, ROOM);
        side.source.push(1, 1436);
        side.source.push(1, second);
        assert_eq!(side.send().len(), 2);
        assert!(!side.sender.shorter_arrived(), "none has arrived");
        side.sack(0, &[(2, 2)]);
        assert_eq!(side.sender.shorter_arrived(), evident, "{second}");
    }
}

// RFC 9260 §9.2: a SHUTDOWN acknowledges data, but does not withdraw reports of Gap Ack Blocks.
#[test]
fn shutdown_acknowledges_without_withdrawing_reports() {
    let mut side = in_flight(5);
    side.wait(20 * MS);
    side.sack(0, &[(3, 4)]);
    let sack = |side: &mut Side, n: u32| {
        side.sender.on_shutdown(side.now, tsn(n).sub(1), &mut side.source)
    };
    assert_eq!(sack(&mut side, 1), Ok(AckEffect::Progress));
    for _ in 0..5 {
        assert_eq!(sack(&mut side, 1), Ok(AckEffect::NoProgress));
    }
    assert_eq!(side.sender.stats().reneged, 0);
    assert_eq!(sack(&mut side, 0), Ok(AckEffect::Stale));
    assert_eq!(sack(&mut side, 6), Err(BadSack::Unsent));
    assert_eq!(sack(&mut side, 5), Ok(AckEffect::Progress));
    assert!(side.sender.is_idle());
}

// RFC 9260 §6.2.1 D iii: one SACK that omits data reported earlier may be a reordered SACK. Three in a row are
// reneging, and the data is retransmitted.
#[test]
fn reneged_reports_are_retransmitted() {
    let mut side = in_flight(6);
    side.wait(20 * MS);
    side.sack(1, &[(2, 5)]);
    side.numbers();
    let arrived = side.sender.pipe();
    side.sack(1, &[(2, 2), (5, 5)]);
    side.sack(1, &[(2, 5)]);
    side.sack(1, &[(2, 2), (5, 5)]);
    side.sack(1, &[(2, 2), (5, 5)]);
    assert_eq!((side.sender.stats().reneged, side.sender.pipe()), (0, arrived));
    side.sack(1, &[(2, 2), (5, 5)]);
    assert_eq!(side.sender.stats().reneged, 1);
    side.wait(50 * MS);
    side.sack(1, &[(2, 2), (5, 5)]);
    let retransmitted = side.numbers();
    assert!(retransmitted.contains(&3) && retransmitted.contains(&4), "{retransmitted:?}");
}

// RFC 9260 §6.7: a SACK may omit the highest blocks for lack of room.
#[test]
fn omitted_highest_blocks_are_not_reneging() {
    let mut side = in_flight(20);
    side.sack(0, &[(2, 2), (4, 4), (18, 18)]);
    for _ in 0..5 {
        side.sack(0, &[(2, 2), (4, 4)]);
    }
    assert_eq!(side.sender.stats().reneged, 0);
}

// RFC 9260 §6.3.2 R4, RFC 8985 §6.3: the oldest chunk is SACKed but not acknowledged, so the peer has dropped it. The
// time-out discards all SACK reports.
#[test]
fn timeout_with_sacked_head_forgets_sacks() {
    let mut side = in_flight(3);
    side.sack(0, &[(2, 3)]);
    side.sack(1, &[]);
    let mut expired = ExpiredTimer::None;
    while expired == ExpiredTimer::None {
        expired = side.expire();
        side.numbers();
    }
    assert_eq!(expired, ExpiredTimer::T3);
    assert_eq!(side.sender.stats().reneged, 1);
}

// RFC 9260 §6.3.1 C2, C3: acknowledgements update SRTT, and the RTO follows from it.
#[test]
fn round_trips_are_measured() {
    let mut side = in_flight(2);
    assert_eq!(side.sender.rto(), Duration::from_secs(1), "C1: RTO.Initial");
    side.wait(100 * MS);
    side.sack(2, &[]);
    assert_eq!(side.sender.srtt(), Some(100 * MS));
    assert_eq!(side.sender.rto(), 300 * MS);
    side.sender.on_rtt_sample(180 * MS);
    assert_eq!(side.sender.srtt(), Some(110 * MS), "RFC 9260 §8.3: by a HEARTBEAT");
}

// RFC 9260 §6.3.1 C5 (Karn's algorithm).
#[test]
fn retransmitted_chunk_gives_no_rtt_sample() {
    let mut side = in_flight(1);
    while side.expire() != ExpiredTimer::T3 {
        side.send();
    }
    assert_eq!(side.numbers(), [0]);
    side.wait(50 * MS);
    side.sack(1, &[]);
    assert_eq!(side.sender.srtt(), None);
    side.source.push(1, 100);
    side.send();
    side.wait(50 * MS);
    side.sack(2, &[]);
    assert_eq!(side.sender.srtt(), Some(50 * MS));
}
