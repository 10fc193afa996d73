//! One association of a worker: SCTP, its sessions, and the DDP stream of each session.
//!
//! ```text
//!  session:  Connecting --association--> Startup -----------------------> Established
//!             (active)                   Deciding (passive) --(Readying)-->   |     |
//!                |                          |                           error |     | shutdown
//!                v                          v                                 v     v
//!              Closed <-- Reject, Terminate, time-out                    Failing  Closing
//!                ^                                                            |     |
//!                +---- this end's Terminate acknowledged, or time-out --------+     |
//!                +---- both Terminates, or time-out --------------------------------+
//! ```
//!
//! Not drawn: an abort, and the end of the association, lead from each state to Closed. After the peer's Terminate an
//! Established session is half closed until its ULP closes (RFC 5041 §6.2.1).
//!
//! Readying: a passive side in the peer-to-peer model waits for the ready-to-receive message (RFC 6581 §9.2).
//!
//! Failing: this end sends DDP's last message, then the session's Terminate. Received segments are acknowledged and
//! discarded. The end of a session does not end the association (RFC 5043 §11.3). After its last session the
//! association lingers, then shuts down.
//!
//! An endpoint is sans-IO. Order of calls, for each burst of packets or other event:
//! [`input`](Endpoint::input) for each packet, [`handle_timeout`](Endpoint::handle_timeout) if
//! [`poll_timeout`](Endpoint::poll_timeout) has passed, [`poll_transmit`](Endpoint::poll_transmit),
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
pub use ddp::{OpenRequest, Origin, UlpConfig, UlpKind};
pub use event::{
    CloseReason, Event, SctpReason, SessionEvent, SessionId, SessionStats, StreamParams,
};
pub use upper::AdaptationStats;

use crate::sctp::{self, Association, Cookie, Ends, InputResult, Secrets};
use crate::seam::TxBatch;
use crate::session::PrivateDataTooLong;
use base::{Instant, MaybeInstant};
use ddp::{PdId, PeerId, RegionMemory, StreamId, Ulp};
use slot::AcceptedStream;
use std::sync::Arc;
use thiserror::Error;
use transport::recorder::Record;
use upper::{Upper, UpperCall};
use wire::sctp::{Packet, Tag};

/// Reason why a session request was not answered. The session is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AnswerError {
    /// No request awaits a decision: it was answered already, or the session has ended.
    #[error("no session awaits a decision")]
    NoRequest,
    /// The private data is too long for the Accept or Reject.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// Reason why no session was opened. The association is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// All pairs of streams are in use or have outstanding data, or the session limit is reached.
    #[error("no pair of streams is free")]
    NoStream,
    /// The association is closing or has ended.
    #[error("the association is closed")]
    Closed,
    /// The private data is too long for the Initiate.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// Counters of an association, excluding its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndpointStats {
    /// Counters of SCTP.
    pub sctp: sctp::Stats,
    /// Counters of the DDP adaptation that belong to no session.
    pub adaptation: AdaptationStats,
}

/// One association and its sessions. See the [module](self) for the order of calls.
#[derive(Debug)]
pub struct Endpoint<M: RegionMemory> {
    association: Association,
    upper: Upper<M>,
    config: Arc<EndpointConfig>,
    /// Time of the last call.
    now: Instant,
    /// Time at which an association without sessions is shut down.
    empty_deadline: Option<Instant>,
    /// True if the association has had a session.
    was_used: bool,
    /// True if the peer shut the association down before this end did.
    peer_shut_down_first: bool,
}

impl<M: RegionMemory> Endpoint<M> {
    /// Opens an association actively. Its first session, which `open` describes, begins when the association is up, and
    /// uses the DDP stream `id`. `secrets`, `ends` and `packet_len`: see [`Association::connect`].
    ///
    /// # Errors
    /// The private data is too long for the Initiate.
    #[allow(clippy::too_many_arguments)]
    pub fn connect(
        sctp: Arc<sctp::Config>,
        config: Arc<EndpointConfig>,
        secrets: Arc<Secrets>,
        ends: Ends,
        packet_len: usize,
        now: Instant,
        id: StreamId,
        open: OpenRequest,
    ) -> Result<(Self, SessionId), OpenError> {
        let streams = sctp.streams;
        let association = Association::connect(sctp, secrets, ends, packet_len, now);
        let mut endpoint = Self::new(association, config, true, streams, now);
        let session = endpoint.open_session(now, id, open)?;
        Ok((endpoint, session))
    }

    /// Opens an association passively from a cookie: see [`Association::accept`]. The caller next passes the packet
    /// with this cookie to [`input`](Self::input).
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
        let peer = PeerId::from_address(association.ends().remote.ip());
        let mut upper = Upper::new(config.clone(), peer, initiator, streams);
        upper.set_max_message(association.sender().max_message());
        Endpoint {
            association,
            upper,
            config,
            now,
            empty_deadline: None,
            was_used: false,
            peer_shut_down_first: false,
        }
    }

    /// Reports the association as up at once, because the packet with the cookie may already carry an Initiate.
    fn begin(&mut self) {
        if let Some(sctp::Event::Up { streams }) = self.association.poll_event() {
            self.upper.on_up(self.now, streams);
        }
        self.check_empty();
    }

    /// Processes a received packet between the two ends. The caller has verified its checksum.
    pub fn input(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        cx: &mut Context<'_, M>,
    ) -> InputResult {
        self.now = now;
        let call = &mut UpperCall::for_receive(&mut self.upper, &mut *cx);
        let accepted = self.association.input(now, packet, call);
        if !self.is_unchanged() {
            self.process_changes(cx);
        }
        accepted
    }

    /// Writes the due packets into `tx`, as long as `tx` has room.
    pub fn poll_transmit(&mut self, now: Instant, tx: &mut impl TxBatch) {
        self.now = now;
        let call = UpperCall::for_transmit(&mut self.upper, tx.keep_limit());
        let mut call = call.with_crc(tx.needs_checksum());
        self.association.poll_transmit(now, &mut call, tx);
        if call.keep_limit.has_refused() {
            tx.report_keep_limited();
        }
    }

    /// Returns the bytes of memory for copies of unacknowledged messages. A message is copied if its source may change
    /// or its session has ended.
    pub fn kept(&self) -> u64 {
        self.upper.kept_bytes()
    }

    /// Writes the pending reply to a packet that is not [`verified`](InputResult::verified). The
    /// owner sends the reply to that packet's source: see [`Association::poll_reply`].
    pub fn poll_reply(&mut self, now: Instant, tx: &mut impl TxBatch) {
        self.now = now;
        self.association.poll_reply(now, tx);
    }

    /// Drops the pending reply to a packet that is not [`verified`](InputResult::verified), because the
    /// owner's limit of such replies is reached: see [`Association::drop_reply`].
    pub fn drop_reply(&mut self) {
        self.association.drop_reply();
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout). A time in the past means now.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Not an iterator over an array of the four times: wide loads right after the narrow stores to the elements
        // would defeat store forwarding and stall.
        MaybeInstant::from(self.association.poll_timeout())
            .earlier(self.upper.poll_timeout())
            .earlier(self.empty_deadline)
            .earlier(self.idle_deadline())
            .get()
    }

    /// Processes expired timers. Call [`poll_transmit`](Self::poll_transmit) next.
    pub fn handle_timeout(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.now = now;
        self.association.handle_timeout(now);
        self.upper.handle_timeout(now, cx);
        if self.idle_deadline().is_some_and(|deadline| deadline <= now) {
            self.upper.close(&CloseReason::Idle, now);
        }
        self.process_changes(cx);
    }

    /// Returns false only if [`poll_event`](Self::poll_event) would return `None`; the owner may then omit the call of
    /// `poll_event`. May return true although there is no event.
    #[inline]
    pub fn may_have_events(&mut self) -> bool {
        self.upper.may_have_events()
    }

    /// Returns the next event for the owner.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.upper.poll_event()
    }

    /// Opens another session actively, for the DDP stream `id`. The session begins when the association is up.
    ///
    /// # Errors
    /// No pair of streams is free, the association is closing, or the private data does not fit.
    pub fn open_session(
        &mut self,
        now: Instant,
        id: StreamId,
        open: OpenRequest,
    ) -> Result<SessionId, OpenError> {
        self.now = now;
        if !self.is_open() {
            return Err(OpenError::Closed);
        }
        let session = self.upper.open(now, id, open)?;
        self.was_used = true;
        self.empty_deadline = None;
        Ok(session)
    }

    /// Returns true if a new session should use this association: a pair of streams is free, and no retransmission or
    /// HEARTBEAT of an established association is unanswered. The peer of an unresponsive association may have
    /// restarted: it then answers the INIT of a new association at once, but the old association's data only at the
    /// next retransmission, after a doubled T3-rtx.
    pub fn can_open(&self) -> bool {
        let is_answered =
            self.association.state().is_opening() || self.association.error_count() == 0;
        self.is_open() && is_answered && self.upper.can_open()
    }

    fn is_open(&self) -> bool {
        let state = self.association.state();
        state.is_opening() || state == sctp::State::Established
    }

    /// Accepts the request of [`SessionEvent::Request`] for the DDP stream `id`. The Accept is plain or enhanced, as
    /// the Initiate was. Segments are sent once the Accept is acknowledged (RFC 5043 §6.6). In the peer-to-peer model,
    /// [`SessionEvent::Established`] follows the active side's first segment (RFC 6581 §9.2). A request that offers
    /// fewer Reads than the configuration requires is rejected instead.
    ///
    /// # Errors
    /// No request awaits a decision, or the private data does not fit the Accept.
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
        let answer = AcceptedStream { id, pd, private_data, ulp: ulp.into() };
        self.upper.accept(now, session, answer, cx)?;
        self.process_changes(cx);
        Ok(())
    }

    /// Rejects the request of [`SessionEvent::Request`].
    ///
    /// # Errors
    /// No request awaits a decision, or the private data does not fit the Reject.
    pub fn reject_session(
        &mut self,
        now: Instant,
        session: SessionId,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        self.now = now;
        self.upper.reject(now, session, private_data)
    }

    /// Returns the number of the session's ULP events that [`poll_event`](Self::poll_event) has not returned yet.
    pub fn pending_events(&self, session: SessionId) -> usize {
        self.upper.slot(session).map_or(0, |slot| slot.pending_events())
    }

    /// Pauses the ULP events of a session, or resumes them (`None`). During a pause, messages of this session are
    /// refused once `max_pending_events` events are queued. The advertised window is zero for all sessions of the
    /// association, but data in flight is still accepted. The caller must call [`poll_transmit`](Self::poll_transmit)
    /// next, which sends the new window to the peer.
    pub fn pause_session(&mut self, session: SessionId, max_pending_events: Option<u32>) {
        if self.upper.slot(session).is_some() {
            self.upper.pause(session.stream, max_pending_events);
        }
    }

    /// Closes a session gracefully: posted messages are sent, then the Terminate. Received segments are placed and
    /// delivered until the peer's Terminate.
    pub fn shutdown_session(&mut self, now: Instant, session: SessionId) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with_slot(session.stream, now, |slot, env| slot.shutdown_locally(env));
        }
    }

    /// Records that the ULP will close the session. The graceful close confirms to the peer only data whose events the
    /// ULP has polled by now. The ULP itself limits the time until the close; the policy's `half_closed_timeout` no
    /// longer applies.
    pub fn begin_confirmation(&mut self, now: Instant, session: SessionId) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with_slot(session.stream, now, |slot, _| slot.begin_confirmation());
        }
    }

    /// Returns true if [`shutdown_session`](Self::shutdown_session) would confirm data that arrived after
    /// [`begin_confirmation`](Self::begin_confirmation).
    pub fn is_unconfirmed(&self, session: SessionId) -> bool {
        self.upper.slot(session).is_some_and(|slot| slot.is_unconfirmed())
    }

    /// Aborts a session: discards posted messages and sends a Terminate, which also answers a request that awaits a
    /// decision. Messages already sent are still delivered.
    pub fn abort_session(&mut self, now: Instant, session: SessionId, cx: &mut Context<'_, M>) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            let reason = CloseReason::LocalAbort;
            self.upper.with_slot(session.stream, now, |slot, env| slot.abort(reason, env, cx));
            self.process_changes(cx);
        }
    }

    /// Fails a session for a local reason: the peer receives code 5 (RFC 6581 §8), if this end's direction is still
    /// open, then the Terminate.
    pub fn fail_session(&mut self, now: Instant, session: SessionId, cx: &mut Context<'_, M>) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with_slot(session.stream, now, |slot, env| slot.fail(env, cx));
            self.process_changes(cx);
        }
    }

    /// Fails a session whose ULP cannot continue: the peer receives a local catastrophic error, then the Terminate.
    pub fn fail_ulp(&mut self, now: Instant, session: SessionId, cx: &mut Context<'_, M>) {
        self.now = now;
        if self.upper.slot(session).is_some() {
            self.upper.with_slot(session.stream, now, |slot, env| slot.fail_ulp(env, cx));
            self.process_changes(cx);
        }
    }

    /// Closes all sessions gracefully, then the association. No new session begins. A session whose ULP confirms
    /// data itself ([`ddp::StreamConfig::hold_confirmations`]) continues until the ULP closes it. An
    /// association that is still being set up is aborted.
    pub fn shutdown(&mut self, now: Instant) {
        self.now = now;
        self.upper.close(&CloseReason::LocalShutdown, now);
        if self.association.state().is_opening() {
            self.association.shutdown(now);
        }
        // The next `handle_timeout` shuts the association down if no session remains.
        self.empty_deadline = Some(Instant::ZERO);
    }

    /// Aborts all sessions and the association, with an ABORT.
    pub fn abort(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.now = now;
        self.association.abort(now, b"");
        self.process_changes(cx);
    }

    /// Aborts all sessions and the association, with an ABORT, because the association's packets no longer have the
    /// IPsec protection that this end requires.
    pub fn abort_unprotected(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.now = now;
        self.upper.on_association_lost(CloseReason::NotProtected, now, cx);
        self.association.abort(now, b"");
        self.process_changes(cx);
    }

    /// Processes an ICMP report, for a packet of this association, that the peer's host does not support SCTP (RFC 9260
    /// §10, ICMP8). `of_init`: true if the report quotes the INIT. The association ends without another packet.
    pub fn protocol_unreachable(&mut self, now: Instant, of_init: bool, cx: &mut Context<'_, M>) {
        self.now = now;
        self.association.protocol_unreachable(of_init);
        self.process_changes(cx);
    }

    /// Sets the length of the headers in front of SCTP packets, bytes: IP, and UDP if SCTP is encapsulated. The default
    /// is an IP header without options.
    pub fn set_headers(&mut self, bytes: u16) {
        self.association.set_headers(bytes);
    }

    /// Sets the largest SCTP packet of the path, bytes: see [`Association::set_path_mtu`].
    pub fn set_path_mtu(&mut self, now: Instant, packet_len: usize) {
        self.association.set_path_mtu(now, packet_len);
        self.upper.set_max_message(self.association.sender().max_message());
    }

    /// Processes a router's report that the path carries SCTP packets of at most `packet_len` bytes. Returns true if
    /// the report changed the state of the path MTU search.
    pub fn on_packet_too_big(&mut self, now: Instant, packet_len: usize) -> bool {
        self.now = now;
        let is_new = self.association.on_packet_too_big(now, packet_len);
        self.upper.set_max_message(self.association.sender().max_message());
        is_new
    }

    /// Returns the state of the association.
    pub fn state(&self) -> sctp::State {
        self.association.state()
    }

    /// Returns true if the endpoint can be dropped: the association has ended, and no event and no last packet is
    /// pending.
    pub fn is_done(&self) -> bool {
        self.association.is_done() && self.upper.is_done()
    }

    /// Adds a record about a DDP stream to the association's flight recorder.
    #[cold]
    pub fn record(&mut self, record: Record) {
        self.association.record(record);
    }

    /// Returns true if the configuration lets a stream report its error to the peer: in the last message of bare DDP,
    /// or in the Terminate of RDMAP.
    pub fn sends_last_messages(&self) -> bool {
        self.config.policy.last_message
    }

    /// Returns the association under the sessions.
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// Returns the verification tag that the peer's packets must have.
    pub fn local_tag(&self) -> Tag {
        self.association.local_tag()
    }

    /// Returns the verification tag for packets to the peer, chosen by the peer; `None` until the peer's INIT or INIT
    /// ACK has arrived.
    pub fn peer_tag(&self) -> Option<Tag> {
        Some(self.association.peer_tag()).filter(|tag| *tag != Tag::NONE)
    }

    /// Returns true if three or more consecutive retransmissions or HEARTBEATs are unanswered: the next hop may have
    /// changed.
    pub fn is_path_suspect(&self) -> bool {
        self.association.error_count() >= SUSPECT_TIMEOUTS
    }

    /// Iterates over the live sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.upper.live_slots().map(|slot| slot.id)
    }

    /// Returns the state of a session; `None` after its end.
    pub fn session_state(&self, session: SessionId) -> Option<State> {
        self.upper.slot(session).map(|slot| slot.state())
    }

    /// Returns the DDP stream of a session; `None` before the session is accepted and after its end.
    pub fn stream(&self, session: SessionId) -> Option<&Ulp<M>> {
        Some(&self.upper.slot(session)?.accepted.as_ref()?.stream)
    }

    /// Returns the agreed parameters; `None` before the session is accepted and after its end.
    pub fn params(&self, session: SessionId) -> Option<StreamParams> {
        self.upper.slot(session)?.params(self.upper.mulpdu())
    }

    /// Returns the counters of a session; `None` after its end.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        self.upper.slot(session).map(|slot| slot.stats())
    }

    /// Returns the counters of the association.
    pub fn stats(&self) -> EndpointStats {
        EndpointStats { sctp: *self.association.stats(), adaptation: self.upper.stats }
    }

    /// Returns the time of the last packet received from the peer with a valid tag.
    pub fn idle_since(&self) -> Instant {
        self.association.last_received()
    }

    fn idle_deadline(&self) -> Option<Instant> {
        let timeout =
            self.config.policy.idle_timeout.filter(|_| self.upper.idle_timeout_applies())?;
        Some(self.association.last_received() + timeout)
    }

    /// Returns true if [`process_changes`](Self::process_changes) would have no effect, as after most packets.
    #[inline]
    fn is_unchanged(&self) -> bool {
        self.upper.is_settled()
            && self.association.last_event().is_none()
            && self.upper.live_count() > 0
            && self.was_used
            && self.empty_deadline.is_none()
    }

    /// Processes the changes that a call made to sessions, and the events of the association.
    fn process_changes(&mut self, cx: &mut Context<'_, M>) {
        let now = self.now;
        // Received messages take effect before the events of the association.
        self.upper.settle_all(now, cx);
        if self.upper.take_abort() {
            self.association.abort(now, b"a session failed behind its Terminate");
        }
        while let Some(event) = self.association.poll_event() {
            match event {
                sctp::Event::Up { streams } => self.upper.on_up(now, streams),
                // The old sessions have already ended. From now on `was_used` describes the restarted association.
                sctp::Event::Restarted { .. } => self.was_used = false,
                sctp::Event::PeerShutdown => {
                    self.peer_shut_down_first = !self.upper.is_closing();
                    self.upper.on_peer_shutdown(now);
                }
                sctp::Event::Closed(reason) => self.on_closed(reason, cx),
            }
        }
        self.upper.settle_all(now, cx);
        self.check_empty();
    }

    fn on_closed(&mut self, reason: sctp::CloseReason, cx: &mut Context<'_, M>) {
        let session_reason = SctpReason::from_sctp(&reason, self.peer_shut_down_first);
        self.upper.on_association_lost(session_reason.clone(), self.now, cx);
        self.upper.release_budgets(cx);
        self.upper.events.push_back(Event::Down { reason: session_reason });
    }

    /// Starts, stops or processes the timer of an association without sessions. When the timer expires, the association
    /// is shut down (RFC 5041 §3 (10)).
    fn check_empty(&mut self) {
        self.was_used |= self.upper.live_count() > 0;
        if self.upper.live_count() > 0 || self.association.state() != sctp::State::Established {
            self.empty_deadline = None;
            return;
        }
        let timeout = match (self.upper.is_closing(), self.was_used) {
            (true, _) => core::time::Duration::ZERO,
            (false, true) => self.config.linger,
            (false, false) => self.config.session.answer_timeout,
        };
        let at = *self.empty_deadline.get_or_insert(self.now + timeout);
        if at <= self.now {
            self.empty_deadline = None;
            self.upper.close(&CloseReason::LocalShutdown, self.now);
            self.association.shutdown(self.now);
        }
    }
}

/// Consecutive unanswered retransmissions and HEARTBEATs that make the path suspect (as R1 of RFC 9293 §3.8.3).
const SUSPECT_TIMEOUTS: u32 = 3;

#[cfg(test)]
mod tests;
