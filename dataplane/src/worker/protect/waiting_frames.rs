//! Frames that wait for an SA. TCP and SCTP retransmit lost packets, so only a few frames are kept, for a short time.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;
use ipsec::guard::Protection;

/// Maximum waiting frames per worker, and per protection.
const MAX_FRAMES: usize = 64;
const MAX_FRAMES_PER_PROTECTION: usize = 16;
/// Maximum time that a frame waits. IKE needs a few round trips.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(2);

/// Waiting frames of a worker, oldest first.
pub(super) struct WaitingFrames<F>(VecDeque<WaitingFrame<F>>);

struct WaitingFrame<F> {
    protection: Protection,
    port: usize,
    frame: F,
    expires_at: Instant,
}

impl<F> WaitingFrames<F> {
    pub(super) fn new() -> Self {
        WaitingFrames(VecDeque::new())
    }

    /// Adds a frame, unless a limit is reached. Returns whether it was added.
    pub(super) fn push(
        &mut self,
        protection: Protection,
        (port, frame): (usize, F),
        until: Instant,
    ) -> bool {
        let count = self.0.iter().filter(|waiter| waiter.protection == protection).count();
        let room = self.0.len() < MAX_FRAMES && count < MAX_FRAMES_PER_PROTECTION;
        if room {
            self.0.push_back(WaitingFrame { protection, port, frame, expires_at: until });
        }
        room
    }

    /// Removes and returns all frames, each with its port and the end of its wait.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (usize, F, Instant)> + use<F> {
        let all = std::mem::take(&mut self.0);
        all.into_iter().map(|waiter| (waiter.port, waiter.frame, waiter.expires_at))
    }

    /// Drops expired frames. Returns their number.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let before = self.0.len();
        if before > 0 {
            self.0.retain(|waiter| now < waiter.expires_at);
        }
        (before - self.0.len()) as u64
    }

    /// Returns when the next frame expires.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|waiter| waiter.expires_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_frames_are_bounded_in_number_and_time() {
        let mut waiting = WaitingFrames::new();
        let until = Instant::from_millis(2000);
        for n in 0..1000 {
            let protection = Protection(n % 10);
            let kept = waiting.push(protection, (0, n), until + Duration::from_millis(n.into()));
            assert_eq!(kept, n < MAX_FRAMES as u16, "{n}");
        }
        assert_eq!(waiting.poll_timeout(), Some(until));
        assert_eq!(waiting.expire(until), 1);
        // A protection at its limit leaves room for others.
        let room = (0..).take_while(|n| waiting.push(Protection(0), (0, *n), until)).count();
        assert_eq!(room, 1);
        assert_eq!(waiting.take_all().count(), MAX_FRAMES);
        let room = (0..).take_while(|n| waiting.push(Protection(0), (0, *n), until)).count();
        assert_eq!(room, MAX_FRAMES_PER_PROTECTION);
        assert_eq!(waiting.expire(until), MAX_FRAMES_PER_PROTECTION as u64);
        assert_eq!(waiting.poll_timeout(), None);
    }
}
