//! Rate limits: one for all traffic ([`RateLimit`]), or one per peer and one for all peers together ([`PeerLimit`]).
//!
//! A rate limit shared by all peers is a side channel. By counting the answers to itself, an attacker learns whether
//! another address, perhaps a forged one, was answered, too (CVE-2016-5696 on TCP's challenge ACKs). So each peer also
//! has its own limit, and the common limit is randomised. A keyed hash of the peer's address (over IPv6, of its /64)
//! selects the peer's limit.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use base::Instant;
use ddp::PeerId;
use siphasher::sip::SipHasher13;

/// A token bucket that allows `per_second` events on average, and bursts of a tenth of `per_second`, at least one.
#[derive(Clone, Debug)]
pub struct RateLimit {
    /// Nanoseconds of credit per event; zero if no event is allowed.
    cost: u64,
    /// Maximum credit, nanoseconds.
    depth: u64,
    credit: u64,
    updated: Instant,
}

impl RateLimit {
    /// Creates a full bucket. If `per_second` is 0, no event is allowed.
    pub fn new(per_second: u32, now: Instant) -> Self {
        let cost = 1_000_000_000u64.checked_div(u64::from(per_second)).unwrap_or(0);
        let depth = cost.max(100_000_000);
        RateLimit { cost, depth, credit: depth, updated: now }
    }

    /// Takes a token if one is available. Returns true if the event is allowed now.
    pub fn take(&mut self, now: Instant) -> bool {
        self.take_credit(self.cost, now)
    }

    fn take_credit(&mut self, cost: u64, now: Instant) -> bool {
        if self.cost == 0 {
            return false;
        }
        self.credit = self.credit_at(now);
        self.updated = now;
        let is_allowed = self.credit >= cost;
        if is_allowed {
            self.credit -= cost;
        }
        is_allowed
    }

    fn credit_at(&self, now: Instant) -> u64 {
        let gained = now.nanos_since(self.updated).get().min(self.depth);
        (self.credit + gained).min(self.depth)
    }
}

/// Number of buckets for single peers. Peers whose keyed hashes collide share one.
const PEER_BUCKETS: usize = 256;
/// Divisor of the common rate. The quotient is the maximum rate of one peer.
const PEER_SHARE_DIVISOR: u32 = 4;

/// A rate limit for all peers together, and one for each peer.
#[derive(Debug)]
pub struct PeerLimit {
    common: RateLimit,
    per_peer: Box<[RateLimit]>,
    key: SipHasher13,
    taken: u64,
}

impl PeerLimit {
    /// Creates a limit of about `per_second` events in total, and at most a quarter of `per_second` for one peer. `key`
    /// is secret.
    pub fn new(per_second: u32, key: [u8; 16], now: Instant) -> Self {
        Self::with_share(per_second, PEER_SHARE_DIVISOR, key, now)
    }

    /// Creates a limit as [`new`](Self::new) does. The maximum rate of one peer is `1 / share` of the total, but not
    /// less than one event per second unless `per_second` is 0.
    pub fn with_share(per_second: u32, share: u32, key: [u8; 16], now: Instant) -> Self {
        let share = if per_second == 0 { 0 } else { (per_second / share.max(1)).max(1) };
        PeerLimit {
            common: RateLimit::new(per_second, now),
            per_peer: vec![RateLimit::new(share, now); PEER_BUCKETS].into(),
            key: SipHasher13::new_with_key(&key),
            taken: 0,
        }
    }

    /// Returns true if the common credit is below the minimum cost of an event, so that [`take`](Self::take) would
    /// return false for every peer.
    #[inline]
    pub fn is_exhausted(&self, now: Instant) -> bool {
        self.common.cost == 0 || self.common.credit_at(now) < self.common.cost / 2
    }

    /// Takes a token of `peer`, then a token of the common bucket. Returns true if both were available: the event is
    /// allowed now. If only the common token is missing, the token of `peer` is used up nevertheless.
    pub fn take(&mut self, peer: IpAddr, now: Instant) -> bool {
        let mut hasher = self.key;
        PeerId::from_address(peer).hash(&mut hasher);
        let share = &mut self.per_peer[hasher.finish() as usize % PEER_BUCKETS];
        if !share.take(now) {
            return false;
        }
        // Each event takes a random 0.5 to 1.5 times the average cost from the common credit. So an attacker cannot
        // tell from its own answers whether another peer was answered.
        self.taken += 1;
        let chance = self.key.hash(&self.taken.to_be_bytes()) % 1024;
        let cost = self.common.cost / 2 + self.common.cost * chance / 1024;
        self.common.take_credit(cost, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_allows_burst_then_average() {
        let mut limit = RateLimit::new(100, Instant::ZERO);
        let burst = (0..100).filter(|_| limit.take(Instant::ZERO)).count();
        assert_eq!(burst, 10);
        let second = (1..=1000).filter(|&ms| limit.take(Instant::from_millis(ms))).count();
        assert_eq!(second, 100);
        assert!(!RateLimit::new(0, Instant::ZERO).take(Instant::from_millis(5)));
    }

    fn peer(n: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n).to_be_bytes())
    }

    fn limit(key: u8) -> PeerLimit {
        PeerLimit::new(1000, [key; 16], Instant::ZERO)
    }

    #[test]
    fn exhausted_limit_refuses_every_peer() {
        let mut limit = limit(1);
        let mut exhausted = 0;
        for n in 0..5000 {
            let now = Instant::from_nanos(u64::from(n) * 100_000);
            let was = limit.is_exhausted(now);
            let may = limit.take(peer(n), now);
            assert!(!was || !may, "{n}");
            exhausted += u32::from(was);
        }
        assert!(exhausted > 1000, "{exhausted}");
        assert!(PeerLimit::new(0, [1; 16], Instant::ZERO).is_exhausted(Instant::ZERO));
    }

    #[test]
    fn single_peer_is_bounded_by_its_share() {
        let mut limit = limit(1);
        let many = (0..1000).filter(|_| limit.take(peer(1), Instant::ZERO)).count();
        assert_eq!(many, 25);
        let others = (2..40).filter(|&n| limit.take(peer(n), Instant::ZERO)).count();
        assert!(others >= 36, "{others} of 38 others");
        let all = (100..10_000).filter(|&n| limit.take(peer(n), Instant::ZERO)).count();
        assert!(all < 100, "{all}");
        assert!(!PeerLimit::new(0, [1; 16], Instant::ZERO).take(peer(1), Instant::ZERO));
    }

    // A host may choose any address of its /64, so all addresses of a /64 share one bucket.
    #[test]
    fn ipv6_prefix_shares_one_bucket() {
        let of = |prefix: u16, n: u32| {
            let (high, low) = ((n >> 16) as u16, n as u16);
            IpAddr::from([0x2001, 0xdb8, 0, prefix, 0, 0, high, low])
        };
        let mut limit = limit(1);
        let many = (0..1000).filter(|&n| limit.take(of(1, n * 77), Instant::ZERO)).count();
        assert_eq!(many, 25);
        let others = (2..40).filter(|&n| limit.take(of(n, 1), Instant::ZERO)).count();
        assert!(others >= 34, "{others} of 38 other prefixes");
    }

    // CVE-2016-5696: the number of events that exhaust the common bucket varies.
    #[test]
    fn remaining_credit_is_unpredictable_to_peer() {
        let mut seen: Vec<usize> = (0..20)
            .map(|key| {
                let mut limit = limit(key);
                (0..2000).take_while(|&n| limit.take(peer(n * 7), Instant::ZERO)).count()
            })
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 5, "{seen:?}");
    }
}
