//! Clients that wait for the counters. One query of the workers' counters runs at a time. A client that arrives during
//! a query is answered by the next query, because the current query may lack recent events.

use api::Responder;

/// Clients of the current query and of the next query.
#[derive(Default)]
pub(super) struct Scrapes {
    /// Clients answered by the query in progress. Empty if none is in progress.
    current: Vec<Responder>,
    /// Clients answered by the next query.
    next: Vec<Responder>,
}

impl Scrapes {
    /// Adds a client. Returns true if a query must be started.
    pub(super) fn add(&mut self, answer: Responder) -> bool {
        let first = self.current.is_empty();
        let waiting = if first { &mut self.current } else { &mut self.next };
        waiting.push(answer);
        first
    }

    /// Ends a query. Returns its clients, and true if the next query must be started.
    pub(super) fn finish(&mut self) -> (Vec<Responder>, bool) {
        let next = std::mem::take(&mut self.next);
        let answers = std::mem::replace(&mut self.current, next);
        (answers, !self.current.is_empty())
    }
}
