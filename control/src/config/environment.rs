//! What the machine lacks for a configuration, as far as it shows without opening DPDK.
//!
//! `ddpd check` reports it; `ddpd` itself finds out again when it opens things, since the machine may
//! change in between. Nothing here changes the machine.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::document::Document;
use super::errors::{ConfigError, Places};
use super::types::*;
use super::values::show_size;

/// Something about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The appliance would not start.
    Error(ConfigError),
    /// It would start, but the operator should know.
    Note(ConfigError),
}

/// Linux's capability numbers.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;

/// Where the machine describes itself; another root in tests.
struct Machine {
    root: PathBuf,
}

impl Document {
    /// What this machine lacks for the configuration.
    pub fn environment(&self) -> Vec<Finding> {
        self.environment_at(Path::new("/"))
    }

    /// The same with the machine's `/sys`, `/proc` and `/dev` below another directory.
    pub(super) fn environment_at(&self, root: &Path) -> Vec<Finding> {
        let machine = Machine { root: root.to_owned() };
        let mut findings = Findings { document: self, list: Vec::new() };
        machine.hugepages(&mut findings);
        machine.cores(&mut findings);
        for (port, places) in self.config.ports.iter().zip(&self.ports) {
            machine.port(port, places, &mut findings);
        }
        for (region, places) in self.config.regions.iter().zip(&self.regions) {
            region_files(region, places, &mut findings);
        }
        machine.locked_memory(&mut findings);
        management_socket(&self.config.management, &mut findings);
        findings.list
    }
}

struct Findings<'d> {
    document: &'d Document,
    list: Vec<Finding>,
}

impl Findings<'_> {
    fn error(&mut self, places: &Places, key: &str, message: impl Into<String>) {
        self.list.push(Finding::Error(self.document.error(places, key, message.into())));
    }

    fn note(&mut self, places: &Places, key: &str, message: impl Into<String>) {
        self.list.push(Finding::Note(self.document.error(places, key, message.into())));
    }
}

impl Machine {
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    fn has_capability(&self, capability: u32) -> bool {
        let status = self.read("proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let set = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
        set >> capability & 1 == 1
    }

    /// Free hugepages, octets.
    fn free_hugepages(&self) -> u64 {
        let Ok(sizes) = fs::read_dir(self.root.join("sys/kernel/mm/hugepages")) else { return 0 };
        let mut total = 0u64;
        for entry in sizes.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let size = name.strip_prefix("hugepages-").and_then(|s| s.strip_suffix("kB"));
            let size = size.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
            let free = fs::read_to_string(entry.path().join("free_hugepages")).unwrap_or_default();
            let free = free.trim().parse::<u64>().unwrap_or(0);
            total = total.saturating_add(free.saturating_mul(size << 10));
        }
        total
    }

    fn hugepages(&self, findings: &mut Findings<'_>) {
        const REMEDY: &str = "reserve some: echo 512 > /proc/sys/vm/nr_hugepages";
        let document = findings.document;
        let free = self.free_hugepages();
        match document.config.memory.hugepages {
            HugepagePolicy::Require if free == 0 => findings.error(
                &document.memory,
                "hugepages",
                format!("\"require\", but no hugepage is free: {REMEDY}, or write \"auto\""),
            ),
            HugepagePolicy::Auto if free == 0 => findings.note(
                &document.memory,
                "hugepages",
                format!("no hugepage is free, ordinary pages will be used: {REMEDY} for speed"),
            ),
            _ => {}
        }
        for (region, places) in document.config.regions.iter().zip(&document.regions) {
            let size = region.size.unwrap_or(0);
            if region.backing == Backing::Hugepages && size > free {
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
        }
    }

    fn cores(&self, findings: &mut Findings<'_>) {
        let document = findings.document;
        let Some(online) = self.read("sys/devices/system/cpu/online") else { return };
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

    fn port(&self, port: &PortSection, places: &Places, findings: &mut Findings<'_>) {
        match &port.kind {
            PortKind::Pci { address, .. } => self.pci(address, places, findings),
            PortKind::AfXdp { device, .. } => {
                self.linux_device(device, port.mtu, places, findings);
                if !self.has_capability(CAP_NET_ADMIN)
                    || !(self.has_capability(CAP_BPF) || self.has_capability(CAP_SYS_ADMIN))
                    || !self.has_capability(CAP_NET_RAW)
                {
                    findings.error(
                        places,
                        "kind",
                        "is \"af_xdp\", which needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF: run ddpd as \
                         root or give it these capabilities",
                    );
                }
            }
            PortKind::AfPacket { device } => {
                self.linux_device(device, port.mtu, places, findings);
                if !self.has_capability(CAP_NET_RAW) {
                    findings.error(
                        places,
                        "kind",
                        "is \"af_packet\", which needs CAP_NET_RAW: run ddpd as root or give it this \
                         capability",
                    );
                }
            }
            PortKind::Tap { device } => self.tap(device, places, findings),
            PortKind::Memif { socket, .. } => parent_writable(socket, "socket", places, findings),
            PortKind::Ring { .. } => {}
        }
    }

    fn linux_device(&self, device: &str, mtu: u16, places: &Places, findings: &mut Findings<'_>) {
        if !self.exists(&format!("sys/class/net/{device}")) {
            findings.error(
                places,
                "device",
                format!("\"{device}\" does not exist here: see ip link for the names"),
            );
            return;
        }
        let has = self.read(&format!("sys/class/net/{device}/mtu"));
        let has = has.and_then(|mtu| mtu.trim().parse::<u32>().ok());
        if let Some(has) = has.filter(|&has| u32::from(mtu) > has) {
            findings.error(
                places,
                "mtu",
                format!(
                    "is {mtu}, but {device} has {has}: ip link set {device} mtu {mtu}, or lower it"
                ),
            );
        }
    }

    fn tap(&self, device: &str, places: &Places, findings: &mut Findings<'_>) {
        if !self.exists("dev/net/tun") {
            findings.error(
                places,
                "kind",
                "is \"tap\", but there is no /dev/net/tun: modprobe tun",
            );
        }
        if !self.has_capability(CAP_NET_ADMIN) {
            findings.error(
                places,
                "kind",
                "is \"tap\", which needs CAP_NET_ADMIN: run ddpd as root or give it this capability",
            );
        }
        if self.exists(&format!("sys/class/net/{device}")) {
            findings.error(
                places,
                "device",
                format!(
                    "\"{device}\" exists already: choose another name, or ip link del {device}"
                ),
            );
        }
    }

    fn pci(&self, address: &str, places: &Places, findings: &mut Findings<'_>) {
        let device = format!("sys/bus/pci/devices/{address}");
        if !self.exists(&device) {
            findings.error(
                places,
                "address",
                format!("no PCI device {address} here: see lspci -D for the addresses"),
            );
            return;
        }
        let driver = fs::read_link(self.root.join(&device).join("driver")).ok();
        let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
        match driver.as_deref() {
            Some(
                "vfio-pci" | "uio_pci_generic" | "igb_uio" | "mlx4_core" | "mlx5_core" | "mana",
            ) => {}
            other => findings.error(
                places,
                "address",
                format!(
                    "{address} is bound to {}, which DPDK cannot use: dpdk-devbind.py -b vfio-pci \
                     {address}",
                    other.unwrap_or("no driver")
                ),
            ),
        }
    }

    fn locked_memory(&self, findings: &mut Findings<'_>) {
        let document = findings.document;
        let limits = self.read("proc/self/limits").unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let total: u64 = document.config.regions.iter().filter_map(|region| region.size).sum();
        // CAP_IPC_LOCK is 14: with it the limit does not count.
        if let Some(soft) = soft.filter(|&soft| total > soft && !self.has_capability(14)) {
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
}

/// `0-3,8` as Linux writes lists of processors.
fn parse_cpu_list(list: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

fn region_files(region: &RegionSection, places: &Places, findings: &mut Findings<'_>) {
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
            parent_writable(path, "path", places, findings);
        }
        Err(error) => {
            let message = format!("{} cannot be examined: {error}; check the path", path.display());
            findings.error(places, "path", message);
        }
    }
}

fn parent_writable(path: &Path, key: &str, places: &Places, findings: &mut Findings<'_>) {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let shown = parent.display();
    if !parent.is_dir() {
        findings.error(
            places,
            key,
            format!("its directory {shown} does not exist: mkdir -p {shown}"),
        );
    } else if rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let message =
            format!("nothing may be created in {shown}: change its mode or choose another");
        findings.error(places, key, message);
    }
}

fn management_socket(management: &ManagementSection, findings: &mut Findings<'_>) {
    let places = &findings.document.management;
    let path = &management.socket;
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
        _ => parent_writable(path, "socket", places, findings),
    }
}
