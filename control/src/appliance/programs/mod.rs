//! Local programs: their sessions, and the objects that they have created.
//!
//! A program connects to a Unix socket ([`server`]). It creates memory regions, queues and connections by calls over
//! the socket (`verbs_session`), and posts operations to queues in shared memory, which the workers serve. The control
//! thread keeps the tables of objects, checks each call against them, and sends commands to the workers.
//!
//! ```text
//!   domain  <- memory region, memory window, shared receive queue, queue pair
//!   channel <- completion queue <- queue pair -> shared receive queue
//!   listener -> connection request --accept--> queue pair --> stream
//! ```
//!
//! In the first two lines `a <- b` means that b uses a, and `a -> b` that a uses b. An object that others use cannot be
//! removed. In the third line the arrows lead from a listener to the stream of a connection. The end of the session
//! resets the streams, removes the STags and frees the memory. A program that ends stays in the table until the workers
//! have answered and its memory is free.
//!
//! | module | contents |
//! |---|---|
//! | `server`, `session`, `inbox`, `outbox` | socket, threads, calls to the control thread, messages to the program |
//! | `prepare`, `share`, `shared` | allocation of a call's memory, on the session's thread; its limits |
//! | `program`, `table` | a program and its objects |
//! | `regions`, `windows` | domains and memory regions; memory windows |
//! | `queues`, `shared_receives` | channels, completion queues and queue pairs; shared receive queues |
//! | `connections`, `listening` | connections of queue pairs; listeners and requests |
//! | `end` | end of a program |
//! | `info` | descriptions of programs for the API |

mod connections;
mod end;
pub(super) mod inbox;
mod info;
mod listening;
mod outbox;
mod prepare;
mod program;
mod queues;
mod refused;
mod regions;
pub mod server;
mod session;
mod share;
mod shared;
mod shared_receives;
mod table;
mod windows;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;

use api::{AttachedProcess, AuditedProgram, EventKind};
use config::ProgramsSection;
use dataplane::{Command, ListenerId, ProgramConfig, ProgramEvent, ProgramId};
use ddp::{PdId, Stag, StreamId};
use verbs_session::message::{Answer, Call, Depths, Device, Event, Refusal, RefusalKind, Welcome};

pub(super) use self::connections::{ConnectFailure, OpenedPair};
pub(super) use self::inbox::{Input, InputKind};
pub(super) use self::listening::{IncomingRequest, MAX_BACKLOG};
#[cfg(test)]
pub(super) use self::outbox::Outbox;
#[cfg(test)]
pub(super) use self::prepare::Preparer;
pub(super) use self::prepare::{Attachment, Prepared};
use self::program::{Program, State};
use self::refused::Refused;
use self::server::Sessions;
use super::counters::ProgramTally;
use super::env::{Env, Phase};
use super::notes::Cause;
use super::pending::{Continuation, ProgramStep};
use super::ports::PortView;

/// Maximum IRD and ORD of a connection.
pub(super) const MAX_DEPTHS: Depths = Depths { ird: 128, ord: 128 };

/// Lowest protection domain number of programs. The numbers of regions are lower.
const DOMAIN_BASE: u32 = 1 << 31;

/// Table of the programs, with indexes of their memory regions, streams and listeners.
#[derive(Default)]
pub(super) struct Programs {
    programs: BTreeMap<ProgramId, Program>,
    /// Memory regions by key. A key is reported when the memory of its region is free.
    keys: HashMap<u64, (ProgramId, Stag)>,
    /// Streams of QPs and connection requests.
    streams: HashMap<StreamId, StreamUse>,
    /// Established connections that are not reported yet, because their peers need a delay.
    settling: HashMap<StreamId, OpenedPair>,
    /// Listeners of programs, by their numbers at the workers.
    listeners: HashMap<ListenerId, (ProgramId, u32)>,
    domains: DomainIds,
    tally: ProgramTally,
    /// Number of connects, modulo 2⁶⁴. Selects the worker of a connect.
    connects: usize,
    /// `None`: programs cannot attach.
    sessions: Option<Sessions>,
}

/// Use of a program's stream: a peer's unanswered request, or the connection of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamUse {
    Request { program: ProgramId, request: u64 },
    Pair { program: ProgramId, pair: u32 },
}

/// A change of a stream, which the core applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StreamAction {
    /// Closes the stream gracefully.
    Close(StreamId),
    /// Resets the stream, for this reason.
    Abort(StreamId, &'static str),
    /// Rejects the peer's connection request.
    Reject { stream: StreamId, private_data: Vec<u8> },
}

/// Allocator of protection domain numbers for programs. Released numbers are reused.
#[derive(Default)]
struct DomainIds {
    /// Number of domain numbers allocated so far, including released numbers.
    used: u32,
    free: Vec<PdId>,
}

impl DomainIds {
    fn allocate(&mut self) -> PdId {
        self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            PdId(DOMAIN_BASE + self.used)
        })
    }

    fn release(&mut self, id: PdId) {
        self.free.push(id);
    }
}

impl Programs {
    /// Creates the table. `sessions`: `None` if programs cannot attach.
    pub(super) fn new(sessions: Option<Sessions>) -> Programs {
        Programs { sessions, ..Programs::default() }
    }

    /// Takes the next input of the sessions, if there is one.
    pub(super) fn poll_input(&self) -> Option<Input> {
        self.sessions.as_ref()?.inbox.inputs.try_recv().ok()
    }

    /// Takes the next key of a memory region whose memory is free, if there is one.
    pub(super) fn poll_freed(&self) -> Option<u64> {
        self.sessions.as_ref()?.inbox.freed.try_recv().ok()
    }

    fn settings(&self) -> Option<&ProgramsSection> {
        self.sessions.as_ref().map(|sessions| &sessions.inbox.settings)
    }

    /// Refuses a program, or begins to attach it: commands all workers to add it.
    pub(super) fn attach(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        mut attachment: Attachment,
    ) {
        let outbox = std::sync::Arc::clone(&attachment.outbox);
        let settings = match self.check_attach(env) {
            Ok(settings) => settings.clone(),
            Err(refusal) => {
                self.record_refused(env, attachment.process, &attachment.name, &refusal.message);
                outbox.reply(request, Err(refusal), Vec::new());
                return outbox.close();
            }
        };
        let ends = std::mem::take(&mut attachment.workers);
        let welcome = Box::new(Welcome {
            version: attachment.version,
            program: id.0,
            arena: attachment.arena,
            workers: ends.len() as u16,
            limits: prepare::limits(&settings),
            devices: devices(env),
        });
        let descriptors = std::mem::take(&mut attachment.descriptors);
        let state = State::Attaching { request, welcome, descriptors };
        let program = Program::new(id, attachment, &settings, state, env.now);
        self.programs.insert(id, program);
        let then = Continuation::Program(id, ProgramStep::Attached);
        let ticket = env.issue_to(ends.len(), then);
        for (worker, (doorbells, wake)) in (0..).zip(ends) {
            let config = ProgramConfig { id, doorbells, wake, budget: settings.budget };
            env.send_command(worker, Command::AddProgram { program: Box::new(config), ticket });
        }
    }

    /// Counts and logs the refusal of a program.
    fn record_refused(
        &mut self,
        env: &mut Env,
        process: AttachedProcess,
        name: &str,
        reason: &str,
    ) {
        self.tally.refused += 1;
        let AttachedProcess { uid, pid, .. } = process;
        tracing::warn!("the program with pid {pid} of uid {uid} is refused: {reason}");
        env.log.push(EventKind::ProgramRefused { uid, pid, reason: reason.to_owned() });
        let program = AuditedProgram { uid, pid, program: None, name };
        env.context.audit.program_refused(program, reason);
    }

    /// Handles a refusal that a session's thread has sent: of a program, or of a program's call.
    pub(super) fn on_refused(&mut self, env: &mut Env, id: ProgramId, refused: &Refused) {
        let Refused { process, refusal } = refused;
        match self.programs.contains_key(&id) {
            true => self.note_refusal(env, id, refusal),
            false => self.record_refused(env, *process, "", &refusal.message),
        }
    }

    /// Sets a note if a program has reached a limit.
    fn note_refusal(&self, env: &mut Env, id: ProgramId, refusal: &Refusal) {
        let is_limit = matches!(refusal.kind, RefusalKind::Limit | RefusalKind::NoMemory);
        if let Some(program) = self.programs.get(&id).filter(|_| is_limit) {
            let sentence = format!("program {} ({}): {}", id.0, program.name, refusal.message);
            env.notes.set(Cause::ProgramLimit(id), sentence, None);
        }
    }

    fn check_attach(&self, env: &Env) -> Result<&ProgramsSection, Refusal> {
        check_not_draining(env)?;
        let settings = self.settings().ok_or_else(|| {
            refusal(RefusalKind::NotAllowed, "the configuration has no [programs]")
        })?;
        if self.programs.len() >= settings.programs as usize {
            let most = settings.programs;
            let sentence =
                format!("there are {most} programs, as many as programs.programs allows");
            return Err(refusal(RefusalKind::Limit, sentence));
        }
        Ok(settings)
    }

    fn on_attached(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        result: Result<(), String>,
    ) -> Vec<StreamAction> {
        let Some(program) = self.programs.get_mut(&id) else { return Vec::new() };
        if !matches!(program.state, State::Attaching { .. }) {
            return Vec::new(); // the program has ended meanwhile
        }
        let before = std::mem::replace(&mut program.state, State::Open);
        let State::Attaching { request, welcome, descriptors } = before else { return Vec::new() };
        match result {
            Ok(()) => {
                self.tally.attached += 1;
                env.context.audit.program_attached(program.audited());
                env.log.push(EventKind::ProgramAttached {
                    program: id.0,
                    name: program.name.clone(),
                    uid: program.uid,
                    pid: program.pid,
                });
                program.outbox.reply(request, Ok(Answer::Welcome(*welcome)), descriptors);
                Vec::new()
            }
            Err(reason) => {
                let process =
                    AttachedProcess { uid: program.uid, pid: program.pid, admitted: true };
                let name = program.name.clone();
                program.reply(request, Err(refusal(RefusalKind::NotAllowed, &*reason)));
                self.record_refused(env, process, &name, &reason);
                self.end(env, id)
            }
        }
    }

    /// Handles a call other than `Route`, `Connect` and `Listen`, which the core handles. Returns the stream changes.
    pub(super) fn call(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        call: Prepared,
    ) -> Vec<StreamAction> {
        let mut actions = Vec::new();
        if let Err(refusal) = self.try_call(env, id, request, call, &mut actions) {
            self.refuse(env, id, request, refusal);
        }
        actions
    }

    /// Answers a call.
    pub(super) fn answer(&self, id: ProgramId, request: u32, answer: Answer) {
        if let Some(program) = self.programs.get(&id) {
            program.reply(request, Ok(answer));
        }
    }

    /// Answers a call with a refusal.
    pub(super) fn refuse(&self, env: &mut Env, id: ProgramId, request: u32, refusal: Refusal) {
        self.note_refusal(env, id, &refusal);
        if let Some(program) = self.programs.get(&id) {
            program.reply(request, Err(refusal));
        }
    }

    fn try_call(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        call: Prepared,
        actions: &mut Vec<StreamAction>,
    ) -> Result<(), Refusal> {
        self.open(id)?;
        let call = match call {
            Prepared::Register(region) => return self.register(env, id, request, *region),
            Prepared::Channel { signal, descriptor } => {
                return self.create_channel(id, request, signal, descriptor);
            }
            Prepared::CompletionQueue(queue) => return self.create_queue(env, id, request, *queue),
            Prepared::SharedQueue(queue) => return self.create_shared_queue(id, request, *queue),
            Prepared::QueuePair(pair) => return self.create_pair(env, id, request, *pair),
            Prepared::Plain(call) => *call,
            Prepared::Attach(_) => return Err(invalid("the session is open already")),
        };
        match call {
            Call::CreatePd => self.create_pd(id, request),
            Call::RemovePd { pd } => self.remove_pd(id, request, pd),
            Call::DeregisterMemory { stag } => self.deregister(env, id, request, Stag(stag)),
            Call::AllocateWindow { pd, kind } => self.allocate_window(env, id, request, pd, kind),
            Call::DeallocateWindow { stag } => self.deallocate_window(env, id, request, Stag(stag)),
            Call::RemoveChannel { channel } => self.remove_channel(id, request, channel),
            Call::RemoveCompletionQueue { queue } => self.remove_queue(env, id, request, queue),
            Call::RemoveSharedReceiveQueue { queue } => {
                self.remove_shared_queue(id, request, queue)
            }
            Call::SetReceiveLimit { queue, limit } => {
                self.set_receive_limit(id, request, queue, limit)
            }
            Call::RemoveQueuePair { pair } => self.remove_pair(env, id, request, pair, actions),
            Call::Accept { request: number, pair, depths, private_data } => {
                let answer = listening::AcceptCall { number, pair, depths, private_data };
                self.accept(env, id, request, answer)
            }
            Call::Reject { request: number, private_data } => {
                self.reject(id, request, number, private_data, actions)
            }
            Call::StopListening { listener } => {
                self.stop_listening(env, id, request, listener, actions)
            }
            Call::Disconnect { pair } => self.disconnect(id, request, pair, actions),
            Call::EndQueuePair { pair } => self.end_pair(env, id, request, pair, actions),
            Call::Hello { .. }
            | Call::RegisterMemory { .. }
            | Call::CreateChannel
            | Call::CreateCompletionQueue { .. }
            | Call::CreateSharedReceiveQueue { .. }
            | Call::CreateQueuePair { .. }
            | Call::Route { .. }
            | Call::Connect(_)
            | Call::Listen { .. } => Err(invalid("the call is not expected here")),
        }
    }

    /// Returns the program `id`. Refuses the call if its session is not open.
    fn open(&mut self, id: ProgramId) -> Result<&mut Program, Refusal> {
        let program = self.programs.get_mut(&id).filter(|program| program.is_open());
        program.ok_or_else(|| invalid("the session is not open"))
    }

    /// Continues a call after all workers have answered. Returns the actions (close, abort, reject) that the core must
    /// apply to streams.
    pub(super) fn resume(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        step: ProgramStep,
        result: Result<(), String>,
    ) -> Vec<StreamAction> {
        match step {
            ProgramStep::Attached => return self.on_attached(env, id, result),
            ProgramStep::Registered { stag, request } => {
                self.on_registered(env, id, stag, request, result);
            }
            ProgramStep::RegionChecked { stag, request } => {
                self.on_region_checked(env, id, stag, request, result);
            }
            ProgramStep::WindowAdded { window, request } => {
                self.on_window_added(env, id, window, request, result);
            }
            ProgramStep::WindowRemoved { window, request } => {
                self.on_window_removed(env, id, window, request);
            }
            ProgramStep::WindowBound { pair, sequence } => {
                self.on_window_bound(env, id, pair, sequence, result.is_ok());
            }
            ProgramStep::Deregistered { stag } => self.on_region_removed(env, id, stag),
            ProgramStep::QueueAdded { queue, request } => {
                self.on_queue_added(id, queue, request, result);
            }
            ProgramStep::QueueRemoved { queue, request } => {
                self.on_queue_removed(id, queue, request);
            }
            ProgramStep::PairAdded { pair, serial } => {
                return self.on_pair_added(env, id, pair, serial, result);
            }
            ProgramStep::PairRemoved { pair, request } => self.on_pair_removed(id, pair, request),
            ProgramStep::Listening { listener, request } => {
                self.on_listening(env, id, listener, request, result);
            }
            ProgramStep::ListenerRemoved { listener, request } => {
                self.on_listener_removed(env, id, listener, request);
            }
            ProgramStep::Removed => self.on_removed(env, id),
        }
        Vec::new()
    }

    /// Counts and logs the failure of a QP, CQ or SRQ, and reports it to the program. Also reports that few receives
    /// remain in an SRQ, and performs the request of a QP to bind a window.
    pub(super) fn on_event(&mut self, env: &mut Env, event: ProgramEvent) {
        let (id, reason, event) = match event {
            ProgramEvent::QueuePairFailed { id, reason } => {
                let (pair, message) = (id.number, reason.to_string());
                let sentence = format!("QP {pair}: {message}");
                (id.program, sentence, Event::QueuePairFailed { pair, message })
            }
            ProgramEvent::CompletionQueueFailed { program, number, reason } => {
                let (queue, message) = (number, reason.to_string());
                let sentence = format!("completion queue {queue}: {message}");
                (program, sentence, Event::CompletionQueueFailed { queue, message })
            }
            ProgramEvent::SharedReceivesLow { program, number } => {
                if let Some(program) = self.programs.get(&program) {
                    program.outbox.event(Event::SharedReceivesLow { queue: number });
                }
                return;
            }
            ProgramEvent::SharedReceivesFailed { program, number, reason } => {
                let (queue, message) = (number, reason.to_string());
                let sentence = format!("shared receive queue {queue}: {message}");
                (program, sentence, Event::SharedReceivesFailed { queue, message })
            }
            ProgramEvent::BindWindow { id, sequence, bind } => {
                return self.bind_window(env, id, sequence, bind);
            }
        };
        self.tally.failures += 1;
        if let Some(program) = self.programs.get(&id) {
            env.log.push(EventKind::ProgramError { program: id.0, reason });
            program.outbox.event(event);
        }
    }
}

/// Refuses a call while the appliance is draining.
fn check_not_draining(env: &Env) -> Result<(), Refusal> {
    env.check_not_draining().map_err(|error| refusal(RefusalKind::Draining, error.message))
}

/// Returns true once the appliance is stopping.
fn is_stopping(env: &Env) -> bool {
    matches!(env.phase, Phase::Stopping { .. })
}

/// Returns the RDMA devices of the welcome: one for each interface of the appliance.
fn devices(env: &Env) -> Vec<Device> {
    let ports = &env.context.ports;
    let mac_of = |port: &str| {
        let view = ports.iter().find(|view: &&PortView| view.section.name == port);
        view.map(|view| view.port.info().mac).unwrap_or_default()
    };
    let device = |interface: &config::InterfaceSection| Device {
        name: interface.name.clone(),
        addresses: interface.addresses.iter().map(|net| net.addr()).collect(),
        mac: mac_of(&interface.port),
        mtu: interface.mtu.into(),
    };
    env.context.config.interfaces.iter().map(device).collect()
}

pub(super) fn refusal(kind: RefusalKind, sentence: impl Into<String>) -> Refusal {
    Refusal { kind, message: sentence.into() }
}

fn invalid(sentence: impl Into<String>) -> Refusal {
    refusal(RefusalKind::Invalid, sentence)
}

fn in_use(sentence: impl Into<String>) -> Refusal {
    refusal(RefusalKind::InUse, sentence)
}

/// Refuses the removal of an object that has users.
fn check_unused(users: u32, sentence: std::fmt::Arguments<'_>) -> Result<(), Refusal> {
    if users == 0 { Ok(()) } else { Err(in_use(sentence.to_string())) }
}

fn no_memory(error: impl std::fmt::Display) -> Refusal {
    refusal(RefusalKind::NoMemory, error.to_string())
}

/// Returns the refusal of a call that exceeds the limit of the configuration key `programs.{key}`.
fn limit(key: &str, most: impl std::fmt::Display) -> Refusal {
    refusal(RefusalKind::Limit, format!("programs.{key} allows {most} for a program"))
}

fn one(descriptor: OwnedFd) -> Vec<OwnedFd> {
    vec![descriptor]
}

/// Accessors for tests.
#[cfg(test)]
impl Programs {
    pub(super) fn tally(&self) -> ProgramTally {
        self.tally
    }

    /// Checks that all tables are empty and all protection domains are released.
    pub(super) fn assert_empty(&self) {
        assert!(self.programs.is_empty() && self.keys.is_empty() && self.streams.is_empty());
        assert!(self.listeners.is_empty());
        assert_eq!(self.domains.free.len(), self.domains.used as usize);
    }
}
