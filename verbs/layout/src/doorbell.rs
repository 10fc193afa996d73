//! Doorbells of one program at one worker: a two-level bitmap of queues, and a flag that is set while the worker
//! sleeps.
//!
//! ```text
//!  byte 0               128                          256
//!      | sleeping flag   | summary: 8 words           | bitmap: 512 words, 32768 bits |
//!        1: asleep         bit w of the summary: word w of the bitmap may have bits
//!                                                       bit q: queue q has new descriptors
//! ```
//!
//! The program publishes descriptors, sets the queue's bit, then the bit of the summary, both with release order. The
//! worker swaps words of the summary with zero, then the words of the bitmap whose summary bits were set, with acquire
//! order. The descriptors of each bit taken are therefore visible to the worker. Bits without descriptors are harmless:
//! the worker finds an empty queue.
//!
//! **No wake-up is lost.** The worker sets the flag, executes a SeqCst fence, and loads the summary again before it
//! sleeps. The program sets the bits, executes a SeqCst fence, and loads the flag. One fence precedes the other, so
//! either the worker sees the bit, or the program sees the flag. If several threads see the flag, exactly one resets it
//! by compare-and-exchange and wakes the worker.
//!
//! Bounds: a call of [`Scanner::next_queue`] subtracts from its budget 1 per word swapped and 1 for the returned queue.
//! In addition it loads at most 8 zero words of the summary. A program that sets bits at random uses up only its own
//! budget.

use crate::shared::{LINE_WORDS, Ordering, Word, fence};

/// Maximum number of queues of one program at one worker.
pub const QUEUES: u32 = (BITMAP_WORDS * 64) as u32;
/// Number of words of the doorbells of one program at one worker.
pub const WORDS: usize = BITMAP_AT + BITMAP_WORDS;

const SUMMARY_WORDS: usize = 8;
const BITMAP_WORDS: usize = SUMMARY_WORDS * 64;
/// Value of the sleeping flag while the worker sleeps.
const ASLEEP: u64 = 1;

const SLEEPING_AT: usize = 0;
const SUMMARY_AT: usize = LINE_WORDS;
const BITMAP_AT: usize = 2 * LINE_WORDS;

const _: () = assert!(QUEUES == 32768 && SUMMARY_AT + SUMMARY_WORDS <= BITMAP_AT);

/// Reason why a doorbell cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DoorbellError {
    /// The memory does not have [`WORDS`] words.
    #[error("{0} words of memory, where doorbells have {WORDS}")]
    Length(usize),
    /// The number of the queue is [`QUEUES`] or greater.
    #[error("queue {0}; a worker has at most {QUEUES} of one program")]
    Queue(u32),
}

#[derive(Clone, Copy, Debug)]
struct Bells<'a> {
    sleeping: &'a Word,
    summary: &'a [Word; SUMMARY_WORDS],
    bitmap: &'a [Word; BITMAP_WORDS],
}

impl<'a> Bells<'a> {
    fn new(memory: &'a [Word]) -> Result<Bells<'a>, DoorbellError> {
        let wrong = DoorbellError::Length(memory.len());
        if memory.len() != WORDS {
            return Err(wrong);
        }
        let summary = memory[SUMMARY_AT..].first_chunk().ok_or(wrong)?;
        let bitmap = memory[BITMAP_AT..].first_chunk().ok_or(wrong)?;
        Ok(Bells { sleeping: &memory[SLEEPING_AT], summary, bitmap })
    }
}

/// The program's side of doorbells. Each thread of the program may have its own copy.
#[derive(Clone, Copy, Debug)]
pub struct Ringer<'a> {
    bells: Bells<'a>,
}

impl<'a> Ringer<'a> {
    /// Creates the program's side of doorbells. `memory` must have [`WORDS`] words.
    pub fn new(memory: &'a [Word]) -> Result<Ringer<'a>, DoorbellError> {
        Ok(Ringer { bells: Bells::new(memory)? })
    }

    /// Announces to the worker that descriptors were published in `queue`. Returns true if the caller must wake the
    /// worker.
    pub fn ring(&self, queue: u32) -> Result<bool, DoorbellError> {
        let word = (queue / 64) as usize;
        let bits = self.bells.bitmap.get(word).ok_or(DoorbellError::Queue(queue))?;
        bits.fetch_or(1 << (queue % 64), Ordering::Release);
        self.bells.summary[word / 64].fetch_or(1 << (word % 64), Ordering::Release);
        // Orders the stores of the bits before the load of the flag: see the module's documentation.
        fence(Ordering::SeqCst);
        let flag = self.bells.sleeping;
        // With compare-and-exchange only the caller that wakes the worker stores to the flag. A plain store of 0 by
        // another caller could clear the flag of a later sleep.
        Ok(flag.load(Ordering::Relaxed) == ASLEEP
            && flag.compare_exchange(ASLEEP, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }
}

/// The worker's side of doorbells.
#[derive(Debug)]
pub struct Scanner<'a> {
    bells: Bells<'a>,
    /// Index of the summary word that `named` was taken from.
    group: usize,
    /// Bits taken from that summary word: words of the bitmap that are still to be taken.
    named: u64,
    /// Index of the bitmap word that `rung` was taken from.
    word: usize,
    /// Bits taken from that bitmap word: queues that are still to be returned.
    rung: u64,
}

impl<'a> Scanner<'a> {
    /// Creates the worker's side of doorbells. `memory` must have [`WORDS`] words.
    pub fn new(memory: &'a [Word]) -> Result<Scanner<'a>, DoorbellError> {
        Ok(Scanner { bells: Bells::new(memory)?, group: 0, named: 0, word: 0, rung: 0 })
    }

    /// Returns the number of the next queue whose doorbell was rung. The number is below [`QUEUES`], but the program
    /// may not have such a queue. Returns `None` if no further doorbell was rung, or if `budget` is used up.
    ///
    /// Subtracts 1 from `budget` for the returned queue, and 1 for each word of the summary or the bitmap that it swaps
    /// with zero. Zero words of the summary cost nothing. The next call resumes after this queue, so the scan visits
    /// all queues.
    pub fn next_queue(&mut self, budget: &mut u32) -> Option<u32> {
        let mut idle = 0;
        loop {
            if self.rung == 0 && self.named == 0 {
                // A load instead of a swap keeps the cache line shared with the program.
                let next = (self.group + 1) % SUMMARY_WORDS;
                if self.bells.summary[next].load(Ordering::Relaxed) == 0 {
                    self.group = next;
                    idle += 1;
                    if idle == SUMMARY_WORDS {
                        return None;
                    }
                    continue;
                }
            }
            *budget = budget.checked_sub(1)?;
            if self.rung != 0 {
                let bit = take_lowest(&mut self.rung);
                return Some(self.word as u32 * 64 + bit);
            }
            if self.named != 0 {
                self.word = self.group * 64 + take_lowest(&mut self.named) as usize;
                self.rung = self.bells.bitmap[self.word].swap(0, Ordering::Acquire);
            } else {
                self.group = (self.group + 1) % SUMMARY_WORDS;
                self.named = self.bells.summary[self.group].swap(0, Ordering::Acquire);
            }
        }
    }

    /// Returns true if a doorbell may have been rung. Only loads words, so the cache lines stay shared with the
    /// program.
    pub fn is_rung(&self) -> bool {
        self.rung != 0
            || self.named != 0
            || self.bells.summary.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Sets the sleeping flag and checks the doorbells again. Returns true if the worker may sleep; otherwise the flag
    /// is reset. The worker calls [`wake`](Self::wake) after it slept.
    pub fn prepare_sleep(&mut self) -> bool {
        self.bells.sleeping.store(ASLEEP, Ordering::Relaxed);
        // Orders the store of the flag before the loads of the summary: see the module's documentation.
        fence(Ordering::SeqCst);
        let rest = self.is_rung();
        if rest {
            self.wake();
        }
        !rest
    }

    /// Resets the sleeping flag, after the worker woke.
    pub fn wake(&mut self) {
        self.bells.sleeping.store(0, Ordering::Relaxed);
    }
}

/// Clears the lowest bit of `bits`, which is not zero, and returns its number.
fn take_lowest(bits: &mut u64) -> u32 {
    let bit = bits.trailing_zeros();
    *bits &= *bits - 1;
    bit
}
