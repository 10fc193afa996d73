//! The socket of local programs, and the threads behind it: one accepts connections, and each session has one.
//!
//! ```text
//!   program <--socket--> session thread --calls--> control thread
//!                ^            | memory                  |
//!                +------------+---- replies, events ----+
//! ```
//!
//! A session's thread makes the memory that a call takes, so that a large one delays its own program only. Connections
//! are bounded.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::accept::Backoff;
use api::{AttachRights, AttachedProcess};
use config::{Config, ProgramsSection};
use dataplane::ProgramId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use verbs_session::socket::SessionSocket;

use super::outbox::Outbox;
use super::prepare::Prepared;
use super::session::Session;
use crate::appliance::budget::Budget;
use crate::waker::Waker;

/// Connections beyond the limit of programs: they learn why they are refused.
const MORE_CONNECTIONS: usize = 16;
/// Wait after a failed poll(2).
const POLL_RETRY: Duration = Duration::from_millis(10);
/// Calls that wait for the control thread. A session's thread waits while there are as many.
const MAX_CALLS: usize = 256;
/// Messages that a program may leave unread, besides two for each queue pair.
const MIN_BACKLOG: usize = 1024;

/// An input of the control thread.
#[derive(Debug)]
pub(in crate::appliance) struct Input {
    pub program: ProgramId,
    pub kind: InputKind,
}

#[derive(Debug)]
pub(in crate::appliance) enum InputKind {
    /// A call, with the number of its request.
    Call { request: u32, call: Prepared },
    /// The session has ended. No other input of the program follows.
    HungUp,
}

/// What all sessions share.
#[derive(Debug)]
pub struct Shared {
    pub(super) settings: ProgramsSection,
    pub(super) budget: Budget,
    /// Number of workers.
    pub(super) workers: u16,
    pub(super) inputs: SyncSender<Input>,
    /// Receives the keys of memory regions whose memory is free.
    pub(super) freed: Sender<u64>,
    /// Wakes the control thread.
    pub(super) waker: Waker,
}

impl Shared {
    /// Passes an input to the control thread, and waits while its queue is full. Returns false if it has ended.
    pub(in crate::appliance) fn forward(&self, program: ProgramId, kind: InputKind) -> bool {
        let sent = self.inputs.send(Input { program, kind });
        self.waker.wake();
        sent.is_ok()
    }
}

/// The control thread's end.
#[derive(Debug)]
pub struct Inbox {
    pub(super) inputs: Receiver<Input>,
    pub(super) freed: Receiver<u64>,
    pub(super) settings: ProgramsSection,
    /// Held until the queues are dropped; `None` in tests.
    pub(super) _server: Option<Server>,
}

/// Creates the queues between the sessions and the control thread, which `waker` wakes.
pub(in crate::appliance) fn queues(
    settings: ProgramsSection,
    budget: Budget,
    workers: u16,
    waker: Waker,
) -> (Arc<Shared>, Inbox) {
    let (inputs, calls) = sync_channel(MAX_CALLS);
    let (freed, keys) = channel();
    let shared = Shared { settings: settings.clone(), budget, workers, inputs, freed, waker };
    (Arc::new(shared), Inbox { inputs: calls, freed: keys, settings, _server: None })
}

/// The listening socket, before sessions are served.
#[derive(Debug)]
pub struct BoundSocket {
    path: PathBuf,
    listener: OwnedFd,
    rights: AttachRights,
}

impl BoundSocket {
    /// Listens on the socket of `[programs]`; `None` without the section.
    ///
    /// # Errors
    /// One sentence: a user or group does not exist, or the socket cannot be created.
    pub fn open(config: &Config) -> Result<Option<BoundSocket>, String> {
        let (Some(section), Some(path)) = (&config.programs, config.programs_socket()) else {
            return Ok(None);
        };
        let rights = AttachRights::resolve(section)?;
        let listener = rights
            .bind(&path)
            .map_err(|error| format!("{error}; choose another programs.socket"))?;
        Ok(Some(BoundSocket { path, listener, rights }))
    }

    /// Starts the thread that accepts connections.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn serve(
        self,
        settings: ProgramsSection,
        budget: Budget,
        workers: u16,
        waker: Waker,
    ) -> std::io::Result<Inbox> {
        let (shared, inbox) = queues(settings, budget, workers, waker);
        let stop = Stop { waker: Waker::new()?, stopping: Arc::new(AtomicBool::new(false)) };
        let sessions = Arc::<Sessions>::default();
        let acceptor = Acceptor {
            backoff: Backoff::new(format!("socket of programs {}", self.path.display())),
            listener: self.listener,
            rights: self.rights,
            shared,
            sessions: Arc::clone(&sessions),
            stop: stop.clone(),
            next: 1,
        };
        let thread =
            std::thread::Builder::new().name("programs".into()).spawn(move || acceptor.run())?;
        let server = Server { path: self.path, stop, sessions, thread: Some(thread) };
        Ok(Inbox { _server: Some(server), ..inbox })
    }
}

#[derive(Clone, Debug)]
struct Stop {
    waker: Waker,
    stopping: Arc<AtomicBool>,
}

/// The running server. Dropping it closes all sessions and waits for their threads. The control thread's end of the
/// queues must be dropped before, because a session's thread may wait for it.
#[derive(Debug)]
pub(super) struct Server {
    path: PathBuf,
    stop: Stop,
    sessions: Arc<Sessions>,
    thread: Option<JoinHandle<()>>,
}

/// Threads of sessions, and their sending sides.
#[derive(Debug, Default)]
struct Sessions(Mutex<Vec<(Weak<Outbox>, JoinHandle<()>)>>);

impl Sessions {
    fn with<T>(&self, call: impl FnOnce(&mut Vec<(Weak<Outbox>, JoinHandle<()>)>) -> T) -> T {
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stopping.store(true, Ordering::Relaxed);
        self.stop.waker.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread `programs` panicked");
        }
        let sessions = self.sessions.with(std::mem::take);
        for (outbox, _) in &sessions {
            if let Some(outbox) = outbox.upgrade() {
                outbox.close();
            }
        }
        for (_, thread) in sessions {
            if thread.join().is_err() {
                tracing::error!("the thread of a program's session panicked");
            }
        }
        remove_socket(&self.path);
    }
}

fn remove_socket(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// The thread that accepts connections.
struct Acceptor {
    listener: OwnedFd,
    rights: AttachRights,
    shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    stop: Stop,
    backoff: Backoff,
    /// Number of the next program.
    next: u32,
}

impl Acceptor {
    fn run(mut self) {
        while !self.stop.stopping.load(Ordering::Relaxed) {
            self.wait();
            self.stop.waker.reset();
            self.accept();
        }
    }

    /// Waits for a connection, the end, or the next attempt after a failure.
    fn wait(&self) {
        let retry = self.backoff.retry_at();
        let timeout = retry.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|wait| Timespec::try_from(wait).ok());
        let mut fds = vec![PollFd::from_borrowed_fd(self.stop.waker.as_fd(), PollFlags::IN)];
        if retry.is_none() {
            fds.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
        }
        if let Err(error) = poll(&mut fds, timeout.as_ref())
            && error != Errno::INTR
        {
            tracing::error!("poll: {error}");
            std::thread::sleep(POLL_RETRY);
        }
    }

    fn accept(&mut self) {
        let now = Instant::now();
        if self.backoff.retry_at().is_some_and(|until| now < until) {
            return;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.listener, flags) {
            Ok(socket) => {
                self.backoff.record_success();
                self.begin(socket);
            }
            Err(Errno::AGAIN) => self.backoff.record_success(),
            Err(error) => self.backoff.record_failure(&error.into(), now),
        }
    }

    /// Starts the session of a connection.
    fn begin(&mut self, socket: OwnedFd) {
        self.sessions.with(|all| all.retain(|(_, thread)| !thread.is_finished()));
        let most = self.shared.settings.programs as usize + MORE_CONNECTIONS;
        if self.sessions.with(|all| all.len()) >= most {
            return tracing::warn!("a program is disconnected: there are {most} connections");
        }
        let process = match self.rights.peer(socket.as_fd()) {
            Ok(process) => process,
            Err(error) => {
                return tracing::warn!("a program is disconnected, it is not known: {error}");
            }
        };
        match self.spawn(socket, process) {
            Ok(session) => self.sessions.with(|all| all.push(session)),
            Err(error) => tracing::warn!("a program is disconnected: no thread: {error}"),
        }
    }

    fn spawn(
        &mut self,
        socket: OwnedFd,
        process: AttachedProcess,
    ) -> std::io::Result<(Weak<Outbox>, JoinHandle<()>)> {
        let waker = Waker::new()?;
        let outbox = outbox(&self.shared.settings, socket, waker.clone());
        let weak = Arc::downgrade(&outbox);
        let id = ProgramId(self.next);
        // Numbers are not used again.
        self.next = self.next.checked_add(1).ok_or_else(|| {
            std::io::Error::other("all numbers of programs are used up: restart ddpd")
        })?;
        let session = Session::new(id, Arc::clone(&self.shared), outbox, waker, process);
        let name = format!("program-{}", id.0);
        let thread = std::thread::Builder::new().name(name).spawn(move || session.run())?;
        Ok((weak, thread))
    }
}

/// Creates the sending side of a session. `waker` wakes its thread.
pub(in crate::appliance) fn outbox(
    settings: &ProgramsSection,
    socket: OwnedFd,
    waker: Waker,
) -> Arc<Outbox> {
    let limit = MIN_BACKLOG + 2 * settings.queue_pairs as usize;
    Arc::new(Outbox::new(SessionSocket::new(socket), waker, limit))
}
