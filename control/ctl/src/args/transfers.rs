//! Arguments of commands that move bytes: RDMAP operations, files, messages, load.

use std::path::PathBuf;
use std::time::Duration;

use api::StreamId;
use clap::{Args as ClapArgs, ValueEnum};

use super::connect::ConnectOptions;
use crate::url::{Peer, RegionOffset, Url};
use crate::values::{number, size32, stag};

/// Stream for an RDMAP operation: an existing stream, or the options of a new stream.
#[derive(Clone, Debug, ClapArgs)]
pub struct ViaArgs {
    /// Use this stream of the appliance instead of a new stream
    #[arg(long, value_name = "ID", conflicts_with = "interface")]
    pub stream: Option<StreamId>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: ConnectOptions,
}

/// A location in a peer's memory.
#[derive(Debug, ClapArgs)]
pub struct RemoteArgs {
    /// Peer and location in its memory: rdmap://HOST:PORT/REGION[@OFFSET], over SCTP rdmap+sctp://...; with --stag
    /// rdmap://HOST:PORT
    pub url: Url,
    /// Steering tag (STag) of the location, instead of a region's name
    #[arg(long, value_parser = stag, requires = "to")]
    pub stag: Option<u32>,
    /// Tagged offset of the location
    #[arg(long, value_parser = number, requires = "stag")]
    pub to: Option<u64>,
}

/// Arguments of `ddpctl get`.
#[derive(Debug, ClapArgs)]
pub struct Get {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: RemoteArgs,
    /// Output file; created or truncated
    #[arg(required_unless_present = "into", conflicts_with = "into")]
    pub file: Option<PathBuf>,
    /// Region of the appliance to fetch into, instead of a file
    #[arg(long, value_name = "REGION[@OFFSET]")]
    pub into: Option<RegionOffset>,
    /// Number of bytes; by default all from OFFSET to the end of the region
    #[arg(long, value_parser = number)]
    pub length: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: ViaArgs,
    /// Print the job's number instead of waiting for its end
    #[arg(long)]
    pub detach: bool,
}

/// Arguments of `ddpctl ping`.
#[derive(Debug, ClapArgs)]
pub struct Ping {
    /// Rping server: [rdmap://|rdmap+sctp://]HOST:PORT
    pub peer: Peer,
    /// Number of rounds
    #[arg(long, short, default_value_t = 10)]
    pub count: u32,
    /// Bytes that the peer reads and writes per round, 1 to 65536
    #[arg(long, short, default_value_t = 64)]
    pub size: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: ConnectOptions,
}

/// Arguments of `ddpctl bench`.
#[derive(Debug, ClapArgs)]
pub struct Bench {
    /// Operation to repeat
    #[arg(value_enum)]
    pub load: Load,
    /// Peer: [tcp://|rdmap://|sctp://|rdmap+sctp://]HOST:PORT[/REGION[@OFFSET]]; the region is for writes and reads, by
    /// default the peer's only region
    #[arg(long, value_name = "URL")]
    pub to: Url,
    /// Number of streams, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub streams: u32,
    /// Bytes per message: up to 16MiB for write and read, 1MiB for send, 64KiB for echo
    #[arg(long, value_parser = size32, default_value = "64KiB")]
    pub size: u32,
    /// Outstanding messages per stream, 1 to 1024; for echo 1 to 32
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub depth: u32,
    /// Duration, up to 1h
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10s", value_name = "TIME")]
    pub time: Duration,
    /// Open loop: messages per second, all streams together; a latency begins when the message is due
    #[arg(long, value_name = "PER_S")]
    pub rate: Option<u64>,
    /// With send and echo over tcp:// and sctp://: queue number at the peer
    #[arg(long, value_name = "QN", default_value_t = 0)]
    pub queue: u32,
    /// Kind of peer
    #[arg(long, value_enum, default_value_t = LoadPeer::Appliance)]
    pub peer: LoadPeer,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
}

/// Peer of `ddpctl bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadPeer {
    /// Another appliance
    Appliance,
    /// Server of `ib_write_bw -R` (for write) or `ib_read_bw -R` (for read), started with `-s` of the same size
    Perftest,
}

/// Operation that `ddpctl bench` repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// Write into a region of the peer. Latency is measured from the post, or with --rate from its due time, to the
    /// acknowledgement
    Write,
    /// Read from a region of the peer with RDMA Reads
    Read,
    /// Send messages that the peer discards (service = "sink"). Latency is measured as for write
    Send,
    /// Send messages that the peer returns (service = "echo")
    Echo,
    /// Open streams and reset them, --streams at a time. Latency is measured until the stream is established
    Connect,
}

/// Arguments of `ddpctl fetch-add`.
#[derive(Debug, ClapArgs)]
pub struct FetchAdd {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: RemoteArgs,
    /// Value to add
    #[arg(value_parser = number)]
    pub add: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: ViaArgs,
}

/// Arguments of `ddpctl compare-swap`.
#[derive(Debug, ClapArgs)]
pub struct CompareSwap {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: RemoteArgs,
    /// Expected value
    #[arg(value_parser = number)]
    pub compare: u64,
    /// New value
    #[arg(value_parser = number)]
    pub swap: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: ViaArgs,
}

/// Arguments of `ddpctl put`.
#[derive(Debug, ClapArgs)]
pub struct Put {
    /// File, sparse or not, or a pipe (FIFO); - for standard input
    pub file: PathBuf,
    /// Peer and location in its memory: tcp://HOST:PORT/REGION[@OFFSET], with RDMAP rdmap://..., over SCTP sctp:// or
    /// rdmap+sctp://; with --stag tcp://HOST:PORT
    pub url: Url,
    /// Use the kernel sockets of this host, without an appliance
    #[arg(long, conflicts_with_all = ["stream", "interface", "detach"])]
    pub kernel: bool,
    /// Steering tag (STag) of the location, instead of a region's name
    #[arg(long, value_parser = stag, requires = "to")]
    pub stag: Option<u32>,
    /// Tagged offset of the location
    #[arg(long, value_parser = number, requires = "stag")]
    pub to: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
    /// Use this stream of the appliance instead of a new stream
    #[arg(long, value_name = "ID", conflicts_with = "interface")]
    pub stream: Option<StreamId>,
    /// Print the job's number instead of waiting for its end
    #[arg(long)]
    pub detach: bool,
    /// With --kernel: congestion control of the kernel, such as cubic
    #[arg(long, requires = "kernel", value_name = "NAME")]
    pub congestion: Option<String>,
}

/// Arguments of `ddpctl send`.
#[derive(Debug, ClapArgs)]
pub struct Send {
    /// Peer, [tcp://|rdmap://|sctp://|rdmap+sctp://]HOST:PORT, or number of a stream
    pub to: SendTo,
    /// Message; by default standard input
    #[arg(conflicts_with = "file")]
    pub text: Option<String>,
    /// File with the message
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Queue number
    #[arg(long, value_name = "QN", default_value_t = 0)]
    pub queue: u32,
    /// Wait at most this long for a reply, and print it
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    pub wait_reply: Option<Duration>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: ConnectOptions,
}

/// Destination of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTo {
    /// A new stream to this peer.
    Peer(Peer),
    /// An existing stream.
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
