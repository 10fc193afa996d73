//! Ring of descriptors from a program to a worker: send queue (SQ), receive queue (RQ) and shared receive queue (SRQ).
//!
//! ```text
//!  byte 0              128             256
//!      | producer index | consumer index | unit 0 (64) | unit 1 | ... | unit capacity-1 |
//!        u64, written     u64, written     unit of index n: n mod capacity
//!        by the program   by the worker
//!  byte 8 of an SRQ: number of published descriptors, u64, written by the program
//!
//!                consumer index      producer index
//!                       v                   v
//!      ... | released  | published units   | free, or pushed and not yet published | ...
//!                       <------- at most capacity ------->
//! ```
//!
//! Indices count units of 64 bytes from 0 and never wrap (2⁶⁴ units). A descriptor is 1 to [`MAX_UNITS`] consecutive
//! units, which may continue at the start of the ring. Bits 0 to 7 of the first word of a descriptor are the number of
//! its units. The producer publishes only whole descriptors.
//!
//! Each side keeps its own index in private memory and does not rely on the stored one. The other side's index is
//! loaded with acquire order and checked: it may neither go back nor be further away than the ring allows. Each unit is
//! copied once, and all checks apply to the copy. An error leaves the state unchanged; the owner then ends the queue.
//!
//! An SRQ has one producer and several consumers: the workers of its queue pairs. They share the state of a
//! [`SharedConsumer`] in memory that the program does not have. A worker copies a descriptor and then tries to advance
//! the shared index past it. If this succeeds, the descriptor belongs to the worker. No worker waits for another.
//!
//! Bounds: `push` stores the given units and loads at most one index. [`Consumer::pop_with`] loads at most one index
//! and [`MAX_UNITS`] units, as does each of the at most 10,000 attempts of [`SharedConsumer::pop`].

use crate::shared::{CapacityError, Entries, LINE_WORDS, Ordering, Word, checked, split};
use crate::unit::{MAX_UNITS, UNIT_WORDS, Unit, Units};

/// Words of the header in front of the units.
pub const HEADER_WORDS: usize = 2 * LINE_WORDS;
/// Maximum number of units of a ring (8 MiB).
pub const MAX_CAPACITY: usize = 1 << 17;

const PRODUCER_AT: usize = 0;
const POSTED_AT: usize = 1;
const CONSUMER_AT: usize = LINE_WORDS;

/// Returns the number of words of a ring of `capacity` units.
pub const fn words(capacity: usize) -> usize {
    HEADER_WORDS + capacity * UNIT_WORDS
}

/// Reason why an operation on a ring failed. After any error but [`Full`](Self::Full) the ring cannot be used further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// The ring has fewer free units than the descriptor.
    #[error("the ring is full")]
    Full,
    /// The other side's index is lower than before, or further away than the ring allows.
    #[error("the other side's index is impossible")]
    LyingIndex,
    /// Fewer units are published than the descriptor has.
    #[error("a descriptor of {units} units, {available} of which are published")]
    Truncated {
        /// Units of the descriptor, according to its first word.
        units: u8,
        /// Units published and not popped.
        available: u8,
    },
    /// The number of units in the first word is 0 or above [`MAX_UNITS`].
    #[error("a descriptor of {0} units; it may have 1 to {MAX_UNITS}")]
    UnitCount(u8),
}

/// The program's side of a ring, which writes descriptors.
#[derive(Debug)]
pub struct Producer<'a> {
    index: &'a Word,
    other: &'a Word,
    units: Entries<'a>,
    /// Index of the next unit to write.
    next: u64,
    /// Producer index in shared memory, as last stored.
    published: u64,
    /// The consumer's index, as last loaded.
    released: u64,
    /// Number of published descriptors of an SRQ, in shared memory.
    count: &'a Word,
    /// Number of published descriptors of an SRQ.
    posted: u64,
}

impl<'a> Producer<'a> {
    /// Creates the producer of a new ring. `memory` must have [`words`]`(capacity)` words, all zero.
    pub fn new(memory: &'a [Word], capacity: usize) -> Result<Producer<'a>, CapacityError> {
        let parts = split(memory, HEADER_WORDS, capacity, MAX_CAPACITY)?;
        Ok(Producer {
            index: &parts.header[PRODUCER_AT],
            other: &parts.header[CONSUMER_AT],
            units: parts.entries,
            next: 0,
            published: 0,
            released: 0,
            count: &parts.header[POSTED_AT],
            posted: 0,
        })
    }

    /// Reads the consumer's index and returns the number of free units.
    pub fn free(&mut self) -> Result<u64, RingError> {
        let index = self.other.load(Ordering::Acquire);
        let capacity = self.units.capacity();
        // The consumer may release only published units.
        let base = self.next.wrapping_sub(capacity);
        let most = self.published.wrapping_sub(base);
        self.released = checked(index, base, self.released, most).ok_or(RingError::LyingIndex)?;
        Ok(self.known_free())
    }

    /// Writes the units of one or several descriptors, all or none. The units are not visible to the consumer before
    /// [`publish`](Self::publish).
    #[inline]
    pub fn push(&mut self, units: &[Unit]) -> Result<(), RingError> {
        let needed = units.len() as u64;
        if needed > self.known_free() && needed > self.free()? {
            return Err(RingError::Full);
        }
        for unit in units {
            for (word, &value) in self.units.at(self.next).iter().zip(unit) {
                word.store(value, Ordering::Relaxed);
            }
            self.next = self.next.wrapping_add(1);
        }
        Ok(())
    }

    /// Publishes all pushed units with one store. Returns true if there were any.
    pub fn publish(&mut self) -> bool {
        let is_new = self.published != self.next;
        if is_new {
            self.published = self.next;
            self.index.store(self.next, Ordering::Release);
        }
        is_new
    }

    /// Publishes all pushed units of an SRQ, which are `descriptors` descriptors.
    pub fn publish_counted(&mut self, descriptors: u64) {
        self.posted = self.posted.wrapping_add(descriptors);
        // The count becomes visible with the index that `publish` stores.
        self.count.store(self.posted, Ordering::Relaxed);
        self.publish();
    }

    fn known_free(&self) -> u64 {
        self.units.capacity() - self.next.wrapping_sub(self.released)
    }
}

/// The worker's side of a ring, which reads descriptors.
#[derive(Debug)]
pub struct Consumer<'a> {
    index: &'a Word,
    other: &'a Word,
    units: Entries<'a>,
    /// Index of the next unit to read.
    next: u64,
    /// Consumer index in shared memory, as last stored.
    released: u64,
    /// The producer's index, as last loaded.
    published: u64,
}

impl<'a> Consumer<'a> {
    /// Creates the consumer of a new ring. `memory` must have [`words`]`(capacity)` words, all zero.
    pub fn new(memory: &'a [Word], capacity: usize) -> Result<Consumer<'a>, CapacityError> {
        let parts = split(memory, HEADER_WORDS, capacity, MAX_CAPACITY)?;
        Ok(Consumer {
            index: &parts.header[CONSUMER_AT],
            other: &parts.header[PRODUCER_AT],
            units: parts.entries,
            next: 0,
            released: 0,
            published: 0,
        })
    }

    /// Reads the producer's index and returns the number of published units that were not popped.
    pub fn available(&mut self) -> Result<u64, RingError> {
        let index = self.other.load(Ordering::Acquire);
        // The producer may publish at most `capacity` units beyond the released index: popped units are not free before
        // their release.
        let (base, most) = (self.released, self.units.capacity());
        self.published = checked(index, base, self.published, most).ok_or(RingError::LyingIndex)?;
        Ok(self.known_available())
    }

    /// Copies the next descriptor, removes it from the ring and returns the result of `take`, which is called with the
    /// copy; `None` if no unit is published.
    #[inline]
    pub fn pop_with<R>(&mut self, take: impl FnOnce(&[Unit]) -> R) -> Result<Option<R>, RingError> {
        if self.known_available() == 0 && self.available()? == 0 {
            return Ok(None);
        }
        let first = self.copy(self.next);
        let count = first[0] as u8;
        if count == 0 || usize::from(count) > MAX_UNITS {
            return Err(RingError::UnitCount(count));
        }
        // Whole descriptors are published at once, so reading the index again would not help.
        let available = self.known_available();
        if u64::from(count) > available {
            return Err(RingError::Truncated { units: count, available: available as u8 });
        }
        let start = self.next;
        self.next = start.wrapping_add(count.into());
        if count == 1 {
            // Most descriptors have one unit.
            return Ok(Some(take(&[first])));
        }
        let mut units = Units::new();
        units.push(first);
        units.extend((1..u64::from(count)).map(|n| self.copy(start.wrapping_add(n))));
        Ok(Some(take(&units)))
    }

    /// Returns a copy of the next descriptor and removes it from the ring; `None` if no unit is published.
    pub fn pop(&mut self) -> Result<Option<Units>, RingError> {
        self.pop_with(|units| units.iter().copied().collect())
    }

    /// Releases all popped units to the producer with one store.
    pub fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            self.index.store(self.next, Ordering::Release);
        }
    }

    fn known_available(&self) -> u64 {
        self.published.wrapping_sub(self.next)
    }

    fn copy(&self, index: u64) -> Unit {
        self.units.at(index).each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// Maximum number of attempts of a [`SharedConsumer::pop`]. An attempt fails only if another worker has taken a
/// descriptor meanwhile.
const MAX_ATTEMPTS: u32 = 10_000;

/// The workers' side of an SRQ. All workers use one value.
#[derive(Debug)]
pub struct SharedConsumer<'a> {
    index: &'a Word,
    other: &'a Word,
    count: &'a Word,
    units: Entries<'a>,
    /// Index of the next unit to take. Kept in memory that the program does not share.
    next: Word,
    /// Number of descriptors taken. Kept in memory that the program does not share.
    taken: Word,
}

impl<'a> SharedConsumer<'a> {
    /// Creates the consumer of a new ring. `memory` must have [`words`]`(capacity)` words, all zero.
    pub fn new(memory: &'a [Word], capacity: usize) -> Result<SharedConsumer<'a>, CapacityError> {
        let parts = split(memory, HEADER_WORDS, capacity, MAX_CAPACITY)?;
        Ok(SharedConsumer {
            index: &parts.header[CONSUMER_AT],
            other: &parts.header[PRODUCER_AT],
            count: &parts.header[POSTED_AT],
            units: parts.entries,
            next: Word::new(0),
            taken: Word::new(0),
        })
    }

    /// Takes the next descriptor and releases its units to the producer. Returns `None` if no unit is published, or
    /// after `MAX_ATTEMPTS` failed attempts.
    pub fn pop(&self) -> Result<Option<Units>, RingError> {
        for _ in 0..MAX_ATTEMPTS {
            let next = self.next.load(Ordering::Acquire);
            // Only units below `next` can be released. So the producer may publish at most `capacity` units beyond
            // `next`, unless another worker has advanced `next` meanwhile.
            let available = self.other.load(Ordering::Acquire).wrapping_sub(next);
            if available == 0 {
                return Ok(None);
            }
            let copied = match available <= self.units.capacity() {
                true => self.copy(next, available),
                false => Err(RingError::LyingIndex),
            };
            match copied {
                Ok(units) => {
                    let end = next.wrapping_add(units.len() as u64);
                    // Release: this copy is complete before its units can be released. Acquire: the copies of all
                    // earlier units are complete, too.
                    let taken =
                        self.next.compare_exchange(next, end, Ordering::AcqRel, Ordering::Relaxed);
                    if taken.is_ok() {
                        self.taken.fetch_add(1, Ordering::Relaxed);
                        // Another worker may have released later units already.
                        self.index.fetch_max(end, Ordering::Release);
                        return Ok(Some(units));
                    }
                }
                // Another worker may have taken these units, and the producer may have overwritten them: the error is
                // then not the producer's. The exchange reads the newest index; a load may return an older index.
                Err(error) => {
                    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                    if self.next.compare_exchange(next, next, success, failure).is_ok() {
                        return Err(error);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns the number of published descriptors that were not taken. The program's count is not checked: the result
    /// may exceed the capacity.
    pub fn remaining(&self) -> u64 {
        let posted = self.count.load(Ordering::Relaxed);
        posted.wrapping_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Copies the descriptor at `next`, of which `available` units are published.
    fn copy(&self, next: u64, available: u64) -> Result<Units, RingError> {
        let first = self.unit(next);
        let count = first[0] as u8;
        if count == 0 || usize::from(count) > MAX_UNITS {
            return Err(RingError::UnitCount(count));
        }
        if u64::from(count) > available {
            return Err(RingError::Truncated { units: count, available: available as u8 });
        }
        let mut units = Units::new();
        units.push(first);
        units.extend((1..u64::from(count)).map(|n| self.unit(next.wrapping_add(n))));
        Ok(units)
    }

    fn unit(&self, index: u64) -> Unit {
        self.units.at(index).each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}
