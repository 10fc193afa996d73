//! Listeners of one worker: they select the listener of a SYN or INIT, and bound the state that unknown senders can
//! create.
//!
//! ```text
//!   SYN ---> unproven ---ACK---> starting ---MPA request---> announced ---> ended
//!               |                   ^
//!               | no room           | SYN cookie comes back
//!               v                   |
//!         (nothing kept) -----------+
//! ```
//!
//! An unproven stream's source address may be forged. It takes a credit and a backlog place as other streams do, but
//! is evicted for a peer that has proven its address with a SYN cookie. Streams counted against an address that may be
//! forged never exclude its true owner.
//!
//! An SCTP association without a session counts as a stream of its peer until it is freed, so that a peer has at most
//! as many of them as streams. An association that is shutting down is evicted for a new one of the same peer.

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
    /// A SYN was received; the source address may be forged.
    Unproven,
    /// The handshake is complete, or an SCTP cookie was returned: the peer's address is proven.
    Starting,
    /// The stream was reported to the control thread.
    Announced,
}

/// The listeners, with their half-open streams.
#[derive(Debug)]
pub(in crate::worker) struct Listeners {
    listeners: Vec<Listener>,
    /// Stream counts by peer (an address or a /64). An entry is removed with its last stream.
    peers: HashMap<PeerId, PeerCounts, KeyedState>,
    /// Unproven streams, oldest first.
    unproven: VecDeque<(ListenerId, StreamId)>,
    /// Unproven and starting streams.
    half_open: u32,
    limit: u32,
    half_open_per_peer: u32,
    streams_per_peer: u32,
}

#[derive(Debug)]
struct Listener {
    config: Arc<ListenerConfig>,
    credits: u32,
    half_open: u32,
}

/// Streams of one peer.
#[derive(Debug, Default)]
struct PeerCounts {
    unproven: u32,
    starting: u32,
    announced: u32,
    /// Associations that lost their last session, or that shut down before the first.
    idle: u32,
    /// The idle associations that are shutting down, oldest first.
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
    /// Creates an empty set of listeners. `key` seeds the hash of peers' addresses.
    pub(in crate::worker) fn new(limits: &Limits, key: [u8; 16]) -> Self {
        Listeners {
            listeners: Vec::new(),
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
        let clash = |l: &Listener| {
            l.config.id == config.id
                || (l.config.port == config.port
                    && l.config.endpoint.transport() == config.endpoint.transport()
                    && l.config.interface == config.interface
                    && l.config.address == config.address)
        };
        if self.listeners.iter().any(clash) {
            return Err(CommandError::ListenerInUse);
        }
        let credits = config.credits;
        self.listeners.push(Listener { config, credits, half_open: 0 });
        Ok(())
    }

    pub(in crate::worker) fn remove(&mut self, id: ListenerId) -> Result<(), CommandError> {
        let at = self.listeners.iter().position(|l| l.config.id == id);
        self.listeners.swap_remove(at.ok_or(CommandError::NoListener)?);
        Ok(())
    }

    /// Replaces the peers that a listener admits.
    pub(in crate::worker) fn set_peers(
        &mut self,
        id: ListenerId,
        peers: Arc<PeerFilter>,
    ) -> Result<(), CommandError> {
        let listener = self.listener_mut(id).ok_or(CommandError::NoListener)?;
        listener.config = Arc::new(ListenerConfig { peers, ..(*listener.config).clone() });
        Ok(())
    }

    /// Checks whether a listener admits a peer. A removed listener refuses no one.
    ///
    /// # Errors
    /// The peer list that refuses the peer.
    pub(in crate::worker) fn admits(
        &self,
        id: ListenerId,
        peer: IpAddr,
    ) -> Result<(), PeerRefusal> {
        let listener = self.listeners.iter().find(|l| l.config.id == id);
        listener.map_or(Ok(()), |listener| listener.config.peers.check(peer))
    }

    pub(in crate::worker) fn add_credits(&mut self, id: ListenerId, more: u32) {
        if let Some(listener) = self.listener_mut(id) {
            listener.credits = listener.credits.saturating_add(more);
        }
    }

    /// Returns the most specific listener for a SYN, or an INIT, to `local`.
    pub(in crate::worker) fn find(
        &self,
        transport: Transport,
        interface: InterfaceId,
        local: SocketAddr,
    ) -> Option<&Arc<ListenerConfig>> {
        let fits = |l: &&Listener| {
            l.config.port == local.port()
                && l.config.endpoint.transport() == transport
                && l.config.interface.is_none_or(|i| i == interface)
                && l.config.address.is_none_or(|a| a == local.ip())
        };
        let specificity =
            |l: &&Listener| (l.config.address.is_some(), l.config.interface.is_some());
        Some(&self.listeners.iter().filter(fits).max_by_key(specificity)?.config)
    }

    /// Takes a credit and a backlog place for `stream` of `peer`. `progress` is unproven, or starting if the peer's
    /// address is proven.
    ///
    /// # Errors
    /// The bound that is reached; nothing is taken then.
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
        // A proven peer's own limit leaves out unproven streams: their source address may be forged.
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

    /// Returns whether a SYN refused for `reason` should be answered with a cookie: an unproven stream, or an
    /// association that is shutting down, can be evicted for its sender.
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

    /// Returns the unproven stream that a proven one replaces: the listener's oldest, or the oldest of all listeners
    /// if the worker is at its limit.
    pub(in crate::worker) fn oldest_unproven(&self, id: ListenerId) -> Option<StreamId> {
        let own = self.unproven.iter().find(|&&(l, _)| l == id);
        let full = || self.unproven.front().filter(|_| self.half_open >= self.limit);
        own.or_else(full).map(|&(_, stream)| stream)
    }

    /// Moves a stream from unproven to starting: its peer has acknowledged our SYN.
    pub(in crate::worker) fn mark_proven(&mut self, peer: IpAddr, stream: StreamId) {
        self.unproven.retain(|&(_, s)| s != stream);
        let of_peer = self.peers.entry(PeerId::from_address(peer)).or_default();
        of_peer.unproven = of_peer.unproven.saturating_sub(1);
        of_peer.starting += 1;
    }

    /// Moves a stream from starting to announced: it leaves the backlog and was reported to the control thread.
    pub(in crate::worker) fn mark_announced(&mut self, id: ListenerId, peer: IpAddr) {
        self.leave_backlog(id, 0);
        let of_peer = self.peers.entry(PeerId::from_address(peer)).or_default();
        of_peer.starting = of_peer.starting.saturating_sub(1);
        of_peer.announced += 1;
    }

    /// Removes a stream that has ended. Its credit is returned if the control thread was never notified of the stream.
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

    /// Counts an association of this peer that has no session any more, or will have none.
    pub(in crate::worker) fn add_idle(&mut self, peer: IpAddr) {
        self.peers.entry(PeerId::from_address(peer)).or_default().idle += 1;
    }

    /// Removes an idle association from the count: it is freed, or has a session again.
    pub(in crate::worker) fn remove_idle(&mut self, peer: IpAddr) {
        if let Some(of_peer) = self.peers.get_mut(&PeerId::from_address(peer)) {
            of_peer.idle = of_peer.idle.saturating_sub(1);
            if of_peer.is_empty() {
                self.peers.remove(&PeerId::from_address(peer));
            }
        }
    }

    /// Queues an idle association of this peer that shuts down. `is_live` returns false for a freed one.
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

    /// Takes the association of this peer that has been shutting down for longest. `find` returns its slot, `None`
    /// once freed.
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

    fn listener_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.iter_mut().find(|l| l.config.id == id)
    }
}
