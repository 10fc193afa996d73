//! Prefetches the state of TCP streams before they are served. The state of many streams exceeds the second-level
//! cache, and each stream's state is a chain of allocations. Without prefetch, the cache misses of a chain follow one
//! another. SCTP sessions share the state of their association and are not prefetched.

use std::collections::VecDeque;

use crate::worker::flows::streams::Streams;

/// Longest usual chain of pointers from a stream's slot to memory that is touched when the stream is served.
const MAX_STEPS: u32 = 4;
/// Number of streams at the head of a queue that are prefetched before the first is served: one for each pointer of a
/// chain ([`MAX_STEPS`]), plus one.
const PREFETCH_STREAMS: usize = MAX_STEPS as usize + 1;
/// Maximum number of streams at which no stream is prefetched: the state of so few streams stays in the second-level
/// cache.
pub(in crate::worker) const PREFETCH_THRESHOLD: usize = 256;

impl Streams {
    /// Prefetches the streams of a burst's segments. Called before the segments are processed.
    #[inline]
    pub(in crate::worker) fn prefetch(&self, slots: impl Iterator<Item = u32> + Clone) {
        if self.len() > PREFETCH_THRESHOLD {
            self.prefetch_all(slots);
        }
    }

    /// Prefetches the first streams of a queue completely. Called before these streams are served.
    #[inline]
    pub(in crate::worker) fn prefetch_first(&self, queue: &VecDeque<u32>) {
        if self.len() > PREFETCH_THRESHOLD {
            self.prefetch_all(queue.iter().take(PREFETCH_STREAMS).copied());
        }
    }

    /// Prefetches the streams that follow the first of a queue. Each stream is prefetched one pointer further along its
    /// chain than the stream behind it. Called before the first stream is served.
    #[inline]
    pub(in crate::worker) fn prefetch_next(&self, queue: &VecDeque<u32>) {
        if self.len() > PREFETCH_THRESHOLD {
            self.prefetch_successors(queue);
        }
    }

    /// Prefetches the streams. For successive segments of one stream, which are frequent, the stream is prefetched
    /// once.
    #[inline(never)]
    fn prefetch_all(&self, slots: impl Iterator<Item = u32> + Clone) {
        for steps in 0..=MAX_STEPS {
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
    fn prefetch_successors(&self, queue: &VecDeque<u32>) {
        for (slot, steps) in successors(queue) {
            self.prefetch_steps(slot, steps);
        }
    }

    fn prefetch_steps(&self, slot: u32, steps: u32) {
        self.prefetch_slot(slot, steps, &mut dpdk::prefetch::write);
    }
}

/// Returns the streams that follow the first of a queue, each with the step to prefetch now.
fn successors(queue: &VecDeque<u32>) -> impl Iterator<Item = (u32, u32)> {
    queue.iter().skip(1).copied().zip((0..=MAX_STEPS).rev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_streams_are_prefetched_stepwise_before_service() {
        let mut queue: VecDeque<u32> = (0..20).collect();
        // The next step of each stream. The first streams are already prefetched completely.
        let mut next = [0; 20];
        next[..PREFETCH_STREAMS].fill(MAX_STEPS + 1);
        while !queue.is_empty() {
            for (slot, steps) in successors(&queue) {
                let next = &mut next[slot as usize];
                assert!(steps <= *next, "a step whose predecessor was not prefetched");
                *next = (steps + 1).max(*next);
            }
            let first = queue.pop_front().expect("not empty") as usize;
            assert_eq!(next[first], MAX_STEPS + 1, "{first}");
        }
    }
}
