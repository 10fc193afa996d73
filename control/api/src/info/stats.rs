//! Counters and histograms.

use std::collections::BTreeMap;

use base::histogram::Counts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;

/// All counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Per worker.
    pub workers: Vec<WorkerStats>,
    /// Per port.
    pub ports: Vec<PortStats>,
    /// Of the control thread.
    pub control: Counters,
    /// Of each listener, by its name.
    #[serde(default)]
    pub listeners: BTreeMap<String, Counters>,
    /// Of each region, by its name.
    #[serde(default)]
    pub regions: BTreeMap<String, Counters>,
    /// Version of libdpdk, if known; the metrics show it, and in JSON the status.
    #[serde(skip)]
    pub dpdk_version: Option<String>,
    /// Values that go up and down: `streams`, `regions`, `region_memory`, `held`, ...
    pub gauges: Counters,
    /// Peers that did not become streams, by listener and failure.
    #[serde(default)]
    pub handshakes: Vec<HandshakeInfo>,
    /// Calls of the API that a role did not allow, by the caller's: `none`, `view`, `operate`.
    #[serde(default)]
    pub api_refused: Counters,
    /// Times and sizes by how often they were.
    #[serde(default)]
    pub histograms: Vec<HistogramInfo>,
}

/// Values by how often they were, since the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistogramInfo {
    /// `handshake`, `echo`, `read` or `burst`.
    pub name: String,
    /// `seconds` or `frames`.
    pub unit: String,
    /// What is measured, a sentence without its end.
    pub help: String,
    /// Upper bounds, themselves included, with the number of values up to each that are above the one before.
    pub buckets: Vec<(f64, u64)>,
    /// Values above the last bound.
    pub beyond: u64,
    /// Sum of all values.
    pub sum: f64,
}

impl HistogramInfo {
    /// Converts counts of nanoseconds to a histogram of seconds.
    pub fn seconds(name: &str, help: &str, counts: &Counts) -> Self {
        Self::from_counts(name, "seconds", help, counts, 1e9)
    }

    /// Converts counts of frames to a histogram.
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

/// How often handshakes of a listener's peers failed in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandshakeInfo {
    /// The listener; empty where nothing listened.
    pub listener: String,
    /// The layer at which they ended, as in the event `handshake_failed`.
    pub stage: String,
    /// Why.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// Counters of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStats {
    /// Its number.
    pub worker: u32,
    /// What it did.
    pub counters: Counters,
    /// What goes up and down.
    #[serde(default)]
    pub gauges: Counters,
    /// What it dropped, by reason.
    pub drops: Counters,
    /// Protocol errors, by `layer_code`.
    pub errors: Counters,
    /// Ends of streams, by reason.
    #[serde(default)]
    pub ends: Counters,
}

/// Counters of one port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortStats {
    /// Its name.
    pub port: String,
    /// What the device and our side of it counted; of impaired ports, what the impairment did.
    pub counters: Counters,
}
