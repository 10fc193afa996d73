//! One stream over TCP, the unit that a worker stores per connection: TCP, MPA and DDP, joined by direct calls.
//!
//! ```text
//!             Connecting --TCP--> Startup --(Deciding)--(Readying)--> Established
//!                  |                 |                                  |      |
//!                  |    key, version,| time-out                   error |      | shutdown
//!                  v                 v                                  v      v
//!                Closed <--RST-- (aborted)                          Failing  Closing
//!                  ^                                                    |      |
//!                  +---------- both FINs, or time-out and RST ----------+------+
//! ```
//!
//! Not drawn: a reject by either end leads to Failing, and an abort leads from each state to Closed.
//!
//! Readying: a responder in the peer-to-peer model waits for the ready-to-receive message (RFC 6581 §9.2).
//!
//! Failing: the endpoint sends DDP's last message, then the FIN. Until the peer's FIN arrives, the endpoint
//! acknowledges and discards received data: a reset could destroy the last message in flight. If the time-out expires
//! first, the endpoint resets the connection. If the last message cannot be sent, a reset replaces message and FIN.
//!
//! An endpoint is sans-IO. Order of calls, for each burst of segments or other event: [`input`](Endpoint::input) for
//! each segment, [`handle_timeout`](Endpoint::handle_timeout) if the time of [`poll_timeout`](Endpoint::poll_timeout)
//! has passed, [`poll_transmit`](Endpoint::poll_transmit), [`poll_event`](Endpoint::poll_event) until it returns
//! `None`, and last `poll_timeout`.

mod config;
mod event;
mod post;
mod teardown;
mod upper;

pub use config::EndpointConfig;
pub use ddp::lifecycle::State;
pub use ddp::{OpenRequest, Origin, UlpConfig, UlpKind};
pub use event::{CloseReason, Event, StreamParams, TcpReason};
pub use upper::Context;

use crate::mpa::{
    AcceptError, PrivateDataTooLong, Readiness, ReceiverStats, Request, Revision, SenderStats,
    Startup, StartupError,
};
use crate::seam::TxBatch;
use crate::tcp::{self, Connection, DropReason, FourTuple, InitialNumbers, Segment, SeqNumber};
use base::{Blank, Instant, Lazy};
use core::time::Duration;
use ddp::lifecycle::Lifecycle;
use ddp::rdmap;
use ddp::{PdId, PeerId, RegionMemory, StreamId, Ulp, UlpEvent};
use std::sync::Arc;
use thiserror::Error;
use upper::{FullOperation, Notice, Stage, Upper, UpperCall};

/// Interval between attempts to pass a refused FPDU to DDP. TCP has acknowledged the FPDU's bytes, so the peer does
/// not retransmit them.
const BLOCKED_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Counters of all layers of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndpointStats {
    /// Counters of the TCP connection.
    pub tcp: tcp::Stats,
    /// Counters of MPA's receive half.
    pub mpa_rx: ReceiverStats,
    /// Counters of MPA's send half.
    pub mpa_tx: SenderStats,
    /// Counters of DDP.
    pub ddp: ddp::Counters,
    /// Counters of RDMAP; zero on bare DDP.
    pub rdmap: rdmap::Counters,
}

/// Error of an answer to an MPA request. The stream is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AnswerError {
    /// No request awaits a decision: it was answered, or the stream has ended.
    #[error("no MPA request awaits a decision")]
    NoRequest,
    /// The private data is too long for the answer.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// A stream over TCP, with its TCP, MPA and DDP layers. See the [module](self) for the order of calls.
#[derive(Debug)]
pub struct Endpoint<M: RegionMemory> {
    conn: Connection,
    upper: Upper<M>,
    config: Arc<EndpointConfig>,
    lifecycle: Lifecycle<TcpReason>,
    cold: Lazy<ColdState>,
    events: Option<Box<QueuedEvent>>,
}

base::prefetch!(Endpoint<M> [M: RegionMemory]: conn, upper, events);

/// Rarely used state, allocated on first use.
#[derive(Clone, Debug)]
struct ColdState {
    /// Time of the next attempt to pass a refused FPDU to DDP.
    retry_at: Option<Instant>,
    /// Final counters of MPA and the layers above, stored when these layers are freed.
    last_stats: Option<Box<EndpointStats>>,
}

impl Blank for ColdState {
    fn blank() -> &'static Self {
        static BLANK: ColdState = ColdState { retry_at: None, last_stats: None };
        &BLANK
    }
}

/// Element of the event queue, a linked list with the oldest event first. More than one element is rare.
#[derive(Debug)]
struct QueuedEvent {
    event: Event,
    next: Option<Box<QueuedEvent>>,
}

base::prefetch!(QueuedEvent:);

impl<M: RegionMemory> Endpoint<M> {
    /// Creates the endpoint of an active open. It sends a SYN, then an MPA request of revision `config.mpa.initiate`;
    /// bare DDP uses revision 1 instead of 2. For `start` and `mss` see [`Connection::connect`].
    ///
    /// # Errors
    /// The private data does not fit the request.
    pub fn connect(
        config: Arc<EndpointConfig>,
        id: StreamId,
        tuple: FourTuple,
        start: impl Into<InitialNumbers>,
        mss: u16,
        now: Instant,
        open: OpenRequest,
    ) -> Result<Self, PrivateDataTooLong> {
        let config = match UlpKind::from_config(&open.ulp) {
            UlpKind::Ddp => downgrade_to_revision_1(config),
            UlpKind::Rdmap => config,
        };
        let startup = Startup::initiator(&config.mpa, open.ulp.depths(), &open.private_data)?;
        let peer = PeerId::from_address(tuple.remote.ip());
        let conn = Connection::connect(config.tcp.clone(), tuple, start, mss, now);
        let upper = Upper::initiator(config.clone(), id, peer, startup, open);
        Ok(Endpoint::new(config, conn, upper))
    }

    /// Creates the endpoint of a passive open that answers the segment `syn`. For `start` and `mss` see
    /// [`Connection::accept`].
    pub fn accept(
        config: Arc<EndpointConfig>,
        id: StreamId,
        tuple: FourTuple,
        start: impl Into<InitialNumbers>,
        mss: u16,
        syn: &Segment<'_>,
        now: Instant,
    ) -> Self {
        let conn = Connection::accept(config.tcp.clone(), tuple, start, mss, syn, now);
        let upper = Upper::responder(config.clone(), id, PeerId::from_address(tuple.remote.ip()));
        Endpoint::new(config, conn, upper)
    }

    /// Maximum bytes of FPDUs that are kept while the owner decides on the MPA request. The SYN-ACK offers at most this
    /// window.
    pub const STARTUP_WINDOW: u64 = upper::MAX_BACKLOG as u64;

    /// Creates the endpoint of a passive open from a SYN cookie: see [`Connection::accept_cookie`].
    pub fn accept_cookie(
        config: Arc<EndpointConfig>,
        id: StreamId,
        tuple: FourTuple,
        mss: u16,
        cookie: &tcp::Cookie,
        now: Instant,
    ) -> Self {
        let offer = tcp::SynAckOffer { mss, room: Self::STARTUP_WINDOW };
        let conn = Connection::accept_cookie(config.tcp.clone(), tuple, offer, cookie, now);
        let upper = Upper::responder(config.clone(), id, PeerId::from_address(tuple.remote.ip()));
        Endpoint::new(config, conn, upper)
    }

    fn new(config: Arc<EndpointConfig>, conn: Connection, upper: Upper<M>) -> Self {
        Endpoint {
            conn,
            upper,
            config,
            lifecycle: Lifecycle::new(State::Connecting),
            cold: Lazy::new(),
            events: None,
        }
    }

    /// Processes a received segment of this connection. The caller has verified its checksum.
    ///
    /// # Errors
    /// The reason why TCP dropped the segment.
    pub fn input(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        cx: &mut Context<'_, M>,
    ) -> Result<(), DropReason> {
        let call = &mut UpperCall::for_segment(&mut self.upper, cx, segment);
        let result = self.conn.input(now, segment, call);
        if !self.is_uneventful() {
            self.handle_tcp_events(now, cx);
        }
        result
    }

    /// Writes the due segments to `tx`.
    pub fn poll_transmit(&mut self, now: Instant, tx: &mut impl TxBatch) {
        let mut call = UpperCall::for_transmit(&mut self.upper, tx);
        self.conn.poll_transmit(now, &mut call, tx);
        if call.keep.has_refused() {
            tx.report_keep_limited();
        }
    }

    /// Returns the memory used by copies of unacknowledged FPDUs, in bytes. An FPDU is copied if its source may change,
    /// or if a segment contains only a part of the FPDU.
    #[inline]
    pub fn kept_bytes(&self) -> u64 {
        self.upper.full().map_or(0, |full| full.sender.kept_memory())
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due. A time in the past means now.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.conn.peek_event().is_some() {
            return Some(Instant::ZERO);
        }
        let (retry_at, idle) = (self.cold.retry_at, self.idle_deadline());
        [self.conn.poll_timeout(), self.lifecycle.deadline(), retry_at, idle]
            .into_iter()
            .flatten()
            .min()
    }

    /// Processes expired timers. Call [`poll_transmit`](Self::poll_transmit) afterwards.
    pub fn handle_timeout(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        let call = &mut UpperCall::for_receive(&mut self.upper, cx);
        self.conn.handle_timeout(now, call);
        self.handle_tcp_events(now, cx);
        if self.lifecycle.deadline().is_some_and(|deadline| deadline <= now) {
            self.on_deadline(now, cx);
        }
        if self.idle_deadline().is_some_and(|deadline| deadline <= now) {
            self.on_idle_timeout(now);
        }
    }

    /// Handles the idle time-out. If the ULP confirms data itself, queues [`Event::Idle`], and the owner then closes.
    /// Otherwise shuts the stream down.
    fn on_idle_timeout(&mut self, now: Instant) {
        if self.stream().is_some_and(Ulp::holds_confirmations) {
            self.lifecycle.pending.idle = true;
            self.queue_event(Event::Idle);
        } else {
            self.shutdown_for(CloseReason::Idle, now);
        }
    }

    /// Returns the next event for the owner.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(first) = self.events.take() {
            self.events = first.next;
            return Some(first.event);
        }
        if let Some(event) = self.upper.full_mut().and_then(|full| full.stream.poll_event()) {
            return Some(match event {
                UlpEvent::Ddp(event) => Event::Ddp(event),
                UlpEvent::Rdmap(event) => Event::Rdmap(event),
            });
        }
        if !core::mem::take(&mut self.lifecycle.pending.report) {
            return None;
        }
        self.cold.last_stats = Some(Box::new(self.stats()));
        self.upper.stage = Stage::Discarding;
        Some(Event::Closed { reason: self.lifecycle.close_reason() })
    }

    /// Returns the number of ULP events that [`poll_event`](Self::poll_event) has not returned.
    #[inline]
    pub fn pending_events(&self) -> usize {
        self.upper.full().map_or(0, |full| full.stream.pending_events())
    }

    /// Pauses delivery for an owner that does not poll events; `None` resumes delivery.
    ///
    /// While paused, the right edge of the receive window does not move, so the window shrinks by the bytes that the
    /// peer sends. Data in the window is accepted until `max_pending_events` events are pending; one segment may
    /// exceed this limit. Later data is refused. Acknowledgements are processed. Call
    /// [`poll_transmit`](Self::poll_transmit) afterwards to advertise the window.
    pub fn pause(&mut self, max_pending_events: Option<u32>) {
        // Before Full Operation a pause is not needed: the start-up queues a bounded number of events.
        if let Some(full) = self.upper.full_mut() {
            full.pause(max_pending_events);
        }
    }

    /// Accepts the request of [`Event::MpaRequest`]: sends the reply and enters Full Operation. This end sends no FPDU
    /// before the peer's first FPDU (RFC 5044 §7.1.2 (4)). In the peer-to-peer model [`Event::Established`] follows
    /// that FPDU (RFC 6581 §9.2). A request whose IRD is below the configured `required_ord` is rejected instead.
    ///
    /// # Errors
    /// No request awaits a decision, or the private data is too long for the reply.
    pub fn mpa_accept(
        &mut self,
        now: Instant,
        pd: PdId,
        private_data: &[u8],
        ulp: impl Into<UlpConfig>,
        cx: &mut Context<'_, M>,
    ) -> Result<(), AnswerError> {
        let ulp = ulp.into();
        let (State::Deciding, Stage::Startup(begin)) =
            (self.lifecycle.state(), &mut self.upper.stage)
        else {
            return Err(AnswerError::NoRequest);
        };
        let params = match begin.startup.accept(ulp.depths(), private_data) {
            Ok(params) => params,
            Err(AcceptError::PrivateData(error)) => return Err(error.into()),
            Err(AcceptError::Unsuitable(error)) => {
                return self.reject_for(TcpReason::Startup(error).into(), now, &[]);
            }
        };
        self.upper.enter_full(params, pd, ulp, cx);
        if params.agreed.is_some_and(|agreed| matches!(agreed.readiness, Readiness::AwaitsRtr(_))) {
            self.lifecycle.await_ready();
        } else {
            self.enter_established(Vec::new());
        }
        self.handle_tcp_events(now, cx);
        Ok(())
    }

    /// Rejects the request of [`Event::MpaRequest`] and closes the connection. MPA's first draft has no reject, so a
    /// request in its form is answered by the close alone.
    ///
    /// # Errors
    /// No request awaits a decision, or the private data is too long for the reply.
    pub fn mpa_reject(&mut self, now: Instant, private_data: &[u8]) -> Result<(), AnswerError> {
        self.reject_for(CloseReason::RejectedHere, now, private_data)
    }

    fn reject_for(
        &mut self,
        reason: CloseReason,
        now: Instant,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        let (State::Deciding, Stage::Startup(begin)) =
            (self.lifecycle.state(), &mut self.upper.stage)
        else {
            return Err(AnswerError::NoRequest);
        };
        begin.startup.reject(private_data)?;
        self.upper.take_prologue();
        self.upper.stage = Stage::Discarding;
        self.discard_and_close(reason, now);
        Ok(())
    }

    /// Closes gracefully: sends all posted data, then the FIN. Places and delivers data received before the peer's FIN.
    pub fn shutdown(&mut self, now: Instant) {
        self.shutdown_for(self.lifecycle.local_reason(), now);
    }

    /// Aborts the stream with a reset.
    pub fn abort(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.abort_for(CloseReason::LocalAbort, now, cx);
    }

    /// Aborts the stream because its packets lack the protection (IPsec) that this end requires.
    pub fn abort_unprotected(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        self.abort_for(CloseReason::NotProtected, now, cx);
    }

    /// Closes the stream because of a local error. Sends MPA error code 5, local catastrophic error (RFC 6581 §8), if
    /// an error can still be sent. Otherwise resets the connection.
    pub fn fail(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        if self.lifecycle.is_receiving() {
            self.fail_startup(StartupError::Local, now, cx);
        } else {
            self.abort_for(TcpReason::Startup(StartupError::Local).into(), now, cx);
        }
    }

    /// Closes the stream because its ULP cannot complete its work. The peer receives a local catastrophic error, or a
    /// reset if this end can no longer send one, for example after its FIN.
    pub fn fail_ulp(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        let open = matches!(self.conn.state(), tcp::State::Established | tcp::State::CloseWait);
        let why = TcpReason::Startup(StartupError::Local).into();
        if open && self.lifecycle.is_receiving() {
            self.fail_with(why, ddp::lifecycle::FinalError::Local, now, cx);
        } else {
            // After our FIN an orderly end would report success to the peer, so a reset must end the connection.
            self.lifecycle.pending.reset = true;
            self.abort_for(why, now, cx);
        }
    }

    /// Records that the ULP will close the stream. The graceful close confirms to the peer all data whose events the
    /// ULP has polled by now. Until the close, the ULP's own time limit applies, not the policy's
    /// `half_closed_timeout`.
    pub fn begin_confirmation(&mut self) {
        if let Some(full) = self.upper.full() {
            self.lifecycle.begin_confirmation(&full.stream);
        }
    }

    /// Returns true if a [`shutdown`](Self::shutdown) would confirm data that arrived after
    /// [`begin_confirmation`](Self::begin_confirmation).
    pub fn is_unconfirmed(&self) -> bool {
        self.stream().is_some_and(|stream| self.lifecycle.is_unconfirmed(stream))
    }

    /// Sets the MSS of the path, in bytes: see [`Connection::set_path_mss`].
    pub fn set_path_mss(&mut self, now: Instant, mss: u16) {
        self.conn.set_path_mss(now, mss);
    }

    /// Handles a router's report of a packet that was too big: see [`Connection::on_packet_too_big`].
    pub fn on_packet_too_big(
        &mut self,
        now: Instant,
        mtu: u16,
        seq: SeqNumber,
    ) -> tcp::TooBigOutcome {
        self.conn.on_packet_too_big(now, mtu, seq)
    }

    /// Returns the stream's lifecycle state.
    pub fn state(&self) -> State {
        self.lifecycle.state()
    }

    /// Returns true if the owner may drop the endpoint: nothing remains to be reported or sent, and TIME-WAIT is over.
    pub fn is_done(&self) -> bool {
        self.state() == State::Closed
            && !self.lifecycle.pending.report
            && self.events.is_none()
            && self.conn.state() == tcp::State::Closed
    }

    /// Returns the TCP connection, for inspection.
    pub fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Returns the stream above MPA, for inspection; `None` outside Full Operation.
    pub fn stream(&self) -> Option<&Ulp<M>> {
        self.upper.full().map(|full| &full.stream)
    }

    /// Returns the negotiated parameters; `None` outside Full Operation.
    pub fn params(&self) -> Option<StreamParams> {
        let full = self.upper.full()?;
        Some(StreamParams::new(&full.params, &full.stream, self.conn.emss()))
    }

    /// Returns the form and revision of the start-up; `None` outside Full Operation.
    pub fn revision(&self) -> Option<Revision> {
        self.upper.full().map(|full| full.params.revision)
    }

    /// Returns the counters of all layers.
    pub fn stats(&self) -> EndpointStats {
        let mut stats = self.cold.last_stats.as_deref().copied().unwrap_or_default();
        stats.tcp = self.conn.stats();
        if let Some(full) = self.upper.full() {
            stats.mpa_rx = full.receiver.stats();
            stats.mpa_tx = full.sender.stats();
            stats.ddp = *full.stream.counters();
            stats.rdmap = full.stream.rdmap_counters().copied().unwrap_or_default();
        }
        stats
    }

    /// Returns the arrival time of the last segment that was not dropped.
    pub fn idle_since(&self) -> Instant {
        self.conn.idle_since()
    }

    fn idle_deadline(&self) -> Option<Instant> {
        let established = self.state() == State::Established;
        let keeps_idle_timer =
            established && !self.lifecycle.is_peer_closed() && !self.lifecycle.pending.idle;
        let timeout = self.config.policy.idle_timeout.filter(|_| keeps_idle_timer)?;
        Some(self.conn.idle_since() + timeout)
    }

    /// Frees memory that an idle stream does not need. The owner decides after which time without received packets a
    /// stream is idle. Protocol behaviour is unchanged.
    pub fn shrink(&mut self, now: Instant) {
        self.conn.shrink(now);
        self.upper.shrink();
        if self.state() == State::Closed && !self.lifecycle.pending.report {
            // `poll_event` has returned the close reason. The owner needs neither the reason nor the final counters
            // any more.
            self.lifecycle.release();
            self.cold.release();
        }
    }

    /// Returns true if [`handle_tcp_events`](Self::handle_tcp_events) has nothing to do, as after most segments.
    #[inline]
    fn is_uneventful(&self) -> bool {
        let due = &self.lifecycle.pending;
        self.state() == State::Established
            && self.upper.is_uneventful()
            && self.conn.peek_event().is_none()
            && self.cold.is_blank()
            && !(due.peer_close || due.close)
    }

    /// Processes all events and errors of the last call into TCP.
    fn handle_tcp_events(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        // Order: events that open the stream, then received data, then events that close it.
        if self.conn.peek_event() == Some(tcp::Event::Connected) {
            self.conn.poll_event();
            self.on_connected(now);
        }
        if let Some(notice) = self.upper.take_notice() {
            self.handle_notice(notice, now, cx);
        }
        self.check_errors(now, cx);
        self.check_readiness();
        while let Some(event) = self.conn.poll_event() {
            match event {
                tcp::Event::Connected => self.on_connected(now),
                tcp::Event::RemoteClosed => self.on_peer_closed(now, cx),
                tcp::Event::Closed(reason) => self.on_tcp_closed(reason, cx),
            }
        }
        self.retry_blocked(now, cx);
        if self.lifecycle.pending.peer_close && self.cold.retry_at.is_none() {
            self.on_peer_closed(now, cx);
        }
        if self.lifecycle.pending.close {
            self.close_when_sendable();
        }
    }

    fn queue_event(&mut self, event: Event) {
        let mut place = &mut self.events;
        while let Some(queued) = place {
            place = &mut queued.next;
        }
        *place = Some(Box::new(QueuedEvent { event, next: None }));
    }

    fn on_connected(&mut self, now: Instant) {
        // RFC 5044 §7.1.2 (10): the start-up time-out begins when the connection is established.
        if self.lifecycle.on_connected(now + self.config.mpa.startup_timeout) {
            self.upper.set_emss(self.conn.emss());
        }
    }

    fn handle_notice(&mut self, notice: Notice, now: Instant, cx: &mut Context<'_, M>) {
        match notice {
            Notice::Request(request) => {
                self.lifecycle.on_request();
                let Request { revision, private_data, enhanced } = request;
                self.queue_event(Event::MpaRequest { private_data, revision, enhanced });
            }
            Notice::Accepted { private_data } => self.enter_established(private_data),
            Notice::Unsuitable(error) => self.fail_startup(error, now, cx),
            Notice::Rejected { private_data, enhanced } => {
                let why = CloseReason::RejectedByPeer { private_data, enhanced };
                self.discard_and_close(why, now);
            }
            // RFC 5044 §8, code 4 (invalid start-up frame): the connection is reset at once.
            Notice::Error(error) => self.abort_for(TcpReason::Startup(error).into(), now, cx),
        }
    }

    fn enter_established(&mut self, private_data: Vec<u8>) {
        let Some(params) = self.params() else { return };
        self.lifecycle.on_established();
        self.queue_event(Event::Established { private_data, params });
    }

    /// Establishes a responder of the peer-to-peer model after the initiator's first FPDU, of any content.
    fn check_readiness(&mut self) {
        if self.state() != State::Readying
            || !self.upper.full().is_some_and(FullOperation::has_handed_up_in_order)
        {
            return;
        }
        if let Some(full) = self.upper.full_mut() {
            full.stream.on_peer_ready();
        }
        self.enter_established(Vec::new());
    }

    /// Passes the refused FPDU to DDP again. The peer does not retransmit the FPDU, because TCP has acknowledged its
    /// bytes. At most one attempt per [`BLOCKED_RETRY_INTERVAL`], because each attempt verifies the FPDU again.
    fn retry_blocked(&mut self, now: Instant, cx: &mut Context<'_, M>) {
        let Some(full) = self.upper.full_mut().filter(|full| full.receiver.is_blocked()) else {
            if let Some(rare) = self.cold.get_mut() {
                rare.retry_at = None;
            }
            return;
        };
        if self.cold.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.cold.retry_at = None;
        let ddp = ddp::Context { stags: cx.stags, buffers: cx.buffers };
        full.receiver.retry(&mut full.stream.sink(ddp), cx.hold);
        if full.receiver.is_blocked() {
            self.cold.retry_at = Some(now + BLOCKED_RETRY_INTERVAL);
        }
        self.check_errors(now, cx);
    }
}

/// Replaces revision 2 by 1: bare DDP has no Read depths to negotiate (RFC 6581 §10).
fn downgrade_to_revision_1(config: Arc<EndpointConfig>) -> Arc<EndpointConfig> {
    if config.mpa.initiate != Revision::Two {
        return config;
    }
    let mut plain = EndpointConfig::clone(&config);
    plain.mpa.initiate = Revision::One;
    Arc::new(plain)
}

#[cfg(test)]
mod tests;
