//! The peer of an API connection, with the credentials that the kernel recorded when the peer connected.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
#[cfg(any(test, feature = "fake"))]
use std::sync::Mutex;

use tokio::net::{UnixListener, UnixStream};

use super::{Access, Caller, Role};
use crate::connection_slots::Peer;
use crate::connections;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Effective user id.
    pub(super) uid: u32,
    /// Effective group id.
    pub(super) gid: u32,
    /// Process id; 0 if the process is in another PID namespace.
    pub(super) pid: i32,
    /// Supplementary group ids.
    pub(super) groups: Vec<u32>,
}

impl Credentials {
    /// Reads the peer's credentials with `SO_PEERCRED` and `SO_PEERGROUPS`.
    pub(super) fn from_stream(stream: &UnixStream) -> io::Result<Credentials> {
        let peer = stream.peer_cred()?;
        let groups = unix_users::peer_groups(stream.as_fd())?;
        Ok(Credentials { uid: peer.uid(), gid: peer.gid(), pid: peer.pid().unwrap_or(0), groups })
    }
}

/// The API's listening socket. Determines the [`Caller`] of each connection, with the caller's role. Supplementary
/// groups are read only to determine the role and are not kept.
pub(crate) struct ApiAcceptor {
    listener: UnixListener,
    access: Arc<Access>,
    /// Credentials that tests use instead of the kernel's.
    #[cfg(any(test, feature = "fake"))]
    credential_override: CredentialOverride,
}

/// Credentials that tests set for new connections; `None` for the kernel's.
#[cfg(any(test, feature = "fake"))]
pub(super) type CredentialOverride = Arc<Mutex<Option<Credentials>>>;

impl ApiAcceptor {
    pub(crate) fn new(listener: UnixListener, access: Arc<Access>) -> ApiAcceptor {
        ApiAcceptor {
            listener,
            #[cfg(any(test, feature = "fake"))]
            credential_override: Arc::clone(&access.pretend),
            access,
        }
    }

    fn credentials(&self, stream: &UnixStream) -> io::Result<Credentials> {
        #[cfg(any(test, feature = "fake"))]
        if let Some(credentials) = self.credential_override.lock().unwrap().clone() {
            return Ok(credentials);
        }
        Credentials::from_stream(stream)
    }
}

impl connections::Acceptor for ApiAcceptor {
    type Io = UnixStream;
    type Caller = Caller;

    /// Accepts a connection. A connection whose credentials cannot be read is closed.
    async fn accept(&self) -> io::Result<(UnixStream, Caller)> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match self.credentials(&stream) {
                Ok(credentials) => return Ok((stream, self.access.caller(credentials))),
                Err(error) => {
                    tracing::warn!(
                        "API: a connection is closed because its peer is unknown: {error}"
                    );
                }
            }
        }
    }

    /// Returns the peer for the connection limits. Its key is the user id. Admins may use the reserved connections.
    fn peer(caller: &Caller) -> Peer {
        Peer { key: caller.uid.into(), privileged: caller.role == Some(Role::Admin) }
    }
}
