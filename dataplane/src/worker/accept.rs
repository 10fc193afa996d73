//! Streams begin and end: SYNs of peers, connects of the control thread, and the taking apart.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::StreamId;
use tcp_lite::endpoint::{self, Endpoint, Open, UlpConfig};
use tcp_lite::mpa::{Revision, StartupError};
use tcp_lite::tcp::{Flags, FourTuple, Segment, SeqNumber};

use super::conn::{Conn, Opening, Origin, Stage};
use super::listen::Progress;
use super::lower::Lower;
use super::rdmap::Echoed;
use super::{Core, Phase};
use crate::api::{
    CloseReason, Connect, ConnectError, DropReason, EndpointConfig, Event, ListenerId, PostFailure,
    Service, Ticket, Transport,
};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::memory::Memory;
use crate::net::neighbour::Mac;
use crate::net::path::Path;

/// Source ports: IANA's dynamic range as most hosts use it.
const FIRST_PORT: u16 = 32768;
const PORTS: u16 = 28232;
/// Ports that are tried; with `n` workers one of `n` fits.
const PORT_TRIES: u16 = 4096;
/// After this a stream asks again for a next hop that did not answer.
const RETRY: Duration = Duration::from_secs(1);

impl<Io: PortIo> Core<Io> {
    /// A segment that belongs to no stream: a SYN may begin one, beyond `last` if the flow had one before.
    pub(super) fn no_stream(
        &mut self,
        flow: FlowKey,
        mac: Mac,
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) {
        let flags = segment.flags;
        let outcome = if flags.has(Flags::SYN) {
            match flags.any(Flags::ACK.with(Flags::RST).with(Flags::FIN)) {
                true => Err(DropReason::NoStream),
                false => self.syn(flow, mac, segment, last, now),
            }
        } else if flags.has(Flags::ACK) && !flags.has(Flags::RST) {
            match self.take_cookie(flow, segment, now) {
                Ok(true) => Ok(()),
                Ok(false) => Err(DropReason::NoStream),
                Err(reason) => Err(reason),
            }
        } else {
            Err(DropReason::NoStream)
        };
        let Err(reason) = outcome else { return };
        self.control.counters().drops.count(reason);
        if matches!(reason, DropReason::NoStream | DropReason::NoListener) {
            self.refuse(&flow, mac, segment, now);
        }
    }

    /// RFC 9293 §3.10.7.2: LISTEN gets a SYN. Past a bound it is answered with a cookie, or not at all, so
    /// that the peer tries again later.
    fn syn(
        &mut self,
        flow: FlowKey,
        mac: Mac,
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let at = usize::from(flow.interface);
        let interface = &self.network.interface(at);
        let listener = self.admission.listeners().find(Transport::Tcp, interface.id, flow.local);
        let listener = Arc::clone(listener.ok_or(DropReason::NoListener)?);
        let EndpointConfig::Tcp(endpoint) = &listener.endpoint else {
            return Err(DropReason::NoListener);
        };
        let path = Path::new(at, interface, flow.local, flow.remote).ok_or(DropReason::NoRoute)?;
        if self.phase != Phase::Running {
            return Err(DropReason::StreamLimit);
        }
        if self.only_cookies() {
            return self.send_cookie(endpoint, &flow, mac, segment, now);
        }
        match self.accept((listener.id, endpoint), flow, path, segment, last, now) {
            Err(reason) if self.cookie_helps(&listener, &flow, reason) => {
                self.send_cookie(endpoint, &flow, mac, segment, now)
            }
            outcome => outcome,
        }
    }

    fn accept(
        &mut self,
        (listener, config): (ListenerId, &Arc<endpoint::EndpointConfig>),
        flow: FlowKey,
        path: Path,
        segment: &Segment<'_>,
        last: Option<SeqNumber>,
        now: Instant,
    ) -> Result<(), DropReason> {
        let (local, remote) = (flow.local, flow.remote);
        let (peer, progress) = (remote.ip(), Progress::Unproven);
        let stream = self.vacancy(now).ok_or(DropReason::StreamLimit)?;
        self.admission.listeners_mut().take(listener, peer, stream, progress)?;
        let (tuple, mss) = (FourTuple { local, remote }, self.network.mss(&path));
        let iss = self.admission.isn(&tuple, now);
        // RFC 9293 §3.6.1: beyond what the last incarnation used, which may have run ahead of the clock.
        let iss = last.filter(|l| !iss.after(*l)).map_or(iss, |l| l.add(1 << 16));
        let config = Arc::clone(config);
        let endpoint = Endpoint::accept(config, stream, tuple, iss, mss, segment, now);
        let origin = Origin::Accepted { listener, progress };
        self.begin(flow, endpoint, path, origin, stream, now);
        Ok(())
    }

    /// The name of a stream that begins now. When all places are taken the oldest one in TIME-WAIT gives
    /// way: a peer that makes us close first could fill them all otherwise, at no cost.
    pub(super) fn vacancy(&mut self, now: Instant) -> Option<StreamId> {
        if self.streams.vacancy().is_none()
            && let Some(slot) = self.streams.oldest_time_wait()
        {
            self.control.counters().time_wait_recycled.add(1);
            // Nobody has heard of its end if this very burst brought it.
            self.report_all(slot, now);
            self.forget(slot);
        }
        self.streams.vacancy().map(|(_, id)| id)
    }

    /// Opens a stream, or says at once why not.
    pub(super) fn connect(&mut self, mut connect: Connect, now: Instant) {
        let ticket = connect.ticket;
        connect.service.configure(&mut connect.ulp);
        if let Err(reason) = self.try_connect(connect, now) {
            self.control.send(Event::ConnectFailed { ticket, reason });
        }
    }

    fn try_connect(&mut self, connect: Connect, now: Instant) -> Result<(), ConnectError> {
        if self.phase != Phase::Running {
            return Err(ConnectError::Draining);
        }
        let at = usize::from(connect.interface.0);
        let interface = self.network.interfaces().get(at).ok_or(ConnectError::NoInterface)?;
        if self.ports.get(interface.port).is_none() {
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
        let path = Path::new(at, interface, SocketAddr::new(local, 0), remote)
            .ok_or(ConnectError::NoRoute)?;
        let endpoint = match &connect.endpoint {
            EndpointConfig::Tcp(endpoint) => Arc::clone(endpoint),
            EndpointConfig::Sctp(config) => {
                let config = Arc::clone(config);
                return self.connect_over_sctp(connect, config, path, now);
            }
        };
        let stream = self.vacancy(now).ok_or(ConnectError::TooManyStreams)?;
        let local = self.choose_port(Transport::Tcp, at, local, remote);
        let local = local.ok_or(ConnectError::NoPort)?;
        let (tuple, mss) = (FourTuple { local, remote }, self.network.mss(&path));
        let iss = self.admission.isn(&tuple, now);
        let deadline = now + connect.timeout;
        let retry = second_attempt(&connect, &endpoint).map(Box::new);
        let Connect { ticket, pd, stags, ulp, service, private_data, .. } = connect;
        let echoed = Echoed::of(&ulp);
        let open = Open { pd, ulp, private_data };
        let endpoint = Endpoint::connect(endpoint, stream, tuple, iss, mss, now, open)
            .map_err(ConnectError::PrivateData)?;
        let origin = Origin::Opening(Box::new(Opening { ticket, deadline, retry }));
        let flow = FlowKey { interface: at as u16, local, remote };
        self.begin(flow, endpoint, path, origin, stream, now);
        self.serve_by(stream, service, echoed);
        // RFC 5041 §8.2: from the first octet on for this stream, and for no other.
        for stag in stags {
            self.lend_stag(stag, pd, stream, now);
        }
        Ok(())
    }

    /// The attempt of `slot` with MPA revision 2 has ended. If the peer closed it and that is wanted, opens
    /// the stream once more with revision 1, in the time that is left; says whether.
    pub(super) fn retries(
        &mut self,
        slot: u32,
        reason: &endpoint::CloseReason,
        now: Instant,
    ) -> bool {
        use endpoint::CloseReason as Ended;
        let refused = matches!(
            reason,
            Ended::PeerReset
                | Ended::Startup(StartupError::Closed | StartupError::NotEnhanced)
                | Ended::Startup(StartupError::Revision { .. })
        );
        let Some(conn) = self.streams.get_mut(slot).filter(|c| c.stage == Stage::Starting) else {
            return false;
        };
        let Origin::Opening(opening) = &mut conn.origin else { return false };
        let (ticket, timeout) = (opening.ticket, opening.deadline.saturating_since(now));
        let Some(again) = opening.retry.take().filter(|_| refused && !timeout.is_zero()) else {
            return false;
        };
        // What is left of the first attempt belongs to nobody.
        conn.stage = Stage::Ended;
        self.control.stream_ended();
        let reason = CloseReason::Tcp(reason.clone());
        self.control.send(Event::Retrying { ticket, reason });
        self.connect(Connect { timeout, ..*again }, now);
        true
    }

    /// A source port whose answers arrive at this worker, in an order that nobody can foresee
    /// (RFC 6056 §3.3.1). Streams in TIME-WAIT keep theirs.
    pub(super) fn choose_port(
        &mut self,
        transport: Transport,
        at: usize,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Option<SocketAddr> {
        let start = (self.admission.random() % u64::from(PORTS)) as u16;
        let flows = match transport {
            Transport::Tcp => self.streams.flows(),
            Transport::Sctp => self.associations.flows(),
        };
        let steering = match self.ports.get(self.network.interface(at).port) {
            Some(slot) => &slot.facts.steering,
            None => return None,
        };
        (0..PORT_TRIES).find_map(|n| {
            let port = FIRST_PORT + (start + n) % PORTS;
            let local = SocketAddr::new(local, port);
            let flow = FlowKey { interface: at as u16, local, remote };
            let owner = match transport {
                Transport::Tcp => steering.owner(remote, local),
                Transport::Sctp => steering.owner_by_ports(remote, local),
            };
            let ours = owner.0 == self.index;
            (ours && flows.candidate(flows.hash(&flow)).is_none()).then_some(local)
        })
    }

    /// Puts a stream in its place; returns the slot.
    pub(super) fn begin(
        &mut self,
        key: FlowKey,
        mut endpoint: Endpoint<Memory>,
        path: Path,
        origin: Origin,
        id: StreamId,
        now: Instant,
    ) -> Option<u32> {
        let (slot, _) = self.streams.vacancy()?;
        // RFC 1191 §3.1: a smaller path MTU does not make the MSS smaller that we offer.
        if let Some(mtu) = self.network.path_mtu((path.interface(), key.remote.ip()), now) {
            endpoint.path_mtu(now, mtu.saturating_sub(path.tcp_headers()));
        }
        let lower = Lower::Tcp(endpoint);
        self.streams.insert(slot, Some(&key), Conn::new(id, key, lower, path, origin, now));
        self.control.stream_begins();
        self.touch(slot);
        Some(slot)
    }

    /// Says who deals with what arrives over a stream.
    pub(super) fn serve_by(&mut self, stream: StreamId, service: Service, echoed: Echoed) {
        if let Some(conn) = self.streams.find(stream).and_then(|slot| self.streams.get_mut(slot)) {
            conn.service = service;
            conn.echoed = echoed;
        }
    }

    /// A time that the worker set for a stream has come.
    pub(super) fn own_deadline(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        if conn.stage == Stage::Ended
            && matches!(&conn.lower, Lower::Tcp(endpoint) if endpoint.is_done())
        {
            // Its reset found no room in the time that it had.
            self.control.counters().drops.count(DropReason::TxFull);
            return self.forget(slot);
        }
        if let Origin::Opening(opening) = &conn.origin
            && conn.stage == Stage::Starting
        {
            if opening.deadline <= now {
                self.give_up(slot, ConnectError::Timeout);
            } else {
                conn.pending.own_deadline = Some(opening.deadline).into();
            }
        }
    }

    /// Nobody answers for a next hop: streams that begin are given up, others wait for their own
    /// time-outs and ask again.
    pub(super) fn neighbour_failed(&mut self, interface: usize, address: IpAddr, now: Instant) {
        self.neighbour_of_associations_failed(interface, address, now);
        for slot in self.schedule.take_waiting((interface, address)) {
            if let Some(conn) = self.streams.get_mut(slot) {
                conn.scheduled.waiting_taken();
                self.unreachable(slot, now);
            }
        }
    }

    /// There is no way to a next hop now.
    pub(super) fn unreachable(&mut self, slot: u32, now: Instant) {
        let Some(conn) = self.streams.get_mut(slot) else { return };
        if conn.stage == Stage::Starting {
            self.give_up(slot, ConnectError::Unreachable);
            // Its reset cannot be sent either.
            self.forget(slot);
        } else {
            let again = now + RETRY;
            let at = conn.pending.own_deadline.get().map_or(again, |at| at.min(again));
            conn.pending.own_deadline = Some(at).into();
            self.set_timer(slot);
        }
    }

    /// Ends a stream that the control thread does not know, or knows as its own wish only.
    pub(super) fn give_up(&mut self, slot: u32, reason: ConnectError) {
        self.abort(slot);
        self.ended(slot, |ticket| Event::ConnectFailed { ticket, reason });
        self.touch(slot);
    }

    /// A stream is over for the control thread: says so as far as it knows it, with `failed` if it
    /// was being opened. What is left of it may be TIME-WAIT.
    pub(super) fn ended(&mut self, slot: u32, failed: impl FnOnce(Ticket) -> Event) -> bool {
        self.flush_load(slot);
        let Some(conn) = self.streams.get_mut(slot) else { return false };
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
        match &conn.origin {
            Origin::Opening(opening) if stage == Stage::Starting => {
                self.control.send(failed(opening.ticket));
            }
            Origin::Accepted { listener, progress } if stage != Stage::Ended => {
                self.admission.listeners_mut().gone(*listener, conn.peer(), conn.id, *progress);
            }
            _ => {}
        }
        self.tables.finish_removals(&mut self.control);
        matches!(stage, Stage::Announced | Stage::Established)
    }

    /// Takes a stream out of everything. It has been reported before, or nobody knows it.
    pub(super) fn forget(&mut self, slot: u32) {
        self.ended(slot, |ticket| Event::ConnectFailed { ticket, reason: ConnectError::Timeout });
        let Some(mut conn) = self.streams.remove(slot) else { return };
        self.tables.keep().count(conn.peer(), conn.kept(), 0);
        // Gives back what it has of the worker's buffers.
        match conn.lower {
            Lower::Tcp(ref mut endpoint) => {
                endpoint.abort(&mut self.tables.context());
                self.streams.remove_flow(slot, &conn.flow());
            }
            Lower::Sctp(session) => self.session_gone(session),
        }
        if conn.pinned {
            self.network.unpin(&conn.path);
        }
        let next_hop = (conn.path.interface(), conn.path.next_hop());
        self.schedule.remove(slot, conn.scheduled, conn.path.port(), next_hop);
    }
}

/// RFC 6581 §10: who does not know revision 2 closes the connection, and revision 1 may be tried then.
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

/// True for what can be a host's end of a stream (RFC 9293 §3.9.2.3).
fn is_host(end: SocketAddr) -> bool {
    let broadcast = matches!(end.ip(), IpAddr::V4(ip) if ip.is_broadcast());
    let ip = end.ip();
    end.port() != 0 && !(broadcast || ip.is_multicast() || ip.is_unspecified() || ip.is_loopback())
}
