//! The completion ring of a shared region. Local programs map the ring and learn from its records which data was
//! delivered into the region. `docs/shared-memory.md` specifies the layout to the byte; keep this file and that page in
//! agreement.
//!
//! ```text
//!   0        64       128                                   256
//!   | header | head   | reserved                            | slot 0 (64) | slot 1 | ... | slot capacity-1
//!              ^ records published so far (u64)               ^ record n is in slot n mod capacity
//! ```
//!
//! A ring has one producer, the control thread, and any number of consumers, which map the memfd read-only. The
//! file is sealed against further writable mappings, so no program can disturb another or the appliance. The producer
//! never waits. A consumer that falls more than `capacity` records behind loses the oldest records. Records are
//! numbered, so the consumer can count its losses.
//!
//! Ordering: the bytes that a record describes are written before the record is published. The sequence word is
//! stored with release order and loaded with acquire order, so a reader of the record sees the bytes. All fields
//! are little-endian 64-bit words and are only accessed as atomics.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// First eight bytes of a ring, which identify the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DDPRING1");
/// Layout version in the header.
pub const VERSION: u64 = 1;
/// Bytes of one slot.
pub const SLOT: usize = 64;
/// Offset of slot 0 in bytes.
pub const SLOTS_AT: usize = 256;
/// Largest number of slots (64 MiB of ring).
pub const MAX_CAPACITY: u64 = 1 << 20;

const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const CAPACITY_AT: usize = 16;
const REGION_LEN_AT: usize = 24;
const HEAD_AT: usize = 64;

const SLOT_SEQUENCE: usize = 0;
const SLOT_OFFSET: usize = 8;
const SLOT_LEN: usize = 16;
const SLOT_STREAM: usize = 24;
const SLOT_KIND_STAG: usize = 32;
const SLOT_TIME: usize = 40;

const _: () =
    assert!(SLOT_TIME + 8 <= SLOT && HEAD_AT + 8 <= SLOTS_AT && SLOTS_AT.is_multiple_of(SLOT));

/// The event that a record reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// A tagged message was delivered: `len` bytes from `offset` on. If its segments are not contiguous, `offset` is
    /// the lowest offset and `len` the total of their lengths.
    Data = 1,
    /// A stream that may write the region was accepted.
    Opened = 2,
    /// A stream that could write the region has ended. This stream writes no more data.
    Closed = 3,
    /// The region is no longer reachable from the network. The mapping stays valid until the program unmaps it.
    Removed = 4,
}

impl Kind {
    fn from_bits(bits: u16) -> Option<Kind> {
        [Kind::Data, Kind::Opened, Kind::Closed, Kind::Removed]
            .into_iter()
            .find(|kind| *kind as u16 == bits)
    }
}

/// A record of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Kind of the event.
    pub kind: Kind,
    /// The RsvdULP byte of the message (RFC 5041 §4.2).
    pub rsvd_ulp: u8,
    /// STag in the peer's message.
    pub stag: u32,
    /// Offset of the first byte from the start of the region, in bytes; 0 unless the kind is [`Kind::Data`].
    pub offset: u64,
    /// Number of bytes delivered; 0 unless the kind is [`Kind::Data`].
    pub len: u64,
    /// Number of the stream, as in `ddpctl streams list`.
    pub stream: u64,
    /// Nanoseconds since 1970-01-01 UTC.
    pub unix_nanos: u64,
}

/// Reason why a ring could not be created or mapped.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The number of slots is not a power of two within `2..=MAX_CAPACITY`.
    #[error(
        "a completion ring needs a power of two of slots between 2 and {MAX_CAPACITY}, not {0}"
    )]
    Capacity(u64),
    /// The object is not a completion ring of this version.
    #[error("the object is not a completion ring of version {VERSION}")]
    NotARing,
    /// A system call failed.
    #[error("cannot {what} the completion ring: {errno}")]
    System {
        /// The failed action, a verb.
        what: &'static str,
        /// The system's error.
        errno: rustix::io::Errno,
    },
}

/// The writing end, owned by the appliance.
#[derive(Debug)]
pub struct Producer {
    map: SharedMap,
    fd: OwnedFd,
    capacity: u64,
    head: u64,
}

impl Producer {
    /// Creates a sealed ring of `capacity` slots for a region of `region_len` bytes. `capacity` is a power of two, 2 to
    /// [`MAX_CAPACITY`].
    pub fn create(name: &str, capacity: u64, region_len: u64) -> Result<Producer, RingError> {
        if !(2..=MAX_CAPACITY).contains(&capacity) || !capacity.is_power_of_two() {
            return Err(RingError::Capacity(capacity));
        }
        let fail = |what| move |errno| RingError::System { what, errno };
        let len = SLOTS_AT + capacity as usize * SLOT;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(fail("create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(fail("size"))?;
        let map =
            SharedMap::new(&fd, len, ProtFlags::READ | ProtFlags::WRITE).map_err(fail("map"))?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(fail("seal"))?;
        map.store(VERSION_AT, VERSION, Ordering::Relaxed);
        map.store(CAPACITY_AT, capacity, Ordering::Relaxed);
        map.store(REGION_LEN_AT, region_len, Ordering::Relaxed);
        map.store(MAGIC_AT, MAGIC, Ordering::Release);
        Ok(Producer { map, fd, capacity, head: 0 })
    }

    /// Returns the descriptor that programs map read-only. The kernel refuses writable mappings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the number of slots.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of records published so far.
    #[cfg(test)]
    fn published(&self) -> u64 {
        self.head
    }

    /// Publishes one record without waiting. Bytes written to the region before this call are visible to a reader of
    /// the record.
    pub fn publish(&mut self, record: &Completion) {
        publish(&self.map, self.capacity, self.head, record);
        self.head += 1;
    }
}

/// The reading end. Local programs have their own implementation.
#[derive(Debug)]
pub struct Consumer {
    map: SharedMap,
    capacity: u64,
    region_len: u64,
    next: u64,
    lost: u64,
}

impl Consumer {
    /// Maps a ring read-only. The first record read is the oldest record still in the ring.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Consumer, RingError> {
        let fail = |what| move |errno| RingError::System { what, errno };
        let size = rustix::fs::fstat(fd).map_err(fail("inspect"))?.st_size as usize;
        if size < SLOTS_AT {
            return Err(RingError::NotARing);
        }
        let map = SharedMap::new(&fd, size, ProtFlags::READ).map_err(fail("map"))?;
        let header = |at| map.load(at, Ordering::Acquire);
        let (magic, version) = (header(MAGIC_AT), header(VERSION_AT));
        let (capacity, region_len) = (header(CAPACITY_AT), header(REGION_LEN_AT));
        let fits = capacity.is_power_of_two()
            && capacity <= MAX_CAPACITY
            && size >= SLOTS_AT + capacity as usize * SLOT;
        if magic != MAGIC || version != VERSION || !fits {
            return Err(RingError::NotARing);
        }
        let mut ring = Consumer { map, capacity, region_len, next: 0, lost: 0 };
        ring.next = ring.head().saturating_sub(capacity);
        Ok(ring)
    }

    /// Returns the length of the ring's region in bytes.
    pub fn region_len(&self) -> u64 {
        self.region_len
    }

    /// Returns the number of records that were overwritten before this consumer read them.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the next record with its number, or `None` if all have been read.
    pub fn poll(&mut self) -> Option<(u64, Completion)> {
        poll(&self.map, self.capacity, &mut self.next, &mut self.lost)
    }

    fn head(&self) -> u64 {
        head(&self.map)
    }
}

/// Access to the words of a ring by byte offset. Both ends use this trait, so that `model.rs` can test the
/// interleavings of the production code.
trait WordAccess {
    fn load(&self, at: usize, order: Ordering) -> u64;
    fn store(&self, at: usize, value: u64, order: Ordering);
    fn fence(&self, order: Ordering);
}

/// Writes record `number`, then the head.
fn publish(words: &impl WordAccess, capacity: u64, number: u64, record: &Completion) {
    let at = slot(number, capacity);
    let put = |field: usize, value: u64| words.store(at + field, value, Ordering::Relaxed);
    // An odd sequence number marks a slot being written. The fence orders the field stores after the store of this
    // number.
    put(SLOT_SEQUENCE, number * 2 + 1);
    words.fence(Ordering::Release);
    put(SLOT_OFFSET, record.offset);
    put(SLOT_LEN, record.len);
    put(SLOT_STREAM, record.stream);
    put(SLOT_KIND_STAG, kind_and_stag(record));
    put(SLOT_TIME, record.unix_nanos);
    words.store(at + SLOT_SEQUENCE, number * 2 + 2, Ordering::Release);
    words.store(HEAD_AT, number + 1, Ordering::Release);
}

fn head(words: &impl WordAccess) -> u64 {
    words.load(HEAD_AT, Ordering::Acquire)
}

/// Returns record `next`. If it was overwritten, returns the oldest record still in the ring. Returns `None` if
/// record `next` is not published yet. Advances `next` past the returned record, and adds the number of overwritten
/// records to `lost`.
fn poll(
    words: &impl WordAccess,
    capacity: u64,
    next: &mut u64,
    lost: &mut u64,
) -> Option<(u64, Completion)> {
    loop {
        let head = head(words);
        if *next >= head {
            return None;
        }
        let oldest = head.saturating_sub(capacity);
        if *next < oldest {
            *lost += oldest - *next;
            *next = oldest;
        }
        let number = *next;
        *next += 1;
        match read(words, capacity, number) {
            Some(record) => return Some((number, record)),
            None => *lost += 1, // overwritten while being read
        }
    }
}

fn read(words: &impl WordAccess, capacity: u64, number: u64) -> Option<Completion> {
    let at = slot(number, capacity);
    let get = |field: usize| words.load(at + field, Ordering::Relaxed);
    let whole = number * 2 + 2;
    if words.load(at + SLOT_SEQUENCE, Ordering::Acquire) != whole {
        return None;
    }
    let kind_stag = get(SLOT_KIND_STAG);
    let (offset, len) = (get(SLOT_OFFSET), get(SLOT_LEN));
    let (stream, unix_nanos) = (get(SLOT_STREAM), get(SLOT_TIME));
    words.fence(Ordering::Acquire);
    if words.load(at + SLOT_SEQUENCE, Ordering::Relaxed) != whole {
        return None;
    }
    Some(Completion {
        kind: Kind::from_bits((kind_stag >> 32) as u16)?,
        rsvd_ulp: (kind_stag >> 48) as u8,
        stag: kind_stag as u32,
        offset,
        len,
        stream,
        unix_nanos,
    })
}

/// Packs the STag into bits 0..32, the kind into bits 32..48 and RsvdULP into bits 48..56.
fn kind_and_stag(record: &Completion) -> u64 {
    u64::from(record.stag) | u64::from(record.kind as u16) << 32 | u64::from(record.rsvd_ulp) << 48
}

fn slot(number: u64, capacity: u64) -> usize {
    SLOTS_AT + (number & (capacity - 1)) as usize * SLOT
}

/// A shared mapping of whole 64-bit words.
#[derive(Debug)]
struct SharedMap {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping belongs to this value and not to a thread; all accesses to it are atomic.
unsafe impl Send for SharedMap {}
// SAFETY: all accesses through a shared reference are atomic.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    fn new(fd: &impl AsFd, len: usize, prot: ProtFlags) -> rustix::io::Result<SharedMap> {
        // SAFETY: the kernel chooses the address of the new mapping, so no other memory of the process is affected.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) }?;
        // SAFETY: the range is the new mapping; the advice concerns core dumps and changes no byte.
        let advised = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxDontDump) };
        debug_assert!(advised.is_ok(), "{advised:?}");
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(SharedMap { start, len })
    }

    /// Returns the word at byte offset `at`.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "offset {at} outside the ring");
        // SAFETY: `at + 8 <= len` (checked above); aligned to 8, because mappings are page-aligned; valid as long as
        // `self`. Other processes only read the bytes. The object is sealed against shrinking, so the page exists.
        // `Consumer` only loads, so nothing is stored to a read-only mapping.
        unsafe { &*self.start.as_ptr().byte_add(at) }
    }
}

impl WordAccess for SharedMap {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        u64::from_le(self.word(at).load(order))
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value.to_le(), order);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the mapping was created in `new` with this length and nothing borrows it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}

#[cfg(test)]
mod heap;
#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u64) -> Completion {
        Completion {
            kind: Kind::Data,
            rsvd_ulp: n as u8,
            stag: 0xfeed_0000 | n as u32,
            offset: n * 100,
            len: n,
            stream: u64::MAX - n,
            unix_nanos: n << 40,
        }
    }

    #[test]
    fn records_arrive_once_in_order_across_wrap() {
        let mut producer = Producer::create("t", 8, 4096).unwrap();
        let mut consumer = Consumer::open(producer.fd()).unwrap();
        assert_eq!(consumer.region_len(), 4096);
        let mut expected = 0;
        for burst in [3u64, 8, 1, 7, 8, 8, 2] {
            for n in 0..burst {
                producer.publish(&record(expected + n));
            }
            for _ in 0..burst {
                assert_eq!(consumer.poll(), Some((expected, record(expected))));
                expected += 1;
            }
            assert_eq!(consumer.poll(), None);
        }
        assert_eq!((consumer.lost(), producer.published()), (0, expected));
    }

    #[test]
    fn overrun_loses_oldest_records_and_counts_them() {
        let mut producer = Producer::create("t", 4, 1).unwrap();
        let mut consumer = Consumer::open(producer.fd()).unwrap();
        (0..11).for_each(|n| producer.publish(&record(n)));
        let seen: Vec<u64> = std::iter::from_fn(|| consumer.poll()).map(|(n, _)| n).collect();
        assert_eq!(seen, [7, 8, 9, 10]);
        assert_eq!(consumer.lost(), 7);
    }

    #[test]
    fn late_consumer_reads_latest_records_without_loss() {
        let mut producer = Producer::create("t", 4, 1).unwrap();
        (0..6).for_each(|n| producer.publish(&record(n)));
        let mut consumer = Consumer::open(producer.fd()).unwrap();
        assert_eq!(consumer.poll(), Some((2, record(2))));
        assert_eq!(consumer.lost(), 0);
    }

    #[test]
    fn record_kind_and_flags_round_trip() {
        let mut producer = Producer::create("t", 4, 1).unwrap();
        let mut consumer = Consumer::open(producer.fd()).unwrap();
        for kind in [Kind::Data, Kind::Opened, Kind::Closed, Kind::Removed] {
            let full = Completion {
                kind,
                rsvd_ulp: 0xff,
                stag: u32::MAX,
                offset: u64::MAX,
                len: u64::MAX,
                stream: 0,
                unix_nanos: u64::MAX,
            };
            producer.publish(&full);
            assert_eq!(consumer.poll().map(|(_, c)| c), Some(full));
        }
    }

    #[test]
    fn writable_mapping_of_ring_is_refused() {
        let producer = Producer::create("t", 2, 1).unwrap();
        let refused = SharedMap::new(&producer.fd(), SLOTS_AT, ProtFlags::READ | ProtFlags::WRITE);
        assert_eq!(refused.unwrap_err(), rustix::io::Errno::PERM);
    }

    #[test]
    fn impossible_sizes_and_foreign_objects_are_refused() {
        for capacity in [0, 1, 3, MAX_CAPACITY * 2] {
            assert!(matches!(
                Producer::create("t", capacity, 1),
                Err(RingError::Capacity(c)) if c == capacity
            ));
        }
        let fd = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Consumer::open(fd.as_fd()), Err(RingError::NotARing)));
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(matches!(Consumer::open(fd.as_fd()), Err(RingError::NotARing)));
    }

    #[test]
    fn record_read_during_overrun_is_intact_or_lost() {
        const TOTAL: u64 = 20_000;
        let mut producer = Producer::create("t", 4, 1).unwrap();
        let mut consumer = Consumer::open(producer.fd()).unwrap();
        let writer = std::thread::spawn(move || {
            (0..TOTAL).for_each(|n| producer.publish(&record(n)));
            producer
        });
        let mut seen = 0;
        while seen + consumer.lost() < TOTAL {
            if let Some((n, got)) = consumer.poll() {
                assert_eq!(got, record(n));
                seen += 1;
            }
        }
        writer.join().unwrap();
        assert_eq!(seen + consumer.lost(), TOTAL);
    }
}
