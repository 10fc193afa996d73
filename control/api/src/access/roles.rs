//! Determines the role of a peer from its credentials and the configuration.

use config::{AccessIds, AccessSection, MemberIds, OverflowIds};

use super::Role;
use super::peer::Credentials;

/// The configured roles of users and groups.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    /// Effective user id of this process, whose user is an admin.
    pub(super) own_uid: u32,
    pub(super) overflow: OverflowIds,
    pub(super) ids: AccessIds,
    /// True if the configuration assigns roles to users other than root and the process's own user.
    pub(super) configured: bool,
}

/// Mode and group of the API's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketMode {
    /// Mode 0600.
    Owner,
    /// Mode 0660 with this group id; `None` for the group of the process.
    Group(Option<u32>),
}

impl Roles {
    pub(super) fn owner_only() -> Roles {
        Roles {
            own_uid: rustix::process::geteuid().as_raw(),
            overflow: OverflowIds::read(),
            ids: AccessIds::default(),
            configured: false,
        }
    }

    /// Resolves the configured users and groups. The error is a key of `[management.access]` and a sentence; only the
    /// first error is returned.
    pub(super) fn resolve(section: &AccessSection) -> Result<Roles, (&'static str, String)> {
        let owner = Roles::owner_only();
        let ids =
            section.resolve_ids(owner.overflow).map_err(|mut errors| errors.swap_remove(0))?;
        Ok(Roles { ids, configured: section.is_configured(), ..owner })
    }

    pub(super) fn socket_mode(&self) -> SocketMode {
        match self.configured {
            true => SocketMode::Group(self.ids.socket_group),
            false => SocketMode::Owner,
        }
    }

    /// Returns the highest role of a peer. The overflow user id (65534 by default) never has a role, because it stands
    /// for every user without an id in this user namespace. `None` without a role.
    pub(super) fn role_of(&self, peer: &Credentials) -> Option<Role> {
        if peer.uid == self.overflow.uid {
            return None;
        }
        if peer.uid == 0 || peer.uid == self.own_uid {
            return Some(Role::Admin);
        }
        let AccessIds { view, operate, admin, .. } = &self.ids;
        let lists = [(admin, Role::Admin), (operate, Role::Operate), (view, Role::View)];
        lists.into_iter().find(|(ids, _)| self.is_member(ids, peer)).map(|(_, role)| role)
    }

    fn is_member(&self, ids: &MemberIds, peer: &Credentials) -> bool {
        let mut groups = peer.groups.iter().chain([&peer.gid]);
        ids.users.contains(&peer.uid)
            || groups.any(|gid| *gid != self.overflow.gid && ids.groups.contains(gid))
    }
}
