//! One association as a worker holds it: SCTP, its sessions, and a DDP stream in each of them.
//!
//! ```text
//!  session:  Connecting --association--> Startup -----------------------> Established
//!             (active)                   Deciding (passive) --(Readying)-->   |     |
//!                |                          |                           error |     | shutdown, peer's
//!                v                          v                                 v     v   Terminate
//!              Closed <-- Reject, Terminate, time-out                    Failing  Closing
//!                ^                                                            |     |
//!                +--------------- both Terminates, or time-out ---------------+-----+
//! ```
//!
//! Readying: a passive side in the peer-to-peer model waits for the ready-to-receive message.
//!
//! Failing: DDP's last message goes out, then the session's Terminate; what the peer sends is acknowledged
//! and thrown away. The end of a session leaves the association alone (RFC 5043 §11.3); after its last one it
//! shuts down, when it has lingered.
//!
//! An endpoint is sans-IO. Order of calls, for each burst of packets or whatever else happened:
//! [`input`](Endpoint::input) for each packet, [`handle_timeout`](Endpoint::handle_timeout) if
//! [`poll_timeout`](Endpoint::poll_timeout) has come, [`poll_transmit`](Endpoint::poll_transmit),
//! [`poll_event`](Endpoint::poll_event) until it returns `None`, and `poll_timeout` last.

mod config;
mod context;
mod event;
mod post;
mod slot;
mod upper;

pub use config::EndpointConfig;
pub use context::Context;
pub use ddp::lifecycle::State;
pub use ddp::{Open, Origin, UlpConfig, UlpKind};
pub use event::{
    CloseReason, Event, SctpReason, SessionEvent, SessionId, SessionStats, StreamParams,
};
pub use upper::AdaptationStats;

use crate::sctp::{self, Accepted, Association, Cookie, Ends, Secrets};
use crate::seam::TxBatch;
use crate::session::PrivateDataTooLong;
use base::{Instant, MaybeInstant};
use ddp::{PdId, PeerId, RegionMemory, StreamId, Ulp};
use std::sync::Arc;
use thiserror::Error;
use transport::recorder::Record;
use upper::{Upper, UpperCall};
use wire::sctp::{Packet, Tag};

/// Why a request could not be answered as asked; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AnswerError {
    /// No request awaits a decision: it was answered, or the session is over.
    #[error("no session awaits a decision")]
    NoRequest,
    /// More private data than the answer carries.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// Why no session could be opened; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// All pairs of streams are in use, or have something outstanding, or as many sessions as are allowed.
    #[error("no pair of streams is free")]
    NoStream,
    /// The association is being closed, or over.
    #[error("the association is closed")]
    Closed,
    /// More private data than the Initiate carries.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// Counters of an association, without those of its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndpointStats {
    /// SCTP.
    pub sctp: sctp::Stats,
    /// What of the DDP adaptation belongs to no session.
    pub adaptation: AdaptationStats,
}

/// One association and its sessions. See the [module](self) for the order of calls.
#[derive(Debug)]
pub struct Endpoint<M: RegionMemory> {
    association: Association,
    upper: Upper<M>,
    config: Arc<EndpointConfig>,
    /// The latest time that was given.
    now: Instant,
    /// When the association is shut down for want of sessions.
    empty_at: Option<Instant>,
    /// It has had a session.
    was_used: bool,
    /// The peer has shut the association down, and not this end before it.
    peer_first: bool,
}

impl<M: RegionMemory> Endpoint<M> {
    /// Active open: an association, and as soon as it is up the session that `open` says, for the stream
    /// `id`. `secrets`, `ends` and `packet_len` as for [`Association::connect`].
    ///
    /// # Errors
    /// More private data than the Initiate carries.
    #[allow(clippy::too_many_arguments)]
    pub fn connect(
        sctp: Arc<sctp::Config>,
        config: Arc<EndpointConfig>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        now: Instant,
        id: StreamId,
        open: Open,
    ) -> Result<(Self, SessionId), OpenError> {
        let streams = sctp.streams;
        let association = Association::connect(sctp, secrets, ends, packet_len, now);
        let mut endpoint = Self::new(association, config, true, streams, now);
        let session = endpoint.open_session(now, id, open)?;
        Ok((endpoint, session))
    }

    /// Passive open by a cookie: see [`Association::accept`]. Give it the packet that brought the cookie next.
    pub fn accept(
        sctp: Arc<sctp::Config>,
        config: Arc<EndpointConfig>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        cookie: &Cookie,
        now: Instant,
    ) -> Self {
        let streams = sctp.streams;
        let association = Association::accept(sctp, secrets, ends, packet_len, cookie, now);
        let mut endpoint = Self::new(association, config, false, streams, now);
        endpoint.begin();
        endpoint
    }

    fn new(
        association: Association,
        config: Arc<EndpointConfig>,
        initiator: bool,
        streams: u16,
        now: Instant,
    ) -> Self {
        let peer = PeerId::of(association.ends().remote.ip());
        let mut upper = Upper::new(config.clone(), peer, initiator, streams);
        upper.most_is(association.sender().most());
        Endpoint {
            association,
            upper,
            config,
            now,
            empty_at: None,
            was_used: false,
            peer_first: false,
        }
    }

    /// The association is up from the start: before its first packet can bring an Initiate.
    fn begin(&mut self) {
        if let Some(sctp::Event::Up { streams }) = self.association.poll_event() {
            self.upper.up(self.now, streams);
        }
        self.look_whether_empty();
    }

    /// A packet between the two ends arrived, checksum verified: whether its sender is the peer, and why SCTP dropped
    /// it, or a chunk of it.
    pub fn input(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        cx: &mut Context<'_, M>,
    ) -> Accepted {
        self.now = now;
        let call = &mut UpperCall::receiving(&mut self.upper, &mut *cx);
        let accepted = self.association.input(now, packet, call);
        if !self.is_uneventful() {
            self.after(cx);
        }
        accepted
    }

    /// Writes the packets that are due.
    pub fn poll_transmit(&mut self, now: Instant, tx: &mut impl TxBatch) {
        self.now = now;
        let call = UpperCall::sending(&mut self.upper, tx.keep_limit());
        let mut call = call.digesting(tx.wants_checksum());
        self.association.poll_transmit(now, &mut call, tx);
        if call.keep.has_refused() {
            tx.keep_limited();
        }
    }

    /// Bytes of memory for messages that are kept until they are acknowledged, because their source may change or is gone.
    pub fn kept(&self) -> u64 {
        self.upper.kept()
    }

    /// Writes the answer to a packet that was not the peer's for certain, if there is one: see
    /// [`Association::poll_reply`].
    pub fn poll_reply(&mut self, now: Instant, tx: &mut impl TxBatch) {
        self.now = now;
        self.association.poll_reply(now, tx);
    }

    /// The answer to a packet that was not the peer's for certain is not sent: see
    /// [`Association::forget_reply`].
    pub fn forget_reply(&mut self) {
        self.association.forget_reply();
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; a time in the past means now.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Not by an iterator over an array: its wide loads wait for the stores just before them.
        MaybeInstant::from(self.association.poll_timeout())
            .earlier(self.upper.poll_timeout())
            .earlier(self.empty_at)
            .earlier(self.idle_deadline())
            .get()
    }

    /// Time has passed. Follow it with [`poll_transmit`](Self::poll_transmit).
    pub fn handle_timeout(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.now = now;
        self.association.handle_timeout(now);
        self.upper.handle_timeout(now, cx);
        if self.idle_deadline().is_some_and(|deadline| deadline <= now) {
            self.upper.close(&CloseReason::Idle, now);
        }
        self.after(cx);
    }

    /// False when [`poll_event`](Self::poll_event) has nothing: it need not be called then.
    #[inline]
    pub fn may_report(&mut self) -> bool {
        self.upper.may_report()
    }

    /// The next thing that the owner should know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.upper.poll_event()
    }

    /// Opens one more session as its active side, for the stream `id`. It is begun when the association is up.
    ///
    /// # Errors
    /// No pair of streams is free, the association is being closed, or the private data do not fit.
    pub fn open_session(
        &mut self,
        now: Instant,
        id: StreamId,
        open: Open,
    ) -> Result<SessionId, OpenError> {
        self.now = now;
        if !self.is_open() {
            return Err(OpenError::Closed);
        }
        let session = self.upper.open(now, id, open)?;
        self.was_used = true;
        self.empty_at = None;
        Ok(session)
    }

    /// True when [`open_session`](Self::open_session) finds a pair of streams.
    pub fn can_open(&self) -> bool {
        self.is_open() && self.upper.can_open()
    }

    fn is_open(&self) -> bool {
        let state = self.association.state();
        state.is_opening() || state == sctp::State::Established
    }

    /// Accepts the request that [`SessionEvent::Request`] brought, for the stream `id`: the Accept is sent, in
    /// the form of the Initiate. Segments go out once it is acknowledged (RFC 5043 §6.6); in the peer-to-peer
    /// model [`SessionEvent::Established`] waits for the active side's first one (RFC 6581 §9.2). A request
    /// that offers fewer Reads than the configuration needs is rejected instead.
    ///
    /// # Errors
    /// No request is there, or the private data are too long for the answer.
    #[allow(clippy::too_many_arguments)]
    pub fn accept_session(
        &mut self,
        now: Instant,
        session: SessionId,
        id: StreamId,
        pd: PdId,
        private_data: &[u8],
        ulp: impl Into<UlpConfig>,
        cx: &mut Context<'_, M>,
    ) -> Result<(), AnswerError> {
        self.now = now;
        self.upper.accept(now, session, (id, pd, private_data, ulp.into()), cx)?;
        self.after(cx);
        Ok(())
    }

    /// Rejects the request that [`SessionEvent::Request`] brought, in the form of the Initiate.
    ///
    /// # Errors
    /// No request is there, or the private data are too long for the answer.
    pub fn reject_session(
        &mut self,
        now: Instant,
        session: SessionId,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        self.now = now;
        self.upper.reject(now, session, private_data)
    }

    /// Events of a session's ULP that [`poll_event`](Self::poll_event) has not given yet.
    pub fn pending_events(&self, session: SessionId) -> usize {
        self.upper.slot(session).map_or(0, |slot| slot.pending_events())
    }

    /// The owner takes no events of a session for now, and this many may wait, or it does again (`None`). Meanwhile the
    /// window that the peer is offered is closed, for all sessions of the association. What is on its way is taken,
    /// that of the session itself until as many events wait as may. Follow it with
    /// [`poll_transmit`](Self::poll_transmit): the peer is sent the window.
    pub fn pause_session(&mut self, session: SessionId, most_events: Option<u32>) {
        if self.upper.slot(session).is_some() {
            self.upper.pause(session.stream, most_events);
        }
    }

    /// Closes a session gracefully: what is posted is sent, then its Terminate; what the peer still sends is
    /// placed and delivered until it terminates, too.
    pub fn shutdown_session(&mut self, now: Instant, session: SessionId) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with(session.stream, now, |slot, env| slot.shutdown_locally(env));
        }
    }

    /// The ULP of a session is about to confirm, by its close, all data whose events it has taken. It bounds the time to its
    /// close, instead of the policy's `half_closed_timeout`.
    pub fn confirming(&mut self, now: Instant, session: SessionId) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with(session.stream, now, |slot, _| slot.confirming());
        }
    }

    /// True when a [`shutdown_session`](Self::shutdown_session) would confirm data that came after
    /// [`confirming`](Self::confirming).
    pub fn is_unconfirmed(&self, session: SessionId) -> bool {
        self.upper.slot(session).is_some_and(|slot| slot.is_unconfirmed())
    }

    /// Ends a session at once: nothing of what is posted is sent any more, but a Terminate; before an answer
    /// to the peer's request that is the answer. What was sent still arrives.
    pub fn abort_session(&mut self, now: Instant, session: SessionId, cx: &mut Context<'_, M>) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            let why = CloseReason::LocalAbort;
            self.upper.with(session.stream, now, |slot, env| slot.abort(why, env, cx));
            self.after(cx);
        }
    }

    /// This end cannot go on with a session for a reason of its own: the peer is sent code 5 (RFC 6581 §8),
    /// if it can be sent anything, and the session is terminated.
    pub fn fail_session(&mut self, now: Instant, session: SessionId, cx: &mut Context<'_, M>) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with(session.stream, now, |slot, env| slot.fail(env, cx));
            self.after(cx);
        }
    }

    /// This end's ULP cannot do what it was sent for over a session: the peer gets a local catastrophic error, and the
    /// session is terminated.
    pub fn fail_ulp(&mut self, now: Instant, session: SessionId, cx: &mut Context<'_, M>) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with(session.stream, now, |slot, env| slot.fail_ulp(env, cx));
            self.after(cx);
        }
    }

    /// Closes all sessions gracefully, and then the association. No session is begun any more. Sessions whose ULP gives the
    /// confirmations ([`ddp::StreamConfig::hold_confirmations`]) go on until it closes them.
    pub fn shutdown(&mut self, now: Instant) {
        self.now = now;
        self.upper.close(&CloseReason::LocalShutdown, now);
        if self.association.state().is_opening() {
            self.association.shutdown(now);
        }
        // The next `handle_timeout` sees whether there is a session left.
        self.empty_at = Some(Instant::ZERO);
    }

    /// Ends all sessions at once, with an ABORT of the association.
    pub fn abort(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.now = now;
        self.association.abort(now, b"");
        self.after(cx);
    }

    /// Ends all sessions at once, with an ABORT of the association, because its packets are no longer protected as this end
    /// requires.
    pub fn unprotected(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.now = now;
        self.upper.lost(CloseReason::NotProtected, now, cx);
        self.association.abort(now, b"");
        self.after(cx);
    }

    /// ICMP reported, for a packet of this association, that the peer's host does not support SCTP (RFC 9260 §10,
    /// ICMP8); `of_init`: the packet was the INIT. The association ends and nothing is sent.
    pub fn protocol_unreachable(&mut self, now: Instant, of_init: bool, cx: &mut Context<'_, M>) {
        self.now = now;
        self.association.protocol_unreachable(of_init);
        self.after(cx);
    }

    /// Bytes in front of its packets, IP's header included, where that is not all.
    pub fn set_headers(&mut self, bytes: u16) {
        self.association.set_headers(bytes);
    }

    /// The path carries SCTP packets of at most `packet_len` bytes: see [`Association::path_mtu`].
    pub fn path_mtu(&mut self, now: Instant, packet_len: usize) {
        self.association.path_mtu(now, packet_len);
        self.upper.most_is(self.association.sender().most());
    }

    /// A router reports a packet that was too big: the path carries SCTP packets of at most `packet_len`
    /// bytes. Says whether that was news.
    pub fn packet_too_big(&mut self, now: Instant, packet_len: usize) -> bool {
        self.now = now;
        let news = self.association.packet_too_big(now, packet_len);
        self.upper.most_is(self.association.sender().most());
        news
    }

    /// The association's state.
    pub fn state(&self) -> sctp::State {
        self.association.state()
    }

    /// True when the endpoint can be dropped: nothing is left to report or to send.
    pub fn is_done(&self) -> bool {
        self.association.is_done() && self.upper.is_done()
    }

    /// Records what the layer above found, of one of its streams.
    #[cold]
    pub fn record(&mut self, record: Record) {
        self.association.record(record);
    }

    /// Its streams send a last message, or a Terminate, about an error.
    pub fn sends_last_messages(&self) -> bool {
        self.config.policy.last_message
    }

    /// SCTP's side, to look at.
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// Tag that the peer's packets bear.
    pub fn local_tag(&self) -> Tag {
        self.association.local_tag()
    }

    /// Tag that our packets bear, once the peer has sent it.
    pub fn peer_tag(&self) -> Option<Tag> {
        Some(self.association.peer_tag()).filter(|tag| *tag != Tag::NONE)
    }

    /// True when several retransmissions in a row went unanswered: perhaps the next hop has moved.
    pub fn path_suspect(&self) -> bool {
        self.association.error_count() >= SUSPECT
    }

    /// Sessions that are not over.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.upper.live_slots().map(|slot| slot.id)
    }

    /// Where a session is in its life; `None` when it is over.
    pub fn session_state(&self, session: SessionId) -> Option<State> {
        self.upper.slot(session).map(|slot| slot.state())
    }

    /// The DDP stream of a session, to look at, once it is accepted.
    pub fn stream(&self, session: SessionId) -> Option<&Ulp<M>> {
        Some(&self.upper.slot(session)?.full.as_ref()?.stream)
    }

    /// What was agreed on, once a session is accepted.
    pub fn params(&self, session: SessionId) -> Option<StreamParams> {
        self.upper.slot(session)?.params(self.upper.mulpdu())
    }

    /// Counters of a session that is not over.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        self.upper.slot(session).map(|slot| slot.stats())
    }

    /// Counters of the association.
    pub fn stats(&self) -> EndpointStats {
        EndpointStats { sctp: *self.association.stats(), adaptation: self.upper.stats }
    }

    /// When the last packet of the peer came that was not dropped.
    pub fn idle_since(&self) -> Instant {
        self.association.last_received()
    }

    fn idle_deadline(&self) -> Option<Instant> {
        let timeout = self.config.policy.idle_timeout.filter(|_| self.upper.may_idle())?;
        Some(self.association.last_received() + timeout)
    }

    /// True when [`after`](Self::after) would find nothing to act upon, as after most packets.
    #[inline]
    fn is_uneventful(&self) -> bool {
        self.upper.is_settled()
            && self.association.last_event().is_none()
            && self.upper.live() > 0
            && self.was_used
            && self.empty_at.is_none()
    }

    /// Acts on everything that a call has brought about.
    fn after(&mut self, cx: &mut Context<'_, M>) {
        let now = self.now;
        // First what came over the association, then what becomes of it.
        self.upper.settle(now, cx);
        if self.upper.take_abort() {
            self.association.abort(now, b"a session failed behind its Terminate");
        }
        while let Some(event) = self.association.poll_event() {
            match event {
                sctp::Event::Up { streams } => self.upper.up(now, streams),
                // The sessions know; those of the new association are seen below.
                sctp::Event::Restarted { .. } => self.was_used = false,
                sctp::Event::PeerShutdown => {
                    self.peer_first = !self.upper.is_closing();
                    self.upper.peer_shutdown(now);
                }
                sctp::Event::Closed(reason) => self.closed(reason, cx),
            }
        }
        self.upper.settle(now, cx);
        self.look_whether_empty();
    }

    fn closed(&mut self, reason: sctp::CloseReason, cx: &mut Context<'_, M>) {
        let why = SctpReason::of_sctp(&reason, self.peer_first);
        self.upper.lost(why.clone(), self.now, cx);
        self.upper.release_held(cx);
        self.upper.events.push_back(Event::Down { reason: why });
    }

    /// RFC 5041 §3 (10): without sessions the association goes, at its time.
    fn look_whether_empty(&mut self) {
        self.was_used |= self.upper.live() > 0;
        if self.upper.live() > 0 || self.association.state() != sctp::State::Established {
            self.empty_at = None;
            return;
        }
        let patience = match (self.upper.is_closing(), self.was_used) {
            (true, _) => core::time::Duration::ZERO,
            (false, true) => self.config.linger,
            (false, false) => self.config.session.answer_timeout,
        };
        let at = *self.empty_at.get_or_insert(self.now + patience);
        if at <= self.now {
            self.empty_at = None;
            self.upper.close(&CloseReason::LocalShutdown, self.now);
            self.association.shutdown(self.now);
        }
    }
}

/// Unanswered retransmissions in a row that make the path suspect (as R1 of RFC 9293 §3.8.3).
const SUSPECT: u32 = 3;

#[cfg(test)]
mod tests;
