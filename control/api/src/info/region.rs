//! Regions, listeners and their queues in the API.

use config::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::StreamId;

/// A region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionInfo {
    /// Name of the region.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Kind of memory: `anonymous`, `hugepages`, `shared-memory` or `file`.
    pub backing: String,
    /// Name of the shared-memory object, or path of the file. `null` for other memory.
    pub path: Option<String>,
    /// Percentage of the memory that is ready. `null` unless the memory is being prepared. During the preparation peers
    /// cannot access the region, and removing the region ends the preparation.
    #[serde(default)]
    pub preparing: Option<u8>,
    /// STag (steering tag), `0x` and eight hexadecimal digits. `-` while the memory is being prepared.
    pub stag: String,
    /// Tagged offset of the first byte, as a string of decimal digits (it may exceed 2^53).
    pub base_to: String,
    /// Rights of peers: `rw`, `rwa` (with atomics), `r`, `w` or `-` (none).
    pub access: String,
    /// True if several streams may access the region at a time.
    pub shared: bool,
    /// Stream to which the region is bound exclusively. `null` if it is unbound or the stream is being opened.
    pub bound_to: Option<StreamId>,
    /// Time since the region was bound, seconds. `null` if it is unbound.
    #[serde(default)]
    pub held_for: Option<f64>,
    /// Time since the stream was bound or last wrote to the region, whichever is later; seconds. `null` if it is
    /// unbound.
    #[serde(default)]
    pub idle_for: Option<f64>,
    /// True if the memory is locked, so that it cannot be paged out.
    pub locked: bool,
    /// Names of the listeners that advertise the region.
    pub listeners: Vec<String>,
    /// Bytes that peers have placed in the region.
    pub placed: u64,
    /// Tagged messages delivered to the region.
    pub messages: u64,
    /// True if the region is from the configuration file, false if the API added it.
    pub configured: bool,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListenerInfo {
    /// Name of the listener.
    pub name: String,
    /// Name of the interface.
    pub interface: String,
    /// Addresses and port, `192.0.2.1:7471` or `[2001:db8::1]:7471`.
    pub addresses: Vec<String>,
    /// `tcp` or `sctp`.
    #[serde(default)]
    pub transport: Transport,
    /// Protocol above DDP: `ddp` or `rdmap`.
    pub ulp: String,
    /// For RDMAP: name of the service, as in the configuration.
    #[serde(default)]
    pub service: Option<String>,
    /// Streams for which the service holds state.
    #[serde(default)]
    pub sessions: u64,
    /// MPA revisions that the listener accepts.
    pub revisions: Vec<u8>,
    /// True if the listener requests markers.
    pub markers: bool,
    /// True if the listener requests CRCs.
    pub crc: bool,
    /// Names of the regions that the listener advertises.
    pub regions: Vec<String>,
    /// Untagged receive queues.
    pub queues: Vec<QueueInfo>,
    /// Present number of streams.
    pub streams: u32,
    /// Maximum number of streams.
    pub max_streams: u32,
    /// Streams accepted since the start.
    pub accepted: u64,
    /// Streams refused since the start.
    pub refused: u64,
    /// True if the listener is from the configuration file, false if the API added it.
    pub configured: bool,
    /// Prefixes of peers that may connect. Empty: all peers except those in `deny`. The interface must also allow them.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Prefixes of peers that are refused.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// An untagged receive queue of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueInfo {
    /// Queue number.
    pub qn: u32,
    /// Buffers per stream.
    pub buffers: u32,
    /// Size of a buffer in bytes: the longest message.
    pub buffer_size: u32,
    /// Destination of the messages: `events`, `file`, `echo` or `discard`.
    pub deliver_to: String,
}
