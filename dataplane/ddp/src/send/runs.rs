//! Handles on the memory from which queued messages are read.
//!
//! Consecutive messages from one region share a handle, so that its reference count is not changed for each of them.
//! Messages from no memory may lie between them. A message from several spans has a run of its own.

use base::LazyDeque;

use crate::memory::RegionMemory;
use crate::spans::SpanList;

/// A handle on the memory of one or several messages.
#[derive(Debug)]
pub(super) struct Run<M> {
    /// Number after the run's last message. A run ends with its last queued message, because comparisons with numbers
    /// of removed messages fail after a wrap.
    end: u32,
    pub(super) memory: RunMemory<M>,
    pub(super) stable: bool,
}

/// The memory of a run.
#[derive(Debug)]
pub(super) enum RunMemory<M> {
    Region(M),
    Gather(Box<SpanList<M>>),
}

impl<M: RegionMemory> RunMemory<M> {
    fn is_region(&self, memory: &M) -> bool {
        matches!(self, RunMemory::Region(own) if own.is_same(memory))
    }

    fn uses_memory(&self, memory: &M) -> bool {
        match self {
            RunMemory::Region(own) => own.is_same(memory),
            RunMemory::Gather(spans) => spans.uses_memory(memory),
        }
    }
}

/// The runs of the queued messages, in the order of posting. Message numbers wrap and are compared by their distance
/// from `first`, the number of the message at the front of the queue.
#[derive(Debug)]
pub(super) struct Runs<M> {
    runs: LazyDeque<Run<M>>,
}

base::prefetch!(Runs<M> [M]: runs);

impl<M: RegionMemory> Runs<M> {
    pub(super) fn new() -> Self {
        Runs { runs: LazyDeque::new() }
    }

    pub(super) fn shrink(&mut self) {
        self.runs.shrink();
    }

    /// Frees all runs.
    pub(super) fn clear(&mut self) {
        self.runs.release();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// True if a run is in this region.
    pub(super) fn uses_memory(&self, memory: &M) -> bool {
        self.runs.iter().any(|run| run.memory.uses_memory(memory))
    }

    /// Assigns the message before `end` to a run of this region. With `keep_copies` the region counts as unstable.
    #[inline]
    pub(super) fn assign(&mut self, end: u32, memory: &M, keep_copies: bool) {
        let last = self.runs.len().wrapping_sub(1);
        if let Some(run) = self.runs.get_mut(last).filter(|run| run.memory.is_region(memory)) {
            run.end = end;
            return;
        }
        let (memory, stable) = (memory.clone(), memory.is_stable() && !keep_copies);
        self.runs.push_back(Run { end, memory: RunMemory::Region(memory), stable });
    }

    /// Adds the run of the message before `end`, which is gathered from these spans.
    pub(super) fn push_gather(&mut self, end: u32, spans: Box<SpanList<M>>, keep_copies: bool) {
        let stable = spans.is_stable() && !keep_copies;
        self.runs.push_back(Run { end, memory: RunMemory::Gather(spans), stable });
    }

    /// Returns the run of a message that is read from memory.
    #[inline(always)]
    pub(super) fn get(&self, first: u32, number: u32) -> Option<&Run<M>> {
        match self.runs.len() {
            0 | 1 => self.runs.front(),
            _ => self.find(first, number),
        }
    }

    /// Returns the run of the message when there are several runs.
    #[inline(never)]
    fn find(&self, first: u32, number: u32) -> Option<&Run<M>> {
        let index_of = |number: u32| number.wrapping_sub(first);
        let before = self.runs.partition_point(|run| index_of(run.end) <= index_of(number));
        self.runs.get(before)
    }

    /// Releases the runs that end before `first`.
    #[inline]
    pub(super) fn release(&mut self, first: u32) {
        while self.runs.front().is_some_and(|run| run.end.wrapping_sub(first) as i32 <= 0) {
            self.runs.pop_front();
        }
    }

    /// Ends the runs behind the first `keep` messages.
    pub(super) fn truncate(&mut self, first: u32, keep: u32) {
        let end = first.wrapping_add(keep);
        let mut last = self.runs.len();
        while last > 1 && self.runs[last - 2].end.wrapping_sub(first) >= keep {
            self.runs.pop_back();
            last -= 1;
        }
        if let Some(run) = self.runs.get_mut(last.wrapping_sub(1))
            && run.end.wrapping_sub(first) > keep
        {
            run.end = end;
        }
        self.release(first);
    }
}
