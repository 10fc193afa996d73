//! The passive side: stream requests of peers are accepted within the limits, or rejected.
//!
//! A request is rejected if its ULP differs from the listener's, if a limit is reached, if the appliance is draining,
//! or if no slot of the listener's region can be bound. Otherwise the stream gets the listener's regions,
//! except exclusive regions that another stream uses. Exclusive regions are first cleared of data of earlier streams if
//! this peer could read the data. The worker accepts the stream once all workers have bound the exclusive regions and
//! the slot.
//!
//! Requests to the listeners of local programs are passed to `core::programs`.

use std::net::SocketAddr;
use std::time::Instant;

use api::refusal::{Refusal, RefusalKind};
use dataplane::{Command, Event, ListenerId, Transport};
use ddp::{PdId, StreamId, UlpKind, VersionPolicy, advert};
use tcp_lite::mpa::Revision;

use super::Core;
use crate::appliance::attempts::Attempt;
use crate::appliance::endpoints::accepted_ulp;
use crate::appliance::listeners::{StreamSettings, listener_removed};
use crate::appliance::loader::LoadTask;
use crate::appliance::pending::{Continuation, Loading, TakenSlot};
use crate::appliance::streams::{PendingAccept, StreamAddresses};

impl Core {
    pub(super) fn on_incoming(&mut self, event: Event, now: Instant) {
        let Event::Incoming {
            stream,
            listener,
            interface,
            local,
            remote,
            revision,
            enhanced,
            private_data,
        } = event
        else {
            return;
        };
        if self.programs.has_listener(listener) {
            let event = Event::Incoming {
                stream,
                listener,
                interface,
                local,
                remote,
                revision,
                enhanced,
                private_data,
            };
            return self.on_program_incoming(event, now);
        }
        let ends = StreamAddresses { interface, local, remote };
        // Requests over SCTP have no MPA revision.
        let transport = revision.map_or(Transport::Sctp, |_| Transport::Tcp);
        let request = StreamRequest { stream, transport, addresses: ends };
        if !self.listeners.contains(listener) {
            self.env.tally.unexpected_events += 1;
            return self.reject(request, None, &listener_removed(), now);
        }
        let ulp = ulp_of_request(revision, enhanced.is_some(), &private_data);
        let admitted = self.check_ulp(listener, ulp).and_then(|()| self.admit(listener, remote));
        let StreamSettings { pd, queues, regions: listed, rdmap } = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return self.reject(request, Some(listener), &refusal, now),
        };
        let slot = match self.take_slot(stream, listener, pd) {
            Ok(slot) => slot,
            Err(refusal) => {
                self.listeners.undo_admission(listener, remote.ip());
                return self.reject(request, Some(listener), &refusal, now);
            }
        };
        self.env.tally.accepted += 1;
        let (regions, exclusive) = self.regions.bind_available(&listed, stream, self.env.now);
        let busy = self.regions.log_busy(&mut self.env, &listed, &regions, remote);
        let has_slot = slot.is_some();
        let cut = slot.iter().map(|taken| taken.region.clone()).collect::<Vec<_>>();
        let stores = self.listeners.has_file_queue(listener)
            || self.regions.any_has_file(&regions)
            || self.regions.any_has_file(&cut);
        let waits = has_slot || !exclusive.is_empty();
        // A peer with ORD > 0 may issue RDMA Reads.
        let peer_reads = enhanced.is_some_and(|enhanced| enhanced.ord > 0);
        self.streams.insert_accepting(
            stream,
            PendingAccept {
                listener,
                addresses: ends,
                pd,
                regions,
                busy,
                queues,
                revision,
                rdmap,
                slot,
                writes_file: stores,
                peer_reads,
                needs_binding: waits,
            },
        );
        self.env.send_command(stream.worker(), Command::Credits { listener, additional: 1 });
        if !exclusive.is_empty() {
            self.clear_and_bind(stream, exclusive, rdmap);
        } else if !has_slot {
            self.accept(stream);
        }
    }

    /// Refuses a request whose ULP differs from the listener's. A request that does not state its ULP passes.
    fn check_ulp(&self, listener: ListenerId, peer_ulp: Option<UlpKind>) -> Result<(), Refusal> {
        let listener_ulp = match self.listeners.ulp_of(listener) {
            Some(ulp) if ulp.rdmap().is_some() => UlpKind::Rdmap,
            _ => UlpKind::Ddp,
        };
        match peer_ulp {
            Some(theirs) if theirs != listener_ulp => {
                let sentence = format!(
                    "the listener speaks {}, the peer {}",
                    ulp_label(listener_ulp),
                    ulp_label(theirs)
                );
                Err(Refusal::new(RefusalKind::WrongUlp, sentence))
            }
            _ => Ok(()),
        }
    }

    /// Counts a peer's stream against the limits of the appliance and the listener. Returns the settings of the stream,
    /// or the refusal if a limit is reached or the appliance is draining.
    fn admit(
        &mut self,
        listener: ListenerId,
        remote: SocketAddr,
    ) -> Result<StreamSettings, Refusal> {
        let streams = self.streams.len() as u64;
        if self.env.check_not_draining().is_err() {
            return Err(Refusal::new(RefusalKind::Draining, "the appliance is draining"));
        }
        if streams >= u64::from(self.env.context.config.limits.streams) {
            let sentence = "the appliance has as many streams as limits.streams allows";
            return Err(Refusal::new(RefusalKind::ApplianceFull, sentence));
        }
        self.listeners.admit(listener, remote.ip())
    }

    /// Reserves a slot of the listener's region for the stream, and queues the commands that bind the slot. Returns
    /// `None` if the listener does not divide its region into slots.
    ///
    /// # Errors
    /// All slots are in use, no STag is available, or the region was removed or its access reduced.
    fn take_slot(
        &mut self,
        id: StreamId,
        listener: ListenerId,
        pd: PdId,
    ) -> Result<Option<TakenSlot>, Refusal> {
        let Some(reserved) = self.listeners.reserve_slot(listener)? else { return Ok(None) };
        let number = reserved.number;
        let taken = self.regions.bind_slot(&mut self.env, reserved, id, pd);
        if taken.is_err() {
            self.listeners.free_slot(listener, number);
        }
        taken.map(Some).map_err(|reason| Refusal::new(RefusalKind::NoMemory, reason))
    }

    /// Binds exclusive regions to the stream. First clears those that contain data of earlier streams, if this stream
    /// could read the data. `rdmap`: true if the stream's ULP is RDMAP, whose peers can read.
    fn clear_and_bind(&mut self, id: StreamId, exclusive: Vec<String>, rdmap: bool) {
        let dirty = self.regions.dirty_ranges(&exclusive, rdmap);
        if dirty.is_empty() {
            self.bind_peer_writable(id, &exclusive);
        } else {
            self.env.load(LoadTask::Clear(dirty), Loading::Clear { stream: id, exclusive });
        }
    }

    pub(super) fn on_cleared(
        &mut self,
        id: StreamId,
        exclusive: &[String],
        result: Result<(), String>,
    ) {
        if !self.streams.contains(id) {
            return; // the stream has ended and released its regions
        }
        // A region that was removed during the clearing cannot be bound: the stream is aborted.
        let removed = self.regions.first_lost(exclusive, id);
        let removed = removed.map_or(Ok(()), |name| Err(format!("region {name} was removed")));
        match result.and(removed) {
            Ok(()) => self.bind_peer_writable(id, exclusive),
            Err(reason) => {
                self.env.warn(reason);
                self.streams.close(&mut self.env, id, true);
            }
        }
    }

    fn bind_peer_writable(&mut self, id: StreamId, exclusive: &[String]) {
        self.regions.bind_peer_writable(
            &mut self.env,
            exclusive,
            id,
            Continuation::Bound { stream: id },
        );
    }

    /// Commands the worker to accept the stream. Called when all workers have applied the bindings of the stream's
    /// regions, if any.
    pub(super) fn accept(&mut self, id: StreamId) {
        let Some(accepted) = self.streams.accept(id) else { return };
        let mut advertised = self.regions.advertised(accepted.regions);
        advertised.extend(self.regions.advertised_busy(accepted.busy));
        let (revision, pd) = (accepted.revision, accepted.pd);
        // The Start Key of the first MPA draft has no private data: such peers learn the STags by other means.
        let silent = advertised.is_empty() || revision == Some(Revision::Draft);
        let kind = if accepted.rdmap { UlpKind::Rdmap } else { UlpKind::Ddp };
        let private_data = if silent { vec![] } else { advert::encode_for(kind, &advertised) };
        let version = match revision {
            // RFC 5043 defines only DDP version 1 for SCTP.
            Some(Revision::One | Revision::Two) | None => VersionPolicy::V1,
            // RFC 5044 appendix C: either DDP version may follow a revision 0 frame.
            Some(Revision::Zero) => VersionPolicy::AdoptFirst,
            Some(Revision::Draft) => VersionPolicy::V0,
        };
        let ulp = accepted.listener.and_then(|listener| self.listeners.ulp_of(listener));
        let (mut ulp, service) = accepted_ulp(ulp, accepted.queues, version);
        if accepted.writes_file {
            ulp.set_hold_confirmations();
        }
        if let Some(listener) = accepted.listener {
            self.listeners.service_opened(listener, id, accepted.arrival);
        }
        self.env.send_command(
            id.worker(),
            Command::Accept { stream: id, pd, private_data, ulp, service },
        );
    }

    pub(super) fn reject(
        &mut self,
        StreamRequest { stream, transport, addresses: ends }: StreamRequest,
        listener: Option<ListenerId>,
        refusal: &Refusal,
        now: Instant,
    ) {
        self.env.tally.refused += 1;
        let name = listener.and_then(|listener| self.listeners.count_refused(listener));
        self.streams.insert_rejected(stream, listener, ends);
        self.env.send_command(
            stream.worker(),
            Command::Reject { stream, private_data: refusal.encode() },
        );
        let StreamAddresses { local, remote, .. } = ends;
        let attempt = Attempt { listener: name.as_deref(), transport, local, remote };
        self.env.report_refusal(&attempt, refusal, now);
    }
}

/// Returns the ULP that a request states, if any. A request with MPA revision 2, or with IRD and ORD (RFC 6581), is
/// from an RDMAP peer. Any other request states the ULP only in an advertisement in its private data. `enhanced`: true
/// if the request states IRD and ORD.
fn ulp_of_request(
    revision: Option<Revision>,
    enhanced: bool,
    private_data: &[u8],
) -> Option<UlpKind> {
    match enhanced || revision == Some(Revision::Two) {
        true => Some(UlpKind::Rdmap),
        false => advert::ulp(private_data),
    }
}

/// Returns the ULP's name for messages.
pub(super) fn ulp_label(ulp: UlpKind) -> &'static str {
    match ulp {
        UlpKind::Ddp => "bare DDP",
        UlpKind::Rdmap => "RDMAP",
    }
}

pub(super) struct StreamRequest {
    pub(super) stream: StreamId,
    pub(super) transport: Transport,
    pub(super) addresses: StreamAddresses,
}
