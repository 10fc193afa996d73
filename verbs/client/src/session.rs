//! Sessions with an appliance: opening, limits and devices.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFlags, Timespec};
use verbs_layout::session::{HEADER_WORDS, MAX_BYTES};
use verbs_layout::version::VERSIONS;
use verbs_session::message::{
    Answer, Call, Device, Limits, MAX_DESCRIPTORS, Message, Reply, Request, Welcome,
};
use verbs_session::socket::{SessionSocket, SocketError};

use crate::error::Error;
use crate::link::{Link, Opened, send, wait};
use crate::mapping::{Area, Arena};
use crate::queues::WorkerBells;
use crate::signals::with_blocked;

/// Default path of the appliance's socket for programs.
pub const DEFAULT_SOCKET: &str = "/run/ddpd/programs.sock";
/// Environment variable with another path of the appliance's socket, for [`Session::open`].
pub const SOCKET_VARIABLE: &str = "DDPD_PROGRAMS_SOCKET";

/// Time-out for the appliance's answer to the first message.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// Byte offset of the doorbells in their area: directly after the header.
const DOORBELLS_AT: u64 = HEADER_WORDS as u64 * 8;
/// Maximum number of characters of the program's name in the first message.
const MAX_NAME: usize = 64;

/// A session with an appliance. Clones refer to the same session, which ends when the last clone and all of its objects
/// are dropped.
///
/// After `fork` the child cannot use the session: its calls return [`Error::Forked`]. The child shares the memory of
/// the arena with its parent and must not write to it. `fork` followed by `exec` is safe.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

/// Owner of the link and the receiving thread. The thread holds only the link, so the drop of the last session ends the
/// thread.
#[derive(Debug)]
struct Shared {
    link: Arc<Link>,
    thread: OnceLock<JoinHandle<()>>,
}

impl Session {
    /// Opens a session at the path in `DDPD_PROGRAMS_SOCKET`, or at [`DEFAULT_SOCKET`] if the variable is not set.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect).
    pub fn open() -> Result<Session, Error> {
        let path = std::env::var_os(SOCKET_VARIABLE);
        Session::connect(path.map_or_else(|| PathBuf::from(DEFAULT_SOCKET), PathBuf::from))
    }

    /// Opens a session at the socket `path`. Waits at most ten seconds for the appliance's first answer.
    ///
    /// # Errors
    /// No appliance listens at `path`, the appliance refuses the program or does not answer in time, or the appliance
    /// and this library have no version of the shared-memory layout in common.
    pub fn connect(path: impl AsRef<Path>) -> Result<Session, Error> {
        let path = path.as_ref();
        let socket = SessionSocket::connect(path);
        Session::start(socket.map_err(|error| Error::Connect { path: path.to_owned(), error })?)
    }

    /// Opens a session on a connected Unix socket of type `SOCK_SEQPACKET`, for a program that may not connect to the
    /// path itself.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect).
    pub fn from_socket(socket: OwnedFd) -> Result<Session, Error> {
        Session::start(SessionSocket::new(socket))
    }

    fn start(socket: SessionSocket) -> Result<Session, Error> {
        let (welcome, descriptors) = greet(&socket)?;
        let opened = check(socket, welcome, descriptors)?;
        let link = Arc::new(Link::new(opened)?);
        let shared = Arc::new(Shared { link: link.clone(), thread: OnceLock::new() });
        let thread = std::thread::Builder::new().name("ddpd-session".into());
        let thread = with_blocked(|| thread.spawn(move || link.receive_all()));
        let thread = thread.map_err(|error| Error::System {
            call: "starting a thread",
            error: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN),
        })?;
        // The cell is new and therefore empty, so `set` succeeds.
        let _ = shared.thread.set(thread);
        Ok(Session { shared })
    }

    /// Returns the appliance's limits for this program: numbers of objects, posts, completions and bytes.
    pub fn limits(&self) -> &Limits {
        &self.link().welcome.limits
    }

    /// Returns the RDMA devices: the network interfaces of the appliance.
    pub fn devices(&self) -> &[Device] {
        &self.link().welcome.devices
    }

    /// Returns the local address of connections to a peer. `local` is an address of the interface to use; `None` or an
    /// unspecified address: the appliance chooses the interface. No packet is sent: the peer may be down.
    ///
    /// # Errors
    /// The appliance has no route to the peer, no interface has the address `local`, or the session has ended.
    pub fn route(&self, remote: IpAddr, local: Option<IpAddr>) -> Result<IpAddr, Error> {
        match self.link().call(Call::Route { remote, local })? {
            (Answer::Route { local }, descriptors) if descriptors.is_empty() => Ok(local),
            _ => Err(self.link().violation("the answer does not match the call")),
        }
    }

    /// Returns the number that the appliance has assigned to this program.
    pub fn program(&self) -> u32 {
        self.link().welcome.program
    }

    /// Returns the number of workers of the appliance.
    pub fn workers(&self) -> u16 {
        self.link().welcome.workers
    }

    /// Returns the length of the arena in bytes: the address space for all [`Buffer`](crate::Buffer)s of the session.
    pub fn arena_len(&self) -> u64 {
        self.link().welcome.arena
    }

    /// Returns the reason of the session's end, or `None` while the session is open.
    pub fn end_reason(&self) -> Option<Arc<str>> {
        self.link().inbox.ended()
    }

    /// Returns the number of events received for objects that did not exist, for example objects just removed.
    pub fn unmatched_events(&self) -> u64 {
        self.link().inbox.unmatched()
    }

    /// Ends the session with this reason: all waiting and later calls, and all later posts, fail. Queued events can
    /// still be taken.
    pub fn end(&self, reason: &str) {
        self.link().end(reason);
    }

    pub(crate) fn link(&self) -> &Link {
        &self.shared.link
    }
}

/// The descriptor is readable while [`Session::next_event`] has an event, and after the session's end.
impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link().inbox.as_fd()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.link.is_forked() {
            // The receiving thread and the session belong to the parent process, which continues to use them.
            return;
        }
        self.link.end("the program has closed it");
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked, and thus ended.
            let _ = thread.join();
        }
    }
}

/// Sends `Hello`, waits for `Welcome`, and returns it with its descriptors.
fn greet(socket: &SessionSocket) -> Result<(Welcome, Vec<OwnedFd>), Error> {
    let ended = |error: SocketError| Error::Disconnected(error.to_string().into());
    let name = program_name();
    let call = Call::Hello { oldest: VERSIONS.oldest, newest: VERSIONS.newest, name };
    send(socket, &Request { id: 0, call }).map_err(ended)?;
    let deadline = Instant::now() + WELCOME_TIMEOUT;
    let (message, descriptors) = loop {
        match socket.receive::<Message>() {
            Err(SocketError::WouldBlock) => {}
            received => break received.map_err(ended)?,
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TimedOut);
        }
        let left = Timespec::try_from(left).ok();
        wait(socket.as_fd(), PollFlags::IN, left.as_ref())
            .map_err(Error::system("waiting for the appliance"))?;
    };
    match message {
        Message::Reply(Reply { id: 0, result: Ok(Answer::Welcome(welcome)) }) => {
            Ok((welcome, descriptors))
        }
        Message::Reply(Reply { id: 0, result: Err(refusal) }) => Err(refusal.into()),
        _ => Err(Error::Protocol("the first message is not an answer".into())),
    }
}

/// Checks the first answer, and maps the arena and the doorbells of all workers.
fn check(
    socket: SessionSocket,
    welcome: Welcome,
    descriptors: Vec<OwnedFd>,
) -> Result<Opened, Error> {
    let wrong = |problem: &str| Error::Protocol(problem.into());
    if !(VERSIONS.oldest..=VERSIONS.newest).contains(&welcome.version) {
        return Err(wrong("a version of the layout that was not offered"));
    }
    let workers = usize::from(welcome.workers);
    if workers == 0 || 1 + 2 * workers > MAX_DESCRIPTORS || descriptors.len() != 1 + 2 * workers {
        return Err(wrong("descriptors that do not match the number of workers"));
    }
    let page = crate::page::size() as u64;
    if welcome.arena == 0 || welcome.arena > MAX_BYTES || !welcome.arena.is_multiple_of(page) {
        return Err(wrong("an impossible length of the arena"));
    }
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| wrong("a descriptor is missing"));
    let refused = |error: crate::mapping::MappingError| wrong(&error.to_string());
    let arena = Arena::map(next()?.as_fd(), welcome.arena).map_err(refused)?;
    let workers = (0..workers).map(|_| {
        let doorbells = Area::map(next()?.as_fd()).and_then(|area| area.doorbells(DOORBELLS_AT));
        Ok(Arc::new(WorkerBells { doorbells: doorbells.map_err(refused)?, wake: next()? }))
    });
    let workers = workers.collect::<Result<_, Error>>()?;
    Ok(Opened { socket, welcome, arena, workers })
}

/// Returns the file name of this executable, which the appliance shows to operators.
fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.chars().take(MAX_NAME).collect()
}
