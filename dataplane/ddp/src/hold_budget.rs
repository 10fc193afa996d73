//! The budget of one worker for received bytes that cannot be passed to DDP yet: bytes of TCP streams, mostly beyond
//! gaps, and fragments of SCTP messages.
//!
//! TCP streams hold bytes while the budget has some left; each may exceed the budget by one FPDU in order. SCTP
//! associations reserve bytes before they hold them, and never exceed the budget. Fragments beyond a gap share half of
//! the budget, so that they cannot exclude fragments that complete messages in order. Peers share the budget by the
//! rule of the untagged buffers ([`grant_limit`]).

use std::collections::HashMap;

use crate::buffers::{PeerId, grant_limit};
use crate::window_budget::WindowBudget;

/// The bytes that all streams of a worker together may hold, and their use.
#[derive(Debug)]
pub struct HoldBudget {
    limit: u64,
    used: u64,
    /// Bytes that each peer has reserved for fragments.
    peers: HashMap<PeerId, u64>,
    windows: WindowBudget,
}

impl HoldBudget {
    /// Returns a budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        HoldBudget { limit, used: 0, peers: HashMap::new(), windows: WindowBudget::default() }
    }

    /// Returns the same budget, with `windows` as its budget for receive windows.
    #[must_use]
    pub fn with_windows(self, windows: WindowBudget) -> Self {
        HoldBudget { windows, ..self }
    }

    /// Returns the budget for the growth of receive windows.
    pub fn windows(&self) -> &WindowBudget {
        &self.windows
    }

    /// Returns the budget for the growth of receive windows, mutably.
    pub fn windows_mut(&mut self) -> &mut WindowBudget {
        &mut self.windows
    }

    /// Returns the bytes held now. May exceed the limit: a TCP stream may always hold one FPDU in order.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the bound on held bytes.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many more bytes may be held.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Counts bytes that a TCP stream begins to hold.
    #[inline]
    pub fn charge(&mut self, bytes: usize) {
        self.used += bytes as u64;
    }

    /// Counts bytes that a TCP stream has released.
    #[inline]
    pub fn refund(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes as u64);
    }

    /// Reserves `bytes` for a fragment of this peer. Returns false if the budget or the peer's share is used
    /// up.
    #[must_use]
    pub fn reserve(&mut self, peer: PeerId, bytes: u64, in_order: bool) -> bool {
        let limit = if in_order { self.limit } else { self.limit / 2 };
        let remaining = limit.saturating_sub(self.used);
        let reserved = self.peers.get(&peer).copied().unwrap_or(0);
        if bytes > remaining || (reserved > 0 && bytes > grant_limit(remaining, reserved)) {
            return false;
        }
        self.used += bytes;
        *self.peers.entry(peer).or_default() += bytes;
        true
    }

    /// Releases `bytes` that [`reserve`](Self::reserve) has reserved for this peer.
    pub fn release(&mut self, peer: PeerId, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.used = self.used.saturating_sub(bytes);
        if let Some(reserved) = self.peers.get_mut(&peer) {
            *reserved = reserved.saturating_sub(bytes);
            if *reserved == 0 {
                self.peers.remove(&peer);
            }
        }
    }

    /// Returns the number of bytes that a peer can always reserve for in-order fragments while no other peer and no TCP
    /// stream holds bytes. The peer's own bytes beyond gaps do not lower this number.
    pub fn guaranteed_bytes(&self) -> u64 {
        self.limit / 4
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId::from_address([192, 0, 2, n].into())
    }

    fn fill(budget: &mut HoldBudget, n: u8, in_order: bool) -> u64 {
        10 * (0..).take_while(|_| budget.reserve(peer(n), 10, in_order)).count() as u64
    }

    #[test]
    fn held_bytes_leave_room_for_peers_and_in_order_data() {
        let mut budget = HoldBudget::new(4000);
        assert_eq!(fill(&mut budget, 1, false), 1000, "half of the share for bytes beyond a gap");
        assert_eq!(fill(&mut budget, 1, true), budget.guaranteed_bytes());
        assert_eq!(fill(&mut budget, 2, true), 1000, "half of the bytes left");
        assert_eq!((budget.limit(), budget.remaining()), (4000, 1000));
        // Bytes held by TCP count in the same budget, and may exceed it.
        budget.charge(5000);
        assert_eq!(budget.remaining(), 0);
        assert!(!budget.reserve(peer(3), 10, true));
        budget.refund(5000);
        budget.release(peer(1), 2000);
        budget.release(peer(2), 1000);
        assert_eq!((budget.used(), budget.peers.len()), (0, 0));
    }

    #[test]
    fn window_budget_is_separate_from_hold_budget() {
        let mut budget = HoldBudget::new(10).with_windows(WindowBudget::new(100));
        assert!(budget.windows_mut().widen(0, 50) && !budget.windows_mut().widen(0, 50));
        assert_eq!((budget.limit(), budget.used(), budget.windows().used()), (10, 0, 50));
    }

    proptest! {
        // For any order of reservations and releases, the bytes in use equal the reserved bytes and are at most the
        // limit.
        #[test]
        fn held_bytes_never_exceed_the_limit(steps in prop::collection::vec((0u8..5, 1u64..300, any::<bool>(), any::<bool>()), 0..300)) {
            let mut budget = HoldBudget::new(2000);
            let mut has = [0; 5];
            for (who, bytes, in_order, give) in steps {
                let of_who = &mut has[usize::from(who)];
                if give {
                    let bytes = bytes.min(*of_who);
                    budget.release(peer(who), bytes);
                    *of_who -= bytes;
                } else if budget.reserve(peer(who), bytes, in_order) {
                    *of_who += bytes;
                }
                prop_assert!(budget.used() <= 2000);
                prop_assert_eq!(budget.used(), has.iter().sum::<u64>());
            }
        }
    }
}
