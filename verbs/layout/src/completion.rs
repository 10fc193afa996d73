//! Completion queue (CQ) from a worker to a program, and the program's requests for a notification.
//!
//! ```text
//!  byte 0              8                128
//!      | consumer index | arm word | 0.. | entry 0 (64) | entry 1 | ... | entry capacity-1 |     written by:
//!        program          program          worker; entry of index n: n mod capacity
//!                         (worker clears)
//!
//!  entry    | words 0..6: completion (`work::Completion`) | word 7: generation |
//!  arm word | bits 63..2: consumer index | bits 1..0: 0 none, 1 next, 2 next solicited |
//! ```
//!
//! Indices count entries from 0 and never wrap: 62 bits suffice for the consumer's index in the arm word. The entry of
//! index n is valid when its generation is n / capacity + 1, so a poll of an empty queue loads one word. The worker
//! never reads entries. It loads the consumer's index only when the queue seems full, and checks that index.
//!
//! **No wake-up is lost.** The program stores the arm word, executes a SeqCst fence, and polls once more until the
//! queue is empty before it sleeps. The worker stores the generations, executes a SeqCst fence, and loads the arm word.
//! One fence precedes the other in the single order of SeqCst fences. If the worker's fence is first, the program's
//! poll returns the entry, and the program does not sleep. If the program's fence is first, the worker's load returns
//! the request or a later request. The index in the request is not beyond the new entry, unless the program has taken
//! that entry, so the worker signals. The worker clears the arm word by compare-and-exchange with the value that it
//! loaded, and the caller signals after that. A request that the program stores in between either stays or is equal to
//! the cleared request. In both cases the signal comes after the request.
//!
//! A request does not cover entries that were written before it: the program polls them. A program that waits without
//! polling them calls [`Consumer::withdraw_satisfied`] before it waits.
//!
//! Bounds: `push` stores 8 words of shared memory and loads at most one; `poll` loads 1 or 8.

use crate::shared::{CapacityError, Entries, LINE_WORDS, Ordering, Word, checked, fence, split};
use crate::work::{Completion, DescriptorError};

/// Words of the header in front of the entries.
pub const HEADER_WORDS: usize = LINE_WORDS;
/// Length of an entry, words of 8 bytes.
pub const ENTRY_WORDS: usize = 8;
/// Maximum number of entries of a queue (64 MiB).
pub const MAX_CAPACITY: usize = 1 << 20;

const CONSUMER_AT: usize = 0;
const ARM_AT: usize = 1;
const GENERATION_AT: usize = 7;

const KIND_MASK: u64 = 3;
const INDEX_SHIFT: u32 = 2;

const _: () = assert!(GENERATION_AT == Completion::WORDS && GENERATION_AT + 1 == ENTRY_WORDS);

/// Returns the number of words of a queue of `capacity` entries.
pub const fn words(capacity: usize) -> usize {
    HEADER_WORDS + capacity * ENTRY_WORDS
}

/// The completion for which a program requests a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// The next completion.
    Next = 1,
    /// The next completion of a Receive whose message had Solicited Event, or the next completion with an error.
    Solicited = 2,
}

/// Reason why a completion queue cannot be used further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompletionError {
    /// The queue would overflow: the program has not released the oldest entry.
    #[error("the completion queue is full")]
    Full,
    /// The program's index is lower than before, or beyond the entries written.
    #[error("the program's index of the completion queue is impossible")]
    LyingIndex,
    /// The generation of an entry belongs neither to this lap around the queue nor to the previous lap.
    #[error("generation {0} of an entry is impossible")]
    Generation(u64),
    /// The worker wrote an entry that is not a completion.
    #[error("not a completion: {0}")]
    Descriptor(#[from] DescriptorError),
}

/// The worker's side of a completion queue, which writes entries.
#[derive(Debug)]
pub struct Producer<'a> {
    other: &'a Word,
    arm: &'a Word,
    entries: Entries<'a>,
    /// Index of the next entry to write.
    next: u64,
    /// Index after the last written entry that satisfies [`Request::Solicited`].
    solicited: u64,
    /// The consumer's index, as last loaded.
    released: u64,
}

impl<'a> Producer<'a> {
    /// Creates the producer of a new queue. `memory` must have [`words`]`(capacity)` words, all zero.
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

    /// Writes a completion, which is visible to the program at once. After a batch of completions the caller calls
    /// [`must_signal`](Self::must_signal) once.
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

    /// Checks the arm word after completions were pushed. Returns true if the caller must signal the CQ's completion
    /// channel. The program's request for a notification is then cleared.
    pub fn must_signal(&mut self) -> bool {
        // Orders the stores of generations before the load of the arm word: see the module's documentation.
        fence(Ordering::SeqCst);
        let armed = self.arm.load(Ordering::Relaxed);
        let from = armed >> INDEX_SHIFT;
        let due = match armed & KIND_MASK {
            kind if kind == Request::Next as u64 => self.next > from,
            kind if kind == Request::Solicited as u64 => self.solicited > from,
            _ => false,
        };
        if due {
            // The exchange fails if the program has stored a newer request, which stays and causes another signal.
            let _ = self.arm.compare_exchange(armed, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        due
    }

    fn known_free(&self) -> u64 {
        self.entries.capacity() - self.next.wrapping_sub(self.released)
    }
}

/// The program's side of a completion queue, which reads entries.
#[derive(Debug)]
pub struct Consumer<'a> {
    index: &'a Word,
    arm: &'a Word,
    entries: Entries<'a>,
    /// Index of the next entry to read.
    next: u64,
    /// Consumer index in shared memory, as last stored.
    released: u64,
    /// Index after the last entry that was written before the last request for a notification.
    written: u64,
}

impl<'a> Consumer<'a> {
    /// Creates the consumer of a new queue. `memory` must have [`words`]`(capacity)` words, all zero.
    pub fn new(memory: &'a [Word], capacity: usize) -> Result<Consumer<'a>, CapacityError> {
        let parts = split(memory, HEADER_WORDS, capacity, MAX_CAPACITY)?;
        Ok(Consumer {
            index: &parts.header[CONSUMER_AT],
            arm: &parts.header[ARM_AT],
            entries: parts.entries,
            next: 0,
            released: 0,
            written: 0,
        })
    }

    /// Returns the next completion and removes it; `None` if the queue is empty.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion>, CompletionError> {
        let completion = self.read(self.next)?;
        if completion.is_some() {
            self.next = self.next.wrapping_add(1);
        }
        Ok(completion)
    }

    /// Returns the completion of the entry of `index`; `None` if it is not written. The index is at least the next one
    /// to read, and less than `capacity` above that.
    #[inline]
    fn read(&self, index: u64) -> Result<Option<Completion>, CompletionError> {
        let entry = self.entries.at(index);
        let seen = entry[GENERATION_AT].load(Ordering::Acquire);
        let expected = generation(self.entries, index);
        if seen != expected {
            let empty = seen == expected - 1;
            return if empty { Ok(None) } else { Err(CompletionError::Generation(seen)) };
        }
        let words = std::array::from_fn(|at| entry[at].load(Ordering::Relaxed));
        Ok(Some(Completion::decode(&words)?))
    }

    /// Returns the index of the next entry to read.
    #[inline]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Returns the index after the last written entry whose completion matches; [`position`](Self::position) if none
    /// does. Removes no entry, and reads at most `capacity` entries.
    pub fn end_of(&self, matches: impl Fn(&Completion) -> bool) -> u64 {
        let mut end = self.next;
        for index in self.next..self.next + self.entries.capacity() {
            match self.read(index) {
                Ok(Some(completion)) if matches(&completion) => end = index + 1,
                Ok(Some(_)) => {}
                // An impossible entry is reported by the poll that reaches it.
                Ok(None) | Err(_) => break,
            }
        }
        end
    }

    /// Releases all polled entries to the worker with one store.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.next {
            self.released = self.next;
            self.index.store(self.next, Ordering::Release);
        }
    }

    /// Requests a notification and releases the polled entries. The caller then polls until the queue is empty before
    /// it waits for the notification. A pending [`Request::Next`] is not replaced by [`Request::Solicited`]. If the
    /// worker serves the pending request at the same time, there may be one signal too many.
    pub fn arm(&mut self, request: Request) {
        self.release();
        let next = Request::Next as u64;
        let pending = self.arm.load(Ordering::Relaxed) & KIND_MASK;
        let kind = if pending == next { next } else { request as u64 };
        self.arm.store(self.next << INDEX_SHIFT | kind, Ordering::Relaxed);
        // Orders the store of the arm word before the loads of generations: see the module's documentation.
        fence(Ordering::SeqCst);
        self.written = self.end_of_written();
    }

    /// Withdraws the pending request and returns true if an unread entry satisfies the request and was written before
    /// it: the worker sends no notification for that entry until it writes a further one. Returns false otherwise, also
    /// if the worker has served the request meanwhile.
    pub fn withdraw_satisfied(&mut self) -> bool {
        let is_solicited = |index| {
            self.read(index).is_ok_and(|entry| entry.is_some_and(|entry| entry.is_solicited()))
        };
        let armed = self.arm.load(Ordering::Relaxed);
        let is_satisfied = match armed & KIND_MASK {
            kind if kind == Request::Next as u64 => self.next < self.written,
            kind if kind == Request::Solicited as u64 => {
                (self.next..self.written).any(is_solicited)
            }
            _ => false,
        };
        is_satisfied
            && self.arm.compare_exchange(armed, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns the index after the last written entry.
    fn end_of_written(&self) -> u64 {
        let is_written = |index: &u64| {
            let seen = self.entries.at(*index)[GENERATION_AT].load(Ordering::Acquire);
            seen == generation(self.entries, *index)
        };
        let indices = (self.next..).take(self.entries.capacity() as usize);
        self.next + indices.take_while(is_written).count() as u64
    }

    /// Returns true if a notification was requested and the worker has not served the request.
    pub fn is_armed(&self) -> bool {
        self.arm.load(Ordering::Relaxed) & KIND_MASK != 0
    }
}

/// Returns the generation of the entry of `index`: the number of the lap around the queue, from 1.
#[inline]
fn generation(entries: Entries<'_>, index: u64) -> u64 {
    (index >> entries.capacity().trailing_zeros()) + 1
}
