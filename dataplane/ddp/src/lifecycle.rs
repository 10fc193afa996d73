//! Lifecycle of one stream in its endpoint. The lifecycle is the same over every LLP.
//!
//! ```text
//!  Connecting --LLP--> Startup --(Deciding)--(Readying)--> Established
//!
//!  Connecting, Startup, Deciding    -- shutdown, reject ------------------------> Failing
//!  Readying, Established            -- shutdown --------------------------------> Closing
//!  Startup to Closing               -- error -----------------------------------> Failing
//!  Closing, Failing                 -- directions closed, or time-out ----------> Closed
//!  each state                       -- abort, or the LLP has ended -------------> Closed
//! ```
//!
//! Only a responder enters the states in parentheses: Deciding if the stream's owner decides on the request, Readying
//! if the responder waits for the ready-to-receive message of the peer-to-peer model (RFC 6581 §9.2).
//!
//! The endpoint decides whether a time-out of the start-up fails or aborts the stream.
//!
//! After the peer's close an Established stream is half closed until its ULP closes (RFC 5041 §6.2.1).
//!
//! A [`Lifecycle`] holds the state, the deadline and the reason, and returns the outcome of a shutdown or a time-out;
//! the endpoint applies the outcome to its LLP. `progress` is a counter of the LLP that grows while the teardown
//! advances; values are only compared. An LLP adds its own reasons as a [`LowerReason`].

mod reason;

pub use reason::{CloseReason, LowerReason};

use core::time::Duration;

use base::Instant;

use crate::buffers::BufferPool;
use crate::memory::RegionMemory;
use crate::message::Failure;
use crate::ulp::Ulp;

/// State of a stream. The documentation of this module has the transitions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// The LLP's handshake is in progress.
    Connecting,
    /// The peer's start-up message is expected.
    Startup,
    /// The peer's request awaits the answer of the stream's owner.
    Deciding,
    /// The request is accepted, and the initiator's ready-to-receive message is expected (RFC 6581 §9.2).
    Readying,
    /// The start-up is complete: segments are sent and received.
    Established,
    /// A graceful close is in progress: received data is still placed.
    Closing,
    /// The stream ends after an error or a reject: received data is discarded.
    Failing,
    /// Both directions are closed, or the stream was aborted.
    Closed,
}

impl State {
    /// Returns a stable name for people and for machine-readable output.
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

/// Outcome of a graceful shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum ShutdownOutcome {
    /// The start-up is abandoned: the stream fails.
    StartupEnded,
    /// A graceful close has begun: posted messages are sent, then this direction is closed.
    Begun,
    /// The stream is already ending.
    NoChange,
}

/// Outcome of an expired deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum DeadlineOutcome {
    /// The start-up is not complete in time.
    Startup,
    /// The ready-to-receive message did not arrive in time.
    Readying,
    /// The LLP made progress: the time-out of the teardown, or of the ULP of a half-closed stream, begins again.
    Progress,
    /// The LLP made no progress in the teardown: the peer does not close.
    Teardown,
    /// The ULP did not close in time after the peer's close.
    Ulp,
    /// The deadline has no effect in this state.
    NoChange,
}

/// The error sent to the peer at an abortive end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinalError {
    /// No error is sent.
    None,
    /// The error that DDP or RDMAP found, if any.
    Ulp,
    /// An error of the LLP, with the LLP's numbers.
    Llp {
        /// Error type, 4 bits.
        error_type: u8,
        /// Error code, 0 to 255; its meaning depends on the error type.
        code: u8,
    },
    /// A local catastrophic error: this end's ULP cannot serve the peer's messages.
    Local,
}

impl FinalError {
    /// Posts bare DDP's last message or RDMAP's Terminate (RFC 5041 §7.1, RFC 5040 §6.2.1). With `None`, or if
    /// this end may not send, the LLP receives no more ULPDUs; those already sent can be retransmitted until
    /// they are acknowledged.
    pub fn post<M: RegionMemory>(self, stream: &mut Ulp<M>, may_send: bool) {
        match self {
            FinalError::Ulp if may_send => stream.post_error(),
            FinalError::Llp { error_type, code } if may_send => {
                stream.post_llp_error(error_type, code);
            }
            FinalError::Local if may_send => stream.post_local_error(),
            _ => stream.close_now(),
        }
    }
}

/// Pending actions of an endpoint at the end of its stream.
#[derive(Clone, Copy, Default, Debug)]
pub struct PendingActions {
    /// Process the peer's close, which had to wait until DDP accepted the data before it.
    pub peer_close: bool,
    /// Close this direction later: sending is not permitted yet, or a Read is not answered.
    pub close: bool,
    /// Report the end of the stream.
    pub report: bool,
    /// Reset when the peer closes: the peer has not received the error that ended the stream.
    pub reset: bool,
    /// Close with [`CloseReason::Idle`]: the idle time-out was reported to the ULP, which closes.
    pub idle: bool,
}

/// State, deadline and reason of one stream.
#[derive(Debug)]
pub struct Lifecycle<L> {
    state: State,
    peer_closed: bool,
    /// Pending actions of the endpoint; not used by the lifecycle itself.
    pub pending: PendingActions,
    transient: Option<Box<TransientState<L>>>,
}

/// State of a stream's set-up and teardown. Not allocated for an established stream that is not about to end, to save
/// memory.
#[derive(Debug)]
struct TransientState<L> {
    /// Deadline of the start-up, of the peer in a teardown, or of the ULP after the peer's close.
    deadline: Option<Instant>,
    reason: Option<CloseReason<L>>,
    /// The LLP's progress when the deadline was set. If the progress is greater at the deadline, the deadline is
    /// extended.
    progress: u64,
    /// Number of deliveries, as [`Ulp::delivery_count`] counts them, that the ULP's close confirms.
    confirmed: Option<u64>,
}

impl<L> Default for TransientState<L> {
    fn default() -> Self {
        TransientState { deadline: None, reason: None, progress: 0, confirmed: None }
    }
}

impl<L: LowerReason> Lifecycle<L> {
    /// Returns the lifecycle of a stream that begins in `state`.
    pub fn new(state: State) -> Self {
        Lifecycle { state, peer_closed: false, pending: PendingActions::default(), transient: None }
    }

    /// Returns the current state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the time at which to call [`on_deadline`](Self::on_deadline), if any.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.transient.as_ref()?.deadline
    }

    /// Returns true while received segments are passed to DDP.
    #[inline]
    pub fn is_receiving(&self) -> bool {
        matches!(self.state, State::Readying | State::Established | State::Closing)
    }

    /// Returns true if the peer has closed its direction.
    pub fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Returns the first reason for the end, if the stream is ending.
    pub fn reason(&self) -> Option<&CloseReason<L>> {
        self.transient.as_ref()?.reason.as_ref()
    }

    /// Returns the reason to report for a closed stream: [`reason`](Self::reason), or an abort by this end.
    pub fn close_reason(&self) -> CloseReason<L> {
        self.reason().cloned().unwrap_or(CloseReason::LocalAbort)
    }

    /// Records that the LLP's handshake is complete; the start-up must end by `deadline`. Returns true if the
    /// stream was connecting. Otherwise nothing changes.
    pub fn on_connected(&mut self, deadline: Instant) -> bool {
        let was_connecting = self.state == State::Connecting;
        if was_connecting {
            self.state = State::Startup;
            self.set_deadline(deadline);
        }
        was_connecting
    }

    /// Records that a request has arrived, which the owner must answer.
    pub fn on_request(&mut self) {
        self.state = State::Deciding;
    }

    /// Sets the deadline of the start-up.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.transient_mut().deadline = Some(deadline);
    }

    /// Records that the request is accepted; the initiator's ready-to-receive message is awaited.
    pub fn await_ready(&mut self) {
        self.state = State::Readying;
    }

    /// Records that segments may flow, and clears the deadline.
    pub fn on_established(&mut self) {
        self.state = State::Established;
        self.clear_deadline();
    }

    /// Records that the peer has closed its direction.
    pub fn on_peer_closed(&mut self) {
        self.peer_closed = true;
    }

    /// Begins a graceful close for `reason`. After the peer's close the reason is [`CloseReason::PeerShutdown`]
    /// instead.
    pub fn shutdown(&mut self, reason: CloseReason<L>) -> ShutdownOutcome {
        match self.state {
            State::Connecting | State::Startup | State::Deciding => {
                self.fail(reason);
                ShutdownOutcome::StartupEnded
            }
            State::Readying | State::Established => {
                self.set_first_reason(if self.peer_closed {
                    CloseReason::PeerShutdown
                } else {
                    reason
                });
                self.state = State::Closing;
                ShutdownOutcome::Begun
            }
            State::Closing | State::Failing | State::Closed => ShutdownOutcome::NoChange,
        }
    }

    /// Records that the ULP of `stream` is about to close. The close confirms all data whose events the ULP has polled.
    /// The time-out of a half-closed stream is cancelled: from now on the ULP limits the time until the close.
    pub fn begin_confirmation<M: RegionMemory>(&mut self, stream: &Ulp<M>) {
        if self.state == State::Established {
            // Each delivery is one event. Pending events of other kinds make `taken` too low, never too high.
            let taken = stream.delivery_count().saturating_sub(stream.pending_events() as u64);
            self.transient_mut().confirmed = Some(taken);
            self.clear_deadline();
        }
    }

    /// Records this end's close. Data is unconfirmed if it arrives after this call, or after an earlier
    /// [`begin_confirmation`](Self::begin_confirmation).
    pub fn record_local_close<M: RegionMemory>(&mut self, stream: &Ulp<M>) {
        self.transient_mut().confirmed.get_or_insert(stream.delivery_count());
    }

    /// Returns true if `stream` has data that its ULP does not confirm. This end's close and the acknowledgement of
    /// the peer's close would confirm this data (docs/protocol.md §6).
    pub fn is_unconfirmed<M: RegionMemory>(&self, stream: &Ulp<M>) -> bool {
        let confirmed = self.transient.as_ref().and_then(|transient| transient.confirmed);
        stream.holds_confirmations()
            && confirmed.is_some_and(|confirmed| stream.delivery_count() > confirmed)
    }

    /// Returns the reason for a graceful close that the owner requests: [`CloseReason::Idle`] after a reported idle
    /// time-out, otherwise [`CloseReason::LocalShutdown`].
    pub fn local_reason(&self) -> CloseReason<L> {
        if self.pending.idle { CloseReason::Idle } else { CloseReason::LocalShutdown }
    }

    /// Fails the stream: received data is discarded from now on.
    pub fn fail(&mut self, reason: CloseReason<L>) {
        self.set_first_reason(reason);
        self.state = State::Failing;
        self.clear_deadline();
    }

    /// Fails the stream as [`fail`](Self::fail) does, for an error. The error replaces an earlier reason, such as the
    /// reason of a graceful close in progress.
    pub fn fail_by_error(&mut self, reason: CloseReason<L>) {
        self.transient = None;
        self.fail(reason);
    }

    /// Sets the reason of the end, unless a reason is set already.
    pub fn set_first_reason(&mut self, reason: CloseReason<L>) {
        self.transient_mut().reason.get_or_insert(reason);
    }

    /// Replaces the reason of the end, and sets the stored progress of the LLP to zero.
    pub fn replace_reason(&mut self, reason: CloseReason<L>) {
        let transient = self.transient_mut();
        (transient.reason, transient.progress) = (Some(reason), 0);
    }

    /// Sets the deadline of the teardown to `now + timeout`. The deadline is extended if the LLP advances
    /// beyond `progress`.
    pub fn set_teardown_deadline(&mut self, now: Instant, timeout: Duration, progress: u64) {
        let transient = self.transient_mut();
        (transient.deadline, transient.progress) = (Some(now + timeout), progress);
    }

    /// Sets the deadline by which the ULP of a half-closed stream must close: `now + timeout`; no deadline if `timeout`
    /// is `None`. The deadline is extended if the LLP advances beyond `progress`.
    pub fn set_ulp_deadline(&mut self, now: Instant, timeout: Option<Duration>, progress: u64) {
        if let Some(timeout) = timeout.filter(|_| self.state == State::Established) {
            self.set_teardown_deadline(now, timeout, progress);
        }
    }

    /// Returns the outcome of the expired deadline. `progress` is the LLP's current progress.
    pub fn on_deadline(&mut self, progress: u64) -> DeadlineOutcome {
        let before = self.transient.as_ref().map_or(0, |transient| transient.progress);
        self.clear_deadline();
        match self.state {
            State::Startup | State::Deciding => DeadlineOutcome::Startup,
            State::Readying => DeadlineOutcome::Readying,
            State::Closing | State::Failing if progress > before => DeadlineOutcome::Progress,
            State::Closing | State::Failing => DeadlineOutcome::Teardown,
            State::Established if self.peer_closed && progress > before => {
                DeadlineOutcome::Progress
            }
            State::Established if self.peer_closed => DeadlineOutcome::Ulp,
            State::Connecting | State::Established | State::Closed => DeadlineOutcome::NoChange,
        }
    }

    /// Ends the stream: flushes its incomplete operations, and frees its part of the worker's `buffers`.
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

    /// Frees the memory of the reason after the owner has reported the reason. [`close_reason`](Self::close_reason)
    /// then no longer returns it.
    pub fn release(&mut self) {
        self.transient = None;
    }

    fn transient_mut(&mut self) -> &mut TransientState<L> {
        self.transient.get_or_insert_default()
    }

    fn clear_deadline(&mut self) {
        if let Some(transient) = &mut self.transient {
            transient.deadline = None;
            if transient.reason.is_none() && transient.confirmed.is_none() {
                self.transient = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
