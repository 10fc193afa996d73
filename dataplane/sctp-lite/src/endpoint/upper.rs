//! All sessions of an association, as seen by SCTP.
//!
//! ```text
//!   slots:    | 0: session | 1: - | 2: residue | ...      by stream identifier
//!   ready:    slots that may have data to send, polled in turn
//!   touched:  slots changed since the last `settle`
//!   talking:  slots whose ULP may have events
//! ```
//!
//! A session that is over for its owner leaves a residue on its streams until nothing of it can be
//! outstanding (RFC 5043 §6.6).

mod call;
mod segment;

use super::config::EndpointConfig;
use super::event::{CloseReason, SctpReason, SessionId};
use super::slot::{Env, SessionSlot, asked};
use super::{AnswerError, Context, Event, OpenError, State};
use crate::seam::{MessageRef, Received, Taken};
use crate::session::{Arrival, Message, NoSession, PrivateDataTooLong, Session, mulpdu};
use base::Instant;
use ddp::{Open, PdId, PeerId, RegionMemory, StreamId, UlpConfig};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use transport::kept::Takes;

pub(super) use call::UpperCall;

/// Counters of an association's sessions that belong to no single session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AdaptationStats {
    /// Sessions requested by the peer and reported to the owner.
    pub requests: u64,
    /// Initiates answered with a Terminate, because a limit was reached (RFC 5043 §6.4).
    pub turned_away: u64,
    /// Sessions terminated because the peer's messages violate the legal sequences (RFC 5043 §6.1).
    pub illegal: u64,
    /// Messages on streams without a session that arrived before the Initiate that should precede them.
    pub early: u64,
    /// Terminates on streams without a session.
    pub stray: u64,
    /// Messages on streams without a counterpart in the other direction.
    pub unpaired: u64,
}

/// The sessions of one association.
#[derive(Debug)]
pub(super) struct Upper<M: RegionMemory> {
    config: Arc<EndpointConfig>,
    /// Identity of the peer, for the worker's budgets.
    peer: PeerId,
    /// This end opened the association.
    initiator: bool,
    /// Pairs of like-numbered streams; the requested number until the association is up.
    pairs: u16,
    is_up: bool,
    /// No new session is begun.
    closing: bool,
    /// The largest message that fits a packet, bytes.
    most: usize,
    serial: u32,
    /// Live sessions that were reported to their owners.
    live: usize,
    /// Memory for unacknowledged messages that all sessions keep.
    kept: Takes,
    /// Bytes of the worker's budget held by fragments of messages.
    held: u64,
    /// Number of sessions that keep SCTP's window closed.
    closing_window: usize,
    /// Bytes by which SCTP's window has grown.
    widened: u64,
    slots: Vec<Option<Box<SessionSlot<M>>>>,
    ready: VecDeque<u16>,
    touched: Touched,
    talking: VecDeque<u16>,
    timers: BTreeSet<(Instant, u16)>,
    pub(super) events: VecDeque<Event>,
    pub(super) stats: AdaptationStats,
}

/// Sessions changed since the last [`settle`](Upper::settle).
#[derive(Debug, Default)]
struct Touched {
    slots: VecDeque<u16>,
    /// The first session of this packet that took the fast path, if nothing had to be settled for it.
    passed: Option<u16>,
    /// See [`Env::aborts`].
    aborts: bool,
}

/// The largest message, bytes, before SCTP has reported how many fit a packet.
const INITIAL_MOST: usize = wire::sctp::ddp::MIN_MESSAGE;

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
            most: INITIAL_MOST,
            serial: 0,
            live: 0,
            kept: Takes::NOTHING,
            held: 0,
            closing_window: 0,
            widened: 0,
            slots: Vec::new(),
            ready: VecDeque::new(),
            touched: Touched::default(),
            talking: VecDeque::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            stats: AdaptationStats::default(),
        }
    }

    /// The association is up, with `pairs` pairs of streams.
    pub(super) fn up(&mut self, now: Instant, pairs: u16) {
        // RFC 5043 §8: like-numbered streams make a pair.
        self.pairs = pairs;
        self.is_up = true;
        self.events.push_back(Event::Up { streams: self.pairs });
        for stream in 0..self.slots.len() as u16 {
            let pairs = self.pairs;
            self.with(stream, now, |slot, env| match stream < pairs {
                true => slot.begin(env),
                false => slot.over(SctpReason::TurnedAway.into()),
            });
        }
    }

    /// The association restarts (RFC 9260 §5.2.4, action A): all old sessions end.
    pub(super) fn restarted(&mut self, now: Instant, pairs: u16, cx: &mut Context<'_, M>) {
        self.lost(SctpReason::PeerRestart.into(), now, cx);
        self.release_held(cx);
        self.up(now, pairs);
    }

    /// The association is over: ends every session with reason `why`. No RDMAP Terminate is sent
    /// (RFC 5043 §11.3); the owner of each session is notified.
    pub(super) fn lost(&mut self, why: CloseReason, now: Instant, cx: &mut Context<'_, M>) {
        self.is_up = false;
        for stream in 0..self.slots.len() as u16 {
            self.with(stream, now, |slot, env| slot.lost(why.clone(), env, cx));
            if let Some(slot) = self.slots[usize::from(stream)].take() {
                self.forget(&slot);
            }
        }
        self.ready.clear();
        self.touched.slots.clear();
        self.talking.clear();
        self.timers.clear();
    }

    /// Releases the budgets: SCTP holds no fragments any more, and its window has its initial size.
    pub(super) fn release_held(&mut self, cx: &mut Context<'_, M>) {
        cx.hold.release(self.peer, core::mem::take(&mut self.held));
        cx.hold.windows_mut().release(core::mem::take(&mut self.widened));
    }

    fn forget(&mut self, slot: &SessionSlot<M>) {
        self.kept = self.kept.without(slot.kept);
        self.closing_window -= usize::from(slot.closes_window);
        if let Some(timer) = slot.timer {
            self.timers.remove(&(timer, slot.id.stream));
        }
    }

    /// Memory for unacknowledged messages whose source may change or is closed, bytes.
    pub(super) fn kept(&self) -> u64 {
        self.kept.memory
    }

    /// Number of live sessions.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Iterates over the live sessions.
    pub(super) fn live_slots(&self) -> impl Iterator<Item = &SessionSlot<M>> {
        self.slots().filter(|slot| slot.is_live())
    }

    /// True if the idle time-out applies: a session is established and not half-closed by the peer.
    pub(super) fn may_idle(&self) -> bool {
        self.live > 0 && self.live_slots().any(|slot| slot.awaits_peer())
    }

    /// True if no new session is begun.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// True if no event and no live session remains.
    pub(super) fn is_done(&self) -> bool {
        self.live == 0 && self.events.is_empty()
    }

    /// True if a session could be opened.
    pub(super) fn can_open(&self) -> bool {
        let bound = usize::from(self.config.session.max_sessions);
        !self.closing && self.occupied() < bound && self.free_stream().is_some()
    }

    fn slots(&self) -> impl Iterator<Item = &SessionSlot<M>> {
        self.slots.iter().flatten().map(|slot| &**slot)
    }

    /// Returns the live session with this identifier.
    pub(super) fn slot(&self, id: SessionId) -> Option<&SessionSlot<M>> {
        let slot = self.slots.get(usize::from(id.stream))?.as_deref()?;
        (slot.id == id && slot.is_live()).then_some(slot)
    }

    /// Sets the largest message that fits a packet, bytes.
    pub(super) fn most_is(&mut self, most: usize) {
        self.most = most;
    }

    /// Returns the largest DDP segment to send, in bytes.
    pub(super) fn mulpdu(&self) -> usize {
        mulpdu(self.most, self.config.session.control_room)
    }

    /// Assigns an identifier to the next session on a pair of streams.
    fn name(&mut self, stream: u16) -> SessionId {
        self.serial = self.serial.wrapping_add(1);
        SessionId { stream, serial: self.serial }
    }

    /// Returns a pair of streams without outstanding data. The two ends search from opposite sides, so that
    /// they seldom choose the same pair.
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

    pub(super) fn occupied(&self) -> usize {
        self.slots().count()
    }

    /// Begins a session as the active side.
    pub(super) fn open(
        &mut self,
        now: Instant,
        id: StreamId,
        open: Open,
    ) -> Result<SessionId, OpenError> {
        let enhanced = asked(&self.config, &open.ulp).is_some();
        PrivateDataTooLong::check(&open.private_data, enhanced)?;
        if self.closing {
            return Err(OpenError::Closed);
        }
        let bound = usize::from(self.config.session.max_sessions);
        let free = self.free_stream().filter(|_| self.occupied() < bound);
        let stream = free.ok_or(OpenError::NoStream)?;
        let session = self.name(stream);
        let config = self.config.clone();
        self.put(SessionSlot::active(session, &config, id, open));
        if self.is_up {
            self.with(stream, now, |slot, env| slot.begin(env));
        }
        Ok(session)
    }

    pub(super) fn accept(
        &mut self,
        now: Instant,
        session: SessionId,
        answer: (StreamId, PdId, &[u8], UlpConfig),
        cx: &mut Context<'_, M>,
    ) -> Result<(), AnswerError> {
        let (id, pd, private_data, ulp) = answer;
        self.deciding(session, private_data)?;
        self.with(session.stream, now, |slot, env| {
            slot.accept(id, pd, private_data, ulp, env, cx);
        });
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        now: Instant,
        session: SessionId,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        self.deciding(session, private_data)?;
        self.with(session.stream, now, |slot, env| {
            slot.reject(CloseReason::RejectedHere, private_data, env.config);
        });
        Ok(())
    }

    /// Checks that a request awaits an answer, and that the answer has room for the private data.
    fn deciding(&self, session: SessionId, private_data: &[u8]) -> Result<(), AnswerError> {
        let slot = self.slot(session).filter(|slot| slot.state() == State::Deciding);
        let enhanced = slot.ok_or(AnswerError::NoRequest)?.is_enhanced();
        Ok(PrivateDataTooLong::check(private_data, enhanced)?)
    }

    /// Begins no new session and closes the existing ones gracefully. Sessions whose ULPs give the
    /// confirmations are closed by these.
    pub(super) fn close(&mut self, why: &CloseReason, now: Instant) {
        self.closing = true;
        for stream in 0..self.slots.len() as u16 {
            self.with(stream, now, |slot, env| slot.close(why.clone(), env));
        }
    }

    /// The peer shuts the association down: no message follows from it; this end's remaining messages are
    /// sent.
    pub(super) fn peer_shutdown(&mut self, now: Instant) {
        self.closing = true;
        for stream in 0..self.slots.len() as u16 {
            self.with(stream, now, |slot, env| slot.peer_gone(env));
        }
    }

    fn put(&mut self, slot: SessionSlot<M>) {
        let stream = usize::from(slot.id.stream);
        self.live += usize::from(slot.is_live());
        if self.slots.len() <= stream {
            self.slots.resize_with(stream + 1, || None);
        }
        self.slots[stream] = Some(Box::new(slot));
    }

    /// Calls `f` with the slot of a stream, if there is one. The slot is [settled](Self::settle) later.
    pub(super) fn with<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let result = self.quietly(stream, now, f)?;
        self.touch(stream);
        Some(result)
    }

    /// The same as [`with`](Self::with), for slots that are settled before the next transmission: the check
    /// for data to send happens then, once per packet.
    fn unsettled<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let result = self.act(stream, now, f)?;
        self.touch(stream);
        Some(result)
    }

    fn touch(&mut self, stream: u16) {
        if let Some(first) = self.touched.passed.take() {
            self.touch_behind(first);
        }
        self.touch_behind(stream);
    }

    fn touch_behind(&mut self, stream: u16) {
        if let Some(slot) = self.slot_at(stream)
            && !slot.touched
        {
            slot.touched = true;
            self.touched.slots.push_back(stream);
        }
    }

    /// The peer has acknowledged the session's oldest outstanding message. The slot is settled later, as with
    /// [`unsettled`](Self::unsettled): until then neither its state nor its timer depends on the
    /// acknowledgement.
    #[inline]
    fn acknowledged(&mut self, message: MessageRef) {
        let stream = message.stream;
        let Some(slot) = self.slots.get_mut(usize::from(stream)).and_then(Option::as_deref_mut)
        else {
            return;
        };
        let source = slot.full.as_mut().map(|full| &mut full.stream);
        slot.session.acknowledged(source, message);
        slot.count_kept(&mut self.kept);
        if !slot.touched {
            self.touch(stream);
        }
    }

    /// The same as [`with`](Self::with) without a later `settle`: updates the timer and the queue of slots
    /// with data to send.
    pub(super) fn quietly<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let result = self.act(stream, now, f)?;
        if let Some(slot) = self.slot_at(stream)
            && !slot.ready
            && slot.has_data()
        {
            slot.ready = true;
            self.ready.push_back(stream);
        }
        Some(result)
    }

    /// Calls `f` with a slot and updates its timer.
    fn act<R>(
        &mut self,
        stream: u16,
        now: Instant,
        f: impl FnOnce(&mut SessionSlot<M>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let mulpdu = self.mulpdu();
        let slot = self.slots.get_mut(usize::from(stream))?.as_deref_mut()?;
        let Upper { config, peer, touched, events, .. } = self;
        let aborts = &mut touched.aborts;
        let (config, peer) = (&**config, *peer);
        let was_live = slot.is_live();
        let result = f(slot, &mut Env { config, peer, events, now, mulpdu, aborts });
        self.live -= usize::from(was_live && !slot.is_live());
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

    /// Processes all changes of sessions since the last call.
    pub(super) fn settle(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.touched.passed = None;
        while let Some(stream) = self.touched.slots.pop_front() {
            // The slot remains marked as touched until the end, so that this does not queue it again.
            self.with(stream, now, |slot, env| slot.settle(env, cx));
            self.settled(stream);
        }
    }

    /// Returns true, once, if a session failed whose peer cannot receive the error: the association must be
    /// aborted.
    pub(super) fn take_abort(&mut self) -> bool {
        core::mem::take(&mut self.touched.aborts)
    }

    /// True if [`settle`](Self::settle) has nothing to do.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.touched.slots.is_empty()
    }

    pub(super) fn slot_at(&mut self, stream: u16) -> Option<&mut SessionSlot<M>> {
        self.slots.get_mut(usize::from(stream))?.as_deref_mut()
    }

    fn settled(&mut self, stream: u16) {
        let Some(slot) = self.slot_at(stream) else { return };
        slot.touched = false;
        if slot.state() != State::Closed {
            if slot.talking || slot.full.is_none() {
                return;
            }
            if slot.paused.is_some() {
                return self.count_closing(stream);
            }
            slot.talking = true;
            self.talking.push_back(stream);
        } else if slot.session.is_free() {
            self.drop_slot(stream);
        } else {
            self.count_closing(stream);
        }
    }

    /// Updates the count of sessions that keep the window closed, when a session is paused, resumed, or over
    /// while paused.
    #[cold]
    fn count_closing(&mut self, stream: u16) {
        let Some(slot) = self.slot_at(stream) else { return };
        let closes = slot.paused.is_some() && slot.takes_text();
        match (core::mem::replace(&mut slot.closes_window, closes), closes) {
            (false, true) => self.closing_window += 1,
            (true, false) => self.closing_window -= 1,
            (false, false) | (true, true) => {}
        }
    }

    fn drop_slot(&mut self, stream: u16) {
        if let Some(slot) = self.slots[usize::from(stream)].take() {
            self.forget(&slot);
            self.ready.retain(|s| *s != stream);
            self.touched.slots.retain(|s| *s != stream);
            self.talking.retain(|s| *s != stream);
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout).
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if !self.touched.slots.is_empty() {
            return Some(Instant::ZERO);
        }
        self.timers.first().map(|(at, _)| *at)
    }

    /// Processes expired timers.
    pub(super) fn handle_timeout(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        while let Some(&(at, stream)) = self.timers.first()
            && at <= now
        {
            self.timers.remove(&(at, stream));
            self.with(stream, now, |slot, env| {
                slot.timer = None;
                slot.deadline_passed(env, cx);
            });
        }
    }

    /// False if [`poll_event`](Self::poll_event) would return `None`; the effect is then the same as of that
    /// call. With several sessions in the queue it returns true without looking at them.
    #[inline]
    pub(super) fn may_report(&mut self) -> bool {
        if !self.events.is_empty() || self.talking.len() > 1 {
            return true;
        }
        let Some(stream) = self.talking.front().copied() else { return false };
        if let Some(slot) = self.slot_at(stream) {
            if slot.pending_events() > 0 {
                return true;
            }
            slot.talking = false;
        }
        self.talking.clear();
        false
    }

    /// Returns the next event for the owner.
    pub(super) fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        while let Some(stream) = self.talking.front().copied() {
            if let Some(slot) = self.slot_at(stream) {
                let id = slot.id;
                if let Some(event) = slot.full.as_mut().and_then(|full| full.poll_event()) {
                    return Some(Event::Session(id, event));
                }
                slot.talking = false;
            }
            self.talking.pop_front();
        }
        None
    }

    /// See [`Endpoint::pause_session`](super::Endpoint::pause_session).
    pub(super) fn pause(&mut self, stream: u16, most_events: Option<u32>) {
        let Some(slot) = self.slot_at(stream) else { return };
        slot.paused = most_events;
        let talks = most_events.is_none() && slot.full.is_some();
        if core::mem::replace(&mut slot.talking, talks) != talks {
            if talks {
                self.talking.push_back(stream);
            } else {
                self.talking.retain(|s| *s != stream);
            }
        }
        self.count_closing(stream);
    }

    /// Processes a message on a stream with a session or its residue; `None` if the stream has neither.
    fn arrived(
        &mut self,
        now: Instant,
        received: &Received<'_>,
        cx: &mut Context<'_, M>,
    ) -> Option<Arrival> {
        let message = Message::parse(received);
        let ssn = Message::ssn(received);
        if self.slot_at(received.stream).is_some_and(|slot| slot.refuses()) {
            return Some(Arrival::Refused);
        }
        self.unsettled(received.stream, now, |slot, env| {
            let arrival = match &mut slot.full {
                Some(full) => {
                    let mut sink = full.stream.sink(cx.reborrow());
                    slot.session.arrive(&message, ssn, Some(&mut sink))
                }
                None => slot.session.arrive(&message, ssn, None::<&mut ddp::UlpSink<'_, M>>),
            };
            match &arrival {
                Arrival::Taken(change) => slot.changed(change, env, cx),
                Arrival::Illegal(error) => slot.illegal(*error, env),
                Arrival::Lost => *env.aborts = true,
                Arrival::Superseded => slot.superseded(env, cx),
                Arrival::Refused => {}
            }
            arrival
        })
    }

    /// Processes a message on a stream without a session.
    fn begins(&mut self, now: Instant, received: &Received<'_>) -> Taken {
        let (stream, max_segment) = (received.stream, self.config.session.max_segment);
        let begun = Message::parse(received)
            .map_err(NoSession::Illegal)
            .and_then(|message| Session::passive(stream, &message, max_segment));
        match begun {
            Ok((mut session, data)) => {
                let id = self.name(stream);
                if self.is_full() {
                    self.stats.turned_away += 1;
                    session.end();
                    self.unknown(SessionSlot::new(id, session, State::Closed), now);
                } else {
                    self.stats.requests += 1;
                    self.put(SessionSlot::new(id, session, State::Deciding));
                    self.with(stream, now, |slot, env| slot.request(data, env));
                }
            }
            Err(NoSession::Early) => {
                self.stats.early += 1;
                return Taken::No;
            }
            Err(NoSession::Terminate) => self.stats.stray += 1,
            Err(NoSession::Illegal(_)) => {
                self.stats.illegal += 1;
                let id = self.name(stream);
                let mut session = Session::failed(stream, max_segment);
                let (message, ssn) = (Message::parse(received), Message::ssn(received));
                // The message is discarded, but takes its place in the order.
                let _taken = session.arrive(&message, ssn, None::<&mut ddp::UlpSink<'_, M>>);
                self.unknown(SessionSlot::new(id, session, State::Closed), now);
            }
        }
        Taken::Yes
    }

    /// Adds a session that is never reported to the owner.
    fn unknown(&mut self, mut slot: SessionSlot<M>, now: Instant) {
        slot.known = false;
        let stream = slot.id.stream;
        self.put(slot);
        self.with(stream, now, |_, _| {});
    }

    /// RFC 5043 §6.4: true if a further session would exceed the limits.
    fn is_full(&self) -> bool {
        let limits = &self.config.session;
        let pending = self.slots().filter(|slot| slot.state() == State::Deciding).count();
        self.closing
            || pending >= usize::from(limits.max_pending)
            || self.occupied() >= usize::from(limits.max_sessions)
    }
}
