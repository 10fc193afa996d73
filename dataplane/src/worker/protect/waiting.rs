//! Frames that wait for an SA. TCP and SCTP retransmit lost packets, so few frames are kept, for a short time.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;
use ipsec::guard::Protection;

/// Waiting frames of the worker, and of one protection, at most.
const MOST: usize = 64;
const EACH: usize = 16;
/// Time that a frame waits, at most: IKE takes a few round trips.
pub(super) const LONGEST: Duration = Duration::from_secs(2);

/// Waiting frames of a worker, oldest first.
pub(super) struct Waiting<F>(VecDeque<Waiter<F>>);

struct Waiter<F> {
    protection: Protection,
    port: usize,
    frame: F,
    until: Instant,
}

impl<F> Waiting<F> {
    pub(super) fn new() -> Self {
        Waiting(VecDeque::new())
    }

    /// Keeps a frame, unless a bound is reached. Returns whether it was kept.
    pub(super) fn push(
        &mut self,
        protection: Protection,
        (port, frame): (usize, F),
        until: Instant,
    ) -> bool {
        let of = self.0.iter().filter(|waiter| waiter.protection == protection).count();
        let room = self.0.len() < MOST && of < EACH;
        if room {
            self.0.push_back(Waiter { protection, port, frame, until });
        }
        room
    }

    /// Removes and returns all frames, each with its port and the end of its wait.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (usize, F, Instant)> + use<F> {
        let all = std::mem::take(&mut self.0);
        all.into_iter().map(|waiter| (waiter.port, waiter.frame, waiter.until))
    }

    /// Drops expired frames; returns their number.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let before = self.0.len();
        if before > 0 {
            self.0.retain(|waiter| now < waiter.until);
        }
        (before - self.0.len()) as u64
    }

    /// Returns when the next frame expires.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|waiter| waiter.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_kept_up_to_a_bound_and_for_a_while() {
        let mut waiting = Waiting::new();
        let until = Instant::from_millis(2000);
        for n in 0..1000 {
            let protection = Protection(n % 10);
            let kept = waiting.push(protection, (0, n), until + Duration::from_millis(n.into()));
            assert_eq!(kept, n < MOST as u16, "{n}");
        }
        assert_eq!(waiting.poll_timeout(), Some(until));
        assert_eq!(waiting.expire(until), 1);
        // One protection leaves room for others.
        let room = (0..).take_while(|n| waiting.push(Protection(0), (0, *n), until)).count();
        assert_eq!(room, 1);
        assert_eq!(waiting.take().count(), MOST);
        let room = (0..).take_while(|n| waiting.push(Protection(0), (0, *n), until)).count();
        assert_eq!(room, EACH);
        assert_eq!(waiting.expire(until), EACH as u64);
        assert_eq!(waiting.poll_timeout(), None);
    }
}
