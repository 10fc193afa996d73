//! Clients that wait for the counters. One count of the workers runs at a time. A client that arrives during a count is
//! answered by the next one, because the current one may lack recent events.

use api::Responder;

/// Clients that wait for the counters.
#[derive(Default)]
pub(super) struct Scrapes {
    /// Clients answered by the count in progress.
    current: Vec<Responder>,
    /// Clients answered by the next count.
    next: Vec<Responder>,
}

impl Scrapes {
    /// Adds a client. Returns true if a count must be started.
    pub(super) fn add(&mut self, answer: Responder) -> bool {
        let first = self.current.is_empty();
        let waiting = if first { &mut self.current } else { &mut self.next };
        waiting.push(answer);
        first
    }

    /// Ends a count. Returns its clients, and true if the next count must be started.
    pub(super) fn finish(&mut self) -> (Vec<Responder>, bool) {
        let next = std::mem::take(&mut self.next);
        let answers = std::mem::replace(&mut self.current, next);
        (answers, !self.current.is_empty())
    }
}
