//! Start and end of streams over TCP: received SYNs, connects of the control thread, and release of a stream's
//! resources. A SYN creates a stream only if a listener, its peer lists, its required protection, a route and all
//! limits admit it.
//!
//! Not included: segments of streams ([`segment`](super::segment)), SYN cookies ([`syn_cookies`](super::syn_cookies)),
//! and the limits of listeners ([`listeners`](crate::worker::flows::listeners)).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::StreamId;
use ipsec::strength::Strength;
use tcp_lite::endpoint::{self, Endpoint, OpenRequest, UlpConfig};
use tcp_lite::mpa::Revision;
use tcp_lite::tcp::{Flags, FourTuple, Segment, SeqNumber};

use crate::api::{
    Connect, ConnectError, ConnectStage, DropReason, EndpointConfig, Event, HandshakeFailure,
    ListenerConfig, PostFailure, Service, Ticket, Transport,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::memory::Memory;
use crate::net::neighbour::Mac;
use crate::net::path::Path;
use crate::net::protocol::TCP;
use crate::net::sctp_path::UdpPorts;
use crate::worker::control::report::ConnectAttempt;
use crate::worker::flows::carrier::Carrier;
use crate::worker::flows::conn::{Conn, Origin, PendingConnect, Stage, Stream};
use crate::worker::flows::echo::EchoCount;
use crate::worker::flows::listeners::AcceptProgress;
use crate::worker::flows::lower_layer::LowerLayer;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::{Core, Env, Phase};

/// Maximum number of local ports tried per connect. With `n` workers, about one port in `n` is steered to this worker.
const PORT_TRIES: u32 = 4096;
/// Interval at which a stream tries to resolve an unanswered next hop again.
const RESOLVE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl<Io: PortIo> Core<Io> {
    /// Handles a segment without a stream. `mac` is its source link-layer address and `strength` its IPsec protection.
    /// A SYN may open a stream. The ISS of this end is then beyond `last`, the last sequence number of the previous
    /// connection of the flow.
    pub(in crate::worker) fn open_or_refuse(
        &mut self,
        flow: FlowKey,
        mac: Mac,
        strength: Strength,
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) {
        let flags = segment.flags;
        let outcome = if flags.has(Flags::SYN) {
            match flags.intersects(Flags::ACK.with(Flags::RST).with(Flags::FIN)) {
                true => Err(DropReason::NoStream),
                false => self.handle_syn(flow, mac, strength, segment, last, now),
            }
        } else if flags.has(Flags::ACK) && !flags.has(Flags::RST) {
            match self.accept_cookie(flow, strength, segment, now) {
                Ok(true) => Ok(()),
                Ok(false) => Err(DropReason::NoStream),
                Err(reason) => Err(reason),
            }
        } else {
            Err(DropReason::NoStream)
        };
        let Err(mut reason) = outcome else { return };
        if reason == DropReason::NoStream && self.peer_refusal(Transport::Tcp, &flow).is_some() {
            reason = DropReason::PeerRefused;
        }
        self.env.control.counters().drops.count(reason);
        let answered = matches!(
            reason,
            DropReason::NoStream | DropReason::NoListener | DropReason::NotProtected
        );
        let refused = answered && self.send_reset(&flow, mac, segment, now);
        match reason {
            DropReason::NoListener if refused => {
                self.report_no_listener(Transport::Tcp, &flow, now)
            }
            DropReason::NotProtected if refused => {
                self.report_not_protected(Transport::Tcp, &flow, None, now)
            }
            DropReason::PeerRefused if flags.has(Flags::SYN) => {
                self.report_peer_refused(Transport::Tcp, &flow, now);
            }
            _ => {}
        }
    }

    /// Reports a handshake that was refused because its IPsec protection is weaker than the listener requires.
    #[cold]
    pub(in crate::worker) fn report_not_protected(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
        now: Instant,
    ) {
        let interface = self.env.network.interface(usize::from(flow.interface)).id;
        let listener = self.env.admission.listeners().find(transport, interface, flow.local);
        let listener = listener.map(|listener| listener.id);
        let failure = HandshakeFailure::new(transport.name(), "not_protected");
        let seen = self.env.network.strength(transport, flow, udp);
        let detail = || match seen.and_then(Strength::bits) {
            None => "IPsec does not protect the stream".to_owned(),
            Some(0) => "IPsec protects the stream's integrity, but does not encrypt it".to_owned(),
            Some(bits) => format!("IPsec encrypts the stream with keys of {bits} bits"),
        };
        self.env.control.report_failed_handshake(transport, flow, listener, failure, detail, now);
    }

    /// Reports a handshake that was refused because no listener matches.
    #[cold]
    pub(in crate::worker) fn report_no_listener(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        now: Instant,
    ) {
        let failure = HandshakeFailure::new(transport.name(), "no_listener");
        let detail = || format!("nothing listens on {} over {}", flow.local, transport.name());
        self.env.control.report_failed_handshake(transport, flow, None, failure, detail, now);
    }

    /// Handles a SYN in LISTEN (RFC 9293 §3.10.7.2). If a limit is reached, the SYN is answered with a cookie if
    /// possible.
    ///
    /// # Errors
    /// The reason why the SYN neither creates a stream nor is answered with a cookie. If a limit is the reason, the
    /// peer retransmits the SYN.
    fn handle_syn(
        &mut self,
        flow: FlowKey,
        mac: Mac,
        strength: Strength,
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let interface_index = usize::from(flow.interface);
        let interface = self.env.network.interface(interface_index);
        let listener =
            self.env.admission.listeners().find(Transport::Tcp, interface.id, flow.local);
        let listener = Arc::clone(listener.ok_or(DropReason::NoListener)?);
        let EndpointConfig::Tcp(endpoint) = &listener.endpoint else {
            return Err(DropReason::NoListener);
        };
        if listener.peers.check(flow.remote.ip()).is_err() {
            return Err(DropReason::PeerRefused);
        }
        if interface.next_hop(flow.remote.ip()).is_none() {
            return Err(DropReason::NoRoute);
        }
        if !self.env.network.satisfies_listener(&listener, &flow, None, strength) {
            return Err(DropReason::NotProtected);
        }
        if self.env.phase != Phase::Running {
            return Err(DropReason::StreamLimit);
        }
        if self.always_sends_cookies() {
            return self.send_cookie(endpoint, listener.ip, &flow, mac, segment, now);
        }
        match self.accept(&listener, endpoint, flow, segment, last, now) {
            Err(reason) if self.answers_with_cookie(&listener, &flow, reason) => {
                self.send_cookie(endpoint, listener.ip, &flow, mac, segment, now)
            }
            outcome => outcome,
        }
    }

    fn accept(
        &mut self,
        listener: &ListenerConfig,
        config: &Arc<endpoint::EndpointConfig>,
        flow: FlowKey,
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let (local, remote) = (flow.local, flow.remote);
        let (peer, progress) = (remote.ip(), AcceptProgress::Unproven);
        let (listener, ip, min_strength) = (listener.id, listener.ip, listener.min_strength());
        let stream = self.vacancy(now).ok_or(DropReason::StreamLimit)?;
        self.env.admission.listeners_mut().reserve(listener, peer, stream, progress)?;
        // The path is looked up last, because most SYNs of a flood fail earlier.
        let interface_index = usize::from(flow.interface);
        let Some(path) = self.env.network.path(interface_index, TCP, local, remote) else {
            self.env.admission.listeners_mut().release(listener, peer, stream, progress);
            return Err(DropReason::NoRoute);
        };
        let path = path.with_fields(ip);
        let ports = (local.port(), remote.port());
        let (tuple, mss) = (FourTuple { local, remote }, self.env.network.mss(&path, ports, now));
        let mut start = self.env.admission.start(&tuple, now);
        // RFC 9293 §3.6.1: the ISS must be beyond the last sequence number of the previous connection, which may be
        // ahead of the ISN clock.
        if let Some(last) = last.filter(|last| !start.iss.after(*last)) {
            start.iss = last.add(1 << 16);
        }
        let config = Arc::clone(config);
        let endpoint = Endpoint::accept(config, stream, tuple, start, mss, segment, now);
        let origin = Origin::Accepted { listener, progress };
        let slot = self.insert_stream(flow, endpoint, path, origin, stream, now);
        self.require_strength(CarrierKind::Connection, slot, min_strength);
        self.env.control.counters().streams.segments.add(1);
        Ok(())
    }

    /// Returns the id for a new stream; `None` if all slots are taken. The oldest stream in TIME-WAIT is evicted if
    /// necessary. Without eviction, a peer that lets this end close first could fill all slots at no cost.
    pub(in crate::worker) fn vacancy(&mut self, now: Instant) -> Option<StreamId> {
        if self.streams.vacancy().is_none()
            && let Some(slot) = self.streams.take_oldest_time_wait()
        {
            self.env.control.counters().streams.time_wait_recycled.add(1);
            // If an earlier frame of this burst has ended the stream, its end is not reported yet.
            self.report_all(slot, now);
            self.remove_stream(slot);
        }
        self.streams.vacancy().map(|(_, id)| id)
    }

    /// Opens a stream for the control thread. A failure at this end is reported at once.
    pub(in crate::worker) fn connect(&mut self, connect: Connect, now: Instant) {
        let min_strength = Strength::CLEAR;
        self.start_attempt(ConnectAttempt { connect: Box::new(connect), min_strength }, now);
    }

    /// Opens a stream as [`connect`](Self::connect) does, with a minimum IPsec protection.
    pub(in crate::worker) fn start_attempt(
        &mut self,
        ConnectAttempt { mut connect, min_strength }: ConnectAttempt,
        now: Instant,
    ) {
        let ticket = connect.ticket;
        connect.service.configure(&mut connect.ulp);
        if let Service::Program(pair) = connect.service
            && self.configure_pair(pair, &mut connect.ulp).is_err()
        {
            let reason = ConnectError::QueuePair;
            return self.env.control.send(Event::ConnectFailed { ticket, reason });
        }
        if let Err(reason) = self.try_connect(*connect, min_strength, now) {
            self.env.control.send(Event::ConnectFailed { ticket, reason });
        }
    }

    fn try_connect(
        &mut self,
        connect: Connect,
        least: Strength,
        now: Instant,
    ) -> Result<(), ConnectError> {
        if self.env.phase != Phase::Running {
            return Err(ConnectError::Draining);
        }
        let interface_index = usize::from(connect.interface.0);
        let interface =
            self.env.network.interfaces().get(interface_index).ok_or(ConnectError::NoInterface)?;
        if self.env.ports.get(interface.port).is_none() {
            return Err(ConnectError::NoInterface);
        }
        let remote = connect.remote;
        if !is_valid_remote(remote) {
            return Err(ConnectError::BadPeer);
        }
        let local = match connect.local {
            Some(local) if !interface.has_address(local) => {
                return Err(ConnectError::NoSuchAddress);
            }
            Some(local) => local,
            None if interface.has_address(remote.ip()) => remote.ip(),
            None => interface.source_for(remote.ip()).ok_or(ConnectError::NoRoute)?,
        };
        let ip = connect.ip;
        let endpoint = match &connect.endpoint {
            EndpointConfig::Tcp(endpoint) => Arc::clone(endpoint),
            EndpointConfig::Sctp(config) => {
                let config = Arc::clone(config);
                return self.connect_over_sctp(connect, config, interface_index, local, least, now);
            }
        };
        let stream = self.vacancy(now).ok_or(ConnectError::TooManyStreams)?;
        let local = self.choose_port(Transport::Tcp, interface_index, local, remote);
        let local = local.ok_or(ConnectError::NoPort)?;
        let path = self
            .env
            .network
            .path(interface_index, TCP, local, remote)
            .ok_or(ConnectError::NoRoute)?;
        let path = path.with_fields(ip);
        let ports = (local.port(), remote.port());
        let (tuple, mss) = (FourTuple { local, remote }, self.env.network.mss(&path, ports, now));
        let start = self.env.admission.start(&tuple, now);
        let deadline = now + connect.timeout;
        let retry = second_attempt(&connect, &endpoint).map(Box::new);
        let Connect { ticket, pd, stags, ulp, service, private_data, .. } = connect;
        let echoed = EchoCount::new(&ulp);
        let open = OpenRequest { pd, ulp, private_data };
        let endpoint = Endpoint::connect(endpoint, stream, tuple, start, mss, now, open)
            .map_err(ConnectError::PrivateData)?;
        let origin = Origin::Connect(PendingConnect { ticket, deadline, retry });
        let flow = FlowKey { interface: interface_index as u16, local, remote };
        let min_strength =
            least.max(self.env.network.connect_strength(Transport::Tcp, &flow, None));
        let slot = self.insert_stream(flow, endpoint, path, origin, stream, now);
        self.require_strength(CarrierKind::Connection, slot, min_strength);
        self.set_service(stream, service, echoed);
        // RFC 5041 §8.2: from the first byte on, no other stream can access the regions bound to this stream.
        for stag in stags {
            self.bind_for_stream(stag, pd, stream, now);
        }
        Ok(())
    }

    /// Returns `local` with a port whose inbound packets are steered to this worker; `None` if none is found. The
    /// search starts at a random port (RFC 6056 §3.3.1) and skips ports in use with the same peer, including ports in
    /// TIME-WAIT.
    pub(in crate::worker) fn choose_port(
        &mut self,
        transport: Transport,
        at: usize,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Option<SocketAddr> {
        let interface = self.env.network.interface(at);
        let (place, ports) = (interface.port, interface.local_ports);
        let start = (self.env.admission.random() % u64::from(ports.count())) as u32;
        let flows = match transport {
            Transport::Tcp => self.streams.flows(),
            Transport::Sctp => self.associations.flows(),
        };
        let steering = match self.env.ports.get(place) {
            Some(slot) => &slot.facts.steering,
            None => return None,
        };
        (0..PORT_TRIES.min(ports.count())).find_map(|n| {
            let local = SocketAddr::new(local, ports.nth(start + n));
            let flow = FlowKey { interface: at as u16, local, remote };
            let owner = match transport {
                Transport::Tcp => steering.owner(remote, local),
                Transport::Sctp => steering.owner_by_ports(remote, local),
            };
            let ours = owner.0 == self.env.index;
            // The two ends of a connection from an interface to its own address need different ports.
            let is_free = local != remote && flows.candidate(flows.hash(&flow)).is_none();
            (ours && is_free).then_some(local)
        })
    }

    /// Inserts a stream at the next vacant slot. Returns the slot; `None` if the table is full.
    pub(in crate::worker) fn insert_stream(
        &mut self,
        key: FlowKey,
        mut endpoint: Endpoint<Memory>,
        path: Path,
        origin: Origin,
        id: StreamId,
        now: Instant,
    ) -> Option<u32> {
        let (slot, _) = self.streams.vacancy()?;
        // RFC 1191 §3.1: a smaller path MTU limits the segments that are sent, but not the MSS option.
        if let Some(mtu) = self.env.network.path_mtu((path.interface(), key.remote.ip()), now) {
            endpoint.set_path_mss(now, mtu.saturating_sub(path.tcp_headers()));
        }
        let mut carrier = Carrier::new(endpoint, path, now);
        carrier.make_ready(slot, self.env.schedules.get_mut(CarrierKind::Connection));
        self.streams.insert(slot, Conn::new(id, LowerLayer::Tcp(carrier), origin, now));
        self.env.control.add_open_stream();
        Some(slot)
    }

    /// Sets the service that handles the messages received on a stream. For a local program, links the stream to its
    /// QP, and aborts the stream if it cannot be linked.
    pub(in crate::worker) fn set_service(
        &mut self,
        stream: StreamId,
        service: Service,
        echoed: EchoCount,
    ) {
        if let Some(conn) =
            self.streams.find_stream(stream).and_then(|slot| self.streams.get_mut(slot))
        {
            conn.service = service.into();
            if service == Service::Echo {
                conn.transient.echo_count = echoed;
            }
        }
        if let Service::Program(pair) = service
            && self.bind_pair(pair, stream).is_err()
        {
            self.abort_stream(stream);
        }
    }

    /// Handles the expiry of a deadline that the worker, not the endpoint, has set for a stream.
    pub(in crate::worker) fn handle_deadline(&mut self, slot: u32, now: Instant) {
        let Some((mut stream, env)) = self.stream_mut(slot) else { return };
        if stream.conn.is_done() {
            // The transmit ring had no room for the stream's last segment (a reset) until the deadline.
            env.control.counters().frames.answers_lost.add(1);
            return self.remove_stream(slot);
        }
        if stream.conn.connect_deadline().is_some_and(|at| at <= now) {
            let awaited = stream.awaited_step();
            env.fail_opening_stream(&mut stream, ConnectError::Timeout(awaited));
        }
    }

    /// Handles a next hop that does not answer. Streams and associations that are being opened fail. Established
    /// streams and associations resolve the next hop again until their own time-outs.
    pub(in crate::worker) fn handle_neighbour_failure(
        &mut self,
        interface: usize,
        address: IpAddr,
        now: Instant,
    ) {
        let next_hop = (interface, address);
        for at in self.env.schedules.get_mut(CarrierKind::Association).take_waiting(next_hop) {
            if let Some(association) = self.associations.get_mut(at) {
                association.carrier.membership_mut().clear_waiting();
                self.handle_association_unreachable(at, now);
            }
        }
        for slot in self.env.schedules.get_mut(CarrierKind::Connection).take_waiting(next_hop) {
            if let Some(carrier) = self.streams.carrier_mut(slot) {
                carrier.membership_mut().clear_waiting();
                self.handle_unreachable(slot, now);
            }
        }
    }

    /// Resumes the streams and associations that waited for this next hop.
    pub(in crate::worker) fn handle_neighbour_resolved(
        &mut self,
        interface: usize,
        address: IpAddr,
    ) {
        let next_hop = (interface, address);
        for at in self.env.schedules.get_mut(CarrierKind::Association).take_waiting(next_hop) {
            if let Some(association) = self.associations.get_mut(at) {
                association.carrier.membership_mut().clear_waiting();
                association
                    .carrier
                    .make_ready(at, self.env.schedules.get_mut(CarrierKind::Association));
            }
        }
        for slot in self.env.schedules.get_mut(CarrierKind::Connection).take_waiting(next_hop) {
            if let Some(carrier) = self.streams.carrier_mut(slot) {
                carrier.membership_mut().clear_waiting();
                carrier.make_ready(slot, self.env.schedules.get_mut(CarrierKind::Connection));
            }
        }
    }

    /// Handles a stream over TCP whose next hop does not answer.
    pub(in crate::worker) fn handle_unreachable(&mut self, slot: u32, now: Instant) {
        let Some((mut stream, env)) = self.stream_mut(slot) else { return };
        if stream.conn.stage == Stage::Starting {
            env.fail_opening_stream(&mut stream, ConnectError::Unreachable);
            // A reset cannot be sent either, so the stream is removed at once.
            self.remove_stream(slot);
        } else if let Some(carrier) = stream.conn.lower.connection() {
            carrier.plan_retry(now + RESOLVE_RETRY_INTERVAL);
            carrier.set_timer(slot, env.schedules.get_mut(CarrierKind::Connection), None);
        }
    }

    /// Removes a stream and releases its resources. Reports a pending connect as failed. The caller must have reported
    /// the end of an announced stream before.
    pub(in crate::worker) fn remove_stream(&mut self, slot: u32) {
        let awaited = self.stream_mut(slot).map(|(stream, _)| stream.awaited_step());
        let Some(mut conn) = self.streams.remove(slot) else { return };
        let env = &mut self.env;
        env.end_stream(&mut conn, |ticket| Event::ConnectFailed {
            ticket,
            reason: ConnectError::Timeout(awaited.unwrap_or(ConnectStage::NextHop)),
        });
        match &mut conn.lower {
            LowerLayer::Tcp(carrier) => {
                // The abort returns receive buffers to the worker's pool.
                carrier.endpoint_mut().abort(env.now, &mut env.tables.context());
                let schedule = env.schedules.get_mut(CarrierKind::Connection);
                carrier.release(slot, schedule, &mut env.network, env.tables.keep_budget_mut());
            }
            LowerLayer::Sctp(session) => {
                env.schedules.get_mut(CarrierKind::Connection).clear_deadline(slot);
                self.remove_session(*session);
            }
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Aborts a stream. The peer receives a TCP reset, or over SCTP a Terminate of the session.
    pub(in crate::worker) fn abort(&mut self, stream: &mut Stream<'_>) {
        if let Some(mut lower) = stream.lower() {
            lower.abort(self.now, &mut self.tables.context());
        }
    }

    /// Fails a pending connect, or a peer's stream that was not announced to the control thread yet.
    pub(in crate::worker) fn fail_opening_stream(
        &mut self,
        stream: &mut Stream<'_>,
        reason: ConnectError,
    ) {
        let failure = HandshakeFailure::new(stream.conn.lower.transport().name(), "unreachable");
        self.report_failed_attempt(stream.conn, failure, &reason);
        self.abort(stream);
        self.end_stream(stream.conn, |ticket| Event::ConnectFailed { ticket, reason });
        self.make_ready(stream);
    }

    /// Ends a stream for the control thread. If a connect is pending, the event that `connect_failed` returns is
    /// reported. Pending posts that use regions are reported as flushed. Returns true if the stream was announced or
    /// established: the caller must then report its end.
    pub(in crate::worker) fn end_stream(
        &mut self,
        conn: &mut Conn,
        connect_failed: impl FnOnce(Ticket) -> Event,
    ) -> bool {
        self.abandon_load(conn);
        self.end_pair(conn);
        let stage = core::mem::replace(&mut conn.stage, Stage::Ended);
        let sources = conn.transient.get_mut().map(|pending| pending.sources.take());
        for (ticket, stag) in sources.into_iter().flatten() {
            let (stream, reason) = (conn.id, PostFailure::Flushed);
            self.control.send(Event::PostFailed { stream, ticket, reason });
            self.tables.release_source(stag);
        }
        if stage != Stage::Ended {
            self.control.remove_open_stream();
        }
        if let Some(opening) = &conn.transient.opening
            && stage == Stage::Starting
        {
            self.control.send(connect_failed(opening.ticket));
        }
        if let Some((listener, progress)) = conn.accepted.get()
            && stage != Stage::Ended
        {
            let peer = conn.lower.flow().remote.ip();
            self.admission.listeners_mut().release(listener, peer, conn.id, progress);
        }
        self.tables.finish_removals(&mut self.control);
        matches!(stage, Stage::Announced | Stage::Established)
    }
}

/// Returns the parameters of a second attempt with MPA revision 1, if the configuration allows one. A peer without
/// revision 2 closes the connection (RFC 6581 §10).
fn second_attempt(connect: &Connect, config: &endpoint::EndpointConfig) -> Option<Connect> {
    let mpa = &config.mpa;
    let is_rdmap = matches!(connect.ulp, UlpConfig::Rdmap(_));
    if !mpa.retry_rev1 || mpa.initiate != Revision::Two || !is_rdmap {
        return None;
    }
    let mut endpoint = config.clone();
    endpoint.mpa.initiate = Revision::One;
    Some(Connect { endpoint: endpoint.into(), ..connect.clone() })
}

/// Returns true if the address and the port can be the remote end of a stream (RFC 9293 §3.9.1.1 MUST-46).
fn is_valid_remote(end: SocketAddr) -> bool {
    let broadcast = matches!(end.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    let ip = end.ip();
    end.port() != 0 && !(broadcast || ip.is_multicast() || ip.is_unspecified() || ip.is_loopback())
}
