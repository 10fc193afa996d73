//! Capabilities that each kind of port needs, and that the process needs for its configuration.

use std::path::Path;

use port_kind::PortKind;

use super::{Capabilities, Capability};
use crate::Config;

/// A capability that a port or the process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The needed capability. [`Need::alternative`] also suffices.
    pub capability: Capability,
    /// Another capability that suffices instead.
    pub alternative: Option<Capability>,
    /// True if the port or process does not start without it. Otherwise it starts without the function described by
    /// [`Need::purpose`].
    pub required: bool,
    /// Function for which the capability is needed, as part of a message.
    pub purpose: &'static str,
}

impl Need {
    const fn required(capability: Capability, why: &'static str) -> Need {
        Need { capability, alternative: None, required: true, purpose: why }
    }

    const fn optional(capability: Capability, why: &'static str) -> Need {
        Need { capability, alternative: None, required: false, purpose: why }
    }

    /// Returns true if the set contains the capability or its alternative.
    pub fn is_met(&self, by: Capabilities) -> bool {
        by.has(self.capability) || self.alternative.is_some_and(|instead| by.has(instead))
    }
}

const AF_PACKET: &[Need] = &[
    Need::required(Capability::NetRaw, "the packet socket"),
    Need::optional(Capability::NetAdmin, "to make the interface promiscuous"),
];

const AF_XDP: &[Need] = &[
    Need::required(Capability::NetAdmin, "to attach the XDP program to the interface"),
    Need::required(Capability::NetRaw, "the AF_XDP socket"),
    Need {
        alternative: Some(Capability::SysAdmin),
        ..Need::required(Capability::Bpf, "to load the XDP program")
    },
    Need::optional(
        Capability::SysAdmin,
        "for libxdp, which opens programs and maps by number: with libxdp 1.3 the port does not open without it",
    ),
];

const TAP: &[Need] = &[Need::required(Capability::NetAdmin, "to make the interface")];

/// Capabilities for PCI devices that DPDK shares with the kernel's driver (mlx4, mlx5, mana).
const SHARED: &[Need] = &[
    Need::required(Capability::NetRaw, "queues of raw frames of the device"),
    Need::optional(Capability::NetAdmin, "to change the device's MTU and flags"),
    Need::optional(Capability::IpcLock, "to pin memory beyond RLIMIT_MEMLOCK"),
];

/// Capabilities for PCI devices bound to a UIO driver, without IOMMU.
const UIO: &[Need] = &[
    Need::required(Capability::SysAdmin, "physical addresses of memory, from /proc/self/pagemap"),
    Need::required(Capability::SysRawio, "the device's I/O ports"),
];

/// Capabilities for PCI devices in VFIO groups without IOMMU.
const NO_IOMMU: &[Need] = &[
    Need::required(Capability::SysRawio, "VFIO's groups without IOMMU"),
    Need::required(Capability::SysAdmin, "physical addresses of memory, from /proc/self/pagemap"),
];

/// Returns the capabilities that this kind of port needs on the machine whose `/sys` is below `root`.
pub fn port_needs(root: &Path, kind: &PortKind) -> &'static [Need] {
    match kind {
        PortKind::AfPacket { .. } => AF_PACKET,
        PortKind::AfXdp { .. } => AF_XDP,
        PortKind::Tap { .. } => TAP,
        PortKind::Pci { address, .. } => pci_needs(root, address),
        PortKind::Memif { .. }
        | PortKind::VhostUser { .. }
        | PortKind::Ring { .. }
        | PortKind::Pcap { .. } => &[],
    }
}

fn pci_needs(root: &Path, address: &str) -> &'static [Need] {
    let driver = root.join("sys/bus/pci/devices").join(address).join("driver");
    let driver = std::fs::read_link(driver).ok();
    let driver = driver.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    match driver {
        Some("mlx4_core" | "mlx5_core" | "mana") => SHARED,
        Some("uio_pci_generic" | "igb_uio") => UIO,
        _ => {
            let unsafe_mode = root.join("sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
            match std::fs::read_to_string(unsafe_mode) {
                Ok(mode) if mode.trim() == "Y" => NO_IOMMU,
                _ => &[],
            }
        }
    }
}

/// Returns the capabilities that the process needs apart from its ports. `limit`: soft limit of locked memory, bytes;
/// `None` for no limit.
pub fn process_needs(config: &Config, limit: Option<u64>) -> Vec<Need> {
    let mut needs = Vec::new();
    if config.management.access.socket_group.is_some() {
        let why = "management.access.socket_group, where the process is not in that group";
        needs.push(Need::optional(Capability::Chown, why));
    }
    if config.management.listen.address.is_some_and(|at| (1..1024).contains(&at.port())) {
        let why = "management.listen.address, a port below 1024";
        needs.push(Need::required(Capability::NetBindService, why));
    }
    if config.interfaces.iter().any(|interface| interface.host.is_some()) {
        let why = "interface.host: to make the TAP, and to keep the kernel off the device";
        needs.push(Need::required(Capability::NetAdmin, why));
    }
    if config.ipsec.uses_kernel_keys() {
        let why = "ipsec.keys = \"kernel\": to read the kernel's SAs, and to tell it what of them is used";
        needs.push(Need::required(Capability::NetAdmin, why));
    }
    if limit.is_some() {
        let why = "to lock regions beyond RLIMIT_MEMLOCK; not needed where that is unlimited";
        needs.push(Need::optional(Capability::IpcLock, why));
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_port_needs_capabilities_of_its_driver() {
        let root = tempfile::tempdir().unwrap();
        let kind = PortKind::Pci { address: "0000:03:00.0".into(), devargs: String::new() };
        let device = root.path().join("sys/bus/pci/devices/0000:03:00.0");
        std::fs::create_dir_all(&device).unwrap();
        let required = |root: &Path| {
            let needs = port_needs(root, &kind).iter().filter(|need| need.required);
            needs.map(|need| need.capability).collect::<Vec<_>>()
        };
        assert_eq!(required(root.path()), []);
        for (driver, expected) in [
            ("vfio-pci", vec![]),
            ("mlx5_core", vec![Capability::NetRaw]),
            ("igb_uio", vec![Capability::SysAdmin, Capability::SysRawio]),
        ] {
            std::os::unix::fs::symlink(format!("/x/{driver}"), device.join("driver")).unwrap();
            assert_eq!(required(root.path()), expected, "{driver}");
            std::fs::remove_file(device.join("driver")).unwrap();
        }
        let mode = root.path().join("sys/module/vfio/parameters");
        std::fs::create_dir_all(&mode).unwrap();
        std::fs::write(mode.join("enable_unsafe_noiommu_mode"), "Y\n").unwrap();
        assert_eq!(required(root.path()), [Capability::SysRawio, Capability::SysAdmin]);
    }

    #[test]
    fn xdp_needs_bpf_or_sys_admin() {
        let bpf = AF_XDP.iter().find(|need| need.capability == Capability::Bpf).unwrap();
        let admin = Capabilities::default().with(Capability::SysAdmin);
        assert!(bpf.is_met(admin) && !bpf.is_met(Capabilities(0x3000)));
    }
}
