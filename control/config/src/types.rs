//! The checked configuration: values of these types are possible and consistent.
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

/// One worker thread. `[workers]` lists cores, or counts workers that are not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSection {
    /// The core it is pinned to; `None` leaves it to the scheduler.
    pub core: Option<u16>,
    /// Behaviour of an idle worker.
    pub idle: Idle,
}

/// `[[interface]]`: addresses on a port, or on one VLAN of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSection {
    /// Unique name.
    pub name: String,
    /// Name of its port.
    pub port: String,
    /// 802.1Q tag, 1 to 4094.
    pub vlan: Option<u16>,
    /// Addresses with their prefix, at least one.
    pub addresses: Vec<IpNet>,
    /// Routes through routers, `gateway` included.
    pub routes: Vec<Route>,
    /// Largest IP packet, bytes: the port's or less, 1280 or more if there is an IPv6 address.
    pub mtu: u16,
    /// DSCP and TTL of its TCP and SCTP packets.
    pub ip: IpFields,
    /// Local ports of outgoing streams and associations.
    pub local_ports: LocalPorts,
    /// The TAP by which the host's kernel shares the port, if it does.
    pub host: Option<String>,
    /// Peers that its listeners admit.
    pub peers: PeerSection,
}

/// `allow` and `deny` of an interface or a listener. A peer is admitted if `deny` does not have its address, and `allow` is empty
/// or has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSection {
    /// Prefixes, host bits zero, at most [`MAX_PEERS`].
    pub allow: Vec<IpNet>,
    /// Likewise.
    pub deny: Vec<IpNet>,
}

/// Most entries of `allow` or `deny`.
pub const MAX_PEERS: usize = 1024;

/// `[[region]]`: named memory. The API's "add region" takes the same keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSection {
    /// Unique name, at most 64 of `[A-Za-z0-9._-]`.
    pub name: String,
    /// Bytes; for a file region without `size`, `None`: the file's length when it is opened.
    pub size: Option<u64>,
    /// Storage of the bytes.
    pub backing: Backing,
    /// Tagged offset of the first byte; base and size stay below 2^64.
    pub base_to: u64,
    /// Peers may write.
    pub remote_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may do atomic operations (RFC 7306); only with reads and writes.
    pub remote_atomic: bool,
    /// Several streams at a time may reach it. Else a region open to remote writes serves one.
    pub shared: bool,
    /// One stream's data is cleared before another stream can read it. Applies to regions that are
    /// readable, writable and used by one stream at a time.
    pub clear_between_peers: bool,
}

/// Storage of a region's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary memory.
    Anonymous,
    /// Hugepages; opening fails where there are too few.
    Hugepages,
    /// A shared-memory object that local programs map, with completion ring and eventfd.
    SharedMemory {
        /// Name of the object, `[A-Za-z0-9._-]`.
        object: String,
    },
    /// Memory, written to a file by another thread.
    File {
        /// The file; made if it is not there.
        path: PathBuf,
        /// Policy for syncing the file.
        fsync: Fsync,
    },
}

/// Policy for syncing the file of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Left to the kernel.
    Never,
    /// After each delivered message.
    Message,
    /// On the close of a stream that wrote it.
    Close,
    /// Sync at least this often while there are changes.
    Interval(Duration),
}

/// `[[listener]]`: where streams are accepted. The API's "add listener" takes the same keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSection {
    /// Unique name.
    pub name: String,
    /// Name of its interface.
    pub interface: String,
    /// One of the interface's addresses; `None` for all of them.
    pub address: Option<IpAddr>,
    /// TCP or SCTP port, not 0.
    pub port: u16,
    /// Transport of its streams.
    pub transport: Transport,
    /// DSCP and TTL of its streams, where they are not the interface's.
    pub ip: IpFields,
    /// Admitted peers, among those that its interface admits.
    pub peers: PeerSection,
    /// IPsec required for its streams: least key size for encryption, bits; 0 for integrity alone.
    pub require: Option<u16>,
    /// The protocol above DDP.
    pub ulp: Ulp,
    /// MPA parameters; over SCTP only the limit of private data applies.
    pub mpa: MpaSection,
    /// Names of the regions that are advertised to its streams' peers, which may reach them.
    pub regions: Vec<String>,
    /// Untagged queues, by number.
    pub queues: Vec<QueueSection>,
    /// Bounds of this listener.
    pub limits: ListenerLimits,
}

impl ListenerSection {
    /// Returns true if each of its streams has a slot of its only region.
    pub fn has_slots(&self) -> bool {
        self.ulp.rdmap().is_some_and(|rdmap| rdmap.service.has_slots())
    }
}

/// MPA parameters of a listener (RFC 5044 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpaSection {
    /// Revision 0 is accepted: Request frames with Rev 0, and the draft's Start Key.
    pub revision_0: bool,
    /// Revision 1 is accepted.
    pub revision_1: bool,
    /// Revision 2 is accepted (RFC 6581); only with RDMAP.
    pub revision_2: bool,
    /// Requests markers of the peer (our M).
    pub markers: bool,
    /// Requests CRCs (our C). They are used if either side requests them.
    pub crc: bool,
    /// Most private data we send, bytes, at most 512.
    pub private_data_limit: u16,
}

/// One untagged queue of each of a listener's streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSection {
    /// Queue number.
    pub qn: u32,
    /// Buffers posted per stream, 1 to 65536.
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
    /// Appended to a file, each message after its length (4 bytes, big-endian).
    File {
        /// The file.
        path: PathBuf,
    },
    /// Back to the sender, on the same queue.
    Echo,
    /// Nowhere; they are counted.
    Discard,
}

/// Bounds of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Streams at a time.
    pub streams: u32,
    /// Most of these streams from one address.
    pub streams_per_peer: u32,
    /// Most of these streams whose TCP or MPA start-up is not complete.
    pub pending: u32,
    /// MPA start-up must be complete after this time (RFC 5044 §7.1).
    pub startup_timeout: Duration,
    /// Time without received data after which a stream is closed; `None` for never.
    pub idle_timeout: Option<Duration>,
}

impl Backing {
    /// Returns the word in the file and in the API.
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
    /// Returns the word in the file and in the API.
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

/// Most of a differentiated services codepoint (RFC 2474 §3).
pub const MAX_DSCP: u8 = 63;
