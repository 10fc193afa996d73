//! The worker's end of the event ring. No event is lost, and no peer stops the worker: frames are processed even when
//! the control thread is slow. Events that do not fit into the ring are queued here, within these bounds:
//!
//! | events | made by | bound on those that the control thread has not taken |
//! |---|---|---|
//! | `TaggedDelivered` | a peer, as fast as it likes | its stream's credit |
//! | `Untagged`, `Received`, `Immediate` | a peer | its stream's credit; the buffers of the queue, which the control thread posts again |
//! | `ReadHeld` | a peer | its stream's credit; its IRD |
//! | `Invalidated` | a peer | its stream's credit; the STags bound to it |
//! | `Sent`, `Completed`, `PostFailed` | our own posts | `max_posts` of each stream, and its credit |
//! | `Error`, `RdmapError`, `Terminated`, `PeerClosed`, `Idle`, `Closed` | a stream's end | one each for a stream (`Terminated`: two) |
//! | `Recordings` without a ticket | a stream's end | one each |
//! | `Stalled`, `Resumed` | a stream's time-outs | its stream's credit; one of each for ten time-outs in a row, or the last that its limits leave |
//! | `Incoming` | a peer | the listener's credits, which the control thread grants |
//! | `HandshakeFailed` | a peer, as fast as it likes | so many a second, and none while the ring is short of room |
//! | `AddressConflict` | another host of the link | one in ten seconds for each address, and none while the ring is short of room |
//! | `UnfinishedChecksums` | a peer | one in ten seconds for each host, and none while the ring is short of room |
//! | `Established`, `ConnectFailed`, `Retrying` | `Accept`, `Connect` | one each for a stream or command |
//! | `AssociationClosed` | a peer | one for an association; none is accepted while the ring is short of room |
//! | `LoadDone`, `Done`, `Streams`, `Recordings`, `Neighbours` | commands | none is taken while the ring is short of room |
//! | `Confirming` | commands | one for a command; none is taken while the ring is short of room |
//! | `Drained`, `Stopped`, `Failed` | commands, a defect | one each |
//!
//! *Credit.* A stream may have a quarter of the ring to itself while three quarters of it are not used up, and
//! [`LEAST`] events in any case: so those that do not flood go on beside those that do. One without credit waits:
//! its events stay in its endpoint, which is paused until the control thread has taken enough of them. Its peer is
//! offered nothing more: TCP's window closes as the peer uses what it was offered (RFC 9293 §3.8.6); SCTP's is that of
//! the association (RFC 9260 §6.2), whose other sessions wait with it. What was offered is taken, as far as there is
//! room for its events ([`Events::wait`]). Beyond that it is refused, as if it had been lost: peers that send messages of
//! a few bytes see time-outs. Then the peer is sent an open window.
//!
//! *Bound.* Beyond the ring, [`LEAST`] events for each stream, those of its end, and of commands what 64 of them
//! make. In paused endpoints, as many as the ring has entries in each, [`KEPT`] times as many in all, and in each
//! [`MANY`] events and those of one segment, over SCTP those of one packet.

use std::collections::VecDeque;
use std::sync::Arc;

use ddp::StreamId;
use rtrb::{Producer, PushError};

use crate::api::{Counters, Event};
use crate::wake::Wake;

/// Events that any stream may have that the control thread has not taken.
pub(super) const LEAST: u32 = 16;
/// Events in an endpoint that are taken out before its next segment.
pub(super) const MANY: usize = 64;
/// Events that all paused endpoints together may have, for each entry of the ring.
const KEPT: usize = 32;
/// An endpoint that is paused gets one part of this many of what the others leave.
const PARTS: usize = 16;

/// The event ring.
pub(super) struct Events {
    ring: Producer<Event>,
    backlog: VecDeque<Event>,
    capacity: usize,
    /// Entries that streams leave free, but for [`LEAST`] of each.
    reserve: usize,
    control: Arc<Wake>,
    pushed: bool,
    /// Events sent so far: the number of the newest.
    sent: u64,
    /// Number of the newest that the control thread has taken, and entries that may be used, as this turn began.
    taken: u64,
    room: usize,
    /// Streams that wait for credit, each once.
    waiting: Vec<Waiting>,
    /// Events that they may have in their endpoints, and those that waited when the control thread took the last.
    kept: usize,
    /// `taken` when they were last examined.
    looked: u64,
}

/// A stream that waits for credit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) stream: StreamId,
    /// Events that it may have in its endpoint.
    keeps: u32,
}

/// Events of a stream that the control thread may not have taken: two lots of them, each with the number of its
/// newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Credit {
    older: (u64, u32),
    newer: (u64, u32),
    /// Its stream waits for credit.
    pub(super) waits: bool,
}

impl Credit {
    /// All is taken.
    pub(super) const NOTHING: Credit = Credit { older: (0, 0), newer: (0, 0), waits: false };

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
            *self = Credit::NOTHING;
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
            sent: 0,
            taken: 0,
            room: capacity - reserve,
            waiting: Vec::new(),
            kept: 0,
            looked: 0,
        }
    }

    pub(super) fn push(&mut self, event: Event, counters: &Counters) {
        counters.run.events.add(1);
        self.pushed = true;
        self.sent += 1;
        self.room = self.room.saturating_sub(1);
        if !self.backlog.is_empty() {
            self.backlog.push_back(event);
        } else if let Err(PushError::Full(event)) = self.ring.push(event) {
            self.backlog.push_back(event);
        }
    }

    /// Called at the begin of a turn: moves waiting events to the ring, and reads how many the control thread has
    /// taken.
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
        self.taken = self.sent - waits as u64;
        self.room = slots.saturating_sub(self.reserve);
        counters.run.events_waiting.set(self.backlog.len() as u64);
    }

    /// True when the ring has no more than the room that is kept for live streams.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.room == 0
    }

    /// True when nothing waits for room.
    pub(super) fn is_flushed(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Wakes the control thread if there is something new for it.
    #[inline]
    pub(super) fn notify(&mut self) {
        if core::mem::take(&mut self.pushed) {
            self.control.notify();
        }
    }

    /// Number of the newest event that the control thread has taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Events sent so far.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The events since number `before` are of this stream. Returns whether its credit is used up.
    pub(super) fn charge(&self, credit: &mut Credit, before: u64) -> bool {
        for number in before + 1..=self.sent {
            credit.add(number, self.taken);
        }
        !self.has_credit(credit)
    }

    /// A stream, which has so many events in its endpoint, waits for credit. If it did not yet, returns how many it may
    /// have there: what there is room for of the window that its peer was offered.
    pub(super) fn wait(
        &mut self,
        stream: StreamId,
        credit: &mut Credit,
        pending: usize,
    ) -> Option<u32> {
        if core::mem::replace(&mut credit.waits, true) {
            return None;
        }
        let left = (KEPT * self.capacity).saturating_sub(self.kept);
        let most = (left / PARTS).min(self.capacity);
        let keeps = most.max(pending);
        self.kept += keeps;
        self.waiting.push(Waiting { stream, keeps: keeps as u32 });
        Some(most as u32)
    }

    /// Streams that wait for credit.
    pub(super) fn streams_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// They, if the control thread has taken events since they were asked for last.
    #[inline]
    pub(super) fn take_waiting(&mut self) -> Option<Vec<Waiting>> {
        if self.waiting.is_empty() || self.looked == self.taken {
            return None;
        }
        self.looked = self.taken;
        // Those that go on now have their events still: they count until the next time.
        self.kept = self.waiting.iter().map(|waiting| waiting.keeps as usize).sum();
        Some(core::mem::take(&mut self.waiting))
    }

    /// These wait on.
    pub(super) fn put_waiting(&mut self, streams: Vec<Waiting>) {
        self.waiting = streams;
    }

    /// True when the stream may send another event.
    pub(super) fn has_credit(&self, credit: &Credit) -> bool {
        let untaken = credit.untaken(self.taken);
        untaken < LEAST || (self.room > 0 && (untaken as usize) < self.reserve)
    }

    /// True when streams wait for credit: the control thread does not wake the worker when it takes events.
    pub(super) fn are_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Events that wait for room in the ring.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.backlog.len()
    }
}
