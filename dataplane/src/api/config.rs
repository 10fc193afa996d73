//! Parameters of the dataplane at start. All have been checked by the reader of the configuration.

use std::net::IpAddr;
use std::sync::Arc;

use ipsec::strength::Strength;
use port_kind::Secret;
use port_kind::policy::{Idle, IpFields, SynCookieMode};

use super::ipsec::IpsecConfig;
use super::peers::PeerFilter;
use super::transport::EndpointConfig;
use crate::ids::{InterfaceId, ListenerId, WorkerId};
use crate::net::interface::InterfaceConfig;

/// One dataplane: workers, the ports they poll and the interfaces on them.
#[derive(Clone, Debug)]
pub struct DataplaneConfig {
    /// The workers, at least one; `workers[i].id` is `WorkerId(i)`.
    pub workers: Vec<WorkerConfig>,
    /// Which workers poll which port; [`PortId`] is the place in this list, and the ports given to
    /// [`super::Dataplane::start`] are in the same order.
    pub ports: Vec<PortAttachment>,
    /// The interfaces; [`InterfaceId`] is the place in this list.
    pub interfaces: Vec<InterfaceConfig>,
    /// Bounds of memory and of work, the same for each worker.
    pub limits: Limits,
    /// The UDP port at which SCTP is expected in UDP, besides IP (RFC 6951); SCTP in UDP goes out from it.
    pub sctp_udp_port: Option<u16>,
    /// IPsec, where there is some.
    pub ipsec: Option<Arc<IpsecConfig>>,
    /// Seeds every keyed hash and random choice of the workers (initial sequence numbers, flow table,
    /// source ports). From the system's random source, never logged.
    pub secret: Secret<[u8; 32]>,
}

/// Which workers poll a port.
#[derive(Clone, Debug)]
pub struct PortAttachment {
    /// Queue `i` of the port belongs to `workers[i]`. No worker stands here twice.
    pub workers: Vec<WorkerId>,
}

/// One worker thread.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Its name in commands, events and counters.
    pub id: WorkerId,
    /// The core to pin the thread to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// What it does when there is nothing to do.
    pub idle: Idle,
}

/// A listener. Every worker has it; the one that gets the SYN, or the cookie, owns the stream.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Its name in commands and events.
    pub id: ListenerId,
    /// The interface it is bound to; `None` for all.
    pub interface: Option<InterfaceId>,
    /// The local address it is bound to; `None` for all of the interface.
    pub address: Option<IpAddr>,
    /// TCP or SCTP port.
    pub port: u16,
    /// LLP and parameters of its streams.
    pub endpoint: EndpointConfig,
    /// What the IP headers of its streams carry, where that is not the interface's.
    pub ip: IpFields,
    /// Streams must be protected by IPsec as long as they live, their content encrypted with keys of so many bits; 0: integrity
    /// is enough.
    pub require: Option<u16>,
    /// Peers that may connect. [`super::Command::SetPeers`] replaces them.
    pub peers: Arc<PeerFilter>,
    /// Most streams per worker between SYN and [`super::Event::Incoming`]; SYNs beyond are answered with
    /// cookies, or dropped.
    pub backlog: u32,
    /// Streams that each worker may take before it is given more by [`super::Command::Credits`].
    pub credits: u32,
}

impl ListenerConfig {
    /// Protection by IPsec that each packet of its streams requires.
    pub fn least(&self) -> Strength {
        self.require.map_or(Strength::CLEAR, Strength::of_bits)
    }
}

/// Bounds of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Streams in all states, TIME-WAIT included.
    pub streams: u32,
    /// Streams between SYN and [`super::Event::Incoming`], over all listeners.
    pub half_open: u32,
    /// Half-open streams of one peer address.
    pub half_open_per_peer: u32,
    /// Accepted streams of one peer address.
    pub streams_per_peer: u32,
    /// When SYNs are answered with cookies (RFC 4987 §3.6).
    pub syn_cookies: SynCookieMode,
    /// Neighbour cache entries per interface.
    pub neighbours: usize,
    /// Bytes of untagged receive buffers.
    pub untagged_bytes: usize,
    /// Bytes that streams may hold because they cannot be located yet.
    pub hold_bytes: usize,
    /// Bytes of what was sent that streams may keep until they are acknowledged, because their source may change:
    /// regions that peers or programs write, responses to Reads.
    pub keep_bytes: usize,
    /// Bytes by which receive windows may grow together.
    pub window_bytes: usize,
    /// Resets sent per second for segments without a stream.
    pub resets_per_second: u32,
    /// INIT ACKs sent per second to hosts that may have forged their address; to one peer a small part of them.
    pub inits_per_second: u32,
    /// ICMP messages sent per second.
    pub icmp_per_second: u32,
    /// Packets that arrive in fragments, unfinished at a time.
    pub reassembly_packets: usize,
    /// Bytes that they take together.
    pub reassembly_bytes: usize,
    /// Peers whose path MTU is remembered.
    pub path_mtus: usize,
    /// Entries of the command ring.
    pub commands: usize,
    /// Entries of the event ring; at least 64.
    pub events: usize,
    /// Entries of the ring from one worker to another.
    pub mesh: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            streams: 4096,
            half_open: 512,
            half_open_per_peer: 64,
            streams_per_peer: 4096,
            syn_cookies: SynCookieMode::Auto,
            neighbours: 1024,
            untagged_bytes: 64 << 20,
            hold_bytes: 16 << 20,
            keep_bytes: 64 << 20,
            window_bytes: 1 << 30,
            resets_per_second: 1000,
            inits_per_second: 32_000,
            icmp_per_second: 1000,
            reassembly_packets: 256,
            reassembly_bytes: 1 << 20,
            path_mtus: 1024,
            commands: 1024,
            events: 4096,
            mesh: 1024,
        }
    }
}
