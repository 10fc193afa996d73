//! Areas (shared memory files) with queues and doorbells, and the program's side of these queues and doorbells. Each
//! ring, CQ and doorbell object keeps its area mapped.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs_layout::completion::{self, CompletionError, Request};
use verbs_layout::doorbell::{self, DoorbellError};
use verbs_layout::ring::{self, RingError};
use verbs_layout::session::{self, MAX_BYTES};
use verbs_layout::work::Completion;
use verbs_layout::{CapacityError, Unit, Word};

use super::{Mapping, MappingError};

/// A mapped area. Clones refer to the same memory, which is unmapped when the last clone is dropped. Each queue in the
/// area holds a clone.
#[derive(Clone, Debug)]
pub(crate) struct Area(Arc<Mapping>);

impl Area {
    /// Maps an area of the appliance and checks its header.
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

    /// Returns all words of the area, from its header on.
    pub(crate) fn words(&self) -> &[Word] {
        let start = self.0.start.as_ptr().cast::<Word>();
        // SAFETY: `len / 8` words from `start` lie inside the mapping, which is page-aligned and outlives the
        // reference. Words are atomics, so the appliance may write them while the shared reference exists.
        unsafe { std::slice::from_raw_parts(start, self.0.len / size_of::<Word>()) }
    }

    /// Returns the producer of the ring of `capacity` units at byte `offset` of the area.
    pub(crate) fn ring(&self, offset: u64, capacity: u32) -> Result<RingProducer, MappingError> {
        let capacity = checked_capacity(capacity, ring::MAX_CAPACITY)?;
        let words = self.part(offset, ring::words(capacity))?;
        let queue = ring::Producer::new(words, capacity)?;
        Ok(RingProducer { queue, _area: self.clone() })
    }

    /// Returns the consumer of the completion queue of `capacity` entries at byte `offset` of the area.
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

    /// Returns the program's side of the doorbells at byte `offset` of the area.
    pub(crate) fn doorbells(&self, offset: u64) -> Result<DoorbellRinger, MappingError> {
        let queue = doorbell::Ringer::new(self.part(offset, doorbell::WORDS)?)?;
        Ok(DoorbellRinger { queue, _area: self.clone() })
    }

    /// Returns `words` words from byte `offset` on. The caller must store the result together with a clone of the area,
    /// which keeps the words mapped.
    fn part(&self, offset: u64, words: usize) -> Result<&'static [Word], MappingError> {
        let part: *const [Word] = session::part(self.words(), offset, words)?;
        // SAFETY: the words stay mapped while a clone of the area exists. Each caller of `part`, all in this module,
        // stores the reference in a struct that also owns a clone, which is dropped after it. These structs return
        // nothing that borrows the words for longer than `self`.
        Ok(unsafe { &*part })
    }
}

/// Returns `capacity` as `usize`, or an error above `most`: the size in words of a larger queue could overflow.
fn checked_capacity(capacity: u32, most: usize) -> Result<usize, CapacityError> {
    let capacity = capacity as usize;
    if capacity > most {
        return Err(CapacityError::Capacity { capacity, least: 2, most });
    }
    Ok(capacity)
}

/// The program's side of a send or receive queue, which writes descriptors.
#[derive(Debug)]
pub(crate) struct RingProducer {
    queue: ring::Producer<'static>,
    _area: Area,
}

impl RingProducer {
    /// Writes the units of a descriptor, not yet visible to the worker: see [`ring::Producer::push`].
    #[inline]
    pub(crate) fn push(&mut self, units: &[Unit]) -> Result<(), RingError> {
        self.queue.push(units)
    }

    /// Makes all written descriptors of an SRQ visible to the workers: see [`ring::Producer::publish_counted`].
    pub(crate) fn publish_counted(&mut self, descriptors: u64) {
        self.queue.publish_counted(descriptors);
    }

    /// Makes all written descriptors visible to the worker: see [`ring::Producer::publish`]. Returns true if there were
    /// any.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        self.queue.publish()
    }
}

/// The program's side of one worker's queue of a CQ, which reads completions.
#[derive(Debug)]
pub(crate) struct CompletionConsumer {
    queue: completion::Consumer<'static>,
    _area: Area,
}

impl CompletionConsumer {
    /// Removes and returns the next completion: see [`completion::Consumer::poll`].
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Option<Completion>, CompletionError> {
        self.queue.poll()
    }

    /// Returns the index of the next entry: see [`completion::Consumer::position`].
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.queue.position()
    }

    /// Returns the index after the last entry of a QP: see [`completion::Consumer::end_of`].
    pub(crate) fn end_of_pair(&self, number: u32) -> u64 {
        self.queue.end_of(|completion| completion.qp_number == number)
    }

    /// Releases the polled entries to the worker: see [`completion::Consumer::release`].
    #[inline]
    pub(crate) fn release(&mut self) {
        self.queue.release();
    }

    /// Requests one notification on the CQ's channel: see [`completion::Consumer::arm`].
    pub(crate) fn arm(&mut self, request: Request) {
        self.queue.arm(request);
    }

    /// Withdraws a request that earlier completions satisfy: see [`completion::Consumer::withdraw_satisfied`].
    pub(crate) fn withdraw_satisfied(&mut self) -> bool {
        self.queue.withdraw_satisfied()
    }

    /// Returns true while a requested notification is pending: see [`completion::Consumer::is_armed`].
    pub(crate) fn is_armed(&self) -> bool {
        self.queue.is_armed()
    }
}

/// The program's side of its doorbells at one worker.
#[derive(Debug)]
pub(crate) struct DoorbellRinger {
    queue: doorbell::Ringer<'static>,
    _area: Area,
}

impl DoorbellRinger {
    /// Announces new descriptors in a queue. Returns true if the caller must wake the worker: see
    /// [`doorbell::Ringer::ring`].
    #[inline]
    pub(crate) fn ring(&self, queue: u32) -> Result<bool, DoorbellError> {
        self.queue.ring(queue)
    }
}
