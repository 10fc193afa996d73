//! An appliance for tests: it speaks the protocol of sessions, and its workers carry out posts between its programs, by
//! the queues of `verbs_layout`. Connections are within the appliance, whatever their addresses.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socketpair,
};
use verbs_layout::doorbell::{self, Scanner};
use verbs_layout::session::HEADER_WORDS;
use verbs_layout::version::VERSION;
use verbs_layout::work::{
    AtomicResult, Carried, Completed, Completion, Opcode, Operation, Payload, ReceiveWork, Remote,
    SendWork, Sge, Status,
};
use verbs_layout::{completion, ring};
use verbs_session::message::{
    Answer, Call, Depths, Device, Event, Limits, MemoryAccess, Message, Refusal, RefusalKind,
    Reply, Request, Ring, Welcome,
};
use verbs_session::socket::{SessionSocket, SocketError};

use crate::lock::lock;
use crate::mapping::{Area, Arena};

pub(super) const ARENA: u64 = 64 << 20;
pub(super) const WORKERS: usize = 2;
pub(super) const DEPTHS: Depths = Depths { ird: 16, ord: 16 };

/// Memory of a test, never unmapped.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

pub(super) fn sealed_file(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

/// Returns an area with its header, and its file.
pub(super) fn area(bytes: u64) -> (&'static Area, OwnedFd) {
    let file = sealed_file(bytes);
    let area = Area::map_new(file.as_fd()).unwrap();
    (leak(area), file)
}

pub(super) fn sockets(type_: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, type_, SocketFlags::CLOEXEC, None).unwrap()
}

fn clone(file: &OwnedFd) -> OwnedFd {
    file.try_clone().unwrap()
}

/// An appliance. Clones are the same.
#[derive(Clone)]
pub(super) struct Appliance {
    world: Arc<Mutex<World>>,
    /// Wakes the thread of the workers.
    control: Arc<OwnedFd>,
}

pub(super) struct World {
    pub(super) programs: BTreeMap<u32, Program>,
    listeners: HashMap<SocketAddr, (u32, u32)>,
    /// Connecting program, QP and call of each request.
    requests: HashMap<u64, (u32, u32, SocketAddr)>,
    next: u32,
    /// Number of workers' sleeps.
    pub(super) sleeps: u64,
    outbox: Vec<(u32, Event)>,
    stopped: bool,
}

pub(super) struct Program {
    socket: Arc<SessionSocket>,
    arena: &'static Arena,
    workers: Vec<Worker>,
    channels: HashMap<u32, OwnedFd>,
    queues: HashMap<u32, Completions>,
    pub(super) pairs: HashMap<u32, Pair>,
    pub(super) regions: HashMap<u32, Region>,
    domains: HashSet<u32>,
    listeners: HashSet<u32>,
}

pub(super) struct Worker {
    scanner: Scanner<'static>,
    wake: OwnedFd,
}

struct Completions {
    producers: Vec<completion::Producer<'static>>,
    channel: Option<u32>,
}

pub(super) struct Pair {
    sends: ring::Consumer<'static>,
    receives: ring::Consumer<'static>,
    send_queue: u32,
    receive_queue: u32,
    worker: usize,
    peer: Option<(u32, u32)>,
    receive: VecDeque<ReceiveWork>,
    /// A Send for which the peer has no Receive.
    stalled: Option<SendWork>,
    remote: SocketAddr,
    ended: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Region {
    address: u64,
    len: u64,
    at: u64,
    access: MemoryAccess,
}

impl Appliance {
    pub(super) fn start() -> Appliance {
        let control = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let world = World {
            programs: BTreeMap::new(),
            listeners: HashMap::new(),
            requests: HashMap::new(),
            next: 1,
            sleeps: 0,
            outbox: Vec::new(),
            stopped: false,
        };
        let appliance = Appliance { world: Arc::new(Mutex::new(world)), control };
        let workers = appliance.clone();
        std::thread::spawn(move || workers.work());
        appliance
    }

    /// Returns a program's end of a new session.
    pub(super) fn socket(&self) -> OwnedFd {
        let (ours, theirs) = sockets(SocketType::SEQPACKET);
        self.serve(ours);
        theirs
    }

    pub(super) fn session(&self) -> crate::Session {
        crate::Session::from_socket(self.socket()).unwrap()
    }

    /// Listens at a path until the process ends.
    pub(super) fn listen(&self, path: &Path) {
        let (type_, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, type_, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        let appliance = self.clone();
        std::thread::spawn(move || {
            while let Ok(connection) = rustix::net::accept(&socket) {
                appliance.serve(connection);
            }
        });
    }

    /// Ends all sessions.
    pub(super) fn stop(&self) {
        let mut world = lock(&self.world);
        world.stopped = true;
        world.programs.values().for_each(|program| program.hang_up());
        world.programs.clear();
        drop(world);
        self.nudge();
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        look(&mut lock(&self.world))
    }

    fn nudge(&self) {
        rustix::io::write(&*self.control, &1u64.to_ne_bytes()).unwrap();
    }

    fn serve(&self, socket: OwnedFd) {
        let appliance = self.clone();
        let socket = Arc::new(SessionSocket::new(socket));
        std::thread::spawn(move || {
            let mut number = None;
            while let Some(request) = receive(&socket) {
                let mut world = lock(&appliance.world);
                if world.stopped {
                    break;
                }
                let (result, descriptors) = match request.call {
                    Call::Hello { .. } => {
                        let (program, welcome, descriptors) = world.welcome(socket.clone());
                        number = Some(program);
                        (Ok(Answer::Welcome(welcome)), descriptors)
                    }
                    call => match world.call(number.unwrap(), call) {
                        Ok((answer, descriptors)) => (Ok(answer), descriptors),
                        Err(refusal) => (Err(refusal), Vec::new()),
                    },
                };
                post(&socket, &Message::Reply(Reply { id: request.id, result }), &descriptors);
                world.flush();
                drop(world);
                appliance.nudge();
            }
            if let Some(number) = number {
                let mut world = lock(&appliance.world);
                world.remove_program(number);
                world.flush();
                drop(world);
                appliance.nudge();
            }
        });
    }

    /// Carries out posts until the appliance is stopped.
    fn work(&self) {
        loop {
            let mut world = lock(&self.world);
            if world.stopped {
                return;
            }
            let busy = world.turn();
            world.flush();
            if busy || !world.prepare_sleep() {
                continue;
            }
            world.sleeps += 1;
            let wakes: Vec<OwnedFd> = world.wakes().map(clone).collect();
            drop(world);
            let mut polled: Vec<_> =
                wakes.iter().map(|wake| PollFd::new(wake, PollFlags::IN)).collect();
            polled.push(PollFd::new(&*self.control, PollFlags::IN));
            poll(&mut polled, None).unwrap();
            let control = polled.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
            if control {
                rustix::io::read(&*self.control, &mut [0; 8]).unwrap();
            }
            let mut world = lock(&self.world);
            world.wakes().for_each(|wake| {
                let _ = rustix::net::recv(wake, &mut [0; 64], RecvFlags::DONTWAIT);
            });
            world.wake();
        }
    }
}

/// Receives a request; `None`: the program has closed the socket.
pub(super) fn receive(socket: &SessionSocket) -> Option<Request> {
    loop {
        match socket.receive() {
            Ok((request, _)) => return Some(request),
            Err(SocketError::WouldBlock) => {
                poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
            }
            Err(_) => return None,
        }
    }
}

/// Sends a message; a program that has gone misses it.
pub(super) fn post(socket: &SessionSocket, message: &Message, descriptors: &[OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    while let Err(SocketError::WouldBlock) = socket.send(message, &descriptors) {
        poll(&mut [PollFd::new(socket, PollFlags::OUT)], None).unwrap();
    }
}

fn refusal(kind: RefusalKind, message: &str) -> Refusal {
    Refusal { kind, message: message.into() }
}

type Answered = Result<(Answer, Vec<OwnedFd>), Refusal>;

fn answer(answer: Answer) -> Answered {
    Ok((answer, Vec::new()))
}

impl World {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn welcome(&mut self, socket: Arc<SessionSocket>) -> (u32, Welcome, Vec<OwnedFd>) {
        let number = self.number();
        let (arena, workers, descriptors) = first_parts();
        let program = Program {
            socket,
            arena,
            workers,
            channels: HashMap::new(),
            queues: HashMap::new(),
            pairs: HashMap::new(),
            regions: HashMap::new(),
            domains: HashSet::new(),
            listeners: HashSet::new(),
        };
        self.programs.insert(number, program);
        (number, welcome(number), descriptors)
    }

    fn call(&mut self, program: u32, call: Call) -> Answered {
        let number = self.number();
        let missing = || refusal(RefusalKind::NotFound, "no such object");
        let in_use = || refusal(RefusalKind::InUse, "other objects use it");
        let this = self.programs.get_mut(&program).ok_or_else(missing)?;
        match call {
            Call::Hello { .. } => Err(refusal(RefusalKind::Invalid, "a second hello")),
            Call::CreatePd => {
                this.domains.insert(number);
                answer(Answer::Created { number })
            }
            Call::RemovePd { pd } => {
                this.domains.remove(&pd).then_some(()).ok_or_else(missing)?;
                answer(Answer::Done)
            }
            Call::RegisterMemory { address, len, offset, parts, access, .. } => {
                let [(start, end)] = parts[..] else { panic!("{parts:?}") };
                assert!(offset < 4096 && offset + len <= end - start && end <= ARENA);
                assert_eq!((start % 4096, end % 4096, address % 4096), (0, 0, offset));
                let at = start + offset;
                this.regions.insert(number << 8, Region { address, len, at, access });
                answer(Answer::Registered { stag: number << 8 })
            }
            Call::DeregisterMemory { stag } => {
                this.regions.remove(&stag).map(drop).ok_or_else(missing)?;
                answer(Answer::Done)
            }
            Call::CreateChannel => {
                let (ours, theirs) = sockets(SocketType::STREAM);
                this.channels.insert(number, ours);
                Ok((Answer::Created { number }, vec![theirs]))
            }
            Call::RemoveChannel { channel } => {
                if this.queues.values().any(|queue| queue.channel == Some(channel)) {
                    return Err(in_use());
                }
                this.channels.remove(&channel).map(drop).ok_or_else(missing)?;
                answer(Answer::Done)
            }
            Call::CreateCompletionQueue { entries, channel } => {
                if entries == 0 || entries > 1 << 16 {
                    return Err(refusal(RefusalKind::Limit, "too many entries"));
                }
                let capacity = entries.max(2).next_power_of_two();
                let words = completion::words(capacity as usize);
                let offsets: Vec<u64> =
                    (0..WORKERS).map(|n| (HEADER_WORDS + n * words) as u64 * 8).collect();
                let (area, file) = area((HEADER_WORDS + WORKERS * words) as u64 * 8);
                let parts = area.words()[HEADER_WORDS..].chunks_exact(words);
                let producers =
                    parts.map(|part| completion::Producer::new(part, capacity as usize).unwrap());
                let completions = Completions { producers: producers.collect(), channel };
                this.queues.insert(number, completions);
                Ok((Answer::CompletionQueue { queue: number, capacity, offsets }, vec![file]))
            }
            Call::RemoveCompletionQueue { queue } => {
                let uses = |pair: &Pair| [pair.send_queue, pair.receive_queue].contains(&queue);
                if this.pairs.values().any(uses) {
                    return Err(in_use());
                }
                this.queues.remove(&queue).map(drop).ok_or_else(missing)?;
                answer(Answer::Done)
            }
            Call::CreateQueuePair {
                send_completions,
                receive_completions,
                max_sends,
                max_receives,
                ..
            } => {
                let (sends, receives) = (max_sends * 3, max_receives * 2);
                let capacity = |units: u32| units.next_power_of_two().max(8);
                let (sends, receives) = (capacity(sends), capacity(receives));
                let middle = HEADER_WORDS + ring::words(sends as usize);
                let total = middle + ring::words(receives as usize);
                let (area, file) = area(total as u64 * 8);
                let (first, second) =
                    (&area.words()[HEADER_WORDS..middle], &area.words()[middle..]);
                let pair = Pair {
                    sends: ring::Consumer::new(first, sends as usize).unwrap(),
                    receives: ring::Consumer::new(second, receives as usize).unwrap(),
                    send_queue: send_completions,
                    receive_queue: receive_completions,
                    worker: number as usize % WORKERS,
                    peer: None,
                    receive: VecDeque::new(),
                    stalled: None,
                    remote: SocketAddr::from(([0, 0, 0, 0], 0)),
                    ended: false,
                };
                this.pairs.insert(number, pair);
                let sends = Ring { offset: HEADER_WORDS as u64 * 8, capacity: sends };
                let receives = Ring { offset: middle as u64 * 8, capacity: receives };
                Ok((Answer::QueuePair { pair: number, sends, receives }, vec![file]))
            }
            Call::RemoveQueuePair { pair } => {
                this.pairs.get(&pair).map(|_| ()).ok_or_else(missing)?;
                self.end(program, pair, false);
                self.programs.get_mut(&program).unwrap().pairs.remove(&pair);
                answer(Answer::Done)
            }
            Call::Connect { pair, remote, private_data, .. } => {
                this.pairs.get_mut(&pair).ok_or_else(missing)?.remote = remote;
                self.connect(program, pair, remote, private_data, number);
                answer(Answer::Done)
            }
            Call::Listen { mut local, .. } => {
                if local.port() == 0 {
                    local.set_port(30000 + number as u16);
                }
                if self.listeners.contains_key(&local) {
                    return Err(refusal(RefusalKind::InUse, "the address is in use"));
                }
                this.listeners.insert(number);
                self.listeners.insert(local, (program, number));
                answer(Answer::Listening { listener: number, local })
            }
            Call::StopListening { listener } => {
                this.listeners.remove(&listener).then_some(()).ok_or_else(missing)?;
                self.listeners
                    .retain(|_, (owner, number)| (*owner, *number) != (program, listener));
                answer(Answer::Done)
            }
            Call::Accept { request, pair, private_data, .. } => {
                let (other, peer, remote) = self.requests.remove(&request).ok_or_else(missing)?;
                let local = SocketAddr::from(([127, 0, 0, 1], 1));
                self.establish((program, pair), (other, peer), remote, Vec::new());
                self.establish((other, peer), (program, pair), local, private_data);
                answer(Answer::Done)
            }
            Call::Reject { request, private_data } => {
                let (other, pair, _) = self.requests.remove(&request).ok_or_else(missing)?;
                self.outbox.push((other, Event::Rejected { pair, private_data }));
                answer(Answer::Done)
            }
            Call::Disconnect { pair } => {
                this.pairs.get(&pair).map(|_| ()).ok_or_else(missing)?;
                self.end(program, pair, true);
                answer(Answer::Done)
            }
        }
    }

    fn connect(&mut self, from: u32, pair: u32, remote: SocketAddr, data: Vec<u8>, number: u32) {
        let Some(&(program, listener)) = self.listeners.get(&remote) else {
            let message = "the peer refuses the connection".into();
            self.outbox.push((from, Event::ConnectFailed { pair, unreachable: false, message }));
            return;
        };
        let peer = SocketAddr::from(([10, 0, 0, 1], 20000));
        let request = u64::from(number);
        self.requests.insert(request, (from, pair, peer));
        let depths = Some(DEPTHS);
        let (local, remote) = (remote, peer);
        let event =
            Event::Incoming { listener, request, local, remote, depths, private_data: data };
        self.outbox.push((program, event));
    }

    fn establish(
        &mut self,
        (program, number): (u32, u32),
        peer: (u32, u32),
        remote: SocketAddr,
        private_data: Vec<u8>,
    ) {
        let this = self.programs.get_mut(&program).unwrap();
        let Some(pair) = this.pairs.get_mut(&number) else { return };
        pair.peer = Some(peer);
        let worker = pair.worker as u16;
        let local = SocketAddr::from(([10, 0, 0, 2], 1));
        let event = Event::Established {
            pair: number,
            worker,
            local,
            remote,
            depths: DEPTHS,
            private_data,
        };
        self.outbox.push((program, event));
    }

    /// Ends a connection at both sides and flushes their posts.
    fn end(&mut self, program: u32, number: u32, graceful: bool) {
        let pair = self.programs.get_mut(&program).and_then(|this| this.pairs.get_mut(&number));
        let peer = pair.and_then(|pair| pair.peer);
        for (program, number) in [(program, number)].into_iter().chain(peer) {
            let Some(this) = self.programs.get_mut(&program) else { continue };
            let Some(pair) = this.pairs.get_mut(&number) else { continue };
            if std::mem::replace(&mut pair.ended, true) || pair.peer.is_none() {
                continue;
            }
            this.flush_posts(number);
            let message = if graceful { "closed" } else { "reset" }.into();
            self.outbox.push((program, Event::Disconnected { pair: number, graceful, message }));
        }
    }

    fn remove_program(&mut self, number: u32) {
        let Some(program) = self.programs.get(&number) else { return };
        let pairs: Vec<u32> = program.pairs.keys().copied().collect();
        pairs.into_iter().for_each(|pair| self.end(number, pair, false));
        self.listeners.retain(|_, (owner, _)| *owner != number);
        self.programs.remove(&number);
    }

    fn flush(&mut self) {
        for (program, event) in std::mem::take(&mut self.outbox) {
            if let Some(program) = self.programs.get(&program) {
                post(&program.socket, &Message::Event(event), &[]);
            }
        }
    }

    /// Carries out the posts of all queues whose doorbells were rung. Returns whether there were any.
    fn turn(&mut self) -> bool {
        let mut rung = Vec::new();
        for (number, program) in &mut self.programs {
            for (worker, at) in program.workers.iter_mut().enumerate() {
                let mut budget = 64;
                while let Some(queue) = at.scanner.next_queue(&mut budget) {
                    rung.push((*number, queue / 2, worker));
                }
            }
        }
        for &(program, pair, worker) in &rung {
            let Some(this) = self.programs.get_mut(&program).and_then(|p| p.pairs.get_mut(&pair))
            else {
                continue;
            };
            assert_eq!(this.worker, worker, "the doorbell of another worker");
            while let Some(units) = this.receives.pop().unwrap() {
                this.receive.push_back(ReceiveWork::decode(&units).unwrap());
            }
            this.receives.release();
            let peer = this.peer;
            self.serve_sends(program, pair);
            if let Some((other, number)) = peer {
                self.serve_sends(other, number);
            }
        }
        !rung.is_empty()
    }

    fn serve_sends(&mut self, program: u32, number: u32) {
        loop {
            let this = self.programs.get_mut(&program).and_then(|p| p.pairs.get_mut(&number));
            let Some(pair) = this.filter(|pair| !pair.ended) else { return };
            let Some(peer) = pair.peer else { return };
            let work = match pair.stalled.take() {
                Some(work) => work,
                None => match pair.sends.pop().unwrap() {
                    Some(units) => SendWork::decode(&units).unwrap(),
                    None => return,
                },
            };
            pair.sends.release();
            if let Err(work) = self.carry_out((program, number), peer, work) {
                let this = self.programs.get_mut(&program).unwrap();
                this.pairs.get_mut(&number).unwrap().stalled = Some(work);
                return;
            }
        }
    }

    /// Carries out an operation. An error returns an operation that has to wait for a Receive.
    fn carry_out(
        &mut self,
        from: (u32, u32),
        to: (u32, u32),
        work: SendWork,
    ) -> Result<(), SendWork> {
        let mut status = Status::Success;
        let mut byte_len = 0;
        match &work.operation {
            Operation::Send { payload, solicited }
            | Operation::SendInvalidate { payload, solicited, .. } => {
                let bytes = self.programs[&from.0].gather(payload);
                let carried = match work.operation {
                    Operation::SendInvalidate { stag, .. } => Carried::Invalidated(stag),
                    _ => Carried::Nothing,
                };
                if !self.deliver(to, &bytes, *solicited, carried) {
                    return Err(work);
                }
            }
            Operation::Immediate { data, solicited } => {
                if !self.deliver(to, &[], *solicited, Carried::Immediate(*data)) {
                    return Err(work);
                }
            }
            Operation::Write { remote, payload } => {
                let bytes = self.programs[&from.0].gather(payload);
                match self.programs[&to.0].place(*remote, bytes.len(), |a| a.remote_write) {
                    Some(at) => self.programs[&to.0].arena.write(at, &bytes),
                    None => status = Status::RemoteAccess,
                }
            }
            Operation::Read { remote, sinks } => {
                let mut bytes = vec![0; sinks.total_len() as usize];
                byte_len = sinks.total_len();
                match self.programs[&to.0].place(*remote, bytes.len(), |a| a.remote_read) {
                    Some(at) => {
                        self.programs[&to.0].arena.read(at, &mut bytes);
                        self.programs[&from.0].scatter(sinks.sges(), &bytes);
                    }
                    None => status = Status::RemoteAccess,
                }
            }
            Operation::CompareSwap { remote, compare, swap, result } => {
                byte_len = 8;
                status = self.atomic(from.0, to.0, *remote, *result, |old| {
                    if old == *compare { *swap } else { old }
                });
            }
            Operation::FetchAdd { remote, add, result } => {
                byte_len = 8;
                status = self.atomic(from.0, to.0, *remote, *result, |old| old.wrapping_add(*add));
            }
            Operation::LocalInvalidate { .. } => {}
            Operation::BindWindow(_) => status = Status::LocalQpOperation,
        }
        if work.signalled || status != Status::Success {
            self.complete_send(from, &work, status, byte_len);
        }
        Ok(())
    }

    fn complete_send(&mut self, from: (u32, u32), work: &SendWork, status: Status, byte_len: u32) {
        let completed = Completed::Sent(work.operation.opcode());
        let qp_number = from.1;
        let completion = Completion { wr_id: work.wr_id, status, completed, byte_len, qp_number };
        let program = self.programs.get_mut(&from.0).unwrap();
        let pair = &program.pairs[&from.1];
        let (queue, worker) = (pair.send_queue, pair.worker);
        program.complete(queue, worker, &completion);
    }

    /// Places a message into the next Receive. Returns false if there is none.
    fn deliver(&mut self, to: (u32, u32), bytes: &[u8], solicited: bool, carried: Carried) -> bool {
        let Some(program) = self.programs.get_mut(&to.0) else { return true };
        let Some(pair) = program.pairs.get_mut(&to.1) else { return true };
        let Some(work) = pair.receive.pop_front() else { return false };
        let (queue, worker) = (pair.receive_queue, pair.worker);
        let fits = work.buffers.total_len() as usize >= bytes.len();
        if fits {
            program.scatter(work.buffers.sges(), bytes);
        }
        let completion = Completion {
            wr_id: work.wr_id,
            status: if fits { Status::Success } else { Status::LocalLength },
            completed: Completed::Received { solicited, carried },
            byte_len: bytes.len() as u32,
            qp_number: to.1,
        };
        program.complete(queue, worker, &completion);
        true
    }

    fn atomic(
        &self,
        from: u32,
        to: u32,
        remote: Remote,
        result: AtomicResult,
        change: impl Fn(u64) -> u64,
    ) -> Status {
        let Some(at) = self.programs[&to].place(remote, 8, |access| access.remote_atomic) else {
            return Status::RemoteAccess;
        };
        let mut old = [0; 8];
        self.programs[&to].arena.read(at, &mut old);
        let new = change(u64::from_le_bytes(old));
        self.programs[&to].arena.write(at, &new.to_le_bytes());
        let sge = Sge { address: result.address, len: 8, lkey: result.lkey };
        self.programs[&from].scatter(&[sge], &old);
        Status::Success
    }

    fn scanners(&mut self) -> impl Iterator<Item = &mut Scanner<'static>> {
        let workers = self.programs.values_mut().flat_map(|program| &mut program.workers);
        workers.map(|worker| &mut worker.scanner)
    }

    fn wakes(&self) -> impl Iterator<Item = &OwnedFd> {
        self.programs.values().flat_map(|p| &p.workers).map(|worker| &worker.wake)
    }

    fn prepare_sleep(&mut self) -> bool {
        let may = self.scanners().fold(true, |may, scanner| scanner.prepare_sleep() && may);
        if !may {
            self.wake();
        }
        may
    }

    fn wake(&mut self) {
        self.scanners().for_each(Scanner::wake);
    }
}

impl Program {
    fn hang_up(&self) {
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
    }

    fn complete(&mut self, queue: u32, worker: usize, completion: &Completion) {
        let queue = self.queues.get_mut(&queue).unwrap();
        queue.producers[worker].push(completion).unwrap();
        if queue.producers[worker].must_signal()
            && let Some(channel) = queue.channel
        {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.channels[&channel], &[1], flags);
        }
    }

    fn flush_posts(&mut self, number: u32) {
        let pair = self.pairs.get_mut(&number).unwrap();
        let mut sends: Vec<(u64, Opcode)> = Vec::new();
        sends.extend(pair.stalled.take().map(|work| (work.wr_id, work.operation.opcode())));
        while let Some(units) = pair.sends.pop().unwrap() {
            let work = SendWork::decode(&units).unwrap();
            sends.push((work.wr_id, work.operation.opcode()));
        }
        while let Some(units) = pair.receives.pop().unwrap() {
            pair.receive.push_back(ReceiveWork::decode(&units).unwrap());
        }
        let receives = std::mem::take(&mut pair.receive);
        let (send_queue, receive_queue, worker) =
            (pair.send_queue, pair.receive_queue, pair.worker);
        let flushed = |wr_id, completed| Completion {
            wr_id,
            status: Status::Flushed,
            completed,
            byte_len: 0,
            qp_number: number,
        };
        for (wr_id, opcode) in sends {
            self.complete(send_queue, worker, &flushed(wr_id, Completed::Sent(opcode)));
        }
        for work in receives {
            let completed = Completed::Received { solicited: false, carried: Carried::Nothing };
            self.complete(receive_queue, worker, &flushed(work.wr_id, completed));
        }
    }

    /// Returns the place of bytes in the arena, if the region permits the access.
    fn place(
        &self,
        remote: Remote,
        len: usize,
        permits: impl Fn(MemoryAccess) -> bool,
    ) -> Option<usize> {
        let region = self.regions.get(&remote.stag)?;
        let at = remote.to.checked_sub(region.address)?;
        let within = at <= region.len && len as u64 <= region.len - at;
        (within && permits(region.access)).then_some((region.at + at) as usize)
    }

    fn gather(&self, payload: &Payload) -> Vec<u8> {
        match payload {
            Payload::Inline(inline) => inline.bytes().to_vec(),
            Payload::Gather(list) => {
                let mut bytes = Vec::new();
                for sge in list.sges() {
                    let at = self.local(sge);
                    let mut part = vec![0; sge.len as usize];
                    self.arena.read(at, &mut part);
                    bytes.extend(part);
                }
                bytes
            }
        }
    }

    fn scatter(&self, sges: &[Sge], mut bytes: &[u8]) {
        for sge in sges {
            let (part, rest) = bytes.split_at((sge.len as usize).min(bytes.len()));
            self.arena.write(self.local(sge), part);
            bytes = rest;
        }
    }

    fn local(&self, sge: &Sge) -> usize {
        let remote = Remote { stag: sge.lkey, to: sge.address };
        self.place(remote, sge.len as usize, |_| true).expect("an SGE within its region")
    }
}

/// Returns the arena and the workers of a new program, and the descriptors of its first answer.
pub(super) fn first_parts() -> (&'static Arena, Vec<Worker>, Vec<OwnedFd>) {
    let file = sealed_file(ARENA);
    let arena = leak(Arena::map(file.as_fd(), ARENA).unwrap());
    let mut descriptors = vec![file];
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let (area, file) = area((HEADER_WORDS + doorbell::WORDS) as u64 * 8);
        let (ours, theirs) = sockets(SocketType::STREAM);
        descriptors.extend([file, theirs]);
        let scanner = Scanner::new(&area.words()[HEADER_WORDS..]).unwrap();
        workers.push(Worker { scanner, wake: ours });
    }
    (arena, workers, descriptors)
}

/// Returns the first answer for a program.
pub(super) fn welcome(program: u32) -> Welcome {
    Welcome {
        version: VERSION,
        program,
        arena: ARENA,
        workers: WORKERS as u16,
        limits: Limits {
            queue_pairs: 64,
            completion_queues: 64,
            memory_regions: 64,
            memory_bytes: ARENA,
            posts: 1024,
            completions: 1 << 16,
            depths: DEPTHS,
        },
        devices: vec![Device {
            name: "ring0".into(),
            addresses: vec!["10.0.0.2".parse().unwrap()],
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
        }],
    }
}
