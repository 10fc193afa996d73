//! The active side: streams that are opened from here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::{
    CloseReason, Command, Connect, ConnectError, EndpointConfig, InterfaceId, SctpConfig, Service,
    Ticket, WorkerId,
};
use ddp::{PdId, StreamId, VersionPolicy};
use tcp_lite::mpa;

use super::core::Core;
use super::endpoints::{connect_endpoint, connect_sctp, opened_ulp, own_queues};
use super::loader::Wanted;
use super::pending::{Loading, NOBODY, Then};
use super::sends::PendingSend;
use super::streams::{State, Stream, new_stream};
use super::verbs::{PendingAtomic, PendingPing};
use crate::advert::{self};
use crate::api::{Answer, ApiError, ConnectSpec, EventKind, RdmapChoice, UlpChoice};
use crate::config::MAX_DEPTH;
use crate::transport::Transport;

/// Time for all of an active open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Ways to open streams that are remembered, and as many to open associations.
const KINDS: usize = 16;
/// What ways to open an association differ in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SctpKind {
    /// The peer's UDP port; `None` without encapsulation.
    udp_port: Option<u16>,
    /// The peer-to-peer model of RFC 6581.
    peer_to_peer: bool,
}

impl SctpKind {
    fn of(spec: &ConnectSpec) -> SctpKind {
        SctpKind { udp_port: spec.udp_port, peer_to_peer: spec.rdmap.peer_to_peer }
    }
}

/// What ways to open a connection differ in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TcpKind {
    /// MPA's revision that is asked for first.
    revision: u8,
    /// Start Keys of the draft instead of frames.
    start_key: bool,
    /// Markers are asked for.
    markers: bool,
    /// CRC is asked for.
    crc: bool,
    /// What kind of peer it is.
    peer: mpa::Peer,
    /// The peer-to-peer model of RFC 6581.
    peer_to_peer: bool,
    /// A second attempt with revision 1.
    retry_revision_1: bool,
}

impl TcpKind {
    fn of(spec: &ConnectSpec, peer: mpa::Peer, start_key: bool) -> TcpKind {
        TcpKind {
            revision: spec.revision(),
            start_key,
            markers: spec.markers(),
            crc: spec.mpa.crc,
            peer,
            peer_to_peer: spec.rdmap.peer_to_peer,
            retry_revision_1: spec.rdmap.retry_revision_1,
        }
    }
}

/// An active open on its way.
pub(super) struct ConnectPlan {
    pub spec: ConnectSpec,
    pub purpose: Purpose,
    interface: InterfaceId,
    worker: WorkerId,
    pd: PdId,
    /// Start Keys instead of frames (the draft's revision 0).
    start_key: bool,
}

/// What a stream is opened for.
pub(super) enum Purpose {
    /// To stand.
    Keep(Answer),
    /// A file.
    Job(u64),
    /// One message.
    Send(Box<PendingSend>),
    /// Rounds of rping.
    Ping(Box<PendingPing>),
    /// One atomic operation.
    Atomic(Box<PendingAtomic>),
}

impl Core {
    pub(super) fn connect(&mut self, spec: ConnectSpec, answer: Answer) {
        self.open(spec, Purpose::Keep(answer), false);
    }

    /// Opens a stream; whoever it is for is told of a failure.
    pub(super) fn open(&mut self, spec: ConnectSpec, purpose: Purpose, start_key: bool) {
        match self.plan(&spec) {
            Ok((interface, worker, pd)) => {
                let regions = spec.regions.clone();
                let plan = ConnectPlan { spec, purpose, interface, worker, pd, start_key };
                let plan = Box::new(plan);
                let exclusive = self.regions.reserve(&regions);
                if exclusive.is_empty() {
                    self.send_connect(*plan);
                } else {
                    let dirty = self.regions.dirty(&exclusive, plan.spec.ulp == UlpChoice::Rdmap);
                    if dirty.is_empty() {
                        self.lend(plan, &exclusive);
                    } else {
                        self.env.load(Wanted::Clear(dirty), Loading::ClearFor(plan));
                    }
                }
            }
            Err(error) => self.connect_refused(purpose, error),
        }
    }

    pub(super) fn on_cleared_for(&mut self, plan: Box<ConnectPlan>, result: Result<(), String>) {
        let gone = |name: &&String| !self.regions.is_live(name);
        let gone = plan.spec.regions.iter().find(gone);
        let gone = gone.map_or(Ok(()), |name| Err(format!("region `{name}` is gone")));
        if let Err(reason) = result.and(gone) {
            self.regions.release(&mut self.env, &plan.spec.regions, NOBODY);
            return self.connect_refused(plan.purpose, ApiError::unavailable(reason));
        }
        let exclusive = self.regions.reserve(&plan.spec.regions);
        self.lend(plan, &exclusive);
    }

    /// Lets the peer of an active open reach its regions.
    fn lend(&mut self, plan: Box<ConnectPlan>, exclusive: &[String]) {
        // Its number is not known yet: nobody may use the region until the worker has given it one.
        self.regions.bind_written(&mut self.env, exclusive, NOBODY, Then::ConnectReady(plan));
    }

    fn plan(&mut self, spec: &ConnectSpec) -> Result<(InterfaceId, WorkerId, PdId), ApiError> {
        if !self.env.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if self.streams.len() as u64 >= u64::from(self.env.facts.config.limits.streams) {
            return Err(ApiError::unavailable(
                "there are as many streams as limits.streams allows",
            ));
        }
        check_spec(spec)?;
        let interface = self.interface_for(spec)?;
        if let Some(refusal) = self.refused_by_link(interface) {
            return Err(refusal);
        }
        let pd = self.regions.domain_of(&spec.regions)?;
        let served = &self.env.facts.served[usize::from(interface.0)];
        // Streams are spread over the workers of the port.
        let turn =
            usize::try_from(self.env.tally.connected + self.env.tally.connect_failed).unwrap_or(0);
        let worker = served.get(turn % served.len().max(1)).copied();
        let worker = worker.ok_or_else(|| ApiError::internal("no worker serves the interface"))?;
        Ok((interface, worker, pd))
    }

    fn interface_for(&self, spec: &ConnectSpec) -> Result<InterfaceId, ApiError> {
        if let Some(name) = &spec.interface {
            return self
                .env
                .facts
                .interface_named(name)
                .ok_or_else(|| ApiError::bad_request(format!("there is no interface `{name}`")));
        }
        let remote = spec.remote.ip();
        let reach = |interface: &crate::config::InterfaceSection| {
            let connected = interface.addresses.iter().map(|prefix| (prefix.address, prefix.len));
            let routed = interface.routes.iter().map(|route| (route.to.address, route.to.len));
            connected
                .chain(routed)
                .filter(|&(net, len)| covers(net, len, remote))
                .map(|p| p.1)
                .max()
        };
        let best = self
            .env
            .facts
            .config
            .interfaces
            .iter()
            .enumerate()
            .filter_map(|(at, i)| Some((reach(i)?, at)));
        // Of several the longest prefix, and of those the first interface.
        best.max_by_key(|&(len, at)| (len, std::cmp::Reverse(at)))
            .and_then(|(_, at)| u16::try_from(at).ok())
            .map(InterfaceId)
            .ok_or_else(|| ApiError::bad_request(format!("no interface has a route to {remote}")))
    }

    pub(super) fn send_connect(&mut self, plan: ConnectPlan) {
        let advertised = self.regions.advertised(&plan.spec.regions);
        let stags = self.regions.exclusive_stags(&plan.spec.regions);
        let private_data = if advertised.is_empty() { vec![] } else { advert::encode(&advertised) };
        let version = if plan.start_key { VersionPolicy::V0 } else { VersionPolicy::V1 };
        let peer = mpa::Peer::from_name(&plan.spec.rdmap.peer).unwrap_or_default();
        let endpoint = match plan.spec.transport {
            Transport::Tcp => EndpointConfig::Tcp(self.tcp_for(&plan.spec, peer, plan.start_key)),
            Transport::Sctp => EndpointConfig::Sctp(self.sctp_for(&plan.spec)),
        };
        let ulp = opened_ulp(&plan.spec, version);
        let mut connect = Connect {
            ticket: Ticket(0),
            interface: plan.interface,
            local: None,
            remote: plan.spec.remote,
            endpoint,
            ulp,
            service: Service::Region,
            pd: plan.pd,
            stags,
            private_data,
            timeout: CONNECT_TIMEOUT,
        };
        let worker = plan.worker;
        connect.ticket = Ticket(self.env.tickets.issue(1, Then::Connected(Box::new(plan))));
        self.env.tell(worker.0, Command::Connect(Box::new(connect)));
    }

    /// What streams that are opened in the same way share, as those of a listener do.
    fn tcp_for(
        &mut self,
        spec: &ConnectSpec,
        peer: mpa::Peer,
        start_key: bool,
    ) -> Arc<tcp_lite::endpoint::EndpointConfig> {
        let key = TcpKind::of(spec, peer, start_key);
        if let Some((_, config)) = self.tcp.iter().find(|(known, _)| *known == key) {
            return Arc::clone(config);
        }
        let config = Arc::new(connect_endpoint(&self.env.facts.config, spec, peer, start_key));
        if self.tcp.len() >= KINDS {
            self.tcp.remove(0);
        }
        self.tcp.push((key, Arc::clone(&config)));
        config
    }

    /// How an association is opened: the same object for the same wishes, so that streams to one peer share
    /// associations.
    fn sctp_for(&mut self, spec: &ConnectSpec) -> Arc<SctpConfig> {
        let key = SctpKind::of(spec);
        if let Some((_, config)) = self.sctp.iter().find(|(known, _)| *known == key) {
            return Arc::clone(config);
        }
        let config = Arc::new(connect_sctp(&self.env.facts.config, spec));
        if self.sctp.len() >= KINDS {
            self.sctp.remove(0);
        }
        self.sctp.push((key, Arc::clone(&config)));
        config
    }

    /// The peer does not speak MPA revision 2 (RFC 6581 §10); the same open goes on with revision 1.
    pub(super) fn on_retrying(&mut self, ticket: Ticket, reason: &CloseReason) {
        let Some(Then::Connected(plan)) = self.env.tickets.get_mut(ticket.0) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        let remote = plan.spec.remote;
        self.env.warn(format!("{remote}: MPA revision 2 failed, trying revision 1: {reason}"));
    }

    pub(super) fn on_connect_failed(&mut self, ticket: Ticket, reason: ConnectError) {
        let Some(Then::Connected(plan)) = self.env.tickets.cancel(ticket.0) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        self.env.tally.connect_failed += 1;
        let ConnectPlan { spec, purpose, .. } = *plan;
        self.regions.release(&mut self.env, &spec.regions, NOBODY);
        self.env.log.push(EventKind::StreamRefused {
            listener: None,
            remote: spec.remote.to_string(),
            reason: reason.to_string(),
        });
        let sentence = format!("{}: {reason}", spec.remote);
        let error = match reason {
            ConnectError::Closed { .. } => ApiError::peer_refused(sentence),
            ConnectError::Timeout | ConnectError::Unreachable => ApiError::timeout(sentence),
            ConnectError::Icmp(_) => ApiError::peer_refused(sentence),
            ConnectError::NoSuchAddress
            | ConnectError::NoRoute
            | ConnectError::NoUdpPort
            | ConnectError::PrivateData(_)
            | ConnectError::Session(_) => ApiError::bad_request(sentence),
            _ => ApiError::unavailable(sentence),
        };
        self.connect_refused(purpose, error);
    }

    pub(super) fn connect_refused(&mut self, purpose: Purpose, error: ApiError) {
        match purpose {
            Purpose::Keep(answer) => answer.send(Err(error)),
            Purpose::Job(job) => self.fail_job(job, error),
            Purpose::Send(send) => send.answer.send(Err(error)),
            Purpose::Ping(ping) => ping.answer.send(Err(error)),
            Purpose::Atomic(atomic) => atomic.answer.send(Err(error)),
        }
    }

    /// A stream that was opened from here stands: it gets its entry and its regions.
    pub(super) fn adopt(
        &mut self,
        id: StreamId,
        plan: ConnectPlan,
        private_data: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Purpose {
        self.env.tally.connected += 1;
        let ConnectPlan { spec, interface, purpose, pd, .. } = plan;
        let peer_regions = match advert::decode(private_data) {
            Ok(regions) => regions,
            Err(advert::AdvertError::NotAnAdvertisement) => Vec::new(),
            Err(error) => {
                self.env.warn(format!("{remote}: {error}"));
                Vec::new()
            }
        };
        self.regions.adopt(&mut self.env, &spec.regions, id);
        let job = match &purpose {
            Purpose::Job(job) => Some(*job),
            _ => None,
        };
        let fresh = new_stream(interface, local, remote, State::Established, pd);
        let stream =
            Stream { regions: spec.regions, peer_regions, queues: own_queues(), job, ..fresh };
        let rdmap = spec.ulp == UlpChoice::Rdmap;
        self.streams.insert(id, Stream { since: now, rdmap, ..stream });
        purpose
    }
}

/// What the interface of the configuration would not have let pass.
fn check_spec(spec: &ConnectSpec) -> Result<(), ApiError> {
    let refused = |sentence: String| Err(ApiError::bad_request(sentence));
    let over_sctp = spec.transport == Transport::Sctp;
    if spec.udp_port.is_some_and(|port| !over_sctp || port == 0) {
        return refused("udp_port is for transport \"sctp\", 1 to 65535".into());
    }
    let revision = spec.revision();
    if !over_sctp && (revision > 2 || revision == 2 && spec.ulp == UlpChoice::Ddp) {
        return refused(format!("MPA revision {revision} is not spoken with this ulp"));
    }
    let RdmapChoice { ird, ord, peer, .. } = &spec.rdmap;
    if *ird > MAX_DEPTH || *ord > MAX_DEPTH {
        return refused(format!("ird and ord are at most {MAX_DEPTH}"));
    }
    match mpa::Peer::from_name(peer) {
        Some(_) => Ok(()),
        None => refused(format!("there is no kind of peer `{peer}`")),
    }
}

/// The prefix holds the address.
fn covers(network: IpAddr, len: u8, address: IpAddr) -> bool {
    let (bits, a, b) = match (network, address) {
        (IpAddr::V4(n), IpAddr::V4(a)) => (32, u128::from(n.to_bits()), u128::from(a.to_bits())),
        (IpAddr::V6(n), IpAddr::V6(a)) => (128, n.to_bits(), a.to_bits()),
        _ => return false,
    };
    let host = bits - u32::from(len).min(bits);
    host >= 128 || (a ^ b) >> host == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_cover_their_addresses() {
        let covers = |network: &str, len, address: &str| {
            covers(network.parse().unwrap(), len, address.parse().unwrap())
        };
        assert!(covers("192.0.2.1", 24, "192.0.2.200"));
        assert!(!covers("192.0.2.1", 24, "192.0.3.1"));
        assert!(covers("0.0.0.0", 0, "8.8.8.8") && covers("::", 0, "2001:db8::1"));
        assert!(covers("2001:db8::1", 64, "2001:db8::ffff"));
        assert!(!covers("2001:db8::1", 128, "2001:db8::2"));
        assert!(!covers("::", 0, "192.0.2.1"));
    }
}
