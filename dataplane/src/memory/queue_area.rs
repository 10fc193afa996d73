//! Areas: shared memory that holds the queues and doorbells of a local program (`verbs_layout`). The worker's end of a
//! queue keeps its area mapped.
//!
//! An area is a memory file with a sealed size. It is populated when it is created, so that a worker does not fault. A
//! program that punches a hole into it costs the worker one fault and itself the content: the worker reads zeros, which
//! are an empty queue or a refused descriptor.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use verbs_layout::completion::{self, CompletionError};
use verbs_layout::doorbell::{self, DoorbellError};
use verbs_layout::ring::{self, RingError};
use verbs_layout::session::{self, AreaError};
use verbs_layout::version::VERSION;
use verbs_layout::work::Completion;
use verbs_layout::{CapacityError, Units, Word};

use super::map::Mapping;
use super::{Maps, MemoryError};

/// A mapped area. Clones refer to the same memory, which is unmapped with the last one and the last queue.
#[derive(Clone)]
pub struct QueueArea(Arc<Inner>);

struct Inner {
    mapping: Mapping,
}

/// Reason why an area has no such queue.
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
    /// Creates an area of `bytes` bytes, a multiple of 8, with its header. Returns it with its memory file, whose size is
    /// sealed and which the program maps. `name` appears in `/proc/PID/maps` of the program. Blocks: never call it on a
    /// worker.
    ///
    /// # Errors
    /// The memory is not available, `maps` is at its bound, or `bytes` is not the length of an area.
    pub fn create(
        name: &str,
        bytes: u64,
        maps: &Maps,
    ) -> Result<(QueueArea, OwnedFd), MemoryError> {
        let len = super::checked_len(bytes)?;
        let permit = maps.permit(1)?;
        let (mapping, fd) = Mapping::shared(name, len)?;
        let mapping = mapping.with_permit(permit);
        // Locking is attempted only: queues are small and in permanent use.
        mapping.lock(&mut Vec::new());
        mapping.prefault(&mut |_| Ok(()))?;
        let area = QueueArea(Arc::new(Inner { mapping }));
        session::write(area.words(), VERSION)
            .map_err(|error| MemoryError::QueueArea { len: bytes, error })?;
        Ok((area, fd))
    }

    /// Returns the words of the area.
    pub fn words(&self) -> &[Word] {
        self.0.mapping.words()
    }

    /// Returns the worker's end of the ring of `capacity` units at byte `offset`, whose memory is zero.
    ///
    /// # Errors
    /// The capacity is refused, or the ring is not within the area.
    pub fn ring(&self, offset: u64, capacity: usize) -> Result<RingConsumer, QueueError> {
        check_capacity(capacity, ring::MAX_CAPACITY)?;
        let words = self.part(offset, ring::words(capacity))?;
        let queue = ring::Consumer::new(words, capacity)?;
        Ok(RingConsumer { queue, _area: self.clone() })
    }

    /// Returns the worker's end of the completion queue of `capacity` entries at byte `offset`, whose memory is zero.
    ///
    /// # Errors
    /// As [`ring`](Self::ring).
    pub fn completion_queue(
        &self,
        offset: u64,
        capacity: usize,
    ) -> Result<CompletionProducer, QueueError> {
        check_capacity(capacity, completion::MAX_CAPACITY)?;
        let words = self.part(offset, completion::words(capacity))?;
        let queue = completion::Producer::new(words, capacity)?;
        Ok(CompletionProducer { queue, _area: self.clone() })
    }

    /// Returns the worker's end of the doorbells at byte `offset`, whose memory is zero.
    ///
    /// # Errors
    /// They are not within the area.
    pub fn doorbells(&self, offset: u64) -> Result<DoorbellScanner, QueueError> {
        let queue = doorbell::Scanner::new(self.part(offset, doorbell::WORDS)?)?;
        Ok(DoorbellScanner { queue, _area: self.clone() })
    }

    /// Returns words of the area for a queue that keeps the area mapped.
    fn part(&self, offset: u64, words: usize) -> Result<&'static [Word], QueueError> {
        let part: *const [Word] = session::part(self.words(), offset, words)?;
        // SAFETY: the words stay mapped while the area is. Each queue of this module owns a clone of the area beside the
        // reference, drops the reference first, and returns nothing that borrows the words for longer than itself.
        Ok(unsafe { &*part })
    }
}

impl fmt::Debug for QueueArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueArea").field("bytes", &self.0.mapping.len()).finish_non_exhaustive()
    }
}

/// Refuses a capacity whose size in words could overflow.
fn check_capacity(capacity: usize, most: usize) -> Result<(), CapacityError> {
    if capacity > most {
        return Err(CapacityError::Capacity { capacity, least: 2, most });
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
    /// Copies the next descriptor: see [`ring::Consumer::pop`].
    ///
    /// # Errors
    /// The program broke the rules of the ring, which must not be used further.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Units>, RingError> {
        self.queue.pop()
    }

    /// Returns all popped units to the program.
    #[inline]
    pub fn release(&mut self) {
        self.queue.release();
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
    /// The queue is full, or the program's index is impossible.
    #[inline]
    pub fn push(&mut self, completion: &Completion) -> Result<(), CompletionError> {
        self.queue.push(completion)
    }

    /// Returns true if the program has requested a notification of a completion pushed since: see
    /// [`completion::Producer::must_signal`].
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

    /// Announces that the worker is about to sleep. Returns false if a doorbell was rung meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        self.queue.prepare_sleep()
    }

    /// Announces that the worker is awake.
    pub fn wake(&mut self) {
        self.queue.wake();
    }
}
