//! Clients that wait for the counters. The workers count once at a time; a client that asks meanwhile is answered from the
//! next count, because the one under way may lack what happened just before it asked.

use api::Answer;

/// Those that wait.
#[derive(Default)]
pub(super) struct Scrapes {
    /// For the count that is under way.
    now: Vec<Answer>,
    /// For the next one.
    next: Vec<Answer>,
}

impl Scrapes {
    /// One more. True if a count is to begin for it.
    pub(super) fn add(&mut self, answer: Answer) -> bool {
        let first = self.now.is_empty();
        let waiting = if first { &mut self.now } else { &mut self.next };
        waiting.push(answer);
        first
    }

    /// A count is complete: those that waited for it, and whether the next one is to begin.
    pub(super) fn finish(&mut self) -> (Vec<Answer>, bool) {
        let next = std::mem::take(&mut self.next);
        let answers = std::mem::replace(&mut self.now, next);
        (answers, !self.now.is_empty())
    }
}
