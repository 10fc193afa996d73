//! STags, which identify tagged buffers, and the table in which one worker looks them up (RFC 5041 §8.2, §8.3).

use core::cell::Cell;
use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use wire::{Stag, TaggedOffset};

/// Protection domain. A stream may use only STags of its own domain (RFC 5041 §8.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PdId(pub u32);

/// Identifier of a DDP stream, unique in the appliance (RFC 5041 §8.2). The top 16 bits are the worker's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Returns the number of the worker that owns the stream.
    pub const fn worker(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Set of the peers' rights to a region (RFC 5041 §8.3.1 (5)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access(u8);

impl Access {
    /// No rights.
    pub const NONE: Access = Access(0);
    /// Peers may read (RDMA Read).
    pub const REMOTE_READ: Access = Access(1);
    /// Peers may place bytes.
    pub const REMOTE_WRITE: Access = Access(2);
    /// Peers may do atomic operations (RFC 7306).
    pub const ATOMIC: Access = Access(4);
    const ALL: u8 = 7;

    /// Returns the rights whose bits are set in `bits`: 1 remote read, 2 remote write, 4 atomic. `None` if
    /// other bits are set.
    pub const fn from_bits(bits: u8) -> Option<Access> {
        if bits & !Self::ALL == 0 { Some(Access(bits)) } else { None }
    }

    /// Returns the rights as bits: 1 remote read, 2 remote write, 4 atomic.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if the set contains all of `rights`.
    pub const fn contains(self, rights: Access) -> bool {
        self.0 & rights.0 == rights.0
    }

    /// Returns true if peers may read.
    pub const fn remote_read(self) -> bool {
        self.contains(Self::REMOTE_READ)
    }

    /// Returns true if peers may place bytes.
    pub const fn remote_write(self) -> bool {
        self.contains(Self::REMOTE_WRITE)
    }

    /// Returns true if peers may do atomic operations.
    pub const fn atomic(self) -> bool {
        self.contains(Self::ATOMIC)
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Access) {
        *self = *self | other;
    }
}

/// The tagged buffer of an STag (RFC 5041 §8.3).
#[derive(Clone, Debug)]
pub struct StagEntry<M> {
    /// STag of the buffer.
    pub stag: Stag,
    /// Protection domain: only its streams may use the buffer.
    pub pd: PdId,
    /// The only stream that may use the buffer; `None`: all streams of the domain.
    pub stream: Option<StreamId>,
    /// TO of the buffer's first byte.
    pub base_to: TaggedOffset,
    /// Length of the buffer, bytes.
    pub len: u64,
    /// Rights of peers.
    pub access: Access,
    /// Memory that contains the buffer.
    pub memory: M,
    /// Offset of the buffer's first byte in `memory`.
    pub memory_offset: u64,
}

/// Reasons to refuse an insertion, a binding or a change of rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StagError {
    /// The STag is in use.
    #[error("STag {0} is in use")]
    InUse(Stag),
    /// The STag is not in the table.
    #[error("STag {0} is unknown")]
    Unknown(Stag),
    /// TO plus length does not fit into 64 bits.
    #[error("base TO {base_to} plus {len} bytes does not fit into 64 bits")]
    ToRange {
        /// TO of the first byte.
        base_to: TaggedOffset,
        /// Length of the range, bytes.
        len: u64,
    },
    /// Not all bytes of the buffer are in the memory.
    #[error("bytes {offset} to {offset}+{len} are not all in a memory of {memory_len}")]
    OutOfMemory {
        /// Offset of the first byte.
        offset: u64,
        /// Length of the range, bytes.
        len: u64,
        /// Length of the memory, bytes.
        memory_len: u64,
    },
    /// Peers cannot have the right to write, or to do atomics, because the memory is read-only.
    #[error("the memory of STag {0} is read-only")]
    ReadOnly(Stag),
}

/// A worker's replica of the STag table.
///
/// Invariant: every entry lies within its memory and its TO range does not wrap.
///
/// Streams borrow their worker's table by shared reference, one stream at a time. The only change that a stream can
/// make is [`invalidate`](Self::invalidate), which is permanent and requires that the STag is bound to the stream.
///
/// The entries are divided into parts that grow separately. Growth therefore moves the entries of one part at a time, a
/// share of 1/`PARTS` of all. STags are random (RFC 5040 §8.1.1 (8)), so their low bits select the part.
#[derive(Clone, Debug)]
pub struct StagTable<M> {
    parts: Box<[HashMap<Stag, Slot<M>>; PARTS]>,
    len: usize,
}

/// Number of parts, a power of two.
const PARTS: usize = 256;

#[derive(Clone, Debug)]
struct Slot<M> {
    entry: StagEntry<M>,
    /// True once the peer has invalidated the STag. The entry stays in the table until it is removed.
    invalidated: Cell<bool>,
}

impl<M> Default for StagTable<M> {
    fn default() -> Self {
        StagTable { parts: Box::new(core::array::from_fn(|_| HashMap::new())), len: 0 }
    }
}

impl<M: crate::memory::RegionMemory> StagTable<M> {
    /// Returns an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an STag valid for exactly the entry's bytes (RFC 5041 §8.3 (1), (2)).
    ///
    /// # Errors
    /// The STag is in use, TO plus length exceeds 64 bits, the bytes are not all in the memory, or the memory does not
    /// permit the rights.
    pub fn insert(&mut self, entry: StagEntry<M>) -> Result<(), StagError> {
        let StagEntry { stag, base_to, len, memory_offset: offset, .. } = entry;
        if base_to.0.checked_add(len).is_none() {
            return Err(StagError::ToRange { base_to, len });
        }
        let memory_len = entry.memory.len();
        if offset.checked_add(len).is_none_or(|end| end > memory_len) {
            return Err(StagError::OutOfMemory { offset, len, memory_len });
        }
        check_access(&entry, entry.access)?;
        match self.part_mut(stag).entry(stag) {
            Entry::Occupied(_) => Err(StagError::InUse(stag)),
            Entry::Vacant(place) => {
                place.insert(Slot { entry, invalidated: Cell::new(false) });
                self.len += 1;
                Ok(())
            }
        }
    }

    /// Revokes an STag: no segment with it is placed afterwards (RFC 5041 §8.3 (2), §8.3.1 (6)). Returns its entry,
    /// if it was in the table.
    pub fn remove(&mut self, stag: Stag) -> Option<StagEntry<M>> {
        let slot = self.part_mut(stag).remove(&stag)?;
        self.len -= 1;
        Some(slot.entry)
    }

    /// Binds an STag to one stream, or with `None` to all streams of its domain (RFC 5041 §8.3 (3)).
    ///
    /// # Errors
    /// [`StagError::Unknown`].
    pub fn bind(&mut self, stag: Stag, stream: Option<StreamId>) -> Result<(), StagError> {
        let slot = self.part_mut(stag).get_mut(&stag).ok_or(StagError::Unknown(stag))?;
        slot.entry.stream = stream;
        Ok(())
    }

    /// Changes the rights of peers (RFC 5041 §8.3.1 (5)).
    ///
    /// # Errors
    /// The STag is unknown, or the memory does not permit the rights.
    pub fn set_access(&mut self, stag: Stag, access: Access) -> Result<(), StagError> {
        let slot = self.part_mut(stag).get_mut(&stag).ok_or(StagError::Unknown(stag))?;
        check_access(&slot.entry, access)?;
        slot.entry.access = access;
        Ok(())
    }

    /// Returns the STag's entry, unless the STag is unknown or invalidated.
    pub fn get(&self, stag: Stag) -> Option<&StagEntry<M>> {
        self.part(stag).get(&stag).filter(|slot| !slot.invalidated.get()).map(|slot| &slot.entry)
    }

    /// Invalidates an STag at the request of the peer of `stream`, if the STag is bound to that stream alone (RFC 5040
    /// §5.3). [`get`](Self::get) no longer finds the STag, but its number stays in use until [`remove`](Self::remove).
    /// Returns true if this call has invalidated the STag.
    pub fn invalidate(&self, stag: Stag, pd: PdId, stream: StreamId) -> bool {
        let own = |slot: &&Slot<M>| slot.entry.pd == pd && slot.entry.stream == Some(stream);
        let slot = self.part(stag).get(&stag).filter(own);
        slot.is_some_and(|slot| !slot.invalidated.replace(true))
    }

    /// Returns all entries, including invalidated entries, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &StagEntry<M>> {
        self.parts.iter().flat_map(|part| part.values()).map(|slot| &slot.entry)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn part(&self, stag: Stag) -> &HashMap<Stag, Slot<M>> {
        &self.parts[stag.0 as usize % PARTS]
    }

    fn part_mut(&mut self, stag: Stag) -> &mut HashMap<Stag, Slot<M>> {
        &mut self.parts[stag.0 as usize % PARTS]
    }
}

/// Refuses the rights to write and to do atomics for read-only memory.
fn check_access<M: crate::memory::RegionMemory>(
    entry: &StagEntry<M>,
    access: Access,
) -> Result<(), StagError> {
    let writes = access.remote_write() || access.atomic();
    if writes && !entry.memory.is_writable() {
        Err(StagError::ReadOnly(entry.stag))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::VecMemory;

    fn entry(stag: u32, base_to: u64, len: u64) -> StagEntry<VecMemory> {
        StagEntry {
            stag: Stag(stag),
            pd: PdId(1),
            stream: None,
            base_to: TaggedOffset(base_to),
            len,
            access: Access::REMOTE_WRITE,
            memory: VecMemory::new(100),
            memory_offset: 10,
        }
    }

    // RFC 5041 §8.3 (1), (2): validity is established and revoked by the ULP.
    #[test]
    fn stags_are_established_and_revoked() {
        let mut table = StagTable::new();
        assert_eq!(table.insert(entry(7, 0, 90)), Ok(()));
        assert_eq!(table.insert(entry(7, 0, 10)), Err(StagError::InUse(Stag(7))));
        assert_eq!((table.len(), table.iter().count()), (1, 1));
        assert_eq!(table.get(Stag(7)).unwrap().len, 90);
        assert!(table.remove(Stag(7)).is_some());
        assert!(table.remove(Stag(7)).is_none() && table.is_empty());
    }

    // RFC 5041 §8.3 (3): an STag can be bound to one stream and released again.
    #[test]
    fn an_stag_is_bound_to_a_stream_and_released() {
        let mut table = StagTable::new();
        assert_eq!(table.bind(Stag(7), None), Err(StagError::Unknown(Stag(7))));
        table.insert(entry(7, 0, 1)).unwrap();
        table.bind(Stag(7), Some(StreamId(5))).unwrap();
        assert_eq!(table.get(Stag(7)).unwrap().stream, Some(StreamId(5)));
        table.bind(Stag(7), None).unwrap();
        assert_eq!(table.get(Stag(7)).unwrap().stream, None);
    }

    // RFC 5040 §5.3: only an STag bound to the stream alone can be invalidated. The STag stays invalid, and its number
    // stays in use until the STag is removed.
    #[test]
    fn invalidate_requires_stag_bound_to_the_stream() {
        let mut table = StagTable::new();
        table.insert(entry(7, 0, 1)).unwrap();
        let own = StreamId(5);
        assert!(!table.invalidate(Stag(8), PdId(1), own), "unknown");
        assert!(!table.invalidate(Stag(7), PdId(1), own), "bound to no stream");
        table.bind(Stag(7), Some(StreamId(6))).unwrap();
        assert!(!table.invalidate(Stag(7), PdId(1), own), "bound to another");
        table.bind(Stag(7), Some(own)).unwrap();
        assert!(!table.invalidate(Stag(7), PdId(2), own), "of another domain");
        assert!(table.get(Stag(7)).is_some());
        assert!(table.invalidate(Stag(7), PdId(1), own));
        assert!(table.get(Stag(7)).is_none());
        assert!(!table.invalidate(Stag(7), PdId(1), own), "already invalidated");
        assert_eq!(table.insert(entry(7, 0, 1)), Err(StagError::InUse(Stag(7))));
        assert!(table.remove(Stag(7)).is_some());
        assert_eq!(table.insert(entry(7, 0, 1)), Ok(()));
        assert!(table.get(Stag(7)).is_some());
    }

    #[test]
    fn entry_beyond_memory_or_to_space_is_refused() {
        let mut table = StagTable::new();
        assert!(matches!(
            table.insert(entry(1, 0, 91)),
            Err(StagError::OutOfMemory { offset: 10, len: 91, memory_len: 100 })
        ));
        assert!(matches!(table.insert(entry(1, u64::MAX, 1)), Err(StagError::ToRange { .. })));
        assert_eq!(table.insert(entry(1, u64::MAX - 1, 1)), Ok(()));
        let overflow = StagEntry { memory_offset: u64::MAX, ..entry(2, 0, 1) };
        assert!(matches!(table.insert(overflow), Err(StagError::OutOfMemory { .. })));
    }

    // Growth moves only the entries of one part, a small share of all entries.
    #[test]
    fn one_insertion_moves_few_entries() {
        let mut table = StagTable::new();
        let mut worst = 0;
        for number in 0..100_000u32 {
            // A fixed sequence of STags, distributed like random STags. The STags are distinct, because the multiplier
            // is odd.
            let stag = number.wrapping_mul(0x9e37_79b1);
            let before = table.part(Stag(stag)).capacity();
            let moved = table.part(Stag(stag)).len();
            table.insert(entry(stag, 0, 1)).unwrap();
            if table.part(Stag(stag)).capacity() != before {
                worst = worst.max(moved);
            }
        }
        assert_eq!((table.len(), table.iter().count()), (100_000, 100_000));
        assert!(worst <= 1_000, "{worst} entries were moved at once");
    }

    #[test]
    fn access_rights_form_a_set() {
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        assert!(both.remote_read() && both.remote_write());
        assert!(!Access::REMOTE_READ.contains(both) && both.contains(Access::NONE));
        assert_eq!(Access::from_bits(3), Some(both));
        assert_eq!(Access::from_bits(7), Some(both | Access::ATOMIC));
        assert_eq!(Access::from_bits(8), None);
        assert!(Access::ATOMIC.atomic() && !both.atomic());
    }

    #[test]
    fn stream_id_top_bits_name_the_worker() {
        let id = StreamId(0x0203_0000_0000_0007);
        assert_eq!((id.worker(), id.to_string()), (0x0203, "144959613005987847".into()));
    }
}
