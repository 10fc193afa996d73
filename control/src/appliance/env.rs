//! State that all parts of the control thread share: the set-up, outputs (commands to workers, memory requests, log
//! events, files, local programs), and tickets: outstanding requests to the workers.
//!
//! Each part receives [`Env`] with its calls. `Env` depends on no part: the continuation of a ticket or memory request
//! is a value ([`Continuation`], [`Loading`]) that [`super::core::Core`] passes to the responsible part.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use api::{self, AccessTally, ApiError, AuditLog, EventKind, EventLog};
use config::Config;
use config::directories::Directories;
use dataplane::memory::Memory;
use dataplane::{Command, Counters, InterfaceId, Ticket, WorkerId};
use ddp::StreamId;

use super::budget::Budget;
use super::counters::Tally;
use super::handshakes::Handshakes;
use super::ipsec::Ipsec;
use super::loader::{Load, LoadTask, Watch};
use super::notes::Notes;
use super::pending::{Continuation, Loading};
use super::pending_confirmations::PendingConfirmations;
use super::ports::PortView;
use super::stags::StagAllocator;
use super::tickets::{Complete, Tickets};
use crate::files::Writer;
use crate::shm;

/// Configuration, workers and ports. Fixed at the start, except for the parts of the configuration that a reload
/// changes.
pub(super) struct Context {
    pub config: Config,
    pub counters: Vec<Arc<Counters>>,
    /// Workers that can open streams, per interface, in the order of the configuration.
    pub interface_workers: Vec<Vec<WorkerId>>,
    pub ports: Vec<PortView>,
    pub dpdk_version: Option<String>,
    /// True if packet pools are in hugepages.
    pub hugepages: bool,
    pub access_tally: Arc<AccessTally>,
    pub audit: AuditLog,
    pub started: Instant,
}

impl Context {
    pub(super) fn interface_named(&self, name: &str) -> Option<InterfaceId> {
        let at = self.config.interfaces.iter().position(|interface| interface.name == name)?;
        u16::try_from(at).ok().map(InterfaceId)
    }
}

/// Origin of a region or a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    Configuration,
    Api,
}

/// Phase of the appliance, from running to stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Running,
    /// No new streams are accepted. The streams are closed when the jobs have ended, and aborted at the deadline.
    Draining {
        deadline: Instant,
        /// True once the command to drain is queued for the workers.
        drain_sent: bool,
        /// Number of workers without streams.
        drained_workers: usize,
    },
    /// The command to stop is queued for the workers.
    Stopping {
        /// Number of workers that have stopped or panicked.
        stopped_workers: usize,
    },
}

/// State that every part receives with each call; see the module documentation.
pub(super) struct Env {
    pub context: Context,
    pub phase: Phase,
    /// True while the operator's drain is in force. New streams and jobs are refused; existing streams and jobs
    /// continue.
    pub drained_by_operator: bool,
    pub log: EventLog,
    pub writer: Writer<Memory>,
    pub shm: shm::Server,
    pub tally: Tally,
    pub budget: Budget,
    /// Time of the current iteration of the control thread's loop.
    pub now: Instant,
    pub handshakes: Handshakes,
    pub notes: Notes,
    pub ipsec: Ipsec,
    /// STags of regions and of programs' memory regions.
    pub stags: StagAllocator,
    /// Directories below which files may be opened.
    pub files: Arc<Directories>,
    /// Confirmations to peers that wait until files are written.
    pub confirmations: PendingConfirmations,
    tickets: Tickets<Continuation>,
    /// Commands that are not yet in the workers' rings, per worker, oldest first.
    commands: Vec<VecDeque<Command>>,
    /// Requests that the loader has not yet received.
    loads: VecDeque<Load>,
    /// Continuation and progress of each memory request, by its number.
    loading: HashMap<u64, (Loading, Arc<Watch>)>,
    /// Next result of [`allocate_number`](Env::allocate_number); starts at 1.
    next_number: u64,
}

impl Env {
    /// Checks that the path of a request is below a directory in which files may be opened.
    pub(super) fn check_path(&self, path: &Path) -> Result<(), ApiError> {
        let admitted = self.files.admit(path);
        admitted.map_err(|refused| ApiError::forbidden(refused.to_string()))
    }

    pub(super) fn new(
        facts: Context,
        log: EventLog,
        writer: Writer<Memory>,
        shm: shm::Server,
        budget: Budget,
    ) -> Env {
        let files = Arc::new(facts.config.directories());
        writer.reopen_moved_files(Arc::clone(&files));
        Env {
            phase: Phase::Running,
            drained_by_operator: false,
            log,
            writer,
            shm,
            tally: Tally::default(),
            budget,
            now: facts.started,
            handshakes: Handshakes::default(),
            notes: Notes::default(),
            ipsec: Ipsec::default(),
            stags: StagAllocator::default(),
            files,
            confirmations: PendingConfirmations::default(),
            tickets: Tickets::default(),
            commands: facts.counters.iter().map(|_| VecDeque::new()).collect(),
            context: facts,
            loads: VecDeque::new(),
            loading: HashMap::new(),
            next_number: 1,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Checks that new streams and jobs are allowed now.
    ///
    /// # Errors
    /// The appliance is ending, or the operator's drain is in force.
    pub(super) fn check_not_draining(&self) -> Result<(), ApiError> {
        if !self.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if self.drained_by_operator {
            let sentence =
                "the appliance is draining, and begins no streams and jobs until `ddpctl undrain`";
            return Err(ApiError::unavailable(sentence));
        }
        Ok(())
    }

    pub(super) fn workers(&self) -> usize {
        self.commands.len()
    }

    /// Returns the queued commands for one worker, oldest first.
    pub(super) fn commands(&mut self, worker: usize) -> &mut VecDeque<Command> {
        &mut self.commands[worker]
    }

    /// Sends a command to every worker, with one ticket for all.
    pub(super) fn broadcast(
        &mut self,
        continuation: Continuation,
        command: impl Fn(Ticket) -> Command,
    ) {
        let ticket = Ticket(self.tickets.issue(self.commands.len(), continuation));
        self.commands.iter_mut().for_each(|queue| queue.push_back(command(ticket)));
    }

    /// Sends several commands to every worker, with one ticket for all. The workers execute them in order.
    pub(super) fn broadcast_all(
        &mut self,
        continuation: Continuation,
        commands: &[&dyn Fn(Ticket) -> Command],
    ) {
        let ticket = Ticket(self.tickets.issue(self.commands.len() * commands.len(), continuation));
        for queue in &mut self.commands {
            queue.extend(commands.iter().map(|command| command(ticket)));
        }
    }

    /// Sends every worker a command that has no answer.
    pub(super) fn send_to_all(&mut self, command: impl Fn() -> Command) {
        self.commands.iter_mut().for_each(|queue| queue.push_back(command()));
    }

    pub(super) fn send_command(&mut self, worker: u16, command: Command) {
        match self.commands.get_mut(usize::from(worker)) {
            Some(queue) => queue.push_back(command),
            None => self.tally.unexpected_events += 1,
        }
    }

    /// Issues a ticket for one worker's answer.
    pub(super) fn issue(&mut self, continuation: Continuation) -> Ticket {
        Ticket(self.tickets.issue(1, continuation))
    }

    /// Issues a ticket for the answers of `workers` workers, at least one.
    pub(super) fn issue_to(&mut self, workers: usize, continuation: Continuation) -> Ticket {
        Ticket(self.tickets.issue(workers, continuation))
    }

    /// Records one worker's answer. Returns the continuation with the last answer, else `None`.
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        result: Result<(), String>,
    ) -> Option<Complete<Continuation>> {
        self.tickets.answer(ticket.0, result)
    }

    /// Returns the continuation of a ticket, for updates while answers arrive. `None` for an unknown ticket.
    pub(super) fn continuation_mut(&mut self, ticket: Ticket) -> Option<&mut Continuation> {
        self.tickets.get_mut(ticket.0)
    }

    /// Removes a ticket that will not be answered. Returns its continuation; `None` for an unknown ticket.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Option<Continuation> {
        self.tickets.cancel(ticket.0)
    }

    /// Returns true if no ticket is outstanding.
    pub(super) fn is_answered(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Requests memory from the loader. Returns the request's number, which is part of the result.
    pub(super) fn load(&mut self, task: LoadTask, loading: Loading) -> u64 {
        self.load_with_directories(Arc::clone(&self.files), task, loading)
    }

    /// Requests memory like [`load`](Self::load), but files must be in `files` instead of the current directories.
    pub(super) fn load_with_directories(
        &mut self,
        files: Arc<Directories>,
        task: LoadTask,
        loading: Loading,
    ) -> u64 {
        let id = self.allocate_number();
        let watch = Arc::<Watch>::default();
        self.loading.insert(id, (loading, Arc::clone(&watch)));
        self.loads.push_back(Load { id, task, files, watch });
        id
    }

    /// Returns the progress of a memory request until its result is taken. `None` for an unknown request.
    pub(super) fn watch(&self, id: u64) -> Option<&Arc<Watch>> {
        self.loading.get(&id).map(|(_, watch)| watch)
    }

    /// Cancels the preparation of all regions, because the appliance is ending.
    pub(super) fn cancel_regions(&self) {
        let of_region = |(loading, _): &&(Loading, Arc<Watch>)| {
            matches!(loading, Loading::Region | Loading::Reload)
        };
        self.loading.values().filter(of_region).for_each(|(_, watch)| watch.cancel());
    }

    /// Returns the next memory request for the loader. `None` if there is none.
    pub(super) fn poll_load(&mut self) -> Option<Load> {
        self.loads.pop_front()
    }

    /// Removes a memory request that has finished. Returns its continuation. `None` for an unknown request.
    pub(super) fn take_loading(&mut self, id: u64) -> Option<Loading> {
        self.loading.remove(&id).map(|(loading, _)| loading)
    }

    /// Returns a number that this appliance has not used since its start.
    pub(super) fn allocate_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Replaces the directories below which files may be opened. The file writer reopens files whose names now refer to
    /// other files.
    pub(super) fn set_directories(&mut self, files: Directories) {
        self.files = Arc::new(files);
        self.writer.reopen_moved_files(Arc::clone(&self.files));
    }

    pub(super) fn warn(&mut self, message: String) {
        tracing::warn!("{message}");
        self.log.push(EventKind::Warning { message });
    }
}

/// Returns the API's number of a stream or association.
pub(super) fn api_id(stream: StreamId) -> api::StreamId {
    api::StreamId(stream.0)
}
