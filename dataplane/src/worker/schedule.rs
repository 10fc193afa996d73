//! When the carriers of streams are polled for what they send: connections, or associations; one schedule for each.
//!
//! A carrier is *ready* when something has happened to it, *blocked* when it found no room in its port's transmit
//! ring, *waiting* when it has no link-layer address of its next hop. Blocked ones are queued by port and cost nothing
//! until there is room.

use std::collections::VecDeque;
use std::net::IpAddr;

use base::{Instant, MaybeInstant};
use hashbrown::HashMap;

use crate::timer::TimerWheel;

/// Place of the interface, and the address.
pub(super) type NextHop = (usize, IpAddr);

/// What a carrier's endpoint is of: streams over TCP are served before those over SCTP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum CarrierKind {
    /// A TCP connection.
    Connection,
    /// An SCTP association.
    Association,
}

/// The schedules of both kinds.
pub(super) struct Schedules {
    connections: Schedule,
    associations: Schedule,
}

impl Schedules {
    /// Of a worker with so many ports.
    pub(super) fn new(ports: usize, now: Instant) -> Self {
        let schedule = || Schedule::new(ports, now);
        Schedules { connections: schedule(), associations: schedule() }
    }

    /// That of one kind.
    #[inline]
    pub(super) fn get(&self, kind: CarrierKind) -> &Schedule {
        match kind {
            CarrierKind::Connection => &self.connections,
            CarrierKind::Association => &self.associations,
        }
    }

    /// The same, to change it.
    #[inline]
    pub(super) fn of(&mut self, kind: CarrierKind) -> &mut Schedule {
        match kind {
            CarrierKind::Connection => &mut self.connections,
            CarrierKind::Association => &mut self.associations,
        }
    }

    /// True when no carrier is ready or blocked.
    pub(super) fn are_empty(&self) -> bool {
        self.connections.is_empty() && self.associations.is_empty()
    }

    /// When the next timer is due.
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let timers = [self.connections.wheel.next(), self.associations.wheel.next()];
        timers.into_iter().flatten().min()
    }
}

/// A queue that a carrier was taken out of to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    /// Of those that are ready.
    Ready,
    /// Of those that are blocked at a port.
    Blocked,
}

/// The schedule of all carriers of one kind, by slot.
pub(super) struct Schedule {
    /// Carriers that may have something to send, each once, in the order of service.
    ready: VecDeque<u32>,
    /// Carriers that have something to send and found no room, each once, in the order of service: a queue for each
    /// port.
    blocked: Vec<VecDeque<u32>>,
    /// Carriers that wait for the link-layer address of a neighbour.
    waiting: HashMap<NextHop, Vec<u32>>,
    wheel: TimerWheel,
    /// The carrier that was served last, or one that was never served.
    last: u32,
}

/// What the schedule keeps in a carrier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scheduled {
    ready: bool,
    blocked: bool,
    waiting: bool,
}

// It is in every stream, where a larger one would be padded.
const _: () = assert!(size_of::<Scheduled>() == 3);

impl Scheduled {
    /// It waits for its next hop's link-layer address and is not polled.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// It is queued for room in the transmit ring of its port.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// It was taken out of a queue.
    #[inline]
    pub(super) fn taken(&mut self, queue: Queue) {
        match queue {
            Queue::Ready => self.ready = false,
            Queue::Blocked => self.blocked = false,
        }
    }

    /// It was taken out of those that wait for a next hop.
    pub(super) fn waiting_taken(&mut self) {
        self.waiting = false;
    }
}

impl Schedule {
    fn new(ports: usize, now: Instant) -> Self {
        Schedule {
            ready: VecDeque::new(),
            blocked: vec![VecDeque::new(); ports],
            waiting: HashMap::new(),
            wheel: TimerWheel::new(now),
            last: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.blocked.iter().all(VecDeque::is_empty)
    }

    /// Queues a carrier to be served in this turn, if it is not queued yet.
    #[inline]
    pub(super) fn make_ready(&mut self, slot: u32, carrier: &mut Scheduled) {
        if !carrier.ready {
            carrier.ready = true;
            self.ready.push_back(slot);
        }
    }

    /// Queues a carrier until there is room in the transmit ring of `port`.
    pub(super) fn block(&mut self, slot: u32, carrier: &mut Scheduled, port: usize) {
        if !carrier.blocked {
            carrier.blocked = true;
            self.blocked[port].push_back(slot);
        }
    }

    /// A carrier waits for a link-layer address.
    pub(super) fn wait(&mut self, slot: u32, carrier: &mut Scheduled, next_hop: NextHop) {
        carrier.waiting = true;
        self.waiting.entry(next_hop).or_default().push(slot);
    }

    /// Takes out the carriers that wait for a next hop.
    pub(super) fn take_waiting(&mut self, next_hop: NextHop) -> Vec<u32> {
        self.waiting.remove(&next_hop).unwrap_or_default()
    }

    /// Those that are ready, in the order of service.
    #[inline]
    pub(super) fn ready(&self) -> &VecDeque<u32> {
        &self.ready
    }

    /// Takes out the first that is ready.
    #[inline]
    pub(super) fn take_ready(&mut self) -> Option<u32> {
        let slot = self.ready.pop_front()?;
        self.last = slot;
        Some(slot)
    }

    /// The carrier that was taken out last of those that are ready, if it is still there.
    pub(super) fn last(&self) -> u32 {
        self.last
    }

    /// Ports with a queue of blocked carriers.
    #[inline]
    pub(super) fn ports(&self) -> usize {
        self.blocked.len()
    }

    /// Those that are blocked at a port, in the order of service.
    #[inline]
    pub(super) fn blocked(&self, port: usize) -> &VecDeque<u32> {
        &self.blocked[port]
    }

    /// Takes out the first that is blocked at a port.
    #[inline]
    pub(super) fn take_blocked(&mut self, port: usize) -> Option<u32> {
        self.blocked[port].pop_front()
    }

    /// The carrier that was blocked last at a port is served first: it was before, and found no room again.
    pub(super) fn keep_first(&mut self, port: usize) {
        if let Some(slot) = self.blocked[port].pop_back() {
            self.blocked[port].push_front(slot);
        }
    }

    /// Sets a carrier's timer in the wheel. One that is set for an earlier time, by `timer`, stays: it finds
    /// nothing to do when it fires, which is cheaper than to move it with every acknowledgement.
    #[inline]
    pub(super) fn set_timer(&mut self, slot: u32, timer: &mut MaybeInstant, at: Instant) {
        if timer.get().is_none_or(|set| at < set) {
            *timer = Some(at).into();
            self.wheel.set(slot, at);
        }
    }

    /// Takes out a carrier whose timer is due.
    #[inline]
    pub(super) fn take_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop(now)
    }

    /// Sets a timer for a slot that has no carrier of its own.
    pub(super) fn set_deadline(&mut self, slot: u32, at: Instant) {
        self.wheel.set(slot, at);
    }

    /// Clears it.
    pub(super) fn clear_deadline(&mut self, slot: u32) {
        self.wheel.clear(slot);
    }

    /// Takes a carrier out of everything. Its port and next hop are those of its path.
    pub(super) fn remove(&mut self, slot: u32, carrier: Scheduled, port: usize, next_hop: NextHop) {
        self.wheel.clear(slot);
        let others = |&other: &u32| other != slot;
        if carrier.waiting
            && let Some(slots) = self.waiting.get_mut(&next_hop)
        {
            slots.retain(others);
        }
        if carrier.ready {
            self.ready.retain(others);
        }
        if carrier.blocked {
            self.blocked[port].retain(others);
        }
    }
}
