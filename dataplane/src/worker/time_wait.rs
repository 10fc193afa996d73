//! Streams in TIME-WAIT by age, so that the oldest gives way when a new stream finds no place
//! (RFC 9293 §3.6.1 wants them kept; a bound on memory wants them few).

use std::collections::VecDeque;

use ddp::StreamId;

/// Names of streams, oldest first. Some of them may be gone; at most twice as many are kept as there may
/// be streams.
#[derive(Debug)]
pub(super) struct TimeWait {
    streams: VecDeque<StreamId>,
    bound: usize,
}

impl TimeWait {
    /// For a worker of at most `streams` streams.
    pub(super) fn new(streams: u32) -> Self {
        TimeWait { streams: VecDeque::new(), bound: 2 * streams as usize }
    }

    /// A stream has entered TIME-WAIT. `is_there` tells those that are gone.
    pub(super) fn add(&mut self, stream: StreamId, is_there: impl Fn(StreamId) -> bool) {
        while self.streams.front().is_some_and(|&s| !is_there(s)) {
            self.streams.pop_front();
        }
        if self.streams.len() >= self.bound {
            self.streams.retain(|&s| is_there(s));
        }
        self.streams.push_back(stream);
    }

    /// Takes the oldest stream out that is still there, and says where.
    pub(super) fn oldest(&mut self, find: impl Fn(StreamId) -> Option<u32>) -> Option<u32> {
        while let Some(stream) = self.streams.pop_front() {
            if let Some(slot) = find(stream) {
                return Some(slot);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_there_comes_first_and_the_rest_is_bounded() {
        let mut waiting = TimeWait::new(2);
        for n in 0..100 {
            // Every other one ends by itself at once, the first never.
            waiting.add(StreamId(n), |s| s.0 == 0 || s.0 % 2 == 1 && s.0 + 2 > n);
        }
        assert!(waiting.streams.len() <= 4, "{waiting:?}");
        assert_eq!(waiting.oldest(|s| (s.0 != 0).then_some(s.0 as u32)), Some(97));
        assert_eq!(waiting.oldest(|_| None), None);
        assert!(waiting.streams.is_empty());
    }
}
