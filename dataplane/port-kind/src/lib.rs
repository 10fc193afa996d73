//! What a port can be: kinds, roles and checksum modes, with the words and the limits of each; and in [`policy`] what
//! else the configuration chooses.
//!
//! The configuration reads these types and the data plane opens ports from them. Nothing here needs DPDK,
//! so `ddpd check` and `ddpctl` build without it. Lengths are bytes; an MTU is that of an IP packet.
#![forbid(unsafe_code)]

pub mod pcap;
pub mod policy;
mod secret;

use std::path::PathBuf;

pub use secret::Secret;

/// Smallest MTU of a port.
pub const MIN_MTU: u16 = 576;
/// Largest MTU of any port. One packet buffer of DPDK's takes little more.
pub const MAX_MTU: u16 = 65_280;
/// Largest MTU of a port with a device, a Linux interface or a file behind it: what DPDK's drivers agree on.
const DEVICE_MAX_MTU: u16 = 9000;
/// Bytes of a frame around its IP packet, VLAN tag included.
pub const FRAME_OVERHEAD: usize = 18;
/// Largest room of a packet buffer: DPDK counts it in 16 bits, 128 bytes of headroom included. Whole cache lines.
pub const MAX_ROOM: usize = 65_344;

/// Bytes of a packet buffer for frames of this MTU, where the kind of the port asks for nothing else: rounded so that drivers
/// which count in KiB see a whole frame.
pub fn buffer_room(mtu: u16) -> u16 {
    (usize::from(mtu) + FRAME_OVERHEAD).next_multiple_of(1024).clamp(2048, MAX_ROOM) as u16
}

/// Most buffers that a memif can share: DPDK's driver counts them in 16 bits. Of the largest ones they are within the 4 GiB
/// that its descriptors can name.
pub const MEMIF_MAX_BUFFERS: u32 = 1 << 16;
const _: () = assert!((MEMIF_MAX_BUFFERS as u64) * (MAX_ROOM as u64) < u32::MAX as u64 - (8 << 20));

/// What an AF_XDP port carries: a page of 4096 bytes less XDP's headroom (256), the kernel's
/// `skb_shared_info` (320), the Ethernet header with a VLAN tag (18) and the frame check (4). veth
/// refuses an XDP program at a larger MTU.
pub const AF_XDP_MAX_MTU: u16 = 3498;

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A PCI device bound to a driver that DPDK can use.
    Pci {
        /// `0000:03:00.0`; the EAL must have been started with it ([`PortKind::eal_device`]).
        address: String,
        /// Driver arguments, handed on as they are; empty for none.
        devargs: String,
    },
    /// A Linux interface through AF_XDP sockets.
    AfXdp {
        /// Linux's name of the interface.
        device: String,
        /// First device queue to use.
        first_queue: u16,
        /// Copy mode even if the driver could do zero-copy.
        force_copy: bool,
    },
    /// A Linux interface through packet sockets.
    AfPacket {
        /// Linux's name of the interface.
        device: String,
    },
    /// A TAP interface that is made for this port.
    Tap {
        /// Linux's name of the interface.
        device: String,
    },
    /// Shared memory with another process.
    Memif {
        /// Path of the rendezvous socket.
        socket: PathBuf,
        /// Which side of it.
        role: MemifRole,
        /// Both sides' number of this pair: several may share a socket.
        id: u32,
        /// Both sides' shared secret, at most 24 bytes.
        secret: Option<Secret<String>>,
    },
    /// A virtual machine or a DPDK process (`net_virtio_user`) through shared memory, DPDK's `net_vhost`: the port
    /// serves the socket, and its frontend comes and goes.
    VhostUser {
        /// Path of the socket, which only the user that runs this process can connect to.
        socket: PathBuf,
    },
    /// One end of a pair inside this process: two ring ports with the same `link` are joined.
    Ring {
        /// Name of the pair.
        link: String,
    },
    /// Capture files (DPDK's `net_pcap`): frames come from one and go to another. One queue.
    Pcap {
        /// Frames that are received, as fast as the worker takes them.
        rx_file: PathBuf,
        /// Where sent frames are written; `None` throws them away.
        tx_file: Option<PathBuf>,
    },
}

/// Side of a memif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Makes the socket and waits.
    Server,
    /// Connects to it, again and again until somebody is there.
    Client,
}

impl MemifRole {
    /// All of them with their words.
    pub const WORDS: [(&'static str, MemifRole); 2] =
        [("server", MemifRole::Server), ("client", MemifRole::Client)];

    /// The word that stands for it in the file and in the driver's arguments.
    pub fn word(self) -> &'static str {
        match self {
            MemifRole::Server => "server",
            MemifRole::Client => "client",
        }
    }
}

/// Who computes a port's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// The device where it can, else the worker.
    Offload,
    /// The worker.
    Software,
    /// Neither: TCP checksums are neither written (zero is sent) nor verified. For ports that never leave the
    /// host.
    Trusted,
}

impl ChecksumMode {
    /// All of them with their words.
    pub const WORDS: [(&'static str, ChecksumMode); 3] = [
        ("offload", ChecksumMode::Offload),
        ("software", ChecksumMode::Software),
        ("trusted", ChecksumMode::Trusted),
    ];
}

/// Who cuts data into TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationMode {
    /// The device, or the virtual machine, where it can; else the worker.
    Offload,
    /// The worker.
    Software,
}

impl SegmentationMode {
    /// Both with their words.
    pub const WORDS: [(&'static str, SegmentationMode); 2] =
        [("offload", SegmentationMode::Offload), ("software", SegmentationMode::Software)];
}

impl PortKind {
    /// Who cuts data into segments if nothing else is said.
    pub fn usual_segmentation(&self) -> SegmentationMode {
        match self {
            Self::VhostUser { .. } => SegmentationMode::Offload,
            // A PCI device's has not been measured.
            Self::Pci { .. }
            | Self::AfXdp { .. }
            | Self::AfPacket { .. }
            | Self::Tap { .. }
            | Self::Memif { .. }
            | Self::Ring { .. }
            | Self::Pcap { .. } => SegmentationMode::Software,
        }
    }

    /// The words of all kinds, in the order in which errors list them.
    pub const WORDS: [&'static str; 8] =
        ["pci", "af_xdp", "af_packet", "tap", "memif", "vhost-user", "ring", "pcap"];

    /// The word that stands for it in the file and in the API.
    pub fn word(&self) -> &'static str {
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

    /// The device address, interface, socket, link or file, as the API shows it.
    pub fn place(&self) -> String {
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

    /// What no two ports of a process can share, for errors; [`PortKind::device_key`] is the key that names it.
    pub fn device(&self) -> String {
        match self {
            Self::Memif { id, .. } => format!("{}#{id}", self.place()),
            Self::Pcap { tx_file: Some(file), .. } => file.display().to_string(),
            _ => self.place(),
        }
    }

    /// The configuration key that names the device.
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

    /// True if two ports cannot both be opened. The two ends of a ring name the same link.
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
            // Several may read a file that none writes.
            (Pcap { rx_file: a, tx_file: out }, Pcap { rx_file: b, tx_file: other }) => {
                let wrote = |out: &Option<PathBuf>, file| out.as_ref() == Some(file);
                wrote(out, b) || wrote(other, a) || (out.is_some() && out == other)
            }
            _ => false,
        }
    }

    /// The device's argument to the EAL, for kinds that it must be started with.
    pub fn eal_device(&self) -> Option<String> {
        let Self::Pci { address, devargs } = self else { return None };
        let separator = if devargs.is_empty() { "" } else { "," };
        Some(format!("{address}{separator}{devargs}"))
    }

    /// Largest MTU that the kind can carry at all; the device may set a lower limit.
    pub fn max_mtu(&self) -> u16 {
        match self {
            Self::Ring { .. } | Self::Memif { .. } | Self::VhostUser { .. } => MAX_MTU,
            Self::AfXdp { .. } => AF_XDP_MAX_MTU,
            Self::Pci { .. } | Self::AfPacket { .. } | Self::Tap { .. } | Self::Pcap { .. } => {
                DEVICE_MAX_MTU
            }
        }
    }

    /// Buffers that a port with so many queues and transmit descriptors makes for both sides, besides its own: a memif
    /// client, whose descriptors are those of both directions.
    pub fn shared_buffers(&self, queues: u16, tx_descriptors: u16) -> u32 {
        match self {
            Self::Memif { role: MemifRole::Client, .. } => {
                2 * u32::from(queues) * u32::from(tx_descriptors)
            }
            _ => 0,
        }
    }

    /// True if it has one queue only, so that one worker can use it.
    pub fn has_one_queue(&self) -> bool {
        matches!(self, Self::Pcap { .. })
    }

    /// True if its frames leave the host, where TCP checksums are needed.
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
    fn only_the_two_ends_of_a_ring_share_a_device() {
        let ring = PortKind::Ring { link: "wire".into() };
        assert!(!ring.same_device(&ring));
        let tap = PortKind::Tap { device: "eth1".into() };
        assert!(tap.same_device(&PortKind::AfPacket { device: "eth1".into() }));
        let memif = |role, id| PortKind::Memif { socket: "/run/m".into(), role, id, secret: None };
        assert!(memif(MemifRole::Server, 1).same_device(&memif(MemifRole::Server, 1)));
        assert!(!memif(MemifRole::Server, 1).same_device(&memif(MemifRole::Client, 1)));
        assert_eq!(memif(MemifRole::Server, 1).device(), "/run/m#1");
        assert_eq!(memif(MemifRole::Server, 1).place(), "/run/m");
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
    fn roles_and_modes_have_their_own_words() {
        assert!(MemifRole::WORDS.iter().all(|(word, role)| role.word() == *word));
    }
}
