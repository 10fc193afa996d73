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
use super::run::Run;
use super::streams::Selection;
use super::top::Top;

/// Manage ddpd, and send files into the memory of DDP peers.
#[derive(Debug, Parser)]
#[command(
    name = "ddpctl",
    version,
    after_help = "Exit codes: 0 done, 1 the operation failed, 2 the command line or the request is invalid, 3 the \
                  appliance (with --kernel: the peer) cannot be reached, 4 the peer refused, 5 delivered but not \
                  confirmed, 6 the appliance does not answer, 7 the time limit of --timeout expired. A signal ends \
                  ddpctl as usual (a shell reports 128 plus its number); SIGPIPE does so, too, without a message."
)]
pub struct Args {
    /// Path of the appliance's management socket (management.socket)
    #[arg(long, global = true, value_name = "PATH", env = "DDPD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Print stable JSON, one object or list per answer; errors go to stderr, also as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Time limit of the whole command, including connecting and waiting for the peer. By default ddpctl waits for an
    /// operation as long as the appliance answers probes within 5s. For commands that run until they are stopped (top,
    /// capture, events --follow), the limit is the maximum silence of the appliance. No effect on serve-kernel
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
    /// Command to run
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of `ddpctl`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the status of the appliance
    Status,
    /// List ports with their interfaces and neighbours
    Ports,
    /// List worker threads
    Workers,
    /// List, add, read, change or remove regions: memory that peers can access
    Regions {
        /// Subcommand; the default is list
        #[command(subcommand)]
        command: Option<Regions>,
    },
    /// List, add or remove listeners
    Listeners {
        /// Subcommand; the default is list
        #[command(subcommand)]
        command: Option<Listeners>,
    },
    /// List or show SCTP associations; each stream over SCTP is a session of an association
    Associations {
        /// Subcommand; the default is list
        #[command(subcommand)]
        command: Option<Associations>,
    },
    /// Show IPsec SAs, policies and counters
    #[command(subcommand)]
    Ipsec(Ipsec),
    /// List, show or close streams
    Streams {
        /// Subcommand; the default is list
        #[command(subcommand)]
        command: Option<Streams>,
    },
    /// Show streams, workers, regions, peers and ports with rates on a full screen; press ? for the keys
    Top(Top),
    /// Show counters, drops by reason and protocol errors; ddpctl explain NAME explains a reason
    Stats {
        /// Include counters that are 0
        #[arg(long)]
        all: bool,
    },
    /// Show events; ddpctl explain NAME explains a kind
    Events(Events),
    /// Capture the received and sent frames of a port as pcapng, until Ctrl-C or the limit. Drop reasons are comments
    /// in the file; ddpctl explain NAME explains a reason. Wireshark and tshark decode iWARP with the option
    /// -X lua_script:/usr/share/ddpd/wireshark/iwarp.lua
    Capture(Capture),
    /// Explain what happened to a stream, a job, a peer or a local program: which side ended it, why, and the remedy
    Why {
        /// Number of a stream (16 hexadecimal digits) or of a job, address of a peer, with or without port, or
        /// program-N
        #[arg(value_name = "STREAM|JOB|PEER|PROGRAM")]
        what: String,
        /// Write the recorded headers to this file as pcapng, with the events as comments; - for standard output
        #[arg(long, value_name = "FILE")]
        pcapng: Option<std::path::PathBuf>,
    },
    /// Explain a drop reason, a refusal, a note or an event: meaning, usual cause, remedy. Needs no appliance, except
    /// for counters
    Explain {
        /// Name as printed by a command, metric or capture, such as ip_checksum, tcp_bad_ack or link_down; by default
        /// list all
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
    /// Ping an rping server, which reads and writes memory of the appliance in each round, and print the round-trip
    /// times
    Ping(Ping),
    /// Load a peer with messages for a time, and print rates and latencies; requires [management] bench = true
    Bench(Bench),
    /// Atomically add to a 64-bit value in a peer's memory, and print the previous value
    FetchAdd(FetchAdd),
    /// Atomically replace a 64-bit value in a peer's memory if it equals the expected value, and print the previous
    /// value
    CompareSwap(CompareSwap),
    /// List, show or end local programs that use the appliance as their RDMA device
    Programs {
        /// Subcommand; by default list
        #[command(subcommand)]
        command: Option<Programs>,
    },
    /// Run an unmodified verbs program (libibverbs, librdmacm) with an appliance as its RDMA device
    Run(Run),
    /// List, show or cancel jobs: transfers of the appliance
    Jobs {
        /// Subcommand; the default is list
        #[command(subcommand)]
        command: Option<Jobs>,
    },
    /// Refuse new streams and jobs until undrain; existing streams continue
    Drain {
        /// Wait until no stream is left, at most this many seconds; exit code 1 if streams are left
        #[arg(long, value_name = "SECONDS")]
        wait: Option<u64>,
    },
    /// Accept new streams and jobs again
    Undrain,
    /// Reload the configuration file of the appliance; all changes are applied, or none
    Reload {
        /// Change nothing: print which changes would be applied, require a restart, or be refused; exit code 1 if any
        /// would be refused
        #[arg(long)]
        dry_run: bool,
    },
    /// Show, compare or save the running configuration
    #[command(subcommand)]
    Config(Config),
    /// Show the log filter, or replace it until the next reload or restart
    Log {
        /// New filter in the syntax of `tracing`, such as debug or info,control=debug
        filter: Option<String>,
    },
    /// Print counters as OpenMetrics text
    Metrics,
    /// Serve one region over kernel sockets, without an appliance
    ServeKernel(ServeKernel),
    /// Print the completions for a shell
    Completions {
        /// Shell to generate completions for
        shell: clap_complete::Shell,
        /// Program to print completions for
        #[arg(long, value_enum, default_value = "ddpctl")]
        program: ManualProgram,
    },
    /// Write the man pages of ddpctl and ddpd
    Man {
        /// Directory for the pages; created if missing
        directory: PathBuf,
    },
}

/// Program for which `ddpctl completions` prints completions.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum ManualProgram {
    /// Command-line client.
    Ddpctl,
    /// Daemon that runs the appliance.
    Ddpd,
}

/// Subcommands of `ddpctl regions`.
#[derive(Debug, Subcommand)]
pub enum Regions {
    /// List all regions
    List,
    /// Register a region
    Add(RegionAdd),
    /// Copy the current bytes of a region to a file or standard output
    Read {
        /// Name of the region
        name: String,
        /// Offset of the first byte
        #[arg(long, value_parser = number, default_value = "0")]
        offset: u64,
        /// Number of bytes; by default all from the offset to the end of the region
        #[arg(long, value_parser = size)]
        length: Option<u64>,
        /// Output file; - for standard output
        #[arg(long, short, default_value = "-")]
        output: PathBuf,
    },
    /// Change the access rights of peers to a region; at most the rights at its registration can be granted. When the
    /// command returns, no peer uses a withdrawn right
    SetAccess {
        /// Name of the region
        name: String,
        /// Rights of peers: r, w, rw, rwa (with atomics) or none
        access: String,
    },
    /// Deregister a region. When the command returns, no byte can be placed in it
    Remove {
        /// Name of the region
        name: String,
        /// Abort the streams that use the region
        #[arg(long)]
        force: bool,
    },
}

/// Arguments of `ddpctl regions add`: the keys of a `[[region]]` section.
#[derive(Debug, ClapArgs)]
pub struct RegionAdd {
    /// Name of the region
    #[arg(required_unless_present = "file")]
    pub name: Option<String>,
    /// TOML file with one [[region]] section, instead of the other options; - for standard input
    #[arg(long, conflicts_with_all = ["name", "size", "access", "backing", "path", "fsync", "object", "base_to", "shared"])]
    pub file: Option<PathBuf>,
    /// Size in bytes, or with a unit such as 64MiB; for a file by default its length
    #[arg(long)]
    pub size: Option<String>,
    /// Rights of peers: r, w, rw, rwa (with atomics) or none
    #[arg(long, default_value = "rw")]
    pub access: String,
    /// Storage of the bytes: anonymous, hugepages, shared-memory or file; by default file with --path, else anonymous
    #[arg(long)]
    pub backing: Option<String>,
    /// File of the region, for backing file; created if missing
    #[arg(long)]
    pub path: Option<PathBuf>,
    /// When the file is synced to the disk: never, message, close or an interval; by default close
    #[arg(long)]
    pub fsync: Option<String>,
    /// Name of the shared-memory object
    #[arg(long)]
    pub object: Option<String>,
    /// Tagged offset of the first byte
    #[arg(long, value_name = "TO")]
    pub base_to: Option<String>,
    /// Allow several streams to use the region at the same time
    #[arg(long)]
    pub shared: bool,
}

/// Subcommands of `ddpctl listeners`.
#[derive(Debug, Subcommand)]
pub enum Listeners {
    /// List all listeners
    List,
    /// Add a listener
    Add {
        /// TOML file with one [[listener]] section, or JSON with its keys; - for standard input
        #[arg(value_name = "FILE", required_unless_present = "option")]
        file: Option<PathBuf>,
        /// FILE as an option, as in `regions add`
        #[arg(long = "file", value_name = "FILE", id = "option", conflicts_with = "file")]
        option: Option<PathBuf>,
    },
    /// Remove a listener; its streams continue
    Remove {
        /// Name of the listener
        name: String,
    },
}

/// Subcommands of `ddpctl streams`.
#[derive(Debug, Subcommand)]
pub enum Streams {
    /// List all streams, or a selection
    List(Selection),
    /// Show one stream: round-trip time, windows, current limit on sending, counters
    Show {
        /// Number of the stream
        id: StreamId,
    },
    /// Close a stream
    Close {
        /// Number of the stream
        id: StreamId,
        /// Abort the stream with a reset instead of a graceful close
        #[arg(long)]
        abort: bool,
    },
}

/// Subcommands of `ddpctl associations`.
#[derive(Debug, Subcommand)]
pub enum Associations {
    /// List all associations
    List,
    /// Show one association with its counters
    Show {
        /// Number of the association
        id: StreamId,
    },
}

/// Subcommands of `ddpctl ipsec`.
#[derive(Debug, Subcommand)]
pub enum Ipsec {
    /// List security associations, without keys
    Sas,
    /// List policies in the order of matching
    Policies,
    /// Show counters of sent (sealed), received (opened) and dropped IPsec packets
    Counters,
}

/// Subcommands of `ddpctl programs`.
#[derive(Debug, Subcommand)]
pub enum Programs {
    /// List all programs
    List,
    /// Show one program
    Show {
        /// Number of the program
        id: u32,
    },
    /// End a program's session: its connections are reset, and its memory is freed
    Kill {
        /// Number of the program
        id: u32,
    },
}

/// Subcommands of `ddpctl jobs`.
#[derive(Debug, Subcommand)]
pub enum Jobs {
    /// List all jobs
    List,
    /// Show one job
    Show {
        /// Number of the job
        id: u64,
    },
    /// Cancel a job
    Cancel {
        /// Number of the job
        id: u64,
    },
}

/// Arguments of `ddpctl events`.
#[derive(Debug, ClapArgs)]
pub struct Events {
    /// Continue with new events
    #[arg(long, short)]
    pub follow: bool,
    /// Only events after this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// Exit after this number of events
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Only events of at least this severity
    #[arg(long, value_parser = severity, value_name = "info|warning|error", default_value = "info")]
    pub severity: Severity,
    /// Only events of this stream
    #[arg(long, value_name = "STREAM")]
    pub stream: Option<StreamId>,
    /// Only events of this listener and of its streams
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Only events since this time: a duration before now, such as 10m, or a time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "AGO|TIME", value_parser = since)]
    pub since: Option<SystemTime>,
    /// Only untagged messages
    #[arg(long)]
    pub messages: bool,
    /// Only messages of this queue
    #[arg(long, requires = "messages", value_name = "QN")]
    pub queue: Option<u32>,
}

/// Arguments of `ddpctl serve-kernel`.
#[derive(Debug, ClapArgs)]
pub struct ServeKernel {
    /// ADDRESS:PORT to listen on; port 0 lets the kernel choose
    #[arg(value_parser = socket)]
    pub address: SocketAddr,
    /// Name of the region
    #[arg(long, default_value = "inbox", value_parser = region_name)]
    pub region: String,
    /// Size of the region, such as 64MiB
    #[arg(long, value_parser = size, default_value = "64MiB")]
    pub size: u64,
    /// File for the bytes of the region; by default memory
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Steering tag (STag) of the region; by default random
    #[arg(long, value_parser = stag)]
    pub stag: Option<u32>,
    /// Tagged offset of the first byte of the region
    #[arg(long, value_parser = number, default_value = "0", value_name = "TO")]
    pub base_to: u64,
    /// Accept only this MPA revision; may be repeated
    #[arg(long = "mpa-rev", value_enum)]
    pub revisions: Vec<MpaRev>,
    /// Request markers from peers
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off, action = ArgAction::Set)]
    pub markers: bool,
    /// Request CRCs from peers
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off, action = ArgAction::Set)]
    pub crc: bool,
    /// Exit after this number of connections
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,
    /// Time without received or sent data after which a connection is reset
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s", value_name = "TIME")]
    pub idle_timeout: Duration,
}
