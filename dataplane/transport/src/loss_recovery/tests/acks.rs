//! Tests of single steps of acknowledgement processing, and of the congestion window after each.

use super::*;

const SEGMENTS: u64 = 10;

/// Returns an acknowledgement of everything below segment `una`.
fn plain_ack(recovery: &LossRecovery, una: u64, sack: bool) -> Ack {
    let now = MS(2000);
    Ack { advanced: una > 0, ..Ack::new(now, at(una), recovery.new_delivery(now, None), sack) }
}

// RFC 8985 §7.4.2: the window is reduced once for a loss repaired by a probe. A recovery in progress has already
// reduced it.
#[test]
fn a_probe_that_repaired_a_loss_reduces_the_window() {
    let repaired = |probed: bool, phase: Phase, una: u64| {
        let (mut recovery, mut state, _) = sent::<false>();
        if probed {
            state.on_probe_sent(at(SEGMENTS), Some(Range { start: at(9), end: at(SEGMENTS) }));
        }
        state.phase = phase;
        let ack = Ack { flight_before: 8 * SMSS, ..plain_ack(&recovery, una, true) };
        let first = recovery.judge_probe(&mut state, &ack);
        let again = recovery.judge_probe(&mut state, &ack);
        (first, again, recovery.cc().cwnd() / SMSS)
    };
    let recovering = Phase::Recovery { point: at(SEGMENTS) };
    assert_eq!(repaired(true, Phase::Open, SEGMENTS + 1), (true, false, 4));
    assert_eq!(repaired(true, recovering, SEGMENTS + 1), (false, false, 10));
    assert_eq!(repaired(true, Phase::Open, SEGMENTS - 1), (false, false, 10), "not answered");
    assert_eq!(repaired(false, Phase::Open, SEGMENTS), (false, false, 10), "no probe");
}

// RFC 6937 §3, RFC 6582 §3.2 (3): a reduction ends with the window at ssthresh. A recovery without SACK may end with
// little in flight. The window is then at most one segment more than the bytes in flight.
#[test]
fn end_of_recovery_without_sack_allows_no_burst() {
    let left = |before: Phase, sack: bool| {
        let (mut recovery, mut state, mut board) = sent::<false>();
        recovery.enter_recovery(&mut state, &board);
        state.allow_resend_beyond_cwnd();
        board.una = 9;
        let ack = plain_ack(&recovery, 9, sack);
        assert!(recovery.exit_phase(&mut state, &board, before, &ack));
        let episode = recovery.episode.as_deref().unwrap();
        assert_eq!((state.phase(), episode.end_point), (Phase::Open, Some(at(SEGMENTS))));
        (recovery.cc().cwnd() / SMSS, state.resend_ignores_cwnd())
    };
    let point = at(9);
    assert_eq!(left(Phase::Recovery { point }, true), (5, false));
    assert_eq!(
        left(Phase::Recovery { point }, false),
        (2, false),
        "the segment in flight, plus one"
    );
    assert_eq!(left(Phase::Reducing { point }, true), (5, true));
    assert_eq!(left(Phase::Reducing { point }, false), (5, true));
    // After a time-out the window is in slow start; the end of recovery does not change it.
    assert_eq!(left(Phase::Loss { point }, true), (5, false));
    assert_eq!(left(Phase::Loss { point }, false), (5, false));
}

// RFC 6675 §5 (A): a phase ends neither before its point nor by an acknowledgement without new data.
#[test]
fn ack_below_recovery_point_keeps_recovery() {
    let (mut recovery, mut state, mut board) = sent::<false>();
    recovery.enter_recovery(&mut state, &board);
    let before = Phase::Recovery { point: at(9) };
    for (una, advanced, over) in [(8, true, false), (9, false, false), (9, true, true)] {
        board.una = una;
        let ack = Ack { advanced, ..plain_ack(&recovery, una, true) };
        assert_eq!(recovery.exit_phase(&mut state, &board, before, &ack), over, "{una} {advanced}");
    }
    let ack = plain_ack(&recovery, 9, true);
    assert!(
        !recovery.exit_phase(&mut state, &board, Phase::Open, &ack),
        "no recovery is in progress"
    );
}

// RFC 9260 §7.2.1, RFC 5681 §3.1, RFC 7661 §4.3: conditions for growth of the window.
#[test]
fn cwnd_grows_only_if_used_or_after_timeout() {
    let growth = |before: Phase, used: bool, advanced: bool| {
        let (mut recovery, mut state, mut board) = sent::<false>();
        if used {
            let config = TestParameters::default();
            recovery.note_usage(&mut state, &board, MS(1000), true, || 10, &config);
        }
        board.una = 5;
        let ack = Ack { advanced, ..plain_ack(&recovery, 5, true) };
        recovery.adjust_window(&state, &board, before, &ack, 0, SMSS)
    };
    let point = at(SEGMENTS);
    assert_eq!(growth(Phase::Open, true, true), Growth::Allowed);
    assert_eq!(growth(Phase::Open, false, true), Growth::AppLimited);
    assert_eq!(growth(Phase::Loss { point }, true, true), Growth::Allowed);
    assert_eq!(growth(Phase::Loss { point }, false, true), Growth::Allowed);
    for before in [Phase::Recovery { point }, Phase::Reducing { point }] {
        assert_eq!(growth(before, true, true), Growth::None, "{before:?} has just ended");
    }
    assert_eq!(growth(Phase::Open, true, false), Growth::None, "nothing new");
}

// RFC 6937 §3, RFC 9937 §6: a reduction releases one segment more than was delivered only if SND.UNA advanced and no
// further loss was found. Without SACK the delivered bytes are unknown, and the window is unchanged.
#[test]
fn prr_reduction_follows_delivered_bytes() {
    let window = |sack: bool, advanced: bool, lost: u64| {
        let (mut recovery, mut state, mut board) = sent::<false>();
        recovery.enter_recovery(&mut state, &board);
        // Of ten segments, one was acknowledged and six are lost. Three are in the network, fewer than ssthresh (five).
        // The first retransmission was sent.
        (board.una, board.lost) = (1, 6);
        recovery.on_sent(SMSS);
        let mut ack = Ack { advanced, ..plain_ack(&recovery, 1, sack) };
        ack.delivery.bytes = SMSS;
        let before = state.phase();
        assert_eq!(recovery.adjust_window(&state, &board, before, &ack, lost, SMSS), Growth::None);
        recovery.cc().cwnd() / SMSS
    };
    assert_eq!(window(true, true, 0), 5);
    assert_eq!(window(true, true, 1), 4);
    assert_eq!(window(true, false, 0), 4);
    assert_eq!(window(false, false, 0), 5, "ssthresh, as at the start of the recovery");
}

// RFC 3465 §2.3: slow start after a time-out counts newly reported data, not all acknowledged data.
#[test]
fn slow_start_after_timeout_counts_newly_reported_bytes() {
    let cwnd = |timeout: bool| {
        let config = TestParameters::default();
        let (mut recovery, mut state, mut board) = sent::<false>();
        recovery.on_timeout(&mut state, &mut board, MS(2000));
        recovery.cc_mut().set_prr_cwnd(2 * SMSS);
        if !timeout {
            state.phase = Phase::Open;
        }
        board.una = 8;
        let mut ack = Ack { acked: 8 * SMSS, ..plain_ack(&recovery, 8, true) };
        ack.delivery.bytes = SMSS;
        recovery.finish_ack(&state, &board, &ack, Growth::Allowed, &config);
        recovery.cc().cwnd() / SMSS
    };
    assert_eq!(cwnd(true), 3, "seven were reported by SACK before");
    assert_eq!(cwnd(false), 4, "at most twice the window");
}

// RFC 3708: an episode is freed once data sent after its end is acknowledged, since no D-SACK about the episode can
// follow.
#[test]
fn episode_is_freed_once_its_end_is_acknowledged() {
    let config = TestParameters::default();
    let (mut recovery, mut state, mut board) = sent::<false>();
    recovery.enter_recovery(&mut state, &board);
    board.una = 9;
    let ack = plain_ack(&recovery, 9, true);
    let finish = |recovery: &mut LossRecovery, state: &FlightState, board: &Board<false>| {
        recovery.finish_ack(state, board, &ack, Growth::None, &config);
        recovery.is_settled()
    };
    assert!(!finish(&mut recovery, &state, &board), "the episode has not ended");
    let before = Phase::Recovery { point: at(8) };
    assert!(recovery.exit_phase(&mut state, &board, before, &ack));
    for (una, settled) in [(9, false), (10, false), (11, true)] {
        board.una = una;
        assert_eq!(finish(&mut recovery, &state, &board), settled, "{una}");
    }
}
