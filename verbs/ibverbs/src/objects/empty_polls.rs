//! Polls of an empty CQ. Programs poll in a loop, and may share their core with the worker or the peer that they wait
//! for.
//!
//! After [`POLLS_BEFORE_YIELD`] empty polls in a row, a poll yields the CPU. On a host with more runnable threads than
//! cores a yield costs a time slice of each of them, several milliseconds. The next polls then sleep instead, about
//! 50 µs: the scheduler favours a thread that wakes over threads that use their whole slices.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Empty polls in a row after which a poll yields or sleeps.
const POLLS_BEFORE_YIELD: u32 = 256;
/// Number of empty polls per yield or sleep after the first one.
const POLLS_PER_YIELD: u32 = 16;
/// A yield of at least this duration shows that other threads have used whole time slices. A yield to a worker on the
/// same core is shorter, because the worker yields after each turn.
const SLICE: Duration = Duration::from_micros(500);
/// Number of sleeps after a long yield, until the next yield.
const SLEEPS: u32 = 64;

/// Empty polls of a CQ. Threads that poll at the same time may lose each other's counts.
#[derive(Debug, Default)]
pub(super) struct EmptyPolls {
    /// Empty polls in a row.
    count: AtomicU32,
    /// Number of sleeps before the next yield.
    sleeps: AtomicU32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pause {
    None,
    Yield,
    Sleep,
}

impl EmptyPolls {
    /// Counts an empty poll. Yields the CPU or sleeps if it is due.
    pub(super) fn add(&self) {
        match self.next() {
            Pause::None => {}
            Pause::Yield => {
                let start = Instant::now();
                std::thread::yield_now();
                self.on_yielded(start.elapsed());
            }
            Pause::Sleep => {
                // The timer slack of the thread, 50 µs by default, prolongs the sleep.
                let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 1 };
                // A signal ends the sleep, which is not an error.
                let _ = rustix::thread::nanosleep(&pause);
            }
        }
    }

    /// Records a poll that has returned completions.
    #[inline]
    pub(super) fn reset(&self) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.count.store(0, Ordering::Relaxed);
        }
    }

    fn next(&self) -> Pause {
        let count = self.count.load(Ordering::Relaxed) + 1;
        if count < POLLS_BEFORE_YIELD {
            self.count.store(count, Ordering::Relaxed);
            return Pause::None;
        }
        self.count.store(POLLS_BEFORE_YIELD - POLLS_PER_YIELD, Ordering::Relaxed);
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        if sleeps == 0 {
            return Pause::Yield;
        }
        self.sleeps.store(sleeps - 1, Ordering::Relaxed);
        Pause::Sleep
    }

    fn on_yielded(&self, duration: Duration) {
        if duration >= SLICE {
            self.sleeps.store(SLEEPS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the next pause, and the number of empty polls up to it.
    fn pause(polls: &EmptyPolls) -> (Pause, u32) {
        let pauses = (1..).map(|count| (polls.next(), count));
        pauses.into_iter().find(|(pause, _)| *pause != Pause::None).unwrap()
    }

    #[test]
    fn poll_yields_after_empty_polls_in_a_row() {
        let polls = EmptyPolls::default();
        assert_eq!(pause(&polls), (Pause::Yield, POLLS_BEFORE_YIELD));
        assert_eq!(pause(&polls), (Pause::Yield, POLLS_PER_YIELD));
        polls.reset();
        assert_eq!(pause(&polls), (Pause::Yield, POLLS_BEFORE_YIELD));
    }

    #[test]
    fn polls_sleep_after_a_yield_that_took_a_time_slice() {
        let polls = EmptyPolls::default();
        assert_eq!(pause(&polls), (Pause::Yield, POLLS_BEFORE_YIELD));
        polls.on_yielded(SLICE / 2);
        assert_eq!(pause(&polls), (Pause::Yield, POLLS_PER_YIELD));
        polls.on_yielded(SLICE);
        for _ in 0..SLEEPS {
            assert_eq!(pause(&polls), (Pause::Sleep, POLLS_PER_YIELD));
        }
        assert_eq!(pause(&polls), (Pause::Yield, POLLS_PER_YIELD));
    }
}
