//! `ddpctl`'s command line.

mod connect;
mod transfers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use api::{Severity, StreamId};
use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand};
use config::DEFAULT_SOCKET;

pub(super) use self::connect::{Connect, ConnectOptions, MpaArgs, MpaRev};
pub(super) use self::transfers::{
    Bench, CompareSwap, FetchAdd, Get, Load, LoadPeer, Ping, Put, RemoteArgs, Send, SendTo, ViaArgs,
};
pub(super) use crate::values::size;
use crate::values::{number, on_off, region_name, severity, since, socket, stag};

use super::capture::Capture;
use super::config::Config;
use super::streams::Selection;
use super::top::Top;

/// Manages ddpd, and sends files into the memory of DDP peers.
#[derive(Debug, Parser)]
#[command(
    name = "ddpctl",
    version,
    after_help = "Exit codes: 0 done, 1 the operation failed, 2 the command line or what it asks for \
                  is wrong, 3 the appliance (with --kernel: the peer) cannot be reached, 4 the peer \
                   refused, 5 delivered but not confirmed, 6 the appliance does not answer, 7 the time of \
                   --timeout is over; a signal ends it as such (a shell sees 128 and its number), also \
                   SIGPIPE, without a message."
)]
pub struct Args {
    /// The appliance's management.socket
    #[arg(long, global = true, value_name = "PATH", env = "DDPD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Write stable JSON, one object or list per answer; errors go to stderr, as JSON too
    #[arg(long, global = true)]
    pub json: bool,
    /// Give up the whole command after this time, connecting and answers of the peer included. Without it an operation is
    /// waited for while the appliance answers within 5s. Of a command that runs until it is stopped (top, capture, events
    /// --follow, serve-kernel): how long the appliance may be silent
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
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
    Regions {
        /// Without one: list
        #[command(subcommand)]
        command: Option<Regions>,
    },
    /// Where streams are accepted
    Listeners {
        /// Without one: list
        #[command(subcommand)]
        command: Option<Listeners>,
    },
    /// SCTP associations, whose sessions streams are
    Associations {
        /// Without one: list
        #[command(subcommand)]
        command: Option<Associations>,
    },
    /// IPsec: what is protected, and by what
    #[command(subcommand)]
    Ipsec(Ipsec),
    /// Streams
    Streams {
        /// Without one: list
        #[command(subcommand)]
        command: Option<Streams>,
    },
    /// Streams, workers, regions, peers and ports on a full screen, with rates; ? there shows the keys
    Top(Top),
    /// Counters, drops by reason and protocol errors; ddpctl explain NAME says what a reason means
    Stats {
        /// Also those that are 0
        #[arg(long)]
        all: bool,
    },
    /// Events; ddpctl explain NAME says what a kind means
    Events(Events),
    /// Frames that a port receives and sends, as pcapng, with the reasons of drops as comments (ddpctl explain NAME says what
    /// one means); until Ctrl-C, or the limit
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
    /// Explain a drop reason, a refusal, a note or an event: meaning, usual cause, remedy. Takes no appliance, except for
    /// counters
    Explain {
        /// As any command, metric or capture prints it, such as ip_checksum, tcp_bad_ack or link_down; without one: list all
        #[arg(value_name = "NAME")]
        names: Vec<String>,
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
        program: ManualProgram,
    },
    /// Write the man pages of ddpctl and ddpd
    Man {
        /// Directory for them
        directory: PathBuf,
    },
}

/// The two programs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ManualProgram {
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
    pub path: Option<PathBuf>,
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
        #[arg(value_name = "FILE", required_unless_present = "option")]
        file: Option<PathBuf>,
        /// The same, as `regions add` takes it
        #[arg(long = "file", value_name = "FILE", id = "option", conflicts_with = "file")]
        option: Option<PathBuf>,
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

/// `ddpctl ipsec`.
#[derive(Debug, Subcommand)]
pub enum Ipsec {
    /// Security associations, without their keys
    Sas,
    /// Policies, in the order in which they are looked at
    Policies,
    /// What was sealed, opened and dropped
    Counters,
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

/// `ddpctl serve-kernel`.
#[derive(Debug, ClapArgs)]
pub struct ServeKernel {
    /// ADDRESS:PORT to listen on; port 0 lets the kernel choose
    #[arg(value_parser = socket)]
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
