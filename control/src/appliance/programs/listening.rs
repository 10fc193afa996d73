//! Listeners of a program, and the connection requests of their peers.
//!
//! A program's listener has one worker listener ([`ListenerConfig`]) for each address. For each address, all workers
//! together have as many credits as the backlog. A stream consumes a credit of its worker when its SYN arrives. The
//! control thread returns the credit when the request is accepted or has ended, or when the rejected stream has ended.

use std::net::SocketAddr;
use std::sync::Arc;

use dataplane::{Command, ListenerConfig, ListenerId, ProgramId, Ticket, WorkerId};
use ddp::StreamId;
use tcp_lite::endpoint::UlpConfig;
use verbs_session::message::{Answer, Depths, Event, Refusal, RefusalKind};

use super::connections::{check_private_data, return_credit};
use super::program::{ConnectionRequest, Listener, ListenerPhase, Start, not_found};
use super::{Programs, StreamAction, StreamUse, invalid, limit, refusal};
use crate::appliance::endpoints::{interface_peers, program_ulp};
use crate::appliance::env::Env;
use crate::appliance::pending::{Continuation, ProgramStep};

/// Maximum backlog of a listener: number of requests that wait for an answer. Greater backlogs are reduced to this
/// value.
pub(in crate::appliance) const MAX_BACKLOG: u32 = 1024;

/// Fields of `Call::Accept`.
pub(super) struct AcceptCall {
    /// Number of the connection request.
    pub(super) number: u64,
    /// Number of the QP.
    pub(super) pair: u32,
    pub(super) depths: Depths,
    pub(super) private_data: Vec<u8>,
}

/// A peer's request for a connection.
#[derive(Clone, Debug)]
pub(in crate::appliance) struct IncomingRequest {
    pub stream: StreamId,
    pub listener: ListenerId,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// IRD and ORD of the peer. `None` if its request does not state them.
    pub depths: Option<Depths>,
    pub private_data: Vec<u8>,
}

impl Programs {
    /// Returns true if the listener belongs to a program.
    pub(in crate::appliance) fn has_listener(&self, id: ListenerId) -> bool {
        self.listeners.contains_key(&id)
    }

    /// Returns true if a program listens on this transport, port and address. An unspecified address overlaps all
    /// addresses of its family.
    pub(in crate::appliance) fn is_listening(
        &self,
        transport: config::Transport,
        local: SocketAddr,
    ) -> bool {
        let listeners = self.programs.values().flat_map(|program| program.listeners.iter());
        listeners.map(|(_, listener)| listener).any(|other| {
            let (a, b) = (other.local, local);
            let overlaps = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
            other.transport == transport
                && a.port() == b.port()
                && a.is_ipv4() == b.is_ipv4()
                && overlaps
        })
    }

    /// Checks that the program can have one more listener, and that the backlog is at least 1.
    pub(in crate::appliance) fn check_listen(
        &mut self,
        id: ProgramId,
        backlog: u32,
    ) -> Result<(), Refusal> {
        let most = self.settings().map_or(0, |settings| settings.listeners);
        if self.open(id)?.listeners.is_full() {
            return Err(limit("listeners", most));
        }
        if backlog == 0 {
            return Err(invalid("the backlog is at least 1"));
        }
        Ok(())
    }

    /// Adds a listener at all workers. The caller has checked the backlog, the addresses and the port.
    pub(in crate::appliance) fn listen(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        (transport, local): (config::Transport, SocketAddr),
        configs: Vec<ListenerConfig>,
    ) -> Result<(), Refusal> {
        let most = self.settings().map_or(0, |settings| settings.listeners);
        let at_workers: Vec<_> = configs.into_iter().map(Arc::new).collect();
        let phase = ListenerPhase::Adding;
        let listener = Listener { at_workers: at_workers.clone(), local, transport, phase };
        let number = self.open(id)?.listeners.insert(listener);
        let number = number.ok_or_else(|| limit("listeners", most))?;
        self.listeners.extend(at_workers.iter().map(|config| (config.id, (id, number))));
        let commands: Vec<_> = at_workers
            .into_iter()
            .map(|config| {
                move |ticket: Ticket| Command::AddListener { listener: Arc::clone(&config), ticket }
            })
            .collect();
        let commands: Vec<&dyn Fn(Ticket) -> Command> =
            commands.iter().map(|command| command as &dyn Fn(Ticket) -> Command).collect();
        let step = ProgramStep::Listening { listener: number, request };
        env.broadcast_all(Continuation::Program(id, step), &commands);
        Ok(())
    }

    pub(super) fn on_listening(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        number: u32,
        request: u32,
        result: Result<(), String>,
    ) {
        let Ok(program) = self.open(id) else { return };
        let Some(listener) = program.listeners.get_mut(number) else { return };
        // The listener is being removed if the appliance has begun to drain.
        if listener.phase != ListenerPhase::Adding {
            let sentence = "the appliance is draining";
            return program.reply(request, Err(refusal(RefusalKind::Draining, sentence)));
        }
        match result {
            Ok(()) => {
                listener.phase = ListenerPhase::Active;
                let local = listener.local;
                program.reply(request, Ok(Answer::Listening { listener: number, local }));
            }
            Err(reason) => {
                program.reply(request, Err(refusal(RefusalKind::InUse, reason)));
                self.remove_listener(env, id, number, None);
            }
        }
    }

    pub(super) fn stop_listening(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        number: u32,
        actions: &mut Vec<StreamAction>,
    ) -> Result<(), Refusal> {
        let listener = self.open(id)?.listeners.get(number);
        let is_active = listener.is_some_and(|listener| listener.phase == ListenerPhase::Active);
        if !is_active {
            return Err(not_found("listener", number));
        }
        self.drop_requests(id, Some(number), "the program has stopped to listen", actions);
        self.remove_listener(env, id, number, Some(request));
        Ok(())
    }

    /// Removes a listener from all workers. `request`: the call to answer when they have removed it.
    pub(super) fn remove_listener(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        number: u32,
        request: Option<u32>,
    ) {
        let program = self.programs.get_mut(&id);
        let Some(listener) = program.and_then(|program| program.listeners.get_mut(number)) else {
            return;
        };
        if listener.phase == ListenerPhase::Removing {
            return;
        }
        listener.phase = ListenerPhase::Removing;
        let commands: Vec<_> = listener
            .at_workers
            .iter()
            .map(|config| config.id)
            .map(|listener| move |ticket: Ticket| Command::RemoveListener { listener, ticket })
            .collect();
        let commands: Vec<&dyn Fn(Ticket) -> Command> =
            commands.iter().map(|command| command as &dyn Fn(Ticket) -> Command).collect();
        let step = ProgramStep::ListenerRemoved { listener: number, request };
        env.broadcast_all(Continuation::Program(id, step), &commands);
    }

    pub(super) fn on_listener_removed(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        number: u32,
        request: Option<u32>,
    ) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let removed = program.listeners.remove(number);
        for config in removed.iter().flat_map(|listener| &listener.at_workers) {
            self.listeners.remove(&config.id);
        }
        if let Some(request) = request {
            program.reply(request, Ok(Answer::Done));
        }
        self.finish(env, id);
    }

    /// Sends the workers the admitted peers of each listener whose interface admits different peers after a reload.
    pub(in crate::appliance) fn send_peers(&mut self, env: &mut Env) {
        for program in self.programs.values_mut() {
            let listeners = program.listeners.iter_mut();
            for config in listeners.flat_map(|listener| &mut listener.at_workers) {
                let Some(interface) = config.interface else { continue };
                let peers = interface_peers(&env.context.config, interface);
                if *config.peers == peers {
                    continue;
                }
                let (listener, peers) = (config.id, Arc::new(peers));
                Arc::make_mut(config).peers = Arc::clone(&peers);
                env.broadcast(Continuation::Ignore, |ticket| Command::SetPeers {
                    listener,
                    peers: Arc::clone(&peers),
                    ticket,
                });
            }
        }
    }

    /// Stops all listeners, because the appliance is draining. Returns the changes of streams for the caller to apply.
    pub(in crate::appliance) fn stop_all_listening(&mut self, env: &mut Env) -> Vec<StreamAction> {
        let mut actions = Vec::new();
        let ids: Vec<ProgramId> = self.programs.keys().copied().collect();
        for id in ids {
            self.drop_requests(id, None, "the appliance is draining", &mut actions);
            self.remove_listeners(env, id);
        }
        actions
    }

    pub(super) fn remove_listeners(&mut self, env: &mut Env, id: ProgramId) {
        let Some(program) = self.programs.get(&id) else { return };
        let numbers: Vec<u32> = program.listeners.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.remove_listener(env, id, number, None);
        }
    }

    // --- requests ---

    /// Reports a peer's request to the program that listens. Returns the program.
    ///
    /// # Errors
    /// The reason to reject the request.
    pub(in crate::appliance) fn on_incoming(
        &mut self,
        incoming: IncomingRequest,
    ) -> Result<ProgramId, &'static str> {
        let IncomingRequest { stream, listener: id, local, remote, depths, private_data } =
            incoming;
        let stopped = "the program has stopped to listen";
        let &(program_id, number) = self.listeners.get(&id).ok_or(stopped)?;
        let program = self.open(program_id).map_err(|_| stopped)?;
        let listener = program.listeners.get(number);
        // A worker may report requests before the other workers have the listener, and after the program has stopped
        // listening.
        if listener.is_none_or(|listener| listener.phase == ListenerPhase::Removing) {
            return Err(stopped);
        }
        let request = stream.0;
        program.requests.insert(request, ConnectionRequest { listener: number, id });
        program.outbox.event(Event::Incoming {
            listener: number,
            request,
            local,
            remote,
            depths,
            private_data,
        });
        self.streams.insert(stream, StreamUse::Request { program: program_id, request });
        Ok(program_id)
    }

    /// Accepts a request with a QP. Registers the QP at the worker of the stream first.
    pub(super) fn accept(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        call: AcceptCall,
    ) -> Result<(), Refusal> {
        let AcceptCall { number, pair, depths, private_data } = call;
        let listener = self.open(id)?.requests.get(&number).map(|request| request.id);
        let listener = listener.ok_or_else(|| not_found("connection request", number))?;
        let checked = self.check_unconnected(id, pair, depths, &private_data)?;
        let stream = StreamId(number);
        let ulp: UlpConfig = program_ulp(depths.ird, depths.ord, checked.max_sends);
        let start = Start::Accept { stream, listener, private_data, ulp };
        self.start(env, id, request, (pair, depths), WorkerId(stream.worker()), start)?;
        self.open(id)?.requests.remove(&number);
        self.streams.insert(stream, StreamUse::Pair { program: id, pair });
        Ok(())
    }

    /// Rejects a request. Its credit returns when the stream has ended.
    pub(super) fn reject(
        &mut self,
        id: ProgramId,
        request: u32,
        number: u64,
        private_data: Vec<u8>,
        actions: &mut Vec<StreamAction>,
    ) -> Result<(), Refusal> {
        check_private_data(&private_data)?;
        let program = self.open(id)?;
        let found = program.requests.remove(&number);
        found.ok_or_else(|| not_found("connection request", number))?;
        program.reply(request, Ok(Answer::Done));
        let stream = StreamId(number);
        self.streams.remove(&stream);
        actions.push(StreamAction::Reject { stream, private_data });
        Ok(())
    }

    /// Reports to the program that a request ended before it was answered.
    pub(super) fn on_request_ended(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        number: u64,
        stream: StreamId,
    ) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        if let Some(request) = program.requests.remove(&number) {
            program.outbox.event(Event::RequestEnded { request: number });
            return_credit(env, stream, request.id);
        }
    }

    /// Removes the unanswered requests of a listener, or of all listeners (`None`), and resets their streams.
    pub(super) fn drop_requests(
        &mut self,
        id: ProgramId,
        listener: Option<u32>,
        reason: &'static str,
        actions: &mut Vec<StreamAction>,
    ) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let of_listener = |_: &u64, request: &mut ConnectionRequest| {
            listener.is_none_or(|listener| request.listener == listener)
        };
        let dropped: Vec<u64> =
            program.requests.extract_if(.., of_listener).map(|(number, _)| number).collect();
        for number in dropped {
            self.streams.remove(&StreamId(number));
            actions.push(StreamAction::Abort(StreamId(number), reason));
        }
    }
}
