//! `[[port]]`: devices, and what happens on a link inside one process.

use std::time::Duration;

pub use port_kind::{ChecksumMode, MemifRole, PortKind};

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
    pub checksum: ChecksumMode,
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
