//! All sessions of an association, as SCTP calls them.
//!
//! ```text
//!   slots:    | 0: session | 1: - | 2: residue | ...      by stream identifier
//!   ready:    slots that may have something to send, asked in turn
//!   touched:  slots that something has happened to since the last `settle`
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

/// What the sessions of an association count, besides what each does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AdaptationStats {
    /// Sessions that the peer requested and that were reported to the owner.
    pub requests: u64,
    /// Initiates answered by a Terminate, because a bound was reached (RFC 5043 §6.4).
    pub turned_away: u64,
    /// Sessions terminated because the peer's messages fit no legal sequence (RFC 5043 §6.1).
    pub illegal: u64,
    /// Messages on streams without a session that begin none and are behind the beginning of one.
    pub early: u64,
    /// Terminates on streams without a session.
    pub stray: u64,
    /// Messages on streams that have no counterpart in the other direction.
    pub unpaired: u64,
}

/// The sessions of one association.
#[derive(Debug)]
pub(super) struct Upper<M: RegionMemory> {
    config: Arc<EndpointConfig>,
    /// Who is at the other end.
    peer: PeerId,
    /// This end opened the association.
    initiator: bool,
    /// Pairs of like-numbered streams; what was asked for until the association is up.
    pairs: u16,
    is_up: bool,
    /// No sessions are begun any more.
    closing: bool,
    /// The largest message that a packet carries.
    most: usize,
    serial: u32,
    /// Sessions that their owners know and that are not over.
    live: usize,
    /// Memory for what all sessions keep until it is acknowledged.
    kept: Takes,
    /// What fragments of messages take of the worker's budget.
    held: u64,
    /// Sessions that keep SCTP's window closed.
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

/// Sessions that something has happened to since the last [`settle`](Upper::settle).
#[derive(Debug, Default)]
struct Touched {
    slots: VecDeque<u16>,
    /// The first one of this packet, if there was nothing to settle for it.
    passed: Option<u16>,
    /// See [`Env::aborts`].
    aborts: bool,
}

/// Bytes of a message before SCTP has reported how many a packet carries.
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

    /// The association is up, with so many pairs of streams.
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

    /// The association begins anew (RFC 9260 §5.2.4, action A): nothing of the old one is left.
    pub(super) fn restarted(&mut self, now: Instant, pairs: u16, cx: &mut Context<'_, M>) {
        self.lost(SctpReason::PeerRestart.into(), now, cx);
        self.release_held(cx);
        self.up(now, pairs);
    }

    /// The association is over: so is every session, for this reason. No RDMAP Terminate is sent
    /// (RFC 5043 §11.3), the owner of each is notified.
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

    /// SCTP keeps no fragments any more, and its window is what it was at first.
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

    /// Bytes of memory for messages that are kept until they are acknowledged: their source may change, or is gone.
    pub(super) fn kept(&self) -> u64 {
        self.kept.memory
    }

    /// Sessions that their owners know and that are not over.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Those sessions.
    pub(super) fn live_slots(&self) -> impl Iterator<Item = &SessionSlot<M>> {
        self.slots().filter(|slot| slot.is_live())
    }

    /// True when silence of the peer counts: a session is established, and not half closed by the peer.
    pub(super) fn may_idle(&self) -> bool {
        self.live > 0 && self.live_slots().any(|slot| slot.awaits_peer())
    }

    /// No session is begun any more.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Nothing is left to report.
    pub(super) fn is_done(&self) -> bool {
        self.live == 0 && self.events.is_empty()
    }

    /// True when a session could be opened.
    pub(super) fn can_open(&self) -> bool {
        let bound = usize::from(self.config.session.max_sessions);
        !self.closing && self.occupied() < bound && self.free_stream().is_some()
    }

    fn slots(&self) -> impl Iterator<Item = &SessionSlot<M>> {
        self.slots.iter().flatten().map(|slot| &**slot)
    }

    /// The session of this name, unless it is over.
    pub(super) fn slot(&self, id: SessionId) -> Option<&SessionSlot<M>> {
        let slot = self.slots.get(usize::from(id.stream))?.as_deref()?;
        (slot.id == id && slot.is_live()).then_some(slot)
    }

    /// A packet carries messages of at most `most` bytes.
    pub(super) fn most_is(&mut self, most: usize) {
        self.most = most;
    }

    /// The largest DDP segment to send, in bytes.
    pub(super) fn mulpdu(&self) -> usize {
        mulpdu(self.most, self.config.session.control_room)
    }

    /// Names the next session on a pair of streams.
    fn name(&mut self, stream: u16) -> SessionId {
        self.serial = self.serial.wrapping_add(1);
        SessionId { stream, serial: self.serial }
    }

    /// A pair of streams that nothing is outstanding on. The ends look from opposite sides, so that they
    /// seldom take the same one.
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

    /// That a request awaits an answer, which has room for these private data.
    fn deciding(&self, session: SessionId, private_data: &[u8]) -> Result<(), AnswerError> {
        let slot = self.slot(session).filter(|slot| slot.state() == State::Deciding);
        let enhanced = slot.ok_or(AnswerError::NoRequest)?.is_enhanced();
        Ok(PrivateDataTooLong::check(private_data, enhanced)?)
    }

    /// No session is begun any more, and those that there are are closed gracefully, by their ULPs where these give the
    /// confirmations.
    pub(super) fn close(&mut self, why: &CloseReason, now: Instant) {
        self.closing = true;
        for stream in 0..self.slots.len() as u16 {
            self.with(stream, now, |slot, env| slot.close(why.clone(), env));
        }
    }

    /// The peer shuts the association down: nothing comes any more, what this end still has goes out.
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

    /// Does something with the slot of a stream, if there is one, to be [settled](Self::settle).
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

    /// As [`with`](Self::with), when it is settled before anything is sent: what is to be sent is looked at
    /// then, once for all that a packet brings.
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

    /// The peer has acknowledged the first message of a session that is outstanding: to be settled, as of
    /// [`unsettled`](Self::unsettled). Neither its state nor its timer depends on it before.
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

    /// As [`with`](Self::with), when there is nothing to settle: sees to timers and to what is to be sent.
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

    /// Does something with a slot and sees to its timer.
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

    /// Acts on everything that has happened to sessions since the last time.
    pub(super) fn settle(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.touched.passed = None;
        while let Some(stream) = self.touched.slots.pop_front() {
            // It counts as touched until the end, so that this does not queue it again.
            self.with(stream, now, |slot, env| slot.settle(env, cx));
            self.settled(stream);
        }
    }

    /// True, once, when a session failed whose peer cannot be sent the error: the association is to be aborted.
    pub(super) fn take_abort(&mut self) -> bool {
        core::mem::take(&mut self.touched.aborts)
    }

    /// True when [`settle`](Self::settle) has nothing to do.
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

    /// A session is paused, or goes on, or is over while it is paused: then it keeps the window closed no more.
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

    /// When a session wants [`handle_timeout`](Self::handle_timeout).
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if !self.touched.slots.is_empty() {
            return Some(Instant::ZERO);
        }
        self.timers.first().map(|(at, _)| *at)
    }

    /// Time has passed.
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

    /// False when [`poll_event`](Self::poll_event) has nothing: then all is as after that. With several sessions it looks at none.
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

    /// The next thing that the owner should know.
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

    /// A message came to a stream with a session, or its residue.
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

    /// A message came to a stream without a session.
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
                // It is thrown away, but for its place in the order.
                let _taken = session.arrive(&message, ssn, None::<&mut ddp::UlpSink<'_, M>>);
                self.unknown(SessionSlot::new(id, session, State::Closed), now);
            }
        }
        Taken::Yes
    }

    /// A session that is never reported to its owner.
    fn unknown(&mut self, mut slot: SessionSlot<M>, now: Instant) {
        slot.known = false;
        let stream = slot.id.stream;
        self.put(slot);
        self.with(stream, now, |_, _| {});
    }

    /// RFC 5043 §6.4: true when one more session is too many.
    fn is_full(&self) -> bool {
        let limits = &self.config.session;
        let pending = self.slots().filter(|slot| slot.state() == State::Deciding).count();
        self.closing
            || pending >= usize::from(limits.max_pending)
            || self.occupied() >= usize::from(limits.max_sessions)
    }
}
