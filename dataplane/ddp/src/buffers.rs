//! Untagged receive buffers of one worker, with a bound on the bytes of messages in reassembly. The bound also covers
//! the range records of messages whose segments arrive out of MO order. A buffer is allocated when a message's first
//! byte arrives, not when it is posted.
//!
//! Bytes of one message never appear in another: a buffer is empty when it is allocated, and skipped bytes are
//! zeroed.
//!
//! Peers share the bytes so that none can exhaust them (RFC 5041 §8.3.2 (5), RFC 5042 §6.4.3.1). A peer is granted one
//! more buffer only if the bytes left in the pool afterwards are at least the peer's new total. The streams of a peer
//! divide the peer's share by the same rule.
//!
//! ```text
//!   one greedy peer       |#################|                 |   leaves half
//!   two of them           |###########|###########|           |   leave a third
//!   n of them                                                     leave 1 / (n + 1)
//! ```
//!
//! A peer without buffers is refused only if too few bytes are left. Messages that begin beyond a gap cannot be
//! delivered before the message that closes the gap, and must not use up the bytes that this message needs. Messages
//! beyond a gap therefore share half of the bytes by the same rule, accounted separately from messages in order.

use std::collections::HashMap;
use std::net::IpAddr;

/// Maximum number of spare buffers that are not longer than [`LONG`].
const MAX_SHORT: usize = 64;
/// Maximum size of all spare [`LONG`] buffers, bytes.
const MAX_LONG_BYTES: usize = 4 << 20;
/// Capacity in bytes above which a buffer is long. Long buffers are reused for long messages only: a short message must
/// not keep a long buffer in use. Long buffers are reused because fresh pages for a long message would cost more than
/// the copy of its bytes.
const LONG: usize = 64 * 1024;

/// The peer of an LLP connection. Streams with the same `PeerId` share the limits of one peer: on the number of streams
/// and half-open streams, on the bytes of buffers, fragments and copies of sent data, and on the rate of answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeerId(u64);

impl PeerId {
    /// Returns the identity for an IPv4 address, or for the 64-bit prefix of an IPv6 address, because a host can use
    /// any address within its prefix.
    pub fn from_address(address: IpAddr) -> PeerId {
        let v6 = match address {
            IpAddr::V4(v4) => return PeerId(0xffff << 32 | u64::from(u32::from(v4))),
            IpAddr::V6(v6) => v6,
        };
        match v6.to_ipv4_mapped() {
            Some(v4) => PeerId::from_address(v4.into()),
            None => PeerId((u128::from(v6) >> 64) as u64),
        }
    }

    /// Returns the identity as bytes, for a keyed hash.
    pub const fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// Bytes reserved for unfinished messages, counted separately for messages that began in order and messages that began
/// beyond a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Usage {
    in_order: u64,
    out_of_order: u64,
}

impl Usage {
    fn bytes_mut(&mut self, in_order: bool) -> &mut u64 {
        if in_order { &mut self.in_order } else { &mut self.out_of_order }
    }
}

/// Returns the maximum grant, in bytes, from a budget with `remaining` bytes left. After this grant, the budget has
/// `used` plus the grant left. `used`: bytes that the peer has reserved; for the share of one stream, the sum of the
/// peer's and the stream's reserved bytes. All budgets shared between peers use this rule.
#[inline]
pub const fn grant_limit(remaining: u64, used: u64) -> u64 {
    remaining.saturating_sub(used) / 2
}

/// Bytes that one stream has reserved in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) peer: PeerId,
    used: Usage,
}

impl Account {
    /// An empty account without a peer.
    pub(crate) const EMPTY: Account =
        Account { peer: PeerId(0), used: Usage { in_order: 0, out_of_order: 0 } };

    pub(crate) fn is_empty(&self) -> bool {
        self.used == Usage::default()
    }
}

/// Empty vectors with capacity, kept for reuse.
#[derive(Debug, Default)]
struct SpareBuffers {
    short_buffers: Vec<Vec<u8>>,
    long_buffers: Vec<Vec<u8>>,
    /// Total capacity of the long vectors, bytes.
    long_bytes: usize,
}

impl SpareBuffers {
    fn put(&mut self, mut data: Vec<u8>) {
        let len = data.capacity();
        data.clear();
        if len > LONG {
            if self.long_bytes + len <= MAX_LONG_BYTES {
                self.long_bytes += len;
                self.long_buffers.push(data);
            }
        } else if len > 0 && self.short_buffers.len() < MAX_SHORT {
            self.short_buffers.push(data);
        }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        if len <= LONG {
            return self.short_buffers.pop().unwrap_or_default();
        }
        let data = self.long_buffers.pop().unwrap_or_default();
        self.long_bytes -= data.capacity();
        data
    }
}

/// Pool of the untagged receive buffers of one worker. All unfinished messages together reserve at most
/// [`capacity`](Self::capacity) bytes.
#[derive(Debug)]
pub struct BufferPool {
    capacity: u64,
    used: Usage,
    high_water: u64,
    refused_full: u64,
    refused_share: u64,
    /// Bytes reserved by each peer; peers without bytes have no entry.
    peers: HashMap<PeerId, Usage>,
    spare: SpareBuffers,
}

impl BufferPool {
    /// Returns a pool for at most `capacity` bytes of unfinished messages. `capacity` should be several times the
    /// longest buffer of any queue. If `capacity` is smaller than that buffer, no message of several segments
    /// completes.
    pub fn new(capacity: u64) -> Self {
        BufferPool {
            capacity,
            used: Usage::default(),
            high_water: 0,
            refused_full: 0,
            refused_share: 0,
            peers: HashMap::new(),
            spare: SpareBuffers::default(),
        }
    }

    /// Returns the bound on bytes of unfinished messages.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes reserved by unfinished messages. Each message counts with its whole
    /// buffer.
    pub fn in_use(&self) -> u64 {
        self.used.in_order + self.used.out_of_order
    }

    /// Returns the maximum of [`in_use`](Self::in_use) so far.
    pub fn high_water(&self) -> u64 {
        self.high_water
    }

    /// Returns the number of buffers refused because too few bytes were left.
    pub fn refused_full(&self) -> u64 {
        self.refused_full
    }

    /// Returns the number of buffers refused because the stream or its peer has used up its share, although enough
    /// bytes were left.
    pub fn refused_share(&self) -> u64 {
        self.refused_share
    }

    /// Returns the bytes reserved by the unfinished messages of one peer.
    #[cfg(test)]
    fn in_use_by(&self, peer: PeerId) -> u64 {
        self.peers.get(&peer).map_or(0, |used| used.in_order + used.out_of_order)
    }

    /// Takes back the vector of a delivered message for reuse.
    pub fn recycle(&mut self, data: Vec<u8>) {
        self.spare.put(data);
    }

    /// Returns true if the pool has room for a one-segment message of `size` bytes. Reserves nothing, because the
    /// message is delivered at once. Counts a refusal if there is no room.
    pub(crate) fn admit_transient(&mut self, size: u32) -> bool {
        let used = self.in_use() + u64::from(size);
        let fits = used <= self.capacity;
        if fits {
            self.high_water = self.high_water.max(used);
        } else {
            self.refused_full += 1;
        }
        fits
    }

    /// Reserves `size` bytes for the account. Returns false, and counts a refusal, if the pool is full or the share of
    /// the stream or its peer is used up.
    pub(crate) fn reserve(&mut self, account: &mut Account, size: u32, in_order: bool) -> bool {
        let size = u64::from(size);
        let remaining = if in_order {
            self.capacity.saturating_sub(self.in_use())
        } else {
            (self.capacity / 2)
                .saturating_sub(self.used.out_of_order)
                .min(self.capacity - self.in_use())
        };
        if size > remaining {
            self.refused_full += 1;
            return false;
        }
        let peer = *self.peers.get(&account.peer).copied().unwrap_or_default().bytes_mut(in_order);
        let stream = *account.used.bytes_mut(in_order);
        let exceeds_share = |used: u64| size > grant_limit(remaining, used);
        if (peer > 0 && exceeds_share(peer)) || (stream > 0 && exceeds_share(peer + stream)) {
            self.refused_share += 1;
            return false;
        }
        *self.used.bytes_mut(in_order) += size;
        *self.peers.entry(account.peer).or_default().bytes_mut(in_order) += size;
        *account.used.bytes_mut(in_order) += size;
        self.high_water = self.high_water.max(self.in_use());
        true
    }

    /// Releases `size` bytes of earlier [`reserve`](Self::reserve) calls, but not more than the account still has
    /// reserved.
    pub(crate) fn release(&mut self, account: &mut Account, size: u64, in_order: bool) {
        let size = size.min(*account.used.bytes_mut(in_order));
        let give = |used: &mut Usage| {
            let bytes = used.bytes_mut(in_order);
            *bytes = bytes.saturating_sub(size);
        };
        give(&mut self.used);
        give(&mut account.used);
        if let Some(used) = self.peers.get_mut(&account.peer) {
            give(used);
            if *used == Usage::default() {
                self.peers.remove(&account.peer);
            }
        }
    }

    /// Releases all bytes of the account.
    pub(crate) fn release_all(&mut self, account: &mut Account) {
        let Usage { in_order, out_of_order: beyond } = account.used;
        self.release(account, in_order, true);
        self.release(account, beyond, false);
    }

    /// Returns an empty vector for a message of at most `len` bytes, reused or new.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        self.spare.take(len)
    }

    /// Returns the bytes of a complete message. If they fill at most half of a long buffer, they are copied to a
    /// smaller buffer, and the long buffer is kept for reuse.
    pub(crate) fn compact(&mut self, data: Vec<u8>) -> Vec<u8> {
        if data.capacity() <= LONG || data.len() > data.capacity() / 2 {
            return data;
        }
        let mut fitting = self.take(data.len().min(LONG));
        fitting.extend_from_slice(&data);
        self.recycle(data);
        fitting
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn account(peer: u64) -> Account {
        Account { peer: PeerId(peer), used: Usage::default() }
    }

    #[test]
    fn pool_is_bounded_and_counts_refusals() {
        let mut pool = BufferPool::new(100);
        let [mut a, mut b] = [1, 2].map(account);
        assert!(!pool.reserve(&mut a, 51, false));
        assert!(pool.reserve(&mut a, 50, false));
        assert!(!pool.reserve(&mut b, 1, false), "the half for data beyond a gap is full");
        assert!(!pool.reserve(&mut b, 51, true));
        assert!(
            pool.reserve(&mut a, 50, true),
            "data in order is not refused because of data beyond the gap"
        );
        assert_eq!((pool.in_use(), pool.high_water(), pool.capacity()), (100, 100, 100));
        assert_eq!((pool.refused_full(), pool.refused_share()), (3, 0));
        pool.release(&mut a, 50, false);
        pool.release(&mut a, 50, true);
        assert_eq!((pool.in_use(), pool.high_water(), pool.peers.len()), (0, 100, 0));
    }

    /// RFC 5041 §8.3.2 (5), RFC 5042 §6.4.3.1: a single stream gets a third of the pool, all streams of a single peer
    /// half of it.
    #[test]
    fn one_peer_leaves_as_much_as_it_takes() {
        let mut pool = BufferPool::new(1200);
        let fill = |pool: &mut BufferPool, account: &mut Account| {
            (0..).take_while(|_| pool.reserve(account, 10, true)).count()
        };
        let mut streams: Vec<Account> = (0..1000).map(|_| account(1)).collect();
        assert_eq!(fill(&mut pool, &mut streams[0]), 40, "one stream: a third");
        let rest: usize = streams[1..].iter_mut().map(|s| fill(&mut pool, s)).sum();
        assert_eq!(rest, 20, "one peer with several streams gets half");
        assert_eq!(pool.in_use_by(PeerId(1)), 600);
        assert!(pool.refused_share() >= 1000 && pool.refused_full() == 0);
        let mut another: Vec<Account> = (0..1000).map(|_| account(2)).collect();
        assert_eq!(another.iter_mut().map(|s| fill(&mut pool, s)).sum::<usize>(), 30);
        // A peer without buffers is still granted a large buffer.
        assert!(pool.reserve(&mut account(3), 300, true));
        assert!(!pool.reserve(&mut account(4), 1, true));
        assert_eq!(pool.refused_full(), 1);
    }

    proptest! {
        /// For any reservations and releases by any streams and peers, a peer without buffers is granted its share, and
        /// all bytes are released.
        #[test]
        fn peer_without_buffers_gets_its_share(
            steps in proptest::collection::vec((0u64..4, 0usize..3, 1u32..40, any::<bool>(), 0u8..4), 0..300),
        ) {
            const CAPACITY: u64 = 1000;
            let mut pool = BufferPool::new(CAPACITY);
            let mut accounts: Vec<Account> = (0..12).map(|i| account(1 + i / 3)).collect();
            let mut taken: Vec<(usize, u32, bool)> = Vec::new();
            for (peer, stream, size, in_order, give) in steps {
                if give == 0 && !taken.is_empty() {
                    let (who, size, in_order) = taken.swap_remove(size as usize % taken.len());
                    pool.release(&mut accounts[who], size.into(), in_order);
                } else {
                    let index = peer as usize * 3 + stream;
                    if pool.reserve(&mut accounts[index], size, in_order) {
                        taken.push((index, size, in_order));
                    }
                }
                let sum: u64 = taken.iter().map(|(_, size, _)| u64::from(*size)).sum();
                prop_assert_eq!(pool.in_use(), sum);
                prop_assert!(sum <= CAPACITY && pool.used.out_of_order <= CAPACITY / 2);
                // Messages beyond gaps have at most half of the bytes. Four peers leave a new peer at least a fifth of
                // the other half, minus at most 40 bytes by which a peer's first buffer may exceed its share.
                let share = CAPACITY / 2 / 5 - 40;
                let mut newcomer = account(99);
                prop_assert!(pool.reserve(&mut newcomer, share as u32, true));
                pool.release(&mut newcomer, share, true);
            }
            for (who, size, in_order) in taken {
                pool.release(&mut accounts[who], size.into(), in_order);
            }
            prop_assert_eq!((pool.in_use(), pool.peers.len()), (0, 0));
        }
    }

    #[test]
    fn peer_id_is_ipv4_address_or_ipv6_prefix() {
        let of = |text: &str| PeerId::from_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn a_recycled_buffer_is_empty() {
        let mut pool = BufferPool::new(0);
        pool.recycle(vec![7; 100]);
        let data = pool.take(100);
        assert!(data.is_empty() && data.capacity() >= 100);
        assert_eq!(pool.take(100).capacity(), 0);
    }

    #[test]
    fn spare_buffers_are_bounded() {
        let mut pool = BufferPool::new(0);
        for _ in 0..2 * MAX_SHORT {
            pool.recycle(vec![0; 10]);
        }
        for _ in 0..8 {
            pool.recycle(vec![0; 1 << 20]);
        }
        assert_eq!((pool.spare.short_buffers.len(), pool.spare.long_buffers.len()), (MAX_SHORT, 4));
        assert!((0..4).all(|_| pool.take(LONG + 1).capacity() == 1 << 20));
        assert_eq!((pool.take(LONG + 1).capacity(), pool.spare.long_bytes), (0, 0));
        // Requests for long buffers have not used up the spare short ones.
        assert!((0..MAX_SHORT).all(|_| pool.take(LONG).capacity() == 10));
    }

    #[test]
    fn short_message_releases_its_long_buffer() {
        let mut pool = BufferPool::new(0);
        pool.recycle(vec![0; 1 << 20]);
        assert_eq!(pool.take(10).capacity(), 0);
        let mut data = pool.take(1 << 20);
        data.extend_from_slice(&[7; 100]);
        let fitting = pool.compact(data);
        assert_eq!(fitting, [7; 100]);
        assert!(fitting.capacity() <= LONG);
        assert_eq!(pool.spare.long_buffers.len(), 1);
        let mut long = pool.take(1 << 20);
        long.resize(1 << 20, 1);
        assert_eq!(pool.compact(long).capacity(), 1 << 20);
    }
}
