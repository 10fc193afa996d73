//! What keeps a sender from sending more, and for how long each cause did, for people who ask why a stream is slow; and
//! the rate at which the peer acknowledges meanwhile.

use base::{Instant, Nanos};

/// The delivery rate is measured over at least this long.
const MEASURED_OVER: Nanos = Nanos::from_millis(10);

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
}

impl Limit {
    /// All of them.
    pub const ALL: [Limit; 6] = [
        Limit::Application,
        Limit::PeerWindow,
        Limit::SendWindow,
        Limit::CongestionWindow,
        Limit::Pacing,
        Limit::Port,
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
        }
    }
}

/// The causes of one sender and their times. A sender that only its application has limited so far needs none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    limit: Limit,
    since: Instant,
    /// By [`Limit::ALL`], the present one up to `since`.
    times: [Nanos; Limit::ALL.len()],
    measured_at: Instant,
    /// Bytes that had been acknowledged at `measured_at`.
    measured: u64,
    /// Bytes per second, once measured.
    rate: Option<u64>,
}

/// [`Limits`] at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitInfo {
    /// What limits the sender now.
    pub limit: Limit,
    /// For how long each has limited it, by [`Limit::ALL`]; the application's time counts from when anything else was
    /// the limit first.
    pub times: [Nanos; Limit::ALL.len()],
    /// Bytes that the peer acknowledged per second when it was measured last, over 10 ms or more in which something
    /// else than the application was the limit.
    pub delivery_rate: Option<u64>,
}

impl Limits {
    /// A transmission ended at `now` because of `limit`; the peer has acknowledged `acknowledged` bytes in all.
    #[inline]
    pub fn note(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        if limit != self.limit {
            self.change(now, limit, acknowledged);
        }
        if now.nanos_since(self.measured_at) >= MEASURED_OVER {
            self.measure(now, acknowledged);
        }
    }

    fn change(&mut self, now: Instant, limit: Limit, acknowledged: u64) {
        if self.since != Instant::ZERO {
            self.times[self.limit as usize] =
                self.times[self.limit as usize].saturating_add(now.nanos_since(self.since));
        }
        if self.limit == Limit::Application {
            (self.measured_at, self.measured) = (now, acknowledged);
        }
        (self.limit, self.since) = (limit, now);
    }

    fn measure(&mut self, now: Instant, acknowledged: u64) {
        let nanos = u128::from(now.nanos_since(self.measured_at).get().max(1));
        let bytes = u128::from(acknowledged.saturating_sub(self.measured));
        if self.limit != Limit::Application {
            self.rate = Some(u64::try_from(bytes * 1_000_000_000 / nanos).unwrap_or(u64::MAX));
        }
        (self.measured_at, self.measured) = (now, acknowledged);
    }

    /// What is known now.
    pub fn info(&self, now: Instant) -> LimitInfo {
        let mut times = self.times;
        let present = &mut times[self.limit as usize];
        if self.since != Instant::ZERO {
            *present = present.saturating_add(now.nanos_since(self.since));
        }
        LimitInfo { limit: self.limit, times, delivery_rate: self.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(1000 + ms)
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
        let ms = info.times.map(|time| time.get() / 1_000_000);
        assert_eq!((info.limit, ms), (Limit::PeerWindow, [10, 4, 0, 5, 1, 0]));
        assert_eq!(Limit::ALL.map(|limit| limit as usize), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_rate_is_that_of_times_in_which_there_was_more_to_send() {
        let mut limits = Limits::default();
        limits.note(at(0), Limit::CongestionWindow, 1000);
        limits.note(at(9), Limit::CongestionWindow, 9000);
        assert_eq!(limits.info(at(9)).delivery_rate, None);
        limits.note(at(10), Limit::CongestionWindow, 11_000);
        assert_eq!(limits.info(at(10)).delivery_rate, Some(1_000_000));
        // Silence of the application does not count.
        limits.note(at(11), Limit::Application, 12_000);
        limits.note(at(5011), Limit::PeerWindow, 12_000);
        limits.note(at(5031), Limit::PeerWindow, 52_000);
        assert_eq!(limits.info(at(5031)).delivery_rate, Some(2_000_000));
    }
}
