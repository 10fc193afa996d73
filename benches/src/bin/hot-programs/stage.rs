//! A worker that its caller drives, with two streams to its own listener: one stream of a program's QP, and one of the
//! worker's own load. Both write to the same region, so that their costs differ only by the program's part.
//!
//! ```text
//!   library --> shared memory --> QP -- stream 1 --+
//!                                                  +--> listener, service "sink" --> region
//!   worker's own load ----------------- stream 2 --+
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base::Instant;
use dataplane::{
    Command, Connect, DrivenWorker, Event, InterfaceId, Load, LoadKind, Order, Service, Ticket,
    Window,
};
use ddp::{Access, PdId, Stag, StagEntry, StreamId, TaggedOffset};
use verbs_client::{
    CompletionQueue, ConnectOptions, MemoryAccess, MemoryRegion, PairEvent, QueuePair,
    QueuePairConfig, Remote, Session,
};
use verbs_session::message::{Event as Report, Message};
use verbs_session::socket::SessionSocket;

use benches::end_config::{self, EndConfig, PORT};
use benches::frame_port::FramePort;
use benches::hot_path::Runner;
use benches::rig::stable_region;
use benches::rig_config::{RigConfig, SINK_STAG, Side, source_stag};

use super::sessions::{self, DEPTHS, PAIR, PD};

/// Length of a message, bytes.
pub(crate) const LEN: usize = 64;
/// Length of each region, bytes.
const REGION_LEN: u64 = 1 << 20;
/// Protection domain of the worker's own streams.
const OWN_PD: PdId = PdId(1);
/// Maximum number of turns of a step. A step that has not ended after them has failed.
const MAX_TURNS: usize = 100_000;
/// Time-out of the library's waits.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Stage {
    worker: DrivenWorker<FramePort>,
    now: Instant,
    /// Stream of the worker's own load.
    stream: StreamId,
    pub(crate) queue: CompletionQueue,
    pub(crate) pair: QueuePair,
    pub(crate) memory: MemoryRegion,
    _session: Session,
}

impl Stage {
    /// Creates the stage. `depth`: maximum number of messages in flight, at most 1024.
    pub(crate) fn new(depth: u32) -> anyhow::Result<Stage> {
        let rig = RigConfig { rdmap: true, ..RigConfig::default() };
        let mut product = EndConfig::new(&rig, Side::Responder)?;
        // A fixed hash secret, because the number of peers per hash bucket affects the instruction count.
        product.dataplane.secret = [0x5a; 32].into();
        let mut now = Instant::from_millis(1000);
        let mut worker = product.driven_worker([2, 0, 0, 0, 0, 1], FramePort::default(), now)?;
        let ends = EndConfig::new(&rig, Side::Initiator)?;
        let commands = own_commands(&product)?;
        send(&mut worker, commands)?;

        let (socket, end) = sessions::sockets()?;
        let (sender, receiver) = channel();
        let ours = Arc::clone(&socket);
        std::thread::spawn(move || sessions::serve(&ours, &sender));
        let session = Session::from_socket(end)?;
        let domain = session.create_domain()?;
        let access = MemoryAccess { local_write: true, ..MemoryAccess::default() };
        let memory = domain.alloc(4096, access)?;
        let queue = session.create_completion_queue(2 * depth, None)?;
        let pair = domain.create_queue_pair(&QueuePairConfig {
            send_completions: &queue,
            receive_completions: &queue,
            max_sends: depth,
            max_receives: 1,
            copy_sources: false,
            shared_receives: None,
        })?;
        send(&mut worker, receiver.try_iter())?;

        let remote = SocketAddr::new(end_config::side_address(&rig, Side::Responder), PORT);
        pair.start_connect(remote, &ConnectOptions::default())?;
        let connect = |service, pd| Connect {
            ip: Default::default(),
            ticket: Ticket(0),
            interface: InterfaceId(0),
            local: None,
            remote,
            endpoint: ends.connect.clone(),
            ulp: ends.ulps[1].clone(),
            service,
            pd,
            stags: Vec::new(),
            private_data: Vec::new(),
            timeout: TIMEOUT,
        };
        open(&mut worker, &mut now, &product, connect(Service::Program(PAIR), PD))?;
        report_established(&socket, remote)?;
        let event = pair.next_event(Some(TIMEOUT))?;
        ensure!(matches!(event, Some(PairEvent::Established(_))), "{event:?}");
        let own = connect(Service::Sink, OWN_PD);
        let stream = open(&mut worker, &mut now, &product, own)?;
        Ok(Stage { worker, now, stream, queue, pair, memory, _session: session })
    }

    /// Returns the region to which all messages are written.
    pub(crate) fn remote(&self) -> Remote {
        Remote { stag: SINK_STAG.0, to: 0 }
    }

    /// Runs the worker until it has no more work: it has performed and completed all posts of the program.
    pub(crate) fn perform(&mut self, runner: Runner<'_>) -> anyhow::Result<()> {
        let Stage { worker, now, .. } = self;
        let mut is_idle = false;
        runner(&mut || is_idle = run(worker, now));
        ensure!(is_idle, "the worker does not become idle");
        discard_events(worker)?;
        Ok(())
    }

    /// Runs the worker's own load of `count` messages.
    pub(crate) fn load(&mut self, count: u32, runner: Runner<'_>) -> anyhow::Result<()> {
        let window = Window {
            local: source_stag(false),
            remote: SINK_STAG,
            base: TaggedOffset(0),
            bytes: REGION_LEN,
            order: Order::Sequential,
        };
        let load = Load::closed(LoadKind::Write(window), LEN as u32, count);
        let load = Load { count: count.into(), timed: true, ..load };
        let (stream, ticket) = (self.stream, Ticket(9));
        send(&mut self.worker, [Command::Load { stream, load, ticket }])?;
        let Stage { worker, now, .. } = self;
        let mut is_idle = false;
        runner(&mut || is_idle = run(worker, now));
        ensure!(is_idle, "the worker does not become idle");
        ensure!(discard_events(worker)? == Some(count.into()), "the load is not complete");
        Ok(())
    }
}

/// Runs turns of 10 µs until eight in succession had no work. Returns false if this does not occur within [`MAX_TURNS`]
/// turns.
fn run(worker: &mut DrivenWorker<FramePort>, now: &mut Instant) -> bool {
    let mut idle = 0;
    for _ in 0..MAX_TURNS {
        *now += Duration::from_micros(10);
        idle = if worker.turn(*now) { 0 } else { idle + 1 };
        if idle == 8 {
            return true;
        }
    }
    false
}

/// Takes all events. Returns the number of messages of a load that has ended.
fn discard_events(worker: &mut DrivenWorker<FramePort>) -> anyhow::Result<Option<u64>> {
    let mut messages = None;
    while let Some(event) = worker.handle.poll() {
        match event {
            Event::LoadDone { report, .. } => messages = Some(report.messages),
            Event::Done { result, .. } => result?,
            Event::Program(event) => bail!("{event:?}"),
            Event::Closed { .. } => bail!("a stream has ended"),
            _ => {}
        }
    }
    Ok(messages)
}

/// Opens a stream to the worker's own listener. Returns its identifier.
fn open(
    worker: &mut DrivenWorker<FramePort>,
    now: &mut Instant,
    product: &EndConfig,
    connect: Connect,
) -> anyhow::Result<StreamId> {
    let mut opened = None;
    let mut left = 2;
    send(worker, [Command::Connect(Box::new(connect))])?;
    for _ in 0..MAX_TURNS {
        *now += Duration::from_micros(10);
        worker.turn(*now);
        while let Some(event) = worker.handle.poll() {
            match event {
                Event::Incoming { stream, .. } => {
                    let (ulp, pd) = (product.ulps[0].clone(), OWN_PD);
                    let (private_data, service) = (Vec::new(), Service::Sink);
                    send(worker, [Command::Accept { stream, pd, private_data, ulp, service }])?;
                }
                Event::Established { stream, ticket, .. } => {
                    // Only the stream that the connect opens has a ticket.
                    opened = opened.or(ticket.map(|_| stream));
                    left -= 1;
                }
                Event::ConnectFailed { reason, .. } => bail!("no stream: {reason}"),
                Event::Done { result, .. } => result?,
                _ => {}
            }
        }
        if left == 0 {
            return opened.context("no stream");
        }
    }
    bail!("the stream is not established")
}

/// Returns the commands for the listener, the source of the worker's own load, and the region to which all write.
fn own_commands(product: &EndConfig) -> anyhow::Result<Vec<Command>> {
    let ticket = Ticket(0);
    let entry = |stag: Stag, access, memory| StagEntry {
        stag,
        pd: OWN_PD,
        stream: None,
        base_to: TaggedOffset(0),
        len: REGION_LEN,
        access,
        memory,
        memory_offset: 0,
    };
    let source = entry(source_stag(false), Access::REMOTE_READ, stable_region(REGION_LEN)?);
    let sink = end_config::allocate_region(REGION_LEN)?;
    let sink = entry(SINK_STAG, Access::REMOTE_WRITE | Access::REMOTE_READ, sink);
    let listener = Arc::new(product.listener.clone().context("no listener")?);
    Ok(vec![
        Command::AddStag { entry: source, ticket },
        Command::AddStag { entry: sink, ticket },
        Command::AddListener { listener, ticket },
    ])
}

fn send(
    worker: &mut DrivenWorker<FramePort>,
    commands: impl IntoIterator<Item = Command>,
) -> anyhow::Result<()> {
    for command in commands {
        ensure!(worker.handle.send(command).is_ok(), "the command ring is full");
    }
    Ok(())
}

/// Reports to the library that its QP is connected.
fn report_established(socket: &SessionSocket, remote: SocketAddr) -> anyhow::Result<()> {
    let (pair, worker, local) = (PAIR.number, 0, remote);
    let (depths, private_data) = (DEPTHS, Vec::new());
    let event = Report::Established { pair, worker, local, remote, depths, private_data };
    Ok(socket.send(&Message::Event(event), &[])?)
}
