//! An appliance for tests. It speaks the protocol of sessions, and its workers carry out posts between its programs
//! through the queues of `verbs_layout`. Each connection joins two QPs of its programs, whatever the addresses are.

mod worker;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, socketpair};
use verbs_layout::doorbell::{self, Scanner};
use verbs_layout::session::HEADER_WORDS;
use verbs_layout::version::VERSION;
use verbs_layout::work::{Opcode, ReceiveWork, SendWork};
use verbs_layout::{completion, ring};
use verbs_session::message::{
    Answer, Call, ConnectCall, Depths, Device, Event, Limits, MemoryAccess, Message, Refusal,
    RefusalKind, Reply, Request, Ring, Welcome,
};
use verbs_session::socket::{SessionSocket, SocketError};

use crate::lock::lock;
use crate::mapping::{Area, Arena};

pub(crate) const ARENA: u64 = 64 << 20;
pub(crate) const WORKERS: usize = 2;
pub(crate) const DEPTHS: Depths = Depths { ird: 16, ord: 16 };

/// Moves a value to the heap and never drops it: memory that it maps stays mapped.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

pub(crate) fn sealed_file(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file
}

/// Creates an area of `bytes` bytes with a valid header. Returns the area and its file.
pub(crate) fn area(bytes: u64) -> (&'static Area, OwnedFd) {
    let file = sealed_file(bytes);
    let area = Area::map_new(file.as_fd()).unwrap();
    (leak(area), file)
}

pub(crate) fn sockets(type_: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, type_, SocketFlags::CLOEXEC, None).unwrap()
}

fn clone(file: &OwnedFd) -> OwnedFd {
    file.try_clone().unwrap()
}

/// The test appliance. Clones refer to the same appliance.
#[derive(Clone)]
pub(crate) struct Appliance {
    world: Arc<Mutex<World>>,
    /// Eventfd that wakes the thread of the workers after calls.
    control: Arc<OwnedFd>,
}

pub(crate) struct World {
    pub(crate) programs: BTreeMap<u32, Program>,
    /// Program and number of each listener, by address.
    pub(crate) listeners: HashMap<SocketAddr, (u32, u32)>,
    /// Connecting program, its QP and its address, by the number of the connection request.
    requests: HashMap<u64, (u32, u32, SocketAddr)>,
    next: u32,
    /// Number of times the workers' thread went to sleep.
    pub(crate) sleeps: u64,
    /// Operations that place nothing, although they succeed: Writes or Reads.
    pub(crate) lost: Option<Opcode>,
    /// Events to be sent, each with its program.
    outbox: Vec<(u32, Event)>,
    stopped: bool,
}

pub(crate) struct Program {
    socket: Arc<SessionSocket>,
    arena: &'static Arena,
    workers: Vec<Worker>,
    channels: HashMap<u32, OwnedFd>,
    queues: HashMap<u32, Completions>,
    pub(crate) pairs: HashMap<u32, Pair>,
    /// Memory regions, and bound memory windows.
    pub(crate) regions: HashMap<u32, Region>,
    /// Memory windows, by the upper 24 bits of their STags.
    windows: HashSet<u32>,
    domains: HashSet<u32>,
    listeners: HashSet<u32>,
    shared: HashMap<u32, Shared>,
}

/// A shared receive queue.
struct Shared {
    receives: ring::SharedConsumer<'static>,
    /// Limit below which an event is due; 0: none.
    limit: u32,
}

pub(crate) struct Worker {
    scanner: Scanner<'static>,
    wake: OwnedFd,
}

struct Completions {
    producers: Vec<completion::Producer<'static>>,
    channel: Option<u32>,
}

pub(crate) struct Pair {
    sends: ring::Consumer<'static>,
    receives: Option<ring::Consumer<'static>>,
    shared: Option<u32>,
    send_queue: u32,
    receive_queue: u32,
    worker: usize,
    /// Program and QP at the other end of the connection.
    peer: Option<(u32, u32)>,
    /// Receives that the worker has taken from the receive queue and no message has used.
    receive: VecDeque<ReceiveWork>,
    /// A Send or Immediate Data for which the peer has no Receive yet.
    stalled: Option<SendWork>,
    remote: SocketAddr,
    ended: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Region {
    address: u64,
    len: u64,
    /// Parts of the arena: start and end.
    parts: &'static [(u64, u64)],
    /// Offset of the first byte in the concatenation of `parts`.
    at: u64,
    access: MemoryAccess,
    /// Region to which the window is bound; `None` for a memory region.
    of: Option<u32>,
}

impl Appliance {
    pub(crate) fn start() -> Appliance {
        let control = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let world = World {
            programs: BTreeMap::new(),
            listeners: HashMap::new(),
            requests: HashMap::new(),
            next: 1,
            sleeps: 0,
            lost: None,
            outbox: Vec::new(),
            stopped: false,
        };
        let appliance = Appliance { world: Arc::new(Mutex::new(world)), control };
        let workers = appliance.clone();
        std::thread::spawn(move || workers.work());
        appliance
    }

    /// Creates a session's socket pair, serves one end, and returns the program's end.
    pub(crate) fn socket(&self) -> OwnedFd {
        let (ours, theirs) = sockets(SocketType::SEQPACKET);
        self.serve(ours);
        theirs
    }

    pub(crate) fn session(&self) -> crate::Session {
        crate::Session::from_socket(self.socket()).unwrap()
    }

    /// Accepts sessions at a path in a thread, until the process ends.
    pub(crate) fn listen(&self, path: &Path) {
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

    /// Closes the sockets of all sessions and stops the workers.
    pub(crate) fn stop(&self) {
        let mut world = lock(&self.world);
        world.stopped = true;
        world.programs.values().for_each(|program| program.hang_up());
        world.programs.clear();
        drop(world);
        self.nudge();
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
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

    /// Carries out posts until the appliance is stopped, and sleeps while there are none: the body of the workers'
    /// thread.
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
            rustix::io::retry_on_intr(|| poll(&mut polled, None)).unwrap();
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

/// Waits for a request. Returns `None` if the program has closed the socket or sent anything but a request.
pub(crate) fn receive(socket: &SessionSocket) -> Option<Request> {
    loop {
        match socket.receive() {
            Ok((request, _)) => return Some(request),
            Err(SocketError::WouldBlock) => {
                let mut polled = [PollFd::new(socket, PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut polled, None)).unwrap();
            }
            Err(_) => return None,
        }
    }
}

/// Sends a message and ignores errors, because the program may have closed the socket.
pub(crate) fn post(socket: &SessionSocket, message: &Message, descriptors: &[OwnedFd]) {
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
            windows: HashSet::new(),
            domains: HashSet::new(),
            listeners: HashSet::new(),
            shared: HashMap::new(),
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
                let total: u64 = parts.iter().map(|(start, end)| end - start).sum();
                assert!(offset < 4096 && offset + len <= total && address % 4096 == offset);
                for (start, end) in &parts {
                    assert!(start < end && *end <= ARENA && (start | end) % 4096 == 0);
                }
                let (at, parts) = (offset, &**leak(parts));
                let region = Region { address, len, parts, at, access, of: None };
                this.regions.insert(number << 8, region);
                answer(Answer::Registered { stag: number << 8 })
            }
            Call::DeregisterMemory { stag } => {
                if this.regions.values().any(|region| region.of == Some(stag)) {
                    return Err(in_use());
                }
                this.regions.remove(&stag).map(drop).ok_or_else(missing)?;
                answer(Answer::Done)
            }
            Call::AllocateWindow { .. } => {
                this.windows.insert(number);
                answer(Answer::Window { stag: number << 8 })
            }
            Call::DeallocateWindow { stag } => {
                this.windows.remove(&(stag >> 8)).then_some(()).ok_or_else(missing)?;
                this.regions.retain(|of, _| of >> 8 != stag >> 8);
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
            Call::CreateSharedReceiveQueue { max_receives, .. } => {
                let capacity = (max_receives * 2).next_power_of_two().max(8);
                let words = ring::words(capacity as usize);
                let (area, file) = area((HEADER_WORDS + words) as u64 * 8);
                let ring = &area.words()[HEADER_WORDS..];
                let receives = ring::SharedConsumer::new(ring, capacity as usize).unwrap();
                this.shared.insert(number, Shared { receives, limit: 0 });
                let receives = Ring { offset: HEADER_WORDS as u64 * 8, capacity };
                Ok((Answer::SharedReceiveQueue { queue: number, receives }, vec![file]))
            }
            Call::RemoveSharedReceiveQueue { queue } => {
                if this.pairs.values().any(|pair| pair.shared == Some(queue)) {
                    return Err(in_use());
                }
                this.shared.remove(&queue).map(drop).ok_or_else(missing)?;
                answer(Answer::Done)
            }
            Call::SetReceiveLimit { queue, limit } => {
                this.shared.get_mut(&queue).ok_or_else(missing)?.limit = limit;
                self.report_low(program, queue);
                answer(Answer::Done)
            }
            Call::CreateQueuePair {
                send_completions,
                receive_completions,
                max_sends,
                max_receives,
                shared_receives: shared,
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
                let own = ring::Consumer::new(second, receives as usize).unwrap();
                let pair = Pair {
                    sends: ring::Consumer::new(first, sends as usize).unwrap(),
                    receives: shared.is_none().then_some(own),
                    shared,
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
                let receives = shared.is_none().then_some(receives);
                Ok((Answer::QueuePair { pair: number, sends, receives }, vec![file]))
            }
            Call::RemoveQueuePair { pair } => {
                this.pairs.get(&pair).map(|_| ()).ok_or_else(missing)?;
                self.end(program, pair, false);
                self.programs.get_mut(&program).unwrap().pairs.remove(&pair);
                answer(Answer::Done)
            }
            Call::Route { remote, .. } if remote.is_loopback() => {
                answer(Answer::Route { local: remote })
            }
            Call::Route { .. } => Err(refusal(RefusalKind::Unreachable, "no route")),
            Call::Connect(ConnectCall { pair, remote, private_data, .. }) => {
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
                self.flush_unconnected(other, pair);
                self.outbox.push((other, Event::Rejected { pair, private_data }));
                answer(Answer::Done)
            }
            Call::Disconnect { pair } => {
                this.pairs.get(&pair).map(|_| ()).ok_or_else(missing)?;
                self.end(program, pair, true);
                answer(Answer::Done)
            }
            Call::EndQueuePair { pair } => {
                this.pairs.get(&pair).map(|_| ()).ok_or_else(missing)?;
                self.end(program, pair, true);
                self.flush_unconnected(program, pair);
                answer(Answer::Done)
            }
        }
    }

    fn connect(&mut self, from: u32, pair: u32, remote: SocketAddr, data: Vec<u8>, number: u32) {
        let Some(&(program, listener)) = self.listeners.get(&remote) else {
            self.flush_unconnected(from, pair);
            let message = "the peer refuses the connection".into();
            let (unreachable, refused) = (false, true);
            let event = Event::ConnectFailed { pair, unreachable, refused, message };
            self.outbox.push((from, event));
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

    /// Ends the connection of a QP, if it has one, at both sides and flushes their posts.
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

    /// Ends a QP that has no connection, and flushes its posts.
    fn flush_unconnected(&mut self, program: u32, number: u32) {
        let Some(this) = self.programs.get_mut(&program) else { return };
        let Some(pair) = this.pairs.get_mut(&number).filter(|pair| pair.peer.is_none()) else {
            return;
        };
        pair.ended = true;
        this.flush_posts(number);
    }

    fn remove_program(&mut self, number: u32) {
        let Some(program) = self.programs.get(&number) else { return };
        let pairs: Vec<u32> = program.pairs.keys().copied().collect();
        pairs.into_iter().for_each(|pair| self.end(number, pair, false));
        self.listeners.retain(|_, (owner, _)| *owner != number);
        self.programs.remove(&number);
    }

    /// Reports that few receives remain in a shared receive queue, if its limit is reached.
    fn report_low(&mut self, program: u32, queue: u32) {
        let this = self.programs.get_mut(&program).unwrap();
        let shared = this.shared.get_mut(&queue).unwrap();
        if shared.receives.remaining() < shared.limit.into() {
            shared.limit = 0;
            self.outbox.push((program, Event::SharedReceivesLow { queue }));
        }
    }

    fn flush(&mut self) {
        for (program, event) in std::mem::take(&mut self.outbox) {
            if let Some(program) = self.programs.get(&program) {
                post(&program.socket, &Message::Event(event), &[]);
            }
        }
    }

    fn scanners(&mut self) -> impl Iterator<Item = &mut Scanner<'static>> {
        let workers = self.programs.values_mut().flat_map(|program| &mut program.workers);
        workers.map(|worker| &mut worker.scanner)
    }

    fn wakes(&self) -> impl Iterator<Item = &OwnedFd> {
        self.programs.values().flat_map(|p| &p.workers).map(|worker| &worker.wake)
    }

    fn prepare_sleep(&mut self) -> bool {
        let may = self.scanners().all(Scanner::prepare_sleep);
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
}

/// Creates the arena and the doorbells of a new program. Returns them with the descriptors of the first answer to the
/// program.
pub(crate) fn first_parts() -> (&'static Arena, Vec<Worker>, Vec<OwnedFd>) {
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

/// Returns the `Welcome` of the program with this number.
pub(crate) fn welcome(program: u32) -> Welcome {
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
