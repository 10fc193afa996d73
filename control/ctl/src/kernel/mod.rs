//! MPA and DDP over ordinary kernel sockets, without data plane and DPDK: [`put`] writes a file
//! into a region of a peer, [`Listener`] is a peer that offers one region.
//!
//! The protocol code is the appliance's own (`tcp_lite::mpa`, `ddp`); only TCP is the kernel's.
//! Bytes therefore arrive in order, and an acknowledgement means only that the kernel accepted
//! them. The peer's orderly close after ours confirms a transfer: it follows everything we sent
//! (RFC 5041 §6.2.1).
//!
//! FPDUs are sized to the connection's segments (`TCP_MAXSEG`) and each is passed to the kernel as
//! a separate record, so that on an idle path every segment begins with an FPDU (RFC 5044 §5.1).
//! The kernel may still split and coalesce them when it retransmits.
//!
//! Left out: RDMAP, MPA revision 2, reading from a peer.

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

use api::refusal::{Refusal, RefusalKind};
use ddp::advert::AdvertError;

pub use listen::{ConnectionOutcome, ListenConfig, Listener, RegionSpec, ServeEvent, ServeTotals};
pub use memory::KernelMemory;
pub use put::{Progress, PutRequest, Target, put};

/// Requested MPA parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MpaOptions {
    /// Form of the start-up.
    pub revision: Revision,
    /// Request markers from the peer. Whether we send them is the peer's choice.
    pub markers: bool,
    /// Request CRCs; off takes effect only if the peer agrees (RFC 5044 §4.4).
    pub crc: bool,
}

impl Default for MpaOptions {
    /// Returns revision 1 with markers and CRC.
    fn default() -> Self {
        MpaOptions { revision: Revision::One, markers: true, crc: true }
    }
}

/// Negotiated parameters, and the values that follow from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NegotiatedParameters {
    /// Form of the start-up.
    pub revision: Revision,
    /// We send markers.
    pub markers_tx: bool,
    /// The peer sends markers.
    pub markers_rx: bool,
    /// CRCs are generated and checked.
    pub crc: bool,
    /// DDP version; `None`: that of the first segment.
    pub ddp_version: Option<DdpVersion>,
    /// Payload bytes of a full TCP segment.
    pub mss: usize,
    /// Bytes of the largest ULPDU that we send.
    pub mulpdu: usize,
}

/// Summary of a transfer.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The peer's address.
    pub peer: SocketAddr,
    /// The negotiated parameters.
    pub parameters: NegotiatedParameters,
    /// STag written to.
    pub stag: u32,
    /// TO of the first byte.
    pub to: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time from the first FPDU to the peer's close.
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

/// The private data of a reject, for people.
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
                refusal.kind.map(RefusalKind::peer_hint)
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

/// An address without a connection, and its error.
#[derive(Debug, Error)]
#[error("{address}: {source}")]
pub struct ConnectFailure {
    /// The address.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

/// Why a transfer failed or a listener cannot run.
#[derive(Debug, Error)]
pub enum KernelError {
    /// The name has no address.
    #[error("no address for {host}: {source}")]
    Resolve {
        /// The name that was resolved.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// No TCP connection to any address; the list is not empty.
    #[error("cannot connect to {}", .0.iter().map(ConnectFailure::to_string).collect::<Vec<_>>().join("; "))]
    Connect(Vec<ConnectFailure>),
    /// The listening socket cannot be opened.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not have or does not grant this congestion control.
    #[error("congestion control {name:?}: {source}; see net.ipv4.tcp_available_congestion_control")]
    Congestion {
        /// Name of the congestion control algorithm.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the peer broke after {bytes} bytes of payload: {source}")]
    Socket {
        /// Payload bytes passed to TCP so far.
        bytes: u64,
        /// Why.
        source: io::Error,
    },
    /// A local file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// MPA's start-up failed.
    #[error("MPA start-up: {0}")]
    Startup(#[from] StartupError),
    /// The peer rejects the connection.
    #[error("the peer rejected the connection (MPA reject): {}", RejectionText(.refusal.as_ref(), *.private_data))]
    Rejected {
        /// Bytes of private data in the reject.
        private_data: usize,
        /// The decoded refusal, if the private data is one.
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
    /// The region may not be written.
    #[error("the peer does not allow writing to its region `{name}`")]
    NotWritable {
        /// The region.
        name: String,
    },
    /// Another stream uses the region.
    #[error(
        "region_busy: the peer's region `{name}` is in use by another stream: try again when that stream has ended"
    )]
    Busy {
        /// The region.
        name: String,
    },
    /// The file does not fit.
    #[error("{bytes} bytes at offset {offset} do not fit the region's {len} bytes")]
    TooLarge {
        /// Bytes of the file.
        bytes: u64,
        /// Offset in the region.
        offset: u64,
        /// Bytes of the region.
        len: u64,
    },
    /// A pipe has more bytes than the region has room.
    #[error("the region has {room} bytes from there on, and the pipe has more: the region is full")]
    Full {
        /// Bytes from the place to the region's end.
        room: u64,
    },
    /// Revision 0 of the first draft carries no advertisement.
    #[error(
        "the start keys of MPA revision 0 carry no private data, so a region cannot be found by its \
         name; name the place with --stag and --to"
    )]
    NeedsStag,
    /// The peer reports an error of ours in its last message.
    #[error("the peer ended the stream: {}", ReasonText(.0))]
    Peer(LastMessage),
    /// The peer's FPDUs are wrong.
    #[error("the peer violated MPA: {0}")]
    Mpa(#[from] MpaError),
    /// The peer's DDP segments are wrong.
    #[error("the peer violated DDP: {0}")]
    Ddp(ddp::DdpError),
    /// The peer closed before it had everything.
    #[error("the peer closed the connection after {sent} of {total} bytes")]
    ClosedEarly {
        /// Payload bytes passed to TCP.
        sent: u64,
        /// Bytes of the file.
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
        /// The phase at that time.
        during: &'static str,
        /// The time.
        within: Duration,
    },
    /// The source changed while it was sent.
    #[error("the file became shorter while it was sent")]
    Truncated,
}

fn join_names(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Formats a last message as text.
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
