//! A stream as its worker holds it: its lower layer, and what concerns its ULP and the control thread. What concerns
//! its packets is in the [`Carrier`](super::carrier::Carrier) of its connection or association.

use base::{Blank, Instant, Lazy, LazyDeque, Prefetch};
use ddp::{Qn, Stag, StreamId};
use sctp_lite::sctp;
use tcp_lite::tcp;

use super::associations::Association;
use super::echo::{Answer, Echoed};
use super::event::Credit;
use super::listen::Progress;
use super::load::Running;
use super::lower::{Lower, LowerMut};
use crate::api::{Awaited, Connect, ListenerId, Service, Ticket};

/// A stream of this worker.
pub(super) struct Conn {
    pub(super) id: StreamId,
    pub(super) lower: Lower,
    pub(super) accepted: Accepted,
    pub(super) stage: Stage,
    pub(super) since: Instant,
    /// Which service takes what arrives.
    pub(super) service: Service,
    pub(super) pending: Lazy<Pending>,
    /// The load that the worker makes on it.
    pub(super) load: Option<Box<Running>>,
}

// Of 1024 bytes that an idle stream may take with what it has in tables and behind pointers.
const _: () = assert!(size_of::<Conn>() == 592);

impl Prefetch for Conn {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if let Lower::Tcp(carrier) = &self.lower {
            carrier.endpoint().prefetch(steps, hint);
        }
        self.load.prefetch(steps, hint);
    }
}

/// What waits for something, or is seldom there.
#[derive(Clone)]
pub(super) struct Pending {
    /// The stream is being opened, or was and failed.
    pub(super) opening: Option<Opening>,
    /// The answers of an Echo that were posted.
    pub(super) echoed: Echoed,
    /// Posted messages whose source is a region, in the order of posting.
    pub(super) sources: LazyDeque<(Ticket, Stag)>,
    /// Answers of an Echo that the stream has no room for, at most as many as it has buffers.
    pub(super) answers: LazyDeque<Answer>,
    /// Queues of the buffers that come back when answers are acknowledged, at most as many as it has buffers.
    pub(super) withheld: LazyDeque<Qn>,
    /// The stream is to be closed behind `answers`: the peer has closed.
    pub(super) closing: bool,
    /// The stream was reported to make no progress.
    pub(super) stalled: bool,
    /// The events of the stream that the control thread has not taken.
    pub(super) credit: Credit,
}

impl Blank for Pending {
    fn blank() -> &'static Self {
        static BLANK: Pending = Pending {
            opening: None,
            echoed: Echoed::NOTHING,
            sources: LazyDeque::new(),
            answers: LazyDeque::new(),
            withheld: LazyDeque::new(),
            closing: false,
            stalled: false,
            credit: Credit::NOTHING,
        };
        &BLANK
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        let Pending { opening, echoed, sources, answers, withheld, closing, stalled, credit } =
            self;
        opening.is_none()
            && *echoed == Echoed::NOTHING
            && sources.is_empty()
            && answers.is_empty()
            && withheld.is_empty()
            && !closing
            && !stalled
            && *credit == Credit::NOTHING
    }
}

/// How a stream came to be.
pub(super) enum Origin {
    /// A peer opened it.
    Accepted { listener: ListenerId, progress: Progress },
    /// The control thread opens it.
    Opening(Opening),
}

/// The listener of a stream that a peer opened, and how far it has come. Five bytes, which need no alignment: beside them
/// there is room for what else of a [`Conn`] is small.
pub(super) struct Accepted {
    listener: [u8; 4],
    progress: Option<Progress>,
}

const _: () = assert!(size_of::<Accepted>() == 5);

impl Accepted {
    /// A stream that was opened from here.
    const NOT: Accepted = Accepted { listener: [0; 4], progress: None };

    fn by(listener: ListenerId, progress: Progress) -> Accepted {
        Accepted { listener: listener.0.to_ne_bytes(), progress: Some(progress) }
    }

    /// Its listener, and how far it has come, if a peer opened it.
    pub(super) fn get(&self) -> Option<(ListenerId, Progress)> {
        Some((ListenerId(u32::from_ne_bytes(self.listener)), self.progress?))
    }

    /// A peer opened it, whose address may be forged.
    #[inline]
    pub(super) fn is_unproven(&self) -> bool {
        self.progress == Some(Progress::Unproven)
    }

    /// It has come so far. Only of one that a peer opened.
    pub(super) fn advance(&mut self, progress: Progress) {
        debug_assert!(self.progress.is_some());
        self.progress = Some(progress);
    }
}

/// A stream that is being opened.
#[derive(Clone)]
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
        let mut pending: Lazy<Pending> = Lazy::new();
        let accepted = match origin {
            Origin::Accepted { listener, progress } => Accepted::by(listener, progress),
            Origin::Opening(opening) => {
                pending.opening = Some(opening);
                Accepted::NOT
            }
        };
        let (stage, service) = (Stage::Starting, Service::Control);
        Conn { id, lower, accepted, stage, since: now, service, pending, load: None }
    }

    /// When it is given up, while it is being opened.
    #[inline]
    pub(super) fn opening_deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Starting => self.pending.opening.as_ref().map(|opening| opening.deadline),
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
        let Some(Pending { sources, answers, withheld, credit, .. }) = pending else { return };
        credit.forget(taken);
        sources.shrink();
        answers.shrink();
        withheld.shrink();
        self.release_pending();
    }

    /// Frees the memory of what is pending if nothing is.
    pub(super) fn release_pending(&mut self) {
        if self.pending.is_empty() {
            self.pending.release();
        }
    }

    /// The listener that took it.
    pub(super) fn listener(&self) -> Option<ListenerId> {
        self.accepted.get().map(|(listener, _)| listener)
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

    /// What it waits for, while it is being opened.
    pub(super) fn awaited(&self) -> Awaited {
        match (&self.conn.lower, self.association.as_deref()) {
            (Lower::Tcp(carrier), _) if carrier.is_waiting() => Awaited::NextHop,
            (Lower::Tcp(carrier), _) => match carrier.endpoint().connection().state() {
                tcp::State::SynSent | tcp::State::SynReceived => Awaited::SynAck,
                _ => Awaited::MpaReply,
            },
            (Lower::Sctp(_), Some(association)) if association.carrier.is_waiting() => {
                Awaited::NextHop
            }
            (Lower::Sctp(_), association) => {
                match association.map(|association| association.endpoint().association().state()) {
                    Some(sctp::State::CookieWait) => Awaited::InitAck,
                    Some(sctp::State::CookieEchoed) => Awaited::CookieAck,
                    _ => Awaited::SessionReply,
                }
            }
        }
    }

    /// Releases receive buffers.
    pub(super) fn post_buffers(&mut self, qn: Qn, buffers: u32) {
        if let Some(mut lower) = self.lower() {
            // A stream that is ending needs no buffers any more.
            let _ = lower.post_buffers(qn, buffers);
        }
    }
}
