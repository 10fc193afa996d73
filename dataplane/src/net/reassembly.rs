//! Reassembly of fragmented packets (RFC 791 §3.2, RFC 8200 §4.5) within small bounds. TCP and SCTP avoid
//! fragmentation, so legitimate fragments are few, but attackers can send any number.
//!
//! ```text
//!  0        8                                          total
//!  | piece | piece      |   hole   | piece            |
//!    the first piece has the headers      the last piece has the end
//! ```
//!
//! Invariants: the numbers of packets and bytes are bounded, and one peer (an IPv6 peer is a /64) has at most a quarter
//! of each. A packet is freed when it is complete, at the latest at its time-out. If a common limit is reached, the
//! oldest packets are evicted. Overlapping fragments are never merged: the whole packet is discarded, and its later
//! fragments are refused (RFC 5722, here for IPv4, too). A duplicate fragment is not an overlap (RFC 8200 §4.5).
//!
//! The cost per fragment is independent of the number of packets and fragments. Packets and peers are found by keyed
//! hashes, and their sizes are counted as they change.
//!
//! ICMP time exceeded is not sent. TCP, SCTP (also in UDP) and, with IPsec policies, ESP and UDP are reassembled. No
//! other protocol of this stack sends packets longer than the MTU.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use base::Instant;
use ddp::PeerId;
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::protocol::{TCP, UDP, UDP_HEADER};
use crate::checksum;
use crate::drops::DropReason;

/// Reassembly time-out of a packet.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of fragments of a packet: enough for the longest packet in IP fragments of 576 bytes.
const MAX_FRAGMENTS: usize = 128;
/// The deadline queue is compacted when it has twice this many entries, or twice the packet limit if that is larger.
const MIN_STALE_ENTRIES: usize = 16;
/// Divisor of the common limits of packets and bytes. The quotients are the limits of one peer.
const PEER_SHARE_DIVISOR: usize = 4;
/// Bytes accounted for the bookkeeping of a fragment, and of a packet.
const FRAGMENT_COST: usize = 64;
const PACKET_COST: usize = 256;
/// Bytes of the shortest TCP header. A fragment that begins or ends inside the header hides flags and ports from
/// filters (RFC 1858 §3, RFC 3128, RFC 7112).
const TCP_HEADER: usize = 20;
/// Bytes of SCTP's common header and one chunk header (RFC 9260 §3).
const SCTP_HEADERS: usize = 16;
/// Largest payload of an IP packet in bytes (RFC 791 §3.1, RFC 8200 §3).
const MAX_PAYLOAD: usize = 65_535;

const IPV6_HEADER: usize = 40;

const NOT_ECT: u8 = 0;
const CE: u8 = 3;

/// A parsed fragment, as [`demux`](super::demux::demux) returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Source address of the packet.
    pub source: IpAddr,
    /// One of our addresses.
    pub destination: IpAddr,
    /// IP protocol of the packet.
    pub protocol: u8,
    /// Identification of the packet; below 2^16 for IPv4.
    pub id: u32,
    /// Offset of the fragment's data in the packet's payload, in bytes.
    pub offset: usize,
    /// True if more fragments follow.
    pub more_fragments: bool,
    /// Offset of the IP header in the frame.
    pub ip: usize,
    /// Range of the fragment's data in the frame.
    pub payload: Range<usize>,
}

/// Result of an accepted fragment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The packet still lacks fragments.
    Waiting,
    /// The packet is complete. The value is its frame, as if the packet had not been fragmented. Checksums in
    /// its payload have not been verified.
    Complete(Vec<u8>),
}

/// One worker's incomplete packets.
#[derive(Debug)]
pub struct Reassembly {
    packets: HashTable<Packet>,
    peers: HashTable<Peer>,
    /// One entry per packet, in the order in which the packets' first fragments arrived, and so in the order of
    /// deadlines. An entry is stale once its packet is freed. The first entry is never stale.
    deadlines: VecDeque<DeadlineEntry>,
    /// Serial number of the newest packet, which is the number of packets started so far. Serial numbers are unique,
    /// unlike hashes.
    serial: u64,
    hasher: SipHasher13,
    max_packets: usize,
    max_bytes: usize,
    bytes: usize,
}

/// Queue entry of a packet. The packet may have been freed since.
#[derive(Clone, Copy, Debug)]
struct DeadlineEntry {
    hash: u64,
    serial: u64,
    deadline: Instant,
}

/// Number of packets and bytes accounted to a packet or a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Usage {
    packets: usize,
    bytes: usize,
}

impl Usage {
    const NONE: Usage = Usage { packets: 0, bytes: 0 };
}

/// Identifier of a peer, and its keyed hash.
#[derive(Clone, Copy, Debug)]
struct PeerKey {
    hash: u64,
    id: PeerId,
}

#[derive(Debug)]
struct Peer {
    id: PeerId,
    hash: u64,
    usage: Usage,
}

#[derive(Debug)]
struct Packet {
    key: Key,
    hash: u64,
    serial: u64,
    /// Bytes accounted for the packet and its fragments.
    cost: usize,
    /// Bytes of data received.
    received: usize,
    /// Link and IP headers of the fragment at offset 0, without IPv6's fragment header. `None` until that
    /// fragment arrives.
    head: Option<Box<[u8]>>,
    /// Fragments with their offsets, in ascending order and without overlap.
    fragments: Vec<(usize, Box<[u8]>)>,
    total: Option<usize>,
    /// ECN codepoints of the fragments (RFC 3168), one bit per codepoint.
    ecn: u8,
    /// True if the packet was discarded. The entry remains until its deadline, so that later fragments are refused.
    discarded: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    interface: usize,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    id: u32,
}

impl Key {
    fn hash(&self, hasher: &SipHasher13) -> u64 {
        let mut bytes = [0; 39];
        bytes[..2].copy_from_slice(&(self.interface as u16).to_be_bytes());
        bytes[2..6].copy_from_slice(&self.id.to_be_bytes());
        bytes[6] = self.protocol;
        let len = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[7..11].copy_from_slice(&source.octets());
                bytes[11..15].copy_from_slice(&destination.octets());
                15
            }
            (source, destination) => {
                bytes[7..23].copy_from_slice(&v6(source));
                bytes[23..39].copy_from_slice(&v6(destination));
                39
            }
        };
        hasher.hash(&bytes[..len])
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Reassembly {
    /// Creates a reassembly of at most `packets` packets and `bytes` bytes, including the cost of bookkeeping. `key` is
    /// secret, so that peers cannot choose packets whose hashes collide.
    pub fn new(packets: usize, bytes: usize, key: [u8; 16]) -> Self {
        Reassembly {
            packets: HashTable::new(),
            peers: HashTable::new(),
            deadlines: VecDeque::new(),
            serial: 0,
            hasher: SipHasher13::new_with_key(&key),
            max_packets: packets,
            max_bytes: bytes,
            bytes: 0,
        }
    }

    /// Adds a fragment that arrived in `frame` on the interface at index `interface`. Returns the outcome and the
    /// number of evicted packets.
    ///
    /// # Errors
    /// The drop reason of the fragment. The whole packet may have been discarded.
    pub fn input(
        &mut self,
        interface: usize,
        fragment: &Fragment,
        frame: &[u8],
        now: Instant,
    ) -> Result<(Outcome, u64), DropReason> {
        check(fragment)?;
        let Fragment { source, destination, protocol, id, .. } = *fragment;
        let key = Key { interface, source, destination, protocol, id };
        let (hash, peer) = (key.hash(&self.hasher), self.peer(source));
        let known = self.packets.find(hash, |p| p.key == key).is_some();
        let cost = fragment.payload.len() + FRAGMENT_COST + PACKET_COST;
        let evicted = self.make_room(peer, cost, !known)?;
        // The eviction may have removed the fragment's own packet.
        if !known || evicted > 0 && self.packets.find(hash, |p| p.key == key).is_none() {
            self.start_packet(key, hash, peer, now + TIMEOUT);
        }
        let packet = self.packets.find_mut(hash, |p| p.key == key);
        let packet = packet.ok_or(DropReason::FragmentLimit)?;
        let before = Usage { packets: 1, bytes: packet.cost };
        let added = packet.add(fragment, frame);
        let after = Usage { packets: 1, bytes: packet.cost };
        let (whole, serial) = (packet.is_complete(), packet.serial);
        self.update_accounts(peer, before, after);
        added?;
        if !whole {
            return Ok((Outcome::Waiting, evicted));
        }
        let whole = self.remove(hash, serial).and_then(Packet::reassemble);
        self.pop_stale_entries();
        whole.map(|frame| (Outcome::Complete(frame), evicted)).ok_or(DropReason::FragmentBad)
    }

    /// Frees the incomplete and discarded packets whose deadline has passed. Returns their number.
    pub fn expire(&mut self, now: Instant) -> u64 {
        let mut expired = 0;
        while self.deadlines.front().is_some_and(|p| p.deadline <= now) {
            self.drop_oldest();
            expired += 1;
        }
        expired
    }

    /// Returns the due time of the next [`expire`](Self::expire); `None` without packets.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|p| p.deadline)
    }

    /// Returns the number of incomplete and discarded packets in memory.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if there are no packets.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the accounted bytes, at most the limit given to [`new`](Self::new).
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the peer of a source address.
    fn peer(&self, source: IpAddr) -> PeerKey {
        let id = PeerId::from_address(source);
        PeerKey { hash: self.hasher.hash(&id.bytes()), id }
    }

    /// Evicts the oldest packets until there is room for `cost` more bytes and, if `one_more`, for a new packet.
    /// Returns the number of evicted packets. A peer that would exceed its share is refused, so that it cannot evict
    /// the packets of others.
    fn make_room(&mut self, peer: PeerKey, cost: usize, one_more: bool) -> Result<u64, DropReason> {
        let of_peer = self.peers.find(peer.hash, |p| p.id == peer.id);
        let Usage { packets, bytes } = of_peer.map_or(Usage::NONE, |p| p.usage);
        let too_many = one_more
            && (packets + 1) * PEER_SHARE_DIVISOR > self.max_packets.max(PEER_SHARE_DIVISOR);
        if too_many || (bytes + cost) * PEER_SHARE_DIVISOR > self.max_bytes {
            return Err(DropReason::FragmentLimit);
        }
        let mut evicted = 0;
        while self.bytes + cost > self.max_bytes
            || one_more && self.packets.len() >= self.max_packets
        {
            if self.packets.is_empty() {
                return Err(DropReason::FragmentLimit);
            }
            self.drop_oldest();
            evicted += 1;
        }
        Ok(evicted)
    }

    fn start_packet(&mut self, key: Key, hash: u64, peer: PeerKey, deadline: Instant) {
        self.serial += 1;
        let serial = self.serial;
        self.packets.insert_unique(hash, Packet::new(key, hash, serial), |p| p.hash);
        // Completed packets leave stale entries in the queue.
        if self.deadlines.len() >= 2 * self.max_packets.max(MIN_STALE_ENTRIES) {
            let packets = &self.packets;
            self.deadlines.retain(|b| packets.find(b.hash, |p| p.serial == b.serial).is_some());
        }
        self.deadlines.push_back(DeadlineEntry { hash, serial, deadline });
        self.update_accounts(peer, Usage::NONE, Usage { packets: 1, bytes: PACKET_COST });
    }

    /// Replaces the usage `before` by `after` in the accounts of the peer and of all peers together. Removes the
    /// account of a peer without packets.
    fn update_accounts(&mut self, peer: PeerKey, before: Usage, after: Usage) {
        if before == after {
            return;
        }
        let PeerKey { hash, id } = peer;
        self.bytes = self.bytes - before.bytes + after.bytes;
        let found = self.peers.entry(hash, |p| p.id == id, |p| p.hash);
        let mut peer = found.or_insert(Peer { id, hash, usage: Usage::NONE });
        let usage = &mut peer.get_mut().usage;
        usage.packets = usage.packets - before.packets + after.packets;
        usage.bytes = usage.bytes - before.bytes + after.bytes;
        if usage.packets == 0
            && let Ok(gone) = self.peers.find_entry(hash, |p| p.id == id)
        {
            gone.remove();
        }
    }

    fn remove(&mut self, hash: u64, serial: u64) -> Option<Packet> {
        let found = self.packets.find_entry(hash, |p| p.serial == serial).ok()?;
        let (packet, _) = found.remove();
        let peer = self.peer(packet.key.source);
        let used = Usage { packets: 1, bytes: packet.cost };
        self.update_accounts(peer, used, Usage::NONE);
        Some(packet)
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.deadlines.pop_front() {
            self.remove(oldest.hash, oldest.serial);
        }
        self.pop_stale_entries();
    }

    /// Removes stale entries from the front of the queue, so that its first entry is not stale.
    fn pop_stale_entries(&mut self) {
        while let Some(oldest) = self.deadlines.front()
            && self.packets.find(oldest.hash, |p| p.serial == oldest.serial).is_none()
        {
            self.deadlines.pop_front();
        }
    }
}

/// Checks length and offset of a single fragment, and that the fragment does not divide the transport header.
fn check(fragment: &Fragment) -> Result<(), DropReason> {
    let (start, len) = (fragment.offset, fragment.payload.len());
    // RFC 791 §3.2, RFC 8200 §4.5: all fragments but the last have a multiple of eight bytes.
    if len == 0 || fragment.more_fragments && !len.is_multiple_of(8) || start + len > MAX_PAYLOAD {
        return Err(DropReason::FragmentBad);
    }
    let header = match fragment.protocol {
        TCP => TCP_HEADER,
        UDP => UDP_HEADER + SCTP_HEADERS,
        _ => SCTP_HEADERS,
    };
    if start < header && (start > 0 || len < header) {
        return Err(DropReason::FragmentTiny);
    }
    Ok(())
}

impl Packet {
    fn new(key: Key, hash: u64, serial: u64) -> Self {
        let (head, pieces, total) = (None, Vec::new(), None);
        let (cost, have) = (PACKET_COST, 0);
        Packet {
            key,
            hash,
            serial,
            cost,
            received: have,
            head,
            fragments: pieces,
            total,
            ecn: 0,
            discarded: false,
        }
    }

    fn add(&mut self, fragment: &Fragment, frame: &[u8]) -> Result<(), DropReason> {
        if self.discarded {
            return Err(DropReason::FragmentOverlap);
        }
        let bytes = &frame[fragment.payload.clone()];
        let (start, end) = (fragment.offset, fragment.offset + bytes.len());
        let at = self.fragments.partition_point(|(from, _)| *from < start);
        if self.fragments.get(at).is_some_and(|(from, old)| *from == start && **old == *bytes) {
            return Err(DropReason::FragmentDuplicate);
        }
        let behind = at.checked_sub(1).and_then(|i| self.fragments.get(i));
        let overlaps = behind.is_some_and(|(from, old)| from + old.len() > start)
            || self.fragments.get(at).is_some_and(|(from, _)| *from < end);
        let last = self.fragments.last().map_or(0, |(from, old)| from + old.len());
        let contradicts = match self.total {
            Some(total) => end > total || !fragment.more_fragments,
            None => !fragment.more_fragments && last > end,
        };
        if overlaps || contradicts {
            return Err(self.discard(DropReason::FragmentOverlap));
        }
        if self.fragments.len() >= MAX_FRAGMENTS {
            return Err(self.discard(DropReason::FragmentLimit));
        }
        if start == 0 {
            let v6 = fragment.source.is_ipv6();
            let end = if v6 { fragment.ip + IPV6_HEADER } else { fragment.payload.start };
            self.head = Some(frame[..end].into());
        }
        if !fragment.more_fragments {
            self.total = Some(end);
        }
        self.ecn |= 1 << ecn(&frame[fragment.ip..]);
        self.fragments.insert(at, (start, bytes.into()));
        self.received += bytes.len();
        self.cost += bytes.len() + FRAGMENT_COST;
        Ok(())
    }

    fn discard(&mut self, reason: DropReason) -> DropReason {
        self.discarded = true;
        (self.cost, self.received) = (PACKET_COST, 0);
        self.fragments = Vec::new();
        self.head = None;
        reason
    }

    fn is_complete(&self) -> bool {
        self.head.is_some() && self.total == Some(self.received)
    }

    /// Joins the fragments to a frame with the original packet. Returns `None` if some fragments are marked CE and
    /// others are Not-ECT (RFC 3168 §5.3).
    fn reassemble(self) -> Option<Vec<u8>> {
        let (head, total) = (self.head?, self.total?);
        let marked = self.ecn & 1 << CE != 0;
        if marked && self.ecn & 1 << NOT_ECT != 0 {
            return None;
        }
        let mut frame = Vec::with_capacity(head.len() + total);
        frame.extend_from_slice(&head);
        for (_, bytes) in &self.fragments {
            frame.extend_from_slice(bytes);
        }
        let v6 = self.key.source.is_ipv6();
        let ip = if v6 { head.len() - IPV6_HEADER } else { ipv4_at(&head)? };
        let header = &mut frame[ip..head.len()];
        if v6 {
            header[4..6].copy_from_slice(&u16::try_from(total).ok()?.to_be_bytes());
            header[6] = self.key.protocol;
            header[1] |= if marked { CE << 4 } else { 0 };
        } else {
            let len = u16::try_from(header.len() + total).ok()?;
            header[2..4].copy_from_slice(&len.to_be_bytes());
            header[6..8].fill(0);
            header[1] |= if marked { CE } else { 0 };
            header[10..12].fill(0);
            let sum = !checksum::sum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some(frame)
    }
}

/// Returns the ECN codepoint of an IPv4 or IPv6 header.
fn ecn(ip: &[u8]) -> u8 {
    if ip[0] >> 4 == 4 { ip[1] & 3 } else { ip[1] >> 4 & 3 }
}

/// Returns the offset of the IPv4 header in `head`: after an Ethernet header with or without a VLAN tag.
fn ipv4_at(head: &[u8]) -> Option<usize> {
    let tagged = head.get(12..14) == Some(&[0x81, 0]);
    Some(if tagged { 18 } else { 14 }).filter(|&at| at < head.len())
}

#[cfg(test)]
mod tests;
