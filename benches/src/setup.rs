//! How the two ends of an end-to-end measurement, and the link between them, differ from the appliance's defaults.

use ddp::{Qn, Stag};
use serde::{Deserialize, Serialize};

/// Either side's region to send from and to serve Reads from, [stable](RigConfig::unstable) or not.
pub const fn source(unstable: bool) -> Stag {
    if unstable { Stag(0x300) } else { Stag(0x100) }
}
/// Either side's region that the other writes to, or that its own Reads fill.
pub const SINK: Stag = Stag(0x200);
/// The queue of untagged messages.
pub const QUEUE: Qn = Qn(0);

/// What joins the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// A ring inside the process.
    Ring,
    /// Shared memory between two processes.
    Memif,
    /// Packet sockets on the two ends of a veth pair.
    AfPacket,
    /// AF_XDP sockets on them.
    AfXdp,
}

impl Link {
    /// As the configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            Link::Ring => "ring",
            Link::Memif => "memif",
            Link::AfPacket => "af_packet",
            Link::AfXdp => "af_xdp",
        }
    }
}

/// Which end of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Opens streams and makes load.
    Asking,
    /// Accepts them and is written to.
    Asked,
}

/// What carries TCP or SCTP; IPv4 without a tag by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// IPv6; else IPv4.
    pub v6: bool,
    /// The VLAN of both interfaces.
    pub vlan: Option<u16>,
    /// IPsec protects it; see `protected`.
    pub protected: bool,
}

/// What a link does to frames; nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Impairment {
    /// Frames lost of a million, towards the asked side.
    pub loss_ppm: u32,
    /// Propagation time each way.
    pub delay_us: u64,
    /// Rate towards the asked side; 0 for any.
    pub rate_mbit: u64,
    /// Bytes that may wait for it.
    pub queue: u64,
}

/// How both ends and the link between them differ from the appliance's defaults. What an older or newer program
/// wrote is read as far as it is known, so that two of them can be compared.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RigConfig {
    /// What joins the two.
    pub link: Link,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// Both ends ask for markers.
    pub markers: bool,
    /// Both ends ask for CRCs.
    pub crc: bool,
    /// TCP checksums are not computed; else the workers compute them.
    pub trusted: bool,
    /// SCTP carries it; else MPA over TCP.
    pub sctp: bool,
    /// RDMAP; else bare DDP.
    pub rdmap: bool,
    /// What is below TCP or SCTP.
    #[serde(flatten)]
    pub network: Network,
    /// Bytes of each region.
    pub region: u64,
    /// The region that is sent from may change under way, as the appliance's own regions may; else it cannot, as a
    /// file that is put.
    pub unstable: bool,
    /// STags that share the asked side's region in equal parts.
    pub stags: u32,
    /// The cores of the asking and the asked worker.
    pub cores: [usize; 2],
    /// Frames that a direction of the link holds, where it is not the default.
    pub slots: Option<u16>,
    /// Streams that there will be.
    pub streams: u32,
    /// Bytes of an untagged buffer.
    pub buffer: u32,
    /// The worker of this side sleeps when there is nothing to do; else it polls.
    pub adaptive: [bool; 2],
    /// Both ends keep what happens to their streams.
    pub recorder: bool,
    /// Both sides make the load; else the asking one.
    pub both: bool,
    /// What the link does to frames; of `ring` only.
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
    /// Bytes of an STag's part of the region.
    pub fn part(&self) -> u64 {
        self.region / u64::from(self.stags.max(1))
    }
}
