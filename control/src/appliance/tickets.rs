//! Commands that several workers must acknowledge before something may follow.
//!
//! One ticket goes to every worker concerned. When the last of them has answered, the table returns
//! what was waiting: deregistration, for example, frees a region's memory only then.

use std::collections::HashMap;

/// Outstanding tickets, each with what is to follow.
#[derive(Debug)]
pub struct Tickets<T> {
    next: u64,
    waiting: HashMap<u64, Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    outstanding: usize,
    failed: Option<String>,
    then: T,
}

/// All workers have answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Complete<T> {
    /// What was waiting.
    pub then: T,
    /// The first failure that a worker reported, if any did.
    pub result: Result<(), String>,
}

impl<T> Default for Tickets<T> {
    fn default() -> Self {
        Tickets { next: 1, waiting: HashMap::new() }
    }
}

impl<T> Tickets<T> {
    /// A new ticket that `workers` workers will answer. `workers` is at least 1.
    pub fn issue(&mut self, workers: usize, then: T) -> u64 {
        debug_assert!(workers > 0, "a ticket that nobody answers never completes");
        let ticket = self.next;
        self.next += 1;
        self.waiting.insert(ticket, Waiting { outstanding: workers, failed: None, then });
        ticket
    }

    /// One worker's answer. Gives back what was waiting when it was the last one; `None` while others
    /// are outstanding and for tickets that are not known.
    pub fn answer(&mut self, ticket: u64, result: Result<(), String>) -> Option<Complete<T>> {
        let waiting = self.waiting.get_mut(&ticket)?;
        if let Err(reason) = result {
            waiting.failed.get_or_insert(reason);
        }
        waiting.outstanding -= 1;
        if waiting.outstanding > 0 {
            return None;
        }
        let Waiting { failed, then, .. } = self.waiting.remove(&ticket)?;
        Some(Complete { then, result: failed.map_or(Ok(()), Err) })
    }

    /// What waits for `ticket`, to be changed while answers come in.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut T> {
        self.waiting.get_mut(&ticket).map(|waiting| &mut waiting.then)
    }

    /// Removes a ticket that will not be answered.
    pub fn cancel(&mut self, ticket: u64) -> Option<T> {
        self.waiting.remove(&ticket).map(|waiting| waiting.then)
    }

    /// Outstanding tickets.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True when nothing is outstanding.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_comes_back_with_the_last_answer_only() {
        let mut tickets = Tickets::default();
        let ticket = tickets.issue(3, "free");
        assert_eq!(tickets.answer(ticket, Ok(())), None);
        assert_eq!(tickets.answer(ticket, Ok(())), None);
        let complete = Complete { then: "free", result: Ok(()) };
        assert_eq!(tickets.answer(ticket, Ok(())), Some(complete));
        assert_eq!(tickets.answer(ticket, Ok(())), None, "a completed ticket is forgotten");
        assert!(tickets.is_empty());
    }

    #[test]
    fn the_first_failure_is_kept_and_the_others_are_still_awaited() {
        let mut tickets = Tickets::default();
        let ticket = tickets.issue(2, ());
        assert_eq!(tickets.answer(ticket, Err("first".into())), None);
        let complete = Complete { then: (), result: Err("first".into()) };
        assert_eq!(tickets.answer(ticket, Err("second".into())), Some(complete));
    }

    #[test]
    fn tickets_do_not_mix() {
        let mut tickets = Tickets::default();
        let (a, b) = (tickets.issue(1, 'a'), tickets.issue(1, 'b'));
        assert_ne!(a, b);
        assert_eq!(tickets.answer(b, Ok(())).map(|c| c.then), Some('b'));
        assert_eq!(tickets.cancel(a), Some('a'));
        assert_eq!(tickets.answer(a, Ok(())), None);
    }
}
