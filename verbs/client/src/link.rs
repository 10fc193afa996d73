//! The session's socket: calls and their replies, and the thread that receives.
//!
//! One thread per session receives all messages, so that an established connection is used at once, whatever the
//! program waits for. It hands replies to the callers by number, and events to the [`Inbox`]. A message that breaks the
//! protocol ends the session.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// A successful answer with its descriptors.
pub(crate) type Answered = (Answer, Vec<OwnedFd>);

/// State of a session that its objects and its thread share.
#[derive(Debug)]
pub(crate) struct Link {
    socket: SessionSocket,
    pending: Mutex<Pending>,
    pub(crate) inbox: Inbox,
    /// Queues of all QPs, by number.
    pairs: Mutex<HashMap<u32, Arc<PairQueues>>>,
    pub(crate) welcome: Welcome,
    pub(crate) arena: Arena,
    pub(crate) ranges: Mutex<Ranges>,
    pub(crate) workers: Vec<Arc<WorkerBells>>,
    /// True after the session's end.
    ended: AtomicBool,
    process: Pid,
}

#[derive(Debug, Default)]
struct Pending {
    next_id: u32,
    /// Calls without a reply, by number.
    calls: HashMap<u32, Waiting>,
    ended: bool,
}

#[derive(Debug)]
struct Waiting {
    reply: SyncSender<Result<Answered, Refusal>>,
    /// Backlog of a listener: its mailbox has to exist before the next message is received.
    backlog: Option<u32>,
}

/// Parts of a new session.
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
            welcome: opened.welcome,
            arena: opened.arena,
            workers: opened.workers,
            ended: AtomicBool::new(false),
            process: rustix::process::getpid(),
        })
    }

    /// Carries out a call and returns its answer.
    pub(crate) fn call(&self, call: Call) -> Result<Answered, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let (id, reply) = self.register(&call)?;
        if let Err(error) = self.send(&Request { id, call }) {
            lock(&self.pending).calls.remove(&id);
            return match error {
                // A call that is too long is the caller's, and the session goes on.
                SocketError::TooLong => Err(Error::Argument("the call is longer than a message")),
                error => Err(self.end(&error.to_string())),
            };
        }
        match reply.recv() {
            Ok(result) => result.map_err(Error::Refused),
            Err(_) => Err(self.disconnected()),
        }
    }

    /// Carries out a call that has no result.
    pub(crate) fn call_done(&self, call: Call) -> Result<(), Error> {
        match self.call(call)? {
            (Answer::Done, descriptors) if descriptors.is_empty() => Ok(()),
            _ => Err(self.violation("the answer is not the one of the call")),
        }
    }

    /// Carries out a call that creates an object with `count` descriptors. Returns its number.
    pub(crate) fn call_created(
        &self,
        call: Call,
        count: usize,
    ) -> Result<(u32, Vec<OwnedFd>), Error> {
        match self.call(call)? {
            (Answer::Created { number }, descriptors) if descriptors.len() == count => {
                Ok((number, descriptors))
            }
            _ => Err(self.violation("the answer is not the one of the call")),
        }
    }

    /// Ends the session because the appliance broke the protocol.
    pub(crate) fn violation(&self, problem: &str) -> Error {
        self.end(&format!("the appliance broke the protocol: {problem}"));
        Error::Protocol(problem.into())
    }

    /// Ends the session: all calls, waits and posts fail. Returns the error that they have.
    pub(crate) fn end(&self, reason: &str) -> Error {
        self.inbox.end(reason);
        self.ended.store(true, Ordering::Release);
        // A socket that is closed already cannot be shut down.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let mut pending = lock(&self.pending);
        pending.ended = true;
        // Dropped senders wake the callers.
        pending.calls.clear();
        drop(pending);
        let error = self.disconnected();
        lock(&self.pairs).values().for_each(|queues| queues.end(&error));
        error
    }

    /// Returns true after the session's end.
    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns true in a process that was forked from the one of the session.
    pub(crate) fn is_forked(&self) -> bool {
        rustix::process::getpid() != self.process
    }

    /// Returns the error of calls after the session's end.
    pub(crate) fn disconnected(&self) -> Error {
        Error::Disconnected(self.inbox.ended().unwrap_or_else(|| "closed".into()))
    }

    /// Makes the queues of a new QP known to the receiving thread. Returns false if the number is in use.
    pub(crate) fn add_pair(&self, number: u32, queues: &Arc<PairQueues>) -> bool {
        let mut pairs = lock(&self.pairs);
        let is_new = !pairs.contains_key(&number);
        if is_new {
            pairs.insert(number, queues.clone());
        }
        drop(pairs);
        if self.is_ended() {
            queues.end(&self.disconnected());
        }
        is_new
    }

    pub(crate) fn remove_pair(&self, number: u32) {
        lock(&self.pairs).remove(&number);
    }

    /// Returns a number for a call, and the place of its reply.
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
        // Numbers wrap; a call that waits keeps its own.
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

    /// Receives until the session ends.
    pub(crate) fn receive_all(&self) {
        let reason = loop {
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
        };
        self.end(&reason);
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
                // A call that does not wait any more has no use for its reply.
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

    /// Changes the queues of the event's QP.
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
            | Event::QueuePairFailed { pair, message } => {
                if let Some(queues) = queues(*pair) {
                    queues.end(&Error::Ended(message.clone()));
                }
            }
            Event::Rejected { pair, .. } => {
                if let Some(queues) = queues(*pair) {
                    queues.end(&Error::Ended("the peer has rejected it".into()));
                }
            }
            Event::ConnectFailed { pair, message, .. } => {
                if let Some(queues) = queues(*pair) {
                    queues.end(&Error::Ended(message.clone()));
                }
            }
            Event::Incoming { .. }
            | Event::RequestEnded { .. }
            | Event::CompletionQueueFailed { .. } => {}
        }
        Ok(())
    }
}

/// Sends a request, and waits while the socket is full.
pub(crate) fn send(socket: &SessionSocket, request: &Request) -> Result<(), SocketError> {
    loop {
        match socket.send(request, &[]) {
            Err(SocketError::WouldBlock) => wait(socket.as_fd(), PollFlags::OUT, None)?,
            result => return result,
        };
    }
}

/// Waits until a descriptor is ready. Returns false when the time has passed.
pub(crate) fn wait(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    timeout: Option<&Timespec>,
) -> Result<bool, Errno> {
    match rustix::event::poll(&mut [PollFd::new(&descriptor, flags)], timeout) {
        Ok(ready) => Ok(ready > 0),
        // The caller looks again.
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error),
    }
}
