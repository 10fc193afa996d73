//! The configurations against which the host is checked.

use std::collections::BTreeMap;

use config::{Config, Idle, PortKind, PortSection};

/// The appliances of one process; empty if only the host is checked.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// Configurations of the appliances.
    pub configs: Vec<Config>,
    /// Version string of libdpdk.
    pub dpdk: String,
}

impl Subject {
    pub(super) fn ports(&self) -> impl Iterator<Item = (&Config, &PortSection)> {
        self.configs.iter().flat_map(|config| config.ports.iter().map(move |port| (config, port)))
    }

    /// Returns the PCI addresses of ports, each with its port's name.
    pub(super) fn pci_addresses(&self) -> Vec<(&str, &str)> {
        self.ports()
            .filter_map(|(_, port)| match &port.kind {
                PortKind::Pci { address, .. } => Some((address.as_str(), port.name.as_str())),
                PortKind::AfXdp { .. }
                | PortKind::AfPacket { .. }
                | PortKind::Tap { .. }
                | PortKind::Memif { .. }
                | PortKind::VhostUser { .. }
                | PortKind::Ring { .. }
                | PortKind::Pcap { .. } => None,
            })
            .collect()
    }

    /// Returns the Linux interfaces that ports use through packet or XDP sockets.
    pub(super) fn linux_interfaces(&self) -> Vec<(&str, &PortSection)> {
        self.ports()
            .filter_map(|(_, port)| match &port.kind {
                PortKind::AfXdp { device, .. } | PortKind::AfPacket { device } => {
                    Some((device.as_str(), port))
                }
                PortKind::Pci { .. }
                | PortKind::Tap { .. }
                | PortKind::Memif { .. }
                | PortKind::VhostUser { .. }
                | PortKind::Ring { .. }
                | PortKind::Pcap { .. } => None,
            })
            .collect()
    }

    /// Returns the cores of pinned workers, each with true if its worker polls continuously.
    pub(super) fn pinned_cores(&self) -> BTreeMap<u16, bool> {
        let workers = self.configs.iter().flat_map(|config| &config.workers);
        workers.filter_map(|worker| Some((worker.core?, worker.idle == Idle::Poll))).collect()
    }

    /// Returns the number of workers without a pinned core.
    pub(super) fn unpinned_workers(&self) -> usize {
        let workers = self.configs.iter().flat_map(|config| &config.workers);
        workers.filter(|worker| worker.core.is_none()).count()
    }
}
