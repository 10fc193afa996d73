//! Local programs: routes the calls of their sessions and the events of their streams. Opens their connections and
//! listeners, which need the interfaces, the streams and the configured listeners.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use api::refusal::{Refusal as PeerRefusal, RefusalKind as PeerRefusalKind};
use api::{ApiError, ConnectSpec, RdmapChoice, UlpChoice};
use dataplane::{
    CloseReason, Command, Connect, ConnectError, Event, InterfaceId, ListenerConfig, ProgramId,
    QueuePairId, Service, StreamParams, Ticket,
};
use ddp::lifecycle::CloseReason as Ended;
use ddp::{StreamId, UlpKind, advert};
use tcp_lite::mpa::Revision;
use verbs_session::message::{
    Answer, Call, ConnectCall, Depths, Refusal, RefusalKind, StartUp, Transport,
};

use super::Core;
use super::address_selection::{order_addresses, source_for};
use super::connect::check_spec;
use crate::appliance::endpoints::{listener_config, program_ulp};
use crate::appliance::env::api_id;
use crate::appliance::pending::{PairConnect, ProgramStep, Purpose};
use crate::appliance::programs::{
    ConnectFailure, IncomingRequest, Input, InputKind, MAX_BACKLOG, OpenedPair, Prepared,
    StreamAction, refusal,
};
use crate::appliance::streams::{StreamAddresses, needs_settling};

/// Maximum number of session inputs and freed memory regions handled in one iteration of the control thread's loop.
const BATCH: usize = 256;
/// Dynamic ports (RFC 6335 §6), from which a port is chosen if a program listens on port 0.
const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 49152..=65535;

impl Core {
    /// Handles inputs of programs' sessions and reports of freed memory. Returns true if more may be pending.
    pub fn handle_programs(&mut self, now: Instant) -> bool {
        self.env.now = now;
        for _ in 0..BATCH {
            if let Some(key) = self.programs.poll_freed() {
                self.programs.on_freed(&mut self.env, key);
            } else if let Some(input) = self.programs.poll_input() {
                self.on_program_input(input);
            } else {
                return false;
            }
        }
        true
    }

    fn on_program_input(&mut self, Input { program: id, kind }: Input) {
        let (request, call) = match kind {
            InputKind::HungUp => return self.end_program(id),
            InputKind::Refused(refused) => {
                return self.programs.on_refused(&mut self.env, id, &refused);
            }
            InputKind::Call { request, call } => (request, call),
        };
        let result = match call {
            Prepared::Attach(attachment) => {
                return self.programs.attach(&mut self.env, id, request, *attachment);
            }
            Prepared::Plain(call) => match *call {
                Call::Route { remote, local } => {
                    self.route_for_program(remote, local).map(|local| {
                        self.programs.answer(id, request, Answer::Route { local });
                    })
                }
                Call::Connect(call) => self.connect_pair(id, request, &call),
                Call::Listen { local, transport, backlog } => {
                    self.listen_for_program(id, request, local, transport, backlog)
                }
                call => {
                    let call = Prepared::Plain(Box::new(call));
                    let actions = self.programs.call(&mut self.env, id, request, call);
                    return self.apply_stream_actions(actions);
                }
            },
            call => {
                let actions = self.programs.call(&mut self.env, id, request, call);
                return self.apply_stream_actions(actions);
            }
        };
        if let Err(refusal) = result {
            self.programs.refuse(&mut self.env, id, request, refusal);
        }
    }

    /// Ends a program, because its session has ended or the operator requested it.
    pub(super) fn end_program(&mut self, id: ProgramId) {
        let actions = self.programs.end(&mut self.env, id);
        self.apply_stream_actions(actions);
    }

    /// Continues a program's call after all workers have answered.
    pub(super) fn resume_program(
        &mut self,
        id: ProgramId,
        step: ProgramStep,
        result: Result<(), String>,
    ) {
        let actions = self.programs.resume(&mut self.env, id, step, result);
        self.apply_stream_actions(actions);
    }

    pub(super) fn apply_stream_actions(&mut self, actions: Vec<StreamAction>) {
        for action in actions {
            match action {
                StreamAction::Close(stream) => self.streams.close(&mut self.env, stream, false),
                StreamAction::Abort(stream, reason) => {
                    self.streams.abort(&mut self.env, stream, reason);
                }
                StreamAction::Reject { stream, private_data } => {
                    self.env.tally.refused += 1;
                    self.streams.mark_rejected(stream);
                    let command = Command::Reject { stream, private_data };
                    self.env.send_command(stream.worker(), command);
                }
            }
        }
    }

    // --- connect ---

    fn connect_pair(
        &mut self,
        id: ProgramId,
        request: u32,
        call: &ConnectCall,
    ) -> Result<(), Refusal> {
        let ConnectCall { pair, local, remote, depths, private_data, .. } = call;
        let checked = self.programs.check_unconnected(id, *pair, *depths, private_data)?;
        self.check_new_stream()?;
        let remote_ip = remote.ip().to_canonical();
        let local = specified(*local);
        let spec = self.pair_spec(call, SocketAddr::new(remote_ip, remote.port()), local)?;
        check_spec(&spec).map_err(|error| refusal(RefusalKind::Invalid, error.message))?;
        let mut addresses = order_addresses(&self.env.context, &self.links, &spec)
            .map_err(|error| refusal(RefusalKind::Unreachable, error.message))?;
        let first = addresses.pop();
        let first = first.ok_or_else(|| refusal(RefusalKind::Unreachable, "no address"))?;
        let served = &self.env.context.interface_workers[usize::from(first.interface.0)];
        let turn = self.programs.next_connect();
        let worker = served.get(turn % served.len().max(1)).copied();
        let worker = worker
            .ok_or_else(|| refusal(RefusalKind::Unreachable, "no worker serves the interface"))?;
        let endpoint = self.streams.endpoint(&self.env.context.config, &spec, false);
        let connect = Box::new(Connect {
            ticket: Ticket(0),
            interface: first.interface,
            local,
            remote: first.remote,
            endpoint,
            ip: spec.ip_fields(),
            ulp: program_ulp(depths.ird, depths.ord, checked.max_sends),
            service: Service::Program(QueuePairId { program: id, number: *pair }),
            pd: checked.pd,
            stags: Vec::new(),
            private_data: call.private_data.clone(),
            timeout: std::time::Duration::from_millis(call.timeout.into()),
        });
        let target = (call.pair, call.depths);
        let connect = (connect, needs_settling(&spec));
        self.programs.connect(&mut self.env, id, request, target, worker, connect)
    }

    /// Returns the local address of connections to a peer: `local`, or the address that a worker would choose for a
    /// connect.
    fn route_for_program(&self, remote: IpAddr, local: Option<IpAddr>) -> Result<IpAddr, Refusal> {
        let (remote, local) = (remote.to_canonical(), specified(local));
        // The route does not depend on the port.
        let mut spec = ConnectSpec::to_remote(SocketAddr::new(remote, 1));
        spec.interface = self.interface_name(local)?;
        let unreachable = |error: ApiError| refusal(RefusalKind::Unreachable, error.message);
        let mut addresses =
            order_addresses(&self.env.context, &self.links, &spec).map_err(unreachable)?;
        let interface = addresses.pop().map(|reached| usize::from(reached.interface.0));
        let section = interface.and_then(|at| self.env.context.config.interfaces.get(at));
        let source = section.and_then(|section| local.or_else(|| source_for(section, remote)));
        source.ok_or_else(|| {
            let sentence = format!("the interface to {remote} has no address of its family");
            refusal(RefusalKind::Unreachable, sentence)
        })
    }

    /// Returns the name of the interface that has the address `local`; `None` if `local` is `None`.
    fn interface_name(&self, local: Option<IpAddr>) -> Result<Option<String>, Refusal> {
        let Some(ip) = local else { return Ok(None) };
        let interface = self.interface_of_address(ip).ok_or_else(|| {
            refusal(RefusalKind::Unreachable, format!("no interface has address {ip}"))
        })?;
        let section = &self.env.context.config.interfaces[usize::from(interface.0)];
        Ok(Some(section.name.clone()))
    }

    /// Returns the parameters of the connection in the form of the API's `connect` request.
    fn pair_spec(
        &self,
        call: &ConnectCall,
        remote: SocketAddr,
        local: Option<IpAddr>,
    ) -> Result<ConnectSpec, Refusal> {
        let interface = self.interface_name(local)?;
        let Depths { ird, ord } = call.depths;
        let StartUp { peer, peer_to_peer } = call.start_up;
        let peer = peer.name().to_owned();
        let rdmap = RdmapChoice { ird, ord, peer, peer_to_peer, retry_revision_1: true };
        Ok(ConnectSpec {
            interface,
            transport: transport_of(call.transport),
            ulp: UlpChoice::Rdmap,
            rdmap,
            within_us: Some(u64::from(call.timeout) * 1000),
            ..ConnectSpec::to_remote(remote)
        })
    }

    /// Refuses a new stream while the appliance drains, and at the limit `limits.streams`.
    fn check_new_stream(&self) -> Result<(), Refusal> {
        self.env
            .check_not_draining()
            .map_err(|error| refusal(RefusalKind::Draining, error.message))?;
        if self.streams.len() as u64 >= u64::from(self.env.context.config.limits.streams) {
            let sentence = "there are as many streams as limits.streams allows";
            return Err(refusal(RefusalKind::Limit, sentence));
        }
        Ok(())
    }

    fn interface_of_address(&self, ip: IpAddr) -> Option<InterfaceId> {
        let interfaces = (0u16..).zip(&self.env.context.config.interfaces);
        interfaces
            .into_iter()
            .find(|(_, interface)| interface.addresses.iter().any(|net| net.addr() == ip))
            .map(|(at, _)| InterfaceId(at))
    }

    /// Handles the establishment of a connection that a program opened. Resets it if its QP has been removed.
    pub(super) fn on_pair_connected(&mut self, connect: &PairConnect, event: Event, now: Instant) {
        let Event::Established { stream, private_data, params, local, remote, .. } = event else {
            return;
        };
        let ends = StreamAddresses { interface: connect.interface, local, remote };
        if !self.programs.link(connect, stream) {
            self.streams.insert_rejected(stream, None, ends);
            return self.env.send_command(stream.worker(), Command::Close { stream, abort: true });
        }
        self.env.tally.connected += 1;
        self.streams.insert_of_program(stream, ends, connect.pd, connect.program, None);
        self.flights.set_program(stream, connect.program.0);
        let opened = self.open_program_stream(stream, params, (local, remote), private_data, now);
        match opened {
            Some(opened) if connect.needs_settling => {
                self.programs.settle(opened);
                self.streams.settle(stream, Purpose::Program, now);
            }
            Some(opened) => self.programs.on_established(opened),
            None => {}
        }
    }

    /// Handles the establishment of a connection that a program has accepted.
    pub(super) fn on_program_stream(
        &mut self,
        stream: StreamId,
        params: StreamParams,
        ends: (SocketAddr, SocketAddr),
        private_data: Vec<u8>,
        now: Instant,
    ) {
        let opened = self.open_program_stream(stream, params, ends, private_data, now);
        if let Some(opened) = opened {
            self.programs.on_established(opened);
        }
    }

    /// Records the parameters of an established stream of a QP. Returns the report to the program. `None` if the stream
    /// is unknown.
    fn open_program_stream(
        &mut self,
        stream: StreamId,
        params: StreamParams,
        (local, remote): (SocketAddr, SocketAddr),
        private_data: Vec<u8>,
        now: Instant,
    ) -> Option<OpenedPair> {
        let depths = negotiated_depths(&params);
        if self.streams.on_established(stream, params, now).is_none() {
            self.env.tally.unexpected_events += 1;
            return None;
        }
        let (id, peer) = (api_id(stream), remote.to_string());
        self.env.log.push(api::EventKind::StreamEstablished {
            stream: id,
            listener: None,
            remote: peer,
        });
        Some(OpenedPair { stream, local, remote, depths, private_data })
    }

    /// Reports to a program why its connection could not be opened.
    pub(super) fn on_pair_connect_failed(&mut self, connect: &PairConnect, reason: &ConnectError) {
        self.env.tally.connect_failed += 1;
        let failure = match reason {
            ConnectError::Closed(
                CloseReason::Tcp(Ended::RejectedByPeer { private_data, .. })
                | CloseReason::Sctp(Ended::RejectedByPeer { private_data, .. }),
            ) => ConnectFailure::Rejected(private_data.clone()),
            _ => {
                let unreachable = matches!(
                    reason,
                    ConnectError::Timeout(_)
                        | ConnectError::Unreachable
                        | ConnectError::Icmp(_)
                        | ConnectError::NoRoute
                );
                let refused = matches!(
                    reason,
                    ConnectError::Closed(
                        CloseReason::Tcp(Ended::ConnectRefused)
                            | CloseReason::Sctp(Ended::ConnectRefused)
                    )
                );
                ConnectFailure::Failed { unreachable, refused, message: reason.to_string() }
            }
        };
        self.programs.on_connect_failed(&mut self.env, connect, failure);
    }

    // --- listen ---

    fn listen_for_program(
        &mut self,
        id: ProgramId,
        request: u32,
        local: SocketAddr,
        transport: Transport,
        backlog: u32,
    ) -> Result<(), Refusal> {
        self.programs.check_listen(id, backlog)?;
        self.env
            .check_not_draining()
            .map_err(|error| refusal(RefusalKind::Draining, error.message))?;
        let transport = transport_of(transport);
        let ip = local.ip().to_canonical();
        let addresses = self.listen_addresses(ip)?;
        let local = self.choose_port(transport, SocketAddr::new(ip, local.port()), &addresses)?;
        let backlog = backlog.min(MAX_BACKLOG);
        let configs = addresses
            .into_iter()
            .map(|(interface, ip)| {
                let local = SocketAddr::new(ip, local.port());
                self.program_listener(id, interface, local, transport, backlog)
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.programs.listen(&mut self.env, id, request, (transport, local), configs)
    }

    /// Returns the addresses to listen on: `ip`, or all addresses of its family if it is unspecified.
    fn listen_addresses(&self, ip: IpAddr) -> Result<Vec<(InterfaceId, IpAddr)>, Refusal> {
        let interfaces = (0u16..).zip(&self.env.context.config.interfaces);
        let all = interfaces.flat_map(|(at, interface)| {
            interface.addresses.iter().map(move |net| (InterfaceId(at), net.addr()))
        });
        let is_meant = |(_, own): &(InterfaceId, IpAddr)| match ip.is_unspecified() {
            true => own.is_ipv4() == ip.is_ipv4(),
            false => *own == ip,
        };
        let found: Vec<_> = all.filter(is_meant).collect();
        match found.is_empty() {
            true => {
                let sentence = format!("no interface has address {ip}");
                Err(refusal(RefusalKind::Unreachable, sentence))
            }
            false => Ok(found),
        }
    }

    /// Returns `local`, with an unused port if its port is 0. Refuses a port that has a listener already.
    fn choose_port(
        &self,
        transport: config::Transport,
        local: SocketAddr,
        addresses: &[(InterfaceId, IpAddr)],
    ) -> Result<SocketAddr, Refusal> {
        let is_used = |port: u16| {
            let local = SocketAddr::new(local.ip(), port);
            self.programs.is_listening(transport, local)
                || addresses.iter().any(|&(interface, ip)| {
                    let name = &self.env.context.config.interfaces[usize::from(interface.0)].name;
                    self.listeners.is_listening(transport, name, SocketAddr::new(ip, port))
                })
        };
        if local.port() != 0 {
            let port = local.port();
            return match is_used(port) {
                true => {
                    let sentence = format!("port {port} has a listener already");
                    Err(refusal(RefusalKind::InUse, sentence))
                }
                false => Ok(local),
            };
        }
        let (first, last) = (*DYNAMIC_PORTS.start(), *DYNAMIC_PORTS.end());
        let number = u32::from(last - first) + 1;
        let begin = getrandom::u32().unwrap_or(0) % number;
        let port = |n: u32| first + ((begin + n) % number) as u16;
        let free = (0..number).map(port).find(|&port| !is_used(port));
        free.map(|port| SocketAddr::new(local.ip(), port))
            .ok_or_else(|| refusal(RefusalKind::InUse, "no port is unused"))
    }

    /// Returns the worker configuration of a program's listener: the defaults of a `[[listener]]` with `ulp = "rdmap"`,
    /// with `backlog` pending streams.
    fn program_listener(
        &mut self,
        id: ProgramId,
        interface: InterfaceId,
        local: SocketAddr,
        transport: config::Transport,
        backlog: u32,
    ) -> Result<ListenerConfig, Refusal> {
        let number = self.listeners.allocate_id();
        let config = &self.env.context.config;
        let name = &config.interfaces[usize::from(interface.0)].name;
        let section = config::listener_from_json(&serde_json::json!({
            "name": format!("program-{}-{}", id.0, number.0),
            "interface": name,
            "address": local.ip().to_string(),
            "port": local.port(),
            "transport": transport.as_str(),
            "ulp": "rdmap",
            "limits": { "streams": MAX_BACKLOG, "pending": backlog },
        }));
        let section = section.map_err(|error| refusal(RefusalKind::Invalid, error.to_string()))?;
        let workers = self.env.workers() as u32;
        Ok(listener_config(config, &section, number, Some(interface), workers))
    }

    /// Reports a peer's connection request to the program that listens, or rejects it.
    pub(super) fn on_program_incoming(&mut self, event: Event, now: Instant) {
        let Event::Incoming {
            stream,
            listener,
            interface,
            local,
            remote,
            private_data,
            revision,
            enhanced,
        } = event
        else {
            return;
        };
        let ends = StreamAddresses { interface, local, remote };
        let states_ddp = enhanced.is_none()
            && revision != Some(Revision::Two)
            && advert::ulp(&private_data) == Some(UlpKind::Ddp);
        let checked = match (self.check_new_stream(), states_ddp) {
            (Err(error), _) => {
                let kind = match error.kind {
                    RefusalKind::Draining => PeerRefusalKind::Draining,
                    _ => PeerRefusalKind::ApplianceFull,
                };
                Err((kind, error.message))
            }
            (_, true) => {
                let sentence = "the listener speaks RDMAP, the peer bare DDP".to_owned();
                Err((PeerRefusalKind::WrongUlp, sentence))
            }
            (Ok(()), false) => {
                let depths =
                    enhanced.map(|enhanced| Depths { ird: enhanced.ird, ord: enhanced.ord });
                let incoming =
                    IncomingRequest { stream, listener, local, remote, depths, private_data };
                self.programs
                    .on_incoming(incoming)
                    .map_err(|reason| (PeerRefusalKind::ListenerRemoved, reason.to_owned()))
            }
        };
        match checked {
            Ok(program) => {
                self.env.tally.accepted += 1;
                let pd = ddp::PdId(0);
                self.streams.insert_of_program(stream, ends, pd, program, Some(listener));
                self.flights.set_program(stream, program.0);
            }
            Err((kind, sentence)) => {
                let refused = PeerRefusal::new(kind, sentence);
                let transport =
                    revision.map_or(dataplane::Transport::Sctp, |_| dataplane::Transport::Tcp);
                let request = super::accept::StreamRequest { stream, transport, addresses: ends };
                self.reject(request, Some(listener), &refused, now);
            }
        }
    }
}

/// Returns the canonical form of an address; `None` if it is unspecified.
fn specified(address: Option<IpAddr>) -> Option<IpAddr> {
    address.map(|ip| ip.to_canonical()).filter(|ip| !ip.is_unspecified())
}

fn transport_of(transport: Transport) -> config::Transport {
    match transport {
        Transport::Tcp => config::Transport::Tcp,
        Transport::Sctp => config::Transport::Sctp,
    }
}

/// Returns the IRD and ORD that MPA or SCTP startup has negotiated; `None` without negotiation.
fn negotiated_depths(params: &StreamParams) -> Option<Depths> {
    let agreed = match params {
        StreamParams::Tcp(params) => params.agreed,
        StreamParams::Sctp(params) => params.agreed,
    };
    agreed.map(|agreed| Depths { ird: agreed.depths.ird, ord: agreed.depths.ord })
}
