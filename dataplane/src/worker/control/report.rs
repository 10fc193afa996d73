//! Translates the events of TCP endpoints and of bare DDP streams into events for the control thread. A stream without
//! event credit is not polled for events ([`event_queue`](crate::worker::link::event_queue)). When a stream over TCP
//! ends, this module also decides on TIME-WAIT or a second connection attempt.
//!
//! Not included: events of associations ([`sctp`](crate::worker::sctp)), of RDMAP ([`ulp`](crate::worker::ulp)) and of
//! QPs ([`programs`](crate::worker::programs)).

use base::Instant;
use ddp::{Cookie, Poster};
use ipsec::strength::Strength;
use tcp_lite::endpoint;
use tcp_lite::mpa::{EnhancedRepr, Revision, StartupError};
use tcp_lite::tcp::State;

use super::recorder::record_session_error;
use crate::api::{
    CloseReason, Connect, ConnectError, Event, HandshakeFailure, InterfaceId, ListenerId,
    PostFailure, RecordKind, StreamInfo, StreamParams, StreamStats, Ticket,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::worker::flows::associations::{Association, Associations};
use crate::worker::flows::conn::{Conn, ServiceKind, Stage, Stream};
use crate::worker::flows::listeners::AcceptProgress;
use crate::worker::flows::lower_layer::LowerLayer;
use crate::worker::{Core, Env, Phase};

/// State listed for a stream that is paused until the control thread has read its events.
const PAUSED: &str = "paused";

/// Action of the worker after the end of a stream over TCP.
pub(in crate::worker) enum EndAction {
    /// The connection remains in TIME-WAIT.
    TimeWait,
    /// The stream is opened again with other parameters.
    Retry(ConnectAttempt),
}

pub(in crate::worker) struct ConnectAttempt {
    pub(in crate::worker) connect: Box<Connect>,
    /// Minimum IPsec protection, at least as strong as in the first attempt.
    pub(in crate::worker) min_strength: Strength,
}

impl<Io: PortIo> Core<Io> {
    /// Reports all events of a stream that ends now, regardless of its event credit.
    pub(in crate::worker) fn report_all(&mut self, slot: u32, now: Instant) {
        while let Some(conn) = self.streams.get_mut(slot) {
            if conn.transient.credit.is_waiting {
                conn.transient.credit.is_waiting = false;
            }
            self.report_events(slot, now);
            if !self.streams.get(slot).is_some_and(|conn| conn.transient.credit.is_waiting) {
                return;
            }
        }
    }

    /// Reports the events of a stream over TCP while it has event credit, and handles its end.
    pub(in crate::worker) fn report_events(&mut self, slot: u32, now: Instant) {
        while let Some(conn) = self.streams.get_mut(slot) {
            let Some(action) = self.env.report_events(slot, conn, now) else { return };
            self.handle_stream_end(slot, action, now);
        }
    }

    /// Keeps an ended stream over TCP in TIME-WAIT, or opens it again.
    #[cold]
    pub(in crate::worker) fn handle_stream_end(
        &mut self,
        slot: u32,
        action: EndAction,
        now: Instant,
    ) {
        match action {
            EndAction::TimeWait => {
                if let Some(id) = self.streams.get(slot).map(|conn| conn.id) {
                    self.streams.add_time_wait(id);
                }
            }
            EndAction::Retry(attempt) => self.start_attempt(attempt, now),
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Reports the events of a stream over TCP while it has event credit. Returns the action to take if the stream has
    /// ended.
    #[inline]
    pub(in crate::worker) fn report_events(
        &mut self,
        slot: u32,
        conn: &mut Conn,
        now: Instant,
    ) -> Option<EndAction> {
        let stopping = self.is_stopping();
        loop {
            if conn.transient.credit.is_waiting && !stopping {
                return None;
            }
            let event = conn.lower.connection()?.endpoint_mut().poll_event()?;
            let before = self.control.events_sent();
            let mut stream = Stream { slot, conn, association: None };
            let action = self.report_event(&mut stream, event, now);
            if self.control.events_sent() != before {
                self.charge(&mut stream, before);
            }
            if action.is_some() {
                return action;
            }
        }
    }

    fn report_event(
        &mut self,
        stream: &mut Stream<'_>,
        event: endpoint::Event,
        now: Instant,
    ) -> Option<EndAction> {
        match event {
            endpoint::Event::MpaRequest { private_data, revision, enhanced } => {
                self.report_incoming(stream, private_data, Some(revision), enhanced);
            }
            endpoint::Event::Established { private_data, params } => {
                self.report_established(stream, private_data, StreamParams::Tcp(params));
            }
            endpoint::Event::Ddp(event) => self.handle_ddp_event(stream, event, now),
            endpoint::Event::Rdmap(event) => self.handle_rdmap_event(stream, event, now),
            endpoint::Event::Idle => self.control.send(Event::Idle { stream: stream.conn.id }),
            endpoint::Event::Closed { reason } => {
                return match self.take_rev1_retry(stream.conn, &reason, now) {
                    Some(attempt) => Some(EndAction::Retry(attempt)),
                    None => self.close_tcp_stream(stream, reason.into(), now),
                };
            }
        }
        None
    }

    pub(in crate::worker) fn report_incoming(
        &mut self,
        stream: &mut Stream<'_>,
        private_data: Vec<u8>,
        revision: Option<Revision>,
        enhanced: Option<EnhancedRepr>,
    ) {
        let conn = &mut *stream.conn;
        let Some(listener) = conn.listener() else { return };
        if conn.stage != Stage::Starting {
            return;
        }
        conn.stage = Stage::Announced;
        conn.accepted.advance(AcceptProgress::Announced);
        let flow = conn.lower.flow();
        self.admission.listeners_mut().mark_announced(listener, flow.remote.ip());
        self.control.send(Event::Incoming {
            stream: conn.id,
            listener,
            interface: InterfaceId(flow.interface),
            local: flow.local,
            remote: flow.remote,
            private_data,
            revision,
            enhanced,
        });
    }

    pub(in crate::worker) fn report_established(
        &mut self,
        stream: &mut Stream<'_>,
        private_data: Vec<u8>,
        params: StreamParams,
    ) {
        let conn = &mut *stream.conn;
        if conn.stage == Stage::Ended {
            return;
        }
        conn.stage = Stage::Established;
        self.start_pair(stream);
        let conn = &mut *stream.conn;
        let duration = self.now.nanos_since(conn.created_at);
        self.control.counters().handshake_nanoseconds.record(duration.get());
        // Over SCTP, the neighbour entry was pinned when the association was established.
        if let LowerLayer::Tcp(carrier) = &mut conn.lower {
            carrier.pin(&mut self.network);
        }
        let opening = conn.transient.get_mut().and_then(|pending| pending.opening.take());
        let ticket = opening.map(|opening| opening.ticket);
        conn.release_pending();
        let flow = conn.lower.flow();
        self.control.counters().streams.streams_established.add(1);
        self.control.send(Event::Established {
            stream: conn.id,
            ticket,
            private_data,
            params,
            local: flow.local,
            remote: flow.remote,
        });
    }

    pub(in crate::worker) fn handle_ddp_event(
        &mut self,
        stream: &mut Stream<'_>,
        event: ddp::Event,
        now: Instant,
    ) {
        let (id, service) = (stream.conn.id, stream.conn.service);
        let event = match event {
            ddp::Event::TaggedDelivered { stag, to, len, rsvd_ulp } => match service {
                ServiceKind::Control | ServiceKind::Region | ServiceKind::Program => {
                    Event::TaggedDelivered { stream: id, stag, to, len, rsvd_ulp }
                }
                ServiceKind::Echo | ServiceKind::Sink => return,
            },
            ddp::Event::UntaggedDelivered { qn, msn, data, rsvd_ulp } => {
                match self.handle_untagged(stream, qn, data, rsvd_ulp, now) {
                    Some(data) => Event::Untagged { stream: id, qn, msn, data, rsvd_ulp },
                    None => return,
                }
            }
            ddp::Event::Sent { cookie, messages } => {
                return self.handle_sent(stream, cookie, messages, now);
            }
            ddp::Event::Flushed { cookie } => return self.handle_flushed(stream, cookie, now),
            ddp::Event::PeerClosed { incomplete } => {
                self.handle_peer_close(stream, now);
                Event::PeerClosed { stream: id, incomplete }
            }
            ddp::Event::Error(error) => {
                let numbers = error.code.numbers();
                record_session_error(stream, RecordKind::ErrorFound, numbers, now);
                // Bare DDP reports the error to the peer in a last message, if the endpoint sends such messages. That
                // message is recorded here. RDMAP's Terminate is recorded when its own event arrives.
                let endpoint = stream.association.as_deref().map(Association::endpoint);
                if endpoint.is_some_and(|endpoint| endpoint.sends_last_messages()) {
                    record_session_error(stream, RecordKind::TerminateSent, numbers, now);
                }
                Event::Error { stream: id, error }
            }
            // The endpoint reports the reason with its close event.
            ddp::Event::Failed(_) => return,
        };
        self.control.send(event);
    }

    /// Handles the completion of `messages` messages that were posted with this cookie: the peer has acknowledged them.
    fn handle_sent(
        &mut self,
        stream: &mut Stream<'_>,
        cookie: Cookie,
        messages: u32,
        now: Instant,
    ) {
        match cookie.poster() {
            Poster::User(number) => {
                let ticket = Ticket(number);
                for _ in 0..messages {
                    self.release_post_source(stream, ticket);
                    self.control.send(Event::Sent { stream: stream.conn.id, ticket });
                }
            }
            Poster::Service => self.acknowledge_answers(stream, messages),
            Poster::Load => return self.complete_load_messages(stream, messages, now),
            Poster::Stack | Poster::Response | Poster::Terminate => {}
        }
        self.continue_load(stream, now);
    }

    /// Handles the flush of a post with this cookie: its message was not sent, or not completely.
    pub(in crate::worker) fn handle_flushed(
        &mut self,
        stream: &mut Stream<'_>,
        cookie: Cookie,
        now: Instant,
    ) {
        match cookie.poster() {
            Poster::User(number) => {
                let (ticket, reason) = (Ticket(number), PostFailure::Flushed);
                self.release_post_source(stream, ticket);
                return self.control.send(Event::PostFailed {
                    stream: stream.conn.id,
                    ticket,
                    reason,
                });
            }
            Poster::Service => self.acknowledge_answers(stream, 1),
            Poster::Load => return self.handle_load_flush(stream, now),
            Poster::Stack | Poster::Response | Poster::Terminate => {}
        }
        self.continue_load(stream, now);
    }

    /// Releases the region of a completed or flushed post. A deferred removal of the region may then finish.
    pub(in crate::worker) fn release_post_source(
        &mut self,
        stream: &mut Stream<'_>,
        ticket: Ticket,
    ) {
        let pending = &mut stream.conn.transient;
        // Posts complete in the order of posting, so the first match is the completed post.
        let Some(at) = pending.sources.iter().position(|&(t, _)| t == ticket) else { return };
        if let Some((_, stag)) = pending.sources.remove(at) {
            self.tables.release_source(stag);
            self.tables.finish_removals(&mut self.control);
        }
    }

    /// Returns a second attempt with MPA revision 1, within the remaining time. The first attempt, with revision 2,
    /// must have failed because the peer closed or reset the connection, or does not support that revision. Returns
    /// `None` for other reasons, or if no retry is allowed.
    fn take_rev1_retry(
        &mut self,
        conn: &mut Conn,
        reason: &endpoint::CloseReason,
        now: Instant,
    ) -> Option<ConnectAttempt> {
        use endpoint::TcpReason as Reason;
        let refused = matches!(
            reason,
            endpoint::CloseReason::Lower(
                Reason::PeerReset
                    | Reason::Startup(StartupError::Closed | StartupError::NotEnhanced)
                    | Reason::Startup(StartupError::Revision { .. })
            )
        );
        if !refused {
            return None;
        }
        let min_strength = conn.lower.connection().map(|carrier| carrier.min_strength());
        let attempt = self.take_retry(conn, min_strength, now)?;
        let (ticket, reason) = (attempt.connect.ticket, CloseReason::Tcp(reason.clone()));
        self.control.send(Event::Retrying { ticket, reason });
        Some(attempt)
    }

    /// Returns the second attempt of a connect that has failed, if a retry is allowed and time remains. The second
    /// attempt requires at least the protection of the first. The end of the first attempt is not reported.
    pub(in crate::worker) fn take_retry(
        &mut self,
        conn: &mut Conn,
        min_strength: Option<Strength>,
        now: Instant,
    ) -> Option<ConnectAttempt> {
        if conn.stage != Stage::Starting {
            return None;
        }
        let opening = conn.transient.get_mut()?.opening.as_mut()?;
        let timeout = opening.deadline.saturating_since(now);
        let mut connect = opening.retry.take().filter(|_| !timeout.is_zero())?;
        connect.timeout = timeout;
        self.release_pair(conn);
        conn.stage = Stage::Ended;
        self.control.remove_open_stream();
        Some(ConnectAttempt { connect, min_strength: min_strength.unwrap_or(Strength::CLEAR) })
    }

    fn close_tcp_stream(
        &mut self,
        stream: &mut Stream<'_>,
        reason: CloseReason,
        now: Instant,
    ) -> Option<EndAction> {
        let endpoint = stream.conn.lower.connection()?.endpoint();
        let stats = StreamStats::Tcp(endpoint.stats());
        let time_wait = endpoint.connection().state() == State::TimeWait;
        self.report_records(stream, &reason);
        self.report_closed(stream.conn, reason, stats);
        if let Some(carrier) = stream.conn.lower.connection() {
            // The connection may remain in TIME-WAIT, which needs little state.
            carrier.endpoint_mut().shrink(now);
        }
        time_wait.then_some(EndAction::TimeWait)
    }

    /// Reports the end of a stream, or a failed connect or handshake.
    pub(in crate::worker) fn report_closed(
        &mut self,
        conn: &mut Conn,
        reason: CloseReason,
        stats: StreamStats,
    ) {
        self.report_failed_attempt(conn, HandshakeFailure::from_close_reason(&reason), &reason);
        let was_announced = self.end_stream(conn, |ticket| Event::ConnectFailed {
            ticket,
            reason: ConnectError::Closed(reason.clone()),
        });
        if was_announced {
            let stats = Box::new(stats);
            self.control.send(Event::Closed { stream: conn.id, reason, stats });
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Reports a peer's failed handshake, unless the stream was announced to the control thread before. Attempts whose
    /// source address may be forged are not reported.
    #[cold]
    pub(in crate::worker) fn report_failed_attempt(
        &mut self,
        conn: &Conn,
        failure: HandshakeFailure,
        detail: &dyn core::fmt::Display,
    ) {
        let Some((listener, progress)) = conn.accepted.get() else { return };
        // The segment that completes the TCP handshake may already contain an invalid MPA request. The stream then
        // still counts as unproven, although its source address is not forged.
        let proven = progress == AcceptProgress::Starting || failure.is_mpa_startup();
        if conn.stage != Stage::Starting || !proven {
            return;
        }
        let failure = match failure.reason {
            "local_abort" => self.abort_failure(listener, &conn.lower.flow()),
            _ => failure,
        };
        self.control.report_failed_handshake(
            conn.lower.transport(),
            &conn.lower.flow(),
            Some(listener),
            failure,
            || detail.to_string(),
            self.now,
        );
    }

    /// Returns the reason why this end aborted a handshake: the worker is draining or stopping, the listener no longer
    /// admits the peer, or the listener was removed.
    pub(in crate::worker) fn abort_failure(
        &self,
        listener: ListenerId,
        flow: &FlowKey,
    ) -> HandshakeFailure {
        let admits = self.admission.listeners().admits(listener, flow.remote.ip());
        let reason = match (self.phase, admits) {
            (Phase::Running, Err(_)) => "peer_refused",
            (Phase::Running, Ok(())) => "listener_removed",
            _ => "draining",
        };
        HandshakeFailure::new("admission", reason)
    }
}

/// Returns a stream as listed for operators.
pub(in crate::worker) fn stream_info(
    conn: &Conn,
    associations: &Associations,
    now: Instant,
) -> StreamInfo {
    let flow = conn.lower.flow();
    StreamInfo {
        stream: conn.id,
        listener: conn.listener(),
        interface: InterfaceId(flow.interface),
        local: flow.local,
        remote: flow.remote,
        transport: conn.lower.transport(),
        association: conn.lower.association(associations),
        state: if conn.transient.credit.is_waiting {
            PAUSED
        } else {
            conn.lower.state(associations)
        },
        age: now - conn.created_at,
        flow: conn.lower.flow_info(associations, now),
        stats: conn.lower.stats(associations),
    }
}
