//! Start and end of associations: cookies that peers return, connects of the control thread, and removal.
//!
//! Not included: received packets ([`input`](super::input)), and the limits and eviction of associations
//! ([`eviction`](super::eviction)).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base::Instant;
use ipsec::strength::Strength;
use sctp_lite::endpoint::{Endpoint, OpenError, OpenRequest, SessionId};
use sctp_lite::sctp::{Cookie, Ends};
use wire::sctp::Packet;

use super::input::PacketOrigin;
use crate::api::{
    Connect, ConnectError, DropReason, EndpointConfig, Event, IpFields, ListenerConfig, ListenerId,
    SctpConfig, Transport,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::memory::Memory;
use crate::net::sctp_path::SctpPath;
use crate::worker::flows::associations::{Accounting, Association};
use crate::worker::flows::carrier::Carrier;
use crate::worker::flows::conn::{Conn, Origin, PendingConnect};
use crate::worker::flows::echo::EchoCount;
use crate::worker::flows::lower_layer::{LowerLayer, Session};
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::{Core, Phase};

impl<Io: PortIo> Core<Io> {
    /// Accepts an association whose state cookie the peer has returned in `packet` (RFC 9260 §5.1.5).
    ///
    /// # Errors
    /// A limit is reached, the worker drains (counted as `StreamLimit`, too), the event ring is nearly full, or there
    /// is no route. The packet is then not answered, so the peer retransmits it.
    pub(super) fn accept_association(
        &mut self,
        listener: &ListenerConfig,
        origin: PacketOrigin,
        cookie: &Cookie,
        packet: &Packet<'_>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let EndpointConfig::Sctp(config) = &listener.endpoint else {
            return Err(DropReason::NoListener);
        };
        if self.env.phase != Phase::Running {
            return Err(DropReason::StreamLimit);
        }
        if self.env.control.is_congested() {
            // Each association causes an event when it ends. An unknown sender can open and end an association with
            // only three packets: INIT, COOKIE ECHO, ABORT.
            return Err(DropReason::EventRing);
        }
        let interface_index = usize::from(origin.flow.interface);
        let udp = self.associations.udp_ports(origin.udp);
        let path = self.env.network.sctp_path(
            interface_index,
            origin.flow.local,
            origin.flow.remote,
            udp,
            now,
        );
        let (path, room) = path.ok_or(DropReason::NoRoute)?;
        let path = path.with_fields(listener.ip);
        if self.associations.vacancy().is_none() {
            self.evict_association(None, now);
        }
        let (_, id) = self.associations.vacancy().ok_or(DropReason::StreamLimit)?;
        self.reserve_place(listener.id, origin.flow.remote.ip(), id, now)?;
        let (sctp, endpoint) = (Arc::clone(&config.sctp), Arc::clone(&config.endpoint));
        let secrets = self.associations.secrets();
        let endpoint = Endpoint::accept(sctp, endpoint, secrets, origin.ends(), room, cookie, now);
        let slot = self.insert_association(origin.flow, endpoint, path, now);
        if let Some(association) = self.associations.get_mut(slot) {
            association.listener = Some(listener.id);
            association.accounting = Accounting::Backlog;
            association.awaits_session = true;
        }
        self.require_strength(CarrierKind::Association, Some(slot), listener.min_strength());
        self.input_sctp_packet(slot, origin, packet, now);
        Ok(())
    }

    /// Opens a stream over SCTP. If an existing association to the peer has the same configuration, and room for a
    /// session, the stream becomes a session of this association. Otherwise the worker opens a new association. An
    /// existing association may end before the peer answers, because the peer is closing it or has failed. The stream
    /// is then opened over another association.
    pub(in crate::worker) fn connect_over_sctp(
        &mut self,
        connect: Connect,
        config: Arc<SctpConfig>,
        interface_index: usize,
        local: IpAddr,
        min_strength: Strength,
        now: Instant,
    ) -> Result<(), ConnectError> {
        let stream = self.vacancy(now).ok_or(ConnectError::TooManyStreams)?;
        let (deadline, ip) = (now + connect.timeout, connect.ip);
        let shared =
            self.find_shared_association(interface_index, connect.local, connect.remote, &config);
        let retry = shared.map(|_| Box::new(connect.clone()));
        let Connect { ticket, remote, pd, stags, ulp, service, private_data, .. } = connect;
        let echoed = EchoCount::new(&ulp);
        let open = OpenRequest { pd, ulp, private_data };
        let shared = match shared {
            Some(slot) => self.open_session(slot, now, stream, open.clone())?,
            None => None,
        };
        let (association, id) = match shared {
            Some(opened) => {
                self.require_policy_strength(opened.0);
                opened
            }
            None => {
                let local = self.choose_port(Transport::Sctp, interface_index, local, remote);
                let local = local.ok_or(ConnectError::NoPort)?;
                let flow = FlowKey { interface: interface_index as u16, local, remote };
                self.open_association(flow, config, ip, stream, open, now)?
            }
        };
        self.require_strength(CarrierKind::Association, Some(association), min_strength);
        let association_flow = self.associations.get(association).map(|a| a.carrier.flow());
        let flow = association_flow.ok_or(ConnectError::NoPort)?;
        let session = Session { association, id, flow };
        let origin = Origin::Connect(PendingConnect { ticket, deadline, retry });
        // The vacancy was checked at the beginning, so the table of streams is not full.
        self.insert_session(session, origin, now);
        self.set_service(stream, service, echoed);
        for stag in stags {
            self.bind_for_stream(stag, pd, stream, now);
        }
        Ok(())
    }

    /// Returns the slot of an association that a new stream to `remote` can share; `None` if there is none.
    fn find_shared_association(
        &self,
        interface: usize,
        local: Option<IpAddr>,
        remote: SocketAddr,
        config: &Arc<SctpConfig>,
    ) -> Option<u32> {
        let mut all = self.associations.iter();
        let found = all.find(|(_, association)| {
            let flow = association.carrier.flow();
            usize::from(flow.interface) == interface
                && flow.remote == remote
                && local.is_none_or(|local| flow.local.ip() == local)
                && association.connect_config.as_ref().is_some_and(|c| Arc::ptr_eq(c, config))
                && association.endpoint().can_open()
        });
        found.map(|(slot, _)| slot)
    }

    /// Opens a session of an association. Returns `None` if the association accepts no further sessions.
    fn open_session(
        &mut self,
        slot: u32,
        now: Instant,
        stream: ddp::StreamId,
        open: OpenRequest,
    ) -> Result<Option<(u32, SessionId)>, ConnectError> {
        let Some(association) = self.associations.get_mut(slot) else { return Ok(None) };
        match association.endpoint_mut().open_session(now, stream, open) {
            Ok(id) => {
                association
                    .carrier
                    .make_ready(slot, self.env.schedules.get_mut(CarrierKind::Association));
                Ok(Some((slot, id)))
            }
            Err(error @ OpenError::PrivateData(_)) => Err(ConnectError::Session(error)),
            // The caller opens a new association for the stream.
            Err(OpenError::NoStream | OpenError::Closed) => Ok(None),
        }
    }

    /// Opens an association with a first session. Returns the association's slot and the session.
    fn open_association(
        &mut self,
        flow: FlowKey,
        config: Arc<SctpConfig>,
        ip: IpFields,
        stream: ddp::StreamId,
        open: OpenRequest,
        now: Instant,
    ) -> Result<(u32, SessionId), ConnectError> {
        let FlowKey { interface, local, remote } = flow;
        let udp = self.associations.udp_ports(config.udp);
        if config.udp.is_some() && udp.is_none() {
            return Err(ConnectError::NoUdpPort);
        }
        let path = self.env.network.sctp_path(interface.into(), local, remote, udp, now);
        let (path, room) = path.ok_or(ConnectError::NoRoute)?;
        let path = path.with_fields(ip);
        self.evict_for_open(now);
        self.associations.vacancy().ok_or(ConnectError::TooManyStreams)?;
        let secrets = self.associations.secrets();
        let (sctp, endpoint) = (Arc::clone(&config.sctp), Arc::clone(&config.endpoint));
        let ends = Ends { local, remote };
        let (endpoint, id) =
            Endpoint::connect(sctp, endpoint, secrets, ends, room, now, stream, open)
                .map_err(ConnectError::Session)?;
        let min_strength = self.env.network.connect_strength(Transport::Sctp, &flow, path.udp());
        let slot = self.insert_association(flow, endpoint, path, now);
        self.require_strength(CarrierKind::Association, Some(slot), min_strength);
        if let Some(association) = self.associations.get_mut(slot) {
            association.connect_config = Some(config);
        }
        Ok((slot, id))
    }

    /// If policies protect the flow of an association now, requires protection of the association, even if the
    /// association was opened before these policies applied.
    fn require_policy_strength(&mut self, slot: u32) {
        let Some(association) = self.associations.get(slot) else { return };
        let (flow, udp) = (association.carrier.flow(), association.carrier.path().udp());
        let min_strength = self.env.network.connect_strength(Transport::Sctp, &flow, udp);
        self.require_strength(CarrierKind::Association, Some(slot), min_strength);
    }

    /// Inserts an association at the next vacant slot, which must exist. Returns the slot.
    fn insert_association(
        &mut self,
        key: FlowKey,
        mut endpoint: Endpoint<Memory>,
        path: SctpPath,
        now: Instant,
    ) -> u32 {
        endpoint.set_headers(path.mtu_overhead() as u16);
        // RFC 9260 §7.3, RFC 1191 §3: a cached path MTU applies from the first packet.
        let peer = (path.path.interface(), key.remote.ip());
        if let Some(mtu) = self.env.network.path_mtu(peer, now) {
            endpoint.set_path_mtu(now, path.packet_limit(mtu));
        }
        let slot = self.associations.vacancy().map_or(0, |(slot, _)| slot);
        let mut carrier = Carrier::new(endpoint, path, now);
        carrier.make_ready(slot, self.env.schedules.get_mut(CarrierKind::Association));
        self.associations.insert(slot, Association::new(carrier, now));
        slot
    }

    /// Creates the stream of a session. Returns the stream's slot; `None` if the table of streams is full.
    pub(super) fn insert_session(
        &mut self,
        session: Session,
        origin: Origin,
        now: Instant,
    ) -> Option<u32> {
        let (slot, id) = self.streams.vacancy()?;
        let association = self.associations.get_mut(session.association)?;
        association.sessions.insert(session.id, slot);
        let schedule = self.env.schedules.get_mut(CarrierKind::Association);
        association.carrier.make_ready(session.association, schedule);
        let conn = self.streams.insert(slot, Conn::new(id, LowerLayer::Sctp(session), origin, now));
        self.env.control.add_open_stream();
        if let Some(at) = conn.connect_deadline() {
            self.env.schedules.get_mut(CarrierKind::Connection).set_deadline(slot, at);
        }
        Some(slot)
    }

    /// Ends the session of a stream that is being removed. The association may continue.
    pub(in crate::worker) fn remove_session(&mut self, session: Session) {
        let now = self.env.now;
        let Some(association) = self.associations.get_mut(session.association) else { return };
        association.sessions.remove(&session.id);
        let is_unused = association.sessions.is_empty() && association.is_opening();
        let cx = &mut self.env.tables.session_context();
        association.endpoint_mut().abort_session(now, session.id, cx);
        if is_unused {
            // Without sessions, an association that is still opening has no further purpose.
            association.endpoint_mut().abort(now, cx);
        }
        let schedule = self.env.schedules.get_mut(CarrierKind::Association);
        association.carrier.make_ready(session.association, schedule);
        self.count_if_idle(session.association);
    }

    /// Aborts an association that is opening, and fails all of its streams with `reason`.
    pub(super) fn fail_opening_association(
        &mut self,
        association_slot: u32,
        reason: &ConnectError,
    ) {
        let Some(association) = self.associations.get_mut(association_slot) else { return };
        let slots: Vec<u32> = association.sessions.values().copied().collect();
        association.endpoint_mut().abort(self.env.now, &mut self.env.tables.session_context());
        association
            .carrier
            .make_ready(association_slot, self.env.schedules.get_mut(CarrierKind::Association));
        for slot in slots {
            if let Some(conn) = self.streams.get_mut(slot) {
                self.env.end_stream(conn, |ticket| Event::ConnectFailed {
                    ticket,
                    reason: reason.clone(),
                });
            }
            self.remove_stream(slot);
        }
    }

    /// Removes an association and its remaining streams.
    pub(super) fn remove_association(&mut self, association_slot: u32) {
        let Some(association) = self.associations.get(association_slot) else { return };
        let slots: Vec<u32> = association.sessions.values().copied().collect();
        for slot in slots {
            self.remove_stream(slot);
        }
        self.report_association_evicted(association_slot);
        self.uncount(association_slot);
        let Some(association_id) = self.associations.id(association_slot) else { return };
        let Some(mut association) = self.associations.remove(association_slot) else { return };
        let env = &mut self.env;
        let stats = Box::new(association.stats());
        env.control.send(Event::AssociationClosed { association: association_id, stats });
        // The abort returns receive buffers to the worker's pool.
        association.endpoint_mut().abort(env.now, &mut env.tables.session_context());
        let schedule = env.schedules.get_mut(CarrierKind::Association);
        association.carrier.release(
            association_slot,
            schedule,
            &mut env.network,
            env.tables.keep_budget_mut(),
        );
    }

    /// Aborts the associations of a listener that have not had a session, for peers that `is_selected` selects.
    pub(in crate::worker) fn abort_sessionless_associations(
        &mut self,
        listener: ListenerId,
        is_selected: impl Fn(IpAddr) -> bool,
    ) {
        for slot in self.associations.slots() {
            let Some(association) = self.associations.get_mut(slot) else { continue };
            let peer = association.carrier.peer();
            if association.accounting == Accounting::Backlog
                && association.listener == Some(listener)
                && is_selected(peer)
            {
                self.abort_association(slot);
            }
        }
    }

    /// Shuts down all associations. Each of them ends after its last session.
    pub(in crate::worker) fn drain_associations(&mut self, now: Instant) {
        for slot in self.associations.slots() {
            if let Some(association) = self.associations.get_mut(slot) {
                association.endpoint_mut().shutdown(now);
                association
                    .carrier
                    .make_ready(slot, self.env.schedules.get_mut(CarrierKind::Association));
            }
        }
    }

    /// Aborts all associations.
    pub(in crate::worker) fn abort_associations(&mut self) {
        for slot in self.associations.slots() {
            self.abort_association(slot);
        }
    }

    fn abort_association(&mut self, slot: u32) {
        if let Some(association) = self.associations.get_mut(slot) {
            association.endpoint_mut().abort(self.env.now, &mut self.env.tables.session_context());
            association
                .carrier
                .make_ready(slot, self.env.schedules.get_mut(CarrierKind::Association));
        }
    }

    /// Removes all associations and their streams.
    pub(in crate::worker) fn remove_associations(&mut self) {
        for slot in self.associations.slots() {
            self.remove_association(slot);
        }
    }
}
