//! Listeners of one worker: who takes a SYN, and the bounds on what strangers can make us remember.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::api::{CommandError, DropReason, InterfaceId, ListenerConfig, ListenerId};

/// The listeners, with the half-open streams that they have.
#[derive(Debug)]
pub(super) struct Listeners {
    listeners: Vec<Listener>,
    /// Half-open streams by peer address; entries go with their last stream.
    peers: HashMap<IpAddr, u32>,
    half_open: u32,
    limit: u32,
    limit_per_peer: u32,
}

#[derive(Debug)]
struct Listener {
    config: Arc<ListenerConfig>,
    credits: u32,
    half_open: u32,
}

impl Listeners {
    /// None yet; at most `limit` half-open streams, at most `limit_per_peer` of one address.
    pub(super) fn new(limit: u32, limit_per_peer: u32) -> Self {
        let peers = HashMap::new();
        Listeners { listeners: Vec::new(), peers, half_open: 0, limit, limit_per_peer }
    }

    pub(super) fn add(&mut self, config: Arc<ListenerConfig>) -> Result<(), CommandError> {
        let clash = |l: &Listener| {
            l.config.id == config.id
                || (l.config.port == config.port
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

    pub(super) fn remove(&mut self, id: ListenerId) -> Result<(), CommandError> {
        let at = self.listeners.iter().position(|l| l.config.id == id);
        self.listeners.swap_remove(at.ok_or(CommandError::NoListener)?);
        Ok(())
    }

    pub(super) fn add_credits(&mut self, id: ListenerId, more: u32) {
        if let Some(listener) = self.get(id) {
            listener.credits = listener.credits.saturating_add(more);
        }
    }

    /// The listener for a SYN to `local`: the one that says most about where it listens.
    pub(super) fn find(&self, interface: InterfaceId, local: SocketAddr) -> Option<ListenerId> {
        let fits = |l: &&Listener| {
            l.config.port == local.port()
                && l.config.interface.is_none_or(|i| i == interface)
                && l.config.address.is_none_or(|a| a == local.ip())
        };
        let detail = |l: &&Listener| (l.config.address.is_some(), l.config.interface.is_some());
        Some(self.listeners.iter().filter(fits).max_by_key(detail)?.config.id)
    }

    /// Takes a credit and a place in the backlog for a stream of `peer`.
    ///
    /// # Errors
    /// Which bound is reached; nothing is taken then.
    pub(super) fn take(
        &mut self,
        id: ListenerId,
        peer: IpAddr,
    ) -> Result<Arc<ListenerConfig>, DropReason> {
        if self.half_open >= self.limit {
            return Err(DropReason::Backlog);
        }
        let of_peer = self.peers.get(&peer).copied().unwrap_or(0);
        if of_peer >= self.limit_per_peer {
            return Err(DropReason::PeerLimit);
        }
        let listener = self.get(id).ok_or(DropReason::NoListener)?;
        if listener.half_open >= listener.config.backlog {
            return Err(DropReason::Backlog);
        }
        if listener.credits == 0 {
            return Err(DropReason::NoCredit);
        }
        listener.credits -= 1;
        listener.half_open += 1;
        let config = listener.config.clone();
        self.half_open += 1;
        self.peers.insert(peer, of_peer + 1);
        Ok(config)
    }

    /// A stream leaves the backlog: the control thread knows it now, or (`refund`) it is gone and its
    /// credit is free.
    pub(super) fn leave(&mut self, id: ListenerId, peer: IpAddr, refund: bool) {
        self.half_open -= 1;
        if let Some(of_peer) = self.peers.get_mut(&peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                self.peers.remove(&peer);
            }
        }
        if let Some(listener) = self.get(id) {
            listener.half_open = listener.half_open.saturating_sub(1);
            listener.credits = listener.credits.saturating_add(u32::from(refund));
        }
    }

    pub(super) fn half_open(&self) -> u32 {
        self.half_open
    }

    fn get(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.iter_mut().find(|l| l.config.id == id)
    }
}
