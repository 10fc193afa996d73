//! The listeners of one worker. This module selects the listener for a SYN or INIT, and bounds the state that unknown
//! senders can create.
//!
//! ```text
//!   SYN ---room---> unproven ---ACK---> starting ---MPA request---> announced
//!    |                                     ^
//!    | no room: a SYN cookie is sent,      | the cookie is returned
//!    v no state is kept                    |
//!    +-------------------------------------+
//! ```
//!
//! A stream may end in any state. With `SynCookieMode::Always`, every SYN is answered with a cookie. An SCTP
//! association begins as starting, because every INIT is answered with a cookie.
//!
//! The source address of an unproven stream may be forged. The stream takes a listener's credit (one permission of the
//! control thread to announce a stream) and a backlog entry like any other. An unproven stream is evicted if a peer
//! with an address proven by a SYN cookie needs its place. Unproven streams do not count against a peer with a proven
//! address. Forged SYNs therefore never exclude the true owner of an address.
//!
//! An SCTP association without a session counts as a stream of its peer until it is freed. The limit of streams per
//! peer thus also bounds the peer's associations. An association that is shutting down is evicted for a new one of the
//! same peer.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ddp::{PeerId, StreamId};
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

use super::age_queue::AgeQueue;
use crate::api::{
    CommandError, DropReason, InterfaceId, Limits, ListenerConfig, ListenerId, PeerFilter,
    PeerRefusal, Transport,
};
use crate::net::neighbour::KeyedState;

/// Progress of an accepted stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::worker) enum AcceptProgress {
    /// A SYN was received. Its source address may be forged.
    Unproven,
    /// The TCP handshake is complete, or the peer has returned a cookie. The peer's address is thus proven.
    Starting,
    /// The stream was reported to the control thread.
    Announced,
}

/// The listeners of one worker, with the counts of half-open streams and of streams by peer.
#[derive(Debug)]
pub(in crate::worker) struct Listeners {
    listeners: HashMap<ListenerId, Listener>,
    /// Listeners of each port, usually one. No two have the same interface and address.
    ports: HashMap<(Transport, u16), Vec<Arc<ListenerConfig>>>,
    /// Stream counts by peer (an IPv4 address or an IPv6 /64). An entry is removed with its last stream.
    peers: HashMap<PeerId, PeerCounts, KeyedState>,
    /// Unproven streams, oldest first.
    unproven: VecDeque<(ListenerId, StreamId)>,
    /// Number of unproven and starting streams of all listeners, at most `limit`.
    half_open: u32,
    limit: u32,
    half_open_per_peer: u32,
    streams_per_peer: u32,
}

#[derive(Debug)]
struct Listener {
    config: Arc<ListenerConfig>,
    /// Number of further streams that the control thread permits the worker to announce.
    credits: u32,
    /// Number of the listener's unproven and starting streams, at most its backlog.
    half_open: u32,
}

/// Numbers of one peer's streams, by progress, and of its associations without sessions.
#[derive(Debug, Default)]
struct PeerCounts {
    unproven: u32,
    starting: u32,
    announced: u32,
    /// Associations without sessions: the last session has ended, or the association shuts down before its first
    /// session.
    idle: u32,
    /// Idle associations that are shutting down, oldest first.
    evictable: AgeQueue,
}

impl PeerCounts {
    fn is_empty(&self) -> bool {
        self.unproven == 0 && self.starting == 0 && self.announced == 0 && self.idle == 0
    }

    fn count_mut(&mut self, progress: AcceptProgress) -> &mut u32 {
        match progress {
            AcceptProgress::Unproven => &mut self.unproven,
            AcceptProgress::Starting => &mut self.starting,
            AcceptProgress::Announced => &mut self.announced,
        }
    }
}

impl Listeners {
    /// Creates an empty set of listeners. `key` seeds the hash of peer addresses.
    pub(in crate::worker) fn new(limits: &Limits, key: [u8; 16]) -> Self {
        Listeners {
            listeners: HashMap::new(),
            ports: HashMap::new(),
            peers: HashMap::with_hasher(KeyedState(SipHasher13::new_with_key(&key))),
            unproven: VecDeque::new(),
            half_open: 0,
            limit: limits.half_open,
            half_open_per_peer: limits.half_open_per_peer,
            streams_per_peer: limits.streams_per_peer,
        }
    }

    pub(in crate::worker) fn add(
        &mut self,
        config: Arc<ListenerConfig>,
    ) -> Result<(), CommandError> {
        let same = |other: &Arc<ListenerConfig>| scope(other) == scope(&config);
        let of_port = self.ports.get(&port_key(&config));
        let in_use = of_port.is_some_and(|of_port| of_port.iter().any(same));
        if in_use || self.listeners.contains_key(&config.id) {
            return Err(CommandError::ListenerInUse);
        }
        let (id, credits) = (config.id, config.credits);
        self.ports.entry(port_key(&config)).or_default().push(config.clone());
        self.listeners.insert(id, Listener { config, credits, half_open: 0 });
        Ok(())
    }

    pub(in crate::worker) fn remove(&mut self, id: ListenerId) -> Result<(), CommandError> {
        let listener = self.listeners.remove(&id).ok_or(CommandError::NoListener)?;
        let key = port_key(&listener.config);
        if let Some(of_port) = self.ports.get_mut(&key) {
            of_port.retain(|config| config.id != id);
            if of_port.is_empty() {
                self.ports.remove(&key);
            }
        }
        Ok(())
    }

    pub(in crate::worker) fn set_peers(
        &mut self,
        id: ListenerId,
        peers: Arc<PeerFilter>,
    ) -> Result<(), CommandError> {
        let listener = self.listeners.get_mut(&id).ok_or(CommandError::NoListener)?;
        listener.config = Arc::new(ListenerConfig { peers, ..(*listener.config).clone() });
        let of_port = self.ports.get_mut(&port_key(&listener.config)).into_iter().flatten();
        for config in of_port.filter(|config| config.id == id) {
            *config = listener.config.clone();
        }
        Ok(())
    }

    /// Checks whether a listener admits a peer. A removed listener admits all peers.
    ///
    /// # Errors
    /// The peer list that refuses the peer.
    pub(in crate::worker) fn admits(
        &self,
        id: ListenerId,
        peer: IpAddr,
    ) -> Result<(), PeerRefusal> {
        let listener = self.listeners.get(&id);
        listener.map_or(Ok(()), |listener| listener.config.peers.check(peer))
    }

    pub(in crate::worker) fn add_credits(&mut self, id: ListenerId, more: u32) {
        if let Some(listener) = self.listener_mut(id) {
            listener.credits = listener.credits.saturating_add(more);
        }
    }

    /// Returns the most specific listener for a SYN or INIT to `local`. A listener with an address is more specific
    /// than one with only an interface.
    pub(in crate::worker) fn find(
        &self,
        transport: Transport,
        interface: InterfaceId,
        local: SocketAddr,
    ) -> Option<&Arc<ListenerConfig>> {
        let of_port = self.ports.get(&(transport, local.port()))?;
        let matches = of_port.iter().filter(|config| {
            config.interface.is_none_or(|only| only == interface)
                && config.address.is_none_or(|only| only == local.ip())
        });
        matches.max_by_key(|config| (config.address.is_some(), config.interface.is_some()))
    }

    /// Takes a credit and a backlog entry of a listener for `stream`, opened by `peer`. `progress` is `Unproven`, or
    /// `Starting` if the peer's address is proven.
    ///
    /// # Errors
    /// The limit that is reached. In that case neither credit nor entry is taken.
    pub(in crate::worker) fn reserve(
        &mut self,
        id: ListenerId,
        peer: IpAddr,
        stream: StreamId,
        progress: AcceptProgress,
    ) -> Result<(), DropReason> {
        if self.half_open >= self.limit {
            return Err(DropReason::Backlog);
        }
        let of_peer = self.peers.get(&PeerId::from_address(peer));
        let (forged, starting, others) =
            of_peer.map_or((0, 0, 0), |of| (of.unproven, of.starting, of.announced + of.idle));
        // Unproven streams do not count against a peer with a proven address: their source address may be forged.
        let unproven = if progress == AcceptProgress::Unproven { forged } else { 0 };
        if unproven + starting >= self.half_open_per_peer {
            return Err(DropReason::PeerLimit);
        }
        if unproven + starting + others >= self.streams_per_peer {
            return Err(DropReason::PeerStreams);
        }
        let listener = self.listener_mut(id).ok_or(DropReason::NoListener)?;
        if listener.half_open >= listener.config.backlog {
            return Err(DropReason::Backlog);
        }
        if listener.credits == 0 {
            return Err(DropReason::NoCredit);
        }
        listener.credits -= 1;
        listener.half_open += 1;
        self.half_open += 1;
        *self.peers.entry(PeerId::from_address(peer)).or_default().count_mut(progress) += 1;
        if progress == AcceptProgress::Unproven {
            self.unproven.push_back((id, stream));
        }
        Ok(())
    }

    /// Returns true if a peer that was refused for `reason` may be admitted once a cookie proves its address: the
    /// backlog may then have room, or an unproven stream or an association in shutdown is evicted to make room.
    pub(in crate::worker) fn can_evict_for(
        &self,
        id: ListenerId,
        peer: IpAddr,
        reason: DropReason,
    ) -> bool {
        let of_peer = || self.peers.get(&PeerId::from_address(peer));
        match reason {
            DropReason::Backlog => true,
            DropReason::NoCredit => self.unproven.iter().any(|&(l, _)| l == id),
            DropReason::PeerLimit => of_peer().is_some_and(|of| of.unproven > 0),
            DropReason::PeerStreams => {
                of_peer().is_some_and(|of| of.unproven > 0 || !of.evictable.is_empty())
            }
            _ => false,
        }
    }

    /// Returns the unproven stream to evict for a stream with a proven address: the listener's oldest unproven stream.
    /// If the listener has none and the worker is at its limit, returns the oldest unproven stream of any listener.
    pub(in crate::worker) fn oldest_unproven(&self, id: ListenerId) -> Option<StreamId> {
        let own = self.unproven.iter().find(|&&(l, _)| l == id);
        let full = || self.unproven.front().filter(|_| self.half_open >= self.limit);
        own.or_else(full).map(|&(_, stream)| stream)
    }

    /// Moves a stream from unproven to starting: the peer has acknowledged this end's SYN, so its address is proven.
    pub(in crate::worker) fn mark_proven(&mut self, peer: IpAddr, stream: StreamId) {
        self.unproven.retain(|&(_, s)| s != stream);
        let of_peer = self.peers.entry(PeerId::from_address(peer)).or_default();
        of_peer.unproven = of_peer.unproven.saturating_sub(1);
        of_peer.starting += 1;
    }

    /// Moves a stream from starting to announced: the control thread has its report. The stream leaves the backlog.
    pub(in crate::worker) fn mark_announced(&mut self, id: ListenerId, peer: IpAddr) {
        self.leave_backlog(id, 0);
        let of_peer = self.peers.entry(PeerId::from_address(peer)).or_default();
        of_peer.starting = of_peer.starting.saturating_sub(1);
        of_peer.announced += 1;
    }

    /// Removes a stream that has ended. If the stream was never announced to the control thread, its credit is returned
    /// to the listener.
    pub(in crate::worker) fn release(
        &mut self,
        id: ListenerId,
        peer: IpAddr,
        stream: StreamId,
        progress: AcceptProgress,
    ) {
        if progress != AcceptProgress::Announced {
            self.leave_backlog(id, 1);
        }
        if progress == AcceptProgress::Unproven {
            self.unproven.retain(|&(_, s)| s != stream);
        }
        if let Some(of_peer) = self.peers.get_mut(&PeerId::from_address(peer)) {
            let place = of_peer.count_mut(progress);
            *place = place.saturating_sub(1);
            if of_peer.is_empty() {
                self.peers.remove(&PeerId::from_address(peer));
            }
        }
    }

    /// Counts an association of this peer as idle: its last session has ended, or it shuts down before its first
    /// session.
    pub(in crate::worker) fn add_idle(&mut self, peer: IpAddr) {
        self.peers.entry(PeerId::from_address(peer)).or_default().idle += 1;
    }

    /// Removes an idle association from the count: it was freed, or a new session is counted instead.
    pub(in crate::worker) fn remove_idle(&mut self, peer: IpAddr) {
        if let Some(of_peer) = self.peers.get_mut(&PeerId::from_address(peer)) {
            of_peer.idle = of_peer.idle.saturating_sub(1);
            if of_peer.is_empty() {
                self.peers.remove(&PeerId::from_address(peer));
            }
        }
    }

    /// Queues an idle association of this peer that is shutting down, for eviction. `is_live` returns false for a freed
    /// association.
    pub(in crate::worker) fn add_evictable(
        &mut self,
        peer: IpAddr,
        association: StreamId,
        is_live: impl Fn(StreamId) -> bool,
    ) {
        self.peers
            .entry(PeerId::from_address(peer))
            .or_default()
            .evictable
            .add(association, is_live);
    }

    /// Removes this peer's oldest association in shutdown from the eviction queue, and returns its slot. `find` returns
    /// the slot of an association, or `None` if it was freed.
    pub(in crate::worker) fn take_oldest_evictable(
        &mut self,
        peer: IpAddr,
        find: impl Fn(StreamId) -> Option<u32>,
    ) -> Option<u32> {
        self.peers.get_mut(&PeerId::from_address(peer))?.evictable.take_oldest(find)
    }

    pub(in crate::worker) fn half_open(&self) -> u32 {
        self.half_open
    }

    fn leave_backlog(&mut self, id: ListenerId, refund: u32) {
        self.half_open -= 1;
        if let Some(listener) = self.listener_mut(id) {
            listener.half_open = listener.half_open.saturating_sub(1);
            listener.credits = listener.credits.saturating_add(refund);
        }
    }

    /// Returns true if a stream of the listener is half-open.
    pub(in crate::worker) fn has_half_open(&self, id: ListenerId) -> bool {
        self.listeners.get(&id).is_some_and(|listener| listener.half_open > 0)
    }

    fn listener_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.get_mut(&id)
    }
}

/// Returns the key of a listener's port.
fn port_key(config: &ListenerConfig) -> (Transport, u16) {
    (config.endpoint.transport(), config.port)
}

/// Returns the interface and the address of a listener, which differ among the listeners of a port.
fn scope(config: &ListenerConfig) -> (Option<InterfaceId>, Option<IpAddr>) {
    (config.interface, config.address)
}
