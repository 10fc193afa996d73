//! Peers that a listener does not admit. Their first packets are counted and dropped without an answer.
//!
//! The peer lists of listeners apply to:
//!
//! * SYNs and returned SYN cookies of TCP;
//! * INITs and COOKIE ECHOs of SCTP, with or without UDP, including those that restart an association;
//! * packets of an association that arrive from another address;
//! * each new session of an accepted association.
//!
//! Locally opened streams and associations are not affected.

use std::net::IpAddr;
use std::sync::Arc;

use base::Instant;

use crate::api::{HandshakeFailure, ListenerId, PeerFilter, PeerRefusal, Ticket, Transport};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::conn::Stage;

impl<Io: PortIo> Core<Io> {
    /// Returns the listener for a flow and the peer list that refuses the peer. Returns `None` if the peer is admitted
    /// or there is no listener.
    #[cold]
    pub(in crate::worker) fn peer_refusal(
        &self,
        transport: Transport,
        flow: &FlowKey,
    ) -> Option<(ListenerId, PeerRefusal)> {
        let interface = self.env.network.interface(usize::from(flow.interface)).id;
        let listener = self.env.admission.listeners().find(transport, interface, flow.local)?;
        Some((listener.id, listener.peers.check(flow.remote.ip()).err()?))
    }

    /// Reports a SYN or an INIT of a peer that the listener does not admit.
    #[cold]
    pub(in crate::worker) fn report_peer_refused(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        now: Instant,
    ) {
        let Some((listener, refusal)) = self.peer_refusal(transport, flow) else { return };
        let failure = HandshakeFailure::new("admission", "peer_refused");
        self.env.control.report_failed_handshake(
            transport,
            flow,
            Some(listener),
            failure,
            || refusal.to_string(),
            now,
        );
    }

    /// Returns true if the listener of an accepted association refuses `address`, an address of the association's peer.
    #[cold]
    pub(in crate::worker) fn refuses_address(&self, association: u32, address: IpAddr) -> bool {
        let association = self.associations.get(association);
        let listener = association.and_then(|association| association.listener);
        let listeners = self.env.admission.listeners();
        listener.is_some_and(|listener| listeners.admits(listener, address).is_err())
    }

    /// Replaces the peer lists of a listener. Aborts handshakes with peers that are no longer admitted.
    pub(in crate::worker) fn set_peers(
        &mut self,
        listener: ListenerId,
        peers: Arc<PeerFilter>,
        ticket: Ticket,
    ) {
        let result = self.env.admission.listeners_mut().set_peers(listener, Arc::clone(&peers));
        if self.env.admission.listeners().has_half_open(listener) {
            self.abort_handshakes(listener, |peer| peers.check(peer).is_err());
        }
        self.report_done(ticket, result);
    }

    /// Aborts handshakes at a listener with the peers that `is_selected` selects: half-open streams, and associations
    /// that have not had a session.
    pub(in crate::worker) fn abort_handshakes(
        &mut self,
        listener: ListenerId,
        is_selected: impl Fn(IpAddr) -> bool,
    ) {
        for slot in self.streams.slots() {
            let Some((mut stream, env)) = self.stream_mut(slot) else { continue };
            let conn = &stream.conn;
            let peer = conn.lower.flow().remote.ip();
            if conn.stage == Stage::Starting
                && conn.listener() == Some(listener)
                && is_selected(peer)
            {
                env.abort(&mut stream);
                env.make_ready(&mut stream);
            }
        }
        self.abort_sessionless_associations(listener, is_selected);
    }
}
