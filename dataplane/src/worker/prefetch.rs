//! Streams over TCP brought near before it is their turn. The state of many does not fit the second cache, and each
//! stream's is spread over allocations that name each other: fetched only when they are wanted, each of them would be
//! waited for in turn. Sessions of SCTP share their association's state and are left alone.

use std::collections::VecDeque;

use base::Near;

use super::Core;
use crate::io::PortIo;

/// Allocations from a stream's own, which its slot names, to the furthest of what most turns touch.
const STEPS: u32 = 4;
/// Streams of a line under way at once: one for each step, the last of which its turn ends.
const AHEAD: usize = STEPS as usize + 1;
/// Streams whose state stays in the second cache without help.
pub(super) const FEW: usize = 256;

impl<Io: PortIo> Core<Io> {
    /// Before the segments of a burst are given to these streams, one after the other.
    #[inline]
    pub(super) fn bring_near(&self, slots: impl Iterator<Item = u32> + Clone) {
        if self.streams.len() > FEW {
            self.approach_all(slots);
        }
    }

    /// Before the first streams in a line have their turns.
    #[inline]
    pub(super) fn bring_first_near(&self, line: &VecDeque<u32>) {
        if self.streams.len() > FEW {
            self.approach_all(line.iter().take(AHEAD).copied());
        }
    }

    /// Before the first stream in a line has its turn: those behind it, each a step further than the one behind.
    #[inline]
    pub(super) fn bring_next_near(&self, line: &VecDeque<u32>) {
        if self.streams.len() > FEW {
            self.approach_next(line);
        }
    }

    /// The same one follows itself often.
    #[inline(never)]
    fn approach_all(&self, slots: impl Iterator<Item = u32> + Clone) {
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

    #[inline(never)]
    fn approach_next(&self, line: &VecDeque<u32>) {
        for (slot, steps) in behind_the_first(line) {
            self.approach(slot, steps);
        }
    }

    fn approach(&self, slot: u32, steps: u32) {
        if let Some(conn) = self.streams.get(slot) {
            conn.near(steps, &mut dpdk::prefetch::write);
        }
    }
}

/// The streams behind the first of a line, and how far each is to be brought near in this turn.
fn behind_the_first(line: &VecDeque<u32>) -> impl Iterator<Item = (u32, u32)> {
    line.iter().skip(1).copied().zip((0..=STEPS).rev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_line_is_asked_for_step_by_step_before_its_turn() {
        let mut line: VecDeque<u32> = (0..20).collect();
        // The step that comes next; the first ones are near.
        let mut next = [0; 20];
        next[..AHEAD].fill(STEPS + 1);
        while !line.is_empty() {
            for (slot, steps) in behind_the_first(&line) {
                let next = &mut next[slot as usize];
                assert!(steps <= *next, "a step that leads nowhere yet");
                *next = (steps + 1).max(*next);
            }
            let first = line.pop_front().expect("not empty") as usize;
            assert_eq!(next[first], STEPS + 1, "{first}");
        }
    }
}
