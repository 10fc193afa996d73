//! Configuration of a rig, that is of two data planes and the link between them: the deviations from the appliance's
//! defaults.

use ddp::{Qn, Stag};
use serde::{Deserialize, Serialize};

/// Returns the STag of a side's source region: the source of the side's writes and of the Reads that the side serves.
/// `unstable`: see [`RigConfig::unstable`].
pub const fn source_stag(unstable: bool) -> Stag {
    if unstable { Stag(0x300) } else { Stag(0x100) }
}
/// STag of a side's sink region: the target of the peer's writes and of the side's own Reads.
pub const SINK_STAG: Stag = Stag(0x200);
/// Queue number of untagged messages.
pub const MESSAGE_QUEUE: Qn = Qn(0);

/// Kind of the link between the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Rings inside the process.
    Ring,
    /// Shared-memory packet interface (memif) between two processes.
    Memif,
    /// AF_PACKET sockets on the two ends of a veth pair.
    AfPacket,
    /// AF_XDP sockets on the two ends of a veth pair.
    AfXdp,
}

impl Link {
    /// Returns the name of this kind of port in the appliance's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Link::Ring => "ring",
            Link::Memif => "memif",
            Link::AfPacket => "af_packet",
            Link::AfXdp => "af_xdp",
        }
    }
}

/// The two ends of the rig, which have different tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Opens streams and posts messages.
    Initiator,
    /// Accepts streams and receives their messages.
    Responder,
}

/// The layers below TCP or SCTP. The default is IPv4 without a VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// True for IPv6, false for IPv4.
    pub v6: bool,
    /// VLAN identifier of both interfaces; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// True if IPsec protects TCP or SCTP; see `ipsec.rs`.
    pub protected: bool,
}

/// Emulated loss, delay and rate of a link. The default is a link without impairment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Impairment {
    /// Frames towards the responder that are lost, per million.
    pub loss_ppm: u32,
    /// Propagation delay in each direction, microseconds.
    pub delay_us: u64,
    /// Rate towards the responder, Mbit/s; 0 for unlimited.
    pub rate_mbit: u64,
    /// Length of the queue in front of the rate limit, bytes.
    pub queue: u64,
}

/// Deviations of both ends and their link from the appliance's defaults. Unknown keys are ignored, and missing keys
/// have their default values, so that programs of different versions can be compared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RigConfig {
    /// Kind of the link between the two ends.
    pub link: Link,
    /// Maximum length of an IP packet, bytes.
    pub mtu: u16,
    /// True if both ends request markers.
    pub markers: bool,
    /// True if both ends request CRCs.
    pub crc: bool,
    /// True if TCP checksums are neither computed nor verified; false if the workers compute and verify them.
    pub trusted: bool,
    /// True for SCTP, false for MPA over TCP.
    pub sctp: bool,
    /// True for RDMAP, false for bare DDP.
    pub rdmap: bool,
    /// The layers below TCP or SCTP.
    #[serde(flatten)]
    pub network: Network,
    /// Length of each region, bytes.
    pub region: u64,
    /// True if the contents of the source region may change during transmission, as with the appliance's regions. False
    /// if they cannot change, as with the file of a put.
    pub unstable: bool,
    /// Number of STags that divide the responder's region into equal parts.
    pub stags: u32,
    /// Cores of the initiator's and the responder's worker.
    pub cores: [usize; 2],
    /// Capacity of each direction of the link, frames; `None` for the default.
    pub slots: Option<u16>,
    /// Number of streams.
    pub streams: u32,
    /// Length of an untagged buffer, bytes.
    pub buffer: u32,
    /// True if a side's worker sleeps when idle, false if the worker always polls. The index is [`Side`].
    pub adaptive: [bool; 2],
    /// True if both ends record the events of each stream in the flight recorder.
    pub recorder: bool,
    /// True if both sides post messages, false if only the initiator does.
    pub both: bool,
    /// Impairment of the link; only for [`Link::Ring`].
    #[serde(flatten)]
    pub impairment: Impairment,
    /// Linux interface of each side for `af_packet` and `af_xdp`. For `memif`, both elements are the path of the
    /// socket.
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
    /// Returns the length of each STag's part of the responder's region, bytes.
    pub fn stag_bytes(&self) -> u64 {
        self.region / u64::from(self.stags.max(1))
    }
}
