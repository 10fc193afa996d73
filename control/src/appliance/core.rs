//! The control thread's state machine: requests, workers' events and time in; commands, answers and
//! events for the log out. It owns no worker and makes no system call of the data path, so that tests
//! drive it with scripted events; [`super::thread`] joins it to the workers.
//!
//! Verbs, in the order of one turn: any of [`Core::handle_event`], [`Core::handle_call`],
//! [`Core::handle_loaded`], [`Core::handle_reports`], [`Core::handle_timeout`]; then
//! [`Core::finish_turn`] once; then [`Core::commands`] and [`Core::poll_load`] until they are empty.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use dataplane::memory::Memory;
use dataplane::{Command, Counters, Event, ListenerId, SctpConfig, Ticket, WorkerId};
use ddp::rdmap::Outcome;
use ddp::{PdId, Stag, StreamId};

use super::connect::Purpose;
pub(super) use super::connect::{SctpKind, TcpKind};
use super::counters::Totals;
use super::jobs::Job;
use super::links::Links;
use super::listeners::Listener;
use super::loader::{Finished, Load, Loaded, Wanted};
pub(super) use super::pending::{Found, Loading, Post, SinkOf, StreamsFor, Then};
use super::ports::PortView;
use super::refused::Refused;
use super::regions::Region;
use super::reload::ReloadPlan;
use super::stags::StagAllocator;
use super::streams::Stream;
use super::tickets::{Complete, Tickets};
use super::verbs::PendingPing;
use crate::api::{Answer, ApiError, Call, EventKind, EventLog, Reply, Request};
use crate::config::{Config, RegionSection};
use crate::files::{FileId, Report, Writer};
use crate::service::Input;
use crate::shm;

/// The stream that a region is bound to while nobody may use it. No worker has this number.
pub(super) const NOBODY: StreamId = StreamId(u64::MAX);

/// What the state machine needs from outside.
pub struct Setup {
    /// The configuration.
    pub config: Config,
    /// The workers' counters, one per worker.
    pub counters: Vec<Arc<Counters>>,
    /// Per interface, in the configuration's order, the workers that can open streams on it.
    pub served: Vec<Vec<WorkerId>>,
    /// The ports, for queries.
    pub ports: Vec<PortView>,
    /// Where events go.
    pub log: EventLog,
    /// The file writer.
    pub writer: Writer<Memory>,
    /// The attach socket.
    pub shm: shm::Server,
    /// What the operator should know, one sentence each.
    pub notes: Vec<String>,
    /// Version of libdpdk.
    pub dpdk_version: Option<String>,
    /// Pools lie in hugepages.
    pub hugepages: bool,
}

/// The state machine.
pub struct Core {
    pub(super) config: Config,
    pub(super) counters: Vec<Arc<Counters>>,
    pub(super) served: Vec<Vec<WorkerId>>,
    pub(super) ports: Vec<PortView>,
    pub(super) links: Links,
    pub(super) log: EventLog,
    pub(super) writer: Writer<Memory>,
    pub(super) shm: shm::Server,
    pub(super) notes: Vec<String>,
    pub(super) dpdk_version: Option<String>,
    pub(super) hugepages: bool,
    pub(super) started: Instant,
    pub(super) phase: Phase,
    pub(super) tickets: Tickets<Then>,
    pub(super) stags: StagAllocator,
    pub(super) regions: BTreeMap<String, Region>,
    pub(super) by_stag: HashMap<Stag, String>,
    /// Files being written to their end, with the region that goes with them.
    pub(super) closing: HashMap<FileId, (String, Option<Answer>)>,
    /// Protection domains of the configured regions.
    pub(super) planned: HashMap<String, PdId>,
    pub(super) listeners: BTreeMap<String, Listener>,
    /// Listeners that take no new streams and still have some.
    pub(super) retired: Vec<Listener>,
    pub(super) streams: HashMap<StreamId, Stream>,
    pub(super) jobs: BTreeMap<u64, Job>,
    /// How connections are opened, for each way that was asked for.
    pub(super) tcp: Vec<(TcpKind, Arc<tcp_lite::endpoint::EndpointConfig>)>,
    /// How associations are opened, for each way that was asked for.
    pub(super) sctp: Vec<(SctpKind, Arc<SctpConfig>)>,
    /// Untagged messages on their way to a file: tag to stream and queue.
    pub(super) appending: HashMap<u64, (StreamId, u32)>,
    /// What ended streams did, per worker.
    pub(super) totals: Vec<Totals>,
    /// Streams that are left alone until a moment, and what they are for then.
    pub(super) settling: Vec<(Instant, StreamId, Purpose)>,
    /// Messages that ending streams refused, and whose posters wait for the cause.
    pub(super) refused: Vec<Refused>,
    /// Runs of pings, by their stream.
    pub(super) pings: HashMap<StreamId, PendingPing>,
    pub(super) reload: Option<Box<ReloadPlan>>,
    pub(super) tally: Tally,
    out: Vec<VecDeque<Command>>,
    loads: VecDeque<Load>,
    loading: HashMap<u64, Loading>,
    next_number: u64,
    next_pd: u32,
    next_listener: u32,
}

/// Where the appliance is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Running,
    /// No new streams; jobs and then streams end until the deadline.
    Draining {
        deadline: Instant,
        asked: bool,
        drained: usize,
    },
    /// Workers have been told to stop.
    Stopping {
        stopped: usize,
    },
}

/// What the control thread counts.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    pub accepted: u64,
    pub refused: u64,
    pub connected: u64,
    pub connect_failed: u64,
    pub tagged_messages: u64,
    pub tagged_octets: u64,
    pub untagged_messages: u64,
    pub untagged_octets: u64,
    pub discarded: u64,
    pub stream_errors: u64,
    pub unexpected_events: u64,
}

impl Core {
    /// The state machine of an appliance whose regions have been made. Commands to register them and
    /// to listen wait in [`commands`](Self::commands).
    ///
    /// # Errors
    /// One sentence: no random numbers, or a file that cannot be opened.
    pub fn new(
        setup: Setup,
        regions: Vec<(RegionSection, Loaded)>,
        now: Instant,
    ) -> Result<Core, String> {
        let workers = setup.counters.len();
        let mut core = Core {
            links: Links::new(setup.config.ports.len(), now),
            config: setup.config,
            counters: setup.counters,
            served: setup.served,
            ports: setup.ports,
            log: setup.log,
            writer: setup.writer,
            shm: setup.shm,
            notes: setup.notes,
            dpdk_version: setup.dpdk_version,
            hugepages: setup.hugepages,
            started: now,
            phase: Phase::Running,
            tickets: Tickets::default(),
            stags: StagAllocator::default(),
            regions: BTreeMap::new(),
            by_stag: HashMap::new(),
            closing: HashMap::new(),
            planned: HashMap::new(),
            listeners: BTreeMap::new(),
            retired: Vec::new(),
            streams: HashMap::new(),
            jobs: BTreeMap::new(),
            tcp: Vec::new(),
            sctp: Vec::new(),
            appending: HashMap::new(),
            totals: vec![Totals::default(); workers],
            settling: Vec::new(),
            refused: Vec::new(),
            pings: HashMap::new(),
            reload: None,
            tally: Tally::default(),
            out: (0..workers).map(|_| VecDeque::new()).collect(),
            loads: VecDeque::new(),
            loading: HashMap::new(),
            next_number: 1,
            next_pd: 1,
            next_listener: 1,
        };
        core.plan_domains();
        for (section, loaded) in regions {
            core.register_region(section, loaded, true, None).map_err(|error| error.message)?;
        }
        for section in core.config.listeners.clone() {
            core.add_listener(section, true, None).map_err(|(error, _)| error.message)?;
        }
        core.log.push(EventKind::Started { appliance: core.config.name.clone() });
        Ok(core)
    }

    /// Commands for one worker, oldest first. What its ring does not take stays.
    pub fn commands(&mut self, worker: usize) -> &mut VecDeque<Command> {
        &mut self.out[worker]
    }

    /// Every worker has acknowledged all that it was told. At the start: regions and listeners of the configuration.
    pub fn is_set_up(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Memory that is to be made.
    pub fn poll_load(&mut self) -> Option<Load> {
        self.loads.pop_front()
    }

    /// The attach socket, to wait on.
    pub fn shm(&mut self) -> &mut shm::Server {
        &mut self.shm
    }

    /// Wakes local programs, and goes on with the end if its next step can be taken; once per turn,
    /// before commands are taken.
    pub fn finish_turn(&mut self, now: Instant) {
        self.shm.signal();
        self.drain_step(now);
    }

    /// True when every worker has stopped.
    pub fn is_stopped(&self) -> bool {
        matches!(self.phase, Phase::Stopping { stopped } if stopped >= self.out.len())
    }

    /// A request of the API.
    pub fn handle_call(&mut self, call: Call, now: Instant) {
        let Call { request, answer } = call;
        match request {
            Request::Status => answer.send(Ok(Reply::Status(self.status(now)))),
            Request::Ports => self.list_ports(answer),
            Request::Workers => answer.send(Ok(Reply::Workers(self.worker_infos()))),
            Request::Regions => answer.send(Ok(Reply::Regions(self.region_infos()))),
            Request::AddRegion(section) => self.ask_region(section, answer),
            Request::RemoveRegion { name, force } => self.remove_region(&name, force, answer),
            Request::ReadRegion { name, offset, length } => {
                answer.send(self.read_region(&name, offset, length).map(Reply::Octets));
            }
            Request::Listeners => answer.send(Ok(Reply::Listeners(self.listener_infos()))),
            Request::AddListener(section) => {
                if let Err((error, Some(answer))) = self.add_listener(section, false, Some(answer))
                {
                    answer.send(Err(error));
                }
            }
            Request::RemoveListener { name } => self.remove_listener(&name, Some(answer)),
            Request::Streams => self.list_streams(StreamsFor::List(answer)),
            Request::Stream(id) => {
                self.list_streams(StreamsFor::One(StreamId(id.0), answer));
            }
            Request::CloseStream { id, abort } => {
                self.close_stream(StreamId(id.0), abort, answer);
            }
            Request::Associations => self.list_streams(StreamsFor::Associations(answer)),
            Request::Association(id) => {
                self.list_streams(StreamsFor::Association(StreamId(id.0), answer));
            }
            Request::Stats => self.list_streams(StreamsFor::Stats(answer)),
            Request::Connect(spec) => self.connect(spec, answer),
            Request::Put(spec) => answer.send(self.put(spec, now).map(Reply::Job)),
            Request::Get(spec) => answer.send(self.get(spec, now).map(Reply::Job)),
            Request::Ping(spec) => self.ping(spec, answer),
            Request::Atomic(spec) => self.atomic(spec, answer, now),
            Request::Send(spec) => self.send(spec, answer, now),
            Request::Jobs => answer.send(Ok(Reply::Jobs(self.job_infos(now)))),
            Request::Job(id) => answer.send(self.job_info(id, now).map(Reply::Job)),
            Request::CancelJob(id) => answer.send(self.cancel_job(id, now).map(Reply::Job)),
            Request::Reload => self.reload_from_file(Some(answer)),
        }
    }

    /// An event of a worker.
    pub fn handle_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Incoming { .. } => self.on_incoming(event),
            Event::Established { .. } => self.on_established(event, now),
            Event::ConnectFailed { ticket, reason } => self.on_connect_failed(ticket, reason),
            Event::Retrying { ticket, reason } => self.on_retrying(ticket, &reason),
            Event::TaggedDelivered { stream, stag, to, len, rsvd_ulp } => {
                self.on_tagged(stream, stag, to, len, rsvd_ulp);
                if self.streams.get(&stream).is_some_and(|known| known.slot.is_some()) {
                    self.serve(stream, Input::Written { len }, now);
                }
            }
            Event::Untagged { stream, qn, msn, data, .. } => {
                self.on_untagged(stream, qn, msn, data);
            }
            Event::Sent { ticket, .. } => self.on_posted(ticket, Ok(Outcome::Sent), now),
            Event::PostFailed { stream, ticket, reason } => {
                self.on_post_failed(stream, ticket, reason, now);
            }
            Event::Error { stream, error } => self.on_stream_error(stream, &error),
            Event::Closed { stream, reason, stats } => {
                self.on_closed(stream, &reason, &stats, now);
            }
            Event::Done { ticket, result } => {
                let result = result.map_err(|error| error.to_string());
                if let Some(complete) = self.tickets.answer(ticket.0, result) {
                    self.follow(complete, now);
                }
            }
            Event::Streams { ticket, streams, associations, last } => {
                self.on_streams(ticket, Found { streams, associations }, last, now);
            }
            Event::AssociationClosed { association, stats } => {
                if let Some(totals) = self.totals.get_mut(usize::from(association.worker())) {
                    totals.add_association(&stats);
                }
            }
            Event::Neighbours { ticket, neighbours } => {
                if let Some(Then::Neighbours { found, .. }) = self.tickets.get_mut(ticket.0) {
                    found.extend(neighbours);
                }
                if let Some(complete) = self.tickets.answer(ticket.0, Ok(())) {
                    self.follow(complete, now);
                }
            }
            // The stream goes on in the other direction, or its end is reported.
            Event::PeerClosed { .. } => {}
            Event::Received { .. }
            | Event::Immediate { .. }
            | Event::Invalidated { .. }
            | Event::Completed { .. }
            | Event::RdmapError { .. }
            | Event::Terminated { .. } => self.on_rdmap(event, now),
            Event::Drained => self.on_drained(),
            Event::Stopped => self.on_stopped(),
            // Nothing here asks for load.
            Event::LoadDone { .. } => {}
            Event::Failed { worker, message } => self.on_worker_failed(worker, &message),
        }
    }

    /// Memory that was asked for by [`poll_load`](Self::poll_load).
    pub fn handle_loaded(&mut self, finished: Finished, now: Instant) {
        let Finished { id, result } = finished;
        match self.loading.remove(&id) {
            Some(Loading::Region { section, answer }) => {
                let added = match result {
                    Ok(loaded) => self.register_region(section, loaded, false, Some(answer)),
                    Err(sentence) => {
                        answer.send(Err(ApiError::bad_request(sentence)));
                        return;
                    }
                };
                if let Err(error) = added {
                    tracing::warn!("region not added: {}", error.message);
                }
            }
            Some(Loading::Put { job }) => self.on_staged(job, result, now),
            Some(Loading::Get { job }) => self.on_sink_made(job, result),
            Some(Loading::Save { job }) => self.on_saved(job, result.map(drop)),
            Some(Loading::Ping(stream)) => self.on_ping_memory(stream, result),
            Some(Loading::Clear { stream, exclusive }) => {
                self.on_cleared(stream, &exclusive, result.map(drop));
            }
            Some(Loading::ClearSlot(taken)) => self.on_slot_cleared(&taken, result.map(drop)),
            Some(Loading::ClearFor(plan)) => self.on_cleared_for(plan, result.map(drop)),
            Some(Loading::Reload) => self.on_reload_loaded(id, result),
            None => self.tally.unexpected_events += 1,
        }
    }

    /// Takes what the file writer has to say.
    pub fn handle_reports(&mut self) {
        while let Some(report) = self.writer.poll_report() {
            match report {
                Report::Appended { tag } => self.on_appended(tag),
                Report::Synced { .. } => {}
                Report::Failed { reason, .. } => self.warn(reason),
                Report::Closed { file, result, .. } => self.on_file_closed(file, result),
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let drain = match self.phase {
            Phase::Draining { deadline, .. } => Some(deadline),
            _ => None,
        };
        [
            drain,
            self.next_send_deadline(),
            self.next_look_at_links(),
            self.next_service_deadline(),
            self.next_ping_deadline(),
            self.next_settled(),
            self.next_refused_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire_sends(now);
        self.service_timeouts(now);
        self.expire_pings(now);
        self.use_settled(now);
        self.expire_refused(now);
        self.look_at_links(now);
        self.drain_timeout(now);
    }

    /// What was waiting for the workers goes on.
    fn follow(&mut self, complete: Complete<Then>, now: Instant) {
        let Complete { then, result } = complete;
        match then {
            Then::RegionAdded { name, answer } => self.on_region_added(&name, result, answer),
            Then::RegionRemoved { name, answer } => self.on_region_removed(&name, answer),
            Then::ListenerAdded { name, answer } => self.on_listener_added(&name, result, answer),
            Then::ListenerRemoved { id, name, answer } => {
                self.on_listener_removed(id, &name, answer);
            }
            Then::Bound { stream } => self.accept(stream),
            Then::SlotFreed { taken } => self.on_slot_freed(taken),
            Then::SinkReady(SinkOf::Job(job)) => self.on_sink_ready(job, result, now),
            Then::SinkReady(SinkOf::Ping(stream)) => self.on_ping_ready(stream, result, now),
            Then::SinkRemoved { stag } => drop(self.stags.release(stag)),
            Then::Nothing => {}
            Then::ConnectReady(plan) => self.send_connect(*plan),
            Then::Streams { wanted, found } => self.on_streams_listed(wanted, found, now),
            Then::Neighbours { found, answer } => self.on_neighbours(&found, answer),
            // Answered by other events than `Done`.
            Then::Connected(_) | Then::Posted { .. } => self.tally.unexpected_events += 1,
        }
    }

    fn on_streams(&mut self, ticket: Ticket, part: Found, last: bool, now: Instant) {
        if let Some(Then::Streams { found, .. }) = self.tickets.get_mut(ticket.0) {
            found.streams.extend(part.streams);
            found.associations.extend(part.associations);
        }
        if last && let Some(complete) = self.tickets.answer(ticket.0, Ok(())) {
            self.follow(complete, now);
        }
    }

    fn on_worker_failed(&mut self, worker: WorkerId, message: &str) {
        tracing::error!("worker {worker} died: {message}");
        self.log.push(EventKind::Warning { message: format!("worker {worker} died: {message}") });
        self.stop();
        // A dead worker answers nothing: it counts as stopped.
        self.on_stopped();
    }

    // --- what the other parts use ---

    /// Sends one command to every worker under one ticket.
    pub(super) fn broadcast(&mut self, then: Then, command: impl Fn(Ticket) -> Command) {
        let ticket = Ticket(self.tickets.issue(self.out.len(), then));
        self.out.iter_mut().for_each(|queue| queue.push_back(command(ticket)));
    }

    /// Sends several commands to every worker under one ticket; they are carried out in order.
    pub(super) fn broadcast_all(&mut self, then: Then, commands: &[&dyn Fn(Ticket) -> Command]) {
        let ticket = Ticket(self.tickets.issue(self.out.len() * commands.len(), then));
        for queue in &mut self.out {
            queue.extend(commands.iter().map(|command| command(ticket)));
        }
    }

    /// Sends a command to every worker that has no answer.
    pub(super) fn tell_all(&mut self, command: impl Fn() -> Command) {
        self.out.iter_mut().for_each(|queue| queue.push_back(command()));
    }

    /// Sends a command to one worker.
    pub(super) fn tell(&mut self, worker: u16, command: Command) {
        match self.out.get_mut(usize::from(worker)) {
            Some(queue) => queue.push_back(command),
            None => self.tally.unexpected_events += 1,
        }
    }

    pub(super) fn workers(&self) -> usize {
        self.out.len()
    }

    /// Asks for memory.
    pub(super) fn load(&mut self, wanted: Wanted, loading: Loading) -> u64 {
        let id = self.number();
        self.loading.insert(id, loading);
        self.loads.push_back(Load { id, wanted });
        id
    }

    /// True when memory for a region of this name is being made.
    pub(super) fn is_loading(&self, name: &str) -> bool {
        self.being_loaded().any(|section| section.name == name)
    }

    /// Regions that the API asked for and whose memory is being made.
    pub(super) fn being_loaded(&self) -> impl Iterator<Item = &RegionSection> {
        self.loading.values().filter_map(|loading| match loading {
            Loading::Region { section, .. } => Some(section),
            _ => None,
        })
    }

    /// A number that was not given before in this run.
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    pub(super) fn new_pd(&mut self) -> PdId {
        self.next_pd += 1;
        PdId(self.next_pd - 1)
    }

    pub(super) fn new_listener_id(&mut self) -> ListenerId {
        self.next_listener += 1;
        ListenerId(self.next_listener - 1)
    }

    pub(super) fn warn(&mut self, message: String) {
        tracing::warn!("{message}");
        self.log.push(EventKind::Warning { message });
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }
}
