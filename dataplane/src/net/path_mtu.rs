//! Cache of the path MTUs that one worker's streams and associations have discovered (RFC 1191 §3, RFC 8201 §5.2).
//! Later streams and associations with the same peer use them. The number of entries is bounded ([`PathMtus::new`]).
//! Entries expire after [`MAX_AGE`], because paths change.

use std::net::IpAddr;
use std::time::Duration;

use base::Instant;
use hashbrown::HashMap;

/// Lifetime of an entry (RFC 1191 §6.3 and RFC 8201 §5.3 suggest ten minutes).
pub const MAX_AGE: Duration = Duration::from_secs(600);

/// Index of the interface, and the peer's IP address.
pub type Peer = (usize, IpAddr);

/// Discovered path MTUs in bytes, by peer.
#[derive(Debug)]
pub struct PathMtus {
    entries: HashMap<Peer, (u16, Instant)>,
    limit: usize,
}

impl PathMtus {
    /// Creates a cache of at most `limit` peers.
    pub fn new(limit: usize) -> Self {
        PathMtus { entries: HashMap::new(), limit }
    }

    /// Stores a discovered path MTU in bytes. If the cache is full and has no entry of the peer, all expired entries
    /// are removed first. If none has expired, the oldest entry is removed.
    pub fn learn(&mut self, peer: Peer, mtu: u16, now: Instant) {
        if self.entries.len() >= self.limit && !self.entries.contains_key(&peer) {
            self.entries.retain(|_, (_, until)| *until > now);
            if self.entries.len() >= self.limit {
                let oldest = self.entries.iter().min_by_key(|(_, (_, until))| *until).map(|e| *e.0);
                let Some(oldest) = oldest else { return }; // the limit is 0
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(peer, (mtu, now + MAX_AGE));
    }

    /// Returns the path MTU of this peer in bytes; `None` if unknown or expired.
    pub fn get(&self, peer: Peer, now: Instant) -> Option<u16> {
        self.entries.get(&peer).filter(|(_, until)| *until > now).map(|(mtu, _)| *mtu)
    }

    /// Returns the number of peers, including expired entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> Peer {
        (0, [10, 0, 0, n].into())
    }

    // RFC 1191 §6.3: entries expire.
    #[test]
    fn path_mtu_expires_after_max_age() {
        let mut mtus = PathMtus::new(2);
        mtus.learn(peer(1), 1000, Instant::ZERO);
        assert_eq!(mtus.get(peer(1), Instant::ZERO + MAX_AGE / 2), Some(1000));
        assert_eq!(mtus.get(peer(1), Instant::ZERO + MAX_AGE), None);
        assert_eq!(mtus.get((1, peer(1).1), Instant::ZERO), None, "another interface");
    }

    #[test]
    fn full_path_mtu_cache_evicts_oldest() {
        let mut mtus = PathMtus::new(2);
        for n in 1..=3 {
            mtus.learn(peer(n), 1000 + u16::from(n), Instant::from_millis(u64::from(n)));
        }
        let now = Instant::from_millis(4);
        assert_eq!([1, 2, 3].map(|n| mtus.get(peer(n), now)), [None, Some(1002), Some(1003)]);
        mtus.learn(peer(2), 900, now);
        assert_eq!((mtus.len(), mtus.get(peer(2), now)), (2, Some(900)));
        let mut none = PathMtus::new(0);
        none.learn(peer(1), 1000, now);
        assert!(none.is_empty());
    }
}
