//! Prefetches streams over TCP before they are served. The state of many streams does not fit into the second-level
//! cache, and each stream's is a chain of allocations: without prefetch each of them is a cache miss, one after the
//! other. Sessions over SCTP share their association's state and are not prefetched.

use std::collections::VecDeque;

use super::streams::Streams;

/// Pointers from a stream's slot to the furthest allocation that serving a stream mostly touches.
const STEPS: u32 = 4;
/// Streams of a queue that are prefetched at once: one at each step, and the one that is served.
const AHEAD: usize = STEPS as usize + 1;
/// With at most this many streams nothing is prefetched: their state stays in the second-level cache.
pub(super) const FEW: usize = 256;

impl Streams {
    /// To be called before the segments of a burst are handled, with the streams they belong to.
    #[inline]
    pub(super) fn prefetch(&self, slots: impl Iterator<Item = u32> + Clone) {
        if self.len() > FEW {
            self.prefetch_all(slots);
        }
    }

    /// To be called before the first streams of a queue are served.
    #[inline]
    pub(super) fn prefetch_first(&self, queue: &VecDeque<u32>) {
        if self.len() > FEW {
            self.prefetch_all(queue.iter().take(AHEAD).copied());
        }
    }

    /// To be called before the first stream of a queue is served: prefetches those behind it, each one step further
    /// than the one behind it.
    #[inline]
    pub(super) fn prefetch_next(&self, queue: &VecDeque<u32>) {
        if self.len() > FEW {
            self.prefetch_behind_first(queue);
        }
    }

    /// Successive segments are often of one stream, which is prefetched once.
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
        self.prefetch_slot(slot, steps, &mut dpdk::prefetch::write);
    }
}

/// The streams behind the first of a queue, and how far each is to be prefetched now.
fn behind_the_first(queue: &VecDeque<u32>) -> impl Iterator<Item = (u32, u32)> {
    queue.iter().skip(1).copied().zip((0..=STEPS).rev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_queue_is_prefetched_step_by_step_before_it_is_served() {
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
