//! The API's description of a local program.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A local program that uses the appliance as its RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramInfo {
    /// Number of the program.
    pub id: u32,
    /// Name that the program sent when it attached.
    pub name: String,
    /// Effective user id.
    pub uid: u32,
    /// Process id; 0 if the process is in another PID namespace.
    pub pid: i32,
    /// `attaching`, `attached` or `ending`. A program is ending until its memory is no longer in use.
    pub state: String,
    /// Time since the program attached, seconds.
    pub seconds: f64,
    /// Number of queue pairs.
    pub queue_pairs: u32,
    /// Number of established connections.
    pub connections: u32,
    /// Number of completion queues.
    pub completion_queues: u32,
    /// Number of memory regions.
    pub memory_regions: u32,
    /// Total length of the memory regions, bytes.
    pub registered: u64,
    /// Memory charged to the program, bytes: regions in whole pages, and queues.
    pub memory: u64,
    /// Addresses and ports of listeners, such as `tcp 0.0.0.0:7471`.
    pub listeners: Vec<String>,
    /// Number of connection requests that the program has not answered.
    pub requests: u32,
}
