//! The session's socket: calls, their replies, and the thread that receives all messages.
//!
//! One thread per session receives all messages, also while the program does not call the library. As soon as a
//! connection is established, the thread rings the doorbells of its QP for earlier posts. Replies go to their callers
//! by number, events to the [`Inbox`]. A message that breaks the protocol ends the session.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::process::Pid;
use verbs_session::message::{Answer, Call, Event, Message, Refusal, Reply, Request, Welcome};
use verbs_session::socket::{SessionSocket, SocketError};

use crate::error::Error;
use crate::inbox::{Inbox, Key};
use crate::lock::lock;
use crate::mapping::Arena;
use crate::queues::{PairQueues, WorkerBells};
use crate::ranges::Ranges;
use crate::replacements::Replacements;

/// A successful answer with its descriptors.
pub(crate) type Answered = (Answer, Vec<OwnedFd>);

/// State of a session, shared by its objects and its receiving thread.
#[derive(Debug)]
pub(crate) struct Link {
    socket: SessionSocket,
    pending: Mutex<Pending>,
    pub(crate) inbox: Inbox,
    /// Send and receive queues of all QPs, by the QP's number.
    pairs: Mutex<HashMap<u32, Arc<PairQueues>>>,
    pub(crate) welcome: Welcome,
    pub(crate) arena: Arena,
    pub(crate) ranges: Mutex<Ranges>,
    pub(crate) replacements: Mutex<Replacements>,
    pub(crate) workers: Vec<Arc<WorkerBells>>,
    /// True once the session has ended.
    ended: AtomicBool,
    process: Pid,
}

#[derive(Debug, Default)]
struct Pending {
    next_id: u32,
    /// Calls that wait for a reply, by number of the call.
    calls: HashMap<u32, Waiting>,
    ended: bool,
}

#[derive(Debug)]
struct Waiting {
    reply: SyncSender<Result<Answered, Refusal>>,
    /// Backlog, if the call is a `Listen`. When the reply arrives, the receiving thread creates the listener's mailbox
    /// before it receives the next message.
    backlog: Option<u32>,
}

/// Socket, first answer and mapped memory of a new session.
pub(crate) struct Opened {
    pub(crate) socket: SessionSocket,
    pub(crate) welcome: Welcome,
    pub(crate) arena: Arena,
    pub(crate) workers: Vec<Arc<WorkerBells>>,
}

impl Link {
    pub(crate) fn new(opened: Opened) -> Result<Link, Error> {
        Ok(Link {
            socket: opened.socket,
            pending: Mutex::default(),
            inbox: Inbox::new()?,
            pairs: Mutex::default(),
            ranges: Mutex::new(Ranges::new(opened.welcome.arena)),
            replacements: Mutex::default(),
            welcome: opened.welcome,
            arena: opened.arena,
            workers: opened.workers,
            ended: AtomicBool::new(false),
            process: rustix::process::getpid(),
        })
    }

    /// Sends a call, waits for its answer, and returns the answer with its descriptors.
    pub(crate) fn call(&self, call: Call) -> Result<Answered, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let (id, reply) = self.register(&call)?;
        if let Err(error) = self.send(&Request { id, call }) {
            lock(&self.pending).calls.remove(&id);
            return match error {
                // A call that is too long is an error of the caller. The session continues.
                SocketError::TooLong => Err(Error::Argument("the call is longer than a message")),
                error => Err(self.end(&error.to_string())),
            };
        }
        match reply.recv() {
            Ok(result) => result.map_err(Error::Refused),
            Err(_) => Err(self.disconnected()),
        }
    }

    /// Sends a call whose answer is [`Answer::Done`], and waits for it.
    pub(crate) fn call_done(&self, call: Call) -> Result<(), Error> {
        match self.call(call)? {
            (Answer::Done, descriptors) if descriptors.is_empty() => Ok(()),
            _ => Err(self.violation("the answer does not match the call")),
        }
    }

    /// Sends a call that creates an object, and waits for its answer. Returns the number of the object and its `count`
    /// descriptors.
    pub(crate) fn call_created(
        &self,
        call: Call,
        count: usize,
    ) -> Result<(u32, Vec<OwnedFd>), Error> {
        match self.call(call)? {
            (Answer::Created { number }, descriptors) if descriptors.len() == count => {
                Ok((number, descriptors))
            }
            _ => Err(self.violation("the answer does not match the call")),
        }
    }

    /// Ends the session because the appliance broke the protocol, and returns the error for the caller.
    pub(crate) fn violation(&self, problem: &str) -> Error {
        self.end(&format!("the appliance broke the protocol: {problem}"));
        Error::Protocol(problem.into())
    }

    /// Ends the session: all waiting and later calls and all later posts fail. Returns the error of these calls.
    pub(crate) fn end(&self, reason: &str) -> Error {
        self.inbox.end(reason);
        self.ended.store(true, Ordering::Release);
        self.arena.file().end();
        // An error means that the socket is already disconnected.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let mut pending = lock(&self.pending);
        pending.ended = true;
        // Dropping the senders wakes the callers, whose `recv` then fails.
        pending.calls.clear();
        drop(pending);
        let error = self.disconnected();
        lock(&self.pairs).values().for_each(|queues| queues.close(&error));
        error
    }

    /// Returns true once the session has ended.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns true in a forked child of the process that opened the session.
    pub(crate) fn is_forked(&self) -> bool {
        rustix::process::getpid() != self.process
    }

    /// Returns the error of calls after the session's end, with the reason of the end.
    pub(crate) fn disconnected(&self) -> Error {
        Error::Disconnected(self.inbox.ended().unwrap_or_else(|| "closed".into()))
    }

    /// Registers the queues of a new QP with the receiving thread, which establishes and ends them. Returns false if
    /// the number is in use.
    pub(crate) fn add_pair(&self, number: u32, queues: &Arc<PairQueues>) -> bool {
        let mut pairs = lock(&self.pairs);
        let is_new = !pairs.contains_key(&number);
        if is_new {
            pairs.insert(number, queues.clone());
        }
        drop(pairs);
        if self.is_ended() {
            queues.close(&self.disconnected());
        }
        is_new
    }

    pub(crate) fn remove_pair(&self, number: u32) {
        lock(&self.pairs).remove(&number);
    }

    /// Adds a call to those that wait for a reply. Returns the number of the call and the receiver of its reply.
    fn register(&self, call: &Call) -> Result<(u32, Receiver<Result<Answered, Refusal>>), Error> {
        let (sender, receiver) = sync_channel(1);
        let backlog = match call {
            Call::Listen { backlog, .. } => Some(*backlog),
            _ => None,
        };
        let mut pending = lock(&self.pending);
        if pending.ended {
            return Err(self.disconnected());
        }
        // Numbers wrap. Skips the numbers of calls that still wait.
        let id = loop {
            pending.next_id = pending.next_id.wrapping_add(1);
            if !pending.calls.contains_key(&pending.next_id) {
                break pending.next_id;
            }
        };
        pending.calls.insert(id, Waiting { reply: sender, backlog });
        Ok((id, receiver))
    }

    fn send(&self, request: &Request) -> Result<(), SocketError> {
        send(&self.socket, request)
    }

    /// Receives and handles messages until the session ends: the body of the receiving thread.
    pub(crate) fn receive_all(&self) {
        // A panic, which is a defect of this library, also ends the session: otherwise all calls would wait for ever,
        // because no thread receives their replies.
        let received = catch_unwind(AssertUnwindSafe(|| self.receive_until_end()));
        self.end(&received.unwrap_or_else(|_| "the receiving thread of the library failed".into()));
    }

    /// Receives and handles messages until the session ends. Returns the reason of its end.
    fn receive_until_end(&self) -> String {
        loop {
            match self.socket.receive::<Message>() {
                Ok((message, descriptors)) => {
                    if let Err(problem) = self.handle(message, descriptors) {
                        break format!("the appliance broke the protocol: {problem}");
                    }
                }
                Err(SocketError::WouldBlock) => {
                    if let Err(error) = wait(self.socket.as_fd(), PollFlags::IN, None) {
                        break format!("waiting for messages: {error}");
                    }
                }
                Err(SocketError::Closed) => break "the appliance has closed it".into(),
                Err(error) => break error.to_string(),
            }
        }
    }

    fn handle(&self, message: Message, descriptors: Vec<OwnedFd>) -> Result<(), &'static str> {
        match message {
            Message::Reply(Reply { id, result }) => {
                let waiting = lock(&self.pending).calls.remove(&id);
                let waiting = waiting.ok_or("a reply without its call")?;
                if let (Ok(Answer::Listening { listener, .. }), Some(backlog)) =
                    (&result, waiting.backlog)
                    && !self.inbox.open(Key::Listener(*listener), backlog as usize)
                {
                    return Err("the number of a listener is in use");
                }
                // An error means that the caller has stopped waiting because its `send` failed.
                let _ = waiting.reply.send(result.map(|answer| (answer, descriptors)));
                Ok(())
            }
            Message::Event(_) if !descriptors.is_empty() => Err("an event with descriptors"),
            Message::Event(event) => {
                self.apply(&event)?;
                self.inbox.deliver(event)
            }
        }
    }

    /// Assigns the queues of the event's QP to their worker, or ends them with the event's reason. Other events change
    /// nothing.
    fn apply(&self, event: &Event) -> Result<(), &'static str> {
        let queues = |pair| lock(&self.pairs).get(&pair).cloned();
        match event {
            Event::Established { pair, worker, .. } => {
                let bells = self.workers.get(usize::from(*worker)).ok_or("no such worker")?;
                if let Some(queues) = queues(*pair) {
                    queues.establish(bells);
                }
            }
            Event::Disconnected { pair, message, .. }
            | Event::QueuePairFailed { pair, message }
            | Event::ConnectFailed { pair, message, .. } => {
                if let Some(queues) = queues(*pair) {
                    queues.end(&Error::Ended(message.clone()), &self.workers);
                }
            }
            Event::Rejected { pair, .. } => {
                if let Some(queues) = queues(*pair) {
                    queues.end(&Error::Ended("the peer has rejected it".into()), &self.workers);
                }
            }
            Event::Incoming { .. }
            | Event::RequestEnded { .. }
            | Event::SharedReceivesLow { .. }
            | Event::SharedReceivesFailed { .. }
            | Event::CompletionQueueFailed { .. } => {}
        }
        Ok(())
    }
}

/// Sends a request, and blocks while the socket's buffer is full.
pub(crate) fn send(socket: &SessionSocket, request: &Request) -> Result<(), SocketError> {
    loop {
        match socket.send(request, &[]) {
            Err(SocketError::WouldBlock) => wait(socket.as_fd(), PollFlags::OUT, None)?,
            result => return result,
        };
    }
}

/// Waits until a descriptor is ready for `flags`. Returns false after `timeout`, and true also if a signal interrupted
/// the wait.
pub(crate) fn wait(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    timeout: Option<&Timespec>,
) -> Result<bool, Errno> {
    match rustix::event::poll(&mut [PollFd::new(&descriptor, flags)], timeout) {
        Ok(ready) => Ok(ready > 0),
        // A signal interrupted the wait: the caller retries its operation.
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error),
    }
}
