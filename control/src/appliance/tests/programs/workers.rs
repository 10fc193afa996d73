//! Scripted workers: they apply the core's commands to tables of objects, and answer them.

use std::collections::{BTreeMap, HashMap};

use dataplane::{
    CommandError, Connect, ListenerConfig, QueuePairConfig, QueuePairId, Service, WindowChange,
    WindowId,
};
use ddp::Stag;
use rustix::io::Errno;
use tcp_lite::mpa::EnhancedRepr;
use verbs_layout::work::WindowBind;

use super::super::super::programs::InputKind;
use super::*;

/// State of one worker.
#[derive(Default)]
struct Worker {
    stags: HashMap<Stag, StagEntry<Memory>>,
    /// Programs with their CQs.
    programs: BTreeMap<ProgramId, Vec<u32>>,
    pairs: HashMap<QueuePairId, Box<QueuePairConfig>>,
    /// Memory windows with their bindings.
    windows: BTreeMap<(ProgramId, WindowId), Option<WindowBind>>,
    listeners: HashMap<ListenerId, Arc<ListenerConfig>>,
    /// Open streams, with their QPs.
    streams: BTreeMap<u64, Option<QueuePairId>>,
}

/// A core with scripted workers, and the commands that the core has sent to them.
pub(super) struct Rig {
    pub(super) bench: Bench,
    workers: Vec<Worker>,
    /// Connects that are neither established nor failed, with their workers.
    pub(super) connects: Vec<(usize, Box<Connect>)>,
    /// Number of backlog credits that the core has returned.
    pub(super) credits: u32,
    /// Accepted streams, with the private data of the answer.
    pub(super) accepted: Vec<(u64, Vec<u8>)>,
    /// Rejected streams, with the private data of the answer.
    pub(super) rejected: Vec<(u64, Vec<u8>)>,
    /// Streams that the core has closed; true: with a reset.
    pub(super) closed: Vec<(u64, bool)>,
    /// Answers to requests that bind windows: QP, number of the request, and true if all workers have bound the window.
    pub(super) bound: Vec<(QueuePairId, u32, bool)>,
    /// QPs that the core has ended.
    pub(super) ended: Vec<QueuePairId>,
    /// Name of the command that the last worker refuses next: see [`refuse_next`](Self::refuse_next).
    next_ticket_fails: Option<&'static str>,
}

impl Rig {
    pub(super) fn new(text: &str) -> Rig {
        let bench = bench_with(text);
        let workers = (0..WORKERS).map(|_| Worker::default()).collect();
        let (accepted, rejected, closed) = (Vec::new(), Vec::new(), Vec::new());
        let (connects, credits, bound, next_ticket_fails) = (Vec::new(), 0, Vec::new(), None);
        Rig {
            bench,
            workers,
            connects,
            credits,
            accepted,
            rejected,
            closed,
            bound,
            ended: Vec::new(),
            next_ticket_fails,
        }
    }

    pub(super) fn forward(&self, program: ProgramId, kind: InputKind) {
        assert!(self.bench.sessions.as_ref().unwrap().forward(program, kind));
    }

    /// Lets the last worker refuse its next command whose name begins with `name`.
    pub(super) fn refuse_next(&mut self, name: &'static str) {
        self.next_ticket_fails = Some(name);
    }

    /// Handles calls and commands until none are pending.
    pub(super) fn settle(&mut self) {
        loop {
            dataplane::memory::wait_for_frees();
            while self.bench.core.handle_programs(self.bench.now) {}
            self.bench.core.finish_turn(self.bench.now);
            let mut is_idle = true;
            for worker in 0..WORKERS {
                for command in self.bench.commands(worker) {
                    is_idle = false;
                    self.perform(worker, command);
                }
            }
            if is_idle {
                return;
            }
        }
    }

    fn perform(&mut self, at: usize, command: Command) {
        let ticket = ticket(&command);
        let fails = self.next_ticket_fails.filter(|name| format!("{command:?}").starts_with(name));
        let result = match fails {
            Some(_) if at + 1 == WORKERS => {
                self.next_ticket_fails = None;
                Err(CommandError::ListenerInUse)
            }
            _ => self.apply(at, command),
        };
        if let Some(ticket) = ticket {
            self.bench.event(Event::Done { ticket, result });
        }
    }

    /// Applies a command to the tables of the worker `at`. Returns the worker's answer.
    fn apply(&mut self, at: usize, command: Command) -> Result<(), CommandError> {
        let worker = &mut self.workers[at];
        match command {
            Command::AddStag { entry, .. } => {
                assert!(worker.stags.insert(entry.stag, entry).is_none());
            }
            Command::RemoveStag { stag, .. } => {
                let removed = worker.stags.remove(&stag);
                drop(removed.ok_or(CommandError::Stag(ddp::StagError::Unknown(stag)))?);
            }
            Command::AddProgram { program, .. } => {
                assert_eq!(program.budget, 128);
                assert!(worker.programs.insert(program.id, Vec::new()).is_none());
            }
            Command::RemoveProgram { program, .. } => {
                let queues = worker.programs.remove(&program);
                queues.ok_or(CommandError::Program)?;
                let of_program = |id: &QueuePairId| id.program == program;
                worker.pairs.retain(|id, _| !of_program(id));
                worker.windows.retain(|(owner, _), _| *owner != program);
                let is_meant =
                    |_: &u64, pair: &mut Option<QueuePairId>| pair.as_ref().is_some_and(of_program);
                let streams: Vec<_> = worker.streams.extract_if(.., is_meant).collect();
                for (stream, _) in streams {
                    self.report_closed(stream, CloseReason::LocalAbort);
                }
                self.abandon_connects(at, of_program);
            }
            Command::AddCompletionQueue { queue, .. } => {
                let queues =
                    worker.programs.get_mut(&queue.program).ok_or(CommandError::Program)?;
                assert!(!queues.contains(&queue.number));
                queues.push(queue.number);
            }
            Command::RemoveCompletionQueue { program, number, .. } => {
                let users = worker.pairs.values().filter(|pair| pair.id.program == program);
                let mut users = users
                    .filter(|p| p.send_completions == number || p.receive_completions == number);
                assert!(users.next().is_none(), "a QP uses it");
                let queues = worker.programs.get_mut(&program).ok_or(CommandError::Program)?;
                queues.retain(|queue| *queue != number);
            }
            Command::Window { program, change, .. } => {
                assert!(worker.programs.contains_key(&program));
                let windows = &mut worker.windows;
                match change {
                    WindowChange::Add { window, .. } => {
                        assert!(windows.insert((program, window), None).is_none());
                    }
                    WindowChange::Remove { window } => {
                        windows.remove(&(program, window)).ok_or(CommandError::Window)?;
                    }
                    WindowChange::Bind(bind) => {
                        let window = WindowId::of(Stag(bind.window));
                        let place = windows.get_mut(&(program, window));
                        *place.ok_or(CommandError::Window)? = Some(bind);
                    }
                }
            }
            Command::WindowBound { id, sequence, is_bound } => {
                self.bound.push((id, sequence, is_bound));
            }
            Command::CheckRegion { stag, .. } => {
                if worker.windows.values().flatten().any(|bind| bind.region == stag.0) {
                    return Err(CommandError::WindowsBound);
                }
            }
            Command::AddQueuePair { pair, .. } => {
                let queues = worker.programs.get(&pair.id.program).ok_or(CommandError::Program)?;
                assert!(queues.contains(&pair.send_completions));
                assert!(queues.contains(&pair.receive_completions));
                assert!(worker.pairs.insert(pair.id, pair).is_none());
            }
            Command::RemoveQueuePair { id, .. } => {
                worker.pairs.remove(&id).ok_or(CommandError::QueuePair)?;
                let is_meant = |_: &u64, pair: &mut Option<QueuePairId>| *pair == Some(id);
                let streams: Vec<_> = worker.streams.extract_if(.., is_meant).collect();
                for (stream, _) in streams {
                    self.report_closed(stream, CloseReason::LocalAbort);
                }
                self.abandon_connects(at, |other| *other == id);
            }
            Command::EndQueuePair { id } => {
                assert!(worker.pairs.contains_key(&id));
                self.ended.push(id);
                self.abandon_connects(at, |other| *other == id);
            }
            Command::AddListener { listener, .. } => {
                let same = |other: &Arc<ListenerConfig>| {
                    (other.address, other.port) == (listener.address, listener.port)
                };
                if worker.listeners.values().any(same) {
                    return Err(CommandError::ListenerInUse);
                }
                worker.listeners.insert(listener.id, listener);
            }
            Command::SetPeers { listener, peers, .. } => {
                let config = worker.listeners.get_mut(&listener).ok_or(CommandError::NoListener)?;
                Arc::make_mut(config).peers = peers;
            }
            Command::RemoveListener { listener, .. } => {
                worker.listeners.remove(&listener).ok_or(CommandError::NoListener)?;
            }
            Command::Connect(connect) => {
                assert!(is_of(&connect.service, |id| worker.pairs.contains_key(id)));
                self.connects.push((at, connect));
            }
            Command::Accept { stream, private_data, service, .. } => {
                let Service::Program(pair) = service else { panic!("{service:?}") };
                assert!(worker.pairs.contains_key(&pair));
                if let Some(of) = worker.streams.get_mut(&stream.0) {
                    *of = Some(pair);
                    self.accepted.push((stream.0, private_data));
                }
            }
            Command::Reject { stream, private_data } => {
                self.rejected.push((stream.0, private_data));
                if worker.streams.remove(&stream.0).is_some() {
                    self.report_closed(stream.0, CloseReason::RejectedHere);
                }
            }
            Command::Close { stream, abort } => {
                if worker.streams.remove(&stream.0).is_some() {
                    self.closed.push((stream.0, abort));
                    let reason =
                        if abort { CloseReason::LocalAbort } else { CloseReason::LocalShutdown };
                    self.report_closed(stream.0, reason);
                }
            }
            Command::Credits { additional, .. } => self.credits += additional,
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    /// Fails the connects of removed QPs at the worker `at`.
    fn abandon_connects(&mut self, at: usize, is_meant: impl Fn(&QueuePairId) -> bool) {
        let is_abandoned = |(worker, connect): &mut (usize, Box<Connect>)| {
            *worker == at && is_of(&connect.service, &is_meant)
        };
        let abandoned: Vec<_> = self.connects.extract_if(.., is_abandoned).collect();
        for (_, connect) in abandoned {
            let reason = dataplane::ConnectError::Closed(CloseReason::LocalAbort.into());
            self.bench.event(Event::ConnectFailed { ticket: connect.ticket, reason });
        }
    }

    fn report_closed(&mut self, stream: u64, reason: CloseReason) {
        self.bench.close_stream(stream, reason);
    }

    /// Establishes the oldest connect. `number`: number of the stream at its worker. Returns the stream.
    pub(super) fn establish_connect(&mut self, number: u64) -> StreamId {
        let (worker, connect) = self.connects.remove(0);
        let stream = (worker as u64) << 48 | number;
        let Service::Program(pair) = connect.service else { panic!("{connect:?}") };
        self.workers[worker].streams.insert(stream, Some(pair));
        self.bench.event(Event::Established {
            stream: StreamId(stream),
            ticket: Some(connect.ticket),
            private_data: b"welcome".to_vec(),
            params: PARAMS,
            local: LOCAL.parse().unwrap(),
            remote: connect.remote,
        });
        self.settle();
        StreamId(stream)
    }

    /// Fails the oldest connect.
    pub(super) fn fail_connect(&mut self, reason: dataplane::ConnectError) {
        let (_, connect) = self.connects.remove(0);
        self.bench.event(Event::ConnectFailed { ticket: connect.ticket, reason });
        self.settle();
    }

    /// Reports a peer's request, with the given stream, at worker 0's listener on `port`.
    pub(super) fn request(&mut self, stream: u64, port: u16) {
        let found = self.workers[0].listeners.values().find(|listener| listener.port == port);
        let listener = found.expect("a listener").id;
        self.workers[0].streams.insert(stream, None);
        self.bench.event(Event::Incoming {
            stream: StreamId(stream),
            listener,
            interface: InterfaceId(0),
            local: SocketAddr::new("10.0.0.1".parse().unwrap(), port),
            remote: remote("10.0.0.9"),
            private_data: b"request".to_vec(),
            revision: Some(Revision::Two),
            enhanced: Some(EnhancedRepr { ird: 2, ord: 3, rtr: None }),
        });
    }

    pub(super) fn establish_accepted(&mut self, stream: u64) {
        self.bench.event(Event::Established {
            stream: StreamId(stream),
            ticket: None,
            private_data: Vec::new(),
            params: PARAMS,
            local: LOCAL.parse().unwrap(),
            remote: remote("10.0.0.9"),
        });
        self.settle();
    }

    /// Ends a stream, if it is open.
    pub(super) fn end_stream(&mut self, stream: u64, reason: CloseReason) {
        let ended = self.workers.iter_mut().any(|w| w.streams.remove(&stream).is_some());
        if ended {
            self.report_closed(stream, reason);
        }
    }

    pub(super) fn open_streams(&self) -> Vec<u64> {
        self.workers.iter().flat_map(|worker| worker.streams.keys().copied()).collect()
    }

    pub(super) fn entry(&self, worker: usize, stag: u32) -> Option<&StagEntry<Memory>> {
        self.workers[worker].stags.get(&Stag(stag))
    }

    /// Returns the windows of all workers with their bindings.
    pub(super) fn windows(&self) -> Vec<(WindowId, Option<WindowBind>)> {
        let windows = self.workers.iter().flat_map(|worker| &worker.windows);
        windows.map(|(&(_, window), &bind)| (window, bind)).collect()
    }

    pub(super) fn pairs(&self) -> Vec<&QueuePairConfig> {
        self.workers.iter().flat_map(|worker| worker.pairs.values().map(AsRef::as_ref)).collect()
    }

    pub(super) fn listeners(&self, worker: usize) -> Vec<&ListenerConfig> {
        self.workers[worker].listeners.values().map(AsRef::as_ref).collect()
    }

    /// Checks that the core and the workers have no object of any program.
    pub(super) fn assert_empty(&mut self) {
        self.settle();
        for worker in &self.workers {
            assert!(worker.stags.is_empty() && worker.programs.is_empty());
            assert!(worker.pairs.is_empty() && worker.listeners.is_empty());
            assert!(worker.windows.is_empty());
            assert!(worker.streams.is_empty(), "{:?}", worker.streams);
        }
        let core = &self.bench.core;
        core.programs().assert_empty();
        assert_eq!(core.env().stags.live(), 0);
        assert_eq!(core.streams().len(), 0);
        assert!(core.is_set_up(), "a ticket is outstanding");
        assert_eq!((self.bench.budget.info().regions, self.bench.budget.info().jobs), (0, 0));
    }
}

fn is_of(service: &Service, is_meant: impl Fn(&QueuePairId) -> bool) -> bool {
    matches!(service, Service::Program(id) if is_meant(id))
}

/// Writes bytes at an offset of a file. Returns the number of written bytes.
pub(super) fn write_at(file: &OwnedFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    rustix::io::pwrite(file, bytes, offset)
}
