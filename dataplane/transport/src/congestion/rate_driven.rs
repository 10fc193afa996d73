//! For tests only: a controller that sets only a pacing rate. The controller sends at the highest delivery rate of the
//! last round trips, in the manner of BBR. It sends faster until the rate stops growing, slower until the resulting
//! queue is drained, then slightly faster and slower in alternation. Losses, marks and time-outs do not change the
//! rate, and the window is the whole send window.
//!
//! The controller shows that the interface supports rate-based control. It is not BBR: it does not keep the queue short
//! in competition with other flows.

use base::{Instant, Nanos};

use super::controller::{AckSample, Controller};
use super::rate::{Run, Sampler};
use super::window::Window;
use crate::pacing::{Pace, PacedPath};

/// Round trips over which the highest rate is taken.
const ROUNDS: usize = 10;
/// Round-trip time assumed before the first measurement.
const FIRST_RTT: Nanos = Nanos::from_millis(1);
/// Startup gain that doubles the rate each round trip (2 / ln 2), percent, and its inverse, which drains the queue.
const STARTUP_GAIN: u64 = 289;
const DRAIN_GAIN: u64 = 35;
/// Gains after startup and drain, one per round trip in a cycle, percent.
const GAIN_CYCLE: [u64; 8] = [125, 75, 100, 100, 100, 100, 100, 100];
/// Maximum burst, bytes, and duration of a burst.
const MAX_BURST: u64 = 64 * 1024;
const BURST: Nanos = Nanos::from_micros(100);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    /// Lasts until the rate has not grown by a quarter for three rounds.
    #[default]
    Startup,
    Drain,
    /// Index into [`GAIN_CYCLE`].
    Cycle(usize),
}

/// The state is boxed, so that the type takes eight bytes per stream like the other controllers.
#[derive(Clone, Debug, Default)]
pub(super) struct RateDriven(Box<State>);

#[derive(Clone, Debug, Default)]
struct State {
    sampler: Sampler,
    phase: Phase,
    /// The highest rate of each of the last rounds, bytes per second; the current round first.
    rates: [u64; ROUNDS],
    /// Value of a sample's `prior_delivered`, bytes, at which the round ends.
    round_end: u64,
    delivered: u64,
    /// Highest rate when it last grew by at least a quarter, bytes per second, and the number of rounds since.
    full_rate: u64,
    full_rounds: u8,
    min_rtt: Option<Nanos>,
    sent_at: Option<Instant>,
}

impl State {
    /// Returns the estimated rate of the path, bytes per second.
    fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    fn gain(&self) -> u64 {
        match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Cycle(place) => GAIN_CYCLE[place],
        }
    }

    /// Returns the bandwidth-delay product: bytes in flight that fill the path without a queue.
    fn bdp(&self) -> u64 {
        let rtt = u128::from(self.min_rtt.unwrap_or(FIRST_RTT).get());
        u64::try_from(u128::from(self.rate()) * rtt / 1_000_000_000).unwrap_or(u64::MAX)
    }

    fn next_round(&mut self) {
        if self.rate() >= self.full_rate + self.full_rate / 4 {
            (self.full_rate, self.full_rounds) = (self.rate(), 0);
        } else {
            self.full_rounds = self.full_rounds.saturating_add(1);
        }
        self.phase = match self.phase {
            Phase::Startup if self.full_rounds >= 3 => Phase::Drain,
            Phase::Cycle(place) => Phase::Cycle((place + 1) % GAIN_CYCLE.len()),
            phase => phase,
        };
        self.rates.rotate_right(1);
        self.rates[0] = 0;
    }
}

impl Controller for RateDriven {
    const NEEDS_SAMPLES: bool = true;
    const LOSS_BASED: bool = false;

    fn sampler(&mut self) -> Option<&mut Sampler> {
        Some(&mut self.0.sampler)
    }

    fn on_sent(&mut self, _window: &mut Window, run: &Run) {
        self.0.sent_at = Some(run.sent_at);
    }

    fn on_ack(&mut self, window: &mut Window, ack: &AckSample) {
        let Some(measured) = ack.path_sample else { return };
        let state = &mut *self.0;
        state.min_rtt = measured.min_rtt;
        state.delivered += measured.delivered;
        let Some(sample) = measured.rate else { return };
        window.cwnd = window.send_window.into();
        if !sample.app_limited || sample.rate() > state.rate() {
            state.rates[0] = state.rates[0].max(sample.rate());
        }
        if sample.prior_delivered >= state.round_end {
            state.round_end = state.delivered;
            state.next_round();
        }
        if state.phase == Phase::Drain && measured.in_flight <= state.bdp() {
            state.phase = Phase::Cycle(0);
        }
    }

    /// Keeps the measurements: a spurious loss episode does not affect them.
    fn undo(&mut self, _prior: &Self) {}

    fn pace(&self, window: &Window, smss: u64, PacedPath { srtt, .. }: PacedPath) -> Option<Pace> {
        let rate = match self.0.rate() {
            0 => {
                let trip = srtt.unwrap_or(FIRST_RTT).get().max(1);
                window.cwnd * 1_000_000_000 / trip
            }
            rate => rate,
        };
        let rate = (rate.saturating_mul(self.0.gain()) / 100).max(smss);
        let burst = rate / (1_000_000_000 / BURST.get());
        let late = srtt.unwrap_or(FIRST_RTT);
        Some(Pace { rate, burst: burst.clamp(smss, MAX_BURST), max_lateness: late })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Congestion, CongestionControl, Growth, PathSample};
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;
    const SMSS: u64 = 1000;

    /// Returns a congestion state after 100 runs of 10 kB, one per millisecond. Each run is acknowledged ten
    /// milliseconds later: 10 MB/s.
    fn congestion_with_samples() -> Congestion {
        let mut c = Congestion::new(CongestionControl::RateDriven, 1 << 20, SMSS as usize, 10);
        assert!(c.needs_samples());
        for ms in 0..100u64 {
            let in_flight = 10_000 * ms.min(10);
            c.on_sent(&Run {
                sent_at: MS(1000 + ms),
                bytes: 10_000,
                in_flight,
                app_limited: false,
            });
            if ms >= 10 {
                let measured = PathSample {
                    delivered: 10_000,
                    newest: Some(MS(990 + ms)),
                    rtt: Some(Nanos::from_millis(10)),
                    min_rtt: Some(Nanos::from_millis(10)),
                    in_flight: 100_000,
                    rate: None,
                };
                c.on_ack(&AckSample {
                    now: MS(1000 + ms),
                    acked: 10_000,
                    marked: 0,
                    srtt: Nanos::from_millis(10),
                    growth: Growth::AppLimited,
                    path_sample: Some(measured),
                });
            }
        }
        c
    }

    #[test]
    fn rate_driven_controller_paces_at_delivery_rate() {
        let pace = congestion_with_samples().pace(SMSS, PacedPath::default()).unwrap();
        let gains = GAIN_CYCLE.map(|gain| 10_000_000 * gain / 100);
        assert!(gains.contains(&pace.rate), "{pace:?}");
        assert_eq!(pace.burst, pace.rate / 10_000);
    }

    #[test]
    fn losses_and_timeouts_keep_rate_driven_window() {
        let mut c = congestion_with_samples();
        assert_eq!(c.cwnd(), 1 << 20);
        c.on_loss(100_000);
        c.on_marks(100_000);
        c.set_prr_cwnd(1000);
        c.end_reduction();
        c.on_recovered(0);
        c.on_timeout(100_000, None);
        c.restart_after_idle(10);
        c.decay(10, 4);
        c.reduce_unused_cwnd(1000, 10);
        assert_eq!(c.cwnd(), 1 << 20);
        let prior = c.save();
        c.undo(&prior);
        assert_eq!(c.cwnd(), 1 << 20);
    }
}
