//! The passive side: streams that peers ask for are accepted within limits, or refused.

use dataplane::{Command, Event, Service};
use ddp::{PdId, StreamId, VersionPolicy};
use tcp_lite::mpa::Revision;

use super::core::{Core, Then};
use super::streams::{State, Stream, new_stream, stream_config};
use crate::advert::{self, Advertised};
use crate::api::EventKind;

impl Core {
    pub(super) fn on_incoming(&mut self, event: Event) {
        let Event::Incoming { stream, listener, interface, local, remote, revision, .. } = event
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
        let listed = found.section.regions.clone();
        self.tally.accepted += 1;
        let (regions, exclusive) = self.take_regions(&listed, stream);
        let state = if exclusive.is_empty() { State::Accepting } else { State::Binding };
        let fresh = new_stream(interface, local, remote, state, pd);
        let known = Stream { regions, queues, revision, ..fresh };
        self.streams.insert(stream, Stream { listener: Some(listener), ..known });
        self.tell(stream.worker(), Command::Credits { listener, more: 1 });
        if exclusive.is_empty() {
            self.accept(stream);
        } else {
            self.bind(&exclusive, Some(stream), Then::Bound { stream });
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
        let silent = advertised.is_empty() || stream.revision == Revision::Draft;
        let private_data = if silent { vec![] } else { advert::encode(&advertised) };
        let version = match stream.revision {
            Revision::One | Revision::Two => VersionPolicy::V1,
            // RFC 5044 appendix C: either version may follow a revision 0 frame.
            Revision::Zero => VersionPolicy::AdoptFirst,
            Revision::Draft => VersionPolicy::V0,
        };
        let ulp = stream_config(&stream.queues, version).into();
        let (pd, service) = (stream.pd, Service::Control);
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
