//! Pacing spreads the segments of a congestion window over a round trip instead of sending them at once. The rate is a
//! little more than the window per round trip, in slow start twice the window. A burst lasts about a tenth of a
//! millisecond, so an overflowing queue drops few consecutive segments of a flow. If the pacing timer expires late, the
//! queue on the path has drained meanwhile. The flow then sends the overdue data at once, at most the data of one round
//! trip.
//!
//! If many streams share the port and the path is short, bursts are longer: the short round trip repairs losses soon,
//! and the worker serves each stream once per burst. If few streams share the port, a burst is at most an eighth of the
//! window. With longer bursts, the stream would lose its share of a full queue to flows that send with each
//! acknowledgement.

use base::{Instant, Nanos};

/// Round-trip time below which flows are not paced, because the timers of a worker are too coarse.
pub const MIN_RTT: Nanos = Nanos::from_micros(500);
/// Increase of the shortest round-trip time that halves the extra length of a burst ([`extra_burst`]).
const SHORT_PATH_STEP: Nanos = Nanos::from_micros(200);
/// Congestion window, in segments, up to which flows are not paced.
const MIN_SEGMENTS: u64 = 10;
/// Duration of a burst at the paced rate.
const BURST_TIME: Nanos = Nanos::from_micros(100);
/// Longest pause after which a flow keeps its schedule and so catches up. Waits for the pacing timer are not pauses.
/// After a longer pause, the schedule restarts at the current time.
const MAX_IDLE_CREDIT: Nanos = Nanos::from_millis(1);
/// Longest burst, bytes.
const MAX_BURST: u64 = 64 * 1024;
/// Divisor of the congestion window for the maximum burst, unless many streams share the port.
const BURST_WINDOW_DIVISOR: u64 = 8;
/// Shortest burst, segments.
const MIN_BURST_SEGMENTS: u64 = 1;

/// Pacing state of one flow: the time at which the next burst may be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacer {
    next_at: Instant,
    /// Bytes sent of the present burst.
    sent: u32,
    /// True if the flow waits for `next_at`, or has waited for `next_at` and has not caught up yet.
    catching_up: bool,
}

/// Properties of the path that determine the pace. Round-trip times are `None` before the first measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacedPath {
    /// Smoothed round-trip time (SRTT, RFC 6298 §2).
    pub srtt: Option<Nanos>,
    /// Shortest round-trip time of the last 1 to 2 minutes.
    pub min_rtt: Option<Nanos>,
    /// True if many streams share the port.
    pub shared: bool,
}

/// Rate and burst of a paced flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Bytes per second.
    pub rate: u64,
    /// Longest burst, bytes.
    pub burst: u64,
    /// Longest delay of the pacing timer for which a flow catches up: SRTT.
    pub max_lateness: Nanos,
}

impl Pace {
    /// Returns the pace for a window of `cwnd` bytes in segments of `smss` bytes. The rate is twice the window per
    /// round trip in slow start, 1.2 times afterwards. `None` if the flow is not paced: the window has at most ten
    /// segments, or the round trip is below [`MIN_RTT`] or not measured yet.
    pub fn new(cwnd: u64, smss: u64, path: PacedPath, slow_start: bool) -> Option<Pace> {
        let PacedPath { srtt, min_rtt, shared } = path;
        let srtt = srtt.filter(|srtt| *srtt >= MIN_RTT)?;
        if cwnd <= MIN_SEGMENTS * smss {
            return None;
        }
        let window = if slow_start { 2 * cwnd } else { cwnd + cwnd / 5 };
        let rate = bytes_per_second(window, srtt).max(1);
        let burst = rate / (1_000_000_000 / BURST_TIME.get());
        let burst = match shared {
            true => (burst + extra_burst(min_rtt.unwrap_or(srtt))).min(MAX_BURST),
            false => burst.min(MAX_BURST).min(cwnd / BURST_WINDOW_DIVISOR),
        };
        Some(Pace { rate, burst: burst.max(MIN_BURST_SEGMENTS * smss), max_lateness: srtt })
    }
}

/// Returns the extra bytes of a burst if many streams share the port: [`MAX_BURST`], halved for each
/// [`SHORT_PATH_STEP`] of the shortest round-trip time.
fn extra_burst(min_rtt: Nanos) -> u64 {
    let distance = u32::try_from(min_rtt.get() / SHORT_PATH_STEP.get());
    distance.ok().and_then(|far| MAX_BURST.checked_shr(far)).unwrap_or(0)
}

/// Returns the rate of `bytes` in `time`, bytes per second.
fn bytes_per_second(bytes: u64, time: Nanos) -> u64 {
    let nanos = time.get().max(1);
    match bytes.checked_mul(1_000_000_000) {
        Some(product) => product / nanos,
        None => bytes / nanos * 1_000_000_000,
    }
}

impl Pacer {
    /// Creates the state of a flow whose first burst may be sent at once.
    pub const fn new() -> Self {
        Pacer { next_at: Instant::ZERO, sent: 0, catching_up: false }
    }

    /// Returns when the next burst may be sent; `None` if it may be sent now.
    pub fn next_burst_at(&self, now: Instant) -> Option<Instant> {
        (self.next_at > now).then_some(self.next_at)
    }

    /// Records that sending pauses until the timer for [`Pacer::next_burst_at`] expires.
    pub fn on_wait(&mut self) {
        self.catching_up = true;
    }

    /// Records that sending pauses for a reason other than pacing. After the pause, the flow catches up only if the
    /// pause was shorter than [`MAX_IDLE_CREDIT`].
    pub fn on_pause(&mut self) {
        self.catching_up = false;
    }

    /// Records that `bytes` were sent at `pace`.
    pub fn on_sent(&mut self, now: Instant, bytes: u64, pace: Pace) {
        self.sent = self.sent.saturating_add(bytes as u32);
        let sent = u64::from(self.sent);
        if sent < pace.burst {
            return;
        }
        let spacing = Nanos::new(sent.saturating_mul(1_000_000_000) / pace.rate);
        // Data delayed by a late timer is sent at once. After any other pause of at least `MAX_IDLE_CREDIT`, the
        // schedule restarts at the current time.
        let late = if self.catching_up { pace.max_lateness } else { MAX_IDLE_CREDIT };
        let base = if self.next_at + late > now {
            self.next_at
        } else if self.catching_up {
            Instant::from_nanos(now.as_nanos().saturating_sub(late.get()))
        } else {
            now
        };
        self.next_at = base + spacing;
        self.sent = 0;
        self.catching_up &= self.next_at <= now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);
    const SMOOTHED: PacedPath =
        PacedPath { srtt: Some(Nanos::from_millis(10)), min_rtt: None, shared: false };

    #[test]
    fn short_paths_and_small_windows_are_not_paced() {
        let far = |srtt| PacedPath { srtt: Some(srtt), min_rtt: Some(srtt), shared: false };
        assert_eq!(Pace::new(100_000, 1000, PacedPath::default(), true), None);
        assert_eq!(Pace::new(100_000, 1000, far(MS / 5), true), None);
        assert_eq!(Pace::new(10_000, 1000, far(10 * MS), true), None);
        let pace = Pace::new(100_000, 1000, far(10 * MS), true).unwrap();
        assert_eq!(pace, Pace { rate: 20_000_000, burst: 2000, max_lateness: 10 * MS });
        let pace = Pace::new(100_000, 1000, far(100 * MS), false).unwrap();
        assert_eq!(pace, Pace { rate: 1_200_000, burst: 1000, max_lateness: 100 * MS });
        let pace = Pace::new(100_000_000, 1000, far(10 * MS), false).unwrap();
        assert_eq!(pace.burst, MAX_BURST);
    }

    #[test]
    fn shared_port_on_short_path_lengthens_bursts() {
        let burst = |min_rtt| {
            let path = PacedPath { srtt: Some(10 * MS), min_rtt, shared: true };
            Pace::new(100_000, 1000, path, false).unwrap().burst
        };
        assert_eq!(burst(None), 1200);
        assert_eq!(burst(Some(10 * MS)), 1200);
        assert_eq!(burst(Some(MS / 10)), MAX_BURST);
        assert_eq!(burst(Some(MS)), 1200 + MAX_BURST / 32);
    }

    #[test]
    fn unshared_burst_is_at_most_an_eighth_of_cwnd() {
        let burst = |cwnd, srtt, min_rtt| {
            let path = PacedPath { srtt: Some(srtt), min_rtt: Some(min_rtt), shared: false };
            Pace::new(cwnd, 1000, path, false).unwrap().burst
        };
        assert_eq!(burst(80_000, MS / 2, MS / 10), 10_000);
        assert_eq!(burst(12_000, MS / 2, MS / 10), 1500);
        assert_eq!(burst(1_000_000, MS / 2, MS / 10), MAX_BURST);
        assert_eq!(burst(80_000, 10 * MS, 10 * MS), 1000, "by time");
        assert_eq!(
            burst(80_000, 10 * MS, MS / 10),
            1000,
            "min_rtt is far below srtt: still limited by time"
        );
    }

    /// A flow with a late timer sends the delayed data at once, at most the data of one round trip.
    #[test]
    fn late_timer_is_caught_up_by_at_most_a_round_trip() {
        let pace = Pace::new(100_000, 1000, SMOOTHED, false).unwrap(); // 12 MB/s
        for (late, least, most) in [(2 * MS, 24, 27), (8 * MS, 96, 99), (500 * MS, 120, 123)] {
            let mut pacer = Pacer::new();
            let mut now = Instant::from_millis(1000);
            let burst = |pacer: &mut Pacer, now| {
                let mut segments = 0;
                while pacer.next_burst_at(now).is_none() {
                    pacer.on_sent(now, 1000, pace);
                    segments += 1;
                }
                segments
            };
            burst(&mut pacer, now);
            for _ in 0..5 {
                pacer.on_wait();
                now = pacer.next_burst_at(now).unwrap() + late;
                let segments = burst(&mut pacer, now);
                assert!((least..=most).contains(&segments), "{late:?}: {segments}");
            }
        }
    }

    /// Timers that are less than [`MAX_IDLE_CREDIT`] late do not lower the average rate.
    #[test]
    fn late_timers_keep_average_pacing_rate() {
        let pace = Pace::new(100_000, 1000, SMOOTHED, false).unwrap(); // 12 MB/s, bursts of 1200 bytes
        for late in [Nanos::ZERO, MS / 3, MS * 9 / 10] {
            let mut pacer = Pacer::new();
            let start = Instant::from_millis(1000);
            let (mut now, mut sent) = (start, 0u64);
            while sent < 1_200_000 {
                match pacer.next_burst_at(now) {
                    Some(at) => now = at + late,
                    None => {
                        pacer.on_sent(now, 1000, pace);
                        sent += 1000;
                    }
                }
            }
            let took = now.nanos_since(start);
            assert!(took.get().abs_diff(100_000_000) < 3_000_000, "{late:?}: {took:?}");
        }
    }

    #[test]
    fn idle_time_earns_no_pacing_credit() {
        let pace = Pace::new(100_000, 1000, SMOOTHED, false).unwrap();
        let mut pacer = Pacer::new();
        for waited in [false, true] {
            if waited {
                pacer.on_wait();
                pacer.on_pause();
            }
            let now = Instant::from_millis(if waited { 9000 } else { 5000 });
            let mut burst = 0;
            while pacer.next_burst_at(now).is_none() {
                pacer.on_sent(now, 1000, pace);
                burst += 1;
            }
            assert!(burst <= 24, "{waited}: {burst}");
        }
    }

    #[test]
    fn bytes_per_second_does_not_overflow() {
        assert_eq!(bytes_per_second(1000, MS), 1_000_000);
        assert_eq!(bytes_per_second(3 << 60, Nanos::new(1 << 30)), (3 << 30) * 1_000_000_000);
    }
}
