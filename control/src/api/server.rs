//! The HTTP server: a thread of its own with a Unix socket, mode 0600.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::sync::watch;

use super::routes::{App, router};
use super::serving::serve;
use super::{EventLog, Requester};

/// Connections that wait for `accept`.
const BACKLOG: i32 = 64;

/// The running server. Dropped, it stops and removes its socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    closing: watch::Sender<bool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another appliance has the socket.
    #[error("{}: another appliance answers there already: stop it, or give this one another \
             management.socket", .0.display())]
    InUse(PathBuf),
    /// Something else is in its place.
    #[error("{}: exists and is no socket: remove it, or choose another management.socket", .0.display())]
    NotASocket(PathBuf),
    /// It cannot be made.
    #[error("{}: the management socket cannot be made: {source}; check its directory and \
             management.socket", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Server {
    /// Makes the socket and serves it. `body_limit` bounds request bodies, bytes.
    pub fn start(
        path: &Path,
        requester: Requester,
        events: EventLog,
        body_limit: u64,
    ) -> Result<Self, ServerError> {
        let listener = bind(path)?;
        let failed = |source| ServerError::Io { path: path.to_owned(), source };
        let (closing, watching) = watch::channel(false);
        let limit = usize::try_from(body_limit).unwrap_or(usize::MAX);
        let app = App::new(requester, events, limit, watching.clone());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("api".into())
            .spawn(move || {
                runtime.block_on(async {
                    let listener = tokio::net::UnixListener::from_std(listener)?;
                    serve(listener, router(app), watching).await
                })
            })
            .map_err(failed)?;
        Ok(Self { path: path.to_owned(), closing, thread: Some(thread) })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends requests within a second, stops the thread and removes the socket.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.closing.send_replace(true);
        let served = thread.join().unwrap_or_else(|_| Err(io::Error::other("the API panicked")));
        let removed = std::fs::remove_file(&self.path);
        served.and(removed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(socket = %self.path.display(), %error, "the API did not end cleanly");
        }
    }
}

/// A listening socket that only this user can connect to. The mode is set before the name exists.
pub(super) fn bind(path: &Path) -> Result<UnixListener, ServerError> {
    let failed = |source: io::Error| ServerError::Io { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ServerError::NotASocket(path.to_owned()));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(ServerError::InUse(path.to_owned()));
        }
        // Left by an appliance that was killed: nobody answers.
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
    let open = || -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        // Not by path afterwards, where a link could have taken its place.
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    open().map(UnixListener::from).map_err(|error| failed(error.into()))
}
