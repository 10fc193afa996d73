//! The worker: what one core does with its ports, its streams and its rings, turn after turn.
//!
//! [`Core`] is all of it but the thread: it takes frames from a [`PortIo`] and the time from its caller,
//! so that tests run it on vectors in virtual time. [`thread`] gives it a core, a clock and a sleep.
//!
//! ```text
//!  one turn   commands -> mesh -> ports: parse+hash | look up | input -> timers -> neighbours
//!                      -> streams that may send, in turn -> transmit rings -> events, mesh, wake-ups
//! ```
//!
//! A burst is taken in stages, so that the table look-ups of its frames overlap; then each stream that
//! was touched is asked for segments once, so that it acknowledges once. What has more to send than its
//! quota stands in line again. All loops of a turn are bounded; what is left over is done in the next.
//!
//! Back-pressure: while the event ring is nearly full no commands are read, and streams that have used up their
//! credit of events are paused ([`event`]); frames and the mesh are read always. While a transmit ring is full,
//! its streams wait in line.

mod accept;
mod batch;
mod by_age;
mod command;
mod conn;
mod cookies;
mod event;
mod icmp;
mod input;
mod keep;
mod listen;
mod load;
mod lower;
mod near;
mod output;
mod rdmap;
mod report;
mod sctp;
pub(crate) mod thread;
mod tidy;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::{Instant, MaybeInstant};
use ddp::{BufferPool, Stag, StagTable};
use hashbrown::HashMap;
use rtrb::Consumer;
use siphasher::sip::SipHasher13;
use tcp_lite::endpoint::Context;
use tcp_lite::mpa::HoldBudget;
use tcp_lite::tcp::IsnGenerator;

use self::by_age::ByAge;
use self::conn::Conn;
use self::cookies::Cookies;
use self::event::Events;
use self::keep::KeepBudget;
use self::listen::Listeners;
use self::lower::Lower;
use self::sctp::Associations;
use crate::api::{
    Command, Counters, DropReason, Event, InterfaceConfig, InterfaceId, Limits, Ticket, WorkerId,
    WorkerLink,
};
use crate::flow::{FlowTable, Slab};
use crate::io::{BURST, Frame, PortFacts, PortIo};
use crate::memory::Memory;
use crate::mesh::Mesh;
use crate::net::fragment::Identifications;
use crate::net::interface::Interface;
use crate::net::limit::{PeerLimit, RateLimit};
use crate::net::path_mtu::PathMtus;
use crate::net::reassembly::Reassembly;
use crate::net::{Outbox, Stack};
use crate::timer::TimerWheel;

/// What an endpoint borrows of its worker for one call; a macro, so that only these fields are borrowed.
macro_rules! lend {
    ($core:ident) => {
        Context { stags: &$core.stags, buffers: &mut $core.buffers, hold: &mut $core.hold }
    };
}
use lend;

/// The same for an association.
macro_rules! lend_buffers {
    ($core:ident) => {
        ddp::Context { stags: &$core.stags, buffers: &mut $core.buffers }
    };
}
use lend_buffers;

/// The lower layer of the stream in a slot, if it is there; a macro for the same reason.
macro_rules! reach {
    ($core:ident, $slot:expr) => {
        $core.conns.get_mut($slot).and_then(|conn| conn.lower.reach(&mut $core.associations))
    };
}
use reach;

/// Commands, mesh messages and timers taken in one turn.
const COMMANDS: usize = 64;
const MESSAGES: usize = 64;
const TIMERS: usize = 256;
/// Looks for frames between two idle turns.
const LOOKS: u32 = 8;
/// Idle turns after which gauges are published again: what they tell hardly changes.
const SELDOM: u64 = 64;
/// What neighbours say is told to the other workers at most this often in a second.
const NEWS: u32 = 2000;

/// One worker without its thread.
pub(crate) struct Core<Io: PortIo> {
    index: u16,
    phase: Phase,
    counters: Arc<Counters>,
    /// By place; `None` for ports that this worker has no queue of.
    ports: Vec<Option<PortSlot<Io>>>,
    stack: Stack,
    outbox: Outbox,
    reassembly: Reassembly,
    identifications: Identifications,
    path_mtus: PathMtus,
    mesh: Mesh<Io::Frame>,
    commands: Consumer<Command>,
    events: Events,
    flows: FlowTable,
    conns: Slab<Box<Conn>>,
    time_wait: ByAge,
    /// What carries streams over SCTP.
    associations: Associations,
    /// Streams whose end the control thread has not been told of yet.
    live: u32,
    wheel: TimerWheel,
    listeners: Listeners,
    cookies: Cookies,
    stags: StagTable<Memory>,
    buffers: BufferPool,
    hold: HoldBudget,
    /// For what streams keep of what they have sent.
    keep: KeepBudget,
    /// Streams to which something has happened and that may have something to send, each once, in turn.
    ready: VecDeque<u32>,
    /// Streams that have something to send and found no room, each once, in turn: a line for each port.
    blocked: Vec<VecDeque<u32>>,
    /// Streams that wait for the link-layer address of a neighbour.
    waiting: HashMap<(usize, IpAddr), Vec<u32>>,
    /// When loads with a pace post next.
    paced: load::Paced,
    /// Unacknowledged messages by the region that they are sent from.
    sources: HashMap<Stag, u32>,
    /// Regions that are gone from the table and wait for `sources`.
    removals: Vec<(Stag, Ticket)>,
    isn: IsnGenerator,
    resets: PeerLimit,
    /// Bounds what strangers can make us tell the other workers of neighbours.
    news: RateLimit,
    random: Random,
    hand: tidy::Hand,
    /// The time of this turn.
    now: Instant,
}

/// A port of this worker.
pub(crate) struct PortSlot<Io: PortIo> {
    /// Its queues.
    pub(crate) io: Io,
    /// What is the same for all workers.
    pub(crate) facts: Arc<PortFacts>,
    /// Frames that wait for the next turn.
    arrived: ArrayVec<Io::Frame, BURST>,
}

impl<Io: PortIo> PortSlot<Io> {
    /// These queues of a port.
    pub(crate) fn new(io: Io, facts: Arc<PortFacts>) -> Self {
        PortSlot { io, facts, arrived: ArrayVec::new() }
    }
}

/// What a worker is made of.
pub(crate) struct CoreParts<Io: PortIo> {
    pub(crate) id: WorkerId,
    pub(crate) ports: Vec<Option<PortSlot<Io>>>,
    pub(crate) interfaces: Vec<InterfaceConfig>,
    pub(crate) mesh: Mesh<Io::Frame>,
    pub(crate) limits: Limits,
    /// The UDP port at which SCTP is expected in UDP (RFC 6951).
    pub(crate) sctp_udp_port: Option<u16>,
    pub(crate) link: WorkerLink,
    /// The same for all workers: sequence numbers must agree.
    pub(crate) secret: [u8; 32],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Draining,
    Drained,
    /// With the turns that are left to send the resets.
    Stopping(u8),
    Stopped,
}

/// Turns after a stop in which resets may still go out.
const LAST_TURNS: u8 = 32;

impl<Io: PortIo> Core<Io> {
    /// A worker without streams. Its first act is to announce its addresses.
    pub(crate) fn new(parts: CoreParts<Io>, now: Instant) -> Self {
        let CoreParts { id: WorkerId(index), ports, interfaces, mesh, limits, .. } = parts;
        let CoreParts { sctp_udp_port, link, secret, .. } = parts;
        let WorkerLink { commands, events, control, counters, .. } = link;
        let key = |purpose: u8| derive(&secret, purpose, index);
        let interfaces = interfaces.iter().enumerate().map(|(i, config)| {
            let port = ports.get(config.port.0 as usize).and_then(Option::as_ref);
            let mac = port.map_or([0; 6], |p| p.facts.mac);
            let id = InterfaceId(i as u16);
            let mut interface = Interface::new(id, config, mac, limits.neighbours, key(b'n'));
            interface.encapsulation = sctp_udp_port;
            interface
        });
        let lines = ports.len();
        let mut core = Core {
            index,
            phase: Phase::Running,
            counters,
            stack: Stack::new(interfaces.collect(), limits.icmp_per_second, now),
            ports,
            outbox: Outbox::default(),
            reassembly: Reassembly::new(limits.reassembly_packets, limits.reassembly_octets),
            identifications: Identifications::new(key(b'i')),
            path_mtus: PathMtus::new(limits.path_mtus),
            mesh,
            commands,
            events: Events::new(events, control),
            flows: FlowTable::new(key(b'f')),
            conns: Slab::new(index, limits.streams),
            time_wait: ByAge::default(),
            associations: Associations::new(
                index,
                limits.streams,
                key(b's'),
                derive(&secret, b'k', 0),
                sctp_udp_port,
                now,
            ),
            live: 0,
            wheel: TimerWheel::new(now),
            listeners: Listeners::new(&limits, key(b'p')),
            // Whichever worker gets the acknowledgement knows the cookie.
            cookies: Cookies::new(derive(&secret, b'c', 0), limits.syn_cookies),
            stags: StagTable::new(),
            buffers: BufferPool::new(limits.untagged_octets as u64),
            hold: HoldBudget::new(limits.hold_octets as u64),
            keep: KeepBudget::new(limits.keep_bytes as u64),
            ready: VecDeque::new(),
            blocked: vec![VecDeque::new(); lines],
            waiting: HashMap::new(),
            paced: load::Paced::default(),
            sources: HashMap::new(),
            removals: Vec::new(),
            // RFC 9293 §3.4.1: a stream that moves to another worker keeps its numbers' order.
            isn: IsnGenerator::new(derive(&secret, b'i', 0)),
            resets: PeerLimit::new(limits.resets_per_second, key(b'l'), now),
            news: RateLimit::new(NEWS, now),
            random: Random { key: SipHasher13::new_with_key(&key(b'r')), count: 0 },
            hand: tidy::Hand::default(),
            now,
        };
        core.announce();
        core
    }

    /// One turn. Returns whether there was anything to do.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        self.now = now;
        self.counters.turns.add(1);
        let mut busy = false;
        self.events.begin_turn(&self.counters);
        self.resume_streams();
        if self.events.is_short() {
            self.counters.event_stalls.add(1);
        } else {
            busy |= self.take_commands(now);
        }
        busy |= self.take_messages(now);
        busy |= self.take_frames(now);
        busy |= self.fire_timers(now);
        busy |= self.post_due(now);
        let mut changed = self.ask_neighbours(now);
        let expired = self.reassembly.expire(now);
        changed |= expired > 0;
        self.counters.reassembly_timeouts.add(expired);
        busy |= self.transmit(now);
        busy |= self.transmit_associations(now);
        busy |= self.send_outbox();
        self.wind_down();
        self.tidy(now);
        for slot in self.ports.iter_mut().flatten() {
            busy |= !slot.io.flush();
        }
        self.mesh.wake();
        self.events.notify();
        if !busy {
            self.counters.idle_turns.add(1);
        }
        if busy || changed || self.counters.idle_turns.get().is_multiple_of(SELDOM) {
            self.publish();
        }
        busy
    }

    /// After a turn with nothing to do: looks a few times for something to take, which is all that an idle
    /// worker need do often. Timers and the rest are for the next turn; returns when it begins.
    pub(crate) fn look(&mut self, mut at: Instant, now: &impl Fn() -> Instant) -> Instant {
        for _ in 0..LOOKS {
            if self.sees_input(at) || self.paced.is_due(at) {
                break;
            }
            // Not to take the line of a ring away from who is just writing to it.
            std::hint::spin_loop();
            at = now();
        }
        at
    }

    /// When the next turn is due although nothing arrives; `None` when nothing is planned.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let timers = [
            self.wheel.next(),
            self.paced.next(),
            self.associations.next_timer(),
            self.stack.poll_timeout(),
            self.reassembly.poll_timeout(),
        ];
        let ports = self.ports().filter_map(PortIo::poll_timeout);
        timers.into_iter().flatten().chain(ports).min()
    }

    /// True when something waits that no descriptor will tell of.
    pub(crate) fn has_input(&self) -> bool {
        let events = !self.events.is_flushed() || self.events.are_awaited();
        !self.commands.is_empty() || self.mesh.is_waiting() || events
    }

    /// True after [`Command::Stop`]: every stream has been reset and everything said.
    pub(crate) fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped && self.events.is_flushed()
    }

    /// Counts the time of a turn in which there was something to do.
    pub(crate) fn spent(&self, time: core::time::Duration) {
        self.counters.busy_nanoseconds.add(time.as_nanos() as u64);
    }

    /// Counts a sleep.
    pub(crate) fn slept(&self) {
        self.counters.sleeps.add(1);
    }

    /// The ports' queues.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &Io> {
        self.ports.iter().flatten().map(|slot| &slot.io)
    }

    /// The ports' queues, for tests to put frames in and take them out.
    #[cfg(test)]
    pub(crate) fn port_mut(&mut self, port: usize) -> &mut Io {
        &mut self.ports[port].as_mut().expect("a port of this worker").io
    }

    /// The streams' endpoints, for tests to look at.
    #[cfg(test)]
    pub(crate) fn streams(&self) -> impl Iterator<Item = &tcp_lite::endpoint::Endpoint<Memory>> {
        self.conns.occupied().filter_map(|slot| match &self.conns.get(slot)?.lower {
            Lower::Tcp(endpoint) => Some(endpoint),
            Lower::Sctp(_) => None,
        })
    }

    /// The endpoint of the first stream with this peer.
    #[cfg(test)]
    pub(crate) fn stream_with(
        &self,
        peer: IpAddr,
    ) -> Option<&tcp_lite::endpoint::Endpoint<Memory>> {
        let mut conns = self.conns.occupied().filter_map(|slot| self.conns.get(slot));
        conns.find(|conn| conn.peer() == peer).and_then(|conn| match &conn.lower {
            Lower::Tcp(endpoint) => Some(endpoint),
            Lower::Sctp(_) => None,
        })
    }

    fn take_commands(&mut self, now: Instant) -> bool {
        let mut taken = 0;
        while taken < COMMANDS {
            let Ok(command) = self.commands.pop() else { break };
            self.counters.commands.add(1);
            taken += 1;
            self.command(command, now);
        }
        taken > 0
    }

    fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = 0;
        while fired < TIMERS {
            let Some(slot) = self.wheel.pop(now) else { break };
            fired += 1;
            self.timer(slot, now);
        }
        fired += self.fire_association_timers(TIMERS, now);
        self.counters.timers.add(fired as u64);
        fired > 0
    }

    fn timer(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        conn.timer = MaybeInstant::NONE;
        if let Lower::Tcp(endpoint) = &mut conn.lower
            && endpoint.poll_timeout().is_some_and(|at| at <= now)
        {
            endpoint.handle_timeout(now, &mut lend!(self));
            self.ask_others_for_path(slot, now);
        }
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if matches!(&conn.lower, Lower::Tcp(endpoint) if endpoint.connection().path_suspect()) {
            // RFC 9293 §3.8.3 R1: perhaps the neighbour has moved.
            let neighbours = &mut self.stack.interfaces[conn.path.interface()].neighbours;
            neighbours.doubt(conn.path.next_hop(), now);
        }
        if conn.pending.own_deadline.get().is_some_and(|at| at <= now) {
            conn.pending.own_deadline = MaybeInstant::NONE;
            self.own_deadline(slot, now);
        }
        self.touch(slot);
    }

    /// Returns whether one was asked, or given up.
    fn ask_neighbours(&mut self, now: Instant) -> bool {
        // At most as many as the caches have entries. None may be left out: its streams would wait for
        // ever, and keep their places.
        let mut failed = Vec::new();
        let asked = self.stack.poll(now, &mut self.outbox, |interface, address| {
            failed.push((interface, address));
        });
        self.counters.neighbour_solicitations.add(asked);
        let changed = asked > 0 || !failed.is_empty();
        for (interface, address) in failed {
            self.counters.neighbour_failures.add(1);
            self.neighbour_failed(interface, address, now);
        }
        changed
    }

    fn announce(&mut self) {
        for at in 0..self.stack.interfaces.len() {
            let port = self.stack.interfaces[at].port;
            // One worker speaks for all of the port: the one with the first queue.
            let first =
                |slot: &PortSlot<Io>| slot.facts.workers.first() == Some(&WorkerId(self.index));
            if self.ports.get(port).and_then(Option::as_ref).is_some_and(first) {
                self.stack.announce(at, &mut self.outbox);
            }
        }
    }

    fn send_outbox(&mut self) -> bool {
        if self.outbox.is_empty() {
            return false;
        }
        let counters = &self.counters;
        for (port, octets) in self.outbox.iter() {
            let Some(slot) = self.ports.get_mut(port).and_then(Option::as_mut) else { continue };
            let frame = if slot.io.room() > 0 { slot.io.allocate(octets.len()) } else { None };
            match frame {
                Some(mut frame) => {
                    frame.octets_mut().copy_from_slice(octets);
                    counters.tx_frames.add(1);
                    counters.tx_octets.add(octets.len() as u64);
                    slot.io.send(frame);
                }
                None => counters.drops.count(DropReason::TxFull),
            }
        }
        self.outbox.clear();
        true
    }

    /// What streams still have to say is taken whatever their credit is: nothing more comes.
    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping(_) | Phase::Stopped)
    }

    /// Moves on when a drain or a stop has run its course.
    fn wind_down(&mut self) {
        match self.phase {
            Phase::Draining if self.live == 0 && self.associations.is_empty() => {
                self.phase = Phase::Drained;
                self.events.push(Event::Drained, &self.counters);
            }
            Phase::Stopping(left)
                if left == 0 || self.are_silent() && self.associations.are_silent() =>
            {
                let slots: Vec<u32> = self.conns.occupied().collect();
                for slot in slots {
                    self.forget(slot);
                }
                self.forget_associations();
                self.phase = Phase::Stopped;
                self.events.push(Event::Stopped, &self.counters);
            }
            Phase::Stopping(left) => self.phase = Phase::Stopping(left - 1),
            _ => {}
        }
    }

    /// True when no stream stands in line.
    fn are_silent(&self) -> bool {
        self.ready.is_empty() && self.blocked.iter().all(VecDeque::is_empty)
    }

    fn publish(&self) {
        let counters = &self.counters;
        counters.streams.set(self.conns.len() as u64);
        counters.associations.set(self.associations.len() as u64);
        counters.half_open.set(u64::from(self.listeners.half_open()));
        counters.untagged_octets.set(self.buffers.in_use());
        counters.untagged_octets_max.set(self.buffers.high_water());
        counters.untagged_refused_full.set(self.buffers.refused_full());
        counters.untagged_refused_share.set(self.buffers.refused_share());
        counters.reassembly_octets.set(self.reassembly.octets() as u64);
        counters.path_mtus.set(self.path_mtus.len() as u64);
        counters.held_octets.set(self.hold.used());
        counters.held_octets_max.max(self.hold.used());
        counters.kept_bytes.set(self.keep.used());
        counters.kept_bytes_max.set(self.keep.high_water());
        let neighbours = self.stack.interfaces.iter().map(|i| i.neighbours.len() as u64).sum();
        counters.neighbours.set(neighbours);
    }

    /// Puts a stream in line to be served in this turn, if it does not stand there yet.
    fn touch(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if let Lower::Sctp(session) = conn.lower {
            self.associations.touch(session.association);
        } else if !conn.queued {
            conn.queued = true;
            self.ready.push_back(slot);
        }
    }
}

/// A key for one purpose of one worker.
fn derive(secret: &[u8; 32], purpose: u8, index: u16) -> [u8; 16] {
    let (a, b) = secret.split_at(16);
    let half = |key: &[u8], n: u8| {
        let key: &[u8; 16] = key.try_into().expect("16 octets");
        let [hi, lo] = index.to_be_bytes();
        SipHasher13::new_with_key(key).hash(&[purpose, n, hi, lo]).to_be_bytes()
    };
    let mut out = [0; 16];
    out[..8].copy_from_slice(&half(a, 0));
    out[8..].copy_from_slice(&half(b, 1));
    out
}

/// Numbers that nobody without the secret can foresee.
#[derive(Debug)]
struct Random {
    key: SipHasher13,
    count: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.key.hash(&self.count.to_be_bytes())
    }
}

#[cfg(test)]
mod tests;
