//! Flows and streams of one worker: the table that maps a flow to a slot, and the slab whose slots hold the streams.
//! The generation in a [`StreamId`] distinguishes the streams that have used the same slot:
//!
//! ```text
//!  StreamId   | worker 16 | generation 24 | slot 24 |
//! ```

use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use ddp::StreamId;
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

const SLOT_BITS: u32 = 24;
const GENERATION_MASK: u32 = (1 << 24) - 1;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const WORKER_SHIFT: u32 = 48;

const _: () = assert!(SLOT_BITS + 24 == WORKER_SHIFT);

/// Key of a flow: the interface, and the addresses and ports of both ends. Several VLANs may use the same addresses, so
/// the interface is part of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowKey {
    /// Index of the interface.
    pub interface: u16,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
}

impl FlowKey {
    /// Returns the input of the hash: 15 bytes for IPv4, 39 for IPv6.
    fn bytes(&self) -> ArrayVec<u8, 39> {
        let mut out = [0; 39];
        let [i0, i1] = self.interface.to_be_bytes();
        let ([l0, l1], [r0, r1]) =
            (self.local.port().to_be_bytes(), self.remote.port().to_be_bytes());
        out[..6].copy_from_slice(&[i0, i1, l0, l1, r0, r1]);
        let len = match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                out[7..11].copy_from_slice(&local.octets());
                out[11..15].copy_from_slice(&remote.octets());
                15
            }
            (local, remote) => {
                out[6] = 1;
                out[7..23].copy_from_slice(&v6(local));
                out[23..39].copy_from_slice(&v6(remote));
                39
            }
        };
        let mut bytes = ArrayVec::from(out);
        bytes.truncate(len);
        bytes
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Map from flow to slot. The hash is keyed, so that peers cannot provoke collisions. An entry consists of a 4-byte
/// hash and the slot. The flow itself is stored with the stream.
///
/// The entries are divided into parts that grow separately. Growth therefore moves only the entries of one part,
/// 1/[`PARTS`] of all.
#[derive(Debug)]
pub struct FlowTable {
    parts: Box<[HashTable<Entry>; PARTS]>,
    len: usize,
    key: SipHasher13,
}

/// Binary logarithm of the number of parts.
const PART_BITS: u32 = 8;
const PARTS: usize = 1 << PART_BITS;

/// Keyed hash of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowHash(u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    hash: FlowHash,
    slot: u32,
}

impl FlowHash {
    /// Returns the part of the table, bits 17 to 24 of the hash. Lower bits select the position in a part of up to
    /// 2^17 entries; the highest bits are the tag that `hashbrown` compares first.
    fn part(self) -> usize {
        (self.0 >> 17) as usize % PARTS
    }

    /// Widens the hash to 64 bits for the hash table, which uses the low bits as position and the high bits as tag.
    fn widen(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

impl FlowTable {
    /// Creates an empty table. `key` keys the hash and must be secret.
    pub fn new(key: [u8; 16]) -> Self {
        let parts = Box::new(core::array::from_fn(|_| HashTable::new()));
        FlowTable { parts, len: 0, key: SipHasher13::new_with_key(&key) }
    }

    /// Returns the hash of a flow under this table's key.
    pub fn hash(&self, key: &FlowKey) -> FlowHash {
        FlowHash(self.key.hash(&key.bytes()) as u32)
    }

    /// Returns a slot whose flow has this hash. The slot belongs to the requested flow, unless two flows have the same
    /// hash. The call does not access the stream in the slot, so the caller must compare the stream's flow.
    pub fn candidate(&self, hash: FlowHash) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Returns true if the table has a flow with this hash.
    pub fn contains(&self, hash: FlowHash) -> bool {
        self.candidate(hash).is_some()
    }

    /// Returns the slot of the flow with this hash for which `matches` returns true.
    pub fn find(&self, hash: FlowHash, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let found =
            self.parts[hash.part()].find(hash.widen(), |e| e.hash == hash && matches(e.slot));
        found.map(|entry| entry.slot)
    }

    /// Adds a flow, which must not be in the table.
    pub fn insert(&mut self, key: &FlowKey, slot: u32) {
        let hash = self.hash(key);
        let part = &mut self.parts[hash.part()];
        part.insert_unique(hash.widen(), Entry { hash, slot }, |e| e.hash.widen());
        self.len += 1;
    }

    /// Removes a flow if it maps to this slot. Otherwise does nothing.
    pub fn remove(&mut self, key: &FlowKey, slot: u32) {
        let hash = self.hash(key);
        let part = &mut self.parts[hash.part()];
        if let Ok(found) = part.find_entry(hash.widen(), |e| *e == Entry { hash, slot }) {
            found.remove();
            self.len -= 1;
        }
    }

    /// Returns the number of flows in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The streams of one worker, by slot. When a stream ends, its identifier becomes invalid until the slot has been
/// reused 2^24 times.
#[derive(Debug)]
pub struct Slab<T> {
    worker: u16,
    limit: u32,
    values: Vec<Option<T>>,
    /// Generation of each slot: part of the identifier of its stream or, in a vacant slot, of the next stream.
    generations: Vec<u32>,
    free: Vec<u32>,
    len: u32,
}

/// Reserves space for one more entry. A full vector grows by an eighth, because doubling would leave up to half of the
/// memory unused.
pub(crate) fn grow<T>(entries: &mut Vec<T>) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact(entries.len() / 8 + 64);
    }
}

impl<T> Slab<T> {
    /// Creates an empty slab for at most `limit` streams; the limit is capped at 2^24 - 1.
    pub fn new(worker: u16, limit: u32) -> Self {
        let limit = limit.min(SLOT_MASK as u32);
        Slab {
            worker,
            limit,
            values: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    /// Returns the slot and identifier that [`insert`](Self::insert) uses next; `None` if the slab is full.
    pub fn vacancy(&self) -> Option<(u32, StreamId)> {
        if self.len >= self.limit {
            return None;
        }
        let slot = self.free.last().copied().unwrap_or(self.values.len() as u32);
        let generation = self.generations.get(slot as usize).map_or(1, |&generation| generation);
        Some((slot, self.id(slot, generation)))
    }

    /// Inserts a stream at the [`vacancy`](Self::vacancy). Returns a reference to it.
    ///
    /// # Panics
    /// Panics if the slab is full.
    pub fn insert(&mut self, value: T) -> &mut T {
        let (slot, _) = self.vacancy().expect("the caller has checked for a vacancy");
        if self.free.pop().is_none() {
            grow(&mut self.values);
            grow(&mut self.generations);
            self.values.push(None);
            self.generations.push(1);
        }
        self.len += 1;
        self.values[slot as usize].insert(value)
    }

    /// Removes the stream in a slot and returns it; `None` if the slot is vacant. The stream's identifier becomes
    /// invalid.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.values.get_mut(slot as usize)?.take()?;
        let generation = &mut self.generations[slot as usize];
        *generation = (*generation + 1) & GENERATION_MASK;
        self.free.push(slot);
        self.len -= 1;
        Some(value)
    }

    /// Returns the stream in a slot; `None` if the slot is vacant.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.values.get(slot as usize)?.as_ref()
    }

    /// Returns the stream in a slot for modification; `None` if the slot is vacant.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.values.get_mut(slot as usize)?.as_mut()
    }

    /// Returns the slot of a stream; `None` if the stream has ended or belongs to another worker.
    pub fn find(&self, id: StreamId) -> Option<u32> {
        let slot = (id.0 & SLOT_MASK) as u32;
        (self.stream_id(slot)? == id).then_some(slot)
    }

    /// Returns the identifier of the stream in a slot; `None` if the slot is vacant.
    pub fn stream_id(&self, slot: u32) -> Option<StreamId> {
        self.get(slot)?;
        self.generations.get(slot as usize).map(|&generation| self.id(slot, generation))
    }

    /// Returns the slots with streams, in ascending order.
    pub fn occupied(&self) -> impl Iterator<Item = u32> + '_ {
        let values = self.values.iter().enumerate();
        let values = values.inspect(|_| count_visit());
        values.filter(|(_, value)| value.is_some()).map(|(slot, _)| slot as u32)
    }

    /// Returns the number of streams.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if the slab has no streams.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of slots allocated so far, including vacant slots.
    pub fn slots(&self) -> usize {
        self.values.len()
    }

    fn id(&self, slot: u32, generation: u32) -> StreamId {
        let worker = u64::from(self.worker) << WORKER_SHIFT;
        StreamId(worker | u64::from(generation) << SLOT_BITS | u64::from(slot))
    }
}

#[cfg(not(test))]
fn count_visit() {}

#[cfg(test)]
std::thread_local! {
    static VISITS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

#[cfg(test)]
fn count_visit() {
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// Returns the number of slots that the iterators of [`Slab::occupied`] have visited in this thread.
#[cfg(test)]
pub(crate) fn visits() -> u64 {
    VISITS.with(core::cell::Cell::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(interface: u16, local: &str, remote: &str) -> FlowKey {
        FlowKey { interface, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn flow_keys_differ_in_each_field() {
        let flows = [
            key(0, "10.0.0.1:1", "10.0.0.2:2"),
            key(1, "10.0.0.1:1", "10.0.0.2:2"),
            key(0, "10.0.0.1:2", "10.0.0.2:2"),
            key(0, "10.0.0.1:1", "10.0.0.2:3"),
            key(0, "10.0.0.3:1", "10.0.0.2:2"),
            key(0, "10.0.0.1:1", "10.0.0.4:2"),
            key(0, "[a00:1::]:1", "[a00:2::]:2"),
        ];
        let mut table = FlowTable::new([3; 16]);
        let slot_of = |table: &FlowTable, flow: &FlowKey| table.candidate(table.hash(flow));
        for (slot, flow) in flows.iter().enumerate() {
            assert_eq!(slot_of(&table, flow), None);
            table.insert(flow, slot as u32);
        }
        for (slot, flow) in flows.iter().enumerate() {
            assert_eq!(slot_of(&table, flow), Some(slot as u32));
            table.remove(flow, 99);
            assert_eq!(slot_of(&table, flow), Some(slot as u32));
            table.remove(flow, slot as u32);
            assert_eq!(slot_of(&table, flow), None);
        }
        assert!(table.is_empty());
    }

    #[test]
    fn colliding_flows_are_found_by_slot() {
        let mut table = FlowTable::new([3; 16]);
        let flow = key(0, "10.0.0.1:1", "10.0.0.2:2");
        // Two entries for one flow simulate two flows with the same hash.
        table.insert(&flow, 5);
        table.insert(&flow, 7);
        let hash = table.hash(&flow);
        assert!(matches!(table.candidate(hash), Some(5 | 7)));
        for slot in [5, 7] {
            assert_eq!(table.find(hash, |s| s == slot), Some(slot));
        }
        assert_eq!(table.find(hash, |_| false), None);
        table.remove(&flow, 5);
        assert_eq!((table.candidate(hash), table.len()), (Some(7), 1));
    }

    // Growth moves only the entries of one part.
    #[test]
    fn one_insertion_moves_few_flows() {
        let mut table = FlowTable::new([3; 16]);
        let mut worst = 0;
        for slot in 0..100_000 {
            let remote = SocketAddr::from(([10, 1, (slot >> 16) as u8, 0], slot as u16));
            let flow = FlowKey { remote, ..key(0, "10.0.0.1:1", "10.0.0.2:2") };
            let part = table.hash(&flow).part();
            let (before, moved) = (table.parts[part].capacity(), table.parts[part].len());
            table.insert(&flow, slot);
            if table.parts[part].capacity() != before {
                worst = worst.max(moved);
            }
        }
        assert_eq!(table.len(), 100_000);
        assert!(worst <= 1_000, "{worst} entries were moved at once");
    }

    #[test]
    fn stream_id_names_worker_and_is_not_reused() {
        let mut slab = Slab::new(0xabcd, 2);
        let (_, first) = slab.vacancy().unwrap();
        slab.insert('a');
        assert_eq!(first.worker(), 0xabcd);
        let slot = slab.find(first).unwrap();
        assert_eq!(slab.remove(slot), Some('a'));
        let (again, second) = slab.vacancy().unwrap();
        slab.insert('b');
        assert_eq!(again, slot);
        assert_ne!(first, second);
        assert_eq!(slab.find(first), None);
        assert_eq!(slab.find(second), Some(slot));
        slab.insert('c');
        assert_eq!(slab.vacancy(), None);
        assert_eq!(slab.occupied().count(), 2);
        assert_eq!(slab.find(StreamId(second.0 ^ 1 << 48)), None, "belongs to another worker");
    }
}
