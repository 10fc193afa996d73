//! The timers of an association but those of its halves: one table.

use base::Instant;

/// What a timer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// INIT or COOKIE ECHO again (T1-init, T1-cookie).
    Setup,
    /// SHUTDOWN or SHUTDOWN ACK again (T2-shutdown).
    Shutdown,
    /// The end of a shutdown that takes too long (T5-shutdown-guard).
    Guard,
    /// The next HEARTBEAT, or the end of waiting for its answer.
    Heartbeat,
    /// The end of waiting for the answer to a probe of the path (PROBE_TIMER).
    Probe,
    /// The end of waiting for room for the last packet of a closed association.
    Farewell,
}

const OFF: Instant = Instant::from_nanos(u64::MAX);

/// When each timer expires.
#[derive(Clone, Debug)]
pub(super) struct Timers {
    at: [Instant; 6],
}

impl Timers {
    pub(super) const fn new() -> Self {
        Timers { at: [OFF; 6] }
    }

    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.at[timer as usize] = at;
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = OFF;
    }

    pub(super) fn stop_all(&mut self) {
        self.at = [OFF; 6];
    }

    /// Stops the timer if it has expired; returns whether it has.
    pub(super) fn expire(&mut self, timer: Timer, now: Instant) -> bool {
        let at = self.at[timer as usize];
        let expired = at <= now && at != OFF;
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// The first to expire.
    pub(super) fn next(&self) -> Option<Instant> {
        self.at.iter().copied().min().filter(|at| *at != OFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_comes_first_and_expires_once() {
        let mut timers = Timers::new();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Guard, Instant::from_millis(30));
        timers.set(Timer::Shutdown, Instant::from_millis(20));
        assert_eq!(timers.next(), Some(Instant::from_millis(20)));
        assert!(!timers.expire(Timer::Shutdown, Instant::from_millis(19)));
        assert!(timers.expire(Timer::Shutdown, Instant::from_millis(20)));
        assert!(!timers.expire(Timer::Shutdown, Instant::from_millis(20)));
        assert!(!timers.expire(Timer::Setup, Instant::from_millis(20)));
        assert_eq!(timers.next(), Some(Instant::from_millis(30)));
        timers.stop_all();
        assert_eq!(timers.next(), None);
    }
}
