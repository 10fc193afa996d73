//! A program and its objects, as the control thread has them.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use config::ProgramsSection;
use dataplane::memory::RingConsumer;
use dataplane::{Connect, ListenerConfig, ListenerId, ProgramId, Signal, WorkerId};
use ddp::{PdId, Stag, StreamId};
use tcp_lite::endpoint::UlpConfig;
use verbs_session::message::{Answer, Depths, Refusal, RefusalKind, Ring, Welcome};

use super::outbox::Outbox;
use super::prepare::Attachment;
use super::refusal;
use super::share::{Hold, Share};
use super::table::Table;

/// Maximum number of protection domains of a program.
const MAX_DOMAINS: u32 = 1024;

/// A program.
pub(super) struct Program {
    pub(super) id: ProgramId,
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) pid: i32,
    pub(super) since: Instant,
    pub(super) state: State,
    pub(super) outbox: Arc<Outbox>,
    pub(super) share: Arc<Share>,
    pub(super) domains: Table<Domain>,
    pub(super) regions: HashMap<Stag, Region>,
    pub(super) channels: Table<Channel>,
    pub(super) queues: Table<Queue>,
    pub(super) pairs: Table<Pair>,
    pub(super) listeners: Table<Listener>,
    /// Connection requests that wait for an answer.
    pub(super) requests: BTreeMap<u64, ConnectionRequest>,
}

/// State of a program.
pub(super) enum State {
    /// The workers are being told.
    Attaching {
        request: u32,
        welcome: Box<Welcome>,
        descriptors: Vec<OwnedFd>,
    },
    Open,
    /// The session has ended. `is_removed`: all workers have removed the program.
    Ending {
        is_removed: bool,
    },
}

/// A protection domain.
pub(super) struct Domain {
    pub(super) id: PdId,
    /// Memory regions and QPs.
    pub(super) users: u32,
}

/// A memory region. It ends when all workers have removed it and its memory is free.
pub(super) struct Region {
    pub(super) pd: u32,
    pub(super) key: u64,
    pub(super) len: u64,
    pub(super) phase: RegionPhase,
    pub(super) is_removed: bool,
    pub(super) is_freed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RegionPhase {
    Adding,
    Active,
    /// `request`: the call to answer.
    Removing {
        request: Option<u32>,
    },
}

pub(super) struct Channel {
    pub(super) signal: Arc<Signal>,
    /// CQs that use it.
    pub(super) users: u32,
}

/// A completion queue.
pub(super) struct Queue {
    pub(super) channel: Option<u32>,
    /// Send and receive queues of QPs that use it.
    pub(super) users: u32,
    /// False while the workers add or remove it.
    pub(super) is_active: bool,
    /// Reply to the call that creates it.
    pub(super) answer: Option<(Answer, OwnedFd)>,
    pub(super) _hold: Hold,
}

/// A queue pair. It has one connection in its life.
pub(super) struct Pair {
    /// Number that no other QP of the appliance has had.
    pub(super) serial: u64,
    pub(super) pd: u32,
    pub(super) send_queue: u32,
    pub(super) receive_queue: u32,
    pub(super) max_sends: u32,
    pub(super) max_receives: u32,
    pub(super) copy_sources: bool,
    /// The worker's ends of SQ and RQ, until a worker has them.
    pub(super) rings: Option<(RingConsumer, RingConsumer)>,
    /// The worker that has the QP.
    pub(super) worker: Option<WorkerId>,
    /// Depths of the call; in effect unless the start-up negotiates others.
    pub(super) depths: Depths,
    pub(super) state: PairState,
    pub(super) _hold: Hold,
}

pub(super) enum PairState {
    /// No connection yet.
    New,
    /// A worker adds the QP. The call is answered after that.
    Starting {
        start: Start,
        request: u32,
    },
    /// A worker opens the connection.
    Connecting,
    /// A worker accepts the connection.
    Accepting(StreamId),
    Connected(StreamId),
    /// The connection has ended or failed.
    Ended,
    /// The worker removes the QP.
    Removing,
}

/// What follows when the worker has a QP.
pub(super) enum Start {
    Connect(Box<Connect>),
    Accept { stream: StreamId, listener: ListenerId, private_data: Vec<u8>, ulp: UlpConfig },
}

/// A listener of a program: one of the workers' listeners for each address.
pub(super) struct Listener {
    pub(super) at_workers: Vec<Arc<ListenerConfig>>,
    pub(super) local: std::net::SocketAddr,
    pub(super) transport: config::Transport,
    pub(super) phase: ListenerPhase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListenerPhase {
    Adding,
    Active,
    Removing,
}

/// A peer's request for a connection.
pub(super) struct ConnectionRequest {
    pub(super) listener: u32,
    pub(super) id: ListenerId,
}

impl Program {
    pub(super) fn new(
        id: ProgramId,
        attachment: Attachment,
        settings: &ProgramsSection,
        state: State,
        now: Instant,
    ) -> Program {
        Program {
            id,
            name: attachment.name,
            uid: attachment.process.uid,
            pid: attachment.process.pid,
            since: now,
            state,
            outbox: attachment.outbox,
            share: attachment.share,
            domains: Table::new(MAX_DOMAINS),
            regions: HashMap::new(),
            channels: Table::new(settings.channels()),
            queues: Table::new(settings.completion_queues),
            pairs: Table::new(settings.queue_pairs),
            listeners: Table::new(settings.listeners),
            requests: BTreeMap::new(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Answers a call.
    pub(super) fn reply(&self, request: u32, result: Result<Answer, Refusal>) {
        self.outbox.reply(request, result, Vec::new());
    }

    /// Returns the domain with this number.
    pub(super) fn domain(&self, pd: u32) -> Result<&Domain, Refusal> {
        self.domains.get(pd).ok_or_else(|| not_found("protection domain", pd))
    }

    /// Changes the number of users of a domain.
    pub(super) fn count_domain_user(&mut self, pd: u32, begins: bool) {
        if let Some(domain) = self.domains.get_mut(pd) {
            domain.users = if begins { domain.users + 1 } else { domain.users.saturating_sub(1) };
        }
    }

    /// Changes the number of users of the CQs of a QP.
    pub(super) fn count_queue_users(&mut self, queues: [u32; 2], begins: bool) {
        for number in queues {
            if let Some(queue) = self.queues.get_mut(number) {
                queue.users = if begins { queue.users + 1 } else { queue.users.saturating_sub(1) };
            }
        }
    }
}

impl Pair {
    /// Returns the reply to the call that creates it.
    pub(super) fn answer(pair: u32, sends: Ring, receives: Ring) -> Answer {
        Answer::QueuePair { pair, sends, receives }
    }

    pub(super) fn queues(&self) -> [u32; 2] {
        [self.send_queue, self.receive_queue]
    }

    /// Returns the stream of its connection, if it has a number.
    pub(super) fn stream(&self) -> Option<StreamId> {
        match &self.state {
            PairState::Accepting(stream) | PairState::Connected(stream) => Some(*stream),
            PairState::Starting { start: Start::Accept { stream, .. }, .. } => Some(*stream),
            _ => None,
        }
    }
}

/// Returns the refusal of a call that names an object which does not exist.
pub(super) fn not_found(kind: &str, number: impl std::fmt::Display) -> Refusal {
    refusal(RefusalKind::NotFound, format!("there is no {kind} {number}"))
}
