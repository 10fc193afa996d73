//! Timers of an association, excluding its receive and send halves.

use base::Instant;

/// Purpose of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// Retransmission of INIT or COOKIE ECHO (T1-init, T1-cookie).
    Setup,
    /// Retransmission of SHUTDOWN or SHUTDOWN ACK (T2-shutdown).
    Shutdown,
    /// Time-out of the whole shutdown (T5-shutdown-guard).
    Guard,
    /// Transmission of the next HEARTBEAT, or time-out of the last HEARTBEAT's HEARTBEAT ACK.
    Heartbeat,
    /// Time-out of the reply to a path MTU probe (PROBE_TIMER).
    Probe,
    /// Time limit for sending a closed association's last packet.
    LastPacket,
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Expiry times, indexed by [`Timer`].
#[derive(Clone, Debug)]
pub(super) struct Timers {
    at: [Instant; 6],
}

impl Timers {
    pub(super) const fn new() -> Self {
        Timers { at: [NEVER; 6] }
    }

    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.at[timer as usize] = at;
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = NEVER;
    }

    pub(super) fn stop_all(&mut self) {
        self.at = [NEVER; 6];
    }

    /// Returns true if the timer has expired, and stops it.
    pub(super) fn expire(&mut self, timer: Timer, now: Instant) -> bool {
        let at = self.at[timer as usize];
        let expired = at <= now && at != NEVER;
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// Returns the earliest expiry; `None` if no timer runs.
    pub(super) fn next(&self) -> Option<Instant> {
        self.at.iter().copied().min().filter(|at| *at != NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_timer_expires_first_and_once() {
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
