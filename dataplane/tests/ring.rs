//! Two dataplanes in one process, with EAL, ring ports and worker threads. Bytes written by one arrive in the other's
//! memory.
//!
//! The EAL starts once per process, so all cases share it. Each case has its own ports.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dataplane::memory::{Backing, Memory, MemoryConfig};
use dataplane::port::{ChecksumMode, Port, PortConfig, PortFactory, PortKind};
use dataplane::{
    Command, Connect, Dataplane, DataplaneConfig, Event, Idle, InterfaceConfig, InterfaceId,
    Limits, ListenerConfig, ListenerId, PortAttachment, PortId, Service, SourceRemoval, StartError,
    Ticket, WorkerConfig, WorkerId,
};
use ddp::{
    Access, Cookie, Message, PdId, RegionMemory, Source, Stag, StagEntry, StreamConfig, StreamId,
    TaggedOffset,
};
use dpdk::{Eal, EalConfig, Hugepages};
use tcp_lite::endpoint::EndpointConfig;

const PD: PdId = PdId(1);
const TCP_PORT: u16 = 4791;
const LEN: usize = 8 << 20;
/// Time-out of a wait; only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(60);

fn ports() -> &'static PortFactory {
    static PORTS: OnceLock<PortFactory> = OnceLock::new();
    PORTS.get_or_init(|| {
        let config =
            EalConfig { hugepages: Hugepages::Never, memory_mib: 512, ..EalConfig::default() };
        PortFactory::new(Eal::start(&config).expect("an environment without privileges"))
    })
}

/// Parameters of a test case, the same for both ends.
#[derive(Clone)]
struct Case {
    link: &'static str,
    workers: u16,
    idle: Idle,
    checksum: ChecksumMode,
    mtu: u16,
    impair: Option<link::Config>,
}

impl Case {
    fn new(link: &'static str) -> Case {
        let idle = Idle::Adaptive { spin: Duration::from_micros(50) };
        Case { link, workers: 1, idle, checksum: ChecksumMode::Software, mtu: 1500, impair: None }
    }
}

/// A dataplane of the pair, with its ports and the events that it has reported.
struct Endpoint {
    dataplane: Dataplane,
    events: Vec<Event>,
    _ports: Vec<Port>,
}

fn address(host: u8, v6: bool) -> IpAddr {
    if v6 {
        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host].into()
    } else {
        [10, 9, 0, host].into()
    }
}

impl Endpoint {
    fn new(case: &Case, host: u8) -> Endpoint {
        let kind = PortKind::Ring { link: case.link.to_owned() };
        let config = PortConfig {
            queues: case.workers,
            checksum: case.checksum,
            mtu: case.mtu,
            impair: case.impair.clone(),
            rx_descriptors: 256,
            tx_descriptors: 256,
            ..PortConfig::new(format!("{}{host}", case.link), kind)
        };
        let port = ports().open(&config).expect("a ring port");
        let ids: Vec<WorkerId> = (0..case.workers).map(WorkerId).collect();
        let worker = |&id: &WorkerId| WorkerConfig { id, core: None, idle: case.idle };
        let config = DataplaneConfig {
            workers: ids.iter().map(worker).collect(),
            ports: vec![PortAttachment { workers: ids.clone() }],
            interfaces: vec![InterfaceConfig {
                ip: Default::default(),
                local_ports: Default::default(),
                host: false,
                name: "ring".into(),
                port: PortId(0),
                vlan: None,
                addresses: [(false, 24), (true, 64)]
                    .map(|(v6, len)| format!("{}/{len}", address(host, v6)).parse().unwrap())
                    .into(),
                routes: Vec::new(),
                mtu: case.mtu,
            }],
            limits: Limits::default(),
            sctp_udp_port: None,
            ipsec: None,
            secret: [host; 32].into(),
        };
        let mut ports_of = vec![port];
        let dataplane = Dataplane::start(&config, &mut ports_of, ports().eal()).expect("workers");
        Endpoint { dataplane, events: Vec::new(), _ports: ports_of }
    }

    fn command(&mut self, worker: usize, command: Command) {
        self.dataplane.workers[worker].send(command).expect("room for a command");
    }

    /// Sends a command to every worker and waits for their answers.
    fn command_all(&mut self, make: impl Fn(Ticket) -> Command) {
        for worker in 0..self.dataplane.workers.len() {
            let ticket = Ticket(1_000_000 + worker as u64);
            self.command(worker, make(ticket));
            let done = self.wait("an answer", |e| match e {
                Event::Done { ticket: t, result } if *t == ticket => Some(result.clone()),
                _ => None,
            });
            done.expect("done");
        }
    }

    /// Waits for an event as a control thread does: asleep on the event descriptor.
    fn wait<T>(&mut self, awaited: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            for worker in &mut self.dataplane.workers {
                while let Some(event) = worker.poll() {
                    self.events.push(event);
                }
            }
            if let Some(at) = self.events.iter().position(|e| pick(e).is_some()) {
                return pick(&self.events.remove(at)).expect("the event was selected above");
            }
            assert!(
                begin.elapsed() < TIMEOUT,
                "waiting for {awaited}; there are {:?}",
                self.events
            );
            if self.dataplane.arm() {
                let fd = self.dataplane.events_fd();
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                    fd.as_fd(),
                    rustix::event::PollFlags::IN,
                )];
                let limit = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
                rustix::event::poll(&mut fds, Some(&limit)).expect("poll");
            }
            self.dataplane.disarm();
        }
    }

    fn region(&mut self, stag: Stag, access: Access) -> Memory {
        let remote_write = access.remote_write();
        let config = MemoryConfig {
            backing: Backing::Anonymous,
            len: LEN as u64,
            remote_write,
            lock: false,
        };
        let memory = Memory::new(&config).expect("memory");
        let entry = StagEntry {
            stag,
            pd: PD,
            stream: None,
            base_to: TaggedOffset(0),
            len: LEN as u64,
            access,
            memory: memory.clone(),
            memory_offset: 0,
        };
        self.command_all(|ticket| Command::AddStag { entry: entry.clone(), ticket });
        memory
    }

    fn listen(&mut self) {
        let listener = Arc::new(ListenerConfig {
            require: None,
            peers: Default::default(),
            ip: Default::default(),
            id: ListenerId(1),
            interface: None,
            address: None,
            port: TCP_PORT,
            endpoint: EndpointConfig::default().into(),
            backlog: 16,
            credits: 16,
        });
        self.command_all(|ticket| Command::AddListener { listener: listener.clone(), ticket });
    }

    fn connect(&mut self, worker: usize, remote: SocketAddr) {
        let connect = Connect {
            ip: Default::default(),
            ticket: Ticket(7),
            interface: InterfaceId(0),
            local: None,
            remote,
            endpoint: EndpointConfig::default().into(),
            ulp: StreamConfig::default().into(),
            service: Service::Control,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        };
        self.command(worker, Command::Connect(Box::new(connect)));
    }

    fn count(&self, name: &str) -> u64 {
        let mut total = 0;
        for worker in &self.dataplane.workers {
            worker.counters().for_each(|c, value| total += if c.name == name { value } else { 0 });
        }
        total
    }
}

/// Opens a stream from a worker of `a` to `b`. Returns both ends.
fn open(a: &mut Endpoint, worker: usize, b: &mut Endpoint, v6: bool) -> (StreamId, StreamId) {
    a.connect(worker, SocketAddr::new(address(2, v6), TCP_PORT));
    let accepted = b.wait("a request", |e| match e {
        Event::Incoming { stream, .. } => Some(*stream),
        _ => None,
    });
    let (private_data, ulp) = (Vec::new(), StreamConfig::default().into());
    let service = Service::Control;
    let accept = Command::Accept { stream: accepted, pd: PD, private_data, ulp, service };
    b.command(accepted.worker().into(), accept);
    let connected = a.wait("a stream", |e| match e {
        Event::Established { stream, .. } => Some(*stream),
        Event::ConnectFailed { reason, .. } => panic!("{reason}"),
        _ => None,
    });
    (connected, accepted)
}

fn write(a: &mut Endpoint, stream: StreamId, source: &Memory, region: Stag, to: Stag) {
    let source = Source::Region { memory: source.clone(), offset: 0, len: LEN as u32 };
    let message = Message::Tagged {
        stag: to,
        to: TaggedOffset(0),
        rsvd_ulp: 0,
        source,
        cookie: Cookie::user(0),
    };
    let post = Command::Post { stream, message, region: Some(region), ticket: Ticket(8) };
    a.command(stream.worker().into(), post);
}

fn pattern() -> Vec<u8> {
    (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn holds(memory: &Memory, expected: &[u8]) -> bool {
    let mut bytes = vec![0; LEN];
    memory.read(0, &mut bytes);
    bytes == expected
}

/// Opens a stream from each worker of one dataplane to the other, and writes through each.
fn run(case: &Case) -> (Endpoint, Endpoint) {
    let (mut a, mut b) = (Endpoint::new(case, 1), Endpoint::new(case, 2));
    b.listen();
    let (from, to) = (Stag(0x100), Stag(0x200));
    let source = a.region(from, Access::NONE);
    source.write(0, &pattern());
    for worker in 0..usize::from(case.workers) {
        let stag = Stag(to.0 + worker as u32);
        let sink = b.region(stag, Access::REMOTE_WRITE);
        let (here, there) = open(&mut a, worker, &mut b, worker % 2 == 1);
        write(&mut a, here, &source, from, stag);
        let len = b.wait("delivery", |e| match e {
            Event::TaggedDelivered { stream, len, .. } if *stream == there => Some(*len),
            Event::Error { error, .. } => panic!("{error:?}"),
            _ => None,
        });
        assert_eq!(len, LEN as u64);
        a.wait("an acknowledgement", |e| matches!(e, Event::Sent { .. }).then_some(()));
        assert!(holds(&sink, &pattern()), "worker {worker}");
        b.command_all(|ticket| Command::RemoveStag { stag, removal: SourceRemoval::Wait, ticket });
    }
    (a, b)
}

#[test]
fn adaptive_workers_sleep_and_wake() {
    let (a, b) = run(&Case::new("adaptive"));
    assert!(a.count("sleeps") > 0 && b.count("sleeps") > 0);
}

#[test]
fn polling_workers_transfer_jumbo_frames() {
    let case = Case {
        idle: Idle::Poll,
        checksum: ChecksumMode::Trusted,
        mtu: 9000,
        ..Case::new("polling")
    };
    let (a, _) = run(&case);
    assert_eq!(a.count("sleeps"), 0);
}

#[test]
fn two_workers_per_side_share_flows_through_mesh() {
    let (a, b) = run(&Case { workers: 2, ..Case::new("two") });
    assert_eq!(a.count("streams_established"), 2);
    assert_eq!(b.count("mesh_full") + a.count("mesh_full"), 0);
}

#[test]
fn transfer_completes_over_lossy_reordering_ring() {
    let one_percent = link::Probability::new(0.01).expect("a probability");
    let loss = link::Loss::Random(one_percent);
    let reorder = link::Reorder { probability: one_percent, delay: Duration::from_micros(300) };
    let impair = link::Config { loss, reorder, ..link::Config::seeded(5) };
    let case = Case { impair: Some(impair), ..Case::new("lossy") };
    run(&case);
}

#[test]
fn stop_delivers_last_events_and_resets_peer() {
    let (mut a, mut b) = run(&Case::new("stop"));
    let (mut stopped, mut closed) = (0, 0);
    let Endpoint { dataplane, .. } = b;
    dataplane.stop(|_, event| match event {
        Event::Stopped => stopped += 1,
        Event::Closed { .. } => closed += 1,
        _ => {}
    });
    assert_eq!((stopped, closed), (1, 1));
    a.wait("the reset", |e| matches!(e, Event::Closed { .. }).then_some(()));
    b = Endpoint::new(&Case::new("other"), 3);
    drop(b);
}

#[test]
fn nonexistent_core_is_refused_with_reason() {
    let kind = PortKind::Ring { link: "pin".into() };
    let mut opened = vec![ports().open(&PortConfig::new("pin", kind)).expect("a ring port")];
    let id = WorkerId(0);
    let config = DataplaneConfig {
        workers: vec![WorkerConfig { id, core: Some(100_000), idle: Idle::Poll }],
        ports: vec![PortAttachment { workers: vec![id] }],
        interfaces: Vec::new(),
        limits: Limits::default(),
        sctp_udp_port: None,
        ipsec: None,
        secret: [0; 32].into(),
    };
    let refused = Dataplane::start(&config, &mut opened, ports().eal());
    assert!(matches!(refused, Err(StartError::Pin { worker, core: 100_000 }) if worker == id));
}
