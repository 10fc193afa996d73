//! The socket of local programs and its threads: one accepts connections, and one serves each session.
//!
//! ```text
//!   program <--socket--> session thread --calls--> control thread
//!                ^            | memory                  |
//!                +------------+---- replies, events ----+
//! ```
//!
//! A session's thread allocates the memory of a call, so that a large allocation delays only its own program. The
//! number of connections is bounded.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
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

use super::inbox::{Inbox, SessionQueues, queues};
use super::outbox::Outbox;
use super::session::Session;
use crate::appliance::budget::Budget;
use crate::waker::Waker;

/// Connections accepted beyond `programs.programs`, so that the programs beyond the limit receive a refusal with a
/// reason.
const MORE_CONNECTIONS: usize = 16;
/// Wait after a failed poll(2).
const POLL_RETRY: Duration = Duration::from_millis(10);
/// Maximum number of messages in a session's backlog, in addition to two per queue pair that `[programs]` allows.
const BASE_BACKLOG: usize = 1024;

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
    /// A user or group does not exist, or the socket cannot be created. The error is one sentence.
    pub fn open(config: &Config) -> Result<Option<BoundSocket>, String> {
        let (Some(section), Some(path)) = (&config.programs, config.programs_socket()) else {
            return Ok(None);
        };
        let rights = AttachRights::resolve(section)?;
        let listener = api::bind_programs(&path, &rights)
            .map_err(|error| format!("{error}; choose another programs.socket"))?;
        Ok(Some(BoundSocket { path, listener, rights }))
    }

    /// Starts the thread that accepts connections.
    ///
    /// # Errors
    /// The thread or the eventfd that stops it cannot be created.
    pub fn serve(
        self,
        settings: ProgramsSection,
        budget: Budget,
        workers: u16,
        waker: Waker,
    ) -> std::io::Result<Sessions> {
        let (queues, inbox) = queues(settings, budget, workers, waker);
        let stop = Stop { waker: Waker::new()?, stopping: Arc::new(AtomicBool::new(false)) };
        let threads = Arc::<Threads>::default();
        let acceptor = Acceptor {
            backoff: Backoff::new(format!("socket of programs {}", self.path.display())),
            listener: self.listener,
            rights: self.rights,
            queues,
            threads: Arc::clone(&threads),
            stop: stop.clone(),
            next: 1,
        };
        let thread =
            std::thread::Builder::new().name("programs".into()).spawn(move || acceptor.run())?;
        let server = Server { path: self.path, stop, threads, thread: Some(thread) };
        Ok(Sessions { inbox, _server: Some(server) })
    }
}

/// The control thread's handle to all sessions.
#[derive(Debug)]
pub struct Sessions {
    // Dropped first: a session's thread may block until the control thread takes its call.
    pub(in crate::appliance) inbox: Inbox,
    /// `None` in tests.
    pub(in crate::appliance) _server: Option<Server>,
}

/// Request to the accepting thread to end.
#[derive(Clone, Debug)]
struct Stop {
    waker: Waker,
    stopping: Arc<AtomicBool>,
}

/// The running server. Its drop closes all sessions and waits for their threads. The [`Inbox`] must be dropped before,
/// because a session's thread may block while the queue to the inbox is full.
#[derive(Debug)]
pub(in crate::appliance) struct Server {
    path: PathBuf,
    stop: Stop,
    threads: Arc<Threads>,
    thread: Option<JoinHandle<()>>,
}

/// Outbox and thread of each session.
#[derive(Debug, Default)]
struct Threads(Mutex<Vec<(Weak<Outbox>, JoinHandle<()>)>>);

impl Threads {
    /// Calls `call` with the entries, while the lock is held.
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
        let sessions = self.threads.with(std::mem::take);
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
    queues: SessionQueues,
    threads: Arc<Threads>,
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

    /// Waits for a connection, for the end of the server, or for the next attempt after a failed accept(2).
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

    /// Starts the session of a connection. Closes the connection if there are too many connections, or if the peer's
    /// credentials cannot be read.
    fn begin(&mut self, socket: OwnedFd) {
        self.threads.with(|all| all.retain(|(_, thread)| !thread.is_finished()));
        let most = self.queues.settings().programs as usize + MORE_CONNECTIONS;
        if self.threads.with(|all| all.len()) >= most {
            return tracing::warn!("a program is disconnected: there are {most} connections");
        }
        let process = match self.rights.peer(socket.as_fd()) {
            Ok(process) => process,
            Err(error) => {
                return tracing::warn!("a program is disconnected, it is not known: {error}");
            }
        };
        match self.spawn(socket, process) {
            Ok(session) => self.threads.with(|all| all.push(session)),
            Err(error) => tracing::warn!("a program is disconnected: no thread: {error}"),
        }
    }

    /// Starts the thread of a session. Returns the entry for [`Threads`].
    fn spawn(
        &mut self,
        socket: OwnedFd,
        process: AttachedProcess,
    ) -> std::io::Result<(Weak<Outbox>, JoinHandle<()>)> {
        let waker = Waker::new()?;
        let outbox = outbox(self.queues.settings(), socket, waker.clone());
        let weak = Arc::downgrade(&outbox);
        let id = ProgramId(self.next);
        // Numbers of programs are not reused.
        self.next = self.next.checked_add(1).ok_or_else(|| {
            std::io::Error::other("all numbers of programs are used up: restart ddpd")
        })?;
        let session = Session::new(id, self.queues.clone(), outbox, waker, process);
        let name = format!("program-{}", id.0);
        let thread = std::thread::Builder::new().name(name).spawn(move || session.run())?;
        Ok((weak, thread))
    }
}

/// Creates the sending side of a session. `waker` wakes the session's thread.
pub(in crate::appliance) fn outbox(
    settings: &ProgramsSection,
    socket: OwnedFd,
    waker: Waker,
) -> Arc<Outbox> {
    let limit = BASE_BACKLOG + 2 * settings.queue_pairs as usize;
    Arc::new(Outbox::new(SessionSocket::new(socket), waker, limit))
}
