//! What moves bytes: operations of RDMAP, files, messages and load.

use std::path::PathBuf;
use std::time::Duration;

use api::StreamId;
use clap::{Args as ClapArgs, ValueEnum};

use super::connect::ConnectOptions;
use crate::url::{Peer, RegionOffset, Url};
use crate::values::{number, size32, stag};

/// The stream of an RDMAP operation.
#[derive(Clone, Debug, ClapArgs)]
pub struct ViaArgs {
    /// Use this stream of the appliance instead of a new one
    #[arg(long, value_name = "ID", conflicts_with = "interface")]
    pub stream: Option<StreamId>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: ConnectOptions,
}

/// A place in a peer's memory.
#[derive(Debug, ClapArgs)]
pub struct RemoteArgs {
    /// rdmap://HOST:PORT/REGION[@OFFSET], over SCTP rdmap+sctp://...; with --stag, rdmap://HOST:PORT
    pub url: Url,
    /// Steering tag of the place, instead of a region's name
    #[arg(long, value_parser = stag, requires = "to")]
    pub stag: Option<u32>,
    /// Tagged offset of the place
    #[arg(long, value_parser = number, requires = "stag")]
    pub to: Option<u64>,
}

/// `ddpctl get`.
#[derive(Debug, ClapArgs)]
pub struct Get {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: RemoteArgs,
    /// The file, made anew
    #[arg(required_unless_present = "into", conflicts_with = "into")]
    pub file: Option<PathBuf>,
    /// A region of the appliance instead of a file
    #[arg(long, value_name = "REGION[@OFFSET]")]
    pub into: Option<RegionOffset>,
    /// How many bytes; by default all that follow in the region
    #[arg(long, value_parser = number)]
    pub length: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: ViaArgs,
    /// Do not wait: print the job's number
    #[arg(long)]
    pub detach: bool,
}

/// `ddpctl ping`.
#[derive(Debug, ClapArgs)]
pub struct Ping {
    /// [rdmap://|rdmap+sctp://]HOST:PORT of an rping server
    pub peer: Peer,
    /// Rounds
    #[arg(long, short, default_value_t = 10)]
    pub count: u32,
    /// Bytes that the peer reads and writes in each, 1 to 65536
    #[arg(long, short, default_value_t = 64)]
    pub size: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: ConnectOptions,
}

/// `ddpctl bench`.
#[derive(Debug, ClapArgs)]
pub struct Bench {
    /// What is done again and again
    #[arg(value_enum)]
    pub load: Load,
    /// [tcp://|rdmap://|sctp://|rdmap+sctp://]HOST:PORT[/REGION[@OFFSET]]; of writes and reads, by default the only
    /// region that the peer offers
    #[arg(long, value_name = "URL")]
    pub to: Url,
    /// Streams, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub streams: u32,
    /// Bytes of each message: of writes and reads up to 16MiB, of sends 1MiB, of echoes 64KiB
    #[arg(long, value_parser = size32, default_value = "64KiB")]
    pub size: u32,
    /// Messages of each stream that are posted and not complete, 1 to 1024, of echoes 1 to 32
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub depth: u32,
    /// For how long, up to 1h
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10s", value_name = "TIME")]
    pub time: Duration,
    /// Open loop: so many messages a second of all streams together; times count from when each was due
    #[arg(long, value_name = "PER_S")]
    pub rate: Option<u64>,
    /// With send and echo over tcp:// and sctp://: the peer's queue
    #[arg(long, value_name = "QN", default_value_t = 0)]
    pub queue: u32,
    /// What the peer is
    #[arg(long, value_enum, default_value_t = LoadPeer::Appliance)]
    pub peer: LoadPeer,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
}

/// What `ddpctl bench` loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadPeer {
    /// Another appliance
    Appliance,
    /// The server of `ib_write_bw -R` (for write) or `ib_read_bw -R` (for read), started with `-s` of the same size
    Perftest,
}

/// What `ddpctl bench` does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// Writes into a region of the peer; a time is that to the acknowledgement
    Write,
    /// RDMA Reads from a region of the peer
    Read,
    /// Sends that the peer discards (service = "sink"); a time is that to the acknowledgement
    Send,
    /// Sends that the peer sends back (service = "echo")
    Echo,
    /// Open streams and reset them, --streams at a time; a time is that until a stream stands
    Connect,
}

/// `ddpctl fetch-add`.
#[derive(Debug, ClapArgs)]
pub struct FetchAdd {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: RemoteArgs,
    /// What is added
    #[arg(value_parser = number)]
    pub add: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: ViaArgs,
}

/// `ddpctl compare-swap`.
#[derive(Debug, ClapArgs)]
pub struct CompareSwap {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: RemoteArgs,
    /// What the memory must hold
    #[arg(value_parser = number)]
    pub compare: u64,
    /// What it holds then
    #[arg(value_parser = number)]
    pub swap: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: ViaArgs,
}

/// `ddpctl put`.
#[derive(Debug, ClapArgs)]
pub struct Put {
    /// The file, sparse or not; a pipe (FIFO), or - for the standard input
    pub file: PathBuf,
    /// tcp://HOST:PORT/REGION[@OFFSET], for RDMAP rdmap://..., over SCTP sctp:// or rdmap+sctp://; with
    /// --stag, tcp://HOST:PORT
    pub url: Url,
    /// Over this host's kernel sockets, without an appliance
    #[arg(long, conflicts_with_all = ["stream", "interface", "detach"])]
    pub kernel: bool,
    /// Steering tag of the place, instead of a region's name
    #[arg(long, value_parser = stag, requires = "to")]
    pub stag: Option<u32>,
    /// Tagged offset of the place
    #[arg(long, value_parser = number, requires = "stag")]
    pub to: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
    /// Use this stream of the appliance instead of a new one
    #[arg(long, value_name = "ID", conflicts_with = "interface")]
    pub stream: Option<StreamId>,
    /// Do not wait: print the job's number
    #[arg(long)]
    pub detach: bool,
    /// With --kernel: the kernel's congestion control, such as cubic
    #[arg(long, requires = "kernel", value_name = "NAME")]
    pub congestion: Option<String>,
}

/// `ddpctl send`.
#[derive(Debug, ClapArgs)]
pub struct Send {
    /// [tcp://|rdmap://|sctp://|rdmap+sctp://]HOST:PORT, or the number of a stream
    pub to: SendTo,
    /// The message; without it and --file, the standard input
    #[arg(conflicts_with = "file")]
    pub text: Option<String>,
    /// The file with the message
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Queue number
    #[arg(long, value_name = "QN", default_value_t = 0)]
    pub queue: u32,
    /// Wait so long for a message back, and print it
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    pub wait_reply: Option<Duration>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTo {
    /// On a new stream to this peer.
    Peer(Peer),
    /// On this stream.
    Stream(StreamId),
}

impl std::str::FromStr for SendTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Stream(id));
        }
        text.parse().map(Self::Peer).map_err(|error| format!("{error}; or write a stream's number"))
    }
}
