//! Hosts of some workers each, on one wire.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use base::Instant;
use ddp::{
    Access, Cookie, Message, PdId, Qn, QueueConfig, RegionMemory, Source, Stag, StagEntry,
    StreamConfig, StreamId, TaggedOffset,
};
use ipnet::{IpNet, Ipv4Net};
use tcp_lite::endpoint::EndpointConfig;
use tcp_lite::endpoint::UlpConfig;

use crate::api::{
    self, Command, Connect, Event, InterfaceConfig, InterfaceId, Limits, Listed, ListenerConfig,
    ListenerId, LocalPorts, PortId, Route, Service, Ticket, WorkerHandle, WorkerId, worker_link,
};
use crate::capture::{Direction, Fate, Tap};
use crate::host::{self, HostEnd};
use crate::io::{BURST, Frame, PortFacts, PortIo};
use crate::memory::{Backing, Memory, MemoryConfig};
use crate::mesh::Mesh;
use crate::net::path::TxChecksum;
use crate::port::{ChecksumBy, RxChecksum};
use crate::steering::Steering;
use crate::wake::Wake;
use crate::worker::{Core, CoreParts, PortSlot};

/// A frame in a vector, and what its device knows of it.
#[derive(Clone, Debug)]
pub(super) struct TestFrame(pub(super) Vec<u8>, Marks);

/// What is between a device and its driver besides the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// On the checksum above IP, of a frame that was received.
    pub(super) verdict: RxChecksum,
    /// What is asked for a frame to be sent: which checksums, lengths of both headers, IPv6.
    asked: Option<(TxChecksum, usize, usize, bool)>,
}

impl TestFrame {
    pub(super) fn new(bytes: Vec<u8>) -> TestFrame {
        TestFrame::judged(bytes, RxChecksum::Unknown)
    }

    /// With the device's verdict.
    pub(super) fn judged(bytes: Vec<u8>, verdict: RxChecksum) -> TestFrame {
        TestFrame(bytes, Marks { verdict, asked: None })
    }

    /// What a device that knows the checksums of IPv4 and SCTP does before it sends a frame. It is asked for SCTP's in whole
    /// packets in IP alone, and with the field zero (RFC 9260 §6.8).
    fn fill_in(&mut self) {
        let Some((how, l2, l3, v6)) = self.1.asked.take() else { return };
        let frame = &mut self.0;
        let tagged = frame[12..14] == [0x81, 0];
        assert_eq!(l2, if tagged { 18 } else { 14 });
        assert_eq!(frame[l2 - 2..l2], if v6 { [0x86, 0xdd] } else { [8, 0] });
        let (protocol, len, offset) = match v6 {
            true => (frame[l2 + 6], 40, 0),
            false => (frame[l2 + 9], 20, frame[l2 + 6] & 0x3f | frame[l2 + 7]),
        };
        assert_eq!((l3, offset), (len, 0), "no fragment");
        let (ip, packet) = frame[l2..].split_at_mut(l3);
        if how.ip_by_device && !v6 {
            assert_eq!(ip[10..12], [0; 2], "the field is zero");
            let sum = !crate::checksum::sum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        assert_ne!(how.tcp, ChecksumBy::Device);
        assert_eq!(how.sctp == ChecksumBy::Device, protocol == 132, "{how:?} of {protocol}");
        if how.sctp == ChecksumBy::Device {
            assert_eq!(packet[8..12], [0; 4], "the field is zero");
            wire::sctp::fill_checksum(packet);
        }
    }
}

impl Frame for TestFrame {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
    fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
    fn stretch(&mut self, front: usize, back: usize) -> bool {
        self.0.splice(..0, vec![0xdd; front]);
        self.0.resize(self.0.len() + back, 0xdd);
        true
    }
    fn cut(&mut self, front: usize, len: usize) {
        self.0.drain(..front);
        self.0.truncate(len);
    }
    fn hash(&self) -> Option<u32> {
        None
    }
    fn checksum(&self) -> RxChecksum {
        self.1.verdict
    }
    fn offload(&mut self, how: TxChecksum, l2: usize, l3: usize, v6: bool) {
        self.1.asked = Some((how, l2, l3, v6));
    }
}

/// The verdict of a device that verifies SCTP's checksums, of packets that are neither in UDP, nor ESP, nor cut. Of all
/// others it says that they are wrong: nobody asked it.
pub(super) fn verdict(frame: &[u8]) -> RxChecksum {
    let at = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    let ip = &frame[at..];
    let packet = match frame[at - 2..at] {
        [8, 0] if ip[9] == 132 && ip[6] & 0x3f | ip[7] == 0 => {
            &ip[20..usize::from(u16::from_be_bytes([ip[2], ip[3]]))]
        }
        [0x86, 0xdd] if ip[6] == 132 => &ip[40..],
        _ => return RxChecksum::Bad,
    };
    match wire::sctp::Packet::new(packet).is_ok_and(|packet| packet.checksum_ok()) {
        true => RxChecksum::Good,
        false => RxChecksum::Bad,
    }
}

/// Queues in vectors; `room` is that of the transmit ring, `buffers` that of the pool.
#[derive(Debug)]
pub(super) struct TestIo {
    pub(super) rx: VecDeque<TestFrame>,
    pub(super) tx: Vec<TestFrame>,
    pub(super) room: usize,
    pub(super) buffers: usize,
    pub(super) tap: Option<Box<Tap>>,
    /// Each time that frames were offered ahead of the end of the turn, how many waited.
    pub(super) offers: Vec<usize>,
}

impl PortIo for TestIo {
    type Frame = TestFrame;

    fn receive(&mut self, _: Instant, out: &mut ArrayVec<TestFrame, BURST>) {
        let n = self.rx.len().min(out.remaining_capacity());
        out.extend(self.rx.drain(..n));
    }
    fn allocate(&mut self, len: usize) -> Option<TestFrame> {
        (self.tx.len() < self.buffers).then(|| TestFrame::new(vec![0xdd; len]))
    }
    fn room(&mut self) -> usize {
        self.room.saturating_sub(self.tx.len())
    }
    fn send(&mut self, mut frame: TestFrame) {
        assert!(self.room() > 0, "sent without room");
        if let Some(tap) = &mut self.tap {
            tap.record(Direction::Out, Fate::Passed, &frame.0);
        }
        frame.fill_in();
        self.tx.push(frame);
    }
    fn offer(&mut self) {
        self.offers.push(self.tx.len());
    }
    fn flush(&mut self) -> bool {
        self.tx.is_empty()
    }
    fn can_wake(&self) -> bool {
        false
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn tap(&mut self) -> Option<&mut Tap> {
        self.tap.as_deref_mut()
    }
    fn set_tap(&mut self, tap: Option<Box<Tap>>) {
        self.tap = tap;
    }
}

/// Which queue of a host gets a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rss {
    /// The one that steering selects; what is not TCP goes to the first.
    Device,
    /// Always the first.
    None,
}

/// A device's verdict on the checksum above IP in a frame.
type Judge = Box<dyn FnMut(&[u8]) -> RxChecksum>;

/// A host: workers on one port with one interface.
pub(super) struct Host {
    /// What its listeners require of IPsec from now on.
    pub(super) require: Option<u16>,
    /// Peers that its listeners admit from now on.
    pub(super) peers: Arc<api::PeerFilter>,
    pub(super) cores: Vec<Core<TestIo>>,
    pub(super) handles: Vec<WorkerHandle>,
    pub(super) events: Vec<(usize, Event)>,
    /// The control thread takes events.
    pub(super) listens: bool,
    /// The control thread closes streams as soon as their peers have.
    pub(super) closes: bool,
    /// Of its listeners, and of the streams that it opens.
    pub(super) ip: crate::api::IpFields,
    /// The kernel's end, where the port is shared with it.
    pub(super) kernel: Option<HostEnd>,
    /// The device's verdict on a frame that arrives.
    pub(super) judges: Judge,
    steering: Steering,
    rss: Rss,
    tickets: u64,
}

/// How to make a [`Host`].
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) number: u8,
    pub(super) workers: u16,
    pub(super) vlan: Option<u16>,
    pub(super) rss: Rss,
    pub(super) limits: Limits,
    pub(super) room: usize,
    pub(super) mtu: u16,
    /// See [`CoreParts::sctp_udp_port`].
    pub(super) udp: Option<u16>,
    pub(super) local_ports: LocalPorts,
    /// The port is shared with the host.
    pub(super) shared: bool,
    pub(super) ipsec: Option<Arc<api::IpsecConfig>>,
    /// The device verifies TCP's checksums.
    pub(super) verifies_tcp: bool,
    /// The device verifies SCTP's checksums and fills in those and IPv4's.
    pub(super) sums_sctp: bool,
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
            sums_sctp: false,
        }
    }

    /// What all workers know of the port, as where a dataplane starts.
    fn facts(&self, ids: &[WorkerId]) -> PortFacts {
        let by = |device| if device { ChecksumBy::Device } else { ChecksumBy::Software };
        let facts = PortFacts {
            mac: [2, 0, 0, 0, 0, self.number],
            tx_checksum: TxChecksum {
                ip_by_device: self.sums_sctp,
                sctp: by(self.sums_sctp),
                ..TxChecksum::SOFTWARE
            },
            rx_checksum: by(self.verifies_tcp),
            rx_sctp_checksum: by(self.sums_sctp),
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

/// Asks for all streams and associations.
pub(super) fn list_all(ticket: Ticket) -> Command {
    Command::ListStreams { which: Listed::Everything, ticket }
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
        let meshes = Mesh::all(&wakes, plan.limits.mesh);
        let (mut shared, end) = match plan.shared {
            true => host::ends(InterfaceId(0), facts.mac, &wakes).unwrap(),
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
            listens: true,
            closes: true,
            kernel: end,
            steering,
            rss: plan.rss,
            require: None,
            peers: Arc::default(),
            judges: Box::new(if plan.sums_sctp { verdict } else { |_| RxChecksum::Unknown }),
            tickets: 0,
        }
    }

    /// Gives a command to a worker; returns its ticket.
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

    /// Gives a command to each worker.
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

    /// The same, with this protocol above the LLP.
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
        let message = Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie: Cookie::of(0) };
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
        let message = Message::Untagged { qn, rsvd_ulp, source, cookie: Cookie::of(0) };
        let region = None;
        self.command(stream.worker().into(), |ticket| Command::Post {
            stream,
            message,
            region,
            ticket,
        })
    }

    /// The frames that the host sent.
    pub(super) fn sent(&mut self) -> Vec<TestFrame> {
        self.cores.iter_mut().flat_map(|core| std::mem::take(&mut core.port_mut(0).tx)).collect()
    }

    /// Puts a frame where the device would.
    pub(super) fn arrive(&mut self, mut frame: TestFrame) {
        if frame.1.verdict == RxChecksum::Unknown {
            frame.1.verdict = (self.judges)(&frame.0);
        }
        let queue = match self.rss {
            Rss::None => 0,
            Rss::Device => self.queue_of(&frame.0),
        };
        self.cores[queue].port_mut(0).rx.push_back(frame);
    }

    /// As in a flood: of a full burst few frames without a stream are examined.
    pub(super) fn exhaust(&mut self) {
        for core in &mut self.cores {
            core.env.strangers.exhaust(START);
            core.env.host.budget.exhaust(START);
        }
    }

    fn queue_of(&self, frame: &[u8]) -> usize {
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

    /// Of each frame and message that a worker took it is counted what became of it, and only once.
    pub(super) fn assert_all_accounted(&self) {
        for handle in &self.handles {
            assert_eq!(handle.counters().unaccounted(), 0);
        }
    }

    /// Everything that every worker counted under this name.
    pub(super) fn count(&self, name: &str) -> u64 {
        let mut total = 0;
        for handle in &self.handles {
            handle.counters().for_each(|c, value| total += if c.name == name { value } else { 0 });
            total +=
                handle.counters().drops.iter().filter(|d| d.1 == name).map(|d| d.2).sum::<u64>();
        }
        total
    }

    /// Takes the first event that `pick` wants.
    pub(super) fn take<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> Option<T> {
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

/// Given the sender's place and the frame, returns whether it is lost.
type Losses = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// Hosts on a wire: every frame reaches the hosts that its destination address names.
pub(super) struct Net {
    pub(super) hosts: Vec<Host>,
    pub(super) now: Instant,
    /// Frames for which this returns true are lost.
    pub(super) loses: Losses,
    /// What a turn takes in which something happens: none, unless the test says so.
    pub(super) turn_time: Duration,
}

impl Net {
    pub(super) fn new(plans: &[Plan]) -> Net {
        let hosts = plans.iter().map(Host::new).collect();
        let turn_time = Duration::ZERO;
        Net { hosts, now: START, loses: Box::new(|_, _| false), turn_time }
    }

    /// One turn of each worker, and the frames on their way. Returns whether anything happened.
    pub(super) fn turn(&mut self) -> bool {
        let mut busy = false;
        for host in &mut self.hosts {
            for core in &mut host.cores {
                busy |= core.turn(self.now);
            }
            host.assert_all_accounted();
            if host.listens {
                for (worker, handle) in host.handles.iter_mut().enumerate() {
                    while let Some(event) = handle.poll() {
                        busy = true;
                        if let Event::PeerClosed { stream, .. } = event
                            && host.closes
                        {
                            // RFC 5041 §6.2.1: nothing is left to be answered.
                            handle.send(Command::Close { stream, abort: false }).unwrap();
                        }
                        host.events.push((worker, event));
                    }
                }
            }
        }
        for from in 0..self.hosts.len() {
            for frame in self.hosts[from].sent() {
                busy = true;
                if (self.loses)(from, &frame.0) {
                    continue;
                }
                for (to, host) in self.hosts.iter_mut().enumerate() {
                    if to != from {
                        host.arrive(frame.clone());
                    }
                }
            }
        }
        busy
    }

    /// Lets time pass as fast as things happen, until `done` gives something.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Net) -> Option<T>,
    ) -> T {
        for _ in 0..200_000 {
            if let Some(found) = done(self) {
                return found;
            }
            if !self.turn() {
                let cores = self.hosts.iter().flat_map(|h| &h.cores);
                match cores.filter_map(Core::next_deadline).min() {
                    Some(next) => self.now = next.max(self.now + Duration::from_micros(1)),
                    None => panic!("nothing happens any more; waiting for {what}"),
                }
            } else {
                self.now += self.turn_time;
            }
        }
        panic!("too many turns; waiting for {what}");
    }

    /// Lets this much time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            if !self.turn() {
                let cores = self.hosts.iter().flat_map(|h| &h.cores);
                let next = cores.filter_map(Core::next_deadline).min().unwrap_or(end);
                self.now = next.max(self.now + Duration::from_micros(10)).min(end);
            }
        }
    }

    /// Waits until all that was asked has been done and no frame is under way.
    pub(super) fn settle(&mut self) {
        while self.turn() {}
    }

    /// Opens a stream from a worker of one host to a listener of another; returns both names.
    pub(super) fn open(
        &mut self,
        from: usize,
        worker: usize,
        to: usize,
        remote: SocketAddr,
    ) -> (StreamId, StreamId) {
        self.open_as(from, worker, to, remote, EndpointConfig::default())
    }

    pub(super) fn open_as(
        &mut self,
        from: usize,
        worker: usize,
        to: usize,
        remote: SocketAddr,
        endpoint: impl Into<api::EndpointConfig>,
    ) -> (StreamId, StreamId) {
        let ulp = stream_config().into();
        self.open_ulp((from, worker), to, remote, endpoint.into(), ulp)
    }

    /// The same, with this protocol above the LLP.
    pub(super) fn open_ulp(
        &mut self,
        (from, worker): (usize, usize),
        to: usize,
        remote: SocketAddr,
        endpoint: api::EndpointConfig,
        ulp: UlpConfig,
    ) -> (StreamId, StreamId) {
        let ticket = self.hosts[from].connect_ulp(worker, remote, endpoint, ulp.clone());
        let there = self.until("a request", |net| {
            net.hosts[to].take(|e| match e {
                Event::Incoming { stream, .. } => Some(*stream),
                _ => None,
            })
        });
        self.accept_ulp(to, there, ulp);
        let here = self.until("both ends", |net| {
            net.hosts[from].take(|e| match e {
                Event::Established { stream, ticket: t, .. } if *t == Some(ticket) => Some(*stream),
                Event::ConnectFailed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        });
        (here, there)
    }

    pub(super) fn accept(&mut self, host: usize, stream: StreamId) {
        self.accept_ulp(host, stream, stream_config().into());
    }

    fn accept_ulp(&mut self, host: usize, stream: StreamId, ulp: UlpConfig) {
        let (private_data, service) = (b"welcome".to_vec(), Service::Control);
        let accept = Command::Accept { stream, pd: PD, private_data, ulp, service };
        self.hosts[host].command(stream.worker().into(), |_| accept);
    }

    pub(super) fn wait_sent(&mut self, host: usize, ticket: Ticket) {
        self.until("an acknowledgement", |net| {
            net.hosts[host].take(|e| match e {
                Event::Sent { ticket: t, .. } if *t == ticket => Some(()),
                Event::PostFailed { reason, .. } => panic!("{reason}"),
                _ => None,
            })
        });
    }

    pub(super) fn wait_done(
        &mut self,
        host: usize,
        ticket: Ticket,
    ) -> Result<(), crate::api::CommandError> {
        self.until("an answer", |net| {
            net.hosts[host].take(|e| match e {
                Event::Done { ticket: t, result } if *t == ticket => Some(result.clone()),
                _ => None,
            })
        })
    }
}

/// Bytes that are different everywhere.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub(super) fn bytes_of(memory: &Memory) -> Vec<u8> {
    let mut out = vec![0; memory.len() as usize];
    memory.read(0, &mut out);
    out
}
