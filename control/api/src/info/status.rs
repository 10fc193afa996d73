//! Status of the appliance in the API, with sandbox and memory.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lossy_path;

/// Summary of the appliance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Name of the appliance.
    pub name: String,
    /// Version of `ddpd`.
    pub version: String,
    /// Version of libdpdk. `null` if unknown.
    pub dpdk_version: Option<String>,
    /// Path of the configuration file.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub config: PathBuf,
    /// Process ID.
    pub pid: u32,
    /// `running` or `draining`.
    pub state: String,
    /// Time since the start of the appliance, seconds.
    pub uptime_seconds: f64,
    /// True if DPDK's packet pools are in hugepages.
    pub hugepages: bool,
    /// Number of workers.
    pub workers: u32,
    /// Number of ports.
    pub ports: u32,
    /// Number of regions.
    pub regions: u32,
    /// Number of listeners.
    pub listeners: u32,
    /// Number of established streams.
    pub streams: u32,
    /// Streams that have not ended, including those being set up. `null` unless the appliance drains.
    #[serde(default)]
    pub streams_left: Option<u32>,
    /// Memory in use and its limit.
    #[serde(default)]
    pub memory: MemoryInfo,
    /// Notes for the operator, one sentence each (no hugepages, memory not locked, ...).
    pub notes: Vec<String>,
    /// Kind of each note, in the order of `notes`. `ddpctl explain` has its usual cause and remedy.
    #[serde(default)]
    pub note_kinds: Vec<String>,
    /// Reasons why ports neither receive nor send, one sentence each. `/readyz` fails unless this list is empty.
    #[serde(default)]
    pub unusable: Vec<String>,
    /// Sandbox of the process.
    #[serde(default)]
    pub sandbox: SandboxInfo,
}

/// Restrictions of the process (`[management.sandbox]`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxInfo {
    /// True if the process has dropped all capabilities except `capabilities`, and can gain no new privileges.
    pub privileges_dropped: bool,
    /// Capabilities that the process has kept, such as `CAP_NET_RAW`.
    pub capabilities: Vec<String>,
    /// Version of the Landlock ABI that restricts file access. 0 if Landlock is not in use.
    pub landlock: u32,
    /// True if a seccomp filter restricts the system calls of all threads.
    pub seccomp: bool,
    /// Number of threads of the process with the narrower seccomp filter: workers, and pumps of interfaces shared with
    /// the host.
    pub confined_workers: u32,
}

/// Memory in use and its limit, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryInfo {
    /// Limit of `in_use`. Requests that would exceed it are refused.
    pub ceiling: u64,
    /// Memory in use or reserved: the sum of `regions`, `jobs` and `workers`.
    pub in_use: u64,
    /// Memory of regions, except regions in reserved hugepages.
    pub regions: u64,
    /// Staging memory of jobs.
    pub jobs: u64,
    /// Memory reserved for the workers' buffers and for the maximum number of streams.
    pub workers: u64,
    /// Origin of the limit: `limits.memory`, or the memory of the machine.
    pub source: String,
}
