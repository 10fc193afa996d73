//! Commands that several workers must answer before their continuation runs.
//!
//! All workers concerned receive the same ticket. With the last answer the table returns the continuation. For example,
//! a region's memory is freed only when all workers have deregistered it.

use std::collections::HashMap;

/// Outstanding tickets and their continuations.
#[derive(Debug)]
pub struct Tickets<T> {
    /// Number of the next ticket.
    next: u64,
    pending: HashMap<u64, PendingTicket<T>>,
}

#[derive(Debug)]
struct PendingTicket<T> {
    /// Number of answers that have not arrived.
    outstanding: usize,
    /// First failure that a worker has reported.
    failure: Option<String>,
    continuation: T,
}

/// The continuation of a ticket that all workers have answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Complete<T> {
    /// Action after all answers.
    pub continuation: T,
    /// The first failure reported by a worker, if any.
    pub result: Result<(), String>,
}

impl<T> Default for Tickets<T> {
    fn default() -> Self {
        Tickets { next: 1, pending: HashMap::new() }
    }
}

impl<T> Tickets<T> {
    /// Issues a ticket for `workers` answers, at least one. A worker answers each of its commands with the ticket.
    pub fn issue(&mut self, workers: usize, continuation: T) -> u64 {
        debug_assert!(workers > 0, "a ticket needs at least one answer");
        let ticket = self.next;
        self.next += 1;
        self.pending
            .insert(ticket, PendingTicket { outstanding: workers, failure: None, continuation });
        ticket
    }

    /// Records one answer. Returns the continuation if it was the last answer; `None` if other answers are outstanding
    /// or the ticket is unknown.
    pub fn answer(&mut self, ticket: u64, result: Result<(), String>) -> Option<Complete<T>> {
        let waiting = self.pending.get_mut(&ticket)?;
        if let Err(reason) = result {
            waiting.failure.get_or_insert(reason);
        }
        waiting.outstanding -= 1;
        if waiting.outstanding > 0 {
            return None;
        }
        let PendingTicket { failure: failed, continuation: then, .. } =
            self.pending.remove(&ticket)?;
        Some(Complete { continuation: then, result: failed.map_or(Ok(()), Err) })
    }

    /// Returns the continuation of `ticket`, for updates while answers arrive. `None` for an unknown ticket.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut T> {
        self.pending.get_mut(&ticket).map(|waiting| &mut waiting.continuation)
    }

    /// Removes a ticket. Returns its continuation. `None` for an unknown ticket.
    pub fn cancel(&mut self, ticket: u64) -> Option<T> {
        self.pending.remove(&ticket).map(|waiting| waiting.continuation)
    }

    /// Returns the number of outstanding tickets.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns true if no ticket is outstanding.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuation_is_returned_with_the_last_answer_only() {
        let mut tickets = Tickets::default();
        let ticket = tickets.issue(3, "free");
        assert_eq!(tickets.answer(ticket, Ok(())), None);
        assert_eq!(tickets.answer(ticket, Ok(())), None);
        let complete = Complete { continuation: "free", result: Ok(()) };
        assert_eq!(tickets.answer(ticket, Ok(())), Some(complete));
        assert_eq!(tickets.answer(ticket, Ok(())), None, "a completed ticket is removed");
        assert!(tickets.is_empty());
    }

    #[test]
    fn the_first_failure_is_kept_and_the_others_are_still_awaited() {
        let mut tickets = Tickets::default();
        let ticket = tickets.issue(2, ());
        assert_eq!(tickets.answer(ticket, Err("first".into())), None);
        let complete = Complete { continuation: (), result: Err("first".into()) };
        assert_eq!(tickets.answer(ticket, Err("second".into())), Some(complete));
    }

    #[test]
    fn answers_complete_only_their_own_ticket() {
        let mut tickets = Tickets::default();
        let (a, b) = (tickets.issue(1, 'a'), tickets.issue(1, 'b'));
        assert_ne!(a, b);
        assert_eq!(tickets.answer(b, Ok(())).map(|c| c.continuation), Some('b'));
        assert_eq!(tickets.cancel(a), Some('a'));
        assert_eq!(tickets.answer(a, Ok(())), None);
    }
}
