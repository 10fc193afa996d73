//! The control thread's state machine. Inputs are API requests, events of workers and time; outputs are commands,
//! answers and log events. The state machine owns no worker and accesses no packet, so tests use scripted events.
//! [`super::thread`] connects the state machine to the workers.
//!
//! Order of the calls in one iteration of the loop: [`Core::handle_event`], [`Core::handle_loaded`],
//! [`Core::handle_reports`], [`Core::handle_call`], [`Core::handle_programs`] and [`Core::apply_kernel_changes`], each
//! as often as it has input; [`Core::handle_timeout`]; [`Core::measure_workers`]; [`Core::finish_turn`] once; then
//! [`Core::commands`] and [`Core::poll_load`] until they are empty.

mod accept;
mod additions;
mod address_selection;
mod attempts;
mod conflicts;
mod connect;
mod diagnosis;
mod drain;
mod effects;
mod failures;
mod ipsec;
mod listen;
mod log;
mod programs;
mod queries;
pub(super) mod reload;
mod scrapes;
mod stage;
#[cfg(test)]
mod views;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use api::{AccessTally, ApiError, AuditLog, Call, EventKind, EventLog, Reply, Request, Via};
use config::{Config, RegionSection};
use dataplane::memory::Memory;
use dataplane::{Command, Counters, Event, ProgramId, Ticket, WorkerId};
use ddp::StreamId;
use ddp::rdmap::Outcome;

use self::reload::ReloadPlan;
use self::scrapes::Scrapes;
use super::budget::Budget;
use super::captures::{Captures, RequestedCapture};
use super::env::{Context, Env, Origin, Phase};
use super::flights::Flights;
use super::ipsec::{Ipsec, Kernel};
use super::jobs::Jobs;
use super::links::Links;
use super::listeners::Listeners;
use super::loader::{Load, LoadResult, LoadedMemory};
use super::notes::Cause;
use super::pending::{Continuation, Loading, StreamList, StreamsQuery};
use super::pending_confirmations::Confirmation;
use super::ports::PortView;
use super::programs::Programs;
use super::programs::server::Sessions;
use super::regions::Regions;
use super::running_config::ValueLines;
use super::streams::{Streams, UntaggedHeader, on_ddp_error};
use super::tickets::Complete;
use super::utilization::Utilization;
use crate::files::{Report, Writer};
use crate::service::Input;
use crate::shm;

/// Inputs of [`Core::new`].
pub struct Setup {
    /// The checked configuration.
    pub config: Config,
    /// One set of counters per worker.
    pub counters: Vec<Arc<Counters>>,
    /// Workers that can open streams, per interface, in the order of the configuration.
    pub interface_workers: Vec<Vec<WorkerId>>,
    /// The open ports, whose state the API shows.
    pub ports: Vec<PortView>,
    /// The event log, which the API serves.
    pub log: EventLog,
    /// Writer of the files of regions and queues.
    pub writer: Writer<Memory>,
    /// Attach server for local programs.
    pub shm: shm::Server,
    /// Notes to the operator, one sentence each.
    pub notes: Vec<String>,
    /// Version of libdpdk, if known.
    pub dpdk_version: Option<String>,
    /// True if packet pools are in hugepages.
    pub hugepages: bool,
    /// The memory ceiling. The configured regions are already charged.
    pub budget: Budget,
    /// Counters of the management servers: connections, calls refused for the caller's role, lost audit lines.
    pub access_tally: Arc<AccessTally>,
    /// The audit log, for records about local programs.
    pub audit: AuditLog,
    /// IPsec security associations (SAs), from the configuration or from the kernel.
    pub ipsec: Ipsec,
    /// Sessions of local programs; `None` if they cannot attach.
    pub programs: Option<Sessions>,
}

/// Reloads of the configuration file.
#[derive(Default)]
struct Reloads {
    /// The reload in progress, if any.
    plan: Option<Box<ReloadPlan>>,
    /// Number of reloads started, including refused reloads.
    begun: u64,
    /// Line of each value in the configuration file.
    lines: ValueLines,
}

/// The control thread's state. Passes inputs to its parts, such as streams, regions and jobs, and results from one part
/// to another.
pub struct Core {
    env: Env,
    utilization: Utilization,
    links: Links,
    regions: Regions,
    listeners: Listeners,
    streams: Streams,
    jobs: Jobs,
    captures: Captures,
    scrapes: Scrapes,
    flights: Flights,
    reloads: Reloads,
    programs: Programs,
}

impl Core {
    /// Creates the state machine. The memory of `regions` is already mapped. The commands that register the regions and
    /// start the listeners are queued in [`commands`](Self::commands).
    ///
    /// # Errors
    /// A region or a listener cannot be added. The error is one sentence.
    pub fn new(
        setup: Setup,
        regions: Vec<(RegionSection, LoadedMemory)>,
        now: Instant,
    ) -> Result<Core, String> {
        let workers = setup.counters.len();
        let facts = Context {
            config: setup.config,
            counters: setup.counters,
            interface_workers: setup.interface_workers,
            ports: setup.ports,
            dpdk_version: setup.dpdk_version,
            hugepages: setup.hugepages,
            access_tally: setup.access_tally,
            audit: setup.audit,
            started: now,
        };
        let lines = ValueLines::from_config(&facts.config);
        let (notes, ipsec) = (setup.notes, setup.ipsec);
        let mut core = Core {
            utilization: Utilization::new(workers, now),
            links: Links::new(facts.config.ports.len(), now),
            regions: Regions::new(&facts.config.listeners),
            env: Env::new(facts, setup.log, setup.writer, setup.shm, setup.budget),
            listeners: Listeners::new(),
            streams: Streams::new(workers),
            jobs: Jobs::default(),
            captures: Captures::default(),
            scrapes: Scrapes::default(),
            flights: Flights::default(),
            reloads: Reloads { lines, ..Reloads::default() },
            programs: Programs::new(setup.programs),
        };
        core.env.ipsec = ipsec;
        notes.into_iter().for_each(|note| core.env.notes.add(Cause::Start, note));
        for (section, loaded) in regions {
            core.register_region(section, loaded, Origin::Configuration, None)
                .map_err(|error| error.message)?;
        }
        for section in core.env.context.config.listeners.clone() {
            core.add_listener(section, Origin::Configuration, None)
                .map_err(|(error, _)| error.message)?;
        }
        core.env.log.push(EventKind::Started { appliance: core.env.context.config.name.clone() });
        Ok(core)
    }

    /// Returns the queued commands for one worker, oldest first. Commands that do not fit into the worker's ring must
    /// stay in the queue.
    pub fn commands(&mut self, worker: usize) -> &mut VecDeque<Command> {
        self.env.commands(worker)
    }

    /// Returns true if the workers have answered all commands and IPsec is ready. At the start, this means that the
    /// workers have all configured regions and listeners.
    pub fn is_set_up(&self) -> bool {
        self.env.is_answered() && self.env.ipsec.is_ready()
    }

    /// Returns the next memory request for the loader. `None` if there is none.
    pub fn poll_load(&mut self) -> Option<Load> {
        self.env.poll_load()
    }

    /// Returns the netlink socket of the kernel's IPsec, if used, and the attach server. The control thread polls the
    /// descriptors of both.
    pub fn fds(&self) -> (Option<BorrowedFd<'_>>, &shm::Server) {
        (self.env.ipsec.fd(), &self.env.shm)
    }

    /// Returns the attach server of local programs.
    pub fn shm(&mut self) -> &mut shm::Server {
        &mut self.env.shm
    }

    /// Wakes local programs, and performs the next step of a drain if it is due. Called once per iteration of the
    /// control thread's loop, before commands are taken.
    pub fn finish_turn(&mut self, now: Instant) {
        self.env.shm.signal();
        self.drain_step(now);
    }

    /// Returns true if every worker has stopped or panicked.
    pub fn is_stopped(&self) -> bool {
        matches!(self.env.phase, Phase::Stopping { stopped_workers } if stopped_workers >= self.env.workers())
    }

    /// Handles a request of the API.
    pub fn handle_call(&mut self, call: Call, now: Instant) {
        self.env.now = now;
        let Call { request, responder: answer } = call;
        match request {
            Request::Status => answer.send(Ok(Reply::Status(self.status(now)))),
            Request::Ports => self.list_ports(answer),
            Request::Capture { port, spec, sink } => {
                let stream = spec.stream.and_then(|id| self.streams.filter_of(StreamId(id.0)));
                let requested = RequestedCapture { port, spec, stream };
                self.captures.begin(&mut self.env, requested, sink, answer, now);
            }
            Request::EndCapture { port } => self.captures.end(&mut self.env, &port, answer),
            Request::Workers => answer.send(Ok(Reply::Workers(self.worker_infos()))),
            Request::Regions(page) => {
                answer.send(Ok(Reply::Regions(self.region_infos(&page))));
            }
            Request::AddRegion(section) => match self.listeners.check_file_of_any(&section) {
                Ok(()) => self.regions.request(&mut self.env, section, answer),
                Err(error) => answer.send(Err(error)),
            },
            Request::RemoveRegion { name, force } => {
                self.regions.remove(&mut self.env, &name, force, answer)
            }
            Request::SetAccess { name, access } => {
                let cut_for = self.listeners.dividing_listener(&name);
                self.regions.set_access(&mut self.env, &name, access, cut_for, answer);
            }
            Request::ReadRegion { name, offset, length } => {
                answer.send(self.regions.read(&name, offset, length).map(Reply::Bytes));
            }
            Request::Listeners(page) => {
                let infos = self.listeners.page(&self.env.context, &page);
                answer.send(Ok(Reply::Listeners(infos)));
            }
            Request::AddListener(section) => {
                if let Err((error, Some(answer))) =
                    self.add_listener(section, Origin::Api, Some(answer))
                {
                    answer.send(Err(error));
                }
            }
            Request::RemoveListener { name } => {
                self.listeners.remove(&mut self.env, &name, Some(answer))
            }
            Request::Streams { after, limit } => {
                let ids = self.streams.page(after.map(|id| StreamId(id.0)), limit);
                self.list_streams(StreamsQuery::List(ids, answer));
            }
            Request::Stream(id) => {
                self.list_streams(StreamsQuery::One(StreamId(id.0), answer));
            }
            Request::CloseStream { id, abort } => {
                let stream = StreamId(id.0);
                self.streams.close_for_client(&mut self.env, stream, abort, answer);
                // If data remains to be written to a file, the regions stay bound until the stream ends. If they
                // were freed now, the peer of the next stream could overwrite the data.
                if abort || !self.streams.has_file_writes(stream) {
                    self.regions.free(&mut self.env, self.streams.regions_of(stream), stream);
                }
            }
            Request::IpsecSas => self.list_sas(answer),
            Request::IpsecPolicies => {
                answer.send(Ok(Reply::IpsecPolicies(self.ipsec_policies())));
            }
            Request::Associations => self.list_streams(StreamsQuery::Associations(answer)),
            Request::Association(id) => {
                self.list_streams(StreamsQuery::Association(StreamId(id.0), answer));
            }
            Request::Stats => self.count_streams(answer),
            Request::Connect(spec) => self.connect(spec, answer, now),
            Request::Put(spec) => {
                let peer = self.peer_of(&spec.via, false);
                let job = self.start_job(now, |jobs, env, out| jobs.put(env, spec, peer, now, out));
                answer.send(job.map(Reply::Job));
            }
            Request::Input { id, input } => {
                let taken = self.jobs.take_input(&mut self.env, id, input);
                answer.send(taken.map(|()| Reply::EMPTY));
            }
            Request::Get(spec) => {
                let peer = self.peer_of(&spec.via, true);
                let job = self.start_job(now, |jobs, env, out| jobs.get(env, spec, peer, out));
                answer.send(job.map(Reply::Job));
            }
            Request::Bench(spec) => {
                let job = connect::check_spec(&spec.connect).and_then(|()| {
                    self.start_job(now, |jobs, env, out| jobs.bench(env, spec, now, out))
                });
                answer.send(job.map(Reply::Job));
            }
            Request::Ping(spec) => {
                self.with_jobs(now, |jobs, _, out| jobs.ping(spec, answer, now, out));
            }
            Request::Atomic(spec) => {
                let usable = self.peer_of(&spec.via, true).map(drop);
                self.with_jobs(now, |jobs, _, out| jobs.atomic(spec, usable, answer, now, out));
            }
            Request::Send(spec) => {
                let usable = match &spec.via {
                    Via::Connect(_) => Ok(()),
                    Via::Stream(id) => self.streams.check_open(StreamId(id.0)),
                };
                self.with_jobs(now, |jobs, _, out| jobs.send(spec, usable, answer, now, out));
            }
            Request::Programs => {
                answer.send(Ok(Reply::Programs(self.programs.infos(&self.env))));
            }
            Request::Program(id) => {
                answer.send(self.programs.info(&self.env, id).map(Reply::Program));
            }
            Request::KillProgram(id) => {
                self.end_program(ProgramId(id));
                answer.send(self.programs.info(&self.env, id).map(Reply::Program));
            }
            Request::Jobs => answer.send(Ok(Reply::Jobs(self.jobs.infos(&self.env, now)))),
            Request::Job(id) => {
                self.jobs.renew_lease(id, now);
                answer.send(self.jobs.info(&self.env, id, now).map(Reply::Job));
            }
            Request::CancelJob(id) => answer.send(self.cancel_job(id, now).map(Reply::Job)),
            Request::Drain => answer.send(self.set_drained(true, now)),
            Request::Undrain => answer.send(self.set_drained(false, now)),
            Request::Explain(subject) => self.request_diagnosis(subject, answer, now),
            Request::Reload => self.reload_from_file(Some(answer)),
            Request::TryReload => answer.send(Ok(Reply::Reload(self.dry_run()))),
            Request::Config => answer.send(Ok(Reply::Config(self.config_info()))),
            Request::ConfigDiff => answer.send(self.config_diff().map(Reply::ConfigDiff)),
            Request::Log => answer.send(Ok(Reply::Log(self.log_info()))),
            Request::SetLog(filter) => answer.send(self.set_log(filter).map(Reply::Log)),
            Request::ConfigText(file) => answer.send(self.config_text(&file)),
        }
    }

    /// Handles an event of a worker.
    pub fn handle_event(&mut self, event: Event, now: Instant) {
        self.env.now = now;
        if self.env.context.config.management.recorder {
            self.flights.observe(&event, now);
        }
        match event {
            Event::Incoming { .. } => self.on_incoming(event, now),
            Event::HandshakeFailed(failed) => self.on_handshake_failed(&failed),
            Event::AddressConflict { interface, address, mac } => {
                self.on_address_conflict(interface, address, mac, now);
            }
            Event::UnfinishedChecksums { port, source } => {
                self.on_unfinished_checksums(port, source, now);
            }
            Event::Established { .. } => self.on_established(event, now),
            Event::ConnectFailed { ticket, reason } => self.on_connect_failed(ticket, reason, now),
            Event::Retrying { ticket, reason } => self.on_retrying(ticket, &reason),
            Event::TaggedDelivered { stream, stag, to, len, rsvd_ulp } => {
                self.regions.on_tagged(&mut self.env, stream, stag, to, len, rsvd_ulp);
                if self.streams.has_slot(stream) {
                    self.pass_to_service(stream, Input::Written { len }, now);
                }
            }
            Event::Untagged { stream, qn, msn, data, rsvd_ulp } => {
                self.on_untagged(stream, UntaggedHeader { qn, msn, rsvd_ulp }, data, now);
            }
            Event::Sent { ticket, .. } => {
                let posted = self.streams.on_posted(&mut self.env, ticket, Ok(Outcome::Sent));
                self.on_posted(posted, now);
            }
            Event::PostFailed { stream, ticket, reason } => {
                let streams = &mut self.streams;
                let posted = streams.on_post_failed(&mut self.env, stream, ticket, reason, now);
                self.on_posted(posted, now);
            }
            Event::Error { stream, error } => on_ddp_error(&mut self.env, stream, &error),
            Event::Closed { stream, reason, stats } => {
                self.on_closed(stream, &reason, &stats, now);
            }
            Event::Done { ticket, result } => {
                let result = result.map_err(|error| error.to_string());
                if let Some(complete) = self.env.answer(ticket, result) {
                    self.resume(complete, now);
                }
            }
            Event::Streams { ticket, streams, associations, handshakes, last } => {
                self.count_handshakes(&handshakes);
                self.on_streams(ticket, StreamList::new(streams, associations), last, now);
            }
            Event::AssociationClosed { association, stats } => {
                self.streams.on_association_closed(association, &stats);
            }
            // Sent without a request, before a stream ends: `flights.observe` has stored these records.
            Event::Recordings { ticket: None, .. } => {}
            Event::Recordings { ticket: Some(ticket), .. } => {
                if let Some(complete) = self.env.answer(ticket, Ok(())) {
                    self.resume(complete, now);
                }
            }
            Event::Ipsec(notice) => self.on_ipsec(*notice),
            Event::Sas { ticket, sas } => {
                if let Some(Continuation::Sas { found, .. } | Continuation::SaUsage(found)) =
                    self.env.continuation_mut(ticket)
                {
                    found.extend(sas);
                }
                if let Some(complete) = self.env.answer(ticket, Ok(())) {
                    self.resume(complete, now);
                }
            }
            Event::Neighbours { ticket, neighbours } => {
                if let Some(Continuation::Neighbours { found, .. }) =
                    self.env.continuation_mut(ticket)
                {
                    found.extend(neighbours);
                }
                if let Some(complete) = self.env.answer(ticket, Ok(())) {
                    self.resume(complete, now);
                }
            }
            Event::PeerClosed { stream, .. } => self.streams.on_peer_closed(&mut self.env, stream),
            Event::Stalled { stream, stall } => {
                let interface = self.streams.interface_of(stream);
                let down = interface.and_then(|at| self.links.refusal(&self.env.context, at));
                self.streams.on_stalled(&mut self.env, stream, &stall, down.map(|e| e.message));
            }
            Event::Resumed { stream } => self.streams.on_resumed(&mut self.env, stream),
            Event::ReadHeld { stream } => self.env.confirm(stream, Confirmation::Read),
            Event::Confirming { stream } => self.env.on_confirming(stream),
            Event::Idle { stream } => self.streams.close(&mut self.env, stream, false),
            Event::Received { .. }
            | Event::Immediate { .. }
            | Event::Invalidated { .. }
            | Event::Completed { .. }
            | Event::RdmapError { .. }
            | Event::Terminated { .. } => self.on_rdmap(event, now),
            Event::Program(event) => self.programs.on_event(&mut self.env, event),
            Event::Drained => self.on_drained(),
            Event::Stopped => self.on_stopped(),
            Event::LoadDone { stream, ticket, report } => self.with_jobs(now, |jobs, _, out| {
                jobs.on_load_done(ticket.0, stream, &report, now, out);
            }),
            Event::Failed { worker, message } => self.on_worker_failed(worker, &message),
        }
    }

    /// Handles the result of a request from [`poll_load`](Self::poll_load).
    pub fn handle_loaded(&mut self, finished: LoadResult, now: Instant) {
        self.env.now = now;
        let LoadResult { id, result } = finished;
        match self.env.take_loading(id) {
            Some(Loading::Region) => self.on_region_loaded(id, result),
            Some(Loading::Put { job }) => {
                self.with_jobs(now, |jobs, _, out| jobs.on_staged(job, result, out))
            }
            Some(Loading::Fill { job }) => {
                self.with_jobs(now, |jobs, env, out| jobs.on_filled(env, job, result, now, out));
            }
            Some(Loading::Get { job }) => {
                let made = result.map(|loaded| (loaded.memory, 0)).map_err(ApiError::unavailable);
                self.with_jobs(now, |jobs, _, out| jobs.on_sink_made(job, made, out));
            }
            Some(Loading::Save { job }) => {
                self.with_jobs(now, |jobs, _, out| jobs.on_saved(job, result.map(drop), out));
            }
            Some(Loading::Ping(stream)) => {
                self.with_jobs(now, |jobs, _, out| jobs.on_ping_memory(stream, result, out));
            }
            Some(Loading::Bench { job }) => {
                self.with_jobs(now, |jobs, _, out| jobs.on_bench_memory(job, result, out));
            }
            Some(Loading::Clear { stream, exclusive }) => {
                self.on_cleared(stream, &exclusive, result.map(drop));
            }
            Some(Loading::ClearSlot(taken)) => self.on_slot_cleared(&taken, result.map(drop)),
            Some(Loading::ClearFor(plan)) => {
                self.on_cleared_for_connect(plan, result.map(drop), now)
            }
            Some(Loading::Reload) => self.on_reload_loaded(id, result),
            Some(Loading::Freed { result, answer }) => {
                answer.send(result.map(|()| Reply::EMPTY).map_err(ApiError::internal));
            }
            None => self.env.tally.unexpected_events += 1,
        }
    }

    /// Handles all reports of the file writer.
    pub fn handle_reports(&mut self) {
        while let Some(report) = self.env.writer.poll_report() {
            match report {
                Report::Appended { tag } => self.streams.on_appended(&mut self.env, tag),
                Report::Synced { .. } => {}
                Report::Flushed { tag, result: Ok(()) } => self.env.on_flushed(tag),
                Report::Flushed { tag, result: Err(reason) } => {
                    let stream = self.env.confirmations.stream_of(tag);
                    self.streams.fail_stores(&mut self.env, stream, &reason);
                }
                Report::Reopened { path } => {
                    self.env.tally.files_reopened += 1;
                    let path = path.display();
                    self.env.warn(format!("{path} was moved, removed or replaced: opened again"));
                }
                Report::Failed { file, reason, durable } => {
                    self.env.tally.file_errors += 1;
                    let note = format!("{reason}; it is tried again every second");
                    self.env.notes.set(Cause::File(file), note, None);
                    if durable {
                        let streams = self.env.confirmations.streams_of(file);
                        self.streams.fail_stores(&mut self.env, streams, &reason);
                    }
                    self.env.warn(reason);
                }
                Report::Recovered { file } => self.env.notes.clear(&Cause::File(file)),
                Report::Closed { file, result, .. } => {
                    self.env.notes.clear(&Cause::File(file));
                    if let Err(reason) = &result {
                        let streams = self.env.confirmations.streams_of(file);
                        self.streams.fail_stores(&mut self.env, streams, reason);
                    }
                    self.regions.on_file_closed(&mut self.env, file, result)
                }
            }
        }
    }

    /// Returns the time at which [`measure_workers`](Self::measure_workers) is due.
    pub fn next_measurement(&self) -> Instant {
        self.utilization.poll_timeout()
    }

    /// Measures the share of time in which each worker is busy.
    pub fn measure_workers(&mut self, now: Instant) {
        self.utilization
            .handle_timeout(self.env.context.counters.iter().map(|counters| &**counters), now);
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due. `None` if no timer is set.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let drain = match self.env.phase {
            Phase::Draining { deadline, .. } => Some(deadline),
            _ => None,
        };
        [
            drain,
            self.jobs.poll_timeout(),
            self.links.poll_timeout(&self.env.context),
            self.listeners.poll_timeout(),
            self.streams.poll_timeout(),
            self.env.confirmations.poll_timeout(),
            self.captures.poll_timeout(),
            self.env.ipsec.kernel().and_then(Kernel::poll_timeout),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Handles all timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.with_jobs(now, |jobs, _, out| jobs.expire_limits(now, out));
        self.with_jobs(now, |jobs, _, out| jobs.expire_sends(now, out));
        self.with_jobs(now, |jobs, _, out| jobs.expire_transfers(now, out));
        let actions = self.listeners.handle_timeout(now);
        self.queue_actions(actions);
        self.with_jobs(now, |jobs, _, out| jobs.expire_pings(now, out));
        self.with_jobs(now, |jobs, env, out| jobs.bench_timeout(env, now, out));
        self.begin_settled(now);
        for posted in self.streams.expire_refused(&mut self.env, now) {
            self.on_posted(Some(posted), now);
        }
        let late = self.env.confirmations.expired(now, self.env.writer.progress());
        self.streams.fail_stores(&mut self.env, late, "the file was not written in time");
        self.captures.handle_timeout(&mut self.env, now);
        self.poll_links(now);
        self.drain_timeout(now);
    }

    /// Runs the continuation of a ticket that all its workers have answered.
    fn resume(&mut self, complete: Complete<Continuation>, now: Instant) {
        let Complete { continuation: then, result } = complete;
        match then {
            Continuation::RegionAdded { name, answer } => {
                self.on_region_added(&name, result, answer)
            }
            Continuation::RegionRemoved { name, answer } => {
                self.regions.on_removed(&mut self.env, &name, answer)
            }
            Continuation::AccessSet { name, answer } => {
                let done = self.regions.on_access_set(&mut self.env, &name, result);
                answer.send(done.and_then(|()| self.region_info(&name).map(Reply::Region)));
            }
            Continuation::ListenerAdded { name, answer } => {
                self.on_listener_added(&name, result, answer)
            }
            Continuation::PeersSet { name } => self.on_peers_set(name, result),
            Continuation::ListenerRemoved { id, name, answer } => {
                self.listeners.on_removed(&mut self.env, id, &name, answer);
            }
            Continuation::Bound { stream } => self.accept(stream),
            Continuation::Freed { stream, regions } => self.regions.on_freed(&regions, stream),
            Continuation::SlotFreed { taken } => self.regions.on_slot_freed(&mut self.env, taken),
            Continuation::SinkReady(of) => self.with_jobs(now, |jobs, env, out| {
                jobs.on_sink_ready(env, of, result, now, out);
            }),
            Continuation::SinkRemoved { stag } => self.regions.on_sink_removed(&mut self.env, stag),
            Continuation::Ignore => {}
            Continuation::ConnectReady(plan) => self.send_connect(*plan),
            Continuation::Streams { query: wanted, found } => {
                self.on_streams_listed(wanted, found, now)
            }
            Continuation::CaptureBegun { port, answer } => {
                self.captures.on_begun(&mut self.env, &port, result, answer);
            }
            Continuation::CaptureEnded { answer } => {
                if let Some(answer) = answer {
                    answer.send(Ok(Reply::EMPTY));
                }
            }
            Continuation::Diagnosis { subject, answer } => {
                answer.send(self.diagnosis(subject, now).map(Reply::Explanation));
            }
            Continuation::Neighbours { found, answer } => self.on_neighbours(&found, answer),
            Continuation::Program(id, step) => self.resume_program(id, step, result),
            Continuation::Sas { found, answer } => self.on_sas(&found, answer),
            Continuation::SaUsage(found) => self.on_sa_usage(&found),
            // Events other than `Done` answer these tickets, so `Done` is unexpected here.
            Continuation::Connected(_)
            | Continuation::Posted { .. }
            | Continuation::ProgramConnect(_) => self.env.tally.unexpected_events += 1,
        }
    }

    /// Adds a part of a worker's list to its query. `last`: true for the last part of this worker.
    fn on_streams(&mut self, ticket: Ticket, part: StreamList, last: bool, now: Instant) {
        match self.env.continuation_mut(ticket) {
            Some(Continuation::Streams { query: StreamsQuery::Stats, .. }) => {
                self.streams.count(&part)
            }
            Some(Continuation::Streams { found, .. }) => found.add(part),
            _ => {}
        }
        if last && let Some(complete) = self.env.answer(ticket, Ok(())) {
            self.resume(complete, now);
        }
    }
}
