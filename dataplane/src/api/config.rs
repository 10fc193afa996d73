//! Parameters of the dataplane at start. The parser of the configuration (`control`) has validated the values.

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

/// Parameters of a dataplane: workers, the ports that they poll, and the interfaces on these ports.
#[derive(Clone, Debug)]
pub struct DataplaneConfig {
    /// Worker threads, at least one; `workers[i].id` is `WorkerId(i)`.
    pub workers: Vec<WorkerConfig>,
    /// Ports, with the workers that poll them. A [`PortId`](crate::PortId) is an index in this list. The ports passed
    /// to [`super::Dataplane::start`] are in the same order.
    pub ports: Vec<PortAttachment>,
    /// IP interfaces on the ports. An [`InterfaceId`] is an index in this list.
    pub interfaces: Vec<InterfaceConfig>,
    /// Limits of memory and work for each worker.
    pub limits: Limits,
    /// Local UDP port of SCTP in UDP (RFC 6951), for both directions; `None` if SCTP is carried in IP only.
    pub sctp_udp_port: Option<u16>,
    /// IPsec policies and SAs; `None` without IPsec.
    pub ipsec: Option<Arc<IpsecConfig>>,
    /// Random secret from which the workers derive their keys, for example for initial sequence numbers, flow tables
    /// and source ports. The system's random source generates it. The secret is never logged.
    pub secret: Secret<[u8; 32]>,
}

/// The workers that poll a port.
#[derive(Clone, Debug)]
pub struct PortAttachment {
    /// Queue `i` of the port belongs to `workers[i]`. A worker occurs at most once.
    pub workers: Vec<WorkerId>,
}

/// Parameters of a worker thread.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Identifies the worker in commands, events and counters.
    pub id: WorkerId,
    /// CPU core that the thread is pinned to; `None` leaves the choice to the scheduler.
    pub core: Option<usize>,
    /// Behaviour of an idle worker: polls or sleeps.
    pub idle: Idle,
}

/// A listener, installed on every worker. The worker that receives the SYN or the returned cookie owns the stream.
#[derive(Clone, PartialEq, Debug)]
pub struct ListenerConfig {
    /// Identifies the listener in commands and events.
    pub id: ListenerId,
    /// Interface that the listener is bound to; `None` for all.
    pub interface: Option<InterfaceId>,
    /// Local address that the listener is bound to; `None` for all addresses of its interfaces.
    pub address: Option<IpAddr>,
    /// TCP or SCTP port.
    pub port: u16,
    /// LLP (TCP or SCTP), with the parameters of the listener's streams.
    pub endpoint: EndpointConfig,
    /// IP header fields of the listener's streams where they differ from the interface's.
    pub ip: IpFields,
    /// Minimum IPsec protection of streams: encryption with keys of at least this many bits. 0: integrity without
    /// encryption suffices. `None`: no protection is required.
    pub require: Option<u16>,
    /// Lists of admitted and refused peers. [`super::Command::SetPeers`] replaces them.
    pub peers: Arc<PeerFilter>,
    /// Maximum number of streams per worker between SYN and [`super::Event::Incoming`]. Further SYNs are answered with
    /// cookies or dropped.
    pub backlog: u32,
    /// Number of streams that each worker may accept before [`super::Command::Credits`] grants more.
    pub credits: u32,
}

impl ListenerConfig {
    /// Returns the minimum IPsec protection of each packet of the listener's streams.
    pub fn min_strength(&self) -> Strength {
        self.require.map_or(Strength::CLEAR, Strength::from_bits)
    }
}

/// Limits of memory and work for one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum number of streams in all states, including TIME-WAIT.
    pub streams: u32,
    /// Maximum number of half-open streams, between SYN and [`super::Event::Incoming`], of all listeners together.
    pub half_open: u32,
    /// Maximum number of half-open streams per peer.
    pub half_open_per_peer: u32,
    /// Maximum number of accepted streams per peer.
    pub streams_per_peer: u32,
    /// Condition under which SYNs are answered with SYN cookies (RFC 4987 §3.6).
    pub syn_cookies: SynCookieMode,
    /// Maximum number of neighbour cache entries per interface.
    pub neighbours: usize,
    /// Maximum memory for untagged receive buffers, in bytes.
    pub untagged_bytes: usize,
    /// Maximum memory in bytes for received data that cannot be delivered yet because earlier data is missing.
    pub hold_bytes: usize,
    /// Maximum memory for copies of sent data, in bytes. A copy is kept until the data is acknowledged. Data is copied
    /// if its source may change: data of regions that peers or programs write, and of RDMA Read Responses.
    pub keep_bytes: usize,
    /// Maximum total growth of all receive windows beyond their configured size, in bytes.
    pub window_bytes: usize,
    /// Maximum number of resets per second for segments without a stream. Answers to SCTP packets without an
    /// association, except to INITs, share this limit. A single peer gets at most 1/4 of the limit.
    pub resets_per_second: u32,
    /// Maximum number of INIT ACKs per second to addresses that may be forged. A single peer gets at most 1/32 of the
    /// limit.
    pub inits_per_second: u32,
    /// Maximum number of echo replies sent per second. The same limit applies separately to accepted ICMP errors.
    pub icmp_per_second: u32,
    /// Maximum number of incomplete packets in IP reassembly.
    pub reassembly_packets: usize,
    /// Maximum memory for incomplete packets in IP reassembly, in bytes.
    pub reassembly_bytes: usize,
    /// Maximum number of peers whose path MTU is cached.
    pub path_mtus: usize,
    /// Number of entries of the command ring, from the control thread to the worker.
    pub commands: usize,
    /// Number of entries of the event ring, from the worker to the control thread; at least 64.
    pub events: usize,
    /// Number of entries of each ring that carries frames and messages from one worker to another.
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
