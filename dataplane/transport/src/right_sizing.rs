//! Automatic growth of receive windows (dynamic right-sizing, Fisk and Feng 2001), for TCP and SCTP.
//!
//! A peer may have one receive window in flight, so it delivers at most a window in each round trip. If it delivers
//! more than half of the window, the window may limit the peer, and is doubled. During the peer's slow start, the
//! window thus grows as fast as the congestion window and remains twice as large. Only data accepted in order counts as
//! delivered; refused data does not.
//!
//! The round-trip time is the shortest measured. Queueing on the path raises the current round-trip time, and a window
//! sized by that time would lengthen the queue.

use base::{Instant, Nanos};

/// Minimum duration of a measurement, in ticks: about a quarter of a millisecond. In a shorter measurement, the error
/// of a tick at each end would be too large.
const MIN_TICKS: u64 = 4;

/// Binary logarithm of a tick's length in nanoseconds. A tick is 65.5 µs.
pub(crate) const TICK_SHIFT: u32 = 16;

/// The degree to which a window is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowUsage {
    /// The measurement is shorter than a round trip: judge again later.
    Early,
    /// The peer uses at most half of the window in each round trip.
    Ample,
    /// The peer uses more than half of the window in each round trip: the window may limit the
    /// peer.
    Tight,
}

/// Returns `at` in ticks, which wrap after 78 hours.
#[inline]
pub fn ticks(at: Instant) -> u32 {
    (at.as_nanos() >> TICK_SHIFT) as u32
}

/// Judges the use of a receive window of `window` bytes. `delivered`: bytes that arrived in order during the
/// measurement. `ticks`: duration of the measurement, in units of [`ticks`]. `rtt`: the shortest round-trip time.
pub fn judge_usage(delivered: u64, window: u64, ticks: u32, rtt: Nanos) -> WindowUsage {
    let (ticks, rtt) = (u64::from(ticks), rtt.get());
    // Two ticks are added: `rtt` is rounded down, and the first tick may have been nearly over at the start.
    if ticks < ((rtt >> TICK_SHIFT) + 2).max(MIN_TICKS) {
        return WindowUsage::Early;
    }
    let elapsed = u128::from(ticks + 1) << TICK_SHIFT;
    let in_a_round_trip = u128::from(delivered) * u128::from(rtt);
    match 2 * in_a_round_trip > u128::from(window) * elapsed {
        true => WindowUsage::Tight,
        false => WindowUsage::Ample,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 4 << 20;

    fn usage_for(delivered: u64, ms: u32, rtt_ms: u64) -> WindowUsage {
        judge_usage(
            delivered,
            WINDOW,
            ticks(Instant::from_millis(ms.into())),
            Nanos::from_millis(rtt_ms),
        )
    }

    #[test]
    fn more_than_half_a_window_per_rtt_is_tight() {
        assert_eq!(usage_for(WINDOW, 10, 10), WindowUsage::Early);
        assert_eq!(usage_for(WINDOW, 11, 10), WindowUsage::Tight);
        assert_eq!(usage_for(WINDOW / 2, 11, 10), WindowUsage::Ample);
        assert_eq!(usage_for(WINDOW / 2, 10_000, 10), WindowUsage::Ample);
        assert_eq!(usage_for(10 * WINDOW, 110, 10), WindowUsage::Tight);
        assert_eq!(usage_for(5 * WINDOW, 110, 10), WindowUsage::Ample);
    }

    // With a round trip shorter than a tick, the delivery rate over several ticks decides.
    #[test]
    fn low_rate_on_short_path_is_ample() {
        let short = Nanos::new(40_000);
        // 10 Gbit/s is 50 kB in a round trip of 40 µs, far below half of the 4 MiB window.
        assert_eq!(judge_usage(1_250_000, WINDOW, 15, short), WindowUsage::Ample);
        // A whole window in each round trip.
        assert_eq!(judge_usage(WINDOW * 1_000_000 / 40_000, WINDOW, 15, short), WindowUsage::Tight);
        assert_eq!(judge_usage(WINDOW, WINDOW, 3, short), WindowUsage::Early);
    }
}
