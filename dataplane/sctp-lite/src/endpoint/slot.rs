//! One session of an association and its DDP stream: request and answer, established state, graceful close, errors,
//! time-outs.
//!
//! [`Session`] checks the order of messages and the legal sequences. [`Lifecycle`] records state and close reason.
//! `upper` selects the slot, and queues slots for transmission, events and timers.

use super::config::EndpointConfig;
use super::event::{CloseReason, SctpReason, SessionId, SessionStats, StreamParams};
use super::{Context, Event, SessionEvent, State};
use crate::session::{self, Session, SessionChange, SessionData};
use base::Instant;
use ddp::enhanced::{Agreement, EnhancedRepr, Readiness, accept_reply, build_reply};
use ddp::lifecycle::{DeadlineOutcome, FinalError, Lifecycle, ShutdownOutcome};
use ddp::llp::{OrderKey, UlpduSink, UlpduSource};
use ddp::{
    OpenRequest, PdId, PeerId, RegionMemory, Stag, StreamId, Ulp, UlpConfig, UlpEvent, UlpKind,
};
use std::collections::VecDeque;
use transport::retransmit_buffer::MemoryUse;

/// Error type of the codes of RFC 6581 §8, in layer 2 (LLP).
const ETYPE_STARTUP: u8 = 0;
/// RFC 6581 §8: local catastrophic error.
const CODE_LOCAL: u8 = 5;

/// DDP stream and private data with which the owner accepts a request.
pub(super) struct AcceptedStream<'a> {
    pub(super) id: StreamId,
    pub(super) pd: PdId,
    /// Private data of the Accept.
    pub(super) private_data: &'a [u8],
    pub(super) ulp: UlpConfig,
}

/// The parts of the endpoint that a slot uses.
pub(super) struct Env<'a> {
    pub(super) config: &'a EndpointConfig,
    pub(super) peer: PeerId,
    pub(super) events: &'a mut VecDeque<Event>,
    pub(super) now: Instant,
    /// Largest DDP segment to send, bytes.
    pub(super) mulpdu: usize,
    /// Set to request an abort of the association: a session failed and its peer cannot receive the error.
    pub(super) abort_requested: &'a mut bool,
}

/// Session on a pair of SCTP streams, with its DDP stream.
#[derive(Debug)]
pub(super) struct SessionSlot<M: RegionMemory> {
    pub(super) id: SessionId,
    pub(super) session: Session,
    lifecycle: Lifecycle<SctpReason>,
    /// True if the owner receives events of the session. False for a request that was answered with a Terminate, and
    /// after an illegal first message.
    pub(super) is_reported: bool,
    /// Read limits of the Initiate, if it is enhanced.
    requested: Option<EnhancedRepr>,
    /// Open request of the active side, until the answer.
    open: Option<Box<(StreamId, OpenRequest)>>,
    pub(super) accepted: Option<Box<AcceptedSession<M>>>,
    /// True if queued in `Upper::ready`: the session may have data to send.
    pub(super) ready: bool,
    /// True if queued in `Upper::dirty`: the session has changes to process.
    pub(super) is_dirty: bool,
    /// True if queued in `Upper::event_queue`: the ULP may have events.
    pub(super) has_event_turn: bool,
    /// Maximum number of queued events while the owner has paused the session; `None` if the
    /// session is not paused.
    pub(super) paused_max_events: Option<u32>,
    /// True if the session keeps the window closed and `Upper::window_closers` counts it.
    pub(super) closes_window: bool,
    /// Deadline entered in `Upper::timers`.
    pub(super) timer: Option<Instant>,
    /// Memory for copies of unacknowledged messages, as counted in `Upper::kept`.
    pub(super) kept: MemoryUse,
}

#[derive(Debug)]
pub(super) struct AcceptedSession<M: RegionMemory> {
    pub(super) stream: Ulp<M>,
    agreed: Option<Agreement>,
}

impl<M: RegionMemory> AcceptedSession<M> {
    /// Returns the next event of the DDP stream.
    pub(super) fn poll_event(&mut self) -> Option<SessionEvent> {
        Some(match self.stream.poll_event()? {
            UlpEvent::Ddp(event) => SessionEvent::Ddp(event),
            UlpEvent::Rdmap(event) => SessionEvent::Rdmap(event),
        })
    }
}

impl<M: RegionMemory> SessionSlot<M> {
    pub(super) fn new(id: SessionId, session: Session, state: State) -> Self {
        SessionSlot {
            id,
            session,
            lifecycle: Lifecycle::new(state),
            is_reported: true,
            requested: None,
            open: None,
            accepted: None,
            ready: false,
            is_dirty: false,
            has_event_turn: false,
            paused_max_events: None,
            closes_window: false,
            timer: None,
            kept: MemoryUse::ZERO,
        }
    }

    /// Creates the active side, with an Initiate due.
    pub(super) fn new_active(
        id: SessionId,
        config: &EndpointConfig,
        stream: StreamId,
        open: OpenRequest,
    ) -> Self {
        let requested = requested_enhanced(config, &open.ulp);
        let data = SessionData { private_data: open.private_data.clone(), enhanced: requested };
        let session = Session::new_active(id.stream, &data, config.session.max_segment);
        let mut slot = SessionSlot::new(id, session, State::Connecting);
        (slot.requested, slot.open) = (requested, Some(Box::new((stream, open))));
        slot
    }

    /// Starts the time-out for the answer to the Initiate when the association is up.
    pub(super) fn on_association_up(&mut self, env: &Env<'_>) {
        self.lifecycle.on_connected(env.now + env.config.session.answer_timeout);
    }

    /// Reports the peer's request to the owner, and starts the time-out for the owner's decision.
    pub(super) fn report_request(&mut self, data: SessionData, env: &mut Env<'_>) {
        self.requested = data.enhanced;
        self.lifecycle.set_deadline(env.now + env.config.session.answer_timeout);
        let SessionData { private_data, enhanced } = data;
        self.push_event(SessionEvent::Request { private_data, enhanced }, env);
    }

    pub(super) fn state(&self) -> State {
        self.lifecycle.state()
    }

    /// Returns the time at which to call [`on_deadline`](Self::on_deadline).
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lifecycle.deadline()
    }

    /// Returns true if the session was reported to the owner and has not ended.
    pub(super) fn is_live(&self) -> bool {
        self.is_reported && self.state() != State::Closed
    }

    /// Returns true if the session keeps the idle time-out running: it is established, and the peer has not closed its
    /// direction. False once an idle time-out was reported.
    pub(super) fn keeps_idle_timer(&self) -> bool {
        let established = self.state() == State::Established;
        established && !self.lifecycle.is_peer_closed() && !self.lifecycle.pending.idle
    }

    /// Returns true if messages are refused: the owner has paused the events, and their maximum number is queued. After
    /// an error or the end of the session, messages are discarded instead.
    pub(super) fn refuses_messages(&self) -> bool {
        let Some(most) = self.paused_max_events else { return false };
        self.pending_events() >= most as usize && self.accepts_data()
    }

    /// Returns the number of ULP events that the owner has not polled.
    pub(super) fn pending_events(&self) -> usize {
        self.accepted.as_ref().map_or(0, |full| full.stream.pending_events())
    }

    /// Returns true if received segments may still cause events.
    pub(super) fn accepts_data(&self) -> bool {
        self.lifecycle.is_receiving()
    }

    fn push_event(&self, event: SessionEvent, env: &mut Env<'_>) {
        env.events.push_back(Event::Session(self.id, event));
    }

    /// Accepts the request. If the Read limits of the two ends do not match, the request is rejected instead.
    pub(super) fn accept(
        &mut self,
        answer: AcceptedStream<'_>,
        env: &mut Env<'_>,
        cx: &mut Context<'_, M>,
    ) {
        let AcceptedStream { id, pd, private_data, ulp } = answer;
        let (mut reply, mut agreed) = (None, None);
        match self
            .requested
            .map(|asked| build_reply(&asked, ulp.depths(), &env.config.session.enhanced))
        {
            Some(Ok(answer)) => (reply, agreed) = (Some(answer.0), Some(answer.1)),
            Some(Err(why)) => {
                return self.reject(SctpReason::Unsuitable(why).into(), &[], env.config);
            }
            None => {}
        }
        self.session.accept(&SessionData { private_data: private_data.to_vec(), enhanced: reply });
        self.create_stream(id, pd, ulp, agreed, env, cx);
        if agreed.is_some_and(|agreed| matches!(agreed.readiness, Readiness::AwaitsRtr(_))) {
            self.lifecycle.await_ready();
        } else {
            self.enter_established(Vec::new(), env);
        }
    }

    /// Rejects the request of the peer, because the owner rejects it or the IRD and ORD of the two ends are incompatible.
    pub(super) fn reject(
        &mut self,
        reason: CloseReason,
        private_data: &[u8],
        config: &EndpointConfig,
    ) {
        // An enhanced Reject means that a plain Initiate would have been accepted (RFC 6581 §7), and carries the
        // required ORD (§9.1).
        let unsuitable = matches!(reason, CloseReason::Lower(SctpReason::Unsuitable(_)));
        let ord = config.session.enhanced.required_ord;
        let enhanced =
            self.requested.filter(|_| unsuitable).map(|asked| EnhancedRepr { ord, ..asked });
        self.session.reject(&SessionData { private_data: private_data.to_vec(), enhanced });
        self.end(reason);
    }

    /// Returns true if the Initiate was enhanced. The answer then has less room for private data.
    pub(super) fn is_enhanced(&self) -> bool {
        self.requested.is_some()
    }

    /// Processes the session change that an accepted message caused.
    pub(super) fn apply_change(
        &mut self,
        change: &SessionChange,
        env: &mut Env<'_>,
        cx: &mut Context<'_, M>,
    ) {
        match change {
            SessionChange::Nothing => {}
            SessionChange::Accepted(data) => self.on_accept(data, env, cx),
            SessionChange::Rejected(data) => {
                let (private_data, enhanced) = (data.private_data.clone(), data.enhanced);
                self.end(CloseReason::RejectedByPeer { private_data, enhanced });
            }
            SessionChange::TurnedAway => self.end(SctpReason::TurnedAway.into()),
            SessionChange::Cancelled => {
                self.session.terminate_now();
                self.end(SctpReason::Cancelled.into());
            }
            SessionChange::PeerTerminated => {
                self.on_peer_terminate(env);
                if self.state() == State::Closing && self.is_unconfirmed() {
                    self.fail_ulp(env, cx);
                }
            }
        }
    }

    fn on_accept(&mut self, data: &SessionData, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        let Some(open) = self.open.take() else { return };
        let (id, OpenRequest { pd, ulp, .. }) = *open;
        let preference = env.config.session.rtr_preference;
        let agreed = match (self.requested, data.enhanced) {
            (Some(asked), Some(reply)) => {
                accept_reply(&asked, &reply, ulp.depths(), preference).map(Some)
            }
            _ => Ok(None),
        };
        self.create_stream(id, pd, ulp, agreed.ok().flatten(), env, cx);
        match agreed {
            Ok(_) => self.enter_established(data.private_data.clone(), env),
            // RFC 6581 §9.1, §9.2: an error message reports the mismatch to the peer, then the session's Terminate is
            // sent.
            Err(why) => {
                let error = startup_error(why.code());
                self.fail_with(SctpReason::Unsuitable(why).into(), error, env);
            }
        }
    }

    fn create_stream(
        &mut self,
        id: StreamId,
        pd: PdId,
        ulp: UlpConfig,
        agreed: Option<Agreement>,
        env: &Env<'_>,
        cx: &mut Context<'_, M>,
    ) {
        let stream = Ulp::new_accepted(id, pd, env.peer, ulp, agreed, Stag(0));
        let mut full = Box::new(AcceptedSession { stream, agreed });
        // The order key is the DDP-SSN: 0 was the Initiate or Accept, 1 is the first segment.
        full.stream.sink(cx.reborrow()).order_complete(OrderKey(1));
        self.accepted = Some(full);
    }

    fn enter_established(&mut self, private_data: Vec<u8>, env: &mut Env<'_>) {
        let Some(params) = self.params(env.mulpdu) else { return };
        self.lifecycle.on_established();
        self.push_event(SessionEvent::Established { private_data, params }, env);
    }

    /// Returns the agreed parameters; `None` before the session is accepted and after its end.
    pub(super) fn params(&self, mulpdu: usize) -> Option<StreamParams> {
        let full = self.accepted.as_ref()?;
        let ddp_version = full.stream.version();
        Some(StreamParams { ulp: full.stream.kind(), mulpdu, ddp_version, agreed: full.agreed })
    }

    /// Establishes a passive session in the peer-to-peer model after the active side's first segment, of any kind. From
    /// then on this end may send.
    fn check_readiness(&mut self, env: &mut Env<'_>) {
        if self.state() != State::Readying || !self.session.is_begun() {
            return;
        }
        if let Some(full) = &mut self.accepted {
            full.stream.on_peer_ready();
        }
        self.enter_established(Vec::new(), env);
    }

    /// Processes the changes since the last call. A failing session ends once this end's messages are acknowledged. A
    /// closing session in addition waits until all messages of the peer have arrived.
    pub(super) fn settle(&mut self, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        self.check_errors(env, cx);
        self.check_readiness(env);
        let done = match self.state() {
            State::Failing => self.accepted.is_none() || self.session.is_own_done(),
            State::Closing => self.session.is_free(),
            _ => false,
        };
        if done {
            self.finish(env, cx);
        }
    }

    /// Fails the session if its DDP stream has found an error of the peer or received an RDMAP Terminate. Aborts the
    /// session if the stream has failed without an error to report.
    fn check_errors(&mut self, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        if !self.lifecycle.is_receiving() {
            return;
        }
        let Some(full) = &self.accepted else { return };
        if let Some(reason) = CloseReason::from_stream(&full.stream) {
            // RFC 5040 §6.2.1: after the peer's RDMAP Terminate, this end closes gracefully without an answer.
            self.fail_with(reason, FinalError::Ulp, env);
        } else if let Some(failure) = full.stream.failure() {
            self.abort(CloseReason::DdpFailed(failure), env, cx);
        }
    }

    /// Processes the peer's Terminate, once all earlier messages have arrived.
    fn on_peer_terminate(&mut self, env: &mut Env<'_>) {
        if !self.lifecycle.is_receiving() {
            return;
        }
        self.lifecycle.on_peer_closed();
        if let Some(full) = &mut self.accepted {
            full.stream.on_peer_closed();
        }
        if self.state() == State::Readying {
            self.shutdown(CloseReason::PeerShutdown, env);
        }
        // RFC 5041 §6.2.1: the ULP may still send, then closes.
        self.start_ulp_timeout(env);
    }

    /// Processes the peer's shutdown of the association, which ends the peer's direction of this session without a
    /// Terminate.
    pub(super) fn on_peer_shutdown(&mut self, env: &mut Env<'_>) {
        self.on_peer_terminate(env);
        self.close(CloseReason::PeerShutdown, env);
    }

    pub(super) fn shutdown(&mut self, reason: CloseReason, env: &Env<'_>) {
        match self.lifecycle.shutdown(reason) {
            ShutdownOutcome::StartupEnded => {
                self.session.terminate_now();
            }
            ShutdownOutcome::Begun => {
                if let Some(full) = &self.accepted {
                    self.lifecycle.record_local_close(&full.stream);
                }
                self.session.close();
                self.start_teardown_timeout(env);
            }
            ShutdownOutcome::NoChange => {}
        }
    }

    /// Closes gracefully on the owner's request.
    pub(super) fn shutdown_locally(&mut self, env: &Env<'_>) {
        self.shutdown(self.lifecycle.local_reason(), env);
    }

    /// Closes the session because the association closes. A ULP that confirms data must close its session itself. For
    /// such a ULP this call only reports an idle time-out, and the DDP stream reports the peer's close.
    pub(super) fn close(&mut self, reason: CloseReason, env: &mut Env<'_>) {
        let holds = self.accepted.as_ref().is_some_and(|full| full.stream.holds_confirmations());
        if self.state() != State::Established || !holds {
            return self.shutdown(reason, env);
        }
        if reason == CloseReason::Idle && !self.lifecycle.pending.idle {
            self.lifecycle.pending.idle = true;
            self.push_event(SessionEvent::Idle, env);
        }
    }

    /// Records that the ULP will close the session. The graceful close confirms to the peer all data whose events the
    /// ULP has polled by now.
    pub(super) fn begin_confirmation(&mut self) {
        if let Some(full) = &self.accepted {
            self.lifecycle.begin_confirmation(&full.stream);
        }
    }

    /// Returns true if a close would confirm data that arrived after [`begin_confirmation`](Self::begin_confirmation).
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.accepted.as_ref().is_some_and(|full| self.lifecycle.is_unconfirmed(&full.stream))
    }

    /// Aborts the session: messages already sent still arrive, then the last message (or RDMAP Terminate) and the
    /// session's Terminate. Received segments are discarded.
    pub(super) fn abort(
        &mut self,
        reason: CloseReason,
        env: &mut Env<'_>,
        cx: &mut Context<'_, M>,
    ) {
        if self.state() == State::Closed {
            return;
        }
        self.lifecycle.set_first_reason(reason);
        self.queue_final_segment(env);
        self.session.terminate_now();
        self.finish(env, cx);
    }

    /// Queues the last message, or the RDMAP Terminate, for an abnormal end that the DDP stream itself does not report.
    /// The session's Terminate alone would signal a graceful end (docs/protocol.md §6).
    fn queue_final_segment(&mut self, env: &mut Env<'_>) {
        if !env.config.policy.last_message || self.session.is_terminated() {
            return;
        }
        let Some(full) = &self.accepted else { return };
        if !self.lifecycle.is_receiving() {
            // The session has already failed, and its error has not been sent yet.
            *env.abort_requested = true;
        } else if let Some(segment) = full.stream.abort_segment(ETYPE_STARTUP, CODE_LOCAL) {
            self.session.queue_final_segment(segment);
        }
    }

    /// Fails the session for a local reason: sends code 5 of RFC 6581 §8, then the Terminate. If the session has
    /// already failed or ended, aborts it instead.
    pub(super) fn fail(&mut self, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        if self.lifecycle.is_receiving() {
            self.fail_with(SctpReason::Local.into(), startup_error(CODE_LOCAL), env);
        } else {
            self.abort(SctpReason::Local.into(), env, cx);
        }
    }

    /// Fails the session because the ULP cannot continue: sends a local catastrophic error, then the Terminate. If the
    /// session has already failed or ended, aborts it instead.
    pub(super) fn fail_ulp(&mut self, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        if self.lifecycle.is_receiving() {
            self.fail_with(SctpReason::Local.into(), FinalError::Local, env);
        } else {
            self.abort(SctpReason::Local.into(), env, cx);
        }
    }

    /// Fails the session because the peer's messages violate the legal sequences (RFC 5043 §6.1). Sends the last
    /// message if the session is accepted, then a Terminate.
    pub(super) fn fail_illegal(&mut self, error: session::SessionError, env: &mut Env<'_>) {
        *env.abort_requested |= self.accepted.is_some() && self.session.is_terminated();
        self.queue_final_segment(env);
        self.session.terminate_now();
        self.lifecycle.fail_by_error(SctpReason::Session(error).into());
        if let Some(full) = &mut self.accepted {
            full.stream.close_now();
        }
    }

    /// Fails the session with an error (RFC 5041 §7.1). Sends the last message or the RDMAP Terminate, then the
    /// session's Terminate (RFC 5040 §6.2.1, RFC 5043 §6.2).
    fn fail_with(&mut self, reason: CloseReason, error: FinalError, env: &mut Env<'_>) {
        if let Some(full) = &mut self.accepted {
            error.post(&mut full.stream, env.config.policy.last_message);
        }
        let is_reported =
            self.session.close_after_error() || matches!(reason, CloseReason::Terminated(_));
        *env.abort_requested |= !is_reported;
        self.lifecycle.fail_by_error(reason);
        self.start_teardown_timeout(env);
    }

    /// Ends the session with this reason. Received segments are discarded from now on.
    pub(super) fn end(&mut self, reason: CloseReason) {
        self.lifecycle.fail(reason);
    }

    pub(super) fn on_deadline(&mut self, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        let half_closed = self.state() == State::Established;
        // Two kinds of session count as progressing: a half-closed session with events that the owner has not polled,
        // and a closing session whose ULP holds a Read. The ULP itself limits the time for which it holds a Read.
        let holds = self.state() == State::Closing && self.holds_reads();
        let progress = match half_closed && self.pending_events() > 0 || holds {
            true => u64::MAX,
            false => self.session.progress(),
        };
        match self.lifecycle.on_deadline(progress) {
            DeadlineOutcome::Startup => {
                self.session.terminate_now();
                self.end(SctpReason::AnswerTimeout.into());
            }
            DeadlineOutcome::Readying => {
                self.fail_with(SctpReason::AnswerTimeout.into(), FinalError::None, env);
            }
            DeadlineOutcome::Progress if half_closed => self.start_ulp_timeout(env),
            DeadlineOutcome::Progress => self.start_teardown_timeout(env),
            DeadlineOutcome::Ulp => self.abort(CloseReason::UlpTimeout, env, cx),
            DeadlineOutcome::Teardown => {
                // RFC 5043 §6.2: one Terminate suffices. This end's Terminate suffices here, once the peer has
                // acknowledged it.
                let enough = self.session.is_own_done();
                if !enough && self.lifecycle.reason().is_some_and(CloseReason::is_graceful) {
                    self.lifecycle.replace_reason(CloseReason::PeerLingers);
                }
                self.abort(CloseReason::PeerLingers, env, cx);
            }
            DeadlineOutcome::NoChange => {}
        }
    }

    /// Ends the session because the association has ended.
    pub(super) fn on_association_lost(
        &mut self,
        reason: CloseReason,
        env: &mut Env<'_>,
        cx: &mut Context<'_, M>,
    ) {
        if self.state() == State::Closed {
            return;
        }
        // RFC 5043 §6.2: one Terminate suffices: this end's if acknowledged, or the peer's. Exception: after the peer's
        // ABORT its Terminate does not suffice, because the peer may not have received this end's messages.
        let aborted = matches!(reason, CloseReason::Lower(SctpReason::PeerAbort { .. }));
        let enough = self.session.is_own_done() || self.session.is_peer_done() && !aborted;
        if self.state() == State::Closing && !(reason.is_graceful() || enough) {
            // The graceful close was not complete.
            self.lifecycle.replace_reason(reason);
        } else {
            self.lifecycle.set_first_reason(reason);
        }
        self.finish(env, cx);
    }

    /// Ends the session because the peer began another session on the same streams. The peer may do so only after it
    /// has received all messages of this session.
    pub(super) fn on_superseded(&mut self, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        if self.state() == State::Closed {
            return;
        }
        if let Some(full) = &mut self.accepted {
            full.stream.on_peer_closed();
        }
        self.lifecycle.set_first_reason(CloseReason::PeerShutdown);
        self.finish(env, cx);
    }

    /// Reports the pending events and the end of the session to the owner, and frees the DDP stream. Messages not yet
    /// acknowledged are kept for retransmission.
    fn finish(&mut self, env: &mut Env<'_>, cx: &mut Context<'_, M>) {
        self.open = None;
        if let Some(full) = &self.accepted {
            self.session.keep_all(&full.stream);
        }
        self.lifecycle.close(self.accepted.as_mut().map(|full| &mut full.stream), cx.buffers);
        while let Some(event) = self.accepted.as_mut().and_then(|full| full.poll_event()) {
            self.push_event(event, env);
        }
        let stats = Box::new(self.stats());
        self.accepted = None;
        if self.is_reported {
            let reason = self.lifecycle.close_reason();
            self.push_event(SessionEvent::Closed { reason, stats }, env);
        }
    }

    /// Returns the counters of the session's layers.
    pub(super) fn stats(&self) -> SessionStats {
        let session = self.session.stats();
        let Some(full) = &self.accepted else {
            return SessionStats { session, ..Default::default() };
        };
        let rdmap = full.stream.rdmap_counters().copied().unwrap_or_default();
        SessionStats { session, ddp: *full.stream.counters(), rdmap }
    }

    /// Returns true if the session has a message to send.
    pub(super) fn has_data(&self) -> bool {
        if self.state() == State::Connecting {
            return false;
        }
        let source = self.accepted.as_ref().map(|full| &full.stream);
        self.session.has_data(source, self.is_close_waiting())
    }

    /// Updates this session's share in `total`, the memory for kept messages of all sessions.
    pub(super) fn count_kept(&mut self, total: &mut MemoryUse) {
        let kept = self.session.kept_memory();
        if kept != self.kept {
            *total = total.minus(self.kept).plus(kept);
            self.kept = kept;
        }
    }

    /// Limits this session's memory for kept messages to `limit` minus the memory of the other sessions, bytes.
    /// `total`: memory of all sessions.
    #[inline]
    pub(super) fn limit_kept(&mut self, limit: u64, total: MemoryUse) {
        let others = total.minus(self.kept).memory;
        self.session.limit_kept(limit.saturating_sub(others));
    }

    /// Returns true if the next segment would be copied and kept until its acknowledgement.
    pub(super) fn next_is_kept(&self) -> bool {
        self.accepted.as_ref().is_some_and(|full| !full.stream.next_is_stable())
    }

    /// Returns true while a graceful close waits for responses that can still arrive, or for Reads that the ULP holds.
    pub(super) fn is_close_waiting(&self) -> bool {
        let Some(full) = self.accepted.as_ref().filter(|_| self.state() == State::Closing) else {
            return false;
        };
        let awaits = !self.lifecycle.is_peer_closed() && full.stream.awaits_response();
        awaits || full.stream.holds_reads()
    }

    fn holds_reads(&self) -> bool {
        self.accepted.as_ref().is_some_and(|full| full.stream.holds_reads())
    }

    /// Starts the time-out for the ULP to close the session, after the peer has half-closed it.
    fn start_ulp_timeout(&mut self, env: &Env<'_>) {
        let (timeout, progress) = (env.config.policy.half_closed_timeout, self.session.progress());
        self.lifecycle.set_ulp_deadline(env.now, timeout, progress);
    }

    fn start_teardown_timeout(&mut self, env: &Env<'_>) {
        let progress = self.session.progress();
        self.lifecycle.set_teardown_deadline(env.now, env.config.policy.teardown_timeout, progress);
    }
}

/// Returns the start-up error with this code (RFC 6581 §8).
fn startup_error(code: u8) -> FinalError {
    FinalError::Llp { error_type: ETYPE_STARTUP, code }
}

/// Returns the Read limits of an Initiate (IRD, ORD). `None` for bare DDP, which does not negotiate Reads, and if the
/// configuration requires the plain form.
pub(super) fn requested_enhanced(config: &EndpointConfig, ulp: &UlpConfig) -> Option<EnhancedRepr> {
    let enhanced = config.session.open_enhanced && UlpKind::from_config(ulp) == UlpKind::Rdmap;
    enhanced.then(|| ddp::enhanced::build_request(ulp.depths(), &config.session.enhanced))
}
