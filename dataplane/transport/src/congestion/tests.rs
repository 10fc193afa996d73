//! Congestion control with numbers from the RFCs.

use base::{Instant, Nanos};

use super::cubic::Cubic;
use super::*;

const SMSS: u64 = 1000;
const RTT: Nanos = Nanos::from_millis(100);

fn congestion(algorithm: CongestionControl) -> Congestion {
    Congestion::new(algorithm, 1 << 30, SMSS as usize, 10)
}

impl Congestion {
    /// Processes an acknowledgement of `acked` bytes while the window limits sending.
    fn on_growth(&mut self, now: Instant, acked: u64, srtt: Nanos) {
        self.on_ack(&ack_sample(now, acked, srtt));
    }
}

fn ack_sample(now: Instant, acked: u64, srtt: Nanos) -> AckSample {
    AckSample { now, acked, marked: 0, srtt, growth: Growth::Allowed, path_sample: None }
}

/// Acknowledges a whole window in segments during one round trip from `now`. Returns the time of its end.
fn round_trip(c: &mut Congestion, now: Instant) -> Instant {
    let segments = c.cwnd() / SMSS;
    for i in 0..segments {
        let at = now + RTT * i / segments;
        c.on_growth(at, SMSS, RTT);
    }
    now + RTT
}

#[test]
fn controllers_are_found_by_their_names() {
    let names = ["cubic", "newreno", "dctcp", "bbr", ""].map(CongestionControl::from_name);
    let all = [CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::Dctcp];
    assert_eq!(names, [Some(all[0]), Some(all[1]), Some(all[2]), None, None]);
    assert_eq!(all.map(CongestionControl::exact_ecn), [false, false, true]);
}

// RFC 6928, RFC 5681 §3.1: the initial window is ten segments, and doubles each round trip.
#[test]
fn slow_start_doubles_from_ten_segments() {
    let mut c = congestion(CongestionControl::NewReno);
    assert_eq!(c.cwnd(), 10 * SMSS);
    let now = round_trip(&mut c, Instant::ZERO);
    assert_eq!(c.cwnd(), 20 * SMSS);
    round_trip(&mut c, now);
    assert_eq!(c.cwnd(), 40 * SMSS);
}

// RFC 9406 §4.2: with pacing, L is infinite, but an acknowledgement at most doubles the window. Without pacing, an
// acknowledgement counts for at most 8 segments.
#[test]
fn single_ack_grows_slow_start_by_bounded_amount() {
    let grown = |paced, segments: u64| {
        let mut c = congestion(CongestionControl::NewReno).with_pacing(paced);
        c.on_growth(Instant::ZERO, segments * SMSS, RTT);
        let first = c.cwnd() / SMSS;
        c.on_timeout(100 * SMSS, None);
        c.on_growth(Instant::ZERO, segments * SMSS, RTT);
        (first, c.cwnd() / SMSS)
    };
    assert_eq!(grown(true, 10), (20, 2));
    assert_eq!(grown(true, 100), (20, 2));
    assert_eq!(grown(false, 8), (18, 9));
    assert_eq!(grown(false, 100), (18, 9));
}

// RFC 5681 §3.1, §3.2: a loss reduces the window to half of the bytes in flight. The window then grows by one segment
// per round trip.
#[test]
fn newreno_halves_and_adds_one_segment_per_round_trip() {
    let mut c = congestion(CongestionControl::NewReno);
    c.on_loss(40 * SMSS);
    assert_eq!((c.cwnd(), c.ssthresh()), (20 * SMSS, 20 * SMSS));
    let mut now = Instant::ZERO;
    for expected in [21, 22, 23] {
        now = round_trip(&mut c, now);
        assert_eq!(c.cwnd(), expected * SMSS);
    }
}

// RFC 5681 §3.1 (4): the threshold is at least two segments.
#[test]
fn loss_with_small_flight_keeps_ssthresh_at_two_segments() {
    for algorithm in [CongestionControl::NewReno, CongestionControl::Cubic] {
        let mut c = congestion(algorithm);
        for _ in 0..20 {
            c.on_loss(SMSS);
        }
        assert_eq!(c.ssthresh(), 2 * SMSS);
    }
}

// RFC 5681 §3.1: the window is one segment after a time-out. Repeated time-outs of the same segment reduce the
// threshold only once.
#[test]
fn a_timeout_restarts_slow_start_and_reduces_the_threshold_once() {
    let mut c = congestion(CongestionControl::NewReno);
    c.on_timeout(40 * SMSS, None);
    assert_eq!((c.cwnd(), c.ssthresh()), (SMSS, 20 * SMSS));
    c.on_timeout(SMSS, Some(Cause::Timeout));
    assert_eq!((c.cwnd(), c.ssthresh()), (SMSS, 20 * SMSS));
}

// RFC 5681 §3.1: slow start does not raise the window above the threshold.
#[test]
fn slow_start_stops_at_the_threshold() {
    let mut c = congestion(CongestionControl::NewReno);
    c.on_loss(40 * SMSS);
    c.on_recovered(13 * SMSS);
    assert_eq!((c.cwnd(), c.ssthresh()), (14 * SMSS, 20 * SMSS));
    c.on_growth(Instant::ZERO, 8 * SMSS, RTT);
    assert_eq!(c.cwnd(), 20 * SMSS);
}

// RFC 4015 §3.4, RFC 9438 §4.9: an undo restores the window and the controller's state, including CUBIC's curve.
#[test]
fn undo_restores_window_and_controller_state() {
    for algorithm in [CongestionControl::NewReno, CongestionControl::Cubic] {
        let mut c = congestion(algorithm);
        c.state.window.cwnd = 500 * SMSS;
        c.on_loss(500 * SMSS);
        c.end_reduction();
        c.on_growth(Instant::from_millis(10), SMSS, RTT);
        let prior = c.save();
        c.on_timeout(300 * SMSS, None);
        c.undo(&prior);
        assert_eq!(format!("{:?}", c.save()), format!("{prior:?}"));
        c.on_timeout(300 * SMSS, None);
        c.state.window.cwnd = 900 * SMSS;
        c.undo(&prior);
        assert_eq!((c.cwnd(), c.ssthresh()), (900 * SMSS, prior.window.ssthresh), "never less");
    }
}

// RFC 2861 §3.2: the window is reduced to halfway between its size and the used part. The threshold rises to three
// quarters of the old window.
#[test]
fn unused_cwnd_is_halved_towards_used_part() {
    let mut c = congestion(CongestionControl::Cubic);
    c.state.window.ssthresh = 20 * SMSS;
    c.state.window.cwnd = 100 * SMSS;
    c.reduce_unused_cwnd(40 * SMSS, 10);
    assert_eq!((c.cwnd(), c.ssthresh()), (70 * SMSS, 75 * SMSS));
    c.reduce_unused_cwnd(70 * SMSS, 10);
    assert_eq!(c.cwnd(), 70 * SMSS);
}

// RFC 5681 §4.1: after idle, the window is at most the restart window.
#[test]
fn idle_restart_uses_initial_window() {
    let mut c = congestion(CongestionControl::Cubic);
    round_trip(&mut c, Instant::ZERO);
    c.restart_after_idle(10);
    assert_eq!(c.cwnd(), 10 * SMSS);
    c.restart_after_idle(20);
    assert_eq!(c.cwnd(), 10 * SMSS, "a restart never grows the window");
}

// RFC 6582 §3.2 (3): the window at the end of recovery permits no burst.
#[test]
fn end_of_recovery_limits_cwnd_to_flight_plus_segment() {
    let mut c = congestion(CongestionControl::NewReno);
    c.on_loss(100 * SMSS);
    c.on_recovered(5 * SMSS);
    assert_eq!(c.cwnd(), 6 * SMSS);
    c.on_loss(100 * SMSS);
    c.on_recovered(80 * SMSS);
    assert_eq!(c.cwnd(), 50 * SMSS);
}

// RFC 9438 §4.6: a loss reduces the window to 0.7 of its size.
#[test]
fn cubic_reduces_to_seven_tenths() {
    let mut c = congestion(CongestionControl::Cubic);
    c.state.window.cwnd = 1000 * SMSS;
    c.on_loss(1000 * SMSS);
    assert_eq!((c.cwnd(), c.ssthresh()), (700 * SMSS, 700 * SMSS));
}

// RFC 9438 §4.2, Eq. 1 and 2: the curve is concave up to W_max, reaches it at K, and is convex beyond.
#[test]
fn cubic_reaches_the_old_window_after_k_and_goes_beyond() {
    let mut c = congestion(CongestionControl::Cubic);
    c.state.window.cwnd = 1000 * SMSS;
    c.on_loss(1000 * SMSS);
    let k = (1000.0f64 * 0.3 / 0.4).cbrt(); // K in seconds: 9.09
    let mut now = Instant::ZERO;
    let mut sizes = Vec::new();
    while now.as_millis() < (2.2 * k * 1000.0) as u64 {
        sizes.push((now.as_millis() as f64 / 1000.0, c.cwnd() as f64 / SMSS as f64));
        now = round_trip(&mut c, now);
    }
    for (t, w) in sizes {
        let expected = 0.4 * (t - k).powi(3) + 1000.0;
        assert!((w - expected).abs() < 0.02 * expected, "at {t}: {w}, expected {expected}");
    }
}

// RFC 9438 §4.7: a congestion event below the last plateau (W_max) lowers the next plateau. RFC 8312 §4.6 compared with
// the window at the last event instead.
#[test]
fn cubic_converges_fast() {
    let plateau = |events: &[u64]| {
        let mut cubic = Cubic::default();
        for &segments in events {
            let window = Window::new(SMSS as usize, segments as u32, 1 << 30);
            cubic.reduce(&window, Cause::Loss, 0);
        }
        cubic.w_max()
    };
    assert_eq!(plateau(&[1000]), 1000.0);
    assert_eq!(plateau(&[1000, 800]), 680.0, "800 * 1.7 / 2");
    assert_eq!(plateau(&[1000, 800, 900]), 900.0, "grown beyond the plateau");
    assert_eq!(plateau(&[1000, 800, 700]), 700.0, "grown beyond the plateau, though less than 800");
    assert_eq!(plateau(&[1000, 800, 600]), 510.0);
}

// RFC 9438 §4.6: W_max is kept while nothing is in flight.
#[test]
fn cubic_keeps_its_plateau_while_it_is_idle() {
    let mut cubic = Cubic::default();
    cubic.reduce(&Window::new(SMSS as usize, 1000, 1 << 30), Cause::Loss, 0);
    Controller::release(&mut cubic);
    assert_eq!(cubic.w_max(), 1000.0);
    let marked = [CongestionControl::Cubic, CongestionControl::NewReno]
        .map(|it| congestion(it).marked_fraction());
    assert_eq!(marked, [None, None], "only DCTCP keeps an estimate");
}

// RFC 9438 §4.1: W_max is in segments. When the segment size changes, W_max is rescaled to the same number of bytes.
#[test]
fn cubic_keeps_its_plateau_across_segment_sizes() {
    let mut c = congestion(CongestionControl::Cubic);
    c.state.window.cwnd = 1000 * SMSS;
    c.on_loss(1000 * SMSS);
    let mut small = congestion(CongestionControl::Cubic);
    small.set_smss(500);
    small.state.window.cwnd = 1000 * SMSS;
    small.on_loss(1000 * SMSS);
    c.set_smss(500);
    assert_eq!(format!("{:?}", c.state.algorithm), format!("{:?}", small.state.algorithm));
    // An undo restores the earlier W_max, in segments of the present size.
    let prior = c.save();
    c.set_smss(1000);
    c.undo(&prior);
    assert_eq!(c.state.window.smss(), 1000);
    let Algorithm::Cubic(cubic) = &c.state.algorithm else { panic!("CUBIC") };
    assert_eq!(cubic.w_max(), 1000.0);
}

// RFC 9438 §4.2, §5.8: time in which the window was not the limit neither moves nor flattens the curve.
#[test]
fn cubic_epoch_resumes_after_app_limited_pause() {
    let grown = |pause: u64| {
        let mut c = congestion(CongestionControl::Cubic);
        c.state.window.cwnd = 1000 * SMSS;
        c.on_loss(1000 * SMSS);
        let mut now = Instant::ZERO;
        for _ in 0..130 {
            now = round_trip(&mut c, now);
        }
        c.on_app_limited();
        now = now + RTT * (10 * pause);
        for _ in 0..10 {
            now = round_trip(&mut c, now);
        }
        c.cwnd() / SMSS
    };
    let (through, after) = (grown(0), grown(20));
    assert!(through.abs_diff(after) <= 3, "{through}, {after}");
    assert!(after > 1040, "beyond the plateau: {after}");
}

// After a reduction of an unused window (RFC 2861), the curve starts at the reduced window.
#[test]
fn cubic_restarts_epoch_after_unused_cwnd_reduction() {
    let mut c = congestion(CongestionControl::Cubic);
    c.state.window.cwnd = 1000 * SMSS;
    c.on_loss(1000 * SMSS);
    let now = round_trip(&mut c, Instant::ZERO);
    c.reduce_unused_cwnd(0, 10);
    c.state.window.ssthresh = 0;
    let before = c.cwnd();
    round_trip(&mut c, now);
    let grown = (c.cwnd() - before) / SMSS;
    assert!(grown < 30, "{grown} segments in a round trip");
}

// RFC 9438 §4.3: on short paths CUBIC is at least as fast as standard TCP with the same decrease.
#[test]
fn cubic_on_short_path_is_as_fast_as_reno() {
    let mut c = congestion(CongestionControl::Cubic);
    c.state.window.cwnd = 20 * SMSS;
    c.on_loss(20 * SMSS);
    let rtt = Nanos::from_millis(1);
    let mut now = Instant::ZERO;
    for _ in 0..20 {
        for _ in 0..c.cwnd() / SMSS {
            c.on_growth(now, SMSS, rtt);
        }
        now = now + rtt;
    }
    // The loss leaves 14 segments. 11 round trips at 0.529 segments lead to 20, and 8 more at 1 segment to 28.
    assert!(c.cwnd() >= 26 * SMSS && c.cwnd() <= 29 * SMSS, "{}", c.cwnd());
}

// RFC 9438 §4.8: after a time-out the curve starts flat at the current window.
#[test]
fn cubic_after_timeout_starts_flat_at_current_cwnd() {
    let mut c = congestion(CongestionControl::Cubic);
    c.state.window.cwnd = 1000 * SMSS;
    c.on_timeout(1000 * SMSS, None);
    assert_eq!(c.ssthresh(), 700 * SMSS);
    c.state.window.cwnd = 700 * SMSS;
    c.on_growth(Instant::ZERO, SMSS, RTT);
    let before = c.cwnd();
    round_trip(&mut c, Instant::ZERO);
    let growth = c.cwnd() - before;
    assert!(growth < 2 * SMSS, "flat: {growth}");
}

#[test]
fn cwnd_growth_stops_at_send_window() {
    let mut c = Congestion::new(CongestionControl::Cubic, 50 * SMSS, SMSS as usize, 10);
    let mut now = Instant::ZERO;
    for _ in 0..10 {
        now = round_trip(&mut c, now);
    }
    assert_eq!(c.cwnd(), 50 * SMSS);
}

// RFC 5682 §2.1 step 3a: the new segments of F-RTO's test fill the window. The window is raised so that a
// retransmission fits as well, but to at most three segments.
#[test]
fn genuine_timeout_leaves_cwnd_room_for_retransmission() {
    let mut c = congestion(CongestionControl::NewReno);
    c.on_timeout(10 * SMSS, None);
    assert_eq!(c.cwnd(), SMSS);
    c.on_genuine_timeout(2 * SMSS);
    assert_eq!(c.cwnd(), 3 * SMSS);
    c.on_genuine_timeout(7 * SMSS);
    assert_eq!(c.cwnd(), 3 * SMSS, "no growth for other segments in flight");
    c.on_genuine_timeout(0);
    assert_eq!(c.cwnd(), 3 * SMSS, "no reduction either");
}

// RFC 9260 §7.2.1: the window is halved for each time-out without data, not below four segments. The threshold rises to
// three quarters of the old window.
#[test]
fn cwnd_decays_per_timeout_without_transmission() {
    let mut c = congestion(CongestionControl::Cubic);
    for _ in 0..10 {
        c.on_growth(Instant::ZERO, 8 * SMSS, RTT);
    }
    let before = c.cwnd();
    c.decay(1, 4);
    assert_eq!(c.cwnd(), before / 2);
    assert!(c.in_slow_start() && c.ssthresh() >= before / 4 * 3);
    c.decay(100, 4);
    assert_eq!(c.cwnd(), 4 * SMSS);
}

// RFC 9260 §7.2.3: the threshold is at least four segments.
#[test]
fn configured_floor_limits_ssthresh() {
    let mut c = congestion(CongestionControl::NewReno).with_floor(4);
    c.on_loss(SMSS);
    assert_eq!((c.ssthresh(), c.cwnd()), (4 * SMSS, 4 * SMSS));
}

// RFC 9406 §4.2: when round trips have grown for long enough, slow start ends at the current window.
#[test]
fn growing_round_trips_end_slow_start_at_the_window() {
    let mut c = congestion(CongestionControl::Cubic);
    let at = |n: u64| ExtSeq::initial(crate::seq::SeqNumber(0)).plus(n * SMSS);
    let mut rounds = 0;
    while c.ssthresh() == u64::MAX {
        rounds += 1;
        assert!(rounds < 20);
        let rtt = Nanos::from_millis(if rounds < 3 { 40 } else { 60 });
        for i in 0..10 {
            c.on_round_trip(rtt, at(rounds).plus(i), at(rounds + 1));
        }
    }
    assert_eq!(
        (rounds, c.ssthresh()),
        (8, c.cwnd()),
        "five rounds after the first that was longer"
    );
    c.on_round_trip(RTT, at(30), at(31));
    assert_eq!(c.ssthresh(), c.cwnd(), "once");
}
