//! Data planes with one worker on a core of its own, as the end-to-end measurements need them: one that
//! asks and one that is asked, in one process or in two.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::memory::{Backing, Memory, MemoryConfig};
use dataplane::port::{ChecksumMode, MemifRole, Port, PortConfig, PortKind, Ports};
use dataplane::{
    Command, Connect, Dataplane, DataplaneConfig, EndpointConfig, Event, Idle, InterfaceConfig,
    InterfaceId, Limits, ListenerConfig, ListenerId, Load, LoadReport, PortAttachment, PortId,
    SctpConfig, Service, StreamStats, Ticket, WorkerConfig, WorkerId,
};
use ddp::{
    Access, PdId, Qn, QueueConfig, Stag, StagEntry, StreamConfig, StreamId, TaggedOffset, rdmap,
};
use serde::{Deserialize, Serialize};
use tcp_lite::endpoint::UlpConfig;

const PD: PdId = PdId(1);
const TCP_PORT: u16 = 4791;
/// Far more than any step takes; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);
/// The asking side's region.
pub const LOCAL: Stag = Stag(0x100);
/// The asked side's region.
pub const REMOTE: Stag = Stag(0x200);
/// Messages that a stream may have under way.
pub const MOST_POSTS: usize = 8192;
/// The queue of untagged messages.
pub const QUEUE: Qn = Qn(0);
/// Local addresses of the asking side: 10.9.1.1 and on.
pub const ADDRESSES: u32 = 64;

/// What joins the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// A ring inside the process.
    Ring,
    /// Shared memory between two processes.
    Memif,
    /// Packet sockets on the two ends of a veth pair.
    AfPacket,
    /// AF_XDP sockets on them.
    AfXdp,
}

impl Link {
    /// As the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Link::Ring => "ring",
            Link::Memif => "memif",
            Link::AfPacket => "af_packet",
            Link::AfXdp => "af_xdp",
        }
    }
}

/// Which end of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Opens streams and makes load.
    Asking,
    /// Accepts them and is written to.
    Asked,
}

/// How both ends and the link between them are made.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RigConfig {
    /// What joins the two.
    pub link: Link,
    /// Octets of an IP packet.
    pub mtu: u16,
    /// Both ends ask for markers.
    pub markers: bool,
    /// Both ends ask for CRCs.
    pub crc: bool,
    /// Nobody computes TCP checksums; else the workers do.
    pub trusted: bool,
    /// SCTP carries it; else MPA over TCP.
    pub sctp: bool,
    /// RDMAP is spoken; else bare DDP.
    pub rdmap: bool,
    /// Octets of each region.
    pub region: u64,
    /// The cores of the asking and the asked worker.
    pub cores: [usize; 2],
    /// Frames that a direction of the link holds.
    pub slots: u16,
    /// Streams that there will be.
    pub streams: u32,
    /// Octets of an untagged buffer.
    pub buffer: u32,
    /// Workers sleep when there is nothing to do, so that their processor time says what they did.
    pub sleepy: bool,
    /// Frames lost of a million, towards the asked side. Of `ring` only.
    pub loss_ppm: u32,
    /// Propagation time each way. Of `ring` only.
    pub delay_us: u64,
    /// Names of the Linux interfaces, for `af_packet` and `af_xdp`; the path of the socket for `memif`.
    pub devices: [String; 2],
}

impl Default for RigConfig {
    fn default() -> Self {
        RigConfig {
            link: Link::Ring,
            mtu: 1500,
            markers: false,
            crc: true,
            trusted: false,
            sctp: false,
            rdmap: false,
            region: 16 << 20,
            cores: [0, 1],
            slots: 512,
            streams: 1,
            buffer: 4096,
            sleepy: false,
            loss_ppm: 0,
            delay_us: 0,
            devices: [String::new(), String::new()],
        }
    }
}

impl RigConfig {
    fn kind(&self, side: Side) -> PortKind {
        let device = self.devices[side as usize].clone();
        match self.link {
            Link::Ring => PortKind::Ring { link: "bench".to_owned() },
            Link::Memif => {
                let role = match side {
                    Side::Asking => MemifRole::Client,
                    Side::Asked => MemifRole::Server,
                };
                PortKind::Memif { socket: PathBuf::from(device), role, id: 0, secret: None }
            }
            Link::AfPacket => PortKind::AfPacket { device },
            Link::AfXdp => PortKind::AfXdp { device, first_queue: 0, force_copy: false },
        }
    }

    fn impair(&self, side: Side) -> Option<link::Config> {
        if self.loss_ppm == 0 && self.delay_us == 0 {
            return None;
        }
        let delay = Duration::from_micros(self.delay_us);
        let mut config = link::Config { delay, ..link::Config::seeded(1 + side as u64) };
        if side == Side::Asked && self.loss_ppm > 0 {
            let lost = link::Probability::new(f64::from(self.loss_ppm) * 1e-6);
            config.loss = link::Loss::Random(lost.expect("a number below one"));
        }
        Some(config)
    }

    fn endpoint(&self) -> EndpointConfig {
        if self.sctp {
            let sessions = sctp_lite::session::Config {
                max_sessions: u16::MAX,
                ..sctp_lite::session::Config::default()
            };
            let endpoint = sctp_lite::endpoint::EndpointConfig {
                session: sessions,
                ..sctp_lite::endpoint::EndpointConfig::default()
            };
            let sctp = Arc::new(sctp_lite::sctp::Config::default());
            return SctpConfig { sctp, endpoint: Arc::new(endpoint), udp: None }.into();
        }
        let mut endpoint = tcp_lite::endpoint::EndpointConfig::default();
        endpoint.mpa.markers = self.markers;
        endpoint.mpa.crc = self.crc;
        endpoint.into()
    }

    fn ulp(&self) -> UlpConfig {
        if self.rdmap {
            let buffers = (64, self.buffer);
            let (recv_buffers, recv_size) = buffers;
            return rdmap::Config { recv_buffers, recv_size, ..rdmap::Config::default() }.into();
        }
        let queue = QueueConfig { qn: QUEUE, buffers: 256, buffer_size: self.buffer };
        let queues = vec![queue, QueueConfig::error_queue()];
        StreamConfig { queues, max_posts: MOST_POSTS, ..StreamConfig::default() }.into()
    }
}

fn address(side: Side) -> IpAddr {
    IpAddr::V4(match side {
        Side::Asking => Ipv4Addr::new(10, 9, 1, 1),
        Side::Asked => Ipv4Addr::new(10, 9, 0, 1),
    })
}

/// The `n`-th address of the asking side.
pub fn asking_address(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 9, 1, 1 + (n % ADDRESSES) as u8))
}

/// One data plane.
pub struct End {
    /// The data plane.
    pub dataplane: Dataplane,
    /// The port.
    pub port: Port,
    /// What its region holds.
    pub memory: Memory,
    config: RigConfig,
    /// How its streams speak: one for all, as with the appliance.
    endpoint: EndpointConfig,
    events: Vec<Event>,
}

impl End {
    /// A running worker with its region and, on the asked side, its listener.
    pub fn new(rig: &RigConfig, ports: &Ports, side: Side) -> anyhow::Result<End> {
        let checksum = if rig.trusted { ChecksumMode::Trusted } else { ChecksumMode::Software };
        let config = PortConfig {
            checksum,
            mtu: rig.mtu,
            rx_descriptors: rig.slots,
            tx_descriptors: rig.slots,
            impair: rig.impair(side),
            ..PortConfig::new(format!("bench{}", side as u8), rig.kind(side))
        };
        let port = ports.open(&config)?;
        let own = match side {
            Side::Asked => vec![(address(side), 16)],
            Side::Asking => (0..ADDRESSES).map(|n| (asking_address(n), 16)).collect(),
        };
        let idle = match rig.sleepy {
            true => Idle::Adaptive { spin: Duration::from_micros(5) },
            false => Idle::Poll,
        };
        let core = Some(rig.cores[side as usize]);
        let many = rig.streams.saturating_mul(2).max(4096);
        let limits = Limits {
            streams: many,
            half_open: many,
            half_open_per_peer: many,
            streams_per_peer: many,
            untagged_octets: 256 << 20,
            commands: 16384,
            events: 16384,
            ..Limits::default()
        };
        let config = DataplaneConfig {
            workers: vec![WorkerConfig { id: WorkerId(0), core, idle }],
            ports: vec![PortAttachment { workers: vec![WorkerId(0)] }],
            interfaces: vec![InterfaceConfig {
                name: "bench".into(),
                port: PortId(0),
                vlan: None,
                addresses: own,
                routes: Vec::new(),
                mtu: rig.mtu,
            }],
            limits,
            sctp_udp_port: None,
            secret: [7 + side as u8; 32],
        };
        let mut opened = vec![port];
        let dataplane = Dataplane::start(&config, &mut opened, ports.eal())?;
        let port = opened.remove(0);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (stag, access) = match side {
            Side::Asking => (LOCAL, Access::NONE),
            Side::Asked => (REMOTE, access),
        };
        let memory = memory(rig.region, access.remote_write())?;
        let (config, endpoint) = (rig.clone(), rig.endpoint());
        let mut end = End { dataplane, port, memory, config, endpoint, events: Vec::new() };
        end.add_region(stag, access)?;
        if side == Side::Asked {
            end.listen(many)?;
        }
        Ok(end)
    }

    /// Gives the worker a command.
    pub fn tell(&mut self, command: Command) -> anyhow::Result<()> {
        let mut command = Some(command);
        let begin = Instant::now();
        while let Some(again) = command.take() {
            command = self.dataplane.workers[0].send(again).err().map(|full| full.0);
            if command.is_some() {
                anyhow::ensure!(begin.elapsed() < PATIENCE, "the command ring stays full");
                self.drain();
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// What the first stream of this end did.
    fn first_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.tell(Command::ListStreams { ticket: Ticket(3) })?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            match self.dataplane.workers[0].poll() {
                Some(Event::Streams { streams, .. }) => {
                    return Ok(streams.first().map(|info| info.stats));
                }
                Some(other) => self.events.push(other),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        anyhow::bail!("nothing came of asking for the streams")
    }

    /// Takes what the worker has to say.
    pub fn poll(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.dataplane.workers[0].poll()
        } else {
            Some(self.events.remove(0))
        }
    }

    fn drain(&mut self) {
        while let Some(event) = self.dataplane.workers[0].poll() {
            self.events.push(event);
        }
    }

    /// One counter of the worker.
    pub fn count(&self, name: &str) -> u64 {
        let mut total = 0;
        self.dataplane.workers[0].counters().for_each(|n, _, _, value| {
            if n == name {
                total += value;
            }
        });
        total
    }

    /// Frames that the worker dropped, by any reason.
    pub fn drops(&self) -> u64 {
        self.dataplane.workers[0].counters().drops.total()
    }

    fn done(&mut self, what: &str) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            match self.dataplane.workers[0].poll() {
                Some(Event::Done { result, .. }) => return Ok(result?),
                Some(other) => self.events.push(other),
                None => {
                    anyhow::ensure!(begin.elapsed() < PATIENCE, "waiting for {what}");
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
    }

    fn add_region(&mut self, stag: Stag, access: Access) -> anyhow::Result<()> {
        let entry = StagEntry {
            stag,
            pd: PD,
            stream: None,
            base_to: TaggedOffset(0),
            len: self.config.region,
            access,
            memory: self.memory.clone(),
            memory_offset: 0,
        };
        self.tell(Command::AddStag { entry, ticket: Ticket(1) })?;
        self.done("a region")
    }

    fn listen(&mut self, many: u32) -> anyhow::Result<()> {
        let listener = Arc::new(ListenerConfig {
            id: ListenerId(1),
            interface: None,
            address: None,
            port: TCP_PORT,
            endpoint: self.endpoint.clone(),
            backlog: many,
            credits: u32::MAX / 2,
        });
        self.tell(Command::AddListener { listener, ticket: Ticket(2) })?;
        self.done("a listener")
    }

    /// Asks for a stream, from the `n`-th address.
    pub fn connect(&mut self, n: u32) -> anyhow::Result<()> {
        self.tell(Command::Connect(Box::new(Connect {
            ticket: Ticket(u64::from(n)),
            interface: InterfaceId(0),
            local: Some(asking_address(n)),
            remote: SocketAddr::new(address(Side::Asked), TCP_PORT),
            endpoint: self.endpoint.clone(),
            ulp: self.config.ulp(),
            service: Service::Control,
            pd: PD,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: Duration::from_secs(20),
        })))
    }

    /// The asked side's part: accepts what comes, to be served so. Returns whether there was anything.
    pub fn serve(&mut self, service: Service) -> anyhow::Result<bool> {
        let mut busy = false;
        while let Some(event) = self.poll() {
            busy = true;
            match event {
                Event::Incoming { stream, .. } => {
                    let (ulp, pd) = (self.config.ulp(), PD);
                    let accept =
                        Command::Accept { stream, pd, private_data: Vec::new(), ulp, service };
                    self.tell(accept)?;
                }
                Event::PeerClosed { stream, .. } => {
                    self.tell(Command::Close { stream, abort: false })?;
                }
                Event::Error { error, .. } => anyhow::bail!("the asked side: {error}"),
                Event::RdmapError { error, .. } => anyhow::bail!("the asked side: {error}"),
                Event::Failed { message, .. } => {
                    anyhow::bail!("the asked side's worker: {message}")
                }
                _ => {}
            }
        }
        Ok(busy)
    }
}

/// Memory of a region, in hugepages where there are any.
pub fn memory(len: u64, remote_write: bool) -> anyhow::Result<Memory> {
    let backing = Backing::Huge;
    Ok(Memory::new(&MemoryConfig { backing, len, remote_write, lock: false })?)
}

/// Both ends, or the asking one whose other is another process.
pub struct Rig {
    /// The end that makes the load.
    pub asking: End,
    /// The end that takes it.
    pub asked: Option<End>,
    /// How the asked side serves.
    pub service: Service,
    /// Streams that are open, by the asking side's names.
    pub streams: Vec<StreamId>,
}

impl Rig {
    /// Running data planes.
    pub fn new(config: &RigConfig, ports: &Ports, service: Service) -> anyhow::Result<Rig> {
        // The asked side first: who comes second finds a listener.
        let asked = match config.link {
            Link::Memif => None,
            _ => Some(End::new(config, ports, Side::Asked)?),
        };
        let asking = End::new(config, ports, Side::Asking)?;
        Ok(Rig { asking, asked, service, streams: Vec::new() })
    }

    /// Lets the asked side do its part, if it is in this process.
    pub fn serve(&mut self) -> anyhow::Result<bool> {
        self.asked.as_mut().map_or(Ok(false), |asked| asked.serve(self.service))
    }

    /// Takes the asking side's events as they come, and serves meanwhile, until `done` gives something.
    pub fn until<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut done: impl FnMut(&mut End, Event) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            let mut busy = self.serve()?;
            while let Some(event) = self.asking.poll() {
                busy = true;
                if let Event::Failed { message, .. } = &event {
                    anyhow::bail!("the asking side's worker: {message}");
                }
                if let Some(found) = done(&mut self.asking, event)? {
                    return Ok(found);
                }
            }
            anyhow::ensure!(begin.elapsed() < patience, "nothing came of {what}");
            if !busy {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Opens `n` streams more, a few at a time.
    pub fn open(&mut self, n: u32) -> anyhow::Result<()> {
        let (mut asked, mut opened) = (0, Vec::new());
        let window = 256.min(n);
        while asked < window {
            self.asking.connect(asked)?;
            asked += 1;
        }
        self.until("opening streams", PATIENCE * 2, |asking, event| {
            match event {
                Event::Established { stream, .. } => {
                    opened.push(stream);
                    if asked < n {
                        asking.connect(asked)?;
                        asked += 1;
                    }
                }
                Event::ConnectFailed { reason, .. } => anyhow::bail!("no stream: {reason}"),
                _ => {}
            }
            Ok((opened.len() == n as usize).then_some(()))
        })?;
        self.streams.append(&mut opened);
        Ok(())
    }

    /// Starts the same load on each stream.
    pub fn start(&mut self, load: Load) -> anyhow::Result<()> {
        for stream in self.streams.clone() {
            self.asking.tell(Command::Load { stream, load, ticket: Ticket(9) })?;
        }
        Ok(())
    }

    /// Stops the load on each stream; what they did together, with the round trips of all.
    pub fn stop(&mut self) -> anyhow::Result<LoadReport> {
        for stream in self.streams.clone() {
            self.asking.tell(Command::StopLoad { stream })?;
        }
        self.finish(PATIENCE)
    }

    /// Waits for the end of the load on each stream.
    pub fn finish(&mut self, patience: Duration) -> anyhow::Result<LoadReport> {
        let mut left = self.streams.len();
        let mut total: Option<LoadReport> = None;
        self.until("the load", patience, |_, event| {
            match event {
                Event::LoadDone { report, .. } => {
                    left -= 1;
                    if let Some(failure) = &report.failure {
                        anyhow::bail!("the load failed: {failure}");
                    }
                    total = Some(match total.take() {
                        None => *report,
                        Some(total) => add(total, &report),
                    });
                }
                Event::Closed { reason, .. } => anyhow::bail!("a stream ended: {reason}"),
                _ => {}
            }
            Ok((left == 0).then_some(()))
        })?;
        total.ok_or_else(|| anyhow::anyhow!("there was no stream"))
    }

    /// What the first stream of the asked side did, if that is in this process.
    pub fn asked_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.asked.as_mut().map_or(Ok(None), End::first_stats)
    }

    /// The same of the asking side.
    pub fn asking_stats(&mut self) -> anyhow::Result<Option<StreamStats>> {
        self.asking.first_stats()
    }
}

fn add(mut total: LoadReport, other: &LoadReport) -> LoadReport {
    total.messages += other.messages;
    total.octets += other.octets;
    total.nanoseconds = total.nanoseconds.max(other.nanoseconds);
    if let (Some(all), Some(more)) = (&mut total.latency, &other.latency) {
        // The same bounds everywhere: nothing can be out of range.
        let _ = all.add(more);
    }
    total
}
