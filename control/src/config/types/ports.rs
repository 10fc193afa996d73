//! `[[port]]`: devices, and what happens on a link inside one process.

use std::path::PathBuf;
use std::time::Duration;

/// `[[port]]`: one device and its queues.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSection {
    /// Unique name.
    pub name: String,
    /// What the port is.
    pub kind: PortKind,
    /// Largest IP packet, octets, 576 to 9000 and no more than the kind carries.
    pub mtu: u16,
    /// Who computes checksums.
    pub checksum: Checksum,
    /// Hardware address; `None` takes the device's, or a random local one.
    pub mac: Option<[u8; 6]>,
    /// The workers (indices) that have a queue on it, at least one, ascending.
    pub workers: Vec<usize>,
    /// Receive descriptors per queue, a power of two.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue, a power of two.
    pub tx_descriptors: u16,
    /// Streams of the port are aborted when its link has been down for this long; `None` for never. Zero
    /// for `memif`, where a lost link is a peer that has ended.
    pub link_down_timeout: Option<Duration>,
    /// Impairment of what this port receives; only `ring`.
    pub impair: Option<Impairment>,
}

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A PCI device bound to a driver that DPDK can use.
    Pci {
        /// `0000:03:00.0`.
        address: String,
        /// Driver arguments, handed on as they are; empty for none.
        devargs: String,
    },
    /// A Linux interface through an AF_XDP socket.
    AfXdp {
        /// Linux's name of the interface.
        device: String,
        /// First device queue to use.
        first_queue: u16,
        /// Copy mode even if the driver could do zero-copy.
        force_copy: bool,
    },
    /// A Linux interface through a packet socket.
    AfPacket {
        /// Linux's name of the interface.
        device: String,
    },
    /// A TAP interface that the appliance makes.
    Tap {
        /// Linux's name of the interface.
        device: String,
    },
    /// Shared memory with another process.
    Memif {
        /// The rendezvous socket.
        socket: PathBuf,
        /// Which side of it.
        role: MemifRole,
        /// Both sides' number of this pair.
        id: u32,
        /// Both sides' shared secret, at most 24 characters.
        secret: Option<String>,
    },
    /// One end of a pair inside this process: two ring ports with the same `link` are joined.
    Ring {
        /// Name of the pair.
        link: String,
    },
}

/// Side of a memif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Makes the socket.
    Server,
    /// Connects to it.
    Client,
}

/// Who computes checksums of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The device where it can, else the worker.
    Offload,
    /// The worker.
    Software,
    /// Nobody: TCP checksums are neither written nor verified. In-process and in-host ports only.
    Trusted,
}

/// What a `ring` port does to the frames it receives. Probabilities are 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    /// Random loss.
    pub loss: f64,
    /// Loss in bursts (Gilbert-Elliott); `loss` is then the loss between bursts.
    pub burst_loss: Option<BurstLoss>,
    /// Probability that a frame is held back by `reorder_delay`.
    pub reorder: f64,
    /// How long a reordered frame is held back.
    pub reorder_delay: Duration,
    /// Delay of every frame.
    pub delay: Duration,
    /// Uniform random addition to the delay.
    pub jitter: Duration,
    /// Probability that a frame arrives twice.
    pub duplicate: f64,
    /// Probability that one bit of a frame is flipped.
    pub corrupt: f64,
    /// Bits per second; `None` for no bound.
    pub rate: Option<u64>,
    /// Octets that may wait for the rate; what does not fit is dropped.
    pub queue: u64,
    /// The same seed impairs the same way.
    pub seed: u64,
}

/// The Gilbert-Elliott model: a good state without loss, a bad one in which frames are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// Per frame, the probability that a burst begins.
    pub enter: f64,
    /// Per frame, the probability that it ends.
    pub leave: f64,
    /// Loss inside a burst.
    pub loss: f64,
}

impl PortKind {
    /// The word that stands for it in the file and in the API.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "pci",
            Self::AfXdp { .. } => "af_xdp",
            Self::AfPacket { .. } => "af_packet",
            Self::Tap { .. } => "tap",
            Self::Memif { .. } => "memif",
            Self::Ring { .. } => "ring",
        }
    }

    /// The device, address, socket or link.
    pub fn device(&self) -> String {
        match self {
            Self::Pci { address, .. } => address.clone(),
            Self::AfXdp { device, .. } | Self::AfPacket { device } | Self::Tap { device } => {
                device.clone()
            }
            Self::Memif { socket, id, .. } => format!("{}#{id}", socket.display()),
            Self::Ring { link } => link.clone(),
        }
    }
}
