//! Checks without DPDK whether the machine meets a configuration: devices, memory, permissions.
//!
//! `ddpd check` reports the results. `ddpd` itself checks again when it opens devices and files, since the machine may
//! change in between. These checks do not change the machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::Access;

use super::check::RegionTotal;
use super::document::Document;
use super::errors::{ConfigError, SectionSpan};
use super::machine::{Findings, Machine, MachineFinding, check_parent_writable};
use super::management::OverflowIds;
use super::maps::check_maps;
use super::memory::{MachineMemory, machine_memory_at};
use super::ports;
use super::types::*;
use super::values::show_size;
use crate::privilege::{self, Capability};

/// Function that searches the host's devices, except the interface's TAP, for an address of the interface. The second
/// argument is the TAP's name. The result is a sentence about the first address found. The error is the reason why the
/// kernel's addresses cannot be read.
pub type FindMisplacedAddress<'a> =
    &'a dyn Fn(&InterfaceSection, &str) -> Result<Option<String>, String>;

impl Document {
    /// Returns the requirements of this configuration that this machine does not meet. `misplaced` reads addresses from
    /// the running kernel.
    pub fn check_machine(&self, misplaced: FindMisplacedAddress<'_>) -> Vec<MachineFinding> {
        self.check_machine_at(Path::new("/"), misplaced)
    }

    /// Checks a machine whose `/sys`, `/proc` and `/dev` are below `root`.
    pub(super) fn check_machine_at(
        &self,
        root: &Path,
        misplaced: FindMisplacedAddress<'_>,
    ) -> Vec<MachineFinding> {
        let machine = Machine { root: root.to_owned() };
        let mut findings = Findings { sink: &self.sink, list: Vec::new() };
        check_hugepages(&machine, self, &mut findings);
        check_cores(&machine, self, &mut findings);
        for (port, places) in self.config.ports.iter().zip(&self.ports) {
            ports::check_machine(&machine, port, places, &mut findings);
        }
        check_shared_interfaces(&machine, self, misplaced, &mut findings);
        for (region, places) in self.config.regions.iter().zip(&self.regions) {
            check_region_files(region, places, &mut findings);
        }
        check_region_room(self, &mut findings);
        check_file_directories(self, &mut findings);
        check_locked_memory(&machine, self, &mut findings);
        check_machine_memory(root, self, &mut findings);
        check_maps(&machine, self, &mut findings);
        check_management_socket(self, &mut findings);
        check_roles(root, self, &mut findings);
        if let Some(file) = &self.config.management.audit.file {
            check_parent_writable(file, "audit.file", &self.management, &mut findings);
        }
        findings.list
    }
}

/// Size of the hugepages that back regions, bytes.
const REGION_PAGE: u64 = 2 << 20;

fn check_hugepages(machine: &Machine, document: &Document, findings: &mut Findings<'_>) {
    const REMEDY: &str = "reserve some: echo 512 > /proc/sys/vm/nr_hugepages";
    let free = machine.free_hugepages();
    match document.config.memory.hugepages {
        Hugepages::Require if free == 0 => findings.error(
            &document.memory,
            "hugepages",
            format!("\"require\", but no hugepage is free: {REMEDY}, or write \"auto\""),
        ),
        Hugepages::Auto if free == 0 => findings.note(
            &document.memory,
            "hugepages",
            format!("no hugepage is free, ordinary pages will be used: {REMEDY} for speed"),
        ),
        _ => {}
    }
    // All regions in hugepages share the free pages of 2 MiB.
    let mut free = machine.free_hugepages_of(|size| size == REGION_PAGE);
    for (region, places) in document.config.regions.iter().zip(&document.regions) {
        if region.backing != Backing::Hugepages {
            continue;
        }
        let size = region.size.unwrap_or(0);
        if size > free {
            findings.error(
                places,
                "backing",
                format!(
                    "is \"hugepages\" with {}, but {} are free: {REMEDY}, or write \"anonymous\"",
                    show_size(size),
                    show_size(free)
                ),
            );
        }
        free = free.saturating_sub(size);
    }
}

fn check_cores(machine: &Machine, document: &Document, findings: &mut Findings<'_>) {
    let Some(online) = machine.read("sys/devices/system/cpu/online") else { return };
    let online = parse_cpu_list(online.trim());
    for worker in &document.config.workers {
        if let Some(core) = worker.core.filter(|core| !online.contains(core)) {
            let have: Vec<String> = online.iter().map(u16::to_string).collect();
            let have = have.join(", ");
            findings.error(
                &document.workers,
                "cores",
                format!("core {core} does not exist here: use {have}, or write count = 1"),
            );
        }
    }
}

fn check_locked_memory(machine: &Machine, document: &Document, findings: &mut Findings<'_>) {
    let limits = machine.read("proc/self/limits").unwrap_or_default();
    let soft = privilege::locked_memory_limit(&limits).unwrap_or(None);
    let total: u64 = document.config.regions.iter().filter_map(|region| region.size).sum();
    // CAP_IPC_LOCK overrides the limit.
    let unlimited = machine.capabilities().has(Capability::IpcLock);
    if let Some(soft) = soft.filter(|&soft| total > soft && !unlimited) {
        findings.note(
            &document.root,
            "region",
            format!(
                "the regions have {}, but {} may be locked: they may be paged out, raise ulimit -l",
                show_size(total),
                show_size(soft)
            ),
        );
    }
}

/// Reports regions that exceed the memory of the machine. The appliance itself refuses regions above a lower limit.
fn check_machine_memory(root: &Path, document: &Document, findings: &mut Findings<'_>) {
    let Some(MachineMemory { bytes, source }) = machine_memory_at(root) else { return };
    let regions = document.config.regions.iter().zip(&document.regions);
    let charged = regions.filter(|(region, _)| region.backing != Backing::Hugepages);
    let Some(total) = RegionTotal::of(charged).filter(|total| total.bytes > bytes) else { return };
    let bytes = show_size(bytes);
    findings.error(
        total.places,
        "size",
        format!("{total}, but {source} is {bytes}: make it smaller"),
    );
}

/// Checks each interface shared with the host: the process must have CAP_NET_ADMIN, and no other device of the host may
/// have the interface's addresses.
fn check_shared_interfaces(
    machine: &Machine,
    document: &Document,
    misplaced: FindMisplacedAddress<'_>,
    findings: &mut Findings<'_>,
) {
    for (interface, places) in document.config.interfaces.iter().zip(&document.interfaces) {
        let Some(name) = &interface.host else { continue };
        if !machine.capabilities().has(Capability::NetAdmin) {
            let message = "is \"tap\", which needs CAP_NET_ADMIN: run ddpd as root or give it this capability";
            findings.error(places, "host", message.to_owned());
        }
        match misplaced(interface, name) {
            Ok(Some(sentence)) => findings.error(places, "addresses", sentence),
            Ok(None) => {}
            Err(sentence) => findings.note(places, "addresses", sentence),
        }
    }
}

/// Parses Linux's format for lists of processors, such as `0-3,8`.
fn parse_cpu_list(list: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

fn check_region_files(region: &RegionSection, places: &SectionSpan, findings: &mut Findings<'_>) {
    let Backing::File { path, .. } = &region.backing else { return };
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            findings.error(
                places,
                "path",
                format!("{} is no ordinary file: name one", path.display()),
            );
        }
        Ok(metadata) => {
            if let Err(error) = rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK) {
                let message =
                    format!("{} cannot be opened: {error}; change its mode", path.display());
                findings.error(places, "path", message);
            }
            if region.size.is_none() && metadata.len() == 0 {
                findings.error(places, "size", "is missing and the file is empty: write a size");
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if region.size.is_none() {
                findings.error(
                    places,
                    "size",
                    "is missing and the file does not exist: write a size",
                );
            }
            check_parent_writable(path, "path", places, findings);
        }
        Err(error) => {
            let message = format!("{} cannot be examined: {error}; check the path", path.display());
            findings.error(places, "path", message);
        }
    }
}

/// Adds a note for each directory whose file system has less free space than the region files in it may need. `ddpd
/// doctor` reports the same.
fn check_region_room(document: &Document, findings: &mut Findings<'_>) {
    let mut wanted: BTreeMap<&Path, (u64, &SectionSpan)> = BTreeMap::new();
    for (region, places) in document.config.regions.iter().zip(&document.regions) {
        let Backing::File { path, .. } = &region.backing else { continue };
        let Some(directory) = path.parent().filter(|parent| parent.is_dir()) else { continue };
        // The allocated blocks of an existing file need no further space.
        let has = fs::metadata(path).map_or(0, |file| file.blocks().saturating_mul(512));
        let more = region.size.unwrap_or(0).saturating_sub(has);
        let sum = &mut wanted.entry(directory).or_insert((0, places)).0;
        *sum = sum.saturating_add(more);
    }
    for (directory, (wanted, places)) in wanted {
        let Ok(space) = rustix::fs::statvfs(directory) else { continue };
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < wanted {
            let message = format!(
                "{}: {} free, regions may take {} more: make room there, or choose another path or a smaller size for the \
                 regions",
                directory.display(),
                show_size(free),
                show_size(wanted)
            );
            findings.note(places, "path", message);
        }
    }
}

/// Reports files of regions and queues that are not in an allowed directory.
fn check_file_directories(document: &Document, findings: &mut Findings<'_>) {
    let config = &document.config;
    let directories = config.directories();
    let mut admit = |section: &str, of: &[String], path: &Path| {
        let Err(refused) = directories.admit(path) else { return };
        let line = config.source.line(section, of, "path").unwrap_or(0);
        let (file, key) = (config.file.clone(), format!("{section}.path"));
        let message = refused.to_string();
        findings.list.push(MachineFinding::Error(ConfigError { file, line, key, message }));
    };
    for region in &config.regions {
        if let Backing::File { path, .. } = &region.backing {
            admit("region", std::slice::from_ref(&region.name), path);
        }
    }
    for listener in &config.listeners {
        for queue in &listener.queues {
            if let Delivery::File { path } = &queue.deliver_to {
                let of = [listener.name.clone(), queue.qn.to_string()];
                admit("listener.queue", &of, path);
            }
        }
    }
}

fn check_management_socket(document: &Document, findings: &mut Findings<'_>) {
    let places = &document.management;
    let path = &document.config.management.socket;
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => findings.error(
            places,
            "socket",
            format!("{shown} exists and is no socket: remove it or choose another path"),
        ),
        Ok(_) if UnixStream::connect(path).is_ok() => findings.note(
            places,
            "socket",
            format!(
                "an appliance answers at {shown} already: stop it first, or choose another path"
            ),
        ),
        _ => check_parent_writable(path, "socket", places, findings),
    }
}

/// Reports users and groups of `[management.access]` that have no ID on this machine, or an ID that is not allowed.
fn check_roles(root: &Path, document: &Document, findings: &mut Findings<'_>) {
    const SECTION: &str = "management.access";
    let overflow = OverflowIds::read_from(&root.join("proc/sys/kernel"));
    let unknown = document.config.management.access.resolve_ids(overflow).err().unwrap_or_default();
    for (key, message) in unknown {
        let line = document.config.source.line(SECTION, &[], key).unwrap_or(0);
        let (file, key) = (document.config.file.clone(), format!("{SECTION}.{key}"));
        findings.list.push(MachineFinding::Error(ConfigError { file, line, key, message }));
    }
}
