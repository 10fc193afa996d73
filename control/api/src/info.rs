//! The JSON objects that show the state of the appliance: what replies hold.
//!
//! The JSON is stable: members may be added, never renamed or removed. Sizes are bytes, times
//! microseconds unless the name says otherwise.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base::histogram::Counts;
use base::metric::Descriptor;
use config::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{StreamId, lossy_path};

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

/// A region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// `anonymous`, `hugepages`, `shared-memory` or `file`.
    pub backing: String,
    /// Name of the shared-memory object, or path of the file.
    pub path: Option<String>,
    /// Percent of its memory that is ready, while that is being prepared; peers cannot reach it yet, and its removal ends the
    /// preparation.
    #[serde(default)]
    pub preparing: Option<u8>,
    /// Steering tag, `0x` and eight hexadecimal digits; `-` while its memory is being prepared.
    pub stag: String,
    /// Tagged offset of the first byte, as a string of decimal digits (it may exceed 2^53).
    pub base_to: String,
    /// `rw`, `rwa` (with atomics), `r`, `w` or `-`.
    pub access: String,
    /// Several streams at a time may reach it.
    pub shared: bool,
    /// The stream that has it for itself.
    pub bound_to: Option<StreamId>,
    /// Seconds since it was bound to that stream.
    #[serde(default)]
    pub held_for: Option<f64>,
    /// Seconds since that stream was bound or last wrote to it, whichever is later.
    #[serde(default)]
    pub idle_for: Option<f64>,
    /// The bytes cannot be paged out.
    pub locked: bool,
    /// Listeners that advertise it.
    pub listeners: Vec<String>,
    /// Bytes that peers have placed in it.
    pub placed: u64,
    /// Tagged messages delivered to it.
    pub messages: u64,
    /// Made from the configuration file; else through the API.
    pub configured: bool,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ListenerInfo {
    /// Its name.
    pub name: String,
    /// Its interface.
    pub interface: String,
    /// Addresses and port, `192.0.2.1:7471` or `[2001:db8::1]:7471`.
    pub addresses: Vec<String>,
    /// `tcp` or `sctp`.
    #[serde(default)]
    pub transport: Transport,
    /// `ddp` or `rdmap`.
    pub ulp: String,
    /// With RDMAP, the word of its service, as in the configuration.
    #[serde(default)]
    pub service: Option<String>,
    /// Streams that the service keeps something about.
    #[serde(default)]
    pub sessions: u64,
    /// MPA revisions that it accepts.
    pub revisions: Vec<u8>,
    /// It asks for markers.
    pub markers: bool,
    /// It asks for CRCs.
    pub crc: bool,
    /// Regions that it advertises.
    pub regions: Vec<String>,
    /// Its untagged queues.
    pub queues: Vec<QueueInfo>,
    /// Streams now.
    pub streams: u32,
    /// Streams at most.
    pub max_streams: u32,
    /// Streams accepted since the start.
    pub accepted: u64,
    /// Streams refused since the start.
    pub refused: u64,
    /// Made from the configuration file; else through the API.
    pub configured: bool,
    /// Prefixes of peers that it admits; empty: all that `deny` does not have. Its interface must admit them too.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Prefixes of peers that it refuses.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// An untagged queue of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueInfo {
    /// Its number.
    pub qn: u32,
    /// Buffers per stream.
    pub buffers: u32,
    /// Bytes per buffer.
    pub buffer_size: u32,
    /// `events`, `file`, `echo` or `discard`.
    pub deliver_to: String,
}

/// A stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamInfo {
    /// Its number.
    pub id: StreamId,
    /// The worker that owns it.
    pub worker: u32,
    /// Its listener; none if it was opened from here.
    pub listener: Option<String>,
    /// Our address and port.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// `connecting`, `established`, `closing`, ...
    pub state: String,
    /// `tcp` or `sctp`.
    #[serde(default)]
    pub transport: Transport,
    /// Over SCTP, the association that it is a session of; other sessions of it have the same.
    #[serde(default)]
    pub association: Option<StreamId>,
    /// Longest ULPDU when it was established, bytes.
    #[serde(default)]
    pub mulpdu: Option<u32>,
    /// What MPA agreed on, once it has; none over SCTP.
    pub mpa: Option<MpaInfo>,
    /// Regions that the peer may reach.
    pub regions: Vec<String>,
    /// Regions that the peer advertised (streams opened from here).
    pub peer_regions: Vec<PeerRegion>,
    /// Time since it was established, seconds.
    pub age_seconds: f64,
    /// Present state of its connection, or of its association; none while its worker does not know it.
    #[serde(default)]
    pub flow: Option<FlowInfo>,
    /// Its counters.
    pub counters: Counters,
}

/// Present state of a TCP connection or an SCTP association: what `ss -ti` shows of a kernel's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowInfo {
    /// Smoothed round trip (RFC 6298 §2), microseconds; none before one was measured.
    pub rtt_us: Option<u64>,
    /// Its variation, microseconds.
    pub rttvar_us: u64,
    /// The shortest round trip of the last minutes, microseconds.
    pub min_rtt_us: Option<u64>,
    /// Retransmission time-out, microseconds.
    pub rto_us: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; none before the first loss.
    pub ssthresh: Option<u64>,
    /// Bytes that are thought to be in the network.
    pub in_flight: u64,
    /// Bytes per second at which bursts leave; none while they are not paced.
    pub pacing_rate: Option<u64>,
    /// Bytes per second that the peer acknowledged, when it was last measured: over 10 ms or more in which something
    /// else than the application was the limit.
    pub delivery_rate: Option<u64>,
    /// Window that the peer offered last, bytes.
    pub peer_window: u64,
    /// Window that was offered to the peer last, bytes.
    pub own_window: u64,
    /// Bytes of the largest IP packet that the path is thought to carry.
    pub path_mtu: u16,
    /// What keeps it from sending more now: `application`, `peer_window`, `send_window`, `congestion_window`, `pacing`
    /// or `port`.
    pub limited_by: String,
    /// The share of its time for which each was the limit, 0 to 1.
    pub limited: BTreeMap<String, f64>,
}

/// An SCTP association (RFC 5043): streams over it are its sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssociationInfo {
    /// Its number, as [`StreamInfo::association`] has it.
    pub id: StreamId,
    /// The worker that owns it.
    pub worker: u32,
    /// Our address and SCTP port.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// Where it goes in UDP (RFC 6951), our UDP port and the peer's.
    pub udp: Option<[u16; 2]>,
    /// State of RFC 9260 §4.
    pub state: String,
    /// Its streams now.
    pub sessions: u32,
    /// Streams at most: pairs of SCTP streams, 0 before they are agreed on.
    pub streams: u16,
    /// Bytes of the largest IP packet that the path is known to carry.
    pub path_mtu: u16,
    /// Smoothed round trip, microseconds; none before one was measured.
    pub round_trip_us: Option<u64>,
    /// Retransmission time-out, microseconds.
    pub rto_us: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes of DATA chunks that are thought to be in the network.
    pub in_flight: u64,
    /// The peer's window as last received, bytes.
    pub peer_window: u64,
    /// Retransmissions and heartbeats in a row that went unanswered.
    pub unanswered: u32,
    /// All of its present state; what stands above, too.
    #[serde(default)]
    pub flow: FlowInfo,
    /// Its counters, those of all of its sessions.
    pub counters: Counters,
}

/// What MPA agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MpaInfo {
    /// Revision.
    pub revision: u8,
    /// We send markers.
    pub markers_tx: bool,
    /// The peer sends markers.
    pub markers_rx: bool,
    /// CRCs are checked.
    pub crc: bool,
    /// Longest ULPDU, bytes.
    pub mulpdu: u32,
}

/// A region that a peer advertised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerRegion {
    /// Its name.
    pub name: String,
    /// Steering tag, `0x` and eight hexadecimal digits.
    pub stag: String,
    /// Tagged offset of the first byte, decimal digits.
    pub base_to: String,
    /// Bytes.
    pub size: u64,
    /// `rw`, `r`, `w` or `-`.
    pub access: String,
    /// Another stream has it for itself.
    #[serde(default)]
    pub busy: bool,
}

/// Named numbers. Names are `snake_case` and stable.
pub type Counters = BTreeMap<String, u64>;

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
    /// What the counters are; the metrics show it and JSON does not.
    #[serde(skip)]
    pub described: MetricDescriptors,
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

/// Descriptors of counters, by owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricDescriptors {
    /// Of workers.
    pub worker: Vec<&'static Descriptor>,
    /// Of ports.
    pub port: Vec<&'static Descriptor>,
    /// Of the control thread.
    pub control: Vec<&'static Descriptor>,
    /// Of listeners.
    pub listener: Vec<&'static Descriptor>,
    /// Of regions.
    pub region: Vec<&'static Descriptor>,
    /// Of [`Stats::gauges`].
    pub gauges: Vec<&'static Descriptor>,
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
