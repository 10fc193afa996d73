//! Automatic growth of receive windows (dynamic right-sizing, Fisk and Feng 2001), for TCP and SCTP.
//!
//! A peer that may have a window in flight delivers at most a window in each round trip. While it delivers more than
//! half of it, the window may be its limit, and doubles. In slow start, the window thus grows as fast as the congestion
//! window and remains twice as large. Only data accepted in order counts as delivered; refused data does not.
//!
//! The round trip is the shortest one measured: a queue on the path makes it longer, and a window that
//! followed it would fill the queue further.

use base::{Instant, Nanos};

/// Minimum duration of a measurement, in ticks, so that its ends are known well enough: a quarter of a
/// millisecond.
const MIN_TICKS: u64 = 4;

/// Binary logarithm of a tick in nanoseconds: 65.5 µs.
pub(crate) const TICK_SHIFT: u32 = 16;

/// The degree to which a window is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowUsage {
    /// No round trip is over yet: judge again later.
    Early,
    /// The peer uses at most half of the window in each round trip.
    Ample,
    /// The peer uses more than half of the window in each round trip: the window may limit it.
    Tight,
}

/// Returns `at` in ticks, which wrap after 78 hours.
#[inline]
pub fn ticks(at: Instant) -> u32 {
    (at.as_nanos() >> TICK_SHIFT) as u32
}

/// Judges a `window` of which `delivered` bytes arrived in order within `ticks` of this module ([`ticks`]).
/// `rtt`: the shortest round-trip time.
pub fn judge_usage(delivered: u64, window: u64, ticks: u32, rtt: Nanos) -> WindowUsage {
    let (ticks, rtt) = (u64::from(ticks), rtt.get());
    // The first tick may have been nearly over when counting began.
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

    // On round trips shorter than a tick, the rate decides.
    #[test]
    fn low_rate_on_short_path_is_ample() {
        let short = Nanos::new(40_000);
        // 10 Gbit/s are 50 kB in 40 µs.
        assert_eq!(judge_usage(1_250_000, WINDOW, 15, short), WindowUsage::Ample);
        // A window in each round trip.
        assert_eq!(judge_usage(WINDOW * 1_000_000 / 40_000, WINDOW, 15, short), WindowUsage::Tight);
        assert_eq!(judge_usage(WINDOW, WINDOW, 3, short), WindowUsage::Early);
    }
}
