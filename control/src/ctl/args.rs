//! `ddpctl`'s command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};

use super::capture::Capture;
use super::config::Config;
use super::streams::Selection;
use super::top::Top;
use super::url::{Peer, RegionAt, Url};
use crate::api::{Severity, StreamId};
use crate::config::{DEFAULT_SOCKET, parse_u64};

/// Manages ddpd, and sends files into the memory of DDP peers.
#[derive(Debug, Parser)]
#[command(
    name = "ddpctl",
    version,
    after_help = "Exit codes: 0 done, 1 the operation failed, 2 the command line or what it asks for \
                  is wrong, 3 the appliance (with --kernel: the peer) cannot be reached, 4 the peer \
                  refused, 5 delivered but not confirmed, 6 the appliance does not answer."
)]
pub struct Args {
    /// The appliance's management.socket
    #[arg(long, global = true, value_name = "PATH", env = "DDPD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Write stable JSON, one object or list per answer; errors go to stderr, as JSON too
    #[arg(long, global = true)]
    pub json: bool,
    /// Give up when the appliance has been silent for this time; an operation that takes longer is waited for
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5s")]
    pub timeout: Duration,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Status of the appliance
    Status,
    /// Ports, their interfaces and neighbours
    Ports,
    /// Worker threads
    Workers,
    /// Memory that peers can reach
    #[command(subcommand)]
    Regions(Regions),
    /// Where streams are accepted
    Listeners {
        /// Without one: list
        #[command(subcommand)]
        command: Option<Listeners>,
    },
    /// SCTP associations, whose sessions streams are
    #[command(subcommand)]
    Associations(Associations),
    /// Streams
    #[command(subcommand)]
    Streams(Streams),
    /// Streams, workers, regions, peers and ports on a full screen, with rates; ? there shows the keys
    Top(Top),
    /// Counters, drops by reason and protocol errors
    Stats {
        /// Also those that are 0
        #[arg(long)]
        all: bool,
    },
    /// Events
    Events(Events),
    /// Frames that a port receives and sends, as pcapng; until Ctrl-C, or the limit
    Capture(Capture),
    /// What happened to a stream, a job or a peer: who ended it, why, and what to do
    Why {
        /// A stream's number of 16 digits, a job's, or a peer's address, with its port or without
        #[arg(value_name = "STREAM|JOB|PEER")]
        what: String,
        /// Write the recorded headers to this file as pcapng, with the events as comments; - for the standard output
        #[arg(long, value_name = "FILE")]
        pcapng: Option<std::path::PathBuf>,
    },
    /// Open a stream and leave it open
    Connect(Connect),
    /// Send a file into a peer's region
    Put(Put),
    /// Fetch bytes of a peer's memory with RDMA Reads
    Get(Get),
    /// Send an untagged message
    Send(Send),
    /// Rounds with an rping server: it reads and writes memory of the appliance; times are printed
    Ping(Ping),
    /// Load a peer with messages for a time, and print rates and times; needs [management] bench = true
    Bench(Bench),
    /// Add to 64 bits of a peer's memory and print what they were
    FetchAdd(FetchAdd),
    /// Replace 64 bits of a peer's memory if they are as expected, and print what they were
    CompareSwap(CompareSwap),
    /// Transfers that the appliance runs
    Jobs {
        /// Without one: list
        #[command(subcommand)]
        command: Option<Jobs>,
    },
    /// Refuse new streams and jobs until undrain; the streams that are there go on
    Drain {
        /// Wait until no stream is left, at most so many seconds; exit code 1 if some are left then
        #[arg(long, value_name = "SECONDS")]
        wait: Option<u64>,
    },
    /// Take new streams and jobs again
    Undrain,
    /// Have the appliance read its configuration file again; it is applied whole or not at all
    Reload {
        /// Change nothing: print what would change now, what needs a restart, and what would be refused; exit code 1 if
        /// anything would
        #[arg(long)]
        dry_run: bool,
    },
    /// The configuration that runs
    #[command(subcommand)]
    Config(Config),
    /// The log's filter; with one: replace it, until the next reload or restart
    Log {
        /// In `tracing`'s syntax, such as debug or info,control=debug
        filter: Option<String>,
    },
    /// Counters as OpenMetrics text
    Metrics,
    /// Offer one region over kernel sockets, without an appliance
    ServeKernel(ServeKernel),
    /// Write a shell's completions to the standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
        /// The program whose completions they are
        #[arg(long, value_enum, default_value = "ddpctl")]
        program: Program,
    },
    /// Write the man pages of ddpctl and ddpd
    Man {
        /// Directory for them
        directory: PathBuf,
    },
}

/// The two programs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Program {
    /// The client.
    Ddpctl,
    /// The appliance.
    Ddpd,
}

/// `ddpctl regions`.
#[derive(Debug, Subcommand)]
pub enum Regions {
    /// All regions
    List,
    /// Register a region
    Add(RegionAdd),
    /// Copy a region's bytes, as they are now, to a file or the standard output
    Read {
        /// Its name
        name: String,
        /// The first byte
        #[arg(long, value_parser = number, default_value = "0")]
        offset: u64,
        /// How many; by default all that follow
        #[arg(long, value_parser = size)]
        length: Option<u64>,
        /// The file; - for the standard output
        #[arg(long, short, default_value = "-")]
        output: PathBuf,
    },
    /// Change what peers may do with a region, within what it was registered with: afterwards nobody uses a right
    /// that was taken back
    SetAccess {
        /// Its name
        name: String,
        /// What they may do: r, w, rw, rwa or none
        access: String,
    },
    /// Deregister a region: afterwards no byte can be placed in it
    Remove {
        /// Its name
        name: String,
        /// Abort the streams that use it
        #[arg(long)]
        force: bool,
    },
}

/// `ddpctl regions add`: the keys of `[[region]]`.
#[derive(Debug, ClapArgs)]
pub struct RegionAdd {
    /// Its name
    #[arg(required_unless_present = "file")]
    pub name: Option<String>,
    /// TOML file with one [[region]] section, instead of the other options; - for the standard input
    #[arg(long, conflicts_with_all = ["name", "size", "access", "backing", "path", "fsync", "object", "base_to", "shared"])]
    pub file: Option<PathBuf>,
    /// Bytes, or such as 64MiB; for a file, its length if not given
    #[arg(long)]
    pub size: Option<String>,
    /// What peers may do: r, w, rw or none
    #[arg(long, default_value = "rw")]
    pub access: String,
    /// Where the bytes lie: anonymous, hugepages, shared-memory or file
    #[arg(long)]
    pub backing: Option<String>,
    /// The file
    #[arg(long)]
    pub path: Option<String>,
    /// When the file is forced to the disk: never, message, close or an interval
    #[arg(long)]
    pub fsync: Option<String>,
    /// The shared-memory object
    #[arg(long)]
    pub object: Option<String>,
    /// Tagged offset of the first byte
    #[arg(long, value_name = "TO")]
    pub base_to: Option<String>,
    /// Several streams at a time may reach it
    #[arg(long)]
    pub shared: bool,
}

/// `ddpctl listeners`.
#[derive(Debug, Subcommand)]
pub enum Listeners {
    /// All listeners
    List,
    /// Add a listener
    Add {
        /// TOML file with one [[listener]] section, or JSON with its keys; - for the standard input
        file: PathBuf,
    },
    /// Remove a listener; its streams stay
    Remove {
        /// Its name
        name: String,
    },
}

/// `ddpctl streams`.
#[derive(Debug, Subcommand)]
pub enum Streams {
    /// All streams, or some
    List(Selection),
    /// One stream: round trip, windows, what limits it, counters
    Show {
        /// Its number
        id: StreamId,
    },
    /// Close a stream
    Close {
        /// Its number
        id: StreamId,
        /// With a reset instead of in order
        #[arg(long)]
        abort: bool,
    },
}

/// `ddpctl associations`.
#[derive(Debug, Subcommand)]
pub enum Associations {
    /// All associations
    List,
    /// One association with its counters
    Show {
        /// Its number
        id: StreamId,
    },
}

/// `ddpctl jobs`.
#[derive(Debug, Subcommand)]
pub enum Jobs {
    /// All jobs
    List,
    /// One job
    Show {
        /// Its number
        id: u64,
    },
    /// Cancel a job
    Cancel {
        /// Its number
        id: u64,
    },
}

/// `ddpctl events`.
#[derive(Debug, ClapArgs)]
pub struct Events {
    /// Go on with events as they happen
    #[arg(long, short)]
    pub follow: bool,
    /// Only events after this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// End after so many events
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Only events that are at least this severe
    #[arg(long, value_parser = severity, value_name = "info|warning|error", default_value = "info")]
    pub severity: Severity,
    /// Only events about this stream
    #[arg(long, value_name = "STREAM")]
    pub stream: Option<StreamId>,
    /// Only events of this listener and of its streams
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Only events since then: a duration before now, such as 10m, or a time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "AGO|TIME", value_parser = since)]
    pub since: Option<SystemTime>,
    /// Only untagged messages
    #[arg(long)]
    pub messages: bool,
    /// Only messages of this queue
    #[arg(long, requires = "messages", value_name = "QN")]
    pub queue: Option<u32>,
}

/// MPA as we ask for it.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct Mpa {
    /// MPA revision, by default 1, for rdmap:// 2; start-key is the form of revision 0 without request
    /// frames and region names
    #[arg(long, value_enum)]
    pub mpa_rev: Option<MpaRev>,
    /// Ask the peer for markers; by default on, for rdmap:// off
    #[arg(long, value_name = "on|off", value_parser = on_off, action = ArgAction::Set)]
    pub markers: Option<bool>,
    /// Ask for CRCs; off only if the peer does not ask for them either
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off, action = ArgAction::Set)]
    pub crc: bool,
}

/// MPA's revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MpaRev {
    /// Request frames with revision 0
    #[value(name = "0")]
    Zero,
    /// RFC 5044
    #[value(name = "1")]
    One,
    /// RFC 6581, for RDMAP
    #[value(name = "2")]
    Two,
    /// The first draft's Start Key: no region names, needs --stag and --to
    #[value(name = "start-key")]
    StartKey,
}

/// How a stream is opened.
#[derive(Clone, Debug, ClapArgs)]
pub struct Opening {
    /// Interface of the appliance; by default the one with a route
    #[arg(long)]
    pub interface: Option<String>,
    /// With sctp://: SCTP in UDP (RFC 6951), to this UDP port of the peer, such as 9899
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: Option<u16>,
    /// Differentiated services codepoint; by default the interface's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: Option<u8>,
    /// Time to live, or hop limit; by default the interface's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub ttl: Option<u8>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub mpa: Mpa,
    /// With rdmap://: Reads of the peer that we take at one time
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub ird: u16,
    /// With rdmap://: Reads and atomics that we issue at one time
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub ord: u16,
    /// With rdmap://: the kind of peer: standard, siw, cxgb4, irdma or smb-direct
    #[arg(long, value_name = "KIND", default_value = "standard")]
    pub peer_kind: String,
    /// With rdmap://: the peer may send first (RFC 6581's peer-to-peer model)
    #[arg(long)]
    pub peer_to_peer: bool,
    /// With rdmap://: try MPA revision 1 when the peer closes the connection upon revision 2
    #[arg(long)]
    pub retry_rev1: bool,
}

/// `ddpctl connect`.
#[derive(Debug, ClapArgs)]
pub struct Connect {
    /// [tcp://|rdmap://|sctp://|rdmap+sctp://]HOST:PORT, an IPv6 address in brackets
    pub peer: Peer,
    /// A region that the peer may reach; may be repeated
    #[arg(long = "region", value_name = "NAME")]
    pub regions: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opening: Opening,
}

/// The stream of an RDMAP operation.
#[derive(Clone, Debug, ClapArgs)]
pub struct Verbs {
    /// Use this stream of the appliance instead of a new one
    #[arg(long, value_name = "ID", conflicts_with = "interface")]
    pub stream: Option<StreamId>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: Opening,
}

/// A place in a peer's memory.
#[derive(Debug, ClapArgs)]
pub struct Place {
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
    pub place: Place,
    /// The file, made anew
    #[arg(required_unless_present = "into", conflicts_with = "into")]
    pub file: Option<PathBuf>,
    /// A region of the appliance instead of a file
    #[arg(long, value_name = "REGION[@OFFSET]")]
    pub into: Option<RegionAt>,
    /// How many bytes; by default all that follow in the region
    #[arg(long, value_parser = number)]
    pub length: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: Verbs,
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
    /// Time for each round
    #[arg(long, value_parser = humantime::parse_duration, default_value = "5s", value_name = "TIME")]
    pub timeout: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connect: Opening,
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
    /// Messages of each stream that are posted and not complete, 1 to 256, of echoes 1 to 32
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
    pub opening: Opening,
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
    pub place: Place,
    /// What is added
    #[arg(value_parser = number)]
    pub add: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: Verbs,
}

/// `ddpctl compare-swap`.
#[derive(Debug, ClapArgs)]
pub struct CompareSwap {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: Place,
    /// What the memory must hold
    #[arg(value_parser = number)]
    pub compare: u64,
    /// What it holds then
    #[arg(value_parser = number)]
    pub swap: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub verbs: Verbs,
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
    pub opening: Opening,
    /// Use this stream of the appliance instead of a new one
    #[arg(long, value_name = "ID", conflicts_with = "interface")]
    pub stream: Option<StreamId>,
    /// Do not wait: print the job's number
    #[arg(long)]
    pub detach: bool,
    /// With --kernel: give up after this time without progress
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10s", value_name = "TIME")]
    pub timeout: Duration,
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
    pub opening: Opening,
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

/// `ddpctl serve-kernel`.
#[derive(Debug, ClapArgs)]
pub struct ServeKernel {
    /// ADDRESS:PORT to listen on; port 0 lets the kernel choose
    pub address: SocketAddr,
    /// The region's name
    #[arg(long, default_value = "inbox", value_parser = region_name)]
    pub region: String,
    /// Its size, such as 64MiB
    #[arg(long, value_parser = size, default_value = "64MiB")]
    pub size: u64,
    /// File for its bytes
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Its steering tag; by default a random one
    #[arg(long, value_parser = stag)]
    pub stag: Option<u32>,
    /// Tagged offset of its first byte
    #[arg(long, value_parser = number, default_value = "0", value_name = "TO")]
    pub base_to: u64,
    /// Accept only this MPA revision; may be repeated
    #[arg(long = "mpa-rev", value_enum)]
    pub revisions: Vec<MpaRev>,
    /// Ask peers for markers
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off, action = ArgAction::Set)]
    pub markers: bool,
    /// Ask peers for CRCs
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off, action = ArgAction::Set)]
    pub crc: bool,
    /// End after so many connections
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,
    /// Close a connection whose peer is silent for this time
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s", value_name = "TIME")]
    pub idle_timeout: Duration,
}

fn severity(text: &str) -> Result<Severity, String> {
    let found = Severity::ALL.into_iter().find(|(word, _)| *word == text);
    found.map(|(_, severity)| severity).ok_or_else(|| "write info, warning or error".into())
}

/// A duration before now, or a time.
fn since(text: &str) -> Result<SystemTime, String> {
    let ago = humantime::parse_duration(text).ok();
    let ago = ago.and_then(|ago| SystemTime::now().checked_sub(ago));
    ago.or_else(|| humantime::parse_rfc3339_weak(text).ok()).ok_or_else(|| {
        "write a duration before now, such as 10m, or a time in UTC, such as 2026-01-31T12:00:00Z"
            .into()
    })
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

fn number(text: &str) -> Result<u64, String> {
    parse_u64(text).ok_or_else(|| "write a number, decimal or 0x".into())
}

fn stag(text: &str) -> Result<u32, String> {
    let stag = number(text)?;
    u32::try_from(stag).map_err(|_| "a steering tag has 32 bits, such as 0x0badcafe".into())
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    let size: bytesize::ByteSize =
        text.parse().map_err(|_| "write bytes or a size such as 64MiB".to_owned())?;
    if size.as_u64() == 0 { Err("must be 1 byte or more".into()) } else { Ok(size.as_u64()) }
}

fn size32(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| "must be less than 4GiB".into())
}

fn region_name(text: &str) -> Result<String, String> {
    match crate::advert::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("use 1 to 64 of A-Z a-z 0-9 . _ -".into()),
    }
}
