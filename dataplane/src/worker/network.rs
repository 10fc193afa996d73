//! The network stack of one worker with its state: neighbours, packets in reassembly, path MTUs, and rate limits on
//! what the worker sends because of unknown hosts.

use std::net::IpAddr;

use base::Instant;
use tcp_lite::tcp::HEADER_LEN;

use crate::api::{Counters, DropReason, InterfaceConfig, Limits};
use crate::net::demux::Packet;
use crate::net::fragment::Identifications;
use crate::net::interface::Interface;
use crate::net::limit::{PeerLimit, RateLimit};
use crate::net::neighbour::{Claim, ClaimOutcome, Resolution};
use crate::net::path::Path;
use crate::net::path_mtu::{PathMtus, Peer};
use crate::net::reassembly::{Fragment, Outcome, Reassembly};
use crate::net::{Notice, Outbox, Stack};

/// Announcements of neighbours that are forwarded to the other workers, at most, per second.
const NEWS: u32 = 2000;

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
}

impl Network {
    pub(super) fn new(
        interfaces: Vec<Interface>,
        limits: &Limits,
        keys: Keys,
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

    /// Bytes of the largest segment payload that a packet of the path's interface can carry (RFC 9293 §3.7.1).
    pub(super) fn mss(&self, path: &Path) -> u16 {
        let mtu = self.interface(path.interface()).mtu;
        (path.segment_limit(mtu) - HEADER_LEN) as u16
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

    /// Sets the gauges.
    pub(super) fn publish(&self, counters: &Counters) {
        counters.ip.reassembly_bytes.set(self.reassembly.bytes() as u64);
        counters.ip.path_mtus.set(self.path_mtus.len() as u64);
        let neighbours = self.stack.interfaces.iter().map(|i| i.neighbours.len() as u64).sum();
        counters.ip.neighbours.set(neighbours);
    }
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
