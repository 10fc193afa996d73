//! The network stack of one worker: neighbours, packets in reassembly, path MTUs, and rate limits on the packets that
//! unknown hosts can cause the worker to send. Answers are queued in an outbox.
//!
//! Not included: parsing and the neighbour state machine ([`net`](crate::net)), and the packets of streams.

use std::net::{IpAddr, SocketAddr};

use base::Instant;
use ipsec::guard::Guard;
use ipsec::policy;
use ipsec::strength::Strength;
use tcp_lite::tcp::HEADER_LEN;

use crate::api::{Counters, DropReason, InterfaceConfig, Limits, ListenerConfig, Transport};
use crate::flow::FlowKey;
use crate::net::demux::Packet;
use crate::net::fragment::IdentificationGenerator;
use crate::net::interface::Interface;
use crate::net::neighbour::{Claim, ClaimOutcome, Mac, Resolution};
use crate::net::path::Path;
use crate::net::path_mtu::{PathMtus, Peer};
use crate::net::protocol::{SCTP, TCP, UDP};
use crate::net::rate_limit::{PeerLimit, RateLimit};
use crate::net::reassembly::{Fragment, Outcome, Reassembly};
use crate::net::sctp_path::{SctpPath, UdpPorts};
use crate::net::{Notice, Outbox, Stack};

/// Maximum number of neighbour announcements and ICMP errors about ESP that are forwarded to the other workers, per
/// second.
const MAX_CLAIMS_PER_SECOND: u32 = 2000;

/// Minimum payload of an IP packet, bytes, for any MTU: a TCP header and an MSS of 536 (RFC 9293 §3.7.1).
const MIN_PAYLOAD: usize = HEADER_LEN + 536;

/// Keys of hashes whose input unknown hosts can choose.
pub(super) struct NetworkKeys {
    /// Key for the per-peer limit on resets.
    pub(super) resets: [u8; 16],
    /// Key for the per-peer limit on INIT ACKs.
    pub(super) inits: [u8; 16],
    /// Key for the hashes of reassembly.
    pub(super) fragments: [u8; 16],
    /// Key for the IP identifications of sent fragments.
    pub(super) identifications: [u8; 16],
}

/// One peer may cause this fraction (1/32) of the INIT ACKs per second that the worker may send. An INIT ACK is up to
/// three times as long as its INIT, so forged INITs could otherwise flood the host whose source address they carry.
const INIT_SHARE_DIVISOR: u32 = 32;

pub(super) struct Network {
    stack: Stack,
    outbox: Outbox,
    reassembly: Reassembly,
    identifications: IdentificationGenerator,
    path_mtus: PathMtus,
    /// Limit on messages forwarded to the other workers ([`MAX_CLAIMS_PER_SECOND`]).
    claim_limit: RateLimit,
    reset_limit: PeerLimit,
    init_limit: PeerLimit,
    /// IPsec policies and SAs; `None` if IPsec is not configured.
    guard: Option<Box<Guard>>,
}

impl Network {
    pub(super) fn new(
        interfaces: Vec<Interface>,
        limits: &Limits,
        keys: NetworkKeys,
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
            identifications: IdentificationGenerator::new(keys.identifications),
            path_mtus: PathMtus::new(limits.path_mtus),
            claim_limit: RateLimit::new(MAX_CLAIMS_PER_SECOND, now),
            reset_limit: PeerLimit::new(limits.resets_per_second, keys.resets, now),
            init_limit: PeerLimit::with_share(
                limits.inits_per_second,
                INIT_SHARE_DIVISOR,
                keys.inits,
                now,
            ),
            guard,
        }
    }

    #[inline]
    pub(super) fn interfaces(&self) -> &[Interface] {
        &self.stack.interfaces
    }

    /// Returns the interface with this index, as stored in a flow or a path.
    #[inline]
    pub(super) fn interface(&self, index: usize) -> &Interface {
        &self.stack.interfaces[index]
    }

    /// Returns the MSS of a connection with these ports, in bytes: the largest segment payload of a packet on the
    /// path's interface (RFC 9293 §3.7.1).
    #[inline]
    pub(super) fn mss(&mut self, path: &Path, ports: (u16, u16), now: Instant) -> u16 {
        let mtu = self.mtu(path, TCP, ports, now);
        (path.segment_limit(mtu) - HEADER_LEN) as u16
    }

    /// Returns the largest IP packet of a flow on the path's interface, in bytes. With IPsec, the overhead of ESP is
    /// subtracted, except on a loopback path.
    #[inline]
    pub(super) fn mtu(
        &mut self,
        path: &Path,
        protocol: u8,
        ports: (u16, u16),
        now: Instant,
    ) -> u16 {
        let mtu = self.interface(path.interface()).mtu;
        if self.guard.is_none() || path.is_loopback() {
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
        let largest = guard.max_packet_len(&flow, mtu.into(), path.l3_len(), now);
        // Lower bound, for an MTU that is too small after the overhead of ESP.
        largest.unwrap_or_default().max(path.l3_len() + MIN_PAYLOAD) as u16
    }

    /// Returns the path from `local` to `remote` through the interface with index `interface_index`, or `None` without
    /// a route. With IPsec in tunnel mode, the next hop leads to the remote end of the tunnel.
    #[inline]
    pub(super) fn path(
        &mut self,
        interface_index: usize,
        protocol: u8,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<Path> {
        let interface = &self.stack.interfaces[interface_index];
        let Some(guard) = &mut self.guard else {
            return Path::new(interface_index, interface, local, remote);
        };
        let flow = policy::Flow {
            local: local.ip(),
            remote: remote.ip(),
            protocol,
            ports: Some((local.port(), remote.port())),
            icmp: None,
            ike: false,
        };
        let next_hop = interface.next_hop(guard.tunnel_peer(&flow).unwrap_or(remote.ip()))?;
        Path::via(interface_index, interface, local.ip(), remote.ip(), next_hop)
    }

    /// Returns the path of an association and the largest SCTP packet on it, in bytes.
    pub(super) fn sctp_path(
        &mut self,
        interface_index: usize,
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
        let path = self.path(interface_index, protocol, outer_local, outer_remote)?;
        let mtu = self.mtu(&path, protocol, ports, now);
        let path = SctpPath::new(path, udp);
        let room = path.packet_limit(mtu);
        Some((path, room))
    }

    /// Returns true if a packet has enough IPsec protection to open a stream at a listener: the listener requires none,
    /// the packet was looped back, or flow and packet have at least the required strength. For SCTP in UDP, `udp` has
    /// the UDP ports of the flow.
    #[inline]
    pub(super) fn satisfies_listener(
        &mut self,
        listener: &ListenerConfig,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
        packet: Strength,
    ) -> bool {
        if listener.require.is_none() || self.is_loopback(flow) {
            return true;
        }
        let (min_strength, transport) = (listener.min_strength(), listener.endpoint.transport());
        packet >= min_strength
            && self.strength(transport, flow, udp).is_some_and(|has| has >= min_strength)
    }

    /// Returns true if both ends of a flow are addresses of its interface. Only looped-back frames have such a
    /// flow, because demultiplexing drops received frames with one of our addresses as source
    /// ([`DropReason::BadSource`]).
    fn is_loopback(&self, flow: &FlowKey) -> bool {
        self.interface(flow.interface.into()).has_address(flow.remote.ip())
    }

    /// Returns true if no packet of a flow can pass with less than `min_strength` ([`Guard::guarantees`]). Always false
    /// if IPsec is not configured; otherwise always true for a loopback flow. For SCTP in UDP, `udp` has the UDP ports
    /// of the flow.
    pub(super) fn ensures_strength(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
        min_strength: Strength,
    ) -> bool {
        let is_loopback = self.is_loopback(flow);
        let flow = policy_flow(transport, flow, udp);
        self.guard.as_mut().is_some_and(|g| is_loopback || g.guarantees(&flow, min_strength))
    }

    /// Returns the minimum IPsec protection of a locally opened stream. If policies protect the flow now, the stream
    /// requires protection of any strength, so that it never continues in clear. Otherwise it requires none. For SCTP
    /// in UDP, `udp` has the UDP ports of the flow.
    pub(super) fn connect_strength(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
    ) -> Strength {
        let min_strength = Strength::from_bits(0);
        if self.ensures_strength(transport, flow, udp, min_strength) {
            min_strength
        } else {
            Strength::CLEAR
        }
    }

    /// Returns the weakest IPsec protection that policies and SAs allow for a flow; `None` if the flow is not
    /// protected.
    pub(super) fn strength(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        udp: Option<UdpPorts>,
    ) -> Option<Strength> {
        self.guard.as_mut()?.strength(&policy_flow(transport, flow, udp))
    }

    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Borrows the interfaces, together with the IPsec state (mutably; `None` if not configured).
    #[inline]
    pub(super) fn interfaces_and_guard(&mut self) -> (&[Interface], Option<&mut Guard>) {
        (&self.stack.interfaces, self.guard.as_deref_mut())
    }

    /// Returns the IPsec state, if configured.
    pub(super) fn guard(&mut self) -> Option<&mut Guard> {
        self.guard.as_deref_mut()
    }

    /// Processes a packet that is neither TCP nor SCTP. The second value is the number of frames queued in response.
    ///
    /// # Errors
    /// The drop reason. Frames may still have been queued in response.
    pub(super) fn input_control(
        &mut self,
        packet: &Packet,
        frame: &[u8],
        now: Instant,
    ) -> (Result<Notice, DropReason>, u64) {
        let waiting = self.outbox.len();
        let notice = self.stack.handle_control(packet, frame, now, &mut self.outbox);
        (notice, (self.outbox.len() - waiting) as u64)
    }

    /// Processes a neighbour's announcement that this or another worker has received.
    ///
    /// # Errors
    /// The reason why the announcement is ignored.
    pub(super) fn apply_claim(
        &mut self,
        interface: usize,
        claim: &Claim,
        now: Instant,
    ) -> Result<ClaimOutcome, DropReason> {
        self.stack.handle_claim(interface, claim, now)
    }

    /// Takes a token of the rate limit on messages to the other workers. Returns false if the limit is reached.
    pub(super) fn may_forward_claim(&mut self, now: Instant) -> bool {
        self.claim_limit.take(now)
    }

    /// Returns the per-peer limit on answers to packets without a stream.
    pub(super) fn reset_limit_mut(&mut self) -> &mut PeerLimit {
        &mut self.reset_limit
    }

    /// Returns the per-peer limit on answers to INITs.
    pub(super) fn init_limit_mut(&mut self) -> &mut PeerLimit {
        &mut self.init_limit
    }

    /// Returns the link-layer address of a path's next hop. Solicits the address if necessary.
    #[inline]
    pub(super) fn resolve(&mut self, path: &Path, now: Instant) -> Resolution {
        if path.is_loopback() {
            return Resolution::Known(self.stack.interfaces[path.interface()].mac);
        }
        self.stack.resolve(path.interface(), path.next_hop(), now, &mut self.outbox)
    }

    /// Records forward progress, which confirms that the path's next hop is reachable (RFC 4861 §7.3.1).
    pub(super) fn confirm(&mut self, path: &Path, now: Instant) {
        self.stack.interfaces[path.interface()].neighbours.confirm(path.next_hop(), now);
    }

    /// Requests a probe of the path's next hop after several retransmissions (RFC 9293 §3.8.3 R1).
    pub(super) fn verify_next_hop(&mut self, path: &Path, now: Instant) {
        self.stack.interfaces[path.interface()].neighbours.suspect(path.next_hop(), now);
    }

    /// Excludes the neighbour cache entry of a path's next hop from eviction. Returns false if there is no entry.
    pub(super) fn pin(&mut self, path: &Path) -> bool {
        self.stack.interfaces[path.interface()].neighbours.pin(path.next_hop())
    }

    /// Reverses one call of [`pin`](Self::pin).
    pub(super) fn unpin(&mut self, path: &Path) {
        self.stack.interfaces[path.interface()].neighbours.unpin(path.next_hop());
    }

    /// Adds a fragment to its packet in reassembly. The second value is the number of packets evicted to make room.
    ///
    /// # Errors
    /// The reason why the fragment was dropped.
    pub(super) fn reassemble(
        &mut self,
        interface: usize,
        fragment: &Fragment,
        frame: &[u8],
        now: Instant,
    ) -> Result<(Outcome, u64), DropReason> {
        self.reassembly.input(interface, fragment, frame, now)
    }

    /// Drops packets in reassembly whose fragments did not arrive in time. Returns their number.
    #[inline]
    pub(super) fn expire_reassembly(&mut self, now: Instant) -> u64 {
        self.reassembly.expire(now)
    }

    /// Returns the generator of IP identifications for packets sent in fragments.
    pub(super) fn identifications(&mut self) -> &mut IdentificationGenerator {
        &mut self.identifications
    }

    /// Returns the path MTU to a peer in bytes, if one is cached.
    pub(super) fn path_mtu(&self, peer: Peer, now: Instant) -> Option<u16> {
        self.path_mtus.get(peer, now)
    }

    /// Stores a path MTU in bytes that a stream or an association has discovered.
    pub(super) fn learn_path_mtu(&mut self, peer: Peer, mtu: u16, now: Instant) {
        self.path_mtus.learn(peer, mtu, now);
    }

    /// Sends due solicitations, probes, announcements and multicast group reports. Calls `failed` with the interface
    /// and the address of each neighbour that did not answer. Returns the number of solicitations sent.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant, failed: impl FnMut(usize, IpAddr)) -> u64 {
        self.stack.poll(now, &mut self.outbox, failed)
    }

    /// Returns the time at which [`poll`](Self::poll) or [`expire_reassembly`](Self::expire_reassembly) is due next.
    #[inline]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [self.stack.poll_timeout(), self.reassembly.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// Announces an interface's addresses on its link, and probes whether other hosts use them.
    pub(super) fn announce(&mut self, interface: usize, now: Instant) {
        self.stack.bring_up(interface, now);
    }

    /// Sets the link-layer address of an interface. Its IPv6 link-local address does not change.
    pub(super) fn set_mac(&mut self, interface: usize, mac: Mac) {
        self.stack.interfaces[interface].mac = mac;
    }

    /// Requests a probe of all neighbours in use on an interface, because they may have changed.
    pub(super) fn verify_neighbours(&mut self, interface: usize, now: Instant) {
        self.stack.interfaces[interface].neighbours.suspect_all(now);
    }

    /// Returns the queued frames and the ports from which to send them.
    #[inline]
    pub(super) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Clears the outbox after its frames were sent or dropped.
    pub(super) fn clear_outbox(&mut self) {
        self.outbox.clear();
    }

    /// Returns the frame that solicits an address from the first interface.
    #[cfg(test)]
    pub(super) fn solicitation(&mut self, address: IpAddr, now: Instant) -> Vec<u8> {
        let mut out = Outbox::default();
        self.stack.resolve(0, address, now, &mut out);
        out.iter().next().expect("a solicitation").1.to_vec()
    }

    pub(super) fn publish_guard(&self, counters: &Counters) {
        let Some(guard) = &self.guard else { return };
        let (counts, counters) = (guard.counts(), &counters.ipsec);
        counters.ipsec_sealed.set(counts.sealed);
        counters.ipsec_sealed_bytes.set(counts.sealed_bytes);
        counters.ipsec_opened.set(counts.opened);
        counters.ipsec_opened_bytes.set(counts.opened_bytes);
        counters.ipsec_notices_lost.set(counts.notices_lost);
    }

    /// Publishes the gauges of reassembly, path MTUs and neighbours.
    pub(super) fn publish(&self, counters: &Counters) {
        counters.ip.reassembly_bytes.set(self.reassembly.bytes() as u64);
        counters.ip.path_mtus.set(self.path_mtus.len() as u64);
        let neighbours = self.stack.interfaces.iter().map(|i| i.neighbours.len() as u64).sum();
        counters.ip.neighbours.set(neighbours);
    }
}

/// Converts a flow to the form that IPsec policies match. For SCTP in UDP, the result has the UDP ports `udp`.
fn policy_flow(transport: Transport, flow: &FlowKey, udp: Option<UdpPorts>) -> policy::Flow {
    let (local, remote) = (flow.local, flow.remote);
    let (protocol, ports) = match (transport, udp) {
        (Transport::Tcp, _) => (TCP, (local.port(), remote.port())),
        (Transport::Sctp, None) => (SCTP.into(), (local.port(), remote.port())),
        (Transport::Sctp, Some(udp)) => (UDP, (udp.local, udp.remote)),
    };
    let (local, remote) = (local.ip(), remote.ip());
    policy::Flow { local, remote, protocol, ports: Some(ports), icmp: None, ike: false }
}

/// Builds the interfaces of a configuration. `mac` returns the link-layer address of a port.
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
