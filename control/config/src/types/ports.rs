//! `[[port]]`: devices, and impairments of a link inside one process.

use std::time::Duration;

pub use super::super::impair::{BurstLoss, Impairment};
pub use port_kind::{ChecksumMode, MemifRole, PortKind, SegmentationMode};

/// `[[port]]`: one device and its queues.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSection {
    /// Unique name.
    pub name: String,
    /// Kind of the port.
    pub kind: PortKind,
    /// Largest IP packet, bytes, 576 to 65,280 and no more than the kind carries.
    pub mtu: u16,
    /// Checksum computation: by the device or in software.
    pub checksum: ChecksumMode,
    /// TCP segmentation: by the device or in software.
    pub segmentation: SegmentationMode,
    /// Hardware address; `None` takes the device's, or a random local one.
    pub mac: Option<[u8; 6]>,
    /// The workers (indices) that have a queue on it, at least one, ascending.
    pub workers: Vec<usize>,
    /// Receive descriptors per queue, a power of two.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue, a power of two.
    pub tx_descriptors: u16,
    /// Streams of the port are aborted when its link has been down for this long; `None` for never. Zero
    /// for `memif` and `vhost-user`, where a lost link is a peer that has ended.
    pub link_down_timeout: Option<Duration>,
    /// Impairment of received frames; only `ring`.
    pub impair: Option<Impairment>,
}
