//! CUBIC (RFC 9438). Windows are in segments and times in seconds, as in the RFC.
//!
//! A congestion event reduces the congestion window in proportion to its size, not to the bytes in flight (§4.6). An
//! unused window does not grow, and is reduced (RFC 7661, RFC 2861).

use base::{Blank, Instant, Lazy};

use super::controller::{AckSample, Cause, Controller};
use super::window::Window;

/// The constant C of the cubic function (RFC 9438 §4.1.1, §5.1).
const C: f64 = 0.4;
/// beta_cubic (RFC 9438 §4.6).
const BETA: f64 = 0.7;
/// alpha_cubic: growth per round trip of Reno with CUBIC's decrease (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// State kept across congestion events. Not allocated until the first congestion event or the start of congestion
/// avoidance, whichever comes first.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic(Lazy<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// W_max: the plateau. Zero before the first congestion event or congestion avoidance, and after a time-out
    /// until the next congestion event or congestion avoidance.
    w_max: f64,
    /// cwnd_prior: the window before the last decrease; zero before the first decrease.
    cwnd_prior: f64,
    /// The current period; `None` from a congestion event until the window grows in congestion
    /// avoidance.
    epoch: Option<Epoch>,
    /// Fraction of a byte not yet added to the window.
    carry: f64,
}

/// The current period of congestion avoidance.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// t_epoch, delayed by the time in which the window was not the limit (§4.2, §5.8).
    start: Instant,
    /// K: time from `start` until the curve reaches W_max (§4.2).
    k: f64,
    /// W_est: estimate of the window that Reno would have (§4.3), segments.
    w_est: f64,
    /// The window at the last acknowledgement, segments, and the time of that acknowledgement.
    cwnd: f64,
    last_ack_at: Instant,
    /// True if the congestion window has not limited sending since `last_ack_at`.
    paused: bool,
}

impl Blank for State {
    fn blank() -> &'static Self {
        static BLANK: State = State { w_max: 0.0, cwnd_prior: 0.0, epoch: None, carry: 0.0 };
        &BLANK
    }
}

impl Controller for Cubic {
    /// Returns the growth by RFC 9438 §4.2 to §4.5.
    fn increase(&mut self, window: &Window, ack: &AckSample) -> u64 {
        let smss = window.smss() as f64;
        let cwnd = window.cwnd as f64 / smss;
        let State { w_max, cwnd_prior: prior, epoch, carry } = &mut *self.0;
        if !epoch.as_mut().is_some_and(|epoch| epoch.advance(ack.now, cwnd)) {
            *epoch = Some(Epoch::start(ack.now, cwnd, w_max));
        }
        let Some(epoch) = epoch else { return 0 };
        let segments = ack.acked as f64 / smss;
        let part = segments / cwnd;
        epoch.w_est += part * if epoch.w_est < *prior { ALPHA } else { 1.0 };
        let t = ack.now.nanos_since(epoch.start).as_secs_f64();
        let grow = if epoch.w_cubic(t, *w_max) < epoch.w_est {
            (epoch.w_est - cwnd).max(0.0).min(segments) // §4.3; never faster than slow start
        } else {
            // §4.2, §4.4, §4.5: at most half the window per round trip.
            let target = epoch.w_cubic(t + ack.srtt.as_secs_f64(), *w_max).clamp(cwnd, 1.5 * cwnd);
            (target - cwnd) * part
        };
        let bytes = grow * smss + *carry;
        *carry = bytes.fract();
        bytes as u64
    }

    /// Returns the threshold by RFC 9438 §4.6, with fast convergence (§4.7).
    fn reduce(&mut self, window: &Window, _cause: Cause, _flight: u64) -> u64 {
        let segments = window.cwnd as f64 / window.smss() as f64;
        let state = &mut *self.0;
        state.epoch = None;
        state.w_max = if segments < state.w_max {
            segments * (1.0 + BETA) / 2.0 // fast convergence
        } else {
            segments
        };
        state.cwnd_prior = segments;
        (window.cwnd as f64 * BETA) as u64
    }

    /// Clears W_max (RFC 9438 §4.8): the plateau of the next congestion avoidance is then the window at its start.
    fn on_timeout(&mut self) {
        if let Some(state) = self.0.get_mut() {
            state.epoch = None;
            state.w_max = 0.0;
        }
    }

    /// Pauses the curve (RFC 9438 §4.2, §5.8): time in which the congestion window is not the limit does not count.
    fn on_app_limited(&mut self) {
        if let Some(State { epoch: Some(epoch), .. }) = self.0.get_mut() {
            epoch.paused = true;
        }
    }

    /// Rescales past windows, which are in segments (RFC 9438 §4.1), to the same number of bytes. Ends the epoch.
    fn on_segment_size(&mut self, before: u64, after: u64) {
        if let Some(state) = self.0.get_mut() {
            let scale = before as f64 / after as f64;
            state.w_max *= scale;
            state.cwnd_prior *= scale;
            state.epoch = None;
        }
    }

    fn release(&mut self) {
        self.on_app_limited();
        if self.0.cwnd_prior == 0.0 {
            self.0.release();
        }
    }
}

impl Epoch {
    /// Starts at a window of `cwnd` segments. A window at or above W_max becomes W_max, where the curve is
    /// flat (RFC 9438 §4.8, §4.10).
    fn start(now: Instant, cwnd: f64, w_max: &mut f64) -> Epoch {
        *w_max = w_max.max(cwnd);
        // RFC 9438 §4.2, Eq. 2
        let k = ((*w_max - cwnd) / C).cbrt();
        Epoch { start: now, k, w_est: cwnd, cwnd, last_ack_at: now, paused: false }
    }

    /// Processes an acknowledgement at a window of `cwnd` segments. Returns false if a cause other than congestion has
    /// reduced the window. The caller then starts a new epoch.
    fn advance(&mut self, now: Instant, cwnd: f64) -> bool {
        if self.paused {
            self.paused = false;
            self.start = self.start + now.nanos_since(self.last_ack_at);
        }
        self.last_ack_at = now;
        let reduced = cwnd < self.cwnd;
        self.cwnd = cwnd;
        !reduced
    }

    /// Returns W_cubic(t) in segments (RFC 9438 §4.2, Eq. 1).
    fn w_cubic(&self, t: f64, w_max: f64) -> f64 {
        C * (t - self.k).powi(3) + w_max
    }
}

#[cfg(test)]
impl Cubic {
    /// Returns W_max in segments.
    pub(super) fn w_max(&self) -> f64 {
        self.0.w_max
    }
}
