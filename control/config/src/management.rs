//! `[management.access]` and `[management.audit]`: roles of the management API, and the audit file.
//!
//! Names of users and groups are kept as written in the file; [`AccessSection::resolve_ids`] resolves them on this
//! machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::keys::section;
use super::reader::Section;
use super::rule::{Parsed, Rule, Shape};
use super::values::{integer_rule, parse_path, parse_string, quoted, size_rule};

/// Maximum number of members of one list.
const MAX_MEMBERS: usize = 256;

section! {
    /// `[management.access]`: roles of the API's callers.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct AccessSection in "management.access" {
        /// Users and groups that may read state, counters and events: `user:NAME` or `group:NAME`, where NAME is a name
        /// or a number. If one of the three lists has a member, the mode of the API's socket is 0660. Otherwise it is
        /// 0600, and only root and the user that runs ddpd have access.
        view: Vec<Member> = members_rule(), or Vec::new();
        /// Users and groups that may also change regions, listeners, streams and jobs, capture frames, and read
        /// regions. They may not name files of the appliance's host.
        operate: Vec<Member> = members_rule(), or Vec::new();
        /// Users and groups with all rights. Root and the user that runs ddpd always have all rights.
        admin: Vec<Member> = members_rule(), or Vec::new();
        /// Group of the API's socket, a name or a number. Its members can connect. Without the key, the group of the
        /// ddpd process.
        socket_group: Option<String> = account_rule("a group").optional(), or None;
    }
}

section! {
    /// `[management.audit]`: the audit of API calls.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AuditSection in "management.audit" {
        /// Absolute path of the audit file, with one JSON object per line for each change by the API. Calls without
        /// effect, such as refused calls, are recorded in FILE.refused. The directory must exist. Without the key there
        /// is no audit.
        file: Option<PathBuf> = absolute_path_rule().optional(), or None;
        /// Maximum size of each of the two files, bytes. A full file is renamed to FILE.1, and a new file is started.
        max_size: u64 = size_rule(64 << 10, 1 << 40), or 16 << 20;
        /// Number of renamed audit files to keep; FILE.1 is the newest. Of FILE.refused, one renamed file is kept.
        keep: u32 = integer_rule(1, 100), or 4;
    }
}

pub(super) fn read_access(management: &mut Section<'_, '_>) -> AccessSection {
    let mut section = management.table("access");
    let access = AccessSection::read(&mut section);
    if access.socket_group.is_some() && !access.is_configured() {
        let message =
            "has no effect while view, operate and admin are empty: remove it, or list members";
        section.report("socket_group", message);
    }
    section.finish();
    access
}

pub(super) fn read_audit(management: &mut Section<'_, '_>) -> AuditSection {
    let mut section = management.table("audit");
    let audit = AuditSection::read(&mut section);
    section.finish();
    audit
}

/// A user or group with a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// `user:NAME`.
    User(String),
    /// `group:NAME`: the primary or a supplementary group of the client process.
    Group(String),
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Member::User(name) => write!(f, "user:{name}"),
            Member::Group(name) => write!(f, "group:{name}"),
        }
    }
}

impl Member {
    fn parse(text: &str) -> Option<Member> {
        let (kind, name) = text.split_once(':')?;
        match kind {
            "user" if is_account(name) => Some(Member::User(name.to_owned())),
            "group" if is_account(name) => Some(Member::Group(name.to_owned())),
            _ => None,
        }
    }
}

/// Returns true if the text can be the name or number of a user or group.
fn is_account(name: &str) -> bool {
    (1..=256).contains(&name.len()) && !name.contains(|c: char| c.is_control() || c == ':')
}

pub(super) fn members_rule() -> Rule<Vec<Member>> {
    const EXAMPLE: &str = "\"user:NAME\" or \"group:NAME\"";
    let shape = Shape::List(Box::new(Shape::Text(EXAMPLE)));
    let show = |members: &Vec<Member>| {
        let shown: Vec<String> = members.iter().map(|m| quoted(&m.to_string())).collect();
        format!("[{}]", shown.join(", "))
    };
    Rule::new(shape, show, |value| {
        let Some(items) = value.as_array() else {
            return Err(format!("is no list: write {EXAMPLE} in [ ]"));
        };
        if items.len() > MAX_MEMBERS {
            return Err(format!(
                "has {} members, but must have at most {MAX_MEMBERS}: use a group",
                items.len()
            ));
        }
        let member = |text: String| -> Parsed<Member> {
            let wrong =
                || format!("has \"{}\", but a member must be {EXAMPLE}", text.escape_debug());
            Member::parse(&text).ok_or_else(wrong)
        };
        items.iter().map(|item| parse_string(item.get_ref()).and_then(member)).collect()
    })
}

fn absolute_path_rule() -> Rule<PathBuf> {
    let show = |path: &PathBuf| quoted(&path.to_string_lossy());
    Rule::new(Shape::Text("an absolute path"), show, |value| match parse_path(value)? {
        path if path.is_absolute() => Ok(path),
        path => Err(format!("is \"{}\", but must be an absolute path", path.display())),
    })
}

pub(super) fn account_rule(what: &'static str) -> Rule<String> {
    Rule::new(
        Shape::Text("a name or a number"),
        |name: &String| quoted(name),
        move |value| {
            let name = parse_string(value)?;
            match is_account(&name) {
                true => Ok(name),
                false => {
                    Err(format!("is \"{}\", which {what} cannot be called", name.escape_debug()))
                }
            }
        },
    )
}

/// User and group IDs of the members of one list, such as `view`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberIds {
    /// User IDs of the `user:` members.
    pub users: BTreeSet<u32>,
    /// Group IDs of the `group:` members.
    pub groups: BTreeSet<u32>,
}

/// User and group IDs of `[management.access]`, resolved on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessIds {
    /// Members of `view`.
    pub view: MemberIds,
    /// Members of `operate`.
    pub operate: MemberIds,
    /// Members of `admin`.
    pub admin: MemberIds,
    /// Group ID of `socket_group`.
    pub socket_group: Option<u32>,
}

/// IDs that represent users and groups without an ID in this user namespace: `/proc/sys/kernel/overflowuid` and
/// `overflowgid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowIds {
    /// Overflow user ID.
    pub uid: u32,
    /// Overflow group ID.
    pub gid: u32,
}

impl OverflowIds {
    /// The kernel's default of both IDs, used if the file in `/proc` cannot be read.
    const DEFAULT: u32 = 65_534;

    /// Reads the overflow IDs of this machine.
    pub fn read() -> OverflowIds {
        OverflowIds::read_from(Path::new("/proc/sys/kernel"))
    }

    pub(crate) fn read_from(directory: &Path) -> OverflowIds {
        let read = |name: &str| {
            let text = std::fs::read_to_string(directory.join(name)).ok();
            text.and_then(|text| text.trim().parse().ok()).unwrap_or(OverflowIds::DEFAULT)
        };
        OverflowIds { uid: read("overflowuid"), gid: read("overflowgid") }
    }
}

impl AccessSection {
    /// Returns true if `view`, `operate` or `admin` has a member.
    pub fn is_configured(&self) -> bool {
        [&self.view, &self.operate, &self.admin].iter().any(|list| !list.is_empty())
    }

    /// Resolves the names to IDs.
    ///
    /// # Errors
    /// One entry per wrong user or group: the key of `[management.access]`, and a sentence about the error.
    pub fn resolve_ids(
        &self,
        overflow: OverflowIds,
    ) -> Result<AccessIds, Vec<(&'static str, String)>> {
        let mut errors = Vec::new();
        let mut ids = AccessIds::default();
        let lists = [
            ("view", &self.view, &mut ids.view),
            ("operate", &self.operate, &mut ids.operate),
            ("admin", &self.admin, &mut ids.admin),
        ];
        for (key, members, ids) in lists {
            match MemberIds::resolve(members, overflow) {
                Ok(found) => *ids = found,
                Err(sentences) => errors.extend(sentences.into_iter().map(|text| (key, text))),
            }
        }
        match self.socket_group.as_ref().map(|name| group_id(name, overflow.gid)).transpose() {
            Ok(id) => ids.socket_group = id,
            Err(sentence) => errors.push(("socket_group", sentence)),
        }
        if errors.is_empty() { Ok(ids) } else { Err(errors) }
    }
}

impl MemberIds {
    /// Resolves the names of a list.
    ///
    /// # Errors
    /// Some users or groups do not exist, cannot be looked up or have an ID that is not allowed. The error has one
    /// sentence for each of them.
    pub(crate) fn resolve(
        members: &[Member],
        overflow: OverflowIds,
    ) -> Result<MemberIds, Vec<String>> {
        let mut ids = MemberIds::default();
        let mut errors = Vec::new();
        for member in members {
            let found = match member {
                Member::User(name) => user_id(name, overflow.uid).map(|id| ids.users.insert(id)),
                Member::Group(name) => group_id(name, overflow.gid).map(|id| ids.groups.insert(id)),
            };
            errors.extend(found.err());
        }
        if errors.is_empty() { Ok(ids) } else { Err(errors) }
    }
}

fn user_id(name: &str, overflow: u32) -> Result<u32, String> {
    account_id("user", name, overflow, unix_users::user_id)
}

pub(super) fn group_id(name: &str, overflow: u32) -> Result<u32, String> {
    account_id("group", name, overflow, unix_users::group_id)
}

/// Returns the ID of a user or group: a number as written, or the ID that `look_up` finds for a name.
fn account_id(
    what: &str,
    name: &str,
    overflow: u32,
    look_up: fn(&str) -> std::io::Result<Option<u32>>,
) -> Result<u32, String> {
    let found = if name.bytes().all(|byte| byte.is_ascii_digit()) {
        name.parse().map_err(|_| format!("{what} {name} is no number of 32 bits"))
    } else {
        match look_up(name) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => Err(format!(
                "there is no {what} \"{}\" on this machine: see getent, or write its number",
                name.escape_debug()
            )),
            Err(error) => {
                Err(format!("the {what} \"{}\" cannot be looked up: {error}", name.escape_debug()))
            }
        }
    }?;
    // `u32::MAX` is `(uid_t) -1`, which means "no change" to chown(2).
    if found == overflow || found == u32::MAX {
        return Err(format!(
            "{what} {} has the number {found}, which stands for accounts that the kernel cannot name: choose another",
            name.escape_debug()
        ));
    }
    Ok(found)
}
