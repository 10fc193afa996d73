//! Requirements of local programs: the directory of their socket, and locked memory.

use std::os::unix::fs::MetadataExt;

use config::privilege::Capability;
use config::{Config, show_size};

use super::finding::{Check, Finding, quote};
use super::host::Host;
use super::process::locked_memory_limit;
use super::subject::Subject;

const SOCKET: Check =
    Check("programs socket", "Local programs attach through the socket of [programs].");
const MEMORY: Check = Check(
    "memory of programs",
    "Memory of programs that is not locked may be paged out, and a worker waits for the disk.",
);

/// Search permission for a directory: users other than the owner and the group.
const OTHERS_PASS: u32 = 0o001;
/// Search permission for a directory: the group.
const GROUP_PASSES: u32 = 0o010;

/// Checks the directories above the socket of each `[programs]`.
pub(super) fn socket(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    found.extend(subject.configs.iter().filter_map(|config| check_socket(host, config)));
}

fn check_socket(host: &Host, config: &Config) -> Option<Finding> {
    let section = config.programs.as_ref()?;
    let path = config.programs_socket()?;
    let socket = path.display();
    let parent = path.parent().filter(|path| !path.as_os_str().is_empty());
    let Some(parent) = parent else { return Some(SOCKET.ok(format!("{socket}"))) };
    let shown = parent.display().to_string();
    if !host.path(parent).is_dir() {
        let missing = SOCKET.error(format!("{socket}: there is no directory {shown}"));
        return Some(
            missing
                .remedy("make it, for the user of ddpd")
                .command(format!("mkdir -p {}", quote(&shown))),
        );
    }
    if section.allow.is_empty() {
        let seen = format!("{socket}, for root and the user of ddpd: programs.allow is empty");
        return Some(SOCKET.ok(seen));
    }
    // A user needs search permission for each directory above the socket, whatever the mode of the socket.
    for directory in parent.ancestors().filter(|path| path.parent().is_some()) {
        let mode = match host.path(directory).metadata() {
            Ok(metadata) => metadata.mode(),
            Err(error) => {
                return Some(SOCKET.unknown(format!("{}: {error}", directory.display())));
            }
        };
        if mode & (OTHERS_PASS | GROUP_PASSES) == 0 {
            let directory = directory.display().to_string();
            let seen = format!(
                "{socket}: only the owner may pass {directory} (mode {:04o}), but programs.allow has members",
                mode & 0o7777
            );
            return Some(
                SOCKET
                    .warning(seen)
                    .remedy("let them pass the directory, or choose another programs.socket")
                    .command(format!("chmod o+x {}", quote(&directory))),
            );
        }
    }
    Some(SOCKET.ok(format!("{socket}, for programs.allow")))
}

/// Compares the limit of locked memory with the size of all regions and the maximum memory of one program. Programs
/// register memory at run time, so a lower limit is only a note.
pub(super) fn memory(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let limits = subject.configs.iter().filter_map(|config| config.programs.as_ref());
    let Some(each) = limits.map(|programs| programs.memory).max() else { return };
    let regions = subject.configs.iter().flat_map(|config| &config.regions);
    let regions = regions.filter_map(|region| region.size).fold(0u64, u64::saturating_add);
    let needed = regions.saturating_add(each);
    let known = locked_memory_limit(host).and_then(|limit| Ok((limit, host.capabilities()?)));
    let (limit, set) = match known {
        Ok(both) => both,
        Err(why) => return found.push(MEMORY.unknown(why)),
    };
    found.push(match limit {
        _ if set.has(Capability::IpcLock) => MEMORY.ok("locked without limit, by cap_ipc_lock"),
        None => MEMORY.ok("locked without limit"),
        Some(limit) if limit >= needed => MEMORY.ok(format!(
            "{} may be locked, enough for the regions and the {} of one program",
            show_size(limit),
            show_size(each)
        )),
        Some(limit) => MEMORY
            .note(format!(
                "{} may be locked; the regions have {}, and a program may register {}",
                show_size(limit),
                show_size(regions),
                show_size(each)
            ))
            .remedy(
                "raise RLIMIT_MEMLOCK (LimitMEMLOCK=infinity of its unit), or give it cap_ipc_lock",
            )
            .command("ulimit -H -l unlimited && ulimit -S -l unlimited"),
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{RING, Tree, only_finding, subject};

    fn with_programs(keys: &str) -> Subject {
        let text = format!("[programs]\nsocket = \"/run/ddpd/p.sock\"\nmemory = \"1 MiB\"\n{keys}");
        subject("count = 1", RING, &text)
    }

    #[test]
    fn missing_directory_of_the_socket_is_an_error() {
        let found = Tree::new(&[]).run(&with_programs(""), socket);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].command.as_deref(), Some("mkdir -p /run/ddpd"));
        assert!(Tree::new(&[]).run(&subject("count = 1", RING, ""), socket).is_empty());
    }

    #[test]
    fn directory_that_allowed_users_cannot_pass_is_a_warning() {
        let tree = Tree::new(&[("run/ddpd/x", "")]);
        let set_mode = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(tree.path("run/ddpd"), permissions).unwrap();
        };
        set_mode(0o700);
        let allowed = with_programs("allow = [\"user:1000\"]");
        let found = tree.run(&allowed, socket);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert_eq!(found[0].command.as_deref(), Some("chmod o+x /run/ddpd"));
        assert_eq!(only_finding(&tree.run(&with_programs(""), socket)).0, Severity::Ok);
        set_mode(0o750);
        assert_eq!(only_finding(&tree.run(&allowed, socket)).0, Severity::Ok);
    }

    #[test]
    fn lock_limit_below_the_memory_of_a_program_is_a_note() {
        let tree = Tree::new(&[("proc/self/status", "Name:\tddpd\nCapEff:\t0\n")]);
        let severity = |limit: &str| {
            let line = format!(
                "Limit  Soft Hard\nMax locked memory         {limit}    {limit}    bytes\n"
            );
            tree.file("proc/self/limits", &line);
            only_finding(&tree.run(&with_programs(""), memory)).0
        };
        assert_eq!(severity("65536"), Severity::Note);
        assert_eq!(severity("1048576"), Severity::Ok);
        assert_eq!(severity("unlimited"), Severity::Ok);
        assert_eq!(severity("many"), Severity::Unknown);
        tree.file("proc/self/status", "CapEff:\t4000\n");
        assert_eq!(severity("65536"), Severity::Ok);
        assert!(tree.run(&subject("count = 1", RING, ""), memory).is_empty());
    }
}
