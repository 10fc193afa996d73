//! CUBIC (RFC 8312). Windows in segments and times in seconds, as in the text.

use base::{Blank, Instant, Lazy};

use super::controller::{Acked, Cause, Controller};
use super::window::Window;

/// C (RFC 8312 §5.1).
const C: f64 = 0.4;
/// beta_cubic (RFC 8312 §4.5).
const BETA: f64 = 0.7;
/// Growth per round trip of a standard TCP with CUBIC's decrease (RFC 8312 §4.2).
const ALPHA_AIMD: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// State between congestion events; blank before the first one and outside of congestion avoidance.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic(Lazy<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// W_max; zero before the first loss and after a time-out.
    w_max: f64,
    /// W_last_max (§4.6).
    w_last_max: f64,
    epoch: Option<Epoch>,
    /// Part of a byte not yet given to the window.
    carry: f64,
}

/// The present congestion avoidance.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// Window at its start.
    cwnd: f64,
    /// Where the cubic has its plateau, and when.
    origin: f64,
    k: f64,
}

impl Blank for State {
    fn blank() -> &'static Self {
        static BLANK: State = State { w_max: 0.0, w_last_max: 0.0, epoch: None, carry: 0.0 };
        &BLANK
    }
}

impl Controller for Cubic {
    /// RFC 8312 §4.1 to §4.4.
    fn increase(&mut self, window: &Window, ack: &Acked) -> u64 {
        let smss = window.smss() as f64;
        let cwnd = window.cwnd as f64 / smss;
        let State { w_max, w_last_max, epoch, carry } = &mut *self.0;
        let epoch = *epoch.get_or_insert_with(|| Epoch::start(ack.now, cwnd, *w_max));
        let rtt = ack.srtt.as_secs_f64().max(1e-6);
        let t = ack.now.nanos_since(epoch.start).as_secs_f64();
        let friendly = friendly(epoch.cwnd, *w_last_max, t / rtt);
        let segments = ack.acked as f64 / smss;
        let grow = if epoch.at(t) < friendly {
            (friendly - cwnd).max(0.0).min(segments) // §4.2; never faster than slow start
        } else {
            // §4.3, §4.4; the target is bounded as RFC 9438 §4.2 does, half the window per round trip.
            let target = epoch.at(t + rtt).clamp(cwnd, 1.5 * cwnd);
            (target - cwnd) / cwnd * segments
        };
        let bytes = grow * smss + *carry;
        *carry = bytes.fract();
        bytes as u64
    }

    /// RFC 8312 §4.5, §4.6.
    fn reduce(&mut self, window: &Window, _cause: Cause, _flight: u64) -> u64 {
        let segments = window.cwnd as f64 / window.smss() as f64;
        let state = &mut *self.0;
        state.epoch = None;
        state.w_max = if segments < state.w_last_max {
            segments * (1.0 + BETA) / 2.0 // fast convergence
        } else {
            segments
        };
        state.w_last_max = segments;
        (window.cwnd as f64 * BETA) as u64
    }

    /// RFC 8312 §4.7: the next congestion avoidance starts its cubic at the window it has then.
    fn on_timeout(&mut self) {
        if let Some(state) = self.0.get_mut() {
            state.epoch = None;
            state.w_max = 0.0;
        }
    }

    /// Time does not count while the window is not what limits.
    fn on_limited_by_source(&mut self) {
        if let Some(state) = self.0.get_mut() {
            state.epoch = None;
        }
    }

    fn release(&mut self) {
        self.on_limited_by_source();
        if self.0.w_last_max == 0.0 {
            self.0.release();
        }
    }
}

/// The window of a standard TCP with CUBIC's decrease, `rounds` round trips after it was `cwnd` (RFC 8312
/// §4.2, Eq. 4). From `prior` on, the window before the decrease, it grows by a whole segment per round trip
/// (RFC 9438 §4.3).
fn friendly(cwnd: f64, prior: f64, rounds: f64) -> f64 {
    let until_prior = ((prior - cwnd) / ALPHA_AIMD).max(0.0);
    if rounds <= until_prior {
        return cwnd + ALPHA_AIMD * rounds;
    }
    cwnd + ALPHA_AIMD * until_prior + (rounds - until_prior)
}

impl Epoch {
    fn start(now: Instant, cwnd: f64, w_max: f64) -> Epoch {
        if cwnd >= w_max {
            return Epoch { start: now, cwnd, origin: cwnd, k: 0.0 };
        }
        // Eq. 2, where the window is W_max * beta: W_max * (1 - beta) is W_max less the window.
        Epoch { start: now, cwnd, origin: w_max, k: ((w_max - cwnd) / C).cbrt() }
    }

    /// W_cubic(t) (Eq. 1).
    fn at(&self, t: f64) -> f64 {
        C * (t - self.k).powi(3) + self.origin
    }
}
