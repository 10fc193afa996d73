//! Parameters of the dataplane at start. The reader of the configuration has checked them all.

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
    /// The workers of each port. [`PortId`] is the index in this list, and the ports given to
    /// [`super::Dataplane::start`] are in the same order.
    pub ports: Vec<PortAttachment>,
    /// The interfaces; [`InterfaceId`] is the index in this list.
    pub interfaces: Vec<InterfaceConfig>,
    /// Bounds of memory and work, per worker.
    pub limits: Limits,
    /// UDP port of SCTP in UDP (RFC 6951), for both receipt and sending; `None` for SCTP directly in IP only.
    pub sctp_udp_port: Option<u16>,
    /// IPsec policies and SAs; `None` without IPsec.
    pub ipsec: Option<Arc<IpsecConfig>>,
    /// Seed of every keyed hash and random choice of the workers (initial sequence numbers, flow table, source
    /// ports). From the system's random source, never logged.
    pub secret: Secret<[u8; 32]>,
}

/// The workers that poll a port.
#[derive(Clone, Debug)]
pub struct PortAttachment {
    /// Queue `i` of the port belongs to `workers[i]`. A worker occurs at most once.
    pub workers: Vec<WorkerId>,
}

/// One worker thread.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Identifier in commands, events and counters.
    pub id: WorkerId,
    /// Core that the thread is pinned to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// Behaviour when idle.
    pub idle: Idle,
}

/// A listener. Every worker has it; the worker that receives the SYN, or the cookie, owns the stream.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Identifier in commands and events.
    pub id: ListenerId,
    /// The interface it is bound to; `None` for all.
    pub interface: Option<InterfaceId>,
    /// The local address it is bound to; `None` for all of the interface.
    pub address: Option<IpAddr>,
    /// TCP or SCTP port.
    pub port: u16,
    /// LLP and parameters of its streams.
    pub endpoint: EndpointConfig,
    /// IP header fields of its streams that differ from the interface's.
    pub ip: IpFields,
    /// Minimum protection of streams by IPsec: encryption with keys of at least this many bits; 0 requires
    /// integrity only. `None` requires no protection.
    pub require: Option<u16>,
    /// Peers that may connect. [`super::Command::SetPeers`] replaces them.
    pub peers: Arc<PeerFilter>,
    /// Most streams per worker between SYN and [`super::Event::Incoming`]. Further SYNs are answered with
    /// cookies, or dropped.
    pub backlog: u32,
    /// Streams that each worker may accept before [`super::Command::Credits`] grants more.
    pub credits: u32,
}

impl ListenerConfig {
    /// Returns the IPsec protection that each packet of its streams requires.
    pub fn min_strength(&self) -> Strength {
        self.require.map_or(Strength::CLEAR, Strength::from_bits)
    }
}

/// Bounds of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most streams in all states, TIME-WAIT included.
    pub streams: u32,
    /// Most streams between SYN and [`super::Event::Incoming`], over all listeners.
    pub half_open: u32,
    /// Most half-open streams of one peer address.
    pub half_open_per_peer: u32,
    /// Most accepted streams of one peer address.
    pub streams_per_peer: u32,
    /// Condition for answering SYNs with cookies (RFC 4987 §3.6).
    pub syn_cookies: SynCookieMode,
    /// Most neighbour cache entries per interface.
    pub neighbours: usize,
    /// Most bytes of untagged receive buffers.
    pub untagged_bytes: usize,
    /// Most bytes that streams hold because their FPDUs cannot be located yet.
    pub hold_bytes: usize,
    /// Most bytes of sent data that streams keep until acknowledged, because the source may change: regions that
    /// peers or programs write, and Read responses.
    pub keep_bytes: usize,
    /// Most bytes by which all receive windows together may grow.
    pub window_bytes: usize,
    /// Most resets sent per second for segments without a stream.
    pub resets_per_second: u32,
    /// Most INIT ACKs sent per second to hosts whose address may be forged; one peer gets a small part of them.
    pub inits_per_second: u32,
    /// Most ICMP messages sent per second.
    pub icmp_per_second: u32,
    /// Most incomplete fragmented packets at a time.
    pub reassembly_packets: usize,
    /// Most bytes of incomplete packets.
    pub reassembly_bytes: usize,
    /// Most peers whose path MTU is remembered.
    pub path_mtus: usize,
    /// Entries of the command ring.
    pub commands: usize,
    /// Entries of the event ring, at least 64.
    pub events: usize,
    /// Entries of each ring from one worker to another.
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
