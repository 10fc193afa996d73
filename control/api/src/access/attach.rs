//! Access of local programs to their socket: mode and group of the socket, and the users whose programs may attach.
//! Users and groups are resolved as for the API's socket.

use std::io;
use std::os::fd::BorrowedFd;

use config::{AccessIds, ProgramsSection};

use super::peer::Credentials;
use super::roles::{Roles, SocketMode};

/// Users and groups whose programs may attach (`programs.allow`), resolved to IDs.
#[derive(Clone, Debug)]
pub struct AttachRights {
    roles: Roles,
}

/// The process at the other end of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachedProcess {
    /// Effective user id.
    pub uid: u32,
    /// Process id; 0 if it is in another PID namespace.
    pub pid: i32,
    /// True if this process may attach.
    pub admitted: bool,
}

impl AttachRights {
    /// Resolves the users and groups of `[programs]` to IDs.
    ///
    /// # Errors
    /// A user or group does not exist, cannot be looked up or is not allowed. The error is one sentence with the key.
    pub fn resolve(section: &ProgramsSection) -> Result<AttachRights, String> {
        let owner = Roles::owner_only();
        let (view, socket_group) = section
            .resolve_ids(owner.overflow)
            .map_err(|(key, sentence)| format!("programs.{key}: {sentence}"))?;
        let ids = AccessIds { view, socket_group, ..AccessIds::default() };
        Ok(AttachRights { roles: Roles { ids, configured: !section.allow.is_empty(), ..owner } })
    }

    /// Returns the mode and the group of the socket.
    pub(crate) fn socket_mode(&self) -> SocketMode {
        self.roles.socket_mode()
    }

    /// Returns the process at the other end of a connection, as the kernel recorded it at connect(2).
    ///
    /// # Errors
    /// The kernel does not report the credentials of the peer.
    pub fn peer(&self, socket: BorrowedFd<'_>) -> io::Result<AttachedProcess> {
        let unix_users::PeerProcess { pid, uid, gid } = unix_users::peer_process(socket)?;
        let credentials = Credentials { uid, gid, pid, groups: unix_users::peer_groups(socket)? };
        let admitted = self.roles.role_of(&credentials).is_some();
        Ok(AttachedProcess { uid, pid, admitted })
    }
}
