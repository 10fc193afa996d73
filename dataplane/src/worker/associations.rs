//! The SCTP associations of one worker: by slot, flow and tag, and those that shut down by age.

use std::sync::Arc;

use base::Instant;
use ddp::StreamId;
use hashbrown::HashMap;
use sctp_lite::endpoint::{Endpoint, SessionId};
use sctp_lite::sctp::Secrets;
use wire::sctp::Tag;

use super::by_age::ByAge;
use super::carrier::Carrier;
use super::flow_info;
use crate::api::{
    AssociationInfo, AssociationStats, FlowInfo, InterfaceId, ListenerId, SctpConfig,
};
use crate::flow::{FlowHash, FlowKey, FlowTable, Slab};
use crate::memory::Memory;
use crate::net::sctp_path::UdpPorts;

/// The associations of one worker.
pub(super) struct Associations {
    all: Slab<Box<Association>>,
    flows: FlowTable,
    /// By our tag: for packets that a peer with several addresses sends from another one.
    tags: HashMap<Tag, u32>,
    /// Makes tags and cookies; any worker knows the cookies of another.
    secrets: Arc<Secrets>,
    /// Our UDP port (RFC 6951).
    udp_port: Option<u16>,
    /// Those that shut down and have no session: they are evicted when all places are taken.
    leaving: ByAge,
}

/// What an association counts as at its listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counts {
    /// Nothing: it was opened from here, or has sessions, which count themselves.
    Nothing,
    /// A stream in the backlog: its first session is awaited, and takes its place.
    Place,
    /// A stream of its peer: it has no session any more, or will have none.
    Idle,
}

/// An association.
pub(super) struct Association {
    pub(super) carrier: Carrier<Endpoint<Memory>>,
    /// When it was opened or accepted.
    since: Instant,
    /// Ours, as it stands in `tags`.
    tag: Tag,
    /// What it was opened with; `None` for accepted ones.
    pub(super) opened: Option<Arc<SctpConfig>>,
    /// The listener that took it.
    pub(super) listener: Option<ListenerId>,
    pub(super) counts: Counts,
    /// It is among those that are evicted for new ones, by age.
    pub(super) leaving: bool,
    /// A peer opened it, and has not brought a session yet.
    pub(super) awaits_session: bool,
    /// Its streams were reported to make no progress.
    pub(super) stalled: bool,
    /// Slots of its streams.
    pub(super) sessions: HashMap<SessionId, u32>,
}

impl Association {
    /// One without a listener, sessions and configuration of its own.
    pub(super) fn new(carrier: Carrier<Endpoint<Memory>>, now: Instant) -> Self {
        Association {
            tag: carrier.endpoint().association().local_tag(),
            carrier,
            since: now,
            opened: None,
            listener: None,
            counts: Counts::Nothing,
            leaving: false,
            awaits_session: false,
            stalled: false,
            sessions: HashMap::new(),
        }
    }

    /// Its endpoint.
    pub(super) fn endpoint(&self) -> &Endpoint<Memory> {
        self.carrier.endpoint()
    }

    /// Its endpoint, to use it.
    pub(super) fn endpoint_mut(&mut self) -> &mut Endpoint<Memory> {
        self.carrier.endpoint_mut()
    }

    /// Its handshake is not over.
    pub(super) fn is_opening(&self) -> bool {
        self.endpoint().association().state().is_opening()
    }

    /// It shuts down, or waits for room for its last packet, and has no session.
    pub(super) fn is_leaving(&self) -> bool {
        self.sessions.is_empty() && self.endpoint().state().is_closing()
    }

    /// What it did.
    pub(super) fn stats(&self) -> AssociationStats {
        let sctp = self.endpoint().association();
        AssociationStats {
            endpoint: self.endpoint().stats(),
            receive: sctp.receiver().stats(),
            send: sctp.sender().stats(),
        }
    }

    /// Its present state.
    pub(super) fn flow_info(&self, now: Instant) -> FlowInfo {
        flow_info::of_association(&self.carrier, now)
    }

    fn info(&self, association: StreamId, now: Instant) -> AssociationInfo {
        let (sctp, flow) = (self.endpoint().association(), self.carrier.flow());
        AssociationInfo {
            association,
            interface: InterfaceId(flow.interface),
            local: flow.local,
            remote: flow.remote,
            udp: self.carrier.path().udp().map(|ports| (ports.local, ports.remote)),
            state: sctp.state().name(),
            sessions: self.sessions.len() as u32,
            streams: sctp.streams(),
            age: now - self.since,
            flow: self.flow_info(now),
            unanswered: sctp.error_count(),
            stats: self.stats(),
        }
    }
}

impl Associations {
    /// None yet. `key` seeds the hash of flows, `secret`, the same for all workers, the cookies.
    pub(super) fn new(
        worker: u16,
        limit: u32,
        key: [u8; 16],
        secret: [u8; 16],
        udp_port: Option<u16>,
    ) -> Self {
        Associations {
            all: Slab::new(worker, limit),
            flows: FlowTable::new(key),
            tags: HashMap::new(),
            secrets: Arc::new(Secrets::new(secret)),
            udp_port,
            leaving: ByAge::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The association with this flow, whose hash is `hash`: most often the one of `candidate`.
    pub(super) fn find_from(
        &self,
        candidate: Option<u32>,
        hash: FlowHash,
        flow: &FlowKey,
    ) -> Option<u32> {
        let is_flow = |at: u32| self.get(at).is_some_and(|a| a.carrier.flow() == *flow);
        candidate.filter(|&at| is_flow(at)).or_else(|| self.flows.find(hash, is_flow))
    }

    pub(super) fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// The association in a slot.
    pub(super) fn get(&self, at: u32) -> Option<&Association> {
        self.all.get(at).map(|association| &**association)
    }

    /// The same, to change it.
    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut Association> {
        self.all.get_mut(at).map(|association| &mut **association)
    }

    /// All of them, with their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Association)> {
        self.all.occupied().filter_map(|at| Some((at, self.get(at)?)))
    }

    /// Slot and name of the next one; `None` when all places are taken.
    pub(super) fn vacancy(&self) -> Option<(u32, StreamId)> {
        self.all.vacancy()
    }

    /// Puts an association in the vacant slot, for which the caller has asked.
    pub(super) fn insert(&mut self, at: u32, association: Association) -> &mut Association {
        self.flows.insert(&association.carrier.flow(), at);
        self.tags.insert(association.tag, at);
        self.all.insert(Box::new(association))
    }

    /// Takes an association out.
    pub(super) fn remove(&mut self, at: u32) -> Option<Box<Association>> {
        let association = self.all.remove(at)?;
        self.flows.remove(&association.carrier.flow(), at);
        self.tags.remove(&association.tag);
        Some(association)
    }

    /// What makes tags and cookies.
    pub(super) fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets)
    }

    /// The slot of an association by its name.
    pub(super) fn find_name(&self, name: StreamId) -> Option<u32> {
        self.all.find(name)
    }

    /// One begins to shut down, or will have no session.
    pub(super) fn add_leaving(&mut self, name: StreamId) {
        let all = &self.all;
        self.leaving.add(name, |name| all.find(name).is_some());
    }

    /// Its slot, if an association of this name has no session and shuts down.
    pub(super) fn find_leaving(&self, name: StreamId) -> Option<u32> {
        let leaves = |at: &u32| self.get(*at).is_some_and(Association::is_leaving);
        self.all.find(name).filter(leaves)
    }

    /// Takes out the one that has been shutting down for longest; its slot.
    pub(super) fn oldest_leaving(&mut self) -> Option<u32> {
        let mut leaving = core::mem::take(&mut self.leaving);
        let oldest = leaving.oldest(|name| self.find_leaving(name));
        self.leaving = leaving;
        oldest
    }

    /// The one in a place, as operators see it.
    pub(super) fn info(&self, at: u32, now: Instant) -> Option<AssociationInfo> {
        Some(self.all.get(at)?.info(self.all.name(at)?, now))
    }

    /// Places that are taken, or were.
    pub(super) fn places(&self) -> usize {
        self.all.places()
    }

    /// What operators see it by.
    pub(super) fn name(&self, at: u32) -> Option<StreamId> {
        self.all.name(at)
    }

    /// The association with our tag, if the ends are those of the packet but for the peer's address.
    pub(super) fn by_tag(&self, flow: &FlowKey, tag: Tag) -> Option<u32> {
        let at = *self.tags.get(&tag)?;
        let key = self.all.get(at)?.carrier.flow();
        let same = key.interface == flow.interface
            && key.local == flow.local
            && key.remote.port() == flow.remote.port();
        same.then_some(at)
    }

    /// The UDP ports for a peer that is reached at this one, or that came from it.
    pub(super) fn udp_ports(&self, peer: Option<u16>) -> Option<UdpPorts> {
        let (remote, local) = peer.zip(self.udp_port)?;
        Some(UdpPorts { local, remote })
    }

    /// The slots of all of them.
    pub(super) fn slots(&self) -> Vec<u32> {
        self.all.occupied().collect()
    }
}
