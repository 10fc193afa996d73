//! Areas of queues and doorbells, and the program's ends of these queues. An end keeps its area mapped.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs_layout::completion::{self, CompletionError, Request};
use verbs_layout::doorbell::{self, DoorbellError};
use verbs_layout::ring::{self, RingError};
use verbs_layout::session::{self, MAX_BYTES};
use verbs_layout::work::Completion;
use verbs_layout::{CapacityError, Unit, Word};

use super::{Mapping, MappingError};

/// A mapped area. Clones refer to the same memory, which is unmapped with the last one and the last queue.
#[derive(Clone, Debug)]
pub(crate) struct Area(Arc<Mapping>);

impl Area {
    /// Maps an area and checks its header.
    pub(crate) fn map(file: BorrowedFd<'_>) -> Result<Area, MappingError> {
        let least = session::HEADER_WORDS as u64 * 8;
        let area = Area(Arc::new(Mapping::new(file, least..MAX_BYTES + 1)?));
        session::check(area.words())?;
        Ok(area)
    }

    /// Maps a new area and writes its header, as the appliance does.
    #[cfg(test)]
    pub(crate) fn map_new(file: BorrowedFd<'_>) -> Result<Area, MappingError> {
        let area = Area(Arc::new(Mapping::new(file, 0..MAX_BYTES + 1)?));
        session::write(area.words(), verbs_layout::version::VERSION)?;
        Ok(area)
    }

    /// Returns the words of the area.
    pub(crate) fn words(&self) -> &[Word] {
        let start = self.0.start.as_ptr().cast::<Word>();
        // SAFETY: these words lie inside the mapping, which outlives the reference and is page-aligned. They are
        // atomics, so that writes of the appliance do not break the shared reference.
        unsafe { std::slice::from_raw_parts(start, self.0.len / size_of::<Word>()) }
    }

    /// Returns the program's end of the ring of `capacity` units at byte `offset`.
    pub(crate) fn ring(&self, offset: u64, capacity: u32) -> Result<RingProducer, MappingError> {
        let capacity = checked_capacity(capacity, ring::MAX_CAPACITY)?;
        let words = self.part(offset, ring::words(capacity))?;
        let queue = ring::Producer::new(words, capacity)?;
        Ok(RingProducer { queue, _area: self.clone() })
    }

    /// Returns the program's end of the completion queue of `capacity` entries at byte `offset`.
    pub(crate) fn completion_queue(
        &self,
        offset: u64,
        capacity: u32,
    ) -> Result<CompletionConsumer, MappingError> {
        let capacity = checked_capacity(capacity, completion::MAX_CAPACITY)?;
        let words = self.part(offset, completion::words(capacity))?;
        let queue = completion::Consumer::new(words, capacity)?;
        Ok(CompletionConsumer { queue, _area: self.clone() })
    }

    /// Returns the program's end of the doorbells at byte `offset`.
    pub(crate) fn doorbells(&self, offset: u64) -> Result<DoorbellRinger, MappingError> {
        let queue = doorbell::Ringer::new(self.part(offset, doorbell::WORDS)?)?;
        Ok(DoorbellRinger { queue, _area: self.clone() })
    }

    /// Returns words of the area for a queue that keeps the area mapped.
    fn part(&self, offset: u64, words: usize) -> Result<&'static [Word], MappingError> {
        let part: *const [Word] = session::part(self.words(), offset, words)?;
        // SAFETY: the words stay mapped while the area is. Each queue of this module owns a clone of the area beside
        // the reference, drops the reference first, and returns nothing that borrows the words for longer than itself.
        Ok(unsafe { &*part })
    }
}

/// Refuses a capacity whose size in words could overflow.
fn checked_capacity(capacity: u32, most: usize) -> Result<usize, CapacityError> {
    let capacity = capacity as usize;
    if capacity > most {
        return Err(CapacityError::Capacity { capacity, least: 2, most });
    }
    Ok(capacity)
}

/// The program's end of SQ or RQ.
#[derive(Debug)]
pub(crate) struct RingProducer {
    queue: ring::Producer<'static>,
    _area: Area,
}

impl RingProducer {
    /// Writes a descriptor: see [`ring::Producer::push`].
    #[inline]
    pub(crate) fn push(&mut self, units: &[Unit]) -> Result<(), RingError> {
        self.queue.push(units)
    }

    /// Publishes all descriptors written: see [`ring::Producer::publish`].
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.queue.publish();
    }
}

/// The program's end of one worker's queue of a CQ.
#[derive(Debug)]
pub(crate) struct CompletionConsumer {
    queue: completion::Consumer<'static>,
    _area: Area,
}

impl CompletionConsumer {
    /// Takes the next completion: see [`completion::Consumer::poll`].
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Option<Completion>, CompletionError> {
        self.queue.poll()
    }

    /// Gives polled entries back: see [`completion::Consumer::release`].
    #[inline]
    pub(crate) fn release(&mut self) {
        self.queue.release();
    }

    /// Requests a notification: see [`completion::Consumer::arm`].
    pub(crate) fn arm(&mut self, request: Request) {
        self.queue.arm(request);
    }
}

/// The program's end of the doorbells at one worker.
#[derive(Debug)]
pub(crate) struct DoorbellRinger {
    queue: doorbell::Ringer<'static>,
    _area: Area,
}

impl DoorbellRinger {
    /// Announces descriptors: see [`doorbell::Ringer::ring`].
    #[inline]
    pub(crate) fn ring(&self, queue: u32) -> Result<bool, DoorbellError> {
        self.queue.ring(queue)
    }
}
