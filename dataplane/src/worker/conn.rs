//! A stream as its worker holds it: its lower layer, and what concerns its ULP and the control thread. What concerns
//! its packets is in the [`Carrier`](super::carrier::Carrier) of its connection or association.

use base::{Blank, Instant, Lazy, LazyDeque, Prefetch};
use ddp::{Qn, Stag, StreamId};

use super::associations::Association;
use super::echo::{Answer, Echoed};
use super::event::Credit;
use super::listen::Progress;
use super::load::Running;
use super::lower::{Lower, LowerMut};
use crate::api::{Connect, ListenerId, Service, Ticket};

/// A stream of this worker.
pub(super) struct Conn {
    pub(super) id: StreamId,
    pub(super) lower: Lower,
    pub(super) origin: Origin,
    pub(super) stage: Stage,
    pub(super) since: Instant,
    /// Which service takes what arrives.
    pub(super) service: Service,
    /// The answers of an Echo that were posted.
    pub(super) echoed: Echoed,
    pub(super) pending: Lazy<Pending>,
    /// The load that the worker makes on it.
    pub(super) load: Option<Box<Running>>,
}

impl Prefetch for Conn {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if let Lower::Tcp(carrier) = &self.lower {
            carrier.endpoint().prefetch(steps, hint);
        }
        self.load.prefetch(steps, hint);
    }
}

/// What waits for something.
#[derive(Clone)]
pub(super) struct Pending {
    /// Posted messages whose source is a region, in the order of posting.
    pub(super) sources: LazyDeque<(Ticket, Stag)>,
    /// Answers of an Echo that the stream has no room for, at most as many as it has buffers.
    pub(super) answers: LazyDeque<Answer>,
    /// Queues of the buffers that come back when answers are acknowledged, at most as many as it has buffers.
    pub(super) withheld: LazyDeque<Qn>,
    /// The events of the stream that the control thread has not taken.
    pub(super) credit: Credit,
}

impl Blank for Pending {
    fn blank() -> &'static Self {
        static BLANK: Pending = Pending {
            sources: LazyDeque::new(),
            answers: LazyDeque::new(),
            withheld: LazyDeque::new(),
            credit: Credit::NOTHING,
        };
        &BLANK
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        let Pending { sources, answers, withheld, credit } = self;
        sources.is_empty()
            && answers.is_empty()
            && withheld.is_empty()
            && *credit == Credit::NOTHING
    }
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
    /// How to try again: with MPA revision 1, if that is wanted; over another association, if this one was shared.
    pub(super) retry: Option<Box<Connect>>,
}

/// What the control thread knows of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Nothing yet (accepted), or that it asked for it (opened).
    Starting,
    /// The peer's request was reported.
    Announced,
    /// Messages flow.
    Established,
    /// The end was reported; what is left is TIME-WAIT.
    Ended,
}

impl Conn {
    /// A stream that the control thread does not know yet, and serves.
    pub(super) fn new(id: StreamId, lower: Lower, origin: Origin, now: Instant) -> Conn {
        Conn {
            id,
            lower,
            origin,
            stage: Stage::Starting,
            since: now,
            service: Service::Control,
            echoed: Echoed::default(),
            pending: Lazy::new(),
            load: None,
        }
    }

    /// When it is given up, while it is being opened.
    #[inline]
    pub(super) fn opening_deadline(&self) -> Option<Instant> {
        match &self.origin {
            Origin::Opening(opening) if self.stage == Stage::Starting => Some(opening.deadline),
            _ => None,
        }
    }

    /// It is over, and its connection has nothing more to send.
    pub(super) fn is_done(&self) -> bool {
        let done = matches!(&self.lower, Lower::Tcp(carrier) if carrier.endpoint().is_done());
        self.stage == Stage::Ended && done
    }

    /// Frees the memory of empty queues, and of all of this if all are empty. The
    /// control thread has taken the events up to number `taken`.
    pub(super) fn shrink(&mut self, taken: u64) {
        let pending = self.pending.get_mut();
        let Some(Pending { sources, answers, withheld, credit }) = pending else { return };
        credit.forget(taken);
        sources.shrink();
        answers.shrink();
        withheld.shrink();
        if self.pending.is_empty() {
            self.pending.release();
        }
    }

    /// The listener that took it.
    pub(super) fn listener(&self) -> Option<ListenerId> {
        match self.origin {
            Origin::Accepted { listener, .. } => Some(listener),
            Origin::Opening(_) | Origin::Opened => None,
        }
    }
}

/// A stream with the association that carries it, if it has no connection of its own: for the time of one call.
pub(super) struct Stream<'a> {
    pub(super) slot: u32,
    pub(super) conn: &'a mut Conn,
    pub(super) association: Option<&'a mut Association>,
}

impl Stream<'_> {
    /// Its lower layer.
    #[inline]
    pub(super) fn lower(&mut self) -> Option<LowerMut<'_>> {
        self.conn.lower.as_mut(self.association.as_deref_mut())
    }

    /// Releases receive buffers.
    pub(super) fn post_buffers(&mut self, qn: Qn, buffers: u32) {
        if let Some(mut lower) = self.lower() {
            // A stream that is ending needs no buffers any more.
            let _ = lower.post_buffers(qn, buffers);
        }
    }
}
