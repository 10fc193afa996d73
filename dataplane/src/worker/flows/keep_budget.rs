//! One worker's budget for copies of sent data. Data is copied if its source may change before the peer acknowledges
//! the data. A copy is kept until the acknowledgement, so the peer determines how long it is kept. The send window
//! bounds the copies of one stream or association. This budget bounds their sum.
//!
//! Peers share the budget by the same rule as the untagged receive buffers ([`ddp::grant_limit`]). A peer gets more
//! only while the remainder of the budget is at least as large as the peer's new total. The flows of a peer divide its
//! share by the same rule. The pool of untagged buffers (`ddp::BufferPool`) reserves whole buffers before they are
//! filled. This budget, in contrast, limits each transmission and counts its copies afterwards. A flow at its limit
//! sends no further data that must be copied. The flow resumes when a part of its copies is acknowledged. A flow
//! without copies may always send one segment. The bound is therefore the budget plus one segment per flow.
//!
//! Copies made for other reasons (an FPDU cut by a segment boundary, data left outstanding by a closing session) are
//! counted and not refused; the send window bounds them. Memory is counted in whole blocks
//! (`transport::retransmit_buffer`). The block of at most 8 KiB that a flow without copies may retain is not counted.

use std::net::IpAddr;

use ddp::PeerId;
use hashbrown::HashMap;

#[derive(Debug)]
pub(in crate::worker) struct KeepBudget {
    /// Size of the budget, in bytes.
    capacity: u64,
    /// Bytes kept now for all flows.
    used: u64,
    /// Maximum of `used` so far, in bytes.
    high_water: u64,
    /// Bytes kept per peer. Peers without copies have no entry.
    peers: HashMap<PeerId, u64>,
}

/// Bytes kept for one flow, as last counted in the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) struct KeptBytes(u32);

impl KeptBytes {
    pub(in crate::worker) const ZERO: KeptBytes = KeptBytes(0);
}

impl KeepBudget {
    /// Creates a budget of `capacity` bytes.
    pub(in crate::worker) fn new(capacity: u64) -> Self {
        KeepBudget { capacity, used: 0, high_water: 0, peers: HashMap::new() }
    }

    /// Returns the bytes kept now for all flows.
    pub(in crate::worker) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the maximum of [`used`](Self::used) so far, in bytes.
    pub(in crate::worker) fn high_water(&self) -> u64 {
        self.high_water
    }

    /// Changes the count of a flow with this peer from `kept` to `now` bytes, and returns the new count.
    #[inline]
    pub(in crate::worker) fn update(
        &mut self,
        peer: IpAddr,
        kept: KeptBytes,
        now: u64,
    ) -> KeptBytes {
        // The send window bounds the copies of a flow to less than 4 GiB.
        let now = KeptBytes(u32::try_from(now).unwrap_or(u32::MAX));
        if now != kept {
            self.apply_change(peer, kept, now);
        }
        now
    }

    #[cold]
    fn apply_change(&mut self, peer: IpAddr, before: KeptBytes, now: KeptBytes) {
        let (before, now) = (u64::from(before.0), u64::from(now.0));
        self.used = self.used - before + now;
        self.high_water = self.high_water.max(self.used);
        let peer = PeerId::from_address(peer);
        let kept = self.peers.entry(peer).or_default();
        *kept = *kept - before + now;
        if *kept == 0 {
            self.peers.remove(&peer);
        }
    }

    /// Returns the maximum bytes that a flow with this peer may keep now, including its present `kept` bytes.
    #[inline]
    pub(in crate::worker) fn limit(&self, peer: IpAddr, kept: KeptBytes) -> u64 {
        let kept = u64::from(kept.0);
        let left = self.capacity.saturating_sub(self.used);
        // A peer keeps at most `used` bytes. With this bound in place of the peer's count, no look-up is needed.
        if self.used <= self.capacity / 4 {
            return kept + (left - 2 * self.used) / 2;
        }
        let peer = self.peers.get(&PeerId::from_address(peer)).copied().unwrap_or(0);
        kept + ddp::grant_limit(left, peer + kept)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn peer(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    /// Fills a flow to its limit in steps of at most `step` bytes. Returns the bytes that the flow then keeps.
    fn fill(budget: &mut KeepBudget, peer: IpAddr, kept: &mut KeptBytes, step: u64) -> u64 {
        for _ in 0..10_000 {
            let room = budget.limit(peer, *kept).saturating_sub(kept.0.into());
            if room == 0 {
                break;
            }
            *kept = budget.update(peer, *kept, u64::from(kept.0) + room.min(step));
        }
        kept.0.into()
    }

    #[test]
    fn greedy_flow_leaves_budget_for_other_flows_and_peers() {
        let mut budget = KeepBudget::new(90_000);
        let [mut a, mut b, mut c] = [KeptBytes::ZERO; 3];
        let first = fill(&mut budget, peer(1), &mut a, 100);
        assert!((29_000..=30_000).contains(&first), "{first}");
        // A second flow of the same peer and a flow of another peer still get a share.
        assert!(fill(&mut budget, peer(1), &mut b, 100) > 8_000);
        assert!(fill(&mut budget, peer(2), &mut c, 100) > 8_000);
        for (who, kept) in [(1, a), (1, b), (2, c)] {
            assert_eq!(budget.update(peer(who), kept, 0), KeptBytes::ZERO);
        }
        assert_eq!((budget.used(), budget.peers.len()), (0, 0));
        assert!(budget.high_water() <= 90_000);
    }

    proptest! {
        // Flows keep arbitrary amounts within their limits. The sum must never exceed the budget.
        #[test]
        fn flows_within_their_limits_never_exceed_the_budget(steps in prop::collection::vec((0usize..20, any::<bool>(), 1u64..5000), 1..300)) {
            let mut budget = KeepBudget::new(50_000);
            let mut flows = [KeptBytes::ZERO; 20];
            for (n, more, step) in steps {
                let (who, kept) = (peer(n as u8 % 4), &mut flows[n]);
                let has = u64::from(kept.0);
                let now = match more {
                    true => budget.limit(who, *kept).min(has + step).max(has),
                    false => has.saturating_sub(step),
                };
                *kept = budget.update(who, *kept, now);
                prop_assert!(budget.used() <= 50_000);
                prop_assert_eq!(budget.used(), flows.iter().map(|kept| u64::from(kept.0)).sum::<u64>());
                prop_assert_eq!(budget.used(), budget.peers.values().sum::<u64>());
            }
        }
    }
}
