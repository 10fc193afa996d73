//! JSON bodies of the requests that use streams (connect, put, get, ping, bench, atomic, send) and of their responses.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use config::{IpFields, Transport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{StreamId, schema_shapes};

/// MPA parameters of a stream that the appliance opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MpaChoice {
    /// MPA revision, 0 to 2. Default: 1 for bare DDP, 2 for RDMAP.
    #[schemars(range(max = 2))]
    pub revision: Option<u8>,
    /// True: with revision 0, sends the Start Key of the first MPA draft instead of request frames. A Start Key carries
    /// no private data, so the target must be given by STag and TO.
    pub start_key: bool,
    /// True: requests markers from the peer. Default: true for bare DDP, false for RDMAP.
    pub markers: Option<bool>,
    /// True: requests CRCs. CRCs are on if either end requests them.
    pub crc: bool,
}

impl Default for MpaChoice {
    fn default() -> Self {
        Self { revision: None, start_key: false, markers: None, crc: true }
    }
}

/// Protocol above DDP on a stream that the appliance opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UlpChoice {
    /// Bare DDP.
    #[default]
    Ddp,
    /// RDMAP over DDP.
    Rdmap,
}

/// RDMAP parameters of a stream that the appliance opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RdmapChoice {
    /// Inbound RDMA Read queue depth: maximum number of outstanding Reads and atomics of the peer, 0 to 1024.
    #[schemars(range(max = 1024))]
    pub ird: u16,
    /// Outbound RDMA Read queue depth: maximum number of outstanding Reads and atomics of the appliance, 0 to 1024.
    #[schemars(range(max = 1024))]
    pub ord: u16,
    /// Kind of peer, as `peer` of a listener.
    #[schemars(schema_with = "schema_shapes::peers")]
    pub peer: String,
    /// True: offers the peer-to-peer model of RFC 6581, in which the responder may send first.
    pub peer_to_peer: bool,
    /// True: retries with revision 1 if the peer closes the connection upon revision 2.
    pub retry_revision_1: bool,
}

impl Default for RdmapChoice {
    fn default() -> Self {
        let peer = "standard".to_owned();
        Self { ird: 32, ord: 32, peer, peer_to_peer: false, retry_revision_1: false }
    }
}

/// Peer to connect to. The client resolves names and passes all addresses of a name, because only the appliance has the
/// routes of its interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectSpec {
    /// Address and port of the peer, `192.0.2.1:7471` or `[2001:db8::1]:7471`.
    #[schemars(with = "schema_shapes::SocketAddress")]
    #[serde(deserialize_with = "address::deserialize_address")]
    pub remote: SocketAddr,
    /// Further addresses of the same peer, at most 31. The appliance tries the addresses one after another until a
    /// stream is established: first the addresses on the link of an interface, then the addresses with a route. Other
    /// addresses are skipped.
    #[schemars(with = "Vec<schema_shapes::SocketAddress>", length(max = 31))]
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "address::deserialize_addresses"
    )]
    pub alternatives: Vec<SocketAddr>,
    /// Local interface. Default: the interface with a route to the peer. Required for a link-local address if several
    /// interfaces have IPv6.
    #[serde(default)]
    pub interface: Option<String>,
    /// Transport below DDP.
    #[serde(default)]
    pub transport: Transport,
    /// Over SCTP: UDP port of the peer, for SCTP in UDP (RFC 6951). Default: no UDP encapsulation.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub udp_port: Option<u16>,
    /// Differentiated services codepoint, 0 to 63. Default: the interface's.
    #[serde(default)]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// Time to live (IPv4) or hop limit (IPv6), 1 to 255. Default: the interface's.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub ttl: Option<u8>,
    /// Protocol above DDP.
    #[serde(default)]
    pub ulp: UlpChoice,
    /// RDMAP parameters. Ignored for bare DDP.
    #[serde(default)]
    pub rdmap: RdmapChoice,
    /// MPA parameters. Ignored over SCTP.
    #[serde(default)]
    pub mpa: MpaChoice,
    /// Local regions that the peer may access. The private data advertise them.
    #[serde(default)]
    pub regions: Vec<String>,
    /// Time limit for opening the stream, microseconds, 1 us to 1 day. Default: 30 s. For a put, get, send, ping or
    /// atomic on a new stream: time limit of the whole operation.
    #[serde(default)]
    #[schemars(range(min = 1, max = 86_400_000_000_u64))]
    pub within_us: Option<u64>,
}

impl ConnectSpec {
    /// Returns a request for bare DDP over TCP to this peer, with all defaults.
    pub fn to_remote(remote: SocketAddr) -> Self {
        Self {
            remote,
            alternatives: Vec::new(),
            interface: None,
            transport: Transport::default(),
            udp_port: None,
            dscp: None,
            ttl: None,
            ulp: UlpChoice::default(),
            rdmap: RdmapChoice::default(),
            mpa: MpaChoice::default(),
            regions: Vec::new(),
            within_us: None,
        }
    }

    /// Maximum number of addresses of a peer.
    pub const MAX_ADDRESSES: usize = 32;

    /// Returns all addresses of the peer.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        std::iter::once(self.remote).chain(self.alternatives.iter().copied())
    }

    /// Returns the time limit for opening the stream, or of the whole operation on a new stream. `None`: the default.
    pub fn timeout(&self) -> Option<Duration> {
        self.within_us.map(Duration::from_micros)
    }

    /// Returns DSCP and TTL of the stream's packets; a field is `None` for the interface's value.
    pub fn ip_fields(&self) -> IpFields {
        IpFields { dscp: self.dscp, ttl: self.ttl }
    }

    /// Returns the MPA revision, 0 to 2. Default: 1 for bare DDP, 2 for RDMAP.
    pub fn revision(&self) -> u8 {
        self.mpa.revision.unwrap_or(match self.ulp {
            UlpChoice::Ddp => 1,
            UlpChoice::Rdmap => 2,
        })
    }

    /// Returns true if markers are requested from the peer. Default: true for bare DDP, false for RDMAP.
    pub fn markers(&self) -> bool {
        self.mpa.markers.unwrap_or(self.ulp == UlpChoice::Ddp)
    }
}

/// The stream that a request uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Via {
    /// A new stream, closed after the request.
    Connect(ConnectSpec),
    /// An established stream, which stays open.
    Stream(StreamId),
}

/// Transfer of a file into a peer's region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutSpec {
    /// Absolute path of a regular file or a pipe (FIFO), which the appliance opens; requires the role `admin`. Without
    /// it, the data are the body of `POST /v1/jobs/{id}/input`, which must begin within 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema_shapes::AbsolutePath>")]
    pub file: Option<PathBuf>,
    /// Stream that carries the transfer.
    pub via: Via,
    /// Destination in the peer's memory.
    pub target: RemotePlace,
}

/// Location in a peer's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RemotePlace {
    /// A region that the peer has advertised.
    Region {
        /// Name of the region.
        name: String,
        /// Offset in the region, bytes. Default: 0.
        #[serde(default)]
        offset: u64,
    },
    /// Memory whose STag the caller knows by other means.
    Tagged {
        /// STag (steering tag).
        stag: u32,
        /// Tagged offset of the first byte.
        to: u64,
    },
}

/// Range of a peer's memory to fetch with RDMA Reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSpec {
    /// Stream that carries the Reads. It must be an RDMAP stream.
    pub via: Via,
    /// Source in the peer's memory.
    pub source: RemotePlace,
    /// Length in bytes. Default, for an advertised region: up to its end.
    #[serde(default)]
    pub length: Option<u64>,
    /// Local destination of the fetched bytes.
    pub sink: GetSink,
}

/// Local destination of fetched bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GetSink {
    /// A file, by absolute path. The appliance writes it once all bytes have arrived, and overwrites an existing file.
    File(#[schemars(with = "schema_shapes::AbsolutePath")] PathBuf),
    /// A region of the appliance.
    Region {
        /// Name of the region.
        name: String,
        /// Offset in the region, bytes. Default: 0.
        #[serde(default)]
        offset: u64,
    },
}

/// Ping, compatible with the client of librdmacm's rping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingSpec {
    /// Peer, which runs an rping server.
    pub connect: ConnectSpec,
    /// Number of rounds, 1 to 100000.
    #[schemars(range(min = 1, max = 100_000))]
    pub count: u32,
    /// Bytes that the peer reads and writes in each round, 1 to 65536.
    #[schemars(range(min = 1, max = 65_536))]
    pub size: u32,
    /// Time limit of one round, microseconds, 1 to 60000000.
    pub timeout_us: u64,
}

/// Benchmark load on streams that the appliance opens for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchSpec {
    /// Operation of the load.
    pub load: BenchLoad,
    /// Peer of all streams.
    pub connect: ConnectSpec,
    /// For writes and reads: location in the peer's memory. Default: the only region that the peer advertises.
    #[serde(default)]
    pub target: Option<RemotePlace>,
    /// Kind of peer.
    #[serde(default)]
    pub peer: BenchPeer,
    /// For sends and echoes over bare DDP: queue number at the peer. Default: 0.
    #[serde(default)]
    pub queue: u32,
    /// Number of streams, 1 to 256.
    #[schemars(range(min = 1, max = 256))]
    pub streams: u32,
    /// Message size in bytes: 1 to 16 MiB for writes and reads, 1 to 1 MiB for sends, 1 to 64 KiB for echoes.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub size: u32,
    /// Maximum number of outstanding messages per stream: 1 to 1024, for echoes 1 to 32.
    #[schemars(range(min = 1, max = 1024))]
    pub depth: u32,
    /// Duration of the load, microseconds, 1 us to 1 hour.
    #[schemars(range(min = 1, max = 3_600_000_000_u64))]
    pub time_us: u64,
    /// Open loop: messages per second of all streams together, independent of completions. The latency of a message
    /// counts from its due time. Default: a closed loop.
    #[serde(default)]
    pub rate: Option<u64>,
}

/// Kind of peer of a benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BenchPeer {
    /// Another appliance, or a program whose memory is named in `target`.
    #[default]
    Appliance,
    /// Server of perftest's `ib_write_bw -R` or `ib_read_bw -R`. It serves one stream; a second stream exchanges the
    /// parameters of the test.
    Perftest,
}

/// Operation of a benchmark load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BenchLoad {
    /// RDMA Writes, or tagged messages of bare DDP, into a region of the peer.
    Write,
    /// RDMA Reads from a region of the peer.
    Read,
    /// Sends, or untagged messages of bare DDP, which the peer discards.
    Send,
    /// Sends, or untagged messages of bare DDP, which the peer echoes.
    Echo,
    /// Opens and resets streams repeatedly, `streams` at a time. `size` and `depth` are ignored.
    Connect,
}

impl BenchLoad {
    /// Returns the name of the load.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::Echo => "echo",
            Self::Connect => "connect",
        }
    }

    /// Returns true if the load needs memory of the peer.
    pub fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::Read)
    }
}

/// Round-trip times of a ping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PingReport {
    /// Address and port of the peer.
    pub remote: String,
    /// Completed rounds. All bytes of each round were compared.
    pub rounds: u32,
    /// Bytes that the peer read and wrote in each round.
    pub size: u32,
    /// Minimum round-trip time, nanoseconds.
    pub min_ns: u64,
    /// Mean round-trip time, nanoseconds.
    pub mean_ns: u64,
    /// Median round-trip time, nanoseconds.
    pub median_ns: u64,
    /// 99th percentile of the round-trip time, nanoseconds.
    pub p99_ns: u64,
    /// Maximum round-trip time, nanoseconds.
    pub max_ns: u64,
}

/// Atomic operation on 64 bits of a peer's memory (RFC 7306).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AtomicSpec {
    /// Stream that carries the operation. It must be an RDMAP stream.
    pub via: Via,
    /// Location in the peer's memory.
    pub target: RemotePlace,
    /// Operation and operands.
    pub operation: AtomicChoice,
}

/// Kind and operands of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AtomicChoice {
    /// FetchAdd: adds to the value.
    FetchAdd {
        /// Addend. The sum wraps modulo 2^64.
        add: u64,
    },
    /// CmpSwap: stores a value if the memory holds `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Swap: stores a value unconditionally.
    Swap {
        /// New value.
        swap: u64,
    },
}

/// Result of an atomic operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AtomicDone {
    /// Value of the memory before the operation, decimal digits (it may exceed 2^53).
    pub original: String,
    /// Time from post to response, microseconds.
    pub time_us: u64,
}

/// An untagged message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendSpec {
    /// Stream that carries the message.
    pub via: Via,
    /// Queue number at the peer. Default: 0.
    #[serde(default)]
    pub queue: u32,
    /// Content of the message, in base64.
    #[serde(with = "bytes")]
    #[schemars(with = "schema_shapes::Base64")]
    pub data: Vec<u8>,
    /// Time to wait for one message from the peer, microseconds. The message, such as an echo, arrives on the same
    /// queue or on queue 0, and is returned. 0: no wait.
    #[serde(default)]
    pub wait_reply_us: u64,
}

/// Result of a send. The peer's LLP has acknowledged the message, and no error has arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sent {
    /// Length of the message, bytes.
    pub bytes: u64,
    /// Time from post to acknowledgement, microseconds.
    pub time_us: u64,
    /// Message of the peer, in base64. `null` if none was awaited.
    #[serde(default, with = "optional_bytes")]
    #[schemars(with = "Option<schema_shapes::Base64>")]
    pub reply: Option<Vec<u8>>,
    /// True if the peer has confirmed receipt by a message, by a Read Response or by closing the stream gracefully.
    #[serde(default)]
    pub confirmed: bool,
}

/// Parses addresses of peers in JSON. A zone (`%eth0`) is refused, because a zone index has meaning only on the
/// client's own host (RFC 4007 §6).
mod address {
    use std::borrow::Cow;
    use std::net::SocketAddr;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer};

    pub(super) fn deserialize_address<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<SocketAddr, D::Error> {
        parse_address(&Cow::<'de, str>::deserialize(d)?).map_err(D::Error::custom)
    }

    pub(super) fn deserialize_addresses<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Vec<SocketAddr>, D::Error> {
        let texts = Vec::<Cow<'de, str>>::deserialize(d)?;
        texts
            .iter()
            .map(|text| parse_address(text))
            .collect::<Result<_, _>>()
            .map_err(D::Error::custom)
    }

    fn parse_address(text: &str) -> Result<SocketAddr, String> {
        if text.contains('%') {
            let text = text.escape_debug();
            return Err(format!(
                "`{text}` has a zone: leave it out, and name the appliance's interface in `interface`"
            ));
        }
        text.parse().map_err(|_| {
            let text = text.escape_debug();
            format!(
                "`{text}` is not an address and a port such as 192.0.2.1:7471 or [2001:db8::1]:7471"
            )
        })
    }
}

/// Serialises bytes as base64 in JSON.
pub(crate) mod bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        STANDARD.decode(&*text).map_err(|e| serde::de::Error::custom(format!("not base64: {e}")))
    }
}

/// Serialises optional bytes as base64 or null in JSON.
mod optional_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Wrapper(#[serde(with = "super::bytes")] Vec<u8>);

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Wrapper).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Wrapper>::deserialize(d)?.map(|wrapper| wrapper.0))
    }
}
