//! Types of `[[port]]`: devices, and impairments of a link inside one process.

use std::time::Duration;

pub use super::super::impair::{BurstLoss, Impairment};
pub use port_kind::{ChecksumMode, MemifRole, PortKind, SegmentationMode};

/// `[[port]]`: one device and its queues.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSection {
    /// Name, unique among the ports of the file.
    pub name: String,
    /// Kind of device behind the port, with its parameters.
    pub kind: PortKind,
    /// Largest IP packet, bytes, 576 to 65,280. Some kinds have a lower maximum.
    pub mtu: u16,
    /// Checksum computation: by the device, in software, or none for TCP.
    pub checksum: ChecksumMode,
    /// TCP segmentation: by the device or in software.
    pub segmentation: SegmentationMode,
    /// Hardware address; `None` for the device's address, or a random local address.
    pub mac: Option<[u8; 6]>,
    /// Indices of the workers that have a queue on the port, at least one, ascending.
    pub workers: Vec<usize>,
    /// Receive descriptors per queue, a power of two.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue, a power of two.
    pub tx_descriptors: u16,
    /// Time after which streams of the port are aborted while its link is down; `None` for never. Zero by default for
    /// `memif` and `vhost-user`, where a lost link means that the peer has exited.
    pub link_down_timeout: Option<Duration>,
    /// Impairment of received frames; only for `ring`.
    pub impair: Option<Impairment>,
}
