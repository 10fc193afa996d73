//! Reports of failed SCTP handshakes: refused INITs and sessions, and peers' associations that ended without a session.

use base::Instant;
use sctp_lite::endpoint::CloseReason as Reason;
use sctp_lite::sctp::{DropReason as Refused, State};
use wire::sctp::{Chunk, Packet, Parameter};

use super::input::PacketOrigin;
use crate::api::{CloseReason, HandshakeFailure, ListenerConfig, Transport};
use crate::io::PortIo;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::{Core, Phase};

impl<Io: PortIo> Core<Io> {
    /// Reports an INIT that was refused with an ABORT. An INIT without an answer is not reported: the peer retransmits
    /// it, and the handshake may still succeed.
    #[cold]
    pub(super) fn report_init_refused(
        &mut self,
        origin: &PacketOrigin,
        listener: Option<&ListenerConfig>,
        packet: &Packet<'_>,
        reason: Refused,
        now: Instant,
    ) {
        let Some(listener) = listener else {
            return self.report_no_listener(Transport::Sctp, &origin.flow, now);
        };
        let (failure, detail) = match reason {
            Refused::OtherAdaptation => {
                let not_ddp = Reason::Lower(sctp_lite::endpoint::SctpReason::NotDdp {
                    seen: adaptation(packet),
                });
                (
                    HandshakeFailure::from_close_reason(&CloseReason::Sctp(not_ddp.clone())),
                    not_ddp.to_string(),
                )
            }
            Refused::OutOfTheBlue if self.env.phase != Phase::Running => {
                let detail = "the worker accepts no new associations".to_owned();
                (HandshakeFailure::new("admission", "draining"), detail)
            }
            _ => {
                let detail = "an INIT with an illegal value, or without a mandatory parameter";
                (HandshakeFailure::new("sctp", "bad_init"), detail.to_owned())
            }
        };
        self.env.control.report_failed_handshake(
            Transport::Sctp,
            &origin.flow,
            Some(listener.id),
            failure,
            || detail,
            now,
        );
    }

    /// Reports that a session on a peer's association was refused.
    #[cold]
    pub(super) fn report_session_refused(&mut self, slot: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(slot) else { return };
        association.awaits_session = false;
        let (flow, listener) = (association.carrier.flow(), association.listener);
        let listeners = self.env.admission.listeners();
        let admitted = listener.map_or(Ok(()), |id| listeners.admits(id, flow.remote.ip()));
        let (reason, detail) = match (self.env.phase, admitted) {
            (Phase::Running, Ok(())) => {
                ("no_room", "the listener has no room for another session".to_owned())
            }
            (Phase::Running, Err(refusal)) => ("peer_refused", refusal.to_string()),
            _ => ("draining", "the worker accepts no new sessions".to_owned()),
        };
        let failure = HandshakeFailure::new("admission", reason);
        self.env.control.report_failed_handshake(
            Transport::Sctp,
            &flow,
            listener,
            failure,
            || detail,
            now,
        );
    }

    /// Reports an association that shuts down without having had a session. The report does not wait for the end of the
    /// shutdown, which may take minutes.
    #[cold]
    pub(super) fn report_missing_session(&mut self, slot: u32) {
        let Some(association) = self.associations.get(slot) else { return };
        let (reason, detail) = match association.endpoint().state() {
            State::ShutdownPending | State::ShutdownSent => {
                ("timeout", "no Initiate arrived in time")
            }
            State::ShutdownReceived | State::ShutdownAckSent => {
                ("closed", "the peer closed the association without an Initiate")
            }
            // In other states, the end of the association is reported later, with its reason.
            _ => return,
        };
        let failure = HandshakeFailure::new("session", reason);
        self.report_handshake_without_session(slot, failure, || detail.to_owned(), self.env.now);
    }

    /// Reports the end of a peer's association as a failed handshake, if the association has had no session.
    #[cold]
    pub(super) fn report_association_down(&mut self, slot: u32, reason: &Reason, now: Instant) {
        let failure = HandshakeFailure::from_close_reason(&CloseReason::Sctp(reason.clone()));
        self.report_handshake_without_session(slot, failure, || reason.to_string(), now);
    }

    /// Ends an association whose policies or SAs no longer give the protection that it requires.
    #[cold]
    pub(in crate::worker) fn end_unprotected_association(&mut self, slot: u32, now: Instant) {
        let reason = Reason::NotProtected;
        self.report_association_down(slot, &reason, now);
        let Some(association) = self.associations.get_mut(slot) else { return };
        association.endpoint_mut().abort_unprotected(now, &mut self.env.tables.session_context());
        association.carrier.make_ready(slot, self.env.schedules.get_mut(CarrierKind::Association));
    }

    /// Reports an association that is evicted or removed without an earlier report of its end, if it has had no
    /// session.
    #[cold]
    pub(super) fn report_association_evicted(&mut self, slot: u32) {
        let detail = || "evicted, without a session, for a new association".to_owned();
        let failure = HandshakeFailure::new("session", "evicted");
        self.report_handshake_without_session(slot, failure, detail, self.env.now);
    }

    fn report_handshake_without_session(
        &mut self,
        slot: u32,
        failure: HandshakeFailure,
        detail: impl FnOnce() -> String,
        now: Instant,
    ) {
        let Some(association) = self.associations.get_mut(slot) else { return };
        if !core::mem::take(&mut association.awaits_session) {
            return;
        }
        let (flow, listener) = (association.carrier.flow(), association.listener);
        let failure = match (failure.reason, self.env.phase, listener) {
            ("local_abort", Phase::Running, Some(listener)) => {
                self.env.abort_failure(listener, &flow)
            }
            ("local_abort" | "timeout" | "evicted", phase, _) if phase != Phase::Running => {
                HandshakeFailure::new("admission", "draining")
            }
            _ => failure,
        };
        self.env.control.report_failed_handshake(
            Transport::Sctp,
            &flow,
            listener,
            failure,
            detail,
            now,
        );
    }
}

/// Returns the adaptation indication in an INIT (RFC 5061 §4.2.6); `None` if the packet has none.
fn adaptation(packet: &Packet<'_>) -> Option<u32> {
    let first = packet.chunks().next()?.ok()?;
    let Ok(Chunk::Init(init)) = Chunk::parse(first) else { return None };
    init.parameters().find_map(|parameter| match parameter {
        Ok(Parameter::Adaptation(seen)) => Some(seen),
        _ => None,
    })
}
