//! A stream in its worker: the lower layer, and the state for its ULP and the control thread. The state of its
//! packets is in the [`Carrier`](super::carrier::Carrier) of its connection or association.

use base::{Blank, Instant, Lazy, LazyDeque, Prefetch};
use ddp::{Qn, Stag, StreamId};
use sctp_lite::sctp;
use tcp_lite::tcp;

use super::listeners::AcceptProgress;
use super::lower_layer::{LowerLayer, LowerLayerMut};
use crate::api::{Connect, ConnectStage, ListenerId, Service, Ticket};
use crate::worker::flows::associations::Association;
use crate::worker::flows::echo::{Answer, EchoCount};
use crate::worker::flows::running_load::RunningLoad;
use crate::worker::link::event_queue::Credit;

/// A stream of this worker.
pub(in crate::worker) struct Conn {
    pub(in crate::worker) id: StreamId,
    pub(in crate::worker) lower: LowerLayer,
    pub(in crate::worker) accepted: AcceptInfo,
    pub(in crate::worker) stage: Stage,
    pub(in crate::worker) created_at: Instant,
    /// Service that handles received messages.
    pub(in crate::worker) service: Service,
    pub(in crate::worker) transient: Lazy<TransientState>,
    /// Load generator on this stream.
    pub(in crate::worker) load: Option<Box<RunningLoad>>,
}

// Part of the 1024 bytes allowed per idle stream, tables and boxed state included.
const _: () = assert!(size_of::<Conn>() == 592);

impl Prefetch for Conn {
    #[inline]
    fn prefetch(&self, steps: u32, hint: &mut impl FnMut(*const u8, usize)) {
        if let LowerLayer::Tcp(carrier) = &self.lower {
            carrier.endpoint().prefetch(steps, hint);
        }
        self.load.prefetch(steps, hint);
    }
}

/// Rare or temporary state of a stream, allocated on demand.
#[derive(Clone)]
pub(in crate::worker) struct TransientState {
    /// The connect in progress, or one that failed.
    pub(in crate::worker) opening: Option<PendingConnect>,
    /// Unacknowledged answers of an Echo.
    pub(in crate::worker) echo_count: EchoCount,
    /// Posted messages whose source is a region, in the order of posting.
    pub(in crate::worker) sources: LazyDeque<(Ticket, Stag)>,
    /// Answers of an Echo for which the stream has no room, at most the number of its buffers.
    pub(in crate::worker) answers: LazyDeque<Answer>,
    /// Queues of buffers to be reposted when answers are acknowledged, at most the number of buffers.
    pub(in crate::worker) withheld: LazyDeque<Qn>,
    /// True if the stream closes after `answers`, because the peer has closed.
    pub(in crate::worker) closing: bool,
    /// True if the stream was reported as stalled.
    pub(in crate::worker) stalled: bool,
    /// Events of the stream that the control thread has not read.
    pub(in crate::worker) credit: Credit,
}

impl Blank for TransientState {
    fn blank() -> &'static Self {
        static BLANK: TransientState = TransientState {
            opening: None,
            echo_count: EchoCount::NONE,
            sources: LazyDeque::new(),
            answers: LazyDeque::new(),
            withheld: LazyDeque::new(),
            closing: false,
            stalled: false,
            credit: Credit::NONE,
        };
        &BLANK
    }
}

impl TransientState {
    fn is_empty(&self) -> bool {
        let TransientState {
            opening,
            echo_count: echoed,
            sources,
            answers,
            withheld,
            closing,
            stalled,
            credit,
        } = self;
        opening.is_none()
            && *echoed == EchoCount::NONE
            && sources.is_empty()
            && answers.is_empty()
            && withheld.is_empty()
            && !closing
            && !stalled
            && *credit == Credit::NONE
    }
}

/// Origin of a stream.
pub(in crate::worker) enum Origin {
    /// Opened by a peer.
    Accepted { listener: ListenerId, progress: AcceptProgress },
    /// Opened by the control thread.
    Connect(PendingConnect),
}

/// Listener and progress of a stream opened by a peer. Five bytes with alignment 1 leave room for the other small
/// fields of a [`Conn`].
pub(in crate::worker) struct AcceptInfo {
    listener: [u8; 4],
    progress: Option<AcceptProgress>,
}

const _: () = assert!(size_of::<AcceptInfo>() == 5);

impl AcceptInfo {
    /// A locally opened stream.
    const NONE: AcceptInfo = AcceptInfo { listener: [0; 4], progress: None };

    fn new(listener: ListenerId, progress: AcceptProgress) -> AcceptInfo {
        AcceptInfo { listener: listener.0.to_ne_bytes(), progress: Some(progress) }
    }

    /// Returns listener and progress if a peer opened the stream.
    pub(in crate::worker) fn get(&self) -> Option<(ListenerId, AcceptProgress)> {
        Some((ListenerId(u32::from_ne_bytes(self.listener)), self.progress?))
    }

    /// True if a peer opened the stream and its address may still be forged.
    #[inline]
    pub(in crate::worker) fn is_unproven(&self) -> bool {
        self.progress == Some(AcceptProgress::Unproven)
    }

    /// Advances to `progress`. Valid only for a stream that a peer opened.
    pub(in crate::worker) fn advance(&mut self, progress: AcceptProgress) {
        debug_assert!(self.progress.is_some());
        self.progress = Some(progress);
    }
}

/// A stream that is being opened.
#[derive(Clone)]
pub(in crate::worker) struct PendingConnect {
    pub(in crate::worker) ticket: Ticket,
    pub(in crate::worker) deadline: Instant,
    /// Parameters of a second attempt: with MPA revision 1 if allowed, or over another association if this one was
    /// shared.
    pub(in crate::worker) retry: Option<Box<Connect>>,
}

/// State of a stream as reported to the control thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Stage {
    /// Accepted streams: not yet reported. Opened streams: the connect is pending.
    Starting,
    /// The peer's MPA or session request was reported.
    Announced,
    /// Established: messages flow.
    Established,
    /// The end was reported. Only TIME-WAIT may remain.
    Ended,
}

impl Conn {
    /// Creates a stream that is not yet reported to the control thread, and served by it.
    pub(in crate::worker) fn new(
        id: StreamId,
        lower: LowerLayer,
        origin: Origin,
        now: Instant,
    ) -> Conn {
        let mut pending: Lazy<TransientState> = Lazy::new();
        let accepted = match origin {
            Origin::Accepted { listener, progress } => AcceptInfo::new(listener, progress),
            Origin::Connect(opening) => {
                pending.opening = Some(opening);
                AcceptInfo::NONE
            }
        };
        let (stage, service) = (Stage::Starting, Service::Control);
        Conn {
            id,
            lower,
            accepted,
            stage,
            created_at: now,
            service,
            transient: pending,
            load: None,
        }
    }

    /// Deadline of the connect, while it is in progress.
    #[inline]
    pub(in crate::worker) fn connect_deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Starting => self.transient.opening.as_ref().map(|opening| opening.deadline),
            _ => None,
        }
    }

    /// True if the end was reported and the TCP connection has no more to send.
    pub(in crate::worker) fn is_done(&self) -> bool {
        let done = matches!(&self.lower, LowerLayer::Tcp(carrier) if carrier.endpoint().is_done());
        self.stage == Stage::Ended && done
    }

    /// Frees the memory of empty queues, and the whole pending state if all are empty. The control thread has read
    /// the events up to number `taken`.
    pub(in crate::worker) fn shrink(&mut self, taken: u64) {
        let pending = self.transient.get_mut();
        let Some(TransientState { sources, answers, withheld, credit, .. }) = pending else {
            return;
        };
        credit.reset_if_idle(taken);
        sources.shrink();
        answers.shrink();
        withheld.shrink();
        self.release_pending();
    }

    /// Frees the pending state if it is empty.
    pub(in crate::worker) fn release_pending(&mut self) {
        if self.transient.is_empty() {
            self.transient.release();
        }
    }

    /// Listener that accepted the stream.
    pub(in crate::worker) fn listener(&self) -> Option<ListenerId> {
        self.accepted.get().map(|(listener, _)| listener)
    }
}

/// A stream with the association that carries it, if it runs over SCTP. Borrowed for one call.
pub(in crate::worker) struct Stream<'a> {
    pub(in crate::worker) slot: u32,
    pub(in crate::worker) conn: &'a mut Conn,
    pub(in crate::worker) association: Option<&'a mut Association>,
}

impl Stream<'_> {
    /// The lower layer, TCP or SCTP.
    #[inline]
    pub(in crate::worker) fn lower(&mut self) -> Option<LowerLayerMut<'_>> {
        self.conn.lower.as_mut(self.association.as_deref_mut())
    }

    /// Returns the step of the handshake that is awaited. Valid only while the stream is being opened.
    pub(in crate::worker) fn awaited_step(&self) -> ConnectStage {
        match (&self.conn.lower, self.association.as_deref()) {
            (LowerLayer::Tcp(carrier), _) if carrier.is_waiting() => ConnectStage::NextHop,
            (LowerLayer::Tcp(carrier), _) => match carrier.endpoint().connection().state() {
                tcp::State::SynSent | tcp::State::SynReceived => ConnectStage::SynAck,
                _ => ConnectStage::MpaReply,
            },
            (LowerLayer::Sctp(_), Some(association)) if association.carrier.is_waiting() => {
                ConnectStage::NextHop
            }
            (LowerLayer::Sctp(_), association) => {
                match association.map(|association| association.endpoint().association().state()) {
                    Some(sctp::State::CookieWait) => ConnectStage::InitAck,
                    Some(sctp::State::CookieEchoed) => ConnectStage::CookieAck,
                    _ => ConnectStage::SessionReply,
                }
            }
        }
    }

    /// Releases receive buffers to the lower layer.
    pub(in crate::worker) fn post_buffers(&mut self, qn: Qn, buffers: u32) {
        if let Some(mut lower) = self.lower() {
            // A stream that is ending refuses buffers and needs none.
            let _ = lower.post_buffers(qn, buffers);
        }
    }
}
