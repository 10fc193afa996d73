//! Landlock rules for files, TCP ports, signals and abstract sockets, derived from the configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use config::{Backing, Config, Delivery, Hugepages, PortKind, directories};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, NetPort,
    PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::dpdk_runtime;

/// Landlock version that defines the restricted access rights. Rights that the running kernel lacks are omitted.
const NEWEST_ABI: ABI = ABI::V7;

/// Version of Landlock in force; 0 if the kernel has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LandlockVersion(pub(super) u32);

impl fmt::Display for LandlockVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "not restricted: this kernel has no Landlock"),
            version => write!(f, "restricted by Landlock (version {version})"),
        }
    }
}

/// Access to a file, or to a directory and everything below it. Each variant includes the preceding variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileAccess {
    /// Read files and list directories.
    Read,
    /// Also write, create, rename and remove: files, sockets and directories.
    Write,
    /// Also call ioctl(2) on devices.
    Device,
}

impl FileAccess {
    fn access(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let make = AccessFs::MakeReg | AccessFs::MakeSock | AccessFs::MakeDir | AccessFs::Refer;
        let write = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::RemoveFile | make;
        match self {
            FileAccess::Read => read,
            FileAccess::Write => read | write,
            FileAccess::Device => read | write | AccessFs::IoctlDev,
        }
    }
}

/// Paths that libraries, the log and DPDK read on any host. Other files below `/etc` may contain secrets, so they are
/// not in this list.
const READABLE_PATHS: [&str; 17] = [
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/proc",
    "/sys",
    "/dev/urandom",
    "/dev/zero",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/etc/dpdk",
    "/run/systemd/userdb",
];

/// Enters Landlock's sandbox of files, TCP ports, signals and abstract sockets, for the calling thread and threads it
/// creates.
///
/// # Errors
/// A directory of `management.sandbox.paths` cannot be opened, DPDK's runtime directory is not safe, or the kernel
/// refuses a rule. The error is one sentence.
pub(super) fn restrict(configs: &[Config]) -> Result<LandlockVersion, String> {
    let failed = |error: landlock::RulesetError| format!("Landlock refuses the sandbox: {error}");
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST_ABI))
        .and_then(|rules| rules.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp))
        .and_then(|rules| rules.scope(Scope::Signal | Scope::AbstractUnixSocket))
        .and_then(Ruleset::create)
        .map_err(failed)?;
    for config in configs {
        for path in &config.management.sandbox.paths {
            PathFd::new(path).map_err(|error| {
                format!("management.sandbox.paths: {}: {error}: make it", path.display())
            })?;
        }
        if config.management.dpdk_telemetry {
            // DPDK creates the directory later, but a rule requires that it exists.
            dpdk_runtime::create(&dpdk_runtime::directory())?;
        }
        if let Some(at) = config.management.listen.address {
            rules = rules.add_rule(NetPort::new(at.port(), AccessNet::BindTcp)).map_err(failed)?;
        }
    }
    for (path, may) in granted_paths(configs) {
        // A missing path needs no rule: the code that opens the path later reports the error.
        let Ok(fd) = PathFd::new(&path) else { continue };
        let mut access = may.access();
        if !path.is_dir() {
            access &= AccessFs::from_file(NEWEST_ABI);
        }
        rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(failed)?;
    }
    let status = rules.restrict_self().map_err(failed)?;
    let version = match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => 0,
        (_, LandlockStatus::Available { effective_abi, .. }) => effective_abi as u32,
        _ => 0,
    };
    Ok(LandlockVersion(version))
}

/// Returns the granted paths with their access; the widest access if a path is granted repeatedly.
fn granted_paths(configs: &[Config]) -> BTreeMap<PathBuf, FileAccess> {
    let mut list = BTreeMap::new();
    let mut add = |path: &Path, may: FileAccess| {
        let entry = list.entry(path.to_owned()).or_insert(may);
        *entry = (*entry).max(may);
    };
    READABLE_PATHS.iter().for_each(|path| add(Path::new(path), FileAccess::Read));
    add(Path::new("/dev/null"), FileAccess::Write);
    for config in configs {
        for path in written_paths(config) {
            add(&path, FileAccess::Write);
        }
        for path in readable_paths(config) {
            add(&path, FileAccess::Read);
        }
        if config.memory.hugepages != Hugepages::Never {
            hugetlbfs_mounts().iter().for_each(|path| add(path, FileAccess::Write));
        }
        if config.management.dpdk_telemetry {
            add(&dpdk_runtime::directory(), FileAccess::Write);
        }
        if config.interfaces.iter().any(|interface| interface.host.is_some()) {
            add(Path::new("/dev/net/tun"), FileAccess::Device);
            add(Path::new("/proc/sys/net/ipv4/ip_local_reserved_ports"), FileAccess::Write);
        }
        for port in &config.ports {
            for path in device_paths(&port.kind) {
                add(&path, FileAccess::Device);
            }
        }
    }
    list
}

/// Returns the directories in which a configuration reads and writes files: sockets, regions, queues, captures, the
/// audit file, IPsec sequence files, `files.paths` and `management.sandbox.paths`.
fn written_paths(config: &Config) -> Vec<PathBuf> {
    let mut files = vec![config.management.socket.clone()];
    files.extend(config.programs_socket());
    files.extend(config.management.audit.file.clone());
    files.extend(config.regions.iter().filter_map(|region| match &region.backing {
        Backing::File { path, .. } => Some(path.clone()),
        _ => None,
    }));
    let queues = config.listeners.iter().flat_map(|listener| &listener.queues);
    files.extend(queues.filter_map(|queue| match &queue.deliver_to {
        Delivery::File { path } => Some(path.clone()),
        _ => None,
    }));
    files.extend(config.ports.iter().filter_map(|port| match &port.kind {
        PortKind::Memif { socket, .. } | PortKind::VhostUser { socket } => Some(socket.clone()),
        PortKind::Pcap { tx_file, .. } => tx_file.clone(),
        PortKind::Pci { .. }
        | PortKind::AfXdp { .. }
        | PortKind::AfPacket { .. }
        | PortKind::Tap { .. }
        | PortKind::Ring { .. } => None,
    }));
    files.extend(config.ipsec.sas.iter().filter_map(|sa| sa.sequence_file.clone()));
    let directories = files.iter().map(|file| parent(file));
    let others = match &config.files.paths {
        Some(paths) => paths.clone(),
        None => vec![directories::own_directory()],
    };
    directories.chain(others).chain(config.management.sandbox.paths.iter().cloned()).collect()
}

/// Returns the paths that a configuration only reads: the directory of its own file (for reloads), key files and
/// captures to replay.
fn readable_paths(config: &Config) -> Vec<PathBuf> {
    let mut paths = vec![parent(&config.file)];
    paths.extend(config.ipsec.sas.iter().map(|sa| sa.key_file.clone()));
    // If the configuration file is a symbolic link, the directory of its target is needed too.
    paths.extend(config.file.canonicalize().ok().map(|file| parent(&file)));
    paths.extend(config.ports.iter().filter_map(|port| match &port.kind {
        PortKind::Pcap { rx_file, .. } => Some(rx_file.clone()),
        PortKind::Pci { .. }
        | PortKind::AfXdp { .. }
        | PortKind::AfPacket { .. }
        | PortKind::Tap { .. }
        | PortKind::Memif { .. }
        | PortKind::VhostUser { .. }
        | PortKind::Ring { .. } => None,
    }));
    paths
}

/// Returns the device files and directories that a port of this kind opens.
fn device_paths(kind: &PortKind) -> Vec<PathBuf> {
    match kind {
        PortKind::Tap { .. } => vec!["/dev/net/tun".into()],
        // libxdp pins its programs in this directory.
        PortKind::AfXdp { .. } => vec!["/sys/fs/bpf".into()],
        PortKind::Pci { .. } => {
            let mut paths: Vec<PathBuf> =
                ["/dev/vfio", "/dev/infiniband", "/sys/bus/pci", "/sys/devices"]
                    .map(PathBuf::from)
                    .into();
            let uio = std::fs::read_dir("/dev").into_iter().flatten().flatten();
            let uio = uio.filter(|entry| entry.file_name().to_string_lossy().starts_with("uio"));
            paths.extend(uio.map(|entry| entry.path()));
            paths
        }
        PortKind::AfPacket { .. }
        | PortKind::Memif { .. }
        | PortKind::VhostUser { .. }
        | PortKind::Ring { .. }
        | PortKind::Pcap { .. } => Vec::new(),
    }
}

/// Returns the mount points of hugetlbfs.
fn hugetlbfs_mounts() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let place = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "hugetlbfs").then(|| PathBuf::from(place))
    };
    mounts.lines().filter_map(place).collect()
}

fn parent(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Document;

    #[test]
    fn granted_directories_match_the_configuration() {
        directories::use_temporary_directory();
        let text = "[memory]\nhugepages = \"never\"\n[[port]]\nname = \"p\"\nkind = \"memif\"\nsocket = \"/run/m/s\"\n\
                    role = \"server\"\n[[interface]]\nname = \"i\"\nport = \"p\"\naddresses = [\"192.0.2.1/24\"]\n\
                    [[region]]\nname = \"r\"\npath = \"/srv/r/file\"\nsize = 1\naccess = \"w\"\n\
                    [management]\nsocket = \"/run/x/s\"\n[management.audit]\nfile = \"/log/a\"\n\
                    [management.sandbox]\npaths = [\"/more\"]\n";
        let parse =
            |text: &str| Document::parse(Path::new("/etc/conf/t.toml"), text).unwrap().config;
        let all = granted_paths(&[parse(text)]);
        let with = |wanted| {
            let own = all.iter().filter(|&(_, &may)| may == wanted);
            own.map(|(path, _)| path.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let own = directories::own_directory();
        let mut wanted = ["/dev/null", "/log", "/more", "/run/m", "/run/x", "/srv/r"].to_vec();
        wanted.push(own.to_str().unwrap());
        wanted.sort_unstable();
        assert_eq!(with(FileAccess::Write), wanted);
        assert_eq!(with(FileAccess::Device), [""; 0]);
        assert_eq!(all[Path::new("/etc/conf")], FileAccess::Read);
        assert!(!all.contains_key(Path::new("/")) && !all.contains_key(Path::new("/dev")));

        let text = format!("{text}[files]\npaths = [\"/srv/r\", \"/data\"]\n");
        let all = granted_paths(&[parse(&text)]);
        assert_eq!(all[Path::new("/data")], FileAccess::Write);
        assert!(!all.contains_key(&own));
    }
}
