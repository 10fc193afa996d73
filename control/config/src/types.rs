//! Types of the checked configuration. Their values are valid and consistent with each other.
//!
//! Names in `port`, `interface` and `regions` refer to existing sections. Sizes are bytes.

mod ports;
mod rdmap;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ddp::Access;
use ipnet::IpNet;

use super::access::{AccessFlags, access_word};
use crate::transport::Transport;
pub use port_kind::policy::{Host, Hugepages, Idle, IpFields, LocalPorts, Route, SynCookieMode};
pub use ports::*;
pub use rdmap::*;
pub use tcp_lite::mpa::BadCrcPolicy;
pub use tcp_lite::tcp::{CongestionControl as Congestion, Keepalive};

/// One worker thread. `[workers]` lists the cores of pinned workers, or gives the number of unpinned workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSection {
    /// Core to which the worker is pinned; `None` for an unpinned worker.
    pub core: Option<u16>,
    /// Behaviour of an idle worker.
    pub idle: Idle,
}

/// `[[interface]]`: addresses on a port, or on one VLAN of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSection {
    /// Unique name.
    pub name: String,
    /// Name of the interface's port.
    pub port: String,
    /// VLAN identifier of the 802.1Q tag, 1 to 4094; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Local addresses with prefix length, at least one.
    pub addresses: Vec<IpNet>,
    /// Routes through routers, including `gateway`.
    pub routes: Vec<Route>,
    /// Largest IP packet, bytes. At most the port's MTU, at least 1280 with an IPv6 address.
    pub mtu: u16,
    /// DSCP and TTL of the interface's TCP and SCTP packets.
    pub ip: IpFields,
    /// Range of local ports of outgoing streams and associations.
    pub local_ports: LocalPorts,
    /// Name of the TAP through which the host's kernel shares the port; `None` if the port is not shared.
    pub host: Option<String>,
    /// Peers that the interface's listeners admit.
    pub peers: PeerSection,
}

/// `allow` and `deny` of an interface or a listener. A peer is admitted if `deny` does not contain its address, and
/// `allow` is empty or contains it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSection {
    /// Admitted prefixes, host bits zero, at most [`MAX_PEERS`]; empty for all.
    pub allow: Vec<IpNet>,
    /// Refused prefixes, host bits zero, at most [`MAX_PEERS`].
    pub deny: Vec<IpNet>,
}

/// Maximum number of entries of `allow`, and of `deny`.
pub const MAX_PEERS: usize = 1024;

/// `[[region]]`: named memory. The API's "add region" takes the same keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSection {
    /// Unique name, at most 64 characters of `[A-Za-z0-9._-]`.
    pub name: String,
    /// Size, bytes. `None` for a file region without `size`, which has the length of the file when it is opened.
    pub size: Option<u64>,
    /// Storage of the region's bytes.
    pub backing: Backing,
    /// Tagged offset of the first byte; base and size together stay below 2^64.
    pub base_to: u64,
    /// True if peers may send RDMA Writes and other tagged segments.
    pub remote_write: bool,
    /// True if peers may send RDMA Read Requests.
    pub remote_read: bool,
    /// True if peers may send atomic operations (RFC 7306). Requires both other rights.
    pub remote_atomic: bool,
    /// True if several streams may use the region at a time. Otherwise a region open to remote writes serves one stream
    /// at a time.
    pub shared: bool,
    /// True if one stream's data is cleared before another stream can read it. Applies to regions that are readable,
    /// writable and used by one stream at a time.
    pub clear_between_peers: bool,
}

/// Storage of a region's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary memory.
    Anonymous,
    /// Hugepages; opening the region fails if too few are free.
    Hugepages,
    /// A shared-memory object that local programs map, with a completion ring and a socket for wake-ups.
    SharedMemory {
        /// Name of the object, `[A-Za-z0-9._-]`.
        object: String,
    },
    /// Memory whose changes another thread writes to a file.
    File {
        /// Path of the file, which is created if missing.
        path: PathBuf,
        /// Policy for syncing the file.
        fsync: Fsync,
    },
}

/// Time at which the file of a region is synced to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Never; the kernel alone decides when it writes the file back.
    Never,
    /// After each delivered message.
    Message,
    /// When a stream that wrote to the region is closed.
    Close,
    /// At least once in this interval while there are changes.
    Interval(Duration),
}

/// `[[listener]]`: an address and port on which streams are accepted. The API's "add listener" takes the same keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSection {
    /// Unique name.
    pub name: String,
    /// Name of the listener's interface.
    pub interface: String,
    /// One of the interface's addresses; `None` for all of them.
    pub address: Option<IpAddr>,
    /// TCP or SCTP port, not 0.
    pub port: u16,
    /// Transport of the listener's streams.
    pub transport: Transport,
    /// DSCP and TTL of the listener's streams; `None` in a field means the interface's value.
    pub ip: IpFields,
    /// Peers that the listener admits. The interface's lists must also admit them.
    pub peers: PeerSection,
    /// IPsec required for streams: minimum key size for encryption, bits; 0 for integrity only. `None`: IPsec is not
    /// required.
    pub require: Option<u16>,
    /// Protocol above DDP.
    pub ulp: Ulp,
    /// MPA parameters; over SCTP only the limit of private data applies.
    pub mpa: MpaSection,
    /// Names of the regions that are advertised to the streams' peers and accessible to them.
    pub regions: Vec<String>,
    /// Untagged queues, ordered by number.
    pub queues: Vec<QueueSection>,
    /// Limits on the listener's streams.
    pub limits: ListenerLimits,
}

impl ListenerSection {
    /// Returns true if each stream of the listener has its own part (slot) of the listener's only region.
    pub fn has_slots(&self) -> bool {
        self.ulp.rdmap().is_some_and(|rdmap| rdmap.service.has_slots())
    }
}

/// MPA parameters of a listener (RFC 5044 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaSection {
    /// True if revision 0 is accepted: Request frames with Rev 0, and the Start Key of
    /// draft-culley-iwarp-mpa-03.
    pub revision_0: bool,
    /// True if revision 1 is accepted.
    pub revision_1: bool,
    /// True if revision 2 is accepted (RFC 6581); only with RDMAP.
    pub revision_2: bool,
    /// True if markers are requested from the peer (our M bit).
    pub markers: bool,
    /// True if CRCs are requested (our C bit). They are used if either side requests them.
    pub crc: bool,
    /// Maximum private data that we send, bytes, at most 512.
    pub private_data_limit: u16,
}

/// An untagged queue that each stream of a listener has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSection {
    /// Queue number.
    pub qn: u32,
    /// Number of buffers posted per stream, 1 to 65536.
    pub buffers: u32,
    /// Bytes per buffer: the longest message, 1 to 16 MiB.
    pub buffer_size: u32,
    /// Destination of the messages.
    pub deliver_to: Delivery,
}

/// Destination of untagged messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The event log, where `ddpctl events` and the API read them.
    Events,
    /// A file, to which messages are appended.
    File {
        /// Path of the file.
        path: PathBuf,
    },
    /// The sender, on queue 0 (an echo).
    Echo,
    /// None: messages are counted and discarded.
    Discard,
}

/// Limits of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Maximum number of streams of the listener.
    pub streams: u32,
    /// Maximum number of these streams from one peer: an IPv4 address or a /64 of IPv6.
    pub streams_per_peer: u32,
    /// Maximum number of these streams whose TCP or MPA start-up is not complete.
    pub pending: u32,
    /// Time limit of the MPA start-up (RFC 5044 §7.1).
    pub startup_timeout: Duration,
    /// Silence of the peer after which a stream is closed; `None` for never.
    pub idle_timeout: Option<Duration>,
}

impl Backing {
    /// Returns the name in the configuration and in the API, such as `shared-memory`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Hugepages => "hugepages",
            Self::SharedMemory { .. } => "shared-memory",
            Self::File { .. } => "file",
        }
    }
}

impl Delivery {
    /// Returns the name in the configuration and in the API, such as `events`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::File { .. } => "file",
            Self::Echo => "echo",
            Self::Discard => "discard",
        }
    }
}

impl RegionSection {
    /// Returns the rights of peers.
    pub fn access(&self) -> Access {
        let (read, write, atomic) = (self.remote_read, self.remote_write, self.remote_atomic);
        AccessFlags { read, write, atomic }.access()
    }

    /// Returns `rw`, `rwa`, `r`, `w` or `-`, as the API shows it.
    pub fn access_word(&self) -> &'static str {
        access_word(self.access())
    }
}

/// Largest differentiated services codepoint (RFC 2474 §3).
pub const MAX_DSCP: u8 = 63;
