//! Tests of the control thread's state machine with scripted workers: tests inspect its commands and provide answers
//! and events. No worker, port or EAL runs.

/// A port with one interface, and two workers.
macro_rules! host {
    () => {
        r#"
[workers]
count = 2
[[port]]
name = "p"
kind = "ring"
link = "l"
[[interface]]
name = "i"
port = "p"
addresses = ["10.0.0.1/24"]
"#
    };
}

mod addresses;
mod attempts;
mod bench;
mod confirmations;
mod counts;
mod diagnosis;
mod drain;
mod gets;
mod half_closed;
mod inputs;
mod invalid_requests;
mod jobs;
mod limits;
mod links;
mod paths;
mod peer_errors;
mod programs;
mod rdma_operations;
mod rdmap;
mod region_preparation;
mod regions;
mod reload;
mod reload_atomicity;
mod running_config;
mod scale;
mod sends;
mod services;
mod stalls;
mod streams;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, Call, EventFilter, EventKind, EventLog, NamePage, Reply, Request, Responder};
use config::{self, Config, Document, MachineMemory, RegionSection};
use dataplane::memory::{Maps, Memory};
use dataplane::{
    Command, Counters, EndpointConfig, Event, InterfaceId, ListenerId, StreamParams,
    StreamSelection, StreamStats, Ticket, WorkerId,
};
use ddp::advert::{self, Advertised};
use ddp::{StagEntry, StreamId};
use tcp_lite::endpoint::{CloseReason, EndpointStats, TcpReason, UlpKind};
use tcp_lite::mpa::Revision;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;

use super::budget::{Budget, HostMemory};
use super::core::{Core, Setup};
use super::loader::{self, LoadResult, LoadTask, Watch};
use super::programs::inbox::{SessionQueues, queues};
use super::programs::server::Sessions;
use crate::files::Writer;
use crate::shm;
use crate::waker::Waker;

/// Receiver of the answer to a request.
type Pending = Receiver<Result<Reply, ApiError>>;

/// A core with `WORKERS` scripted workers and a virtual clock.
struct Bench {
    core: Core,
    now: Instant,
    log: EventLog,
    dir: tempfile::TempDir,
    file: PathBuf,
    budget: Budget,
    /// Queues of programs' sessions, if the configuration has `[programs]`.
    sessions: Option<SessionQueues>,
}

const WORKERS: usize = 2;

/// Two regions and a listener that lists both. The second region is shared.
const BASIC: &str = concat!(
    host!(),
    r#"
[[region]]
name = "own"
size = "64 KiB"
access = "w"
[[region]]
name = "common"
size = "64 KiB"
access = "rw"
shared = true
[[listener]]
name = "in"
interface = "i"
port = 7471
regions = ["own", "common"]
[listener.limits]
streams = 3
streams_per_peer = 2
pending = 3
"#
);

fn bench() -> Bench {
    bench_with(BASIC)
}

/// Returns a bench whose workers have acknowledged the configuration.
fn bench_with(text: &str) -> Bench {
    let mut bench = fresh_bench(text);
    bench.acknowledge();
    bench
}

/// Returns a bench whose workers have not answered any command yet.
fn fresh_bench(text: &str) -> Bench {
    bench_with_maps(text, Maps::default())
}

/// Returns a bench like [`fresh_bench`], whose regions and jobs may use the mappings of `maps`.
fn bench_with_maps(text: &str, maps: Maps) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ddpd.toml");
    let text = text.replace("DIR", dir.path().to_str().unwrap());
    std::fs::write(&file, &text).unwrap();
    config::directories::use_temporary_directory();
    let config = Document::parse(&file, &text).unwrap().config;
    let budget = Budget::new(Some(host_memory()), &config.limits, WORKERS).with_maps(maps);
    let files = config.directories();
    let load = |section: &RegionSection| {
        let wanted = LoadTask::Region(section.clone());
        (section.clone(), loader::load(&wanted, &budget, &files, &Watch::default()).unwrap())
    };
    let regions = config.regions.iter().map(load).collect();
    let log = EventLog::new(1000, 1 << 20);
    let now = Instant::now();
    let queues = config
        .programs
        .clone()
        .map(|settings| queues(settings, budget.clone(), WORKERS as u16, Waker::new().unwrap()));
    let (sessions, inbox) = queues.unzip();
    let programs = inbox.map(|inbox| Sessions { inbox, _server: None });
    let setup = Setup { budget: budget.clone(), programs, ..setup(config, &dir, &log) };
    let core = Core::new(setup, regions, now).unwrap();
    Bench { core, now, log, dir, file, budget, sessions }
}

/// Returns the memory of a host with 4 GiB.
fn host_memory() -> HostMemory {
    let machine = MachineMemory { bytes: 4 << 30, source: "RAM".into() };
    HostMemory { machine, pools: 0, appliances: 1 }
}

fn setup(config: Config, dir: &tempfile::TempDir, log: &EventLog) -> Setup {
    let workers: Vec<WorkerId> = (0..WORKERS as u16).map(WorkerId).collect();
    Setup {
        ipsec: Default::default(),
        counters: workers.iter().map(|_| Arc::new(Counters::default())).collect(),
        interface_workers: config.interfaces.iter().map(|_| workers.clone()).collect(),
        ports: Vec::new(),
        log: log.clone(),
        writer: Writer::start("files", || ()).unwrap(),
        shm: shm::Server::bind(&dir.path().join("attach")).unwrap(),
        notes: Vec::new(),
        dpdk_version: None,
        hugepages: false,
        budget: Budget::unlimited(),
        access_tally: Arc::default(),
        audit: Default::default(),
        programs: None,
        config,
    }
}

impl Bench {
    fn call(&mut self, request: Request) -> Pending {
        let (answer, pending) = Responder::pair();
        self.core.handle_call(Call { request, responder: answer }, self.now);
        pending
    }

    fn event(&mut self, event: Event) {
        self.core.handle_event(event, self.now);
    }

    /// Removes and returns all commands for one worker.
    fn commands(&mut self, worker: usize) -> Vec<Command> {
        self.core.commands(worker).drain(..).collect()
    }

    fn all_commands(&mut self) -> Vec<Command> {
        (0..WORKERS).flat_map(|worker| self.commands(worker)).collect()
    }

    fn acknowledge_ticket(&mut self, ticket: Ticket) {
        self.event(Event::Done { ticket, result: Ok(()) });
    }

    /// Acknowledges all commands that are answered by `Done`, until none is left. Returns the other commands.
    fn acknowledge(&mut self) -> Vec<Command> {
        let mut others = Vec::new();
        loop {
            self.core.finish_turn(self.now);
            let commands = self.all_commands();
            if commands.is_empty() {
                return others;
            }
            for command in commands {
                match ticket(&command) {
                    Some(ticket) => self.acknowledge_ticket(ticket),
                    None => others.push(command),
                }
            }
        }
    }

    /// Performs the pending memory requests.
    fn load_all(&mut self) {
        while let Some(load) = self.core.poll_load() {
            let finished = LoadResult {
                id: load.id,
                result: loader::load(&load.task, &self.budget, &load.files, &load.watch),
            };
            self.core.handle_loaded(finished, self.now);
        }
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_timeout(self.now);
    }

    /// Returns the logged events that `wanted` selects, oldest first.
    fn logged_events(&self, wanted: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
        let page = self.log.read(0, usize::MAX, &EventFilter::default());
        page.events.into_iter().map(|event| event.kind).filter(wanted).collect()
    }

    fn is_logged(&self, wanted: impl Fn(&EventKind) -> bool) -> bool {
        !self.logged_events(wanted).is_empty()
    }

    /// Returns the current number of the listener at the workers.
    fn listener(&self, name: &str) -> ListenerId {
        self.core.listeners()[name].number()
    }

    /// Delivers a peer's stream request.
    fn request_stream(&mut self, id: u64, peer: &str) {
        let listener = self.listener("in");
        self.event(Event::Incoming {
            stream: StreamId(id),
            listener,
            interface: InterfaceId(0),
            local: LOCAL.parse().unwrap(),
            remote: remote(peer),
            private_data: Vec::new(),
            revision: Some(Revision::One),
            enhanced: None,
        });
    }

    /// Delivers a stream request, acknowledges the commands and establishes the stream. Returns the other commands.
    fn accept_stream(&mut self, id: u64, peer: &str) -> Vec<Command> {
        self.request_stream(id, peer);
        let commands = self.acknowledge();
        self.establish_stream(id, peer, None, &[]);
        commands
    }

    fn establish_stream(
        &mut self,
        id: u64,
        peer: &str,
        ticket: Option<Ticket>,
        offers: &[Advertised],
    ) {
        self.establish_stream_with(id, peer, ticket, offers, PARAMS);
    }

    fn establish_stream_with(
        &mut self,
        id: u64,
        peer: &str,
        ticket: Option<Ticket>,
        offers: &[Advertised],
        params: StreamParams,
    ) {
        let private_data = if offers.is_empty() { vec![] } else { advert::encode(offers) };
        self.event(Event::Established {
            stream: StreamId(id),
            ticket,
            private_data,
            params,
            local: LOCAL.parse().unwrap(),
            remote: remote(peer),
        });
    }

    /// Delivers a part of a worker's list of streams.
    fn report_list(&mut self, ticket: Ticket, streams: Vec<dataplane::StreamInfo>, last: bool) {
        let (associations, handshakes) = (vec![], vec![]);
        self.event(Event::Streams { ticket, streams, associations, handshakes, last });
    }

    /// Returns the list requests sent to the workers.
    fn take_lists(&mut self) -> Vec<(Ticket, StreamSelection)> {
        let requested = self.all_commands().into_iter().filter_map(|command| match command {
            Command::ListStreams { selection: which, ticket } => Some((ticket, which)),
            _ => None,
        });
        requested.collect()
    }

    fn close_stream(&mut self, id: u64, reason: CloseReason) {
        let (reason, stats) = (reason.into(), Box::default());
        self.event(Event::Closed { stream: StreamId(id), reason, stats });
    }
}

const FIRST_PAGE: NamePage = NamePage { after: None, limit: 1000 };

const LOCAL: &str = "10.0.0.1:7471";

const PARAMS: StreamParams = StreamParams::Tcp(tcp_lite::endpoint::StreamParams {
    revision: Revision::One,
    ulp: UlpKind::Ddp,
    markers_tx: true,
    markers_rx: true,
    crc: true,
    mulpdu: 1400,
    ddp_version: None,
    agreed: None,
});

fn remote(peer: &str) -> SocketAddr {
    SocketAddr::new(peer.parse().unwrap(), 5000)
}

/// Returns the ticket of a command that is answered by `Done`.
fn ticket(command: &Command) -> Option<Ticket> {
    match command {
        Command::AddStag { ticket, .. }
        | Command::RemoveStag { ticket, .. }
        | Command::BindStag { ticket, .. }
        | Command::SetAccess { ticket, .. }
        | Command::AddListener { ticket, .. }
        | Command::SetPeers { ticket, .. }
        | Command::RemoveListener { ticket, .. }
        | Command::AddProgram { ticket, .. }
        | Command::RemoveProgram { ticket, .. }
        | Command::AddCompletionQueue { ticket, .. }
        | Command::RemoveCompletionQueue { ticket, .. }
        | Command::AddQueuePair { ticket, .. }
        | Command::RemoveQueuePair { ticket, .. }
        | Command::Window { ticket, .. }
        | Command::CheckRegion { ticket, .. } => Some(*ticket),
        _ => None,
    }
}

fn added_entries(commands: &[Command]) -> Vec<&StagEntry<Memory>> {
    let entries = commands.iter().filter_map(|command| match command {
        Command::AddStag { entry, .. } => Some(entry),
        _ => None,
    });
    entries.collect()
}

/// Returns the names that the first `Accept` advertises as available.
fn offered_names(commands: &[Command]) -> Option<Vec<String>> {
    commands.iter().find_map(|command| match command {
        Command::Accept { private_data, .. } if private_data.is_empty() => Some(Vec::new()),
        Command::Accept { private_data, .. } => {
            let regions = advert::decode(private_data).unwrap();
            let free = regions.into_iter().filter(|region| !region.busy);
            Some(free.map(|region| region.name).collect())
        }
        _ => None,
    })
}

/// Returns the answer. Panics if there is none yet.
fn answer(pending: &mut Pending) -> Result<Reply, ApiError> {
    pending.try_recv().expect("an answer")
}

fn is_unanswered(pending: &mut Pending) -> bool {
    matches!(pending.try_recv(), Err(TryRecvError::Empty))
}
