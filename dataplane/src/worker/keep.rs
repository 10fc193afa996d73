//! The budget of one worker for bytes that its streams keep of what they have sent: copies of what was read from
//! sources that may change before the peer acknowledges it. A peer that reads and does not acknowledge decides how
//! long they are kept; the send window bounds them per stream or association, and this budget all of them together.
//!
//! Peers share it by the rule of the untagged buffers ([`ddp::share_of`]): a peer, and a flow of what its peer may have,
//! gets more only while what is left is as much as it then has. `ddp::BufferPool` reserves whole buffers before they
//! are filled; here a call that sends is given a limit, and what it kept is counted after it. A flow that has reached its
//! share sends nothing that would be kept until some of it is acknowledged; one that keeps nothing may always send one
//! segment. So the bound is the budget and one segment of each flow. What is kept for other reasons (an FPDU that is cut,
//! what a session that ends leaves outstanding) counts as well and is not refused: the send window bounds it. Counted is the
//! memory, which is in blocks ([`transport::kept`]); the 8 KiB that may stay with a flow that keeps nothing are not.

use std::net::IpAddr;

use ddp::PeerId;
use hashbrown::HashMap;

/// The budget, in bytes.
#[derive(Debug)]
pub(super) struct KeepBudget {
    capacity: u64,
    used: u64,
    high_water: u64,
    /// Peers for which anything is kept.
    peers: HashMap<PeerId, u64>,
}

/// What is kept for one flow, as the budget has counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kept(u32);

impl Kept {
    /// Nothing is kept.
    pub(super) const NOTHING: Kept = Kept(0);
}

impl KeepBudget {
    /// Of `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        KeepBudget { capacity, used: 0, high_water: 0, peers: HashMap::new() }
    }

    /// Bytes that are kept.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// The most that has been kept at a time.
    pub(super) fn high_water(&self) -> u64 {
        self.high_water
    }

    /// A flow with this peer, for which `kept` was counted, keeps `now` bytes. Returns what is counted for it now.
    #[inline]
    pub(super) fn count(&mut self, peer: IpAddr, kept: Kept, now: u64) -> Kept {
        // A flow keeps no more than its send window, which is below 4 GiB.
        let now = Kept(u32::try_from(now).unwrap_or(u32::MAX));
        if now != kept {
            self.change(peer, kept, now);
        }
        now
    }

    #[cold]
    fn change(&mut self, peer: IpAddr, before: Kept, now: Kept) {
        let (before, now) = (u64::from(before.0), u64::from(now.0));
        self.used = self.used - before + now;
        self.high_water = self.high_water.max(self.used);
        let peer = PeerId::of(peer);
        let kept = self.peers.entry(peer).or_default();
        *kept = *kept - before + now;
        if *kept == 0 {
            self.peers.remove(&peer);
        }
    }

    /// The most that a flow with this peer may keep now.
    #[inline]
    pub(super) fn limit(&self, peer: IpAddr, kept: Kept) -> u64 {
        let kept = u64::from(kept.0);
        let left = self.capacity.saturating_sub(self.used);
        // A peer keeps no more than all of them do: enough for any, without a look-up of the peer.
        if self.used <= self.capacity / 4 {
            return kept + (left - 2 * self.used) / 2;
        }
        let peer = self.peers.get(&PeerId::of(peer)).copied().unwrap_or(0);
        kept + ddp::share_of(left, peer + kept)
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

    /// Lets a flow keep as much as it may, in steps of at most `step`; how much that is.
    fn fill(budget: &mut KeepBudget, who: IpAddr, kept: &mut Kept, step: u64) -> u64 {
        for _ in 0..10_000 {
            let room = budget.limit(who, *kept).saturating_sub(kept.0.into());
            if room == 0 {
                break;
            }
            *kept = budget.count(who, *kept, u64::from(kept.0) + room.min(step));
        }
        kept.0.into()
    }

    #[test]
    fn a_greedy_flow_leaves_room_for_other_flows_and_other_peers() {
        let mut budget = KeepBudget::new(90_000);
        let [mut a, mut b, mut c] = [Kept::NOTHING; 3];
        let first = fill(&mut budget, peer(1), &mut a, 100);
        assert!((29_000..=30_000).contains(&first), "{first}");
        // Another flow of the same peer, then another peer.
        assert!(fill(&mut budget, peer(1), &mut b, 100) > 8_000);
        assert!(fill(&mut budget, peer(2), &mut c, 100) > 8_000);
        for (who, kept) in [(1, a), (1, b), (2, c)] {
            assert_eq!(budget.count(peer(who), kept, 0), Kept::NOTHING);
        }
        assert_eq!((budget.used(), budget.peers.len()), (0, 0));
        assert!(budget.high_water() <= 90_000);
    }

    proptest! {
        // Any streams take any amounts within their limits: never more than there is.
        #[test]
        fn limits_keep_to_the_budget(steps in prop::collection::vec((0usize..20, any::<bool>(), 1u64..5000), 1..300)) {
            let mut budget = KeepBudget::new(50_000);
            let mut flows = [Kept::NOTHING; 20];
            for (n, more, step) in steps {
                let (who, kept) = (peer(n as u8 % 4), &mut flows[n]);
                let has = u64::from(kept.0);
                let now = match more {
                    true => budget.limit(who, *kept).min(has + step).max(has),
                    false => has.saturating_sub(step),
                };
                *kept = budget.count(who, *kept, now);
                prop_assert!(budget.used() <= 50_000);
                prop_assert_eq!(budget.used(), flows.iter().map(|kept| u64::from(kept.0)).sum::<u64>());
                prop_assert_eq!(budget.used(), budget.peers.values().sum::<u64>());
            }
        }
    }
}
