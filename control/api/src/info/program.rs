//! Local programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A local program that uses the appliance as its RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramInfo {
    /// Number of the program.
    pub id: u32,
    /// Name that the program gave itself.
    pub name: String,
    /// Effective user id.
    pub uid: u32,
    /// Process id; 0 if the process is in another PID namespace.
    pub pid: i32,
    /// `attaching`, `attached` or `ending`. An ending program waits until its memory is not in use any more.
    pub state: String,
    /// Time since the program attached.
    pub seconds: f64,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Established connections.
    pub connections: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Memory regions.
    pub memory_regions: u32,
    /// Size of the memory regions.
    pub registered: u64,
    /// Memory of regions, in whole pages, and of queues.
    pub memory: u64,
    /// Addresses and ports of listeners, such as `tcp 0.0.0.0:7471`.
    pub listeners: Vec<String>,
    /// Peers' requests that the program has not answered.
    pub requests: u32,
}
