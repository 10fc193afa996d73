//! SCTP associations of one worker. A stream over SCTP is a session of an association; its [`Conn`] is an
//! ordinary one, and what several of them share is here: the packets' way, the timer, the place in line.
//!
//! ```text
//!   INIT ---> (nothing kept: a cookie goes back) ---COOKIE ECHO---> association ---Initiate---> stream
//!   connect: a session of an association that there is to that peer, with the same configuration and
//!            room, else of a new one
//! ```
//!
//! Bounds: as many associations as streams; a peer's associations that have no session yet count as its half-open
//! streams, those that have none any more or shut down as its streams, and each session takes a credit of its
//! listener as a TCP connection does. Nothing is remembered of an INIT.
//!
//! [`Conn`]: super::conn::Conn

mod idle;
mod input;
mod open;
mod output;
mod report;

use std::sync::Arc;

use base::Instant;
use ddp::StreamId;
use hashbrown::HashMap;
use sctp_lite::endpoint::{Endpoint, SessionId};
use sctp_lite::sctp::Secrets;
use wire::sctp::Tag;

use crate::api::{AssociationInfo, AssociationStats, InterfaceId, ListenerId, SctpConfig};
use crate::flow::{FlowHash, FlowKey, FlowTable, Slab};
use crate::memory::Memory;
use crate::net::carrier::{Carrier, UdpPorts};
use crate::net::path_mtu::Peer;
use crate::worker::by_age::ByAge;
use crate::worker::keep::Kept;
use crate::worker::schedule::{Schedule, Scheduled};

/// The associations of one worker.
pub(super) struct Associations {
    all: Slab<Box<Association>>,
    flows: FlowTable,
    schedule: Schedule,
    /// By our tag: for packets that a peer with several addresses sends from another one.
    tags: HashMap<Tag, u32>,
    /// Makes tags and cookies; any worker knows the cookies of another.
    secrets: Arc<Secrets>,
    /// Our UDP port (RFC 6951).
    udp_port: Option<u16>,
    /// Those that shut down and have no session: they give way when all places are taken.
    leaving: ByAge,
}

/// What an association counts as at its listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counts {
    /// Nothing: it was opened from here, or has sessions, which count themselves.
    Nothing,
    /// A stream in the backlog: its first session is awaited, and takes its place.
    Place,
    /// A stream of its peer: it has no session any more, or will have none.
    Idle,
}

/// An association.
struct Association {
    key: FlowKey,
    /// Ours, as it stands in `tags`.
    tag: Tag,
    endpoint: Endpoint<Memory>,
    carrier: Carrier,
    /// What others were told of its path, or have told: octets of SCTP packets that it carries.
    path_len: usize,
    /// What it was opened with; `None` for accepted ones.
    opened: Option<Arc<SctpConfig>>,
    /// The listener that took it.
    listener: Option<ListenerId>,
    counts: Counts,
    /// It is among those that give way to new ones, by age.
    leaving: bool,
    /// Slots of its streams.
    sessions: HashMap<SessionId, u32>,
    scheduled: Scheduled,
    /// Packets since it was last asked for its own.
    unanswered: u8,
    /// When its progress last proved its next hop reachable.
    confirmed: Instant,
    pinned: bool,
    /// When the worker tries again to reach the next hop.
    own_deadline: Option<Instant>,
    /// Reports that there is no way to the peer, while it is being opened.
    soft_errors: u8,
    /// What its sessions keep of what they sent, as the worker's budget has it.
    kept: Kept,
}

impl Association {
    /// Its handshake is not over.
    fn is_opening(&self) -> bool {
        self.endpoint.association().state().is_opening()
    }

    /// It shuts down, or waits for room for its last packet, and has no session.
    fn is_leaving(&self) -> bool {
        self.sessions.is_empty() && self.endpoint.state().is_closing()
    }

    /// Octets of user data that the peer has acknowledged.
    fn octets_acknowledged(&self) -> u64 {
        self.endpoint.association().sender().stats().octets_acknowledged
    }

    /// What it did.
    fn stats(&self) -> AssociationStats {
        let sctp = self.endpoint.association();
        AssociationStats {
            endpoint: self.endpoint.stats(),
            receive: sctp.receiver().stats(),
            send: sctp.sender().stats(),
        }
    }

    /// Octets of the largest IP packet that its path is thought to carry.
    fn path_mtu(&self) -> u16 {
        let len = self.carrier.ip_len() + self.endpoint.association().path_len();
        u16::try_from(len).unwrap_or(u16::MAX)
    }

    fn info(&self, association: StreamId) -> AssociationInfo {
        let sctp = self.endpoint.association();
        AssociationInfo {
            association,
            interface: InterfaceId(self.key.interface),
            local: self.key.local,
            remote: self.key.remote,
            udp: self.carrier.udp().map(|ports| (ports.local, ports.remote)),
            state: sctp.state().name(),
            sessions: self.sessions.len() as u32,
            streams: sctp.streams(),
            path_mtu: self.path_mtu(),
            round_trip: sctp.sender().srtt(),
            rto: sctp.sender().rto(),
            cwnd: sctp.sender().cwnd(),
            in_flight: sctp.sender().pipe(),
            peer_window: sctp.sender().peer_window(),
            unanswered: sctp.error_count(),
            stats: self.stats(),
        }
    }
}

impl Associations {
    /// None yet, of a worker with so many ports. `key` seeds the hash of flows, `secret`, the same for all workers,
    /// the cookies.
    pub(super) fn new(
        (worker, limit, ports): (u16, u32, usize),
        key: [u8; 16],
        secret: [u8; 16],
        udp_port: Option<u16>,
        now: Instant,
    ) -> Self {
        Associations {
            all: Slab::new(worker, limit),
            flows: FlowTable::new(key),
            schedule: Schedule::new(ports, now),
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

    /// True when none has anything to send.
    pub(super) fn are_silent(&self) -> bool {
        self.schedule.is_empty()
    }

    /// The association of a flow, whose hash is `hash`.
    fn find(&self, hash: FlowHash, flow: &FlowKey) -> Option<u32> {
        self.flows.find(hash, |at| self.all.get(at).is_some_and(|a| a.key == *flow))
    }

    pub(super) fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// When the next timer of one fires.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.schedule.next_timer()
    }

    pub(super) fn endpoint(&self, at: u32) -> Option<&Endpoint<Memory>> {
        Some(&self.all.get(at)?.endpoint)
    }

    pub(super) fn endpoint_mut(&mut self, at: u32) -> Option<&mut Endpoint<Memory>> {
        Some(&mut self.all.get_mut(at)?.endpoint)
    }

    /// What it did, without its sessions.
    pub(super) fn stats(&self, at: u32) -> Option<AssociationStats> {
        Some(self.all.get(at)?.stats())
    }

    /// All of them, as operators see them.
    pub(super) fn infos(&self) -> Vec<AssociationInfo> {
        let info = |at| Some(self.all.get(at)?.info(self.all.name(at)?));
        self.all.occupied().filter_map(info).collect()
    }

    /// Who its packets go to, as paths are remembered.
    pub(super) fn peer(&self, at: u32) -> Option<Peer> {
        let association = self.all.get(at)?;
        Some((association.carrier.path.interface(), association.key.remote.ip()))
    }

    /// The MTU of its path, if that is known and has changed since it was asked last.
    pub(super) fn path_news(&mut self, at: u32) -> Option<(Peer, u16)> {
        let association = self.all.get_mut(at)?;
        let len = association.endpoint.association().known_path_len()?;
        if len == association.path_len {
            return None;
        }
        association.path_len = len;
        let peer = (association.carrier.path.interface(), association.key.remote.ip());
        Some((peer, association.path_mtu()))
    }

    /// Others have found out that its path carries no more than `mtu`.
    pub(super) fn tell_path(&mut self, at: u32, mtu: u16, now: Instant) {
        let Some(association) = self.all.get_mut(at) else { return };
        let sctp = association.endpoint.association();
        let limit = association.carrier.packet_limit(mtu).max(sctp.least_path_len());
        if limit < sctp.path_len() {
            association.path_len = limit;
            association.endpoint.path_mtu(now, limit);
        }
    }

    /// What operators see it by.
    pub(super) fn name(&self, at: u32) -> Option<StreamId> {
        self.all.name(at)
    }

    /// Queues an association to be served in this turn, if it is not queued yet.
    pub(super) fn touch(&mut self, at: u32) {
        if let Some(association) = self.all.get_mut(at) {
            self.schedule.make_ready(at, &mut association.scheduled);
        }
    }

    /// The association with our tag, if the ends are those of the packet but for the peer's address.
    fn by_tag(&self, flow: &FlowKey, tag: Tag) -> Option<u32> {
        let at = *self.tags.get(&tag)?;
        let key = &self.all.get(at)?.key;
        let same = key.interface == flow.interface
            && key.local == flow.local
            && key.remote.port() == flow.remote.port();
        same.then_some(at)
    }

    /// The UDP ports for a peer that is reached at this one, or that came from it.
    fn udp_ports(&self, peer: Option<u16>) -> Option<UdpPorts> {
        let (remote, local) = peer.zip(self.udp_port)?;
        Some(UdpPorts { local, remote })
    }

    fn slots(&self) -> Vec<u32> {
        self.all.occupied().collect()
    }
}
