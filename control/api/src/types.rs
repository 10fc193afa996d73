//! Requests and replies. The JSON objects that replies hold are in `info`.
//!
//! The JSON is stable: members may be added, never renamed or removed. Sizes are bytes, times
//! microseconds unless the name says otherwise.

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
    ListenerInfo, LogInfo, PingReport, PingSpec, PortInfo, PutSpec, RegionInfo, SendSpec, Sent,
    Stats, Status, StreamId, StreamInfo, Why, WorkerInfo,
};

/// A request to the control thread. Each variant names the [`Reply`] that answers it.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// [`Reply::Status`].
    Status,
    /// [`Reply::Ports`].
    Ports,
    /// Begins a capture into the sink; [`Reply::Done`] when every worker of the port has begun.
    Capture {
        /// Name of the port.
        port: String,
        /// Selection of frames and bounds of the file.
        spec: CaptureSpec,
        /// Receives the file.
        sink: CaptureSink,
    },
    /// Ends a capture; its sink still receives the rest. [`Reply::Done`] when no worker captures.
    EndCapture {
        /// Name of the port.
        port: String,
    },
    /// [`Reply::Workers`].
    Workers,
    /// [`Reply::Regions`], in the order of their names.
    Regions(NamePage),
    /// Registers a region; [`Reply::Region`] when every worker has it.
    AddRegion(RegionSection),
    /// Deregisters a region; [`Reply::Done`] when every worker has removed it.
    RemoveRegion {
        /// Name of the region.
        name: String,
        /// True: aborts streams that use it. False: a region in use is a conflict.
        force: bool,
    },
    /// Changes the rights of peers on a region; [`Reply::Region`] when every worker applies them.
    SetAccess {
        /// Name of the region.
        name: String,
        /// New rights of peers.
        access: Access,
    },
    /// Copies bytes out of a region; [`Reply::Bytes`].
    ReadRegion {
        /// Name of the region.
        name: String,
        /// Offset of the first byte in the region.
        offset: u64,
        /// Length in bytes, at most 16 MiB.
        length: u64,
    },
    /// [`Reply::Listeners`], in the order of their names.
    Listeners(NamePage),
    /// Adds a listener; [`Reply::Listener`].
    AddListener(ListenerSection),
    /// Removes a listener, but not its streams; [`Reply::Done`].
    RemoveListener {
        /// Name of the listener.
        name: String,
    },
    /// [`Reply::Streams`], in the order of their numbers.
    Streams {
        /// Only streams with greater numbers.
        after: Option<StreamId>,
        /// Maximum number of streams.
        limit: usize,
    },
    /// [`Reply::Stream`].
    Stream(StreamId),
    /// [`Reply::IpsecSas`].
    IpsecSas,
    /// [`Reply::IpsecPolicies`].
    IpsecPolicies,
    /// [`Reply::Associations`].
    Associations,
    /// [`Reply::Association`].
    Association(StreamId),
    /// Closes a stream; [`Reply::Done`] when it has ended.
    CloseStream {
        /// Number of the stream.
        id: StreamId,
        /// True: by a reset. False: gracefully.
        abort: bool,
    },
    /// [`Reply::Stats`].
    Stats,
    /// Opens a stream; [`Reply::Stream`] when it is established.
    Connect(ConnectSpec),
    /// Starts to send a file into a peer's region; [`Reply::Job`] at once.
    Put(PutSpec),
    /// Passes the input of a put without a file; [`Reply::Done`] at once.
    Input {
        /// Number of the put's job.
        id: u64,
        /// Source of the bytes.
        input: Input,
    },
    /// Sends an untagged message; [`Reply::Sent`] when it is acknowledged.
    Send(SendSpec),
    /// Starts to read bytes of a peer's memory into a file or a region; [`Reply::Job`] at once.
    Get(GetSpec),
    /// Starts a bench; [`Reply::Job`] at once.
    Bench(BenchSpec),
    /// Performs rounds of rping; [`Reply::Ping`] after the last one.
    Ping(PingSpec),
    /// Performs an atomic operation; [`Reply::Atomic`] on completion.
    Atomic(AtomicSpec),
    /// [`Reply::Jobs`].
    Jobs,
    /// [`Reply::Job`].
    Job(u64),
    /// Cancels a job; [`Reply::Job`].
    CancelJob(u64),
    /// Refuses new streams and jobs from now on; [`Reply::Status`] at once.
    Drain,
    /// Accepts new streams and jobs again; [`Reply::Status`].
    Undrain,
    /// Returns the recorded history of a stream, of a job's streams or of a peer's; [`Reply::Explanation`].
    Explain(ExplainSubject),
    /// Reloads the configuration; [`Reply::Reload`].
    Reload,
    /// Returns the effect that a reload would have; [`Reply::Reload`].
    TryReload,
    /// Returns the running configuration; [`Reply::Config`].
    Config,
    /// Returns the differences between the running configuration and its file;
    /// [`Reply::ConfigDiff`].
    ConfigDiff,
    /// Returns the running configuration as the text of this file; [`Reply::Text`].
    ConfigText(PathBuf),
    /// Returns the log's filter; [`Reply::Log`].
    Log,
    /// Sets the log's filter; [`Reply::Log`].
    SetLog(String),
}

/// An answer of the control thread. It serialises as its content, without the variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Reply {
    /// To [`Request::Status`], [`Request::Drain`] and [`Request::Undrain`].
    Status(Status),
    /// To [`Request::Ports`].
    Ports(Vec<PortInfo>),
    /// To [`Request::Workers`].
    Workers(Vec<WorkerInfo>),
    /// To [`Request::Regions`].
    Regions(Vec<RegionInfo>),
    /// To [`Request::AddRegion`] and [`Request::SetAccess`].
    Region(RegionInfo),
    /// To [`Request::ReadRegion`]; sent as raw bytes, not as JSON.
    Bytes(Vec<u8>),
    /// To [`Request::Listeners`].
    Listeners(Vec<ListenerInfo>),
    /// To [`Request::AddListener`].
    Listener(ListenerInfo),
    /// To [`Request::Streams`].
    Streams(Vec<StreamInfo>),
    /// To [`Request::Stream`] and [`Request::Connect`].
    Stream(StreamInfo),
    /// To [`Request::IpsecSas`].
    IpsecSas(Vec<IpsecSaInfo>),
    /// To [`Request::IpsecPolicies`].
    IpsecPolicies(Vec<IpsecPolicyInfo>),
    /// To [`Request::Associations`].
    Associations(Vec<AssociationInfo>),
    /// To [`Request::Association`].
    Association(AssociationInfo),
    /// To [`Request::Stats`].
    Stats(Stats),
    /// To [`Request::Send`].
    Sent(Sent),
    /// To [`Request::Ping`].
    Ping(PingReport),
    /// To [`Request::Atomic`].
    Atomic(AtomicDone),
    /// To [`Request::Jobs`].
    Jobs(Vec<JobInfo>),
    /// To [`Request::Put`], [`Request::Get`], [`Request::Bench`], [`Request::Job`] and [`Request::CancelJob`].
    Job(JobInfo),
    /// To [`Request::Explain`].
    Explanation(Why),
    /// To [`Request::Reload`] and [`Request::TryReload`].
    Reload(ReloadReport),
    /// To [`Request::Config`].
    Config(ConfigInfo),
    /// To [`Request::ConfigDiff`].
    ConfigDiff(ConfigDiff),
    /// To [`Request::ConfigText`]; written to a file and not sent, because it contains secrets.
    Text {
        /// Text of the configuration file.
        text: String,
        /// File of the running configuration, which may be overwritten.
        #[serde(skip)]
        running: PathBuf,
        /// Allowed directories for other files.
        #[serde(skip)]
        files: Arc<Directories>,
    },
    /// To [`Request::Log`] and [`Request::SetLog`].
    Log(LogInfo),
    /// To requests without a result; an empty object.
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
    /// Reasons why nothing would be applied, one sentence each. Only of a dry run.
    #[serde(default)]
    pub refused: Vec<String>,
    /// True for a dry run: nothing was applied, and `applied` lists what would be.
    #[serde(default)]
    pub dry_run: bool,
}
