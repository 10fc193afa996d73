//! Eviction by age when the table of streams or associations is full. The candidates are streams in TIME-WAIT and
//! associations that are shutting down. Eviction ends TIME-WAIT before the 2 MSL that RFC 9293 §3.6.1 (MUST-13)
//! requires. Otherwise peers could fill the table with ended streams, and new streams would be refused.

use std::collections::VecDeque;

use ddp::StreamId;

/// Identifiers of streams or associations, oldest first. An identifier is stale once its stream or association was
/// removed. Each addition removes stale identifiers at the front. A compaction removes all stale identifiers when the
/// queue reaches twice the length left by the last compaction, at least [`MIN_COMPACT_LEN`].
#[derive(Debug, Default)]
pub(in crate::worker) struct AgeQueue {
    ids: VecDeque<StreamId>,
    /// Length at which stale identifiers are removed next.
    compact_at: usize,
}

/// Minimum queue length for a compaction.
const MIN_COMPACT_LEN: usize = 16;

impl AgeQueue {
    /// Appends an identifier as the newest. `is_live` returns false for a stale identifier.
    pub(in crate::worker) fn add(&mut self, id: StreamId, is_live: impl Fn(StreamId) -> bool) {
        while self.ids.front().is_some_and(|&s| !is_live(s)) {
            self.ids.pop_front();
        }
        if self.ids.len() >= self.compact_at {
            self.ids.retain(|&s| is_live(s));
            self.compact_at = MIN_COMPACT_LEN.max(2 * self.ids.len());
        }
        self.ids.push_back(id);
    }

    /// Removes the oldest live identifier and returns its slot. `find` returns the slot of an identifier, or `None` for
    /// a stale one.
    pub(in crate::worker) fn take_oldest(
        &mut self,
        find: impl Fn(StreamId) -> Option<u32>,
    ) -> Option<u32> {
        while let Some(id) = self.ids.pop_front() {
            if let Some(slot) = find(id) {
                return Some(slot);
            }
        }
        None
    }

    /// Returns true if the queue has no entries. Stale identifiers count as entries.
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_queue_returns_oldest_live_identifier_and_stays_bounded() {
        let mut waiting = AgeQueue::default();
        for n in 0..100 {
            // Only two identifiers are live at a time: 0, and the newest odd number.
            waiting.add(StreamId(n), |s| s.0 == 0 || s.0 % 2 == 1 && s.0 + 2 > n);
        }
        assert!(waiting.ids.len() <= MIN_COMPACT_LEN + 2, "{waiting:?}");
        let first = waiting.take_oldest(|s| (s.0 != 0).then_some(s.0 as u32));
        assert!(first.is_some_and(|n| n > 80), "{first:?}");
        assert_eq!(waiting.take_oldest(|_| None), None);
        assert!(waiting.is_empty());
        // Live identifiers are never dropped, regardless of their number.
        for n in 0..1000 {
            waiting.add(StreamId(n), |_| true);
        }
        assert_eq!(waiting.ids.len(), 1000);
    }
}
