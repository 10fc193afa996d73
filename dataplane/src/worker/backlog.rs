//! How many frames of hosts that have no stream are examined of a full burst, behind which more may wait.
//!
//! SYNs, cookies that come back, SCTP packets of no association and frames for the host make work that the streams wait
//! for, so of a full burst few are examined. But a peer that opens many streams at once sends hundreds of SYNs together,
//! and each that is dropped comes again only after a second: so some more are examined at a rate that a flood soon spends.

use base::Instant;

use super::Core;
use crate::io::PortIo;
use crate::net::limit::RateLimit;

/// Frames of one kind that are examined of any full burst.
const ANY_BURST: usize = 8;

/// Those that are examined besides, per second, and a tenth of it at once. SYNs and INITs take 1 % of a core or less.
const MORE: u32 = 10_000;

/// How many frames of one kind may still make work.
#[derive(Debug)]
pub(super) struct Budget {
    /// Of this burst.
    left: usize,
    more: RateLimit,
    /// What this burst took from `more`.
    taken: usize,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Budget { left: usize::MAX, more: RateLimit::new(MORE, now), taken: 0 }
    }

    /// A burst begins, of which `few` are examined, or as many as there are.
    #[inline]
    pub(super) fn begin(&mut self, few: bool) {
        self.left = if few { ANY_BURST } else { usize::MAX };
        self.taken = 0;
    }

    /// True when one more may be examined; it is then counted.
    #[inline]
    pub(super) fn take(&mut self, now: Instant) -> bool {
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

    /// The burst took more than twice as many as any may.
    #[inline]
    pub(super) fn is_heavy(&self) -> bool {
        self.taken > ANY_BURST
    }

    /// Full bursts get no more than a few, as in a flood.
    #[cfg(test)]
    pub(super) fn exhaust(&mut self, now: Instant) {
        self.more = RateLimit::new(0, now);
    }
}

impl<Io: PortIo> Core<Io> {
    /// A burst begins. If it is full, more may wait behind it, and streams wait meanwhile, if there are any.
    #[inline]
    pub(super) fn begin_burst(&mut self, full: bool) {
        let few = full && self.has_streams();
        self.env.strangers.begin(few);
        self.env.host.budget.begin(few);
    }

    /// The burst made so much work for others that the streams are served before the next one.
    #[inline]
    pub(super) fn was_heavy(&self) -> bool {
        self.env.strangers.is_heavy() || self.env.host.budget.is_heavy()
    }

    fn has_streams(&self) -> bool {
        self.streams.len() > self.env.admission.listeners().half_open() as usize
    }
}
