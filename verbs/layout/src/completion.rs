//! Completion queue from a worker to a program, and requests for a notification.
//!
//! ```text
//!  byte 0              8                128
//!      | consumer index | arm word | 0.. | entry 0 (64) | entry 1 | ... | entry capacity-1 |
//!        u64, program     program          entry of index n: n mod capacity
//!                         (worker clears)
//!
//!  entry    | words 0..6: completion (`work::Completion`) | word 7: generation |
//!  arm word | bits 63..2: consumer index | bits 1..0: 0 none, 1 next, 2 next solicited |
//! ```
//!
//! Indices count entries, run freely and never wrap: the arm word has 62 bits of the consumer's. The entry of index n
//! is valid when its generation is n / capacity + 1, so that an empty poll loads one word. The worker does not load
//! anything of an entry. It loads the consumer's index only when the queue seems full, and checks it.
//!
//! **No wake-up is lost.** The program stores the arm word, executes a SeqCst fence, and polls once more until the
//! queue is empty before it sleeps. The worker stores the generations, executes a SeqCst fence, and loads the arm word.
//! One fence precedes the other in the single order of SeqCst fences. If the worker's is first, the program's poll
//! returns the entry: it does not sleep. If the program's is first, the worker's load returns the request or a later
//! one. Its index is not beyond the new entry, unless the program has taken that entry: the worker signals. It clears
//! the arm word by compare-and-exchange from the value it loaded, and the caller signals after that. A request stored
//! in between either stays or is equal to the one cleared; in both cases the signal comes after it.
//!
//! Bounds: `push` stores 8 words and loads at most one; `poll` loads 1 or 8.

use crate::shared::{CapacityError, Entries, LINE_WORDS, Ordering, Word, checked, fence, split};
use crate::work::{Completion, DescriptorError};

/// Words in front of the entries.
pub const HEADER_WORDS: usize = LINE_WORDS;
/// Words of an entry.
pub const ENTRY_WORDS: usize = 8;
/// Largest number of entries (64 MiB).
pub const MAX_CAPACITY: usize = 1 << 20;

const CONSUMER_AT: usize = 0;
const ARM_AT: usize = 1;
const GENERATION_AT: usize = 7;

const KIND_MASK: u64 = 3;
const INDEX_SHIFT: u32 = 2;

const _: () = assert!(GENERATION_AT == Completion::WORDS && GENERATION_AT + 1 == ENTRY_WORDS);

/// Returns the words of a queue of `capacity` entries.
pub const fn words(capacity: usize) -> usize {
    HEADER_WORDS + capacity * ENTRY_WORDS
}

/// The completion for which a program requests a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// The next completion.
    Next = 1,
    /// The next completion of a Receive whose message had Solicited Event, or the next with an error.
    Solicited = 2,
}

/// Reason why a completion queue cannot be used further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompletionError {
    /// The program did not release an entry in time: the queue overflows.
    #[error("the completion queue is full")]
    Full,
    /// The program's index went back or is beyond the entries written.
    #[error("the program's index of the completion queue is impossible")]
    LyingIndex,
    /// The generation of an entry is neither of this lap nor of the lap before.
    #[error("generation {0} of an entry is impossible")]
    Generation(u64),
    /// The worker wrote an entry that is not a completion.
    #[error("not a completion: {0}")]
    Descriptor(#[from] DescriptorError),
}

/// The writing side of a completion queue, in the worker.
#[derive(Debug)]
pub struct Producer<'a> {
    other: &'a Word,
    arm: &'a Word,
    entries: Entries<'a>,
    /// Index of the next entry to write.
    next: u64,
    /// Index behind the last entry that a solicited request waits for.
    solicited: u64,
    /// The consumer's index, as last read.
    released: u64,
}

impl<'a> Producer<'a> {
    /// Returns the producer of a new queue, whose memory of [`words`]`(capacity)` words is zero.
    pub fn new(memory: &'a [Word], capacity: usize) -> Result<Producer<'a>, CapacityError> {
        let parts = split(memory, HEADER_WORDS, capacity, MAX_CAPACITY)?;
        Ok(Producer {
            other: &parts.header[CONSUMER_AT],
            arm: &parts.header[ARM_AT],
            entries: parts.entries,
            next: 0,
            solicited: 0,
            released: 0,
        })
    }

    /// Reads the consumer's index and returns the number of free entries.
    pub fn free(&mut self) -> Result<u64, CompletionError> {
        let index = self.other.load(Ordering::Acquire);
        let capacity = self.entries.capacity();
        let base = self.next.wrapping_sub(capacity);
        self.released =
            checked(index, base, self.released, capacity).ok_or(CompletionError::LyingIndex)?;
        Ok(self.known_free())
    }

    /// Writes a completion, which the program can see at once. [`must_signal`](Self::must_signal) follows, once per
    /// batch.
    pub fn push(&mut self, completion: &Completion) -> Result<(), CompletionError> {
        if self.known_free() == 0 && self.free()? == 0 {
            return Err(CompletionError::Full);
        }
        let entry = self.entries.at(self.next);
        for (word, value) in entry.iter().zip(completion.encode()) {
            word.store(value, Ordering::Relaxed);
        }
        entry[GENERATION_AT].store(generation(self.entries, self.next), Ordering::Release);
        self.next = self.next.wrapping_add(1);
        if completion.is_solicited() {
            self.solicited = self.next;
        }
        Ok(())
    }

    /// Checks the arm word after completions were pushed. Returns whether the caller must signal the program's event
    /// channel; the request is then served.
    pub fn must_signal(&mut self) -> bool {
        // Between the generations and the arm word: see the module's documentation.
        fence(Ordering::SeqCst);
        let armed = self.arm.load(Ordering::Relaxed);
        let from = armed >> INDEX_SHIFT;
        let due = match armed & KIND_MASK {
            kind if kind == Request::Next as u64 => self.next > from,
            kind if kind == Request::Solicited as u64 => self.solicited > from,
            _ => false,
        };
        if due {
            // A failed exchange leaves a newer request, which causes another signal.
            let _ = self.arm.compare_exchange(armed, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        due
    }

    fn known_free(&self) -> u64 {
        self.entries.capacity() - self.next.wrapping_sub(self.released)
    }
}

/// The reading side of a completion queue, in the program.
#[derive(Debug)]
pub struct Consumer<'a> {
    index: &'a Word,
    arm: &'a Word,
    entries: Entries<'a>,
    /// Index of the next entry to read.
    next: u64,
    /// The index in shared memory.
    released: u64,
}

impl<'a> Consumer<'a> {
    /// Returns the consumer of a new queue, whose memory of [`words`]`(capacity)` words is zero.
    pub fn new(memory: &'a [Word], capacity: usize) -> Result<Consumer<'a>, CapacityError> {
        let parts = split(memory, HEADER_WORDS, capacity, MAX_CAPACITY)?;
        Ok(Consumer {
            index: &parts.header[CONSUMER_AT],
            arm: &parts.header[ARM_AT],
            entries: parts.entries,
            next: 0,
            released: 0,
        })
    }

    /// Takes the next completion. `None`: the queue is empty.
    pub fn poll(&mut self) -> Result<Option<Completion>, CompletionError> {
        let entry = self.entries.at(self.next);
        let seen = entry[GENERATION_AT].load(Ordering::Acquire);
        let expected = generation(self.entries, self.next);
        if seen != expected {
            let empty = seen == expected - 1;
            return if empty { Ok(None) } else { Err(CompletionError::Generation(seen)) };
        }
        let words = std::array::from_fn(|at| entry[at].load(Ordering::Relaxed));
        let completion = Completion::decode(&words)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(completion))
    }

    /// Gives all polled entries back to the worker by one store.
    pub fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            self.index.store(self.next, Ordering::Release);
        }
    }

    /// Requests a notification and releases the polled entries. The caller then polls until the queue is empty before
    /// it waits for the notification. A pending request for the next completion is not weakened to a solicited one. If
    /// the worker serves it at that moment, there may be one signal too many.
    pub fn arm(&mut self, request: Request) {
        self.release();
        let next = Request::Next as u64;
        let pending = self.arm.load(Ordering::Relaxed) & KIND_MASK;
        let kind = if pending == next { next } else { request as u64 };
        self.arm.store(self.next << INDEX_SHIFT | kind, Ordering::Relaxed);
        // Between the arm word and the generations: see the module's documentation.
        fence(Ordering::SeqCst);
    }
}

/// Returns the generation of the entry of a free-running index: the number of the lap, from 1.
fn generation(entries: Entries<'_>, index: u64) -> u64 {
    (index >> entries.capacity().trailing_zeros()) + 1
}
