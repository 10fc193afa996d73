//! A fake appliance for tests: the real API server with a control thread that answers requests with fixed values.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use config::directories::Directories;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::*;

pub const BODY_LIMIT: u64 = 4096;

/// Returns access rights under which every caller has the role `view`.
pub fn only_viewers() -> Access {
    Access::only_viewers()
}

/// The API server, its socket and the fake control thread. Dropping the value ends all of them.
pub struct Fake {
    pub events: EventLog,
    requester: Requester,
    requests: Arc<AtomicU64>,
    reload_delay: Arc<AtomicU64>,
    last_request: Arc<Mutex<Value>>,
    stop: Arc<AtomicBool>,
    server: Option<Server>,
    thread: Option<JoinHandle<()>>,
    dir: TempDir,
}

impl Fake {
    pub fn start() -> Self {
        Self::start_for(Access::owner_only())
    }

    /// Starts a server with these access rights.
    pub fn start_for(access: Access) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let (requester, inbox) = channel().unwrap();
        let events = EventLog::new(1000, 1 << 20);
        let server = Server::start(&socket, requester.clone(), events.clone(), BODY_LIMIT, access);
        let server = server.unwrap();
        let (requests, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let seen = Arc::new(Mutex::new(Value::Null));
        let mut control = FakeControl {
            requests: requests.clone(),
            last_request: Arc::clone(&seen),
            regions: vec![region("inbox")],
            polls: 0,
        };
        let stopped = stop.clone();
        let slow = Arc::new(AtomicU64::new(0));
        let wanted = Arc::clone(&slow);
        let mut held: Option<(Responder, Result<Reply, ApiError>)> = None;
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let mut fds = [PollFd::from_borrowed_fd(inbox.fd(), PollFlags::IN)];
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap();
                while let Some(Call { request, responder: answer }) = inbox.try_recv() {
                    let reload = request == Request::Reload;
                    let reply = control.answer(request);
                    match wanted.load(Ordering::Relaxed) {
                        0 => answer.send(reply),
                        _ if reload => held = Some((answer, reply)),
                        left => {
                            answer.send(reply);
                            wanted.store(left - 1, Ordering::Relaxed);
                            if left == 1
                                && let Some((answer, reply)) = held.take()
                            {
                                answer.send(reply);
                            }
                        }
                    }
                }
            }
        });
        Self {
            events,
            requester,
            requests,
            reload_delay: slow,
            last_request: seen,
            stop,
            server: Some(server),
            thread: Some(thread),
            dir,
        }
    }

    /// Returns a sender of requests that bypasses the server.
    pub fn requester(&self) -> Requester {
        self.requester.clone()
    }

    pub fn socket(&self) -> &Path {
        self.server.as_ref().unwrap().path()
    }

    /// Returns a directory for the test's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the last recorded request, as JSON. Only requests that involve a peer and new listeners are recorded.
    pub fn last_request(&self) -> Value {
        self.last_request.lock().unwrap().clone()
    }

    /// Delays the answer to a reload until `others` further requests were answered.
    pub fn delay_reloads(&self, others: u64) {
        self.reload_delay.store(others, Ordering::Relaxed);
    }

    /// Returns the number of requests that reached the fake control thread.
    pub fn request_count(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.server.take());
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

struct FakeControl {
    requests: Arc<AtomicU64>,
    last_request: Arc<Mutex<Value>>,
    regions: Vec<RegionInfo>,
    /// Number of puts and of requests for job 1 together. From 4 on, the job is reported as done.
    polls: u64,
}

/// Returns the remote port if the request opens a stream; `None` if it uses an existing stream.
fn tcp_port(via: &Via) -> Option<u16> {
    match via {
        Via::Connect(connect) => Some(connect.remote.port()),
        Via::Stream(_) => None,
    }
}

impl FakeControl {
    fn record_request(&self, spec: &impl Serialize) {
        *self.last_request.lock().unwrap() = serde_json::to_value(spec).unwrap();
    }

    fn unknown_region(&self, name: &str) -> ApiError {
        unknown_name("region", name, self.regions.iter().map(|region| region.name.as_str()))
    }

    fn answer(&mut self, request: Request) -> Result<Reply, ApiError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match request {
            Request::Status => Ok(Reply::Status(status())),
            Request::Ports => Ok(Reply::Ports(vec![port()])),
            Request::Workers => Ok(Reply::Workers(vec![worker()])),
            Request::Regions(NamePage { after, limit }) => {
                let mut regions = self.regions.clone();
                regions.sort_by(|a, b| a.name.cmp(&b.name));
                regions.retain(|region| after.as_ref().is_none_or(|after| region.name > *after));
                regions.truncate(limit);
                Ok(Reply::Regions(regions))
            }
            Request::AddRegion(section) => {
                if self.regions.iter().any(|region| region.name == section.name) {
                    let message = format!("there is a region \"{}\" already", section.name);
                    return Err(ApiError::conflict(message));
                }
                let region = RegionInfo {
                    size: section.size.unwrap_or(0),
                    access: section.access_word().into(),
                    ..region(&section.name)
                };
                self.regions.push(region.clone());
                Ok(Reply::Region(region))
            }
            Request::SetAccess { name, access } => {
                let Some(at) = self.regions.iter().position(|region| region.name == name) else {
                    return Err(self.unknown_region(&name));
                };
                let region = &mut self.regions[at];
                region.access = config::access_word(access).into();
                Ok(Reply::Region(region.clone()))
            }
            Request::RemoveRegion { name, .. } => {
                let before = self.regions.len();
                self.regions.retain(|region| region.name != name);
                if self.regions.len() == before {
                    return Err(self.unknown_region(&name));
                }
                Ok(Reply::EMPTY)
            }
            Request::ReadRegion { name, offset, length } => {
                if !self.regions.iter().any(|region| region.name == name) {
                    return Err(self.unknown_region(&name));
                }
                Ok(Reply::Bytes((offset..offset + length).map(|at| at as u8).collect()))
            }
            Request::Listeners(NamePage { after, limit }) => {
                let all = [listener("ingest")].into_iter();
                let rest = all.filter(|l| after.as_ref().is_none_or(|after| l.name > *after));
                Ok(Reply::Listeners(rest.take(limit).collect()))
            }
            Request::AddListener(section) => {
                self.record_request(&format!("{section:?}"));
                Ok(Reply::Listener(listener(&section.name)))
            }
            Request::RemoveListener { name } if name == "ingest" => Ok(Reply::EMPTY),
            Request::RemoveListener { name } => {
                Err(ApiError::not_found(format!("there is no listener \"{name}\"")))
            }
            Request::Get(spec) => {
                self.record_request(&spec);
                if tcp_port(&spec.via) == Some(1) {
                    let (state, error) = (JobState::Failed, Some("not open to reads".into()));
                    let hint = Some("ask for read access".into());
                    let failed = JobInfo { state, error, hint, refused: true, ..job(1) };
                    return Ok(Reply::Job(failed));
                }
                let file = match spec.sink {
                    GetSink::File(file) => file,
                    GetSink::Region { .. } => PathBuf::new(),
                };
                Ok(Reply::Job(JobInfo { kind: "get".into(), file, ..job(0) }))
            }
            Request::Bench(spec) => {
                self.record_request(&spec);
                if spec.connect.remote.port() == 1 {
                    let (state, error) = (JobState::Failed, Some("it offers: none".into()));
                    let job = JobInfo { state, error, refused: true, ..bench(&spec) };
                    return Ok(Reply::Job(job));
                }
                Ok(Reply::Job(bench(&spec)))
            }
            Request::Ping(spec) => {
                self.record_request(&spec);
                match spec.connect.remote.port() {
                    1 => return Err(ApiError::peer_refused("byte 5 came back changed")),
                    2 => return Err(ApiError::timeout("no answer in time")),
                    _ => {}
                }
                Ok(Reply::Ping(PingReport {
                    remote: spec.connect.remote.to_string(),
                    rounds: spec.count,
                    size: spec.size,
                    min_ns: 1500,
                    mean_ns: 2500,
                    median_ns: 2000,
                    p99_ns: 9000,
                    max_ns: 9500,
                }))
            }
            Request::Atomic(spec) => {
                self.record_request(&spec);
                if tcp_port(&spec.via) == Some(1) {
                    let error = ApiError::peer_refused("terminated by the peer");
                    return Err(error.with_hint(Some("look at the peer")));
                }
                Ok(Reply::Atomic(AtomicDone { original: u64::MAX.to_string(), time_us: 12 }))
            }
            Request::Streams { after, limit } => {
                let all = [stream()].into_iter();
                let rest = all.filter(|stream| after.is_none_or(|after| stream.id.0 > after.0));
                Ok(Reply::Streams(rest.take(limit).collect()))
            }
            Request::Stream(id) | Request::CloseStream { id, .. } if id != stream().id => {
                Err(ApiError::not_found(format!("there is no stream {id}")))
            }
            Request::Stream(_) => Ok(Reply::Stream(stream())),
            Request::CloseStream { .. } => Ok(Reply::EMPTY),
            Request::IpsecSas => Ok(Reply::IpsecSas(vec![IpsecSaInfo {
                spi: 0x1001,
                direction: "out".into(),
                name: Some("to-b".into()),
                policy: "peers".into(),
                algorithm: "aes128gcm16".into(),
                tunnel: Some(["192.0.2.1".into(), "192.0.2.2".into()]),
                udp: true,
                sequence: 7,
                packets: 7,
                bytes: 700,
                refused: None,
            }])),
            Request::IpsecPolicies => Ok(Reply::IpsecPolicies(vec![IpsecPolicyInfo {
                name: "peers".into(),
                direction: Some("in".into()),
                priority: Some(367_232),
                refused: None,
                local: "0.0.0.0/0".into(),
                remote: "192.0.2.0/24".into(),
                protocol: Some(6),
                local_ports: [0, u16::MAX],
                remote_ports: [4791, 4791],
                action: "protect".into(),
                tunnel: Some(["192.0.2.1".into(), "192.0.2.2".into()]),
            }])),
            Request::Associations => Ok(Reply::Associations(vec![association()])),
            Request::Association(id) if id != association().id => {
                Err(ApiError::not_found(format!("there is no association {id}")))
            }
            Request::Association(_) => Ok(Reply::Association(association())),
            Request::Stats => Ok(Reply::Stats(stats())),
            Request::Connect(spec) if spec.remote.port() == 1 => {
                Err(ApiError::peer_refused("10.0.0.2:1 rejected the connection"))
            }
            Request::Connect(spec) => {
                self.record_request(&spec);
                Ok(Reply::Stream(stream()))
            }
            Request::Put(spec) => {
                self.record_request(&spec);
                self.polls += 1;
                Ok(Reply::Job(job(self.polls)))
            }
            Request::Job(1) => {
                self.polls += 1;
                Ok(Reply::Job(job(self.polls)))
            }
            Request::Input { .. } => Ok(Reply::EMPTY),
            Request::Programs => Ok(Reply::Programs(vec![program()])),
            Request::Program(3) | Request::KillProgram(3) => Ok(Reply::Program(program())),
            Request::Program(id) | Request::KillProgram(id) => {
                Err(ApiError::not_found(format!("there is no program {id}")))
            }
            Request::Jobs => Ok(Reply::Jobs(vec![job(1)])),
            Request::Job(id) | Request::CancelJob(id) => {
                Err(ApiError::not_found(format!("there is no job {id}")))
            }
            Request::Send(spec) => {
                self.record_request(&spec);
                Ok(Reply::Sent(Sent {
                    bytes: spec.data.len() as u64,
                    time_us: 150,
                    reply: (spec.wait_reply_us > 0).then_some(spec.data),
                    confirmed: true,
                }))
            }
            Request::Reload => Ok(Reply::Reload(ReloadReport {
                applied: vec!["region \"new\" added".into()],
                needs_restart: vec!["[workers] changed".into()],
                ..ReloadReport::default()
            })),
            Request::Drain => {
                let (state, streams_left) = ("draining".into(), Some(1));
                Ok(Reply::Status(Status { state, streams_left, ..status() }))
            }
            Request::Undrain => Ok(Reply::Status(status())),
            Request::TryReload => Ok(Reply::Reload(ReloadReport {
                applied: vec!["region `new` added".into()],
                kept: vec!["region `x` was added by the API: it stays".into()],
                refused: vec!["region `old` cannot go: 2 streams use it".into()],
                dry_run: true,
                ..ReloadReport::default()
            })),
            Request::Config => Ok(Reply::Config(config())),
            Request::ConfigDiff => Ok(Reply::ConfigDiff(config_diff())),
            Request::Log => Ok(Reply::Log(log("info"))),
            Request::SetLog(filter) if filter.contains('[') => {
                Err(ApiError::bad_request(format!("management.log: {filter:?} is no log filter")))
            }
            Request::SetLog(filter) => Ok(Reply::Log(log(&filter))),
            Request::Capture { .. } => Ok(Reply::EMPTY),
            Request::EndCapture { port } => {
                Err(ApiError::not_found(format!("no capture of {port}")))
            }
            Request::Explain(_) => Ok(Reply::Explanation(Why::default())),
            Request::ConfigText(file) => Ok(Reply::Text {
                text: format!("# {}\n", file.display()),
                running: "/etc/ddpd.toml".into(),
                files: Arc::new(Directories::root()),
            }),
        }
    }
}

fn log(filter: &str) -> LogInfo {
    LogInfo { filter: filter.into(), format: "text".into(), suppressed: 3 }
}

fn config() -> ConfigInfo {
    let key = |key: &str, value: Value, origin| KeyInfo { key: key.into(), value, origin };
    let api = ValueOrigin::Api { call: "POST /v1/regions".into() };
    ConfigInfo {
        file: "/etc/ddpd.toml".into(),
        sections: vec![
            SectionInfo {
                section: "region".into(),
                identity: vec!["inbox".into()],
                keys: vec![
                    key("name", "inbox".into(), api.clone()),
                    key("base_to", 4096.into(), api),
                ],
            },
            SectionInfo {
                section: "tcp".into(),
                identity: Vec::new(),
                keys: vec![
                    key("user_timeout", "1m".into(), ValueOrigin::File { line: 12 }),
                    key("sack", true.into(), ValueOrigin::Default),
                ],
            },
        ],
    }
}

fn config_diff() -> ConfigDiff {
    let difference = Difference {
        section: "tcp".into(),
        identity: Vec::new(),
        key: Some("user_timeout".into()),
        running: Some("1m".into()),
        origin: Some(ValueOrigin::File { line: 12 }),
        file: None,
        line: None,
        when: When::Restart,
    };
    let region = Difference {
        section: "region".into(),
        identity: vec!["inbox".into()],
        key: None,
        running: Some(serde_json::json!({ "name": "inbox" })),
        origin: Some(ValueOrigin::Api { call: "POST /v1/regions".into() }),
        when: When::Api,
        ..difference.clone()
    };
    ConfigDiff { file: "/etc/ddpd.toml".into(), differences: vec![difference, region] }
}

pub fn message(listener: &str, queue: u32, data: &[u8]) -> EventKind {
    EventKind::Message {
        stream: StreamId(7),
        listener: Some(listener.into()),
        queue,
        msn: 1,
        rsvd_ulp: 0,
        data: data.into(),
    }
}

fn counters(list: &[(&str, u64)]) -> Counters {
    list.iter().map(|&(name, value)| (name.into(), value)).collect()
}

fn status() -> Status {
    Status {
        name: "fake".into(),
        version: "0.1.0".into(),
        dpdk_version: Some("DPDK 24.11".into()),
        state: "running".into(),
        uptime_seconds: 3723.5,
        workers: 1,
        streams: 1,
        notes: vec!["no hugepages: ordinary pages are used".into()],
        note_kinds: vec!["at_start".into()],
        ..Status::default()
    }
}

fn port() -> PortInfo {
    PortInfo {
        name: "p0".into(),
        kind: "ring".into(),
        device: "demo".into(),
        mac: "02:00:00:00:00:01".into(),
        up: true,
        mtu: 1500,
        queues: 1,
        interfaces: vec![InterfaceInfo {
            name: "lan".into(),
            addresses: vec!["10.0.0.1/24".into()],
            ..InterfaceInfo::default()
        }],
        counters: counters(&[("rx_frames", 7)]),
        ..PortInfo::default()
    }
}

fn worker() -> WorkerInfo {
    WorkerInfo {
        core: Some(2),
        idle: "adaptive".into(),
        streams: 1,
        busy: Some(0.25),
        ..WorkerInfo::default()
    }
}

fn region(name: &str) -> RegionInfo {
    RegionInfo {
        name: name.into(),
        size: 64 << 20,
        backing: "anonymous".into(),
        stag: "0x0badcafe".into(),
        base_to: "4096".into(),
        access: "rw".into(),
        ..RegionInfo::default()
    }
}

fn listener(name: &str) -> ListenerInfo {
    ListenerInfo {
        name: name.into(),
        interface: "lan".into(),
        addresses: vec!["10.0.0.1:7471".into(), "[fd00::1]:7471".into()],
        ulp: "ddp".into(),
        revisions: vec![0, 1],
        markers: true,
        crc: true,
        regions: vec!["inbox".into()],
        max_streams: 64,
        ..ListenerInfo::default()
    }
}

pub fn stream() -> StreamInfo {
    StreamInfo {
        id: StreamId(0x0001_0000_0000_0007),
        worker: 1,
        listener: Some("ingest".into()),
        program: None,
        local: "10.0.0.1:7471".into(),
        remote: "10.0.0.2:40000".into(),
        state: "established".into(),
        transport: config::Transport::Tcp,
        association: None,
        mulpdu: Some(1428),
        mpa: Some(MpaInfo {
            revision: 1,
            markers_tx: true,
            markers_rx: true,
            crc: true,
            mulpdu: 1428,
        }),
        regions: vec!["inbox".into()],
        peer_regions: vec![],
        age_seconds: 12.0,
        flow: Some(flow()),
        counters: counters(&[
            ("placed_in_order_bytes", 1 << 20),
            ("placed_out_of_order_bytes", 1 << 19),
            ("sent_bytes", 4096),
        ]),
    }
}

fn flow() -> FlowInfo {
    let shares = [("application", 0.25), ("congestion_window", 0.75), ("pacing", 0.0)];
    FlowInfo {
        rtt_us: Some(420),
        rttvar_us: 31,
        min_rtt_us: Some(300),
        rto_us: 50_420,
        cwnd: 143_360,
        in_flight: 141_912,
        pacing_rate: None,
        delivery_rate: Some(125_000_000),
        peer_window: 4 << 20,
        own_window: 4 << 20,
        path_mtu: 1500,
        limited_by: "congestion_window".into(),
        limited: shares.into_iter().map(|(name, share)| (name.into(), share)).collect(),
        ..FlowInfo::default()
    }
}

fn stats() -> Stats {
    Stats {
        workers: vec![WorkerStats {
            gauges: Counters::new(),
            worker: 0,
            counters: counters(&[("rx_frames", 7)]),
            drops: counters(&[("bad_checksum", 2), ("no_listener", 0)]),
            errors: counters(&[("ddp_1_02", 1)]),
            ends: counters(&[("peer_reset", 3)]),
        }],
        ports: vec![PortStats { port: "p0".into(), counters: counters(&[("rx_frames", 7)]) }],
        control: counters(&[("api_requests", 4)]),
        gauges: counters(&[("streams", 1)]),
        ..Stats::default()
    }
}

fn program() -> ProgramInfo {
    ProgramInfo {
        id: 3,
        name: "ping_pong".into(),
        uid: 1000,
        pid: 4321,
        state: "attached".into(),
        seconds: 61.5,
        queue_pairs: 2,
        connections: 1,
        completion_queues: 1,
        memory_regions: 1,
        registered: 4096,
        memory: 16384,
        listeners: vec!["tcp 0.0.0.0:7471".into()],
        requests: 0,
    }
}

fn job(polls: u64) -> JobInfo {
    let done = polls >= 4;
    JobInfo {
        id: 1,
        kind: "put".into(),
        file: "/tmp/file".into(),
        remote: "10.0.0.2:7471".into(),
        state: if done { JobState::Done } else { JobState::Running },
        total: 4000,
        acknowledged: (polls * 1000).min(4000),
        seconds: 0.5,
        ..JobInfo::default()
    }
}

fn bench(spec: &BenchSpec) -> JobInfo {
    let latency = LatencyInfo {
        count: 4000,
        min_ns: 1500,
        mean_ns: 2500,
        p50_ns: 2000,
        p90_ns: 3000,
        p99_ns: 9000,
        p999_ns: 10_000,
        p9999_ns: 11_000,
        max_ns: 11_500,
    };
    let bench = BenchInfo {
        load: spec.load.as_str().into(),
        streams: spec.streams,
        size: spec.size,
        depth: spec.depth,
        time_us: spec.time_us,
        rate: spec.rate,
        messages: 4000,
        unfinished: 3,
        messages_per_s: 8000.0,
        gbit_per_s: 0.064,
        latency: Some(latency),
        ..BenchInfo::default()
    };
    JobInfo {
        id: 1,
        kind: "bench".into(),
        remote: spec.connect.remote.to_string(),
        state: JobState::Done,
        acknowledged: 4_000_000,
        seconds: 0.5,
        bench: Some(Box::new(bench)),
        ..JobInfo::default()
    }
}

fn association() -> AssociationInfo {
    AssociationInfo {
        id: StreamId(0x0001_0000_0000_0009),
        worker: 1,
        local: "10.0.0.1:7471".into(),
        remote: "10.0.0.2:40000".into(),
        udp: Some([9899, 4000]),
        state: "established".into(),
        sessions: 3,
        streams: 256,
        path_mtu: 1400,
        round_trip_us: Some(210),
        rto_us: 1_000_000,
        cwnd: 65536,
        in_flight: 2800,
        peer_window: 1 << 20,
        unanswered: 0,
        flow: flow(),
        counters: [("sctp_packets_in", 77), ("retransmitted_segments", 5)]
            .map(|(name, value)| (name.into(), value))
            .into(),
    }
}
