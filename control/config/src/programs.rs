//! `[programs]`: local programs that use the appliance as their RDMA device.

use std::path::{Path, PathBuf};

use super::Config;
use super::errors::SectionSpan;
use super::keys::section;
use super::management::{Member, MemberIds, OverflowIds, account_rule, members_rule};
use super::reader::Section;
use super::values::{integer_rule, size_rule, socket_path_rule};

const TIB: u64 = 1 << 40;

/// File name of the default socket, in the directory of the API's socket.
const SOCKET_NAME: &str = "programs.sock";

section! {
    /// `[programs]`: local programs that use the appliance as their RDMA device. Without the section there are none.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ProgramsSection in "programs" {
        /// Path of the socket to which programs connect. Without the key: `programs.sock` in the directory of
        /// `management.socket`. Its mode is 0600, or 0660 if `allow` has members.
        socket: Option<PathBuf> = socket_path_rule().optional(), or None;
        /// Users and groups whose programs may attach: `user:NAME` or `group:NAME`, where NAME is a name or a number.
        /// Programs of root and of the user that runs ddpd may always attach.
        allow: Vec<Member> = members_rule(), or Vec::new();
        /// Group of the socket, a name or a number. Its members can connect. Without the key, the group of the ddpd
        /// process.
        socket_group: Option<String> = account_rule("a group").optional(), or None;
        /// Maximum number of attached programs.
        programs: u32 = integer_rule(1, 1024), or 64;
        /// Maximum number of queue pairs of a program. The same maximum applies separately to its shared receive
        /// queues.
        queue_pairs: u32 = integer_rule(1, 16384), or 1024;
        /// Maximum number of completion queues of a program.
        completion_queues: u32 = integer_rule(1, 16_384), or 1024;
        /// Maximum number of memory regions and memory windows of a program. A region that joins several parts of the
        /// program's memory counts once for each part.
        memory_regions: u32 = integer_rule(1, 1_000_000), or 4096;
        /// Maximum size of all memory regions, queues and incomplete posts of a program, bytes. They also count under
        /// `limits.memory`.
        memory: u64 = size_rule(64 << 10, 64 * TIB), or 1 << 30;
        /// Size of the address space for a program's memory, bytes, rounded up to whole pages. Only pages in use take
        /// memory. A program that uses more than 64 MiB plus twice `memory` registers no further memory.
        arena: u64 = size_rule(64 << 10, 64 * TIB), or 64 << 30;
        /// Maximum number of incomplete posts of each send queue and of each receive queue.
        posts: u32 = integer_rule(1, 32_768), or 8192;
        /// Maximum number of entries of a completion queue for each worker.
        completions: u32 = integer_rule(2, 1 << 20), or 262_144;
        /// Maximum number of listeners of a program.
        listeners: u32 = integer_rule(1, 1024), or 64;
        /// Maximum number of doorbells and posted sends of a program that a worker processes per iteration of its loop.
        /// The rest waits for the next iteration. Receives of a connected queue pair are not counted.
        budget: u32 = integer_rule(1, 65_536), or 128;
    }
}

/// Reads the section; `None` if the file does not have it.
pub(super) fn read_programs(root: &mut Section<'_, '_>) -> (Option<ProgramsSection>, SectionSpan) {
    let is_present = root.contains("programs");
    let mut section = root.table("programs");
    let programs = ProgramsSection::read(&mut section);
    if programs.socket_group.is_some() && programs.allow.is_empty() {
        let message = "has no effect while `allow` is empty: remove it, or list members";
        section.report("socket_group", message);
    }
    (is_present.then_some(programs), section.finish())
}

/// Returns the changed keys that need a restart. With `reload`, returns an empty list, because a reload applies none of
/// the keys. If only one side has the section, `socket` counts as changed.
pub(super) fn differences(
    old: Option<&ProgramsSection>,
    new: Option<&ProgramsSection>,
    reload: bool,
) -> Vec<&'static str> {
    match (old, new) {
        (Some(old), Some(new)) => old.differences(new, reload),
        (None, None) => Vec::new(),
        _ if reload => Vec::new(),
        _ => vec!["socket"],
    }
}

/// Maximum number of completion channels of a program. ddpd holds one file descriptor per channel.
const MAX_CHANNELS: u32 = 128;

impl ProgramsSection {
    /// Returns the maximum number of completion channels of a program: one for each completion queue, at most 128.
    pub fn channels(&self) -> u32 {
        self.completion_queues.min(MAX_CHANNELS)
    }

    /// Resolves `allow` and `socket_group` to IDs.
    ///
    /// # Errors
    /// The first invalid key, and the reason in one sentence.
    pub fn resolve_ids(
        &self,
        overflow: OverflowIds,
    ) -> Result<(MemberIds, Option<u32>), (&'static str, String)> {
        let members = MemberIds::resolve(&self.allow, overflow)
            .map_err(|mut errors| ("allow", errors.swap_remove(0)))?;
        let group = self.socket_group.as_ref();
        let group = group.map(|name| super::management::group_id(name, overflow.gid)).transpose();
        Ok((members, group.map_err(|sentence| ("socket_group", sentence))?))
    }
}

impl Config {
    /// Returns the path of the socket of local programs; `None` without `[programs]`.
    pub fn programs_socket(&self) -> Option<PathBuf> {
        let programs = self.programs.as_ref()?;
        let beside = || {
            let directory = self.management.socket.parent().unwrap_or(Path::new(""));
            directory.join(SOCKET_NAME)
        };
        Some(programs.socket.clone().unwrap_or_else(beside))
    }
}
