//! Counters of dropped frames, packets and segments, one per drop reason. One worker counts; any thread may read.

pub use reasons::DropReason;
use sctp_lite::sctp;
use tcp_lite::tcp;

use crate::counter::Counter;

/// A counter for each [`DropReason`] of the network stack, and for each drop reason of TCP and of SCTP.
#[derive(Debug)]
pub struct Drops {
    stack: [Counter; DropReason::ALL.len()],
    tcp: [Counter; tcp::DropReason::ALL.len()],
    sctp: [Counter; sctp::DropReason::ALL.len()],
}

/// Count of one drop reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropCount {
    /// Layer that drops for this reason: `net` (below TCP and SCTP), `tcp` or `sctp`.
    pub layer: &'static str,
    /// Name of the reason, without the layer.
    pub reason: &'static str,
    /// Number of dropped frames, packets or segments.
    pub count: u64,
}

impl Default for Drops {
    fn default() -> Self {
        Drops {
            stack: std::array::from_fn(|_| Counter::default()),
            tcp: std::array::from_fn(|_| Counter::default()),
            sctp: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl Drops {
    /// Counts a frame or packet that the network stack dropped.
    #[inline]
    pub fn count(&self, reason: DropReason) {
        self.stack[reason as usize].add(1);
    }

    /// Counts a segment that TCP dropped.
    #[inline]
    pub fn count_tcp(&self, reason: tcp::DropReason) {
        self.tcp[reason.index()].add(1);
    }

    /// Counts a packet that SCTP dropped entirely or in part.
    #[inline]
    pub fn count_sctp(&self, reason: sctp::DropReason) {
        self.sctp[reason.index()].add(1);
    }

    /// Returns the number of frames and packets that the network stack dropped for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.stack[reason as usize].get()
    }

    /// Returns the number of segments that TCP dropped for `reason`.
    pub fn get_tcp(&self, reason: tcp::DropReason) -> u64 {
        self.tcp[reason.index()].get()
    }

    /// Returns the number of packets that SCTP dropped entirely or in part for `reason`.
    pub fn get_sctp(&self, reason: sctp::DropReason) -> u64 {
        self.sctp[reason.index()].get()
    }

    /// Returns the count of each reason, in an order that never changes within a run.
    pub fn iter(&self) -> impl Iterator<Item = DropCount> + '_ {
        let stack = DropReason::ALL.iter().map(|&r| DropCount {
            layer: "net",
            reason: r.name(),
            count: self.get(r),
        });
        let tcp = tcp::DropReason::ALL.iter().map(|&r| DropCount {
            layer: "tcp",
            reason: r.name().trim_start_matches("tcp_"),
            count: self.get_tcp(r),
        });
        let sctp = sctp::DropReason::ALL.iter().map(|&r| DropCount {
            layer: "sctp",
            reason: r.name().trim_start_matches("sctp_"),
            count: self.get_sctp(r),
        });
        stack.chain(tcp).chain(sctp)
    }

    /// Returns the sum of all counters.
    pub fn total(&self) -> u64 {
        self.iter().map(|drop| drop.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let drops = Drops::default();
        for (i, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, i);
            drops.count(reason);
            assert_eq!(drops.total(), i as u64 + 1);
            assert!(!reason.explanation().meaning.is_empty());
        }
        let mut names: Vec<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
    }
}
