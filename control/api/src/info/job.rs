//! Jobs in the API: transfers and benchmarks.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;

/// A job: transfer or benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobInfo {
    /// Number of the job.
    pub id: u64,
    /// `put`, `get` or `bench`.
    pub kind: String,
    /// Path of the file. Empty if the job uses a local region instead, or if the client sends the data of a put.
    pub file: PathBuf,
    /// Local region into which a get fetches. Absent for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Address and port of the peer.
    pub remote: String,
    /// Progress of the job.
    pub state: JobState,
    /// Bytes to transfer. 0 until known, and for a benchmark. For a pipe, the bytes read from it so far.
    pub total: u64,
    /// Bytes transferred: acknowledged by the peer's LLP, or received in its Read Responses.
    pub acknowledged: u64,
    /// Time from the first byte to now or to the end, seconds.
    pub seconds: f64,
    /// Reason of a failure, one sentence. `null` if the job has not failed.
    pub error: Option<String>,
    /// Remedy for the operator. `null` if none is known.
    #[serde(default)]
    pub hint: Option<String>,
    /// True if the peer refused: it rejected the connection or ended the stream with an error.
    #[serde(default)]
    pub refused: bool,
    /// Counters of the stream after its end, such as `retransmitted_bytes`. Empty before, and for a benchmark.
    #[serde(default)]
    pub counters: Counters,
    /// For a finished put: true if the peer has confirmed that it has the bytes. False if only its TCP or SCTP has
    /// acknowledged them, and no error has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// Parameters and results of a benchmark. Absent for a transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<Box<BenchInfo>>,
}

/// Parameters and results of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchInfo {
    /// Operation: `write`, `read`, `send`, `echo` or `connect`.
    pub load: String,
    /// Number of streams requested.
    pub streams: u32,
    /// Streams that are established at present.
    pub open: u32,
    /// Message size in bytes.
    pub size: u32,
    /// Maximum number of outstanding messages per stream.
    pub depth: u32,
    /// Duration of the load, microseconds.
    pub time_us: u64,
    /// Requested messages per second of an open loop. `null` for a closed loop.
    pub rate: Option<u64>,
    /// Completed messages; for `connect`, streams established.
    pub messages: u64,
    /// Messages posted but never completed. For an open loop also messages that were due but not posted.
    pub unfinished: u64,
    /// Completed messages per second.
    pub messages_per_s: f64,
    /// Goodput, gigabits of message data per second.
    pub gbit_per_s: f64,
    /// Latencies of the messages. `null` before the end, or if none was recorded.
    pub latency: Option<LatencyInfo>,
}

/// Distribution of latencies, nanoseconds, with three significant digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyInfo {
    /// Number of recorded latencies.
    pub count: u64,
    /// Minimum, nanoseconds.
    pub min_ns: u64,
    /// Mean, nanoseconds.
    pub mean_ns: u64,
    /// Median, nanoseconds.
    pub p50_ns: u64,
    /// 90th percentile, nanoseconds.
    pub p90_ns: u64,
    /// 99th percentile, nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile, nanoseconds.
    pub p999_ns: u64,
    /// 99.99th percentile, nanoseconds.
    pub p9999_ns: u64,
    /// Maximum, nanoseconds.
    pub max_ns: u64,
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The file is being opened, or memory allocated.
    #[default]
    Staging,
    /// The stream is being opened.
    Connecting,
    /// The transfer or the load is in progress.
    Running,
    /// The fetched bytes are being written to the file.
    Saving,
    /// A benchmark posts no more messages. It waits for the outstanding messages and for the end of its streams.
    Stopping,
    /// Success: all bytes are acknowledged or received, or the benchmark has ended.
    Done,
    /// The job has failed; see `error`.
    Failed,
    /// The job was cancelled.
    Cancelled,
}

impl JobState {
    /// Returns true if the job has ended: done, failed or cancelled.
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}
