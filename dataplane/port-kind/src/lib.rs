//! Kinds, roles and checksum modes of a port, with the configuration words and limits of each. [`policy`] has further
//! configuration choices.
//!
//! The configuration parser produces these types, and the data plane opens ports from them. The crate does not depend on
//! DPDK, so `ddpd check` and `ddpctl` build without it. Lengths are bytes; an MTU is the length of an IP packet.
#![forbid(unsafe_code)]

pub mod pcap;
pub mod policy;
mod secret;

use std::path::PathBuf;

pub use secret::Secret;

/// Smallest MTU of a port in bytes: every IPv4 host accepts datagrams of this length (RFC 1122 §3.3.2).
pub const MIN_MTU: u16 = 576;
/// Largest MTU of any port in bytes: a frame of that size fits into one DPDK packet buffer ([`MAX_DATA_ROOM`]).
pub const MAX_MTU: u16 = 65_280;
/// Largest MTU in bytes of the kinds of port with a device, a Linux interface or a file. It is the lowest limit among
/// DPDK's drivers for these kinds.
const DEVICE_MAX_MTU: u16 = 9000;
/// Bytes of a frame in addition to its IP packet: Ethernet header and VLAN tag.
pub const FRAME_OVERHEAD: usize = 18;
/// Largest room of a packet buffer in bytes, a multiple of a cache line. DPDK stores the sum of the room and 128 bytes
/// of headroom in 16 bits.
pub const MAX_DATA_ROOM: usize = 65_344;

/// Returns the data room in bytes of a packet buffer for frames of this MTU, from 2048 to [`MAX_DATA_ROOM`]. The room
/// is rounded up to whole KiB, because some drivers count in KiB. Some kinds of port require another size.
pub fn data_room(mtu: u16) -> u16 {
    (usize::from(mtu) + FRAME_OVERHEAD).next_multiple_of(1024).clamp(2048, MAX_DATA_ROOM) as u16
}

/// Maximum number of buffers that a memif can share, because DPDK's driver counts them in 16 bits. Even buffers with
/// the largest room then fit into the 4 GiB that a memif descriptor can address.
pub const MEMIF_MAX_BUFFERS: u32 = 1 << 16;
const _: () =
    assert!((MEMIF_MAX_BUFFERS as u64) * (MAX_DATA_ROOM as u64) < u32::MAX as u64 - (8 << 20));

/// Largest MTU of an AF_XDP port in bytes: a page of 4096 bytes less XDP's headroom (256), the kernel's
/// `skb_shared_info` (320), the Ethernet header with a VLAN tag (18) and the frame check sequence (4). veth refuses an
/// XDP program at a larger MTU.
pub const AF_XDP_MAX_MTU: u16 = 3498;

/// The kind of a port, with the parameters of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A PCI device bound to a driver that DPDK can use.
    Pci {
        /// PCI address, as `0000:03:00.0`. The EAL must have been started with this device ([`PortKind::eal_device`]).
        address: String,
        /// Driver arguments, passed through unchanged; empty for none.
        devargs: String,
    },
    /// A Linux interface through AF_XDP sockets.
    AfXdp {
        /// Linux's name of the interface.
        device: String,
        /// First device queue to use, from 0.
        first_queue: u16,
        /// True to use copy mode even if the driver supports zero-copy.
        force_copy: bool,
    },
    /// A Linux interface through packet sockets.
    AfPacket {
        /// Linux's name of the interface.
        device: String,
    },
    /// A TAP interface, created for this port.
    Tap {
        /// Linux's name of the interface.
        device: String,
    },
    /// Shared memory with another process (DPDK's `net_memif`).
    Memif {
        /// Path of the rendezvous socket.
        socket: PathBuf,
        /// This port's side of the connection.
        role: MemifRole,
        /// Number of the interface pair, the same on both sides. Several pairs may share a socket.
        id: u32,
        /// Both sides' shared secret, at most 24 bytes.
        secret: Option<Secret<String>>,
    },
    /// Shared memory with a virtual machine or a DPDK process (`net_virtio_user`), through DPDK's `net_vhost`.
    /// The port listens on the socket; the frontend may disconnect and reconnect.
    VhostUser {
        /// Path of the socket. Only the user of this process can connect to it.
        socket: PathBuf,
    },
    /// One end of a pair inside this process. Two ring ports with the same `link` are connected to each other.
    Ring {
        /// Name of the pair.
        link: String,
    },
    /// Capture files (DPDK's `net_pcap`): received frames are read from one and sent frames are written to the
    /// other. One queue.
    Pcap {
        /// File that received frames are read from, as fast as the worker receives them.
        rx_file: PathBuf,
        /// File that sent frames are written to; `None` discards them.
        tx_file: Option<PathBuf>,
    },
}

/// Side of a memif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Creates the socket and listens.
    Server,
    /// Connects to the socket, and retries until the server accepts.
    Client,
}

impl MemifRole {
    /// All roles with their configuration words.
    pub const NAMES: [(&'static str, MemifRole); 2] =
        [("server", MemifRole::Server), ("client", MemifRole::Client)];

    /// Returns the role's word in the configuration file and in the driver's arguments.
    pub fn name(self) -> &'static str {
        match self {
            MemifRole::Server => "server",
            MemifRole::Client => "client",
        }
    }
}

/// The component that computes a port's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// The device computes and verifies the checksums that it supports. The worker computes and verifies all others.
    Offload,
    /// The worker computes and verifies all checksums.
    Software,
    /// TCP checksums are neither computed (zero is sent) nor verified. For ports whose frames never leave the
    /// host.
    Trusted,
}

impl ChecksumMode {
    /// All modes with their configuration words.
    pub const NAMES: [(&'static str, ChecksumMode); 3] = [
        ("offload", ChecksumMode::Offload),
        ("software", ChecksumMode::Software),
        ("trusted", ChecksumMode::Trusted),
    ];
}

/// The component that segments large sends into TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationMode {
    /// The device or the vhost-user frontend if it supports segmentation, otherwise the worker.
    Offload,
    /// The worker.
    Software,
}

impl SegmentationMode {
    /// Both modes with their configuration words.
    pub const NAMES: [(&'static str, SegmentationMode); 2] =
        [("offload", SegmentationMode::Offload), ("software", SegmentationMode::Software)];
}

impl PortKind {
    /// Returns the segmentation mode for this kind if the configuration does not set one.
    pub fn default_segmentation(&self) -> SegmentationMode {
        match self {
            Self::VhostUser { .. } => SegmentationMode::Offload,
            // PCI devices may be able to segment, but this has not been measured.
            Self::Pci { .. }
            | Self::AfXdp { .. }
            | Self::AfPacket { .. }
            | Self::Tap { .. }
            | Self::Memif { .. }
            | Self::Ring { .. }
            | Self::Pcap { .. } => SegmentationMode::Software,
        }
    }

    /// The configuration words of all kinds, in the order in which errors list them.
    pub const NAMES: [&'static str; 8] =
        ["pci", "af_xdp", "af_packet", "tap", "memif", "vhost-user", "ring", "pcap"];

    /// Returns the kind's word in the configuration file and in the API.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "pci",
            Self::AfXdp { .. } => "af_xdp",
            Self::AfPacket { .. } => "af_packet",
            Self::Tap { .. } => "tap",
            Self::Memif { .. } => "memif",
            Self::VhostUser { .. } => "vhost-user",
            Self::Ring { .. } => "ring",
            Self::Pcap { .. } => "pcap",
        }
    }

    /// Returns the device address, interface, socket, link or file, as the API shows it.
    pub fn location(&self) -> String {
        match self {
            Self::Pci { address, .. } => address.clone(),
            Self::AfXdp { device, .. } | Self::AfPacket { device } | Self::Tap { device } => {
                device.clone()
            }
            Self::Memif { socket, .. } | Self::VhostUser { socket } => socket.display().to_string(),
            Self::Ring { link } => link.clone(),
            Self::Pcap { rx_file, .. } => rx_file.display().to_string(),
        }
    }

    /// Returns the name of the resource that only one port of a process can use, for error messages.
    /// [`PortKind::device_key`] is the configuration key of the resource.
    pub fn device(&self) -> String {
        match self {
            Self::Memif { id, .. } => format!("{}#{id}", self.location()),
            Self::Pcap { tx_file: Some(file), .. } => file.display().to_string(),
            _ => self.location(),
        }
    }

    /// Returns the configuration key that names the device.
    pub fn device_key(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "address",
            Self::AfXdp { .. } | Self::AfPacket { .. } | Self::Tap { .. } => "device",
            Self::Memif { .. } => "id",
            Self::VhostUser { .. } => "socket",
            Self::Ring { .. } => "link",
            Self::Pcap { .. } => "tx_file",
        }
    }

    /// Returns true if the two ports cannot both be open. The two ends of a ring name the same link and do not
    /// conflict.
    pub fn same_device(&self, other: &PortKind) -> bool {
        use PortKind::*;
        match (self, other) {
            (Pci { address: a, .. }, Pci { address: b, .. }) => a == b,
            (
                AfXdp { device: a, .. } | AfPacket { device: a } | Tap { device: a },
                AfXdp { device: b, .. } | AfPacket { device: b } | Tap { device: b },
            ) => a == b,
            (Memif { socket: a, id: i, role: r, .. }, Memif { socket: b, id: j, role: s, .. }) => {
                a == b && i == j && r == s
            }
            (VhostUser { socket: a }, VhostUser { socket: b } | Memif { socket: b, .. })
            | (Memif { socket: a, .. }, VhostUser { socket: b }) => a == b,
            // Several ports may read a file that no port writes.
            (Pcap { rx_file: a, tx_file: out }, Pcap { rx_file: b, tx_file: other }) => {
                let wrote = |out: &Option<PathBuf>, file| out.as_ref() == Some(file);
                wrote(out, b) || wrote(other, a) || (out.is_some() && out == other)
            }
            (
                Pci { .. }
                | AfXdp { .. }
                | AfPacket { .. }
                | Tap { .. }
                | Memif { .. }
                | VhostUser { .. }
                | Ring { .. }
                | Pcap { .. },
                _,
            ) => false,
        }
    }

    /// Returns the device's EAL argument; `None` for kinds that need none at the EAL's start.
    pub fn eal_device(&self) -> Option<String> {
        let Self::Pci { address, devargs } = self else { return None };
        let separator = if devargs.is_empty() { "" } else { "," };
        Some(format!("{address}{separator}{devargs}"))
    }

    /// Returns the largest MTU of the kind in bytes; the device may have a lower limit.
    pub fn max_mtu(&self) -> u16 {
        match self {
            Self::Ring { .. } | Self::Memif { .. } | Self::VhostUser { .. } => MAX_MTU,
            Self::AfXdp { .. } => AF_XDP_MAX_MTU,
            Self::Pci { .. } | Self::AfPacket { .. } | Self::Tap { .. } | Self::Pcap { .. } => {
                DEVICE_MAX_MTU
            }
        }
    }

    /// Returns the number of buffers that the port allocates for both sides, in addition to its pool. Only a memif
    /// client has such buffers: one per transmit descriptor in each direction.
    pub fn shared_buffers(&self, queues: u16, tx_descriptors: u16) -> u32 {
        match self {
            Self::Memif { role: MemifRole::Client, .. } => {
                2 * u32::from(queues) * u32::from(tx_descriptors)
            }
            _ => 0,
        }
    }

    /// Returns true if the kind has a single queue, so that only one worker can use it.
    pub fn has_one_queue(&self) -> bool {
        matches!(self, Self::Pcap { .. })
    }

    /// Returns true if frames can leave the host, so that TCP checksums are required.
    pub fn leaves_host(&self) -> bool {
        match self {
            Self::Pci { .. } | Self::AfXdp { .. } | Self::AfPacket { .. } => true,
            Self::Tap { .. }
            | Self::Memif { .. }
            | Self::VhostUser { .. }
            | Self::Ring { .. }
            | Self::Pcap { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ring_ends_may_share_a_device() {
        let ring = PortKind::Ring { link: "wire".into() };
        assert!(!ring.same_device(&ring));
        let tap = PortKind::Tap { device: "eth1".into() };
        assert!(tap.same_device(&PortKind::AfPacket { device: "eth1".into() }));
        let memif = |role, id| PortKind::Memif { socket: "/run/m".into(), role, id, secret: None };
        assert!(memif(MemifRole::Server, 1).same_device(&memif(MemifRole::Server, 1)));
        assert!(!memif(MemifRole::Server, 1).same_device(&memif(MemifRole::Client, 1)));
        assert_eq!(memif(MemifRole::Server, 1).device(), "/run/m#1");
        assert_eq!(memif(MemifRole::Server, 1).location(), "/run/m");
        let vhost = |socket: &str| PortKind::VhostUser { socket: socket.into() };
        assert!(vhost("/run/v").same_device(&vhost("/run/v")));
        assert!(!vhost("/run/v").same_device(&vhost("/run/w")));
        assert!(vhost("/run/m").same_device(&memif(MemifRole::Server, 1)));
        assert!(memif(MemifRole::Client, 1).same_device(&vhost("/run/m")));
        let pcap = |rx: &str, tx: &str| PortKind::Pcap {
            rx_file: rx.into(),
            tx_file: (!tx.is_empty()).then(|| tx.into()),
        };
        assert!(!pcap("a", "").same_device(&pcap("a", "")));
        assert!(!pcap("a", "b").same_device(&pcap("a", "c")));
        for (one, other) in
            [(("a", "b"), ("c", "b")), (("a", "b"), ("b", "")), (("b", ""), ("a", "b"))]
        {
            assert!(pcap(one.0, one.1).same_device(&pcap(other.0, other.1)), "{one:?} {other:?}");
        }
    }

    #[test]
    fn every_role_name_maps_to_its_role() {
        assert!(MemifRole::NAMES.iter().all(|(word, role)| role.name() == *word));
    }
}
