//! Events of endpoints, translated for the control thread.

use base::Instant;
use ddp::{Cookie, Poster};
use ipsec::strength::Strength;
use tcp_lite::endpoint;
use tcp_lite::mpa::{EnhancedRepr, Revision, StartupError};
use tcp_lite::tcp::State;

use super::recorder::note_session;
use crate::api::{
    CloseReason, Connect, ConnectError, Event, HandshakeFailure, InterfaceId, ListenerId,
    PostFailure, RecordKind, Service, StreamInfo, StreamParams, StreamStats, Ticket,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::worker::flows::associations::{Association, Associations};
use crate::worker::flows::conn::{Conn, Stage, Stream};
use crate::worker::flows::listen::Progress;
use crate::worker::flows::lower::Lower;
use crate::worker::{Core, Env, Phase};

/// State of a stream that waits until the control thread has taken its events.
const PAUSED: &str = "paused";

/// Follow-up when a stream over TCP ends.
pub(in crate::worker) enum EndAction {
    /// Keep the connection in TIME-WAIT.
    TimeWait,
    /// Open the stream again.
    Retry(Again),
}

/// A stream to open once more.
pub(in crate::worker) struct Again {
    pub(in crate::worker) connect: Box<Connect>,
    /// Protection by IPsec that the first attempt required.
    pub(in crate::worker) least: Strength,
}

impl<Io: PortIo> Core<Io> {
    /// Takes all events of a stream that ends now, regardless of its credit.
    pub(in crate::worker) fn report_all(&mut self, slot: u32, now: Instant) {
        while let Some(conn) = self.streams.get_mut(slot) {
            if conn.pending.credit.waits {
                conn.pending.credit.waits = false;
            }
            self.report(slot, now);
            if !self.streams.get(slot).is_some_and(|conn| conn.pending.credit.waits) {
                return;
            }
        }
    }

    /// Takes the events of a stream over TCP, as far as it has credit for them.
    pub(in crate::worker) fn report(&mut self, slot: u32, now: Instant) {
        while let Some(conn) = self.streams.get_mut(slot) {
            let Some(ended) = self.env.report(slot, conn, now) else { return };
            self.stream_ended(slot, ended, now);
        }
    }

    /// Carries out the follow-up of a stream over TCP that has ended.
    #[cold]
    pub(in crate::worker) fn stream_ended(&mut self, slot: u32, ended: EndAction, now: Instant) {
        match ended {
            EndAction::TimeWait => {
                if let Some(id) = self.streams.get(slot).map(|conn| conn.id) {
                    self.streams.add_time_wait(id);
                }
            }
            EndAction::Retry(again) => self.connect_again(again, now),
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Takes the events of a stream over TCP, as far as it has credit for them, and until it has ended.
    #[inline]
    pub(in crate::worker) fn report(
        &mut self,
        slot: u32,
        conn: &mut Conn,
        now: Instant,
    ) -> Option<EndAction> {
        let stopping = self.is_stopping();
        loop {
            if conn.pending.credit.waits && !stopping {
                return None;
            }
            let event = conn.lower.connection()?.endpoint_mut().poll_event()?;
            let before = self.control.events_sent();
            let mut stream = Stream { slot, conn, association: None };
            let ended = self.report_event(&mut stream, event, now);
            if self.control.events_sent() != before {
                self.charge(&mut stream, before);
            }
            if ended.is_some() {
                return ended;
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
                self.incoming(stream, private_data, Some(revision), enhanced);
            }
            endpoint::Event::Established { private_data, params } => {
                self.established(stream, private_data, StreamParams::Tcp(params));
            }
            endpoint::Event::Ddp(event) => self.ddp(stream, event, now),
            endpoint::Event::Rdmap(event) => self.rdmap(stream, event, now),
            endpoint::Event::Idle => self.control.send(Event::Idle { stream: stream.conn.id }),
            endpoint::Event::Closed { reason } => {
                return match self.retries(stream.conn, &reason, now) {
                    Some(again) => Some(EndAction::Retry(again)),
                    None => self.closed_tcp(stream, reason.into(), now),
                };
            }
        }
        None
    }

    pub(in crate::worker) fn incoming(
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
        conn.accepted.advance(Progress::Announced);
        let flow = conn.lower.flow();
        self.admission.listeners_mut().announced(listener, flow.remote.ip());
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

    pub(in crate::worker) fn established(
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
        let took = self.now.nanos_since(conn.since);
        self.control.counters().handshake_nanoseconds.record(took.get());
        // An association's neighbour entry was pinned when it came up.
        if let Lower::Tcp(carrier) = &mut conn.lower {
            carrier.pin(&mut self.network);
        }
        let opening = conn.pending.get_mut().and_then(|pending| pending.opening.take());
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

    pub(in crate::worker) fn ddp(&mut self, of: &mut Stream<'_>, event: ddp::Event, now: Instant) {
        let (stream, service) = (of.conn.id, of.conn.service);
        let event = match event {
            ddp::Event::TaggedDelivered { stag, to, len, rsvd_ulp } => match service {
                Service::Control | Service::Region => {
                    Event::TaggedDelivered { stream, stag, to, len, rsvd_ulp }
                }
                Service::Echo | Service::Sink => return,
            },
            ddp::Event::UntaggedDelivered { qn, msn, data, rsvd_ulp } => {
                match self.untagged(of, qn, data, rsvd_ulp, now) {
                    Some(data) => Event::Untagged { stream, qn, msn, data, rsvd_ulp },
                    None => return,
                }
            }
            ddp::Event::Sent { cookie, messages } => return self.sent(of, cookie, messages, now),
            ddp::Event::Flushed { cookie } => return self.flushed(of, cookie, now),
            ddp::Event::PeerClosed { incomplete } => {
                self.peer_closed(of, now);
                Event::PeerClosed { stream, incomplete }
            }
            ddp::Event::Error(error) => {
                let code = (1, error.code.error_type(), error.code.code());
                note_session(of, RecordKind::ErrorFound, code, now);
                // A Terminate of RDMAP has an event of its own.
                let endpoint = of.association.as_deref().map(Association::endpoint);
                if endpoint.is_some_and(|endpoint| endpoint.sends_last_messages()) {
                    note_session(of, RecordKind::TerminateSent, code, now);
                }
                Event::Error { stream, error }
            }
            // The endpoint reports the reason when it closes.
            ddp::Event::Failed(_) => return,
        };
        self.control.send(event);
    }

    /// Handles the acknowledgement of `messages` messages with this cookie.
    fn sent(&mut self, stream: &mut Stream<'_>, cookie: Cookie, messages: u32, now: Instant) {
        match cookie.poster() {
            Poster::User(number) => {
                let ticket = Ticket(number);
                for _ in 0..messages {
                    self.sent_from(stream, ticket);
                    self.control.send(Event::Sent { stream: stream.conn.id, ticket });
                }
            }
            Poster::Service => self.answered(stream, messages),
            Poster::Load => return self.load_completed(stream, messages, now),
            Poster::Stack | Poster::Response | Poster::Terminate => {}
        }
        self.go_on_with_load(stream, now);
    }

    /// Handles a post with this cookie that will not be sent, or not completely.
    pub(in crate::worker) fn flushed(&mut self, of: &mut Stream<'_>, cookie: Cookie, now: Instant) {
        match cookie.poster() {
            Poster::User(number) => {
                let (ticket, reason) = (Ticket(number), PostFailure::Flushed);
                self.sent_from(of, ticket);
                return self.control.send(Event::PostFailed { stream: of.conn.id, ticket, reason });
            }
            Poster::Service => self.answered(of, 1),
            Poster::Load => return self.load_flushed(of, now),
            Poster::Stack | Poster::Response | Poster::Terminate => {}
        }
        self.go_on_with_load(of, now);
    }

    /// Releases the source region of a message that is no longer being sent; a removal may wait for that.
    pub(in crate::worker) fn sent_from(&mut self, stream: &mut Stream<'_>, ticket: Ticket) {
        let pending = &mut stream.conn.pending;
        // Completions arrive in the order of posting, so it is the first.
        let Some(at) = pending.sources.iter().position(|&(t, _)| t == ticket) else { return };
        if let Some((_, stag)) = pending.sources.remove(at) {
            self.tables.release_source(stag);
            self.tables.finish_removals(&mut self.control);
        }
    }

    /// Handles the end of an attempt with MPA revision 2. If the peer closed it and a retry is allowed, returns how to
    /// open the stream once more with revision 1, in the remaining time.
    fn retries(
        &mut self,
        conn: &mut Conn,
        reason: &endpoint::CloseReason,
        now: Instant,
    ) -> Option<Again> {
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
        let least = conn.lower.connection().map(|carrier| carrier.least());
        let again = self.opens_again(conn, least, now)?;
        let (ticket, reason) = (again.connect.ticket, CloseReason::Tcp(reason.clone()));
        self.control.send(Event::Retrying { ticket, reason });
        Some(again)
    }

    /// Returns how to open a stream once more, if it was not answered and a retry is allowed: in the remaining time,
    /// with at least the first attempt's protection. The end of the first attempt is not reported as a close.
    pub(in crate::worker) fn opens_again(
        &mut self,
        conn: &mut Conn,
        least: Option<Strength>,
        now: Instant,
    ) -> Option<Again> {
        if conn.stage != Stage::Starting {
            return None;
        }
        let opening = conn.pending.get_mut()?.opening.as_mut()?;
        let timeout = opening.deadline.saturating_since(now);
        let mut connect = opening.retry.take().filter(|_| !timeout.is_zero())?;
        connect.timeout = timeout;
        conn.stage = Stage::Ended;
        self.control.stream_ended();
        Some(Again { connect, least: least.unwrap_or(Strength::CLEAR) })
    }

    fn closed_tcp(
        &mut self,
        stream: &mut Stream<'_>,
        reason: CloseReason,
        now: Instant,
    ) -> Option<EndAction> {
        let endpoint = stream.conn.lower.connection()?.endpoint();
        let stats = StreamStats::Tcp(endpoint.stats());
        let time_wait = endpoint.connection().state() == State::TimeWait;
        self.report_records(stream, &reason);
        self.closed(stream.conn, reason, stats);
        if let Some(carrier) = stream.conn.lower.connection() {
            // TIME-WAIT needs little state.
            carrier.endpoint_mut().shrink(now);
        }
        time_wait.then_some(EndAction::TimeWait)
    }

    /// Reports the end of a stream.
    pub(in crate::worker) fn closed(
        &mut self,
        conn: &mut Conn,
        reason: CloseReason,
        stats: StreamStats,
    ) {
        self.attempt_failed(conn, HandshakeFailure::of(&reason), &reason);
        let known = self.ended(conn, |ticket| Event::ConnectFailed {
            ticket,
            reason: ConnectError::Closed(reason.clone()),
        });
        if known {
            let stats = Box::new(stats);
            self.control.send(Event::Closed { stream: conn.id, reason, stats });
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Reports a failed handshake, if the stream is a peer's attempt that the control thread was not notified of.
    /// Attempts whose address may be forged are not reported.
    #[cold]
    pub(in crate::worker) fn attempt_failed(
        &mut self,
        conn: &Conn,
        failure: HandshakeFailure,
        why: &dyn core::fmt::Display,
    ) {
        let Some((listener, progress)) = conn.accepted.get() else { return };
        // The segment that completes the handshake may contain the request that MPA refuses.
        let proven = progress == Progress::Starting || failure.is_of_start_up();
        if conn.stage != Stage::Starting || !proven {
            return;
        }
        let failure = match failure.reason {
            "local_abort" => self.why_aborted(listener, &conn.lower.flow()),
            _ => failure,
        };
        let at = (conn.lower.transport(), &conn.lower.flow());
        let (listener, now) = (Some(listener), self.now);
        self.control.handshake_failed(at, listener, failure, || why.to_string(), now);
    }

    /// Returns the reason for which this end aborts a handshake: the worker stops, the listener no longer admits the
    /// peer, or the listener was removed.
    pub(in crate::worker) fn why_aborted(
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

/// Returns the stream as operators see it.
pub(in crate::worker) fn info(
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
        state: if conn.pending.credit.waits { PAUSED } else { conn.lower.state(associations) },
        age: now - conn.since,
        flow: conn.lower.flow_info(associations, now),
        stats: conn.lower.stats(associations),
    }
}
