//! Associations begin and end: cookies of peers, connects of the control thread, and the taking apart.

use std::net::SocketAddr;
use std::sync::Arc;

use base::Instant;
use hashbrown::HashMap;
use sctp_lite::endpoint::{Endpoint, Open, OpenError, SessionId};
use sctp_lite::sctp::{Cookie, Ends};
use wire::sctp::Packet;

use super::input::Stranger;
use super::{Association, Counts};
use crate::api::{
    Connect, ConnectError, DropReason, EndpointConfig, Event, ListenerConfig, ListenerId,
    SctpConfig, Transport,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::memory::Memory;
use crate::net::carrier::Carrier;
use crate::net::path::Path;
use crate::worker::conn::{Conn, Opening, Origin};
use crate::worker::keep::Kept;
use crate::worker::lower::{Lower, Session};
use crate::worker::rdmap::Echoed;
use crate::worker::schedule::Scheduled;
use crate::worker::{Core, Phase};

impl<Io: PortIo> Core<Io> {
    /// A cookie of ours came back in `packet`: an association is up (RFC 9260 §5.1.5). Past a bound nothing
    /// is said, so that the peer tries again.
    pub(super) fn accept_association(
        &mut self,
        listener: &ListenerConfig,
        from: Stranger,
        cookie: &Cookie,
        packet: &Packet<'_>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let EndpointConfig::Sctp(config) = &listener.endpoint else {
            return Err(DropReason::NoListener);
        };
        if self.phase != Phase::Running {
            return Err(DropReason::StreamLimit);
        }
        if self.control.is_short() {
            // Each association makes an event when it ends, at a cost to strangers of three packets.
            return Err(DropReason::EventRing);
        }
        let at = usize::from(from.flow.interface);
        let interface = &self.network.interface(at);
        let path = Path::new(at, interface, from.flow.local, from.flow.remote);
        let path = path.ok_or(DropReason::NoRoute)?;
        let carrier = Carrier::new(path, self.associations.udp_ports(from.udp));
        let room = carrier.packet_limit(interface.mtu);
        if self.associations.all.vacancy().is_none() {
            self.evict_association(None, now);
        }
        let (_, name) = self.associations.all.vacancy().ok_or(DropReason::StreamLimit)?;
        self.take_place(listener.id, from.flow.remote.ip(), name, now)?;
        let (sctp, endpoint) = (Arc::clone(&config.sctp), Arc::clone(&config.endpoint));
        let secrets = Arc::clone(&self.associations.secrets);
        let endpoint = Endpoint::accept(sctp, endpoint, secrets, from.ends(), room, cookie, now);
        let slot = self.begin_association(from.flow, endpoint, carrier, now);
        if let Some(association) = self.associations.all.get_mut(slot) {
            association.listener = Some(listener.id);
            association.counts = Counts::Place;
        }
        self.give_packet(slot, from, packet, now);
        Ok(())
    }

    /// Opens a stream over SCTP: a session of an association to that peer, if there is one of the same
    /// configuration with room for it, else of a new one.
    pub(in crate::worker) fn connect_over_sctp(
        &mut self,
        connect: Connect,
        config: Arc<SctpConfig>,
        path: Path,
        now: Instant,
    ) -> Result<(), ConnectError> {
        let stream = self.vacancy(now).ok_or(ConnectError::TooManyStreams)?;
        let at = path.interface();
        let deadline = now + connect.timeout;
        let (local, _) = path.addresses();
        let Connect { ticket, remote, pd, stags, ulp, service, private_data, .. } = connect;
        let echoed = Echoed::of(&ulp);
        let open = Open { pd, ulp, private_data };
        let shared = self.association_for(at, connect.local, remote, &config);
        let shared = match shared {
            Some(slot) => self.open_session(slot, now, stream, open.clone())?,
            None => None,
        };
        let (association, id) = match shared {
            Some(opened) => opened,
            None => {
                let local = self.choose_port(Transport::Sctp, at, local, remote);
                let local = local.ok_or(ConnectError::NoPort)?;
                let udp = self.associations.udp_ports(config.udp);
                if config.udp.is_some() && udp.is_none() {
                    return Err(ConnectError::NoUdpPort);
                }
                let carrier = Carrier::new(path.clone(), udp);
                self.open_association((at, local, remote), config, carrier, (stream, open), now)?
            }
        };
        let session = Session { association, id };
        let origin = Origin::Opening(Box::new(Opening { ticket, deadline, retry: None }));
        self.begin_session(session, origin, now);
        self.serve_by(stream, service, echoed);
        for stag in stags {
            self.lend_stag(stag, pd, stream, now);
        }
        Ok(())
    }

    /// The association that a new stream to `remote` can share.
    fn association_for(
        &self,
        interface: usize,
        local: Option<std::net::IpAddr>,
        remote: SocketAddr,
        config: &Arc<SctpConfig>,
    ) -> Option<u32> {
        let all = &self.associations.all;
        all.occupied().find(|&at| {
            all.get(at).is_some_and(|association| {
                usize::from(association.key.interface) == interface
                    && association.key.remote == remote
                    && local.is_none_or(|local| association.key.local.ip() == local)
                    && association.opened.as_ref().is_some_and(|c| Arc::ptr_eq(c, config))
            })
        })
    }

    /// `None` when the association takes no more.
    fn open_session(
        &mut self,
        at: u32,
        now: Instant,
        stream: ddp::StreamId,
        open: Open,
    ) -> Result<Option<(u32, SessionId)>, ConnectError> {
        let Some(endpoint) = self.associations.endpoint_mut(at) else { return Ok(None) };
        match endpoint.open_session(now, stream, open) {
            Ok(id) => {
                self.associations.touch(at);
                Ok(Some((at, id)))
            }
            Err(error @ OpenError::PrivateData(_)) => Err(ConnectError::Session(error)),
            // It gets an association of its own.
            Err(OpenError::NoStream | OpenError::Closed) => Ok(None),
        }
    }

    fn open_association(
        &mut self,
        (interface, local, remote): (usize, SocketAddr, SocketAddr),
        config: Arc<SctpConfig>,
        carrier: Carrier,
        (stream, open): (ddp::StreamId, Open),
        now: Instant,
    ) -> Result<(u32, SessionId), ConnectError> {
        self.evict_for_open(now);
        self.associations.all.vacancy().ok_or(ConnectError::TooManyStreams)?;
        let room = carrier.packet_limit(self.network.interface(interface).mtu);
        let secrets = Arc::clone(&self.associations.secrets);
        let (sctp, endpoint) = (Arc::clone(&config.sctp), Arc::clone(&config.endpoint));
        let ends = Ends { local, remote };
        let (endpoint, id) =
            Endpoint::connect(sctp, endpoint, secrets, ends, room, now, stream, open)
                .map_err(ConnectError::Session)?;
        let key = FlowKey { interface: interface as u16, local, remote };
        let at = self.begin_association(key, endpoint, carrier, now);
        if let Some(association) = self.associations.all.get_mut(at) {
            association.opened = Some(config);
        }
        Ok((at, id))
    }

    /// Puts an association in its place, for which there is room; returns the slot.
    fn begin_association(
        &mut self,
        key: FlowKey,
        mut endpoint: Endpoint<Memory>,
        carrier: Carrier,
        now: Instant,
    ) -> u32 {
        endpoint.set_headers(carrier.ip_len() as u16);
        // RFC 9260 §7.3, RFC 1191 §3: what is known of the path is used from the beginning.
        let peer = (carrier.path.interface(), key.remote.ip());
        if let Some(mtu) = self.network.path_mtu(peer, now) {
            endpoint.path_mtu(now, carrier.packet_limit(mtu));
        }
        let at = self.associations.all.vacancy().map_or(0, |(at, _)| at);
        let tag = endpoint.association().local_tag();
        self.associations.all.insert(Box::new(Association {
            key,
            tag,
            path_len: endpoint.association().path_len(),
            endpoint,
            carrier,
            opened: None,
            listener: None,
            counts: Counts::Nothing,
            leaving: false,
            sessions: HashMap::new(),
            scheduled: Scheduled::default(),
            unanswered: 0,
            confirmed: now,
            pinned: false,
            own_deadline: None,
            soft_errors: 0,
            kept: Kept::NOTHING,
        }));
        self.associations.flows.insert(&key, at);
        self.associations.tags.insert(tag, at);
        self.associations.touch(at);
        at
    }

    /// Makes the stream of a session; there is room for it. Returns its slot.
    pub(super) fn begin_session(
        &mut self,
        session: Session,
        origin: Origin,
        now: Instant,
    ) -> Option<u32> {
        let (slot, id) = self.streams.vacancy()?;
        let association = self.associations.all.get_mut(session.association)?;
        let (key, path) = (association.key, association.carrier.path.clone());
        association.sessions.insert(session.id, slot);
        let lower = Lower::Sctp(session);
        self.streams.insert(slot, None, Conn::new(id, key, lower, path, origin, now));
        self.control.stream_begins();
        self.set_timer(slot);
        self.associations.touch(session.association);
        Some(slot)
    }

    /// A stream is forgotten; its association may go on.
    pub(in crate::worker) fn session_gone(&mut self, session: Session) {
        let now = self.now;
        let Some(association) = self.associations.all.get_mut(session.association) else { return };
        association.sessions.remove(&session.id);
        association.endpoint.abort_session(now, session.id, &mut self.tables.session_context());
        if association.sessions.is_empty() && association.is_opening() {
            // What it was opened for is given up.
            association.endpoint.abort(now, &mut self.tables.session_context());
        }
        self.count_if_idle(session.association);
        self.associations.touch(session.association);
    }

    /// All streams that are being opened over an association are told why that failed.
    pub(super) fn give_up_association(&mut self, at: u32, reason: &ConnectError) {
        let Some(association) = self.associations.all.get_mut(at) else { return };
        let slots: Vec<u32> = association.sessions.values().copied().collect();
        association.endpoint.abort(self.now, &mut self.tables.session_context());
        for slot in slots {
            self.ended(slot, |ticket| Event::ConnectFailed { ticket, reason: reason.clone() });
            self.forget(slot);
        }
        self.associations.touch(at);
    }

    /// Takes an association out of everything, with the streams that it still has.
    pub(super) fn forget_association(&mut self, at: u32) {
        let Some(association) = self.associations.all.get(at) else { return };
        let slots: Vec<u32> = association.sessions.values().copied().collect();
        for slot in slots {
            self.forget(slot);
        }
        self.uncount(at);
        let Some(name) = self.associations.name(at) else { return };
        let Some(mut association) = self.associations.all.remove(at) else { return };
        self.tables.keep().count(association.key.remote.ip(), association.kept, 0);
        let stats = Box::new(association.stats());
        self.control.send(Event::AssociationClosed { association: name, stats });
        // Gives back what it has of the worker's buffers.
        association.endpoint.abort(self.now, &mut self.tables.session_context());
        let associations = &mut self.associations;
        associations.flows.remove(&association.key, at);
        associations.tags.remove(&association.tag);
        let path = &association.carrier.path;
        if association.pinned {
            self.network.unpin(path);
        }
        let next_hop = (path.interface(), path.next_hop());
        associations.schedule.remove(at, association.scheduled, path.port(), next_hop);
    }

    /// Their listener goes: associations without a session go with it.
    pub(in crate::worker) fn abort_associations_of(&mut self, listener: ListenerId) {
        for at in self.associations.slots() {
            let Some(association) = self.associations.all.get_mut(at) else { continue };
            if association.counts == Counts::Place && association.listener == Some(listener) {
                association.endpoint.abort(self.now, &mut self.tables.session_context());
                self.associations.touch(at);
            }
        }
    }

    /// The worker drains: associations end when their sessions have.
    pub(in crate::worker) fn drain_associations(&mut self, now: Instant) {
        for at in self.associations.slots() {
            if let Some(endpoint) = self.associations.endpoint_mut(at) {
                endpoint.shutdown(now);
                self.associations.touch(at);
            }
        }
    }

    /// All associations end at once.
    pub(in crate::worker) fn abort_associations(&mut self) {
        for at in self.associations.slots() {
            if let Some(endpoint) = self.associations.endpoint_mut(at) {
                endpoint.abort(self.now, &mut self.tables.session_context());
                self.associations.touch(at);
            }
        }
    }

    /// Nothing of them is left.
    pub(in crate::worker) fn forget_associations(&mut self) {
        for at in self.associations.slots() {
            self.forget_association(at);
        }
    }
}
