//! What keeps a sender from sending more, and for how long each cause did, for people who ask why a stream is slow; and
//! the rate at which the peer acknowledges meanwhile.

use core::num::NonZeroU32;

use base::{Instant, Nanos};

use crate::right_size::{TICK as FINE, ticks as fine_ticks};

/// The delivery rate is measured over at least this long, in fine ticks: 10 ms.
const MEASURED_OVER: u32 = 10_000_000 >> FINE;

/// What stopped the last transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Limit {
    /// There was nothing more to send.
    #[default]
    Application,
    /// The window that the peer offers is full.
    PeerWindow,
    /// The configured send window is full.
    SendWindow,
    /// The congestion window is full.
    CongestionWindow,
    /// The next burst has to wait, by pacing.
    Pacing,
    /// The port took no more packets, or other streams had their turn.
    Port,
    /// The peer acknowledges nothing: time-outs are in progress.
    Path,
}

impl Limit {
    /// All of them.
    pub const ALL: [Limit; 7] = [
        Limit::Application,
        Limit::PeerWindow,
        Limit::SendWindow,
        Limit::CongestionWindow,
        Limit::Pacing,
        Limit::Port,
        Limit::Path,
    ];

    /// A stable name for machine-readable output.
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

/// What limits one sender. It takes the memory for its times when something else than the application first does.
#[derive(Clone, Debug, Default)]
pub struct SenderLimits(Option<Box<Limits>>);

impl SenderLimits {
    /// Something else than the application was the limit when that was noted last.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.0.as_ref().is_some_and(|limits| limits.is_limited())
    }

    /// Nothing else than the application has been the limit so far: it takes no memory.
    pub fn is_blank(&self) -> bool {
        self.0.is_none()
    }

    /// A transmission ended at `now` because of `limit`; the peer has acknowledged `acknowledged` bytes in all. Need not be
    /// called where that is the application, and it [was](Self::is_limited) before.
    pub fn note(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        if limit != Limit::Application || self.is_limited() {
            self.0.get_or_insert_default().note(now, limit, acknowledged);
        }
    }

    /// What is known now.
    pub fn info(&self, now: Instant) -> LimitInfo {
        self.0.as_ref().map(|limits| limits.info(now)).unwrap_or_default()
    }
}

/// The causes of one sender and their times.
///
/// It is small, because each stream that ever waited keeps one: times are in ticks of a millisecond (2^20 ns), which last
/// for 52 days and then stand. A time is the difference of the ticks at its ends, so that short times add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Limits {
    limit: Limit,
    /// When it began, ticks.
    since: u32,
    /// By [`Limit::ALL`] without the application, the present one up to `since`.
    times: [u32; Limit::ALL.len() - 1],
    /// When the rate was measured last, in [fine ticks](fine_ticks), and the bytes that had been acknowledged then, modulo 2^32.
    measured_at: u32,
    measured: u32,
    /// KiB per second, once measured.
    rate: Option<NonZeroU32>,
}

/// Length of a tick as a power of two, nanoseconds: about a millisecond.
const TICK: u32 = 20;

/// [`SenderLimits`] at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitInfo {
    /// What limits the sender now.
    pub limit: Limit,
    /// For how long each has limited it, by [`Limit::ALL`]; all other time, which is not counted, is the application's.
    pub times: [Nanos; Limit::ALL.len()],
    /// Bytes that the peer acknowledged per second when it was measured last, over 10 ms or more in which something
    /// else than the application was the limit.
    pub delivery_rate: Option<u64>,
}

impl Limits {
    /// Something else than the application is the limit.
    #[inline]
    fn is_limited(&self) -> bool {
        self.limit != Limit::Application
    }

    /// A transmission ended at `now` because of `limit`; the peer has acknowledged `acknowledged` bytes in all.
    #[inline]
    fn note(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        if limit != self.limit {
            self.change(now, limit, acknowledged);
        }
        if self.is_limited() && fine_ticks(now).wrapping_sub(self.measured_at) >= MEASURED_OVER {
            self.measure(now, acknowledged);
        }
    }

    fn change(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        let tick = ticks(now);
        match (self.limit as usize).checked_sub(1) {
            Some(at) => {
                let time = &mut self.times[at];
                *time = time.saturating_add(tick.wrapping_sub(self.since));
            }
            None => (self.measured_at, self.measured) = (fine_ticks(now), acknowledged as u32),
        }
        (self.limit, self.since) = (limit, tick);
    }

    fn measure(&mut self, now: Instant, acknowledged: u64) {
        let fine = fine_ticks(now);
        let nanos = u64::from(fine.wrapping_sub(self.measured_at).max(1)) << FINE;
        let bytes = (acknowledged as u32).wrapping_sub(self.measured);
        let rate = u64::from(bytes) * (1_000_000_000 >> 10) / nanos;
        self.rate = u32::try_from(rate).ok().and_then(NonZeroU32::new);
        (self.measured_at, self.measured) = (fine, acknowledged as u32);
    }

    /// What is known now.
    fn info(&self, now: Instant) -> LimitInfo {
        let mut times = [Nanos::default(); Limit::ALL.len()];
        for (time, ticks) in times[1..].iter_mut().zip(self.times) {
            *time = Nanos::new(u64::from(ticks) << TICK);
        }
        if self.limit != Limit::Application {
            let present = u64::from(ticks(now).wrapping_sub(self.since)) << TICK;
            let time = &mut times[self.limit as usize];
            *time = time.saturating_add(Nanos::new(present));
        }
        let delivery_rate = self.rate.map(|rate| u64::from(rate.get()) << 10);
        LimitInfo { limit: self.limit, times, delivery_rate }
    }
}

#[inline]
fn ticks(at: Instant) -> u32 {
    (at.as_nanos() >> TICK) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many ticks after some time.
    fn at(ticks: u64) -> Instant {
        Instant::from_nanos((1000 + ticks) << TICK)
    }

    #[test]
    fn each_cause_has_its_time() {
        let mut limits = Limits::default();
        limits.note(at(0), Limit::CongestionWindow, 0);
        limits.note(at(3), Limit::CongestionWindow, 0);
        limits.note(at(5), Limit::Pacing, 0);
        limits.note(at(6), Limit::Application, 0);
        limits.note(at(16), Limit::PeerWindow, 0);
        let info = limits.info(at(20));
        let times = info.times.map(|time| time.get() >> TICK);
        assert_eq!((info.limit, times), (Limit::PeerWindow, [0, 4, 0, 5, 1, 0, 0]));
        assert_eq!(Limit::ALL.map(|limit| limit as usize), [0, 1, 2, 3, 4, 5, 6]);
        assert!(size_of::<Limits>() <= 44);
    }

    // A sender that waits for its application takes no memory for that, and its times stand once there are some.
    #[test]
    fn the_application_alone_is_not_noted() {
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
        assert_eq!(limits.info(at(30)).times[Limit::Pacing as usize].get() >> TICK, 3);
        assert_eq!(size_of::<SenderLimits>(), 8);
    }

    // Ten thousand times 100 µs, in turn.
    #[test]
    fn short_times_add_up() {
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
    fn the_rate_is_that_of_times_in_which_there_was_more_to_send() {
        let mut limits = Limits::default();
        limits.note(at(0), Limit::CongestionWindow, 1000);
        limits.note(at(9), Limit::CongestionWindow, 9000);
        assert_eq!(limits.info(at(9)).delivery_rate, None);
        limits.note(at(10), Limit::CongestionWindow, 11_000);
        let rate = |limits: Limits| limits.info(at(0)).delivery_rate.unwrap();
        assert_eq!(rate(limits) >> 10, 931); // 10 000 bytes in 10 ticks
        // Silence of the application does not count.
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
