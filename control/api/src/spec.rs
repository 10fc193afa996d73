//! Bodies of the requests that use streams (connect, put, get, ping, atomic, send) and of their answers.

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
    /// Revision, 0 to 2; by default 1 for bare DDP and 2 for RDMAP.
    #[schemars(range(max = 2))]
    pub revision: Option<u8>,
    /// With revision 0, the first draft's Start Key instead of request frames. It carries no private
    /// data: the target is named by STag and TO.
    pub start_key: bool,
    /// Ask the peer for markers; by default with bare DDP alone.
    pub markers: Option<bool>,
    /// Ask for CRCs.
    pub crc: bool,
}

impl Default for MpaChoice {
    fn default() -> Self {
        Self { revision: None, start_key: false, markers: None, crc: true }
    }
}

/// The protocol above DDP on a stream that is opened from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UlpChoice {
    /// None: bare DDP.
    #[default]
    Ddp,
    /// RDMAP.
    Rdmap,
}

/// RDMAP parameters of a stream that the appliance opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RdmapChoice {
    /// Most Reads and atomics of the peer that await their response at one time, 0 to 1024.
    #[schemars(range(max = 1024))]
    pub ird: u16,
    /// The same of the appliance's own.
    #[schemars(range(max = 1024))]
    pub ord: u16,
    /// The kind of peer, as a listener's `peer`.
    #[schemars(schema_with = "schema_shapes::peers")]
    pub peer: String,
    /// The responder may send first: the peer-to-peer model of RFC 6581.
    pub peer_to_peer: bool,
    /// Try revision 1 when the peer closes the connection upon revision 2.
    pub retry_revision_1: bool,
}

impl Default for RdmapChoice {
    fn default() -> Self {
        let peer = "standard".to_owned();
        Self { ird: 32, ord: 32, peer, peer_to_peer: false, retry_revision_1: false }
    }
}

/// A peer to connect to. Names are resolved by the client, which passes all addresses of a name: the appliance knows which
/// of them its interfaces reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectSpec {
    /// `192.0.2.1:7471` or `[2001:db8::1]:7471`.
    #[schemars(with = "schema_shapes::SocketAddress")]
    #[serde(deserialize_with = "address::deserialize_address")]
    pub remote: SocketAddr,
    /// More addresses of the same peer, at most 31. All are tried in turn until a stream stands: those on the link of an
    /// interface first, then those with a route; others are not tried.
    #[schemars(with = "Vec<schema_shapes::SocketAddress>", length(max = 31))]
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "address::deserialize_addresses"
    )]
    pub alternatives: Vec<SocketAddr>,
    /// Interface to use; by default the one with a route. A link-local address needs it where several interfaces have IPv6.
    #[serde(default)]
    pub interface: Option<String>,
    /// What carries DDP.
    #[serde(default)]
    pub transport: Transport,
    /// Over SCTP, the peer's UDP port where packets are to go in UDP (RFC 6951).
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub udp_port: Option<u16>,
    /// Differentiated services codepoint, 0 to 63; by default the interface's.
    #[serde(default)]
    #[schemars(range(max = 63))]
    pub dscp: Option<u8>,
    /// Time to live, or hop limit, 1 to 255; by default the interface's.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub ttl: Option<u8>,
    /// The protocol above DDP.
    #[serde(default)]
    pub ulp: UlpChoice,
    /// RDMAP's parameters; of no meaning for bare DDP.
    #[serde(default)]
    pub rdmap: RdmapChoice,
    /// MPA parameters; of no meaning over SCTP.
    #[serde(default)]
    pub mpa: MpaChoice,
    /// Regions that the peer may reach; our private data advertises them.
    #[serde(default)]
    pub regions: Vec<String>,
    /// Time for the open, up to a day, microseconds; by default 30 s. Of a put, get, send, ping or atomic on a stream of its
    /// own, time for all of it.
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

    /// Most addresses of a peer.
    pub const MAX_ADDRESSES: usize = 32;

    /// Returns all addresses of the peer.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        std::iter::once(self.remote).chain(self.alternatives.iter().copied())
    }

    /// Returns the time limit of the open, and of an operation on a stream of its own.
    pub fn timeout(&self) -> Option<Duration> {
        self.within_us.map(Duration::from_micros)
    }

    /// Returns the fields of the IP headers.
    pub fn ip_fields(&self) -> IpFields {
        IpFields { dscp: self.dscp, ttl: self.ttl }
    }

    /// Returns MPA's revision: by default 1 for DDP and 2 for RDMAP.
    pub fn revision(&self) -> u8 {
        self.mpa.revision.unwrap_or(match self.ulp {
            UlpChoice::Ddp => 1,
            UlpChoice::Rdmap => 2,
        })
    }

    /// Returns whether markers are requested of the peer: by default for DDP only.
    pub fn markers(&self) -> bool {
        self.mpa.markers.unwrap_or(self.ulp == UlpChoice::Ddp)
    }
}

/// The stream that a request uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Via {
    /// A new one, closed afterwards.
    Connect(ConnectSpec),
    /// An open one, left open.
    Stream(StreamId),
}

/// A file to send into a peer's region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutSpec {
    /// Absolute path of an ordinary file or a pipe (FIFO); the appliance opens it, which takes the role `admin`. Without it, the
    /// bytes are the body of `POST /v1/jobs/{id}/input`, which must begin within 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<schema_shapes::AbsolutePath>")]
    pub file: Option<PathBuf>,
    /// The stream.
    pub via: Via,
    /// Where in the peer's memory.
    pub target: RemotePlace,
}

/// A place in a peer's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RemotePlace {
    /// A region that the peer advertised.
    Region {
        /// Its name.
        name: String,
        /// Bytes from its first one.
        #[serde(default)]
        offset: u64,
    },
    /// Memory whose steering tag is known by other means.
    Tagged {
        /// Steering tag.
        stag: u32,
        /// Tagged offset of the first byte.
        to: u64,
    },
}

/// Bytes of a peer's memory to fetch with RDMA Reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSpec {
    /// The stream, an RDMAP stream.
    pub via: Via,
    /// Where in the peer's memory.
    pub source: RemotePlace,
    /// Bytes; of an advertised region by default all that follow.
    #[serde(default)]
    pub length: Option<u64>,
    /// Where the fetched bytes are written.
    pub sink: GetSink,
}

/// Where fetched bytes go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GetSink {
    /// A new file, by absolute path; the appliance writes it once all bytes have arrived.
    File(#[schemars(with = "schema_shapes::AbsolutePath")] PathBuf),
    /// A region of the appliance.
    Region {
        /// Its name.
        name: String,
        /// Bytes from its first one.
        #[serde(default)]
        offset: u64,
    },
}

/// Rounds of librdmacm's rping, as its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PingSpec {
    /// The peer: an rping server.
    pub connect: ConnectSpec,
    /// Rounds, 1 to 100000.
    #[schemars(range(min = 1, max = 100_000))]
    pub count: u32,
    /// Bytes that the peer reads and writes in each, 1 to 65536.
    #[schemars(range(min = 1, max = 65_536))]
    pub size: u32,
    /// Time for one round, microseconds.
    pub timeout_us: u64,
}

/// A load on streams that are opened for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BenchSpec {
    /// What is done again and again.
    pub load: BenchLoad,
    /// The peer.
    pub connect: ConnectSpec,
    /// Of writes and reads, where in the peer's memory; by default in the only region that it offers.
    #[serde(default)]
    pub target: Option<RemotePlace>,
    /// What the peer is.
    #[serde(default)]
    pub peer: BenchPeer,
    /// Of sends and echoes over bare DDP, the peer's queue.
    #[serde(default)]
    pub queue: u32,
    /// Streams, 1 to 256.
    #[schemars(range(min = 1, max = 256))]
    pub streams: u32,
    /// Bytes of each message: of writes and reads 1 to 16 MiB, of sends 1 to 1 MiB, of echoes 1 to 64 KiB.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub size: u32,
    /// Messages of each stream that are posted and not complete, 1 to 1024; of echoes 1 to 32.
    #[schemars(range(min = 1, max = 1024))]
    pub depth: u32,
    /// Microseconds for which messages are posted, up to an hour.
    #[schemars(range(min = 1, max = 3_600_000_000_u64))]
    pub time_us: u64,
    /// An open loop: messages a second of all streams together, whatever has become of those before. Their times
    /// count from the moment at which they were due.
    #[serde(default)]
    pub rate: Option<u64>,
}

/// The peer of a bench.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BenchPeer {
    /// Another appliance, or a program whose memory is named.
    #[default]
    Appliance,
    /// The server of `ib_write_bw -R` or `ib_read_bw -R` of perftest: it serves one stream, and has one more for what
    /// both sides must know.
    Perftest,
}

/// What a bench does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BenchLoad {
    /// Writes, or tagged messages, into a region of the peer.
    Write,
    /// RDMA Reads from a region of the peer.
    Read,
    /// Sends, or untagged messages, that the peer discards.
    Send,
    /// Sends, or untagged messages, that the peer sends back.
    Echo,
    /// Streams are opened and reset, again and again, `streams` at a time; `size` and `depth` have no meaning.
    Connect,
}

impl BenchLoad {
    /// Returns the word of the load.
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

/// Round trips of a ping.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PingReport {
    /// The peer.
    pub remote: String,
    /// Rounds, in each of which every byte was compared.
    pub rounds: u32,
    /// Bytes that the peer read and wrote in each.
    pub size: u32,
    /// The shortest, nanoseconds.
    pub min_ns: u64,
    /// The mean, nanoseconds.
    pub mean_ns: u64,
    /// The median, nanoseconds.
    pub median_ns: u64,
    /// The 99th percentile, nanoseconds.
    pub p99_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
}

/// One atomic operation on 64 bits of a peer's memory (RFC 7306).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AtomicSpec {
    /// The stream, an RDMAP stream.
    pub via: Via,
    /// Where in the peer's memory.
    pub target: RemotePlace,
    /// What to do.
    pub operation: AtomicChoice,
}

/// What an atomic operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AtomicChoice {
    /// Adds to the value.
    FetchAdd {
        /// The summand; the sum wraps.
        add: u64,
    },
    /// Stores a value if the memory holds another one.
    CompareSwap {
        /// The value that it must hold.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Stores a value.
    Swap {
        /// The value to store.
        swap: u64,
    },
}

/// Result of an atomic operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AtomicDone {
    /// What the memory held before, decimal digits (it may exceed 2^53).
    pub original: String,
    /// Microseconds from post to response.
    pub time_us: u64,
}

/// An untagged message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendSpec {
    /// The stream.
    pub via: Via,
    /// Queue number; 0 by default.
    #[serde(default)]
    pub queue: u32,
    /// The bytes, in base64.
    #[serde(with = "bytes")]
    #[schemars(with = "schema_shapes::Base64")]
    pub data: Vec<u8>,
    /// Wait this long for one message from the peer on the same queue (an echo) and return it;
    /// microseconds, 0 for not at all.
    #[serde(default)]
    pub wait_reply_us: u64,
}

/// Result of a send: the peer's LLP has acknowledged the message, and no error came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sent {
    /// Its bytes.
    pub bytes: u64,
    /// Microseconds from post to acknowledgement.
    pub time_us: u64,
    /// The peer's message, in base64, if one was awaited.
    #[serde(default, with = "optional_bytes")]
    #[schemars(with = "Option<schema_shapes::Base64>")]
    pub reply: Option<Vec<u8>>,
    /// The peer has it: it has answered a message or a Read, or has closed in order.
    #[serde(default)]
    pub confirmed: bool,
}

/// Addresses of peers in JSON, without a zone: this host's zones differ from the appliance's
/// (RFC 4007 §6).
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

/// Bytes as base64 in JSON.
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

/// Optional bytes as base64 or null in JSON.
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
