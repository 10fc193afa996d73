//! Associations without a session: their accounting in the limits of listeners, and their eviction for new
//! associations.
//!
//! ```text
//!   accepted: Backlog --first session--> Uncounted --last session ends--> Idle --> freed
//!               |                            ^                             |
//!               |                            +------- another session -----+
//!               +--- shuts down without having had a session ---> Idle
//! ```
//!
//! A shutdown may take minutes if the peer does not answer (RFC 9260 §9.2). The association counts against its peer
//! until it is freed. At a peer's limit of streams, the oldest of the peer's associations in shutdown is evicted. At
//! the worker's limit of associations, the oldest association in shutdown is evicted, regardless of its peer.

use std::net::IpAddr;

use base::Instant;
use ddp::StreamId;

use crate::api::{DropReason, ListenerId};
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::associations::{Accounting, Association};
use crate::worker::flows::listeners::AcceptProgress;

impl<Io: PortIo> Core<Io> {
    /// Takes a credit and a backlog entry of a listener, for a stream or an association of a peer with a proven
    /// address. If the peer is at its limit of streams, the oldest of its associations in shutdown is evicted.
    ///
    /// # Errors
    /// The limit that is reached. In that case neither credit nor entry is taken.
    pub(in crate::worker) fn reserve_place(
        &mut self,
        listener: ListenerId,
        peer: IpAddr,
        id: StreamId,
        now: Instant,
    ) -> Result<(), DropReason> {
        let reserved = self.env.admission.listeners_mut().reserve(
            listener,
            peer,
            id,
            AcceptProgress::Starting,
        );
        if reserved != Err(DropReason::PeerStreams) || !self.evict_association(Some(peer), now) {
            return reserved;
        }
        self.env.admission.listeners_mut().reserve(listener, peer, id, AcceptProgress::Starting)
    }

    /// Counts an accepted association as idle, if it is not counted yet and has no session.
    pub(super) fn count_if_idle(&mut self, slot: u32) {
        if let Some(association) = self.associations.get_mut(slot)
            && association.listener.is_some()
            && association.accounting == Accounting::Uncounted
            && association.sessions.is_empty()
        {
            association.accounting = Accounting::Idle;
            self.env.admission.listeners_mut().add_idle(association.carrier.peer());
        }
    }

    /// Removes an association from its listener's counts. Returns its previous class.
    pub(super) fn uncount(&mut self, slot: u32) -> Accounting {
        let id = self.associations.id(slot);
        let Some(association) = self.associations.get_mut(slot) else {
            return Accounting::Uncounted;
        };
        let counted = core::mem::replace(&mut association.accounting, Accounting::Uncounted);
        let peer = association.carrier.peer();
        match (counted, association.listener.zip(id)) {
            (Accounting::Backlog, Some((listener, id))) => {
                self.env.admission.listeners_mut().release(
                    listener,
                    peer,
                    id,
                    AcceptProgress::Starting,
                );
            }
            (Accounting::Idle, _) => self.env.admission.listeners_mut().remove_idle(peer),
            _ => {}
        }
        counted
    }

    /// Queues an association for eviction once it is shutting down without a session. An association that still awaited
    /// its first session leaves its listener's backlog and counts as idle.
    pub(super) fn check_evictable(&mut self, slot: u32) {
        let Some(association) = self.associations.get_mut(slot) else { return };
        let is_evictable = association.is_evictable();
        if core::mem::replace(&mut association.listed_evictable, is_evictable) || !is_evictable {
            return;
        }
        if association.accounting == Accounting::Backlog {
            self.report_missing_session(slot);
            self.uncount(slot);
            self.count_if_idle(slot);
        }
        let Some(id) = self.associations.id(slot) else { return };
        self.associations.add_evictable(id);
        if let Some(association) = self.associations.get(slot)
            && association.accounting == Accounting::Idle
        {
            let (peer, all) = (association.carrier.peer(), &self.associations);
            let is_live = |id| all.find_by_id(id).is_some();
            self.env.admission.listeners_mut().add_evictable(peer, id, is_live);
        }
    }

    /// Aborts the oldest association, of `peer` or of all peers, that is shutting down without a session. Returns true
    /// if there was one. The association is freed at once: its ABORT is sent only if the transmit ring has room now.
    pub(super) fn evict_association(&mut self, peer: Option<IpAddr>, now: Instant) -> bool {
        let found = match peer {
            Some(peer) => {
                let all = &self.associations;
                let listeners = self.env.admission.listeners_mut();
                listeners.take_oldest_evictable(peer, |id| all.find_evictable(id))
            }
            None => self.associations.take_oldest_evictable(),
        };
        let Some(at) = found else { return false };
        self.evict(at, now);
        true
    }

    /// Frees a slot for a locally opened association if all slots are taken. Evicts an association that is shutting
    /// down. If there is none, evicts the locally opened association without a session that has been silent longest.
    pub(super) fn evict_for_open(&mut self, now: Instant) {
        if self.associations.vacancy().is_some() || self.evict_association(None, now) {
            return;
        }
        let is_idle = |association: &Association| {
            let established = !association.is_opening();
            association.connect_config.is_some() && association.sessions.is_empty() && established
        };
        let idle = self.associations.iter().filter(|(_, association)| is_idle(association));
        if let Some((at, _)) = idle.min_by_key(|(_, a)| a.endpoint().idle_since()) {
            self.evict(at, now);
        }
    }

    fn evict(&mut self, slot: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(slot) else { return };
        association.endpoint_mut().abort(now, &mut self.env.tables.session_context());
        if !association.carrier.is_waiting() {
            let _ = self.env.transmit_carrier(slot, &mut association.carrier, now);
        }
        self.env.control.counters().sctp.associations_evicted.add(1);
        self.remove_association(slot);
    }
}
