//! How much of what waits behind a full burst is examined for hosts that have no stream yet.
//!
//! SYNs, cookies that come back, SCTP packets of no association and frames for the host make work that the streams wait
//! for. A peer that opens many streams at once sends hundreds of them together, and each that is dropped comes again
//! only after a second: so the port has an allowance for them. A flood spends it and does not get it back, as the port
//! never runs empty then.

use super::Core;
use crate::io::{BURST, PortIo};

/// Frames of no stream and no association that are examined of any full burst, whatever is left of the allowance.
const FEW: usize = 8;

/// Those that may be examined beyond them.
const MOST: usize = 512;

/// What is left of it, for one port or for what other workers send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance(usize);

impl Allowance {
    pub(super) fn new() -> Self {
        Allowance(MOST)
    }

    /// A poll brought so many frames: each place of the burst that stayed empty gives one back.
    #[inline]
    pub(super) fn polled(&mut self, frames: usize) {
        self.0 = (self.0 + BURST.saturating_sub(frames)).min(MOST);
    }

    /// A burst took so many.
    #[inline]
    pub(super) fn spend(&mut self, frames: usize) {
        self.0 = self.0.saturating_sub(frames);
    }

    /// Nothing is left, as after a flood.
    #[cfg(test)]
    pub(super) fn exhaust(&mut self) {
        self.0 = 0;
    }
}

/// How many frames of one kind may still be examined of a burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    left: usize,
    most: usize,
}

impl Answers {
    /// As many as there are.
    pub(super) const ALL: Answers = Answers { left: usize::MAX, most: usize::MAX };

    /// Takes one. Returns whether there was one.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// What was taken beyond the few of any burst.
    #[inline]
    pub(super) fn beyond(self) -> usize {
        match self.most {
            usize::MAX => 0,
            most => (most - self.left).saturating_sub(FEW),
        }
    }
}

impl<Io: PortIo> Core<Io> {
    /// A burst begins. If it is full, more may wait behind it; if there are streams that wait meanwhile, few of its
    /// frames may make work beyond the allowance.
    #[inline]
    pub(super) fn begin_burst(&mut self, full: bool, allowance: Allowance) {
        let half_open = self.env.admission.listeners().half_open() as usize;
        let answers = match full && self.streams.len() > half_open {
            true => Answers { left: FEW + allowance.0, most: FEW + allowance.0 },
            false => Answers::ALL,
        };
        self.env.strangers = answers;
        if !self.env.host.is_empty() {
            self.env.host.begin(answers);
        }
    }

    /// A burst ends. Returns what it took of the allowance.
    #[inline]
    pub(super) fn end_burst(&self) -> usize {
        self.env.strangers.beyond() + self.env.host.beyond()
    }
}
