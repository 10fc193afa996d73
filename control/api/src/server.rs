//! The HTTP server of the management API: one thread that serves a Unix socket. The socket has mode 0600, or 0660 if
//! users other than the owner have roles.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::sync::watch;

use super::access::{ApiAcceptor, AttachRights, SocketMode};
use super::app::App;
use super::connection_slots::ConnectionBounds;
use super::connections::{Limits, serve};
use super::routes::router;
use super::{Access, EventLog, Requester};

/// Maximum number of connections that wait for accept(2).
const BACKLOG: i32 = MAX_CONNECTIONS as i32;

/// Maximum number of connections. A quarter is reserved for admins, and any other user can have at most a quarter.
pub const MAX_CONNECTIONS: usize = 256;

/// A client that stops reading, such as a pager behind `ddpctl events --follow`, is disconnected after ten minutes.
const LIMITS: Limits = Limits {
    connections: ConnectionBounds {
        total: MAX_CONNECTIONS,
        reserved: MAX_CONNECTIONS / 4,
        per_peer: MAX_CONNECTIONS / 4,
    },
    header_timeout: Duration::from_secs(30),
    write_timeout: Duration::from_secs(600),
};

/// The running server. Dropping it stops the thread and removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    closing: watch::Sender<bool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// The reason why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another appliance serves the socket.
    #[error("{}: another appliance answers there already: stop it, or give this one another \
             management.socket", .0.display())]
    InUse(PathBuf),
    /// The path exists and is not a socket.
    #[error("{}: exists and is no socket: remove it, or choose another management.socket", .0.display())]
    NotASocket(PathBuf),
    /// The socket's group cannot be set.
    #[error("{}: the management socket cannot be opened to its group: {source}; ddpd must run as root or be a member of \
             management.access.socket_group", path.display())]
    Group {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The socket cannot be created.
    #[error("{}: the management socket cannot be created: {source}; {}", path.display(), socket_remedy(path, source))]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Returns the remedy for a socket that cannot be created.
fn socket_remedy(path: &Path, error: &io::Error) -> String {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent.filter(|parent| error.kind() == io::ErrorKind::NotFound && !parent.exists()) {
        Some(parent) => format!("its directory does not exist: mkdir -p {}", parent.display()),
        None => "check its directory and management.socket".to_owned(),
    }
}

impl Server {
    /// Creates the socket and serves it to the users that `access` admits. `body_limit`: longest request body, bytes.
    pub fn start(
        path: &Path,
        requester: Requester,
        events: EventLog,
        body_limit: u64,
        access: Access,
    ) -> Result<Self, ServerError> {
        BoundServer::new(path, &access)?.serve(requester, events, body_limit, access)
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops the thread and removes the socket. Open requests have one second to finish.
    pub fn stop(mut self) -> io::Result<()> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.closing.send_replace(true);
        let served = thread.join().unwrap_or_else(|_| Err(io::Error::other("the API panicked")));
        let removed = std::fs::remove_file(&self.path);
        served.and(removed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!(socket = %self.path.display(), %error, "the API did not end cleanly");
        }
    }
}

/// The listening socket before the server starts; connections wait in its backlog. Dropping it removes the socket.
///
/// The socket is created before the sandbox restricts system calls: afterwards connect(2), chmod(2) and chown(2) are
/// refused.
#[derive(Debug)]
pub struct BoundServer {
    path: PathBuf,
    listener: Option<UnixListener>,
}

impl BoundServer {
    /// Creates the socket, accessible to the users that `access` admits.
    ///
    /// # Errors
    /// Another appliance serves the socket, the path is not a socket, or the socket cannot be created.
    pub fn new(path: &Path, access: &Access) -> Result<BoundServer, ServerError> {
        let listener = Some(bind(path, access.socket_mode())?);
        Ok(BoundServer { path: path.to_owned(), listener })
    }

    /// Serves the API on the socket. `body_limit`: longest request body, bytes.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn serve(
        mut self,
        requester: Requester,
        events: EventLog,
        body_limit: u64,
        access: Access,
    ) -> Result<Server, ServerError> {
        let failed = |path: &Path, source| ServerError::Io { path: path.to_owned(), source };
        let access = Arc::new(access);
        let tally = access.tally();
        let name = format!("API socket {}", self.path.display());
        let (closing, watching) = watch::channel(false);
        let limit = usize::try_from(body_limit).unwrap_or(usize::MAX);
        let app = App::new(requester, events, limit, watching.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(&self.path, error))?;
        let listener = self.listener.take();
        let thread = std::thread::Builder::new()
            .name("api".into())
            .spawn(move || {
                runtime.block_on(async {
                    let listener = listener.expect("taken once, here");
                    let listener = tokio::net::UnixListener::from_std(listener)?;
                    let door = ApiAcceptor::new(listener, Arc::clone(&access));
                    serve(name, door, router(app, access), LIMITS, &tally.api, watching).await;
                    Ok(())
                })
            })
            .map_err(|error| failed(&self.path, error))?;
        Ok(Server { path: self.path.clone(), closing, thread: Some(thread) })
    }
}

impl Drop for BoundServer {
    fn drop(&mut self) {
        if self.listener.is_some()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(socket = %self.path.display(), %error, "the API's socket is not removed");
        }
    }
}

/// Creates the listening socket. The socket has mode 0600 before it has a name, and its final mode before it listens.
pub(super) fn bind(path: &Path, mode: SocketMode) -> Result<UnixListener, ServerError> {
    bind_as(SocketType::STREAM, path, mode).map(UnixListener::from)
}

/// Creates the listening socket of local programs, of type `SOCK_SEQPACKET`. Replaces a socket on which no process
/// listens.
///
/// # Errors
/// The path is in use, is not a socket, or cannot be created.
pub fn bind_programs(path: &Path, rights: &AttachRights) -> Result<OwnedFd, ServerError> {
    bind_as(SocketType::SEQPACKET, path, rights.socket_mode())
}

/// Creates a listening socket of type `kind`, with the mode that [`bind`] describes.
fn bind_as(kind: SocketType, path: &Path, mode: SocketMode) -> Result<OwnedFd, ServerError> {
    let failed = |source: io::Error| ServerError::Io { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ServerError::NotASocket(path.to_owned()));
        }
        Ok(_) if is_served(kind, path) => {
            return Err(ServerError::InUse(path.to_owned()));
        }
        // Stale socket of an appliance that was killed: no process listens on it.
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    let open = || -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        // The mode is set before bind, because afterwards a link could replace the socket at its path.
        rustix::net::bind(&socket, &address)?;
        Ok(socket)
    };
    let socket = open().map_err(|error| failed(error.into()))?;
    if let SocketMode::Group(group) = mode {
        open_to_group(path, group)
            .map_err(|source| ServerError::Group { path: path.to_owned(), source })?;
    }
    rustix::net::listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
    Ok(socket)
}

/// Returns true if a process listens on the socket.
fn is_served(kind: SocketType, path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connect = || {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    // AGAIN: the socket's queue of connections is full.
    matches!(connect(), Ok(()) | Err(Errno::AGAIN))
}

/// Gives the socket at this path mode 0660 and, if present, the group. The path is resolved once. A symbolic link as
/// its last component is refused.
fn open_to_group(path: &Path, group: Option<u32>) -> io::Result<()> {
    let name =
        rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&name)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || !ours {
        return Err(io::Error::other("another file has replaced the socket"));
    }
    if let Some(group) = group {
        rustix::fs::chownat(&name, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    // fchmod(2) rejects an O_PATH descriptor; chmod(2) through /proc accepts it.
    let link = format!("/proc/self/fd/{}", name.as_raw_fd());
    rustix::fs::chmod(link, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)?;
    Ok(())
}
