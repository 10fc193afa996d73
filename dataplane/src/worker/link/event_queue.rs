//! The worker's end of the event ring. Events are never lost, and a slow control thread does not stop the worker from
//! processing frames. Events that do not fit into the ring are queued in memory, within these bounds:
//!
//! | events | caused by | bound on events that the control thread has not read |
//! |---|---|---|
//! | `TaggedDelivered` | a peer, at any rate | its stream's credit |
//! | `Untagged`, `Received`, `Immediate` | a peer | its stream's credit; the buffers of the queue, which the control thread reposts |
//! | `ReadHeld` | a peer | its stream's credit; its IRD |
//! | `Invalidated` | a peer | its stream's credit; the STags bound to the stream |
//! | `Sent`, `Completed`, `PostFailed` | local posts | `max_posts` of each stream, and its credit |
//! | `Error`, `RdmapError`, `Terminated`, `PeerClosed`, `Idle`, `Closed` | a stream's end | one each for a stream (`Terminated`: two) |
//! | `Recordings` without a ticket | a stream's end | one each |
//! | `Stalled`, `Resumed` | a stream's time-outs | its stream's credit; one `Stalled` after ten successive time-outs or before the time-out that ends the stream, and one `Resumed` after each `Stalled` |
//! | `Incoming` | a peer | the listener's credits, which the control thread grants |
//! | `HandshakeFailed` | a peer, at any rate | 32 per second; none while the ring is nearly full |
//! | `AddressConflict` | another host of the link | one in ten seconds for each address; none while the ring is nearly full |
//! | `UnfinishedChecksums` | a peer | one per three consecutive packets of a host; none while the ring is nearly full |
//! | `Ipsec` | policies, SAs, a peer | none while the ring is nearly full |
//! | `Established`, `ConnectFailed`, `Retrying` | `Accept`, `Connect` | one each for a stream or command |
//! | `AssociationClosed` | a peer | one per association; no association is accepted while the ring is nearly full |
//! | `LoadDone`, `Done`, `Streams`, `Recordings`, `Neighbours` | commands | no command is read while the ring is nearly full |
//! | `Confirming`, `Sas` | commands | one per command; no command is read while the ring is nearly full |
//! | `Program` | a local program | two for each QP (failure, window to bind), one for each CQ; for each SRQ the failure, and one for each limit that the program has requested |
//! | `Drained`, `Stopped`, `Failed` | commands, a defect | one each |
//!
//! *Credit.* A stream may always have [`MIN_CREDIT`] unread events. While more than a quarter of the ring is free, the
//! stream may use up to a quarter. A stream that floods the ring therefore does not stop the others. A stream without
//! credit is paused until the control thread has read enough of its events. Meanwhile further events stay in its
//! endpoint, and the peer's window is not extended. Over TCP the window closes as the peer uses it (RFC 9293 §3.8.6).
//! Over SCTP the window belongs to the association (RFC 9260 §6.2), so all of its sessions wait. Data within the
//! offered window is accepted while the endpoint has room for its events ([`EventQueue::add_waiting`]). Further data is
//! dropped as if lost, so peers that send messages of a few bytes see time-outs. The window opens again after the
//! pause.
//!
//! *Bound.* Beyond the ring, the queue holds at most:
//! - for each stream, [`MIN_CREDIT`] events and the events of its beginning and its end;
//! - `Incoming` events up to the listeners' credits;
//! - one event for each association and each CQ, and two for each QP;
//! - for each SRQ its failure, and one event for each limit that the program has requested;
//! - the events of 64 commands;
//! - `Drained`, `Stopped` and `Failed`.
//!
//! A paused endpoint holds at most as many events as the ring has entries. All paused endpoints together hold at most
//! [`HELD_PER_ENTRY`] times this number. Each endpoint may exceed its bound by [`EVENT_BATCH`] events and the events of
//! one segment (over SCTP: of one packet).

use std::collections::VecDeque;
use std::sync::Arc;

use ddp::StreamId;
use rtrb::{Producer, PushError};

use crate::api::{Counters, Event};
use crate::wake::Wake;

/// Number of unread events that a stream may always have.
pub(in crate::worker) const MIN_CREDIT: u32 = 16;
/// Number of events in an endpoint at which the worker reports them before it passes the next segment to the endpoint.
pub(in crate::worker) const EVENT_BATCH: usize = 64;
/// Maximum number of events in all paused endpoints together, per entry of the ring.
const HELD_PER_ENTRY: usize = 32;
/// A newly paused endpoint may hold 1/16 of the unused part of the bound for all paused endpoints together. The unused
/// part is the bound minus `EventQueue::held`.
const HELD_SHARE_DIVISOR: usize = 16;

/// The worker's end of the event ring, and the queue of events that did not fit into it.
pub(in crate::worker) struct EventQueue {
    ring: Producer<Event>,
    backlog: VecDeque<Event>,
    capacity: usize,
    /// A quarter of the ring's entries. A stream with [`MIN_CREDIT`] or more unread events may send another event only
    /// while more than this number of entries is free, and while it has fewer unread events than this number.
    reserve: usize,
    control: Arc<Wake>,
    pushed: bool,
    /// Number of events sent so far, which is also the number of the newest event.
    sent: u64,
    /// Number of the newest event that the control thread has read, as of the start of the turn.
    last_read: u64,
    /// Number of free ring entries beyond the reserve.
    room: usize,
    /// Streams that wait for credit, without duplicates.
    waiting: Vec<WaitingStream>,
    /// Sum of the bounds of all paused endpoints, in events. Recomputed when the waiting streams are examined.
    held: usize,
    /// Value of `last_read` when the waiting streams were last examined.
    examined_at: u64,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct WaitingStream {
    pub(in crate::worker) stream: StreamId,
    /// Maximum number of events that the stream's endpoint may hold.
    max_held: u32,
}

/// Upper bound of a stream's unread events. Each event takes one credit. Events are counted in two groups, and a group
/// counts as unread until the control thread has read its newest event. `older` and `newer` each contain the number of
/// the group's newest event and the group's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) struct Credit {
    older: (u64, u32),
    newer: (u64, u32),
    /// True while the stream waits for credit.
    pub(in crate::worker) is_waiting: bool,
}

impl Credit {
    /// State without unread events.
    pub(in crate::worker) const NONE: Credit =
        Credit { older: (0, 0), newer: (0, 0), is_waiting: false };

    /// Counts the event with number `number`. The control thread has read the events up to number `last_read`.
    fn add(&mut self, number: u64, last_read: u64) {
        if last_read >= self.older.0 {
            self.older = core::mem::take(&mut self.newer);
        }
        self.newer = (number, self.newer.1 + 1);
    }

    /// Resets the credit if all events were read and the stream does not wait for credit.
    pub(in crate::worker) fn reset_if_idle(&mut self, last_read: u64) {
        if !self.is_waiting && self.unread(last_read) == 0 {
            *self = Credit::NONE;
        }
    }

    /// Returns an upper bound of the number of unread events, if the events up to number `last_read` were read.
    fn unread(&self, last_read: u64) -> u32 {
        let left = |(number, events): (u64, u32)| if number > last_read { events } else { 0 };
        left(self.older) + left(self.newer)
    }
}

impl EventQueue {
    pub(in crate::worker) fn new(ring: Producer<Event>, control: Arc<Wake>) -> Self {
        let capacity = ring.buffer().capacity();
        let reserve = capacity / 4;
        EventQueue {
            ring,
            backlog: VecDeque::new(),
            capacity,
            reserve,
            control,
            pushed: false,
            sent: 0,
            last_read: 0,
            room: capacity - reserve,
            waiting: Vec::new(),
            held: 0,
            examined_at: 0,
        }
    }

    pub(in crate::worker) fn push(&mut self, event: Event, counters: &Counters) {
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

    /// Moves queued events to the ring, and updates the number of events that the control thread has read. Called at
    /// the start of each turn.
    pub(in crate::worker) fn begin_turn(&mut self, counters: &Counters) {
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
        self.last_read = self.sent - waits as u64;
        self.room = slots.saturating_sub(self.reserve);
        counters.run.events_waiting.set(self.backlog.len() as u64);
    }

    /// Returns true if no more than the reserved part of the ring is free.
    #[inline]
    pub(in crate::worker) fn is_nearly_full(&self) -> bool {
        self.room == 0
    }

    /// Returns true if no event waits for room in the ring.
    pub(in crate::worker) fn is_flushed(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Wakes the control thread if events were pushed since the last call.
    #[inline]
    pub(in crate::worker) fn notify(&mut self) {
        if core::mem::take(&mut self.pushed) {
            self.control.notify();
        }
    }

    /// Returns the number of the newest event that the control thread has read.
    pub(in crate::worker) fn last_read(&self) -> u64 {
        self.last_read
    }

    /// Returns the number of events sent so far.
    #[inline]
    pub(in crate::worker) fn sent(&self) -> u64 {
        self.sent
    }

    /// Charges one credit of a stream for each event sent after event number `before`. Returns true if the stream's
    /// credit is used up.
    pub(in crate::worker) fn charge(&self, credit: &mut Credit, before: u64) -> bool {
        for number in before + 1..=self.sent {
            credit.add(number, self.last_read);
        }
        !self.has_credit(credit)
    }

    /// Adds a stream to the streams that wait for credit. `pending` is the number of events in its endpoint. Returns
    /// the number of events that the endpoint may hold for data within the offered window; `None` if the stream waits
    /// already.
    pub(in crate::worker) fn add_waiting(
        &mut self,
        stream: StreamId,
        credit: &mut Credit,
        pending: usize,
    ) -> Option<u32> {
        if core::mem::replace(&mut credit.is_waiting, true) {
            return None;
        }
        let left = (HELD_PER_ENTRY * self.capacity).saturating_sub(self.held);
        let max_held = (left / HELD_SHARE_DIVISOR).min(self.capacity);
        let keeps = max_held.max(pending);
        self.held += keeps;
        self.waiting.push(WaitingStream { stream, max_held: keeps as u32 });
        Some(max_held as u32)
    }

    /// Returns the number of streams that wait for credit.
    pub(in crate::worker) fn streams_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Removes and returns the waiting streams, if the control thread has read events since the last call.
    #[inline]
    pub(in crate::worker) fn take_waiting(&mut self) -> Option<Vec<WaitingStream>> {
        if self.waiting.is_empty() || self.examined_at == self.last_read {
            return None;
        }
        self.examined_at = self.last_read;
        // Streams that resume now still have events in their endpoints, so their shares are counted until the next
        // call.
        self.held = self.waiting.iter().map(|waiting| waiting.max_held as usize).sum();
        Some(core::mem::take(&mut self.waiting))
    }

    /// Restores the streams that still wait for credit.
    pub(in crate::worker) fn restore_waiting(&mut self, streams: Vec<WaitingStream>) {
        self.waiting = streams;
    }

    /// Returns true if the stream may send another event.
    pub(in crate::worker) fn has_credit(&self, credit: &Credit) -> bool {
        let unread = credit.unread(self.last_read);
        unread < MIN_CREDIT || (self.room > 0 && (unread as usize) < self.reserve)
    }

    /// Returns true if streams wait for credit. The worker must then poll, because the control thread does not wake it
    /// after reading events.
    pub(in crate::worker) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of queued events that did not fit into the ring.
    #[cfg(test)]
    pub(in crate::worker) fn backlog(&self) -> usize {
        self.backlog.len()
    }
}
