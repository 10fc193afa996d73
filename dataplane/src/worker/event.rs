//! The worker's end of the event ring. Nothing is lost, and no peer stops the worker: frames are taken whatever
//! the control thread does. What does not fit into the ring waits here, and who makes it is bounded:
//!
//! | events | made by | bound on those that the control thread has not taken |
//! |---|---|---|
//! | `TaggedDelivered` | a peer, as fast as it likes | its stream's credit |
//! | `Untagged`, `Received`, `Immediate` | a peer | its stream's credit; the buffers of the queue, which the control thread posts again |
//! | `Invalidated` | a peer | its stream's credit; the STags bound to it |
//! | `Sent`, `Completed`, `PostFailed` | our own posts | `max_posts` of each stream, and its credit |
//! | `Error`, `RdmapError`, `Terminated`, `PeerClosed`, `Closed` | a stream's end | one each for a stream (`Terminated`: two) |
//! | `Incoming` | a peer | the listener's credits, which the control thread grants |
//! | `Established`, `ConnectFailed`, `Retrying` | `Accept`, `Connect` | one each for a stream or command |
//! | `AssociationClosed` | a peer | one for an association; none is accepted while the ring is short of room |
//! | `LoadDone`, `Done`, `Streams`, `Neighbours` | commands | none is taken while the ring is short of room |
//! | `Drained`, `Stopped`, `Failed` | commands, a defect | one each |
//!
//! *Credit.* A stream may have a quarter of the ring to itself while three quarters of it are not used up, and
//! [`LEAST`] events in any case: so those that do not flood go on beside those that do. One without credit waits:
//! its events stay in its endpoint, which is paused (nothing more is taken of its peer, over TCP its window stays
//! closed), until the control thread has taken enough of them. Over SCTP only its session is paused, but what is
//! refused of it stays in the congestion window of the peer's association, which its other sessions share.
//!
//! *Bound.* Beyond the ring, [`LEAST`] events for each stream, those of its end, and of commands what 64 of them
//! make. In a paused endpoint [`MANY`] events and those of one segment; over SCTP those of one packet.

use std::collections::VecDeque;
use std::sync::Arc;

use ddp::StreamId;
use rtrb::{Producer, PushError};

use super::Core;
use super::lower::Lower;
use crate::api::{Counters, Event, Wake};
use crate::io::PortIo;

/// Events that any stream may have that the control thread has not taken.
pub(super) const LEAST: u32 = 16;
/// Events in an endpoint that are taken out before its next segment.
pub(super) const MANY: usize = 64;

/// The event ring.
pub(super) struct Events {
    ring: Producer<Event>,
    backlog: VecDeque<Event>,
    capacity: usize,
    /// Entries that streams leave free, but for [`LEAST`] of each.
    reserve: usize,
    control: Arc<Wake>,
    pushed: bool,
    /// Events given so far: the number of the newest.
    given: u64,
    /// Number of the newest that the control thread has taken, and entries that may be used, as this turn began.
    taken: u64,
    room: usize,
    /// Streams that wait for credit, each once.
    waiting: Vec<StreamId>,
    /// What was taken when they were looked at.
    looked: u64,
}

/// Events of a stream that the control thread may not have taken: two lots of them, each with the number of its
/// newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Told {
    older: (u64, u32),
    newer: (u64, u32),
    /// Its stream waits for credit.
    pub(super) waits: bool,
}

impl Told {
    /// All is taken.
    pub(super) const NOTHING: Told = Told { older: (0, 0), newer: (0, 0), waits: false };

    /// One more, with this number; so far the control thread has taken those up to `taken`.
    fn add(&mut self, number: u64, taken: u64) {
        if taken >= self.older.0 {
            self.older = core::mem::take(&mut self.newer);
        }
        self.newer = (number, self.newer.1 + 1);
    }

    /// Forgets what is taken, if that is all.
    pub(super) fn forget(&mut self, taken: u64) {
        if !self.waits && self.untaken(taken) == 0 {
            *self = Told::NOTHING;
        }
    }

    /// So many at most are not taken.
    fn untaken(&self, taken: u64) -> u32 {
        let left = |(number, events): (u64, u32)| if number > taken { events } else { 0 };
        left(self.older) + left(self.newer)
    }
}

impl Events {
    pub(super) fn new(ring: Producer<Event>, control: Arc<Wake>) -> Self {
        let capacity = ring.buffer().capacity();
        let reserve = capacity / 4;
        Events {
            ring,
            backlog: VecDeque::new(),
            capacity,
            reserve,
            control,
            pushed: false,
            given: 0,
            taken: 0,
            room: capacity - reserve,
            waiting: Vec::new(),
            looked: 0,
        }
    }

    pub(super) fn push(&mut self, event: Event, counters: &Counters) {
        counters.events.add(1);
        self.pushed = true;
        self.given += 1;
        self.room = self.room.saturating_sub(1);
        if !self.backlog.is_empty() {
            self.backlog.push_back(event);
        } else if let Err(PushError::Full(event)) = self.ring.push(event) {
            self.backlog.push_back(event);
        }
    }

    /// A turn begins: moves what waits into the ring, and looks what the control thread has taken.
    pub(super) fn begin_turn(&mut self, counters: &Counters) {
        while let Some(event) = self.backlog.pop_front() {
            if let Err(PushError::Full(event)) = self.ring.push(event) {
                self.backlog.push_front(event);
                break;
            }
            self.pushed = true;
        }
        if self.backlog.is_empty() && self.backlog.capacity() > self.capacity {
            self.backlog = VecDeque::new();
        }
        let slots = self.ring.slots();
        let waits = self.backlog.len() + (self.capacity - slots);
        self.taken = self.given - waits as u64;
        self.room = slots.saturating_sub(self.reserve);
        counters.events_waiting.set(self.backlog.len() as u64);
    }

    /// True when the ring has no more than the room that is kept for live streams.
    pub(super) fn is_short(&self) -> bool {
        self.room == 0
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

    /// Number of the newest event that the control thread has taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Events given so far.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// True when the stream may give another event.
    fn has_credit(&self, told: &Told) -> bool {
        let untaken = told.untaken(self.taken);
        untaken < LEAST || (self.room > 0 && (untaken as usize) < self.reserve)
    }

    /// True when streams wait for credit: the control thread wakes nobody when it takes events.
    pub(super) fn are_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Events that wait for room in the ring.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.backlog.len()
    }
}

impl<Io: PortIo> Core<Io> {
    /// The events since number `before` are of this stream, which is paused if it may give no more.
    pub(super) fn charge(&mut self, slot: u32, before: u64) {
        let stopping = self.is_stopping();
        let Some(conn) = self.conns.get_mut(slot) else { return };
        for number in before + 1..=self.events.given {
            conn.pending.told.add(number, self.events.taken);
        }
        if self.events.has_credit(&conn.pending.told) || stopping {
            return;
        }
        if !core::mem::replace(&mut conn.pending.told.waits, true) {
            self.events.waiting.push(conn.id);
            self.counters.event_waits.add(1);
            self.counters.streams_waiting.set(self.events.waiting.len() as u64);
        }
        self.pause(slot, true);
    }

    /// Streams for whose events the control thread has made room go on.
    pub(super) fn resume_streams(&mut self) {
        if self.events.waiting.is_empty() || self.events.looked == self.events.taken {
            return;
        }
        self.events.looked = self.events.taken;
        let mut waiting = core::mem::take(&mut self.events.waiting);
        waiting.retain(|&id| {
            let Some(slot) = self.conns.find(id) else { return false };
            let Some(conn) = self.conns.get_mut(slot) else { return false };
            if conn.pending.told.waits && !self.events.has_credit(&conn.pending.told) {
                return true;
            }
            if conn.pending.told.waits {
                conn.pending.told.waits = false;
            }
            self.pause(slot, false);
            self.touch(slot);
            false
        });
        self.events.waiting = waiting;
        self.counters.streams_waiting.set(self.events.waiting.len() as u64);
    }

    /// The worker takes no events of a stream, or does again.
    fn pause(&mut self, slot: u32, paused: bool) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        match &mut conn.lower {
            Lower::Tcp(endpoint) => endpoint.pause(paused),
            Lower::Sctp(session) => {
                if let Some(endpoint) = self.associations.endpoint_mut(session.association) {
                    endpoint.pause_session(session.id, paused);
                }
            }
        }
    }
}
