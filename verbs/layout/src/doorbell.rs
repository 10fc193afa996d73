//! Doorbells of one program at one worker: a bitmap of two levels, and the flag of a sleeping worker.
//!
//! ```text
//!  byte 0               128                          256
//!      | sleeping flag   | summary: 4 words           | bitmap: 256 words, 16384 bits |
//!        1: asleep         bit w of the summary: word w of the bitmap may have bits
//!                                                       bit q: queue q has new descriptors
//! ```
//!
//! The program publishes descriptors, sets the queue's bit, then the bit of the summary, both with release order. The
//! worker takes words of the summary by swap, then the words of the bitmap that they name. It sees the descriptors of
//! each bit it takes. Bits without descriptors are harmless: the queue is empty.
//!
//! **No wake-up is lost.** The worker sets the flag, executes a SeqCst fence, and looks at the summary again before it
//! sleeps. The program sets the bits, executes a SeqCst fence, and loads the flag. One fence precedes the other: either
//! the worker sees the bit, or the program sees the flag. Of several threads that see the flag, one resets it by
//! compare-and-exchange and wakes the worker.
//!
//! Bounds: a call of [`Scanner::next_queue`] loads 4 words of the summary at most, besides what it charges to the
//! budget: 1 per word taken and 1 per queue returned. A program that sets bits at random uses up its own budget.

use crate::shared::{LINE_WORDS, Ordering, Word, fence};

/// Largest number of queues of one program at one worker.
pub const QUEUES: u32 = (BITMAP_WORDS * 64) as u32;
/// Words of the doorbells.
pub const WORDS: usize = BITMAP_AT + BITMAP_WORDS;

const SUMMARY_WORDS: usize = 4;
const BITMAP_WORDS: usize = SUMMARY_WORDS * 64;
/// Value of the flag of a sleeping worker.
const ASLEEP: u64 = 1;

const SLEEPING_AT: usize = 0;
const SUMMARY_AT: usize = LINE_WORDS;
const BITMAP_AT: usize = 2 * LINE_WORDS;

const _: () = assert!(QUEUES == 16384 && SUMMARY_AT + SUMMARY_WORDS <= BITMAP_AT);

/// Reason why a doorbell cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DoorbellError {
    /// The memory does not have [`WORDS`] words.
    #[error("{0} words of memory, where doorbells have {WORDS}")]
    Length(usize),
    /// The queue's number is not below [`QUEUES`].
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

/// The program's side. Several threads may have one each.
#[derive(Clone, Copy, Debug)]
pub struct Ringer<'a> {
    bells: Bells<'a>,
}

impl<'a> Ringer<'a> {
    /// Returns the program's side of doorbells in memory of [`WORDS`] words.
    pub fn new(memory: &'a [Word]) -> Result<Ringer<'a>, DoorbellError> {
        Ok(Ringer { bells: Bells::new(memory)? })
    }

    /// Announces descriptors that were published in a queue. Returns whether the caller must wake the worker.
    pub fn ring(&self, queue: u32) -> Result<bool, DoorbellError> {
        let word = (queue / 64) as usize;
        let bits = self.bells.bitmap.get(word).ok_or(DoorbellError::Queue(queue))?;
        bits.fetch_or(1 << (queue % 64), Ordering::Release);
        self.bells.summary[word / 64].fetch_or(1 << (word % 64), Ordering::Release);
        // Between the bits and the flag: see the module's documentation.
        fence(Ordering::SeqCst);
        let flag = self.bells.sleeping;
        // Only the caller that resets the flag, and so wakes the worker, stores anything: an exchange that fails cannot
        // undo a later sleep.
        Ok(flag.load(Ordering::Relaxed) == ASLEEP
            && flag.compare_exchange(ASLEEP, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }
}

/// The worker's side.
#[derive(Debug)]
pub struct Scanner<'a> {
    bells: Bells<'a>,
    /// Word of the summary that `named` was taken from.
    group: usize,
    /// Bits taken from the summary: words of the bitmap still to be taken.
    named: u64,
    /// Word of the bitmap that `rung` was taken from.
    word: usize,
    /// Bits taken from the bitmap: queues still to be returned.
    rung: u64,
}

impl<'a> Scanner<'a> {
    /// Returns the worker's side of doorbells in memory of [`WORDS`] words.
    pub fn new(memory: &'a [Word]) -> Result<Scanner<'a>, DoorbellError> {
        Ok(Scanner { bells: Bells::new(memory)?, group: 0, named: 0, word: 0, rung: 0 })
    }

    /// Returns the next queue whose doorbell was rung, below [`QUEUES`]; the program may not have such a queue. `None`:
    /// there is no other, or `budget` is used up. The next call then continues at this place, so that each queue has
    /// its turn.
    pub fn next_queue(&mut self, budget: &mut u32) -> Option<u32> {
        let mut idle = 0;
        loop {
            if self.rung == 0 && self.named == 0 {
                // A load, because a swap would take the line from the program.
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

    /// Returns true if a doorbell may have been rung. Takes no line from the program.
    pub fn is_rung(&self) -> bool {
        self.rung != 0
            || self.named != 0
            || self.bells.summary.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Sets the flag of a sleeping worker and looks at the doorbells again. Returns whether the worker may sleep; if
    /// not, the flag is reset. A worker that slept calls [`wake`](Self::wake).
    pub fn prepare_sleep(&mut self) -> bool {
        self.bells.sleeping.store(ASLEEP, Ordering::Relaxed);
        // Between the flag and the summary: see the module's documentation.
        fence(Ordering::SeqCst);
        let rest = self.is_rung();
        if rest {
            self.wake();
        }
        !rest
    }

    /// Resets the flag: the worker is awake.
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
