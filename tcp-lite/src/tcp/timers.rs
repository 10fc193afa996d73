//! The timers of a connection, in one table: each is set to a time or unset. Not included: the actions at expiry
//! (`timeouts`, `loss_timer`).

use base::{Blank, Instant, Lazy};

/// Purpose of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// Retransmission (RFC 6298 §5) or another [`LossTimer`], while a segment or SYN is in flight. With a closed window
    /// of the peer and unacknowledged data: the next window probe.
    Retransmit,
    /// Window probe while data is unsent, nothing is in flight, and the window is closed or too small (RFC 9293
    /// §3.8.6.1).
    Persist,
    /// Delayed acknowledgement (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// Keepalive probe of an idle connection (RFC 9293 §3.8.4).
    Keepalive,
    /// End of TIME-WAIT, or of the silence allowed in FIN-WAIT-2.
    Wait,
    /// Pacing: earliest time of the next burst.
    Pace,
}

/// Current purpose of [`Timer::Retransmit`]. One timer serves all three purposes (RFC 8985 §8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LossTimer {
    /// Retransmission time-out (RFC 6298).
    Rto,
    /// Tail loss probe (RFC 8985 §7.2).
    Probe,
    /// Reordering time-out (RFC 8985 §6.2 step 5).
    Reorder,
}

impl Timer {
    pub(crate) const ALL: [Timer; 6] = [
        Timer::Retransmit,
        Timer::Persist,
        Timer::DelayedAck,
        Timer::Keepalive,
        Timer::Wait,
        Timer::Pace,
    ];
}

const UNSET: Instant = Instant::from_nanos(u64::MAX);

/// Expiry of each timer, indexed by [`Timer`]. Not allocated in an idle connection without keepalives.
#[derive(Clone, Debug)]
struct Table([Instant; Timer::ALL.len()]);

base::prefetch!(Table:);

impl Blank for Table {
    fn blank() -> &'static Self {
        static BLANK: Table = Table([UNSET; Timer::ALL.len()]);
        &BLANK
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Timers {
    expiries: Lazy<Table>,
}

base::prefetch!(Timers: expiries);

impl Timers {
    pub(crate) fn new() -> Self {
        Timers { expiries: Lazy::new() }
    }

    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        self.expiries.0[timer as usize] = at;
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        if let Some(table) = self.expiries.get_mut() {
            table.0[timer as usize] = UNSET;
        }
    }

    pub(crate) fn stop_all(&mut self) {
        self.expiries.release();
    }

    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.expiries.0[timer as usize] != UNSET
    }

    /// Stops the timer if it has expired by `now`. Returns true if it had expired.
    pub(crate) fn expire(&mut self, timer: Timer, now: Instant) -> bool {
        let expired = self.expiries.0[timer as usize] <= now && self.is_set(timer);
        if expired {
            self.stop(timer);
        }
        expired
    }

    /// Returns the earliest expiry, if a timer is set.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.0.iter().copied().min().filter(|at| *at != UNSET)
    }

    /// Frees the table if no timer is set.
    pub(crate) fn shrink(&mut self) {
        if self.next_expiry().is_none() {
            self.expiries.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_timer_is_next_and_expires_once() {
        let mut timers = Timers::new();
        assert_eq!(timers.next_expiry(), None);
        timers.set(Timer::Keepalive, Instant::from_millis(30));
        timers.set(Timer::Persist, Instant::from_millis(20));
        assert_eq!(timers.next_expiry(), Some(Instant::from_millis(20)));
        assert!(!timers.expire(Timer::Persist, Instant::from_millis(19)));
        assert!(timers.expire(Timer::Persist, Instant::from_millis(20)));
        assert!(!timers.expire(Timer::Persist, Instant::from_millis(20)));
        assert!(!timers.expire(Timer::Wait, Instant::from_millis(20)));
        assert_eq!(timers.next_expiry(), Some(Instant::from_millis(30)));
    }
}
