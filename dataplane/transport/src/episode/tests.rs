//! Reports that prove an episode spurious, and reports that do not. Arguments of
//! [`Episode::proof`]: the echoed timestamp, and true while a retransmission is in flight.

use super::*;
use crate::congestion::{Congestion, CongestionControl};
use crate::delivery::{AckKind, Transmission};
use crate::seq::SeqNumber;

/// The shortest round trip in milliseconds.
const RTT_MS: u64 = 20;

fn at(n: u64) -> ExtSeq {
    ExtSeq::initial(SeqNumber(0)).plus(n)
}

fn range(start: u64, end: u64) -> Range {
    Range { start: at(start), end: at(end) }
}

fn ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// Returns an episode that retransmitted the 1000 bytes from 1000 on, at 50 ms.
fn episode() -> Episode {
    let prior = Congestion::new(CongestionControl::default(), 1 << 30, 1000, 10).save();
    let mut episode = Episode::new(prior, 10_000, false);
    assert_eq!(episode.proof(Some(0), false), None, "nothing was retransmitted");
    episode.on_resent(ms(50), range(1000, 2000), 2);
    episode
}

/// Reports at `now` the arrival of a retransmission that was sent at `sent` and ends at `end`. `rtt` is the shortest
/// round trip so far. Times are in milliseconds.
fn deliver(episode: &mut Episode, now: u64, sent: u64, end: u64, rtt: Option<u64>) {
    let mut delivery = Delivery::new(ms(now), None, rtt.map(base::Nanos::from_millis), at(0));
    delivery.add_segment(Transmission { at: ms(sent), end: at(end) }, true, AckKind::Sack);
    episode.on_delivery(&delivery);
}

// RFC 3522 §3.2: a timestamp older than the first retransmission is proof; an equal timestamp is not.
#[test]
fn echoed_timestamp_before_resend_proves_episode_spurious() {
    assert_eq!(episode().proof(Some(49), false), Some(Proof::Timestamp));
    assert_eq!(episode().proof(Some(49), true), None, "another retransmission is in flight");
    assert_eq!(episode().proof(Some(50), false), None);
    assert_eq!(episode().proof(None, false), None);
}

// RFC 3708 §3 B.1: all retransmitted data must be reported, in any pieces.
#[test]
fn d_sacks_of_all_resends_prove_episode_spurious() {
    let mut e = episode();
    e.on_resent(ms(51), range(3000, 3500), 2);
    deliver(&mut e, 60, 50, 2000, Some(RTT_MS));
    deliver(&mut e, 70, 51, 3500, Some(RTT_MS));
    assert!(e.on_d_sack(range(1000, 1400)));
    assert!(e.on_d_sack(range(1400, 2000)));
    assert_eq!(e.proof(None, false), None);
    assert!(e.on_d_sack(range(3000, 3500)));
    assert_eq!(e.proof(None, true), Some(Proof::DSack));
}

// RFC 3708 §3 A: data not retransmitted in this episode is not credited, and no data is credited twice.
#[test]
fn d_sack_credits_each_resent_range_once() {
    let mut e = episode();
    e.on_resent(ms(51), range(3000, 3500), 2);
    deliver(&mut e, 60, 51, 3500, Some(RTT_MS));
    for other in [range(0, 1000), range(2000, 3000), range(500, 1500), range(1500, 2001)] {
        assert!(!e.on_d_sack(other), "{other:?}");
    }
    assert!(!e.on_d_sack(range(1000, 3500)), "2000..3000 was sent once");
    assert!(!e.on_d_sack(range(1500, 1500)) && !e.on_d_sack(range(1600, 1500)));
    assert!(e.on_d_sack(range(3000, 3500)));
    for _ in 0..3 {
        assert!(!e.on_d_sack(range(3000, 3500)), "already credited");
    }
    assert_eq!(e.proof(None, false), None);
    // Reports of other data do not prevent credit for retransmitted data.
    assert!(e.on_d_sack(range(1000, 2000)));
    assert_eq!(e.proof(None, false), Some(Proof::DSack));
}

// RFC 3708 §3 A.4: the network can duplicate a needed retransmission. The first D-SACK of such a duplicate arrives at
// least one round trip after the retransmission was sent.
#[test]
fn d_sack_of_needed_resend_is_no_proof() {
    let proof = |now, d_sack_first: bool| {
        let mut e = episode();
        if d_sack_first {
            e.on_d_sack(range(1000, 2000));
        }
        deliver(&mut e, now, 50, 2000, Some(RTT_MS));
        e.on_d_sack(range(1000, 2000));
        e.proof(None, false)
    };
    assert_eq!(proof(50 + RTT_MS - 1, false), Some(Proof::DSack), "the original had arrived");
    assert_eq!(proof(50 + RTT_MS, false), None);
    assert_eq!(proof(50 + RTT_MS, true), None, "a D-SACK first");
    // A retransmission before the episode is not evidence about this episode.
    let mut e = episode();
    deliver(&mut e, 60, 49, 900, Some(RTT_MS));
    deliver(&mut e, 60, 50, 2000, Some(RTT_MS));
    assert!(e.on_d_sack(range(1000, 2000)));
    assert_eq!(e.proof(None, false), Some(Proof::DSack));
}

// RFC 3708 §3 A.2, A.4: before the first RTT measurement D-SACKs are proof, until one reports data that was not
// retransmitted. Such a D-SACK shows that the network duplicates packets.
#[test]
fn d_sacks_before_first_rtt_are_proof_if_all_are_credited() {
    let mut e = episode();
    deliver(&mut e, 500, 50, 2000, None);
    let mut same = e.clone();
    assert!(same.on_d_sack(range(1000, 2000)));
    assert_eq!(same.proof(None, false), None, "A.1: all acknowledgements before it were lost");
    e.on_delivery(&Delivery::new(ms(510), None, None, at(0)));
    assert!(e.on_d_sack(range(1000, 2000)));
    assert_eq!(e.proof(None, false), Some(Proof::DSack));
    assert!(!e.on_d_sack(range(2000, 3000)));
    assert_eq!(e.proof(None, false), None);
}

// RFC 3708 §3 A.3: a D-SACK does not identify which two of three copies arrived.
#[test]
fn d_sack_of_range_resent_twice_is_no_proof() {
    let mut e = episode();
    e.on_resent(ms(55), range(1000, 2000), 3);
    assert!(e.on_d_sack(range(1000, 2000)));
    assert_eq!(e.proof(None, false), None);
}

// An episode is undone once. Later reports are still credited but prove nothing more, and later probes do not belong to
// the episode.
#[test]
fn second_proof_does_not_undo_episode_again() {
    let mut e = episode();
    assert_eq!(e.proof(Some(49), false), Some(Proof::Timestamp));
    e.on_undone(at(10_000));
    e.on_resent(ms(60), range(9000, 10_000), 2);
    assert!(!e.on_d_sack(range(9000, 10_000)));
    assert!(e.on_d_sack(range(1000, 2000)));
    assert_eq!(e.proof(Some(49), false), None);
}

// The memory of an episode is bounded for any fragmentation. An episode that exceeded the bound is not undone by
// D-SACKs.
#[test]
fn fragmented_resends_keep_episode_memory_bounded() {
    let mut e = episode();
    let resend = |e: &mut Episode, n: u64| e.on_resent(ms(51), range(2 * n, 2 * n + 1), 2);
    let owed = |n: u64| range(2 * n, 2 * n + 1);
    let first = 2000;
    for n in first..first + MAX_AWAITING_DSACK as u64 - 1 {
        resend(&mut e, n);
    }
    assert_eq!(e.awaiting_dsack.len(), MAX_AWAITING_DSACK);
    assert!(!e.on_d_sack(range(1100, 1200)), "the removal would add a range beyond the limit");
    assert!(e.on_d_sack(range(1000, 1200)));
    assert!(e.on_d_sack(range(1200, 2000)));
    (first..first + MAX_AWAITING_DSACK as u64 - 1).for_each(|n| assert!(e.on_d_sack(owed(n))));
    assert_eq!(e.proof(None, false), Some(Proof::DSack));
    for n in 0..2 * MAX_AWAITING_DSACK as u64 {
        resend(&mut e, first + n);
    }
    assert_eq!(e.awaiting_dsack.len(), MAX_AWAITING_DSACK);
    (0..2 * MAX_AWAITING_DSACK as u64).for_each(|n| _ = e.on_d_sack(owed(first + n)));
    assert_eq!(e.proof(None, false), None, "some ranges were not recorded");
}
