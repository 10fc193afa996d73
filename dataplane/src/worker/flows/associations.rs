//! The SCTP associations of one worker, found by slot, by flow or by verification tag. Associations that are shutting
//! down are also queued by age. Each association has one slot, one entry by flow and one entry by its local tag, all
//! removed together.
//!
//! Not included: processing of packets, transmission and limits ([`sctp`](crate::worker::sctp)).

use std::sync::Arc;

use base::Instant;
use ddp::StreamId;
use hashbrown::HashMap;
use sctp_lite::endpoint::{Endpoint, SessionId};
use sctp_lite::sctp::Secrets;
use wire::sctp::Tag;

use crate::api::{
    AssociationInfo, AssociationStats, FlowInfo, InterfaceId, ListenerId, SctpConfig,
};
use crate::flow::{FlowHash, FlowKey, FlowTable, Slab};
use crate::memory::Memory;
use crate::net::sctp_path::UdpPorts;
use crate::worker::flows::age_queue::AgeQueue;
use crate::worker::flows::carrier::Carrier;
use crate::worker::flows::flow_info;

pub(in crate::worker) struct Associations {
    slab: Slab<Box<Association>>,
    flows: FlowTable,
    /// Slots by local verification tag, to find the association of a packet from another address of a multi-homed peer.
    tags: HashMap<Tag, u32>,
    /// Generator of tags and state cookies. All workers accept each other's cookies.
    secrets: Arc<Secrets>,
    /// Local UDP port for encapsulation (RFC 6951).
    udp_port: Option<u16>,
    /// Associations without sessions that are shutting down. The oldest is evicted when all slots are in use.
    evictable: AgeQueue,
}

/// Class of an association with respect to its listener's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum Accounting {
    /// Not counted: the association was opened locally, or its sessions are counted instead.
    Uncounted,
    /// Counted in its listener's backlog, like a half-open stream. The first session takes over this backlog entry.
    Backlog,
    /// Counted as a stream of its peer: the last session has ended, or the association shuts down before its first
    /// session.
    Idle,
}

pub(in crate::worker) struct Association {
    pub(in crate::worker) carrier: Carrier<Endpoint<Memory>>,
    /// Time at which the association was opened or accepted.
    created_at: Instant,
    /// Local verification tag, the key in `tags`.
    tag: Tag,
    /// Configuration of a locally opened association; `None` if accepted.
    pub(in crate::worker) connect_config: Option<Arc<SctpConfig>>,
    /// Listener that accepted the association; `None` if opened locally.
    pub(in crate::worker) listener: Option<ListenerId>,
    pub(in crate::worker) accounting: Accounting,
    /// True if the association was evictable at the last check, and is therefore queued for eviction by age.
    pub(in crate::worker) listed_evictable: bool,
    /// True if a peer opened the association, it has had no session yet, and no failed handshake was reported for it.
    pub(in crate::worker) awaits_session: bool,
    /// True if the association's streams were reported as stalled and not as resumed since.
    pub(in crate::worker) stalled: bool,
    /// Stream slot of each session.
    pub(in crate::worker) sessions: HashMap<SessionId, u32>,
}

impl Association {
    /// Creates an association without a listener, sessions or a configuration.
    pub(in crate::worker) fn new(carrier: Carrier<Endpoint<Memory>>, now: Instant) -> Self {
        Association {
            tag: carrier.endpoint().association().local_tag(),
            carrier,
            created_at: now,
            connect_config: None,
            listener: None,
            accounting: Accounting::Uncounted,
            listed_evictable: false,
            awaits_session: false,
            stalled: false,
            sessions: HashMap::new(),
        }
    }

    pub(in crate::worker) fn endpoint(&self) -> &Endpoint<Memory> {
        self.carrier.endpoint()
    }

    pub(in crate::worker) fn endpoint_mut(&mut self) -> &mut Endpoint<Memory> {
        self.carrier.endpoint_mut()
    }

    /// Returns true until the SCTP handshake is complete.
    pub(in crate::worker) fn is_opening(&self) -> bool {
        self.endpoint().association().state().is_opening()
    }

    /// Returns true if the association has no sessions and is shutting down or waits to send its last packet.
    pub(in crate::worker) fn is_evictable(&self) -> bool {
        self.sessions.is_empty() && self.endpoint().state().is_closing()
    }

    /// Returns the counters of the endpoint and of both directions.
    pub(in crate::worker) fn stats(&self) -> AssociationStats {
        let sctp = self.endpoint().association();
        AssociationStats {
            endpoint: self.endpoint().stats(),
            receive: sctp.receiver().stats(),
            send: sctp.sender().stats(),
        }
    }

    /// Returns the present state of the path and of congestion control.
    pub(in crate::worker) fn flow_info(&self, now: Instant) -> FlowInfo {
        flow_info::association_info(&self.carrier, now)
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
            age: now - self.created_at,
            flow: self.flow_info(now),
            unanswered: sctp.error_count(),
            stats: self.stats(),
        }
    }
}

impl Associations {
    /// Creates an empty table for at most `limit` associations. `key` seeds the hash of flows. `secret`, the same for
    /// all workers, signs state cookies.
    pub(in crate::worker) fn new(
        worker: u16,
        limit: u32,
        key: [u8; 16],
        secret: [u8; 16],
        udp_port: Option<u16>,
    ) -> Self {
        Associations {
            slab: Slab::new(worker, limit),
            flows: FlowTable::new(key),
            tags: HashMap::new(),
            secrets: Arc::new(Secrets::new(secret)),
            udp_port,
            evictable: AgeQueue::default(),
        }
    }

    pub(in crate::worker) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Returns the slot of the association with this flow. `hash` is the flow's hash. Slot `candidate` is tried first
    /// and usually matches.
    pub(in crate::worker) fn find_flow(
        &self,
        candidate: Option<u32>,
        hash: FlowHash,
        flow: &FlowKey,
    ) -> Option<u32> {
        let is_flow = |slot: u32| self.get(slot).is_some_and(|a| a.carrier.has_flow(flow));
        candidate.filter(|&at| is_flow(at)).or_else(|| self.flows.find(hash, is_flow))
    }

    pub(in crate::worker) fn flows(&self) -> &FlowTable {
        &self.flows
    }

    pub(in crate::worker) fn get(&self, slot: u32) -> Option<&Association> {
        self.slab.get(slot).map(|association| &**association)
    }

    pub(in crate::worker) fn get_mut(&mut self, slot: u32) -> Option<&mut Association> {
        self.slab.get_mut(slot).map(|association| &mut **association)
    }

    /// Returns all associations with their slots.
    pub(in crate::worker) fn iter(&self) -> impl Iterator<Item = (u32, &Association)> {
        self.slab.occupied().filter_map(|at| Some((at, self.get(at)?)))
    }

    /// Returns the slot and the identifier for the next association; `None` if the table is full.
    pub(in crate::worker) fn vacancy(&self) -> Option<(u32, StreamId)> {
        self.slab.vacancy()
    }

    /// Inserts an association at the slot that [`vacancy`](Self::vacancy) returned.
    pub(in crate::worker) fn insert(
        &mut self,
        slot: u32,
        association: Association,
    ) -> &mut Association {
        self.flows.insert(&association.carrier.flow(), slot);
        self.tags.insert(association.tag, slot);
        self.slab.insert(Box::new(association))
    }

    /// Removes the association in a slot, with its entries by flow and by tag.
    pub(in crate::worker) fn remove(&mut self, at: u32) -> Option<Box<Association>> {
        let association = self.slab.remove(at)?;
        self.flows.remove(&association.carrier.flow(), at);
        self.tags.remove(&association.tag);
        Some(association)
    }

    /// Returns the generator of verification tags and state cookies.
    pub(in crate::worker) fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets)
    }

    /// Returns the slot of the association with this identifier.
    pub(in crate::worker) fn find_by_id(&self, id: StreamId) -> Option<u32> {
        self.slab.find(id)
    }

    /// Queues an association without sessions that is shutting down, for eviction.
    pub(in crate::worker) fn add_evictable(&mut self, id: StreamId) {
        let all = &self.slab;
        self.evictable.add(id, |id| all.find(id).is_some());
    }

    /// Returns the slot of the association with this identifier, if it may be evicted.
    pub(in crate::worker) fn find_evictable(&self, id: StreamId) -> Option<u32> {
        let is_evictable = |at: &u32| self.get(*at).is_some_and(Association::is_evictable);
        self.slab.find(id).filter(is_evictable)
    }

    /// Removes the oldest association in shutdown from the eviction queue, and returns its slot.
    pub(in crate::worker) fn take_oldest_evictable(&mut self) -> Option<u32> {
        let mut evictable = core::mem::take(&mut self.evictable);
        let oldest = evictable.take_oldest(|id| self.find_evictable(id));
        self.evictable = evictable;
        oldest
    }

    /// Returns the association in a slot as listed for operators; `None` if the slot is vacant.
    pub(in crate::worker) fn info(&self, slot: u32, now: Instant) -> Option<AssociationInfo> {
        Some(self.slab.get(slot)?.info(self.slab.stream_id(slot)?, now))
    }

    /// Returns the number of slots allocated so far, including vacant slots.
    pub(in crate::worker) fn slot_count(&self) -> usize {
        self.slab.slots()
    }

    /// Returns the identifier of the association in a slot, as in lists for operators.
    pub(in crate::worker) fn id(&self, slot: u32) -> Option<StreamId> {
        self.slab.stream_id(slot)
    }

    /// Returns the slot of the association with this local verification tag, if its interface, local address and both
    /// ports match `flow`. The peer's address may differ.
    pub(in crate::worker) fn find_by_tag(&self, flow: &FlowKey, tag: Tag) -> Option<u32> {
        let at = *self.tags.get(&tag)?;
        let key = self.slab.get(at)?.carrier.flow();
        let same = key.interface == flow.interface
            && key.local == flow.local
            && key.remote.port() == flow.remote.port();
        same.then_some(at)
    }

    /// Returns the UDP ports for encapsulation with remote port `peer`; `None` if `peer` is `None` or this worker has
    /// no UDP port.
    pub(in crate::worker) fn udp_ports(&self, peer: Option<u16>) -> Option<UdpPorts> {
        let (remote, local) = peer.zip(self.udp_port)?;
        Some(UdpPorts { local, remote })
    }

    pub(in crate::worker) fn slots(&self) -> Vec<u32> {
        self.slab.occupied().collect()
    }
}
