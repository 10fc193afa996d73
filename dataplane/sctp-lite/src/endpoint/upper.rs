//! The sessions of an association: the layer above SCTP.
//!
//! ```text
//!   slots:        | 0: session | 1: - | 2: residue | ...      by stream identifier
//!   ready:        slots that may have data to send, served round-robin
//!   dirty:        slots changed since the last `settle_all`
//!   event_queue:  slots whose ULP may have events
//! ```
//!
//! A session stays in its slot as a residue after its end was reported to the owner, while its messages may be
//! outstanding (RFC 5043 §6.6).

mod call;
mod segment;

use super::config::EndpointConfig;
use super::event::{CloseReason, SctpReason, SessionId};
use super::slot::{AcceptedStream, Env, SessionSlot, requested_enhanced};
use super::{AnswerError, Context, Event, OpenError, State};
use crate::seam::{MessageOutcome, MessageRef, ReceivedMessage};
use crate::session::{
    ArrivalResult, Message, PrivateDataTooLong, Session, UnmatchedMessage, mulpdu,
};
use base::Instant;
use ddp::{OpenRequest, PeerId, RegionMemory, StreamId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use transport::retransmit_buffer::MemoryUse;

pub(super) use call::UpperCall;

/// Counters of an association's DDP adaptation that belong to no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AdaptationStats {
    /// Sessions requested by the peer and reported to the owner.
    pub requests: u64,
    /// Initiates answered with a Terminate, because a limit was reached (RFC 5043 §6.4) or the association is closing.
    pub turned_away: u64,
    /// Sessions terminated because the peer's messages violate the legal sequences (RFC 5043 §6.1).
    pub illegal: u64,
    /// Messages that arrived before the Initiate of their session; refused.
    pub early_messages: u64,
    /// Terminates on streams without a session.
    pub unmatched_terminates: u64,
    /// Messages on streams that have no counterpart in the other direction; discarded.
    pub unpaired_messages: u64,
}

/// The sessions of an association, with their queues, timers and shares of the worker's budgets.
#[derive(Debug)]
pub(super) struct Upper<M: RegionMemory> {
    config: Arc<EndpointConfig>,
    /// Identity of the peer in the worker's budgets.
    peer: PeerId,
    /// True if this end opened the association.
    initiator: bool,
    /// Number of pairs of like-numbered streams: the requested number until the association is up, then the negotiated
    /// number.
    pairs: u16,
    /// True while the association is established.
    is_up: bool,
    /// True if no new session may begin.
    closing: bool,
    /// Largest message that fits a packet, bytes.
    max_message: usize,
    /// Serial number of the newest session.
    serial: u32,
    /// Number of live sessions that were reported to the owner.
    live_sessions: usize,
    /// Memory for unacknowledged messages kept by all sessions.
    kept: MemoryUse,
    /// Bytes of the worker's hold budget that this association's fragments use.
    held_bytes: u64,
    /// Number of sessions that keep SCTP's window closed.
    window_closers: usize,
    /// Growth of SCTP's receive window since the start, bytes, granted by the worker's budget.
    window_growth: u64,
    slots: Vec<Option<Box<SessionSlot<M>>>>,
    ready: VecDeque<u16>,
    dirty: DirtySlots,
    event_queue: VecDeque<u16>,
    /// Deadlines of the slots, each with the slot's stream identifier.
    timers: BTreeSet<(Instant, u16)>,
    pub(super) events: VecDeque<Event>,
    pub(super) stats: AdaptationStats,
}

/// Sessions whose changes [`settle_all`](Upper::settle_all) has not processed yet.
#[derive(Debug, Default)]
struct DirtySlots {
    /// Stream identifiers of the slots, in the order in which the slots became dirty.
    slots: VecDeque<u16>,
    /// Stream of a session that took the fast path in this packet and has no changes to process. Messages of other
    /// sessions in the same packet take the slow path, so that changes are processed in order.
    fast_path_slot: Option<u16>,
    /// True if an abort of the association is requested: see [`Env::abort_requested`].
    abort_requested: bool,
}

/// Largest message, bytes, until SCTP reports its limit.
const INITIAL_MAX_MESSAGE: usize = wire::sctp::ddp::MIN_MESSAGE;

impl<M: RegionMemory> Upper<M> {
    pub(super) fn new(
        config: Arc<EndpointConfig>,
        peer: PeerId,
        initiator: bool,
        pairs: u16,
    ) -> Self {
        Upper {
            config,
            peer,
            initiator,
            pairs,
            is_up: false,
            closing: false,
            max_message: INITIAL_MAX_MESSAGE,
            serial: 0,
            live_sessions: 0,
            kept: MemoryUse::ZERO,
            held_bytes: 0,
            window_closers: 0,
            window_growth: 0,
            slots: Vec::new(),
            ready: VecDeque::new(),
            dirty: DirtySlots::default(),
            event_queue: VecDeque::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            stats: AdaptationStats::default(),
        }
    }

    /// Processes the start of the association, with `pairs` pairs of streams.
    pub(super) fn on_up(&mut self, now: Instant, pairs: u16) {
        // RFC 5043 §8: like-numbered streams make a pair.
        self.pairs = pairs;
        self.is_up = true;
        self.events.push_back(Event::Up { streams: self.pairs });
        for stream in 0..self.slots.len() as u16 {
            let pairs = self.pairs;
            self.with_slot(stream, now, |slot, env| match stream < pairs {
                true => slot.on_association_up(env),
                false => slot.end(SctpReason::TurnedAway.into()),
            });
        }
    }

    /// Processes a restart of the association (RFC 9260 §5.2.4, action A): all old sessions end.
    pub(super) fn on_restarted(&mut self, now: Instant, pairs: u16, cx: &mut Context<'_, M>) {
        self.on_association_lost(SctpReason::PeerRestart.into(), now, cx);
        self.release_budgets(cx);
        self.on_up(now, pairs);
    }

    /// Ends every session with `reason` because the association has ended. No RDMAP Terminate is sent
    /// (RFC 5043 §11.3). The owner of each session is notified.
    pub(super) fn on_association_lost(
        &mut self,
        reason: CloseReason,
        now: Instant,
        cx: &mut Context<'_, M>,
    ) {
        self.is_up = false;
        for stream in 0..self.slots.len() as u16 {
            self.with_slot(stream, now, |slot, env| {
                slot.on_association_lost(reason.clone(), env, cx)
            });
            if let Some(slot) = self.slots[usize::from(stream)].take() {
                self.unregister(&slot);
            }
        }
        self.ready.clear();
        self.dirty.slots.clear();
        self.event_queue.clear();
        self.timers.clear();
    }

    /// Returns the memory for fragments and for the growth of the window to the worker's budgets, after the end or
    /// restart of the association.
    pub(super) fn release_budgets(&mut self, cx: &mut Context<'_, M>) {
        cx.hold.release(self.peer, core::mem::take(&mut self.held_bytes));
        cx.hold.windows_mut().release(core::mem::take(&mut self.window_growth));
    }

    fn unregister(&mut self, slot: &SessionSlot<M>) {
        self.kept = self.kept.minus(slot.kept);
        self.window_closers -= usize::from(slot.closes_window);
        if let Some(timer) = slot.timer {
            self.timers.remove(&(timer, slot.id.stream));
        }
    }

    /// Returns the bytes of memory for copies of unacknowledged messages. A message is copied if its source may change
    /// or its session has ended.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept.memory
    }

    pub(super) fn live_count(&self) -> usize {
        self.live_sessions
    }

    pub(super) fn live_slots(&self) -> impl Iterator<Item = &SessionSlot<M>> {
        self.slots().filter(|slot| slot.is_live())
    }

    /// Returns true if the idle time-out applies: a session is established and not half-closed by the peer.
    pub(super) fn idle_timeout_applies(&self) -> bool {
        self.live_sessions > 0 && self.live_slots().any(|slot| slot.keeps_idle_timer())
    }

    /// Returns true if no new session may begin.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns true if no event is pending and no session is live.
    pub(super) fn is_done(&self) -> bool {
        self.live_sessions == 0 && self.events.is_empty()
    }

    /// Returns true if a session could be opened.
    pub(super) fn can_open(&self) -> bool {
        let bound = usize::from(self.config.session.max_sessions);
        !self.closing && self.occupied_slots() < bound && self.free_stream().is_some()
    }

    fn slots(&self) -> impl Iterator<Item = &SessionSlot<M>> {
        self.slots.iter().flatten().map(|slot| &**slot)
    }

    /// Returns the session with this identifier, if it is live.
    pub(super) fn slot(&self, id: SessionId) -> Option<&SessionSlot<M>> {
        let slot = self.slots.get(usize::from(id.stream))?.as_deref()?;
        (slot.id == id && slot.is_live()).then_some(slot)
    }

    /// Sets the largest message that fits a packet, bytes.
    pub(super) fn set_max_message(&mut self, len: usize) {
        self.max_message = len;
    }

    /// Returns the largest DDP segment to send, bytes.
    pub(super) fn mulpdu(&self) -> usize {
        mulpdu(self.max_message, self.config.session.control_room)
    }

    /// Returns a new session identifier for a pair of streams.
    fn next_session_id(&mut self, stream: u16) -> SessionId {
        self.serial = self.serial.wrapping_add(1);
        SessionId { stream, serial: self.serial }
    }

    /// Returns a free pair of streams. The end that opened the association searches from the lowest identifier, the
    /// other end from the highest, so that the two ends rarely choose the same pair.
    fn free_stream(&self) -> Option<u16> {
        let is_free = |stream: &u16| {
            let slot = self.slots.get(usize::from(*stream));
            slot.is_none_or(|slot| slot.is_none())
        };
        match self.initiator {
            true => (0..self.pairs).find(is_free),
            false => (0..self.pairs).rev().find(is_free),
        }
    }

    pub(super) fn occupied_slots(&self) -> usize {
        self.slots().count()
    }

    pub(super) fn open(
        &mut self,
        now: Instant,
        id: StreamId,
        open: OpenRequest,
    ) -> Result<SessionId, OpenError> {
        let enhanced = requested_enhanced(&self.config, &open.ulp).is_some();
        PrivateDataTooLong::check(&open.private_data, enhanced)?;
        if self.closing {
            return Err(OpenError::Closed);
        }
        let bound = usize::from(self.config.session.max_sessions);
        let free = self.free_stream().filter(|_| self.occupied_slots() < bound);
        let stream = free.ok_or(OpenError::NoStream)?;
        let session = self.next_session_id(stream);
        let config = self.config.clone();
        self.insert_slot(SessionSlot::new_active(session, &config, id, open));
        if self.is_up {
            self.with_slot(stream, now, |slot, env| slot.on_association_up(env));
        }
        Ok(session)
    }

    pub(super) fn accept(
        &mut self,
        now: Instant,
        session: SessionId,
        answer: AcceptedStream<'_>,
        cx: &mut Context<'_, M>,
    ) -> Result<(), AnswerError> {
        self.check_deciding(session, answer.private_data)?;
        self.with_slot(session.stream, now, |slot, env| slot.accept(answer, env, cx));
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        now: Instant,
        session: SessionId,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        self.check_deciding(session, private_data)?;
        self.with_slot(session.stream, now, |slot, env| {
            slot.reject(CloseReason::RejectedHere, private_data, env.config);
        });
        Ok(())
    }

    /// Checks that a request awaits a decision, and that its answer has room for the private data.
    fn check_deciding(&self, session: SessionId, private_data: &[u8]) -> Result<(), AnswerError> {
        let slot = self.slot(session).filter(|slot| slot.state() == State::Deciding);
        let enhanced = slot.ok_or(AnswerError::NoRequest)?.is_enhanced();
        Ok(PrivateDataTooLong::check(private_data, enhanced)?)
    }

    /// Closes the existing sessions gracefully, and permits no new sessions. A session whose ULP confirms data itself
    /// is closed by its ULP.
    pub(super) fn close(&mut self, reason: &CloseReason, now: Instant) {
        self.closing = true;
        for stream in 0..self.slots.len() as u16 {
            self.with_slot(stream, now, |slot, env| slot.close(reason.clone(), env));
        }
    }

    /// Processes the peer's shutdown of the association: the peer sends no further message. The remaining messages of
    /// this end are still sent.
    pub(super) fn on_peer_shutdown(&mut self, now: Instant) {
        self.closing = true;
        for stream in 0..self.slots.len() as u16 {
            self.with_slot(stream, now, |slot, env| slot.on_peer_shutdown(env));
        }
    }

    fn insert_slot(&mut self, slot: SessionSlot<M>) {
        let stream = usize::from(slot.id.stream);
        self.live_sessions += usize::from(slot.is_live());
        if self.slots.len() <= stream {
            self.slots.resize_with(stream + 1, || None);
        }
        self.slots[stream] = Some(Box::new(slot));
    }

    /// Calls `f` with the slot of a stream, if there is one. The next [`settle_all`](Self::settle_all) processes the
    /// slot's changes.
    pub(super) fn with_slot<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let result = self.with_slot_unmarked(stream, now, f)?;
        self.mark_dirty(stream);
        Some(result)
    }

    /// Calls `f` and marks the slot as changed, like [`with_slot`](Self::with_slot), but does not queue the slot for
    /// transmission. [`settle_all`](Self::settle_all), called once per packet and before each transmission, queues a
    /// changed slot that has data.
    fn with_slot_unqueued<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let result = self.call_slot(stream, now, f)?;
        self.mark_dirty(stream);
        Some(result)
    }

    fn mark_dirty(&mut self, stream: u16) {
        if let Some(first) = self.dirty.fast_path_slot.take() {
            self.queue_dirty(first);
        }
        self.queue_dirty(stream);
    }

    fn queue_dirty(&mut self, stream: u16) {
        if let Some(slot) = self.slot_at(stream)
            && !slot.is_dirty
        {
            slot.is_dirty = true;
            self.dirty.slots.push_back(stream);
        }
    }

    /// Processes the acknowledgement of a session's oldest outstanding message. Marks the slot as changed, like
    /// [`with_slot_unqueued`](Self::with_slot_unqueued). State and timer of the slot change only in
    /// [`settle_all`](Self::settle_all).
    #[inline]
    fn on_acknowledged(&mut self, message: MessageRef) {
        let stream = message.stream;
        let Some(slot) = self.slots.get_mut(usize::from(stream)).and_then(Option::as_deref_mut)
        else {
            return;
        };
        let source = slot.accepted.as_mut().map(|full| &mut full.stream);
        slot.session.on_acknowledged(source, message);
        slot.count_kept(&mut self.kept);
        if !slot.is_dirty {
            self.mark_dirty(stream);
        }
    }

    /// Does the same as [`with_slot`](Self::with_slot), but does not mark the slot as changed. Updates the timer and
    /// the queue of slots with data to send.
    pub(super) fn with_slot_unmarked<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let result = self.call_slot(stream, now, f)?;
        if let Some(slot) = self.slot_at(stream)
            && !slot.ready
            && slot.has_data()
        {
            slot.ready = true;
            self.ready.push_back(stream);
        }
        Some(result)
    }

    /// Calls `f` with a slot, and updates its timer and the totals of all slots.
    fn call_slot<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let mulpdu = self.mulpdu();
        let slot = self.slots.get_mut(usize::from(stream))?.as_deref_mut()?;
        let Upper { config, peer, dirty, events, .. } = self;
        let aborts = &mut dirty.abort_requested;
        let (config, peer) = (&**config, *peer);
        let was_live = slot.is_live();
        let result =
            f(slot, &mut Env { config, peer, events, now, mulpdu, abort_requested: aborts });
        self.live_sessions -= usize::from(was_live && !slot.is_live());
        slot.count_kept(&mut self.kept);
        let deadline = slot.deadline();
        if slot.timer != deadline {
            if let Some(timer) = slot.timer {
                self.timers.remove(&(timer, stream));
            }
            slot.timer = deadline;
            self.timers.extend(deadline.map(|deadline| (deadline, stream)));
        }
        Some(result)
    }

    /// Processes the changes of all dirty sessions, in the order in which they became dirty.
    pub(super) fn settle_all(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.dirty.fast_path_slot = None;
        while let Some(stream) = self.dirty.slots.pop_front() {
            // The slot stays marked dirty until `on_settled`, so that `with_slot` does not queue the slot again.
            self.with_slot(stream, now, |slot, env| slot.settle(env, cx));
            self.on_settled(stream);
        }
    }

    /// Returns true if a session failed and its peer cannot receive the error: the association must be aborted. Clears
    /// this request.
    pub(super) fn take_abort(&mut self) -> bool {
        core::mem::take(&mut self.dirty.abort_requested)
    }

    /// Returns true if [`settle_all`](Self::settle_all) would have no effect.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.dirty.slots.is_empty()
    }

    pub(super) fn slot_at(&mut self, stream: u16) -> Option<&mut SessionSlot<M>> {
        self.slots.get_mut(usize::from(stream))?.as_deref_mut()
    }

    fn on_settled(&mut self, stream: u16) {
        let Some(slot) = self.slot_at(stream) else { return };
        slot.is_dirty = false;
        if slot.state() != State::Closed {
            if slot.has_event_turn || slot.accepted.is_none() {
                return;
            }
            if slot.paused_max_events.is_some() {
                return self.update_window_closers(stream);
            }
            slot.has_event_turn = true;
            self.event_queue.push_back(stream);
        } else if slot.session.is_free() {
            self.drop_slot(stream);
        } else {
            self.update_window_closers(stream);
        }
    }

    /// Updates the number of sessions that keep the window closed, after one was paused or resumed, or ended while
    /// paused.
    #[cold]
    fn update_window_closers(&mut self, stream: u16) {
        let Some(slot) = self.slot_at(stream) else { return };
        let closes = slot.paused_max_events.is_some() && slot.accepts_data();
        match (core::mem::replace(&mut slot.closes_window, closes), closes) {
            (false, true) => self.window_closers += 1,
            (true, false) => self.window_closers -= 1,
            (false, false) | (true, true) => {}
        }
    }

    fn drop_slot(&mut self, stream: u16) {
        if let Some(slot) = self.slots[usize::from(stream)].take() {
            self.unregister(&slot);
            self.ready.retain(|s| *s != stream);
            self.dirty.slots.retain(|s| *s != stream);
            self.event_queue.retain(|s| *s != stream);
        }
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout).
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if !self.dirty.slots.is_empty() {
            return Some(Instant::ZERO);
        }
        self.timers.first().map(|(at, _)| *at)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        while let Some(&(at, stream)) = self.timers.first()
            && at <= now
        {
            self.timers.remove(&(at, stream));
            self.with_slot(stream, now, |slot, env| {
                slot.timer = None;
                slot.on_deadline(env, cx);
            });
        }
    }

    /// Returns false only if [`poll_event`](Self::poll_event) would return `None`, and has then emptied the queue of
    /// sessions, as `poll_event` does. Returns true without a check if several sessions are queued.
    #[inline]
    pub(super) fn may_have_events(&mut self) -> bool {
        if !self.events.is_empty() || self.event_queue.len() > 1 {
            return true;
        }
        let Some(stream) = self.event_queue.front().copied() else { return false };
        if let Some(slot) = self.slot_at(stream) {
            if slot.pending_events() > 0 {
                return true;
            }
            slot.has_event_turn = false;
        }
        self.event_queue.clear();
        false
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        while let Some(stream) = self.event_queue.front().copied() {
            if let Some(slot) = self.slot_at(stream) {
                let id = slot.id;
                if let Some(event) = slot.accepted.as_mut().and_then(|full| full.poll_event()) {
                    return Some(Event::Session(id, event));
                }
                slot.has_event_turn = false;
            }
            self.event_queue.pop_front();
        }
        None
    }

    /// Pauses or resumes the events of a session: see [`Endpoint::pause_session`](super::Endpoint::pause_session).
    pub(super) fn pause(&mut self, stream: u16, max_pending_events: Option<u32>) {
        let Some(slot) = self.slot_at(stream) else { return };
        slot.paused_max_events = max_pending_events;
        let events_enabled = max_pending_events.is_none() && slot.accepted.is_some();
        if core::mem::replace(&mut slot.has_event_turn, events_enabled) != events_enabled {
            if events_enabled {
                self.event_queue.push_back(stream);
            } else {
                self.event_queue.retain(|s| *s != stream);
            }
        }
        self.update_window_closers(stream);
    }

    /// Processes a message on a stream with a session, or with the residue of an ended session. Returns `None` if the
    /// stream has neither.
    fn receive_message(
        &mut self,
        now: Instant,
        received: &ReceivedMessage<'_>,
        cx: &mut Context<'_, M>,
    ) -> Option<ArrivalResult> {
        let message = Message::parse(received);
        let ssn = Message::ssn(received);
        if self.slot_at(received.stream).is_some_and(|slot| slot.refuses_messages()) {
            return Some(ArrivalResult::Refused);
        }
        self.with_slot_unqueued(received.stream, now, |slot, env| {
            let arrival = match &mut slot.accepted {
                Some(full) => {
                    let mut sink = full.stream.sink(cx.reborrow());
                    slot.session.receive(&message, ssn, Some(&mut sink))
                }
                None => slot.session.receive(&message, ssn, None::<&mut ddp::UlpSink<'_, M>>),
            };
            match &arrival {
                ArrivalResult::Accepted(change) => slot.apply_change(change, env, cx),
                ArrivalResult::Illegal(error) => slot.fail_illegal(*error, env),
                ArrivalResult::AfterClose => *env.abort_requested = true,
                ArrivalResult::Superseded => slot.on_superseded(env, cx),
                ArrivalResult::Refused => {}
            }
            arrival
        })
    }

    /// Processes a message on a stream without a session.
    fn receive_first_message(
        &mut self,
        now: Instant,
        received: &ReceivedMessage<'_>,
    ) -> MessageOutcome {
        let (stream, max_segment) = (received.stream, self.config.session.max_segment);
        let begun = Message::parse(received)
            .map_err(UnmatchedMessage::Illegal)
            .and_then(|message| Session::new_passive(stream, &message, max_segment));
        match begun {
            Ok((mut session, data)) => {
                let id = self.next_session_id(stream);
                if self.is_at_limit() {
                    self.stats.turned_away += 1;
                    session.terminate_now();
                    self.insert_unreported(SessionSlot::new(id, session, State::Closed), now);
                } else {
                    self.stats.requests += 1;
                    self.insert_slot(SessionSlot::new(id, session, State::Deciding));
                    self.with_slot(stream, now, |slot, env| slot.report_request(data, env));
                }
            }
            Err(UnmatchedMessage::Early) => {
                self.stats.early_messages += 1;
                return MessageOutcome::Refused;
            }
            Err(UnmatchedMessage::Terminate) => self.stats.unmatched_terminates += 1,
            Err(UnmatchedMessage::Illegal(_)) => {
                self.stats.illegal += 1;
                let id = self.next_session_id(stream);
                let mut session = Session::new_failed(stream, max_segment);
                let (message, ssn) = (Message::parse(received), Message::ssn(received));
                // The message is discarded; its DDP-SSN counts as received.
                let _taken = session.receive(&message, ssn, None::<&mut ddp::UlpSink<'_, M>>);
                self.insert_unreported(SessionSlot::new(id, session, State::Closed), now);
            }
        }
        MessageOutcome::Accepted
    }

    /// Adds a session that is never reported to the owner.
    fn insert_unreported(&mut self, mut slot: SessionSlot<M>, now: Instant) {
        slot.is_reported = false;
        let stream = slot.id.stream;
        self.insert_slot(slot);
        self.with_slot(stream, now, |_, _| {});
    }

    /// Returns true if another session would exceed a limit (RFC 5043 §6.4), or the association is closing.
    fn is_at_limit(&self) -> bool {
        let limits = &self.config.session;
        let pending = self.slots().filter(|slot| slot.state() == State::Deciding).count();
        self.closing
            || pending >= usize::from(limits.max_pending)
            || self.occupied_slots() >= usize::from(limits.max_sessions)
    }
}
