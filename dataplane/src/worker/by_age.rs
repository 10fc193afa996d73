//! Eviction by age when the tables are full, of streams in TIME-WAIT (RFC 9293 §3.4.2 keeps them; a bound on
//! memory limits their number), and of associations that are shutting down.

use std::collections::VecDeque;

use ddp::StreamId;

/// Names, oldest first. Some of them may be gone: at most twice as many are kept as were there when they were last
/// looked through, and a few.
#[derive(Debug, Default)]
pub(super) struct ByAge {
    names: VecDeque<StreamId>,
    /// So many, and those that are gone are taken out.
    look_at: usize,
}

/// That many cost nothing.
const FEW: usize = 16;

impl ByAge {
    /// The newest one. `is_there` is false for those that are gone.
    pub(super) fn add(&mut self, name: StreamId, is_there: impl Fn(StreamId) -> bool) {
        while self.names.front().is_some_and(|&s| !is_there(s)) {
            self.names.pop_front();
        }
        if self.names.len() >= self.look_at {
            self.names.retain(|&s| is_there(s));
            self.look_at = FEW.max(2 * self.names.len());
        }
        self.names.push_back(name);
    }

    /// Takes the oldest one out that is still there; its slot.
    pub(super) fn oldest(&mut self, find: impl Fn(StreamId) -> Option<u32>) -> Option<u32> {
        while let Some(name) = self.names.pop_front() {
            if let Some(slot) = find(name) {
                return Some(slot);
            }
        }
        None
    }

    /// True when none was ever added that was not taken out.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_there_comes_first_and_the_rest_is_bounded() {
        let mut waiting = ByAge::default();
        for n in 0..100 {
            // Every other one ends by itself at once, the first never.
            waiting.add(StreamId(n), |s| s.0 == 0 || s.0 % 2 == 1 && s.0 + 2 > n);
        }
        assert!(waiting.names.len() <= FEW + 2, "{waiting:?}");
        let first = waiting.oldest(|s| (s.0 != 0).then_some(s.0 as u32));
        assert!(first.is_some_and(|n| n > 80), "{first:?}");
        assert_eq!(waiting.oldest(|_| None), None);
        assert!(waiting.is_empty());
        // Many that are all there are all kept.
        for n in 0..1000 {
            waiting.add(StreamId(n), |_| true);
        }
        assert_eq!(waiting.names.len(), 1000);
    }
}
