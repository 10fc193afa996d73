//! The bodies of requests that use streams: connect, put, send.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::StreamId;

/// MPA parameters of a stream that is opened from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MpaChoice {
    /// Revision, 0 or 1.
    pub revision: u8,
    /// With revision 0, the first draft's Start Key instead of request frames. It carries no private
    /// data: the target is named by STag and TO.
    pub start_key: bool,
    /// Ask the peer for markers.
    pub markers: bool,
    /// Ask for CRCs.
    pub crc: bool,
}

impl Default for MpaChoice {
    fn default() -> Self {
        Self { revision: 1, start_key: false, markers: true, crc: true }
    }
}

/// A peer to connect to. Names are resolved by the client: the appliance wants an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectSpec {
    /// `192.0.2.1:7471` or `[2001:db8::1]:7471`.
    pub remote: std::net::SocketAddr,
    /// Interface to use; by default the one with a route.
    #[serde(default)]
    pub interface: Option<String>,
    /// MPA parameters.
    #[serde(default)]
    pub mpa: MpaChoice,
    /// Regions that the peer may reach and is told about in our private data.
    #[serde(default)]
    pub regions: Vec<String>,
}

/// Where a stream comes from: a new one, or one that stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Via {
    /// Opens one, and closes it afterwards.
    Connect(ConnectSpec),
    /// Uses this one, and leaves it open.
    Stream(StreamId),
}

/// A file to send into a peer's region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PutSpec {
    /// Absolute path; the appliance opens it.
    pub file: PathBuf,
    /// The stream.
    pub via: Via,
    /// Where in the peer's memory.
    pub target: PutTarget,
}

/// A place in a peer's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PutTarget {
    /// A region that the peer advertised.
    Region {
        /// Its name.
        name: String,
        /// Octets from its first one.
        #[serde(default)]
        offset: u64,
    },
    /// A steering tag that is known otherwise.
    Tagged {
        /// Steering tag.
        stag: u32,
        /// Tagged offset.
        to: u64,
    },
}

/// An untagged message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendSpec {
    /// The stream.
    pub via: Via,
    /// Queue number.
    #[serde(default)]
    pub queue: u32,
    /// The octets, in base64.
    #[serde(with = "octets")]
    pub data: Vec<u8>,
    /// Wait this long for one message from the peer on the same queue (an echo) and return it;
    /// microseconds, 0 for not at all.
    #[serde(default)]
    pub wait_reply_us: u64,
}

/// A message was acknowledged by the peer's LLP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Its octets.
    pub octets: u64,
    /// Microseconds from post to acknowledgement.
    pub time_us: u64,
    /// The peer's message, in base64, if one was awaited.
    #[serde(default, with = "optional_octets")]
    pub reply: Option<Vec<u8>>,
}

/// Octets as base64 in JSON.
pub(crate) mod octets {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        octets: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(octets))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        STANDARD.decode(&*text).map_err(|e| serde::de::Error::custom(format!("not base64: {e}")))
    }
}

/// Optional octets as base64 or null in JSON.
mod optional_octets {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Wrapper(#[serde(with = "super::octets")] Vec<u8>);

    pub(super) fn serialize<S: Serializer>(
        octets: &Option<Vec<u8>>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        octets.clone().map(Wrapper).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        Ok(Option::<Wrapper>::deserialize(d)?.map(|wrapper| wrapper.0))
    }
}
