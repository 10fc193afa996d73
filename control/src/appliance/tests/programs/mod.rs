//! Local programs: sessions against scripted workers. The workers record added objects, refuse to remove unknown
//! objects, and reset the streams of removed QPs and programs.

mod calls;
mod connections;
mod end;
mod observation;
mod random;
mod sessions;
mod shared_receives;
mod windows;
mod workers;

use std::os::fd::OwnedFd;

use api::AttachedProcess;
use dataplane::ProgramId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use verbs_layout::version::{OLDEST, VERSION};
use verbs_session::message::{
    Answer, Call, ConnectCall, Depths, Event as ProgramEvent, MemoryAccess, Message, PeerKind,
    Refusal, RefusalKind, Reply, Request as ProgramRequest, StartUp, Transport, Welcome,
};
use verbs_session::socket::{SessionSocket, SocketError};

use self::workers::Rig;
use super::super::programs::server::outbox;
use super::super::programs::{InputKind, Outbox, Preparer};
use super::*;

const PROGRAMS: &str = concat!(
    host!(),
    r#"
[programs]
programs = 2
queue_pairs = 3
completion_queues = 2
memory_regions = 4
memory = "1 MiB"
arena = "1 MiB"
posts = 64
completions = 256
listeners = 2
"#
);

const PAGE: u64 = 4096;
const DEPTHS: Depths = Depths { ird: 4, ord: 8 };
const LOCAL_ACCESS: MemoryAccess = MemoryAccess {
    local_write: true,
    remote_write: false,
    remote_read: false,
    remote_atomic: false,
};

/// A simulated program: its end of the socket, and the state of its session. The test does the work of the session's
/// thread.
struct Client {
    id: ProgramId,
    socket: SessionSocket,
    outbox: Arc<Outbox>,
    preparer: Preparer,
    next: u32,
    replies: Vec<(Reply, Vec<OwnedFd>)>,
    events: Vec<ProgramEvent>,
    /// True once the appliance has closed the session.
    is_closed: bool,
}

impl Client {
    fn new(rig: &Rig, id: u32) -> Client {
        let process = AttachedProcess { uid: 1000, pid: 4321, admitted: true };
        Client::of_process(rig, id, process)
    }

    fn of_process(rig: &Rig, id: u32, process: AttachedProcess) -> Client {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let sessions = rig.bench.sessions.clone().expect("[programs]");
        let settings = rig.bench.core.env().context.config.programs.clone().unwrap();
        let outbox = outbox(&settings, theirs, Waker::new().unwrap());
        let preparer = Preparer::new(sessions.shared(), Arc::clone(&outbox), process);
        let socket = SessionSocket::new(ours);
        let (id, next) = (ProgramId(id), 1);
        let (replies, events, is_closed) = (Vec::new(), Vec::new(), false);
        Client { id, socket, outbox, preparer, next, replies, events, is_closed }
    }

    /// Creates a program and attaches it.
    fn attach(rig: &mut Rig, id: u32) -> Client {
        let mut client = Client::new(rig, id);
        let answer = client.call(rig, hello());
        assert!(matches!(answer, Ok(Answer::Welcome(_))), "{answer:?}");
        client
    }

    /// Passes a call to the control thread. Returns the number of its request.
    fn send(&mut self, rig: &Rig, call: Call) -> u32 {
        let id = self.next;
        self.next += 1;
        // Encodes and decodes the call, as over the socket.
        let request = serde_json::to_string(&ProgramRequest { id, call }).unwrap();
        let ProgramRequest { id, call } = serde_json::from_str(&request).unwrap();
        self.outbox.count_call();
        match self.preparer.prepare(call) {
            Ok(call) => rig.forward(self.id, InputKind::Call { request: id, call }),
            Err(refusal) => {
                let report = self.preparer.report(&refusal);
                self.outbox.reply(id, Err(refusal), Vec::new());
                if let Some(report) = report {
                    rig.forward(self.id, InputKind::Refused(report));
                }
            }
        }
        id
    }

    /// Makes a call, lets the workers answer, and returns the reply.
    fn call(&mut self, rig: &mut Rig, call: Call) -> Result<Answer, Refusal> {
        let id = self.send(rig, call);
        rig.settle();
        self.reply(id).expect("a reply")
    }

    /// Makes a call that creates an object. Returns its number or STag.
    fn create(&mut self, rig: &mut Rig, call: Call) -> u32 {
        match self.call(rig, call).unwrap() {
            Answer::Created { number } => number,
            Answer::CompletionQueue { queue, .. } => queue,
            Answer::QueuePair { pair, .. } => pair,
            Answer::Registered { stag } | Answer::Window { stag } => stag,
            Answer::Listening { listener, .. } => listener,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a call that must be refused. Returns the kind of the refusal.
    fn refused(&mut self, rig: &mut Rig, call: Call) -> RefusalKind {
        match self.call(rig, call.clone()) {
            Err(refusal) => refusal.kind,
            Ok(answer) => panic!("{call:?}: {answer:?}"),
        }
    }

    /// Reads all messages that have arrived.
    fn read(&mut self) {
        loop {
            match self.socket.receive::<Message>() {
                Ok((Message::Reply(reply), fds)) => self.replies.push((reply, fds)),
                Ok((Message::Event(event), _)) => self.events.push(event),
                Err(SocketError::WouldBlock) => return,
                Err(SocketError::Closed) => {
                    self.is_closed = true;
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Takes the reply to a request, if it has arrived.
    fn reply(&mut self, id: u32) -> Option<Result<Answer, Refusal>> {
        self.reply_with_descriptors(id).map(|(result, _)| result)
    }

    /// Takes the reply to a request with its descriptors, if it has arrived.
    fn reply_with_descriptors(
        &mut self,
        id: u32,
    ) -> Option<(Result<Answer, Refusal>, Vec<OwnedFd>)> {
        self.read();
        let at = self.replies.iter().position(|(reply, _)| reply.id == id)?;
        let (reply, fds) = self.replies.remove(at);
        Some((reply.result, fds))
    }

    fn take_events(&mut self) -> Vec<ProgramEvent> {
        self.read();
        std::mem::take(&mut self.events)
    }

    /// Ends the session, as after `kill -9`.
    fn hang_up(self, rig: &mut Rig) {
        let Client { id, socket, outbox, preparer, .. } = self;
        drop((socket, preparer));
        outbox.close();
        rig.forward(id, InputKind::HungUp);
        rig.settle();
    }

    /// Creates a protection domain, a CQ and a QP. Returns the number of the QP.
    fn create_pair(&mut self, rig: &mut Rig) -> u32 {
        let pd = self.create(rig, Call::CreatePd);
        let queue = self.create(rig, completion_queue());
        self.create(rig, queue_pair(pd, queue))
    }

    /// Creates a QP and connects it. `stream`: number of its stream at the worker. Returns the number of the QP.
    fn connect(&mut self, rig: &mut Rig, stream: u64) -> u32 {
        let pair = self.create_pair(rig);
        assert_eq!(self.call(rig, connect(pair)), Ok(Answer::Done));
        rig.establish_connect(stream);
        pair
    }
}

fn hello() -> Call {
    Call::Hello { oldest: OLDEST, newest: VERSION, name: "test".into() }
}

fn completion_queue() -> Call {
    Call::CreateCompletionQueue { entries: 16, channel: None }
}

fn queue_pair(pd: u32, queue: u32) -> Call {
    Call::CreateQueuePair {
        pd,
        send_completions: queue,
        receive_completions: queue,
        max_sends: 4,
        max_receives: 4,
        copy_sources: false,
        shared_receives: None,
    }
}

fn register(pd: u32, access: MemoryAccess) -> Call {
    let (address, len) = (0x7f00_0000_0010, PAGE);
    let parts = vec![(0, PAGE), (8 * PAGE, 9 * PAGE)];
    Call::RegisterMemory { pd, address, len, offset: 16, parts, access }
}

fn connect(pair: u32) -> Call {
    Call::Connect(connect_call(pair))
}

fn connect_call(pair: u32) -> ConnectCall {
    ConnectCall {
        pair,
        local: None,
        remote: "10.0.0.9:7471".parse().unwrap(),
        transport: Transport::Tcp,
        start_up: StartUp::default(),
        depths: DEPTHS,
        private_data: b"hello".to_vec(),
        timeout: 1000,
    }
}

fn listen(port: u16) -> Call {
    let local = SocketAddr::new("0.0.0.0".parse().unwrap(), port);
    Call::Listen { local, transport: Transport::Tcp, backlog: 4 }
}
