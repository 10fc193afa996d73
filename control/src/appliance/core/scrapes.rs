//! Clients that wait for the counters. One count of the workers runs at a time. A client that
//! requests meanwhile is answered from the next count, because the current one may lack recent
//! events.

use api::Responder;

/// Waiting clients.
#[derive(Default)]
pub(super) struct Scrapes {
    /// Clients of the count in progress.
    current: Vec<Responder>,
    /// Clients of the next count.
    next: Vec<Responder>,
}

impl Scrapes {
    /// Adds a client. Returns true if a count must begin for it.
    pub(super) fn add(&mut self, answer: Responder) -> bool {
        let first = self.current.is_empty();
        let waiting = if first { &mut self.current } else { &mut self.next };
        waiting.push(answer);
        first
    }

    /// Ends a count. Returns the clients that waited for it, and whether the next count must begin.
    pub(super) fn finish(&mut self) -> (Vec<Responder>, bool) {
        let next = std::mem::take(&mut self.next);
        let answers = std::mem::replace(&mut self.current, next);
        (answers, !self.current.is_empty())
    }
}
