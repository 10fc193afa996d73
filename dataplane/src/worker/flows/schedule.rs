//! Transmission schedules of carriers (a carrier is the endpoint of a TCP connection or of an SCTP association): one
//! schedule for each kind.
//!
//! A carrier is *ready* when it may have something to send, and *waiting* while the link-layer address of its next hop
//! is unknown. It is *blocked* while its port's transmit ring (on a loopback path, the loopback queue) is full or the
//! port's buffer pool is empty. Each port has a queue of blocked carriers, and all loopback paths share one queue. A
//! pass (`Core::transmit`) serves each of these queues only until a carrier is blocked again.

use std::collections::VecDeque;
use std::net::IpAddr;

use base::{Instant, MaybeInstant};
use hashbrown::HashMap;

use crate::net::path::Path;
use crate::timer::TimerWheel;

/// Interface index and address of the next hop.
pub(in crate::worker) type NextHop = (usize, IpAddr);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::worker) enum CarrierKind {
    Connection,
    Association,
}

pub(in crate::worker) struct Schedules {
    connections: Schedule,
    associations: Schedule,
    /// True if the worker has at least [`MANY`] streams and associations.
    shared: bool,
}

/// Minimum number of streams and associations at which [`Schedules::are_shared`] returns true.
const MANY: usize = 64;

impl Schedules {
    /// Creates empty schedules for a worker with `ports` ports.
    pub(in crate::worker) fn new(ports: usize, now: Instant) -> Self {
        let schedule = || Schedule::new(ports, now);
        Schedules { connections: schedule(), associations: schedule(), shared: false }
    }

    #[inline]
    pub(in crate::worker) fn get(&self, kind: CarrierKind) -> &Schedule {
        match kind {
            CarrierKind::Connection => &self.connections,
            CarrierKind::Association => &self.associations,
        }
    }

    #[inline]
    pub(in crate::worker) fn get_mut(&mut self, kind: CarrierKind) -> &mut Schedule {
        match kind {
            CarrierKind::Connection => &mut self.connections,
            CarrierKind::Association => &mut self.associations,
        }
    }

    /// Records the worker's total number of streams and associations.
    #[inline]
    pub(in crate::worker) fn set_carriers(&mut self, carriers: usize) {
        self.shared = carriers >= MANY;
    }

    /// Returns true if at least [`MANY`] streams and associations share the worker's ports.
    #[inline]
    pub(in crate::worker) fn are_shared(&self) -> bool {
        self.shared
    }

    /// Returns true if no carrier is ready or blocked.
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.associations.is_empty()
    }

    /// Returns a lower bound of the time at which the next timer of either schedule fires.
    #[inline]
    pub(in crate::worker) fn next_timer(&self) -> Option<Instant> {
        let timers = [self.connections.wheel.next_expiry(), self.associations.wheel.next_expiry()];
        timers.into_iter().flatten().min()
    }
}

/// The queue from which a carrier was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Queue {
    Ready,
    /// Carriers blocked at one port, or on loopback paths.
    Blocked,
}

/// The schedule of all carriers of one kind. Carriers are identified by their slots.
pub(in crate::worker) struct Schedule {
    /// Carriers that may have something to send, without duplicates, in the order of service.
    ready: VecDeque<u32>,
    /// Carriers that are blocked, for each port, without duplicates, in the order of service. The last queue has the
    /// blocked carriers on loopback paths.
    blocked: Vec<VecDeque<u32>>,
    /// Carriers that wait for the link-layer address of their next hop.
    waiting: HashMap<NextHop, Vec<u32>>,
    wheel: TimerWheel,
    /// Slot of the carrier that was last taken from the ready queue, initially 0.
    last_served: u32,
}

/// A carrier's membership in the schedule's queues.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct QueueMembership {
    ready: bool,
    blocked: bool,
    waiting: bool,
}

// A larger type would add padding to every stream.
const _: () = assert!(size_of::<QueueMembership>() == 3);

impl QueueMembership {
    /// Returns true while the carrier waits for the link-layer address of its next hop. A waiting carrier is not polled
    /// for packets to send.
    #[inline]
    pub(in crate::worker) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Returns true while the carrier is queued as blocked.
    #[inline]
    pub(in crate::worker) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Records that the carrier was removed from `queue`.
    #[inline]
    pub(in crate::worker) fn clear_queued(&mut self, queue: Queue) {
        match queue {
            Queue::Ready => self.ready = false,
            Queue::Blocked => self.blocked = false,
        }
    }

    /// Records that the carrier no longer waits for its next hop.
    pub(in crate::worker) fn clear_waiting(&mut self) {
        self.waiting = false;
    }
}

impl Schedule {
    fn new(ports: usize, now: Instant) -> Self {
        Schedule {
            ready: VecDeque::new(),
            blocked: vec![VecDeque::new(); ports + 1],
            waiting: HashMap::new(),
            wheel: TimerWheel::new(now),
            last_served: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.blocked.iter().all(VecDeque::is_empty)
    }

    /// Queues a carrier to be served by the next pass, unless it is already ready.
    #[inline]
    pub(in crate::worker) fn make_ready(&mut self, slot: u32, carrier: &mut QueueMembership) {
        if !carrier.ready {
            carrier.ready = true;
            self.ready.push_back(slot);
        }
    }

    /// Queues a carrier as blocked, unless it already is.
    pub(in crate::worker) fn block(
        &mut self,
        slot: u32,
        carrier: &mut QueueMembership,
        path: &Path,
    ) {
        if !carrier.blocked {
            carrier.blocked = true;
            let queue = self.blocked_queue(path);
            self.blocked[queue].push_back(slot);
        }
    }

    /// Queues a carrier until the link-layer address of its next hop is known.
    pub(in crate::worker) fn suspend(
        &mut self,
        slot: u32,
        carrier: &mut QueueMembership,
        next_hop: NextHop,
    ) {
        carrier.waiting = true;
        self.waiting.entry(next_hop).or_default().push(slot);
    }

    /// Removes and returns the carriers that wait for the address of this next hop.
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

    /// Returns the slot of the carrier last taken from the ready queue. The slot may be vacant or reused by now.
    pub(in crate::worker) fn last(&self) -> u32 {
        self.last_served
    }

    /// Returns the number of queues of blocked carriers: one per port, and one for loopback paths.
    #[inline]
    pub(in crate::worker) fn blocked_queues(&self) -> usize {
        self.blocked.len()
    }

    /// Returns the index of the queue of blocked carriers that `path` belongs to.
    fn blocked_queue(&self, path: &Path) -> usize {
        if path.is_loopback() { self.blocked.len() - 1 } else { path.port() }
    }

    /// Returns the carriers of a queue of blocked carriers, in the order of service.
    #[inline]
    pub(in crate::worker) fn blocked(&self, queue: usize) -> &VecDeque<u32> {
        &self.blocked[queue]
    }

    /// Removes and returns the first carrier of a queue of blocked carriers.
    #[inline]
    pub(in crate::worker) fn take_blocked(&mut self, queue: usize) -> Option<u32> {
        self.blocked[queue].pop_front()
    }

    /// Moves the last carrier of a queue of blocked carriers to the front. Called after the first carrier was taken,
    /// and queued again because it was still blocked.
    pub(in crate::worker) fn restore_first(&mut self, queue: usize) {
        if let Some(slot) = self.blocked[queue].pop_back() {
            self.blocked[queue].push_front(slot);
        }
    }

    /// Sets a carrier's timer in the wheel. `timer` is the time already set there. An earlier time is kept: the timer
    /// then fires without effect, which costs less than a change with every acknowledgement.
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

    /// Removes a timer that is due. Returns the slot of its carrier or session.
    #[inline]
    pub(in crate::worker) fn take_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop(now)
    }

    /// Sets the deadline of a session in the timer of its stream's slot. A session has no separate carrier.
    pub(in crate::worker) fn set_deadline(&mut self, slot: u32, at: Instant) {
        self.wheel.set(slot, at);
    }

    /// Clears the deadline of the session with this slot.
    pub(in crate::worker) fn clear_deadline(&mut self, slot: u32) {
        self.wheel.clear(slot);
    }

    /// Removes a carrier with this path from the wheel and from all queues.
    pub(in crate::worker) fn remove(&mut self, slot: u32, carrier: QueueMembership, path: &Path) {
        self.wheel.clear(slot);
        let is_other = |&other: &u32| other != slot;
        if carrier.waiting
            && let Some(slots) = self.waiting.get_mut(&(path.interface(), path.next_hop()))
        {
            slots.retain(is_other);
        }
        if carrier.ready {
            self.ready.retain(is_other);
        }
        if carrier.blocked {
            let queue = self.blocked_queue(path);
            self.blocked[queue].retain(is_other);
        }
    }
}
