//! Counters, gauges and histograms in the API.

use std::collections::BTreeMap;

use base::histogram::Counts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;

/// All counters and gauges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Counters of each worker.
    pub workers: Vec<WorkerStats>,
    /// Counters of each port.
    pub ports: Vec<PortStats>,
    /// Counters of the control thread, and totals of all streams.
    pub control: Counters,
    /// Counters of each listener, by name.
    #[serde(default)]
    pub listeners: BTreeMap<String, Counters>,
    /// Counters of each region, by name.
    #[serde(default)]
    pub regions: BTreeMap<String, Counters>,
    /// Version of libdpdk; `None` if unknown. Only the metrics use this member. In JSON, the version is part of the
    /// status.
    #[serde(skip)]
    pub dpdk_version: Option<String>,
    /// Gauges of the appliance: `streams`, `regions`, `region_memory`, `held_bytes`, ...
    pub gauges: Counters,
    /// Failed handshakes of peers, by listener, stage and reason.
    #[serde(default)]
    pub handshakes: Vec<HandshakeInfo>,
    /// Calls of the API refused because of the caller's role, by that role: `none`, `view`, `operate`.
    #[serde(default)]
    pub api_refused: Counters,
    /// Histograms of times and sizes since the start.
    #[serde(default)]
    pub histograms: Vec<HistogramInfo>,
}

/// Histogram of values since the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistogramInfo {
    /// `handshake`, `echo`, `read` or `burst`.
    pub name: String,
    /// `seconds` or `frames`.
    pub unit: String,
    /// Description of the measured value, without a full stop.
    pub help: String,
    /// Pairs of upper bound (inclusive) and number of values in the bucket: above the previous bound, up to this bound.
    pub buckets: Vec<(f64, u64)>,
    /// Number of values above the last bound.
    pub beyond: u64,
    /// Sum of all values, in `unit`.
    pub sum: f64,
}

impl HistogramInfo {
    /// Converts counted values in nanoseconds to a histogram in seconds.
    pub fn seconds(name: &str, help: &str, counts: &Counts) -> Self {
        Self::from_counts(name, "seconds", help, counts, 1e9)
    }

    /// Converts counted values in frames to a histogram in frames.
    pub fn frames(name: &str, help: &str, counts: &Counts) -> Self {
        Self::from_counts(name, "frames", help, counts, 1.0)
    }

    fn from_counts(name: &str, unit: &str, help: &str, counts: &Counts, scale: f64) -> Self {
        let bucket = |&(bound, n): &(u64, u64)| (bound as f64 / scale, n);
        HistogramInfo {
            name: name.to_owned(),
            unit: unit.to_owned(),
            help: help.to_owned(),
            buckets: counts.buckets.iter().map(bucket).collect(),
            beyond: counts.overflow,
            sum: counts.sum as f64 / scale,
        }
    }
}

/// Number of failed handshakes of one kind with a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandshakeInfo {
    /// Name of the listener. Empty if no listener had the port, or if 4096 other counters exist already.
    pub listener: String,
    /// Layer at which the handshakes failed, as in the event `handshake_failed`.
    pub stage: String,
    /// Reason, as in the event `handshake_failed`.
    pub reason: String,
    /// Number of failures.
    pub count: u64,
}

/// Counters and gauges of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStats {
    /// Number of the worker.
    pub worker: u32,
    /// Counters of the worker, and totals of its streams.
    pub counters: Counters,
    /// Gauges: present values, and maxima since the start.
    #[serde(default)]
    pub gauges: Counters,
    /// Frames and segments dropped, by reason.
    pub drops: Counters,
    /// Protocol errors that ended streams, by layer and code, such as `ddp_1_02`.
    pub errors: Counters,
    /// Ended streams, by reason.
    #[serde(default)]
    pub ends: Counters,
}

/// Counters of one port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortStats {
    /// Name of the port.
    pub port: String,
    /// Counters of the device, the queues, the impairment and the packet pool.
    pub counters: Counters,
}
