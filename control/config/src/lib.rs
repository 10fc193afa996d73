//! The configuration file: TOML, parsed raw, then checked into types without invalid values.
//!
//! All errors of a file are reported together. Each is one sentence that names the file, the line, the key and the
//! remedy. [`Document`] keeps the lines for errors found later: [`check_together`] finds conflicts between several
//! files of one process, and [`Document::check_machine`] finds missing parts of the machine (devices, hugepages,
//! permissions).

#![forbid(unsafe_code)]

mod access;
mod across_files;
mod check;
mod devices;
pub mod directories;
mod document;
mod edit;
mod environment;
mod errors;
pub mod file_end;
mod files;
mod impair;
mod ipsec;
mod key_values;
mod keys;
mod machine;
mod management;
mod maps;
mod memory;
mod network;
mod objects;
mod peers;
mod ports;
pub mod privilege;
mod programs;
mod rdmap;
mod reader;
mod reference;
mod rule;
mod sandbox;
mod schema;
mod sctp;
mod source;
mod tables;
pub mod text;
mod to_tables;
mod transport;
mod tuning;
mod types;
mod values;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::directories::Directories;

pub use document::{Document, listener_from_json, region_from_json};
pub use transport::Transport;

pub use access::{ACCESS_CHOICES, AccessFlags, access_from_word, access_word, access_words};
pub use across_files::{check_one_ended_links, check_together};
pub use check::unsaved_writes;
pub use devices::MemorySection;
#[cfg(test)]
pub(crate) use edit::render;
pub use edit::{RenderedKey, file_text, json_to_toml, render_table, table_header};
pub use environment::FindMisplacedAddress;
pub use errors::{ConfigError, ConfigErrors};
pub use files::FilesSection;
pub use ipsec::{
    IpsecSection, PolicyAction, PolicySection, SaSection, TunnelEndpoints, algorithm_name,
};
pub use keys::Key;
pub use machine::MachineFinding;
pub use management::{AccessIds, AccessSection, AuditSection, Member, MemberIds, OverflowIds};
pub use maps::{MapLimit, REGIONS_PER_MAP, SHARED_REGION_MAPS, SMALL_REGION, region_maps};
pub use memory::{MachineMemory, free_hugepage_bytes, machine_memory};
pub use programs::ProgramsSection;
pub use reference::{render_example, render_man};
pub use rule::Shape;
pub use sandbox::{SandboxMode, SandboxSection};
pub use schema::{file_schema, section_schema};
pub use sctp::SctpSection;
pub use source::{KeyPath, Source};
pub use to_tables::{Secrets, WrittenTable};
pub use tuning::{
    Limits, ListenSection, LogFormat, ManagementSection, MpaReceiveSection, TcpSection,
};
pub use types::*;
pub use values::{parse_u64, show_size};

/// The API's default socket, for `ddpd` and for `ddpctl`.
pub const DEFAULT_SOCKET: &str = "/run/ddpd/ddpd.sock";

/// One appliance, described by one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Path of the file, as given on the command line.
    pub file: PathBuf,
    /// Text of the file, and the lines of its keys.
    pub source: Source,
    /// Name of the appliance in logs, metrics and the API; by default the file's stem.
    pub name: String,
    /// Memory and other parameters of DPDK's EAL.
    pub memory: MemorySection,
    /// The workers, at least one. Ports refer to them by index.
    pub workers: Vec<WorkerSection>,
    /// The ports, at least one.
    pub ports: Vec<PortSection>,
    /// The interfaces on the ports, at least one.
    pub interfaces: Vec<InterfaceSection>,
    /// Memory regions, which peers may be allowed to access.
    pub regions: Vec<RegionSection>,
    /// Addresses and ports on which streams are accepted.
    pub listeners: Vec<ListenerSection>,
    /// TCP's parameters, for all streams.
    pub tcp: TcpSection,
    /// MPA's parameters, for all streams.
    pub mpa: MpaReceiveSection,
    /// SCTP's parameters, for all associations.
    pub sctp: SctpSection,
    /// IPsec policies and SAs.
    pub ipsec: IpsecSection,
    /// Limits of the whole appliance.
    pub limits: Limits,
    /// Local programs; `None` if they cannot attach.
    pub programs: Option<ProgramsSection>,
    /// Allowed directories for files.
    pub files: FilesSection,
    /// Management socket, log and shutdown.
    pub management: ManagementSection,
}

impl Config {
    /// Returns the allowed directories for files.
    pub fn directories(&self) -> Directories {
        self.directories_after_reload(self)
    }

    /// Returns the allowed directories for a reload that applies the regions and queues of `new`. A reload does not
    /// change `[files]`.
    pub fn directories_after_reload(&self, new: &Config) -> Directories {
        match &self.files.paths {
            Some(paths) => Directories::from_key(paths),
            None => Directories::default_for(new.named_files()),
        }
    }

    /// Returns the paths of the files of regions and queues.
    fn named_files(&self) -> impl Iterator<Item = &Path> {
        let regions = self.regions.iter().filter_map(|region| match &region.backing {
            Backing::File { path, .. } => Some(path.as_path()),
            _ => None,
        });
        let queues = self.listeners.iter().flat_map(|listener| &listener.queues);
        regions.chain(queues.filter_map(|queue| match &queue.deliver_to {
            Delivery::File { path } => Some(path.as_path()),
            _ => None,
        }))
    }

    /// Applies a reload's changes to the sections that are compared key by key, and to the peer lists of interfaces.
    pub fn apply_reload(&mut self, new: &Config) {
        self.memory.apply_reload(&new.memory);
        self.tcp.apply_reload(&new.tcp);
        self.mpa.apply_reload(&new.mpa);
        self.sctp.apply_reload(&new.sctp);
        self.limits.apply_reload(&new.limits);
        self.management.apply_reload(&new.management);
        for interface in &mut self.interfaces {
            let same = new.interfaces.iter().find(|other| other.name == interface.name);
            interface.peers = same.map_or_else(Default::default, |other| other.peers.clone());
        }
    }

    /// Returns the names of `[[interface]]` keys that a reload applies and that differ in an interface of both
    /// configurations.
    fn interface_differences(&self, new: &Config) -> Vec<&'static str> {
        let find = |name: &str| new.interfaces.iter().find(|other| other.name == name);
        let mut both = self.interfaces.iter().filter_map(|own| Some((own, find(&own.name)?)));
        let (mut allow, mut deny) = (false, false);
        both.by_ref().for_each(|(own, other)| {
            allow |= own.peers.allow != other.peers.allow;
            deny |= own.peers.deny != other.peers.deny;
        });
        let names = [("allow", allow), ("deny", deny)].into_iter();
        names.filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Returns the sections whose keys differ, and the names of these keys: with `reload`, keys that a reload applies,
    /// otherwise keys that need a restart.
    pub fn differences(
        &self,
        new: &Config,
        reload: bool,
    ) -> Vec<(&'static str, Vec<&'static str>)> {
        let interfaces = if reload { self.interface_differences(new) } else { Vec::new() };
        let all = [
            ("interface", interfaces),
            ("memory", self.memory.differences(&new.memory, reload)),
            ("tcp", self.tcp.differences(&new.tcp, reload)),
            ("mpa", self.mpa.differences(&new.mpa, reload)),
            ("sctp", self.sctp.differences(&new.sctp, reload)),
            ("limits", self.limits.differences(&new.limits, reload)),
            (
                "programs",
                programs::differences(self.programs.as_ref(), new.programs.as_ref(), reload),
            ),
            ("files", self.files.differences(&new.files, reload)),
            ("management", self.management.differences(&new.management, reload)),
        ];
        all.into_iter().filter(|(_, names)| !names.is_empty()).collect()
    }

    /// Reads and checks one file.
    pub fn load(file: &Path) -> Result<Self, ConfigErrors> {
        Ok(Document::read(file)?.config)
    }
}

/// Returns all keys, section by section.
pub fn keys() -> Vec<Key> {
    let before = [tables::root::keys_of(), devices::device_keys()].concat();
    let ports = [tables::port::keys_of(), ports::key::keys_of(), impair::burst_loss_keys()];
    let interfaces = [
        tables::interface::keys_of(),
        tables::interface_peers::keys_of(),
        tables::route::keys_of(),
    ];
    let objects = [
        tables::region::keys_of(),
        tables::listener::keys_of(),
        tables::listener_limits::keys_of(),
        tables::queue::keys_of(),
    ];
    let after = [
        tuning::tuning_keys(),
        SctpSection::keys(),
        ipsec::ipsec_keys(),
        ProgramsSection::keys(),
        files::files_keys(),
    ];
    let all = [before].into_iter().chain(ports).chain(interfaces).chain(objects).chain(after);
    all.flatten().collect()
}

/// Reads and checks the files of one process: each file alone, then conflicts between files.
pub fn load_all<P: AsRef<Path>>(files: &[P]) -> Result<Vec<Document>, ConfigErrors> {
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for file in files {
        match Document::read(file.as_ref()) {
            Ok(document) => documents.push(document),
            Err(more) => errors.extend(more.0),
        }
    }
    errors.extend(check_together(&documents));
    if errors.is_empty() { Ok(documents) } else { Err(ConfigErrors(errors)) }
}
