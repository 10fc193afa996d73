//! The passive side: streams that peers ask for are accepted within limits, or refused.

use dataplane::{Command, Event};
use ddp::{PdId, StreamId, VersionPolicy};
use tcp_lite::mpa::Revision;

use super::core::Core;
use super::endpoints::accepted_ulp;
use super::listeners::Admitted;
use super::loader::Wanted;
use super::pending::{Loading, Then};
use super::streams::{State, Stream, new_stream};
use crate::advert::{self};
use crate::api::EventKind;

impl Core {
    pub(super) fn on_incoming(&mut self, event: Event) {
        let Event::Incoming {
            stream, listener, interface, local, remote, revision, enhanced, ..
        } = event
        else {
            return;
        };
        let running = self.env.is_running();
        let all = self.streams.len() as u64 >= u64::from(self.env.facts.config.limits.streams);
        let fresh = new_stream(interface, local, remote, State::Rejecting, PdId(0));
        if !self.listeners.contains(listener) {
            self.env.tally.unexpected_events += 1;
            return self.reject(stream, fresh, "the listener is gone".into());
        }
        let rejected = Stream { listener: Some(listener), ..fresh };
        let admitted = if !running {
            Err("the appliance is draining".to_owned())
        } else if all {
            Err("the appliance has as many streams as limits.streams allows".to_owned())
        } else {
            self.listeners.admit(listener, remote.ip())
        };
        let Admitted { pd, queues, regions: listed, rdmap } = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => return self.reject(stream, rejected, reason),
        };
        let slot = match self.take_slot(stream, listener, pd) {
            Ok(slot) => slot,
            Err(reason) => {
                self.listeners.undo_admission(listener, remote.ip());
                return self.reject(stream, rejected, reason);
            }
        };
        self.env.tally.accepted += 1;
        let (regions, exclusive) = self.regions.take(&listed, stream);
        let has_slot = slot.is_some();
        let waits = has_slot || !exclusive.is_empty();
        let state = if waits { State::Binding } else { State::Accepting };
        let fresh = new_stream(interface, local, remote, state, pd);
        let peer_reads = enhanced.is_some_and(|said| said.ord > 0);
        let known = Stream { regions, queues, revision, rdmap, slot, peer_reads, ..fresh };
        self.streams.insert(stream, Stream { listener: Some(listener), ..known });
        self.env.tell(stream.worker(), Command::Credits { listener, more: 1 });
        if !exclusive.is_empty() {
            self.clear_and_bind(stream, exclusive, rdmap);
        } else if !has_slot {
            self.accept(stream);
        }
    }

    /// Binds exclusive regions to the stream; before that, those in which it could read what another
    /// stream wrote are cleared.
    fn clear_and_bind(&mut self, id: StreamId, exclusive: Vec<String>, rdmap: bool) {
        let dirty = self.regions.dirty(&exclusive, rdmap);
        if dirty.is_empty() {
            self.bind_written(id, &exclusive);
        } else {
            self.env.load(Wanted::Clear(dirty), Loading::Clear { stream: id, exclusive });
        }
    }

    pub(super) fn on_cleared(
        &mut self,
        id: StreamId,
        exclusive: &[String],
        result: Result<(), String>,
    ) {
        if !self.streams.contains_key(&id) {
            return; // it has gone meanwhile, and left nothing behind
        }
        // A region that was removed meanwhile leaves nothing to bind, and nobody who would go on.
        let gone = self.regions.lost(exclusive, id);
        let gone = gone.map_or(Ok(()), |name| Err(format!("region {name} is gone")));
        match result.and(gone) {
            Ok(()) => self.bind_written(id, exclusive),
            Err(reason) => {
                self.env.warn(reason);
                self.hang_up(id, true);
            }
        }
    }

    fn bind_written(&mut self, id: StreamId, exclusive: &[String]) {
        self.regions.bind_written(&mut self.env, exclusive, id, Then::Bound { stream: id });
    }

    /// All workers know what the stream may reach: it is accepted.
    pub(super) fn accept(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.state == State::Binding {
            stream.state = State::Accepting;
        }
        let advertised = self.regions.advertised(&stream.regions);
        // The draft's Start Key carries no private data: its peers know the STags otherwise.
        let silent = advertised.is_empty() || stream.revision == Some(Revision::Draft);
        let private_data = if silent { vec![] } else { advert::encode(&advertised) };
        let (revision, pd) = (stream.revision, stream.pd);
        let (listener, queues) = (stream.listener, stream.queues.clone());
        let version = match revision {
            // RFC 5043 §3 knows no other over SCTP.
            Some(Revision::One | Revision::Two) | None => VersionPolicy::V1,
            // RFC 5044 appendix C: either version may follow a revision 0 frame.
            Some(Revision::Zero) => VersionPolicy::AdoptFirst,
            Some(Revision::Draft) => VersionPolicy::V0,
        };
        let ulp = listener.and_then(|listener| self.listeners.ulp_of(listener));
        let (ulp, service) = accepted_ulp(ulp, &queues, version);
        self.service_opened(id);
        self.env.tell(id.worker(), Command::Accept { stream: id, pd, private_data, ulp, service });
    }

    fn reject(&mut self, id: StreamId, stream: Stream, reason: String) {
        self.env.tally.refused += 1;
        let remote = stream.remote.to_string();
        let name = stream.listener.and_then(|listener| self.listeners.count_refused(listener));
        self.streams.insert(id, stream);
        self.env.tell(id.worker(), Command::Reject { stream: id, private_data: Vec::new() });
        self.env.log.push(EventKind::StreamRefused { listener: name, remote, reason });
    }
}
