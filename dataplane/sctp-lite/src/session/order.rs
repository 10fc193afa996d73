//! Submission order of a session's received messages: DDP-SSNs, extended to 64 bits (RFC 5043 §6.1, §10).
//!
//! ```text
//!   DDP-SSN of the session ->      next                next + 32767
//!   0 ... all of these received    |  gap |##|   |###| |
//!   illegal                        legal, once each     | illegal
//! ```
//!
//! Memory: two numbers for each received range beyond a gap.

use super::error::SessionError;
use core::ops::Range;
use std::collections::VecDeque;
use wire::sctp::ddp::DdpSsn;

/// Outstanding messages per session and direction, at most (RFC 5043 §10).
pub const MAX_OUTSTANDING: usize = 32_767;
/// Ranges beyond gaps remembered, at most.
const MAX_RANGES: usize = 1024;
/// Capacity kept when there are no ranges.
const IDLE_RANGES: usize = 8;

/// Messages received in one direction of a session.
#[derive(Debug, Default)]
pub struct Order {
    next: u64,
    /// Ranges beyond gaps: sorted, disjoint, not touching.
    ahead: VecDeque<Range<u64>>,
}

impl Order {
    /// Number of the first message not received.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number after the highest message received.
    pub fn end(&self) -> u64 {
        self.ahead.back().map_or(self.next, |range| range.end)
    }

    /// True if a message is missing below the highest received.
    pub fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Returns the place of a message with this DDP-SSN.
    ///
    /// # Errors
    /// The DDP-SSN was received before, or is too far ahead for all earlier ones to be outstanding
    /// (RFC 5043 §10).
    pub fn place(&self, ssn: DdpSsn) -> Result<u64, SessionError> {
        let expected = DdpSsn(self.next as u16);
        let distance = ssn.distance_from(expected);
        let at = self.next + u64::from(distance);
        let i = self.ahead.partition_point(|range| range.end <= at);
        let came = self.ahead.get(i).is_some_and(|range| range.start <= at);
        if usize::from(distance) >= MAX_OUTSTANDING || came {
            return Err(SessionError::Ssn { expected: expected.0, seen: ssn.0 });
        }
        Ok(at)
    }

    /// Returns the place of a message with this DDP-SSN, if it is legal and [`take`](Self::take) has room for
    /// it.
    #[inline]
    pub fn room_for(&self, ssn: DdpSsn) -> Option<u64> {
        if self.ahead.is_empty() && ssn.0 == self.next as u16 {
            return Some(self.next);
        }
        self.place(ssn).ok().filter(|at| self.has_room(*at))
    }

    /// True if [`take`](Self::take) has room for `at`, which was not received before.
    pub fn has_room(&self, at: u64) -> bool {
        at == self.next || self.ahead.len() < MAX_RANGES
    }

    /// Marks `at` as received.
    #[inline]
    pub fn take(&mut self, at: u64) {
        if at != self.next {
            return self.insert(at);
        }
        self.next += 1;
        if let Some(range) = self.ahead.front()
            && range.start == self.next
        {
            self.next = range.end;
            self.ahead.pop_front();
            if self.ahead.is_empty() && self.ahead.capacity() > IDLE_RANGES {
                self.ahead = VecDeque::new();
            }
        }
    }

    fn insert(&mut self, at: u64) {
        let i = self.ahead.partition_point(|range| range.end < at);
        if let Some(range) = self.ahead.get_mut(i)
            && range.end == at
        {
            range.end = at + 1;
            let end = range.end;
            if let Some(behind) = self.ahead.get(i + 1).filter(|behind| behind.start == end) {
                self.ahead[i].end = behind.end;
                self.ahead.remove(i + 1);
            }
            return;
        }
        match self.ahead.get_mut(i) {
            Some(range) if range.start == at + 1 => range.start = at,
            _ => self.ahead.insert(i, at..at + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn took(ssns: &[u64]) -> Order {
        let mut order = Order::default();
        ssns.iter().for_each(|&at| order.take(at));
        order
    }

    proptest! {
        /// RFC 5043 §6.1: any order of arrival results in the order of the numbers.
        #[test]
        fn any_arrival(mut ssns in Just((0..200u64).collect::<Vec<_>>()).prop_shuffle(), n in 0usize..200) {
            ssns.truncate(n);
            let mut order = Order::default();
            let mut came = BTreeSet::new();
            for at in ssns {
                prop_assert_eq!(order.place(DdpSsn(at as u16)), Ok(at));
                prop_assert!(order.has_room(at));
                order.take(at);
                came.insert(at);
                let next = (0..).find(|at| !came.contains(at)).unwrap_or(0);
                prop_assert_eq!(order.next(), next);
                prop_assert_eq!(order.end(), came.last().map_or(0, |last| last + 1).max(next));
                prop_assert_eq!(order.has_gap(), came.len() as u64 > next);
                prop_assert!(order.place(DdpSsn(at as u16)).is_err());
            }
        }
    }

    /// RFC 5043 §10: numbers wrap, and 32 767 may be outstanding.
    #[test]
    fn numbers_wrap() {
        let mut order = Order::default();
        for at in 0..200_000 {
            assert_eq!(order.place(DdpSsn(at as u16)), Ok(at));
            order.take(at);
        }
        let (next, expected) = (200_000, 200_000 % 65_536);
        assert_eq!(order.place(DdpSsn(expected as u16).add(32_766)), Ok(next + 32_766));
        let seen = DdpSsn(expected as u16).add(32_767);
        let error = SessionError::Ssn { expected: expected as u16, seen: seen.0 };
        assert_eq!(order.place(seen), Err(error));
        assert!(order.place(DdpSsn(expected as u16 - 1)).is_err(), "it has come");
    }

    /// A peer that leaves gap after gap gets no further memory.
    #[test]
    fn ranges_are_bounded() {
        let every_other: Vec<u64> = (1..).step_by(2).take(MAX_RANGES).collect();
        let mut order = took(&every_other);
        assert!(!order.has_room(5000));
        assert!(order.has_room(0));
        order.take(0);
        assert_eq!(order.next(), 2);
        assert!(order.has_room(5000));
        (1..).map(|i| i * 2).take(MAX_RANGES).for_each(|at| order.take(at));
        assert!(!order.has_gap());
        assert!(order.ahead.capacity() <= IDLE_RANGES);
    }
}
