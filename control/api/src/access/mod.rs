//! Access control of the API: a role for each connection, a required role for each call, and an audit of changes.
//!
//! The role of a connection follows from the credentials that the kernel recorded when the peer connected ([`peer`],
//! [`roles`]). The required role of a call is in the table of all calls ([`super::routes::route_table`]). [`gate`]
//! compares the connection's role with the required role before the handler runs. A handler checks the role again if
//! the body names a file of the host: [`Caller::require_file_access`].
//!
//! This module does not control access to the `.attach` socket, through which local programs map regions. Only the
//! socket's owner may use it.

mod attach;
mod audit;
mod audit_file;
mod gate;
mod peer;
mod quota;
mod roles;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
#[cfg(any(test, feature = "fake"))]
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use config::{AccessSection, AuditSection};

pub(super) use self::gate::{Gate, RequiredRole, guard};
pub(super) use self::peer::ApiAcceptor;
pub(super) use self::roles::SocketMode;

pub use self::attach::{AttachRights, AttachedProcess};
use self::audit::Audit;
pub use self::audit::{AuditLog, AuditedProgram};
use self::peer::Credentials;
use self::roles::Roles;
use super::ApiError;
use super::Counters;
use super::connections::ConnectionTally;

/// Rights of a caller. Each role includes the rights of the preceding roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read state, counters and events, including the contents of messages in events.
    View,
    /// Change regions, listeners, streams and jobs, and read the contents of regions and frames.
    Operate,
    /// Make all calls, including calls with files of the host, which the appliance opens with its own permissions.
    Admin,
}

impl Role {
    /// All roles, from the lowest to the highest.
    pub const ALL: [Role; 3] = [Role::View, Role::Operate, Role::Admin];

    /// Returns the name of the role in the configuration and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::View => "view",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

/// Returns the name of a caller's role; `none` without a role.
fn role_name(role: Option<Role>) -> &'static str {
    role.map_or("none", Role::as_str)
}

/// The access rights of callers, and the audit.
#[derive(Debug)]
pub struct Access {
    roles: Roles,
    audit: Option<Arc<Audit>>,
    tally: Arc<AccessTally>,
    #[cfg(any(test, feature = "fake"))]
    pretend: peer::CredentialOverride,
}

/// Error of [`Access::open`].
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A user or group does not exist, cannot be looked up or is not allowed.
    #[error("management.access.{key}: {sentence}")]
    Unknown {
        /// Key in `[management.access]`.
        key: &'static str,
        /// The error, one sentence.
        sentence: String,
    },
    /// The audit file cannot be written.
    #[error(
        "management.audit.file: {} cannot be opened: {source}; its directory must exist and be writable by ddpd",
        file.display()
    )]
    Audit {
        /// Path of the file.
        file: std::path::PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

impl Access {
    /// Creates the default access rights: root and the process's own user are admins, other users have no role. There
    /// is no audit.
    pub fn owner_only() -> Access {
        Access::from_parts(Roles::owner_only(), None, Arc::default())
    }

    /// Resolves the configured users and groups and opens the files of the audit.
    ///
    /// # Errors
    /// A user or group does not exist, cannot be looked up or is not allowed, or a file cannot be opened.
    pub fn open(access: &AccessSection, audit: &AuditSection) -> Result<Access, AccessError> {
        let roles = Roles::resolve(access)
            .map_err(|(key, sentence)| AccessError::Unknown { key, sentence })?;
        let tally = Arc::<AccessTally>::default();
        let open = |file: &std::path::PathBuf| {
            Audit::open(file, audit, Arc::clone(&tally))
                .map_err(|source| AccessError::Audit { file: file.clone(), source })
        };
        let audit = audit.file.as_ref().map(open).transpose()?;
        Ok(Access::from_parts(roles, audit.map(Arc::new), tally))
    }

    fn from_parts(roles: Roles, audit: Option<Arc<Audit>>, tally: Arc<AccessTally>) -> Access {
        Access {
            roles,
            audit,
            tally,
            #[cfg(any(test, feature = "fake"))]
            pretend: Arc::default(),
        }
    }

    /// Creates access rights for tests: every connection belongs to user 1 with the role `view`.
    #[cfg(any(test, feature = "fake"))]
    pub(crate) fn only_viewers() -> Access {
        use config::{AccessIds, MemberIds};
        let ids = AccessIds {
            view: MemberIds { users: [1].into(), ..MemberIds::default() },
            ..AccessIds::default()
        };
        let roles = Roles { ids, configured: true, ..Roles::owner_only() };
        let access = Access::from_parts(roles, None, Arc::default());
        let user = peer::Credentials { uid: 1, gid: 100, pid: 4321, groups: vec![100] };
        *access.pretend.lock().unwrap_or_else(PoisonError::into_inner) = Some(user);
        access
    }

    /// Returns the counters, which are shared with all servers and the audit.
    pub fn tally(&self) -> Arc<AccessTally> {
        Arc::clone(&self.tally)
    }

    /// Returns a handle to the audit, for records of local programs.
    pub fn audit_log(&self) -> AuditLog {
        AuditLog(self.audit.clone())
    }

    /// Returns the mode and the group of the API's socket.
    pub(super) fn socket_mode(&self) -> SocketMode {
        self.roles.socket_mode()
    }

    fn caller(&self, credentials: Credentials) -> Caller {
        let role = self.roles.role_of(&credentials);
        let Credentials { uid, gid, pid, .. } = credentials;
        Caller { uid, gid, pid, role }
    }
}

/// Counters of the management servers: connections, refused roles, lines of the audit file.
#[derive(Debug, Default)]
pub struct AccessTally {
    /// Connections of the API's socket.
    pub api: ConnectionTally,
    /// Connections of the servers for observers.
    pub observers: ConnectionTally,
    /// Refused calls by the caller's role, in the order none, view, operate.
    refused: [AtomicU64; 3],
    lines_lost: AtomicU64,
    lines_omitted: AtomicU64,
}

impl AccessTally {
    /// Returns the number of refused calls, by name of the caller's role: none, view, operate.
    pub fn refused(&self) -> Counters {
        let roles = [None, Some(Role::View), Some(Role::Operate)];
        let counts = self.refused.iter().map(|count| count.load(Ordering::Relaxed));
        roles.map(|role| role_name(role).into()).into_iter().zip(counts).collect()
    }

    /// Returns the number of lines that are missing in the audit's files, because a queue was full or a write failed.
    pub fn lines_lost(&self) -> u64 {
        self.lines_lost.load(Ordering::Relaxed)
    }

    /// Returns the number of calls without effect whose lines were omitted from `FILE.refused`. Report lines in the
    /// file contain this number per user.
    pub fn lines_omitted(&self) -> u64 {
        self.lines_omitted.load(Ordering::Relaxed)
    }

    fn count_omitted_line(&self) {
        self.lines_omitted.fetch_add(1, Ordering::Relaxed);
    }

    fn count_refusal(&self, role: Option<Role>) {
        let at = match role {
            None => 0,
            Some(Role::View) => 1,
            // Calls of an admin are never refused.
            Some(Role::Operate | Role::Admin) => 2,
        };
        self.refused[at].fetch_add(1, Ordering::Relaxed);
    }

    fn count_lost_line(&self) {
        self.lines_lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// The local process at the other end of a connection, with its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    uid: u32,
    gid: u32,
    /// Process id; 0 if the process is in another PID namespace.
    pid: i32,
    role: Option<Role>,
}

impl Caller {
    /// Checks that the caller has at least this role.
    ///
    /// # Errors
    /// A refusal that names the caller's role, the required role and the configuration key that grants it.
    fn require_role(&self, needed: Role, what: &str) -> Result<(), ApiError> {
        if self.role >= Some(needed) {
            return Ok(());
        }
        let (needed, uid) = (needed.as_str(), self.uid);
        let has = match self.role {
            None => "has none".to_owned(),
            Some(role) => format!("has {}", role.as_str()),
        };
        let message = format!("{what} takes the role {needed}; uid {uid} {has}");
        let hint = format!(
            "management.access.{needed} = [\"user:{uid}\"], or one of its groups, gives it, after a restart of ddpd"
        );
        Err(ApiError::forbidden(message).with_hint(Some(&hint)))
    }

    /// Checks that the caller may name files of the host, which the appliance opens with its own permissions. `key` is
    /// the member of the body that names the file.
    ///
    /// # Errors
    /// A refusal, if the caller is not an admin.
    pub(super) fn require_file_access(&self, key: &str) -> Result<(), ApiError> {
        self.require_role(Role::Admin, &format!("{key}: to name a file of the appliance's host"))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let caller = parts.extensions.get::<Caller>().copied();
        caller.ok_or_else(|| ApiError::internal("a request has no caller"))
    }
}
