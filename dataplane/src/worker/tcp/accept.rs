//! Start and end of streams: received SYNs, connects of the control thread, and the release of a stream's
//! resources.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::StreamId;
use ipsec::strength::Strength;
use tcp_lite::endpoint::{self, Endpoint, Open, UlpConfig};
use tcp_lite::mpa::Revision;
use tcp_lite::tcp::{Flags, FourTuple, Segment, SeqNumber};

use crate::api::{
    Awaited, Connect, ConnectError, DropReason, EndpointConfig, Event, HandshakeFailure,
    ListenerConfig, PostFailure, Service, Ticket, Transport,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::memory::Memory;
use crate::net::neighbour::Mac;
use crate::net::path::Path;
use crate::net::protocol::TCP;
use crate::net::sctp_path::UdpPorts;
use crate::worker::control::report::Again;
use crate::worker::flows::carrier::Carrier;
use crate::worker::flows::conn::{Conn, Opening, Origin, Stage, Stream};
use crate::worker::flows::echo::Echoed;
use crate::worker::flows::listen::Progress;
use crate::worker::flows::lower::Lower;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::{Core, Env, Phase};

/// Maximum source ports tried. With `n` workers, about one port in `n` maps to this worker.
const PORT_TRIES: u32 = 4096;
/// Interval at which a stream resolves an unanswered next hop again.
const RETRY: Duration = Duration::from_secs(1);

impl<Io: PortIo> Core<Io> {
    /// Handles a segment without a stream, received from this link-layer address under this IPsec protection. A
    /// SYN may open a stream; its ISS is then beyond `last`, the last sequence number of the flow's previous
    /// incarnation.
    pub(in crate::worker) fn no_stream(
        &mut self,
        flow: FlowKey,
        from: (Mac, Strength),
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) {
        let flags = segment.flags;
        let outcome = if flags.has(Flags::SYN) {
            match flags.any(Flags::ACK.with(Flags::RST).with(Flags::FIN)) {
                true => Err(DropReason::NoStream),
                false => self.syn(flow, from, segment, last, now),
            }
        } else if flags.has(Flags::ACK) && !flags.has(Flags::RST) {
            match self.take_cookie((flow, from.1), segment, now) {
                Ok(true) => Ok(()),
                Ok(false) => Err(DropReason::NoStream),
                Err(reason) => Err(reason),
            }
        } else {
            Err(DropReason::NoStream)
        };
        let Err(mut reason) = outcome else { return };
        if reason == DropReason::NoStream && self.refuses_peer(Transport::Tcp, &flow).is_some() {
            reason = DropReason::PeerRefused;
        }
        self.env.control.counters().drops.count(reason);
        let answered = matches!(
            reason,
            DropReason::NoStream | DropReason::NoListener | DropReason::NotProtected
        );
        let refused = answered && self.refuse(&flow, from.0, segment, now);
        match reason {
            DropReason::NoListener if refused => self.no_listener(Transport::Tcp, &flow, now),
            DropReason::NotProtected if refused => {
                self.not_protected(Transport::Tcp, (&flow, None), now)
            }
            DropReason::PeerRefused if flags.has(Flags::SYN) => {
                self.peer_refused(Transport::Tcp, &flow, now);
            }
            _ => {}
        }
    }

    /// Reports a handshake refused because its IPsec protection is below the listener's minimum.
    #[cold]
    pub(in crate::worker) fn not_protected(
        &mut self,
        transport: Transport,
        (flow, udp): (&FlowKey, Option<UdpPorts>),
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
        self.env.control.handshake_failed((transport, flow), listener, failure, detail, now);
    }

    /// Reports a handshake refused because no listener matches.
    #[cold]
    pub(in crate::worker) fn no_listener(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        now: Instant,
    ) {
        let failure = HandshakeFailure::new(transport.name(), "no_listener");
        let detail = || format!("nothing listens on {} over {}", flow.local, transport.name());
        self.env.control.handshake_failed((transport, flow), None, failure, detail, now);
    }

    /// RFC 9293 §3.10.7.2: a SYN in LISTEN. Beyond a bound the response is a SYN cookie, or the SYN is dropped so
    /// that the peer retransmits it.
    fn syn(
        &mut self,
        flow: FlowKey,
        (mac, strength): (Mac, Strength),
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let at = usize::from(flow.interface);
        let interface = self.env.network.interface(at);
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
        if !self.env.network.protects(&listener, &flow, None, strength) {
            return Err(DropReason::NotProtected);
        }
        if self.env.phase != Phase::Running {
            return Err(DropReason::StreamLimit);
        }
        if self.only_cookies() {
            return self.send_cookie((endpoint, listener.ip), &flow, mac, segment, now);
        }
        match self.accept((&listener, endpoint), flow, segment, last, now) {
            Err(reason) if self.cookie_helps(&listener, &flow, reason) => {
                self.send_cookie((endpoint, listener.ip), &flow, mac, segment, now)
            }
            outcome => outcome,
        }
    }

    fn accept(
        &mut self,
        (listener, config): (&ListenerConfig, &Arc<endpoint::EndpointConfig>),
        flow: FlowKey,
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let (local, remote) = (flow.local, flow.remote);
        let (peer, progress) = (remote.ip(), Progress::Unproven);
        let (listener, ip, least) = (listener.id, listener.ip, listener.least());
        let stream = self.vacancy(now).ok_or(DropReason::StreamLimit)?;
        self.env.admission.listeners_mut().take(listener, peer, stream, progress)?;
        // Last, because most SYNs of a flood fail earlier.
        let at = usize::from(flow.interface);
        let Some(path) = self.env.network.path(at, TCP, local, remote) else {
            self.env.admission.listeners_mut().gone(listener, peer, stream, progress);
            return Err(DropReason::NoRoute);
        };
        let path = path.with_fields(ip);
        let ports = (local.port(), remote.port());
        let (tuple, mss) = (FourTuple { local, remote }, self.env.network.mss(&path, ports, now));
        let mut start = self.env.admission.start(&tuple, now);
        // RFC 9293 §3.6.1: beyond the previous incarnation's last sequence number, which may be ahead of the ISN
        // clock.
        if let Some(last) = last.filter(|last| !start.iss.after(*last)) {
            start.iss = last.add(1 << 16);
        }
        let config = Arc::clone(config);
        let endpoint = Endpoint::accept(config, stream, tuple, start, mss, segment, now);
        let origin = Origin::Accepted { listener, progress };
        let slot = self.begin(flow, endpoint, path, origin, stream, now);
        self.require(CarrierKind::Connection, slot, least);
        self.env.control.counters().streams.segments.add(1);
        Ok(())
    }

    /// Returns the id for a new stream. With all slots taken, the oldest stream in TIME-WAIT is evicted: otherwise
    /// a peer that makes this side close first could fill all slots at no cost.
    pub(in crate::worker) fn vacancy(&mut self, now: Instant) -> Option<StreamId> {
        if self.streams.vacancy().is_none()
            && let Some(slot) = self.streams.oldest_time_wait()
        {
            self.env.control.counters().streams.time_wait_recycled.add(1);
            // The end is still unreported if this burst brought it.
            self.report_all(slot, now);
            self.forget(slot);
        }
        self.streams.vacancy().map(|(_, id)| id)
    }

    /// Opens a stream, or reports the failure at once.
    pub(in crate::worker) fn connect(&mut self, connect: Connect, now: Instant) {
        let least = Strength::CLEAR;
        self.connect_again(Again { connect: Box::new(connect), least }, now);
    }

    /// Like [`connect`](Self::connect), with a minimum IPsec protection.
    pub(in crate::worker) fn connect_again(
        &mut self,
        Again { mut connect, least }: Again,
        now: Instant,
    ) {
        let ticket = connect.ticket;
        connect.service.configure(&mut connect.ulp);
        if let Err(reason) = self.try_connect(*connect, least, now) {
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
        let at = usize::from(connect.interface.0);
        let interface = self.env.network.interfaces().get(at).ok_or(ConnectError::NoInterface)?;
        if self.env.ports.get(interface.port).is_none() {
            return Err(ConnectError::NoInterface);
        }
        let remote = connect.remote;
        if !is_host(remote) || interface.has(remote.ip()) {
            return Err(ConnectError::BadPeer);
        }
        let local = match connect.local {
            Some(local) if !interface.has(local) => return Err(ConnectError::NoSuchAddress),
            Some(local) => local,
            None => interface.source_for(remote.ip()).ok_or(ConnectError::NoRoute)?,
        };
        let ip = connect.ip;
        let endpoint = match &connect.endpoint {
            EndpointConfig::Tcp(endpoint) => Arc::clone(endpoint),
            EndpointConfig::Sctp(config) => {
                let config = Arc::clone(config);
                return self.connect_over_sctp(connect, config, (at, local), least, now);
            }
        };
        let stream = self.vacancy(now).ok_or(ConnectError::TooManyStreams)?;
        let local = self.choose_port(Transport::Tcp, at, local, remote);
        let local = local.ok_or(ConnectError::NoPort)?;
        let path = self.env.network.path(at, TCP, local, remote).ok_or(ConnectError::NoRoute)?;
        let path = path.with_fields(ip);
        let ports = (local.port(), remote.port());
        let (tuple, mss) = (FourTuple { local, remote }, self.env.network.mss(&path, ports, now));
        let start = self.env.admission.start(&tuple, now);
        let deadline = now + connect.timeout;
        let retry = second_attempt(&connect, &endpoint).map(Box::new);
        let Connect { ticket, pd, stags, ulp, service, private_data, .. } = connect;
        let echoed = Echoed::of(&ulp);
        let open = Open { pd, ulp, private_data };
        let endpoint = Endpoint::connect(endpoint, stream, tuple, start, mss, now, open)
            .map_err(ConnectError::PrivateData)?;
        let origin = Origin::Opening(Opening { ticket, deadline, retry });
        let flow = FlowKey { interface: at as u16, local, remote };
        let least = least.max(self.env.network.least_of_opened(Transport::Tcp, &flow, None));
        let slot = self.begin(flow, endpoint, path, origin, stream, now);
        self.require(CarrierKind::Connection, slot, least);
        self.set_service(stream, service, echoed);
        // RFC 5041 §8.2: accessible to this stream only, from the first byte on.
        for stag in stags {
            self.bind_for_stream(stag, pd, stream, now);
        }
        Ok(())
    }

    /// Chooses a local port whose inbound packets are steered to this worker. The choice starts at a random port
    /// (RFC 6056 §3.3.1) and skips ports in use with the same peer, TIME-WAIT included.
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
            let local = SocketAddr::new(local, ports.at(start + n));
            let flow = FlowKey { interface: at as u16, local, remote };
            let owner = match transport {
                Transport::Tcp => steering.owner(remote, local),
                Transport::Sctp => steering.owner_by_ports(remote, local),
            };
            let ours = owner.0 == self.env.index;
            (ours && flows.candidate(flows.hash(&flow)).is_none()).then_some(local)
        })
    }

    /// Inserts a stream. Returns its slot.
    pub(in crate::worker) fn begin(
        &mut self,
        key: FlowKey,
        mut endpoint: Endpoint<Memory>,
        path: Path,
        origin: Origin,
        id: StreamId,
        now: Instant,
    ) -> Option<u32> {
        let (slot, _) = self.streams.vacancy()?;
        // RFC 1191 §3.1: a smaller path MTU limits what is sent, not the MSS option.
        if let Some(mtu) = self.env.network.path_mtu((path.interface(), key.remote.ip()), now) {
            endpoint.path_mtu(now, mtu.saturating_sub(path.tcp_headers()));
        }
        let mut carrier = Carrier::new(endpoint, path, now);
        carrier.make_ready(slot, self.env.schedules.of(CarrierKind::Connection));
        self.streams.insert(slot, Conn::new(id, Lower::Tcp(carrier), origin, now));
        self.env.control.stream_begins();
        Some(slot)
    }

    /// Sets the service that handles the received messages of a stream.
    pub(in crate::worker) fn set_service(
        &mut self,
        stream: StreamId,
        service: Service,
        echoed: Echoed,
    ) {
        if let Some(conn) = self.streams.find(stream).and_then(|slot| self.streams.get_mut(slot)) {
            conn.service = service;
            if service == Service::Echo {
                conn.pending.echoed = echoed;
            }
        }
    }

    /// Handles a deadline that the worker set for a stream.
    pub(in crate::worker) fn deadline_reached(&mut self, slot: u32, now: Instant) {
        let Some((mut stream, env)) = self.resolve(slot) else { return };
        if stream.conn.is_done() {
            // The transmit ring had no room for its reset in time.
            env.control.counters().frames.answers_lost.add(1);
            return self.forget(slot);
        }
        if stream.conn.opening_deadline().is_some_and(|at| at <= now) {
            let awaited = stream.awaited();
            env.give_up(&mut stream, ConnectError::Timeout(awaited));
        }
    }

    /// Handles a next hop that does not answer. Streams that are being opened fail; others resolve again until
    /// their own time-outs.
    pub(in crate::worker) fn neighbour_failed(
        &mut self,
        interface: usize,
        address: IpAddr,
        now: Instant,
    ) {
        let next_hop = (interface, address);
        for at in self.env.schedules.of(CarrierKind::Association).take_waiting(next_hop) {
            if let Some(association) = self.associations.get_mut(at) {
                association.carrier.scheduled().waiting_taken();
                self.association_unreachable(at, now);
            }
        }
        for slot in self.env.schedules.of(CarrierKind::Connection).take_waiting(next_hop) {
            if let Some(carrier) = self.streams.carrier_mut(slot) {
                carrier.scheduled().waiting_taken();
                self.unreachable(slot, now);
            }
        }
    }

    /// Resumes the streams and associations that waited for this next hop.
    pub(in crate::worker) fn neighbour_found(&mut self, interface: usize, address: IpAddr) {
        let next_hop = (interface, address);
        for at in self.env.schedules.of(CarrierKind::Association).take_waiting(next_hop) {
            if let Some(association) = self.associations.get_mut(at) {
                association.carrier.scheduled().waiting_taken();
                association.carrier.make_ready(at, self.env.schedules.of(CarrierKind::Association));
            }
        }
        for slot in self.env.schedules.of(CarrierKind::Connection).take_waiting(next_hop) {
            if let Some(carrier) = self.streams.carrier_mut(slot) {
                carrier.scheduled().waiting_taken();
                carrier.make_ready(slot, self.env.schedules.of(CarrierKind::Connection));
            }
        }
    }

    /// Handles a stream whose next hop is unreachable now.
    pub(in crate::worker) fn unreachable(&mut self, slot: u32, now: Instant) {
        let Some((mut stream, env)) = self.resolve(slot) else { return };
        if stream.conn.stage == Stage::Starting {
            env.give_up(&mut stream, ConnectError::Unreachable);
            // A reset cannot be sent either.
            self.forget(slot);
        } else if let Some(carrier) = stream.conn.lower.connection() {
            carrier.retry_at(now + RETRY);
            carrier.set_timer(slot, env.schedules.of(CarrierKind::Connection), None);
        }
    }

    /// Removes a stream and releases all it holds. A stream known to the control thread was reported as ended
    /// before.
    pub(in crate::worker) fn forget(&mut self, slot: u32) {
        let awaited = self.resolve(slot).map(|(stream, _)| stream.awaited());
        let Some(mut conn) = self.streams.remove(slot) else { return };
        let env = &mut self.env;
        env.ended(&mut conn, |ticket| Event::ConnectFailed {
            ticket,
            reason: ConnectError::Timeout(awaited.unwrap_or(Awaited::NextHop)),
        });
        match &mut conn.lower {
            Lower::Tcp(carrier) => {
                // Returns its buffers to the worker's pool.
                carrier.endpoint_mut().abort(env.now, &mut env.tables.context());
                let schedule = env.schedules.of(CarrierKind::Connection);
                carrier.release(slot, schedule, &mut env.network, env.tables.keep());
            }
            Lower::Sctp(session) => {
                env.schedules.of(CarrierKind::Connection).clear_deadline(slot);
                self.session_gone(*session);
            }
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Aborts a stream.
    pub(in crate::worker) fn abort(&mut self, stream: &mut Stream<'_>) {
        if let Some(mut lower) = stream.lower() {
            lower.abort(self.now, &mut self.tables.context());
        }
    }

    /// Fails a connect, or a stream that is not yet reported to the control thread.
    pub(in crate::worker) fn give_up(&mut self, stream: &mut Stream<'_>, reason: ConnectError) {
        let failure = HandshakeFailure::new(stream.conn.lower.transport().name(), "unreachable");
        self.attempt_failed(stream.conn, failure, &reason);
        self.abort(stream);
        self.ended(stream.conn, |ticket| Event::ConnectFailed { ticket, reason });
        self.make_ready(stream);
    }

    /// Ends a stream for the control thread. A pending connect is reported as `failed`, posts with a source region
    /// as flushed. Only TIME-WAIT may remain. Returns whether the end of an announced or established stream is to
    /// be reported.
    pub(in crate::worker) fn ended(
        &mut self,
        conn: &mut Conn,
        failed: impl FnOnce(Ticket) -> Event,
    ) -> bool {
        self.flush_load(conn);
        let stage = core::mem::replace(&mut conn.stage, Stage::Ended);
        let sources = conn.pending.get_mut().map(|pending| pending.sources.take());
        for (ticket, stag) in sources.into_iter().flatten() {
            let (stream, reason) = (conn.id, PostFailure::Flushed);
            self.control.send(Event::PostFailed { stream, ticket, reason });
            self.tables.release_source(stag);
        }
        if stage != Stage::Ended {
            self.control.stream_ended();
        }
        if let Some(opening) = &conn.pending.opening
            && stage == Stage::Starting
        {
            self.control.send(failed(opening.ticket));
        }
        if let Some((listener, progress)) = conn.accepted.get()
            && stage != Stage::Ended
        {
            let peer = conn.lower.flow().remote.ip();
            self.admission.listeners_mut().gone(listener, peer, conn.id, progress);
        }
        self.tables.finish_removals(&mut self.control);
        matches!(stage, Stage::Announced | Stage::Established)
    }
}

/// Returns the parameters of a second attempt: a peer without revision 2 closes the connection, and revision 1 may
/// be tried then (RFC 6581 §10).
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

/// True if the address and port can be a stream's remote end (RFC 9293 §3.9.2.3).
fn is_host(end: SocketAddr) -> bool {
    let broadcast = matches!(end.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    let ip = end.ip();
    end.port() != 0 && !(broadcast || ip.is_multicast() || ip.is_unspecified() || ip.is_loopback())
}
