//! The network stack of one worker with its state: neighbours, packets in reassembly, path MTUs, and rate limits on
//! what the worker sends because of unknown hosts.

use std::net::{IpAddr, SocketAddr};

use base::Instant;
use ipsec::guard::Guard;
use ipsec::policy;
use ipsec::strength::Strength;
use tcp_lite::tcp::HEADER_LEN;

use crate::api::{Counters, DropReason, InterfaceConfig, Limits, ListenerConfig, Transport};
use crate::flow::FlowKey;
use crate::net::demux::Packet;
use crate::net::fragment::Identifications;
use crate::net::interface::Interface;
use crate::net::limit::{PeerLimit, RateLimit};
use crate::net::neighbour::{Claim, ClaimOutcome, Mac, Resolution};
use crate::net::path::Path;
use crate::net::path_mtu::{PathMtus, Peer};
use crate::net::protocol::{SCTP, TCP, UDP};
use crate::net::reassembly::{Fragment, Outcome, Reassembly};
use crate::net::sctp_path::{SctpPath, UdpPorts};
use crate::net::{Notice, Outbox, Stack};

/// Announcements of neighbours that are forwarded to the other workers, at most, per second.
const NEWS: u32 = 2000;

/// Bytes of a packet behind its IP header that an MTU leaves at least: an MSS of 536 (RFC 9293 §3.7.1).
const LEAST: usize = HEADER_LEN + 536;

/// Hash keys for tables that unknown hosts fill.
pub(super) struct Keys {
    /// For the limit on resets by peer.
    pub(super) resets: [u8; 16],
    /// For the limit on INIT ACKs by peer.
    pub(super) inits: [u8; 16],
    /// For fragments that are put together.
    pub(super) fragments: [u8; 16],
    /// For the IP identifications of fragments.
    pub(super) identifications: [u8; 16],
}

/// What of the INIT ACKs one peer may cause: each is up to three times as long as its INIT, and goes to the host that the
/// sender claims to be. One peer in so many fits a second of the whole.
const INITS_SHARE: u32 = 32;

/// The network stack of one worker.
pub(super) struct Network {
    stack: Stack,
    outbox: Outbox,
    reassembly: Reassembly,
    identifications: Identifications,
    path_mtus: PathMtus,
    /// Limits announcements of neighbours that are forwarded to the other workers.
    news: RateLimit,
    resets: PeerLimit,
    inits: PeerLimit,
    /// IPsec, where there is some.
    guard: Option<Box<Guard>>,
}

impl Network {
    pub(super) fn new(
        interfaces: Vec<Interface>,
        limits: &Limits,
        keys: Keys,
        guard: Option<Box<Guard>>,
        now: Instant,
    ) -> Self {
        Network {
            stack: Stack::new(interfaces, limits.icmp_per_second, now),
            outbox: Outbox::default(),
            reassembly: Reassembly::new(
                limits.reassembly_packets,
                limits.reassembly_bytes,
                keys.fragments,
            ),
            identifications: Identifications::new(keys.identifications),
            path_mtus: PathMtus::new(limits.path_mtus),
            news: RateLimit::new(NEWS, now),
            resets: PeerLimit::new(limits.resets_per_second, keys.resets, now),
            inits: PeerLimit::with_share(limits.inits_per_second, INITS_SHARE, keys.inits, now),
            guard,
        }
    }

    /// The interfaces, by index.
    #[inline]
    pub(super) fn interfaces(&self) -> &[Interface] {
        &self.stack.interfaces
    }

    /// The interface at this index, which is that of a frame or a stream.
    #[inline]
    pub(super) fn interface(&self, at: usize) -> &Interface {
        &self.stack.interfaces[at]
    }

    /// Bytes of the largest segment payload that a packet of the path's interface can carry (RFC 9293 §3.7.1), of a
    /// connection between these ports.
    #[inline]
    pub(super) fn mss(&mut self, path: &Path, ports: (u16, u16), now: Instant) -> u16 {
        let mtu = self.mtu(path, TCP, ports, now);
        (path.segment_limit(mtu) - HEADER_LEN) as u16
    }

    /// Bytes of the largest IP packet of a flow that goes out by the path's interface: what IPsec adds is deducted.
    #[inline]
    pub(super) fn mtu(
        &mut self,
        path: &Path,
        protocol: u8,
        ports: (u16, u16),
        now: Instant,
    ) -> u16 {
        let mtu = self.interface(path.interface()).mtu;
        if self.guard.is_none() {
            return mtu;
        }
        self.guarded_mtu(path, protocol, ports, now)
    }

    #[inline(never)]
    fn guarded_mtu(&mut self, path: &Path, protocol: u8, ports: (u16, u16), now: Instant) -> u16 {
        let mtu = self.interface(path.interface()).mtu;
        let Some(guard) = &mut self.guard else { return mtu };
        let (local, remote) = path.addresses();
        let flow =
            policy::Flow { local, remote, protocol, ports: Some(ports), icmp: None, ike: false };
        let largest = guard.largest(&flow, mtu.into(), path.l3_len(), now);
        // An MTU of which ESP leaves less than this is no MTU.
        largest.unwrap_or_default().max(path.l3_len() + LEAST) as u16
    }

    /// The way from `local` to `remote` by the interface at this place: to the end of the tunnel, if there is one.
    #[inline]
    pub(super) fn path(
        &mut self,
        at: usize,
        protocol: u8,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<Path> {
        let interface = &self.stack.interfaces[at];
        let Some(guard) = &mut self.guard else {
            return Path::new(at, interface, local, remote);
        };
        let flow = policy::Flow {
            local: local.ip(),
            remote: remote.ip(),
            protocol,
            ports: Some((local.port(), remote.port())),
            icmp: None,
            ike: false,
        };
        let next_hop = interface.next_hop(guard.tunnel(&flow).unwrap_or(remote.ip()))?;
        Path::by(at, interface, local.ip(), remote.ip(), next_hop)
    }

    /// The way of an association, and bytes of the largest SCTP packet along it.
    pub(super) fn sctp_path(
        &mut self,
        at: usize,
        local: SocketAddr,
        remote: SocketAddr,
        udp: Option<UdpPorts>,
        now: Instant,
    ) -> Option<(SctpPath, usize)> {
        let (protocol, ports) = match udp {
            Some(udp) => (UDP, (udp.local, udp.remote)),
            None => (SCTP.into(), (local.port(), remote.port())),
        };
        let [outer_local, outer_remote] = [(local, ports.0), (remote, ports.1)]
            .map(|(end, port)| SocketAddr::new(end.ip(), port));
        let path = self.path(at, protocol, outer_local, outer_remote)?;
        let mtu = self.mtu(&path, protocol, ports, now);
        let path = SctpPath::new(path, udp);
        let room = path.packet_limit(mtu);
        Some((path, room))
    }

    /// True unless a listener requires more protection by IPsec than a flow has, or the packet had that asks for a stream; of
    /// SCTP in UDP these are the UDP ports.
    #[inline]
    pub(super) fn protects(
        &mut self,
        listener: &ListenerConfig,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
        packet: Strength,
    ) -> bool {
        if listener.require.is_none() {
            return true;
        }
        let (least, transport) = (listener.least(), listener.endpoint.transport());
        packet >= least && self.strength(transport, flow, udp).is_some_and(|has| has >= least)
    }

    /// See [`Guard::keeps`]. Of SCTP in UDP these are the UDP ports.
    pub(super) fn keeps(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
        least: Strength,
    ) -> bool {
        let flow = selected(transport, flow, udp);
        self.guard.as_mut().is_some_and(|guard| guard.keeps(&flow, least))
    }

    /// Protection by IPsec that a stream opened from here requires: one that begins protected never goes on in clear. Of SCTP in
    /// UDP these are the UDP ports.
    pub(super) fn least_of_opened(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
    ) -> Strength {
        let least = Strength::of_bits(0);
        if self.keeps(transport, flow, udp, least) { least } else { Strength::CLEAR }
    }

    /// The weakest protection of a flow by IPsec; `None` where nothing protects it.
    pub(super) fn strength(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
    ) -> Option<Strength> {
        self.guard.as_mut()?.strength(&selected(transport, flow, udp))
    }

    /// There is IPsec.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// The interfaces, and IPsec beside them.
    #[inline]
    pub(super) fn interfaces_and_guard(&mut self) -> (&[Interface], Option<&mut Guard>) {
        (&self.stack.interfaces, self.guard.as_deref_mut())
    }

    /// IPsec, where there is some.
    pub(super) fn guard(&mut self) -> Option<&mut Guard> {
        self.guard.as_deref_mut()
    }

    /// Processes a packet that is neither TCP nor SCTP. The second value is the number of frames queued in answer.
    ///
    /// # Errors
    /// Why it was dropped; there may be an answer even so.
    pub(super) fn control(
        &mut self,
        packet: &Packet,
        frame: &[u8],
        now: Instant,
    ) -> (Result<Notice, DropReason>, u64) {
        let waiting = self.outbox.len();
        let notice = self.stack.control(packet, frame, now, &mut self.outbox);
        (notice, (self.outbox.len() - waiting) as u64)
    }

    /// Processes an announcement by a neighbour that this or another worker received.
    ///
    /// # Errors
    /// Why it is ignored.
    pub(super) fn claim(
        &mut self,
        interface: usize,
        claim: &Claim,
        now: Instant,
    ) -> Result<ClaimOutcome, DropReason> {
        self.stack.claim(interface, claim, now)
    }

    /// True when one more announcement may be forwarded to the other workers now; it is then counted.
    pub(super) fn may_pass_on(&mut self, now: Instant) -> bool {
        self.news.take(now)
    }

    /// The limit, by peer, on answers to packets that belong to no stream.
    pub(super) fn resets(&mut self) -> &mut PeerLimit {
        &mut self.resets
    }

    /// The limit, by peer, on answers to INITs.
    pub(super) fn inits(&mut self) -> &mut PeerLimit {
        &mut self.inits
    }

    /// The link-layer address of a path's next hop; solicits it if need be.
    #[inline]
    pub(super) fn resolve(&mut self, path: &Path, now: Instant) -> Resolution {
        self.stack.resolve(path.interface(), path.next_hop(), now, &mut self.outbox)
    }

    /// RFC 4861 §7.3.1: forward progress; the next hop of this path is reachable.
    pub(super) fn confirm(&mut self, path: &Path, now: Instant) {
        self.stack.interfaces[path.interface()].neighbours.confirm(path.next_hop(), now);
    }

    /// RFC 9293 §3.8.3 R1: many retransmissions; the next hop of this path is to be verified.
    pub(super) fn doubt(&mut self, path: &Path, now: Instant) {
        self.stack.interfaces[path.interface()].neighbours.doubt(path.next_hop(), now);
    }

    /// Protects the neighbour cache entry of a path's next hop from eviction; false if there is none.
    pub(super) fn pin(&mut self, path: &Path) -> bool {
        self.stack.interfaces[path.interface()].neighbours.pin(path.next_hop())
    }

    /// Undoes [`pin`](Self::pin).
    pub(super) fn unpin(&mut self, path: &Path) {
        self.stack.interfaces[path.interface()].neighbours.unpin(path.next_hop());
    }

    /// Takes a fragment of a packet. The second value is the number of packets dropped to make room.
    ///
    /// # Errors
    /// Why it was dropped.
    pub(super) fn reassemble(
        &mut self,
        interface: usize,
        fragment: &Fragment,
        frame: &[u8],
        now: Instant,
    ) -> Result<(Outcome, u64), DropReason> {
        self.reassembly.input(interface, fragment, frame, now)
    }

    /// Drops packets whose fragments did not arrive in time; returns their number.
    #[inline]
    pub(super) fn expire_reassembly(&mut self, now: Instant) -> u64 {
        self.reassembly.expire(now)
    }

    /// IP identifications for packets sent in fragments.
    pub(super) fn identifications(&mut self) -> &mut Identifications {
        &mut self.identifications
    }

    /// The path MTU to a peer, bytes, if known.
    pub(super) fn path_mtu(&self, peer: Peer, now: Instant) -> Option<u16> {
        self.path_mtus.get(peer, now)
    }

    /// Stores the path MTU, bytes, that a stream or an association has discovered.
    pub(super) fn learn_path_mtu(&mut self, peer: Peer, mtu: u16, now: Instant) {
        self.path_mtus.learn(peer, mtu, now);
    }

    /// Retransmits due solicitations; calls `failed` with interface and address of neighbours that did not answer.
    /// Returns the number of solicitations.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant, failed: impl FnMut(usize, IpAddr)) -> u64 {
        self.stack.poll(now, &mut self.outbox, failed)
    }

    /// The earliest deadline of neighbours and reassembly.
    #[inline]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [self.stack.poll_timeout(), self.reassembly.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// Makes an interface known on its link, and looks for other hosts with its addresses.
    pub(super) fn appear(&mut self, interface: usize, now: Instant) {
        self.stack.appear(interface, now);
    }

    /// An interface has another link-layer address. Its link-local address of IPv6 stays.
    pub(super) fn set_mac(&mut self, interface: usize, mac: Mac) {
        self.stack.interfaces[interface].mac = mac;
    }

    /// The neighbours of an interface may be others than before: those in use are verified.
    pub(super) fn doubt_all(&mut self, interface: usize, now: Instant) {
        self.stack.interfaces[interface].neighbours.doubt_all(now);
    }

    /// Frames to send, with their ports.
    #[inline]
    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Removes all frames, after they were sent or dropped.
    pub(super) fn clear_outbox(&mut self) {
        self.outbox.clear();
    }

    /// A solicitation for an address, from the first interface.
    #[cfg(test)]
    pub(super) fn solicitation(&mut self, address: IpAddr, now: Instant) -> Vec<u8> {
        let mut out = Outbox::default();
        self.stack.resolve(0, address, now, &mut out);
        out.iter().next().expect("a solicitation").1.to_vec()
    }

    /// What IPsec has done so far.
    pub(super) fn publish_guard(&self, counters: &Counters) {
        let Some(guard) = &self.guard else { return };
        let (counts, counters) = (guard.counts(), &counters.ipsec);
        counters.ipsec_sealed.set(counts.sealed);
        counters.ipsec_sealed_bytes.set(counts.sealed_bytes);
        counters.ipsec_opened.set(counts.opened);
        counters.ipsec_opened_bytes.set(counts.opened_bytes);
        counters.ipsec_notices_lost.set(counts.notices_lost);
    }

    /// Sets the gauges.
    pub(super) fn publish(&self, counters: &Counters) {
        counters.ip.reassembly_bytes.set(self.reassembly.bytes() as u64);
        counters.ip.path_mtus.set(self.path_mtus.len() as u64);
        let neighbours = self.stack.interfaces.iter().map(|i| i.neighbours.len() as u64).sum();
        counters.ip.neighbours.set(neighbours);
    }
}

/// A flow as policies select it; of SCTP in UDP these are the UDP ports.
fn selected(transport: Transport, flow: &FlowKey, udp: Option<UdpPorts>) -> policy::Flow {
    let (local, remote) = (flow.local, flow.remote);
    let (protocol, ports) = match (transport, udp) {
        (Transport::Tcp, _) => (TCP, (local.port(), remote.port())),
        (Transport::Sctp, None) => (SCTP.into(), (local.port(), remote.port())),
        (Transport::Sctp, Some(udp)) => (UDP, (udp.local, udp.remote)),
    };
    let (local, remote) = (local.ip(), remote.ip());
    policy::Flow { local, remote, protocol, ports: Some(ports), icmp: None, ike: false }
}

/// The interfaces of a configuration. `mac` gives a port's link-layer address.
pub(super) fn interfaces(
    configs: &[InterfaceConfig],
    limits: &Limits,
    sctp_udp_port: Option<u16>,
    key: [u8; 16],
    mac: impl Fn(usize) -> [u8; 6],
) -> Vec<Interface> {
    let interfaces = configs.iter().enumerate().map(|(i, config)| {
        let id = crate::api::InterfaceId(i as u16);
        let mac = mac(config.port.0 as usize);
        let mut interface = Interface::new(id, config, mac, limits.neighbours, key);
        interface.encapsulation = sctp_udp_port;
        interface
    });
    interfaces.collect()
}
