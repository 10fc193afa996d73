//! A program and its objects, in the tables of the control thread.
//!
//! A domain, channel, CQ or SRQ counts the objects that use it, and cannot be removed while there are any. The lookups
//! fail for objects that the workers are still adding (except QPs) or already removing. This module sends no commands
//! to workers.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use api::AuditedProgram;
use config::ProgramsSection;
use dataplane::memory::RingConsumer;
use dataplane::{
    Connect, ListenerConfig, ListenerId, ProgramId, Receives, SharedReceives, Signal, WindowId,
    WindowKind, WorkerId,
};
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

/// A program that is attaching, attached or ending.
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
    pub(super) windows: HashMap<WindowId, Window>,
    pub(super) channels: Table<Channel>,
    pub(super) queues: Table<Queue>,
    pub(super) pairs: Table<Pair>,
    pub(super) shared_queues: Table<SharedQueue>,
    pub(super) listeners: Table<Listener>,
    /// Connection requests that wait for an answer.
    pub(super) requests: BTreeMap<u64, ConnectionRequest>,
}

pub(super) enum State {
    /// The workers are adding the program. The program's first call, hello (`request`), is answered afterwards.
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

pub(super) struct Domain {
    pub(super) id: PdId,
    /// Number of memory regions, memory windows, SRQs and QPs in the domain.
    pub(super) users: u32,
}

/// A memory region. It leaves the table when all workers have removed it and its memory is free.
pub(super) struct Region {
    pub(super) pd: u32,
    /// Key that the control thread receives when the memory is free.
    pub(super) key: u64,
    /// Length, bytes.
    pub(super) len: u64,
    pub(super) phase: RegionPhase,
    /// True if all workers have removed the region.
    pub(super) is_removed: bool,
    /// True if the memory is free.
    pub(super) is_freed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RegionPhase {
    Adding,
    Active,
    /// The workers check that no memory window is bound to the region. `request`: the call that removes the region.
    Checking {
        request: u32,
    },
    /// The workers remove the region. `request`: the call to answer when its memory is free; `None` if no call removes
    /// the region.
    Removing {
        request: Option<u32>,
    },
}

pub(super) struct Window {
    pub(super) pd: u32,
    pub(super) kind: WindowKind,
    pub(super) phase: WindowPhase,
    pub(super) _hold: Hold,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WindowPhase {
    Adding,
    Active,
    Removing,
}

pub(super) struct Channel {
    pub(super) signal: Arc<Signal>,
    /// Number of CQs that use the channel.
    pub(super) users: u32,
}

/// A completion queue.
pub(super) struct Queue {
    pub(super) channel: Option<u32>,
    /// Number of send and receive queues that complete to the CQ.
    pub(super) users: u32,
    /// True if all workers have added the CQ and its removal has not begun.
    pub(super) is_active: bool,
    /// Reply to the call that creates the CQ, and its descriptor, until the workers have answered.
    pub(super) answer: Option<(Answer, OwnedFd)>,
    pub(super) _hold: Hold,
}

pub(super) struct SharedQueue {
    pub(super) pd: u32,
    /// Number of QPs that use the SRQ.
    pub(super) users: u32,
    pub(super) receives: Arc<SharedReceives>,
    pub(super) _hold: Hold,
}

/// A queue pair. It can be connected only once.
pub(super) struct Pair {
    /// Number that, unlike the QP's number, is never reused in the appliance.
    pub(super) serial: u64,
    pub(super) pd: u32,
    /// Number of the CQ that receives the completions of the SQ.
    pub(super) send_queue: u32,
    /// Number of the CQ that receives the completions of the RQ.
    pub(super) receive_queue: u32,
    /// Maximum number of incomplete posted operations.
    pub(super) max_sends: u32,
    /// Maximum number of incomplete posted receives.
    pub(super) max_receives: u32,
    /// True if the program may change source bytes before their operation is complete: sent data is copied.
    pub(super) copy_sources: bool,
    /// Number of the SRQ; `None` if the QP has its own RQ.
    pub(super) shared_queue: Option<u32>,
    /// The worker's ends of SQ and RQ, or of the SRQ; `None` once they have been sent to a worker.
    pub(super) rings: Option<(RingConsumer, Receives)>,
    /// The worker that serves the QP; `None` before the QP is connected.
    pub(super) worker: Option<WorkerId>,
    /// IRD and ORD of the call that connects or accepts, then those negotiated for the established connection.
    pub(super) depths: Depths,
    pub(super) state: PairState,
    pub(super) _hold: Hold,
}

pub(super) enum PairState {
    /// No connection yet.
    New,
    /// A worker adds the QP. The call `request` is answered afterwards.
    Starting {
        start: Start,
        request: u32,
    },
    /// A worker opens the connection.
    Connecting,
    /// A worker accepts the connection, or the established connection is not reported yet.
    Accepting(StreamId),
    Connected(StreamId),
    /// The connection has ended or failed.
    Ended,
    /// The worker removes the QP.
    Removing,
}

/// Next step after the worker has added a QP.
pub(super) enum Start {
    /// `needs_settling`: the peer needs a delay before the first FPDU.
    Connect {
        connect: Box<Connect>,
        needs_settling: bool,
    },
    Accept {
        stream: StreamId,
        listener: ListenerId,
        private_data: Vec<u8>,
        ulp: UlpConfig,
    },
    /// The worker ends the QP, and flushes its posts.
    End,
}

/// A listener of a program. It has one worker listener for each address.
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

/// A peer's connection request that waits for the program's answer.
pub(super) struct ConnectionRequest {
    /// Number of the program's listener.
    pub(super) listener: u32,
    /// Number of the worker listener that received the request.
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
            windows: HashMap::new(),
            channels: Table::new(settings.channels()),
            queues: Table::new(settings.completion_queues),
            pairs: Table::new(settings.queue_pairs),
            shared_queues: Table::new(settings.queue_pairs),
            listeners: Table::new(settings.listeners),
            requests: BTreeMap::new(),
        }
    }

    /// Returns the program's identity for the audit log.
    pub(super) fn audited(&self) -> AuditedProgram<'_> {
        let Program { uid, pid, ref name, .. } = *self;
        AuditedProgram { uid, pid, program: Some(self.id.0), name }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub(super) fn reply(&self, request: u32, result: Result<Answer, Refusal>) {
        self.outbox.reply(request, result, Vec::new());
    }

    pub(super) fn domain(&self, pd: u32) -> Result<&Domain, Refusal> {
        self.domains.get(pd).ok_or_else(|| not_found("protection domain", pd))
    }

    /// Returns a memory region that all workers have registered and whose removal has not begun.
    pub(super) fn region(&mut self, stag: Stag) -> Result<&mut Region, Refusal> {
        let region = self.regions.get_mut(&stag);
        let region = region.filter(|region| region.phase == RegionPhase::Active);
        region.ok_or_else(|| not_found("memory region with STag", stag))
    }

    /// Returns the memory window of an STag, if all workers have added it and its removal has not begun.
    pub(super) fn window(&self, stag: Stag) -> Result<&Window, Refusal> {
        let window = self.windows.get(&WindowId::of(stag));
        let window = window.filter(|window| window.phase == WindowPhase::Active);
        window.ok_or_else(|| not_found("memory window with STag", stag))
    }

    pub(super) fn channel(&self, number: u32) -> Result<&Channel, Refusal> {
        self.channels.get(number).ok_or_else(|| not_found("channel", number))
    }

    /// Returns a CQ that all workers have added and whose removal has not begun.
    pub(super) fn queue(&mut self, number: u32) -> Result<&mut Queue, Refusal> {
        let queue = self.queues.get_mut(number).filter(|queue| queue.is_active);
        queue.ok_or_else(|| not_found("completion queue", number))
    }

    pub(super) fn shared_queue(&self, number: u32) -> Result<&SharedQueue, Refusal> {
        let queue = self.shared_queues.get(number);
        queue.ok_or_else(|| not_found("shared receive queue", number))
    }

    /// Returns a QP whose removal has not begun.
    pub(super) fn pair(&mut self, number: u32) -> Result<&mut Pair, Refusal> {
        let pair = self.pairs.get_mut(number);
        let pair = pair.filter(|pair| !matches!(pair.state, PairState::Removing));
        pair.ok_or_else(|| not_found("QP", number))
    }

    /// Counts one more object that uses a protection domain (`begins`), or one less.
    pub(super) fn count_domain_user(&mut self, pd: u32, begins: bool) {
        if let Some(domain) = self.domains.get_mut(pd) {
            count_user(&mut domain.users, begins);
        }
    }

    /// Adds a QP to the users of its CQs (`begins`), or removes it. A CQ that serves both its SQ and its RQ counts it
    /// twice.
    pub(super) fn count_queue_users(&mut self, queues: [u32; 2], begins: bool) {
        for number in queues {
            if let Some(queue) = self.queues.get_mut(number) {
                count_user(&mut queue.users, begins);
            }
        }
    }

    /// Adds a QP to the users of its SRQ (`begins`), or removes it.
    pub(super) fn count_shared_user(&mut self, queue: Option<u32>, begins: bool) {
        if let Some(queue) = queue.and_then(|number| self.shared_queues.get_mut(number)) {
            count_user(&mut queue.users, begins);
        }
    }
}

impl Pair {
    /// Returns the reply to the call that creates the QP.
    pub(super) fn answer(pair: u32, sends: Ring, receives: Option<Ring>) -> Answer {
        Answer::QueuePair { pair, sends, receives }
    }

    pub(super) fn queues(&self) -> [u32; 2] {
        [self.send_queue, self.receive_queue]
    }

    /// Returns the stream of the QP's connection, if there is one and its number is known.
    pub(super) fn stream(&self) -> Option<StreamId> {
        match &self.state {
            PairState::Accepting(stream) | PairState::Connected(stream) => Some(*stream),
            PairState::Starting { start: Start::Accept { stream, .. }, .. } => Some(*stream),
            _ => None,
        }
    }
}

/// Counts one more user (`begins`), or one less.
fn count_user(users: &mut u32, begins: bool) {
    *users = if begins { *users + 1 } else { users.saturating_sub(1) };
}

/// Returns the refusal of a call with the number of an object that does not exist.
pub(super) fn not_found(kind: &str, number: impl std::fmt::Display) -> Refusal {
    refusal(RefusalKind::NotFound, format!("there is no {kind} {number}"))
}
