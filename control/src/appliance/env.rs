//! What every part uses: the facts of the set-up, the outputs (commands to workers, memory to be made, events for the
//! log, files, local programs) and the tickets that workers have not answered yet.
//!
//! The parts get it with each call. It knows none of them: what comes back for a ticket or a number is a value
//! ([`Then`], [`Loading`]) that [`super::core::Core`] routes.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use dataplane::memory::Memory;
use dataplane::{Command, Counters, InterfaceId, Ticket, WorkerId};
use ddp::StreamId;

use super::budget::Budget;
use super::counters::Tally;
use super::handshakes::Handshakes;
use super::ipsec::Ipsec;
use super::loader::{Load, Wanted, Watch};
use super::notes::Notes;
use super::pending::{Loading, Then};
use super::ports::PortView;
use super::stores::Stores;
use super::tickets::{Complete, Tickets};
use crate::files::Writer;
use crate::shm;
use api::{self, AccessTally, ApiError, EventKind, EventLog};
use config::Config;
use config::beneath::Directories;

/// What is known from the start on. Only a reload changes any of it: a part of the configuration.
pub(super) struct Facts {
    pub config: Config,
    /// The workers' counters.
    pub counters: Vec<Arc<Counters>>,
    /// Per interface, in the configuration's order, the workers that can open streams on it.
    pub served: Vec<Vec<WorkerId>>,
    pub ports: Vec<PortView>,
    pub dpdk_version: Option<String>,
    pub hugepages: bool,
    pub access_tally: Arc<AccessTally>,
    pub started: Instant,
}

impl Facts {
    pub(super) fn interface_named(&self, name: &str) -> Option<InterfaceId> {
        let at = self.config.interfaces.iter().position(|interface| interface.name == name)?;
        u16::try_from(at).ok().map(InterfaceId)
    }
}

/// Where a region or a listener was declared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// In the configuration file.
    Configuration,
    /// By a request of the API.
    Api,
}

/// Phase of the appliance's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Running,
    /// No new streams; jobs and then streams end until the deadline.
    Draining {
        deadline: Instant,
        /// The workers have been sent the command to drain.
        asked: bool,
        /// Workers without streams.
        drained: usize,
    },
    /// Workers have been sent the command to stop.
    Stopping {
        /// Workers that have stopped or died.
        stopped: usize,
    },
}

/// What every part is passed with each call; see the module.
pub(super) struct Env {
    pub facts: Facts,
    pub phase: Phase,
    /// The operator wants no new streams and jobs; those that are there go on.
    pub drained_by_operator: bool,
    pub log: EventLog,
    pub writer: Writer<Memory>,
    pub shm: shm::Server,
    pub tally: Tally,
    pub budget: Budget,
    /// Of this turn.
    pub now: Instant,
    pub handshakes: Handshakes,
    pub notes: Notes,
    pub ipsec: Ipsec,
    /// Directories that may hold files.
    pub files: Arc<Directories>,
    /// Confirmations that wait for files.
    pub stores: Stores,
    tickets: Tickets<Then>,
    /// Commands that the rings have not taken yet, per worker.
    commands: Vec<VecDeque<Command>>,
    /// Requests that the loader has not taken yet.
    loads: VecDeque<Load>,
    /// Purpose and progress of each request, by its number.
    loading: HashMap<u64, (Loading, Arc<Watch>)>,
    /// Of [`number`](Env::number), from 1.
    next_number: u64,
}

impl Env {
    /// Whether a file that a request names may be opened.
    pub(super) fn admit(&self, path: &Path) -> Result<(), ApiError> {
        let admitted = self.files.admit(path);
        admitted.map_err(|refused| ApiError::forbidden(refused.to_string()))
    }

    pub(super) fn new(
        facts: Facts,
        log: EventLog,
        writer: Writer<Memory>,
        shm: shm::Server,
        budget: Budget,
    ) -> Env {
        let files = Arc::new(facts.config.directories());
        writer.follow(Arc::clone(&files));
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
            files,
            stores: Stores::default(),
            tickets: Tickets::default(),
            commands: facts.counters.iter().map(|_| VecDeque::new()).collect(),
            facts,
            loads: VecDeque::new(),
            loading: HashMap::new(),
            next_number: 1,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether streams and jobs may begin here.
    ///
    /// # Errors
    /// The refusal: the appliance ends, or the operator drains it.
    pub(super) fn may_begin(&self) -> Result<(), ApiError> {
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

    /// Commands for one worker, oldest first.
    pub(super) fn commands(&mut self, worker: usize) -> &mut VecDeque<Command> {
        &mut self.commands[worker]
    }

    /// Sends one command to every worker under one ticket.
    pub(super) fn broadcast(&mut self, then: Then, command: impl Fn(Ticket) -> Command) {
        let ticket = Ticket(self.tickets.issue(self.commands.len(), then));
        self.commands.iter_mut().for_each(|queue| queue.push_back(command(ticket)));
    }

    /// Sends several commands to every worker under one ticket; they are carried out in order.
    pub(super) fn broadcast_all(&mut self, then: Then, commands: &[&dyn Fn(Ticket) -> Command]) {
        let ticket = Ticket(self.tickets.issue(self.commands.len() * commands.len(), then));
        for queue in &mut self.commands {
            queue.extend(commands.iter().map(|command| command(ticket)));
        }
    }

    /// Sends a command to every worker that has no answer.
    pub(super) fn command_all(&mut self, command: impl Fn() -> Command) {
        self.commands.iter_mut().for_each(|queue| queue.push_back(command()));
    }

    /// Sends a command to one worker.
    pub(super) fn command(&mut self, worker: u16, command: Command) {
        match self.commands.get_mut(usize::from(worker)) {
            Some(queue) => queue.push_back(command),
            None => self.tally.unexpected_events += 1,
        }
    }

    /// A ticket that one worker will answer.
    pub(super) fn issue(&mut self, then: Then) -> Ticket {
        Ticket(self.tickets.issue(1, then))
    }

    /// A ticket that so many workers, at least one, will answer.
    pub(super) fn issue_to(&mut self, workers: usize, then: Then) -> Ticket {
        Ticket(self.tickets.issue(workers, then))
    }

    /// One worker's answer: what follows, when it was the last one.
    pub(super) fn answer(
        &mut self,
        ticket: Ticket,
        result: Result<(), String>,
    ) -> Option<Complete<Then>> {
        self.tickets.answer(ticket.0, result)
    }

    /// What waits for a ticket, to be changed while answers come in.
    pub(super) fn waiting(&mut self, ticket: Ticket) -> Option<&mut Then> {
        self.tickets.get_mut(ticket.0)
    }

    /// Removes a ticket that will not be answered.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Option<Then> {
        self.tickets.cancel(ticket.0)
    }

    /// Workers have answered all tickets.
    pub(super) fn is_answered(&self) -> bool {
        self.tickets.is_empty()
    }

    /// Requests memory from the loader. The result has the number that is returned.
    pub(super) fn load(&mut self, wanted: Wanted, loading: Loading) -> u64 {
        self.load_below(Arc::clone(&self.files), wanted, loading)
    }

    /// The same with files in other directories.
    pub(super) fn load_below(
        &mut self,
        files: Arc<Directories>,
        wanted: Wanted,
        loading: Loading,
    ) -> u64 {
        let id = self.number();
        let watch = Arc::<Watch>::default();
        self.loading.insert(id, (loading, Arc::clone(&watch)));
        self.loads.push_back(Load { id, wanted, files, watch });
        id
    }

    /// Progress of the memory with this number, until it has come.
    pub(super) fn watch(&self, id: u64) -> Option<&Arc<Watch>> {
        self.loading.get(&id).map(|(_, watch)| watch)
    }

    /// Ends the preparation of all regions: the appliance ends.
    pub(super) fn cancel_regions(&self) {
        let of_region = |(loading, _): &&(Loading, Arc<Watch>)| {
            matches!(loading, Loading::Region | Loading::Reload)
        };
        self.loading.values().filter(of_region).for_each(|(_, watch)| watch.cancel());
    }

    /// Memory that is to be made.
    pub(super) fn poll_load(&mut self) -> Option<Load> {
        self.loads.pop_front()
    }

    /// What the memory with this number is for.
    pub(super) fn take_loading(&mut self, id: u64) -> Option<Loading> {
        self.loading.remove(&id).map(|(loading, _)| loading)
    }

    /// A number that was not used before in this run.
    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Replaces the directories that may hold files. Open files whose names lead elsewhere are opened again.
    pub(super) fn use_directories(&mut self, files: Directories) {
        self.files = Arc::new(files);
        self.writer.follow(Arc::clone(&self.files));
    }

    pub(super) fn warn(&mut self, message: String) {
        tracing::warn!("{message}");
        self.log.push(EventKind::Warning { message });
    }
}

/// A stream's number, or an association's, as the API has it.
pub(super) fn api_id(stream: StreamId) -> api::StreamId {
    api::StreamId(stream.0)
}
