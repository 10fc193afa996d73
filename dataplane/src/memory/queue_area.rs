//! Queue areas: shared memory that holds queues or doorbells of a local program (`verbs_layout`). The worker's end of a
//! queue keeps its area mapped.
//!
//! An area is a memfd with a sealed size. Its pages are populated at creation, so that a worker takes no page
//! fault. If the program punches a hole into the file, the worker takes one page fault and reads zeros: an empty queue
//! or a refused descriptor.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use verbs_layout::completion::{self, CompletionError};
use verbs_layout::doorbell::{self, DoorbellError};
use verbs_layout::ring::{self, RingError};
use verbs_layout::session::{self, AreaError};
use verbs_layout::version::VERSION;
use verbs_layout::work::Completion;
use verbs_layout::{CapacityError, Unit, Units, Word};

use super::free_thread::{self, MemoryResources};
use super::map::Mapping;
use super::{Maps, MemoryError};

/// A mapped area. Clones refer to the same memory, which is unmapped when the last clone and the last queue are
/// dropped.
#[derive(Clone)]
pub struct QueueArea(Arc<Inner>);

/// The part of an area that its clones share. Its `Drop` runs when the last clone is dropped.
struct Inner {
    mapping: Mapping,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A worker may drop the last queue of the area, and must not wait for the kernel to unmap it.
        let mapping = std::mem::replace(&mut self.mapping, Mapping::empty());
        free_thread::free_deferred(MemoryResources { mapping, shared: None, charge: None });
    }
}

/// Reason why an area cannot have a queue at an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// The queue is not within the area.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// The number of entries is refused.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The doorbells are refused.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
}

impl QueueArea {
    /// Creates an area of `bytes` bytes, a multiple of 8, with its header. Returns the area and its memfd, which
    /// the program maps. `name` appears in `/proc/PID/maps` of the program. Blocks: must not be called on a worker.
    ///
    /// # Errors
    /// The memory is not available, the bound of `maps` is reached, or `bytes` is not the length of an area.
    pub fn create(
        name: &str,
        bytes: u64,
        maps: &Maps,
    ) -> Result<(QueueArea, OwnedFd), MemoryError> {
        let len = super::checked_len(bytes)?;
        free_thread::start_thread();
        let permit = maps.permit(1)?;
        let (mapping, fd) = Mapping::shared(name, len)?;
        let mapping = mapping.with_permit(permit);
        // A failure to lock is ignored: queues are small and always in use, so their pages remain in memory.
        mapping.lock(&mut Vec::new());
        mapping.prefault(&mut |_| Ok(()))?;
        let area = QueueArea(Arc::new(Inner { mapping }));
        session::write(area.words(), VERSION)
            .map_err(|error| MemoryError::QueueArea { len: bytes, error })?;
        Ok((area, fd))
    }

    /// Returns all words of the area, with its header.
    pub fn words(&self) -> &[Word] {
        self.0.mapping.words()
    }

    /// Returns the worker's end of a ring of `capacity` units (64 bytes each) at byte `offset`. The ring's memory must
    /// be zero.
    ///
    /// # Errors
    /// The capacity is refused, or the ring is not within the area.
    pub fn ring(&self, offset: u64, capacity: usize) -> Result<RingConsumer, QueueError> {
        check_capacity(capacity, ring::MAX_CAPACITY)?;
        // SAFETY: `RingConsumer` drops the words before its clone of the area, and lends them to no one.
        let words = unsafe { self.part(offset, ring::words(capacity))? };
        let queue = ring::Consumer::new(words, capacity)?;
        Ok(RingConsumer { queue, _area: self.clone() })
    }

    /// Returns the workers' end of a shared receive queue of `capacity` units (64 bytes each) at byte `offset`. The
    /// queue's memory must be zero.
    ///
    /// # Errors
    /// The capacity is refused, or the queue is not within the area.
    pub fn shared_ring(&self, offset: u64, capacity: usize) -> Result<SharedRing, QueueError> {
        check_capacity(capacity, ring::MAX_CAPACITY)?;
        // SAFETY: as in `ring`, for `SharedRing`.
        let words = unsafe { self.part(offset, ring::words(capacity))? };
        let queue = ring::SharedConsumer::new(words, capacity)?;
        Ok(SharedRing { queue, _area: self.clone() })
    }

    /// Returns the worker's end of a completion queue of `capacity` entries at byte `offset`. The queue's memory must
    /// be zero.
    ///
    /// # Errors
    /// The capacity is refused, or the queue is not within the area.
    pub fn completion_queue(
        &self,
        offset: u64,
        capacity: usize,
    ) -> Result<CompletionProducer, QueueError> {
        check_capacity(capacity, completion::MAX_CAPACITY)?;
        // SAFETY: as in `ring`, for `CompletionProducer`.
        let words = unsafe { self.part(offset, completion::words(capacity))? };
        let queue = completion::Producer::new(words, capacity)?;
        Ok(CompletionProducer { queue, _area: self.clone() })
    }

    /// Returns the worker's end of doorbells at byte `offset`. Their memory must be zero.
    ///
    /// # Errors
    /// The doorbells are not within the area.
    pub fn doorbells(&self, offset: u64) -> Result<DoorbellScanner, QueueError> {
        // SAFETY: as in `ring`, for `DoorbellScanner`.
        let words = unsafe { self.part(offset, doorbell::WORDS)? };
        let queue = doorbell::Scanner::new(words)?;
        Ok(DoorbellScanner { queue, _area: self.clone() })
    }

    /// Returns `words` words of the area from byte `offset` on.
    ///
    /// # Safety
    /// The caller must own a clone of the area for as long as the reference or any borrow from it is used.
    unsafe fn part(&self, offset: u64, words: usize) -> Result<&'static [Word], QueueError> {
        let part: *const [Word] = session::part(self.words(), offset, words)?;
        // SAFETY: `part` points into the mapping, which exists while any clone of the area does. The caller owns one.
        Ok(unsafe { &*part })
    }
}

impl fmt::Debug for QueueArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueArea").field("bytes", &self.0.mapping.len()).finish_non_exhaustive()
    }
}

/// Refuses a capacity whose size in words could overflow. The lower limit is checked by `verbs_layout`.
fn check_capacity(capacity: usize, most: usize) -> Result<(), CapacityError> {
    /// Least capacity that `verbs_layout` accepts, for the message.
    const LEAST: usize = 2;
    if capacity > most {
        return Err(CapacityError::Capacity { capacity, least: LEAST, most });
    }
    Ok(())
}

/// The worker's end of a ring: SQ or RQ.
#[derive(Debug)]
pub struct RingConsumer {
    queue: ring::Consumer<'static>,
    _area: QueueArea,
}

impl RingConsumer {
    /// Copies the next descriptor and calls `take` with the copy: see [`ring::Consumer::pop_with`].
    ///
    /// # Errors
    /// The program violated the ring protocol. The ring must not be used further.
    #[inline]
    pub fn pop_with<R>(&mut self, take: impl FnOnce(&[Unit]) -> R) -> Result<Option<R>, RingError> {
        self.queue.pop_with(take)
    }

    /// Returns all popped units to the program.
    #[inline]
    pub fn release(&mut self) {
        self.queue.release();
    }
}

/// The workers' end of a shared receive queue (SRQ).
#[derive(Debug)]
pub struct SharedRing {
    queue: ring::SharedConsumer<'static>,
    _area: QueueArea,
}

impl SharedRing {
    /// Takes the next descriptor: see [`ring::SharedConsumer::pop`].
    ///
    /// # Errors
    /// The program violated the ring protocol. The ring must not be used further.
    pub fn pop(&self) -> Result<Option<Units>, RingError> {
        self.queue.pop()
    }

    /// Returns the number of descriptors that were not taken: see [`ring::SharedConsumer::remaining`].
    pub fn remaining(&self) -> u64 {
        self.queue.remaining()
    }
}

/// The worker's end of a completion queue.
#[derive(Debug)]
pub struct CompletionProducer {
    queue: completion::Producer<'static>,
    _area: QueueArea,
}

impl CompletionProducer {
    /// Writes a completion: see [`completion::Producer::push`].
    ///
    /// # Errors
    /// The queue is full, or the index that the program wrote is invalid.
    #[inline]
    pub fn push(&mut self, completion: &Completion) -> Result<(), CompletionError> {
        self.queue.push(completion)
    }

    /// Returns true if the program has requested a notification and a matching completion was pushed after the request.
    /// Clears the request: see [`completion::Producer::must_signal`].
    #[inline]
    pub fn must_signal(&mut self) -> bool {
        self.queue.must_signal()
    }
}

/// The worker's end of the doorbells of one program.
#[derive(Debug)]
pub struct DoorbellScanner {
    queue: doorbell::Scanner<'static>,
    _area: QueueArea,
}

impl DoorbellScanner {
    /// Returns the next queue whose doorbell was rung: see [`doorbell::Scanner::next_queue`].
    #[inline]
    pub fn next_queue(&mut self, budget: &mut u32) -> Option<u32> {
        self.queue.next_queue(budget)
    }

    /// Returns true if a doorbell may have been rung.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.queue.is_rung()
    }

    /// Announces to the program that the worker is about to sleep. Returns false if a doorbell has been rung.
    pub fn prepare_sleep(&mut self) -> bool {
        self.queue.prepare_sleep()
    }

    /// Announces to the program that the worker is awake.
    pub fn wake(&mut self) {
        self.queue.wake();
    }
}
