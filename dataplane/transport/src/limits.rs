//! Reasons for which a sender stops transmitting ([`Limit`]), the time under each limit, and the delivery rate in that
//! time. Reports about streams show these values to explain slow streams.

use core::num::NonZeroU32;

use base::{Instant, Nanos};

use crate::right_sizing::{TICK_SHIFT as FINE, ticks as fine_ticks};

/// Minimum interval of a delivery-rate measurement: 10 ms, in fine ticks of 2^16 ns.
const MIN_MEASURE_TICKS: u32 = 10_000_000 >> FINE;

/// The reason for which a sender last stopped transmitting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Limit {
    /// The application has no more data to send.
    #[default]
    Application,
    /// The peer's receive window is full.
    PeerWindow,
    /// The configured send window is full.
    SendWindow,
    /// The congestion window is full.
    CongestionWindow,
    /// Pacing delays the next burst.
    Pacing,
    /// The port accepted no more packets, or other streams were served first.
    Port,
    /// The peer does not answer: at least one retransmission or probe has timed out since its last answer.
    Path,
}

impl Limit {
    /// All limits, in order of their discriminants.
    pub const ALL: [Limit; 7] = [
        Limit::Application,
        Limit::PeerWindow,
        Limit::SendWindow,
        Limit::CongestionWindow,
        Limit::Pacing,
        Limit::Port,
        Limit::Path,
    ];

    /// Returns a stable name for machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Application => "application",
            Limit::PeerWindow => "peer_window",
            Limit::SendWindow => "send_window",
            Limit::CongestionWindow => "congestion_window",
            Limit::Pacing => "pacing",
            Limit::Port => "port",
            Limit::Path => "path",
        }
    }
}

/// The present limit of one sender, and the time under each limit. Memory is allocated when a limit other than
/// [`Limit::Application`] applies for the first time.
#[derive(Clone, Debug, Default)]
pub struct SenderLimits(Option<Box<Limits>>);

impl SenderLimits {
    /// Returns true if the last [`note`](Self::note) recorded a limit other than [`Limit::Application`].
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.0.as_ref().is_some_and(|limits| limits.is_limited())
    }

    /// Returns true if no limit other than [`Limit::Application`] was recorded so far, so that no memory is allocated.
    pub fn is_blank(&self) -> bool {
        self.0.is_none()
    }

    /// Records that the sender stopped transmitting at `now` because of `limit`. `acknowledged`: total bytes that the
    /// peer has acknowledged. The call may be omitted for [`Limit::Application`] while [`is_limited`](Self::is_limited)
    /// is false.
    pub fn note(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        if limit != Limit::Application || self.is_limited() {
            self.0.get_or_insert_default().note(now, limit, acknowledged);
        }
    }

    /// Returns the limit, the times and the rate as of `now`.
    pub fn info(&self, now: Instant) -> LimitInfo {
        self.0.as_ref().map(|limits| limits.info(now)).unwrap_or_default()
    }
}

/// The present limit of one sender, and the time under each limit.
///
/// The struct is small, because each stream that was ever limited keeps one. Times are in ticks of 2^20 ns (about a
/// millisecond) and saturate after 52 days. The length of an interval is the tick count at its end minus the tick
/// count at its start, so the rounding errors of consecutive intervals cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Limits {
    limit: Limit,
    /// Time at which `limit` became the limit, ticks.
    limit_since: u32,
    /// Ticks under each limit, in the order of [`Limit::ALL`] without [`Limit::Application`]. The time since
    /// `limit_since` is not included.
    times: [u32; Limit::ALL.len() - 1],
    /// Start of the present rate measurement, in [fine ticks](fine_ticks).
    measured_at: u32,
    /// Bytes acknowledged until `measured_at`, modulo 2^32.
    measured_acked: u32,
    /// Delivery rate, KiB per second; `None` before the first measurement or below 1 KiB per second.
    rate: Option<NonZeroU32>,
}

/// Binary logarithm of a tick's length in nanoseconds. A tick is about a millisecond.
const TICK_SHIFT: u32 = 20;

/// Snapshot of [`SenderLimits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitInfo {
    /// The limit that applies now.
    pub limit: Limit,
    /// Time under each limit, in the order of [`Limit::ALL`]. The entry of [`Limit::Application`] is always zero: this
    /// time is not measured.
    pub times: [Nanos; Limit::ALL.len()],
    /// Rate at which the peer acknowledged data, bytes per second. Measured over at least 10 ms under limits other than
    /// [`Limit::Application`]; `None` before the first measurement or below 1 KiB per second.
    pub delivery_rate: Option<u64>,
}

impl Limits {
    /// Returns true if the present limit is not [`Limit::Application`].
    #[inline]
    fn is_limited(&self) -> bool {
        self.limit != Limit::Application
    }

    /// Records that the sender stopped transmitting at `now` because of `limit`. `acknowledged`: total bytes that the
    /// peer has acknowledged.
    #[inline]
    fn note(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        if limit != self.limit {
            self.change(now, limit, acknowledged);
        }
        if self.is_limited() && fine_ticks(now).wrapping_sub(self.measured_at) >= MIN_MEASURE_TICKS
        {
            self.measure(now, acknowledged);
        }
    }

    fn change(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        let tick = ticks(now);
        match (self.limit as usize).checked_sub(1) {
            Some(at) => {
                let time = &mut self.times[at];
                *time = time.saturating_add(tick.wrapping_sub(self.limit_since));
            }
            None => {
                (self.measured_at, self.measured_acked) = (fine_ticks(now), acknowledged as u32)
            }
        }
        (self.limit, self.limit_since) = (limit, tick);
    }

    fn measure(&mut self, now: Instant, acknowledged: u64) {
        let fine = fine_ticks(now);
        let nanos = u64::from(fine.wrapping_sub(self.measured_at).max(1)) << FINE;
        let bytes = (acknowledged as u32).wrapping_sub(self.measured_acked);
        let rate = u64::from(bytes) * (1_000_000_000 >> 10) / nanos;
        self.rate = u32::try_from(rate).ok().and_then(NonZeroU32::new);
        (self.measured_at, self.measured_acked) = (fine, acknowledged as u32);
    }

    /// Returns the limit, the times and the rate as of `now`.
    fn info(&self, now: Instant) -> LimitInfo {
        let mut times = [Nanos::default(); Limit::ALL.len()];
        for (time, ticks) in times[1..].iter_mut().zip(self.times) {
            *time = Nanos::new(u64::from(ticks) << TICK_SHIFT);
        }
        if self.limit != Limit::Application {
            let present = u64::from(ticks(now).wrapping_sub(self.limit_since)) << TICK_SHIFT;
            let time = &mut times[self.limit as usize];
            *time = time.saturating_add(Nanos::new(present));
        }
        let delivery_rate = self.rate.map(|rate| u64::from(rate.get()) << 10);
        LimitInfo { limit: self.limit, times, delivery_rate }
    }
}

#[inline]
fn ticks(at: Instant) -> u32 {
    (at.as_nanos() >> TICK_SHIFT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the moment `ticks` ticks after an arbitrary start.
    fn at(ticks: u64) -> Instant {
        Instant::from_nanos((1000 + ticks) << TICK_SHIFT)
    }

    #[test]
    fn limit_times_are_counted_per_cause() {
        let mut limits = Limits::default();
        limits.note(at(0), Limit::CongestionWindow, 0);
        limits.note(at(3), Limit::CongestionWindow, 0);
        limits.note(at(5), Limit::Pacing, 0);
        limits.note(at(6), Limit::Application, 0);
        limits.note(at(16), Limit::PeerWindow, 0);
        let info = limits.info(at(20));
        let times = info.times.map(|time| time.get() >> TICK_SHIFT);
        assert_eq!((info.limit, times), (Limit::PeerWindow, [0, 4, 0, 5, 1, 0, 0]));
        assert_eq!(Limit::ALL.map(|limit| limit as usize), [0, 1, 2, 3, 4, 5, 6]);
        assert!(size_of::<Limits>() <= 44);
    }

    // A sender limited by its application alone allocates no memory. Times that exist do not grow while the application
    // is the limit.
    #[test]
    fn application_limit_alone_allocates_nothing() {
        let mut limits = SenderLimits::default();
        limits.note(at(0), Limit::Application, 0);
        assert!(limits.is_blank() && !limits.is_limited());
        assert_eq!(limits.info(at(9)), LimitInfo::default());
        limits.note(at(10), Limit::Pacing, 0);
        assert!(limits.is_limited());
        limits.note(at(13), Limit::Application, 0);
        let noted = limits.0.as_deref().copied();
        limits.note(at(20), Limit::Application, 0);
        assert_eq!((limits.0.as_deref().copied(), limits.is_limited()), (noted, false));
        assert_eq!(limits.info(at(30)).times[Limit::Pacing as usize].get() >> TICK_SHIFT, 3);
        assert_eq!(size_of::<SenderLimits>(), 8);
    }

    // Ten thousand intervals of 100 µs, alternating between two causes.
    #[test]
    fn sub_tick_intervals_add_up_in_limit_times() {
        let (mut limits, mut now) = (Limits::default(), Instant::from_millis(1));
        for _ in 0..5000 {
            limits.note(now, Limit::PeerWindow, 0);
            now += core::time::Duration::from_micros(100);
            limits.note(now, Limit::Pacing, 0);
            now += core::time::Duration::from_micros(100);
        }
        let times = limits.info(now).times.map(|time| time.get() / 1_000_000);
        let [peer, pacing] = [Limit::PeerWindow, Limit::Pacing].map(|limit| times[limit as usize]);
        assert!(peer.abs_diff(500) < 25 && pacing.abs_diff(500) < 25, "{times:?}");
    }

    #[test]
    fn delivery_rate_excludes_application_limited_time() {
        let mut limits = Limits::default();
        limits.note(at(0), Limit::CongestionWindow, 1000);
        limits.note(at(9), Limit::CongestionWindow, 9000);
        assert_eq!(limits.info(at(9)).delivery_rate, None);
        limits.note(at(10), Limit::CongestionWindow, 11_000);
        let rate = |limits: Limits| limits.info(at(0)).delivery_rate.unwrap();
        assert_eq!(rate(limits) >> 10, 931); // 10 000 bytes in 10 ticks
        // Time in which the application was the limit does not count.
        limits.note(at(11), Limit::Application, 12_000);
        limits.note(at(5011), Limit::PeerWindow, 12_000);
        limits.note(at(5031), Limit::PeerWindow, 52_000);
        assert_eq!(rate(limits) >> 10, 2 * 931);
        // Bytes are counted modulo 2^32.
        let mut limits = Limits::default();
        limits.note(at(0), Limit::PeerWindow, (1 << 32) - 5000);
        limits.note(at(10), Limit::PeerWindow, (1 << 32) + 5000);
        assert_eq!(rate(limits) >> 10, 931);
    }
}
