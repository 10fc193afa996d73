//! Flows and streams of one worker: the table from four-tuple to stream, and the slab that the streams
//! live in.
//!
//! ```text
//!  StreamId   | worker 16 | generation 24 | slot 24 |
//! ```

use std::net::{IpAddr, SocketAddr};

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
    /// What tells it from all others; as short as the addresses allow, for every octet is hashed and kept.
    fn octets(&self) -> Octets {
        let mut out = [0; V6];
        let [i0, i1] = self.interface.to_be_bytes();
        let ([l0, l1], [r0, r1]) =
            (self.local.port().to_be_bytes(), self.remote.port().to_be_bytes());
        out[..6].copy_from_slice(&[i0, i1, l0, l1, r0, r1]);
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let mut short = [0; V4];
                short[..6].copy_from_slice(&out[..6]);
                short[7..11].copy_from_slice(&local.octets());
                short[11..].copy_from_slice(&remote.octets());
                Octets::V4(short)
            }
            (local, remote) => {
                out[6] = 1;
                out[7..23].copy_from_slice(&v6(local));
                out[23..].copy_from_slice(&v6(remote));
                Octets::V6(out)
            }
        }
    }
}

/// Octets of a flow between IPv4 addresses: interface, ports, family, addresses.
const V4: usize = 6 + 1 + 2 * 4;
/// The same of IPv6.
const V6: usize = 6 + 1 + 2 * 16;

enum Octets {
    V4([u8; V4]),
    V6([u8; V6]),
}

impl Octets {
    fn hash(&self, key: &SipHasher13) -> u64 {
        match self {
            Octets::V4(octets) => key.hash(octets),
            Octets::V6(octets) => key.hash(octets),
        }
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// From flow to slot, under a keyed hash: peers cannot make their flows collide. A table for each family, so
/// that an IPv4 flow takes 20 octets.
#[derive(Debug)]
pub struct FlowTable {
    v4: HashTable<Entry<V4>>,
    v6: HashTable<Entry<V6>>,
    key: SipHasher13,
}

#[derive(Clone, Copy, Debug)]
struct Entry<const N: usize> {
    flow: [u8; N],
    slot: u32,
}

const _: () = assert!(size_of::<Entry<V4>>() == 20);

impl FlowTable {
    /// An empty table; `key` is secret.
    pub fn new(key: [u8; 16]) -> Self {
        let key = SipHasher13::new_with_key(&key);
        FlowTable { v4: HashTable::new(), v6: HashTable::new(), key }
    }

    /// The hash for the look-ups of this table.
    pub fn hash(&self, key: &FlowKey) -> u64 {
        key.octets().hash(&self.key)
    }

    /// The slot of a flow, whose hash is `hash`.
    pub fn find(&self, hash: u64, key: &FlowKey) -> Option<u32> {
        match key.octets() {
            Octets::V4(flow) => self.v4.find(hash, |e| e.flow == flow).map(|e| e.slot),
            Octets::V6(flow) => self.v6.find(hash, |e| e.flow == flow).map(|e| e.slot),
        }
    }

    /// The slot of a flow.
    pub fn get(&self, key: &FlowKey) -> Option<u32> {
        self.find(self.hash(key), key)
    }

    /// Adds a flow that is not there yet.
    pub fn insert(&mut self, key: FlowKey, slot: u32) {
        match key.octets() {
            Octets::V4(flow) => insert(&mut self.v4, self.key, Entry { flow, slot }),
            Octets::V6(flow) => insert(&mut self.v6, self.key, Entry { flow, slot }),
        }
    }

    /// Takes a flow out, if it is this slot's.
    pub fn remove(&mut self, key: &FlowKey, slot: u32) {
        match key.octets() {
            Octets::V4(flow) => remove(&mut self.v4, self.key, Entry { flow, slot }),
            Octets::V6(flow) => remove(&mut self.v6, self.key, Entry { flow, slot }),
        }
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn insert<const N: usize>(table: &mut HashTable<Entry<N>>, key: SipHasher13, entry: Entry<N>) {
    table.insert_unique(key.hash(&entry.flow), entry, |e| key.hash(&e.flow));
}

fn remove<const N: usize>(table: &mut HashTable<Entry<N>>, key: SipHasher13, entry: Entry<N>) {
    let same = |e: &Entry<N>| e.flow == entry.flow && e.slot == entry.slot;
    if let Ok(found) = table.find_entry(key.hash(&entry.flow), same) {
        found.remove();
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

/// Makes room for one more: of what there is an eighth, where doubling would leave half of it unused.
pub(crate) fn grow<T>(entries: &mut Vec<T>) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact(entries.len() / 8 + 64);
    }
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
            grow(&mut self.slots);
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
