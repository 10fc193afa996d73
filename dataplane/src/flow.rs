//! Flows and streams of one worker: the table from four-tuple to stream, and the slab that the streams
//! live in.
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
const GENERATION_MASK: u64 = (1 << 24) - 1;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const WORKER_SHIFT: u32 = 48;

const _: () = assert!(SLOT_BITS + 24 == WORKER_SHIFT);

/// A flow: the interface (the same addresses may stand in several VLANs) and both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowKey {
    /// Place of the interface.
    pub interface: u16,
    /// Our end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

impl FlowKey {
    /// What tells it from all others; as short as the addresses allow, for every octet is hashed.
    fn octets(&self) -> ArrayVec<u8, 39> {
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
        let mut octets = ArrayVec::from(out);
        octets.truncate(len);
        octets
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// From flow to slot, under a keyed hash: peers cannot make their flows collide.
#[derive(Debug)]
pub struct FlowTable {
    table: HashTable<(FlowKey, u32)>,
    key: SipHasher13,
}

impl FlowTable {
    /// An empty table; `key` is secret.
    pub fn new(key: [u8; 16]) -> Self {
        FlowTable { table: HashTable::new(), key: SipHasher13::new_with_key(&key) }
    }

    /// The hash for the look-ups of this table.
    pub fn hash(&self, key: &FlowKey) -> u64 {
        self.key.hash(&key.octets())
    }

    /// The slot of a flow, whose hash is `hash`.
    pub fn find(&self, hash: u64, key: &FlowKey) -> Option<u32> {
        self.table.find(hash, |(k, _)| k == key).map(|&(_, slot)| slot)
    }

    /// The slot of a flow.
    pub fn get(&self, key: &FlowKey) -> Option<u32> {
        self.find(self.hash(key), key)
    }

    /// Adds a flow that is not there yet.
    pub fn insert(&mut self, key: FlowKey, slot: u32) {
        let (hash, sip) = (self.hash(&key), self.key);
        self.table.insert_unique(hash, (key, slot), |(k, _)| sip.hash(&k.octets()));
    }

    /// Takes a flow out, if it is this slot's.
    pub fn remove(&mut self, key: &FlowKey, slot: u32) {
        let hash = self.hash(key);
        if let Ok(found) = self.table.find_entry(hash, |(k, s)| k == key && *s == slot) {
            found.remove();
        }
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// The streams of one worker, by slot; an identifier of a stream that is gone finds nothing until its
/// slot has been used 2^24 times.
#[derive(Debug)]
pub struct Slab<T> {
    worker: u16,
    limit: u32,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// An empty slab of at most `limit` streams, at most 2^24.
    pub fn new(worker: u16, limit: u32) -> Self {
        let limit = limit.min(SLOT_MASK as u32);
        Slab { worker, limit, slots: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// The slot and the identifier that [`insert`](Self::insert) will use; `None` when full.
    pub fn vacancy(&self) -> Option<(u32, StreamId)> {
        if self.len >= self.limit {
            return None;
        }
        let slot = self.free.last().copied().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(slot as usize).map_or(1, |s| s.generation);
        Some((slot, self.id(slot, generation)))
    }

    /// Puts a stream where [`vacancy`](Self::vacancy) said; returns it.
    ///
    /// # Panics
    /// When the slab is full.
    pub fn insert(&mut self, value: T) -> &mut T {
        let (slot, _) = self.vacancy().expect("the caller has asked for a vacancy");
        if self.free.pop().is_none() {
            self.slots.push(Slot { generation: 1, value: None });
        }
        self.len += 1;
        self.slots[slot as usize].value.insert(value)
    }

    /// Takes a stream out.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.slots.get_mut(slot as usize)?;
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        self.free.push(slot);
        self.len -= 1;
        Some(value)
    }

    /// The stream in a slot.
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.value.as_ref()
    }

    /// The stream in a slot, to be changed.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// The slot of a stream that is there.
    pub fn find(&self, id: StreamId) -> Option<u32> {
        let slot = (id.0 & SLOT_MASK) as u32;
        let entry = self.slots.get(slot as usize)?;
        (entry.value.is_some() && self.id(slot, entry.generation) == id).then_some(slot)
    }

    /// The identifier of the stream in a slot.
    pub fn name(&self, slot: u32) -> Option<StreamId> {
        let entry = self.slots.get(slot as usize)?;
        entry.value.is_some().then(|| self.id(slot, entry.generation))
    }

    /// Slots with streams in them.
    pub fn occupied(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, s)| s.value.is_some()).map(|(i, _)| i as u32)
    }

    /// Streams.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots that there are, with streams in them or without.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    fn id(&self, slot: u32, generation: u64) -> StreamId {
        let worker = u64::from(self.worker) << WORKER_SHIFT;
        StreamId(worker | generation << SLOT_BITS | u64::from(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(interface: u16, local: &str, remote: &str) -> FlowKey {
        FlowKey { interface, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn flows_differ_in_each_part() {
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
        for (slot, flow) in flows.iter().enumerate() {
            assert_eq!(table.get(flow), None);
            table.insert(*flow, slot as u32);
        }
        for (slot, flow) in flows.iter().enumerate() {
            assert_eq!(table.get(flow), Some(slot as u32));
            table.remove(flow, 99);
            assert_eq!(table.get(flow), Some(slot as u32));
            table.remove(flow, slot as u32);
            assert_eq!(table.get(flow), None);
        }
        assert!(table.is_empty());
    }

    #[test]
    fn identifiers_name_the_worker_and_never_an_earlier_stream() {
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
        assert_eq!(slab.find(StreamId(second.0 ^ 1 << 48)), None, "another worker's");
    }
}
