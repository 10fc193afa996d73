//! Fuzz target for the sessions of programs: packets of arbitrary bytes with file descriptors, over a real socket, to
//! the control thread's state machine. Scripted workers acknowledge its commands.
//!
//! Checks:
//! - Each packet has one reply or ends the session.
//! - Another program's calls are answered.
//! - After the session's end, none of its objects and memory remain.
//!
//! Input: packets
//!
//! ```text
//!   how (1)      bits 0, 1: number of file descriptors; bit 2: the next packet is sent without waiting for the reply
//!   length (2)   little-endian
//!   bytes (length)
//! ```

use std::cell::RefCell;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{EventLog, Reply, Request};
use config::{Config, Document};
use control::appliance::budget::Budget;
use control::appliance::programs::server::BoundSocket;
use control::appliance::{Core, Setup};
use control::files::Writer;
use control::shm;
use control::waker::Waker;
use dataplane::{Command, ConnectError, Event, Ticket, WorkerId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use verbs_layout::version::{OLDEST, VERSION};
use verbs_session::message::{Call, Message, Reply as Answered, Request as CallRequest};
use verbs_session::socket::{SessionSocket, SocketError};

const CONFIG: &str = r#"
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
[programs]
socket = "SOCKET"
programs = 3
queue_pairs = 3
completion_queues = 3
memory_regions = 4
memory = "1 MiB"
arena = "1 MiB"
posts = 64
completions = 256
listeners = 2
"#;

const WORKERS: u16 = 2;
/// Time after which a missing answer is a hang.
const HANG: Duration = Duration::from_secs(20);
/// Maximum number of packets of an input. Further packets are ignored.
const MAX_PACKETS: usize = 64;

thread_local! {
    /// The appliance, which serves all inputs of a thread: each input must leave it as it was.
    static APPLIANCE: RefCell<Appliance> = RefCell::new(Appliance::start());
}

pub(crate) fn program_session(data: &[u8]) {
    APPLIANCE.with_borrow_mut(|appliance| appliance.run(data));
}

struct Appliance {
    core: Core,
    waker: Waker,
    budget: Budget,
    socket: PathBuf,
    good: Session,
    /// Bytes that programs hold while only the good program is attached.
    at_rest: u64,
    _directory: tempfile::TempDir,
}

/// A program's end of a session.
struct Session {
    socket: SessionSocket,
    /// Number of packets without a reply.
    unanswered: usize,
    is_closed: bool,
}

impl Appliance {
    fn start() -> Appliance {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("programs.sock");
        let text = CONFIG.replace("SOCKET", &socket.display().to_string());
        let file = directory.path().join("ddpd.toml");
        std::fs::write(&file, &text).expect("a file");
        config::directories::use_temporary_directory();
        let config = Document::parse(&file, &text).expect("a valid configuration").config;
        let (budget, waker) = (Budget::unlimited(), Waker::new().expect("an eventfd"));
        let bound = BoundSocket::open(&config).expect("a socket").expect("[programs]");
        let settings = config.programs.clone().expect("[programs]");
        let sessions = bound.serve(settings, budget.clone(), WORKERS, waker.clone());
        let workers: Vec<WorkerId> = (0..WORKERS).map(WorkerId).collect();
        let setup = Setup {
            counters: workers.iter().map(|_| Arc::default()).collect(),
            interface_workers: vec![workers],
            programs: Some(sessions.expect("a thread")),
            ..setup(config, &directory.path().join("attach"), budget.clone())
        };
        let core = Core::new(setup, Vec::new(), Instant::now()).expect("a core");
        let good = Session::open(&socket);
        let mut appliance =
            Appliance { core, waker, budget, socket, good, at_rest: 0, _directory: directory };
        let name = "good".into();
        appliance.call(Call::Hello { oldest: OLDEST, newest: VERSION, name });
        appliance.at_rest = appliance.bytes();
        appliance
    }

    fn run(&mut self, data: &[u8]) {
        let mut session = Session::open(&self.socket);
        let mut packets = data;
        for _ in 0..MAX_PACKETS {
            let Some((&[how, low, high], rest)) = packets.split_first_chunk::<3>() else { break };
            let len = usize::from(u16::from_le_bytes([low, high]));
            let (packet, rest) = rest.split_at(len.min(rest.len()));
            packets = rest;
            session.send(packet, usize::from(how & 3));
            if how & 4 == 0 {
                self.await_replies(&mut session);
            }
        }
        self.await_replies(&mut session);
        self.call(Call::CreatePd);
        self.call(Call::RemovePd { pd: 0 });
        drop(session);
        let until = Instant::now() + HANG;
        while self.programs() != 1 || self.bytes() != self.at_rest {
            assert!(Instant::now() < until, "{} bytes, of {}", self.bytes(), self.at_rest);
            self.wait(None);
        }
    }

    /// Makes a call of the good program, which must succeed.
    fn call(&mut self, call: Call) {
        let request = CallRequest { id: 1, call };
        self.good.socket.send(&request, &[]).expect("room in the socket");
        let until = Instant::now() + HANG;
        loop {
            match self.good.socket.receive::<Message>() {
                Ok((Message::Reply(Answered { id: 1, result }), _)) => {
                    result.unwrap_or_else(|refusal| panic!("{refusal}"));
                    return;
                }
                Err(SocketError::WouldBlock) => {}
                other => panic!("{other:?}"),
            }
            assert!(Instant::now() < until, "the good program has no answer");
            self.wait(None);
        }
    }

    /// Runs the control thread until all packets of the session are answered, or the session has ended.
    fn await_replies(&mut self, session: &mut Session) {
        let until = Instant::now() + HANG;
        while session.read() {
            assert!(Instant::now() < until, "{} packets have no reply", session.unanswered);
            self.wait(Some(session.socket.as_fd()));
        }
    }

    /// Waits at most a millisecond until the control thread has work or `socket` is readable. Then runs turns of the
    /// control thread and answers its commands until neither has work.
    fn wait(&mut self, socket: Option<BorrowedFd<'_>>) {
        let mut fds = vec![PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)];
        fds.extend(socket.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let time = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        assert!(matches!(poll(&mut fds, Some(&time)), Ok(_) | Err(Errno::INTR)));
        self.waker.reset();
        let now = Instant::now();
        loop {
            let busy = self.core.handle_programs(now);
            self.core.finish_turn(now);
            let commands: Vec<Command> = (0..usize::from(WORKERS))
                .flat_map(|worker| self.core.commands(worker).drain(..).collect::<Vec<_>>())
                .collect();
            if !busy && commands.is_empty() {
                return;
            }
            for command in commands {
                if let Some(event) = answer(command) {
                    self.core.handle_event(event, now);
                }
            }
        }
    }

    /// Returns the number of programs in the table.
    fn programs(&mut self) -> usize {
        let (responder, mut answer) = api::Responder::pair();
        let call = api::Call { request: Request::Programs, responder };
        self.core.handle_call(call, Instant::now());
        match answer.try_recv() {
            Ok(Ok(Reply::Programs(programs))) => programs.len(),
            _ => panic!("no list of programs"),
        }
    }

    /// Returns the number of bytes that programs hold.
    fn bytes(&self) -> u64 {
        self.budget.info().regions
    }
}

impl Session {
    fn open(path: &std::path::Path) -> Session {
        let socket = SessionSocket::connect(path).expect("the appliance listens");
        Session { socket, unanswered: 0, is_closed: false }
    }

    /// Sends a packet with `descriptors` file descriptors, all of the session's own socket.
    fn send(&mut self, packet: &[u8], descriptors: usize) {
        let fds = vec![self.socket.as_fd(); descriptors];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&self.socket, &[IoSlice::new(packet)], &mut ancillary, flags) {
            Ok(_) => self.unanswered += 1,
            Err(Errno::PIPE | Errno::CONNRESET) => self.is_closed = true,
            Err(Errno::AGAIN) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads all messages. Returns true if replies are missing and the session is open.
    fn read(&mut self) -> bool {
        while !self.is_closed {
            match self.socket.receive::<Message>() {
                Ok((Message::Reply(_), _)) => {
                    let left = self.unanswered.checked_sub(1);
                    self.unanswered = left.expect("a reply to each packet");
                }
                Ok((Message::Event(_), _)) => {}
                Err(SocketError::WouldBlock) => return self.unanswered > 0,
                Err(SocketError::Closed) => self.is_closed = true,
                Err(error) => panic!("{error}"),
            }
        }
        false
    }
}

/// Returns the answer of a worker to a command.
fn answer(command: Command) -> Option<Event> {
    let ticket: Ticket = match command {
        Command::Connect(connect) => {
            let reason = ConnectError::Unreachable;
            return Some(Event::ConnectFailed { ticket: connect.ticket, reason });
        }
        Command::AddStag { ticket, .. }
        | Command::RemoveStag { ticket, .. }
        | Command::AddListener { ticket, .. }
        | Command::RemoveListener { ticket, .. }
        | Command::AddProgram { ticket, .. }
        | Command::RemoveProgram { ticket, .. }
        | Command::AddCompletionQueue { ticket, .. }
        | Command::RemoveCompletionQueue { ticket, .. }
        | Command::AddQueuePair { ticket, .. }
        | Command::RemoveQueuePair { ticket, .. }
        | Command::Window { ticket, .. }
        | Command::CheckRegion { ticket, .. } => ticket,
        _ => return None,
    };
    Some(Event::Done { ticket, result: Ok(()) })
}

/// Returns the inputs of a core without workers and programs.
fn setup(config: Config, attach: &std::path::Path, budget: Budget) -> Setup {
    Setup {
        config,
        counters: Vec::new(),
        interface_workers: Vec::new(),
        ports: Vec::new(),
        log: EventLog::new(16, 1 << 16),
        writer: Writer::start("files", || ()).expect("a thread"),
        shm: shm::Server::bind(attach).expect("a socket"),
        notes: Vec::new(),
        dpdk_version: None,
        hugepages: false,
        budget,
        access_tally: Arc::default(),
        audit: Default::default(),
        ipsec: Default::default(),
        programs: None,
    }
}
