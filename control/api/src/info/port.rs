//! Ports, interfaces, neighbours and workers in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;

/// A port: one Ethernet device of DPDK.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortInfo {
    /// Name of the port.
    pub name: String,
    /// Kind of the port, as in the configuration.
    pub kind: String,
    /// Device, PCI address, socket, link or file, as configured.
    pub device: String,
    /// Name of the DPDK driver.
    pub driver: String,
    /// MAC address, `aa:bb:cc:dd:ee:ff`.
    pub mac: String,
    /// True if the link is up.
    pub up: bool,
    /// Link speed, Mbit/s. `null` if the device does not report it.
    pub speed_mbps: Option<u32>,
    /// MTU: largest IP packet, bytes.
    pub mtu: u16,
    /// Number of receive queues.
    pub queues: u16,
    /// Handling of TCP checksums: `offload` (by the device), `software` (by the worker) or `trusted` (not verified).
    pub checksum: String,
    /// Offloads in use, such as `rx-sctp-checksum`, `tx-tcp-checksum`, `sctp-rules`, `tcp-segmentation`.
    pub offloads: Vec<String>,
    /// Distribution of flows to workers: `rss` (by the device) or `software`.
    pub steering: String,
    /// Interfaces on the port.
    pub interfaces: Vec<InterfaceInfo>,
    /// Counters of the device, the queues, the impairment and the packet pool.
    pub counters: Counters,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceInfo {
    /// Name of the interface.
    pub name: String,
    /// VLAN ID of the 802.1Q tag. `null` for untagged frames.
    pub vlan: Option<u16>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// MTU: largest IP packet, bytes.
    pub mtu: u16,
    /// Prefixes of peers that may connect. Empty: all peers except those in `deny`.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Prefixes of peers that are refused.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Entries of the neighbour cache.
    pub neighbours: Vec<NeighbourInfo>,
}

/// An entry of the neighbour cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NeighbourInfo {
    /// IP address of the neighbour.
    pub address: String,
    /// MAC address. `null` if not resolved.
    pub mac: Option<String>,
    /// State of RFC 4861 §7.3.2: `incomplete`, `reachable`, `stale`, ...
    pub state: String,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerInfo {
    /// Number of the worker.
    pub id: u32,
    /// CPU core to which the worker is pinned. `null` if it is not pinned.
    pub core: Option<u16>,
    /// Behaviour when idle: `poll` or `adaptive`.
    pub idle: String,
    /// Streams of the worker, in all states.
    pub streams: u32,
    /// Share of the last second in which the worker was busy, 0 to 1. `null` before the first measurement.
    pub busy: Option<f64>,
    /// Counters of the worker.
    pub counters: Counters,
}
