//! Streams over TCP are prefetched before it is their turn. The state of many does not fit the second cache, and each
//! stream's is spread over allocations that name each other: fetched only when they are wanted, each of them would be
//! waited for in turn. Sessions of SCTP share their association's state and are left alone.

use std::collections::VecDeque;

use super::streams::Streams;

/// Allocations from a stream's own, which its slot names, to the furthest of what most turns touch.
const STEPS: u32 = 4;
/// Streams of a queue under way at once: one for each step, the last of which its turn ends.
const AHEAD: usize = STEPS as usize + 1;
/// Streams whose state stays in the second cache without help.
pub(super) const FEW: usize = 256;

impl Streams {
    /// Before the segments of a burst are given to these streams, one after the other.
    #[inline]
    pub(super) fn prefetch(&self, slots: impl Iterator<Item = u32> + Clone) {
        if self.len() > FEW {
            self.prefetch_all(slots);
        }
    }

    /// Before the first streams of a queue are served.
    #[inline]
    pub(super) fn prefetch_first(&self, queue: &VecDeque<u32>) {
        if self.len() > FEW {
            self.prefetch_all(queue.iter().take(AHEAD).copied());
        }
    }

    /// Before the first stream of a queue is served: those behind it, each a step further than the one behind.
    #[inline]
    pub(super) fn prefetch_next(&self, queue: &VecDeque<u32>) {
        if self.len() > FEW {
            self.prefetch_behind_first(queue);
        }
    }

    /// The same one follows itself often.
    #[inline(never)]
    fn prefetch_all(&self, slots: impl Iterator<Item = u32> + Clone) {
        for steps in 0..=STEPS {
            let mut last = None;
            for slot in slots.clone() {
                if last != Some(slot) {
                    self.prefetch_steps(slot, steps);
                }
                last = Some(slot);
            }
        }
    }

    #[inline(never)]
    fn prefetch_behind_first(&self, queue: &VecDeque<u32>) {
        for (slot, steps) in behind_the_first(queue) {
            self.prefetch_steps(slot, steps);
        }
    }

    fn prefetch_steps(&self, slot: u32, steps: u32) {
        self.near(slot, steps, &mut dpdk::prefetch::write);
    }
}

/// The streams behind the first of a queue, and how far each is to be prefetched in this turn.
fn behind_the_first(queue: &VecDeque<u32>) -> impl Iterator<Item = (u32, u32)> {
    queue.iter().skip(1).copied().zip((0..=STEPS).rev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_queue_is_prefetched_step_by_step_before_its_turn() {
        let mut queue: VecDeque<u32> = (0..20).collect();
        // The step that comes next; the first ones are there.
        let mut next = [0; 20];
        next[..AHEAD].fill(STEPS + 1);
        while !queue.is_empty() {
            for (slot, steps) in behind_the_first(&queue) {
                let next = &mut next[slot as usize];
                assert!(steps <= *next, "a step that leads nowhere yet");
                *next = (steps + 1).max(*next);
            }
            let first = queue.pop_front().expect("not empty") as usize;
            assert_eq!(next[first], STEPS + 1, "{first}");
        }
    }
}
