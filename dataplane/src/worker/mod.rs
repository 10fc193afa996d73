//! The worker: one core's loop over its ports, streams and rings. One iteration of the loop is a *turn*.
//!
//! [`Core`] is the worker without its thread. Frames come from a [`PortIo`] and the time from the caller, so that tests
//! run a `Core` on byte vectors in virtual time. [`thread`] adds the CPU core, the clock and the sleep.
//!
//! ```text
//!  one turn   commands, lists -> mesh -> ports: parse+hash | look up | input -> connections that may send
//!             -> timers, paced loads, local programs, neighbours, reassembly -> carriers that may send, round robin
//!             -> frames of the host's kernel -> IPsec -> transmit rings -> wake-ups of other threads and programs
//! ```
//!
//! A burst is processed in stages, so that the table look-ups of its frames overlap. Afterwards, each stream with data
//! or an acknowledgement to send is polled once, so one acknowledgement covers the burst. A stream that uses up its
//! quota is requeued. Every loop of a turn is bounded. The remaining work waits for the next turn.
//!
//! Floods: within a burst, frames that match a stream or an association are processed first. While bursts are full,
//! only few unmatched frames are examined. If few frames of a full burst matched, another burst is received in the same
//! turn.
//!
//! Modules: [`receive`] finds the flow of a frame, and [`flows`] holds streams and carriers. [`tcp`] and [`sctp`]
//! process segments and packets, and [`transmit`] serves the carriers that may send. [`control`] and [`link`] connect
//! to the control thread. [`ulp`] runs services and generated load. [`programs`] serves local programs. [`protect`] is
//! IPsec, and [`network`] contains the layers below. [`receive::host`] exchanges frames with the host's kernel.
//!
//! Back-pressure: while the event ring is nearly full, the worker reads no commands. Streams that have used up their
//! event credit are paused ([`control::event_credit`]). Frames and mesh messages are always read. While a port's
//! transmit ring is full, the carriers of this port stay queued.

mod arrival;
mod control;
pub(crate) mod driven_worker;
mod flows;
mod keys;
mod link;
mod network;
mod ports;
mod programs;
mod protect;
mod receive;
mod sctp;
mod tcp;
pub(crate) mod thread;
mod transmit;
mod ulp;

#[cfg(test)]
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::StreamId;
use tcp_lite::tcp::IsnGenerator;

use self::control::listing::ListRequests;
use self::flows::admission::{Admission, Cookies};
use self::flows::associations::Associations;
use self::flows::conn::Stream;
use self::flows::listeners::Listeners;
use self::flows::lower_layer::LowerLayer;
use self::flows::reclaim::Cursor;
use self::flows::running_load::PaceTimers;
use self::flows::schedule::{CarrierKind, Schedules};
use self::flows::streams::Streams;
use self::flows::tables::Tables;
use self::keys::KeyPurpose;
use self::link::control::ControlLink;
use self::network::Network;
pub(crate) use self::ports::PortSlot;
use self::ports::Ports;
use self::programs::Programs;
use self::protect::SealState;
use self::receive::host::HostPorts;
use self::receive::partial_checksums::PartialChecksumMonitor;
use self::receive::unmatched_budget::UnmatchedBudget;
use crate::api::{Event, InterfaceConfig, IpsecConfig, Limits, WorkerId, WorkerLink};
use crate::host::HostPort;
use crate::io::{Frame, PortIo};
#[cfg(test)]
use crate::memory::Memory;
use crate::mesh::Mesh;

/// Maximum number of commands handled per turn.
const MAX_COMMANDS: usize = 64;
/// Maximum number of mesh messages handled per turn.
const MAX_MESSAGES: usize = 64;
/// Maximum number of timers of each [`CarrierKind`] handled per turn.
const MAX_TIMERS: usize = 256;
/// Maximum number of polls for input between an idle turn and the next turn.
const IDLE_POLLS: u32 = 8;
/// Number of idle turns between two publications of the gauges, which hardly change while the worker is idle.
const IDLE_PUBLISH_INTERVAL: u64 = 64;

pub(crate) struct Core<Io: PortIo> {
    streams: Streams,
    /// SCTP associations. Each session of an association carries a stream.
    associations: Associations,
    mesh: Mesh<Io::Frame>,
    reclaim: Cursor,
    list_requests: ListRequests,
    /// Limit on the examination of unmatched frames.
    unmatched_budget: UnmatchedBudget,
    env: Env<Io>,
}

/// The state of a worker that operations on one stream or association use. The tables of streams and associations are
/// separate, so that an entry and the environment can be borrowed together.
struct Env<Io: PortIo> {
    index: u16,
    phase: Phase,
    ports: Ports<Io>,
    network: Network,
    control: ControlLink,
    schedules: Schedules,
    tables: Tables,
    admission: Admission,
    host: HostPorts,
    /// State of IPsec for sent frames, with the frames that wait for an SA.
    seal_state: SealState<Io::Frame>,
    /// Detects hosts that leave checksums to a device that does not compute them.
    partial_checksums: PartialChecksumMonitor,
    /// Times of the next posts of loads with a pace.
    pace_timers: PaceTimers,
    programs: Programs,
    /// Time of the current turn.
    now: Instant,
}

/// Arguments of [`Core::new`].
pub(crate) struct CoreParts<Io: PortIo> {
    pub(crate) id: WorkerId,
    pub(crate) ports: Vec<Option<PortSlot<Io>>>,
    pub(crate) interfaces: Vec<InterfaceConfig>,
    /// The worker's ends of the rings to the host's kernel, by interface; `None` for an interface that is not shared
    /// with the kernel.
    pub(crate) hosts: Vec<Option<HostPort>>,
    pub(crate) mesh: Mesh<Io::Frame>,
    pub(crate) limits: Limits,
    /// UDP port for SCTP encapsulated in UDP (RFC 6951).
    pub(crate) sctp_udp_port: Option<u16>,
    pub(crate) link: WorkerLink,
    /// Secret from which all [`keys`] are derived. All workers have the same secret, because the segment that returns a
    /// SYN cookie may arrive at any worker.
    pub(crate) secret: [u8; 32],
    /// IPsec policies and SAs; `None` without IPsec.
    pub(crate) ipsec: Option<Arc<IpsecConfig>>,
}

/// Phase of a worker between its start and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// New streams are accepted and opened.
    Running,
    /// New streams are refused. After the end of the last stream and association, [`Event::Drained`] is sent.
    Draining,
    Drained,
    /// Resets are being sent, for at most this number of further turns.
    Stopping(u8),
    Stopped,
}

/// Maximum number of turns after a stop command in which resets are sent.
const MAX_RESET_TURNS: u8 = 32;

impl<Io: PortIo> Core<Io> {
    /// Creates a worker without streams. Queues the announcements of its addresses.
    pub(crate) fn new(parts: CoreParts<Io>, now: Instant) -> Self {
        let CoreParts {
            id: WorkerId(index),
            ports,
            interfaces,
            hosts,
            mesh,
            limits,
            sctp_udp_port,
            link,
            secret,
            ipsec,
        } = parts;
        let key = |purpose| keys::derive_key(&secret, index, purpose);
        let mut ports = Ports::new(ports);
        if ipsec.is_some() {
            ports.hold();
        }
        let mac = |port| ports.get(port).map_or([0; 6], |slot| slot.facts.mac);
        let mut interfaces = network::interfaces(
            &interfaces,
            &limits,
            sctp_udp_port,
            key(KeyPurpose::Neighbours),
            mac,
        );
        interfaces.iter_mut().for_each(|interface| interface.has_ipsec_policies = ipsec.is_some());
        let network_keys = network::NetworkKeys {
            resets: key(KeyPurpose::ResetLimit),
            inits: key(KeyPurpose::InitLimit),
            fragments: key(KeyPurpose::Fragments),
            identifications: key(KeyPurpose::Identifications),
        };
        // The ACK that returns a SYN cookie may arrive at any worker, so these keys are the same for all workers.
        let isn = IsnGenerator::new(key(KeyPurpose::SequenceNumbers));
        let cookies = Cookies::new(key(KeyPurpose::SynCookies), isn.clone(), limits.syn_cookies);
        let listeners = Listeners::new(&limits, key(KeyPurpose::Peers));
        let associations = Associations::new(
            index,
            limits.streams,
            key(KeyPurpose::Associations),
            key(KeyPurpose::SctpSecrets),
            sctp_udp_port,
        );
        let mut seals = SealState::new();
        let guard = ipsec.map(|c| Box::new(protect::new_guard(index, &c, &mut seals, now)));
        let env = Env {
            index,
            phase: Phase::Running,
            network: Network::new(interfaces, &limits, network_keys, guard, now),
            seal_state: seals,
            control: ControlLink::new(link),
            schedules: Schedules::new(ports.count(), now),
            ports,
            tables: Tables::new(&limits),
            admission: Admission::new(listeners, cookies, isn, key(KeyPurpose::Random)),
            host: HostPorts::new(hosts, now),
            partial_checksums: Default::default(),
            pace_timers: PaceTimers::default(),
            programs: Programs::default(),
            now,
        };
        let mut core = Core {
            streams: Streams::new(index, limits.streams, key(KeyPurpose::Flows)),
            associations,
            mesh,
            reclaim: Cursor::default(),
            list_requests: ListRequests::default(),
            unmatched_budget: UnmatchedBudget::new(now),
            env,
        };
        core.announce_all(now);
        core
    }

    /// Runs one turn. Returns true if there was work.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        self.env.now = now;
        self.env.control.counters().run.turns.add(1);
        let mut busy = false;
        self.env.control.begin_turn();
        self.resume_streams();
        if self.env.control.is_congested() {
            self.env.control.counters().run.event_stalls.add(1);
        } else {
            busy |= self.handle_commands(now);
            if !self.list_requests.is_empty() {
                busy |= self.continue_list(now);
            }
        }
        busy |= self.input_messages(now);
        let received = self.receive_frames(now);
        if received {
            // TCP's responses to received frames are sent before other work is done.
            self.transmit_connections(now);
        }
        let due = self.fire_timers(now) | self.post_due_loads(now) | self.serve_programs(now);
        let mut changed = self.poll_neighbours(now);
        let expired = self.env.network.expire_reassembly(now);
        changed |= expired > 0;
        self.env.control.counters().ip.reassembly_timeouts.add(expired);
        busy |= received | due;
        if !received || due || changed {
            busy |= self.transmit_connections(now);
        }
        busy |= self.transmit(CarrierKind::Association, now);
        busy |= self.transmit_host_frames();
        busy |= self.send_outbox();
        if self.env.network.is_guarded() {
            self.protect(now);
            busy |= self.check_protection(now);
        }
        self.advance_phase();
        self.reclaim(now);
        busy |= !self.env.ports.flush();
        self.mesh.wake();
        self.env.host.end_turn(self.env.control.counters());
        self.env.programs.notify();
        self.env.control.notify();
        if !busy {
            self.env.control.counters().run.idle_turns.add(1);
        }
        let idle_turns = || self.env.control.counters().run.idle_turns.get();
        if busy || changed || idle_turns().is_multiple_of(IDLE_PUBLISH_INTERVAL) {
            self.publish();
        }
        busy
    }

    /// Polls after an idle turn, at most [`IDLE_POLLS`] times, for input and for due posts of paced loads, without the
    /// other steps of a turn. Returns the time at which the next turn starts.
    pub(crate) fn poll_idle(&mut self, mut at: Instant, now: &impl Fn() -> Instant) -> Instant {
        for _ in 0..IDLE_POLLS {
            if self.has_input(at) || self.env.pace_timers.is_due(at) {
                break;
            }
            // Pauses, so that producers can write to the rings without contention for the cache lines.
            std::hint::spin_loop();
            at = now();
        }
        at
    }

    /// Returns the time of the next turn if no input arrives; `None` if no timer is set.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let timers = [
            self.env.schedules.next_timer(),
            self.env.pace_timers.next(),
            self.env.network.poll_timeout(),
            self.env.seal_state.poll_timeout(),
        ];
        let ports = self.ports().filter_map(PortIo::poll_timeout);
        timers.into_iter().flatten().chain(ports).min()
    }

    /// Checks for work after all wake-ups were armed. Returns true if the next turn must begin at once instead of a
    /// sleep.
    pub(crate) fn has_pending_work(&mut self, now: Instant) -> bool {
        self.env.control.has_waiters() || self.has_input(now)
    }

    /// Returns true if every port can wake the worker from a sleep.
    pub(crate) fn can_be_woken(&self) -> bool {
        self.ports().all(PortIo::can_wake)
    }

    /// Returns the shorter of two smoothed round-trip times: of the connection and of the association that were served
    /// last. Returns `None` if neither has a measurement.
    pub(crate) fn round_trip(&mut self) -> Option<Duration> {
        let schedules = &self.env.schedules;
        let connection = self.streams.get_mut(schedules.get(CarrierKind::Connection).last());
        let connection = connection.and_then(|conn| match &conn.lower {
            LowerLayer::Tcp(carrier) => carrier.endpoint().connection().srtt(),
            LowerLayer::Sctp(_) => None,
        });
        let association = self.associations.get(schedules.get(CarrierKind::Association).last());
        let association = association.and_then(|a| a.endpoint().association().sender().srtt());
        connection.into_iter().chain(association).min()
    }

    /// Returns true once [`Command::Stop`](crate::api::Command::Stop) is complete: every stream was reset or the turns
    /// for resets have run out, and every event is in the ring.
    pub(crate) fn is_stopped(&self) -> bool {
        self.env.phase == Phase::Stopped && self.env.control.is_flushed()
    }

    /// Adds the duration of a turn with work to the counter of busy time.
    pub(crate) fn count_busy(&self, time: core::time::Duration) {
        self.env.control.counters().run.busy_nanoseconds.add(time.as_nanos() as u64);
    }

    pub(crate) fn count_sleep(&self) {
        self.env.control.counters().run.sleeps.add(1);
    }

    /// Returns the worker's queues on all ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &Io> {
        self.env.ports.queues()
    }

    /// Returns the worker's queues on all ports mutably, to arm and disarm their wake-ups.
    pub(crate) fn ports_mut(&mut self) -> impl Iterator<Item = &mut Io> {
        self.env.ports.queues_mut()
    }

    fn programs(&self) -> &Programs {
        &self.env.programs
    }

    /// Returns the local programs mutably, to arm and disarm their wake-ups.
    fn programs_mut(&mut self) -> &mut Programs {
        &mut self.env.programs
    }

    /// Returns the worker's queues on a port, into which tests insert frames and from which they remove them.
    #[cfg(test)]
    pub(crate) fn port_mut(&mut self, port: usize) -> &mut Io {
        self.env.ports.get_mut(port).expect("a port of this worker").io.queues_mut()
    }

    #[cfg(test)]
    pub(crate) fn streams(&self) -> impl Iterator<Item = &tcp_lite::endpoint::Endpoint<Memory>> {
        self.streams.iter().filter_map(|conn| match &conn.lower {
            LowerLayer::Tcp(carrier) => Some(carrier.endpoint()),
            LowerLayer::Sctp(_) => None,
        })
    }

    /// Returns the TCP endpoint of the first stream with this peer; `None` if there is no stream or it uses SCTP.
    #[cfg(test)]
    pub(crate) fn stream_of_peer(
        &self,
        peer: IpAddr,
    ) -> Option<&tcp_lite::endpoint::Endpoint<Memory>> {
        self.streams.iter().find(|conn| conn.lower.flow().remote.ip() == peer).and_then(|conn| {
            match &conn.lower {
                LowerLayer::Tcp(carrier) => Some(carrier.endpoint()),
                LowerLayer::Sctp(_) => None,
            }
        })
    }

    fn handle_commands(&mut self, now: Instant) -> bool {
        let mut taken = 0;
        while taken < MAX_COMMANDS {
            let Some(command) = self.env.control.next_command() else { break };
            taken += 1;
            self.handle_command(command, now);
        }
        taken > 0
    }

    fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = 0;
        while fired < MAX_TIMERS {
            let schedule = self.env.schedules.get_mut(CarrierKind::Connection);
            let Some(slot) = schedule.take_due(now) else { break };
            fired += 1;
            self.handle_timer(slot, now);
        }
        let max_fired = fired + MAX_TIMERS;
        while fired < max_fired {
            let schedule = self.env.schedules.get_mut(CarrierKind::Association);
            let Some(at) = schedule.take_due(now) else { break };
            fired += 1;
            self.handle_association_timer(at, now);
        }
        self.env.control.counters().run.timers.add(fired as u64);
        fired > 0
    }

    fn handle_timer(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let (mut retries, mut is_timing_out) = (false, false);
        if let LowerLayer::Tcp(carrier) = &mut conn.lower {
            retries = carrier.clear_fired_timer(now);
            if carrier.endpoint().poll_timeout().is_some_and(|at| at <= now) {
                carrier.endpoint_mut().handle_timeout(now, &mut self.env.tables.context());
                carrier.adopt_path_mtu(&mut self.env.network, now);
                is_timing_out = carrier.endpoint().connection().is_timing_out();
            }
            carrier.check_neighbour(&mut self.env.network, now);
        }
        if retries || conn.connect_deadline().is_some_and(|at| at <= now) {
            self.handle_deadline(slot, now);
        }
        if is_timing_out {
            self.check_stream_progress(slot, now);
        }
        if let Some((mut stream, env)) = self.stream_mut(slot) {
            env.make_ready(&mut stream);
        }
    }

    /// Sends the neighbour solicitations that are due, and handles next hops that did not answer. Returns true if a
    /// solicitation was sent or a next hop has failed.
    fn poll_neighbours(&mut self, now: Instant) -> bool {
        // The size of the neighbour caches bounds this loop. Every failed next hop must be handled: it is reported only
        // once, and the streams that wait for its address would otherwise wait forever.
        let mut failed = Vec::new();
        let solicited = self.env.network.poll(now, |interface, address| {
            failed.push((interface, address));
        });
        self.env.control.counters().ip.neighbour_solicitations.add(solicited);
        let changed = solicited > 0 || !failed.is_empty();
        for (interface, address) in failed {
            self.env.control.counters().ip.neighbour_failures.add(1);
            self.handle_neighbour_failure(interface, address, now);
        }
        changed
    }

    fn send_outbox(&mut self) -> bool {
        if self.env.network.outbox().is_empty() {
            return false;
        }
        let counters = self.env.control.counters();
        for (port, bytes) in self.env.network.outbox().iter() {
            let Some(slot) = self.env.ports.get_mut(port) else { continue };
            let frame =
                if slot.io.free_tx_slots() > 0 { slot.io.allocate(bytes.len()) } else { None };
            match frame {
                Some(mut frame) => {
                    frame.bytes_mut().copy_from_slice(bytes);
                    counters.frames.tx_frames.add(1);
                    counters.frames.tx_bytes.add(bytes.len() as u64);
                    slot.io.send(frame);
                }
                None => counters.frames.answers_lost.add(1),
            }
        }
        self.env.network.clear_outbox();
        true
    }

    /// Enters the next phase when a drain or a stop is complete. During a stop, counts the remaining turns down.
    fn advance_phase(&mut self) {
        match self.env.phase {
            Phase::Draining
                if self.env.control.has_no_open_streams() && self.associations.is_empty() =>
            {
                self.env.phase = Phase::Drained;
                self.env.control.send(Event::Drained);
            }
            Phase::Stopping(left) if left == 0 || self.env.schedules.is_empty() => {
                let slots = self.streams.slots();
                for slot in slots {
                    self.remove_stream(slot);
                }
                self.remove_associations();
                self.env.phase = Phase::Stopped;
                self.env.control.send(Event::Stopped);
            }
            Phase::Stopping(left) => self.env.phase = Phase::Stopping(left - 1),
            _ => {}
        }
    }

    fn publish(&self) {
        let counters = self.env.control.counters();
        counters.streams.streams.set(self.streams.len() as u64);
        counters.sctp.associations.set(self.associations.len() as u64);
        counters.streams.half_open.set(u64::from(self.env.admission.listeners().half_open()));
        self.env.network.publish_guard(counters);
        self.env.tables.publish(counters);
        self.env.network.publish(counters);
    }

    /// Returns the stream in a slot, together with the environment.
    #[inline]
    fn stream_mut(&mut self, slot: u32) -> Option<(Stream<'_>, &mut Env<Io>)> {
        let conn = self.streams.get_mut(slot)?;
        let association = match &conn.lower {
            LowerLayer::Tcp(_) => None,
            LowerLayer::Sctp(session) => self.associations.get_mut(session.association),
        };
        Some((Stream { slot, conn, association }, &mut self.env))
    }

    /// Returns the stream with this id, together with the environment.
    fn find(&mut self, stream: StreamId) -> Option<(Stream<'_>, &mut Env<Io>)> {
        self.stream_mut(self.streams.find_stream(stream)?)
    }
}

impl<Io: PortIo> Env<Io> {
    /// Returns true once the worker stops. The last events of streams are then sent regardless of event credit.
    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping(_) | Phase::Stopped)
    }

    /// Queues the stream's carrier to be served by the next pass, unless it is already queued.
    fn make_ready(&mut self, stream: &mut Stream<'_>) {
        match (&mut stream.conn.lower, &mut stream.association) {
            (LowerLayer::Tcp(carrier), _) => {
                carrier.make_ready(stream.slot, self.schedules.get_mut(CarrierKind::Connection));
            }
            (LowerLayer::Sctp(session), Some(association)) => {
                let schedule = self.schedules.get_mut(CarrierKind::Association);
                association.carrier.make_ready(session.association, schedule);
            }
            (LowerLayer::Sctp(_), None) => {}
        }
    }
}

#[cfg(test)]
mod tests;
