//! Transfers and benches.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Counters;

/// A transfer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobInfo {
    /// Its number.
    pub id: u64,
    /// `put`, `get` or `bench`.
    pub kind: String,
    /// The file; empty when a region of the appliance takes its place, or the client sends the bytes of a put.
    pub file: PathBuf,
    /// That region, into which bytes are got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Address and port of the peer.
    pub remote: String,
    /// How far it is.
    pub state: JobState,
    /// Bytes to move; 0 until they are known. Of a pipe, those that it has given so far.
    pub total: u64,
    /// Bytes that the peer's LLP has acknowledged, or that its responses have brought.
    pub acknowledged: u64,
    /// Seconds from the first byte to now or to the end.
    pub seconds: f64,
    /// What went wrong, one sentence.
    pub error: Option<String>,
    /// What can be done about it.
    #[serde(default)]
    pub hint: Option<String>,
    /// The peer refused (rejected the connection or ended the stream with an error).
    #[serde(default)]
    pub refused: bool,
    /// Counters of the stream, once it has ended: `retransmitted_bytes` and others.
    #[serde(default)]
    pub counters: Counters,
    /// Of a put that is done: the peer has confirmed that it has the bytes. Else its TCP or SCTP acknowledged them, and no
    /// error came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// What a bench is, and what it has found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<Box<BenchInfo>>,
}

/// A bench, in its job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BenchInfo {
    /// `write`, `read`, `send`, `echo` or `connect`.
    pub load: String,
    /// Streams.
    pub streams: u32,
    /// Of them, those that stand now.
    pub open: u32,
    /// Bytes of each message.
    pub size: u32,
    /// Messages of each stream that are posted at a time.
    pub depth: u32,
    /// Microseconds for which messages are posted.
    pub time_us: u64,
    /// Messages a second that are wanted, of an open loop.
    pub rate: Option<u64>,
    /// Messages that are complete; of `connect`, streams that stood.
    pub messages: u64,
    /// Messages that were posted and did not complete, and of an open loop those that were due and not posted.
    pub unfinished: u64,
    /// Messages a second.
    pub messages_per_s: f64,
    /// Gigabits of messages a second.
    pub gbit_per_s: f64,
    /// Times of messages, once it has ended.
    pub latency: Option<LatencyInfo>,
}

/// A distribution of times, nanoseconds, with three digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyInfo {
    /// How many times.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// 9 of 10 took no longer.
    pub p90_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
    /// 9999 of 10000.
    pub p9999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The file is being opened, or memory is made.
    #[default]
    Staging,
    /// The stream is being opened.
    Connecting,
    /// Bytes are on their way.
    Running,
    /// Bytes are being written to the file.
    Saving,
    /// A bench posts no more and waits for what is posted, and for the end of its streams.
    Stopping,
    /// Everything is acknowledged.
    Done,
    /// It failed; see `error`.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl JobState {
    /// Returns true if the state is final.
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}
