//! Scheduling of carriers for transmission: connections and associations have a schedule each.
//!
//! A carrier is *ready* when something has happened to it, *blocked* when it found no room in its port's transmit
//! ring, and *waiting* while its next hop's link-layer address is unknown. Blocked carriers are queued by port and
//! cost nothing until there is room.

use std::collections::VecDeque;
use std::net::IpAddr;

use base::{Instant, MaybeInstant};
use hashbrown::HashMap;

use crate::timer::TimerWheel;

/// Index of the interface, and the next hop's address.
pub(in crate::worker) type NextHop = (usize, IpAddr);

/// Kind of a carrier's endpoint. Connections are served before associations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::worker) enum CarrierKind {
    /// A TCP connection.
    Connection,
    /// An SCTP association.
    Association,
}

/// The schedules of both kinds.
pub(in crate::worker) struct Schedules {
    connections: Schedule,
    associations: Schedule,
    /// True if many carriers share the ports.
    shared: bool,
}

/// Number of connections and associations from which ports count as shared among many.
const MANY: usize = 64;

impl Schedules {
    /// Creates the schedules of a worker with `ports` ports.
    pub(in crate::worker) fn new(ports: usize, now: Instant) -> Self {
        let schedule = || Schedule::new(ports, now);
        Schedules { connections: schedule(), associations: schedule(), shared: false }
    }

    /// Returns the schedule of one kind.
    #[inline]
    pub(in crate::worker) fn get(&self, kind: CarrierKind) -> &Schedule {
        match kind {
            CarrierKind::Connection => &self.connections,
            CarrierKind::Association => &self.associations,
        }
    }

    /// Returns the schedule of one kind mutably.
    #[inline]
    pub(in crate::worker) fn get_mut(&mut self, kind: CarrierKind) -> &mut Schedule {
        match kind {
            CarrierKind::Connection => &mut self.connections,
            CarrierKind::Association => &mut self.associations,
        }
    }

    /// Sets the number of streams and associations of the worker.
    #[inline]
    pub(in crate::worker) fn set_carriers(&mut self, carriers: usize) {
        self.shared = carriers >= MANY;
    }

    /// Returns true if many carriers share the ports.
    #[inline]
    pub(in crate::worker) fn are_shared(&self) -> bool {
        self.shared
    }

    /// Returns true when no carrier is ready or blocked.
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.associations.is_empty()
    }

    /// Returns the earliest timer.
    #[inline]
    pub(in crate::worker) fn next_timer(&self) -> Option<Instant> {
        let timers = [self.connections.wheel.next_expiry(), self.associations.wheel.next_expiry()];
        timers.into_iter().flatten().min()
    }
}

/// The queue that a carrier was taken out of to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Queue {
    /// Ready carriers.
    Ready,
    /// Carriers blocked at a port.
    Blocked,
}

/// The schedule of all carriers of one kind, by slot.
pub(in crate::worker) struct Schedule {
    /// Carriers that may have something to send, each once, in the order of service.
    ready: VecDeque<u32>,
    /// Carriers that have something to send and found no room, each once, in the order of service; by port.
    blocked: Vec<VecDeque<u32>>,
    /// Carriers that wait for the link-layer address of a neighbour.
    waiting: HashMap<NextHop, Vec<u32>>,
    wheel: TimerWheel,
    /// Slot of the carrier taken last from the ready queue; 0 at first.
    last_served: u32,
}

/// A carrier's membership in the schedule's queues.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct QueueMembership {
    ready: bool,
    blocked: bool,
    waiting: bool,
}

// Every stream contains it, where a larger type would be padded.
const _: () = assert!(size_of::<QueueMembership>() == 3);

impl QueueMembership {
    /// Returns true while the carrier waits for its next hop's link-layer address. It is not polled then.
    #[inline]
    pub(in crate::worker) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Returns true while the carrier is queued for room in its port's transmit ring.
    #[inline]
    pub(in crate::worker) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Notes that the carrier was taken out of a queue.
    #[inline]
    pub(in crate::worker) fn clear_queued(&mut self, queue: Queue) {
        match queue {
            Queue::Ready => self.ready = false,
            Queue::Blocked => self.blocked = false,
        }
    }

    /// Notes that the carrier no longer waits for its next hop.
    pub(in crate::worker) fn clear_waiting(&mut self) {
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
            last_served: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.blocked.iter().all(VecDeque::is_empty)
    }

    /// Queues a carrier to be served in this turn, if it is not queued yet.
    #[inline]
    pub(in crate::worker) fn make_ready(&mut self, slot: u32, carrier: &mut QueueMembership) {
        if !carrier.ready {
            carrier.ready = true;
            self.ready.push_back(slot);
        }
    }

    /// Queues a carrier until there is room in the transmit ring of `port`, if it is not queued there yet.
    pub(in crate::worker) fn block(
        &mut self,
        slot: u32,
        carrier: &mut QueueMembership,
        port: usize,
    ) {
        if !carrier.blocked {
            carrier.blocked = true;
            self.blocked[port].push_back(slot);
        }
    }

    /// Suspends a carrier until its next hop's link-layer address is known.
    pub(in crate::worker) fn suspend(
        &mut self,
        slot: u32,
        carrier: &mut QueueMembership,
        next_hop: NextHop,
    ) {
        carrier.waiting = true;
        self.waiting.entry(next_hop).or_default().push(slot);
    }

    /// Removes and returns the carriers that wait for a next hop.
    pub(in crate::worker) fn take_waiting(&mut self, next_hop: NextHop) -> Vec<u32> {
        self.waiting.remove(&next_hop).unwrap_or_default()
    }

    /// Returns the ready carriers, in the order of service.
    #[inline]
    pub(in crate::worker) fn ready(&self) -> &VecDeque<u32> {
        &self.ready
    }

    /// Removes and returns the first ready carrier.
    #[inline]
    pub(in crate::worker) fn take_ready(&mut self) -> Option<u32> {
        let slot = self.ready.pop_front()?;
        self.last_served = slot;
        Some(slot)
    }

    /// Returns the slot of the carrier taken last from the ready queue. The slot may be free or reused by now.
    pub(in crate::worker) fn last(&self) -> u32 {
        self.last_served
    }

    /// Returns the number of ports.
    #[inline]
    pub(in crate::worker) fn ports(&self) -> usize {
        self.blocked.len()
    }

    /// Returns the carriers blocked at a port, in the order of service.
    #[inline]
    pub(in crate::worker) fn blocked(&self, port: usize) -> &VecDeque<u32> {
        &self.blocked[port]
    }

    /// Removes and returns the first carrier blocked at a port.
    #[inline]
    pub(in crate::worker) fn take_blocked(&mut self, port: usize) -> Option<u32> {
        self.blocked[port].pop_front()
    }

    /// Moves the last blocked carrier of a port to the front: it was served first and found no room again.
    pub(in crate::worker) fn restore_first(&mut self, port: usize) {
        if let Some(slot) = self.blocked[port].pop_back() {
            self.blocked[port].push_front(slot);
        }
    }

    /// Sets a carrier's timer in the wheel. An earlier time already set there, recorded in `timer`, stays: the timer
    /// then fires without effect, which is cheaper than moving it with every acknowledgement.
    #[inline]
    pub(in crate::worker) fn set_timer(
        &mut self,
        slot: u32,
        timer: &mut MaybeInstant,
        at: Instant,
    ) {
        if timer.get().is_none_or(|set| at < set) {
            *timer = Some(at).into();
            self.wheel.set(slot, at);
        }
    }

    /// Removes and returns a carrier whose timer is due.
    #[inline]
    pub(in crate::worker) fn take_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop(now)
    }

    /// Sets a timer for a slot without a carrier of its own: a session's.
    pub(in crate::worker) fn set_deadline(&mut self, slot: u32, at: Instant) {
        self.wheel.set(slot, at);
    }

    /// Clears the timer of a slot without a carrier of its own.
    pub(in crate::worker) fn clear_deadline(&mut self, slot: u32) {
        self.wheel.clear(slot);
    }

    /// Removes a carrier from the wheel and all queues. `port` and `next_hop` are those of its path.
    pub(in crate::worker) fn remove(
        &mut self,
        slot: u32,
        carrier: QueueMembership,
        port: usize,
        next_hop: NextHop,
    ) {
        self.wheel.clear(slot);
        let is_other = |&other: &u32| other != slot;
        if carrier.waiting
            && let Some(slots) = self.waiting.get_mut(&next_hop)
        {
            slots.retain(is_other);
        }
        if carrier.ready {
            self.ready.retain(is_other);
        }
        if carrier.blocked {
            self.blocked[port].retain(is_other);
        }
    }
}
