//! Configuration of a rig: the deviations of two ends and their link from the appliance's defaults.

use ddp::{Qn, Stag};
use serde::{Deserialize, Serialize};

/// Returns the STag of either side's source region, for writes and served Reads;
/// [stable](RigConfig::unstable) or not.
pub const fn source_stag(unstable: bool) -> Stag {
    if unstable { Stag(0x300) } else { Stag(0x100) }
}
/// STag of either side's sink region, target of the other's writes and of its own Reads.
pub const SINK_STAG: Stag = Stag(0x200);
/// Queue of untagged messages.
pub const MESSAGE_QUEUE: Qn = Qn(0);

/// The link between the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Rings inside the process.
    Ring,
    /// Shared memory between two processes.
    Memif,
    /// Packet sockets on the two ends of a veth pair.
    AfPacket,
    /// AF_XDP sockets on the two ends of a veth pair.
    AfXdp,
}

impl Link {
    /// Returns the kind's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Link::Ring => "ring",
            Link::Memif => "memif",
            Link::AfPacket => "af_packet",
            Link::AfXdp => "af_xdp",
        }
    }
}

/// An end of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Opens streams and makes load.
    Initiator,
    /// Accepts streams and is the target of their messages.
    Responder,
}

/// The layers below TCP or SCTP; IPv4 without a VLAN tag by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// True for IPv6, false for IPv4.
    pub v6: bool,
    /// VLAN identifier of both interfaces; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// True if IPsec protects TCP or SCTP; see `protected`.
    pub protected: bool,
}

/// Impairment of a link: loss, delay and rate; none by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Impairment {
    /// Lost frames per million, towards the asked side.
    pub loss_ppm: u32,
    /// Propagation time each way, microseconds.
    pub delay_us: u64,
    /// Rate towards the asked side, Mbit/s; 0 for unlimited.
    pub rate_mbit: u64,
    /// Bytes that may wait for the rate.
    pub queue: u64,
}

/// Deviations of both ends and their link from the appliance's defaults. Unknown keys are ignored
/// and missing ones are defaults, so that programs of different versions can be compared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RigConfig {
    /// The link between the two ends.
    pub link: Link,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// True if both ends request markers.
    pub markers: bool,
    /// True if both ends request CRCs.
    pub crc: bool,
    /// True if TCP checksums are not computed, false if the workers compute them.
    pub trusted: bool,
    /// True for SCTP, false for MPA over TCP.
    pub sctp: bool,
    /// True for RDMAP, false for bare DDP.
    pub rdmap: bool,
    /// The layers below TCP or SCTP.
    #[serde(flatten)]
    pub network: Network,
    /// Bytes of each region.
    pub region: u64,
    /// True if the source region may change during transmission, as the appliance's own regions
    /// may. False if it cannot, as the file of a put.
    pub unstable: bool,
    /// STags that divide the asked side's region into equal parts.
    pub stags: u32,
    /// Cores of the asking and of the asked worker.
    pub cores: [usize; 2],
    /// Frames that a direction of the link holds; `None` for the default.
    pub slots: Option<u16>,
    /// Number of streams.
    pub streams: u32,
    /// Bytes of an untagged buffer.
    pub buffer: u32,
    /// True if the worker of this side sleeps when idle, false if it polls; by [`Side`].
    pub adaptive: [bool; 2],
    /// True if both ends record the events of their streams.
    pub recorder: bool,
    /// True if both sides make the load, false if only the asking one does.
    pub both: bool,
    /// Impairment of the link; `ring` only.
    #[serde(flatten)]
    pub impairment: Impairment,
    /// Names of the Linux interfaces, for `af_packet` and `af_xdp`; the path of the socket for `memif`.
    pub devices: [String; 2],
}

impl Default for RigConfig {
    fn default() -> Self {
        RigConfig {
            link: Link::Ring,
            mtu: 1500,
            markers: false,
            crc: true,
            trusted: false,
            sctp: false,
            rdmap: false,
            network: Network::default(),
            region: 16 << 20,
            unstable: false,
            stags: 1,
            cores: [0, 1],
            slots: None,
            streams: 1,
            buffer: 64 << 10,
            adaptive: [false; 2],
            recorder: true,
            both: false,
            impairment: Impairment::default(),
            devices: [String::new(), String::new()],
        }
    }
}

impl RigConfig {
    /// Returns the bytes of an STag's part of the region.
    pub fn stag_bytes(&self) -> u64 {
        self.region / u64::from(self.stags.max(1))
    }
}
