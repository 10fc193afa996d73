//! Associations without a session: how they are counted, and which are evicted for new ones.
//!
//! ```text
//!   accepted: Place --first session--> Nothing --last session ends--> Idle --> freed
//!               |                         ^                            |
//!               |                         +------- another session ----+
//!               +--- shuts down without having had a session --> Idle
//! ```
//!
//! A shutdown may take minutes if the peer does not answer (RFC 9260 §9.2). The association counts against its peer
//! until it is freed. The oldest one is evicted when the peer is at its limit of streams, or the worker at its
//! limit of associations.

use std::net::IpAddr;

use base::Instant;
use ddp::StreamId;

use crate::api::{DropReason, ListenerId};
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::associations::{Association, Counts};
use crate::worker::flows::listen::Progress;

impl<Io: PortIo> Core<Io> {
    /// Takes a credit and a backlog place for a stream or an association of a peer with a proven address. When the
    /// peer is at its limit of streams, its oldest association that is shutting down is evicted.
    ///
    /// # Errors
    /// The bound that is reached; nothing is taken then.
    pub(in crate::worker) fn take_place(
        &mut self,
        listener: ListenerId,
        peer: IpAddr,
        name: StreamId,
        now: Instant,
    ) -> Result<(), DropReason> {
        let taken =
            self.env.admission.listeners_mut().take(listener, peer, name, Progress::Starting);
        if taken != Err(DropReason::PeerStreams) || !self.evict_association(Some(peer), now) {
            return taken;
        }
        self.env.admission.listeners_mut().take(listener, peer, name, Progress::Starting)
    }

    /// Counts an accepted association by itself, if it has lost its last session.
    pub(super) fn count_if_idle(&mut self, at: u32) {
        if let Some(association) = self.associations.get_mut(at)
            && association.listener.is_some()
            && association.counts == Counts::Nothing
            && association.sessions.is_empty()
        {
            association.counts = Counts::Idle;
            self.env.admission.listeners_mut().idle(association.carrier.peer());
        }
    }

    /// Removes an association from the counts; returns its previous count.
    pub(super) fn uncount(&mut self, at: u32) -> Counts {
        let name = self.associations.name(at);
        let Some(association) = self.associations.get_mut(at) else { return Counts::Nothing };
        let counted = core::mem::replace(&mut association.counts, Counts::Nothing);
        let peer = association.carrier.peer();
        match (counted, association.listener.zip(name)) {
            (Counts::Place, Some((listener, name))) => {
                self.env.admission.listeners_mut().gone(listener, peer, name, Progress::Starting);
            }
            (Counts::Idle, _) => self.env.admission.listeners_mut().idle_no_more(peer),
            _ => {}
        }
        counted
    }

    /// Checks whether an association has begun to shut down or to close; it may be evicted then. An association that
    /// awaited its first session leaves its listener's backlog.
    pub(super) fn check_leaving(&mut self, at: u32) {
        let Some(association) = self.associations.get_mut(at) else { return };
        let leaves = association.is_leaving();
        if core::mem::replace(&mut association.leaving, leaves) || !leaves {
            return;
        }
        if association.counts == Counts::Place {
            self.no_session_came(at);
            self.uncount(at);
            self.count_if_idle(at);
        }
        let Some(name) = self.associations.name(at) else { return };
        self.associations.add_leaving(name);
        if let Some(association) = self.associations.get(at)
            && association.counts == Counts::Idle
        {
            let (peer, all) = (association.carrier.peer(), &self.associations);
            let is_there = |name| all.find_name(name).is_some();
            self.env.admission.listeners_mut().leaving(peer, name, is_there);
        }
    }

    /// Aborts the association without a session that has been shutting down for longest, of this peer or of all;
    /// returns whether there was one. It is freed at once: its ABORT is sent if there is room now.
    pub(super) fn evict_association(&mut self, peer: Option<IpAddr>, now: Instant) -> bool {
        let found = match peer {
            Some(peer) => {
                let all = &self.associations;
                let listeners = self.env.admission.listeners_mut();
                listeners.oldest_leaving(peer, |name| all.find_leaving(name))
            }
            None => self.associations.oldest_leaving(),
        };
        let Some(at) = found else { return false };
        self.evict(at, now);
        true
    }

    /// Makes room for a locally opened association when all slots are taken. If no association is shutting down, the
    /// locally opened one without a session that has been silent for longest is evicted.
    pub(super) fn evict_for_open(&mut self, now: Instant) {
        if self.associations.vacancy().is_some() || self.evict_association(None, now) {
            return;
        }
        let is_idle = |association: &Association| {
            let established = !association.is_opening();
            association.opened.is_some() && association.sessions.is_empty() && established
        };
        let idle = self.associations.iter().filter(|(_, association)| is_idle(association));
        if let Some((at, _)) = idle.min_by_key(|(_, a)| a.endpoint().idle_since()) {
            self.evict(at, now);
        }
    }

    fn evict(&mut self, at: u32, now: Instant) {
        let Some(association) = self.associations.get_mut(at) else { return };
        association.endpoint_mut().abort(now, &mut self.env.tables.session_context());
        if !association.carrier.is_waiting() {
            let _ = self.env.send(at, &mut association.carrier, now);
        }
        self.env.control.counters().sctp.associations_evicted.add(1);
        self.forget_association(at);
    }
}
