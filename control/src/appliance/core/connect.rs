//! The active side: streams that this appliance opens for API clients and jobs. `programs` opens the streams of local
//! programs.
//!
//! An open has four steps. If step 3 fails, a worker connects to the peer's next address, if there is one and the
//! failure is not final. Any other failure is reported to the client or the job.
//!
//! 1. The request is checked, the peer's addresses are put in order, and a worker is selected.
//! 2. Exclusive regions are reserved, cleared of earlier streams' data if necessary, and bound at all workers.
//! 3. The worker connects.
//! 4. The established stream is registered and passed to the client or the job.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::{ApiError, ConnectSpec, EventKind, RdmapChoice, Responder, UlpChoice};
use config::{MAX_DEPTH, MAX_DSCP, Transport};
use dataplane::memory::ring::Kind;
use dataplane::{
    CloseReason, Command, Connect, ConnectError, Event, InterfaceId, Service, Ticket, WorkerId,
};
use ddp::{PdId, StreamId, UlpKind, VersionPolicy, advert};
use tcp_lite::mpa;

use super::Core;
use super::address_selection::{check_addresses, order_addresses};
use super::failures::{connect_error, is_final, is_other_ulp, wrong_ulp_error};
use crate::appliance::addresses::{Addresses, Candidate};
use crate::appliance::endpoints::opened_ulp;
use crate::appliance::env::{Phase, api_id};
use crate::appliance::loader::LoadTask;
use crate::appliance::pending::{
    CONNECT_TIMEOUT, ConnectPlan, Continuation, Loading, NO_STREAM, Purpose, StreamsQuery, Task,
};
use crate::appliance::streams::{StreamAddresses, needs_settling};

/// Maximum time-out of an open: one day.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Result of the checks of an active open.
struct CheckedConnect {
    first: Candidate,
    /// The addresses after `first`.
    addresses: Addresses,
    worker: WorkerId,
    pd: PdId,
}

impl Core {
    /// Opens a stream for an API client, without a job (`Purpose::Keep`).
    pub(super) fn connect(&mut self, spec: ConnectSpec, answer: Responder, now: Instant) {
        self.open(spec, Purpose::Keep(answer), false, now);
    }

    /// Opens a stream. `purpose` receives the stream or the failure. `start_key`: MPA startup with Start Keys, as in
    /// MPA's first draft, even if `spec` does not request them.
    pub(super) fn open(
        &mut self,
        spec: ConnectSpec,
        purpose: Purpose,
        start_key: bool,
        now: Instant,
    ) {
        match self.check_connect(&spec) {
            Ok(CheckedConnect { first, addresses, worker, pd }) => {
                let regions = spec.regions.clone();
                let stores = self.regions.any_has_file(&regions);
                let Candidate { remote, interface } = first;
                let spec = ConnectSpec { remote, alternatives: Vec::new(), ..spec };
                let start_key = start_key
                    || spec.mpa.start_key
                        && spec.transport == Transport::Tcp
                        && spec.revision() == 0;
                let plan = Box::new(ConnectPlan {
                    spec,
                    purpose,
                    interface,
                    worker,
                    pd,
                    start_key,
                    writes_file: stores,
                    addresses,
                });
                let exclusive = self.regions.reserve(&regions, self.env.now);
                if exclusive.is_empty() {
                    self.send_connect(*plan);
                } else {
                    let dirty =
                        self.regions.dirty_ranges(&exclusive, plan.spec.ulp == UlpChoice::Rdmap);
                    if dirty.is_empty() {
                        self.bind_for_connect(plan, &exclusive);
                    } else {
                        self.env.load(LoadTask::Clear(dirty), Loading::ClearFor(plan));
                    }
                }
            }
            Err(error) => self.refuse_connect(purpose, error, now),
        }
    }

    pub(super) fn on_cleared_for_connect(
        &mut self,
        plan: Box<ConnectPlan>,
        result: Result<(), String>,
        now: Instant,
    ) {
        let is_removed = |name: &&String| !self.regions.is_live(name);
        let removed = plan.spec.regions.iter().find(is_removed);
        let still_live = removed.map_or(Ok(()), |name| Err(format!("region `{name}` was removed")));
        if let Err(reason) = result.and(still_live) {
            self.regions.release(&mut self.env, &plan.spec.regions, NO_STREAM);
            return self.refuse_connect(plan.purpose, ApiError::unavailable(reason), now);
        }
        let exclusive = self.regions.reserve(&plan.spec.regions, self.env.now);
        self.bind_for_connect(plan, &exclusive);
    }

    /// Binds the exclusive regions of an active open so that the peer can access them. The open continues when all
    /// workers have applied the bindings.
    fn bind_for_connect(&mut self, plan: Box<ConnectPlan>, exclusive: &[String]) {
        // The stream has no number yet, so the regions are bound to `NO_STREAM`.
        self.regions.bind_peer_writable(
            &mut self.env,
            exclusive,
            NO_STREAM,
            Continuation::ConnectReady(plan),
        );
    }

    /// Checks an active open and selects its first address and its worker.
    fn check_connect(&mut self, spec: &ConnectSpec) -> Result<CheckedConnect, ApiError> {
        self.env.check_not_draining()?;
        if self.streams.len() as u64 >= u64::from(self.env.context.config.limits.streams) {
            return Err(ApiError::unavailable(
                "there are as many streams as limits.streams allows",
            ));
        }
        check_spec(spec)?;
        let mut addresses = order_addresses(&self.env.context, &self.links, spec)?;
        let first = addresses.pop().ok_or_else(|| ApiError::internal("the peer has no address"))?;
        let pd = self.regions.domain_of(&spec.regions, self.env.now)?;
        Ok(CheckedConnect { first, addresses, worker: self.next_worker(first.interface)?, pd })
    }

    /// Selects the worker of the next stream on an interface, round robin. Each successful or failed open of the
    /// appliance advances to the next worker.
    fn next_worker(&self, interface: InterfaceId) -> Result<WorkerId, ApiError> {
        let served = &self.env.context.interface_workers[usize::from(interface.0)];
        let turn = self.env.tally.connected + self.env.tally.connect_failed;
        let turn = usize::try_from(turn).unwrap_or(0);
        let worker = served.get(turn % served.len().max(1)).copied();
        worker.ok_or_else(|| ApiError::internal("no worker serves the interface"))
    }

    pub(super) fn send_connect(&mut self, mut plan: ConnectPlan) {
        let advertised = self.regions.advertised(&plan.spec.regions);
        let stags = self.regions.exclusive_stags(&plan.spec.regions);
        let private_data = match plan.spec.ulp {
            // draft-culley-iwarp-mpa §13.3.1: a Start Key has no private data.
            _ if plan.start_key => Vec::new(),
            // The advertisement states DDP as the ULP, even if it lists no region.
            UlpChoice::Ddp => advert::encode_for(UlpKind::Ddp, &advertised),
            // The peer may be any verbs program, so private data is sent only to advertise regions.
            UlpChoice::Rdmap if !advertised.is_empty() => {
                advert::encode_for(UlpKind::Rdmap, &advertised)
            }
            UlpChoice::Rdmap => Vec::new(),
        };
        let version = if plan.start_key { VersionPolicy::V0 } else { VersionPolicy::V1 };
        let config = &self.env.context.config;
        let endpoint = self.streams.endpoint(config, &plan.spec, plan.start_key);
        let mut ulp = opened_ulp(&plan.spec, version);
        if plan.writes_file {
            ulp.set_hold_confirmations();
        }
        let mut connect = Connect {
            ip: plan.spec.ip_fields(),
            ticket: Ticket(0),
            interface: plan.interface,
            local: None,
            remote: plan.spec.remote,
            endpoint,
            ulp,
            service: Service::Region,
            pd: plan.pd,
            stags,
            private_data,
            timeout: plan
                .addresses
                .attempt_timeout(self.env.now, plan.spec.timeout().unwrap_or(CONNECT_TIMEOUT)),
        };
        let worker = plan.worker;
        connect.ticket = self.env.issue(Continuation::Connected(Box::new(plan)));
        self.env.send_command(worker.0, Command::Connect(Box::new(connect)));
    }

    /// Logs that MPA revision 2 failed (RFC 6581 §10) and that the worker continues the open with revision 1.
    pub(super) fn on_retrying(&mut self, ticket: Ticket, reason: &CloseReason) {
        let remote = match self.env.continuation_mut(ticket) {
            Some(Continuation::Connected(plan)) => plan.spec.remote,
            Some(Continuation::ProgramConnect(_)) => return,
            _ => {
                self.env.tally.unexpected_events += 1;
                return;
            }
        };
        self.env.warn(format!("{remote}: MPA revision 2 failed, trying revision 1: {reason}"));
    }

    pub(super) fn on_connect_failed(&mut self, ticket: Ticket, reason: ConnectError, now: Instant) {
        let plan = match self.env.cancel(ticket) {
            Some(Continuation::Connected(plan)) => plan,
            Some(Continuation::ProgramConnect(connect)) => {
                return self.on_pair_connect_failed(&connect, &reason);
            }
            _ => {
                self.env.tally.unexpected_events += 1;
                return;
            }
        };
        self.env.tally.connect_failed += 1;
        let mut plan = *plan;
        // If the link is down, the link is the cause of a time-out and is reported instead of the peer.
        let is_silent = matches!(reason, ConnectError::Timeout(_) | ConnectError::Unreachable);
        let down = self.links.refusal(&self.env.context, plan.interface).filter(|_| is_silent);
        let error = down.unwrap_or_else(|| connect_error(&plan.spec, &reason));
        self.log_refused_connect(&plan.spec, &error);
        plan.addresses.fail(&error);
        if self.select_next_address(&mut plan, &reason) {
            return self.send_connect(plan);
        }
        let ConnectPlan { spec, purpose, addresses, .. } = plan;
        self.regions.release(&mut self.env, &spec.regions, NO_STREAM);
        let error = if is_final(&reason) { error } else { addresses.conclude(error) };
        self.refuse_connect(purpose, error, now);
    }

    /// Changes the plan to the peer's next address; the regions stay reserved. Returns false if no address is left, or
    /// if the failure is final, the client has disconnected or the appliance is draining.
    fn select_next_address(&self, plan: &mut ConnectPlan, reason: &ConnectError) -> bool {
        let is_abandoned = matches!(&plan.purpose, Purpose::Keep(answer) if answer.is_abandoned());
        if is_final(reason) || is_abandoned || self.env.check_not_draining().is_err() {
            return false;
        }
        let Some(Candidate { remote, interface }) = plan.addresses.pop() else { return false };
        let Ok(worker) = self.next_worker(interface) else { return false };
        (plan.spec.remote, plan.interface, plan.worker) = (remote, interface, worker);
        true
    }

    /// Aborts a stream that the peer accepted with a ULP other than the requested one, before any data is sent.
    fn abort_wrong_ulp(
        &mut self,
        id: StreamId,
        plan: ConnectPlan,
        addresses: StreamAddresses,
        now: Instant,
    ) {
        self.env.tally.connect_failed += 1;
        self.streams.insert_rejected(id, None, addresses);
        self.env.send_command(id.worker(), Command::Close { stream: id, abort: true });
        let ConnectPlan { spec, purpose, .. } = plan;
        self.regions.release(&mut self.env, &spec.regions, NO_STREAM);
        let error = wrong_ulp_error(&spec);
        self.log_refused_connect(&spec, &error);
        self.refuse_connect(purpose, error, now);
    }

    fn log_refused_connect(&mut self, spec: &ConnectSpec, error: &ApiError) {
        let remote = spec.remote.to_string();
        let reason = error.message.strip_prefix(&format!("{remote}: ")).unwrap_or(&error.message);
        self.env.log.push(EventKind::StreamRefused {
            listener: None,
            reason: reason.to_owned(),
            remote,
            hint: error.hint.clone(),
        });
    }

    /// Reports the failure of an open to the client or the job that requested the stream.
    pub(super) fn refuse_connect(&mut self, purpose: Purpose, error: ApiError, now: Instant) {
        match purpose {
            Purpose::Keep(answer) => answer.send(Err(error)),
            // Nothing is reported here: the program is notified of the stream's end.
            Purpose::Program => {}
            Purpose::Task(task) => {
                self.with_jobs(now, |jobs, _, out| jobs.on_refused(task, error, now, out));
            }
        }
    }

    /// Registers an established, actively opened stream and its regions. Returns the purpose of the stream.
    fn adopt(
        &mut self,
        id: StreamId,
        plan: ConnectPlan,
        private_data: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Purpose {
        self.env.tally.connected += 1;
        let ConnectPlan { spec, interface, purpose, pd, writes_file: stores, .. } = plan;
        let peer_regions = match advert::decode(private_data) {
            Ok(regions) => regions,
            Err(advert::AdvertError::NotAnAdvertisement) => Vec::new(),
            Err(error) => {
                self.env.warn(format!("{remote}: {error}"));
                Vec::new()
            }
        };
        self.regions.adopt(&mut self.env, &spec.regions, id);
        if let Purpose::Task(task) = purpose {
            self.jobs.on_reached(task, remote);
        }
        let ends = StreamAddresses { interface, local, remote };
        self.streams.insert_opened(id, ends, pd, spec, stores, peer_regions);
        if let Purpose::Task(Task::Job(job) | Task::Bench(job, _)) = purpose {
            self.streams.claim(id, job);
        }
        purpose
    }

    pub(super) fn on_established(&mut self, event: Event, now: Instant) {
        let Event::Established { stream: id, ticket, private_data, params, local, remote } = event
        else {
            return;
        };
        let plan = match ticket {
            Some(ticket) => match self.env.cancel(ticket) {
                Some(Continuation::Connected(plan)) => Some(*plan),
                Some(Continuation::ProgramConnect(connect)) => {
                    let event = Event::Established {
                        stream: id,
                        ticket: Some(ticket),
                        private_data,
                        params,
                        local,
                        remote,
                    };
                    return self.on_pair_connected(&connect, event, now);
                }
                _ => {
                    self.env.tally.unexpected_events += 1;
                    self.env.send_command(id.worker(), Command::Close { stream: id, abort: true });
                    return;
                }
            },
            None if self.streams.is_of_program(id) => {
                return self.on_program_stream(id, params, (local, remote), private_data, now);
            }
            None => None,
        };
        let plan = match plan {
            Some(plan) if is_other_ulp(&plan.spec, &private_data) => {
                let ends = StreamAddresses { interface: plan.interface, local, remote };
                return self.abort_wrong_ulp(id, plan, ends, now);
            }
            plan => plan,
        };
        let settles = plan.as_ref().is_some_and(|plan| needs_settling(&plan.spec));
        let purpose = plan.map(|plan| self.adopt(id, plan, &private_data, local, remote));
        let Some((regions, listener)) = self.streams.on_established(id, params, now) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        let listener = listener.and_then(|l| self.listeners.name_of(l)).map(str::to_owned);
        if matches!(self.env.phase, Phase::Draining { drain_sent: true, .. }) {
            self.streams.close_file_writers(&mut self.env);
        }
        let (stream, remote) = (api_id(id), remote.to_string());
        self.env.log.push(EventKind::StreamEstablished { stream, listener, remote });
        self.regions.announce(&mut self.env, &regions, id, Kind::Opened);
        match purpose {
            Some(purpose) if settles => self.streams.settle(id, purpose, now),
            Some(purpose) => self.begin(id, purpose, now),
            None => {}
        }
    }

    pub(super) fn begin_settled(&mut self, now: Instant) {
        for (id, purpose) in self.streams.take_settled(now) {
            if self.streams.contains(id) {
                self.begin(id, purpose, now);
            } else {
                let error = ApiError::peer_refused("the stream has ended");
                self.refuse_connect(purpose, error, now);
            }
        }
    }

    /// Starts the use of an established stream: answers the client, or starts the task.
    fn begin(&mut self, id: StreamId, purpose: Purpose, now: Instant) {
        match purpose {
            // The stream is closed if its client has disconnected and cannot receive the stream's number.
            Purpose::Keep(answer) if answer.is_abandoned() => {
                self.streams.close(&mut self.env, id, false);
            }
            Purpose::Keep(answer) => self.list_streams(StreamsQuery::One(id, answer)),
            Purpose::Task(task) => self.begin_task(id, task, now),
            Purpose::Program => self.programs.on_settled(id),
        }
    }
}

/// Refuses a request without a usable address or with values outside their ranges.
pub(super) fn check_spec(spec: &ConnectSpec) -> Result<(), ApiError> {
    check_addresses(spec)?;
    let refused = |sentence: String| Err(ApiError::bad_request(sentence));
    let over_sctp = spec.transport == Transport::Sctp;
    if spec.dscp.is_some_and(|dscp| dscp > MAX_DSCP) {
        return refused(format!("dscp is 0 to {MAX_DSCP}"));
    }
    if spec.ttl == Some(0) {
        return refused("ttl is 1 to 255".into());
    }
    if spec.udp_port.is_some_and(|port| !over_sctp || port == 0) {
        return refused("udp_port is for transport \"sctp\", 1 to 65535".into());
    }
    if spec.timeout().is_some_and(|within| within.is_zero() || within > MAX_TIMEOUT) {
        return refused("within_us is 1 to 86400000000".into());
    }
    let revision = spec.revision();
    if revision > 2 || !over_sctp && revision == 2 && spec.ulp == UlpChoice::Ddp {
        return refused(format!("MPA revision {revision} is not spoken with this ulp"));
    }
    let RdmapChoice { ird, ord, peer, .. } = &spec.rdmap;
    if *ird > MAX_DEPTH || *ord > MAX_DEPTH {
        return refused(format!("ird and ord are at most {MAX_DEPTH}"));
    }
    match mpa::Peer::from_name(peer) {
        Some(_) => Ok(()),
        None => refused(format!("there is no kind of peer `{peer}`")),
    }
}
