//! Ports, interfaces, neighbours, workers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortInfo {
    /// Its name.
    pub name: String,
    /// Word of its kind, as in the configuration.
    pub kind: String,
    /// Device, address, socket, link or file, as configured.
    pub device: String,
    /// DPDK's driver.
    pub driver: String,
    /// Hardware address, `aa:bb:cc:dd:ee:ff`.
    pub mac: String,
    /// Link is up.
    pub up: bool,
    /// Megabits per second, if the device reports it.
    pub speed_mbps: Option<u32>,
    /// Largest IP packet.
    pub mtu: u16,
    /// Receive queues.
    pub queues: u16,
    /// Who computes checksums: `offload`, `software` or `trusted`.
    pub checksum: String,
    /// What the device does (`rx-sctp-checksum`, `tx-tcp-checksum`, `sctp-rules`, ...).
    pub offloads: Vec<String>,
    /// How flows come to workers: `rss` or `software`.
    pub steering: String,
    /// Interfaces on it.
    pub interfaces: Vec<InterfaceInfo>,
    /// Counters of the device and of our side of it.
    pub counters: Counters,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceInfo {
    /// Its name.
    pub name: String,
    /// 802.1Q tag.
    pub vlan: Option<u16>,
    /// Addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// Largest IP packet.
    pub mtu: u16,
    /// Prefixes of peers that its listeners admit; empty: all that `deny` does not have.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Prefixes of peers that its listeners refuse.
    #[serde(default)]
    pub deny: Vec<String>,
    /// Neighbours that are known now.
    pub neighbours: Vec<NeighbourInfo>,
}

/// An entry of the neighbour cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NeighbourInfo {
    /// Its address.
    pub address: String,
    /// Its hardware address, if resolved.
    pub mac: Option<String>,
    /// `incomplete`, `reachable`, `stale`, ...
    pub state: String,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerInfo {
    /// Its number.
    pub id: u32,
    /// The core it is pinned to.
    pub core: Option<u16>,
    /// `poll` or `adaptive`.
    pub idle: String,
    /// Streams that it owns.
    pub streams: u32,
    /// Share of the last second in which it had work, 0 to 1, if known.
    pub busy: Option<f64>,
    /// Its counters.
    pub counters: Counters,
}
