//! DCTCP (RFC 8257), the sender: the window is reduced by half the fraction of bytes that met congestion.
//! Growth and the reaction to loss are Reno's (§3.4, §3.5). TCP's `ecn` module implements the receiver.
//!
//! The window is reduced at the first echo in a window of data, with the estimate at that time. It is not reduced again
//! within that window (§3.3 step 9; RFC 3168 §6.1.2), as in Linux.

use base::{Blank, Lazy};

use super::controller::{AckSample, Cause, Controller, EcnEcho};
use super::newreno::NewReno;
use super::window::Window;
use crate::seq::ExtSeq;

/// Fixed-point 1.0 of DCTCP.Alpha, the scaling factor SCF (RFC 8257 §4.2).
const ONE: u32 = 1 << 16;
/// The shift factor SHF: an estimation gain g of 1/16 (RFC 8257 §4.2).
const GAIN_SHIFT: u32 = 4;

/// The congestion estimator, and Reno for growth and loss.
#[derive(Clone, Debug, Default)]
pub(super) struct Dctcp(Lazy<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    estimate: Estimate,
    reno: NewReno,
}

/// The congestion estimator (RFC 8257 §3.3).
#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// DCTCP.Alpha, in parts of [`ONE`].
    alpha: u32,
    /// DCTCP.WindowEnd.
    window_end: ExtSeq,
    /// DCTCP.BytesAcked and DCTCP.BytesMarked.
    acked: u64,
    marked: u64,
}

impl Blank for State {
    fn blank() -> &'static Self {
        // RFC 8257 §3.3: Alpha is initialized to 1 and WindowEnd to SND.UNA. `ExtSeq::NONE` is equivalent:
        // every acknowledgement of new data is above it.
        static BLANK: State = State {
            estimate: Estimate { alpha: ONE, window_end: ExtSeq::NONE, acked: 0, marked: 0 },
            reno: NewReno::new(),
        };
        &BLANK
    }
}

impl Controller for Dctcp {
    const EXACT_ECN: bool = true;
    const MILD_ECN_RESPONSE: bool = true;

    fn increase(&mut self, window: &Window, ack: &AckSample) -> u64 {
        self.0.reno.increase(window, ack)
    }

    fn reduce(&mut self, window: &Window, cause: Cause, flight: u64) -> u64 {
        match cause {
            // RFC 8257 §3.3 step 9: cwnd * (1 - Alpha / 2)
            Cause::Marks => {
                let part = u128::from(window.cwnd) * u128::from(self.0.estimate.alpha);
                window.cwnd - (part / u128::from(2 * ONE)) as u64
            }
            // RFC 8257 §3.5: the reaction to a loss is the same as in a conventional TCP.
            Cause::Loss | Cause::Timeout => self.0.reno.reduce(window, cause, flight),
        }
    }

    /// Counts acknowledged and marked bytes, and updates the estimate once per window (RFC 8257 §3.3 steps 1 to 8).
    fn on_echo(&mut self, echo: &EcnEcho) {
        let estimate = &mut self.0.estimate;
        estimate.acked += echo.acked;
        estimate.marked += if echo.marked { echo.acked } else { 0 };
        if echo.ack > estimate.window_end {
            estimate.update();
            estimate.window_end = echo.nxt;
            (estimate.acked, estimate.marked) = (0, 0);
        }
    }

    /// Keeps the estimate: a spurious recovery carries no information about marks.
    fn undo(&mut self, prior: &Self) {
        self.0.reno = prior.0.reno;
    }

    fn marked_fraction(&self) -> Option<f64> {
        Some(f64::from(self.0.estimate.alpha) / f64::from(ONE))
    }
}

impl Estimate {
    /// Updates Alpha at the end of an observation window (RFC 8257 §4.2). Alpha can reach zero and never
    /// exceeds one.
    fn update(&mut self) {
        let marked = u128::from(ONE) * u128::from(self.marked) / u128::from(self.acked.max(1));
        if self.alpha >> GAIN_SHIFT == 0 {
            self.alpha = 0;
        }
        let gained = (marked as u32 >> GAIN_SHIFT) + self.alpha;
        self.alpha = (gained - (self.alpha >> GAIN_SHIFT)).min(ONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{Congestion, CongestionControl};
    use crate::seq::SeqNumber;

    const SMSS: u64 = 1000;

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    /// Acknowledges a window of ten segments, with one acknowledgement per segment, and ECE set in the first
    /// `marked` acknowledgements. SND.NXT stays ten segments ahead.
    fn window(dctcp: &mut impl FnMut(&EcnEcho), n: u64, marked: u64) {
        for i in 1..=10 {
            let acked = n * 10 * SMSS + i * SMSS;
            let (ack, nxt) = (at(acked), at(acked + 10 * SMSS));
            dctcp(&EcnEcho { ack, nxt, acked: SMSS, marked: i <= marked });
        }
    }

    fn alpha(dctcp: &Dctcp) -> f64 {
        dctcp.marked_fraction().unwrap()
    }

    // RFC 8257 §3.3: Alpha starts at one and converges to the marked fraction.
    #[test]
    fn alpha_converges_to_the_marked_fraction() {
        let mut dctcp = Dctcp::default();
        assert_eq!(alpha(&dctcp), 1.0);
        for marked in [3, 10, 0, 7] {
            let start = dctcp.0.estimate.window_end.since(at(0)) / (10 * SMSS) + 1;
            for n in start..start + 200 {
                window(&mut |echo| dctcp.on_echo(echo), n, marked);
            }
            let expected = marked as f64 / 10.0;
            assert!((alpha(&dctcp) - expected).abs() < 0.01, "{marked}: {}", alpha(&dctcp));
        }
    }

    // RFC 8257 §3.3 steps 4 to 8: one update per window of data, by a sixteenth.
    #[test]
    fn alpha_moves_once_per_window_by_the_gain() {
        let mut dctcp = Dctcp::default();
        let mut values = vec![alpha(&dctcp)];
        for n in 0..4 {
            for i in 1..=10 {
                let acked = n * 10 * SMSS + i * SMSS;
                let nxt = at((n + 2) * 10 * SMSS);
                dctcp.on_echo(&EcnEcho { ack: at(acked), nxt, acked: SMSS, marked: false });
                if *values.last().unwrap() != alpha(&dctcp) {
                    values.push(alpha(&dctcp));
                }
            }
        }
        // Initial value and two updates. The first acknowledgement ends the initial window and sets WindowEnd to
        // SND.NXT. The first acknowledgement above WindowEnd ends the second window.
        assert_eq!(values.len(), 1 + 1 + 1, "{values:?}");
        for pair in values.windows(2) {
            assert!((pair[1] - pair[0] * 15.0 / 16.0).abs() < 0.001, "{values:?}");
        }
    }

    // RFC 8257 §4.2: Alpha reaches zero and does not exceed one.
    #[test]
    fn alpha_reaches_zero_and_is_clamped() {
        let mut dctcp = Dctcp::default();
        for n in 0..400 {
            window(&mut |echo| dctcp.on_echo(echo), n, 0);
        }
        assert_eq!(dctcp.0.estimate.alpha, 0);
        for n in 400..1200 {
            window(&mut |echo| dctcp.on_echo(echo), n, 10);
            assert!(dctcp.0.estimate.alpha <= ONE);
        }
        assert!(alpha(&dctcp) > 0.99);
    }

    fn congestion() -> Congestion {
        Congestion::new(CongestionControl::Dctcp, 1 << 30, SMSS as usize, 100)
    }

    // RFC 8257 §3.3 step 9: reduction by half of Alpha; Alpha is 1 before the first measurement.
    #[test]
    fn marks_reduce_by_half_of_alpha() {
        let mut c = congestion();
        c.on_marks(100 * SMSS);
        assert_eq!((c.cwnd(), c.ssthresh()), (50 * SMSS, 50 * SMSS));
        let mut c = congestion();
        for n in 0..200 {
            window(&mut |echo| c.on_echo(echo), n, 2);
        }
        c.on_marks(100 * SMSS);
        let expected = 100.0 * SMSS as f64 * (1.0 - 0.2 / 2.0);
        assert!((c.cwnd() as f64 - expected).abs() < SMSS as f64, "{}", c.cwnd());
    }

    // RFC 8257 §3.5: a loss reduces the window as in a conventional TCP, even if marks have already reduced it a
    // little. A time-out reduces the window to one segment.
    #[test]
    fn loss_halves_cwnd_regardless_of_alpha() {
        let mut c = congestion();
        for n in 0..400 {
            window(&mut |echo| c.on_echo(echo), n, 0);
        }
        c.on_loss(100 * SMSS);
        assert_eq!((c.cwnd(), c.ssthresh()), (50 * SMSS, 50 * SMSS));
        c.on_marks(50 * SMSS);
        assert_eq!(c.cwnd(), 50 * SMSS, "nothing was marked");
        c.on_loss_after_marks(40 * SMSS);
        assert_eq!(c.ssthresh(), 20 * SMSS);
        c.on_timeout(20 * SMSS, Some(Cause::Marks));
        assert_eq!((c.cwnd(), c.ssthresh()), (SMSS, 10 * SMSS));
        c.on_timeout(SMSS, Some(Cause::Timeout));
        assert_eq!((c.cwnd(), c.ssthresh()), (SMSS, 10 * SMSS));
    }

    // RFC 8257 §4.1: neither a recovery nor the undo of a spurious recovery resets Alpha.
    #[test]
    fn undone_episode_keeps_dctcp_alpha() {
        let mut c = congestion();
        let prior = c.save();
        c.on_loss(100 * SMSS);
        for n in 0..200 {
            window(&mut |echo| c.on_echo(echo), n, 0);
        }
        c.undo(&prior);
        assert_eq!(c.cwnd(), 100 * SMSS);
        assert!(c.marked_fraction().unwrap() < 0.01);
    }
}
