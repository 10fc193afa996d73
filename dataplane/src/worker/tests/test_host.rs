//! Test hosts, each with one or more workers on one port.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use ddp::{
    Access, Cookie, Message, PdId, Qn, QueueConfig, RegionMemory, Source, Stag, StagEntry,
    StreamConfig, StreamId, TaggedOffset,
};
use ipnet::{IpNet, Ipv4Net};
use tcp_lite::endpoint::EndpointConfig;
use tcp_lite::endpoint::UlpConfig;

use crate::api::{
    self, Command, Connect, Event, InterfaceConfig, InterfaceId, Limits, ListenerConfig,
    ListenerId, LocalPorts, PortId, Route, Service, StreamSelection, Ticket, WorkerHandle,
    WorkerId, worker_link,
};
use crate::host::{self, HostEnd};
use crate::io::PortProperties;
use crate::memory::{Backing, Memory, MemoryConfig};
use crate::mesh::Mesh;
use crate::net::path::TxChecksum;
use crate::port::{ChecksumSite, RxChecksum};
use crate::steering::Steering;
use crate::wake::Wake;
use crate::worker::{Core, CoreParts, PortSlot};

pub(super) use super::test_device::*;
pub(super) use super::test_net::*;

/// Receive queue that a device selects for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rss {
    /// The queue of the worker that owns the flow. Frames other than TCP arrive at the first queue.
    Device,
    /// The first queue for all frames.
    None,
}

/// Function that returns a device's verdict on the transport checksum of a frame.
type VerdictFn = Box<dyn FnMut(&[u8]) -> RxChecksum>;

/// A host: workers on one port with one interface.
pub(super) struct Host {
    /// Key length, in bits, of the IPsec encryption that listeners created from now on require; 0 for integrity only,
    /// `None` for no protection.
    pub(super) require: Option<u16>,
    /// Peer filter of listeners created from now on.
    pub(super) peers: Arc<api::PeerFilter>,
    pub(super) cores: Vec<Core<TestIo>>,
    pub(super) handles: Vec<WorkerHandle>,
    /// Events that the control thread has read, each with the worker's index.
    pub(super) events: Vec<(usize, Event)>,
    /// True if the control thread reads events.
    pub(super) takes_events: bool,
    /// True if the control thread closes a stream once its peer has closed.
    pub(super) closes_after_peer: bool,
    /// IP fields of the host's listeners and of the streams that it opens.
    pub(super) ip: crate::api::IpFields,
    /// The kernel's end of the rings, if the port is shared.
    pub(super) kernel: Option<HostEnd>,
    /// Returns the device's verdict on a delivered frame whose verdict is still `Unknown`.
    pub(super) verdict_of: VerdictFn,
    steering: Steering,
    rss: Rss,
    tickets: u64,
}

/// Configuration of a host.
#[derive(Clone)]
pub(super) struct Plan {
    /// Last byte of the host's MAC and IP addresses.
    pub(super) number: u8,
    pub(super) workers: u16,
    pub(super) vlan: Option<u16>,
    pub(super) rss: Rss,
    pub(super) limits: Limits,
    /// Number of entries of each worker's transmit ring.
    pub(super) room: usize,
    pub(super) mtu: u16,
    /// Local UDP port for SCTP in UDP (RFC 6951), if it is enabled.
    pub(super) udp: Option<u16>,
    pub(super) local_ports: LocalPorts,
    /// True if the port is shared with the host's kernel.
    pub(super) shared: bool,
    pub(super) ipsec: Option<Arc<api::IpsecConfig>>,
    /// True if the device verifies TCP checksums.
    pub(super) verifies_tcp: bool,
    /// True if the device verifies SCTP checksums, and computes SCTP and IPv4 checksums.
    pub(super) offloads_sctp: bool,
}

impl Plan {
    pub(super) fn new(number: u8) -> Plan {
        let limits = Limits::default();
        Plan {
            number,
            workers: 1,
            vlan: None,
            rss: Rss::Device,
            limits,
            room: 256,
            mtu: 1500,
            udp: None,
            local_ports: LocalPorts::default(),
            shared: false,
            ipsec: None,
            verifies_tcp: false,
            offloads_sctp: false,
        }
    }

    /// Returns the properties of the port, as [`Dataplane::start`](crate::Dataplane::start) determines them.
    fn facts(&self, ids: &[WorkerId]) -> PortProperties {
        let by = |device| if device { ChecksumSite::Device } else { ChecksumSite::Software };
        let facts = PortProperties {
            mac: [2, 0, 0, 0, 0, self.number],
            tx_checksum: TxChecksum {
                ip_by_device: self.offloads_sctp,
                sctp: by(self.offloads_sctp),
                ..TxChecksum::SOFTWARE
            },
            rx_checksum: by(self.verifies_tcp),
            rx_sctp_checksum: by(self.offloads_sctp),
            device_hash: false,
            steering: Steering::software(ids),
            workers: ids.to_vec(),
        };
        if self.ipsec.is_some() { facts.without_offloads() } else { facts }
    }
}

pub(super) fn v4(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

pub(super) fn v6(n: u8) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into()).into()
}

/// Returns the command that lists all streams and associations.
pub(super) fn list_all(ticket: Ticket) -> Command {
    Command::ListStreams { selection: StreamSelection::All, ticket }
}

impl Host {
    pub(super) fn new(plan: &Plan) -> Host {
        let ids: Vec<WorkerId> = (0..plan.workers).map(WorkerId).collect();
        let facts = Arc::new(plan.facts(&ids));
        let steering = facts.steering.clone();
        let interface = InterfaceConfig {
            ip: Default::default(),
            local_ports: plan.local_ports,
            host: plan.shared,
            name: "test".into(),
            port: PortId(0),
            vlan: plan.vlan,
            addresses: vec![
                IpNet::new_assert(v4(plan.number), 24),
                IpNet::new_assert(v6(plan.number), 64),
            ],
            routes: vec![Route { to: Ipv4Net::default().into(), via: v4(254) }],
            mtu: plan.mtu,
        };
        let control = Arc::new(Wake::new().unwrap());
        let ring = |id: &WorkerId| {
            worker_link(*id, plan.limits.commands, plan.limits.events, &control).unwrap()
        };
        let (handles, links): (Vec<_>, Vec<_>) = ids.iter().map(ring).unzip();
        let wakes: Vec<Arc<Wake>> = links.iter().map(|l| l.wake.clone()).collect();
        let meshes = Mesh::full_mesh(&wakes, plan.limits.mesh);
        let (mut shared, end) = match plan.shared {
            true => host::create_ends(InterfaceId(0), facts.mac, &wakes).unwrap(),
            false => (Vec::new(), None),
        };
        let cores = ids.iter().zip(links).zip(meshes).map(|((&id, link), mesh)| {
            let (rx, tx, tap) = (VecDeque::new(), Vec::new(), None);
            let io = TestIo { rx, tx, room: plan.room, buffers: 4096, tap, offers: Vec::new() };
            let parts = CoreParts {
                id,
                ports: vec![Some(PortSlot::new(io, facts.clone()))],
                interfaces: vec![interface.clone()],
                hosts: vec![if shared.is_empty() { None } else { Some(shared.remove(0)) }],
                mesh,
                limits: plan.limits,
                sctp_udp_port: plan.udp,
                link,
                secret: [plan.number; 32],
                ipsec: plan.ipsec.clone(),
            };
            Core::new(parts, START)
        });
        Host {
            ip: Default::default(),
            cores: cores.collect(),
            handles,
            events: Vec::new(),
            takes_events: true,
            closes_after_peer: true,
            kernel: end,
            steering,
            rss: plan.rss,
            require: None,
            peers: Arc::default(),
            verdict_of: Box::new(if plan.offloads_sctp {
                verdict
            } else {
                |_| RxChecksum::Unknown
            }),
            tickets: 0,
        }
    }

    /// Sends a command to a worker. Returns its ticket.
    pub(super) fn command(
        &mut self,
        worker: usize,
        make: impl FnOnce(Ticket) -> Command,
    ) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.handles[worker].send(make(ticket)).unwrap();
        ticket
    }

    pub(super) fn command_all(&mut self, make: impl Fn(Ticket) -> Command) {
        for worker in 0..self.handles.len() {
            self.command(worker, &make);
        }
    }

    pub(super) fn listen(&mut self, port: u16) {
        self.listen_with(port, 100, 100);
    }

    pub(super) fn listen_with(&mut self, port: u16, backlog: u32, credits: u32) {
        self.listen_as(port, backlog, credits, EndpointConfig::default());
    }

    pub(super) fn listen_as(
        &mut self,
        port: u16,
        backlog: u32,
        credits: u32,
        endpoint: impl Into<api::EndpointConfig>,
    ) {
        let listener = Arc::new(ListenerConfig {
            require: self.require,
            peers: self.peers.clone(),
            ip: self.ip,
            id: ListenerId(u32::from(port)),
            interface: None,
            address: None,
            port,
            endpoint: endpoint.into(),
            backlog,
            credits,
        });
        self.command_all(|ticket| Command::AddListener { listener: listener.clone(), ticket });
    }

    /// Registers a region of `len` bytes with all workers.
    pub(super) fn region(&mut self, stag: u32, len: usize, access: Access) -> Memory {
        let config = MemoryConfig {
            backing: Backing::Anonymous,
            len: len as u64,
            remote_write: access.remote_write(),
            lock: false,
        };
        let memory = Memory::new(&config).unwrap();
        let entry = StagEntry {
            stag: Stag(stag),
            pd: PD,
            stream: None,
            base_to: TaggedOffset(0),
            len: len as u64,
            access,
            memory: memory.clone(),
            memory_offset: 0,
        };
        self.command_all(|ticket| Command::AddStag { entry: entry.clone(), ticket });
        memory
    }

    pub(super) fn connect(&mut self, worker: usize, remote: SocketAddr) -> Ticket {
        self.connect_as(worker, remote, EndpointConfig::default())
    }

    pub(super) fn connect_as(
        &mut self,
        worker: usize,
        remote: SocketAddr,
        endpoint: impl Into<api::EndpointConfig>,
    ) -> Ticket {
        self.connect_ulp(worker, remote, endpoint.into(), stream_config().into())
    }

    /// Requests a stream with this ULP. Returns the ticket of the command.
    pub(super) fn connect_ulp(
        &mut self,
        worker: usize,
        remote: SocketAddr,
        endpoint: api::EndpointConfig,
        ulp: UlpConfig,
    ) -> Ticket {
        let ip = self.ip;
        self.command(worker, |ticket| {
            Command::Connect(Box::new(Connect {
                ip,
                ticket,
                interface: InterfaceId(0),
                local: None,
                remote,
                endpoint,
                ulp,
                service: Service::Control,
                pd: PD,
                stags: Vec::new(),
                private_data: b"hello".to_vec(),
                timeout: Duration::from_secs(20),
            }))
        })
    }

    /// Posts a tagged write from a region of this host.
    pub(super) fn write(
        &mut self,
        stream: StreamId,
        from: (Stag, &Memory),
        to: Stag,
        len: u32,
    ) -> Ticket {
        let (region, memory) = from;
        let source = Source::Region { memory: memory.clone(), offset: 0, len };
        let (to, stag) = (TaggedOffset(0), to);
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::user(0) };
        let region = Some(region);
        self.command(stream.worker().into(), |ticket| Command::Post {
            stream,
            message,
            region,
            ticket,
        })
    }

    pub(super) fn send(&mut self, stream: StreamId, bytes: &[u8]) -> Ticket {
        let source = Source::Bytes(bytes.into());
        let (qn, rsvd_ulp) = (Qn(0), [0; 5]);
        let message = Message::Untagged { qn, rsvd_ulp, source, cookie: Cookie::user(0) };
        let region = None;
        self.command(stream.worker().into(), |ticket| Command::Post {
            stream,
            message,
            region,
            ticket,
        })
    }

    pub(super) fn take_sent(&mut self) -> Vec<TestFrame> {
        self.cores.iter_mut().flat_map(|core| std::mem::take(&mut core.port_mut(0).tx)).collect()
    }

    /// Delivers a frame to the receive queue that the device selects.
    pub(super) fn deliver(&mut self, mut frame: TestFrame) {
        if frame.1.verdict == RxChecksum::Unknown {
            frame.1.verdict = (self.verdict_of)(&frame.0);
        }
        let queue = match self.rss {
            Rss::None => 0,
            Rss::Device => self.select_queue(&frame.0),
        };
        self.cores[queue].port_mut(0).rx.push_back(frame);
    }

    /// Exhausts the budget for unmatched frames, as a flood does. The worker then examines only few unmatched frames of
    /// a full burst.
    pub(super) fn exhaust_budgets(&mut self) {
        for core in &mut self.cores {
            core.unmatched_budget.exhaust(START);
            core.env.host.budget.exhaust(START);
        }
    }

    fn select_queue(&self, frame: &[u8]) -> usize {
        let at = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
        let ip = &frame[at..];
        let port = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let ends: (SocketAddr, SocketAddr) = match (&frame[at - 2..at], ip) {
            ([8, 0], ip) if ip[9] == 6 => {
                let a = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap();
                ((a(12), port(20)).into(), (a(16), port(22)).into())
            }
            ([0x86, 0xdd], ip) if ip[6] == 6 => {
                let a = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap();
                ((a(8), port(40)).into(), (a(24), port(42)).into())
            }
            _ => return 0,
        };
        self.steering.owner(ends.0, ends.1).0.into()
    }

    /// Asserts that each frame and message that a worker received was counted with its outcome exactly once.
    pub(super) fn assert_all_accounted(&self) {
        for handle in &self.handles {
            assert_eq!(handle.counters().unaccounted(), 0);
        }
    }

    /// Returns the sum of a counter or a drop reason over all workers.
    pub(super) fn count(&self, name: &str) -> u64 {
        let mut total = 0;
        for handle in &self.handles {
            handle.counters().for_each(|c, value| total += if c.name == name { value } else { 0 });
            let drops = handle.counters().drops.iter().filter(|d| d.reason == name);
            total += drops.map(|d| d.count).sum::<u64>();
        }
        total
    }

    /// Takes the first event for which `pick` returns a value. Returns that value.
    pub(super) fn take_event<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> Option<T> {
        let at = self.events.iter().position(|(_, e)| pick(e).is_some())?;
        let (_, event) = self.events.remove(at);
        pick(&event)
    }
}

pub(super) const START: Instant = Instant::from_millis(1000);
pub(super) const PD: PdId = PdId(7);

pub(super) fn stream_config() -> StreamConfig {
    let queue = QueueConfig { qn: Qn(0), buffers: 1000, buffer_size: 4096 };
    StreamConfig { queues: vec![queue, QueueConfig::error_queue()], ..StreamConfig::default() }
}

/// Returns `len` bytes of a pseudo-random pattern.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub(super) fn read_memory(memory: &Memory) -> Vec<u8> {
    let mut out = vec![0; memory.len() as usize];
    memory.read(0, &mut out);
    out
}
