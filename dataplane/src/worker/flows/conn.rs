//! A stream of a worker: its lower layer, and its state for the ULP and the control thread. Path, timers and
//! transmission state are in the [`Carrier`](super::carrier::Carrier) of its connection or association.

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

pub(in crate::worker) struct Conn {
    pub(in crate::worker) id: StreamId,
    pub(in crate::worker) lower: LowerLayer,
    pub(in crate::worker) accepted: AcceptInfo,
    pub(in crate::worker) stage: Stage,
    pub(in crate::worker) created_at: Instant,
    /// Service that handles received messages.
    pub(in crate::worker) service: ServiceKind,
    pub(in crate::worker) transient: Lazy<TransientState>,
    /// Load generator on this stream.
    pub(in crate::worker) load: Option<Box<RunningLoad>>,
}

/// [`Service`] of a stream in one byte. The QP of a program is in the [`TransientState`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum ServiceKind {
    Control,
    Region,
    Echo,
    Sink,
    Program,
}

/// Reference of a stream to its QP. The reference is always valid: removal of the QP clears it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) struct PairRef {
    /// Index of the program in the worker's table of programs.
    pub(in crate::worker) index: u32,
    /// Number of the QP within its program.
    pub(in crate::worker) number: u32,
}

impl From<Service> for ServiceKind {
    fn from(service: Service) -> ServiceKind {
        match service {
            Service::Control => ServiceKind::Control,
            Service::Region => ServiceKind::Region,
            Service::Echo => ServiceKind::Echo,
            Service::Sink => ServiceKind::Sink,
            Service::Program(_) => ServiceKind::Program,
        }
    }
}

// Memory budget: an idle stream takes at most 1024 bytes, including table entries and boxed state.
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
    /// The connect, from its start until its success is reported; kept after a failure.
    pub(in crate::worker) opening: Option<PendingConnect>,
    /// QP of a program's stream.
    pub(in crate::worker) pair: Option<PairRef>,
    /// Number of unacknowledged answers of the Echo service.
    pub(in crate::worker) echo_count: EchoCount,
    /// Incomplete posts with a source or sink region, in the order of posting.
    pub(in crate::worker) sources: LazyDeque<(Ticket, Stag)>,
    /// Answers of the Echo service that the stream has not accepted yet. Their number is at most the number of receive
    /// buffers.
    pub(in crate::worker) answers: LazyDeque<Answer>,
    /// Queue numbers of receive buffers that are reposted only when an answer is acknowledged. Their number is at most
    /// the number of receive buffers.
    pub(in crate::worker) withheld: LazyDeque<Qn>,
    /// True if the peer has closed the stream, and this end closes it once `answers` is empty.
    pub(in crate::worker) closing: bool,
    /// True if the stream was reported as stalled and not as resumed since.
    pub(in crate::worker) stalled: bool,
    /// Event credit: bounds the stream's events that the control thread has not read.
    pub(in crate::worker) credit: Credit,
}

impl Blank for TransientState {
    fn blank() -> &'static Self {
        static BLANK: TransientState = TransientState {
            opening: None,
            pair: None,
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
            pair,
            echo_count: echoed,
            sources,
            answers,
            withheld,
            closing,
            stalled,
            credit,
        } = self;
        opening.is_none()
            && pair.is_none()
            && *echoed == EchoCount::NONE
            && sources.is_empty()
            && answers.is_empty()
            && withheld.is_empty()
            && !closing
            && !stalled
            && *credit == Credit::NONE
    }
}

pub(in crate::worker) enum Origin {
    /// Opened by a peer, at this listener.
    Accepted { listener: ListenerId, progress: AcceptProgress },
    /// Opened by the control thread.
    Connect(PendingConnect),
}

/// Listener and progress of a stream opened by a peer. The type has five bytes and alignment 1, so that a [`Conn`]
/// needs no further padding.
pub(in crate::worker) struct AcceptInfo {
    listener: [u8; 4],
    progress: Option<AcceptProgress>,
}

const _: () = assert!(size_of::<AcceptInfo>() == 5);

impl AcceptInfo {
    /// Value for a locally opened stream.
    const NONE: AcceptInfo = AcceptInfo { listener: [0; 4], progress: None };

    fn new(listener: ListenerId, progress: AcceptProgress) -> AcceptInfo {
        AcceptInfo { listener: listener.0.to_ne_bytes(), progress: Some(progress) }
    }

    /// Returns the listener and the progress of a stream that a peer opened; `None` for other streams.
    pub(in crate::worker) fn get(&self) -> Option<(ListenerId, AcceptProgress)> {
        Some((ListenerId(u32::from_ne_bytes(self.listener)), self.progress?))
    }

    /// Returns true if a peer opened the stream and its source address may be forged.
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

#[derive(Clone)]
pub(in crate::worker) struct PendingConnect {
    pub(in crate::worker) ticket: Ticket,
    pub(in crate::worker) deadline: Instant,
    /// Parameters of the second attempt, if one is allowed. The second attempt uses MPA revision 1. If the first
    /// attempt shared an association, the second uses another association.
    pub(in crate::worker) retry: Option<Box<Connect>>,
}

/// Stage of a stream as reported to the control thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Stage {
    /// The stream was not reported yet. A locally opened stream has a pending connect.
    Starting,
    /// The peer's MPA request, or its request for a session over SCTP, was reported.
    Announced,
    /// Established: messages can be sent and received.
    Established,
    /// The end was reported, or a second attempt has replaced the stream. The TCP connection may remain in TIME-WAIT,
    /// or until its last segment is sent.
    Ended,
}

impl Conn {
    /// Creates a stream that was not reported yet. The control thread handles its messages until another service is
    /// set.
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
        let (stage, service) = (Stage::Starting, ServiceKind::Control);
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

    /// Returns the deadline of the connect while it is pending.
    #[inline]
    pub(in crate::worker) fn connect_deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Starting => self.transient.opening.as_ref().map(|opening| opening.deadline),
            _ => None,
        }
    }

    /// Returns true if the end was reported and the TCP connection has nothing more to send. Always false over SCTP.
    pub(in crate::worker) fn is_done(&self) -> bool {
        let done = matches!(&self.lower, LowerLayer::Tcp(carrier) if carrier.endpoint().is_done());
        self.stage == Stage::Ended && done
    }

    /// Frees the memory of empty queues, and the whole transient state if it is empty. `taken` is the number of the
    /// newest event that the control thread has read.
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

    /// Frees the transient state if it is empty.
    pub(in crate::worker) fn release_pending(&mut self) {
        if self.transient.is_empty() {
            self.transient.release();
        }
    }

    /// Returns the listener that accepted the stream; `None` if the stream was opened locally.
    pub(in crate::worker) fn listener(&self) -> Option<ListenerId> {
        self.accepted.get().map(|(listener, _)| listener)
    }
}

/// A stream and the association that carries it, if any, borrowed for one call.
pub(in crate::worker) struct Stream<'a> {
    pub(in crate::worker) slot: u32,
    pub(in crate::worker) conn: &'a mut Conn,
    pub(in crate::worker) association: Option<&'a mut Association>,
}

impl Stream<'_> {
    /// Returns the lower layer; `None` if its association does not exist any more.
    #[inline]
    pub(in crate::worker) fn lower(&mut self) -> Option<LowerLayerMut<'_>> {
        self.conn.lower.as_mut(self.association.as_deref_mut())
    }

    /// Returns the step of the handshake that the stream awaits. Meaningful only while the stream is being opened.
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

    /// Posts `buffers` receive buffers to queue `qn`.
    pub(in crate::worker) fn post_buffers(&mut self, qn: Qn, buffers: u32) {
        if let Some(mut lower) = self.lower() {
            // A stream that is ending refuses buffers, which is harmless.
            let _ = lower.post_buffers(qn, buffers);
        }
    }
}
