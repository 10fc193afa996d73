//! Budget for the examination of unmatched frames.
//!
//! SYNs, returned cookies, SCTP packets without an association and frames for the host's kernel delay the streams. Few
//! of them are therefore examined while full bursts show that more frames wait. However, a peer that opens many streams
//! at once sends hundreds of SYNs together, and a dropped SYN is retransmitted only after a second. Further frames are
//! therefore examined at a limited rate, which a flood soon exhausts.

use base::Instant;

use crate::io::PortIo;
use crate::net::rate_limit::RateLimit;
use crate::worker::Core;

/// Unmatched frames examined in every full burst.
const FRAMES_PER_BURST: usize = 8;

/// Further frames per second, in bursts of at most a tenth of that. SYNs and INITs at this rate take at most 1 % of a
/// core.
const EXTRA_FRAMES_PER_SECOND: u32 = 10_000;

/// Budget for the unmatched frames of one kind.
#[derive(Debug)]
pub(in crate::worker) struct UnmatchedBudget {
    /// Remaining frames of this burst that are not charged to `extra`.
    left: usize,
    extra: RateLimit,
    /// Frames of this burst that were charged to `extra`.
    extra_taken: usize,
}

impl UnmatchedBudget {
    pub(in crate::worker) fn new(now: Instant) -> Self {
        UnmatchedBudget {
            left: usize::MAX,
            extra: RateLimit::new(EXTRA_FRAMES_PER_SECOND, now),
            extra_taken: 0,
        }
    }

    /// Begins a burst. If `limited`, the number of its unmatched frames is limited.
    #[inline]
    pub(in crate::worker) fn begin_burst(&mut self, limited: bool) {
        self.left = if limited { FRAMES_PER_BURST } else { usize::MAX };
        self.extra_taken = 0;
    }

    /// Takes one frame from the budget. Returns false if the budget is used up.
    #[inline]
    pub(in crate::worker) fn take(&mut self, now: Instant) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                let allowed = self.extra.take(now);
                self.extra_taken += usize::from(allowed);
                allowed
            }
        }
    }

    /// Returns true if this burst used more than twice [`FRAMES_PER_BURST`].
    #[inline]
    pub(in crate::worker) fn is_heavy(&self) -> bool {
        self.extra_taken > FRAMES_PER_BURST
    }

    /// Exhausts the rate, as a flood does: full bursts then get [`FRAMES_PER_BURST`] frames only.
    #[cfg(test)]
    pub(in crate::worker) fn exhaust(&mut self, now: Instant) {
        self.extra = RateLimit::new(0, now);
    }
}

impl<Io: PortIo> Core<Io> {
    /// Begins a burst. The budget is limited if the burst is full, because more frames may wait, and if there are
    /// streams to serve.
    #[inline]
    pub(in crate::worker) fn begin_burst(&mut self, full: bool) {
        let limited = full && self.has_streams();
        self.unmatched_budget.begin_burst(limited);
        self.env.host.budget.begin_burst(limited);
    }

    /// Returns true if unmatched frames took so much time that the streams are served before the next burst.
    #[inline]
    pub(in crate::worker) fn unmatched_load_is_heavy(&self) -> bool {
        self.unmatched_budget.is_heavy() || self.env.host.budget.is_heavy()
    }

    fn has_streams(&self) -> bool {
        self.streams.len() > self.env.admission.listeners().half_open() as usize
    }
}
