//! Regions, listeners and their queues.

use config::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::StreamId;

/// A region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// `anonymous`, `hugepages`, `shared-memory` or `file`.
    pub backing: String,
    /// Name of the shared-memory object, or path of the file.
    pub path: Option<String>,
    /// Percent of its memory that is ready, while that is being prepared; peers cannot reach it yet, and its removal ends the
    /// preparation.
    #[serde(default)]
    pub preparing: Option<u8>,
    /// Steering tag, `0x` and eight hexadecimal digits; `-` while its memory is being prepared.
    pub stag: String,
    /// Tagged offset of the first byte, as a string of decimal digits (it may exceed 2^53).
    pub base_to: String,
    /// `rw`, `rwa` (with atomics), `r`, `w` or `-`.
    pub access: String,
    /// Several streams at a time may reach it.
    pub shared: bool,
    /// The stream that has it for itself.
    pub bound_to: Option<StreamId>,
    /// Seconds since it was bound to that stream.
    #[serde(default)]
    pub held_for: Option<f64>,
    /// Seconds since that stream was bound or last wrote to it, whichever is later.
    #[serde(default)]
    pub idle_for: Option<f64>,
    /// The bytes cannot be paged out.
    pub locked: bool,
    /// Listeners that advertise it.
    pub listeners: Vec<String>,
    /// Bytes that peers have placed in it.
    pub placed: u64,
    /// Tagged messages delivered to it.
    pub messages: u64,
    /// Made from the configuration file; else through the API.
    pub configured: bool,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListenerInfo {
    /// Its name.
    pub name: String,
    /// Its interface.
    pub interface: String,
    /// Addresses and port, `192.0.2.1:7471` or `[2001:db8::1]:7471`.
    pub addresses: Vec<String>,
    /// `tcp` or `sctp`.
    #[serde(default)]
    pub transport: Transport,
    /// `ddp` or `rdmap`.
    pub ulp: String,
    /// With RDMAP, the word of its service, as in the configuration.
    #[serde(default)]
    pub service: Option<String>,
    /// Streams that the service keeps something about.
    #[serde(default)]
    pub sessions: u64,
    /// MPA revisions that it accepts.
    pub revisions: Vec<u8>,
    /// It asks for markers.
    pub markers: bool,
    /// It asks for CRCs.
    pub crc: bool,
    /// Regions that it advertises.
    pub regions: Vec<String>,
    /// Its untagged queues.
    pub queues: Vec<QueueInfo>,
    /// Streams now.
    pub streams: u32,
    /// Streams at most.
    pub max_streams: u32,
    /// Streams accepted since the start.
    pub accepted: u64,
    /// Streams refused since the start.
    pub refused: u64,
    /// Made from the configuration file; else through the API.
    pub configured: bool,
    /// Prefixes of peers that it admits; empty: all that `deny` does not have. Its interface must admit them too.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Prefixes of peers that it refuses.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// An untagged queue of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueInfo {
    /// Its number.
    pub qn: u32,
    /// Buffers per stream.
    pub buffers: u32,
    /// Bytes per buffer.
    pub buffer_size: u32,
    /// `events`, `file`, `echo` or `discard`.
    pub deliver_to: String,
}
