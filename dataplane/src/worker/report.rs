//! What endpoints tell, translated for the control thread.

use base::{Instant, MaybeInstant};
use tcp_lite::endpoint;
use tcp_lite::mpa::{EnhancedRepr, Revision};
use tcp_lite::tcp::State;

use super::Core;
use super::conn::{Conn, Origin, Stage};
use super::listen::Progress;
use super::load::LOAD;
use super::lower::Lower;
use super::rdmap::ECHO;
use super::sctp::Associations;
use crate::api::{
    CloseReason, ConnectError, Event, InterfaceId, PostFailure, Service, StreamInfo, StreamParams,
    StreamStats, Ticket,
};
use crate::io::PortIo;

/// The cookie of what nobody outside the worker has posted and nobody waits for.
pub(super) const NO_TICKET: u64 = u64::MAX;

/// The state of a stream that waits until the control thread has taken its events.
const PAUSED: &str = "paused";

impl<Io: PortIo> Core<Io> {
    /// Takes all events of a stream that ends now, whatever its credit is.
    pub(super) fn report_all(&mut self, slot: u32, now: Instant) {
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

    /// Takes the events of a stream, as far as it has credit for them.
    pub(super) fn report(&mut self, slot: u32, now: Instant) {
        let stopping = self.is_stopping();
        loop {
            let Some(conn) = self.streams.get_mut(slot) else { return };
            if conn.pending.credit.waits && !stopping {
                return;
            }
            let Lower::Tcp(endpoint) = &mut conn.lower else { return };
            let Some(event) = endpoint.poll_event() else { return };
            let before = self.control.events_sent();
            match event {
                endpoint::Event::MpaRequest { private_data, revision, enhanced } => {
                    self.incoming(slot, private_data, Some(revision), enhanced);
                }
                endpoint::Event::Established { private_data, params } => {
                    self.established(slot, private_data, StreamParams::Tcp(params));
                }
                endpoint::Event::Ddp(event) => self.ddp(slot, event, now),
                endpoint::Event::Rdmap(event) => self.rdmap(slot, event, now),
                endpoint::Event::Closed { reason } => {
                    if !self.retries(slot, &reason, now) {
                        self.closed_tcp(slot, reason.into(), now);
                    }
                }
            }
            if self.control.events_sent() != before {
                self.charge(slot, before);
            }
        }
    }

    pub(super) fn incoming(
        &mut self,
        slot: u32,
        private_data: Vec<u8>,
        revision: Option<Revision>,
        enhanced: Option<EnhancedRepr>,
    ) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let Origin::Accepted { listener, progress } = &mut conn.origin else { return };
        if conn.stage != Stage::Starting {
            return;
        }
        conn.stage = Stage::Announced;
        *progress = Progress::Announced;
        let listener = *listener;
        self.admission.listeners_mut().announced(listener, conn.peer());
        let event = Event::Incoming {
            stream: conn.id,
            listener,
            interface: InterfaceId(conn.flow().interface),
            local: conn.flow().local,
            remote: conn.flow().remote,
            private_data,
            revision,
            enhanced,
        };
        self.control.send(event);
    }

    pub(super) fn established(&mut self, slot: u32, private_data: Vec<u8>, params: StreamParams) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        if conn.stage == Stage::Ended {
            return;
        }
        conn.stage = Stage::Established;
        if let Some(pending) = conn.pending.get_mut() {
            pending.own_deadline = MaybeInstant::NONE;
        }
        conn.pinned = self.network.pin(&conn.path);
        let ticket = match &conn.origin {
            Origin::Opening(opening) => Some(opening.ticket),
            Origin::Accepted { .. } | Origin::Opened => None,
        };
        if ticket.is_some() {
            conn.origin = Origin::Opened;
        }
        let event = Event::Established {
            stream: conn.id,
            ticket,
            private_data,
            params,
            local: conn.flow().local,
            remote: conn.flow().remote,
        };
        self.control.counters().streams_established.add(1);
        self.control.send(event);
    }

    pub(super) fn ddp(&mut self, slot: u32, event: ddp::Event, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        let (stream, service) = (conn.id, conn.service);
        let event = match event {
            ddp::Event::TaggedDelivered { stag, to, len, rsvd_ulp } => match service {
                Service::Control | Service::Region => {
                    Event::TaggedDelivered { stream, stag, to, len, rsvd_ulp }
                }
                Service::Echo | Service::Sink => return,
            },
            ddp::Event::UntaggedDelivered { qn, msn, data, rsvd_ulp } => {
                match self.untagged(slot, qn, data, rsvd_ulp, now) {
                    Some(data) => Event::Untagged { stream, qn, msn, data, rsvd_ulp },
                    None => return,
                }
            }
            ddp::Event::Sent { cookie, messages } => return self.sent(slot, cookie, messages, now),
            ddp::Event::Flushed { cookie: ECHO } => {
                self.answered(slot, 1);
                return self.go_on_with_load(slot, now);
            }
            ddp::Event::Flushed { cookie: NO_TICKET } => return self.go_on_with_load(slot, now),
            ddp::Event::Flushed { cookie: LOAD } => return self.load_flushed(slot, now),
            ddp::Event::Flushed { cookie } => {
                self.sent_from(slot, Ticket(cookie));
                let reason = PostFailure::Flushed;
                Event::PostFailed { stream, ticket: Ticket(cookie), reason }
            }
            ddp::Event::PeerClosed { incomplete } => Event::PeerClosed { stream, incomplete },
            ddp::Event::Error(error) => Event::Error { stream, error },
            // The endpoint says itself why it closed.
            ddp::Event::Failed(_) => return,
        };
        self.control.send(event);
    }

    /// So many messages of this name are acknowledged.
    fn sent(&mut self, slot: u32, cookie: u64, messages: u32, now: Instant) {
        match cookie {
            ECHO => self.answered(slot, messages),
            NO_TICKET => {}
            LOAD => return self.load_completed(slot, messages, now),
            cookie => {
                let Some(stream) = self.streams.get(slot).map(|conn| conn.id) else { return };
                for _ in 0..messages {
                    self.sent_from(slot, Ticket(cookie));
                    let event = Event::Sent { stream, ticket: Ticket(cookie) };
                    self.control.send(event);
                }
            }
        }
        self.go_on_with_load(slot, now);
    }

    /// A message is not being sent any more; its region may wait for that.
    pub(super) fn sent_from(&mut self, slot: u32, ticket: Ticket) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        // Completions come in the order of posting, so it is the first.
        let Some(at) = conn.pending.sources.iter().position(|&(t, _)| t == ticket) else { return };
        if let Some((_, stag)) = conn.pending.sources.remove(at) {
            self.tables.release_source(stag);
            self.tables.finish_removals(&mut self.control);
        }
    }

    fn closed_tcp(&mut self, slot: u32, reason: CloseReason, now: Instant) {
        let Some(conn) = self.streams.get(slot) else { return };
        let Lower::Tcp(endpoint) = &conn.lower else { return };
        let stats = StreamStats::Tcp(endpoint.stats());
        if endpoint.connection().state() == State::TimeWait {
            self.streams.add_time_wait(conn.id);
        }
        self.closed(slot, reason, stats);
        if let Some(conn) = self.streams.get_mut(slot)
            && let Lower::Tcp(endpoint) = &mut conn.lower
        {
            // TIME-WAIT needs little.
            endpoint.relax(now);
        }
    }

    /// A stream is over, after having done this.
    pub(super) fn closed(&mut self, slot: u32, reason: CloseReason, stats: StreamStats) {
        let known = self.ended(slot, |ticket| Event::ConnectFailed {
            ticket,
            reason: ConnectError::Closed(reason.clone()),
        });
        if let (true, Some(conn)) = (known, self.streams.get(slot)) {
            let stats = Box::new(stats);
            self.control.send(Event::Closed { stream: conn.id, reason, stats });
        }
    }

    /// The stream as an operator sees it.
    pub(super) fn info(conn: &Conn, associations: &Associations, now: Instant) -> StreamInfo {
        StreamInfo {
            stream: conn.id,
            listener: conn.listener(),
            interface: InterfaceId(conn.flow().interface),
            local: conn.flow().local,
            remote: conn.flow().remote,
            transport: conn.lower.transport(),
            association: conn.lower.association(associations),
            state: if conn.pending.credit.waits { PAUSED } else { conn.lower.state(associations) },
            age: now - conn.since,
            stats: conn.lower.stats(associations),
        }
    }
}
