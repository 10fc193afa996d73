//! Budget of unmatched frames per full burst.
//!
//! SYNs, returned cookies, SCTP packets without an association and frames for the host delay the streams, so few
//! of them are examined while full bursts show that more frames wait. A peer that opens many streams at once sends
//! hundreds of SYNs together, and a dropped SYN is retransmitted only after a second. Further frames are therefore
//! examined at a limited rate, which a flood soon exhausts.

use base::Instant;

use crate::io::PortIo;
use crate::net::rate_limit::RateLimit;
use crate::worker::Core;

/// Frames of one kind examined in every full burst.
const FRAMES_PER_BURST: usize = 8;

/// Further frames per second, with bursts of a tenth of that. SYNs and INITs at this rate take 1 % of a core or
/// less.
const EXTRA_FRAMES_PER_SECOND: u32 = 10_000;

/// Budget for unmatched frames of one kind.
#[derive(Debug)]
pub(in crate::worker) struct UnmatchedBudget {
    /// Frames left in this burst before `extra` is used.
    left: usize,
    extra: RateLimit,
    /// Frames of this burst charged to `extra`.
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

    /// Begins a burst. If `limited`, its unmatched frames are limited.
    #[inline]
    pub(in crate::worker) fn begin_burst(&mut self, limited: bool) {
        self.left = if limited { FRAMES_PER_BURST } else { usize::MAX };
        self.extra_taken = 0;
    }

    /// Takes one frame from the budget. Returns false if it is used up.
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

    /// True if the burst used more than twice the frames that every burst may use.
    #[inline]
    pub(in crate::worker) fn is_heavy(&self) -> bool {
        self.extra_taken > FRAMES_PER_BURST
    }

    /// Uses up the rate, as a flood does: full bursts get [`FRAMES_PER_BURST`] frames only.
    #[cfg(test)]
    pub(in crate::worker) fn exhaust(&mut self, now: Instant) {
        self.extra = RateLimit::new(0, now);
    }
}

impl<Io: PortIo> Core<Io> {
    /// Begins a burst. The budget is limited if the burst is full, so that more frames may wait, and there are
    /// streams to serve.
    #[inline]
    pub(in crate::worker) fn begin_burst(&mut self, full: bool) {
        let limited = full && self.has_streams();
        self.unmatched_budget.begin_burst(limited);
        self.env.host.budget.begin_burst(limited);
    }

    /// True if unmatched frames took so much work that the streams are served before the next burst.
    #[inline]
    pub(in crate::worker) fn unmatched_load_is_heavy(&self) -> bool {
        self.unmatched_budget.is_heavy() || self.env.host.budget.is_heavy()
    }

    fn has_streams(&self) -> bool {
        self.streams.len() > self.env.admission.listeners().half_open() as usize
    }
}
