//! Frames that wait for an SA: at most [`MAX_FRAMES`], each for at most [`MAX_WAIT`]. Further frames are dropped, and
//! TCP and SCTP retransmit them.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;
use ipsec::guard::Protection;
use ipsec::strength::Strength;

/// Maximum number of waiting frames per worker.
const MAX_FRAMES: usize = 64;
/// Maximum number of waiting frames per protection.
const MAX_FRAMES_PER_PROTECTION: usize = 16;
/// Maximum time for which a frame waits. IKE needs a few round trips to create an SA.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(2);

/// Waiting frames of a worker, oldest first.
pub(super) struct WaitingFrames<F>(VecDeque<WaitingFrame<F>>);

pub(super) struct WaitingFrame<F> {
    pub(super) protection: Protection,
    pub(super) port: usize,
    pub(super) frame: F,
    /// Minimum strength with which the frame may be sealed.
    pub(super) min_strength: Strength,
    pub(super) expires_at: Instant,
}

impl<F> WaitingFrames<F> {
    pub(super) fn new() -> Self {
        WaitingFrames(VecDeque::new())
    }

    /// Adds a frame, unless a limit is reached. Returns true if it was added.
    pub(super) fn push(&mut self, waiting: WaitingFrame<F>) -> bool {
        let count = self.0.iter().filter(|other| other.protection == waiting.protection).count();
        let room = self.0.len() < MAX_FRAMES && count < MAX_FRAMES_PER_PROTECTION;
        if room {
            self.0.push_back(waiting);
        }
        room
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = WaitingFrame<F>> + use<F> {
        std::mem::take(&mut self.0).into_iter()
    }

    /// Drops expired frames. Returns their number.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let before = self.0.len();
        if before > 0 {
            self.0.retain(|waiter| now < waiter.expires_at);
        }
        (before - self.0.len()) as u64
    }

    /// Returns the time at which the next frame expires.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().map(|waiter| waiter.expires_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(protection: u16, frame: u16, expires_at: Instant) -> WaitingFrame<u16> {
        let (protection, min_strength) = (Protection(protection), Strength::CLEAR);
        WaitingFrame { protection, port: 0, frame, min_strength, expires_at }
    }

    #[test]
    fn waiting_frames_are_bounded_in_number_and_time() {
        let mut frames = WaitingFrames::new();
        let until = Instant::from_millis(2000);
        for n in 0..1000 {
            let expires_at = until + Duration::from_millis(n.into());
            let kept = frames.push(waiting(n % 10, n, expires_at));
            assert_eq!(kept, n < MAX_FRAMES as u16, "{n}");
        }
        assert_eq!(frames.poll_timeout(), Some(until));
        assert_eq!(frames.expire(until), 1);
        // One frame has expired, so the limit per worker leaves room for one frame. In an empty queue the limit per
        // protection applies.
        let room = (0..).take_while(|n| frames.push(waiting(0, *n, until))).count();
        assert_eq!(room, 1);
        assert_eq!(frames.take_all().count(), MAX_FRAMES);
        let room = (0..).take_while(|n| frames.push(waiting(0, *n, until))).count();
        assert_eq!(room, MAX_FRAMES_PER_PROTECTION);
        assert_eq!(frames.expire(until), MAX_FRAMES_PER_PROTECTION as u64);
        assert_eq!(frames.poll_timeout(), None);
    }
}
