//! Order of a session's received messages by DDP-SSN, extended to 64 bits (RFC 5043 §6.1, §10).
//!
//! ```text
//!   DDP-SSN of the session ->      next                next + 32767
//!   0 ... all of these received    |  gap |##|   |###| |
//!   illegal                        legal, once each     | illegal
//! ```
//!
//! Memory: two numbers per received range beyond a gap.

use super::error::SessionError;
use core::ops::Range;
use std::collections::VecDeque;
use wire::sctp::ddp::DdpSsn;

/// Maximum outstanding messages per session and direction (RFC 5043 §10).
pub const MAX_OUTSTANDING: usize = 32_767;
/// Maximum number of ranges beyond gaps.
const MAX_RANGES: usize = 1024;
/// Largest capacity, in ranges, that stays allocated when no range is left.
const IDLE_RANGES: usize = 8;

/// Messages received in one direction of a session.
#[derive(Debug, Default)]
pub struct SsnOrder {
    next: u64,
    /// Ranges received beyond gaps: sorted, disjoint, not adjacent.
    out_of_order: VecDeque<Range<u64>>,
}

impl SsnOrder {
    /// Returns the extended DDP-SSN of the first message not received.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the extended DDP-SSN after the highest one received.
    pub fn end(&self) -> u64 {
        self.out_of_order.back().map_or(self.next, |range| range.end)
    }

    /// Returns true if a message below the highest received is missing.
    pub fn has_gap(&self) -> bool {
        !self.out_of_order.is_empty()
    }

    /// Returns the DDP-SSN of a message extended to 64 bits.
    ///
    /// # Errors
    /// The DDP-SSN was received before, or is so far beyond `next` that the earlier messages cannot all be outstanding
    /// (RFC 5043 §10).
    pub fn extend(&self, ssn: DdpSsn) -> Result<u64, SessionError> {
        let expected = DdpSsn(self.next as u16);
        let distance = ssn.distance_from(expected);
        let at = self.next + u64::from(distance);
        let i = self.out_of_order.partition_point(|range| range.end <= at);
        let is_received = self.out_of_order.get(i).is_some_and(|range| range.start <= at);
        if usize::from(distance) >= MAX_OUTSTANDING || is_received {
            return Err(SessionError::Ssn { expected: expected.0, seen: ssn.0 });
        }
        Ok(at)
    }

    /// Returns the DDP-SSN of a message extended to 64 bits, if it is legal and [`mark_received`](Self::mark_received)
    /// has room for it.
    #[inline]
    pub fn extend_acceptable(&self, ssn: DdpSsn) -> Option<u64> {
        if self.out_of_order.is_empty() && ssn.0 == self.next as u16 {
            return Some(self.next);
        }
        self.extend(ssn).ok().filter(|at| self.can_record(*at))
    }

    /// Returns true if [`mark_received`](Self::mark_received) has room for `at`, which was not received before.
    pub fn can_record(&self, at: u64) -> bool {
        at == self.next || self.out_of_order.len() < MAX_RANGES
    }

    /// Marks the extended DDP-SSN `at` as received.
    #[inline]
    pub fn mark_received(&mut self, at: u64) {
        if at != self.next {
            return self.insert_out_of_order(at);
        }
        self.next += 1;
        if let Some(range) = self.out_of_order.front()
            && range.start == self.next
        {
            self.next = range.end;
            self.out_of_order.pop_front();
            if self.out_of_order.is_empty() && self.out_of_order.capacity() > IDLE_RANGES {
                self.out_of_order = VecDeque::new();
            }
        }
    }

    fn insert_out_of_order(&mut self, at: u64) {
        let i = self.out_of_order.partition_point(|range| range.end < at);
        if let Some(range) = self.out_of_order.get_mut(i)
            && range.end == at
        {
            range.end = at + 1;
            let end = range.end;
            if let Some(following) =
                self.out_of_order.get(i + 1).filter(|following| following.start == end)
            {
                self.out_of_order[i].end = following.end;
                self.out_of_order.remove(i + 1);
            }
            return;
        }
        match self.out_of_order.get_mut(i) {
            Some(range) if range.start == at + 1 => range.start = at,
            _ => self.out_of_order.insert(i, at..at + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn order_after(ssns: &[u64]) -> SsnOrder {
        let mut order = SsnOrder::default();
        ssns.iter().for_each(|&at| order.mark_received(at));
        order
    }

    proptest! {
        /// RFC 5043 §6.1: the extended number of a message depends on its DDP-SSN, not on the order of arrival.
        #[test]
        fn any_arrival_order_extends_ssns_in_order(mut ssns in Just((0..200u64).collect::<Vec<_>>()).prop_shuffle(), n in 0usize..200) {
            ssns.truncate(n);
            let mut order = SsnOrder::default();
            let mut received = BTreeSet::new();
            for at in ssns {
                prop_assert_eq!(order.extend(DdpSsn(at as u16)), Ok(at));
                prop_assert!(order.can_record(at));
                order.mark_received(at);
                received.insert(at);
                let next = (0..).find(|at| !received.contains(at)).unwrap_or(0);
                prop_assert_eq!(order.next(), next);
                prop_assert_eq!(order.end(), received.last().map_or(0, |last| last + 1).max(next));
                prop_assert_eq!(order.has_gap(), received.len() as u64 > next);
                prop_assert!(order.extend(DdpSsn(at as u16)).is_err());
            }
        }
    }

    /// RFC 5043 §10: 16-bit DDP-SSNs are extended unambiguously with up to 32,767 messages outstanding.
    #[test]
    fn ssns_wrap_with_32767_outstanding() {
        let mut order = SsnOrder::default();
        for at in 0..200_000 {
            assert_eq!(order.extend(DdpSsn(at as u16)), Ok(at));
            order.mark_received(at);
        }
        let (next, expected) = (200_000, 200_000 % 65_536);
        assert_eq!(order.extend(DdpSsn(expected as u16).add(32_766)), Ok(next + 32_766));
        let seen = DdpSsn(expected as u16).add(32_767);
        let error = SessionError::Ssn { expected: expected as u16, seen: seen.0 };
        assert_eq!(order.extend(seen), Err(error));
        assert!(order.extend(DdpSsn(expected as u16 - 1)).is_err(), "already received");
    }

    /// A peer that leaves many gaps cannot exceed the limit. When the gaps are filled, the ranges are freed.
    #[test]
    fn ssn_ranges_are_bounded() {
        let every_other: Vec<u64> = (1..).step_by(2).take(MAX_RANGES).collect();
        let mut order = order_after(&every_other);
        assert!(!order.can_record(5000));
        assert!(order.can_record(0));
        order.mark_received(0);
        assert_eq!(order.next(), 2);
        assert!(order.can_record(5000));
        (1..).map(|i| i * 2).take(MAX_RANGES).for_each(|at| order.mark_received(at));
        assert!(!order.has_gap());
        assert!(order.out_of_order.capacity() <= IDLE_RANGES);
    }
}
