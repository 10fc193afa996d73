//! MPA and DDP over ordinary kernel sockets, without data plane and DPDK: [`put`] writes a file into a peer's region; a
//! [`Listener`] is a peer that offers one region.
//!
//! MPA and DDP are the appliance's code (`tcp_lite::mpa`, `ddp`); TCP is the kernel's. Bytes therefore arrive in order,
//! and the DDP stream treats bytes as acknowledged once the kernel has accepted them. We close after all data; the
//! peer's graceful close after ours confirms the transfer (RFC 5041 §6.2.1).
//!
//! FPDUs are sized to the connection's segments (`TCP_MAXSEG`), and each is passed to the kernel as a separate record.
//! On an idle path every segment therefore begins with an FPDU (RFC 5044 §5.1). The kernel may still split and coalesce
//! FPDUs when it retransmits.
//!
//! Not supported: RDMAP, MPA revision 2, reading from a peer.

mod channel;
mod deadline;
mod listen;
mod memory;
mod put;
mod socket;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ddp::DdpVersion;
use ddp::last_message::LastMessage;
use tcp_lite::mpa::{MpaError, Revision, StartupError};
use thiserror::Error;

use api::refusal::{Refusal, RefusedStream};
use ddp::advert::AdvertError;

pub use listen::{ConnectionOutcome, ListenConfig, Listener, RegionSpec, ServeEvent, ServeTotals};
pub use memory::KernelMemory;
pub use put::{Progress, PutRequest, Target, put};

/// Requested MPA parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpaOptions {
    /// MPA revision, which determines the start-up frames.
    pub revision: Revision,
    /// True if markers are requested from the peer. The peer decides whether we send markers.
    pub markers: bool,
    /// True if CRCs are requested. CRCs are off only if neither end requests them (RFC 5044 §4.4).
    pub crc: bool,
}

impl Default for MpaOptions {
    /// Returns revision 1 with markers and CRC.
    fn default() -> Self {
        MpaOptions { revision: Revision::One, markers: true, crc: true }
    }
}

/// Negotiated parameters, and values derived from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NegotiatedParameters {
    /// MPA revision, which determines the start-up frames.
    pub revision: Revision,
    /// True if we send markers.
    pub markers_tx: bool,
    /// True if the peer sends markers.
    pub markers_rx: bool,
    /// True if CRCs are generated and checked.
    pub crc: bool,
    /// DDP version; `None`: adopted from the first segment.
    pub ddp_version: Option<DdpVersion>,
    /// Payload of a full TCP segment, bytes.
    pub mss: usize,
    /// Largest ULPDU that we send, bytes.
    pub mulpdu: usize,
}

/// Summary of a transfer.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The peer's address.
    pub peer: SocketAddr,
    /// The negotiated parameters.
    pub parameters: NegotiatedParameters,
    /// STag of the destination.
    pub stag: u32,
    /// TO of the file's first byte.
    pub to: u64,
    /// Length of the file or pipe, bytes.
    pub bytes: u64,
    /// Time from the start of Full Operation to the confirmed close.
    pub elapsed: Duration,
    /// FPDUs sent.
    pub fpdus: u64,
    /// Bytes passed to TCP, including start-up, headers, markers, pads and CRCs.
    pub stream_bytes: u64,
}

impl Report {
    /// Returns the payload rate in gigabits per second.
    pub fn gbit_per_s(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 * 8e-9 / seconds } else { 0.0 }
    }
}

/// Formats the private data of an MPA reject: the decoded refusal, else the number of bytes.
struct RejectionText<'a>(Option<&'a Refusal>, usize);

impl fmt::Display for RejectionText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RejectionText(Some(refusal), _) => refusal.fmt(f),
            RejectionText(None, len) => write!(f, "{len} bytes of private data"),
        }
    }
}

impl KernelError {
    /// Returns a remedy for the operator, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            KernelError::Rejected { refusal: Some(refusal), .. } => {
                refusal.kind.map(|kind| kind.peer_hint(RefusedStream::Kernel))
            }
            KernelError::Startup(
                StartupError::Foreign(_) | StartupError::BadKey { .. } | StartupError::Timeout,
            ) => Some("what answers there may be no RDMA listener: check the address and the port"),
            KernelError::Startup(StartupError::Revision { .. } | StartupError::Closed) => {
                Some("ask for another MPA revision: --mpa-rev")
            }
            _ => None,
        }
    }
}

/// A failed attempt to connect to one address.
#[derive(Debug, Error)]
#[error("{address}: {source}")]
pub struct ConnectFailure {
    /// Address of the peer.
    pub address: SocketAddr,
    /// Error of the connection attempt.
    pub source: io::Error,
}

/// Error of a transfer or of a listener.
#[derive(Debug, Error)]
pub enum KernelError {
    /// The name cannot be resolved, or has no address.
    #[error("no address for {host}: {source}")]
    Resolve {
        /// The name that was resolved.
        host: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// TCP could not connect to any of the addresses; the list is not empty.
    #[error("cannot connect to {}", .0.iter().map(ConnectFailure::to_string).collect::<Vec<_>>().join("; "))]
    Connect(Vec<ConnectFailure>),
    /// The listening socket or the STag cannot be created, or the listening socket fails later.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Local address.
        address: SocketAddr,
        /// Error of the system call.
        source: io::Error,
    },
    /// The kernel lacks this congestion control or does not permit it.
    #[error("congestion control {name:?}: {source}; see net.ipv4.tcp_available_congestion_control")]
    Congestion {
        /// Name of the congestion control algorithm.
        name: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// The established TCP connection failed.
    #[error("the connection to the peer broke after {bytes} bytes of payload: {source}")]
    Socket {
        /// Bytes passed to TCP so far, headers included, but at most the length of the file.
        bytes: u64,
        /// Error of the system call.
        source: io::Error,
    },
    /// A local file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// MPA's start-up failed.
    #[error("MPA start-up: {0}")]
    Startup(#[from] StartupError),
    /// The peer rejected the connection.
    #[error("the peer rejected the connection (MPA reject): {}", RejectionText(.refusal.as_ref(), *.private_data))]
    Rejected {
        /// Bytes of private data in the reject.
        private_data: usize,
        /// Refusal decoded from the private data; `None` if they do not contain a refusal.
        refusal: Option<Refusal>,
    },
    /// The private data of the reply is not an advertisement.
    #[error("the peer advertises no regions: {0}; name the place with --stag and --to")]
    Advertisement(#[from] AdvertError),
    /// The peer advertises no region of this name.
    #[error("the peer has no region `{name}`; it advertises: {}", join_names(.known))]
    NoRegion {
        /// The requested name.
        name: String,
        /// The advertised names.
        known: Vec<String>,
    },
    /// The peer does not permit writes to the region.
    #[error("the peer does not allow writing to its region `{name}`")]
    NotWritable {
        /// Name of the region.
        name: String,
    },
    /// Another stream uses the region.
    #[error(
        "region_busy: the peer's region `{name}` is in use by another stream: try again when that stream has ended"
    )]
    Busy {
        /// Name of the region.
        name: String,
    },
    /// The file is longer than the rest of the region after the offset.
    #[error("{bytes} bytes at offset {offset} do not fit the region's {len} bytes")]
    TooLarge {
        /// Length of the file, bytes.
        bytes: u64,
        /// Offset in the region, bytes.
        offset: u64,
        /// Length of the region, bytes.
        len: u64,
    },
    /// The data of a pipe are longer than the rest of the region after the offset.
    #[error("the region has {room} bytes from there on, and the pipe has more: the region is full")]
    Full {
        /// Bytes from the offset to the region's end.
        room: u64,
    },
    /// The target is the name of a region, but the Start Key of the first MPA draft carries no advertisement.
    #[error(
        "the start keys of MPA revision 0 carry no private data, so a region cannot be found by its \
         name; name the place with --stag and --to"
    )]
    NeedsStag,
    /// The peer ended the stream with a last message that reports our error.
    #[error("the peer ended the stream: {}", ReasonText(.0))]
    Peer(LastMessage),
    /// The peer's FPDUs violated MPA.
    #[error("the peer violated MPA: {0}")]
    Mpa(#[from] MpaError),
    /// The peer violated DDP.
    #[error("the peer violated DDP: {0}")]
    Ddp(ddp::DdpError),
    /// The peer closed the connection before all bytes were sent.
    #[error("the peer closed the connection after {sent} of {total} bytes")]
    ClosedEarly {
        /// Approximate number of payload bytes sent, at most `total`.
        sent: u64,
        /// Length of the file, bytes.
        total: u64,
    },
    /// No progress within the time-out.
    #[error("no progress for {} s: {during}", after.as_secs())]
    Timeout {
        /// The phase without progress.
        during: &'static str,
        /// The time-out.
        after: Duration,
    },
    /// The time limit of the whole transfer expired.
    #[error("not done within {}: {during}", base::plural::seconds(*within))]
    Late {
        /// The phase in which the limit expired.
        during: &'static str,
        /// The time limit.
        within: Duration,
    },
    /// The file became shorter while it was sent.
    #[error("the file became shorter while it was sent")]
    Truncated,
}

fn join_names(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Formats the error that a last message reports.
struct ReasonText<'a>(&'a LastMessage);

impl fmt::Display for ReasonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LastMessage { layer, error_type, code, .. } = self.0;
        match self.0.ddp_error() {
            Some(error) => write!(f, "{error} (DDP error {error_type}/{code:02})"),
            None => write!(f, "layer {layer}, error {error_type}/{code:02}"),
        }
    }
}

#[cfg(test)]
mod tests;
