//! The passive side: streams that peers ask for are accepted within limits, or refused.

use std::ops::Range;

use dataplane::memory::Memory;
use dataplane::{Command, Event};
use ddp::{PdId, StreamId, VersionPolicy};
use tcp_lite::mpa::Revision;

use super::core::{Core, Loading, Then};
use super::endpoints::accepted_ulp;
use super::loader::Wanted;
use super::streams::{State, Stream, new_stream};
use crate::advert::{self, Advertised};
use crate::api::EventKind;

impl Core {
    pub(super) fn on_incoming(&mut self, event: Event) {
        let Event::Incoming {
            stream, listener, interface, local, remote, revision, enhanced, ..
        } = event
        else {
            return;
        };
        let running = self.is_running();
        let all = self.streams.len() as u64 >= u64::from(self.config.limits.streams);
        let Some(found) = self.listener_by_id(listener) else {
            self.tally.unexpected_events += 1;
            let fresh = new_stream(interface, local, remote, State::Rejecting, PdId(0));
            self.reject(stream, fresh, "the listener is gone".into());
            return;
        };
        let limits = found.limits();
        let refusal = if !running {
            Some("the appliance is draining".to_owned())
        } else if all {
            Some("the appliance has as many streams as limits.streams allows".to_owned())
        } else {
            found.ledger.admit(remote.ip(), &limits).err().map(|refusal| refusal.to_string())
        };
        if let Some(reason) = refusal {
            let fresh = new_stream(interface, local, remote, State::Rejecting, PdId(0));
            self.reject(stream, Stream { listener: Some(listener), ..fresh }, reason);
            return;
        }
        found.accepted += 1;
        let (pd, queues) = (found.pd, found.section.queues.clone());
        let listed =
            if found.section.has_slots() { Vec::new() } else { found.section.regions.clone() };
        let rdmap = found.section.ulp.rdmap().is_some();
        let slot = match self.take_slot(stream, listener, pd) {
            Ok(slot) => slot,
            Err(reason) => {
                if let Some(found) = self.listener_by_id(listener) {
                    found.accepted -= 1;
                    found.ledger.release(remote.ip());
                }
                let fresh = new_stream(interface, local, remote, State::Rejecting, PdId(0));
                self.reject(stream, Stream { listener: Some(listener), ..fresh }, reason);
                return;
            }
        };
        self.tally.accepted += 1;
        let (regions, exclusive) = self.take_regions(&listed, stream);
        let has_slot = slot.is_some();
        let waits = has_slot || !exclusive.is_empty();
        let state = if waits { State::Binding } else { State::Accepting };
        let fresh = new_stream(interface, local, remote, state, pd);
        let peer_reads = enhanced.is_some_and(|said| said.ord > 0);
        let known = Stream { regions, queues, revision, rdmap, slot, peer_reads, ..fresh };
        self.streams.insert(stream, Stream { listener: Some(listener), ..known });
        self.tell(stream.worker(), Command::Credits { listener, more: 1 });
        if !exclusive.is_empty() {
            self.clear_and_bind(stream, exclusive, rdmap);
        } else if !has_slot {
            self.accept(stream);
        }
    }

    /// Binds exclusive regions to the stream; before that, those in which it could read what another
    /// stream wrote are cleared.
    fn clear_and_bind(&mut self, id: StreamId, exclusive: Vec<String>, rdmap: bool) {
        let dirty = self.dirty(&exclusive, rdmap);
        if dirty.is_empty() {
            self.bind_written(id, &exclusive);
        } else {
            self.load(Wanted::Clear(dirty), Loading::Clear { stream: id, exclusive });
        }
    }

    /// Of these regions, those in which the next stream's peer could read what another one wrote.
    pub(super) fn dirty(&self, exclusive: &[String], rdmap: bool) -> Vec<(Memory, Range<u64>)> {
        let dirty = |name: &String| {
            let region = self.regions.get(name)?;
            // Bare DDP cannot read.
            let clears = rdmap && region.section.clear_between_peers && region.written;
            clears.then(|| (region.memory.clone(), 0..region.len))
        };
        exclusive.iter().filter_map(dirty).collect()
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
        let is_its = |name: &String| {
            self.regions.get(name).is_some_and(|r| r.is_live() && r.bound == Some(id))
        };
        // A region that was removed meanwhile leaves nothing to bind, and nobody who would go on.
        let gone = exclusive.iter().find(|name| !is_its(name));
        let gone = gone.map_or(Ok(()), |name| Err(format!("region {name} is gone")));
        match result.and(gone) {
            Ok(()) => self.bind_written(id, exclusive),
            Err(reason) => {
                self.warn(reason);
                self.hang_up(id, true);
            }
        }
    }

    fn bind_written(&mut self, id: StreamId, exclusive: &[String]) {
        self.may_write(exclusive);
        self.bind(exclusive, Some(id), Then::Bound { stream: id });
    }

    /// From now on a peer may write to these regions.
    pub(super) fn may_write(&mut self, exclusive: &[String]) {
        for name in exclusive {
            if let Some(region) = self.regions.get_mut(name) {
                region.written = true;
            }
        }
    }

    /// The available ones of a listener's regions, now used by `stream`; and of them the exclusive ones.
    fn take_regions(&mut self, listed: &[String], stream: StreamId) -> (Vec<String>, Vec<String>) {
        let (mut taken, mut exclusive) = (Vec::new(), Vec::new());
        for name in listed {
            let Some(region) = self.regions.get_mut(name).filter(|r| r.is_available()) else {
                continue;
            };
            region.users.insert(stream);
            taken.push(name.clone());
            if region.is_exclusive() {
                region.bound = Some(stream);
                exclusive.push(name.clone());
            }
        }
        (taken, exclusive)
    }

    /// All workers know what the stream may reach: it is accepted.
    pub(super) fn accept(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.state == State::Binding {
            stream.state = State::Accepting;
        }
        let advertised: Vec<Advertised> = stream
            .regions
            .iter()
            .filter_map(|r| self.regions.get(r))
            .map(|r| r.advertised())
            .collect();
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
        let found = listener.and_then(|listener| self.listener_by_id(listener));
        let ulp = found.map(|found| &found.section.ulp);
        let (ulp, service) = accepted_ulp(ulp, &queues, version);
        self.service_opened(id);
        self.tell(id.worker(), Command::Accept { stream: id, pd, private_data, ulp, service });
    }

    fn reject(&mut self, id: StreamId, stream: Stream, reason: String) {
        self.tally.refused += 1;
        let remote = stream.remote.to_string();
        let found = stream.listener.and_then(|listener| self.listener_by_id(listener));
        let name = found.map(|found| {
            found.refused += 1;
            found.section.name.clone()
        });
        self.streams.insert(id, stream);
        self.tell(id.worker(), Command::Reject { stream: id, private_data: Vec::new() });
        self.log.push(EventKind::StreamRefused { listener: name, remote, reason });
    }
}
