//! Budget for the examination of unmatched frames.
//!
//! Unmatched frames (SYNs, returned cookies, SCTP packets without an association, frames for the host's kernel) delay
//! the streams. While bursts are full, further frames probably wait, and only few unmatched frames of each burst are
//! examined. However, a peer that opens many streams at once sends hundreds of SYNs together, and a dropped SYN is
//! retransmitted only after a second. Further unmatched frames are therefore examined at a limited rate, which a flood
//! soon exhausts.

use base::Instant;

use crate::io::PortIo;
use crate::net::rate_limit::RateLimit;
use crate::worker::Core;

/// Number of unmatched frames that are always examined in a full burst.
const FRAMES_PER_BURST: usize = 8;

/// Number of unmatched frames examined per second in addition to [`FRAMES_PER_BURST`]. At most a tenth of this number
/// is examined at once. SYNs and INITs at this rate take at most 1 % of a core.
const EXTRA_FRAMES_PER_SECOND: u32 = 10_000;

/// Budget for unmatched frames, either for listeners or for the host's kernel.
#[derive(Debug)]
pub(in crate::worker) struct UnmatchedBudget {
    /// Remaining frames of this burst that are examined without a charge to `extra`.
    left: usize,
    extra: RateLimit,
    /// Number of frames of this burst that were charged to `extra`.
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

    /// Begins a burst. The number of its unmatched frames is limited only if `limited` is true.
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

    /// Returns true if more than twice [`FRAMES_PER_BURST`] unmatched frames of this burst were examined.
    #[inline]
    pub(in crate::worker) fn is_heavy(&self) -> bool {
        self.extra_taken > FRAMES_PER_BURST
    }

    /// Exhausts the rate limit, as a flood does. Of a full burst, only [`FRAMES_PER_BURST`] unmatched frames are then
    /// examined.
    #[cfg(test)]
    pub(in crate::worker) fn exhaust(&mut self, now: Instant) {
        self.extra = RateLimit::new(0, now);
    }
}

impl<Io: PortIo> Core<Io> {
    /// Begins a burst. Limits the budget for listeners and the budget for the host's kernel if there are streams to
    /// serve and the burst is `full`: more frames may then wait in the receive queue.
    #[inline]
    pub(in crate::worker) fn begin_burst(&mut self, full: bool) {
        let limited = full && self.has_streams();
        self.unmatched_budget.begin_burst(limited);
        self.env.host.budget.begin_burst(limited);
    }

    /// Returns true if unmatched frames took so much time that the streams must be served before the next burst.
    #[inline]
    pub(in crate::worker) fn unmatched_load_is_heavy(&self) -> bool {
        self.unmatched_budget.is_heavy() || self.env.host.budget.is_heavy()
    }

    fn has_streams(&self) -> bool {
        self.streams.len() > self.env.admission.listeners().half_open() as usize
    }
}
