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
mod admission;
mod batch;
mod by_age;
mod command;
mod conn;
mod control;
mod cookies;
mod credit;
mod event;
mod icmp;
mod input;
mod keep;
mod listen;
mod load;
mod lower;
mod network;
mod output;
mod ports;
mod prefetch;
mod rdmap;
mod reclaim;
mod report;
mod schedule;
mod sctp;
mod streams;
mod tables;
pub(crate) mod thread;

#[cfg(test)]
use std::net::IpAddr;

use base::{Instant, MaybeInstant};
use siphasher::sip::SipHasher13;

use self::admission::Admission;
use self::control::ControlLink;
use self::cookies::Cookies;
use self::listen::Listeners;
use self::lower::Lower;
use self::network::Network;
pub(crate) use self::ports::PortSlot;
use self::ports::Ports;
use self::reclaim::Cursor;
use self::schedule::Schedule;
use self::sctp::Associations;
use self::streams::Streams;
use self::tables::Tables;
use crate::api::{DropReason, Event, InterfaceConfig, Limits, WorkerId, WorkerLink};
use crate::io::{Frame, PortIo};
#[cfg(test)]
use crate::memory::Memory;
use crate::mesh::Mesh;

/// Commands, mesh messages and timers taken in one turn.
const COMMANDS: usize = 64;
const MESSAGES: usize = 64;
const TIMERS: usize = 256;
/// Looks for frames between two idle turns.
const LOOKS: u32 = 8;
/// Idle turns after which gauges are published again: what they tell hardly changes.
const SELDOM: u64 = 64;

/// One worker without its thread.
pub(crate) struct Core<Io: PortIo> {
    index: u16,
    phase: Phase,
    ports: Ports<Io>,
    network: Network,
    mesh: Mesh<Io::Frame>,
    control: ControlLink,
    streams: Streams,
    /// When connections are polled.
    schedule: Schedule,
    /// What carries streams over SCTP.
    associations: Associations,
    tables: Tables,
    admission: Admission,
    /// When loads with a pace post next.
    paced: load::Paced,
    reclaim: Cursor,
    /// The time of this turn.
    now: Instant,
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
        let key = |purpose: u8| derive(&secret, purpose, index);
        let ports = Ports::new(ports);
        let mac = |port| ports.get(port).map_or([0; 6], |slot| slot.facts.mac);
        let interfaces = network::interfaces(&interfaces, &limits, sctp_udp_port, key(b'n'), mac);
        let keys = network::Keys { resets: key(b'l'), identifications: key(b'i') };
        // Whichever worker gets the acknowledgement knows the cookie.
        let cookies = Cookies::new(derive(&secret, b'c', 0), limits.syn_cookies);
        let listeners = Listeners::new(&limits, key(b'p'));
        let isn = derive(&secret, b'i', 0);
        let mut core = Core {
            index,
            phase: Phase::Running,
            network: Network::new(interfaces, &limits, keys, now),
            mesh,
            control: ControlLink::new(link),
            streams: Streams::new(index, limits.streams, key(b'f')),
            schedule: Schedule::new(ports.places(), now),
            associations: Associations::new(
                (index, limits.streams, ports.places()),
                key(b's'),
                derive(&secret, b'k', 0),
                sctp_udp_port,
                now,
            ),
            ports,
            tables: Tables::new(&limits),
            admission: Admission::new(listeners, cookies, isn, key(b'r')),
            paced: load::Paced::default(),
            reclaim: Cursor::default(),
            now,
        };
        core.announce();
        core
    }

    /// One turn. Returns whether there was anything to do.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        self.now = now;
        self.control.counters().turns.add(1);
        let mut busy = false;
        self.control.begin_turn();
        self.resume_streams();
        if self.control.is_short() {
            self.control.counters().event_stalls.add(1);
        } else {
            busy |= self.take_commands(now);
        }
        busy |= self.take_messages(now);
        busy |= self.take_frames(now);
        busy |= self.fire_timers(now);
        busy |= self.post_due(now);
        let mut changed = self.ask_neighbours(now);
        let expired = self.network.expire_reassembly(now);
        changed |= expired > 0;
        self.control.counters().reassembly_timeouts.add(expired);
        busy |= self.transmit(now);
        busy |= self.transmit_associations(now);
        busy |= self.send_outbox();
        self.wind_down();
        self.reclaim(now);
        busy |= !self.ports.flush();
        self.mesh.wake();
        self.control.notify();
        if !busy {
            self.control.counters().idle_turns.add(1);
        }
        if busy || changed || self.control.counters().idle_turns.get().is_multiple_of(SELDOM) {
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
            self.schedule.next_timer(),
            self.paced.next(),
            self.associations.next_timer(),
            self.network.poll_timeout(),
        ];
        let ports = self.ports().filter_map(PortIo::poll_timeout);
        timers.into_iter().flatten().chain(ports).min()
    }

    /// True when something waits that no descriptor will tell of.
    pub(crate) fn has_input(&self) -> bool {
        self.control.has_commands() || self.mesh.is_waiting() || self.control.awaits_room()
    }

    /// True after [`Command::Stop`]: every stream has been reset and everything said.
    pub(crate) fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped && self.control.is_flushed()
    }

    /// Counts the time of a turn in which there was something to do.
    pub(crate) fn spent(&self, time: core::time::Duration) {
        self.control.counters().busy_nanoseconds.add(time.as_nanos() as u64);
    }

    /// Counts a sleep.
    pub(crate) fn slept(&self) {
        self.control.counters().sleeps.add(1);
    }

    /// The ports' queues.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &Io> {
        self.ports.queues()
    }

    /// The ports' queues, for tests to put frames in and take them out.
    #[cfg(test)]
    pub(crate) fn port_mut(&mut self, port: usize) -> &mut Io {
        &mut self.ports.get_mut(port).expect("a port of this worker").io
    }

    /// The streams' endpoints, for tests to look at.
    #[cfg(test)]
    pub(crate) fn streams(&self) -> impl Iterator<Item = &tcp_lite::endpoint::Endpoint<Memory>> {
        self.streams.iter().filter_map(|conn| match &conn.lower {
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
        self.streams.iter().find(|conn| conn.peer() == peer).and_then(|conn| match &conn.lower {
            Lower::Tcp(endpoint) => Some(endpoint),
            Lower::Sctp(_) => None,
        })
    }

    fn take_commands(&mut self, now: Instant) -> bool {
        let mut taken = 0;
        while taken < COMMANDS {
            let Some(command) = self.control.next_command() else { break };
            taken += 1;
            self.command(command, now);
        }
        taken > 0
    }

    fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = 0;
        while fired < TIMERS {
            let Some(slot) = self.schedule.take_due(now) else { break };
            fired += 1;
            self.timer(slot, now);
        }
        fired += self.fire_association_timers(TIMERS, now);
        self.control.counters().timers.add(fired as u64);
        fired > 0
    }

    fn timer(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        conn.scheduled.timer_fired();
        if let Lower::Tcp(endpoint) = &mut conn.lower
            && endpoint.poll_timeout().is_some_and(|at| at <= now)
        {
            endpoint.handle_timeout(now, &mut self.tables.context());
            self.ask_others_for_path(slot, now);
        }
        let Some(conn) = self.streams.get_mut(slot) else { return };
        if matches!(&conn.lower, Lower::Tcp(endpoint) if endpoint.connection().path_suspect()) {
            // RFC 9293 §3.8.3 R1: perhaps the neighbour has moved.
            self.network.doubt(&conn.path, now);
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
        let asked = self.network.poll(now, |interface, address| {
            failed.push((interface, address));
        });
        self.control.counters().neighbour_solicitations.add(asked);
        let changed = asked > 0 || !failed.is_empty();
        for (interface, address) in failed {
            self.control.counters().neighbour_failures.add(1);
            self.neighbour_failed(interface, address, now);
        }
        changed
    }

    fn announce(&mut self) {
        for at in 0..self.network.interfaces().len() {
            let port = self.network.interface(at).port;
            // One worker announces for all of the port: the one with the first queue.
            let first =
                |slot: &PortSlot<Io>| slot.facts.workers.first() == Some(&WorkerId(self.index));
            if self.ports.get(port).is_some_and(first) {
                self.network.announce(at);
            }
        }
    }

    fn send_outbox(&mut self) -> bool {
        if self.network.outbox().is_empty() {
            return false;
        }
        let counters = self.control.counters();
        for (port, octets) in self.network.outbox().iter() {
            let Some(slot) = self.ports.get_mut(port) else { continue };
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
        self.network.clear_outbox();
        true
    }

    /// What streams still have to say is taken whatever their credit is: nothing more comes.
    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping(_) | Phase::Stopped)
    }

    /// Moves on when a drain or a stop has run its course.
    fn wind_down(&mut self) {
        match self.phase {
            Phase::Draining if self.control.knows_all_ends() && self.associations.is_empty() => {
                self.phase = Phase::Drained;
                self.control.send(Event::Drained);
            }
            Phase::Stopping(left)
                if left == 0 || self.schedule.is_empty() && self.associations.are_silent() =>
            {
                let slots = self.streams.slots();
                for slot in slots {
                    self.forget(slot);
                }
                self.forget_associations();
                self.phase = Phase::Stopped;
                self.control.send(Event::Stopped);
            }
            Phase::Stopping(left) => self.phase = Phase::Stopping(left - 1),
            _ => {}
        }
    }

    fn publish(&self) {
        let counters = self.control.counters();
        counters.streams.set(self.streams.len() as u64);
        counters.associations.set(self.associations.len() as u64);
        counters.half_open.set(u64::from(self.admission.listeners().half_open()));
        self.tables.publish(counters);
        self.network.publish(counters);
    }

    /// Queues a stream to be served in this turn, if it is not queued yet.
    fn touch(&mut self, slot: u32) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        if let Lower::Sctp(session) = conn.lower {
            self.associations.touch(session.association);
        } else {
            self.schedule.make_ready(slot, &mut conn.scheduled);
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

#[cfg(test)]
mod tests;
