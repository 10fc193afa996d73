//! Streams brought near before it is their turn. The state of many does not fit the second cache, and each stream's
//! is spread over allocations that name each other: fetched only when they are wanted, each of them would be waited
//! for in turn.

use std::collections::VecDeque;

use wire::Near;

use super::Core;
use crate::io::PortIo;

/// Pointers from a stream's slot to the furthest of what most turns touch.
const STEPS: u32 = 4;
/// Streams whose state stays in the second cache without help.
const FEW: usize = 256;

impl<Io: PortIo> Core<Io> {
    /// Before the segments of a burst are given to these streams, one after the other; the same one follows
    /// itself often.
    pub(super) fn bring_near(&self, slots: impl Iterator<Item = u32> + Clone) {
        if self.conns.len() <= FEW {
            return;
        }
        for steps in 0..=STEPS {
            let mut last = None;
            for slot in slots.clone() {
                if last != Some(slot) {
                    self.approach(slot, steps);
                }
                last = Some(slot);
            }
        }
    }

    /// Before the streams in line have their turns.
    pub(super) fn bring_first_near(&self) {
        self.bring_near(self.ready.iter().take(STEPS as usize).copied());
    }

    /// Before the first stream in line has its turn: those behind it, each a step further than the one behind.
    pub(super) fn bring_next_near(&self, line: &VecDeque<u32>) {
        if self.conns.len() <= FEW {
            return;
        }
        for steps in 0..=STEPS {
            if let Some(&slot) = line.get((STEPS - steps) as usize + 1) {
                self.approach(slot, steps);
            }
        }
    }

    fn approach(&self, slot: u32, steps: u32) {
        if let Some(conn) = self.conns.get(slot) {
            conn.near(steps, &mut dpdk::prefetch::write);
        }
    }
}
