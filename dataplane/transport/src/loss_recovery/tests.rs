//! Loss episodes over a scoreboard of ten segments. The test selects the segments that the next
//! search finds lost.

use base::Instant;

use super::*;
use crate::congestion::{CongestionControl, Growth};
use crate::delivery::{AckKind, Transmission};
use crate::parameters::TestParameters;
use crate::rack::LossCriterion;
use crate::recovery::Phase;
use crate::seq::{ExtSeq, SeqNumber};

mod acks;

const SMSS: u64 = 1000;
const MS: fn(u64) -> Instant = Instant::from_millis;

fn at(n: u64) -> ExtSeq {
    ExtSeq::initial(SeqNumber(0)).plus(n * SMSS)
}

/// Scoreboard with the segments from `una` to 9 in flight. `IGNORES_CWND`: the first retransmission ignores the
/// congestion window, as in SCTP (true) but not in TCP (false).
struct Board<const IGNORES_CWND: bool> {
    una: u64,
    /// Segments that the next search finds lost.
    to_lose: u64,
    lost: u64,
    reneged: bool,
}

impl<const IGNORES_CWND: bool> Scoreboard for Board<IGNORES_CWND> {
    const FIRST_RESEND_IGNORES_CWND: bool = IGNORES_CWND;

    fn is_empty(&self) -> bool {
        self.una == 10
    }
    fn una(&self) -> ExtSeq {
        at(self.una)
    }
    fn nxt(&self) -> ExtSeq {
        at(10)
    }
    fn flight(&self) -> u64 {
        (10 - self.una) * SMSS
    }
    fn pipe(&self) -> u64 {
        self.flight() - self.lost * SMSS
    }
    fn segs_sacked(&self) -> u64 {
        0
    }
    fn resent_in_flight(&self) -> bool {
        false
    }
    fn head_sacked(&self) -> bool {
        self.reneged
    }
    fn detect_losses(
        &mut self,
        _: LossCriterion,
        mut lost: impl FnMut(u64, Instant),
    ) -> DetectedLosses {
        let segments = core::mem::take(&mut self.to_lose);
        (0..segments).for_each(|_| lost(SMSS, MS(1000)));
        self.lost += segments;
        DetectedLosses { segments, congestion_segments: segments, next_search_at: None }
    }
    fn mark_lost_on_timeout(&mut self, _: LossCriterion) {
        self.lost = 10 - self.una;
    }
    fn clear_losses(&mut self) {
        self.lost = 0;
    }
    fn clear_sacks(&mut self) {
        self.reneged = false;
    }
}

/// Returns the state with ten segments in flight, which fill the congestion window.
fn sent<const IGNORES_CWND: bool>() -> (LossRecovery, FlightState, Board<IGNORES_CWND>) {
    let cc = Congestion::new(CongestionControl::NewReno, 1 << 20, SMSS as usize, 10);
    let board = Board { una: 0, to_lose: 0, lost: 0, reneged: false };
    (LossRecovery::new(cc, &TestParameters::default()), FlightState::new(), board)
}

// RFC 3465 §2.3: data that left the network before a time-out does not count for growth after it.
#[test]
fn after_timeout_only_newly_sacked_bytes_count() {
    let counted = |sack, paced, delivered: u64| {
        let (mut recovery, ..) = sent::<false>();
        let cc = Congestion::new(CongestionControl::NewReno, 1 << 20, SMSS as usize, 10);
        recovery.restart(cc.with_pacing(paced));
        let mut delivery = recovery.new_delivery(MS(2000), None);
        delivery.bytes = delivered * SMSS;
        let ack = Ack { acked: 8 * SMSS, ..Ack::new(MS(2000), at(8), delivery, sack) };
        recovery.growth_bytes_after_timeout(&ack) / SMSS
    };
    assert_eq!(counted(true, true, 3), 3, "five were reported by SACK before");
    assert_eq!(counted(true, true, 9), 8, "one was reported by SACK only now");
    assert_eq!(counted(false, true, 8), 1, "without SACK they cannot be told apart");
    assert_eq!(counted(true, false, 8), 1, "without pacing it would be a burst");
}

/// Processes an acknowledgement of everything below segment `una` at time `now`. Each segment was sent once, at 1 s.
/// Returns the proof if an episode was undone.
fn ack<const IGNORES_CWND: bool>(
    recovery: &mut LossRecovery,
    state: &mut FlightState,
    board: &mut Board<IGNORES_CWND>,
    (una, now): (u64, Instant),
) -> Option<UndoProof> {
    let config = TestParameters::default();
    let (before, flight, advanced) = (state.phase(), board.flight(), una > board.una);
    let mut delivery = recovery.new_delivery(now, None);
    for n in board.una..una {
        let sent = Transmission { at: MS(1000), end: at(n + 1) };
        delivery.bytes += SMSS;
        delivery.add_segment(sent, false, AckKind::CumulativeAck);
    }
    board.una = una;
    board.lost = board.lost.min(10 - una);
    recovery.on_delivery(now, &delivery);
    let ack = Ack {
        advanced,
        flight_before: flight,
        acked: flight - board.flight(),
        ..Ack::new(now, at(una), delivery, true)
    };
    recovery.measure(state, &ack, board.una(), board.nxt(), SMSS, &config);
    recovery.judge_probe(state, &ack);
    recovery.exit_phase(state, board, before, &ack);
    let undone = recovery.undo_if_spurious(state, board, &ack);
    let mut growth = Growth::None;
    if undone.is_none() {
        let lost = recovery.find_losses(state, board, now, &config).segments;
        growth = recovery.adjust_window(state, board, before, &ack, lost, SMSS);
    }
    recovery.finish_ack(state, board, &ack, growth, &config);
    undone
}

// RFC 6675 §5, RFC 6937: recovery lasts from the first loss until all data then in flight is acknowledged. The window
// is then half of that data.
#[test]
fn recovery_halves_cwnd_and_ends_at_recovery_point() {
    let (mut recovery, mut state, mut board) = sent::<false>();
    board.to_lose = 1;
    ack(&mut recovery, &mut state, &mut board, (1, MS(1100)));
    assert_eq!(state.phase(), Phase::Recovery { point: at(10) });
    assert_eq!(recovery.cc().ssthresh(), 4500);
    assert!(!recovery.is_settled() && !state.resend_ignores_cwnd());
    ack(&mut recovery, &mut state, &mut board, (9, MS(1200)));
    assert!(state.phase().is_recovering());
    ack(&mut recovery, &mut state, &mut board, (10, MS(1201)));
    assert_eq!((state.phase(), recovery.cc().cwnd()), (Phase::Open, 4500));
}

// RFC 9260 §7.2.4 (3)
#[test]
fn the_first_retransmission_of_sctp_ignores_the_window() {
    let (mut recovery, mut state, mut board) = sent::<true>();
    board.to_lose = 1;
    ack(&mut recovery, &mut state, &mut board, (1, MS(1100)));
    assert!(state.resend_ignores_cwnd());
    state.on_resend();
    assert!(!state.resend_ignores_cwnd());
}

// RFC 5682 §3.1 step 3b: an acknowledgement of data sent once, before the time-out, proves the time-out spurious.
#[test]
fn a_spurious_timeout_is_undone() {
    let (mut recovery, mut state, mut board) = sent::<false>();
    assert!(!recovery.on_timeout(&mut state, &mut board, MS(2000)));
    assert_eq!((recovery.cc().cwnd(), recovery.consecutive_timeouts()), (SMSS, 1));
    assert_eq!((state.phase(), board.lost), (Phase::Loss { point: at(10) }, 10));
    let undone = ack(&mut recovery, &mut state, &mut board, (1, MS(2001)));
    assert_eq!((undone, state.phase()), (Some(UndoProof::Frto), Phase::Open));
    assert_eq!((recovery.cc().cwnd(), board.lost), (10 * SMSS, 0));
}

// RFC 2018 §8: a SACKed oldest segment at a time-out means reneging. RFC 5681 §3.1 (4): ssthresh is reduced once for
// the same segment.
#[test]
fn second_timeout_keeps_ssthresh_and_reports_reneging() {
    let (mut recovery, mut state, mut board) = sent::<false>();
    recovery.on_timeout(&mut state, &mut board, MS(2000));
    assert_eq!(recovery.cc().ssthresh(), 5 * SMSS);
    board.reneged = true;
    assert!(recovery.on_timeout(&mut state, &mut board, MS(4000)));
    assert_eq!((recovery.cc().ssthresh(), board.reneged), (5 * SMSS, false));
    assert_eq!(recovery.rtt().rto(&TestParameters::default()), base::Nanos::from_millis(4000));
}

// RFC 3168 §6.1.2: marks reduce the window once per window of data; a loss in the same window does not reduce again.
#[test]
fn loss_after_marks_does_not_reduce_again() {
    let (mut recovery, mut state, mut board) = sent::<false>();
    assert!(recovery.on_marks(&mut state, &board));
    assert!(!recovery.on_marks(&mut state, &board));
    assert_eq!(recovery.cc().ssthresh(), 5 * SMSS);
    board.to_lose = 1;
    ack(&mut recovery, &mut state, &mut board, (1, MS(1100)));
    assert!(state.phase().is_recovering());
    assert_eq!(recovery.cc().ssthresh(), 5 * SMSS);
}

// RFC 8985 §6.2 step 4, §7.4.2; RFC 3708 §3 A: a D-SACK is explained by a retransmission or a probe of the reported
// range, if the range has arrived.
#[test]
fn d_sack_is_explained_by_resend_or_probe() {
    let (mut recovery, mut state, mut board) = sent::<false>();
    let first = Range { start: at(0), end: at(1) };
    let d_sack = |recovery: &mut LossRecovery, state: &FlightState, range, arrived| {
        recovery.on_d_sack(state, range, arrived, at(1), at(10))
    };
    assert!(d_sack(&mut recovery, &state, first, true).is_unexplained());
    assert!(!recovery.on_timeout(&mut state, &mut board, MS(2000)));
    recovery.on_resent(MS(2000), first, 2);
    let last = Range { start: at(9), end: at(10) };
    state.on_probe_sent(at(10), Some(last));
    assert!(d_sack(&mut recovery, &state, first, false).is_unexplained());
    let explained = |resent, probe| DsackOrigin { resent, probe };
    assert_eq!(d_sack(&mut recovery, &state, last, true), explained(false, true));
    assert_eq!(d_sack(&mut recovery, &state, first, true), explained(true, false));
}

// RFC 5682 §2.1 step 2b: two new segments are sent; afterwards nothing is sent until an acknowledgement arrives.
#[test]
fn f_rto_sends_two_new_segments_then_waits() {
    let (mut recovery, mut state, mut board) = sent::<false>();
    assert!(!recovery.on_timeout(&mut state, &mut board, MS(2000)));
    let episode = recovery.episode.as_deref_mut().unwrap();
    (episode.frto, episode.frto_new_left) = (Frto::NewData, frto::NEW_SEGMENTS);
    let left = [(); 4].map(|()| {
        let left = recovery.frto_new_left();
        recovery.on_new_sent();
        left
    });
    assert_eq!(left, [Some(2), Some(1), Some(0), Some(0)]);
}
