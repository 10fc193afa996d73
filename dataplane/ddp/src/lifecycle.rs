//! The life of one stream as its endpoint holds it, the same over every LLP.
//!
//! ```text
//!             Connecting --LLP--> Startup --(Deciding)--(Readying)--> Established
//!                  |                 |                                  |      |
//!                  |                 | time-out                   error |      | shutdown
//!                  v                 v                                  v      v
//!                Closed <----------------------------------------- Failing  Closing
//!                  ^                                                    |      |
//!                  +------------- both directions closed, or time-out --+------+
//! ```
//!
//! After the peer's close an Established stream is half closed until its ULP closes (RFC 5041 §6.2.1).
//!
//! Readying: a responder in the peer-to-peer model waits for the ready-to-receive message (RFC 6581 §9.2).
//!
//! A [`Lifecycle`] holds the state, the deadline and the reason, and returns what a shutdown or a time-out means; the
//! endpoint carries it out over its LLP. `progress` is a count of the LLP that grows while the teardown advances; only
//! its order matters. What the LLP adds to the reasons is a [`LowerReason`].

mod reason;

pub use reason::{CloseReason, LowerReason};

use core::time::Duration;

use base::Instant;

use crate::buffers::BufferPool;
use crate::memory::RegionMemory;
use crate::message::Failure;
use crate::ulp::Ulp;

/// State of a stream, in the order of the drawing above.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// The handshake of the LLP.
    Connecting,
    /// The peer's start-up message is expected.
    Startup,
    /// A request awaits the owner's answer.
    Deciding,
    /// Accepted: the initiator's ready-to-receive message is expected (RFC 6581 §9.2).
    Readying,
    /// Segments flow.
    Established,
    /// A graceful close is under way: what comes is still placed.
    Closing,
    /// After an error or a reject: what comes is discarded.
    Failing,
    /// Both directions are closed, or the stream was aborted.
    Closed,
}

impl State {
    /// A stable name for people and for machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::Startup => "startup",
            State::Deciding => "deciding",
            State::Readying => "readying",
            State::Established => "established",
            State::Closing => "closing",
            State::Failing => "failing",
            State::Closed => "closed",
        }
    }
}

/// What a graceful shutdown means to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Shutdown {
    /// The start-up is abandoned: the stream fails.
    StartupEnds,
    /// What is posted is sent, then this direction is closed.
    Begins,
    /// The stream ends already.
    NoChange,
}

/// What a deadline that has passed means to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Expired {
    /// The start-up was not answered in time.
    Startup,
    /// The ready-to-receive message did not come in time.
    Readying,
    /// The LLP made progress: the teardown, or the ULP of a half-closed stream, gets as much time again.
    Progress,
    /// The LLP made no progress: the peer does not close.
    Teardown,
    /// The ULP has not closed in time after the peer.
    Ulp,
    /// Nothing.
    NoChange,
}

/// What is sent to the peer at an abortive end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinalError {
    /// Nothing.
    None,
    /// The error that the ULP's protocol found, if any.
    Found,
    /// An error of the LLP, with its own numbers.
    Llp {
        /// Error type, 4 bits.
        error_type: u8,
        /// Error code.
        code: u8,
    },
    /// A local catastrophic error: this end's ULP cannot do what it was sent for.
    Local,
}

impl FinalError {
    /// Posts it: bare DDP's last message or RDMAP's Terminate (RFC 5041 §7.1, RFC 5040 §6.2.1). Without it, or
    /// if this end may not send, nothing more is given to the LLP; what is out can be sent again until it is
    /// acknowledged.
    pub fn post<M: RegionMemory>(self, stream: &mut Ulp<M>, may_send: bool) {
        match self {
            FinalError::Found if may_send => stream.post_error(),
            FinalError::Llp { error_type, code } if may_send => {
                stream.post_llp_error(error_type, code);
            }
            FinalError::Local if may_send => stream.post_local_error(),
            _ => stream.close_now(),
        }
    }
}

/// What an endpoint has still to do for the end of its stream.
#[derive(Clone, Copy, Default, Debug)]
pub struct Due {
    /// To act on the peer's close, which came behind something that the ULP has refused so far.
    pub peer_close: bool,
    /// To close its direction, once it may send what is posted.
    pub close: bool,
    /// To report that the stream is over.
    pub report: bool,
    /// To reset when the peer closes: the peer does not have the error that ended the stream.
    pub reset: bool,
    /// To close for [`CloseReason::Idle`]: the idle time-out was reported to the ULP, which closes.
    pub idle: bool,
}

/// State, deadline and reason of one stream.
#[derive(Debug)]
pub struct Lifecycle<L> {
    state: State,
    peer_closed: bool,
    /// What the endpoint has still to do; not looked at here.
    pub due: Due,
    edge: Option<Box<Edge<L>>>,
}

/// What a stream needs only while it is set up or torn down; an established one has none, which saves its memory.
#[derive(Debug)]
struct Edge<L> {
    /// End of the start-up, or of the wait for the peer in a teardown.
    deadline: Option<Instant>,
    reason: Option<CloseReason<L>>,
    /// The LLP's progress when the deadline was set; if it is higher at the deadline, the teardown gets more time.
    progress: u64,
    /// [`Ulp::taken`] of what the ULP may confirm by its close.
    confirmed: Option<u64>,
}

impl<L> Default for Edge<L> {
    fn default() -> Self {
        Edge { deadline: None, reason: None, progress: 0, confirmed: None }
    }
}

impl<L: LowerReason> Lifecycle<L> {
    /// A stream that begins in `state`.
    pub fn new(state: State) -> Self {
        Lifecycle { state, peer_closed: false, due: Due::default(), edge: None }
    }

    /// Where the stream is in its life.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// When [`on_deadline`](Self::on_deadline) is to be called.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.edge.as_ref()?.deadline
    }

    /// True while what the peer sends goes to the ULP.
    #[inline]
    pub fn is_receiving(&self) -> bool {
        matches!(self.state, State::Readying | State::Established | State::Closing)
    }

    /// The peer has closed its direction.
    pub fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// The first cause of the end, once there is one.
    pub fn reason(&self) -> Option<&CloseReason<L>> {
        self.edge.as_ref()?.reason.as_ref()
    }

    /// The reason to report of a closed stream: [`reason`](Self::reason), or that this end aborted it.
    pub fn close_reason(&self) -> CloseReason<L> {
        self.reason().cloned().unwrap_or(CloseReason::LocalAbort)
    }

    /// The LLP's handshake is done: the start-up is to be over by `deadline`. Returns whether the stream was connecting;
    /// otherwise nothing changes.
    pub fn connected(&mut self, deadline: Instant) -> bool {
        let was_connecting = self.state == State::Connecting;
        if was_connecting {
            self.state = State::Startup;
            self.set_deadline(deadline);
        }
        was_connecting
    }

    /// A request is there: the owner is to answer.
    pub fn requested(&mut self) {
        self.state = State::Deciding;
    }

    /// Sets when the start-up is to be over.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.edge().deadline = Some(deadline);
    }

    /// The request is accepted, and the initiator's ready-to-receive message is awaited.
    pub fn await_ready(&mut self) {
        self.state = State::Readying;
    }

    /// Segments flow.
    pub fn established(&mut self) {
        self.state = State::Established;
        self.clear_deadline();
    }

    /// The peer has closed its direction.
    pub fn on_peer_closed(&mut self) {
        self.peer_closed = true;
    }

    /// The stream is to be closed gracefully. After the peer has closed, that is the reason.
    pub fn shutdown(&mut self, why: CloseReason<L>) -> Shutdown {
        match self.state {
            State::Connecting | State::Startup | State::Deciding => {
                self.fail(why);
                Shutdown::StartupEnds
            }
            State::Readying | State::Established => {
                self.set_first_reason(if self.peer_closed {
                    CloseReason::PeerShutdown
                } else {
                    why
                });
                self.state = State::Closing;
                Shutdown::Begins
            }
            State::Closing | State::Failing | State::Closed => Shutdown::NoChange,
        }
    }

    /// The ULP of `stream` is about to confirm by its close all data whose events it has taken. It bounds the time to the
    /// close of a stream that the peer has half closed.
    pub fn confirming<M: RegionMemory>(&mut self, stream: &Ulp<M>) {
        if self.state == State::Established {
            // Each delivery is one event. Other events make the result smaller.
            let taken = stream.taken().saturating_sub(stream.pending_events() as u64);
            self.edge().confirmed = Some(taken);
            self.clear_deadline();
        }
    }

    /// This end closes: data that arrives from now on is unconfirmed.
    pub fn confirmed<M: RegionMemory>(&mut self, stream: &Ulp<M>) {
        self.edge().confirmed.get_or_insert(stream.taken());
    }

    /// True when `stream` has data that its ULP does not confirm. This end's close and the acknowledgement of the peer's would
    /// confirm it (docs/protocol.md §6).
    pub fn is_unconfirmed<M: RegionMemory>(&self, stream: &Ulp<M>) -> bool {
        let confirmed = self.edge.as_ref().and_then(|edge| edge.confirmed);
        stream.holds_confirmations()
            && confirmed.is_some_and(|confirmed| stream.taken() > confirmed)
    }

    /// The reason for a close that the owner asks for.
    pub fn local_reason(&self) -> CloseReason<L> {
        if self.due.idle { CloseReason::Idle } else { CloseReason::LocalShutdown }
    }

    /// What the peer sends from now on is discarded.
    pub fn fail(&mut self, why: CloseReason<L>) {
        self.set_first_reason(why);
        self.state = State::Failing;
        self.clear_deadline();
    }

    /// As [`fail`](Self::fail), for an error: it replaces the reason of a graceful close that was under way.
    pub fn fail_by_error(&mut self, why: CloseReason<L>) {
        self.edge = None;
        self.fail(why);
    }

    /// Sets the reason of the end, unless there is one: the first cause counts.
    pub fn set_first_reason(&mut self, why: CloseReason<L>) {
        self.edge().reason.get_or_insert(why);
    }

    /// Sets the reason of the end whatever it was before, and forgets the LLP's progress.
    pub fn replace_reason(&mut self, why: CloseReason<L>) {
        let edge = self.edge();
        (edge.reason, edge.progress) = (Some(why), 0);
    }

    /// The teardown waits for the peer until `now + timeout`, and longer if the LLP gets beyond `progress`.
    pub fn wait_for_peer(&mut self, now: Instant, timeout: Duration, progress: u64) {
        let edge = self.edge();
        (edge.deadline, edge.progress) = (Some(now + timeout), progress);
    }

    /// Half closed by the peer: the ULP is to close until `now + timeout`, and later if the LLP gets beyond `progress`.
    pub fn wait_for_ulp(&mut self, now: Instant, timeout: Option<Duration>, progress: u64) {
        if let Some(timeout) = timeout.filter(|_| self.state == State::Established) {
            self.wait_for_peer(now, timeout, progress);
        }
    }

    /// The deadline has passed; `progress` is the LLP's now.
    pub fn on_deadline(&mut self, progress: u64) -> Expired {
        let before = self.edge.as_ref().map_or(0, |edge| edge.progress);
        self.clear_deadline();
        match self.state {
            State::Startup | State::Deciding => Expired::Startup,
            State::Readying => Expired::Readying,
            State::Closing | State::Failing if progress > before => Expired::Progress,
            State::Closing | State::Failing => Expired::Teardown,
            State::Established if self.peer_closed && progress > before => Expired::Progress,
            State::Established if self.peer_closed => Expired::Ulp,
            State::Connecting | State::Established | State::Closed => Expired::NoChange,
        }
    }

    /// The stream is over: operations that are not complete come back as flushed, and what it has of the
    /// worker's `buffers` is freed.
    pub fn close<M: RegionMemory>(
        &mut self,
        stream: Option<&mut Ulp<M>>,
        buffers: &mut BufferPool,
    ) {
        self.state = State::Closed;
        self.clear_deadline();
        let Some(stream) = stream else { return };
        let graceful = self.reason().is_some_and(CloseReason::is_graceful);
        if !graceful || stream.outstanding() > 0 {
            let aborted = matches!(self.reason(), None | Some(CloseReason::LocalAbort));
            stream.fail(if aborted { Failure::Aborted } else { Failure::LlpLost });
        }
        stream.release(buffers);
    }

    /// Frees the memory of the reason, once the owner has reported it; [`close_reason`](Self::close_reason) does not
    /// return it any more.
    pub fn release(&mut self) {
        self.edge = None;
    }

    fn edge(&mut self) -> &mut Edge<L> {
        self.edge.get_or_insert_default()
    }

    fn clear_deadline(&mut self) {
        if let Some(edge) = &mut self.edge {
            edge.deadline = None;
            if edge.reason.is_none() && edge.confirmed.is_none() {
                self.edge = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
