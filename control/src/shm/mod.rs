//! Shared regions for local programs: attachment, and reports of deliveries.
//!
//! A program connects to the appliance's attach socket, and names a shared-memory object. The program receives three
//! descriptors: the region (a sealed memfd), its completion ring ([`dataplane::memory::ring`]) and a separate
//! socket for wake-ups. `docs/shared-memory.md` describes messages and ring byte by byte. The program is attached until
//! the connection closes. End-of-file means that the region was removed or the appliance has ended.
//!
//! All calls run on the control thread, which is the only producer of completion rings. They never block. Connections
//! are bounded. If all are in use, a new connection evicts the oldest connection that is not attached.

mod message;
#[cfg(test)]
mod tests;
mod wakeup;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dataplane::memory::Memory;
use dataplane::memory::ring::{Completion, Producer};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use api::accept::Backoff;

pub use self::message::{AttachReply, MAX_REQUEST, REPLY_LEN, Status};
use self::wakeup::WakeUp;

/// Slots of a completion ring, 64 bytes each.
pub const RING_CAPACITY: u64 = 1024;
/// Maximum number of open connections, attached or not.
pub const MAX_CONNECTIONS: usize = 64;
/// Descriptors of a connection: its socket, and the socket for its program's wake-ups.
pub const DESCRIPTORS_PER_CONNECTION: usize = 2;
/// Time-out of a program's request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A shared-memory object that programs may attach to.
#[derive(Debug)]
pub struct Object {
    /// The region's bytes; its backing is shared.
    pub memory: Memory,
    /// The object's completion ring, written by the control thread only.
    pub ring: Producer,
    /// Description of the region, sent to the program.
    pub reply: AttachReply,
}

/// The attach socket, its connections and the objects.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    objects: HashMap<String, Object>,
    /// Names of the objects with new records whose programs were not yet woken.
    unsignalled: HashSet<String>,
    /// Connections by number, oldest first.
    connections: BTreeMap<u64, Connection>,
    /// Number of the next connection.
    next: u64,
    counters: ShmCounters,
    backoff: Backoff,
}

/// Counters of the attach server.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ShmCounters {
    /// Programs that attached.
    pub attached: u64,
    /// Refused or failed requests, and connections closed because the maximum number of connections was open.
    pub refused: u64,
    /// Connections closed because their request was not complete within 10 s.
    pub expired: u64,
    /// Failures of accept(2).
    pub accept_failures: u64,
    /// Completions published.
    pub completions: u64,
    /// Completions that programs reported as lost because they read too slowly.
    pub lost: u64,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// The request is incomplete. Contains its received part, and its deadline.
    Requesting { request: Vec<u8>, deadline: Instant },
    /// The program is attached. Contains the name of the object, the program's wake-ups, and the received part of a
    /// report of lost completions (8 bytes).
    Attached { object: String, wake_up: WakeUp, report: Vec<u8> },
}

/// Result of serving a connection.
enum Next {
    Keep,
    Close,
}

impl Server {
    /// Listens on `path` with mode 0600. Replaces a stale socket, on which no process listens.
    pub fn bind(path: &Path) -> io::Result<Server> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let address = SocketAddrUnix::new(path)?;
        let listener = socket()?;
        // Set before bind, so that the socket file never has wider permissions.
        rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
        if let Err(error) = rustix::net::bind(&listener, &address) {
            let stale = error == Errno::ADDRINUSE
                && rustix::net::connect(&socket()?, &address) == Err(Errno::CONNREFUSED);
            if !stale {
                return Err(error.into());
            }
            std::fs::remove_file(path)?;
            rustix::net::bind(&listener, &address)?;
        }
        rustix::net::listen(&listener, MAX_CONNECTIONS as i32)?;
        Ok(Server {
            path: path.to_owned(),
            listener,
            objects: HashMap::new(),
            unsignalled: HashSet::new(),
            connections: BTreeMap::new(),
            next: 0,
            counters: ShmCounters::default(),
            backoff: Backoff::new(format!("attach socket {}", path.display())),
        })
    }

    /// Lets programs attach to `name`. An existing object of that name is replaced.
    pub fn export(&mut self, name: &str, object: Object) {
        self.withdraw(name);
        self.objects.insert(name.to_owned(), object);
    }

    /// Ends all attachments of `name`. Programs keep their mappings until they unmap them.
    pub fn withdraw(&mut self, name: &str) {
        self.signal();
        if self.objects.remove(name).is_some() {
            self.connections.retain(|_, connection| {
                !matches!(&connection.phase, Phase::Attached { object, .. } if object == name)
            });
        }
    }

    /// Publishes a record. [`signal`](Self::signal) wakes the programs. Unknown objects are ignored.
    pub fn publish(&mut self, name: &str, record: &Completion) {
        if let Some(object) = self.objects.get_mut(name) {
            object.ring.publish(record);
            if !self.unsignalled.contains(name) {
                self.unsignalled.insert(name.to_owned());
            }
            self.counters.completions += 1;
        }
    }

    /// Wakes the programs whose objects have new records. Called once per iteration of the control thread's loop.
    pub fn signal(&mut self) {
        if self.unsignalled.is_empty() {
            return;
        }
        for connection in self.connections.values() {
            if let Phase::Attached { object, wake_up, .. } = &connection.phase
                && self.unsignalled.contains(object)
            {
                wake_up.send();
            }
        }
        self.unsignalled.clear();
    }

    /// Returns the descriptors to poll for reading before [`poll`](Self::poll). During the back-off after a failed
    /// accept(2) the listener is omitted, because it stays readable.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let connections = self.connections.values().map(|connection| connection.socket.as_fd());
        let listener = self.backoff.retry_at().is_none().then(|| self.listener.as_fd());
        listener.into_iter().chain(connections)
    }

    /// Returns the time at which [`poll`](Self::poll) is due without a readable descriptor: at a request's deadline, or
    /// after the back-off. `None` if neither is pending.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let requests = self.connections.values().filter_map(Connection::request_deadline);
        requests.chain(self.backoff.retry_at()).min()
    }

    /// Handles new connections, requests, reports, hang-ups and time-outs. Never blocks.
    pub fn poll(&mut self, now: Instant) {
        self.accept(now);
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            if let Some(mut connection) = self.connections.remove(&number)
                && matches!(self.serve_connection(&mut connection), Next::Keep)
            {
                if connection.request_deadline().is_some_and(|until| until <= now) {
                    self.counters.expired += 1;
                    continue;
                }
                self.connections.insert(number, connection);
            }
        }
    }

    /// Returns the number of programs attached to `name`.
    #[cfg(test)]
    pub(crate) fn attached_count(&self, name: &str) -> usize {
        let to =
            |c: &&Connection| matches!(&c.phase, Phase::Attached { object, .. } if object == name);
        self.connections.values().filter(to).count()
    }

    /// Returns the completion ring of an object.
    #[cfg(test)]
    pub(crate) fn ring_of(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.objects.get(name).map(|object| object.ring.fd())
    }

    /// Returns the counters, with the failures of accept(2) so far.
    pub fn counters(&self) -> ShmCounters {
        ShmCounters { accept_failures: self.backoff.failures(), ..self.counters }
    }

    fn accept(&mut self, now: Instant) {
        if self.backoff.retry_at().is_some_and(|until| now < until) {
            return;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..MAX_CONNECTIONS {
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => {
                    self.backoff.record_success();
                    self.evict_oldest();
                    if self.connections.len() < MAX_CONNECTIONS {
                        let phase = Phase::Requesting {
                            request: Vec::new(),
                            deadline: now + REQUEST_TIMEOUT,
                        };
                        self.connections.insert(self.next, Connection { socket, phase });
                        self.next += 1;
                    } else {
                        self.counters.refused += 1;
                    }
                }
                Err(Errno::AGAIN) => return self.backoff.record_success(),
                Err(error) => {
                    self.backoff.record_failure(&error.into(), now);
                    if self.backoff.retry_at().is_some() {
                        return;
                    }
                }
            }
        }
    }

    /// Closes the oldest connection that is not attached, if all connections are in use.
    fn evict_oldest(&mut self) {
        if self.connections.len() < MAX_CONNECTIONS {
            return;
        }
        let asking = |c: &Connection| matches!(c.phase, Phase::Requesting { .. });
        let oldest = self.connections.iter().find(|(_, c)| asking(c)).map(|(&number, _)| number);
        if let Some(number) = oldest {
            self.connections.remove(&number);
            self.counters.refused += 1;
        }
    }

    fn serve_connection(&mut self, connection: &mut Connection) -> Next {
        let mut bytes = [0; MAX_REQUEST];
        let n = match rustix::net::recv(&connection.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Next::Close,
            Ok((n, _)) => n,
            Err(Errno::AGAIN | Errno::INTR) => return Next::Keep,
            Err(_) => return Next::Close,
        };
        match &mut connection.phase {
            Phase::Requesting { request, .. } => {
                request.extend_from_slice(&bytes[..n]);
                let complete = request.iter().position(|&o| o == b'\n');
                match complete {
                    Some(end) => {
                        let name = String::from_utf8_lossy(&request[..end]).into_owned();
                        self.answer(connection, name)
                    }
                    None if request.len() >= MAX_REQUEST => {
                        self.refuse(connection, Status::BadRequest, "the request has no line end");
                        Next::Close
                    }
                    None => Next::Keep,
                }
            }
            Phase::Attached { report, .. } => {
                report.extend_from_slice(&bytes[..n]);
                let whole = report.len() / 8 * 8;
                for word in report.drain(..whole).collect::<Vec<u8>>().chunks_exact(8) {
                    let lost = u64::from_le_bytes(word.try_into().unwrap_or_default());
                    self.counters.lost = self.counters.lost.saturating_add(lost);
                }
                Next::Keep
            }
        }
    }

    fn answer(&mut self, connection: &mut Connection, name: String) -> Next {
        let Some(object) = self.objects.get(&name) else {
            let sentence = format!("there is no shared-memory object {name:?}");
            self.refuse(connection, Status::NoSuchObject, &sentence);
            return Next::Close;
        };
        match send_descriptors(&connection.socket, object) {
            Ok(wake_up) => {
                self.counters.attached += 1;
                connection.phase = Phase::Attached { object: name, wake_up, report: Vec::new() };
                Next::Keep
            }
            Err(error) => {
                tracing::warn!("cannot pass {name} to a program: {error}");
                self.counters.refused += 1;
                Next::Close
            }
        }
    }

    fn refuse(&mut self, connection: &Connection, status: Status, sentence: &str) {
        self.counters.refused += 1;
        let mut reply = message::refusal(status).to_vec();
        reply.extend_from_slice(sentence.as_bytes());
        // The send fails if the program has closed its end and thus does not wait for a reply.
        if let Err(error) = rustix::net::send(&connection.socket, &reply, SendFlags::NOSIGNAL) {
            tracing::debug!("attach refusal not delivered: {error}");
        }
    }
}

impl Connection {
    /// Returns the deadline of the request; `None` for an attached program.
    fn request_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Requesting { deadline: until, .. } => Some(until),
            Phase::Attached { .. } => None,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Sends the reply with the three descriptors. Returns the appliance's end of the wake-up sockets.
fn send_descriptors(socket: &OwnedFd, object: &Object) -> io::Result<WakeUp> {
    let region = object.memory.shared_fd().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the region is not a shared-memory object")
    })?;
    let (wake_up, theirs) = WakeUp::pair()?;
    let fds = [region, object.ring.fd(), theirs.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for three descriptors"));
    }
    let reply = object.reply.encode(object.ring.capacity());
    let sent = rustix::net::sendmsg(
        socket,
        &[io::IoSlice::new(&reply)],
        &mut control,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    if sent != reply.len() {
        return Err(io::Error::other("the reply did not fit into the socket"));
    }
    Ok(wake_up)
}
