//! The appliance: status, sandbox, memory.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lossy_path;

/// The appliance in a few numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Version of libdpdk, if known.
    pub dpdk_version: Option<String>,
    /// The configuration file.
    #[serde(serialize_with = "lossy_path::serialize")]
    #[schemars(with = "PathBuf")]
    pub config: PathBuf,
    /// Process number.
    pub pid: u32,
    /// `running` or `draining`.
    pub state: String,
    /// Time since the start, seconds.
    pub uptime_seconds: f64,
    /// Whether DPDK's pools lie in hugepages.
    pub hugepages: bool,
    /// Workers.
    pub workers: u32,
    /// Ports.
    pub ports: u32,
    /// Regions.
    pub regions: u32,
    /// Listeners.
    pub listeners: u32,
    /// Streams that are established.
    pub streams: u32,
    /// While it drains, streams that have not ended, those included that are being set up.
    #[serde(default)]
    pub streams_left: Option<u32>,
    /// Memory in use, and its ceiling.
    #[serde(default)]
    pub memory: MemoryInfo,
    /// What the operator should know, one sentence each (no hugepages, memory not locked, ...).
    pub notes: Vec<String>,
    /// The kind of each note, in the order of `notes`; `ddpctl explain` has its usual cause and the remedy.
    #[serde(default)]
    pub note_kinds: Vec<String>,
    /// Why ports neither receive nor send, one sentence each: `/readyz` fails as long as there is one.
    #[serde(default)]
    pub unusable: Vec<String>,
    /// What the process denies itself.
    #[serde(default)]
    pub sandbox: SandboxInfo,
}

/// What the process denies itself (`[management.sandbox]`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxInfo {
    /// It has no new privileges, and only these capabilities.
    pub privileges_dropped: bool,
    /// Capabilities that it kept, such as `CAP_NET_RAW`.
    pub capabilities: Vec<String>,
    /// Version of Landlock by which its files are restricted; 0 if they are not.
    pub landlock: u32,
    /// System calls of all its threads are restricted.
    pub seccomp: bool,
    /// Workers whose system calls are restricted further.
    pub confined_workers: u32,
}

/// Memory in use, and its ceiling. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryInfo {
    /// No request takes more than this.
    pub ceiling: u64,
    /// Of it: regions, jobs, workers' buffers and streams.
    pub in_use: u64,
    /// Regions, without those in reserved hugepages.
    pub regions: u64,
    /// What jobs stage.
    pub jobs: u64,
    /// Set aside for the workers' buffers and for as many streams as they may have.
    pub workers: u64,
    /// Where the ceiling is from: `limits.memory`, or what the machine has.
    pub source: String,
}
