//! Budget of unmatched frames per full burst.
//!
//! SYNs, returned cookies, SCTP packets without an association and frames for the host delay the streams, so few
//! of them are examined while full bursts show that more frames wait. A peer that opens many streams at once sends
//! hundreds of SYNs together, and a dropped SYN is retransmitted only after a second. Further frames are therefore
//! examined at a limited rate, which a flood soon exhausts.

use base::Instant;

use crate::io::PortIo;
use crate::net::limit::RateLimit;
use crate::worker::Core;

/// Frames of one kind examined in every full burst.
const ANY_BURST: usize = 8;

/// Further frames per second, with bursts of a tenth of that. SYNs and INITs at this rate take 1 % of a core or
/// less.
const MORE: u32 = 10_000;

/// Budget for unmatched frames of one kind.
#[derive(Debug)]
pub(in crate::worker) struct Budget {
    /// Frames left in this burst before `more` is used.
    left: usize,
    more: RateLimit,
    /// Frames of this burst charged to `more`.
    taken: usize,
}

impl Budget {
    pub(in crate::worker) fn new(now: Instant) -> Self {
        Budget { left: usize::MAX, more: RateLimit::new(MORE, now), taken: 0 }
    }

    /// Begins a burst. If `few`, its unmatched frames are limited.
    #[inline]
    pub(in crate::worker) fn begin(&mut self, few: bool) {
        self.left = if few { ANY_BURST } else { usize::MAX };
        self.taken = 0;
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
                let may = self.more.take(now);
                self.taken += usize::from(may);
                may
            }
        }
    }

    /// True if the burst used more than twice the frames that every burst may use.
    #[inline]
    pub(in crate::worker) fn is_heavy(&self) -> bool {
        self.taken > ANY_BURST
    }

    /// Uses up the rate, as a flood does: full bursts get [`ANY_BURST`] frames only.
    #[cfg(test)]
    pub(in crate::worker) fn exhaust(&mut self, now: Instant) {
        self.more = RateLimit::new(0, now);
    }
}

impl<Io: PortIo> Core<Io> {
    /// Begins a burst. The budget is limited if the burst is full, so that more frames may wait, and there are
    /// streams to serve.
    #[inline]
    pub(in crate::worker) fn begin_burst(&mut self, full: bool) {
        let few = full && self.has_streams();
        self.unmatched_budget.begin(few);
        self.env.host.budget.begin(few);
    }

    /// True if unmatched frames took so much work that the streams are served before the next burst.
    #[inline]
    pub(in crate::worker) fn was_heavy(&self) -> bool {
        self.unmatched_budget.is_heavy() || self.env.host.budget.is_heavy()
    }

    fn has_streams(&self) -> bool {
        self.streams.len() > self.env.admission.listeners().half_open() as usize
    }
}
