//! Reports an association's events to the control thread as events of the streams that it carries. Removes streams
//! whose session has ended.

use base::Instant;
use sctp_lite::endpoint::{Event, SessionEvent, SessionId};

use crate::api::{CloseReason, StreamParams, StreamStats};
use crate::io::PortIo;
use crate::worker::control::report::ConnectAttempt;
use crate::worker::flows::associations::Accounting;
use crate::worker::flows::conn::{Origin, Stream};
use crate::worker::flows::listeners::AcceptProgress;
use crate::worker::flows::lower_layer::Session;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::{Core, Env, Phase};

impl<Io: PortIo> Core<Io> {
    /// Reports the events of an association, except events of sessions without event credit.
    pub(in crate::worker) fn report_association(&mut self, association_slot: u32, now: Instant) {
        while let Some(association) = self.associations.get_mut(association_slot)
            && let Some(event) = association.endpoint_mut().poll_event()
        {
            match event {
                Event::Up { .. } => {
                    self.env.control.counters().sctp.associations_up.add(1);
                    association.carrier.pin(&mut self.env.network);
                }
                Event::Session(id, SessionEvent::Request { private_data, enhanced }) => {
                    let Some(slot) = self.accept_session(association_slot, id, now) else {
                        self.refuse_session(association_slot, id, now);
                        continue;
                    };
                    if let Some((mut stream, env)) = self.stream_mut(slot) {
                        env.report_incoming(&mut stream, private_data, None, enhanced);
                    }
                }
                Event::Session(id, event) => {
                    let mut retry = None;
                    // A session without an entry belongs to a stream that was removed before.
                    if let Some(&slot) = association.sessions.get(&id)
                        && let Some((mut stream, env)) = self.stream_mut(slot)
                    {
                        let ended = matches!(event, SessionEvent::Closed { .. });
                        let before = env.control.events_sent();
                        retry = env.take_session_retry(&mut stream, &event, now);
                        if retry.is_none() {
                            env.report_session_event(&mut stream, event, now);
                        }
                        if ended {
                            // RFC 5043 §6: no state of an ended session remains.
                            self.remove_stream(slot);
                        } else if env.control.events_sent() != before {
                            env.charge(&mut stream, before);
                        }
                    }
                    if let Some(retry) = retry {
                        self.start_attempt(retry, now);
                    }
                }
                // The sessions have already reported their own ends.
                Event::Down { reason } => {
                    self.report_association_down(association_slot, &reason, now)
                }
            }
        }
    }

    /// Accepts a peer's Initiate. The session takes over the backlog entry of the association, or takes a new entry.
    /// Returns the slot of the session's stream; `None` if the session is refused.
    fn accept_session(&mut self, slot: u32, id: SessionId, now: Instant) -> Option<u32> {
        let association = self.associations.get(slot)?;
        let (listener, peer) = (association.listener?, association.carrier.peer());
        let flow = association.carrier.flow();
        if self.env.phase != Phase::Running {
            return None;
        }
        // The peer lists may have changed since the association was established.
        self.env.admission.listeners().admits(listener, peer).ok()?;
        let stream = self.vacancy(now)?;
        let association = self.associations.get_mut(slot)?;
        association.awaits_session = false;
        if association.accounting == Accounting::Backlog {
            association.accounting = Accounting::Uncounted;
        } else {
            // From now on the session is counted instead of the association.
            self.uncount(slot);
            if self.reserve_place(listener, peer, stream, now).is_err() {
                self.count_if_idle(slot);
                return None;
            }
        }
        let origin = Origin::Accepted { listener, progress: AcceptProgress::Starting };
        self.insert_session(Session { association: slot, id, flow }, origin, now)
    }

    /// Refuses the peer's request for a session: answers it with a Terminate (RFC 5043 §6.4).
    fn refuse_session(&mut self, slot: u32, id: SessionId, now: Instant) {
        self.env.control.counters().sctp.sessions_refused.add(1);
        self.report_session_refused(slot, now);
        if let Some(association) = self.associations.get_mut(slot) {
            let cx = &mut self.env.tables.session_context();
            association.endpoint_mut().abort_session(now, id, cx);
            association
                .carrier
                .make_ready(slot, self.env.schedules.get_mut(CarrierKind::Association));
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Returns the parameters of a second attempt for a stream whose shared association ended before the peer answered.
    /// A peer that shuts down has no answer in flight, because it waits until its own data are acknowledged (RFC 9260
    /// §9.2). A peer that aborts or restarts has discarded the request. The stream can thus be opened over another
    /// association.
    fn take_session_retry(
        &mut self,
        stream: &mut Stream<'_>,
        event: &SessionEvent,
        now: Instant,
    ) -> Option<ConnectAttempt> {
        use sctp_lite::endpoint::{CloseReason, SctpReason};
        let SessionEvent::Closed { reason, .. } = event else { return None };
        match reason {
            CloseReason::PeerShutdown
            | CloseReason::Lower(SctpReason::PeerAbort { .. } | SctpReason::PeerRestart) => {}
            _ => return None,
        }
        let min_strength =
            stream.association.as_deref().map(|association| association.carrier.min_strength());
        let attempt = self.take_retry(stream.conn, min_strength, now)?;
        self.control.counters().sctp.sessions_reopened.add(1);
        Some(attempt)
    }

    fn report_session_event(&mut self, stream: &mut Stream<'_>, event: SessionEvent, now: Instant) {
        match event {
            SessionEvent::Established { private_data, params } => {
                self.report_established(stream, private_data, StreamParams::Sctp(params));
            }
            SessionEvent::Ddp(event) => self.handle_ddp_event(stream, event, now),
            SessionEvent::Rdmap(event) => self.handle_rdmap_event(stream, event, now),
            SessionEvent::Idle => {
                self.control.send(crate::api::Event::Idle { stream: stream.conn.id })
            }
            SessionEvent::Closed { reason, stats } => {
                let association = stream.association.as_ref().map(|a| a.stats());
                let stats = StreamStats::Sctp(*stats, association.unwrap_or_default());
                let reason = CloseReason::Sctp(reason);
                self.report_records(stream, &reason);
                self.report_closed(stream.conn, reason, stats);
            }
            SessionEvent::Request { .. } => {}
        }
    }
}
