//! IPsec in the API: SAs and policies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A security association of IPsec. Its keys are not told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpsecSaInfo {
    /// Its name at its receiver (RFC 4303 §2.1).
    pub spi: u32,
    /// `in` or `out`.
    pub direction: String,
    /// Its name in the configuration, if it stands there.
    pub name: Option<String>,
    /// The policy that it serves.
    pub policy: String,
    /// Encryption and integrity, as IKE daemons call it.
    pub algorithm: String,
    /// In tunnel mode, source and destination of its packets.
    pub tunnel: Option<[String; 2]>,
    /// It has UDP around it (RFC 3948).
    pub udp: bool,
    /// The last sequence number sent, or the highest received.
    pub sequence: u64,
    /// Packets that went by it since the start.
    pub packets: u64,
    /// Bytes of those without ESP, IP headers included.
    pub bytes: u64,
    /// Of an SA of the kernel that is not used: why.
    pub refused: Option<String>,
}

/// A policy of IPsec (RFC 4301 §4.4.1), in the order in which they are looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpsecPolicyInfo {
    /// Its name; of one of the kernel what it asks for.
    pub name: String,
    /// `in` or `out`; none: both.
    pub direction: Option<String>,
    /// Our addresses.
    pub local: String,
    /// The peer's.
    pub remote: String,
    /// The protocol above IP; none: any.
    pub protocol: Option<u8>,
    /// Our ports, the first and the last.
    pub local_ports: [u16; 2],
    /// The peer's.
    pub remote_ports: [u16; 2],
    /// `protect`, `bypass` or `discard`.
    pub action: String,
    /// Our end of the tunnel and the peer's, in tunnel mode.
    pub tunnel: Option<[String; 2]>,
    /// Of the kernel's: lower ones come first.
    pub priority: Option<u32>,
    /// Of one of the kernel that is not served as it stands there: why.
    pub refused: Option<String>,
}
