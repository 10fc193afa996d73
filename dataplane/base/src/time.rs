//! Monotonic time for protocol code, which does not read a clock. The worker passes `now` to protocol code; tests pass
//! virtual time.
//!
//! [`Instant`] is a point, [`Nanos`] a span. Code that runs per packet computes with [`Nanos`]; configuration and
//! timers use [`Duration`]. Sums saturate at the last point or the longest span, differences at zero.

use core::fmt;
use core::ops::{Add, AddAssign, Div, Mul, Sub};
use core::time::Duration;

/// Point in monotonic time: nanoseconds since an arbitrary origin. The range is 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// Origin of the time scale: 0 ns.
    pub const ZERO: Instant = Instant(0);

    /// Returns the point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Returns the point `micros` microseconds after the origin. The time must be below 2^64 ns.
    pub const fn from_micros(micros: u64) -> Self {
        Instant(micros * 1_000)
    }

    /// Returns the point `millis` milliseconds after the origin. The time must be below 2^64 ns.
    pub const fn from_millis(millis: u64) -> Self {
        Instant(millis * 1_000_000)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time from `earlier` to `self` as [`saturating_since`](Self::saturating_since) does, without
    /// the division of a [`Duration`].
    #[inline]
    pub const fn nanos_since(self, earlier: Instant) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// An `Option<Instant>` in eight bytes: the last representable [`Instant`] means none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MaybeInstant(u64);

impl MaybeInstant {
    /// No point in time.
    pub const NONE: MaybeInstant = MaybeInstant(u64::MAX);

    /// Returns the point, if any.
    pub const fn get(self) -> Option<Instant> {
        if self.0 == u64::MAX { None } else { Some(Instant(self.0)) }
    }

    /// Returns the earlier of two points. Any point is earlier than [`NONE`](Self::NONE).
    #[inline]
    #[must_use]
    pub fn earlier(self, other: impl Into<MaybeInstant>) -> MaybeInstant {
        MaybeInstant(self.0.min(other.into().0))
    }
}

impl Default for MaybeInstant {
    fn default() -> Self {
        MaybeInstant::NONE
    }
}

impl From<Option<Instant>> for MaybeInstant {
    fn from(at: Option<Instant>) -> Self {
        at.map_or(MaybeInstant::NONE, |at| MaybeInstant(at.0))
    }
}

impl fmt::Debug for MaybeInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A span of time in nanoseconds, at most 584 years, for code that runs per packet. A [`Duration`] stores seconds and
/// nanoseconds separately, so each conversion and product costs a division.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(u64);

impl Nanos {
    /// A span of zero.
    pub const ZERO: Nanos = Nanos(0);

    /// Returns `nanos` nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Nanos(nanos)
    }

    /// Returns `micros` microseconds. The time must be below 2^64 ns.
    pub const fn from_micros(micros: u64) -> Self {
        Nanos(micros * 1_000)
    }

    /// Returns `millis` milliseconds. The time must be below 2^64 ns.
    pub const fn from_millis(millis: u64) -> Self {
        Nanos(millis * 1_000_000)
    }

    /// Returns the span in nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the span in seconds, as [`Duration::as_secs_f64`] does.
    pub fn as_secs_f64(self) -> f64 {
        Duration::from_nanos(self.0).as_secs_f64()
    }

    /// Returns the sum, at most the longest span.
    #[must_use]
    pub const fn saturating_add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }

    /// Returns the product, at most the longest span.
    #[must_use]
    pub const fn saturating_mul(self, by: u64) -> Nanos {
        Nanos(self.0.saturating_mul(by))
    }
}

impl From<Duration> for Nanos {
    #[inline]
    fn from(time: Duration) -> Self {
        Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    #[inline]
    fn from(time: Nanos) -> Self {
        Duration::from_nanos(time.0)
    }
}

impl Mul<Nanos> for u64 {
    type Output = Nanos;
    fn mul(self, time: Nanos) -> Nanos {
        time.saturating_mul(self)
    }
}

impl Mul<u64> for Nanos {
    type Output = Nanos;
    fn mul(self, by: u64) -> Nanos {
        self.saturating_mul(by)
    }
}

impl Div<u64> for Nanos {
    type Output = Nanos;
    fn div(self, by: u64) -> Nanos {
        Nanos(self.0 / by)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from(*self).fmt(f)
    }
}

impl Add<Nanos> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, time: Nanos) -> Instant {
        Instant(self.0.saturating_add(time.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_of_optional_instants_ignores_none() {
        let at = |millis: u64| Some(Instant::from_millis(millis));
        for (a, b, first) in
            [(None, None, None), (at(7), None, at(7)), (None, at(0), at(0)), (at(7), at(5), at(5))]
        {
            let earlier = MaybeInstant::from(a).earlier(b);
            assert_eq!((earlier, earlier.get()), (first.into(), first));
        }
    }
}
