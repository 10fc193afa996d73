//! Requests to the control thread and its replies. The JSON objects in replies are defined in `info`.
//!
//! The JSON is stable: members may be added, but are never renamed or removed. Sizes are in bytes. Times are in
//! microseconds unless the name has another unit.

use crate::pages::NamePage;
use std::path::PathBuf;
use std::sync::Arc;

use config::directories::Directories;
use config::{ListenerSection, RegionSection};
use ddp::Access;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AssociationInfo, AtomicDone, AtomicSpec, BenchSpec, CaptureSink, CaptureSpec, ConfigDiff,
    ConfigInfo, ConnectSpec, ExplainSubject, GetSpec, Input, IpsecPolicyInfo, IpsecSaInfo, JobInfo,
    ListenerInfo, LogInfo, PingReport, PingSpec, PortInfo, ProgramInfo, PutSpec, RegionInfo,
    SendSpec, Sent, Stats, Status, StreamId, StreamInfo, Why, WorkerInfo,
};

/// A request to the control thread. Each variant names the [`Reply`] that answers it.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Returns the status of the appliance; answered by [`Reply::Status`].
    Status,
    /// Returns all ports; answered by [`Reply::Ports`].
    Ports,
    /// Begins a capture into the sink; answered by [`Reply::Done`] when every worker of the port has begun.
    Capture {
        /// Name of the port.
        port: String,
        /// Selection of frames and bounds of the file.
        spec: CaptureSpec,
        /// Destination of the capture file.
        sink: CaptureSink,
    },
    /// Ends a capture; answered by [`Reply::Done`] when no worker captures. Frames captured earlier are still sent to
    /// the sink.
    EndCapture {
        /// Name of the port.
        port: String,
    },
    /// Returns all workers; answered by [`Reply::Workers`].
    Workers,
    /// Returns a page of the regions, ordered by name; answered by [`Reply::Regions`].
    Regions(NamePage),
    /// Registers a region; answered by [`Reply::Region`] when every worker has it.
    AddRegion(RegionSection),
    /// Deregisters a region; answered by [`Reply::Done`] when every worker has removed it.
    RemoveRegion {
        /// Name of the region.
        name: String,
        /// True: aborts streams that use the region. False: the request fails if the region is in use.
        force: bool,
    },
    /// Changes the rights of peers on a region; answered by [`Reply::Region`] when every worker applies them.
    SetAccess {
        /// Name of the region.
        name: String,
        /// New rights of peers.
        access: Access,
    },
    /// Copies bytes out of a region; answered by [`Reply::Bytes`].
    ReadRegion {
        /// Name of the region.
        name: String,
        /// Offset of the first byte in the region.
        offset: u64,
        /// Length in bytes, at most 16 MiB.
        length: u64,
    },
    /// Returns a page of the listeners, ordered by name; answered by [`Reply::Listeners`].
    Listeners(NamePage),
    /// Adds a listener; answered by [`Reply::Listener`].
    AddListener(ListenerSection),
    /// Removes a listener, but not its streams; answered by [`Reply::Done`].
    RemoveListener {
        /// Name of the listener.
        name: String,
    },
    /// Returns a page of the streams, ordered by number; answered by [`Reply::Streams`].
    Streams {
        /// Only streams with greater numbers.
        after: Option<StreamId>,
        /// Maximum number of streams.
        limit: usize,
    },
    /// Returns one stream; answered by [`Reply::Stream`].
    Stream(StreamId),
    /// Returns the IPsec SAs; answered by [`Reply::IpsecSas`].
    IpsecSas,
    /// Returns the IPsec policies; answered by [`Reply::IpsecPolicies`].
    IpsecPolicies,
    /// Returns all SCTP associations; answered by [`Reply::Associations`].
    Associations,
    /// Returns one SCTP association; answered by [`Reply::Association`].
    Association(StreamId),
    /// Closes a stream; answered by [`Reply::Done`] when it has ended.
    CloseStream {
        /// Number of the stream.
        id: StreamId,
        /// True: resets the stream. False: closes it gracefully.
        abort: bool,
    },
    /// Returns all counters; answered by [`Reply::Stats`].
    Stats,
    /// Opens a stream; answered by [`Reply::Stream`] when it is established.
    Connect(ConnectSpec),
    /// Starts a transfer of a file into a peer's region; answered by [`Reply::Job`] at once.
    Put(PutSpec),
    /// Passes the input of a put without a file; answered by [`Reply::Done`] at once.
    Input {
        /// Number of the put's job.
        id: u64,
        /// Source of the bytes.
        input: Input,
    },
    /// Sends an untagged message; answered by [`Reply::Sent`] when the message is acknowledged and an awaited reply has
    /// arrived. If no reply is awaited, answered after the wait for the peer's confirmation.
    Send(SendSpec),
    /// Starts a transfer from a peer's memory into a file or a region; answered by [`Reply::Job`] at once.
    Get(GetSpec),
    /// Starts a benchmark; answered by [`Reply::Job`] at once.
    Bench(BenchSpec),
    /// Performs rounds of rping; answered by [`Reply::Ping`] after the last round.
    Ping(PingSpec),
    /// Performs an atomic operation; answered by [`Reply::Atomic`] on completion.
    Atomic(AtomicSpec),
    /// Returns all jobs; answered by [`Reply::Jobs`].
    Jobs,
    /// Returns one job, by number; answered by [`Reply::Job`].
    Job(u64),
    /// Cancels a job; answered by [`Reply::Job`].
    CancelJob(u64),
    /// Returns all local programs; answered by [`Reply::Programs`].
    Programs,
    /// Returns one local program; answered by [`Reply::Program`].
    Program(u32),
    /// Ends a local program; answered by [`Reply::Program`] at once.
    KillProgram(u32),
    /// Refuses new streams and jobs from now on; answered by [`Reply::Status`] at once.
    Drain,
    /// Accepts new streams and jobs again; answered by [`Reply::Status`].
    Undrain,
    /// Returns the recorded history of a stream, or of the streams of a job, a peer or a local program; answered by
    /// [`Reply::Explanation`].
    Explain(ExplainSubject),
    /// Reloads the configuration; answered by [`Reply::Reload`].
    Reload,
    /// Returns the effect that a reload would have; answered by [`Reply::Reload`].
    TryReload,
    /// Returns the running configuration; answered by [`Reply::Config`].
    Config,
    /// Returns the differences between the running configuration and its file; answered by
    /// [`Reply::ConfigDiff`].
    ConfigDiff,
    /// Returns the running configuration as the text of this file; answered by [`Reply::Text`].
    ConfigText(PathBuf),
    /// Returns the log's filter; answered by [`Reply::Log`].
    Log,
    /// Sets the log's filter; answered by [`Reply::Log`].
    SetLog(String),
}

/// An answer of the control thread. Serialises as the content of the variant, without the variant's name.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Reply {
    /// Answer to [`Request::Status`], [`Request::Drain`] and [`Request::Undrain`].
    Status(Status),
    /// Answer to [`Request::Ports`].
    Ports(Vec<PortInfo>),
    /// Answer to [`Request::Workers`].
    Workers(Vec<WorkerInfo>),
    /// Answer to [`Request::Regions`].
    Regions(Vec<RegionInfo>),
    /// Answer to [`Request::AddRegion`] and [`Request::SetAccess`].
    Region(RegionInfo),
    /// Answer to [`Request::ReadRegion`]; sent as raw bytes, not as JSON.
    Bytes(Vec<u8>),
    /// Answer to [`Request::Listeners`].
    Listeners(Vec<ListenerInfo>),
    /// Answer to [`Request::AddListener`].
    Listener(ListenerInfo),
    /// Answer to [`Request::Streams`].
    Streams(Vec<StreamInfo>),
    /// Answer to [`Request::Stream`] and [`Request::Connect`].
    Stream(StreamInfo),
    /// Answer to [`Request::IpsecSas`].
    IpsecSas(Vec<IpsecSaInfo>),
    /// Answer to [`Request::IpsecPolicies`].
    IpsecPolicies(Vec<IpsecPolicyInfo>),
    /// Answer to [`Request::Associations`].
    Associations(Vec<AssociationInfo>),
    /// Answer to [`Request::Association`].
    Association(AssociationInfo),
    /// Answer to [`Request::Stats`].
    Stats(Stats),
    /// Answer to [`Request::Send`].
    Sent(Sent),
    /// Answer to [`Request::Ping`].
    Ping(PingReport),
    /// Answer to [`Request::Atomic`].
    Atomic(AtomicDone),
    /// Answer to [`Request::Jobs`].
    Jobs(Vec<JobInfo>),
    /// Answer to [`Request::Put`], [`Request::Get`], [`Request::Bench`], [`Request::Job`] and [`Request::CancelJob`].
    Job(JobInfo),
    /// Answer to [`Request::Programs`].
    Programs(Vec<ProgramInfo>),
    /// Answer to [`Request::Program`] and [`Request::KillProgram`].
    Program(ProgramInfo),
    /// Answer to [`Request::Explain`].
    Explanation(Why),
    /// Answer to [`Request::Reload`] and [`Request::TryReload`].
    Reload(ReloadReport),
    /// Answer to [`Request::Config`].
    Config(ConfigInfo),
    /// Answer to [`Request::ConfigDiff`].
    ConfigDiff(ConfigDiff),
    /// Answer to [`Request::ConfigText`]; written to a file and not sent, because it contains secrets.
    Text {
        /// Text of the configuration file.
        text: String,
        /// File of the running configuration. It may be overwritten in any directory.
        #[serde(skip)]
        running: PathBuf,
        /// Allowed directories for other files.
        #[serde(skip)]
        files: Arc<Directories>,
    },
    /// Answer to [`Request::Log`] and [`Request::SetLog`].
    Log(LogInfo),
    /// Answer to requests without a result: an empty object.
    Done(Done),
}

impl Reply {
    /// Success without a result.
    pub const EMPTY: Self = Self::Done(Done {});
}

/// An empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {}

/// The effect of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReport {
    /// Changes applied, one sentence each.
    pub applied: Vec<String>,
    /// Changes in the file that take effect only after a restart, one sentence each.
    pub needs_restart: Vec<String>,
    /// Changes by the API that the file lacks or contradicts, one sentence each. They remain in force.
    #[serde(default)]
    pub kept: Vec<String>,
    /// Reasons why the reload would be refused, one sentence each. Only of a dry run.
    #[serde(default)]
    pub refused: Vec<String>,
    /// True for a dry run: nothing was applied, and `applied` lists the changes that a reload would make.
    #[serde(default)]
    pub dry_run: bool,
}
