//! A stream as its worker holds it: its lower layer and what only the worker knows of it. What is said of
//! its path, its timer and its place in line is TCP's: over SCTP all that is the association's.

use std::net::{IpAddr, SocketAddr};

use base::{Blank, Instant, Lazy, LazyDeque, MaybeInstant, Near};
use ddp::rdmap::WorkRequest;
use ddp::{Message, Qn, Stag, StreamId};

use super::event::Credit;
use super::keep::Kept;
use super::listen::Progress;
use super::load::Running;
use super::lower::Lower;
use super::rdmap::Echoed;
use super::schedule::Scheduled;
use crate::api::{Connect, ListenerId, Service, Ticket};
use crate::flow::FlowKey;
use crate::memory::Memory;
use crate::net::path::Path;

/// A stream of this worker.
pub(super) struct Conn {
    pub(super) id: StreamId,
    /// Our port and the peer's.
    ports: (u16, u16),
    pub(super) lower: Lower,
    pub(super) path: Path,
    pub(super) origin: Origin,
    pub(super) stage: Stage,
    pub(super) since: Instant,
    pub(super) scheduled: Scheduled,
    /// Segments since it was last asked for its own.
    pub(super) unanswered: u8,
    /// When its progress last proved its next hop reachable.
    pub(super) confirmed: Instant,
    /// Its next hop's place in the neighbour cache is kept for it.
    pub(super) pinned: bool,
    /// What its path was last known to carry, octets of a segment without its fixed header.
    pub(super) path_mss: u16,
    /// Reports that there is no way to the peer, while it is being opened.
    pub(super) soft_errors: u8,
    /// Who deals with what arrives.
    pub(super) service: Service,
    /// The answers of an Echo that were posted.
    pub(super) echoed: Echoed,
    pub(super) pending: Lazy<Pending>,
    /// The load that the worker makes on it.
    pub(super) load: Option<Box<Running>>,
}

impl Near for Conn {
    #[inline]
    fn near(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if let Lower::Tcp(endpoint) = &self.lower {
            endpoint.near(steps, hint);
        }
        self.load.near(steps, hint);
    }
}

/// What waits for something.
#[derive(Clone)]
pub(super) struct Pending {
    /// When the worker itself wants to look at the stream: the end of the time for a connect, or another
    /// attempt at the next hop.
    pub(super) own_deadline: MaybeInstant,
    /// Posted messages whose source is a region, in the order of posting.
    pub(super) sources: LazyDeque<(Ticket, Stag)>,
    /// Answers of an Echo that the stream has no room for, at most as many as it has buffers.
    pub(super) answers: LazyDeque<Answer>,
    /// Queues of the buffers that come back when answers are acknowledged, at most as many as it has buffers.
    pub(super) withheld: LazyDeque<Qn>,
    /// The events of the stream that the control thread has not taken.
    pub(super) credit: Credit,
    /// What is kept of what it sent, as the worker's budget has it.
    kept: Kept,
}

impl Blank for Pending {
    fn blank() -> &'static Self {
        static BLANK: Pending = Pending {
            own_deadline: MaybeInstant::NONE,
            sources: LazyDeque::new(),
            answers: LazyDeque::new(),
            withheld: LazyDeque::new(),
            credit: Credit::NOTHING,
            kept: Kept::NOTHING,
        };
        &BLANK
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        let Pending { own_deadline, sources, answers, withheld, credit, kept } = self;
        *own_deadline == MaybeInstant::NONE
            && sources.is_empty()
            && answers.is_empty()
            && withheld.is_empty()
            && *credit == Credit::NOTHING
            && *kept == Kept::NOTHING
    }
}

/// What an Echo sends back.
#[derive(Clone)]
pub(super) enum Answer {
    /// Over RDMAP.
    Rdmap(WorkRequest<Memory>),
    /// Over bare DDP, to a message of this queue.
    Ddp(Qn, Message<Memory>),
}

/// How a stream came to be.
pub(super) enum Origin {
    /// A peer opened it.
    Accepted { listener: ListenerId, progress: Progress },
    /// The control thread is opening it.
    Opening(Box<Opening>),
    /// It did.
    Opened,
}

const _: () = assert!(size_of::<Origin>() == 16);

/// A stream that is being opened.
pub(super) struct Opening {
    pub(super) ticket: Ticket,
    pub(super) deadline: Instant,
    /// How to try again with MPA revision 1, if that is wanted.
    pub(super) retry: Option<Box<Connect>>,
}

/// What the control thread knows of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Nothing yet (accepted), or that it asked for it (opened).
    Starting,
    /// It was told of the peer's request.
    Announced,
    /// Messages flow.
    Established,
    /// It was told of the end; what is left is TIME-WAIT.
    Ended,
}

impl Conn {
    /// A stream that nobody knows yet, served by the control thread.
    pub(super) fn new(
        id: StreamId,
        key: FlowKey,
        lower: Lower,
        path: Path,
        origin: Origin,
        now: Instant,
    ) -> Conn {
        let mut pending: Lazy<Pending> = Lazy::new();
        if let Origin::Opening(opening) = &origin {
            pending.own_deadline = Some(opening.deadline).into();
        }
        let path_mss = match &lower {
            Lower::Tcp(endpoint) => endpoint.connection().path_mss(),
            Lower::Sctp(_) => 0,
        };
        Conn {
            id,
            ports: (key.local.port(), key.remote.port()),
            lower,
            path,
            origin,
            stage: Stage::Starting,
            since: now,
            scheduled: Scheduled::default(),
            unanswered: 0,
            confirmed: now,
            pinned: false,
            path_mss,
            soft_errors: 0,
            service: Service::Control,
            echoed: Echoed::default(),
            pending,
            load: None,
        }
    }

    /// Gives back the memory of what does not wait: of each queue that is empty, and of all if nothing does. The
    /// control thread has taken the events up to number `taken`.
    pub(super) fn relax(&mut self, taken: u64) {
        let pending = self.pending.get_mut();
        let Some(Pending { sources, answers, withheld, credit, .. }) = pending else { return };
        credit.forget(taken);
        sources.relax();
        answers.relax();
        withheld.relax();
        if self.pending.is_empty() {
            self.pending.release();
        }
    }

    /// What is kept of what it sent, as the worker's budget has it.
    #[inline]
    pub(super) fn kept(&self) -> Kept {
        self.pending.kept
    }

    /// It is so much now.
    #[inline]
    pub(super) fn set_kept(&mut self, kept: Kept) {
        if kept != self.pending.kept {
            self.pending.kept = kept;
        }
    }

    /// Its flow.
    pub(super) fn flow(&self) -> FlowKey {
        let (local, remote) = self.path.addresses();
        FlowKey {
            interface: self.path.interface() as u16,
            local: SocketAddr::new(local, self.ports.0),
            remote: SocketAddr::new(remote, self.ports.1),
        }
    }

    /// The peer's address.
    pub(super) fn peer(&self) -> IpAddr {
        self.path.addresses().1
    }

    /// The listener that took it.
    pub(super) fn listener(&self) -> Option<ListenerId> {
        match self.origin {
            Origin::Accepted { listener, .. } => Some(listener),
            Origin::Opening(_) | Origin::Opened => None,
        }
    }
}
