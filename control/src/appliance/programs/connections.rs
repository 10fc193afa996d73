//! Connections of queue pairs (QPs): registration at the worker of the stream, events to the program, disconnection.
//!
//! ```text
//!   New --Connect--> Starting --worker has the QP--> Connecting --> Accepting --reported--> Connected --> Ended
//!   New --Accept---> Starting --worker has the QP-----------------> Accepting --reported--> Connected --> Ended
//! ```
//!
//! If the connection fails, or the program ends the QP, the QP changes from Starting, Connecting or Accepting to Ended.
//! A QP that is ended before it is connected changes from New via Starting to Ended, and a worker flushes its posts.
//! The removal changes the QP from any state to Removing.
//!
//! A QP can be connected only once: the worker of its connection owns its rings, and a second connection could be at
//! another worker.

use std::net::SocketAddr;

use dataplane::{Command, Connect, ListenerId, ProgramId, QueuePairConfig, QueuePairId, WorkerId};
use ddp::{PdId, StreamId};
use verbs_session::message::{Answer, Depths, Event, MAX_PRIVATE_DATA, Refusal, RefusalKind};

use super::program::{PairState, Start, not_found};
use super::{MAX_DEPTHS, Programs, StreamAction, StreamUse, invalid, refusal};
use crate::appliance::env::Env;
use crate::appliance::pending::{Continuation, PairConnect, ProgramStep};

/// Cause reported to the program for a connect or accept that fails because the program has ended the QP.
const ENDED: &str = "the program has ended the QP";

/// Attributes of a QP that has not been connected.
#[derive(Clone, Copy, Debug)]
pub(in crate::appliance) struct UnconnectedPair {
    pub pd: PdId,
    /// Maximum number of incomplete posted operations.
    pub max_sends: u32,
}

/// A connection of a QP that has just been established.
#[derive(Clone, Debug)]
pub(in crate::appliance) struct OpenedPair {
    pub stream: StreamId,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Negotiated IRD and ORD; `None`: the depths of the program's call apply.
    pub depths: Option<Depths>,
    pub private_data: Vec<u8>,
}

/// Reason why a connection was not opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::appliance) enum ConnectFailure {
    /// The peer has rejected the connection, with this private data.
    Rejected(Vec<u8>),
    Failed {
        /// True if the peer does not answer or cannot be reached.
        unreachable: bool,
        /// True if the peer refused the connection setup: nothing listens at its address.
        refused: bool,
        /// Cause of the failure, one sentence.
        message: String,
    },
}

impl Programs {
    /// Checks that the QP exists and has never been connected, and the bounds of the depths (IRD and ORD) and of the
    /// private data.
    pub(in crate::appliance) fn check_unconnected(
        &mut self,
        id: ProgramId,
        number: u32,
        depths: Depths,
        private_data: &[u8],
    ) -> Result<UnconnectedPair, Refusal> {
        let program = self.open(id)?;
        let pair = program.pair(number)?;
        if !matches!(pair.state, PairState::New) {
            return Err(invalid(format!("QP {number} has or had a connection already")));
        }
        if depths.ird > MAX_DEPTHS.ird || depths.ord > MAX_DEPTHS.ord {
            let Depths { ird, ord } = MAX_DEPTHS;
            return Err(invalid(format!("IRD is at most {ird}, and ORD {ord}")));
        }
        check_private_data(private_data)?;
        let (pd, max_sends) = (pair.pd, pair.max_sends);
        Ok(UnconnectedPair { pd: program.domain(pd)?.id, max_sends })
    }

    /// Counts a connect. Returns the count, by which the caller selects workers round-robin.
    pub(in crate::appliance) fn next_connect(&mut self) -> usize {
        self.connects = self.connects.wrapping_add(1);
        self.connects
    }

    /// Registers a checked QP at `worker`, which then opens the connection. `needs_settling`: true if the peer needs a
    /// delay before the first FPDU.
    pub(in crate::appliance) fn connect(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        (number, depths): (u32, Depths),
        worker: WorkerId,
        (connect, needs_settling): (Box<Connect>, bool),
    ) -> Result<(), Refusal> {
        let start = Start::Connect { connect, needs_settling };
        self.start(env, id, request, (number, depths), worker, start)
    }

    /// Registers a QP at the worker of its connection. The connection begins when the worker has answered.
    pub(super) fn start(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        (number, depths): (u32, Depths),
        worker: WorkerId,
        start: Start,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let pair = program.pairs.get(number).ok_or_else(|| not_found("QP", number))?;
        let pd = program.domain(pair.pd)?.id;
        let pair = program.pairs.get_mut(number).ok_or_else(|| not_found("QP", number))?;
        let (sends, receives) =
            pair.rings.take().ok_or_else(|| invalid("the QP has or had a connection already"))?;
        let config = QueuePairConfig {
            id: QueuePairId { program: id, number },
            pd,
            sends,
            max_sends: pair.max_sends,
            receives,
            max_receives: pair.max_receives,
            send_completions: pair.send_queue,
            receive_completions: pair.receive_queue,
            copy_sources: pair.copy_sources,
        };
        let step = ProgramStep::PairAdded { pair: number, serial: pair.serial };
        (pair.worker, pair.depths) = (Some(worker), depths);
        pair.state = PairState::Starting { start, request };
        let ticket = env.issue(Continuation::Program(id, step));
        let pair = Box::new(config);
        env.send_command(worker.0, Command::AddQueuePair { pair, ticket });
        Ok(())
    }

    /// Handles a worker's answer to the registration of a QP: begins the connection, or refuses the call.
    pub(super) fn on_pair_added(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        number: u32,
        serial: u64,
        result: Result<(), String>,
    ) -> Vec<StreamAction> {
        let mut actions = Vec::new();
        let Ok(program) = self.open(id) else { return actions };
        let pair = program.pairs.get_mut(number).filter(|pair| pair.serial == serial);
        // The QP may have been removed, or its request may have ended.
        let Some(pair) = pair.filter(|pair| matches!(pair.state, PairState::Starting { .. }))
        else {
            return actions;
        };
        let before = std::mem::replace(&mut pair.state, PairState::Ended);
        let PairState::Starting { start, request } = before else { return actions };
        let Some(worker) = pair.worker else { return actions };
        match (start, result) {
            (Start::End, Ok(())) => {
                program.reply(request, Ok(Answer::Done));
                end_at_worker(env, Some(worker), QueuePairId { program: id, number });
            }
            (Start::Connect { mut connect, needs_settling }, Ok(())) => {
                pair.state = PairState::Connecting;
                program.reply(request, Ok(Answer::Done));
                let (interface, pd) = (connect.interface, connect.pd);
                let pair = PairConnect {
                    program: id,
                    pair: number,
                    serial,
                    interface,
                    pd,
                    needs_settling,
                };
                connect.ticket = env.issue(Continuation::ProgramConnect(pair));
                env.send_command(worker.0, Command::Connect(connect));
            }
            (Start::Accept { stream, listener, private_data, ulp }, Ok(())) => {
                pair.state = PairState::Accepting(stream);
                program.reply(request, Ok(Answer::Done));
                let pair = QueuePairId { program: id, number };
                let service = dataplane::Service::Program(pair);
                let pd = program.pairs.get(number).and_then(|pair| program.domains.get(pair.pd));
                let pd = pd.map_or(PdId(0), |domain| domain.id);
                let command = Command::Accept { stream, pd, private_data, ulp, service };
                env.send_command(worker.0, command);
                return_credit(env, stream, listener);
            }
            (start, Err(reason)) => {
                program.reply(request, Err(refusal(RefusalKind::Invalid, reason)));
                if let Start::Accept { stream, listener, .. } = start {
                    self.streams.remove(&stream);
                    return_credit(env, stream, listener);
                    actions.push(StreamAction::Abort(stream, "its QP is not registered"));
                }
            }
        }
        actions
    }

    /// Assigns an opened connection to the QP that requested it. Returns false if the QP or its program has ended.
    pub(in crate::appliance) fn link(&mut self, connect: &PairConnect, stream: StreamId) -> bool {
        let &PairConnect { program: id, pair: number, serial, .. } = connect;
        let pair = self.open(id).ok().and_then(|program| program.pairs.get_mut(number));
        let Some(pair) = pair.filter(|pair| pair.serial == serial) else { return false };
        if !matches!(pair.state, PairState::Connecting) {
            return false;
        }
        pair.state = PairState::Accepting(stream);
        self.streams.insert(stream, StreamUse::Pair { program: id, pair: number });
        true
    }

    /// Delays the report of an established connection until [`on_settled`](Self::on_settled).
    pub(in crate::appliance) fn settle(&mut self, opened: OpenedPair) {
        self.settling.insert(opened.stream, opened);
    }

    /// Reports an established connection to its program, unless the connection has ended during the delay.
    pub(in crate::appliance) fn on_settled(&mut self, stream: StreamId) {
        if let Some(opened) = self.settling.remove(&stream) {
            self.on_established(opened);
        }
    }

    /// Reports to the program that the connection of its QP is established. Ignores streams without a QP.
    pub(in crate::appliance) fn on_established(&mut self, opened: OpenedPair) {
        let OpenedPair { stream, local, remote, depths, private_data } = opened;
        let Some(&StreamUse::Pair { program: id, pair: number }) = self.streams.get(&stream) else {
            return;
        };
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some(pair) = program.pairs.get_mut(number) else { return };
        pair.state = PairState::Connected(stream);
        let depths = depths.unwrap_or(pair.depths);
        pair.depths = depths;
        let worker = stream.worker();
        program.outbox.event(Event::Established {
            pair: number,
            worker,
            local,
            remote,
            depths,
            private_data,
        });
    }

    /// Reports to the program that the connection of its QP could not be opened. The worker flushes the posts of the
    /// QP, also if no stream was opened.
    pub(in crate::appliance) fn on_connect_failed(
        &mut self,
        env: &mut Env,
        connect: &PairConnect,
        failure: ConnectFailure,
    ) {
        let &PairConnect { program: id, pair: number, serial, .. } = connect;
        let Ok(program) = self.open(id) else { return };
        let pair = program.pairs.get_mut(number).filter(|pair| pair.serial == serial);
        let Some(pair) = pair.filter(|pair| matches!(pair.state, PairState::Connecting)) else {
            return;
        };
        pair.state = PairState::Ended;
        end_at_worker(env, pair.worker, QueuePairId { program: id, number });
        program.outbox.event(match failure {
            ConnectFailure::Rejected(private_data) => {
                Event::Rejected { pair: number, private_data }
            }
            ConnectFailure::Failed { unreachable, refused, message } => {
                Event::ConnectFailed { pair: number, unreachable, refused, message }
            }
        });
    }

    /// Handles the end of a stream. Ignores streams that do not belong to a program. `message`: cause of the
    /// end.
    pub(in crate::appliance) fn on_closed(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        graceful: bool,
        message: &str,
    ) {
        self.settling.remove(&stream);
        match self.streams.remove(&stream) {
            None => {}
            Some(StreamUse::Request { program, request }) => {
                self.on_request_ended(env, program, request, stream);
            }
            Some(StreamUse::Pair { program, pair }) => {
                self.on_pair_closed(env, program, pair, stream, graceful, message.to_owned());
            }
        }
    }

    /// Changes the state of a QP whose stream has ended, and reports the end to the program.
    fn on_pair_closed(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        number: u32,
        stream: StreamId,
        graceful: bool,
        message: String,
    ) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some(pair) = program.pairs.get_mut(number) else { return };
        match std::mem::replace(&mut pair.state, PairState::Ended) {
            PairState::Starting { start, request } => {
                let sentence = "the connection request has ended";
                program.reply(request, Err(refusal(RefusalKind::NotFound, sentence)));
                if let Start::Accept { listener, .. } = start {
                    return_credit(env, stream, listener);
                }
            }
            PairState::Accepting(_) => {
                let (unreachable, refused) = (false, false);
                let pair = number;
                let event = Event::ConnectFailed { pair, unreachable, refused, message };
                program.outbox.event(event);
            }
            PairState::Connected(_) => {
                program.outbox.event(Event::Disconnected { pair: number, graceful, message });
            }
            other => pair.state = other,
        }
    }

    /// Closes the connection of a QP gracefully. Has no effect if the connection has ended.
    pub(super) fn disconnect(
        &mut self,
        id: ProgramId,
        request: u32,
        number: u32,
        actions: &mut Vec<StreamAction>,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let pair = program.pairs.get(number).ok_or_else(|| not_found("QP", number))?;
        match pair.state {
            PairState::Connected(stream) => actions.push(StreamAction::Close(stream)),
            PairState::Ended => {}
            PairState::Removing => return Err(not_found("QP", number)),
            PairState::New
            | PairState::Starting { .. }
            | PairState::Connecting
            | PairState::Accepting(_) => {
                return Err(invalid(format!("QP {number} has no connection")));
            }
        }
        program.reply(request, Ok(Answer::Done));
        Ok(())
    }

    /// Ends a QP, so that its posts are flushed. Closes its connection gracefully, if it has one. A connection that is
    /// still being opened fails.
    pub(super) fn end_pair(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        number: u32,
        actions: &mut Vec<StreamAction>,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let pair = program.pair(number)?;
        match pair.state {
            PairState::New => {
                let depths = pair.depths;
                return self.start(env, id, request, (number, depths), WorkerId(0), Start::End);
            }
            PairState::Starting { .. } => {
                let state = PairState::Starting { start: Start::End, request };
                let before = std::mem::replace(&mut pair.state, state);
                self.refuse_start(env, id, before, actions);
                return Ok(());
            }
            PairState::Connecting => {
                pair.state = PairState::Ended;
                end_at_worker(env, pair.worker, QueuePairId { program: id, number });
                let (unreachable, refused, message) = (false, false, ENDED.to_owned());
                let pair = number;
                let event = Event::ConnectFailed { pair, unreachable, refused, message };
                program.outbox.event(event);
            }
            // The program is notified when the stream has ended.
            PairState::Accepting(stream) => actions.push(StreamAction::Abort(stream, ENDED)),
            PairState::Connected(stream) => actions.push(StreamAction::Close(stream)),
            PairState::Ended | PairState::Removing => {}
        }
        program.reply(request, Ok(Answer::Done));
        Ok(())
    }

    /// Refuses the call that began to connect or to accept, because the program has ended its QP.
    fn refuse_start(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        before: PairState,
        actions: &mut Vec<StreamAction>,
    ) {
        let PairState::Starting { start, request } = before else { return };
        let Ok(program) = self.open(id) else { return };
        program.reply(request, Err(invalid(ENDED)));
        if let Start::Accept { stream, listener, .. } = start {
            self.streams.remove(&stream);
            return_credit(env, stream, listener);
            actions.push(StreamAction::Abort(stream, ENDED));
        }
    }
}

/// Ends a QP at its worker, which flushes the QP's work requests. Has no effect on a QP without a worker.
fn end_at_worker(env: &mut Env, worker: Option<WorkerId>, id: QueuePairId) {
    if let Some(worker) = worker {
        env.send_command(worker.0, Command::EndQueuePair { id });
    }
}

/// Returns the backlog credit of a stream to its worker, which may then accept another stream of the listener.
pub(super) fn return_credit(env: &mut Env, stream: StreamId, listener: ListenerId) {
    env.send_command(stream.worker(), Command::Credits { listener, additional: 1 });
}

pub(super) fn check_private_data(private_data: &[u8]) -> Result<(), Refusal> {
    let len = private_data.len();
    if len > MAX_PRIVATE_DATA {
        return Err(invalid(format!("private data has {len} bytes, at most {MAX_PRIVATE_DATA}")));
    }
    Ok(())
}
