//! The worker's end of the event ring. Nothing is lost: what does not fit waits here, and while
//! anything waits, or the ring is nearly full, the worker takes in nothing that makes new events.

use std::collections::VecDeque;
use std::sync::Arc;

use rtrb::{Producer, PushError};

use crate::api::{Counters, Event, Wake};

/// The event ring.
pub(super) struct Events {
    ring: Producer<Event>,
    backlog: VecDeque<Event>,
    reserve: usize,
    control: Arc<Wake>,
    pushed: bool,
}

impl Events {
    pub(super) fn new(ring: Producer<Event>, control: Arc<Wake>) -> Self {
        let reserve = ring.buffer().capacity() / 4;
        Events { ring, backlog: VecDeque::new(), reserve, control, pushed: false }
    }

    pub(super) fn push(&mut self, event: Event, counters: &Counters) {
        counters.events.add(1);
        self.pushed = true;
        if !self.backlog.is_empty() {
            self.backlog.push_back(event);
        } else if let Err(PushError::Full(event)) = self.ring.push(event) {
            self.backlog.push_back(event);
        }
    }

    /// Moves what waits into the ring; true when the ring has a quarter of its room left.
    pub(super) fn has_room(&mut self) -> bool {
        while let Some(event) = self.backlog.pop_front() {
            if let Err(PushError::Full(event)) = self.ring.push(event) {
                self.backlog.push_front(event);
                return false;
            }
            self.pushed = true;
        }
        self.ring.slots() >= self.reserve
    }

    /// True when nothing waits for room.
    pub(super) fn is_flushed(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Wakes the control thread if there is something new for it.
    pub(super) fn notify(&mut self) {
        if core::mem::take(&mut self.pushed) {
            self.control.notify();
        }
    }
}
